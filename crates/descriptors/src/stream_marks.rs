//! Which numbers libc may write to by itself ([`crate::streams`]). Nothing here looks at what files
//! hold.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

use crate::{open_flags, raw};

const TRACKED: usize = 65_536;
/// `stdout` and `stderr` are streams from the start.
pub const STANDARD: [c_int; 2] = [1, 2];
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

fn mark(fd: c_int) -> Option<&'static AtomicU16> {
    usize::try_from(fd).ok().and_then(|fd| MARKS.get(fd))
}

/// From now on this is one.
pub fn activate() {
    ACTIVE.store(true, Ordering::SeqCst);
}

/// Counts a stream of `fd`.
pub fn count(fd: c_int) {
    if let Some(mark) = mark(fd) {
        mark.fetch_add(1, Ordering::SeqCst);
        USED.fetch_max(fd as u32 + 1, Ordering::SeqCst);
    }
}

/// Something other than a stream writes through `fd`.
pub fn note_others(fd: c_int) {
    if let Some(mark) = mark(fd) {
        mark.fetch_or(OTHERS, Ordering::SeqCst);
        USED.fetch_max(fd as u32 + 1, Ordering::SeqCst);
    }
}

/// All numbers through which it may.
pub fn all() -> impl Iterator<Item = c_int> {
    (0..USED.load(Ordering::SeqCst) as c_int).filter(|&fd| has(fd))
}

/// Whether libc may write through `fd` by itself. Numbers that are not tracked count as such.
#[inline]
pub fn has(fd: c_int) -> bool {
    active() && (STANDARD.contains(&fd) || mark(fd).is_none_or(|mark| mark.load(Ordering::SeqCst) != 0))
}

/// A stream that [`count`] counted is gone.
pub fn closed(fd: c_int) {
    if let Some(mark) = mark(fd) {
        let less = |count: u16| (count & !OTHERS != 0).then(|| count - 1);
        // One that was not counted changes nothing.
        let _ = mark.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
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

/// Whether the number lets its file be written.
pub fn may_write(fd: c_int) -> bool {
    raw::check(raw::fcntl(fd, libc::F_GETFL, 0)).is_ok_and(|flags| open_flags::may_write(flags as c_int))
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
