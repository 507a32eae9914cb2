//! Request cells: how a client asks the keeper for something without a file descriptor.
//!
//! A client claims a free cell, fills it, posts it and sleeps on its word; the keeper answers in
//! place.

use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use core::cell::UnsafeCell;

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

/// One cell.
#[repr(C, align(64))]
pub struct RequestCell {
    /// A [`RequestState`]; the client sleeps on it.
    pub state: AtomicU32,
    /// Client that claimed the cell.
    pub client: AtomicU32,
    /// What is asked; the keeper's and the cache's business.
    pub kind: AtomicU32,
    /// 0 or an errno.
    pub result: AtomicI32,
    /// Arguments.
    pub args: [AtomicU64; 4],
    /// Answer.
    pub reply: [AtomicU64; 2],
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
    /// The state now.
    pub fn state(&self) -> RequestState {
        match self.state.load(Ordering::Acquire) {
            1 => RequestState::Claimed,
            2 => RequestState::Posted,
            4 => RequestState::Taken,
            5 => RequestState::Done,
            _ => RequestState::Free,
        }
    }

    /// Sets the state.
    pub fn set_state(&self, state: RequestState) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// Moves the cell from one state to another; false when it was not in the first.
    pub fn advance(&self, from: RequestState, to: RequestState) -> bool {
        self.state.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Stores a path of at most [`REQUEST_PATH_BYTES`]; only for who claimed the cell.
    #[allow(unsafe_code)]
    pub fn set_path(&self, path: &[u8]) {
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
