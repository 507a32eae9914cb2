//! Waits for notices of two kinds in one queue: a user has 128 queues on most machines, and each
//! keeper of theirs needs some. What a notice means, `nameless` and `unmounts` say. Must never keep
//! a keeper that ends from ending.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use rustix::fs::inotify::{self, CreateFlags, Reader};

use crate::keeper::Keeper;
use crate::nameless;
use crate::unmounts::{self, Unmounts};

/// Watches until this process ends, or the pool is given up.
pub(crate) fn watch(keeper: &Arc<Keeper>) {
    let Ok(queue) = inotify::init(CreateFlags::CLOEXEC) else { return };
    unmounts::watch(&queue);
    let pool = nameless::watch(keeper, &queue);
    let keeper = Arc::downgrade(keeper);
    let _ = std::thread::Builder::new().name("notices".to_owned()).spawn(move || run(&keeper, &queue, pool));
}

fn run(keeper: &Weak<Keeper>, queue: &OwnedFd, pool: Option<i32>) {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut reader = Reader::new(queue, &mut buffer);
    let mut unmounts = Unmounts::default();
    loop {
        let Ok(notice) = reader.next() else { return };
        let [mut of_pool, mut of_unmounts] = [Some(notice.wd()) == pool, Some(notice.wd()) != pool];
        while !reader.is_buffer_empty() {
            let Ok(notice) = reader.next() else { break };
            if Some(notice.wd()) == pool { of_pool = true } else { of_unmounts = true }
        }
        let Some(keeper) = keeper.upgrade().filter(|keeper| !keeper.is_stopping()) else { return };
        if of_unmounts {
            unmounts.heard(&keeper);
        }
        if of_pool && nameless::heard(&keeper) {
            return;
        }
    }
}
