//! What outlives a server: which of its descriptors are inodes and open files that the kernel
//! knows, the kernel's first request, and what became of requests that were not answered yet. It
//! lies in memory that the holder and the next server share. Every change is one store, so that a
//! server may be killed at any of them.
//!
//! A row is set before the kernel hears of what it stands for, and cleared before its descriptor is
//! closed: a descriptor without a row is nobody's, and is not handed over.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::raw::{self, Result};

/// Rows for so many descriptors; their memory is there once they are used.
const ROWS: usize = 1 << 20;
/// Below are a server's own descriptors, and none that are handed over.
pub const FIRST: RawFd = 64;

/// Places of single words.
const HIGHEST: usize = 0;
const TOO_MANY: usize = 1;
const OTHERS_MADE: usize = 2;
const SERVERS: usize = 3;
const INIT_BYTES: usize = 4;
const INIT: usize = 8;
const INIT_WORDS: usize = 32;
const DEEDS: usize = INIT + INIT_WORDS;
/// A deed is a request, what became of it, a value from before, and one that came of it.
const DEED_WORDS: usize = 4;
const TABLE: usize = DEEDS + DEEDS_MAX * DEED_WORDS;
const ROW_WORDS: usize = 2;
const WORDS: usize = TABLE + ROWS * ROW_WORDS;
/// Deeds of so many threads of all servers are remembered.
pub const DEEDS_MAX: usize = 1024;

/// The second word of a row.
const NOTHING: u64 = 0;
const HANDLE: u64 = 1;
/// An inode: the number of lookups stands above.
const NODE: u64 = 2;
const KIND_BITS: u32 = 2;

/// What a descriptor is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// An open file or directory.
    Handle,
    /// An inode, by this number, looked up so often.
    Node { number: u64, lookups: u64 },
}

/// The memory.
pub struct Kept {
    file: OwnedFd,
    words: &'static [AtomicU64],
}

