//! Making a pool. It must never overwrite what may still be needed: a pool in use, a pool with
//! unrecovered records, or a file that is no pool, unless told to.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_media::{Mapping, MediaError, MediaKind, OpenMode};
use holdfast_pool::{FormatError, Layout, Remains, Words};
use rustix::fs::FlockOperation;

use super::PoolError;
use super::open::open_locked;

/// Makes a new pool at `path`; refuses to overwrite one that is in use or holds unrecovered records
/// unless `force`. (A pool that a live process owns is refused even then.) Volatile media needs
/// `volatile`.
pub fn format(
    path: &Path,
    size_bytes: u64,
    volatile: bool,
    force: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), PoolError> {
    let layout = Layout::new(size_bytes).map_err(PoolError::Size)?;
    let created = !path.exists();
    if created {
        holdfast_media::allocate(path, size_bytes, &mut *progress).map_err(PoolError::Unmade)?;
    }
    let made = (|| {
        let file = open_locked(path, OpenMode::ReadWrite, FlockOperation::NonBlockingLockExclusive)?;
        if !created {
            if let Ok((_, info)) = Mapping::open_fd(file.as_fd(), path, OpenMode::ReadOnly) {
                refuse_volatile(path, info.kind, volatile)?;
            }
            if !force {
                refuse_what_is_needed(path, &file)?;
            }
            holdfast_media::allocate_over(path, size_bytes, progress).map_err(PoolError::Unmade)?;
        }
        let (mapping, info) =
            Mapping::open_fd(file.as_fd(), path, OpenMode::ReadWrite).map_err(PoolError::Unmade)?;
        refuse_volatile(path, info.kind, volatile)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        holdfast_pool::format(&mapping, &layout, new_uuid(path)?, now);
        Ok(())
    })();
    if made.is_err() && created {
        // Nothing but our own unfinished file; the first error is the one to tell.
        let _ = std::fs::remove_file(path);
    }
    made
}

fn refuse_volatile(path: &Path, kind: MediaKind, allowed: bool) -> Result<(), PoolError> {
    if kind.is_persistent() || allowed {
        return Ok(());
    }
    Err(PoolError::VolatileTarget { path: path.to_owned(), kind })
}

fn refuse_what_is_needed(path: &Path, file: &File) -> Result<(), PoolError> {
    let (mapping, info) = match Mapping::open_fd(file.as_fd(), path, OpenMode::ReadOnly) {
        Ok(opened) => opened,
        Err(MediaError::Empty { .. }) => return Ok(()),
        Err(error) => return Err(PoolError::Unmade(error)),
    };
    match holdfast_pool::open(&mapping) {
        Ok(superblock) => {
            let words = Words { nvm: &mapping, layout: &superblock.layout };
            if words.counter_clean().is_none() {
                return Err(PoolError::Unrecovered(path.to_owned()));
            }
            Ok(())
        }
        Err(FormatError::NotAPool) if holdfast_pool::remains(&mapping) == Remains::Pool => {
            Err(PoolError::Remains(path.to_owned()))
        }
        // A new DAX device has no file to lose, and an empty start is no pool that could be meant.
        Err(FormatError::NotAPool) if info.kind == MediaKind::DaxDevice => Ok(()),
        Err(error) => Err(PoolError::Overwrites { path: path.to_owned(), error }),
    }
}

fn new_uuid(path: &Path) -> Result<[u8; 16], PoolError> {
    let mut uuid = [0u8; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut uuid))
        .map_err(|error| PoolError::NoRandom { pool: path.to_owned(), error })?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}
