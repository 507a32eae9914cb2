//! What a dead client leaves behind: half an operation, locks, cells. Its operation is rolled
//! forward when its record is whole, else nothing of it exists; then everything it held is opened
//! (history 15).

use std::time::Duration;

use holdfast_board::{DeadLane, FileRow, Locked, RequestState, pieces};
use holdfast_cache::FileRef;
use holdfast_cache::behind::{Payload, Places, finish};
use holdfast_canary::{Canary, on};
use holdfast_log::{Kind, RECORD_HEADER_BYTES, Stop, sum_segment, whole_write};
use holdfast_media::Nvm;
use holdfast_pool::{Segment, SegmentUse, Seq, Superblock, seal_segment};

use super::rewrite::{persist, roll_forward};
use super::state::Durable;
use super::sync::Writers;
use super::table::keep_size;
use super::upkeep::Upkeeps;
use holdfast_disk::Disk;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Repairs everything of `client`, which is dead or has become another program.
    pub fn repair(&self, client: u32) {
        self.repair_lanes(client);
        self.repair_files(client);
    }

    /// First half: its operations, page locks and cells. Waits for nobody: others may be dead, too,
    /// and wait for this.
    pub fn repair_lanes(&self, client: u32) {
        for dead in self.board.dead_lanes(client) {
            if let Some(seq) = dead.seq.filter(|_| !on(Canary::RollForwardSkipped)) {
                self.finish_operation(&dead, seq);
            }
            for &segment in &dead.segments {
                self.seal_dead(segment);
            }
            self.board.frames().free_taken(dead.index);
            self.board.loaded().free_taken(dead.index);
            self.board.open_lane(&dead);
        }
        self.board.header().clear_passing(client);
        self.board.header().taken.clear(client);
        self.withdraw_announced(client);
        if on(Canary::DeathUnnoted) {
            self.board.header().changing.clear(client);
        }
        // It may have changed names and died before it counted that.
        self.board.header().end_changing(client);
        self.board.free_cells(client);
    }

    /// Seals a segment that a dead client appended to: behind its last whole record. What the
    /// client wrote last it may not have fenced, so that is made durable first: else a power cut
    /// would leave less than the seal says.
    fn seal_dead(&self, segment: Segment) {
        let Superblock { layout, uuid, .. } = &self.superblock;
        let scan = sum_segment(&self.nvm, layout, uuid, segment, |_| ());
        let (Some(generation), Stop::Full | Stop::Tail) = (scan.generation, scan.stop) else { return };
        self.nvm.flush(layout.segment_offset(segment), u64::from(scan.end));
        self.nvm.fence();
        let below = self.board.next_seq().next();
        seal_segment(&self.nvm, layout, uuid, SegmentUse { segment, generation }, scan.end, below);
    }

    /// Whether it keeps others out of a file.
    pub fn keeps_files(&self, client: u32) -> bool {
        !self.board.files_held_by(client).is_empty()
    }

    /// Second half: the files it kept others out of. Waits for page locks and the disk.
    pub fn repair_files(&self, client: u32) {
        for cell in self.board.requests() {
            let asked = || cell.client() == client;
            // What it asked under its lock must not be done without it.
            if asked() && !cell.advance(RequestState::Posted, RequestState::Free) {
                while asked() && cell.state() == RequestState::Taken {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        // A name among it will not be given.
        self.withdraw_announced(client);
        for slot in self.board.files_held_by(client) {
            let row = self.board.row(slot);
            // A call around the log may have been under way: what it did is made durable before
            // others go on.
            if let Some(file) = self.file_now(slot) {
                let _ = self.settle(&file, Writers::KeptOut);
            }
            forget_size(row);
            row.unlock_exclusive(client);
        }
    }

    /// Rolls an operation forward under the locks its owner still holds. Where that cannot be done,
    /// the log is applied anew before the file's next sync: the operation was not acknowledged.
    ///
    /// In state Behind its owner may have entered some of its pages and not others: the others are
    /// entered now, for which no disk is needed, so that none can refuse it and leave readers half
    /// of a write. What was none for page rows goes to the page cache, in one call, behind what the
    /// rows of its range had.
    fn finish_operation(&self, dead: &DeadLane, seq: Seq) {
        let slot = dead.slot;
        let Some(row) = self.board.files().get(slot.index()) else { return };
        // It may have died in a truncation.
        self.board.header().note_resize();
        if !on(Canary::FinishedByDisk) && self.finish(dead, seq, row) {
            return;
        }
        // While the rows are gone and the record is not there yet, the page cache has half of it:
        // as long as some row is counted, readers come by the page locks, which are still its
        // owner's.
        let is_behind = row.state().lags();
        if is_behind {
            row.page_rows().enter();
        }
        self.roll_forward_dead(dead, seq, row);
        if is_behind {
            row.page_rows().leave();
        }
        forget_size(row);
    }

    /// Enters the pages of a dead client's record that it did not live to enter.
    pub(super) fn finish_in_rows(&self, dead: &DeadLane, seq: Seq, row: &FileRow) -> bool {
        let layout = &self.superblock.layout;
        let mut media_offset = 0;
        let members = whole_write(&self.nvm, layout, &self.superblock.uuid, &dead.segments, seq, |record| {
            persist(&self.nvm, &self.superblock, record);
            media_offset = layout.segment_offset(record.segment) + u64::from(record.at) + RECORD_HEADER_BYTES;
        });
        let [(header, bytes)] = &members[..] else { return false };
        let generation = row.generation();
        let is_its_own = (header.slot, header.slot_generation) == (dead.slot, generation);
        let end = header.file_offset.checked_add(bytes.len() as u64);
        if header.kind != Kind::Write || !is_its_own || end.is_none_or(|end| end > i64::MAX as u64) {
            return false;
        }
        let offset = header.file_offset;
        let payload = Payload { offset, bytes: bytes.len() as u64, media_offset, copy: Some(bytes), seq };
        let places = Places { board: &self.board, nvm: &self.nvm, layout, uuid: &self.superblock.uuid };
        if !finish(&places, (FileRef { slot: dead.slot, generation }, row), dead.index, &payload) {
            return false;
        }
        for (page, ..) in pieces(offset, payload.bytes) {
            self.board.loaded().drop_page(dead.slot, page);
        }
        self.note_recorded(row);
        row.raise_written(header.unix_time_ns);
        // After the rows, as its owner would have.
        row.raise_end(offset + payload.bytes);
        true
    }

    fn roll_forward_dead(&self, dead: &DeadLane, seq: Seq, row: &FileRow) {
        let slot = dead.slot;
        let Some(file) = self.file_now(slot) else { return };
        let lane = &self.board.lanes()[dead.index.index()];
        let locked = lane.locks();
        let place = file.place();
        self.forget_left(&file);
        let rolled = roll_forward(&self.nvm, &self.superblock, &dead.segments, seq, place, &mut || {
            let target = self.open_for_writing(&file)?;
            if let Some(Locked { offset, bytes }) = locked {
                self.drain_range(&target, &file, (offset, bytes))?;
                self.board.loaded().drop_pages(slot, offset, bytes);
            }
            Ok(target)
        });
        if let Ok(Some(_)) = &rolled {
            self.note_recorded(row);
        }
        match rolled {
            Ok(Some(done)) if row.state().lags() => match done.kind {
                Kind::Write => {
                    let end = done.file_offset.saturating_add(done.extent);
                    row.raise_end(end);
                }
                Kind::Truncate => row.set_end(done.file_offset),
                Kind::Punch | Kind::Cancel => {}
            },
            // A short write that was cancelled may have made the file longer.
            Ok(None) => keep_size(row, &file),
            Ok(_) => {}
            Err(error) => {
                // So may its own call, which others have seen by now.
                keep_size(row, &file);
                let mut meta = file.meta();
                meta.rewrite = true;
                self.events.trouble(format!(
                    "{}: cannot finish the write of a dead process: {error}",
                    meta.path.display()
                ));
            }
        }
    }
}

/// A dead client may have made the file longer, and did not live to say so. Where bytes are in the
/// log alone, the board's size is the only one there is, and was set right.
fn forget_size(row: &FileRow) {
    if !row.state().lags() && row.page_rows().get() == 0 && !on(Canary::SizeBelieved) {
        row.forget_end();
    }
}
