//! Descriptions that are told what became of their file by another one of this process.
#![allow(unsafe_code)] // A system call.

use core::ffi::c_int;

use holdfast_cache::{Client, FileRef, Origin};
use holdfast_session::Stat;

use crate::descriptions::{self, State};
use crate::fds::{self, Row};
use crate::raw::{self, call};

/// The program may have other descriptions of a file that is the cache's from now on, which were
/// left to the kernel when nobody could vouch for them: what they write is now to be logged too, or
/// a replay would cover it with older bytes.
pub fn adopt_others(file: FileRef, stat: &Stat) {
    for (fd, description) in fds::described(0, c_int::MAX) {
        let moment = fds::moment(fd);
        let is_it = || raw::fstat(fd).is_ok_and(|other| (other.dev, other.ino) == (stat.dev, stat.ino));
        // Other threads may close or replace the number.
        let is_still = || {
            matches!(moment.row(), Row::Described(now) if core::ptr::eq(now, description)) && moment.lasts(fd)
        };
        if description.state() == State::Plain && is_it() && is_still() {
            description.add_flags(descriptions::SHARED);
            description.set_state(State::Managed(file));
        }
    }
}

/// A file that was opened without a name has one now, and can be managed as any other that was
/// there before it was opened. Where every write is promised to be durable, those before it had a
/// name are synced now that somebody may find them.
pub fn note_named(client: &Client, stat: &Stat) {
    let mut is_to_sync = stat.regular && !client.logs_on_sync();
    for (fd, description) in fds::described(0, c_int::MAX) {
        let is_it = description.file() == Some((stat.dev, stat.ino));
        if is_it && description.flags() & descriptions::NAMELESS != 0 {
            if is_to_sync {
                // SAFETY: touches no memory.
                is_to_sync = raw::synced(fd, unsafe { call!(libc::SYS_fsync, fd) }) < 0;
            }
            description.remove_flags(descriptions::NAMELESS);
            description.set_state(State::Pending(Origin::Opened));
        }
    }
}
