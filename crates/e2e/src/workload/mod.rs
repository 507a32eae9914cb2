//! The programs under load that are cut off: how each is prepared, started and judged afterwards.

pub mod fio;
pub mod maildir;
pub mod many;
pub mod operations;
pub mod redis;
pub mod rocksdb;
pub mod sqlite;
