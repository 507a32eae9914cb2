//! Files in state Unsynced (durability = sync): what their slots must know before the log stands
//! for them, and what becomes of those that it never stands for.

use std::io;

use holdfast_media::Nvm;
use holdfast_pool::{MARK_CREATED, MARK_VOID};

use super::file::ManagedFile;
use super::ledger::Order;
use super::state::Durable;
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile};

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Before the log stands for a file, whose writers are kept out: its slot has the name that it
    /// has now, and its name will be found, or the slot holds its creation. Returns whether that is
    /// so. [`io::ErrorKind::Unsupported`]: it has no name by which it would be found.
    pub fn leave_unsynced(&self, file: &ManagedFile<D::File>) -> io::Result<bool> {
        let moved = self.hold_name(file)?;
        let stat = file.held().stat()?;
        let (path, marks, removed) = {
            let meta = file.meta();
            (meta.path.clone(), meta.marks, meta.unlinking.is_some() || meta.marks & MARK_VOID != 0)
        };
        // Under its first name alone it can be built anew; any other is brought to the disk as it
        // is.
        let is_held =
            marks & MARK_CREATED != 0 && !moved && !removed && stat.links == 1 && self.was_only_written(file);
        let Some(directory) = path.parent() else { return Ok(is_held) };
        // What the slot does not hold the program's own sync makes durable, as natively.
        let noted = self.board.row(file.slot).noted();
        let is_held = is_held && self.secure_names(directory, true, &stat, noted)? == Order::Kept;
        if !is_held && !self.commits_in_order(file.dev) {
            // But for its name, perhaps.
            self.secure_names(directory, false, &stat, None)?;
        }
        self.secure_awaited(&path)?;
        Ok(is_held)
    }

    /// Whether nothing was done to a new file but writing to it, as far as can be seen: that leaves
    /// both of its times the same. Mode and owner are in its slot.
    fn was_only_written(&self, file: &ManagedFile<D::File>) -> bool {
        let held = file.held();
        let same_times = || held.times().is_ok_and(|times| times.modified == times.changed);
        (!D::File::HAS_TIMES || same_times()) && !held.has_attributes()
    }
}
