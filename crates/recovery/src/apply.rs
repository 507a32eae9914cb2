//! Doing what was planned for one slot.
//!
//! The order within each function is the commit argument: an effect is synced to the files before
//! the log's records of it are given up (invariant 2), so a crash between any two steps leaves
//! either the records or the effect, and the next recovery goes on from there (invariant 8).

use std::collections::{HashMap, HashSet};
use std::io;

use holdfast_board::FileTime;
use holdfast_canary::{Canary, on};
use holdfast_log::TICK_NS;
use holdfast_media::Nvm;
use holdfast_pool::{
    Hint, HintKind, Identity, Left, LeftAt, Life, MARK_AHEAD, MARK_CONFLICT, MARK_CREATED, MARK_LOST,
    MARK_REMOVED, MARK_SET_ASIDE, MARK_UNWATCHED, MARK_VOID, Ownership, Slot, Slots, Stamp,
};

use super::compare::{finish, torn};
use super::directory::{make_parent, nearest, nearest_above, parent, split};
use super::file::SlotFile;
use super::judge::{Changed, Clocks, Witness};
use super::live::{Live, last_ns};
use super::locate::{Others, SameFile, left_behind, locate, renamed_to, replaced_at};
use super::replay::replay;
use super::source::Source;
use holdfast_disk::{Access, Disk, DiskFile, Stat};

const SECOND_NS: i64 = 1_000_000_000;

/// What applying needs of the pool and the log.
pub(super) struct Applier<'a, N, D> {
    pub(super) source: &'a Source<'a, N>,
    pub(super) disk: &'a D,
    pub(super) live: &'a Live,
    /// Told the bytes about to be written.
    pub(super) progress: &'a mut dyn FnMut(u64),
    /// What is known of times. The heartbeat never goes back, even if the clock did.
    pub(super) clocks: Clocks,
    /// Directories synced since recovery began.
    pub(super) synced: HashSet<Vec<u8>>,
    /// How files looked before they were replayed into.
    pub(super) before: HashMap<Slot, Stat>,
    /// Removed files that stand where others are to be.
    pub(super) yielding: Vec<(Identity, Option<Stamp>)>,
}

