//! The bytes of records, wherever they are.

use std::io;

use holdfast_log::RECORD_HEADER_BYTES;
use holdfast_media::Nvm;
use holdfast_pool::{Frames, Layout};

use super::entry::Entry;

/// Bytes of the spill file.
pub(super) trait ReadSpill: Sync {
    /// Reads all of `bytes`.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
}

/// Where the bytes of records are: on the media, or in the spill file.
pub(super) struct Payloads<'a, N> {
    pub(super) nvm: &'a N,
    pub(super) layout: &'a Layout,
    pub(super) spill: Option<&'a dyn ReadSpill>,
}

impl<N: Nvm> Payloads<'_, N> {
    /// Reads bytes of a record's payload.
    pub(super) fn read(&self, entry: &Entry, skip: u64, bytes: &mut [u8]) -> io::Result<()> {
        let within = u64::from(entry.at()) + RECORD_HEADER_BYTES + skip;
        match (entry.segment.number().checked_sub(self.layout.segment_count), self.spill) {
            (Some(frame), Some(spill)) => {
                let frames = Frames { nvm: self.nvm, layout: self.layout };
                spill.read(frames.file_offset(frame) + within, bytes)
            }
            _ => {
                self.nvm.read(self.layout.segment_offset(entry.segment) + within, bytes);
                Ok(())
            }
        }
    }
}
