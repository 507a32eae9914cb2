//! Shared mappings of files that are open for writing, which can be read and may become writable
//! later: a small table, by file, since a file may be mapped before it is managed.
//!
//! Entries are never removed: at worst a file is left to the kernel without need.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use holdfast_session::Stat;

const RANGES: usize = 64;

/// One of them.
pub struct Range {
    /// 0: free.
    start: AtomicUsize,
    end: AtomicUsize,
    device: AtomicU64,
    ino: AtomicU64,
    is_writable: AtomicBool,
}

static READABLE: [Range; RANGES] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        device: AtomicU64::new(0),
        ino: AtomicU64::new(0),
        is_writable: AtomicBool::new(false),
    }
}; RANGES];
static USED: AtomicUsize = AtomicUsize::new(0);

impl Range {
    /// The file's device and inode number.
    pub fn file(&self) -> (u64, u64) {
        (self.device.load(Ordering::Relaxed), self.ino.load(Ordering::Relaxed))
    }

    /// It is about to become writable.
    pub fn make_writable(&self) {
        self.is_writable.store(true, Ordering::SeqCst);
    }
}

fn ranges() -> impl Iterator<Item = &'static Range> {
    READABLE.iter().take(USED.load(Ordering::Relaxed).min(RANGES))
}

fn of(stat: &Stat) -> impl Iterator<Item = &'static Range> {
    let file = (stat.dev, stat.ino);
    ranges().filter(move |range| range.start.load(Ordering::Acquire) != 0 && range.file() == file)
}

/// Remembers a range; false when the table is full.
pub fn remember(start: usize, bytes: usize, (device, ino): (u64, u64)) -> bool {
    let index = USED.fetch_add(1, Ordering::Relaxed);
    let Some(range) = READABLE.get(index) else {
        USED.store(RANGES, Ordering::Relaxed);
        return false;
    };
    range.end.store(start.saturating_add(bytes), Ordering::Relaxed);
    range.device.store(device, Ordering::Relaxed);
    range.ino.store(ino, Ordering::Relaxed);
    range.start.store(start, Ordering::Release);
    true
}

/// Those that have a part of a range of addresses.
pub fn overlapping(start: usize, bytes: usize) -> impl Iterator<Item = &'static Range> {
    ranges().filter(move |range| {
        let first = range.start.load(Ordering::Acquire);
        first != 0 && first < start.saturating_add(bytes) && start < range.end.load(Ordering::Relaxed)
    })
}

/// Whether the file is mapped so.
pub fn is_mapped(stat: &Stat) -> bool {
    of(stat).next().is_some()
}

/// Whether a mapping of the file has become writable.
pub fn is_written(stat: &Stat) -> bool {
    of(stat).any(|range| range.is_writable.load(Ordering::SeqCst))
}

/// Whether any mapping has.
pub fn is_any_written() -> bool {
    ranges().any(|range| range.is_writable.load(Ordering::Relaxed))
}
