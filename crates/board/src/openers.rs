//! Threads of clients that are in an open which the library makes: what tells the keeper, while
//! such an open waits for its permission, that the library knows of it.
//!
//! An open that a client's thread makes without standing here went past the library: it is an
//! outsider's. A thread that ends in its open leaves its number; the place is taken again when its
//! line is full. Nobody may wait here.

use crate::sync::{AtomicU32, Ordering};

/// Lines, and places in each.
const LINES: usize = 32;
const PLACES: usize = 16;

/// The places of threads with numbers of one remainder.
#[repr(C, align(64))]
#[derive(Default)]
struct Line {
    places: [AtomicU32; PLACES],
}

/// Threads that are in an open, by the number they have in their own pid namespace.
#[repr(C)]
#[derive(Default)]
pub struct Openers {
    lines: [Line; LINES],
}

/// A thread's place, while it is in an open.
#[must_use]
pub struct Opening<'a>(Option<(&'a AtomicU32, u32)>);

impl Openers {
    fn line(&self, tid: u32) -> &[AtomicU32; PLACES] {
        &self.lines[tid as usize % LINES].places
    }

    /// The thread begins an open.
    pub fn begin(&self, tid: u32) -> Opening<'_> {
        let places = self.line(tid);
        let mut free = None;
        for place in places {
            match place.load(Ordering::Relaxed) {
                // A signal handler's open within one of its thread's.
                held if held == tid => return Opening(None),
                0 if free.is_none() => free = Some(place),
                _ => {}
            }
        }
        let first = free.into_iter().chain(places);
        for place in first {
            if place.compare_exchange(0, tid, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return Opening(Some((place, tid)));
            }
        }
        // Whose place this is may be dead; if not, its open counts as unannounced: its file is
        // slower, not wrong.
        let place = &places[tid as usize / LINES % PLACES];
        place.store(tid, Ordering::SeqCst);
        Opening(Some((place, tid)))
    }

    /// Whether that thread is in an open of the library's.
    pub fn is_in(&self, tid: u32) -> bool {
        self.line(tid).iter().any(|place| place.load(Ordering::SeqCst) == tid)
    }
}

impl Opening<'_> {
    /// The open is over.
    pub fn end(self) {
        if let Some((place, tid)) = self.0 {
            let _ = place.compare_exchange(tid, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_in_an_open_from_its_begin_to_its_end() {
        let openers = Openers::default();
        let outer = openers.begin(77);
        let inner = openers.begin(77);
        inner.end();
        assert!(openers.is_in(77) && !openers.is_in(78) && !openers.is_in(77 + LINES as u32));
        outer.end();
        assert!(!openers.is_in(77));
    }

    #[test]
    fn threads_that_died_in_their_opens_keep_nobody_out() {
        let openers = Openers::default();
        let dead = (1..=PLACES as u32).map(|turn| turn * LINES as u32 + 5);
        dead.for_each(|tid| drop(openers.begin(tid)));
        let late = openers.begin(5);
        assert!(openers.is_in(5));
        late.end();
        assert!(!openers.is_in(5));
    }
}
