//! Writing a file's live records into it.
//!
//! One by one in seq order is right: the file on disk holds any mixture of the effects of these records over what
//! was synced before the first of them. A byte that none of them touched is as it was synced. A byte that some
//! touched gets every one of their effects again, in order, so the last one wins, as it did when the program ran;
//! and so does the size: only a truncation makes a file shorter, and it is among the records (history 17). Since
//! the mixture does not matter, neither does an earlier replay that a crash cut off (invariant 8).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use holdfast_log::{Kind, RECORD_HEADER_BYTES};
use holdfast_media::Nvm;
use holdfast_pool::Layout;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::scan::Entry;

/// Neighbouring writes are joined up to this many bytes.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Bytes read from the log that go to one place of the file.
#[derive(Default)]
struct Batch {
    offset: u64,
    bytes: Vec<u8>,
}

/// Applies `entries` (live, in seq order, of one file) to `file`. `tick` is called before every change of the file
/// with the bytes it writes.
pub(super) fn replay(
    nvm: &impl Nvm,
    layout: &Layout,
    entries: &[Entry],
    file: &File,
    tick: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut batch = Batch::default();
    for entry in entries {
        match entry.kind {
            Kind::Write => {
                let follows = batch.offset.checked_add(batch.bytes.len() as u64) == Some(entry.file_offset);
                if !follows || batch.bytes.len() + entry.bytes as usize > BATCH_BYTES_MAX {
                    flush(&mut batch, file, tick)?;
                    batch.offset = entry.file_offset;
                }
                let filled = batch.bytes.len();
                batch.bytes.resize(filled + entry.bytes as usize, 0);
                nvm.read(payload_offset(layout, entry), &mut batch.bytes[filled..]);
            }
            Kind::Truncate => {
                flush(&mut batch, file, tick)?;
                tick(0);
                file.set_len(entry.file_offset)?;
            }
            Kind::Punch => {
                flush(&mut batch, file, tick)?;
                tick(0);
                punch(file, entry.file_offset, entry.extent)?;
            }
            // Resolving what is live has used them up.
            Kind::Cancel => {}
        }
    }
    flush(&mut batch, file, tick)
}

/// Where the bytes of a record lie on the media.
pub(super) fn payload_offset(layout: &Layout, entry: &Entry) -> u64 {
    layout.segment_offset(entry.segment) + u64::from(entry.at()) + RECORD_HEADER_BYTES
}

fn flush(batch: &mut Batch, file: &File, tick: &mut dyn FnMut(u64)) -> io::Result<()> {
    if !batch.bytes.is_empty() {
        tick(batch.bytes.len() as u64);
        file.write_all_at(&batch.bytes, batch.offset)?;
        batch.bytes.clear();
    }
    Ok(())
}

fn punch(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes) {
        Err(Errno::OPNOTSUPP) => {
            let end = offset.saturating_add(bytes).min(file.metadata()?.len());
            let zeros = vec![0u8; BATCH_BYTES_MAX];
            let mut at = offset;
            while at < end {
                let step = (end - at).min(zeros.len() as u64);
                file.write_all_at(&zeros[..step as usize], at)?;
                at += step;
            }
            Ok(())
        }
        done => Ok(done?),
    }
}
