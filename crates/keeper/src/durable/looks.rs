//! What outsiders do to a managed file without opening it: they cut it by its path, remove it, move
//! it, or set its mode. No fence has them wait; they are noticed, or found by a look at what the
//! kernel says of the file.
//!
//! Whatever they did is the file system's to make durable, as natively: it counts as pending there,
//! so that the next sync of a client is real. In state Through the page cache is the truth, so a
//! file whose content they changed is synced as it is, and its records die. Must never take a
//! client's change for somebody else's once its writers are kept out, and never let records of a
//! file live that recovery would undo an outsider with.

use std::io;
use std::sync::atomic::Ordering;

use holdfast_board::{FileState, NO_SIZE};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{HintKind, MARK_REMOVED, MARK_VOID};

use super::{Durable, KEEPER_ID, ManagedFile, Writers};
use crate::disk::{Disk, DiskFile, Stat};

/// What has become of a removed file's slot: nothing of it is live, or will be.
pub(super) const GONE: u64 = MARK_VOID | MARK_REMOVED;

/// A write has the time of the clock before its call, and the file that of a moment within it.
const CALL_NS_MAX: u64 = 20_000_000;

/// What was looked at last.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    ownership: Option<holdfast_pool::Ownership>,
    /// The row's count of changes that no record holds.
    unlogged: u64,
    /// State Behind: the size that the kernel had, and the count of truncations by clients then.
    size: u64,
    resizes: u64,
    /// It was changed, and is not on the disk yet: the mark that says so stays.
    is_unsettled: bool,
}

impl Seen {
    /// A file enters state Behind, of which the kernel has `size` bytes.
    pub(super) fn begin_behind(&mut self, size: u64, resizes: u64) {
        (self.size, self.resizes) = (size, resizes);
    }
}

impl<N: Nvm, D: Disk> Durable<N, D> {
    /// Somebody changed something on a file system whom no client announced: it is pending there.
    fn note_foreign(&self, file: &ManagedFile<D::File>) {
        if let Some(ledger) = self.board.header().ledger(file.dev) {
            ledger.note();
        }
    }

    /// Looks whether somebody outside changed a file, and sees to it. Who asks keeps nobody out;
    /// with `patient` whoever does is waited for, else it is [`io::ErrorKind::WouldBlock`]. Not for
    /// files below `--exclusive`.
    pub fn look(&self, file: &ManagedFile<D::File>, patient: bool) -> io::Result<()> {
        let row = &self.board.files()[file.slot as usize];
        let is_ours = row.state().is_absorbed() || row.state() == FileState::Unsynced;
        if !file.fenced || !is_ours || !self.is_current(file) {
            return Ok(());
        }
        // A file system that was shut down says nothing.
        let Ok(stat) = file.held().stat() else { return Ok(()) };
        let is_removed = stat.links == 0 && file.meta().marks & GONE == 0;
        if !is_removed && row.state().is_absorbed() {
            self.look_at_mode(file, &stat);
        }
        let is_unsettled = file.meta().seen.is_unsettled && row.state() == FileState::Through;
        if !is_removed && !is_unsettled && !self.seems_cut(file, &stat) {
            return Ok(());
        }
        if patient {
            self.hold(file)?;
        } else if !self.board.try_lock_file(file.slot, KEEPER_ID) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let looked = if self.is_current(file) { self.look_held(file) } else { Ok(()) };
        self.let_go(file);
        looked
    }

    /// With its writers kept out nothing that is seen is under way.
    fn look_held(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        let row = &self.board.files()[file.slot as usize];
        let Ok(stat) = file.held().stat() else { return Ok(()) };
        if stat.links == 0 {
            return self.see_removed(file);
        }
        let is_unsettled = file.meta().seen.is_unsettled;
        if row.state() == FileState::Through && (is_unsettled || self.seems_cut(file, &stat)) {
            return self.settle_changed(file, &stat);
        }
        if row.state() == FileState::Behind && self.seems_cut(file, &stat) {
            return self.leave_cut(file, &stat);
        }
        Ok(())
    }

    /// Whether the kernel has another size than the clients left.
    fn seems_cut(&self, file: &ManagedFile<D::File>, stat: &Stat) -> bool {
        let row = &self.board.files()[file.slot as usize];
        let known = row.size_hint.load(Ordering::SeqCst);
        match row.state() {
            FileState::Through => known != NO_SIZE && known != stat.size,
            FileState::Behind => self.kernel_shrank(file, known),
            _ => false,
        }
    }

    /// Whether the kernel's size of a file in state Behind fell, though no client cut it. It lags,
    /// and grows with each drain. What was seen stays until it is seen to: who looks again with the
    /// writers kept out finds the same.
    fn kernel_shrank(&self, file: &ManagedFile<D::File>, known: u64) -> bool {
        let resizes = &self.board.header().resizes;
        // One after the other: a size from before a drain would seem smaller than one from behind
        // it.
        let mut meta = file.meta();
        let before = resizes.get();
        let Ok(stat) = file.held().stat() else { return false };
        let seen = &mut meta.seen;
        let is_comparable = before == seen.resizes && before == resizes.get();
        if is_comparable && stat.size < seen.size.min(known) {
            return true;
        }
        (seen.size, seen.resizes) = (stat.size, before);
        false
    }

