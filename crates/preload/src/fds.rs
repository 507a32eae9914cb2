//! What each descriptor number of the program stands for: one word per number.
//!
//! Numbers from 65536 on are not tracked: they are looked at each time. The table is written only by hooks that
//! open, duplicate or close; a child that runs in its parent's memory never writes it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::descriptions::{self, Description};

const TRACKED: usize = 65_536;

const KIND_MASK: u64 = 3;
const UNKNOWN: u64 = 0;
const IGNORED: u64 = 1;
const DESCRIBED: u64 = 2;
const READABLE: u64 = 3;

static ROWS: [AtomicU64; TRACKED] = [const { AtomicU64::new(UNKNOWN) }; TRACKED];
/// One more than the highest number that ever had a row.
static USED: AtomicU32 = AtomicU32::new(0);

/// What a number stands for.
#[derive(Clone, Copy)]
pub enum Row {
    /// Not looked at yet, or not tracked.
    Unknown,
    /// No regular file.
    Ignored,
    /// A regular file that cannot be changed through it.
    Readable,
    /// A description that may write to a regular file.
    Described(&'static Description),
}

fn row(fd: c_int) -> Option<&'static AtomicU64> {
    usize::try_from(fd).ok().and_then(|fd| ROWS.get(fd))
}

fn decode(word: u64) -> Row {
    match word & KIND_MASK {
        IGNORED => Row::Ignored,
        READABLE => Row::Readable,
        DESCRIBED => match descriptions::get((word >> 2) as u32 & 0xf_ffff) {
            // The row was freed and taken again since the word was read: whoever did it closed the number.
            Some(description) if description.turn() == (word >> 32) as u32 => Row::Described(description),
            _ => Row::Unknown,
        },
        _ => Row::Unknown,
    }
}

/// What `fd` stands for.
#[inline]
pub fn look(fd: c_int) -> Row {
    match row(fd) {
        Some(row) => match row.load(Ordering::Acquire) {
            IGNORED => Row::Ignored,
            UNKNOWN => Row::Unknown,
            word => decode(word),
        },
        None => Row::Unknown,
    }
}

fn replace(fd: c_int, word: u64) {
    let Some(row) = row(fd) else { return };
    if word != UNKNOWN {
        USED.fetch_max(fd as u32 + 1, Ordering::Relaxed);
    }
    let before = row.swap(word, Ordering::AcqRel);
    if let Row::Described(description) = decode(before) {
        description.release();
    }
}

/// Forgets `fd`: it is about to be closed, or was opened anew.
#[inline]
pub fn retire(fd: c_int) {
    if row(fd).is_some_and(|row| row.load(Ordering::Relaxed) != UNKNOWN) {
        replace(fd, UNKNOWN);
    }
}

/// Notes that `fd` is no regular file.
pub fn ignore(fd: c_int) {
    replace(fd, IGNORED);
}

/// Notes that `fd` is a regular file, which it can only read.
pub fn note_readable(fd: c_int) {
    replace(fd, READABLE);
}

/// All numbers that can only read a regular file.
pub fn readable() -> impl Iterator<Item = c_int> {
    (0..USED.load(Ordering::Relaxed) as c_int).filter(|&fd| matches!(look(fd), Row::Readable))
}

/// Notes that `fd` stands for the description just allocated at `index`; takes over its first reference.
/// False, and nothing noted, when the number is not tracked.
pub fn describe(fd: c_int, index: u32, description: &'static Description) -> bool {
    if row(fd).is_none() {
        return false;
    }
    replace(fd, DESCRIBED | u64::from(index) << 2 | u64::from(description.turn()) << 32);
    true
}

/// Notes that `to` is now a duplicate of `from`.
pub fn copy(from: c_int, to: c_int) {
    let word = row(from).map_or(UNKNOWN, |row| row.load(Ordering::Acquire));
    if let Row::Described(description) = decode(word) {
        description.retain();
        if row(to).is_none() {
            description.release();
        }
    }
    replace(to, word);
}

/// All described numbers in a range.
pub fn described(first: c_int, last: c_int) -> impl Iterator<Item = (c_int, &'static Description)> {
    let end = (USED.load(Ordering::Relaxed) as i64).min(i64::from(last) + 1) as c_int;
    (first.max(0)..end).filter_map(|fd| match look(fd) {
        Row::Described(description) => Some((fd, description)),
        _ => None,
    })
}

/// Forgets all numbers in a range.
pub fn retire_range(first: u32, last: u32) {
    let end = USED.load(Ordering::Relaxed).min(last.saturating_add(1));
    for fd in first..end {
        retire(fd as c_int);
    }
}
