//! The part of the log that lies in the spill file, as recovery reads it.
//!
//! A frame is read as the segment it was copied from. In the places of records it has a number
//! behind those of all segments.

use std::io;

use holdfast_log::{Gap, survey};
use holdfast_media::Nvm;
use holdfast_pool::{Generation, Seq, seal_of};

use super::PoolError;
use super::payloads::ReadSpill;
use super::source::Source;
use holdfast_disk::spill;
use holdfast_disk::{Access, Disk, DiskFile};

/// The spill file as a file of a disk.
pub(super) struct Spill<F>(F);

impl<F: DiskFile> ReadSpill for Spill<F> {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }
}

/// Opens the spill file, if any frame of it may hold what is not in the files yet. Without it
/// nothing may be replayed: what is newer than the rest may lie there.
pub(super) fn open<D: Disk>(
    source: &Source<'_, impl Nvm>,
    disk: &D,
) -> Result<Option<Spill<D::File>>, PoolError> {
    if source.words().counter_clean().is_some() {
        return Ok(None);
    }
    let frames = source.frames();
    let count = frames.in_use().len();
    if count == 0 {
        return Ok(None);
    }
    let pool = source.name.to_owned();
    let Some(home) = frames.home() else { return Err(PoolError::SpillUnknown(pool)) };
    let path = spill::path_of(&home);
    match spill::open(disk, source.superblock, &home, Access::Read) {
        Ok(file) => Ok(Some(Spill(file))),
        Err(error) => Err(PoolError::Spill { pool, spill: path, error, frames: count }),
    }
}

/// What a frame says when it is read.
pub(super) struct FrameScan {
    pub(super) generation: Generation,
    /// Where records stood and none is valid.
    pub(super) gaps: Vec<Gap>,
    /// Every number in it is below this, if that is known.
    pub(super) below: Option<Seq>,
}

/// Reads a frame: nothing when it is free, an error in words when its entry is damaged.
pub(super) fn scan_frame(
    source: &Source<'_, impl Nvm>,
    frame: u32,
    buffer: &mut Vec<u8>,
    visit: impl FnMut(holdfast_log::Record<'_>),
) -> Result<Option<FrameScan>, FrameError> {
    let frames = source.frames();
    let entry = frames.get(frame).map_err(|error| {
        FrameError::Damaged(format!("spill frame {frame}: {error}, nothing in it can be read"))
    })?;
    let (Some(held), Some(spill)) = (entry, source.spill) else { return Ok(None) };
    buffer.resize(source.layout().segment_bytes as usize, 0);
    spill.read(frames.file_offset(frame), buffer).map_err(FrameError::Unread)?;
    let (layout, uuid, place) = (source.layout(), &source.superblock.uuid, held.place());
    let mut gaps = Vec::new();
    survey(buffer, uuid, place, Some(held.end), visit, |gap| gaps.push(gap));
    let below = seal_of(buffer, layout, uuid, place).below;
    Ok(Some(FrameScan { generation: held.generation, gaps, below }))
}

/// Why a frame cannot be scanned.
pub(super) enum FrameError {
    /// What is wrong, in words.
    Damaged(String),
    /// The disk does not give it back.
    Unread(io::Error),
}
