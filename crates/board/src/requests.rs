//! Request cells: how a client asks the keeper for something without a file descriptor.
//!
//! A client claims a free cell, fills it, posts it and sleeps on its word; the keeper answers in
//! place.

use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering, wait, wake};
use core::cell::UnsafeCell;
use core::time::Duration;

/// Longest path a request can carry, in bytes.
pub const REQUEST_PATH_BYTES: usize = 4096;

/// Where a cell stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RequestState {
    /// Nobody's.
    Free = 0,
    /// A client is filling it.
    Claimed = 1,
    /// Waits for the keeper; the client waits for the answer.
    Posted = 2,
    /// The keeper is at it.
    Taken = 4,
    /// Answered.
    Done = 5,
}

/// A request as it lies in a cell; what the words mean is its codec's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestWords {
    /// What is asked.
    pub kind: u32,
    /// About what.
    pub args: [u64; 4],
}

/// An answer as it lies in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerWords {
    /// What kind of answer or refusal it is.
    pub kind: i32,
    /// What it tells.
    pub reply: [u64; 2],
}

/// One cell.
#[repr(C, align(64))]
pub struct RequestCell {
    /// A [`RequestState`]; the client sleeps on it.
    pub(crate) state: AtomicU32,
    client: AtomicU32,
    kind: AtomicU32,
    result: AtomicI32,
    args: [AtomicU64; 4],
    reply: [AtomicU64; 2],
    path_bytes: AtomicU32,
    path: UnsafeCell<[u8; REQUEST_PATH_BYTES]>,
}

impl Default for RequestCell {
    fn default() -> Self {
        Self {
            state: AtomicU32::default(),
            client: AtomicU32::default(),
            kind: AtomicU32::default(),
            result: AtomicI32::default(),
            args: Default::default(),
            reply: Default::default(),
            path_bytes: AtomicU32::default(),
            path: UnsafeCell::new([0; REQUEST_PATH_BYTES]),
        }
    }
}

impl RequestCell {
    /// The state now. Acquire, for the release of who stored it: what the state hands over is
    /// there.
    pub fn state(&self) -> RequestState {
        match self.state.load(Ordering::Acquire) {
            1 => RequestState::Claimed,
            2 => RequestState::Posted,
            4 => RequestState::Taken,
            5 => RequestState::Done,
            _ => RequestState::Free,
        }
    }

    /// What its word says, whatever that is.
    pub(crate) fn word(&self) -> u32 {
        self.state.load(Ordering::SeqCst)
    }

    /// Frees the cell if its word and its client are still these.
    pub(crate) fn free_if(&self, word: u32, client: u32) {
        if self.client() == client {
            let _ = self.state.compare_exchange(
                word,
                RequestState::Free as u32,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
    }

    /// Whether the word is that of a state at all.
    pub(crate) fn is_state(word: u32) -> bool {
        use RequestState::{Claimed, Done, Free, Posted, Taken};
        [Free, Claimed, Posted, Taken, Done].iter().any(|&state| state as u32 == word)
    }

    /// Sets the state. Release: it hands over the words, the path or the answer.
    pub fn set_state(&self, state: RequestState) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// Sleeps while the cell is in this state; may return early.
    pub fn sleep(&self, seen: RequestState, limit: Duration) {
        wait(&self.state, seen as u32, limit);
    }

    /// Wakes the client that sleeps on the cell.
    pub fn wake(&self) {
        wake(&self.state, 1);
    }

    /// Moves the cell from one state to another; false when it was not in the first.
    pub fn advance(&self, from: RequestState, to: RequestState) -> bool {
        self.state.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes a free cell for a client; false when it is not free.
    pub fn claim(&self, client: u32) -> bool {
        let claimed = self.advance(RequestState::Free, RequestState::Claimed);
        if claimed {
            self.client.store(client, Ordering::Relaxed);
        }
        claimed
    }

    /// The client that claimed the cell, or claims it just now: `SeqCst`, since who repairs after a
    /// dead one looks whose the cells are.
    pub fn client(&self) -> u32 {
        self.client.load(Ordering::SeqCst)
    }

    /// Asks, by a cell that the caller claimed. The words and the path need no order of their own:
    /// the state, which is stored last and read first, hands them over (release, acquire), and so
    /// it is for the answer.
    pub fn post(&self, words: RequestWords, path: &[u8]) {
        self.kind.store(words.kind, Ordering::Relaxed);
        for (place, value) in self.args.iter().zip(words.args) {
            place.store(value, Ordering::Relaxed);
        }
        self.set_path(path);
        self.set_state(RequestState::Posted);
    }

    /// Takes a posted request to answer it; false when there is none, which costs the others no
    /// more than a look.
    pub fn take(&self) -> bool {
        self.state() == RequestState::Posted && self.advance(RequestState::Posted, RequestState::Taken)
    }

    /// What is asked. A client may scribble over it at any time, so it is to be read once.
    pub fn asked(&self) -> RequestWords {
        let args = [0, 1, 2, 3].map(|index: usize| self.args[index].load(Ordering::Relaxed));
        RequestWords { kind: self.kind.load(Ordering::Relaxed), args }
    }

    /// Stores the answer; the state that follows hands it over.
    pub fn set_answer(&self, words: AnswerWords) {
        self.result.store(words.kind, Ordering::Relaxed);
        for (place, value) in self.reply.iter().zip(words.reply) {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// The answer, once the state says that it is there.
    pub fn answer(&self) -> AnswerWords {
        let reply = [0, 1].map(|index: usize| self.reply[index].load(Ordering::Relaxed));
        AnswerWords { kind: self.result.load(Ordering::Relaxed), reply }
    }

    /// Stores a path of at most [`REQUEST_PATH_BYTES`]; only for who claimed the cell.
    #[allow(unsafe_code)]
    fn set_path(&self, path: &[u8]) {
        let bytes = path.len().min(REQUEST_PATH_BYTES);
        // SAFETY: the cell is claimed by the caller, nobody reads the path before it is posted;
        // both ranges hold `bytes` bytes and cannot overlap, as `path` is ordinary memory.
        unsafe { core::ptr::copy_nonoverlapping(path.as_ptr(), self.path.get().cast::<u8>(), bytes) };
        self.path_bytes.store(bytes as u32, Ordering::Relaxed);
    }

    /// Copies the path out; only for the keeper, which distrusts its length.
    #[allow(unsafe_code)]
    pub fn path(&self) -> Vec<u8> {
        let bytes = (self.path_bytes.load(Ordering::Relaxed) as usize).min(REQUEST_PATH_BYTES);
        let mut path = vec![0; bytes];
        // SAFETY: `bytes` lies within the cell; a client that scribbles meanwhile can only change
        // the bytes.
        unsafe { core::ptr::copy(self.path.get().cast::<u8>(), path.as_mut_ptr(), bytes) };
        path
    }
}

// SAFETY: everything but the path is atomic, and the path is handed over by `state` (release,
// acquire).
#[allow(unsafe_code)]
unsafe impl Sync for RequestCell {}
