//! Numbers that calls are in the midst of using: who closes or replaces one waits for them, so that
//! a call of ours that takes several steps goes to one file throughout, as the kernel's own do.
//!
//! A hold is one word in a table, taken by one atomic exchange and given back by a plain store. It
//! lies in a critical section: no handler runs in it, and no cancel ends it. Whoever holds a number
//! waits for no change of any number, and for no program; so those who wait for holds wait for a
//! moment. Nobody is woken: who waits looks again, which needs no word with the others and loses
//! nothing when one of them ends.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{cancels, raw, tls};

/// More threads than this in the midst of calls at one time, and the rest wait for a place.
const PLACES: usize = 1024;
/// Threads begin at places of their own, as far as these go.
const FIRST_PLACES: u32 = 16;
/// Looks without a pause, and then ones that give the processor away.
const SPINS: u32 = 32;
const YIELDS: u32 = 64;
const PAUSE_NS: libc::c_long = 50_000;

/// A place is free, or has the number that is held, plus one, and above it whose it is.
const FREE: u64 = 0;
/// Set for a number that is not held, but being changed outside of a section.
const CHANGE: u64 = 1 << 31;

/// Held, as if it were a number, while the kernel chooses one and the table is told which.
pub const CHOICE: c_int = 0x7fff_fffe;

/// A line of its own: threads that write to files of their own do not meet.
#[repr(align(64))]
struct Place(AtomicU64);

static HOLDS: [Place; PLACES] = [const { Place(AtomicU64::new(FREE)) }; PLACES];
/// One more than the highest place that was ever taken.
static USED: AtomicU32 = AtomicU32::new(FIRST_PLACES);

/// A thread, as no other that lives has it.
fn me(thread: &tls::Thread) -> u64 {
    (core::ptr::from_ref(thread).addr() as u64 >> 4) << 32
}

fn word_of(thread: &tls::Thread, fd: c_int) -> u64 {
    me(thread) | u64::from(fd as u32 + 1)
}

/// A number that is held.
#[must_use]
pub struct Hold(Option<&'static Place>);

impl Hold {
    /// The number may be changed again.
    #[inline]
    pub fn end(self) {
        if let Some(place) = self.0 {
            place.0.store(FREE, Ordering::Release);
            tls::with(|thread| thread.holds.set(0));
        }
    }

    /// Nobody can change a number but the thread that asks.
    pub const fn needless() -> Self {
        Self(None)
    }
}

/// Whether the calling thread holds a number already.
#[inline]
pub fn is_holding() -> bool {
    tls::with(|thread| thread.holds.get() != 0)
}

/// Whether the calling thread holds this very number.
#[cold]
pub fn has(fd: c_int) -> bool {
    tls::with(|thread| {
        let own = thread.place.get().checked_sub(1).filter(|_| thread.holds.get() != 0);
        let place = own.and_then(|own| HOLDS.get(own as usize));
        place.is_some_and(|place| place.0.load(Ordering::Relaxed) == word_of(thread, fd))
    })
}

/// Takes a place for `fd`; `None` when there is none. Only inside a critical section. The caller
/// has the number held only if no change of it is under way that began before.
#[inline]
pub fn take(fd: c_int) -> Option<Hold> {
    tls::with(|thread| {
        if thread.place.get() == 0 {
            // Their blocks lie a stack apart.
            thread.place.set(1 + (me(thread) >> 40) as u32 % FIRST_PLACES);
        }
        let word = word_of(thread, fd);
        let own = thread.place.get() - 1;
        let place = HOLDS.get(own as usize)?;
        let exchanged = place.0.compare_exchange(FREE, word, Ordering::SeqCst, Ordering::Relaxed);
        let place = if exchanged.is_ok() { place } else { take_another(thread, own, word)? };
        thread.holds.set(1);
        Some(Hold(Some(place)))
    })
}

/// Takes the next place that is free, and stays there.
#[cold]
fn take_another(thread: &tls::Thread, own: u32, word: u64) -> Option<&'static Place> {
    for step in 1..PLACES as u32 {
        let at = (own + step) % PLACES as u32;
        let place = HOLDS.get(at as usize)?;
        // Before it is taken: who changes a number looks at this first.
        if place.0.load(Ordering::Relaxed) == FREE {
            USED.fetch_max(at + 1, Ordering::SeqCst);
            if place.0.compare_exchange(FREE, word, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                thread.place.set(at + 1);
                return Some(place);
            }
        }
    }
    None
}

/// Waits until no other thread holds `fd`. Who holds it from now on must have seen the change that
/// the caller has marked.
pub fn wait_for_others(fd: c_int) {
    if cancels::is_single_threaded() {
        return;
    }
    let (mine, wanted) = (tls::with(me), u64::from(fd as u32 + 1));
    for place in HOLDS.iter().take(USED.load(Ordering::SeqCst) as usize) {
        let mut looks = 0;
        let is_held = |word: u64| word & 0xffff_ffff == wanted && word & !0xffff_ffff != mine;
        while is_held(place.0.load(Ordering::SeqCst)) {
            pause(&mut looks);
        }
    }
}

/// Tells that this thread is about to change `fd` in a call that handlers may interrupt: they must
/// not wait for it.
pub fn change_alone(fd: c_int) -> Hold {
    tls::with(|thread| {
        let word = word_of(thread, fd) | CHANGE;
        let own = thread.place.get();
        let place = take_another(thread, own, word);
        thread.place.set(own);
        Hold(place)
    })
}

/// Whether this thread has told so.
#[cold]
pub fn changes_alone(fd: c_int) -> bool {
    let word = tls::with(|thread| word_of(thread, fd) | CHANGE);
    let places = HOLDS.iter().take(USED.load(Ordering::SeqCst) as usize);
    places.into_iter().any(|place| place.0.load(Ordering::SeqCst) == word)
}

/// In a forked child: the others are gone, and what they held.
pub fn reset_for_child() {
    for place in HOLDS.iter().take(USED.load(Ordering::SeqCst) as usize) {
        place.0.store(FREE, Ordering::SeqCst);
    }
    tls::with(|thread| thread.holds.set(0));
}

/// A pause before the next look; `looks` counts them.
#[cold]
pub fn pause(looks: &mut u32) {
    *looks = looks.saturating_add(1);
    match *looks {
        0..SPINS => core::hint::spin_loop(),
        SPINS..YIELDS => raw::sched_yield(),
        _ => raw::sleep(PAUSE_NS),
    }
}
