//! Simulated NVM: what processors see, what is durable, and the stores in between.
//!
//! The fault model of docs/crash: a store is durable once its line was flushed (or it was
//! streamed) by a processor that fenced afterwards; until then a crash keeps it or not, in pieces
//! of 8 aligned bytes, in any combination. Of several stores to one word a crash keeps any, or the
//! word from before them.

use std::sync::{Arc, Mutex, MutexGuard};

use holdfast_media::{Bytes, Nvm};
use holdfast_testkit::Random;

use crate::known::Digest;
use crate::stage;

const PAGE_BYTES: usize = 512;
const LINE_BYTES: u64 = 64;
const WORD_BYTES: usize = 8;

type Page = [u8; PAGE_BYTES];

/// Bytes in pages that copies share, and what they come to.
#[derive(Clone)]
struct Pages(Vec<Option<Arc<Page>>>, Digest);

impl Pages {
    fn new(bytes: u64) -> Self {
        Self(vec![None; (bytes as usize).div_ceil(PAGE_BYTES)], Digest::default())
    }

    fn word(&self, offset: usize) -> u64 {
        match &self.0[offset / PAGE_BYTES] {
            None => 0,
            Some(page) => {
                let at = offset % PAGE_BYTES;
                let mut word = [0; WORD_BYTES];
                word.copy_from_slice(&page[at..at + WORD_BYTES]);
                u64::from_le_bytes(word)
            }
        }
    }

    fn set_word(&mut self, offset: usize, word: u64) {
        self.1.replace(offset as u64, self.word(offset), word);
        let page = self.0[offset / PAGE_BYTES].get_or_insert_with(|| Arc::new([0; PAGE_BYTES]));
        let at = offset % PAGE_BYTES;
        Arc::make_mut(page)[at..at + WORD_BYTES].copy_from_slice(&word.to_le_bytes());
    }

    fn read(&self, offset: usize, buffer: &mut [u8]) {
        let mut done = 0;
        while done < buffer.len() {
            let (page, at) = ((offset + done) / PAGE_BYTES, (offset + done) % PAGE_BYTES);
            let step = (PAGE_BYTES - at).min(buffer.len() - done);
            match &self.0[page] {
                None => buffer[done..done + step].fill(0),
                Some(page) => buffer[done..done + step].copy_from_slice(&page[at..at + step]),
            }
            done += step;
        }
    }
}

/// A store that may be lost.
#[derive(Clone, Copy)]
struct Store {
    offset: u32,
    /// Processors that flushed (or streamed) it and did not fence yet.
    flushed: u8,
    word: u64,
}

/// The whole media at one moment.
#[derive(Clone)]
pub struct NvmState {
    bytes: u64,
    volatile: Pages,
    durable: Pages,
    pending: Vec<Store>,
    /// Changes with everything that changes what a crash may leave.
    pub version: u64,
}

/// Which of the pending stores a crash keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// None.
    None,
    /// All.
    All,
    /// All but one.
    AllButOne,
    /// Exactly one.
    One,
    /// Any.
    Any,
    /// Those of a bit mask.
    Mask(u64),
}