/// One deed's words.
pub struct Deed(&'static [AtomicU64]);

impl Kept {
    /// Memory with nothing in it.
    pub fn new() -> Result<Self> {
        let made = memfd_create("holdfast-mount", MemfdFlags::CLOEXEC);
        let made = made.and_then(|file| ftruncate(&file, (WORDS * size_of::<u64>()) as u64).map(|()| file));
        Self::of(made.map_err(|error| Errno::from_raw(error.raw_os_error()))?)
    }

    /// That of the servers before.
    pub fn of(file: OwnedFd) -> Result<Self> {
        let words = raw::shared_words(file.as_fd(), WORDS)?;
        Ok(Self { file, words })
    }

    /// The memory's file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn word(&self, at: usize) -> &'static AtomicU64 {
        &self.words[at]
    }

    fn row(&self, fd: RawFd) -> Option<[&'static AtomicU64; 2]> {
        let row = usize::try_from(fd).ok().filter(|row| *row < ROWS)?;
        let at = TABLE + row * ROW_WORDS;
        Some([self.word(at), self.word(at + 1)])
    }

    fn set(&self, fd: RawFd, number: u64, what: u64) {
        let Some([first, second]) = self.row(fd) else {
            self.word(TOO_MANY).store(1, Ordering::SeqCst);
            return;
        };
        self.word(HIGHEST).fetch_max(fd.unsigned_abs().into(), Ordering::SeqCst);
        first.store(number, Ordering::SeqCst);
        second.store(what, Ordering::SeqCst);
    }

    /// An inode is known by this descriptor.
    pub fn set_node(&self, fd: RawFd, number: u64, lookups: u64) {
        self.set(fd, number, lookups << KIND_BITS | NODE);
    }

    /// A file is open by this descriptor.
    pub fn set_handle(&self, fd: RawFd) {
        self.set(fd, 0, HANDLE);
    }

    /// The descriptor is about to be closed.
    pub fn clear(&self, fd: RawFd) {
        if let Some([_, what]) = self.row(fd) {
            what.store(NOTHING, Ordering::SeqCst);
        }
    }

    /// What a descriptor stands for.
    pub fn what(&self, fd: RawFd) -> Option<Row> {
        let [number, what] = self.row(fd)?;
        match what.load(Ordering::SeqCst) {
            NOTHING => None,
            HANDLE => Some(Row::Handle),
            node => Some(Row::Node { number: number.load(Ordering::SeqCst), lookups: node >> KIND_BITS }),
        }
    }

    /// All descriptors that are kept.
    pub fn rows(&self) -> impl Iterator<Item = (RawFd, Row)> {
        self.rows_from(0)
    }

    /// Those from this one on.
    pub fn rows_from(&self, first: RawFd) -> impl Iterator<Item = (RawFd, Row)> {
        let highest = self.word(HIGHEST).load(Ordering::SeqCst);
        let highest = RawFd::try_from(highest).unwrap_or(RawFd::MAX);
        (first..=highest).filter_map(|fd| Some((fd, self.what(fd)?)))
    }

    /// Whether every descriptor has a row.
    pub fn has_all(&self) -> bool {
        self.word(TOO_MANY).load(Ordering::SeqCst) == 0
    }

    /// Numbers that were given to inodes of other devices.
    pub fn others_made(&self) -> u64 {
        self.word(OTHERS_MADE).load(Ordering::SeqCst)
    }

    /// One more of them.
    pub fn set_others_made(&self, made: u64) {
        self.word(OTHERS_MADE).store(made, Ordering::SeqCst);
    }

    /// The kernel's first request, if it is there.
    pub fn first_request(&self) -> Option<Vec<u8>> {
        let len = self.word(INIT_BYTES).load(Ordering::SeqCst) as usize;
        let words = &self.words[INIT..INIT + INIT_WORDS];
        let mut bytes: Vec<u8> =
            words.iter().flat_map(|word| word.load(Ordering::SeqCst).to_ne_bytes()).collect();
        bytes.truncate(len);
        (len > 0).then_some(bytes)
    }

    /// Keeps it; whether it fits.
    pub fn set_first_request(&self, bytes: &[u8]) -> bool {
        if bytes.len() > INIT_WORDS * size_of::<u64>() {
            return false;
        }
        for (place, part) in self.words[INIT..].iter().zip(bytes.chunks(size_of::<u64>())) {
            let mut word = [0; size_of::<u64>()];
            word[..part.len()].copy_from_slice(part);
            place.store(u64::from_ne_bytes(word), Ordering::SeqCst);
        }
        self.word(INIT_BYTES).store(bytes.len() as u64, Ordering::SeqCst);
        true
    }

    /// The number of a server that begins: the first one is 0.
    pub fn begin_server(&self) -> u64 {
        self.word(SERVERS).fetch_add(1, Ordering::SeqCst)
    }

    /// The place for a deed.
    pub fn deed(&self, index: usize) -> Deed {
        let at = DEEDS + index % DEEDS_MAX * DEED_WORDS;
        Deed(&self.words[at..at + DEED_WORDS])
    }
}

impl Deed {
    /// All of it.
    pub fn read(&self) -> [u64; DEED_WORDS] {
        [0, 1, 2, 3].map(|at| self.0[at].load(Ordering::SeqCst))
    }

    /// Says of another request what becomes of it.
    pub fn begin(&self, request: u64, stage: u64, value: u64) {
        // A deed without a request is none.
        self.0[0].store(0, Ordering::SeqCst);
        self.0[1].store(stage, Ordering::SeqCst);
        self.0[2].store(value, Ordering::SeqCst);
        self.0[0].store(request, Ordering::SeqCst);
    }

    /// Says what became of it.
    pub fn end(&self, stage: u64, result: u64) {
        self.0[3].store(result, Ordering::SeqCst);
        self.0[1].store(stage, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_server_finds_what_was_kept() {
        let kept = Kept::new().expect("memory");
        kept.set_node(70, 12, 3);
        kept.set_handle(71);
        kept.set_handle(72);
        kept.clear(72);
        assert!(kept.first_request().is_none());
        assert!(kept.set_first_request(b"thirteen byte"));
        kept.deed(5).begin(9, 1, 4);
        let next = Kept::of(kept.file().try_clone_to_owned().expect("copied")).expect("memory");
        let rows: Vec<_> = next.rows().collect();
        assert_eq!(rows, [(70, Row::Node { number: 12, lookups: 3 }), (71, Row::Handle)]);
        assert_eq!(next.first_request().as_deref(), Some(&b"thirteen byte"[..]));
        assert_eq!(next.deed(5).read(), [9, 1, 4, 0]);
        assert!(next.has_all());
        next.set_handle(1 << 20);
        assert!(!kept.has_all());
    }
}
