//! Looking at what a file holds already, beside what its records say. It writes nothing, but the
//! rest of a write that its writer's death cut short.

use std::io;
use std::ops::Range;

use holdfast_canary::{Canary, on};
use holdfast_log::Kind;
use holdfast_media::Nvm;

use super::entry::Entry;
use super::overlay::{Touched, newest_pieces};
use super::payloads::Payloads;
use holdfast_disk::DiskFile;

/// The kernel copies a write in such pieces, and stops between two of them if the writer is killed.
const PAGE_BYTES: u64 = 4096;
const READ_BYTES_MAX: u64 = 1 << 20;
/// A file in which more than that had to be zero is not read: a person may wait less long than it
/// takes to read a sparse file of terabytes.
const ZEROS_MAX: u64 = 4 << 30;

/// Whether applying `entries` (live, in seq order) to a file would change nothing in it: it has the
/// size that they leave, and each byte is as the last of them that touched it left it. What was cut
/// off counts for nothing, whatever was written there before; what a cut or a punched hole left is
/// zero.
pub(super) fn is_applied(
    payloads: &Payloads<'_, impl Nvm>,
    entries: &[Entry],
    file: &impl DiskFile,
) -> io::Result<bool> {
    let size = file.stat()?.size;
    let size_applied = entries.iter().fold(size, |size, entry| match entry.kind {
        Kind::Write if entry.bytes > 0 => size.max(end_of(entry)),
        Kind::Truncate if !on(Canary::CutsUncompared) => entry.file_offset,
        _ => size,
    });
    if size_applied != size {
        return Ok(false);
    }
    // From the last one back: what a later one touched is none of an earlier one's.
    let (mut touched, mut end) = (Touched::default(), size);
    let mut zeros = 0;
    for entry in entries.iter().rev() {
        let range = match entry.kind {
            Kind::Write => entry.file_offset..end_of(entry).min(end),
            Kind::Punch => entry.file_offset..entry.file_offset.saturating_add(entry.extent).min(end),
            Kind::Truncate if !on(Canary::CutsUncompared) => entry.file_offset..end,
            Kind::Truncate | Kind::Cancel => continue,
        };
        if entry.kind == Kind::Truncate {
            end = end.min(entry.file_offset);
        }
        for part in touched.take(range) {
            let bytes = part.end - part.start;
            let differs = if entry.kind == Kind::Write {
                first_difference(payloads, entry, part.start - entry.file_offset, bytes, file)?.is_some()
            } else {
                zeros += bytes;
                zeros > ZEROS_MAX || !is_zero(file, part)?
            };
            if differs {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn end_of(write: &Entry) -> u64 {
    write.file_offset.saturating_add(u64::from(write.bytes))
}

fn is_zero(file: &impl DiskFile, range: Range<u64>) -> io::Result<bool> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end {
        found.resize(READ_BYTES_MAX.min(range.end - at) as usize, 0);
        file.read_exact_at(&mut found, at)?;
        if found.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        at += found.len() as u64;
    }
    Ok(true)
}

/// Where the bytes of a write, `bytes` of them behind the first `skip`, differ from the file's: the
/// offset in the file.
fn first_difference(
    payloads: &Payloads<'_, impl Nvm>,
    write: &Entry,
    skip: u64,
    bytes: u64,
    file: &impl DiskFile,
) -> io::Result<Option<u64>> {
    let (mut logged, mut found) = (Vec::new(), Vec::new());
    let mut done = 0;
    while done < bytes {
        let step = READ_BYTES_MAX.min(bytes - done) as usize;
        logged.resize(step, 0);
        found.resize(step, 0);
        payloads.read(write, skip + done, &mut logged)?;
        let at = write.file_offset + skip + done;
        match file.read_exact_at(&mut found, at) {
            // It ends within.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let there = file.stat()?.size.saturating_sub(at).min(step as u64) as usize;
                file.read_exact_at(&mut found[..there], at)?;
                found.truncate(there);
            }
            read => read?,
        }
        let same = logged.iter().zip(&found).take_while(|(a, b)| a == b).count();
        if same < step {
            return Ok(Some(at + same as u64));
        }
        done += step as u64;
    }
    Ok(None)
}

/// Whether a call that was made for a record reached the file: its first page is there, or the size
/// that it set.
pub(super) fn is_begun(
    payloads: &Payloads<'_, impl Nvm>,
    entry: &Entry,
    file: &impl DiskFile,
) -> io::Result<bool> {
    let size = file.stat()?.size;
    match entry.kind {
        Kind::Write => {
            let first = u64::from(entry.bytes).min(PAGE_BYTES - entry.file_offset % PAGE_BYTES);
            Ok(first > 0 && first_difference(payloads, entry, 0, first, file)?.is_none())
        }
        Kind::Truncate => Ok(size == entry.file_offset),
        Kind::Punch => is_zero(file, entry.file_offset..entry.file_offset.saturating_add(1).min(size)),
        Kind::Cancel => Ok(false),
    }
}

/// The rest of a write that is in a file in part.
pub(super) struct Torn {
    write: Entry,
    skip: u64,
    bytes: u64,
}

/// The rests of writes that the death of their writers cut short: those behind which no record of
/// the same lane stands, and of which the file has the first pages and not all. One of which it has
/// nothing was not begun.
pub(super) fn torn(
    payloads: &Payloads<'_, impl Nvm>,
    entries: &[Entry],
    file: &impl DiskFile,
) -> io::Result<Vec<Torn>> {
    let mut rests = Vec::new();
    for (index, last) in entries.iter().enumerate() {
        if !last.is_last || last.kind != Kind::Write {
            continue;
        }
        let later = &entries[index + 1..];
        if later.iter().any(|entry| entry.kind != Kind::Write) {
            continue;
        }
        // A write that spans segments has one number, and only its last member is the last of its
        // lane.
        let first = entries[..index].iter().rposition(|entry| entry.seq != last.seq).map_or(0, |at| at + 1);
        let start = entries[first].file_offset;
        let mut differs_at = None;
        let mut pieces = Vec::new();
        newest_pieces(&entries[first..], |write, skip, bytes| {
            if write.seq == last.seq {
                let differs = first_difference(payloads, write, skip, bytes, file)?;
                differs_at = differs_at.or(differs);
                pieces.push((*write, skip, bytes));
            }
            Ok::<_, io::Error>(())
        })?;
        let border = differs_at.map(|at: u64| at / PAGE_BYTES * PAGE_BYTES).filter(|&border| border > start);
        let Some(border) = border else { continue };
        for (write, skip, bytes) in pieces {
            let from = (write.file_offset + skip).max(border);
            let end = write.file_offset + skip + bytes;
            if from < end {
                rests.push(Torn { write, skip: from - write.file_offset, bytes: end - from });
            }
        }
    }
    Ok(rests)
}

/// Brings the rests to the file.
pub(super) fn finish(
    payloads: &Payloads<'_, impl Nvm>,
    rests: &[Torn],
    file: &impl DiskFile,
) -> io::Result<()> {
    for rest in rests {
        let mut bytes = vec![0; rest.bytes as usize];
        payloads.read(&rest.write, rest.skip, &mut bytes)?;
        file.write_all_at(&bytes, rest.write.file_offset + rest.skip)?;
    }
    Ok(())
}
