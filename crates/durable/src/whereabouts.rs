//! Where a file stands, by what the kernel says now. Nothing here changes what its slot says.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use holdfast_canary::{Canary, on};
use holdfast_disk::{Disk, DiskFile};
use holdfast_media::Nvm;
use holdfast_pool::PATH_BYTES_MAX;

use super::file::ManagedFile;
use super::state::Durable;
use super::upkeep::Upkeeps;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    pub(super) fn stands_at(&self, file: &ManagedFile<D::File>, path: &Path) -> bool {
        match self.disk.look(path) {
            Ok(there) => (there.dev, there.ino) == (file.dev, file.ino),
            // A file system that was shut down tells nothing of its files: then nothing speaks
            // against the name.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Whether a file does not stand where its slot says, and nobody is removing it.
    pub fn is_elsewhere(&self, file: &ManagedFile<D::File>) -> bool {
        if on(Canary::LinkedMovesUnheard) && file.held().path_now().is_none() {
            return false;
        }
        let (path, unlinking) = {
            let meta = file.meta();
            (meta.path.clone(), meta.unlinking.is_some())
        };
        !unlinking && !self.stands_at(file, &path)
    }

    /// Where a file stands now, if that is not where it was last.
    pub(super) fn moved_to(&self, file: &ManagedFile<D::File>) -> Option<PathBuf> {
        let path = file.held().path_now()?;
        let moved = {
            let meta = file.meta();
            meta.path != path && meta.unlinking.is_none()
        };
        (moved && path.as_os_str().len() <= PATH_BYTES_MAX && self.stands_at(file, &path)).then_some(path)
    }

    /// Where a file stands that is elsewhere than its slot says: looked up by its handle, which not
    /// every user may. Only for who keeps its names from being changed.
    pub(super) fn find_path(&self, file: &ManagedFile<D::File>) -> Option<PathBuf> {
        // Its directory may be elsewhere, too: any that is left above it is on its file system, or
        // nothing is found there.
        let known = file.meta().path.clone();
        let beside = known.ancestors().skip(1).find_map(|above| self.disk.open(above).ok())?;
        let identity = self.slots().identity(file.slot).ok()?;
        let (_, path) = self.disk.find_by_identity(&beside, &identity).ok()?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(path));
        (path.as_os_str().len() <= PATH_BYTES_MAX && self.stands_at(file, &path)).then_some(path)
    }
}
