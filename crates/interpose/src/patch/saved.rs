//! What stood where libc's functions were patched, so that they can be made whole again.
//!
//! Written by the constructor alone.
#![allow(unsafe_code)] // Reads libc's code.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::trampoline::SAVED_BYTES;

const ENTRIES_MAX: usize = 512;
const OBJECTS_MAX: usize = 2;

struct Saved {
    address: AtomicUsize,
    bytes: [AtomicU64; SAVED_BYTES / 8],
}

static ENTRIES: [Saved; ENTRIES_MAX] =
    [const { Saved { address: AtomicUsize::new(0), bytes: [const { AtomicU64::new(0) }; SAVED_BYTES / 8] } };
        ENTRIES_MAX];
static ENTRY_COUNT: AtomicUsize = AtomicUsize::new(0);
static OBJECTS: [[AtomicUsize; 2]; OBJECTS_MAX] = [const { [const { AtomicUsize::new(0) }; 2] }; OBJECTS_MAX];
static OBJECT_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps the first bytes of the function at `address`, which is about to be replaced. Names of one
/// function come here more than once.
pub fn keep(address: usize) {
    if entries().any(|(known, _)| known == address) {
        return;
    }
    let at = ENTRY_COUNT.fetch_add(1, Ordering::Relaxed);
    let Some(entry) = ENTRIES.get(at) else { return };
    for (index, word) in entry.bytes.iter().enumerate() {
        // SAFETY: libc's text is readable, and does not end within these bytes of a function of it.
        let bytes =
            unsafe { core::ptr::with_exposed_provenance::<u64>(address + 8 * index).read_unaligned() };
        word.store(bytes, Ordering::Relaxed);
    }
    entry.address.store(address, Ordering::Relaxed);
}

/// Whether something was not kept for want of room.
pub fn is_full() -> bool {
    ENTRY_COUNT.load(Ordering::Relaxed) > ENTRIES_MAX || OBJECT_COUNT.load(Ordering::Relaxed) >= OBJECTS_MAX
}

/// Functions from `first` to `last` were replaced.
pub fn note_object(first: usize, last: usize) {
    if let Some(object) = OBJECTS.get(OBJECT_COUNT.fetch_add(1, Ordering::Relaxed)) {
        object[0].store(first, Ordering::Relaxed);
        object[1].store(last, Ordering::Relaxed);
    }
}

/// The ranges in which functions were replaced.
pub fn objects() -> impl Iterator<Item = (usize, usize)> {
    let count = OBJECT_COUNT.load(Ordering::Relaxed);
    let load =
        |object: &[AtomicUsize; 2]| (object[0].load(Ordering::Relaxed), object[1].load(Ordering::Relaxed));
    OBJECTS.iter().take(count).map(load)
}

/// What was kept: addresses, and the bytes that stood there.
pub fn entries() -> impl Iterator<Item = (usize, [u64; SAVED_BYTES / 8])> {
    let count = ENTRY_COUNT.load(Ordering::Relaxed);
    let load = |entry: &Saved| {
        (
            entry.address.load(Ordering::Relaxed),
            [0, 1].map(|at: usize| entry.bytes[at].load(Ordering::Relaxed)),
        )
    };
    ENTRIES.iter().take(count).map(load)
}
