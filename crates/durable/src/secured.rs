//! Directories on the disk: the names in them that recovery counts on, and they themselves. Nothing
//! here may call one durable that no sync of ours covered.

use std::io;
use std::path::{Path, PathBuf};

use holdfast_board::Epoch;
use holdfast_disk::{Disk, DiskFile, Stat, locked};
use holdfast_media::Nvm;

use super::ledger::Order;
use super::state::Durable;
use super::upkeep::Upkeeps;

/// After this long every file system we manage has committed a new name by itself (the slowest,
/// btrfs and xfs, do so every 30 seconds).
const DIRECTORY_COMMITTED_S: i64 = 120;
/// There are links on the way that lead to each other.
const ELOOP: i32 = 40;
const SECOND_NS: i64 = 1_000_000_000;

fn leads_nowhere(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(ELOOP)
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Makes sure that recovery will find a file that is about to be managed, or what it needs to
    /// build it anew. `noted` says when its creation was noted; [`Order::Pending`]: its slot cannot
    /// hold its creation.
    pub(super) fn secure_names(
        &self,
        directory: &Path,
        created: bool,
        stat: &Stat,
        noted: Option<Epoch>,
    ) -> io::Result<Order> {
        if created {
            let order = self.follow_pending(directory, stat.dev, noted)?;
            self.secure_directory(directory)?;
            return Ok(order);
        }
        if self.is_recent(stat) {
            // Somebody made it a moment ago and let go of it, or died: no slot says so, and the
            // crash may take it.
            self.sync_directories([&directory.to_owned()])?;
        }
        Ok(Order::Kept)
    }

    /// Whether the file system may not have committed by itself what was made then.
    fn is_recent(&self, stat: &Stat) -> bool {
        let now = self.disk.now_unix_s() as i64;
        stat.born_ns.is_none_or(|born| now.saturating_sub(born / SECOND_NS) < DIRECTORY_COMMITTED_S)
    }

    /// Makes sure that the directory in which a name is about to matter is itself on disk, with
    /// what happened in it before anybody counted: recovery can make a file again, but not the
    /// directories above it. Once per directory.
    pub fn secure_directory(&self, directory: &Path) -> io::Result<()> {
        let is_known = |stat: &Stat| locked(&self.directories).contains(&(stat.dev, stat.ino));
        if self.disk.look(directory).is_ok_and(|stat| is_known(&stat)) {
            return Ok(());
        }
        let open = match self.disk.open(directory) {
            Ok(open) => open,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return self.sync_around(directory, error);
            }
            Err(error) => return Err(error),
        };
        let stat = open.stat()?;
        if !is_known(&stat) {
            self.sync_open_directory(&open)?;
            locked(&self.directories).insert((stat.dev, stat.ino));
        }
        Ok(())
    }

    /// Syncs directories, so that creations, renames and removals in them are durable.
    pub fn sync_directories<'a>(&self, directories: impl IntoIterator<Item = &'a PathBuf>) -> io::Result<()> {
        for directory in directories {
            // A directory that is gone holds no names; that it is gone is held by the one that it
            // was in.
            for above in directory.ancestors() {
                match self.disk.open(above) {
                    Ok(open) => self.sync_open_directory(&open)?,
                    // Something else may have its name by now: a file, or a link to nowhere.
                    Err(error) if leads_nowhere(&error) => continue,
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        self.sync_around(above, error)?;
                    }
                    Err(error) => return Err(error),
                }
                break;
            }
        }
        Ok(())
    }

    /// Has all of its file system be durable in the place of a directory that this user may write
    /// to and not read, if there is a way. `denied`: what was said. On btrfs with the bytes of
    /// files: no commit of ours may leave one empty that was cut and written again.
    fn sync_around(&self, directory: &Path, denied: io::Error) -> io::Result<()> {
        // Where nobody can say which one it is, nothing is durable.
        let Ok(stat) = self.disk.look(directory) else { return Err(denied) };
        let open = self.open_near(directory, stat.dev)?;
        self.sync_everything(stat.dev, &open)?;
        self.note_own_sync(stat.dev, &open);
        locked(&self.directories).insert((stat.dev, stat.ino));
        Ok(())
    }

    /// A directory, or one above it on its file system, of those that may be read.
    pub(super) fn open_near(&self, directory: &Path, device: u64) -> io::Result<D::File> {
        let mut denied = None;
        for above in directory.ancestors() {
            match self.disk.open(above) {
                Ok(open) if open.stat()?.dev == device => return Ok(open),
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    denied.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(denied.unwrap_or_else(|| io::Error::other("its directory lies on another file system")))
    }
}
