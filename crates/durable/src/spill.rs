//! The log goes on in a file when it is short of segments: full ones are copied, byte for byte, to
//! frames of the spill file, in order, and are then free (invariant 3).
//!
//! The order is the argument. Bytes of segments -> frames, durable -> entries, durable -> segments
//! free. A frame stays until every record in it has expired; its entry is cleared durably before
//! anything else is written to it. Nothing is synced here but the spill file. No lock is held while
//! the disk works: a segment that died or is in another use by then is left as it is. Rows that
//! point into a segment are drained to the page cache before. When frames run short the files are
//! synced: by then much has gathered that the disk can sort.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_board::{FilePage, SegmentState, Source, pieces};
use holdfast_canary::{Canary, on};
use holdfast_log::{Kind, Stop, sum_segment};
use holdfast_media::{Bytes, Nvm};
use holdfast_pool::{
    Frame, Generation, SEGMENT_HEADER_BYTES, Segment, Seq, Slot, Superblock, segment_generation,
};

use super::frames::{FrameRow, Spill};
use super::state::Durable;
use super::sync::Pace;
use super::turn::Turn;
use super::upkeep::Upkeeps;
use holdfast_disk::spill::{self, Aligned};
use holdfast_disk::{Access, Disk, DiskFile, locked};

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spilled {
    /// Segments given back.
    pub segments: u32,
    /// Frames that are still free.
    pub frames_free: u32,
    /// Nothing was spilled because what is in the oldest segments lies together in its files, which
    /// take it as fast.
    pub is_in_order: bool,
}

/// Whether what is spilled may lie together in its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// No: a disk takes it in its place as fast.
    Matters,
    /// It may.
    Any,
}

/// With fewer pages than this in a row on the average, a file's pages are scattered.
const RUN_PAGES_MIN: usize = 8;

/// A segment on its way into a frame.
struct Passage {
    segment: Segment,
    frame: u32,
    generation: Generation,
    end: u32,
    seqs: Vec<(Slot, Seq)>,
    /// Pages that its writes have bytes of.
    pages: Vec<FilePage>,
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Puts the spill file of the pool into service, of which recovery left these frames in use.
    /// Returns its size in frames.
    pub fn use_spill(&self, pinned: &[u32]) -> io::Result<u32> {
        let frames = self.frames();
        let home = frames.home().ok_or_else(|| io::Error::other("the pool has none"))?;
        let file = spill::open(&self.disk, &self.superblock, &home, Access::Direct)?;
        let count = home.frame_count;
        let row = |frame| if pinned.contains(&frame) { FrameRow::Pinned } else { FrameRow::Free };
        let spill = Spill {
            file,
            home,
            frames: Mutex::new((0..count).map(row).collect()),
            unfit: Mutex::default(),
            in_hand: Mutex::default(),
            syncing: Turn::default(),
            failed: AtomicBool::new(false),
        };
        let _ = self.spill.set(spill);
        Ok(count)
    }

    /// Whether a pass is under way.
    pub fn is_spilling(&self) -> bool {
        self.spill.get().is_some_and(|spill| !locked(&spill.in_hand).is_empty())
    }

    /// Copies the oldest sealed segments, as many as `segments_max`, to the spill file and gives
    /// them back. Waits for the disk of the spill file, and for no other. Passes may be made at
    /// once: while one copies, the disk has work from another. With [`Order::Matters`] what lies
    /// together in its files is left to them.
    pub fn spill(&self, segments_max: u32, order: Order) -> Spilled {
        let Some(spill) = self.spill.get() else { return Spilled::default() };
        if spill.failed.load(Ordering::SeqCst) {
            return Spilled::default();
        }
        let passages = self.choose(spill, segments_max);
        let (segments, is_in_order) = self.pass(spill, passages, order);
        Spilled { segments, frames_free: self.count_frames().map_or(0, |(_, free)| free), is_in_order }
    }

    /// The oldest sealed segments, each with a frame for it.
    fn choose(&self, spill: &Spill<D::File>, segments_max: u32) -> Vec<Passage> {
        let _alone = self.reclaiming.take();
        // Redirected rows and repaired operations are entered by now: this turn was taken for the
        // first, and what is sealed is done with the second.
        self.board.free_dead_segments();
        self.free_frames();
        let mut passages = Vec::new();
        let mut frames = locked(&spill.frames);
        let unfit = locked(&spill.unfit);
        let mut in_hand = locked(&spill.in_hand);
        let mut free = (0..).zip(frames.iter_mut()).filter(|(_, row)| matches!(row, FrameRow::Free));
        for segment in self.sealed_by_age() {
            let Some(generation) = segment_generation(&self.nvm, &self.superblock.layout, segment) else {
                continue;
            };
            if unfit.get(&segment) == Some(&generation) || in_hand.contains(&segment) {
                continue;
            }
            if passages.len() == segments_max as usize {
                break;
            }
            let Some((frame, row)) = free.next() else { break };
            *row = FrameRow::Taken;
            in_hand.insert(segment);
            let passage = Passage {
                segment,
                frame,
                generation,
                end: SEGMENT_HEADER_BYTES as u32,
                seqs: Vec::new(),
                pages: Vec::new(),
            };
            passages.push(passage);
        }
        passages
    }

