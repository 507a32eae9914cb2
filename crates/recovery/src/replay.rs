//! Writing a file's live records into it.
//!
//! One by one in seq order would be right: the file on disk holds any mixture of the effects of
//! these records over what was synced before the first of them. A byte that none of them touched is
//! as it was synced. A byte that some touched gets every one of their effects again, in order, so
//! the last one wins, as it did when the program ran; and so does the size: only a truncation makes
//! a file shorter, and it is among the records (history 17). Since the mixture does not matter,
//! neither does an earlier replay that a crash cut off (invariant 8).
//!
//! Truncations and punches keep their place in that order. Of the writes between two of them only
//! the outcome is written, in ascending order and each byte once. That is the same: writes neither
//! read the file nor make it shorter, so after any order of them a byte holds what the newest write
//! put there (which [`newest_pieces`] finds), and the size is the larger of what it was and the
//! farthest end. What a later truncation cuts is not written. A crash in between leaves one more
//! mixture of effects of these records, whatever part of it the disk has begun with; the records
//! stay in the log until the sync has succeeded, so the next recovery starts over with the same
//! records and writes the same bytes.

use std::io;

use holdfast_canary::{Canary, on};
use holdfast_log::Kind;
use holdfast_media::Nvm;

use super::entry::Entry;
use super::overlay::newest_pieces;
use super::payloads::Payloads;
use super::writer::Writer;
use holdfast_disk::DiskFile;

/// At most this many writes are merged at once: their places take 16 bytes of memory each, their
/// bytes stay on the media.
const WRITES_MAX: usize = 1 << 22;

/// Applies `entries` (live, in seq order, of one file) to `file`. `tick` is called before every
/// change of the file; the numbers it hears add up to the bytes of all writes.
pub(super) fn replay(
    payloads: &Payloads<'_, impl Nvm>,
    entries: &[Entry],
    file: &impl DiskFile,
    tick: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut writer = Writer::new(file, tick);
    let sizes_last: Vec<Entry>;
    let mut left = entries;
    if on(Canary::RecoverSizesLast) {
        let (writes, sizes): (Vec<Entry>, Vec<Entry>) =
            entries.iter().partition(|entry| entry.kind == Kind::Write);
        sizes_last = [writes, sizes].concat();
        left = &sizes_last;
    }
    let all_ends = ends(left);
    let mut ends = &all_ends[..];
    while let Some(first) = left.first() {
        let writes = left.iter().take(WRITES_MAX).take_while(|entry| entry.kind == Kind::Write).count();
        let (run, rest) = left.split_at(writes.max(1));
        left = rest;
        match first.kind {
            Kind::Write => write(payloads, run, ends.first().copied().unwrap_or(u64::MAX), &mut writer)?,
            Kind::Truncate if on(Canary::RecoverNoTruncate) => {}
            Kind::Punch if on(Canary::RecoverNoPunch) => {}
            Kind::Truncate => {
                ends = ends.get(1..).unwrap_or_default();
                writer.tick(0);
                file.set_len(first.file_offset)?;
            }
            Kind::Punch => {
                writer.tick(0);
                file.punch(first.file_offset, first.extent)?;
            }
            // Resolving what is live has used them up.
            Kind::Cancel => {}
        }
    }
    Ok(())
}

/// For each truncation where the file ends once it and all later ones were made: what lies behind
/// is cut, whatever it is.
fn ends(entries: &[Entry]) -> Vec<u64> {
    if on(Canary::RecoverNoTruncate) {
        return Vec::new();
    }
    let truncations = entries.iter().rev().filter(|entry| entry.kind == Kind::Truncate);
    let mut ends: Vec<u64> = truncations
        .scan(u64::MAX, |end, truncation| {
            *end = truncation.file_offset.min(*end);
            Some(*end)
        })
        .collect();
    ends.reverse();
    ends
}

/// Writes the outcome of `writes` (oldest first), as far as it lies before `end`: on a full disk
/// there is no room for what is cut again.
fn write(
    payloads: &Payloads<'_, impl Nvm>,
    writes: &[Entry],
    end: u64,
    writer: &mut Writer<'_, impl DiskFile>,
) -> io::Result<()> {
    let mut overwritten: u64 = writes.iter().map(|write| u64::from(write.bytes)).sum();
    let backwards: Vec<Entry>;
    let writes = if on(Canary::RecoverBackwards) {
        backwards = writes.iter().rev().copied().collect();
        &backwards
    } else {
        writes
    };
    newest_pieces(writes, |write, skip, bytes| {
        let offset = write.file_offset + skip;
        let kept = bytes.min(end.saturating_sub(offset));
        overwritten -= kept;
        if kept == 0 {
            return Ok(());
        }
        writer.put(offset, kept, |done, part| payloads.read(write, skip + done, part))
    })?;
    writer.flush()?;
    if overwritten > 0 {
        writer.tick(overwritten);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
