//! Entering the bytes of a durable record in the page rows, and finding them again. Everything here
//! happens under the page locks of the pages it touches.

use core::ops::Range;

use holdfast_board::{Board, Content, FileRow, Frame, LaneIndex, Page, Source, pieces};
use holdfast_canary::{Canary, on};
use holdfast_log::{Kind, record_around};
use holdfast_media::Nvm;
use holdfast_pool::{Layout, Seq};

use crate::file::FileRef;

/// Bytes are moved from the log to frames in steps of this many.
const STEP_BYTES: usize = 512;

/// Whether a write fits the page rows.
pub(super) enum Verdict {
    /// Yes.
    Fits,
    /// It must go to the page cache, and may: no row covers a byte of it.
    Apart,
    /// It must go to the page cache, where rows would cover it: they are drained first. So it is
    /// where one does not hold: that drain says so.
    Covered,
}

/// Frames taken for the first and the last page of a write; only these can keep bytes of before.
#[derive(Default)]
pub(super) struct Spare([Option<Frame>; 2]);

impl Spare {
    fn put(&mut self, frame: Frame) {
        match self.0 {
            [None, _] => self.0[0] = Some(frame),
            _ => self.0[1] = Some(frame),
        }
    }

    fn take(&mut self) -> Option<Frame> {
        self.0[0].take().or_else(|| self.0[1].take())
    }

    /// Whether the write merges with older bytes.
    pub(super) fn is_used(&self) -> bool {
        self.0[0].is_some()
    }
}

/// Where a record's bytes are.
pub struct Payload<'a> {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// First byte on the media.
    pub media_offset: u64,
    /// The same bytes in memory, if they are few.
    pub copy: Option<&'a [u8]>,
    /// The record's seq.
    pub seq: Seq,
}

impl Payload<'_> {
    /// What a row says of these bytes of a page, all of them in the log.
    fn in_log(&self, page: Page, (lo, hi): (u32, u32)) -> Content {
        let skip = page.offset() + u64::from(lo) - self.offset;
        Content { lo, hi, source: Source::Log(self.media_offset + skip) }
    }
}

/// Where bytes of files are: the board and the log.
pub struct Places<'a, N> {
    /// The board.
    pub board: &'a Board,
    /// The media with the log.
    pub nvm: &'a N,
    /// Its places.
    pub layout: &'a Layout,
    /// The pool's.
    pub uuid: &'a [u8; 16],
}

impl<N: Nvm> Places<'_, N> {
    /// Moves what the row of a page has in the log to a frame; false when that is not what was
    /// written there. It is copied first: nothing comes between that and the sum.
    fn bring(&self, file: FileRef, page: Page, (content, from): (&Content, u64), frame: Frame) -> bool {
        let Content { lo, hi, .. } = *content;
        move_to_frame(self.board, self.nvm, from, frame, (lo, hi), None);
        let at = page.offset() + u64::from(lo);
        let place = (from, u64::from(hi - lo));
        let record = record_around(self.nvm, self.layout, self.uuid, place, |header, skip| {
            header.kind == Kind::Write
                && (FileRef { slot: header.slot, generation: header.slot_generation }) == file
                && header.file_offset.checked_add(skip) == Some(at)
        });
        record.is_some() || on(Canary::SumsUnread)
    }
}

/// Sees what becomes of a write of `bytes` at `offset`, and takes the frames it needs for `lane`:
/// also one for its end, if it `appends` to the file and ends within a page. What it joins of the
/// log is in them then. `merges` tells whether it goes into a frame that a row has already.
pub(super) fn judge<N: Nvm>(
    places: &Places<'_, N>,
    lane: LaneIndex,
    file: FileRef,
    range: (u64, u64, bool),
    spare: &mut Spare,
    merges: &mut bool,
) -> Verdict {
    judge_with(places, file, range, spare, merges, || take(places.board, lane))
}

fn judge_with<N: Nvm>(
    places: &Places<'_, N>,
    file: FileRef,
    (offset, bytes, appends): (u64, u64, bool),
    spare: &mut Spare,
    merges: &mut bool,
    mut take_frame: impl FnMut() -> Option<Frame>,
) -> Verdict {
    let (pages, frames, slot) = (places.board.pages(), places.board.frames(), file.slot);
    let (mut fits, mut covered) = (true, false);
    for (page, lo, hi) in pieces(offset, bytes) {
        let Some(row) = pages.find(slot, page) else {
            fits &= pages.has_room(slot, page);
            if fits && appends && hi < holdfast_board::PAGE_BYTES as u32 {
                // Without one it stays in the log alone, until something joins it.
                take_frame().into_iter().for_each(|frame| spare.put(frame));
            }
            continue;
        };
        if !row.holds {
            (fits, covered) = (false, true);
            continue;
        }
        covered |= row.content.overlaps(lo, hi);
        if row.content.is_within(lo, hi) {
            continue;
        }
        match row.content.source {
            _ if !row.content.joins(lo, hi) => fits = false,
            Source::Frame(_) => *merges = true,
            Source::Log(_) if !fits => {}
            Source::Log(from) => match take_frame() {
                Some(frame) => {
                    spare.put(frame);
                    // Whoever drains it will say so.
                    fits = places.bring(file, page, (&row.content, from), frame);
                }
                None => fits = false,
            },
        }
    }
    if fits {
        return Verdict::Fits;
    }
    while let Some(frame) = spare.take() {
        frames.free(frame);
    }
    if covered { Verdict::Covered } else { Verdict::Apart }
}

/// Takes a frame for `lane`. While they are being used up the keeper hears of it, and brings bytes
/// to the page cache.
fn take(board: &Board, lane: LaneIndex) -> Option<Frame> {
    let frames = board.frames();
    let frame = frames.take(lane)?;
    if frames.is_milestone(frame) {
        board.header().ring_expirer();
    }
    Some(frame)
}

