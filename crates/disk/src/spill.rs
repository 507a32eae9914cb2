//! The spill file: where a log that is too short goes on, in order, on a disk.
//!
//! Finding it and telling that it is the right one; making it is the program's (`spill_file`), what
//! is written to it and when is decided in `durable::spill`. It must never be taken for the file of
//! another pool, or of another time.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use holdfast_pool::{Home, SPILL_HEADER_BYTES, SpillHeader, Superblock};

use crate::{Access, Disk, DiskFile};

/// What a disk takes in one piece without the page cache begins and ends at multiples of this.
const ALIGNMENT: usize = 4096;

/// Memory that a disk reads and writes directly.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// So many zeros.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { bytes, start, len }
    }

    /// The memory.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The memory, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Opens the spill file of a pool, if what stands at its path is that file.
pub fn open<D: Disk>(disk: &D, superblock: &Superblock, home: &Home, access: Access) -> io::Result<D::File> {
    let file = disk.find(&home.path)?;
    if !file.stat()?.is_file {
        return Err(io::Error::other("what stands there is no regular file"));
    }
    let file = file.reopen(access)?;
    let mut page = Aligned::new(SPILL_HEADER_BYTES as usize);
    file.read_exact_at(page.bytes_mut(), 0)?;
    let wanted = SpillHeader {
        pool: superblock.uuid,
        id: home.id,
        segment_bytes: superblock.layout.segment_bytes,
        frame_count: home.frame_count,
    };
    match SpillHeader::decode(page.bytes()) {
        Some(header) if header == wanted && file.stat()?.size >= wanted.file_bytes() => Ok(file),
        Some(header) if header.pool != superblock.uuid => {
            Err(io::Error::other("it is the spill file of another pool"))
        }
        Some(_) => Err(io::Error::other("it is another spill file of this pool, or a part of it is gone")),
        None => Err(io::Error::other("it is no spill file")),
    }
}

/// The path as a person knows it.
pub fn path_of(home: &Home) -> PathBuf {
    std::ffi::OsString::from_vec(home.path.clone()).into()
}
