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
use std::time::Duration;

use holdfast_board::{LedgerRow, NO_SIZE, Way, ownership_print, pause};
use holdfast_cache::Reason;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{MARK_REMOVED, MARK_VOID};

use super::file::{GONE, ManagedFile};
use super::state::Durable;
use super::sync::Writers;
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile, Stat, locked};

/// A write has the time of the clock before its call, and the file that of a moment within it.
const CALL_NS_MAX: u64 = 20_000_000;

/// How often a look is repeated that met a client in the midst of a change of its own, and after
/// how long each time. A client that stands still there longer counts as nobody.
const LOOKS_MAX: u32 = 8;
const LOOK_PAUSE: Duration = Duration::from_micros(50);

/// What is to be heard of a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tale {
    /// Its attributes or links were told to have changed.
    pub of_attributes: bool,
    /// It may have another name.
    pub of_name: bool,
    /// It may have another size.
    pub of_content: bool,
}

fn print_of(stat: &Stat) -> u32 {
    ownership_print(stat.ownership.mode, stat.ownership.owner, stat.ownership.group)
}

fn seen_in(stat: &Stat) -> (i64, i64, u64) {
    (stat.changed_ns, stat.modified_ns, stat.links)
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Whether the log stands for a file that others may change.
    fn is_looked_at(&self, file: &ManagedFile<D::File>) -> bool {
        let state = self.board.row(file.slot).state();
        file.fenced && state.is_managed() && self.is_current(file)
    }

    /// The log is about to stand for a file: what it is now is not somebody else's change.
    pub fn begin_looks(&self, file: &ManagedFile<D::File>) {
        if let Ok(stat) = file.held().stat() {
            let mut meta = file.meta();
            (meta.seen.unwatched, meta.seen.names_pushed) = (Some(seen_in(&stat)), meta.names_pushed);
            drop(meta);
            self.board.row(file.slot).set_ownership(print_of(&stat));
        }
    }

    /// Enters in the ledger what the kernel told of a file, and what a look at it tells. Waits for
    /// nobody; whether something else is to be done, which is [`Durable::look`]'s.
    pub fn hear(&self, file: &ManagedFile<D::File>, tale: Tale) -> bool {
        let row = self.board.row(file.slot);
        self.await_rest(file);
        // Who gives its slot back meanwhile waits for this: no mark is another file's.
        let _slot = locked(&file.expiring);
        if !self.is_looked_at(file) || !row.state().is_absorbed() {
            return false;
        }
        let Ok(stat) = file.held().stat() else { return false };
        if stat.links == 0 {
            if self.mark_removed(file) && !on(Canary::MovesUncounted) {
                self.note_foreign(file);
            }
            return true;
        }
        let is_told = self.seems_set(file, &stat) || tale.of_attributes && !row.take_touched();
        self.look_at_attributes(file, &stat, is_told && !on(Canary::AttributesUnheard));
        let is_moved = tale.of_name && self.seems_moved(file, &stat);
        if is_moved && !on(Canary::MovesUncounted) {
            self.note_foreign(file);
        }
        is_moved || tale.of_content && self.hear_cut(file)
    }

    /// Whether a file that was told to have moved may have another name than its slot knows. The
    /// path that the kernel tells of our hold is the name by which the file was found first: of a
    /// name that `link` gave it knows nothing, nor of which of two was moved.
    fn seems_moved(&self, file: &ManagedFile<D::File>, stat: &Stat) -> bool {
        stat.links > 1 && !on(Canary::LinkedMovesUnheard) || self.is_elsewhere(file)
    }

    /// Waits until no client is in the midst of removing a file or changing its attributes, if it
    /// comes to the end of that soon.
    fn await_rest(&self, file: &ManagedFile<D::File>) {
        for _ in 1..LOOKS_MAX {
            if !self.board.header().changing.is_changing(file.ino) {
                return;
            }
            pause(LOOK_PAUSE);
        }
    }

    /// Whether a file has other attributes or links since the log stands for it, by its times and
    /// the number of its names: of a new file no notice tells. Who writes moves both times, a
    /// client that sets attributes says so, and one that renames or links the file has the slot
    /// hold its new name first. Within one tick of the clock the time of change may stay as it is.
    fn seems_set(&self, file: &ManagedFile<D::File>, stat: &Stat) -> bool {
        let mut meta = file.meta();
        let Some(before) = meta.seen.unwatched else { return false };
        // An announced removal moves the time of change, too, some file systems before the name is
        // gone. What else moved it is seen if the removal is not made.
        if meta.unlinking.is_some() {
            return false;
        }
        let now = seen_in(stat);
        if now == before {
            return false;
        }
        meta.seen.unwatched = Some(now);
        let names_pushed = meta.names_pushed;
        let is_renamed = std::mem::replace(&mut meta.seen.names_pushed, names_pushed) != names_pushed;
        let is_known = self.board.row(file.slot).knows_ownership();
        let ((before_ns, modified_before_ns, links_before), (changed_ns, modified_ns, links)) = (before, now);
        // A client's rename moves the one time alone, and a write before it was made since the last
        // look. A link that it made is pending anyway.
        let is_written = modified_ns == modified_before_ns || (before_ns..changed_ns).contains(&modified_ns);
        let row = self.board.row(file.slot);
        let is_clients = || is_renamed || row.take_touched();
        let is_set = changed_ns != modified_ns && !(is_written && is_clients());
        is_known && (is_set || links != links_before)
    }

    /// Of a file in state Through that somebody outside seems to have cut, or made longer, the slot
    /// says so at once: the disk may have it from now on, and a replay could undo it.
    fn hear_cut(&self, file: &ManagedFile<D::File>) -> bool {
        let row = self.board.row(file.slot);
        // A client that cuts it keeps the others out from before its call until it has told the
        // size: one that came in between shows by either.
        let known = row.end();
        if !row.state().keeps_up() || row.is_exclusive() || on(Canary::CutUnheard) {
            return false;
        }
        let Ok(stat) = file.held().stat() else { return false };
        // One that has lost its name meanwhile was not cut: a look sees to it.
        if stat.links == 0 && !on(Canary::RemovalHeardAsCut) {
            return true;
        }
        let is_touched = row.seems_touched(stat.size, stat.links);
        let is_cut = is_touched && !row.is_exclusive() && row.end() == known;
        if is_cut && !std::mem::replace(&mut file.meta().seen.is_unsettled, true) {
            self.mark_conflict(file);
            self.note_foreign(file);
        }
        is_cut
    }

    /// Looks whether somebody outside changed a file, and sees to it. Who asks keeps nobody out;
    /// with `patient` whoever does is waited for, else it is [`io::ErrorKind::WouldBlock`]. Not for
    /// files below `--exclusive`.
    pub fn look(&self, file: &ManagedFile<D::File>, patient: bool) -> io::Result<()> {
        if !self.seems_changed(file) {
            return Ok(());
        }
        if !(if patient { self.hold(file)? } else { self.try_hold(file)? }) {
            return Ok(());
        }
        let looked = self.look_held(file);
        self.let_go(file);
        looked
    }

    /// Attributes of a file are told from now on.
    pub fn end_looks(&self, file: &ManagedFile<D::File>) {
        file.meta().seen.unwatched = None;
    }

    /// Whether a file is to be seen to with its writers kept out. What needs none of that is done.
    pub fn seems_changed(&self, file: &ManagedFile<D::File>) -> bool {
        let row = self.board.row(file.slot);
        if !self.is_looked_at(file) {
            return false;
        }
        // A file system that was shut down says nothing.
        let Ok(stat) = file.held().stat() else { return false };
        let is_removed = stat.links == 0 && !row.state().is_orphan();
        if !is_removed && row.state().is_absorbed() {
            self.look_at_attributes(file, &stat, false);
        }
        let is_unsettled = file.meta().seen.is_unsettled && row.state().keeps_up();
        let is_cut = || {
            if row.state().keeps_up() { self.seems_cut_by_others(file) } else { self.seems_cut(file, &stat) }
        };
        is_removed || is_unsettled || is_cut()
    }

    /// Whether the kernel has another size than the clients left, as far as can be told while they
    /// change it. Whoever keeps the writers out to know it for certain makes a client's sync real
    /// that comes meanwhile, so what is a client's own is found out without that.
    fn seems_cut_by_others(&self, file: &ManagedFile<D::File>) -> bool {
        let row = self.board.row(file.slot);
        for _ in 0..LOOKS_MAX {
            let known = row.end();
            let Ok(stat) = file.held().stat() else { return false };
            // Who makes it longer holds the cursor until the size is told.
            if !row.seems_touched(stat.size, stat.links) {
                return false;
            }
            if !row.is_exclusive() && row.end() == known {
                return true;
            }
            pause(LOOK_PAUSE);
        }
        true
    }

    /// With its writers kept out nothing that is seen is under way.
    fn look_held(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        let row = self.board.row(file.slot);
        let Ok(stat) = file.held().stat() else { return Ok(()) };
        if stat.links == 0 {
            return self.see_removed(file);
        }
        let is_unsettled = file.meta().seen.is_unsettled;
        if row.state().keeps_up() && (is_unsettled || self.seems_cut(file, &stat)) {
            return self.settle_changed(file, &stat);
        }
        if row.state().lags() && self.seems_cut(file, &stat) {
            return self.leave_cut(file, &stat);
        }
        Ok(())
    }

    /// Whether the kernel has another size than the clients left.
    fn seems_cut(&self, file: &ManagedFile<D::File>, stat: &Stat) -> bool {
        let row = self.board.row(file.slot);
        let known = row.end();
        let state = row.state();
        if state.keeps_up() {
            known != NO_SIZE && known != stat.size
        } else {
            state.lags() && self.kernel_shrank(file, known)
        }
    }

    /// Whether the kernel's size of a file in state Behind fell, though no client cut it. It lags,
    /// and grows with each drain. What was seen stays until it is seen to: who looks again with the
    /// writers kept out finds the same.
    fn kernel_shrank(&self, file: &ManagedFile<D::File>, known: u64) -> bool {
        let resizes = || self.board.header().resizes();
        // One after the other: a size from before a drain would seem smaller than one from behind
        // it.
        let mut meta = file.meta();
        let before = resizes();
        let Ok(stat) = file.held().stat() else { return false };
        let seen = &mut meta.seen;
        let is_comparable = before == seen.resizes && before == resizes();
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
        let row = self.board.row(file.slot);
        if self.mark_removed(file) && !on(Canary::MovesUncounted) {
            self.note_foreign(file);
        }
        if file.meta().marks & MARK_VOID != 0 || row.state().is_orphan() {
            return Ok(());
        }
        // Who has it open reads on in the page cache.
        self.leave_behind(file, true)?;
        self.board.go(file.slot, Way::Orphan);
        self.note_orphan(file);
        self.expect_removal();
        Ok(())
    }

    /// Says in the slot of a file without a name that nobody under Holdfast removed it, if so;
    /// whether that is news. What has no name gets none again, so no writer needs to be kept out.
    fn mark_removed(&self, file: &ManagedFile<D::File>) -> bool {
        // Its name may be another file's, by a rename that a slot holds.
        self.note_renames();
        let mut meta = file.meta();
        if meta.unlinking.is_some() || meta.marks & GONE != 0 {
            return false;
        }
        meta.marks |= MARK_REMOVED;
        self.persist_marks(file, &meta);
        true
    }

    /// Somebody changed the content of a file in state Through. Until what the kernel has now is on
    /// the disk a replay could undo that: the slot says so meanwhile.
    fn settle_changed(&self, file: &ManagedFile<D::File>, stat: &Stat) -> io::Result<()> {
        let row = self.board.row(file.slot);
        self.settle_marked(file)?;
        // Last: a client that syncs meanwhile sees that something is amiss, and waits for this.
        row.set_end(stat.size);
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
        let row = self.board.row(file.slot);
        let times = file.held().times().unwrap_or_default();
        let cut_ns = times.changed.parts();
        let cut_ns = cut_ns.map_or(0, |(seconds, ns)| seconds as u64 * 1_000_000_000 + ns as u64);
        // What the keeper itself changed since has another time than the cut.
        let account = self.board.times()[file.slot.index()].look(file.generation);
        let is_last = account.is_none_or(|account| !account.is_in_hand() && !account.is_as_left(times));
        let is_older = is_last && row.written_ns() + CALL_NS_MAX < cut_ns;
        self.mark_conflict(file);
        {
            let mut meta = file.meta();
            meta.seen.is_unsettled = true;
            (meta.seen.size, meta.seen.resizes) = (0, self.board.header().resizes());
        }
        self.leave_behind(file, true)?;
        if is_older {
            self.open_for_writing(file)?.set_len(stat.size)?;
        }
        let size = file.held().stat()?.size;
        row.set_end(size);
        self.settle_marked(file)
    }

    /// Whether mode or owner are others than before, or the kernel told of an attribute
    /// (`is_told`). Of a client's own change the notice comes when that is pending, mostly; if not,
    /// one sync too many is real.
    fn look_at_attributes(&self, file: &ManagedFile<D::File>, stat: &Stat, is_told: bool) {
        let row = self.board.row(file.slot);
        let print = print_of(stat);
        let is_news = row.seems_given(print) || is_told;
        if is_news && !on(Canary::ModesUncounted) {
            let ledger = self.board.header().ledger(file.dev);
            self.beat();
            let is_pending = row.needs_real_sync() && ledger.is_some_and(LedgerRow::has_pending);
            if !is_pending {
                row.note_unlogged();
                self.note_foreign(file);
            }
        }
        // Last: a client that finds what it was told goes on.
        row.set_ownership(print);
    }

    /// A file got another name. If nobody under Holdfast gave it that, the slot learns it, and it
    /// counts as pending. One whose name nobody can tell any more is left to the kernel.
    pub fn look_at_name(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        let row = self.board.row(file.slot);
        if !row.state().is_absorbed() || !self.is_elsewhere(file) {
            return Ok(());
        }
        if !self.hold(file)? {
            return Ok(());
        }
        // What the kernel calls it may be hidden by a mount, which moves nothing.
        let is_lost = || file.held().path_now().is_none() && self.is_elsewhere(file);
        let followed = match self.moved_to(file) {
            Some(path) => self.follow_name(file, &path),
            None if is_lost() => match self.find_path(file) {
                Some(path) => self.follow_name(file, &path),
                None => self.lose_name(file),
            },
            None => Ok(()),
        };
        self.let_go(file);
        followed
    }

    /// Recovery would not find a file where its slot says, and build it there a second time.
    fn lose_name(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        if file.links()? == 0 {
            return Ok(());
        }
        self.note_foreign(file);
        self.bypass_held(file, Reason::Unreachable)
    }

    /// Sees to files that others removed and that were heard of, as far as nobody has them.
    pub fn see_removals(&self) {
        for file in self.managed().into_iter().filter(|file| file.meta().marks & GONE != 0) {
            // Who has it is done with it soon, or it is seen to later.
            let _ = self.look(&file, false);
        }
    }
}