    /// The last name of a file is gone. If nobody under Holdfast removed it, a mark says so at
    /// once: what the crash takes of it then is not built anew, and what it leaves is the file as
    /// it was.
    fn see_removed(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        if file.meta().unlinking.is_some() {
            self.leave_behind(file, true)?;
            self.void_if_unlinked(file);
            return Ok(());
        }
        let row = &self.board.files()[file.slot as usize];
        {
            let mut meta = file.meta();
            if meta.marks & GONE != 0 {
                return Ok(());
            }
            meta.marks |= MARK_REMOVED;
            if !on(Canary::RemovalUnmarked) {
                self.slots().set_marks(file.slot, meta.marks);
            }
        }
        if !on(Canary::MovesUncounted) {
            self.note_foreign(file);
        }
        // Who has it open reads on in the page cache.
        self.leave_behind(file, true)?;
        row.set_state(FileState::Orphan);
        self.count_removed(file.held().stat().ok().as_ref());
        Ok(())
    }

    /// Somebody changed the content of a file in state Through. Until what the kernel has now is on
    /// the disk a replay could undo that: the slot says so meanwhile.
    fn settle_changed(&self, file: &ManagedFile<D::File>, stat: &Stat) -> io::Result<()> {
        let row = &self.board.files()[file.slot as usize];
        self.settle_marked(file)?;
        // Last: a client that syncs meanwhile sees that something is amiss, and waits for this.
        row.size_hint.store(stat.size, Ordering::SeqCst);
        Ok(())
    }

    /// Brings a file to the disk as it is now, under a mark. A sync that fails orders a rewrite,
    /// after which the next one may succeed; till then the mark stays.
    fn settle_marked(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        if !std::mem::replace(&mut file.meta().seen.is_unsettled, true) {
            self.mark_conflict(file);
        }
        self.settle(file, Writers::KeptOut).or_else(|_| self.settle(file, Writers::KeptOut))?;
        file.meta().seen.is_unsettled = false;
        self.end_conflict(file);
        Ok(())
    }

    /// Somebody cut a file in state Behind. What had come to the page cache above the new end is
    /// gone, as natively. What had not was written before the cut, if nothing was written since,
    /// and is gone, too; else it cannot be told, and is kept.
    fn leave_cut(&self, file: &ManagedFile<D::File>, stat: &Stat) -> io::Result<()> {
        let row = &self.board.files()[file.slot as usize];
        let times = file.held().times().unwrap_or_default();
        let cut_ns = times.changed.parts();
        let cut_ns = cut_ns.map_or(0, |(seconds, ns)| seconds as u64 * 1_000_000_000 + ns as u64);
        // What the keeper itself changed since has another time than the cut.
        let account = self.board.times()[file.slot as usize].look(file.generation);
        let is_last = account.is_none_or(|account| !account.is_in_hand() && !account.is_as_left(times));
        let is_older = is_last && row.written_ns.load(Ordering::SeqCst) + CALL_NS_MAX < cut_ns;
        self.mark_conflict(file);
        {
            let mut meta = file.meta();
            meta.seen.is_unsettled = true;
            (meta.seen.size, meta.seen.resizes) = (0, self.board.header().resizes.get());
        }
        self.leave_behind(file, true)?;
        if is_older {
            self.open_for_writing(file)?.set_len(stat.size)?;
        }
        let size = file.held().stat()?.size;
        row.size_hint.store(size, Ordering::SeqCst);
        self.settle_marked(file)
    }

    fn look_at_mode(&self, file: &ManagedFile<D::File>, stat: &Stat) {
        let row = &self.board.files()[file.slot as usize];
        let unlogged = row.unlogged.load(Ordering::SeqCst);
        let mut meta = file.meta();
        let before = meta.seen;
        (meta.seen.ownership, meta.seen.unlogged) = (Some(stat.ownership), unlogged);
        let is_new = before.ownership.is_some_and(|ownership| ownership != stat.ownership);
        // A client that did it counted it.
        if is_new && unlogged == before.unlogged && !on(Canary::ModesUncounted) {
            meta.seen.unlogged += 1;
            drop(meta);
            row.note_unlogged();
            self.note_foreign(file);
        }
    }

    /// A file got another name. If nobody under Holdfast gave it that, the slot learns it, and it
    /// counts as pending.
    pub fn look_at_name(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        let row = &self.board.files()[file.slot as usize];
        if !row.state().is_absorbed() || self.moved_to(file).is_none() {
            return Ok(());
        }
        self.hold(file)?;
        let moved = if self.is_current(file) { self.moved_to(file) } else { None };
        let followed = moved.map_or(Ok(()), |path| {
            if !on(Canary::MovesUncounted) {
                self.note_foreign(file);
            }
            self.push_name(file, HintKind::Name, &path)
        });
        self.let_go(file);
        followed
    }
}
