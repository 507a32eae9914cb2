//! The programs under load that are cut off: how each is prepared, started and judged afterwards.

pub mod appends;
pub mod dpkg;
pub mod editor;
pub mod fio;
pub mod git;
pub mod golang;
pub mod leveldb;
pub mod maildir;
pub mod many;
pub mod mariadb;
pub mod operations;
pub mod postgres;
pub mod redis;
pub mod rocksdb;
pub mod rsync;
pub mod sqlite;
pub mod static_c;
mod template;

use std::sync::{Arc, Mutex, Weak};

/// What several workloads start from, made for the first of them and gone with the last.
fn shared<T>(place: &Mutex<Weak<T>>, make: impl FnOnce() -> T) -> Arc<T> {
    let mut place = place.lock().expect("no maker panics");
    place.upgrade().unwrap_or_else(|| {
        let made = Arc::new(make());
        *place = Arc::downgrade(&made);
        made
    })
}
