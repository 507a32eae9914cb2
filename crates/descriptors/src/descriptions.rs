//! Open file descriptions that the program may write through: one row each, shared by duplicated
//! descriptors.
//!
//! The rows are a static pool: no allocation, and a forked child has its copy. A description never
//! keeps a descriptor of its own open.

use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering};

use holdfast_cache::Origin;
pub use holdfast_session::{
    APPEND, DIRECT, DSYNC, KERNEL_FLAGS, NAMELESS, SHARED, SYNC, State, WRITE_ONLY, note_path_change,
};

const ROWS: usize = 16_384;

/// One description.
#[repr(align(64))]
pub struct Description {
    references: AtomicU32,
    turn: AtomicU32,
    what: holdfast_session::Description,
}

static POOL: [Description; ROWS] = [const {
    Description {
        references: AtomicU32::new(0),
        turn: AtomicU32::new(0),
        what: holdfast_session::Description::new(),
    }
}; ROWS];
static NEXT: AtomicU32 = AtomicU32::new(0);
/// One more than the highest index ever used.
static USED: AtomicU32 = AtomicU32::new(0);

/// Takes a free row; `None` when all are taken.
pub fn allocate(flags: u32, origin: Origin) -> Option<(u32, &'static Description)> {
    let start = NEXT.load(Ordering::Relaxed) as usize;
    for step in 0..ROWS {
        let index = (start + step) % ROWS;
        let row = POOL.get(index)?;
        if row.references.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            NEXT.store(index as u32, Ordering::Relaxed);
            USED.fetch_max(index as u32 + 1, Ordering::Relaxed);
            row.turn.fetch_add(1, Ordering::Relaxed);
            row.begin(flags, origin);
            return Some((index as u32, row));
        }
    }
    None
}

/// The row at `index`.
pub fn get(index: u32) -> Option<&'static Description> {
    POOL.get(index as usize)
}

/// Notes that another process now shares all cursors: called by whoever forks.
pub fn share_all() {
    for row in POOL.iter().take(USED.load(Ordering::Relaxed) as usize) {
        if row.references.load(Ordering::Relaxed) != 0 {
            row.add_flags(SHARED);
        }
    }
}

/// In a forked child: other threads' locks went away with them, and what was noted in the ledger
/// once is the parent's to take back.
pub fn reset_for_child() {
    POOL.iter().take(USED.load(Ordering::Relaxed) as usize).for_each(|row| row.what.reset_for_child());
}

impl Deref for Description {
    type Target = holdfast_session::Description;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.what
    }
}

impl Description {
    /// Number of this row's use.
    pub fn turn(&self) -> u32 {
        self.turn.load(Ordering::Relaxed)
    }

    /// Counts another descriptor.
    pub fn retain(&self) {
        self.references.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts one descriptor less; the last one frees the row.
    pub fn release(&self) {
        let before = self.references.fetch_sub(1, Ordering::AcqRel);
        if before == 0 {
            // A double release can only come from a race of the program with itself; stay at zero.
            self.references.store(0, Ordering::Release);
        }
    }
}

const _: () = assert!(size_of::<Description>() == 128);