impl<N: Nvm, D: Disk> Applier<'_, N, D> {
    fn slots(&self) -> Slots<'_, N> {
        self.source.slots()
    }

    /// Persists that recovery is at work, so that a second run after a crash tells our own changes
    /// of files from those of others. What must not be replayed is marked as such before the first
    /// beat.
    pub(super) fn beat(&self) {
        let (clock, words) = (self.disk.clock(), self.source.words());
        words.set_booted_unix_us(clock.booted_ns_min / 1000);
        let last_us = (self.clocks.last_ns.max(0) as u64).div_ceil(1000);
        words.set_heartbeat_unix_us(clock.now_ns.div_ceil(1000).max(last_us));
    }

    /// Writes the slot's live records to an open file, and syncs it. With the file's `times` before
    /// that it is as old afterwards as its last change: what a program or a record says, not what
    /// we do.
    fn write_records(&mut self, slot: Slot, file: &D::File, times: Option<Stat>) -> io::Result<()> {
        let (source, live) = (self.source, self.live);
        replay(&source.payloads(), live.of(slot), file, &mut |bytes| {
            self.beat();
            (self.progress)(bytes);
        })?;
        if let (Some(before), Some(last)) = (times, last_ns(live.of(slot)))
            && !on(Canary::TimesOfRecovery)
        {
            // What was changed after the last record, whose time is rounded up, or with it, is as
            // its program left it.
            let is_final = before.changed_ns > last - TICK_NS as i64;
            let modified_ns = if is_final { before.modified_ns } else { last };
            // Who may not set it has a file that looks newer than it is.
            let _ = file.set_modified(FileTime::new(
                modified_ns.div_euclid(SECOND_NS),
                modified_ns.rem_euclid(SECOND_NS),
            ));
        }
        self.beat();
        if on(Canary::RecoverUnsynced) { Ok(()) } else { file.sync() }
    }

    /// Persists that what comes now is our own: should we die in it, the next recovery goes on.
    fn take_in_hand(&self, file: &SlotFile, stat: &Stat, witness: Witness) {
        let (slots, clock) = (self.slots(), self.disk.clock());
        // In a page cache that lived on it may not be on disk; and a clock that is behind would let
        // our own changes look older.
        let is_on_disk = witness == Witness::Cut && stat.changed_ns <= clock.now_ns as i64;
        let stamp = stat.stamp(self.disk.boot(), is_on_disk);
        self.beat();
        slots.set_left(file.slot, Left::InHand);
        slots.set_marks(file.slot, slots.marks(file.slot) | MARK_AHEAD);
        slots.push_stamp(file.slot, &stamp);
    }

    /// Ends that in the midst of it: the file is as we left it, and who changes it from now on is
    /// somebody else.
    fn let_go(&self, file: &SlotFile, target: &D::File) {
        self.beat();
        let us = |ns: i64| ns.max(0) as u64 / 1000;
        let left = target.stat().map_or(Left::Unknown, |stat| {
            Left::At(LeftAt { changed_us: us(stat.changed_ns), modified_us: us(stat.modified_ns) })
        });
        let (slots, words) = (self.slots(), self.source.words());
        slots.set_left(file.slot, left);
        if let Some(last_us) = words.heartbeat_unix_us() {
            slots.set_life(file.slot, &Life { last_us, booted_us: words.booted_unix_us() });
        }
    }

    /// Voids the slot's records, which are in the synced file, and gives it back.
    fn expire(&self, slot: Slot) {
        if let Some(log) = self.live.slots.get(&slot) {
            self.slots().set_expired_seq(slot, log.seq_max);
        }
        self.slots().release(slot);
    }

    /// Replays into the slot's own file, wherever it is now.
    pub(super) fn replay(&mut self, file: &SlotFile, witness: Witness) -> io::Result<()> {
        let found = locate(self.disk, file, Others::NONE).same.ok_or_else(gone)?;
        let target = to_write(&found)?;
        // Not as an earlier try left it that found no room.
        let before = *self.before.entry(file.slot).or_insert(found.stat);
        self.take_in_hand(file, &found.stat, witness);
        let written = self.write_records(file.slot, &target, Some(before));
        if let Err(error) = written.and_then(|()| self.sync_names(file, &found)) {
            self.let_go(file, &target);
            return Err(error);
        }
        self.expire(file.slot);
        Ok(())
    }

    /// Syncs the slot's own file, of which the page cache has every byte, wherever it is now.
    /// Nobody's change is undone by it. What the death of its writer cut short is whole afterwards,
    /// unless somebody changed the file since.
    pub(super) fn sync(&mut self, file: &SlotFile, changed: Changed) -> io::Result<()> {
        let found = locate(self.disk, file, Others::NONE).same.ok_or_else(gone)?;
        let open = found.file.reopen(Access::Read)?;
        if changed == Changed::No {
            let rests = torn(&self.source.payloads(), self.live.of(file.slot), &open)?;
            if !rests.is_empty() {
                finish(&self.source.payloads(), &rests, &to_write(&found)?)?;
            }
        }
        (self.progress)(self.live.slots.get(&file.slot).map_or(0, |log| log.bytes));
        match open.sync() {
            Ok(()) => {}
            // The kernel lost pages that nobody was told of yet. The log has them.
            Err(_) if changed == Changed::No => return self.replay(file, Witness::Ahead),
            // So it has, and what somebody changed since would be under them.
            Err(error) => {
                self.slots().set_marks(file.slot, self.slots().marks(file.slot) | MARK_AHEAD);
                return Err(error);
            }
        }
        self.sync_names(file, &found)?;
        self.expire(file.slot);
        Ok(())
    }

    /// Makes a created file's name durable, whichever it has.
    fn sync_names(&self, file: &SlotFile, found: &SameFile<D::File>) -> io::Result<()> {
        if file.marks & MARK_CREATED == 0 {
            return Ok(());
        }
        if found.is_reachable {
            parent(self.disk, &found.path)?.sync()
        } else {
            found.file.reopen(Access::Read)?.sync_all()
        }
    }

    /// Replays into whatever regular file stands at `path`: a person said so.
    pub(super) fn replay_into(&mut self, file: &SlotFile, path: &[u8]) -> io::Result<()> {
        let target = self.disk.find(path)?;
        if !target.stat()?.is_file {
            return Err(io::Error::other("what stands at its path is no regular file"));
        }
        self.write_records(file.slot, &target.reopen(Access::Write)?, None)?;
        self.expire(file.slot);
        Ok(())
    }

    /// Persists that somebody has the name that a rename gave the file: the heartbeat moves, and
    /// would hide that. It stays under the old one; one that was built for the new one is refused
    /// that.
    pub(super) fn note_refused(&self, file: &SlotFile, is_built: bool) {
        if let Some((from, to)) = file.rename() {
            self.slots().restore_hint(file.slot, if is_built { to } else { from });
        }
    }

    /// Persists that the crash took the file. From here on names change in its directory, by us
    /// and, should we be kept from building it, by whoever makes room.
    pub(super) fn note_lost(&self, file: &SlotFile) {
        self.slots().set_left(file.slot, Left::InHand);
    }

    /// Builds a lost file anew under a temporary name, then names it (history 19).
    ///
    /// Until the slot is marked as rebuilt the next recovery starts over; from then on the synced
    /// copy under the temporary name is the file, and the next recovery only has to name it. So the
    /// file's new identity never needs to be known: the temporary name, which no other pool or slot
    /// uses, stands for it.
    pub(super) fn rebuild(&mut self, file: &SlotFile, path: &[u8]) -> io::Result<()> {
        let directory = make_parent(self.disk, path)?;
        let temporary = self.temporary_name(file.slot);
        remove(&directory, &temporary)?;
        let made = directory.create(&temporary)?;
        // Mode and owner it had.
        if let Ok(had) = self.slots().ownership(file.slot) {
            made.set_ownership(had)?;
        }
        if on(Canary::RebuiltTooEarly) {
            self.slots().mark_rebuilt(file.slot);
        }
        let times = made.stat().map(|stat| Stat { changed_ns: i64::MIN, ..stat });
        let written = times.and_then(|times| self.write_records(file.slot, &made, Some(times)));
        let written = written.and_then(|()| directory.sync());
        if let Err(error) = written {
            // Half a copy is of no use; the first error is the one to tell.
            let _ = remove(&directory, &temporary);
            return Err(error);
        }
        let newest = file.hints.first();
        let says = |hint: &Hint| matches!(hint.kind, HintKind::Name | HintKind::Replace) && hint.path == path;
        if !newest.is_some_and(says) {
            self.slots().restore_hint(file.slot, path);
        }
        self.slots().mark_rebuilt(file.slot);
        self.name_rebuilt(file, path, directory)
    }

    /// Names a file that an earlier recovery built, or finds that it has its name already.
    pub(super) fn finish_rebuild(&mut self, file: &SlotFile) -> io::Result<()> {
        let path = &file.hints.first().ok_or_else(gone)?.path;
        self.name_rebuilt(file, path, parent(self.disk, path)?)
    }

    fn name_rebuilt(&mut self, file: &SlotFile, path: &[u8], directory: D::File) -> io::Result<()> {
        let temporary = self.temporary_name(file.slot);
        let (_, name) = split(path).ok_or_else(gone)?;
        match self.take_name((&directory, &temporary), (&directory, name), file, path) {
            Ok(()) => {}
            // No copy under the temporary name: an earlier recovery got as far as the rename.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // The records are still in the log: back to where we were, without the copy.
                self.slots().set_marks(file.slot, kept_marks(file) | MARK_SET_ASIDE);
                remove(&directory, &temporary).and_then(|()| directory.sync())?;
                return Err(io::Error::other("another file took its name while it was rebuilt"));
            }
            Err(error) => return Err(error),
        }
        if !on(Canary::RebuiltUnnamed) {
            directory.sync()?;
        }
        self.expire(file.slot);
        Ok(())
    }

    /// Gives a file, where the crash took a rename that its slot holds, the new name again,
    /// durably, and the new one alone. False while another file stands there.
    pub(super) fn rename_again(&mut self, file: &SlotFile) -> io::Result<bool> {
        let found = locate(self.disk, file, Others::NONE).same;
        // Whoever moved it elsewhere meant it.
        let (Some((_, to)), Some(found)) = (file.rename(), found) else { return Ok(true) };
        let Some(stands) = left_behind(self.disk, file, &found) else { return Ok(true) };
        let (new, new_name) = renamed_to(self.disk, file)?;
        let (old, (_, old_name)) = (parent(self.disk, &stands)?, split(&stands).ok_or_else(gone)?);
        self.beat();
        if found.path == to {
            remove(&old, old_name)?;
        } else {
            match self.take_name((&old, old_name), (&new, new_name), file, to) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        new.sync()?;
        old.sync()?;
        Ok(true)
    }

    /// Gives what has one name another one, `path`, which is free, or has the file that the slot
    /// says it takes the name from.
    fn take_name(
        &self,
        (old, old_name): (&D::File, &[u8]),
        (new, new_name): (&D::File, &[u8]),
        file: &SlotFile,
        path: &[u8],
    ) -> io::Result<()> {
        match old.rename(old_name, new, new_name) {
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists
                    && (self.yields(file, path) || on(Canary::TakenFromAnybody)) =>
            {
                old.replace(old_name, new, new_name)
            }
            done => done,
        }
    }

    /// Whether what stands at a path is there for a file to take its place.
    fn yields(&self, file: &SlotFile, path: &[u8]) -> bool {
        let Ok(identity) = &file.identity else { return false };
        let stands = || -> io::Result<(Identity, Stat)> {
            let there = self.disk.find(path)?;
            Ok((there.identity_on(identity.fs_uuid)?, there.stat()?))
        };
        let is_removed = |(there, stat): (Identity, Stat)| {
            let is_it = |(known, stamp): &(Identity, Option<Stamp>)| {
                known.is_same(&there) && stamp.is_none_or(|stamp| stamp.is_of(stat.born_ns))
            };
            self.yielding.iter().any(is_it)
        };
        file.takes_name == Some(true) && replaced_at(self.disk, path, file).is_some()
            || stands().is_ok_and(is_removed)
    }

    /// Removes a file again that the program had removed and the crash brought back.
    pub(super) fn unlink_again(&mut self, file: &SlotFile) -> io::Result<()> {
        if let Some(found) = locate(self.disk, file, Others::NONE).same {
            let directory = parent(self.disk, &found.path)?;
            let (_, name) = split(&found.path).ok_or_else(gone)?;
            remove(&directory, name)?;
            directory.sync()?;
        }
        self.slots().release(file.slot);
        Ok(())
    }

    /// Makes a removal durable that is done but may not be on disk, then drops the records. Where
    /// nobody under Holdfast removed it (`by_others`), it may have been moved out of sight, and is
    /// brought to the disk as the page cache has it.
    pub(super) fn gone(&mut self, file: &SlotFile, by_others: bool) -> io::Result<()> {
        for hint in &file.hints {
            // The directory may have been removed with it; then that has to be durable.
            let found = nearest(self.disk, &hint.path);
            // It may be elsewhere, too, with something that is no directory in its place.
            let is_elsewhere = found.is_err();
            let (open, directory) = found.or_else(|_| nearest_above(self.disk, &hint.path))?;
            if by_others || is_elsewhere {
                open.sync_all()?;
            }
            if !self.synced.contains(directory) {
                open.sync()?;
                self.synced.insert(directory.to_vec());
            }
        }
        self.slots().release(file.slot);
        Ok(())
    }

    /// Gives a slot back whose records are not wanted or not live.
    pub(super) fn release(&self, file: &SlotFile) {
        self.slots().release(file.slot);
    }

    /// Persists that a person has to decide.
    pub(super) fn set_aside(&self, file: &SlotFile) {
        let marks = self.slots().marks(file.slot);
        if marks & MARK_SET_ASIDE == 0 {
            self.slots().set_marks(file.slot, marks | MARK_SET_ASIDE);
        }
        self.clear_copy(file);
    }

    /// Persists that records of it were lost, or may have been: where they stood will not tell the
    /// next recovery any more.
    pub(super) fn note_loss(&self, file: &SlotFile) {
        let marks = self.slots().marks(file.slot);
        if marks & MARK_LOST == 0 {
            self.slots().set_marks(file.slot, marks | MARK_LOST);
        }
    }

    /// Leaves a file to the next recovery, which will judge it by what is known now: what stands in
    /// our way is nobody's decision, and the heartbeat moves. Says whether it is: not so of a file
    /// of which a person has to decide anyway.
    pub(super) fn put_off(&self, file: &SlotFile) -> bool {
        let is_put_off = self.slots().marks(file.slot) & MARK_SET_ASIDE == 0;
        if is_put_off && self.slots().life(file.slot).is_none() {
            self.slots().set_life(file.slot, &self.clocks.life());
        }
        self.clear_copy(file);
        is_put_off
    }

    /// Takes away half a copy that an earlier recovery may have left.
    fn clear_copy(&self, file: &SlotFile) {
        for hint in file.hints.iter().filter(|_| !file.rebuilt) {
            // Where it cannot be done, it only stands there.
            if let Ok(directory) = parent(self.disk, &hint.path) {
                let _ = remove(&directory, &self.temporary_name(file.slot)).and_then(|()| directory.sync());
            }
        }
    }

    /// Names the pool and the slot, so that what stands there can only be ours, and not the file:
    /// which of its names is the newest may be told differently after a crash.
    fn temporary_name(&self, slot: Slot) -> Vec<u8> {
        let uuid: String =
            self.source.superblock.uuid[..8].iter().map(|byte| std::format!("{byte:02x}")).collect();
        std::format!(".holdfast-{uuid}-{slot}").into_bytes()
    }
}

