//! What each descriptor number of the program stands for: one word per number.
//!
//! Numbers from 65536 on are not tracked: they are looked at each time. The table is written only
//! by hooks that open, duplicate or close; a child that runs in its parent's memory never writes
//! it.
//!
//! A word counts its changes and says while one is under way. A call on a regular file holds its
//! number ([`hold`]) and finds no change under way, or waits until it is over; who closes a number
//! or puts another file in its place marks that, and waits for those who hold it. So the kernel
//! gives and takes numbers of regular files while nobody is in the midst of using them. What may
//! wait for the program itself (pipes, sockets, terminals: *ignored* numbers) holds nothing and is
//! waited for by nobody. Nobody waits with a mark of his own for another's, so no circle exists.
//!
//! The kernel may give a number away as soon as it has closed it, before whoever closed it is back:
//! the open that got it ends that change, and the one who made it finds another word there. Of a
//! duplicate at a number of the kernel's choice the table hears late, too: who then changes that
//! number, of which nothing is known, waits for all who are being given one ([`holds::CHOICE`]), or
//! their word would cover a newer one.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::descriptions::{self, Description};
use crate::holds::{self, Hold};
use crate::{cancels, critical, process, raw};

const TRACKED: usize = 65_536;
/// Numbers from there on share words that say of changes alone.
const HIGH: usize = 64;

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
static HIGH_ROWS: [AtomicU64; HIGH] = [const { AtomicU64::new(UNKNOWN) }; HIGH];
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

/// Where changes of a number are marked: its row, if it has one.
fn changes(fd: c_int) -> Option<&'static AtomicU64> {
    row(fd).or_else(|| usize::try_from(fd).ok().and_then(|fd| HIGH_ROWS.get(fd % HIGH)))
}

/// Whether a number has no row.
pub fn is_untracked(fd: c_int) -> bool {
    row(fd).is_none()
}

#[inline]
fn decode(word: u64) -> Row {
    match word & KIND_MASK {
        IGNORED => Row::Ignored,
        // Nobody may say what it is.
        _ if word & CHANGING != 0 => Row::Unknown,
        _ => meaning(word),
    }
}

