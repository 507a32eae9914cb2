//! What of each file can be found out besides what the log says: where the page cache is that the
//! keeper knew, and whether somebody changed the file or its directory since.

use std::collections::{BTreeSet, HashSet};
use std::io;

use holdfast_canary::{Canary, on};
use holdfast_log::TICK_NS;
use holdfast_media::Nvm;
use holdfast_pool::{Left, MARK_AHEAD, MARK_CONFLICT, MARK_SET_ASIDE, Slot, Words};

use super::compare::{is_applied, is_begun};
use super::directory::parent;
use super::file::SlotFile;
use super::judge::{self, Changed, Clocks, Witness};
use super::live::{Live, last_ns};
use super::locate::{Location, Others, SameFile, left_behind, locate, replaced_at};
use super::source::Source;
use holdfast_disk::{Access, Disk, DiskFile};

/// What is known of times. Records of files that earlier recoveries set aside or put off may be of
/// another boot, with another clock.
pub(super) fn clocks(
    disk: &impl Disk,
    words: &Words<'_, impl Nvm>,
    files: &[SlotFile],
    live: &Live,
) -> Clocks {
    let is_of_last_life = |file: &&SlotFile| file.marks & MARK_SET_ASIDE == 0 && file.life.is_none();
    let of_last_life = files.iter().filter(is_of_last_life);
    let written_ns = of_last_life.filter_map(|file| last_ns(live.of(file.slot))).max().unwrap_or(0);
    let heartbeat_ns = words.heartbeat_unix_us().unwrap_or(0).saturating_mul(1000);
    Clocks {
        boot: disk.boot(),
        now: disk.clock(),
        last_ns: i64::try_from(heartbeat_ns).unwrap_or(i64::MAX).max(written_ns),
        booted_us: words.booted_unix_us(),
    }
}

/// Tells of each file what became of it besides what the log says.
pub(super) struct Judge<'a, N, D> {
    pub(super) source: &'a Source<'a, N>,
    pub(super) disk: &'a D,
    pub(super) clocks: Clocks,
    pub(super) live: &'a Live,
    /// Slots whose files lost a record, or may have.
    pub(super) lost: &'a BTreeSet<Slot>,
    /// File systems that are older than a file on them is known to be.
    pub(super) older: HashSet<[u8; 16]>,
    pub(super) replays: bool,
}