impl NvmState {
    /// Blank media.
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            volatile: Pages::new(bytes),
            durable: Pages::new(bytes),
            pending: Vec::new(),
            version: 0,
        }
    }

    /// What is durable, in a few bits.
    pub fn digest(&self) -> Digest {
        self.durable.1
    }

    /// How many stores are pending.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn store(&mut self, offset: usize, word: u64, flushed: u8) {
        // A store of what is there already changes nothing, whether it gets there or not.
        if self.volatile.word(offset) == word
            && self.durable.word(offset) == word
            && !self.pending.iter().any(|store| store.offset as usize == offset)
        {
            return;
        }
        self.volatile.set_word(offset, word);
        self.pending.push(Store { offset: offset as u32, flushed, word });
        self.version += 1;
    }

    fn fence(&mut self, cpu: u8) {
        if !self.pending.iter().any(|store| store.flushed & cpu != 0) {
            return;
        }
        let pending = std::mem::take(&mut self.pending);
        for (index, store) in pending.iter().enumerate() {
            let overtaken = || {
                pending[index + 1..]
                    .iter()
                    .any(|later| later.offset == store.offset && later.flushed & cpu != 0)
            };
            if store.flushed & cpu != 0 {
                self.durable.set_word(store.offset as usize, store.word);
            } else if !overtaken() {
                self.pending.push(*store);
            }
        }
        self.version += 1;
    }

    /// What is left after a crash.
    pub fn crash(&self, keep: Keep, random: &mut Random) -> Self {
        let mut durable = self.durable.clone();
        let count = self.pending.len();
        let chosen = random.below(count);
        for (index, store) in self.pending.iter().enumerate() {
            let kept = match keep {
                Keep::None => false,
                Keep::All => true,
                Keep::AllButOne => index != chosen,
                Keep::One => index == chosen,
                Keep::Any => random.one_in(2),
                Keep::Mask(mask) => mask >> index & 1 == 1,
            };
            if kept {
                durable.set_word(store.offset as usize, store.word);
            }
        }
        Self { bytes: self.bytes, volatile: durable.clone(), durable, pending: Vec::new(), version: 0 }
    }

    /// In words, which pending stores an image kept.
    pub fn difference(&self, image: &Self) -> String {
        let lost = self
            .pending
            .iter()
            .filter(|store| image.durable.word(store.offset as usize) != store.word)
            .map(|store| format!("{:#x}", store.offset))
            .collect::<Vec<_>>();
        format!("{} stores pending, of which these words were lost: [{}]", self.pending.len(), lost.join(" "))
    }
}

/// Media as one processor sees it.
#[derive(Clone)]
pub struct SimNvm {
    state: Arc<Mutex<NvmState>>,
    cpu: u8,
}

impl SimNvm {
    /// Media in this state, for processor 0.
    pub fn new(state: NvmState) -> Self {
        Self { state: Arc::new(Mutex::new(state)), cpu: 1 }
    }

    /// The same media for another processor, below 8.
    pub fn on_cpu(&self, cpu: u32) -> Self {
        Self { state: Arc::clone(&self.state), cpu: 1 << cpu }
    }

    /// The state, to look at or replace.
    pub fn state(&self) -> MutexGuard<'_, NvmState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn check(&self, offset: u64, bytes: u64) {
        assert!(offset + bytes <= self.len(), "access outside the media");
    }

    fn store_bytes(&self, offset: u64, bytes: &[u8], flushed: u8) {
        self.check(offset, bytes.len() as u64);
        let mut state = self.state();
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        for at in (start / WORD_BYTES * WORD_BYTES..end).step_by(WORD_BYTES) {
            let mut word = state.volatile.word(at).to_le_bytes();
            let (from, to) = (at.max(start), (at + WORD_BYTES).min(end));
            word[from - at..to - at].copy_from_slice(&bytes[from - start..to - start]);
            state.store(at, u64::from_le_bytes(word), flushed);
        }
    }
}

impl Nvm for SimNvm {
    fn len(&self) -> u64 {
        self.state().bytes
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) {
        self.check(offset, buffer.len() as u64);
        stage::point(stage::Kind::Load);
        self.state().volatile.read(offset as usize, buffer);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.store_bytes(offset, bytes, 0);
    }

    fn write_streaming(&self, offset: u64, src: Bytes<'_>, crc: u32) -> u32 {
        assert!(offset.is_multiple_of(LINE_BYTES), "streams begin at a line");
        stage::point(stage::Kind::Store);
        let mut bytes = vec![0; src.len().next_multiple_of(LINE_BYTES as usize)];
        src.copy_to(&mut bytes[..src.len()]);
        self.store_bytes(offset, &bytes, self.cpu);
        crc32c::crc32c_append(crc, &bytes[..src.len()])
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.check(offset, 8);
        self.state().volatile.word(offset as usize)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        assert!(offset.is_multiple_of(8), "words are aligned");
        self.check(offset, 8);
        stage::point(stage::Kind::Store);
        self.state().store(offset as usize, value, 0);
    }

    fn flush(&self, offset: u64, bytes: u64) {
        self.check(offset, bytes);
        let lines = offset / LINE_BYTES..=(offset + bytes.max(1) - 1) / LINE_BYTES;
        let mut state = self.state();
        for store in &mut state.pending {
            if lines.contains(&(u64::from(store.offset) / LINE_BYTES)) {
                store.flushed |= self.cpu;
            }
        }
    }

    fn fence(&self) {
        stage::point(stage::Kind::Fence);
        self.state().fence(self.cpu);
        stage::point(stage::Kind::Fenced);
    }
}