/// What a word means, or did before the change that it speaks of.
#[inline]
fn meaning(word: u64) -> Row {
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

/// What `fd` stands for. Who holds a number is not told of a change that waits for its end: it
/// would take the description for one of which nothing is known, and write at its cursor while
/// another thread follows that, whose record would then stand for a place where the kernel did not
/// write (invariant 1).
#[inline]
pub fn look(fd: c_int) -> Row {
    let Some(row) = row(fd) else { return Row::Unknown };
    let word = row.load(Ordering::Acquire);
    if word & CHANGING != 0 && holds::has(fd) { meaning(word) } else { decode(word) }
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

/// Drops what a word stood for, which nobody finds any more.
fn drop_meaning(fd: c_int, before: u64) {
    if let Row::Described(description) = meaning(before) {
        // Of who still has it, in a call that began when the number was another's.
        holds::wait_for_others(fd);
        description.release();
    }
}

fn replace(fd: c_int, word: u64) {
    let Some(row) = row(fd) else { return };
    if word & KIND_MASK != UNKNOWN {
        USED.fetch_max(fd as u32 + 1, Ordering::Relaxed);
    }
    let update = |before| Some(changed(before, word));
    if let Ok(before) = row.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update) {
        drop_meaning(fd, before);
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

/// A change of a number that is under way.
struct Change {
    fd: c_int,
    /// The word that says so, which no other change has.
    word: u64,
}

impl Change {
    /// Marks a change, unless another is under way.
    fn begin(fd: c_int) -> Option<Self> {
        let row = changes(fd)?;
        let mark = |word: u64| (word & CHANGING == 0).then(|| changed(word, word) | CHANGING);
        let before = row.fetch_update(Ordering::SeqCst, Ordering::SeqCst, mark).ok()?;
        Some(Self { fd, word: changed(before, before) | CHANGING })
    }

    fn kind(&self) -> u64 {
        self.word & KIND_MASK
    }

    /// The kernel is about to give what the number stands for another one, of its own choice. Who
    /// uses that before it has its word takes the description for one of which nothing is known,
    /// and moves its cursor.
    fn unfollow_cursor(&self) {
        if let Row::Described(description) = meaning(self.word)
            && !cancels::is_single_threaded()
        {
            description.unfollow_cursor();
        }
    }

    /// Waits for those who are in the midst of using the number. None begins to from now on.
    fn wait_for_calls(&self) {
        if self.kind() != IGNORED {
            holds::wait_for_others(self.fd);
        }
    }

    /// Whether it is still to be made: a number of which nothing is known may have been given to
    /// somebody, who has told of it meanwhile.
    fn is_due(&self) -> bool {
        if self.kind() != UNKNOWN || cancels::is_single_threaded() {
            return true;
        }
        holds::wait_for_others(holds::CHOICE);
        changes(self.fd).is_some_and(|row| row.load(Ordering::SeqCst) == self.word)
    }

    /// Ends it, unless an open that was given the number has: with a word of another meaning, or
    /// with the same.
    fn end(self, word: Option<u64>) {
        let Some(row) = changes(self.fd) else { return };
        let settled = changed(self.word, word.unwrap_or(self.word)) & !CHANGING;
        let exchanged = row.compare_exchange(self.word, settled, Ordering::SeqCst, Ordering::SeqCst);
        if word.is_some()
            && exchanged.is_ok()
            && let Row::Described(description) = meaning(self.word)
        {
            description.release();
        }
    }
}

/// Why a number is not held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unheld {
    /// It is not open.
    Closed,
    /// It is no regular file's.
    NoFile,
}

/// Waits, outside of any section, while a change of `fd` is under way, unless it is of no regular
/// file by now, and so of nobody's concern.
#[cold]
fn wait_for_change(fd: c_int, looks: &mut u32) -> Result<(), Unheld> {
    match raw::fstat(fd) {
        Ok(stat) if stat.regular => {
            holds::pause(looks);
            Ok(())
        }
        Ok(_) => Err(Unheld::NoFile),
        Err(_) => Err(Unheld::Closed),
    }
}

/// Whether a number is open. A change of one that is not would not be noticed by an open that is
/// given it meanwhile.
fn is_open(fd: c_int) -> bool {
    raw::fcntl(fd, libc::F_GETFD, 0) >= 0
}

/// Makes a call that closes `fd`, which is forgotten.
pub fn closing(fd: c_int, close: impl Fn() -> isize) -> isize {
    let mut looks = 0;
    loop {
        let closed = critical::section(|| {
            let change = Change::begin(fd)?;
            if change.kind() == UNKNOWN && !cancels::is_single_threaded() && !is_open(fd) {
                change.end(None);
                return Some(-(libc::EBADF as isize));
            }
            if !change.is_due() {
                return None;
            }
            change.wait_for_calls();
            let result = close();
            change.end(Some(UNKNOWN));
            Some(result)
        });
        match closed {
            Some(result) => return result,
            None if is_alone(fd) || wait_for_change(fd, &mut looks).is_err() => return close(),
            None => {}
        }
    }
}

/// Makes a call of libc's that closes `fd`, and perhaps opens it again, and in which handlers may
/// run. The number is forgotten.
pub fn closing_unseen<R>(fd: c_int, close: impl FnOnce() -> R) -> R {
    if is_alone(fd) {
        return close();
    }
    let alone = holds::change_alone(fd);
    let mut looks = 0;
    let change = loop {
        match Change::begin(fd).filter(Change::is_due) {
            Some(change) => break change,
            None => holds::pause(&mut looks),
        }
    };
    change.wait_for_calls();
    let result = close();
    change.end(Some(UNKNOWN));
    alone.end();
    result
}

/// Makes a call that puts a duplicate of `old` in the place of `new`, another number.
pub fn duplicating(old: c_int, new: c_int, call: impl Fn() -> isize) -> isize {
    if changes(old).zip(changes(new)).is_some_and(|(old, new)| core::ptr::eq(old, new)) {
        // Two high numbers, of which nothing is known.
        return call();
    }
    let mut looks = 0;
    loop {
        let made = critical::section(|| {
            let from = Change::begin(old)?;
            let Some(to) = Change::begin(new) else {
                from.end(None);
                return None;
            };
            if !to.is_due() {
                from.end(None);
                return None;
            }
            // Those of `old` are only kept from changing it: what it stands for is copied.
            to.wait_for_calls();
            let result = call();
            if result >= 0 {
                put_copy(from.word, new);
            } else {
                to.end(None);
            }
            from.end(None);
            Some(result)
        });
        match made {
            Some(result) => return result,
            None if is_alone(old) || is_alone(new) => return call(),
            None => holds::pause(&mut looks),
        }
    }
}

/// Makes a call that duplicates `old` to a number of the kernel's choice.
pub fn copying(old: c_int, call: impl Fn() -> isize) -> isize {
    let mut looks = 0;
    loop {
        let made = critical::section(|| {
            // Another thread might put a file in the place of a pipe meanwhile.
            let from = Change::begin(old)?;
            let single = cancels::is_single_threaded();
            let choice = if single { Some(Hold::needless()) } else { holds::take(holds::CHOICE) };
            let Some(choice) = choice else {
                from.end(None);
                return None;
            };
            from.unfollow_cursor();
            let result = call();
            if result >= 0 {
                put_copy(from.word, result as c_int);
            }
            choice.end();
            from.end(None);
            Some(result)
        });
        match made {
            Some(result) => return result,
            None if is_alone(old) || wait_for_change(old, &mut looks).is_err() => {
                let result = call();
                if result >= 0 {
                    retire(result as c_int);
                }
                return result;
            }
            None => {}
        }
    }
}

/// Whether nobody's change of a number has to be waited for.
fn is_alone(fd: c_int) -> bool {
    changes(fd).is_none() || holds::changes_alone(fd)
}

/// What came of an attempt to hold a number.
enum Attempt<R> {
    Done(R),
    /// A change is under way.
    Changing,
    /// Too many numbers are held.
    Full,
}

/// Runs `work`, a call on `fd`, which stands for one thing until it ends. It must wait for nothing
/// but locks, keeper and disk. What is no regular file may change.
#[inline]
pub fn hold<R>(fd: c_int, mut work: impl FnMut() -> R) -> R {
    if let Row::Ignored = look(fd) {
        return work();
    }
    try_hold(fd, &mut work).unwrap_or_else(|_| work())
}

/// As [`hold`], but for a number that is being changed and no regular file's by now.
#[inline]
pub fn try_hold<R>(fd: c_int, mut work: impl FnMut() -> R) -> Result<R, Unheld> {
    if holds::is_holding() || process::client().is_none() {
        return Ok(work());
    }
    let mut looks = 0;
    loop {
        match critical::section(|| attempt(fd, &mut work)) {
            Attempt::Done(result) => return Ok(result),
            Attempt::Full => holds::pause(&mut looks),
            // By this thread, which a handler interrupted.
            Attempt::Changing if holds::changes_alone(fd) => return Ok(work()),
            Attempt::Changing => wait_for_change(fd, &mut looks)?,
        }
    }
}

#[inline]
fn attempt<R>(fd: c_int, work: &mut impl FnMut() -> R) -> Attempt<R> {
    let held = if cancels::is_single_threaded() { Some(Hold::needless()) } else { holds::take(fd) };
    let Some(held) = held else { return Attempt::Full };
    let word = changes(fd).map_or(UNKNOWN, |row| row.load(Ordering::SeqCst));
    if word & CHANGING != 0 && word & KIND_MASK != IGNORED {
        held.end();
        return Attempt::Changing;
    }
    let result = work();
    held.end();
    Attempt::Done(result)
}

/// In a forked child: changes that other threads of the parent were about to make will not be
/// followed to their end.
pub fn reset_changes() {
    for fd in 0..USED.load(Ordering::Relaxed) as c_int {
        if moment(fd).0 & CHANGING != 0 {
            replace(fd, UNKNOWN);
        }
    }
    HIGH_ROWS.iter().for_each(|row| row.store(UNKNOWN, Ordering::SeqCst));
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

/// Notes that `to` is now a duplicate of a number that has this word.
fn put_copy(from: u64, to: c_int) {
    let word = from & MEANING;
    if let Row::Described(description) = meaning(word) {
        if row(to).is_some() {
            description.retain();
        } else {
            // What is done by that number moves the cursor, and nobody sees of which description.
            description.add_flags(descriptions::SHARED);
        }
    }
    if row(to).is_some() {
        replace(to, word);
    } else if let Some(row) = changes(to) {
        let ended = |word: u64| (word & CHANGING != 0).then(|| changed(word, word) & !CHANGING);
        let _ = row.fetch_update(Ordering::SeqCst, Ordering::SeqCst, ended);
    }
}

/// All described numbers in a range.
pub fn described(first: c_int, last: c_int) -> impl Iterator<Item = (c_int, &'static Description)> {
    let end = (USED.load(Ordering::Relaxed) as i64).min(i64::from(last) + 1) as c_int;
    (first.max(0)..end).filter_map(|fd| match look(fd) {
        Row::Described(description) => Some((fd, description)),
        _ => None,
    })
}

/// One more than the highest number of which anything is known.
pub fn known_end() -> u32 {
    USED.load(Ordering::SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stands_for(fd: c_int) -> Option<*const Description> {
        match look(fd) {
            Row::Described(description) => Some(core::ptr::from_ref(description)),
            _ => None,
        }
    }

    #[test]
    fn who_holds_a_number_finds_what_it_stands_for_while_others_wait_to_change_it() {
        const FD: c_int = 901;
        let (index, description) = descriptions::allocate(0, holdfast_cache::Origin::Opened).unwrap();
        assert!(describe(FD, index, description));
        let held = holds::take(FD).unwrap();
        let change = Change::begin(FD).unwrap();
        assert_eq!(stands_for(FD), Some(core::ptr::from_ref(description)));
        // Of another number it holds nothing, and another thread does not hold this one.
        std::thread::spawn(|| assert_eq!(stands_for(FD), None)).join().unwrap();
        held.end();
        assert_eq!(stands_for(FD), None);
        change.end(Some(UNKNOWN));
        assert_eq!(stands_for(FD), None);
    }

    #[test]
    fn a_cursor_is_not_followed_once_a_number_that_has_no_row_moves_it_too() {
        let write_only = holdfast_session::WRITE_ONLY;
        let (index, description) =
            descriptions::allocate(write_only, holdfast_cache::Origin::Opened).unwrap();
        let word = described_as(index, description);
        put_copy(word, 902);
        assert!(description.remembers_cursor());
        put_copy(word, TRACKED as c_int + 4);
        assert!(!description.remembers_cursor());
        retire(902);
    }

    #[test]
    fn who_changes_a_number_of_which_nothing_is_known_waits_for_those_who_are_given_one() {
        const FD: c_int = 903;
        let (index, description) = descriptions::allocate(0, holdfast_cache::Origin::Opened).unwrap();
        let choice = holds::take(holds::CHOICE).unwrap();
        std::thread::scope(|scope| {
            let changer = scope.spawn(|| Change::begin(FD).unwrap().is_due());
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!changer.is_finished());
            // The kernel's choice was this number.
            assert!(describe(FD, index, description));
            choice.end();
            assert!(!changer.join().unwrap(), "its word would cover the newer one");
        });
        assert_eq!(stands_for(FD), Some(core::ptr::from_ref(description)));
        retire(FD);
    }

    #[test]
    fn no_cursor_is_remembered_while_a_duplicate_has_no_word() {
        const FD: c_int = 904;
        let write_only = holdfast_session::WRITE_ONLY;
        let (index, description) =
            descriptions::allocate(write_only, holdfast_cache::Origin::Opened).unwrap();
        assert!(describe(FD, index, description));
        description.locked(|| description.set_cursor(Some(5)));
        let made = copying(FD, || {
            assert_eq!(description.cursor(), None);
            905
        });
        assert_eq!(made, 905);
        assert_eq!(stands_for(905), Some(core::ptr::from_ref(description)));
        retire(FD);
        retire(905);
    }
}
