//! Changes of ours in watched directories, which are taken off what the kernel tells of them: what
//! is left is somebody else's. Must never take off what was not ours.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use holdfast_disk::{Disk, locked};
use holdfast_media::Nvm;

use super::state::Durable;
use super::upkeep::Upkeeps;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// A managed file was created here; its slot says so durably.
    pub(super) fn note_created(&self, path: &Path) {
        let mut watched = locked(&self.watched);
        watched.take_notices(&self.disk);
        // Of one that was made before the directory's last real sync no notice is left.
        watched.note(path, |balance| balance.created -= i64::from(balance.created > 0));
    }

    /// No slot holds the creation of that file any more.
    pub(super) fn forget_created(&self, path: &Path) {
        locked(&self.watched).note(path, |balance| balance.created += 1);
    }

    /// The last name of a managed file was removed here; its slot is void.
    pub(super) fn note_removed(&self, path: &Path) {
        let mut watched = locked(&self.watched);
        watched.take_notices(&self.disk);
        // As above: what is taken off without a notice would hide somebody else's removal later.
        watched.note(path, |balance| balance.removed -= i64::from(balance.removed > 0));
    }

    /// Whether the notice of a removal that was made is there: the kernel queues it after the name
    /// is gone, and before the call returns. True where none is to come.
    pub(super) fn is_noticed(&self, path: &Path) -> bool {
        let mut watched = locked(&self.watched);
        watched.take_notices(&self.disk);
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return true };
        watched
            .by_path
            .get(directory)
            .is_none_or(|watched| watched.names.get(name.as_bytes()).is_some_and(|name| name.removed > 0))
    }
}
