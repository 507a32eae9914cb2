//! NVM in ordinary memory. Every store, flush and fence is a visible step: others may run before
//! it, a thread can be killed there. It watches invariant 3 while the real code writes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use holdfast_board::model::{choose, step};
use holdfast_log::scan_segment;
use holdfast_media::{Bytes, Nvm};
use holdfast_pool::{Layout, POOL_BYTES_MIN, SEGMENT_BYTES, Segment, Slots, Zone, decode};
use shuttle::current::TaskId;

const PAGE_BYTES: u64 = 4096;

#[derive(Default)]
struct State {
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES as usize]>>,
    /// Words that are stored and not durable yet: who stored them, and whether they are flushed.
    pending: HashMap<u64, (TaskId, bool)>,
}

/// The media of one pool; clones share it.
#[derive(Clone)]
pub struct Media {
    state: Arc<Mutex<State>>,
    layout: Layout,
    uuid: [u8; 16],
}

impl State {
    fn read(&self, offset: u64, buf: &mut [u8]) {
        for (at, byte) in (offset..).zip(buf) {
            let page = self.pages.get(&(at / PAGE_BYTES));
            *byte = page.map_or(0, |page| page[(at % PAGE_BYTES) as usize]);
        }
    }

    fn write(&mut self, offset: u64, bytes: impl IntoIterator<Item = u8>) {
        for (at, byte) in (offset..).zip(bytes) {
            let page =
                self.pages.entry(at / PAGE_BYTES).or_insert_with(|| Box::new([0; PAGE_BYTES as usize]));
            page[(at % PAGE_BYTES) as usize] = byte;
        }
    }
}

impl Media {
    /// Empty media of the smallest size.
    pub fn new() -> Self {
        let layout = Layout::new(POOL_BYTES_MIN).expect("the smallest size is one");
        Self { state: Arc::default(), layout, uuid: [7; 16] }
    }

    /// Its geometry.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its UUID.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Its slots.
    pub fn slots(&self) -> Slots<'_, Self> {
        Slots { nvm: self, layout: &self.layout }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds it")
    }

    /// The segment whose bytes begin before or at `offset`.
    fn segment(&self, offset: u64) -> Option<Segment> {
        let into = offset.checked_sub(self.layout.offset(Zone::Segments))?;
        Some(Segment::new((into / SEGMENT_BYTES) as u32))
    }

    /// Invariant 3, first half: a segment gets a new generation only when every record in it is
    /// dead.
    fn check_reuse(&self, segment: Segment) {
        let (slots, mut live) = (self.slots(), None);
        scan_segment(self, &self.layout, &self.uuid, segment, &mut Vec::new(), |record| {
            let header = record.header;
            if slots.generation(header.slot) == Some(header.slot_generation)
                && slots.expired_seq(header.slot).is_some_and(|expired| header.seq > expired)
            {
                live = Some(header.seq);
            }
        });
        assert!(
            live.is_none(),
            "freed too early: segment {segment} is reused and holds live record {live:?}"
        );
    }

    /// Invariant 3, second half: no record before the segment's generation is durable.
    fn check_generation(&self, segment: Segment) {
        let pending = self.state().pending.contains_key(&self.layout.segment_offset(segment));
        assert!(!pending, "a record is written to segment {segment} whose generation is not durable");
    }
}

impl Default for Media {
    fn default() -> Self {
        Self::new()
    }
}

impl Nvm for Media {
    fn len(&self) -> u64 {
        self.layout.pool_bytes
    }

    fn read(&self, offset: u64, buf: &mut [u8]) {
        self.state().read(offset, buf);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        choose();
        if step() {
            self.state().write(offset, bytes.iter().copied());
        }
    }

    fn write_streaming(&self, offset: u64, src: Bytes<'_>, crc: u32) -> u32 {
        let mut bytes = vec![0; src.len()];
        src.copy_to(&mut bytes);
        choose();
        if step() {
            if let Some(segment) = self.segment(offset) {
                self.check_generation(segment);
            }
            let zeros = bytes.len().next_multiple_of(64) - bytes.len();
            self.state().write(offset, bytes.iter().copied().chain(std::iter::repeat_n(0, zeros)));
        }
        crc32c::crc32c_append(crc, &bytes)
    }

    fn load_u64(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.state().read(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        choose();
        if step() {
            // The other words of a header are bound to the generation.
            let generation_at = |segment: &Segment| self.layout().segment_offset(*segment) == offset;
            if let Some(segment) = self.segment(offset).filter(generation_at) {
                let before = decode(self.load_u64(offset), offset);
                assert!(decode(value, offset) > before, "a generation goes back");
                self.check_reuse(segment);
            }
            let mut state = self.state();
            state.write(offset, value.to_le_bytes());
            state.pending.insert(offset, (shuttle::current::me(), false));
        }
    }

    fn flush(&self, offset: u64, len: u64) {
        if step() {
            let me = shuttle::current::me();
            for (word, (by, flushed)) in &mut self.state().pending {
                *flushed |= *by == me && (offset..offset + len).contains(word);
            }
        }
    }

    fn fence(&self) {
        choose();
        if step() {
            let me = shuttle::current::me();
            self.state().pending.retain(|_, (by, flushed)| *by != me || !*flushed);
        }
    }
}
