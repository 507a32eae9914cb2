//! A design of its own: a write is logged and put into a queue; the page cache gets what is in the
//! queue when somebody needs it there. Readers find it in the queue.
//!
//! Both halves are here, because keeper and clients of these tests are one process. Neither knows
//! any other design.

use holdfast_cache::Stop;
use holdfast_pool::Seq;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use holdfast_board::Way;
use holdfast_cache::{
    Buffers, Design, Errno, FileRef, Lane, Place, Read, ReadCall, Resize, Write, WriteCall, Written,
};
use holdfast_disk::{Access, Disk, DiskFile};
use holdfast_durable::{Durable, ManagedFile, Pace, Upkeep, Upkeeps};
use holdfast_media::Nvm;

/// Longer writes may lie in several segments: they go to the page cache.
const BYTES_MAX: u64 = 4096;

struct Entry {
    /// Which file: a slot's use.
    file: FileRef,
    seq: Seq,
    offset: u64,
    bytes: Vec<u8>,
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// One keeper at a time: slots of different pools have the same numbers. What is in the queue goes
/// with its machine.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner).clear();
    alone
}

/// The design.
pub struct Queue;

impl Design for Queue {
    fn write<N: Nvm>(
        lane: &mut Lane<'_, N>,
        write: &Write<'_>,
        call: &mut impl WriteCall,
    ) -> Result<Written, Stop> {
        let client = lane.client();
        let Write { file, place, parts, total } = *write;
        let row = client.row(file);
        // One after the other: the queue has them in the order of their seqs.
        lane.lock_cursor(file)?;
        let offset = match place {
            Place::At(offset) => offset,
            Place::Append => row.end(),
            Place::Cursor { .. } => return Ok(Written::Alone),
        };
        if total > BYTES_MAX {
            return Ok(Written::Alone);
        }
        lane.lock_pages(file, offset, total)?;
        let seq = lane.append_write(file, offset, total, parts)?;
        let mut bytes = Vec::new();
        for part in parts {
            let at = bytes.len();
            bytes.resize(at + part.len(), 0);
            part.copy_to(&mut bytes[at..]);
        }
        row.page_rows().enter();
        ENTRIES.lock().unwrap().push(Entry { file, seq, offset, bytes });
        row.raise_end(offset + total);
        client.note_recorded(row);
        call.set_cursor(offset + total)?;
        lane.count_write(total);
        Ok(Written::Done { bytes: total as usize, offset })
    }

    fn read<N: Nvm, B: Buffers + ?Sized>(
        lane: &Lane<'_, N>,
        read: &Read,
        buffers: &mut B,
        call: &mut impl ReadCall,
    ) -> Result<usize, Errno> {
        let Place::At(offset) = read.place else { return Err(Errno::EINVAL) };
        let row = lane.client().row(read.file);
        let size = row.end();
        let bytes = size.saturating_sub(offset).min(read.bytes as u64) as usize;
        let part = &mut buffers.part(0).ok_or(Errno::EINVAL)?[..bytes];
        // Nothing goes from the queue to the page cache meanwhile.
        let entries = ENTRIES.lock().unwrap();
        part.fill(0);
        let mut done = 0;
        while done < bytes {
            match call.read(&mut part[done..], offset + done as u64)? {
                0 => break,
                more => done += more,
            }
        }
        let of_file = |entry: &&Entry| entry.file == read.file;
        for entry in entries.iter().filter(of_file) {
            let end = entry.offset + entry.bytes.len() as u64;
            let (from, to) = (entry.offset.max(offset), end.min(offset + bytes as u64));
            if from < to {
                let source = &entry.bytes[(from - entry.offset) as usize..(to - entry.offset) as usize];
                part[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        Ok(bytes)
    }

    fn resize<N: Nvm>(
        lane: &mut Lane<'_, N>,
        resize: &Resize,
        _is_idle: bool,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let client = lane.client();
        client.log_resize(lane, resize, raw)
    }
}

impl Upkeep for Queue {
    const LEAVES: Option<Way> = Some(Way::LeaveOther);

    fn drain<N: Nvm, D: Disk, U: Upkeeps>(
        durable: &Durable<N, D, U>,
        file: &ManagedFile<D::File>,
        seq: Seq,
        _pace: Pace,
    ) -> io::Result<Option<D::File>> {
        let target = file.held().reopen(Access::Write)?;
        drain_to(durable, &target, file, seq)?;
        Ok(Some(target))
    }

    fn drain_held<N: Nvm, D: Disk, U: Upkeeps>(
        durable: &Durable<N, D, U>,
        target: &D::File,
        file: &ManagedFile<D::File>,
        _range: (u64, u64),
    ) -> io::Result<()> {
        drain_to(durable, target, file, Seq::MAX)
    }
}

fn drain_to<N: Nvm, D: Disk, U: Upkeeps>(
    durable: &Durable<N, D, U>,
    target: &D::File,
    file: &ManagedFile<D::File>,
    seq: Seq,
) -> io::Result<()> {
    let mut entries = ENTRIES.lock().unwrap();
    let is_due = |entry: &Entry| entry.file == file.place() && entry.seq <= seq;
    for entry in entries.iter().filter(|entry| is_due(entry)) {
        target.write_all_at(&entry.bytes, entry.offset)?;
    }
    entries.retain(|entry| {
        if is_due(entry) {
            durable.board.row(file.slot).page_rows().leave();
        }
        !is_due(entry)
    });
    Ok(())
}