/// Enters a durable record that `judge` found to fit, under the same locks.
pub(super) fn publish<N: Nvm>(
    places: &Places<'_, N>,
    (file, row_of_file): (FileRef, &FileRow),
    payload: &Payload<'_>,
    spare: &mut Spare,
) {
    let (board, slot) = (places.board, file.slot);
    let (pages, frames) = (board.pages(), board.frames());
    for (page, lo, hi) in pieces(payload.offset, payload.bytes) {
        let skip = page.offset() + u64::from(lo) - payload.offset;
        let in_log = payload.in_log(page, (lo, hi));
        let copy = payload.copy.map(|copy| &copy[skip as usize..][..(hi - lo) as usize]);
        let Some(row) = pages.find(slot, page) else {
            // A frame that is left here is that of the write's end: the pages before it took
            // theirs.
            let end = if hi < holdfast_board::PAGE_BYTES as u32 { spare.take() } else { None };
            let source = end.map_or(in_log.source, |frame| {
                match copy {
                    Some(bytes) => frames.fill(frame, lo, bytes),
                    None => {
                        move_to_frame(board, places.nvm, payload.media_offset + skip, frame, (lo, hi), None)
                    }
                }
                Source::Frame(frame)
            });
            let content = Content { source, ..in_log };
            let entered = pages.insert(slot, page, content, payload.seq, row_of_file.page_rows());
            debug_assert!(entered, "the set had room");
            if let (Some(frame), Some(row)) = (end, pages.find(slot, page)) {
                frames.keep(frame, row.index);
            }
            continue;
        };
        let old = row.content;
        if old.is_within(lo, hi) {
            pages.replace(row.index, in_log, payload.seq);
            if let Source::Frame(frame) = old.source {
                frames.free(frame);
            }
            continue;
        }
        let (frame, is_new) = match old.source {
            Source::Frame(frame) => (frame, false),
            Source::Log(_) => match spare.take() {
                Some(frame) => (frame, true),
                None => {
                    debug_assert!(false, "a frame was taken for it");
                    continue;
                }
            },
        };
        let held = old.lo..old.hi;
        match copy {
            Some(bytes) => frames.merge(frame, held, lo, bytes),
            None => {
                move_to_frame(board, places.nvm, payload.media_offset + skip, frame, (lo, hi), Some(held))
            }
        }
        let merged = Content { lo: lo.min(old.lo), hi: hi.max(old.hi), source: Source::Frame(frame) };
        if on(Canary::OldestSeqForgotten) {
            pages.replace(row.index, merged, payload.seq);
        } else {
            pages.extend(row.index, merged);
        }
        if is_new {
            frames.keep(frame, row.index);
        }
    }
}

/// Enters what `lane` did not live to enter of its durable record, under the page locks it still
/// holds, with the frames it had taken for that. False, and nothing of it entered, when the record
/// was none for page rows.
///
/// A page that was entered already is entered once more: the same bytes come to the same place.
pub fn finish<N: Nvm>(
    places: &Places<'_, N>,
    (file, row_of_file): (FileRef, &FileRow),
    lane: LaneIndex,
    payload: &Payload<'_>,
) -> bool {
    let (pages, frames, slot) = (places.board.pages(), places.board.frames(), file.slot);
    for (page, lo, hi) in pieces(payload.offset, payload.bytes) {
        let of_record = payload.in_log(page, (lo, hi));
        let unneeded = pages.mend((slot, page), of_record, payload.seq, frames.taken_by(lane));
        let Some(row) = pages.find(slot, page).filter(|row| row.holds) else { continue };
        if let Some(frame) = unneeded {
            frames.free_of(frame, row.index);
        }
        // A row points to it, though its writer died before it had noted that.
        if let Source::Frame(frame) = row.content.source {
            frames.keep(frame, row.index);
            // Nor had it noted what it had put there.
            frames.believe(frame, row.content.lo..row.content.hi);
        }
    }
    let (mut spare, mut left) = (Spare::default(), frames.taken_by(lane));
    let range = (payload.offset, payload.bytes, false);
    let fits = judge_with(places, file, range, &mut spare, &mut false, || left.next());
    if !matches!(fits, Verdict::Fits) {
        return false;
    }
    publish(places, (file, row_of_file), payload, &mut spare);
    true
}

/// Moves bytes of the log into a frame, beside those that it holds.
fn move_to_frame(
    board: &Board,
    nvm: &impl Nvm,
    from: u64,
    frame: Frame,
    (lo, hi): (u32, u32),
    mut held: Option<Range<u32>>,
) {
    let mut buffer = [0u8; STEP_BYTES];
    let mut at = lo;
    while at < hi {
        let step = ((hi - at) as usize).min(STEP_BYTES);
        nvm.read(from + u64::from(at - lo), &mut buffer[..step]);
        match held.clone() {
            Some(held) => board.frames().merge(frame, held, at, &buffer[..step]),
            None => board.frames().fill(frame, at, &buffer[..step]),
        }
        // Steps do not overlap each other.
        held.get_or_insert(lo..lo);
        at += step as u32;
    }
}

/// Copies the bytes of a row from byte `from` of its page on. The caller holds the page's lock; the
/// range lies within the row's.
pub fn fetch(board: &Board, nvm: &impl Nvm, content: &Content, from: u32, buffer: &mut [u8]) {
    match content.source {
        Source::Log(offset) => nvm.read(offset + u64::from(from - content.lo), buffer),
        Source::Frame(frame) => board.frames().read(frame, from, buffer),
    }
}
