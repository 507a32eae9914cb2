//! Makes pools: for the `format` subcommand and for `run` when the pool is missing. What a pool
//! looks like is the pool's own business.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};

use crate::args::FormatArgs;
use crate::locate::{self, FileSystem};
use crate::report;
use crate::sizes::human_bytes;
use crate::words::name_of;
use holdfast_look::progress::Progress;

/// Size of a pool file when none is given.
pub const POOL_BYTES_DEFAULT: u64 = 256 << 20;

/// The `format` subcommand.
pub fn run(args: &FormatArgs) -> anyhow::Result<u8> {
    let pool = locate::absolute(&args.pool)?;
    locate::refuse_no_text("--pool", &pool)?;
    refuse_volatile_media(&pool, args.volatile)?;
    let size_bytes = args.size.or_else(|| device_bytes(&pool)).unwrap_or(POOL_BYTES_DEFAULT);
    create(&pool, size_bytes, args.volatile, args.force)?;
    let volatile = locate::file_system(&pool)? == FileSystem::Memory;
    let words = report::durability_in_words(volatile);
    report::print(format!("pool {}, {}, {words}\n", name_of(&pool), human_bytes(size_bytes)))?;
    Ok(0)
}

/// Makes a pool, with a progress bar when it takes long. A pool file that did not exist appears
/// under its name only when it is complete: nobody ever sees half a pool, and an interrupted one
/// leaves nothing behind.
pub fn create(pool: &Path, size_bytes: u64, volatile: bool, force: bool) -> anyhow::Result<()> {
    refuse_lost_link(pool)?;
    let mut progress = Progress::new();
    let mut advance = |done, total| progress.update("making the pool", done, total);
    let made = match Unnamed::beside(pool) {
        Some(file) => holdfast_recovery::format(&file.path, size_bytes, volatile, force, &mut advance)
            .map_err(|error| {
                anyhow!(error.to_string().replace(&*file.path.to_string_lossy(), &pool.to_string_lossy()))
            })
            .and_then(|()| file.give_name(pool)),
        // It exists, or its file system cannot hold a pool: the one who makes it knows what to say.
        None => {
            holdfast_recovery::format(pool, size_bytes, volatile, force, &mut advance).map_err(Into::into)
        }
    };
    progress.finish();
    made
}

/// A link that leads to no file has a name that a pool cannot get.
fn refuse_lost_link(pool: &Path) -> anyhow::Result<()> {
    let is_link = pool.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
    if let Err(error) = std::fs::metadata(pool)
        && is_link
    {
        bail!(
            "pool {} cannot be made: a symbolic link has its name and leads to no file ({error}): remove the link, or \
             name the pool itself",
            pool.display()
        );
    }
    Ok(())
}

/// A file without a name, in the directory where it shall get one.
struct Unnamed {
    /// Keeps the file alive.
    _file: OwnedFd,
    /// How to reach it meanwhile.
    path: PathBuf,
}

impl Unnamed {
    /// Nothing if the name is taken or the file system does not have such files.
    fn beside(pool: &Path) -> Option<Self> {
        if pool.exists() {
            return None;
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(pool.parent()?, flags, Mode::RUSR | Mode::WUSR).ok()?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Some(Self { _file: file, path })
    }

    /// Fails if the name is taken meanwhile.
    fn give_name(&self, pool: &Path) -> anyhow::Result<()> {
        let named = || {
            linkat(CWD, &self.path, CWD, pool, AtFlags::SYMLINK_FOLLOW)?;
            match pool.parent() {
                Some(dir) => File::open(dir)?.sync_all(),
                None => Ok(()),
            }
        };
        named().with_context(|| format!("cannot make pool {}", pool.display()))
    }
}

/// Refuses memory as a pool unless the user said that it will do.
pub fn refuse_volatile_media(pool: &Path, volatile: bool) -> anyhow::Result<()> {
    if !volatile && locate::file_system(pool)? == FileSystem::Memory {
        bail!(
            "pool {} would be in memory, which a power cut erases. Add --volatile if surviving a crash of the \
             program is enough, or name a pool on NVM (`holdfast doctor` lists it)",
            pool.display()
        );
    }
    Ok(())
}

/// The size of a pool that is there, or will be made; nothing where that is not known.
pub fn expected_bytes(pool: &Path, size_bytes: Option<u64>) -> Option<u64> {
    match std::fs::metadata(pool) {
        Ok(meta) if meta.is_file() => Some(meta.len()),
        Ok(_) => size_bytes.or_else(|| device_bytes(pool)),
        Err(_) => Some(size_bytes.unwrap_or(POOL_BYTES_DEFAULT)),
    }
}

/// All of a DAX device; nothing for anything else.
fn device_bytes(pool: &Path) -> Option<u64> {
    holdfast_media::probe().into_iter().find(|candidate| candidate.path == pool)?.len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_gets_its_name_at_the_end_and_never_another_ones() {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = dir.path().join("pool");
        let file = Unnamed::beside(&pool).expect("the file system has unnamed files");
        std::fs::write(&file.path, "pool").expect("written");
        assert!(!pool.exists());
        let rival = Unnamed::beside(&pool).expect("still free");
        file.give_name(&pool).expect("named");
        assert_eq!(std::fs::read(&pool).expect("readable"), b"pool");
        assert!(rival.give_name(&pool).is_err());
        assert!(Unnamed::beside(&pool).is_none());
    }
}
