//! What of the log lies in the spill file: how much, how old, and its records. Segments come there
//! elsewhere (`spill.rs`).

use std::io;
use std::sync::atomic::Ordering;

use holdfast_canary::{Canary, on};
use holdfast_disk::spill::{self, Aligned};
use holdfast_disk::{Disk, DiskFile, locked};
use holdfast_log::{Record, scan_bytes};
use holdfast_media::Nvm;
use holdfast_pool::{Frames, Seq, Slot};

use super::state::Durable;
use super::upkeep::Upkeeps;

use super::frames::FrameRow;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    pub(super) fn frames(&self) -> Frames<'_, N> {
        Frames { nvm: &self.nvm, layout: &self.superblock.layout }
    }

    /// Frames in all and free; nothing when the log does not go on anywhere.
    pub fn count_frames(&self) -> Option<(u32, u32)> {
        let spill = self.spill.get().filter(|spill| !spill.failed.load(Ordering::SeqCst))?;
        let frames = locked(&spill.frames);
        let free = frames.iter().filter(|row| matches!(row, FrameRow::Free)).count();
        Some((frames.len() as u32, free as u32))
    }

    /// Frames that hold a part of the log, whether more can be written or not.
    pub fn frames_in_use(&self) -> u32 {
        let Some(spill) = self.spill.get() else { return 0 };
        let frames = locked(&spill.frames);
        frames.iter().filter(|row| matches!(row, FrameRow::Held(_) | FrameRow::Pinned)).count() as u32
    }

    /// The highest seq in all frames: with the files expired up to there all of them are free
    /// again.
    pub fn seq_of_frames(&self) -> Option<Seq> {
        let frames = locked(&self.spill.get()?.frames);
        let seqs = frames.iter().filter_map(|row| match row {
            FrameRow::Held(seqs) => seqs.iter().map(|&(_, seq)| seq).max(),
            _ => None,
        });
        seqs.max()
    }

    /// Gives back frames in which every record has expired, cancels included: a cancel's seq is
    /// above that of what it cancels. It is the caller's turn to give segments back.
    pub(super) fn free_frames(&self) {
        let Some(spill) = self.spill.get() else { return };
        let mut frames = locked(&spill.frames);
        let mut dead = Vec::new();
        for (frame, row) in (0..).zip(frames.iter()) {
            if let FrameRow::Held(seqs) = row
                && (on(Canary::SpillFrameLive)
                    || seqs.iter().all(|&(slot, seq)| seq <= self.board.expired_seq(slot)))
            {
                dead.push(frame);
            }
        }
        if dead.is_empty() {
            return;
        }
        if !on(Canary::FrameEntryStays) {
            self.frames().clear(&dead);
        }
        for frame in dead {
            frames[frame as usize] = FrameRow::Free;
        }
    }

    /// Visits the records of the frames that may hold some of a slot.
    pub(super) fn scan_frames(&self, slot: Slot, visit: &mut dyn FnMut(&Record<'_>)) -> io::Result<()> {
        let Some(spill) = self.spill.get() else { return Ok(()) };
        if on(Canary::RewriteNoFrames) {
            return Ok(());
        }
        let wanted: Vec<u32> = (0..)
            .zip(locked(&spill.frames).iter())
            .filter(|(_, row)| matches!(row, FrameRow::Held(seqs) if seqs.iter().any(|&(of, _)| of == slot)))
            .map(|(frame, _)| frame)
            .collect();
        let mut image = Aligned::new(self.superblock.layout.segment_bytes as usize);
        for frame in wanted {
            let Ok(Some(held)) = self.frames().get(frame) else { continue };
            spill.file.read_exact_at(image.bytes_mut(), self.frames().file_offset(frame))?;
            let place = held.place();
            let scan = scan_bytes(image.bytes(), &self.superblock.uuid, place, |record| visit(&record));
            if scan.end < held.end {
                return Err(io::Error::other(format!(
                    "{}: frame {frame} has lost records",
                    spill::path_of(&spill.home).display()
                )));
            }
        }
        Ok(())
    }

    /// All frames are free, and recorded as such.
    pub(super) fn clear_frames(&self) {
        let unpinned = |frame: &u32| {
            self.spill.get().is_none_or(|spill| {
                !matches!(locked(&spill.frames).get(*frame as usize), Some(FrameRow::Pinned))
            })
        };
        let in_use: Vec<u32> = self.frames().in_use().into_iter().filter(unpinned).collect();
        self.frames().clear(&in_use);
    }
}
