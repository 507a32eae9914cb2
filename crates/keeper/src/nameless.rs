//! Notices that the pool has lost its name, and brings everything to the disk.
//!
//! Cleaners of temporary files and the end of a user's last session (RemoveIPC) remove files that
//! are in use. The keeper and its clients go on with the pool, and nobody finds it after a crash:
//! what was acknowledged by then would be gone. So from the notice on nothing more is absorbed.
//! Must not take the keeper's own removal of its pool for somebody else's.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_cache::Reason;
use holdfast_durable::Events;
use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{FileType, fstat};

use crate::keeper::Keeper;

/// Between looks for files that became managed at that very moment.
const PAUSE: Duration = Duration::from_millis(100);
const LOOKS: u32 = 50;

/// Has the queue tell of changes of the pool's inode; its number of names is one. Gives the watch.
pub(crate) fn watch(keeper: &Keeper, queue: &OwnedFd) -> Option<i32> {
    let is_file = fstat(&keeper.pool_fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
    // What stands for a device may come and go.
    if !is_file {
        return None;
    }
    let pool = format!("/proc/self/fd/{}", keeper.pool_fd.as_raw_fd());
    inotify::add_watch(queue, pool, WatchFlags::ATTRIB).ok()
}

/// The pool's inode was told to have changed: whether it was given up, and there is nothing left to
/// wait for.
pub(crate) fn heard(keeper: &Keeper) -> bool {
    let is_nameless = fstat(&keeper.pool_fd).is_ok_and(|stat| stat.st_nlink == 0);
    if is_nameless {
        keeper.give_up_pool();
    }
    is_nameless
}

impl Keeper {
    /// Nothing more is absorbed, and everything comes to the disk.
    fn give_up_pool(&self) {
        self.is_nameless.store(true, Ordering::SeqCst);
        let mut failed = false;
        for look in 0..LOOKS {
            for file in self.durable.managed() {
                if let Err(error) = self.durable.bypass(&file, Reason::NoPool)
                    && !std::mem::replace(&mut failed, true)
                {
                    self.notes.trouble(format!("{}: {error}", file.meta().path.display()));
                }
            }
            // Names that only slots hold.
            self.drain();
            for file in self.durable.managed() {
                let _ = self.durable.try_let_go(&file, Reason::NoPool);
            }
            let is_absorbed = |file: &Arc<_>| self.durable.is_absorbed(file);
            if look == 0 {
                let message = format!(
                    "pool {} was removed while it was in use, and nobody would find it after a crash: everything is on the \
                     disk now, and no more is absorbed; start the programs anew, with a pool where nothing removes it",
                    self.config.pool.display()
                );
                self.notes.announce(&message);
                self.notes.trouble(message);
            }
            if self.is_stopping() || look > 0 && !self.durable.managed().iter().any(is_absorbed) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether the pool has lost its name.
    pub(crate) fn is_nameless(&self) -> bool {
        self.is_nameless.load(Ordering::SeqCst)
    }
}