impl<N: Nvm, D: Disk> Judge<'_, N, D> {
    /// Where the page cache is that the keeper knew.
    pub(super) fn witness(&self, file: &SlotFile, location: &Location<D::File>) -> Witness {
        let is_older = file.identity.as_ref().is_ok_and(|identity| self.older.contains(&identity.fs_uuid));
        let mount = location.same.as_ref().map_or(location.mount, |same| same.stat.mount);
        let is_ahead = file.marks & MARK_AHEAD != 0 || self.replays && location.same.is_some();
        let found = if on(Canary::ReplayedWhileRunning) {
            Witness::Cut
        } else {
            judge::witness(&self.clocks, file.stamp.as_ref(), mount, is_ahead)
        };
        match found {
            Witness::Cut if is_older => Witness::Older,
            // Nothing can be ahead of a file that is no more.
            Witness::Ahead if location.same.is_none() && location.is_gone => Witness::Running,
            // Nor was it taken by the crash.
            Witness::Cut if location.is_removed => Witness::Running,
            found => found,
        }
    }

    /// Whether somebody else changed a file, or gave a removed one another name.
    fn changed(&self, file: &SlotFile, same: &SameFile<D::File>, witness: Witness) -> Changed {
        if on(Canary::ChangeIgnored) {
            return Changed::No;
        }
        if file.is_void() && same.stat.links != 1 {
            return Changed::Yes;
        }
        let records = self.live.of(file.slot);
        // A record's time is rounded up.
        let times_ns = records.iter().map(|entry| entry.unix_time_ns as i64 - (TICK_NS as i64 - 1));
        let first_ns = times_ns.min().unwrap_or(i64::MAX);
        let stamp = file.stamp.as_ref();
        let clocks = self.clocks.of(file.life.filter(|_| !on(Canary::LifeForgotten)));
        judge::changed(&clocks, witness, stamp, file.left, first_ns, &same.stat)
    }

    /// Whether somebody else changed the names in the directory that a lost file belongs to. If so,
    /// nobody can tell whether the crash took the file or they did.
    pub(super) fn vacancy_changed(&self, file: &SlotFile, path: &[u8]) -> Changed {
        // An earlier recovery knew that the crash took it.
        if file.left == Left::InHand || on(Canary::VacancyBelieved) {
            return Changed::No;
        }
        let clocks = self.clocks.of(file.life.filter(|_| !on(Canary::LifeForgotten)));
        let found = parent(self.disk, path).and_then(|directory| directory.stat());
        found.map_or(Changed::No, |stat| judge::names_changed(&clocks, file.stamp.as_ref(), stat.modified_ns))
    }

    /// As [`Judge::changed`], with a look at what the file holds where its times do not say enough:
    /// where it has all that the records say, writing them again undoes nobody's change.
    pub(super) fn changed_after_a_look(
        &self,
        file: &SlotFile,
        same: &SameFile<D::File>,
        witness: Witness,
    ) -> Changed {
        let changed = self.changed(file, same, witness);
        let needs_look = changed != Changed::No
            && matches!(witness, Witness::Ahead | Witness::Cut)
            && !file.is_void()
            && file.marks & (MARK_SET_ASIDE | MARK_CONFLICT) == 0
            // Who changed it under its old name does not expect it to get the one that a slot
            // holds.
            && left_behind(self.disk, file, same).is_none();
        let records = self.live.of(file.slot);
        if !needs_look || records.is_empty() {
            return changed;
        }
        let (open, payloads) = (same.file.reopen(Access::Read), self.source.payloads());
        let written = open.and_then(|open| {
            // The program's own call, which the keeper did not live to see.
            let called = records.iter().filter(|entry| {
                entry.is_called && Clocks::is_of_call(entry.unix_time_ns, same.stat.changed_ns)
            });
            let mut called = called.filter(|_| witness == Witness::Ahead);
            let is_called = called
                .try_fold(false, |is, entry| Ok::<_, io::Error>(is || is_begun(&payloads, entry, &open)?))?;
            Ok(is_called || is_applied(&payloads, records, &open)?)
        });
        if matches!(written, Ok(true)) { Changed::No } else { changed }
    }

    /// Finds file systems of which an older state stands there than was known to be on disk: what
    /// was written to them since would be mixed with what they were.
    pub(super) fn find_older(&mut self, files: &[SlotFile]) {
        if on(Canary::RollbackUnseen) {
            return;
        }
        for file in files {
            let (Ok(identity), Some(_)) = (&file.identity, &file.stamp) else { continue };
            let location = locate(self.disk, file, Others::NONE);
            let Some(same) = &location.same else { continue };
            let is_cut = self.witness(file, &location) == Witness::Cut;
            if is_cut && judge::is_older(file.stamp.as_ref(), &same.stat) {
                self.older.insert(identity.fs_uuid);
            }
        }
    }

    /// Whether the file without a slot stands at the file's new name from which a rename took it,
    /// and nobody wrote to it after the crash: then the crash took the rename, which is made again.
    /// Where only processes died, the call was not made. `None`: it does not stand there.
    pub(super) fn takes_name(&self, file: &SlotFile) -> Option<bool> {
        let (_, to) = file.rename()?;
        let stat = replaced_at(self.disk, to, file)?;
        let witness = self.witness(file, &locate(self.disk, file, Others::NONE));
        if matches!(witness, Witness::Running | Witness::Ahead) && !on(Canary::TakenFromTheLiving) {
            return Some(false);
        }
        let clocks = self.clocks.of(file.life.filter(|_| !on(Canary::LifeForgotten)));
        Some(judge::names_changed(&clocks, file.stamp.as_ref(), stat.modified_ns) == Changed::No)
    }

    /// Paths at which a file stands that the program had removed or renamed, which recovery is
    /// about to do again, first of all. So whoever was given such a name later finds it free.
    pub(super) fn vacated_paths(&self, files: &[SlotFile]) -> HashSet<Vec<u8>> {
        let mut vacated = HashSet::new();
        for file in files.iter().filter(|file| file.is_void() || file.rename().is_some()) {
            let location = locate(self.disk, file, Others::NONE);
            let Some(same) = &location.same else { continue };
            let witness = self.witness(file, &location);
            let is_running = witness == Witness::Running;
            if !is_running && self.changed(file, same, witness) != Changed::No {
                continue;
            }
            if file.is_void() {
                if !is_running {
                    vacated.insert(same.path.clone());
                }
            } else {
                vacated.extend(left_behind(self.disk, file, same));
            }
        }
        vacated
    }
}
