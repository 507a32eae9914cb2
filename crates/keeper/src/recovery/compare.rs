//! Looking at what a file holds already, beside what its records say. It writes nothing, but the
//! rest of a write that its writer's death cut short.

use std::io;

use holdfast_log::Kind;
use holdfast_media::Nvm;

use super::frames::Payloads;
use super::overlay::newest_pieces;
use super::scan::Entry;
use crate::disk::DiskFile;

/// The kernel copies a write in such pieces, and stops between two of them if the writer is killed.
const PAGE_BYTES: u64 = 4096;
const READ_BYTES_MAX: u64 = 1 << 20;

/// Whether writing `entries` (live, in seq order) to a file would change nothing in it. Only what
/// is simple to say is said: writes, and perhaps a truncation behind all of them.
pub(super) fn is_written(
    payloads: &Payloads<'_, impl Nvm>,
    entries: &[Entry],
    file: &impl DiskFile,
) -> io::Result<bool> {
    let size = file.stat()?.size;
    let (writes, cut) = match entries.split_last() {
        Some((last, before)) if last.kind == Kind::Truncate => (before, Some(last.file_offset)),
        _ => (entries, None),
    };
    let end = cut.unwrap_or(u64::MAX);
    let simple = writes.iter().all(|entry| entry.kind == Kind::Write);
    if !simple || cut.is_some_and(|cut| cut != size) {
        return Ok(false);
    }
    let mut differs = false;
    newest_pieces(writes, |write, skip, bytes| {
        let from = write.file_offset + skip;
        let bytes = bytes.min(end.saturating_sub(from));
        differs =
            differs || from + bytes > size || first_difference(payloads, write, skip, bytes, file)?.is_some();
        Ok::<_, io::Error>(())
    })?;
    Ok(!differs)
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
