//! What musl writes by system calls of its own, in front of which nothing can be put: streams of
//! stdio, `dprintf`, POSIX AIO.
//!
//! The file behind each descriptor that is used so is left to the kernel before that can happen,
//! for as long as any such descriptor of it is open, and is never managed through another
//! descriptor of this process meanwhile. Must do nothing where libc's entries are patched.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

use holdfast_cache::{Client, Origin, Reason};

use crate::descriptions::{DSYNC, SHARED, SYNC};
use crate::target::{self, Target};
use crate::{critical, fds, process, raw};

const TRACKED: usize = 65_536;
/// `stdout` and `stderr` are streams from the start.
const STANDARD: [c_int; 2] = [1, 2];
/// Set where something other than a stream writes through the number, until that is closed.
const OTHERS: u16 = 1 << 15;

static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Per number: how many streams write to it, whether or not it is still the descriptor they were
/// made for, and [`OTHERS`].
static MARKS: [AtomicU16; TRACKED] = [const { AtomicU16::new(0) }; TRACKED];
/// One more than the highest number that was ever marked.
static USED: AtomicU32 = AtomicU32::new(3);

/// Whether this is a client whose libc writes by itself.
#[inline]
pub fn active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// This process has become a client, and its C library is musl.
pub fn begin() {
    ACTIVE.store(true, Ordering::SeqCst);
    STANDARD.into_iter().for_each(give);
}

fn mark(fd: c_int) -> Option<&'static AtomicU16> {
    usize::try_from(fd).ok().and_then(|fd| MARKS.get(fd))
}

/// Whether libc may write through `fd` by itself. Numbers that are not tracked count as such.
#[inline]
pub fn has(fd: c_int) -> bool {
    active() && (STANDARD.contains(&fd) || mark(fd).is_none_or(|mark| mark.load(Ordering::SeqCst) != 0))
}

/// A stream is about to be made of `fd`, or has been.
pub fn opened(fd: c_int) {
    if let Some(mark) = mark(fd) {
        mark.fetch_add(1, Ordering::SeqCst);
        USED.fetch_max(fd as u32 + 1, Ordering::SeqCst);
    }
    give(fd);
}

/// A stream that [`opened`] counted is gone.
pub fn closed(fd: c_int) {
    if let Some(mark) = mark(fd) {
        let less = |count: u16| (count & !OTHERS != 0).then(|| count - 1);
        // One that was not counted changes nothing.
        let _ = mark.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

/// libc is about to write through `fd` by itself, without a stream of the program's.
pub fn writes(fd: c_int) {
    if let Some(mark) = mark(fd) {
        mark.fetch_or(OTHERS, Ordering::SeqCst);
        USED.fetch_max(fd as u32 + 1, Ordering::SeqCst);
    }
    give(fd);
}

/// The program closes `fd`.
#[inline]
pub fn closing(fd: c_int) {
    if active()
        && let Some(mark) = mark(fd)
    {
        mark.fetch_and(!OTHERS, Ordering::SeqCst);
    }
}

fn may_write(fd: c_int) -> bool {
    raw::check(raw::fcntl(fd, libc::F_GETFL, 0)).is_ok_and(|flags| target::may_write(flags as c_int))
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

/// Whether libc may write to a file by itself: through `fd`, or through another descriptor of this
/// process.
pub fn hold(fd: c_int, stat: &raw::Stat) -> bool {
    has(fd)
        || active()
            && (0..USED.load(Ordering::SeqCst) as c_int).any(|other| {
                has(other)
                    && raw::fstat(other)
                        .is_ok_and(|it| it.regular && (it.dev, it.ino) == (stat.dev, stat.ino))
                    && may_write(other)
            })
}

/// In a forked child, which has the same streams: the keeper knows of its parent's alone.
pub fn tell_again(client: &Client) {
    if !active() {
        return;
    }
    for fd in (0..USED.load(Ordering::SeqCst) as c_int).filter(|&fd| has(fd)) {
        if raw::fstat(fd).is_ok_and(|stat| stat.regular)
            && may_write(fd)
            && let Ok(Some(file)) = client.register(fd, Origin::Libc, None, || false)
        {
            // As above.
            let _ = client.bypass(file, Reason::Libc);
        }
    }
}
