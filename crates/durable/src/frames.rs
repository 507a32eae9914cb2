//! The spill file of a pool in service, and what the keeper knows of its frames. Segments come
//! there elsewhere.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use holdfast_pool::{Generation, Home, Segment, Seq, Slot};

use super::turn::Turn;

/// The spill file of a pool in service.
pub(super) struct Spill<F> {
    pub(super) file: F,
    pub(super) home: Home,
    pub(super) frames: Mutex<Vec<FrameRow>>,
    /// Segments that cannot be spilled, with the generation in which that was found.
    pub(super) unfit: Mutex<HashMap<Segment, Generation>>,
    /// Segments that passes have in hand.
    pub(super) in_hand: Mutex<HashSet<Segment>>,
    /// One sync at a time: whoever takes the kernel's only notice of a failure has said so before
    /// another one succeeds.
    pub(super) syncing: Turn,
    /// Its disk refused; it is used no more.
    pub(super) failed: AtomicBool,
}

/// What the keeper knows of a frame.
pub(super) enum FrameRow {
    Free,
    /// A pass writes to it.
    Taken,
    /// The highest seq of each slot with records in it, cancels included.
    Held(Vec<(Slot, Seq)>),
    /// Recovery left records of set-aside files in it.
    Pinned,
}