/// The marks that stay when a rebuilt file goes back to being a set-aside one.
fn kept_marks(file: &SlotFile) -> u64 {
    file.marks & (MARK_CREATED | MARK_CONFLICT | MARK_UNWATCHED | MARK_VOID | MARK_REMOVED | MARK_LOST)
}

fn to_write<F: DiskFile>(found: &SameFile<F>) -> io::Result<F> {
    found.file.reopen(Access::Write).or_else(|error| match error.kind() {
        _ if found.stat.is_fixed => {
            Err(io::Error::other("it is append-only or immutable: take that from it (chattr -a -i)"))
        }
        io::ErrorKind::PermissionDenied => to_write_as_owner(found).map_err(|_| error),
        _ => Err(error),
    })
}

/// Opens a file whose mode forbids its owner to write, as git's objects do: its program had it open
/// from before. The mode is as it was a moment later; only a crash in between leaves the one bit.
fn to_write_as_owner<F: DiskFile>(found: &SameFile<F>) -> io::Result<F> {
    const OWNER_WRITES: u32 = 0o200;
    let (file, had) = (found.file.reopen(Access::Read)?, found.stat.ownership);
    file.set_ownership(Ownership { mode: had.mode | OWNER_WRITES, ..had })?;
    let open = found.file.reopen(Access::Write);
    file.set_ownership(had)?;
    open
}

fn remove(directory: &impl DiskFile, name: &[u8]) -> io::Result<()> {
    match directory.remove(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "it was there a moment ago and is gone now")
}
