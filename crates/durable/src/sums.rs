//! What is drained is what was written: before bytes of the log go to a file, the sum of the record
//! that they are of is looked at. Stray stores reach all that clients may write to, and a file must
//! not get what they left without a word (docs/trust.md).
//!
//! What lies in a frame of the board has a sum of its own, which grows with it.
//!
//! Bytes are copied first and the record is summed then, so nothing can come between the two. A
//! record that is drained in several pieces is summed with the first of them.

use std::io;

use holdfast_board::{Row, Source};
use holdfast_canary::{Canary, on};
use holdfast_log::{Around, Kind, record_around};
use holdfast_media::Nvm;
use holdfast_pool::Superblock;

use super::file::ManagedFile;
use super::rewrite::place_of;
use super::state::Durable;
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile};

/// Records with more bytes are summed once in a drain.
const SUMMED_ANEW_BYTES_MAX: u32 = 128 << 10;

/// The record that was summed last in a drain.
#[derive(Default)]
pub(super) struct Summed(Option<Around>);

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Whether the records and frames that rows of neighbouring pages point to have their sums; the
    /// first of these bytes is byte `offset` of the file. They were copied already, to `copied`.
    pub(super) fn check_sums(
        &self,
        file: &ManagedFile<D::File>,
        mut offset: u64,
        (rows, mut copied): (&[Row], &[u8]),
        summed: &mut Summed,
    ) -> io::Result<()> {
        if on(Canary::SumsUnread) {
            return Ok(());
        }
        let Superblock { layout, uuid, .. } = &self.superblock;
        summed.0 = summed.0.filter(|around| around.header.payload_bytes > SUMMED_ANEW_BYTES_MAX);
        for row in rows {
            let bytes = u64::from(row.content.hi - row.content.lo);
            let (of_row, rest) = copied.split_at((bytes as usize).min(copied.len()));
            copied = rest;
            if let Source::Frame(frame) = row.content.source
                && !self.board.frames().held(frame, row.content.lo, of_row)
            {
                let message = format!(
                    "what memory has of it at byte {offset} is not what was written: something stored there; nothing \
                     of that goes to the file, and the log has what was written"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            if let Source::Log(at) = row.content.source
                && !summed.0.is_some_and(|around| {
                    is_of(file, &around, at, offset) && around.has(&self.nvm, layout, at, bytes)
                })
            {
                let around = record_around(&self.nvm, layout, uuid, (at, bytes), |header, skip| {
                    header.kind == Kind::Write
                        && place_of(header) == file.place()
                        && header.file_offset.checked_add(skip) == Some(offset)
                });
                if around.is_none() {
                    let message = format!(
                        "what the log has of it at byte {offset} is not what was written: something stored into \
                         the pool, or its media lost it; nothing of that goes to the file"
                    );
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
                summed.0 = around;
            }
            offset += bytes;
        }
        Ok(())
    }
}

/// Whether the byte of the media at `at` is byte `offset` of the file, if it is one of the record.
fn is_of<F: DiskFile>(file: &ManagedFile<F>, around: &Around, at: u64, offset: u64) -> bool {
    place_of(&around.header) == file.place()
        && around.header.file_offset.wrapping_add(at.wrapping_sub(around.payload)) == offset
}
