//! Taking slots for files and giving them back, in their durable parts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use holdfast_board::{Epoch, Way};
use holdfast_cache::{FileRef, Reason};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{Identity, MARK_CONFLICT, MARK_CREATED, MARK_SUPERSEDED, MARK_VOID, Slot, Taken};

use super::file::{BYPASSED_FILE, Held, ManagedFile};
use super::ledger::Order;
use super::state::{Durable, Witness};
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile, Stat, locked};

/// A file that is about to be managed.
pub struct Newcomer<'a> {
    /// Who it is.
    pub identity: &'a Identity,
    /// Its path.
    pub path: &'a Path,
    /// The program created it just now.
    pub created: bool,
    /// When its creation was noted in the ledger, if who asks did that.
    pub noted: Option<Epoch>,
    /// The fence watches it.
    pub fenced: bool,
    /// It is left to the kernel from the start, for this reason.
    pub bypass: Option<Reason>,
    /// Nothing of it is logged before somebody asks for its durability.
    pub unsynced: bool,
}

/// Why a file cannot be managed: what its directory refused.
pub struct Refusal(pub std::io::Error);

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// A free slot and a generation for it; `reserved` says which ones are spoken for.
    pub fn free_slot(&self, reserved: impl Fn(Slot) -> bool) -> Option<FileRef> {
        let files = locked(&self.files);
        let taken = |slot: Slot| self.is_taken(&files, slot) || reserved(slot);
        let start = self.slot_hint.load(Ordering::Relaxed);
        let count = self.superblock.layout.slot_count;
        let slot = (0..count).map(|step| Slot::new((start + step) % count)).find(|&slot| !taken(slot))?;
        self.slot_hint.store((slot.number() + 1) % count, Ordering::Relaxed);
        Some(FileRef { slot, generation: self.board.draw_generation() })
    }

    /// Whether a slot is a file's, or is kept for what it says.
    fn is_taken(&self, files: &[Option<Arc<ManagedFile<D::File>>>], slot: Slot) -> bool {
        files[slot.index()].is_some()
            || locked(&self.taking).contains(&slot)
            || locked(&self.graves).contains_key(&slot)
            || self.set_aside.contains(&slot)
            || self.board.lingers(slot) && !on(Canary::TakenReused)
            || locked(&self.witnesses).values().any(|witness| witness.slot == slot)
    }

    /// Persists the slot of a file and shows the file to the clients.
    pub fn take_slot(
        &self,
        place: FileRef,
        held: Held<D::File>,
        newcomer: &Newcomer<'_>,
    ) -> Result<(), Refusal> {
        let stat = match &held {
            Held::Open(file) | Held::Path(file) | Held::Lent(file, _) => file.stat().map_err(Refusal)?,
        };
        let device = stat.dev;
        {
            let files = locked(&self.files);
            // Its reservation may have gone by, and somebody else have it.
            if self.is_taken(&files, place.slot) {
                return Err(Refusal(std::io::ErrorKind::AddrInUse.into()));
            }
            locked(&self.taking).insert(place.slot);
            self.board.header().enter_ledger(device);
            // Syncs of it are absorbed from now on.
            self.board.header().tree_log.note_sync(device, stat.ino);
        }
        let taken = self.take_slot_counted(place, held, stat, newcomer);
        let _files = locked(&self.files);
        locked(&self.taking).remove(&place.slot);
        if taken.is_err() {
            self.board.header().leave_ledger(device);
        }
        taken
    }

    fn take_slot_counted(
        &self,
        place: FileRef,
        held: Held<D::File>,
        stat: Stat,
        newcomer: &Newcomer<'_>,
    ) -> Result<(), Refusal> {
        let FileRef { slot, generation } = place;
        let Newcomer { identity, path, fenced, bypass, .. } = *newcomer;
        let mut created = newcomer.created && bypass.is_none();
        if let Some(directory) = path.parent() {
            self.open_ledger(directory, stat.dev);
        }
        // What is not logged is not looked for after a crash.
        if let (Some(directory), false) = (path.parent(), newcomer.unsynced) {
            // A creation that the slot does not hold is on disk before its client goes on.
            let order = self.secure_names(directory, created, &stat, newcomer.noted).map_err(Refusal)?;
            if order == Order::Pending {
                created = false;
                self.sync_directories([&directory.to_owned()]).map_err(Refusal)?;
            }
            self.secure_awaited(path).map_err(Refusal)?;
        }
        let marks = if created { MARK_CREATED } else { 0 };
        self.supersede(identity, &stat);
        self.drop_witness(stat.dev, Some(stat.ino));
        let parent = if created { self.parent_of(path) } else { None };
        let taken = Taken {
            identity,
            ownership: stat.ownership,
            marks,
            path: path.as_os_str().as_encoded_bytes(),
            parent: parent.as_ref(),
            stamp: Some(self.stamp_of(&stat, false)),
        };
        self.slots().take(slot, generation, &taken);
        let row = self.board.row(slot);
        row.prepare(generation, stat.size);
        row.set_blank(newcomer.noted.filter(|_| created));
        // Bytes from before us may be unsynced, unless there were none.
        row.clear_syncs(!created);
        row.page_rows().clear();
        row.set_watched(fenced);
        row.set_ownership(0);
        row.begin_use(generation);
        let way = match bypass {
            Some(_) => Way::RegisterBypassed,
            None if newcomer.unsynced => Way::RegisterUnsynced,
            None => Way::Register,
        };
        self.board.go(slot, way);
        let managed = Arc::new(ManagedFile::new(place, (stat.dev, stat.ino), held, fenced, path, marks));
        if let Some(reason) = bypass {
            let mut meta = managed.meta();
            (meta.bypass, meta.look_at) = (Some(reason), Instant::now() + BYPASSED_FILE);
            self.events.bypassed(path, reason);
        }
        {
            let mut files = locked(&self.files);
            self.list(&managed);
            files[slot.index()] = Some(Arc::clone(&managed));
        }
        if created {
            self.note_created(path);
            locked(&self.fresh).push(managed);
        }
        Ok(())
    }

    /// Mode or owner of a file changed, and no sync says so: recovery gives them to a file that it
    /// builds anew.
    pub fn note_ownership(&self, file: &ManagedFile<D::File>) {
        if let (true, Ok(stat)) = (self.is_current(file), file.held().stat()) {
            let _meta = file.meta();
            if self.is_current(file) {
                self.slots().set_ownership(file.slot, stat.ownership);
            }
        }
    }

    /// What recovery set aside of a file that is managed again is older than what is written to it
    /// from now on.
    fn supersede(&self, identity: &Identity, stat: &Stat) {
        for &slot in &self.set_aside {
            let marks = self.slots().marks(slot);
            let has_handle = self.slots().identity(slot).is_ok_and(|known| known.is_same(identity));
            let is_it = has_handle && self.slots().stamp(slot).is_none_or(|stamp| stamp.is_of(stat.born_ns));
            if is_it && marks & MARK_SUPERSEDED == 0 && !on(Canary::SupersededForgotten) {
                self.slots().set_marks(slot, marks | MARK_SUPERSEDED);
            }
        }
    }

    /// Gives the slot of a file back. The caller made sure that no record of it is live or that all
    /// are void, and that no client uses it any more.
    pub fn release(&self, file: &ManagedFile<D::File>) {
        self.end_use(file, || self.slots().release(file.slot));
    }

    /// Keeps the stamp of the file of a file system that was at rest last, in the slot that it had:
    /// recovery sees by it that an older state of the file system was put in its place, though no
    /// file is open that would show it. The slot has no records, and goes with the next such file.
    fn keep_as_witness(&self, file: &ManagedFile<D::File>) {
        let is_known = self.slots().stamp(file.slot).is_some_and(|stamp| stamp.is_on_disk);
        if !is_known || self.slots().marks(file.slot) != 0 || on(Canary::WitnessForgotten) {
            return self.slots().release(file.slot);
        }
        let witness = Witness { slot: file.slot, ino: file.ino };
        if let Some(before) = locked(&self.witnesses).insert(file.dev, witness) {
            self.slots().release(before.slot);
        }
    }

    /// Gives the slot back that tells of a file system's newest state; only if it is that of one
    /// file, where that is named: what the file gets from now on is told by another slot.
    fn drop_witness(&self, device: u64, ino: Option<u64>) {
        let mut witnesses = locked(&self.witnesses);
        if witnesses.get(&device).is_some_and(|witness| ino.is_none_or(|ino| ino == witness.ino))
            && let Some(witness) = witnesses.remove(&device)
        {
            self.slots().release(witness.slot);
        }
    }

    /// Ends the use of a slot: nobody has the file by it any more. `persist` says so in the pool.
    /// Nothing if that was done before: of two rounds that found the same file the second one comes
    /// late, and the slot may be another file's by now.
    fn end_use(&self, file: &ManagedFile<D::File>, persist: impl FnOnce()) {
        let has_ended = {
            let files = locked(&self.files);
            !files[file.slot.index()].as_deref().is_some_and(|known| std::ptr::eq(known, file))
        };
        if has_ended && !on(Canary::GivenBackTwice) {
            return;
        }
        let row = self.board.row(file.slot);
        if row.state().is_unsynced() {
            self.disown(file);
        }
        {
            let _files = locked(&self.files);
            self.unlist(file);
        }
        // Others may know the file from before, and be about to drain or expire it: who looks from
        // here on leaves the slot alone, and whoever has looked is waited for.
        row.end_use();
        self.await_lookers(file);
        let mut files = locked(&self.files);
        debug_assert_eq!(row.page_rows().get(), 0, "nothing of it is in the log alone");
        self.drop_loaded(file);
        file.give_back();
        self.board.go(file.slot, Way::Release);
        persist();
        self.events.released(file);
        files[file.slot.index()] = None;
        self.board.header().leave_ledger(file.dev);
        drop(files);
        // Whoever asked for this may need our descriptions gone.
        locked(&self.fresh).retain(|fresh| !std::ptr::eq(&raw const **fresh, file));
        self.forget_rename(file);
    }

    /// Gives back the slot of a file that nobody has open for writing and of which nothing is live.
    /// Returns whether it did; never waits for who has the file.
    pub fn retire(&self, file: &ManagedFile<D::File>) -> bool {
        if !matches!(self.try_hold(file), Ok(true)) {
            return false;
        }
        let row = self.board.row(file.slot);
        let (marks, unlinking) = {
            let meta = file.meta();
            (meta.marks, meta.unlinking.is_some())
        };
        let settled = match row.state() {
            state if state.is_absorbed() => !row.needs_real_sync(),
            state if state.is_unsynced() => !unlinking,
            // Its bytes are the kernel's to sync. A mark or a removal that the slot holds must
            // outlive its use.
            state if state.is_bypassed() => marks & (MARK_CONFLICT | MARK_VOID) == 0 && !unlinking,
            _ => false,
        };
        let unused = settled
            && (!self.is_dirty(file) || on(Canary::RetireDirty))
            && row.page_rows().get() == 0
            // Who has it open registers it anew at the next change. One that is lent waits for
            // nobody: its program's description would otherwise stay open in our hands.
            && (file.lent().is_some()
                || file
                    .description(row)
                    .is_ok_and(|description| !description.is_open_for_writing()));
        if unused {
            let is_managed = row.state().is_absorbed();
            if is_managed && !self.is_dirty(file) && file.links().is_ok_and(|links| links > 0) {
                self.end_use(file, || self.keep_as_witness(file));
            } else {
                self.release(file);
            }
        }
        self.let_go(file);
        unused
    }

    /// Gives all slots back and closes the pool cleanly, if recovery left nothing in it
    /// (`unpinned`). The caller made sure that everything is expired.
    pub fn close(&self, unpinned: bool) {
        for file in self.managed() {
            self.release(&file);
        }
        self.graves().0.into_iter().for_each(|place| self.slots().release(place.slot));
        let devices: Vec<u64> = locked(&self.witnesses).keys().copied().collect();
        devices.into_iter().for_each(|device| self.drop_witness(device, None));
        if self.set_aside.is_empty() && unpinned {
            // Nobody looks at them after a clean close.
            self.clear_frames();
            self.words().set_counter_clean(self.board.next_seq());
        }
    }
}
