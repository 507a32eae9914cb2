//! What musl writes by system calls of its own, in front of which nothing can be put: streams of
//! stdio, `dprintf`, POSIX AIO.
//!
//! The file behind each descriptor that is used so is left to the kernel before that can happen,
//! for as long as any such descriptor of it is open, and is never managed through another
//! descriptor of this process meanwhile. Must do nothing where libc's entries are patched.

use core::ffi::c_int;

use holdfast_cache::{Client, Origin, Reason};

use crate::descriptions::{DSYNC, SHARED, SYNC};
use crate::stream_marks::{self, STANDARD, may_write};
use crate::target::{self, Target};
use crate::{critical, fds, process, raw};

pub use crate::stream_marks::{active, closed, closing, has};

/// This process has become a client, and its C library is musl.
pub fn begin() {
    stream_marks::activate();
    STANDARD.into_iter().for_each(give);
}

/// A stream is about to be made of `fd`, or has been.
pub fn opened(fd: c_int) {
    stream_marks::count(fd);
    give(fd);
}

/// libc is about to write through `fd` by itself, without a stream of the program's.
pub fn writes(fd: c_int) {
    stream_marks::note_others(fd);
    give(fd);
}

/// Leaves the file behind `fd` to the kernel, as its state is now.
#[cold]
pub fn give(fd: c_int) {
    let Some(client) = process::client().filter(|_| active()) else { return };
    if !raw::fstat(fd).is_ok_and(|stat| stat.regular) || !may_write(fd) {
        return;
    }
    leave(client, fd);
    let fds::Row::Described(description) = fds::look(fd) else { return };
    // libc moves the cursor and sets flags, too.
    description.add_flags(SHARED);
    let flags = description.flags();
    let is_synced = raw::fcntl(fd, libc::F_GETFL, 0) & libc::O_DSYNC as isize != 0;
    if flags & DSYNC != 0 && !is_synced {
        // Nobody else makes its writes durable before they return.
        crate::reopen::restore_sync(fd, if flags & SYNC != 0 { libc::O_SYNC } else { libc::O_DSYNC });
    }
}

fn leave(client: &Client, fd: c_int) {
    for _ in 0..holdfast_session::TRIES {
        match target::of_change(fd) {
            Target::Managed(handle) if client.is_current(handle.file) => {
                // Fails only when the keeper is dead or the disk refuses the data; then every write
                // to the file fails, too.
                let _ = critical::section(|| client.bypass(handle.file, Reason::Libc));
                return;
            }
            Target::Managed(handle) => handle.forget(),
            _ => return,
        }
    }
}

/// In a forked child, which has the same streams: the keeper knows of its parent's alone.
pub fn tell_again(client: &Client) {
    if !active() {
        return;
    }
    for fd in stream_marks::all() {
        if raw::fstat(fd).is_ok_and(|stat| stat.regular)
            && may_write(fd)
            && let Ok(Some(file)) = client.register(fd, Origin::Libc, None, || false)
        {
            // As above.
            let _ = client.bypass(file, Reason::Libc);
        }
    }
}
