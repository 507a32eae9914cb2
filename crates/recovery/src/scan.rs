//! The first pass over the log: headers and positions of every record that can be live. Pure: it
//! never writes.
//!
//! Bytes of records stay on the media, so memory is bounded by the number of records: 56 bytes for
//! each, of which none is smaller than 64.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use holdfast_canary::{Canary, on};
use holdfast_log::{Gap, RECORD_HEADER_BYTES, Record, generation_of_records, survey};
use holdfast_media::Nvm;
use holdfast_pool::{Generation, Layout, Segment, SegmentUse, Seq, decode, seal_of, segment_generation};

use super::PoolError;
use super::entry::{Entry, SEQ_MAX};
use super::frames::{FrameError, scan_frame};
use super::loss::Loss;
use super::slots::SlotState;
use super::source::Source;

/// A counter does not start above this: as many numbers again are left before [`SEQ_MAX`], above
/// which every record would be taken for damage.
const START_MAX: Seq = Seq::new(1 << 51);
const _: () = assert!(START_MAX.get() < SEQ_MAX.get() / 2 + (1 << 40));
/// At most this many damaged places are listed one by one.
const DAMAGED_LISTED_MAX: usize = 1000;
const SCAN_THREADS: usize = 2;
/// Looks at a segment that seems to be damaged.
const LOOKS_MAX: u32 = 3;
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// A log of so few segments is read before threads have begun.
const SEGMENTS_ALONE_MAX: u32 = 16;
/// More seqs than the operations draw that can be under way in all clients together when their
/// keeper closes.
const SEQS_UNDER_WAY_MAX: u64 = 1 << 16;

/// A segment that is damaged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken {
    pub(super) segment: Segment,
    /// The generation of its records, if its header does not say it any more.
    pub(super) lost_generation: Option<Generation>,
}

/// Everything one pass over the log tells.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Records that name a slot in use and are not expired, in a few sorted runs.
    pub(super) entries: Vec<Entry>,
    /// The highest seq under a checksum that holds, live or not.
    pub(super) seq_max: Seq,
    /// The highest generation of a segment whose bytes are in the spill file.
    pub(super) generation_max: Generation,
    /// Bytes of log looked at.
    pub(super) scanned_bytes: u64,
    /// Damaged places, in words.
    pub(super) damaged: Vec<String>,
    /// What they took.
    pub(super) losses: Vec<Loss>,
    /// Segments that are damaged.
    pub(super) broken: Vec<Broken>,
    damaged_more: u64,
}

impl Scan {
    fn damage(&mut self, text: String) {
        if self.damaged.len() < DAMAGED_LISTED_MAX {
            self.damaged.push(text);
        } else {
            self.damaged_more += 1;
        }
    }

    fn visit(&mut self, states: &[SlotState], record: &Record<'_>) {
        let header = &record.header;
        let (segment, at) = (record.segment, record.at);
        if header.seq > SEQ_MAX {
            return self
                .damage(format!("segment {segment}, byte {at}: its number {} is impossible", header.seq));
        }
        self.seq_max = self.seq_max.max(header.seq);
        let counts = match states.get(header.slot.index()) {
            None => {
                return self
                    .damage(format!("segment {segment}, byte {at}: there is no slot {}", header.slot));
            }
            Some(SlotState::Free) => false,
            Some(SlotState::Damaged | SlotState::Blank) => true,
            Some(&SlotState::InUse { generation, expired_seq }) => {
                let is_expired = header.seq <= expired_seq && !on(Canary::RecoverExpired);
                (header.slot_generation == generation || on(Canary::OlderUseLive)) && !is_expired
            }
        };
        if counts {
            self.entries.push(Entry {
                seq: header.seq,
                file_offset: header.file_offset,
                extent: header.extent,
                segment,
                bytes: header.payload_bytes,
                slot: header.slot,
                unix_time_ns: header.unix_time_ns,
                line: (at / RECORD_HEADER_BYTES as u32) as u16,
                group_index: header.group_index,
                group_count: header.group_count,
                kind: header.kind,
                is_called: header.is_called,
                is_last: false,
            });
        }
    }

    fn merge(&mut self, mut other: Self) {
        self.entries.append(&mut other.entries);
        self.seq_max = self.seq_max.max(other.seq_max);
        self.scanned_bytes += other.scanned_bytes;
        self.generation_max = self.generation_max.max(other.generation_max);
        self.losses.append(&mut other.losses);
        self.broken.append(&mut other.broken);
        self.damaged_more += other.damaged_more;
        for text in other.damaged {
            self.damage(text);
        }
    }
}

