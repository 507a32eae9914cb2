//! Writing to a file in large pieces, and having the disk begin early. It makes nothing durable:
//! that is the sync that the caller does at the end.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use holdfast_disk::DiskFile;

/// Neighbouring pieces are joined into writes of up to this many bytes.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// After this many bytes the disk is told to begin.
const WRITE_BACK_BYTES: u64 = 8 << 20;

/// A file that is written to.
pub(super) struct Writer<'a, F: DiskFile> {
    pub(super) file: &'a F,
    /// Called before every change of the file with the bytes it writes.
    tick: &'a mut dyn FnMut(u64),
    buffer: Vec<u8>,
    /// Where the first byte of the buffer goes, and how many there are.
    offset: u64,
    filled: usize,
    /// What was written since the disk was last told to begin: how many bytes, and between which
    /// offsets.
    dirty_bytes: u64,
    dirty: Option<Range<u64>>,
    /// Only for a file with that much to write.
    write_back: Option<WriteBack>,
}

impl<'a, F: DiskFile> Writer<'a, F> {
    pub(super) fn new(file: &'a F, tick: &'a mut dyn FnMut(u64)) -> Self {
        Self {
            file,
            tick,
            buffer: Vec::new(),
            offset: 0,
            filled: 0,
            dirty_bytes: 0,
            dirty: None,
            write_back: None,
        }
    }

    /// Tells of `bytes` that are done without a write, or of a change of another kind (0).
    pub(super) fn tick(&mut self, bytes: u64) {
        (self.tick)(bytes);
    }

    /// Takes `bytes` bytes for `offset`. `read` is called with parts of them, each to be filled
    /// from the given byte on.
    pub(super) fn put(
        &mut self,
        offset: u64,
        bytes: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            if self.filled == WRITE_BYTES_MAX || self.offset + self.filled as u64 != offset + done {
                self.flush()?;
                self.offset = offset + done;
            }
            let step =
                (WRITE_BYTES_MAX - self.filled).min(usize::try_from(bytes - done).unwrap_or(usize::MAX));
            let end = self.filled + step;
            if self.buffer.len() < end {
                // No larger than what comes: many files have a few bytes.
                self.buffer.resize(end, 0);
            }
            read(done, &mut self.buffer[self.filled..end])?;
            self.filled = end;
            done += step as u64;
        }
        Ok(())
    }

    /// Writes what was taken.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.filled == 0 {
            return Ok(());
        }
        let bytes = self.filled as u64;
        self.tick(bytes);
        self.file.write_all_at(&self.buffer[..self.filled], self.offset)?;
        self.filled = 0;
        self.dirty_bytes += bytes;
        let written = self.offset..self.offset + bytes;
        self.dirty = Some(match &self.dirty {
            Some(dirty) => dirty.start.min(written.start)..dirty.end.max(written.end),
            None => written,
        });
        if self.dirty_bytes >= WRITE_BACK_BYTES {
            self.start_write_back();
        }
        Ok(())
    }

    /// So that the sync at the end finds little left to do. Without a thread it does everything
    /// then.
    fn start_write_back(&mut self) {
        self.dirty_bytes = 0;
        let Some(range) = self.dirty.take() else { return };
        if self.write_back.is_none() {
            self.write_back = WriteBack::start(self.file).ok();
        }
        if let Some(write_back) = &self.write_back {
            let _ = write_back.ranges.send(range);
        }
    }
}

impl<F: DiskFile> Drop for Writer<'_, F> {
    fn drop(&mut self) {
        if let Some(write_back) = self.write_back.take() {
            write_back.end();
        }
    }
}

/// A thread that has the disk begin with ranges of a file. The call waits while the disk's queue is
/// full, and the next bytes can be read from the log meanwhile.
struct WriteBack {
    ranges: Sender<Range<u64>>,
    thread: JoinHandle<()>,
}

impl WriteBack {
    fn start(file: &impl DiskFile) -> io::Result<Self> {
        let file = file.try_clone()?;
        let (ranges, requests) = channel();
        let thread = std::thread::Builder::new().name("write-back".to_owned()).spawn(move || {
            for range in requests {
                file.begin_write_back(&range);
            }
        })?;
        Ok(Self { ranges, thread })
    }

    /// Waits until the disk has begun with everything.
    fn end(self) {
        drop(self.ranges);
        let _ = self.thread.join();
    }
}