    fn pass(&self, spill: &Spill<D::File>, mut passages: Vec<Passage>, order: Order) -> (u32, bool) {
        if passages.is_empty() {
            return (0, false);
        }
        let early = on(Canary::SpillEntryEarly) || on(Canary::SpillFreedEarly);
        self.examine(spill, &mut passages);
        if order == Order::Matters && is_in_order(&passages) {
            self.let_go_of(spill, &passages);
            return (0, true);
        }
        let written = self.write_frames(spill, &passages);
        if written.is_ok() && !early && !on(Canary::SpillRowsStay) {
            self.drain_rows_of(&passages);
        }
        let turn = spill.syncing.take();
        // A sync of another pass that failed may have been told of our bytes, too.
        let is_over = spill.failed.load(Ordering::SeqCst) && !on(Canary::SpillFailureForgotten);
        let synced = match written {
            Ok(()) if early => Ok(self.commit(spill, &passages)),
            Ok(()) if is_over => Ok(0),
            Ok(()) => spill.file.sync_data().map(|()| self.commit(spill, &passages)),
            Err(error) => Err(error),
        };
        if early {
            let _ = spill.file.sync_data();
        }
        let path = spill::path_of(&spill.home);
        let segments = synced.unwrap_or_else(|error| {
            if !spill.failed.swap(true, Ordering::SeqCst) {
                self.events.trouble(format!(
                    "{}: the log cannot go on there: {error}; it stays as short as it is until the next start",
                    path.display()
                ));
            }
            0
        });
        drop(turn);
        self.let_go_of(spill, &passages);
        (segments, false)
    }

    /// Ends a pass: frames that got no entry are free again.
    fn let_go_of(&self, spill: &Spill<D::File>, passages: &[Passage]) {
        let mut frames = locked(&spill.frames);
        let mut in_hand = locked(&spill.in_hand);
        for passage in passages {
            in_hand.remove(&passage.segment);
            let row = &mut frames[passage.frame as usize];
            if matches!(row, FrameRow::Taken) {
                *row = FrameRow::Free;
            }
        }
    }

    /// Takes what cannot be copied off the list.
    fn examine(&self, spill: &Spill<D::File>, passages: &mut Vec<Passage>) {
        passages.retain_mut(|passage| {
            let fits = self.examine_one(passage);
            if !fits {
                locked(&spill.unfit).insert(passage.segment, passage.generation);
                locked(&spill.in_hand).remove(&passage.segment);
                locked(&spill.frames)[passage.frame as usize] = FrameRow::Free;
            }
            fits
        });
    }

    /// Notes what is in a segment. One that is damaged stays where it is: recovery must find and
    /// report it.
    fn examine_one(&self, passage: &mut Passage) -> bool {
        let (mut seqs, mut is_strange) = (BTreeMap::new(), false);
        let Superblock { layout, uuid, .. } = &self.superblock;
        let pages = &mut passage.pages;
        let scan = sum_segment(&self.nvm, layout, uuid, passage.segment, |header| {
            let seq = seqs.entry(header.slot).or_insert(Seq::ZERO);
            *seq = header.seq.max(*seq);
            is_strange |= header.slot.index() >= self.board.files().len();
            if header.kind == Kind::Write {
                let bytes = u64::from(header.payload_bytes);
                match header.file_offset.checked_add(bytes) {
                    Some(end) if end <= i64::MAX as u64 => {
                        let slot = header.slot;
                        let of_record = pieces(header.file_offset, bytes);
                        pages.extend(of_record.map(|(page, ..)| FilePage { slot, page }));
                    }
                    _ => is_strange = true,
                }
            }
        });
        passage.end = scan.end;
        passage.seqs = seqs.into_iter().collect();
        passage.pages.sort_unstable();
        passage.pages.dedup();
        !is_strange
            && scan.generation == Some(passage.generation)
            && !matches!(scan.stop, Stop::Damaged { .. })
    }