/// Reads all segments. `progress` hears bytes done and in all.
pub(super) fn scan(
    source: &Source<'_, impl Nvm + Sync>,
    states: &[SlotState],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Scan, PoolError> {
    let segments = source.layout().segment_count;
    let total = u64::from(segments) * source.layout().segment_bytes;
    let mut all = if segments <= SEGMENTS_ALONE_MAX {
        scan_alone(source, states)
    } else {
        scan_together(source, states, progress)
    };
    scan_frames(source, states, &mut all)
        .map_err(|error| PoolError::SpillUnread { pool: source.name.to_owned(), error })?;
    progress(total, total);
    if all.damaged_more > 0 {
        all.damaged.push(format!("and {} more damaged places", all.damaged_more));
    }
    Ok(all)
}

/// The part of the log that lies in the spill file.
fn scan_frames(source: &Source<'_, impl Nvm>, states: &[SlotState], all: &mut Scan) -> std::io::Result<()> {
    if on(Canary::RecoverNoFrames) {
        return Ok(());
    }
    let (segments, mut buffer) = (source.layout().segment_count, Vec::new());
    for frame in source.frames().in_use() {
        let found = scan_frame(source, frame, &mut buffer, |record| {
            all.visit(states, &Record { segment: Segment::new(segments + frame), ..record });
        });
        match found {
            Ok(Some(found)) => {
                all.scanned_bytes += source.layout().segment_bytes;
                all.generation_max = all.generation_max.max(found.generation);
                for gap in &found.gaps {
                    all.damage(format!(
                        "spill frame {frame}, byte {}: what stood here up to byte {} is damaged",
                        gap.from, gap.to
                    ));
                    all.losses.push(Loss::of_gap(&buffer, found.generation, *gap, found.below));
                }
            }
            Ok(None) => {}
            Err(FrameError::Damaged(text)) => {
                all.damage(text);
                all.losses.push(Loss::of_anybody(None));
            }
            Err(FrameError::Unread(error)) => return Err(error),
        }
    }
    Ok(())
}

/// How many segments there are up to and with the last one that says that it was used. Lanes take
/// the lowest ones first, so one further behind that says nothing was not used.
fn used_segments(source: &Source<'_, impl Nvm>) -> u32 {
    let layout = source.layout();
    let is_used = |segment: &Segment| source.nvm.load_u64(layout.segment_offset(*segment)) != 0;
    layout.segments().rev().find(is_used).map_or(0, |segment| segment.number() + 1)
}

/// In this thread.
fn scan_alone(source: &Source<'_, impl Nvm>, states: &[SlotState]) -> Scan {
    let (mut all, mut buffer) = (Scan::default(), Vec::new());
    let used = used_segments(source);
    for segment in source.layout().segments() {
        scan_one(source, states, segment, used, &mut buffer, &mut all);
    }
    all
}

/// In several threads.
fn scan_together(
    source: &Source<'_, impl Nvm + Sync>,
    states: &[SlotState],
    progress: &mut dyn FnMut(u64, u64),
) -> Scan {
    let segments = source.layout().segment_count;
    let total = u64::from(segments) * source.layout().segment_bytes;
    let (next, done, used) = (AtomicU32::new(0), AtomicU64::new(0), used_segments(source));
    let mut all = Scan::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..SCAN_THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let (mut part, mut buffer) = (Scan::default(), Vec::new());
                    loop {
                        let segment = next.fetch_add(1, Relaxed);
                        if segment >= segments {
                            // Here, where it is done by all threads at once.
                            part.entries.sort_unstable_by_key(Entry::order);
                            return part;
                        }
                        scan_one(source, states, Segment::new(segment), used, &mut buffer, &mut part);
                        done.fetch_add(source.layout().segment_bytes, Relaxed);
                    }
                })
            })
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            progress(done.load(Relaxed), total);
            std::thread::park_timeout(Duration::from_millis(if total > 1 << 30 { 20 } else { 1 }));
        }
        for worker in workers {
            match worker.join() {
                Ok(part) => all.merge(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all
}

fn scan_one(
    source: &Source<'_, impl Nvm>,
    states: &[SlotState],
    segment: Segment,
    used: u32,
    buffer: &mut Vec<u8>,
    part: &mut Scan,
) {
    let (nvm, layout) = (source.nvm, source.layout());
    let offset = layout.segment_offset(segment);
    if nvm.load_u64(offset) == 0 && segment.number() > used {
        return;
    }
    let first = part.entries.len();
    buffer.resize(layout.segment_bytes as usize, 0);
    let (mut last, mut looks) = (None, 0);
    let found = loop {
        part.entries.truncate(first);
        nvm.read(offset, buffer);
        let found = survey_segment(source, segment, buffer, |record| {
            let before = part.entries.len();
            part.visit(states, &record);
            last = (part.entries.len() > before).then_some(before);
        });
        // A client that has not noticed its keeper's death may just be writing here, and what was
        // read is partly from before and partly from after.
        looks += 1;
        if found.is_whole() || looks == LOOKS_MAX {
            break found;
        }
        std::thread::sleep(LOOK_AGAIN);
    };
    if let Some(last) = last.filter(|&last| last < part.entries.len()) {
        part.entries[last].is_last = true;
    }
    if found.generation.is_some() {
        part.scanned_bytes += layout.segment_bytes;
    }
    part.generation_max = part.generation_max.max(found.generation.unwrap_or_default());
    found.tell(source, segment, buffer, part);
}

/// What a segment of an unrecovered pool is like.
struct Surveyed {
    /// Its generation, as its header or, where that is lost, its records say.
    generation: Option<Generation>,
    /// Whether the header does not say it, and should.
    is_header_lost: bool,
    /// Where records stood and none is valid.
    gaps: Vec<Gap>,
    /// Every number in it is below this.
    below: Option<Seq>,
}

/// Visits the valid records of a segment, of which `bytes` are all, and finds what is damaged.
fn survey_segment(
    source: &Source<'_, impl Nvm>,
    segment: Segment,
    bytes: &[u8],
    visit: impl FnMut(Record<'_>),
) -> Surveyed {
    let (layout, uuid) = (source.layout(), &source.superblock.uuid);
    let word = u64::from_le_bytes(*bytes.first_chunk().expect("a segment has a header"));
    let known = decode(word, layout.segment_offset(segment)).map(Generation::new);
    let generation = known.or_else(|| generation_of_records(bytes, uuid, segment));
    let is_header_lost = known.is_none() && (word != 0 || generation.is_some());
    let place = SegmentUse { segment, generation: generation.unwrap_or_default() };
    let seal = seal_of(bytes, layout, uuid, place);
    let mut gaps = Vec::new();
    if generation.is_some() {
        survey(bytes, uuid, place, seal.end, visit, |gap| gaps.push(gap));
    }
    Surveyed { generation, is_header_lost, gaps, below: seal.below }
}

impl Surveyed {
    fn is_whole(&self) -> bool {
        self.gaps.is_empty() && !self.is_header_lost
    }

    fn tell(&self, source: &Source<'_, impl Nvm>, segment: Segment, bytes: &[u8], part: &mut Scan) {
        if self.is_whole() {
            return;
        }
        let base = source.layout().segment_offset(segment);
        part.broken
            .push(Broken { segment, lost_generation: self.generation.filter(|_| self.is_header_lost) });
        match self.generation {
            None => {
                part.damage(format!(
                    "segment {segment}, byte 0 (byte {base} of the pool): its generation is damaged, and so is all that \
                     can be read in it; what was written there is lost"
                ));
                part.losses.push(Loss::of_anybody(self.below));
            }
            Some(_) if self.is_header_lost => part.damage(format!(
                "segment {segment}, byte 0 (byte {base} of the pool): its generation is damaged; its records tell it"
            )),
            Some(_) => {}
        }
        for gap in &self.gaps {
            part.damage(format!(
                "segment {segment}, byte {} (byte {} of the pool): what stood here up to byte {} is damaged, and more \
                 was written behind it",
                gap.from,
                base + u64::from(gap.from),
                gap.to
            ));
            let generation = self.generation.unwrap_or_default();
            part.losses.push(Loss::of_gap(bytes, generation, *gap, self.below));
        }
    }
}

/// More numbers than are likely to have been given out behind the highest that can still be read of
/// a pool that is damaged.
const NUMBERS_LOST_MAX: u64 = 1 << 24;

/// The counter's first free number: above every generation, checksummed seq and `expired_seq` of
/// the pool. Nothing given out from here on was ever used (history 3).
pub(super) fn counter_start(source: &Source<'_, impl Nvm>, seq_max: Seq, is_damaged: bool) -> Option<Seq> {
    let (nvm, layout, slots) = (source.nvm, source.layout(), source.slots());
    let mut max = seq_max;
    for segment in layout.segments() {
        max = max.max(segment_generation(nvm, layout, segment).unwrap_or_default().seq());
    }
    for slot in layout.slots() {
        // A free slot's expired_seq counts too: it is what an earlier use of the slot reached.
        let begun = slots.generation(slot).unwrap_or_default().seq();
        max = max.max(begun).max(slots.expired_seq(slot).unwrap_or_default());
    }
    if on(Canary::CounterLow) {
        max = Seq::new(max.get() / 2);
    }
    if is_damaged {
        max = Seq::new(max.get().saturating_add(NUMBERS_LOST_MAX));
    }
    (max < START_MAX).then_some(max.next())
}

/// The same of a pool whose owner closed it cleanly and left `counter_clean`.
///
/// All generations, seqs and `expired_seq`s that the owner knew of are below that. A client that
/// did not notice the close may have drawn a few more, and even have begun a segment or a record
/// with them, which it could not acknowledge any more. None is live, since their slots' generations
/// are older and those slots were given back; but no number may be used twice. After the close no
/// segment becomes free, so each is begun at most once, and only the operations that were under way
/// draw seqs.
pub(super) fn counter_start_clean(layout: &Layout, counter_clean: Seq) -> Option<Seq> {
    let drawn_max = u64::from(layout.segment_count) + SEQS_UNDER_WAY_MAX;
    let max = Seq::new(counter_clean.get().checked_add(drawn_max)?);
    (max <= START_MAX).then_some(max)
}
