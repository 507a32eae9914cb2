//! What each descriptor number of the program stands for: one word per number.
//!
//! Numbers from 65536 on are not tracked: they are looked at each time. The table is written only
//! by hooks that open, duplicate or close; a child that runs in its parent's memory never writes
//! it.
//!
//! A word counts its changes and says while one is under way, so that a writer can tell whether the
//! number stood for the same file from before its call until after it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::descriptions::{self, Description};

const TRACKED: usize = 65_536;

const KIND_MASK: u64 = 3;
const UNKNOWN: u64 = 0;
const IGNORED: u64 = 1;
const DESCRIBED: u64 = 2;
const READABLE: u64 = 3;
/// The kernel is about to close the number or to give it to another file, or has just done so.
const CHANGING: u64 = 1 << 22;
/// Counts changes, so that a word does not come back while somebody looks away.
const CHANGE: u64 = 1 << 23;
const CHANGES: u64 = 0xff80_0000;
const MEANING: u64 = !(CHANGES | CHANGING);

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

/// Whether a number has no row.
pub fn is_untracked(fd: c_int) -> bool {
    row(fd).is_none()
}

#[inline]
fn decode(word: u64) -> Row {
    match word & KIND_MASK {
        IGNORED => Row::Ignored,
        READABLE => Row::Readable,
        DESCRIBED => match descriptions::get((word >> 2) as u32 & 0xf_ffff) {
            // The row was freed and taken again since the word was read: whoever did it closed the
            // number.
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
        Some(row) => decode(row.load(Ordering::Acquire)),
        None => Row::Unknown,
    }
}

/// A moment in the life of a number.
#[derive(Clone, Copy)]
pub struct Moment(u64);

/// The present moment of `fd`.
#[inline]
pub fn moment(fd: c_int) -> Moment {
    Moment(row(fd).map_or(UNKNOWN, |row| row.load(Ordering::SeqCst)))
}

impl Moment {
    /// What the number stood for.
    #[inline]
    pub fn row(self) -> Row {
        decode(self.0)
    }

    /// Whether the number stood for one thing from this moment until now. A call made in between
    /// went there.
    #[inline]
    pub fn lasts(self, fd: c_int) -> bool {
        self.0 & CHANGING == 0 && row(fd).is_none_or(|row| row.load(Ordering::SeqCst) == self.0)
    }
}

fn changed(before: u64, word: u64) -> u64 {
    word & (MEANING | CHANGING) | before.wrapping_add(CHANGE) & CHANGES
}

fn replace(fd: c_int, word: u64) {
    let Some(row) = row(fd) else { return };
    if word & KIND_MASK != UNKNOWN {
        USED.fetch_max(fd as u32 + 1, Ordering::Relaxed);
    }
    let update = |before| Some(changed(before, word));
    if let Ok(before) = row.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update)
        && let Row::Described(description) = decode(before)
    {
        description.release();
    }
}

/// Replaces the word only if the number's moment still lasts: what was found out about it is then
/// still true.
fn replace_at(fd: c_int, moment: Moment, word: u64) -> bool {
    let Some(row) = row(fd) else { return false };
    let replaced = moment.0 & CHANGING == 0
        && row
            .compare_exchange(moment.0, changed(moment.0, word), Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
    if replaced {
        USED.fetch_max(fd as u32 + 1, Ordering::Relaxed);
        if let Row::Described(description) = decode(moment.0) {
            description.release();
        }
    }
    replaced
}

/// Forgets `fd`: it was opened anew.
#[inline]
pub fn retire(fd: c_int) {
    if row(fd).is_some_and(|row| row.load(Ordering::Relaxed) & (KIND_MASK | CHANGING) != UNKNOWN) {
        replace(fd, UNKNOWN);
    }
}

/// Forgets `fd`, which is about to be closed. Until [`closed`] nobody may say what it is.
#[inline]
pub fn closing(fd: c_int) {
    replace(fd, UNKNOWN | CHANGING);
}

/// The number was closed, and may be another file's by now, whose hook has then said so.
#[inline]
pub fn closed(fd: c_int) {
    settle(fd, UNKNOWN);
}

/// The kernel is about to put another file in the place of `fd`. To be followed by [`copy`] or
/// [`kept`].
pub fn replacing(fd: c_int) {
    if let Some(row) = row(fd) {
        let _ =
            row.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| Some(changed(word, word) | CHANGING));
    }
}

/// The kernel refused to.
pub fn kept(fd: c_int) {
    settle(fd, MEANING);
}

/// Ends a change, unless somebody else has put an end to it; keeps what `mask` leaves of the word's
/// meaning.
fn settle(fd: c_int, mask: u64) {
    if let Some(row) = row(fd) {
        let word = row.load(Ordering::SeqCst);
        if word & CHANGING != 0 && (mask == MEANING || word & KIND_MASK == UNKNOWN) {
            let settled = changed(word, word) & !CHANGING;
            let _ = row.compare_exchange(word, settled, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

/// In a forked child: changes that other threads of the parent were about to make will not be
/// followed to their end.
pub fn reset_changes() {
    for fd in 0..USED.load(Ordering::Relaxed) as c_int {
        if moment(fd).0 & CHANGING != 0 {
            replace(fd, UNKNOWN);
        }
    }
}

/// Notes that `fd` is no regular file.
pub fn ignore(fd: c_int) {
    replace(fd, IGNORED);
}

/// As [`ignore`], of a number that was looked at in that moment.
pub fn ignore_at(fd: c_int, moment: Moment) {
    replace_at(fd, moment, IGNORED);
}

/// Notes that `fd` can only read; it may be a regular file.
pub fn note_readable(fd: c_int) {
    replace(fd, READABLE);
}

/// As [`note_readable`], of a number that was looked at in that moment.
pub fn note_readable_at(fd: c_int, moment: Moment) {
    replace_at(fd, moment, READABLE);
}

/// All numbers that can only read what may be a regular file.
pub fn readable() -> impl Iterator<Item = c_int> {
    (0..USED.load(Ordering::Relaxed) as c_int).filter(|&fd| matches!(look(fd), Row::Readable))
}

fn described_as(index: u32, description: &'static Description) -> u64 {
    DESCRIBED | u64::from(index) << 2 | u64::from(description.turn()) << 32
}

/// Notes that `fd` stands for the description just allocated at `index`; takes over its first
/// reference. False, and nothing noted, when the number is not tracked.
pub fn describe(fd: c_int, index: u32, description: &'static Description) -> bool {
    if row(fd).is_none() {
        return false;
    }
    replace(fd, described_as(index, description));
    true
}

/// As [`describe`], of a number that was looked at in that moment; false too when it is another
/// file's by now.
pub fn describe_at(fd: c_int, moment: Moment, index: u32, description: &'static Description) -> bool {
    replace_at(fd, moment, described_as(index, description))
}

/// Notes that `to` is now a duplicate of `from`.
pub fn copy(from: c_int, to: c_int) {
    let word = row(from).map_or(UNKNOWN, |row| row.load(Ordering::Acquire)) & MEANING;
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

/// Forgets all numbers in a range while `close` closes them.
pub fn closing_range<R>(first: u32, last: u32, close: impl FnOnce() -> R) -> R {
    let end = USED.load(Ordering::Relaxed).min(last.saturating_add(1));
    for fd in first..end {
        closing(fd as c_int);
    }
    let result = close();
    for fd in first..end {
        closed(fd as c_int);
    }
    result
}