    /// Writes segments to their frames, neighbouring ones in one piece.
    fn write_frames(&self, spill: &Spill<D::File>, passages: &[Passage]) -> io::Result<()> {
        passages.chunk_by(|a, b| b.frame == a.frame + 1).try_for_each(|run| {
            let lent: Option<Vec<Bytes<'_>>> = run.iter().map(|passage| self.lend(passage.segment)).collect();
            let offset = self.frames().file_offset(run[0].frame);
            match lent.map(|ranges| spill.file.write_lent_at(&ranges, offset)) {
                Some(Ok(())) => Ok(()),
                // Not every disk can fetch from every memory.
                _ => run.iter().try_for_each(|passage| self.write_copy(spill, passage)),
            }
        })
    }

    fn lend(&self, segment: Segment) -> Option<Bytes<'_>> {
        let layout = &self.superblock.layout;
        self.nvm.lend(layout.segment_offset(segment), layout.segment_bytes)
    }

    fn write_copy(&self, spill: &Spill<D::File>, passage: &Passage) -> io::Result<()> {
        let layout = &self.superblock.layout;
        let mut image = Aligned::new(layout.segment_bytes as usize);
        self.nvm.read(layout.segment_offset(passage.segment), image.bytes_mut());
        spill.file.write_all_at(image.bytes(), self.frames().file_offset(passage.frame))
    }

    /// Whether readers find bytes of a page in this segment.
    fn points_into(&self, segment: Segment, page: FilePage) -> bool {
        let layout = &self.superblock.layout;
        let start = layout.segment_offset(segment);
        self.board.pages().find(page.slot, page.page).is_some_and(|row| match row.content.source {
            // It may; the drain says what is wrong.
            _ if !row.holds => true,
            Source::Log(at) => (start..start + layout.segment_bytes).contains(&at),
            Source::Frame(_) => false,
        })
    }

    /// Brings what page rows have in these segments to the page cache, and nothing to the disk
    /// (state Behind). Where that fails, the rows stay, and so do their segments.
    fn drain_rows_of(&self, passages: &[Passage]) {
        let mut pages = Vec::new();
        for passage in passages {
            pages.extend(passage.pages.iter().filter(|&&page| self.points_into(passage.segment, page)));
        }
        self.drain_of_files(pages, Pace::Shown, |_| ());
    }

    /// The frames are durable: their entries are persisted, then the segments are free.
    fn commit(&self, spill: &Spill<D::File>, passages: &[Passage]) -> u32 {
        let _alone = self.reclaiming.take();
        let rows = self.board.segments();
        let unchanged = |passage: &&Passage| {
            let generation = segment_generation(&self.nvm, &self.superblock.layout, passage.segment);
            rows[passage.segment.index()].state() == SegmentState::Sealed
                && generation == Some(passage.generation)
        };
        let is_drained = |passage: &&Passage| {
            on(Canary::SpillRowsStay)
                || !passage.pages.iter().any(|&page| self.points_into(passage.segment, page))
        };
        let (held, refused): (Vec<&Passage>, Vec<&Passage>) =
            passages.iter().filter(unchanged).partition(is_drained);
        // What a disk refuses stays until a sync of its file succeeds, and keeps nobody else from
        // going on.
        locked(&spill.unfit).extend(refused.iter().map(|passage| (passage.segment, passage.generation)));
        let entries: Vec<(u32, Frame)> = held
            .iter()
            .map(|passage| {
                let Passage { segment, generation, end, .. } = **passage;
                (passage.frame, Frame { segment, generation, end })
            })
            .collect();
        if held.is_empty() {
            return 0;
        }
        if !on(Canary::SpillFreedEarly) {
            self.frames().put(&entries);
        }
        let mut frames = locked(&spill.frames);
        for passage in &held {
            frames[passage.frame as usize] = FrameRow::Held(passage.seqs.clone());
            rows[passage.segment.index()].set_state(SegmentState::Free);
        }
        self.segments_spilled.fetch_add(held.len() as u64, Ordering::Relaxed);
        self.board.header().announce_free_segments();
        held.len() as u32
    }
}

/// Whether pages of files lie together that these segments have bytes of.
fn is_in_order(passages: &[Passage]) -> bool {
    let mut pages: Vec<FilePage> = passages.iter().flat_map(|passage| &passage.pages).copied().collect();
    pages.sort_unstable();
    pages.dedup();
    let runs = pages.chunk_by(|a, b| a.slot == b.slot && a.page.next() == Some(b.page)).count();
    pages.len() >= runs * RUN_PAGES_MIN && runs > 0
}
