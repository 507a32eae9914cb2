//! Making the spill file that a person asked for, or finding that it is there already.
//!
//! Every byte of it is written once before it is used: syncs of what is written to it later then
//! wait for its bytes alone, not for the account of a file system. It must never overwrite a file
//! that is not a spill file of this pool.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use holdfast_media::Nvm;
use holdfast_pool::{Frames, Home, SpillHeader, Superblock};
use rustix::fs::{FallocateFlags, fallocate};

use holdfast_disk::spill::{self, Aligned};
use holdfast_disk::{Access, Disk, DiskFile, OsDisk, OsFile};
use holdfast_recovery::PoolError;

/// A spill file whose size is not said is so many times as large as the log.
const SIZE_FACTOR: u64 = 16;
const SIZE_BYTES_MIN: u64 = 1 << 30;
/// Fewer frames are of no use.
const FRAME_COUNT_MIN: u64 = 8;
/// Written at once while it is made.
const PIECE_BYTES: usize = 8 << 20;

/// A spill file as asked for.
pub(crate) struct Wanted<'a> {
    /// Absolute, without symbolic links.
    pub path: &'a Path,
    /// 0: as large as is useful.
    pub size_bytes: u64,
    /// Whether it may lie where a power cut empties it.
    pub volatile: bool,
    /// Frames that hold what recovery set aside.
    pub pinned: &'a [u32],
    /// The pool's path, for messages.
    pub pool: &'a Path,
}

/// Sees that the pool has this spill file. Nothing else of the log is in it but what is `pinned`.
pub(crate) fn prepare(nvm: &impl Nvm, superblock: &Superblock, wanted: &Wanted<'_>) -> Result<(), PoolError> {
    let layout = &superblock.layout;
    let frames = Frames { nvm, layout };
    let size_bytes = match wanted.size_bytes {
        0 => (layout.log_bytes() * SIZE_FACTOR).max(SIZE_BYTES_MIN),
        bytes => bytes,
    };
    let frame_count = (size_bytes / layout.segment_bytes).min(layout.frame_count.into()) as u32;
    let path = wanted.path;
    let failed = |error: io::Error| PoolError::SpillUnmade {
        pool: wanted.pool.to_owned(),
        spill: path.to_owned(),
        error,
    };
    let least_bytes = FRAME_COUNT_MIN * layout.segment_bytes;
    if size_bytes < least_bytes {
        let why =
            format!("with this pool it has at least {least_bytes} bytes, and {size_bytes} were asked for");
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
    }
    let most_bytes = layout.spill_bytes_max();
    if wanted.size_bytes > most_bytes {
        let why = format!(
            "this pool can account for at most {most_bytes} bytes of it, and {size_bytes} were asked for: lower \
             --spill-size, or make the pool larger"
        );
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
    }
    let had = frames.home();
    if let Some(home) = &had {
        let is_it = home.path == path.as_os_str().as_bytes()
            && (home.frame_count == frame_count || !wanted.pinned.is_empty());
        if is_it && spill::open(&OsDisk::new(), superblock, home, Access::Direct).is_ok() {
            return Ok(());
        }
        if !wanted.pinned.is_empty() {
            return Err(PoolError::SpillNeeded { pool: wanted.pool.to_owned(), spill: spill::path_of(home) });
        }
    }
    remove_own(path, superblock).map_err(failed)?;
    let mut id = [0; 16];
    File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut id)).map_err(failed)?;
    let header = SpillHeader { pool: superblock.uuid, id, segment_bytes: layout.segment_bytes, frame_count };
    let made = make(path, &header, wanted.volatile);
    if let Err(error) = made {
        if error.kind() != io::ErrorKind::AlreadyExists {
            // Nothing but our own unfinished file; the first error is the one to tell.
            let _ = std::fs::remove_file(path);
        }
        return Err(failed(error));
    }
    let home = Home { path: path.as_os_str().as_bytes().to_vec(), id, frame_count };
    frames.set_home(&home).map_err(|error| failed(io::Error::other(error.to_string())))
}

/// Removes what stands at the path if it is a spill file of this pool, whose frames are all free.
fn remove_own(path: &Path, superblock: &Superblock) -> io::Result<()> {
    let mut start = [0; 64];
    let read = File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    match read.and_then(|mut file| file.read_exact(&mut start)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        _ => {}
    }
    let why = match SpillHeader::decode(&start) {
        Some(header) if header.pool == superblock.uuid => return std::fs::remove_file(path),
        Some(_) => "it is the spill file of another pool (remove it if that pool is gone)",
        None => "it exists and is no spill file",
    };
    Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
}

fn make(path: &Path, header: &SpillHeader, volatile: bool) -> io::Result<()> {
    let file =
        File::options().write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)?;
    let file = OsFile::from(file);
    if let Err(error) = file.file_system()
        && !volatile
    {
        return Err(error);
    }
    let bytes = header.file_bytes();
    fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    let direct = file.reopen(Access::Direct)?;
    let zeros = Aligned::new(PIECE_BYTES);
    let mut at = 0;
    while at < bytes {
        let step = (bytes - at).min(PIECE_BYTES as u64) as usize;
        direct.write_all_at(&zeros.bytes()[..step], at)?;
        at += step as u64;
    }
    let mut page = Aligned::new(header.encode().len());
    page.bytes_mut().copy_from_slice(&header.encode());
    direct.write_all_at(page.bytes(), 0)?;
    direct.sync()?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    OsDisk::new().open(directory)?.sync()
}
