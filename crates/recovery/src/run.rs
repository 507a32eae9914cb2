//! The course of a recovery: scan, resolve, plan, then apply in an order that a crash cannot turn
//! against us.
//!
//! First everything that must not be replayed is marked and what is not wanted is dropped; only
//! then the heartbeat moves and files are written. Otherwise a recovery after a crash in this one
//! would take somebody's change of a file for our own.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use holdfast_canary::{Canary, on};
use holdfast_log::TICK_NS;
use holdfast_media::Nvm;
use holdfast_pool::{
    Frames, Layout, Left, MARK_AHEAD, MARK_CONFLICT, MARK_CREATED, MARK_LOST, MARK_REMOVED, MARK_SET_ASIDE,
    MARK_SUPERSEDED, MARK_VOID, Replaced, Slots, Superblock, Words, bound_segment, set_segment_generation,
};

use super::apply::Applier;
use super::compare::{is_applied, is_begun};
use super::directory::parent;
use super::export::export;
use super::file::SlotFile;
use super::frames::{self, Payloads, ReadSpill};
use super::judge::{self, Changed, Clocks, Witness};
use super::live::{Live, last_ns, resolve};
use super::locate::{Location, Others, SameFile, left_behind, locate, locate_forced, replaced_at};
use super::loss::Loss;
use super::plan::{Aside, Facts, Outcome, Place, Request, decide};
use super::redo::redo;
use super::scan::{Broken, Scan, SlotState, counter_start, counter_start_clean, scan, slot_states};
use super::{FileReport, PoolError, RecoverOptions, Report};
use holdfast_disk::{Access, Disk, DiskFile};

/// A slot and what is going to happen to it.
pub(super) struct Planned {
    pub(super) file: SlotFile,
    facts: Facts,
    pub(super) outcome: Outcome,
    /// Where a file is written or built that is not the slot's own.
    target: Vec<u8>,
    /// Where the slot's own stands.
    stands: Option<Vec<u8>>,
    reason: String,
    shown: String,
    /// What means it, and nothing else, on a command line.
    named: String,
}

/// Why a file was not brought back that should have been.
struct Kept {
    error: io::Error,
    /// The next recovery tries again.
    is_put_off: bool,
}

/// What stood in the way, and what to do about it.
fn in_words(error: &io::Error) -> String {
    let todo = match error.kind() {
        io::ErrorKind::StorageFull => "make room on its file system",
        io::ErrorKind::QuotaExceeded => "make room within the quota of its owner",
        io::ErrorKind::ReadOnlyFilesystem => "mount its file system for writing",
        io::ErrorKind::PermissionDenied => "recover as a user who may change it",
        _ => return error.to_string(),
    };
    format!("{error}: {todo}")
}

fn is_for_want_of_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

struct Plan {
    live: Live,
    files: Vec<Planned>,
    counter_start: u64,
    clocks: Clocks,
    report: Report,
    /// Segments that are damaged.
    broken: Vec<Broken>,
}

/// An unrecovered pool, as far as recovery reads and changes it.
pub(super) struct Source<'a, N> {
    pub(super) nvm: &'a N,
    pub(super) superblock: &'a Superblock,
    /// For messages.
    pub(super) name: &'a Path,
    /// Where the log goes on, if it does.
    pub(super) spill: Option<&'a dyn ReadSpill>,
}

impl<'a, N> Source<'a, N> {
    /// A pool whose spill file is not open yet.
    pub(super) fn new(nvm: &'a N, superblock: &'a Superblock, name: &'a Path) -> Self {
        Self { nvm, superblock, name, spill: None }
    }
}

impl<N: Nvm> Source<'_, N> {
    pub(super) fn frames(&self) -> Frames<'_, N> {
        Frames { nvm: self.nvm, layout: self.layout() }
    }

    pub(super) fn payloads(&self) -> Payloads<'_, N> {
        Payloads { nvm: self.nvm, layout: self.layout(), spill: self.spill }
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.superblock.layout
    }

    pub(super) fn slots(&self) -> Slots<'_, N> {
        Slots { nvm: self.nvm, layout: self.layout() }
    }

    pub(super) fn words(&self) -> Words<'_, N> {
        Words { nvm: self.nvm, layout: self.layout() }
    }
}

/// What whoever serves a recovered pool must know of it.
pub struct Recovered {
    /// The counter's first free number: above every generation, seq and `expired_seq` in the pool.
    pub counter_start: u64,
    /// Segments with live records of set-aside files; they must not be reused.
    pub pinned_segments: Vec<u32>,
    /// Frames of the spill file with such records.
    pub pinned_frames: Vec<u32>,
    /// Slots that stay in use for set-aside files.
    pub set_aside_slots: Vec<u32>,
}

/// Reads the pool and decides; changes nothing.
fn plan(
    source: &Source<'_, impl Nvm + Sync>,
    disk: &impl Disk,
    options: &RecoverOptions,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Plan, PoolError> {
    let started = Instant::now();
    let words = source.words();
    // A clean pool is not walked over: the word is stored last, after every slot was given back,
    // and never while anything is set aside. So no slot is in use and no record live, and the
    // counter is in the word.
    let clean = words.counter_clean();
    let states = if clean.is_some() { Vec::new() } else { slot_states(source) };
    let mut found = match clean {
        Some(_) => Scan::default(),
        None => scan(source, &states, &mut |done, total| progress("scanning", done, total))?,
    };
    let counter_start = match clean {
        Some(counter) => counter_start_clean(source.layout(), counter),
        None => {
            let is_damaged = !found.damaged.is_empty() || states.contains(&SlotState::Damaged);
            counter_start(source, found.seq_max.max(found.generation_max), is_damaged)
        }
    };
    let counter_start = counter_start.ok_or_else(|| {
        PoolError::new(format!(
            "pool {} holds numbers that its counter cannot have reached: it is damaged; rescue what can be read with \
             --dry-run --export DIR, then make it anew with `holdfast format --force`",
            source.name.display()
        ))
    });
    // A look around still works in such a pool, and helps.
    let counter_start = if options.dry_run { counter_start.unwrap_or(0) } else { counter_start? };
    let live = resolve(std::mem::take(&mut found.entries), &mut found.damaged);
    let mut lost = live.contradicted.clone();
    found.losses.iter().for_each(|loss: &Loss| loss.add_to(&mut lost, &states));
    let mut report = Report {
        clean: clean.is_some(),
        scanned_bytes: found.scanned_bytes,
        damaged: found.damaged,
        ..Report::default()
    };
    report.scan_ns = started.elapsed().as_nanos() as u64;
    report.records = live.entries.len() as u64;
    report.bytes = live.slots.values().map(|log| log.bytes).sum();

    let mut files: Vec<SlotFile> = (0..)
        .zip(&states)
        .filter_map(|(slot, &state)| SlotFile::read(source, slot, state, !live.of(slot).is_empty()))
        .collect();
    files.sort_by_key(|file| file.generation);
    for file in &files {
        if let Err(reason) = file.identity {
            report.damaged.push(format!("slot {} ({}): {reason}", file.slot, file.shown()));
        }
    }
    mark_replaced(&mut files);
    refuse_unclear(&files, &live, options)?;
    let newest = newest_paths(&files, &live);
    let clocks = clocks(disk, &words, &files, &live);
    let replays = options.replay;
    let mut judge = Judge { source, disk, clocks, live: &live, lost: &lost, older: HashSet::new(), replays };
    files.iter_mut().for_each(|file| file.takes_name = judge.takes_name(file));
    let vacated = judge.vacated_paths(&files);
    judge.find_older(&files);
    let mut files: Vec<Planned> =
        files.into_iter().map(|file| plan_one(&judge, file, options, &newest, &vacated)).collect();
    while let Some(index) = files.iter().position(|planned| is_left_alone(planned, &files)) {
        let mut file = files.remove(index).file;
        file.takers.clear();
        files.insert(index, plan_one(&judge, file, options, &newest, &vacated));
    }
    name(&mut files);
    Ok(Plan { live, files, counter_start, clocks, report, broken: found.broken })
}

/// Gives each file the newest of its names by which it, and no other one with records, is known.
fn name(files: &mut [Planned]) {
    let names: Vec<Option<String>> = files
        .iter()
        .map(|planned| {
            let paths = planned.file.hints.iter().filter_map(|hint| std::str::from_utf8(&hint.path).ok());
            let is_its_own = |path: &&str| {
                let have_it =
                    files.iter().filter(|other| other.facts.live && other.file.has_name(Path::new(path)));
                have_it.count() <= 1 && path.starts_with('/')
            };
            paths.map(str::to_owned).find(|path| is_its_own(&&**path))
        })
        .collect();
    for (planned, name) in files.iter_mut().zip(names) {
        planned.named = name.unwrap_or_else(|| planned.file.number());
    }
}

/// What is known of times. Records of files that earlier recoveries set aside or put off may be of
/// another boot, with another clock.
fn clocks(disk: &impl Disk, words: &Words<'_, impl Nvm>, files: &[SlotFile], live: &Live) -> Clocks {
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
struct Judge<'a, N, D> {
    source: &'a Source<'a, N>,
    disk: &'a D,
    clocks: Clocks,
    live: &'a Live,
    /// Slots whose files lost a record, or may have.
    lost: &'a BTreeSet<u32>,
    /// File systems that are older than a file on them is known to be.
    older: HashSet<[u8; 16]>,
    replays: bool,
}

impl<N: Nvm, D: Disk> Judge<'_, N, D> {
    /// Where the page cache is that the keeper knew.
    fn witness(&self, file: &SlotFile, location: &Location<D::File>) -> Witness {
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
    fn vacancy_changed(&self, file: &SlotFile, path: &[u8]) -> Changed {
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
    fn changed_after_a_look(&self, file: &SlotFile, same: &SameFile<D::File>, witness: Witness) -> Changed {
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
    fn find_older(&mut self, files: &[SlotFile]) {
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
    fn takes_name(&self, file: &SlotFile) -> Option<bool> {
        let (_, to) = file.rename()?;
        let stat = replaced_at(self.disk, to, file)?;
        if self.witness(file, &locate(self.disk, file, Others::NONE)) == Witness::Running {
            return Some(false);
        }
        let clocks = self.clocks.of(file.life.filter(|_| !on(Canary::LifeForgotten)));
        Some(judge::names_changed(&clocks, file.stamp.as_ref(), stat.modified_ns) == Changed::No)
    }

    /// Paths at which a file stands that the program had removed or renamed, which recovery is
    /// about to do again, first of all. So whoever was given such a name later finds it free.
    fn vacated_paths(&self, files: &[SlotFile]) -> HashSet<Vec<u8>> {
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

/// Finds the files whose only names renames gave to others: a slot of one of those says so, whatever
/// its own says.
fn mark_replaced(files: &mut [SlotFile]) {
    if on(Canary::ReplacedForgotten) {
        return;
    }
    let takers_of = |file: &SlotFile| -> Vec<u32> {
        let takes = |taker: &&SlotFile| {
            let by_slot = |it: &Replaced| it.slot == Some((file.slot, file.generation));
            taker.slot != file.slot && (taker.replaced().is_some_and(by_slot) || file.is_base_of(taker))
        };
        let is_of_now = |taker: &&SlotFile| taker.marks & MARK_SUPERSEDED == 0;
        let takers = files.iter().filter(is_of_now).filter(takes);
        let may_be_replaced = file.marks & (MARK_SET_ASIDE | MARK_SUPERSEDED) == 0;
        takers.filter(|_| may_be_replaced).map(|taker| taker.slot).collect()
    };
    let found: Vec<Vec<u32>> = files.iter().map(takers_of).collect();
    files.iter_mut().zip(found).for_each(|(file, takers)| file.takers = takers);
}

/// Whether a file keeps its name, although slots say that others take it: nobody knows that any did,
/// and none is going to.
fn is_left_alone(planned: &Planned, files: &[Planned]) -> bool {
    let is_taken = |slot: &u32| {
        let outcome = files.iter().find(|other| other.file.slot == *slot).map(|other| other.outcome);
        !matches!(outcome, Some(Outcome::SetAside(_) | Outcome::Discard | Outcome::Release) | None)
    };
    let file = &planned.file;
    !file.takers.is_empty() && file.marks & MARK_VOID == 0 && !file.takers.iter().any(is_taken)
}

/// Whether a file that was removed by a rename still stands at the name, which another one is to
/// take from it: until that has it, or a person has decided, something stands there.
pub(super) fn is_yielding(planned: &Planned, files: &[Planned]) -> bool {
    planned.outcome == Outcome::UnlinkAgain && takers_to(planned, files).next().is_some()
}

/// Who is to get the name at which a replaced file stands.
fn takers_to<'a>(planned: &'a Planned, files: &'a [Planned]) -> impl Iterator<Item = &'a Planned> {
    let stands = planned.stands.as_deref().filter(|_| !planned.file.takers.is_empty());
    files.iter().filter(move |other| {
        let to = other.file.rename().map(|(_, to)| to);
        to.is_some() && to == stands && other.file.slot != planned.file.slot && !other.file.is_void()
    })
}

/// A path that a person named must mean one file: what the log holds of another one would go over
/// it, or be forgotten with it.
fn refuse_unclear(files: &[SlotFile], live: &Live, options: &RecoverOptions) -> Result<(), PoolError> {
    for wanted in options.force.iter().chain(&options.discard) {
        let meant: Vec<String> = files
            .iter()
            .filter(|file| !live.of(file.slot).is_empty() && file.is_meant(wanted))
            .map(|file| format!("'{}' ({} records)", file.number(), live.of(file.slot).len()))
            .collect();
        if meant.len() > 1 && !on(Canary::AllMeant) {
            return Err(PoolError::new(format!(
                "{} is the name of several files in the pool: {}. Look at each with --dry-run --export DIR, and name the one \
                 you mean by its number; nothing was changed",
                wanted.display(),
                meant.join(", ")
            )));
        }
    }
    Ok(())
}

/// How many files with live records call each path their own.
fn newest_paths(files: &[SlotFile], live: &Live) -> HashMap<Vec<u8>, usize> {
    let mut newest = HashMap::new();
    let is_there = |file: &&SlotFile| !file.is_void() && file.marks & MARK_REMOVED == 0;
    for file in files.iter().filter(|file| !live.of(file.slot).is_empty()).filter(is_there) {
        if let Some(hint) = file.hints.first() {
            *newest.entry(hint.path.clone()).or_insert(0) += 1;
        }
    }
    newest
}

fn plan_one(
    judge: &Judge<'_, impl Nvm, impl Disk>,
    file: SlotFile,
    options: &RecoverOptions,
    newest: &HashMap<Vec<u8>, usize>,
    vacated: &HashSet<Vec<u8>>,
) -> Planned {
    let (disk, live) = (judge.disk, judge.live);
    let forced = options.force.iter().find(|wanted| file.is_meant(wanted));
    let request = if options.discard.iter().any(|wanted| file.is_meant(wanted)) {
        Request::Discard
    } else if forced.is_some() {
        Request::Force
    } else {
        Request::None
    };
    // An older name of this file counts as taken if some file's newest name it is.
    let others = Others { newest: Some(newest), vacated: Some(vacated) };
    let mut location = locate(disk, &file, others);
    if let (Some(wanted), None) = (forced, &location.same) {
        let path = std::path::absolute(wanted).unwrap_or_else(|_| wanted.clone());
        let meant = file.hints.iter().find(|hint| {
            let hinted = Path::new(std::ffi::OsStr::from_bytes(&hint.path));
            hinted == path || path.canonicalize().is_ok_and(|path| path == hinted)
        });
        if let Some(hint) = meant.or(file.hints.first()) {
            location = locate_forced(disk, &file, &hint.path);
        }
    }
    let void = file.is_void();
    let witness = judge.witness(&file, &location);
    let changed = match (&location.same, &location.empty) {
        (Some(same), _) => judge.changed_after_a_look(&file, same, witness),
        (None, Some(path)) => judge.vacancy_changed(&file, path),
        (None, None) => Changed::No,
    };
    let facts = Facts {
        request,
        sound: file.is_sound(),
        rebuilt: file.rebuilt,
        void,
        aside: file.marks & MARK_SET_ASIDE != 0,
        conflict: file.marks & MARK_CONFLICT != 0,
        live: !live.of(file.slot).is_empty(),
        unlinking: file.is_unlinking(),
        created: file.marks & MARK_CREATED != 0 && file.never_expired,
        place: location.place(void),
        witness,
        changed,
        superseded: file.marks & MARK_SUPERSEDED != 0,
        lost: file.marks & MARK_LOST != 0 || judge.lost.contains(&file.slot),
    };
    let facts = if file.marks & MARK_REMOVED != 0 { removed_outside(facts) } else { facts };
    let outcome = decide(&facts);
    let target = match outcome {
        Outcome::ReplayInto => location.other.as_ref().map(|(path, _)| path.clone()),
        Outcome::Rebuild => location.empty.clone().or_else(|| location.orphaned.clone()),
        _ => None,
    };
    let shown = match (&target, &location.same) {
        (Some(path), _) => String::from_utf8_lossy(path).into_owned(),
        (None, Some(same)) if same.is_reachable => String::from_utf8_lossy(&same.path).into_owned(),
        (None, _) => file.shown(),
    };
    let reason = reason(outcome, witness, &location, &file);
    let named = file.number();
    let (target, stands) = (target.unwrap_or_default(), location.same.map(|same| same.path));
    Planned { file, facts, outcome, target, stands, reason, shown, named }
}

/// Nobody under Holdfast removed the file, and somebody did. It is not the crash that took it, so
/// it is not built anew, and whatever has its name now is not in its place.
fn removed_outside(facts: Facts) -> Facts {
    let place = if facts.place == Place::Taken { Place::Empty } else { facts.place };
    Facts { unlinking: true, created: false, place, ..facts }
}

fn reason<F>(outcome: Outcome, witness: Witness, location: &Location<F>, file: &SlotFile) -> String {
    let stands =
        location.other.as_ref().map(|(path, what)| format!("{what} at {}", String::from_utf8_lossy(path)));
    match outcome {
        Outcome::Sync => "the page cache had all of it; it was synced".into(),
        Outcome::Replay => "its records were written into it".into(),
        Outcome::ReplayInto => {
            "forced: its records were written into the file that stands at its path".into()
        }
        Outcome::Rebuild if location.empty.is_none() => {
            "the crash took it and its directory; both were made anew (the directory with mode 0700)".into()
        }
        Outcome::Rebuild => "the crash took it; built anew from its records".into(),
        Outcome::FinishRebuild => "an earlier recovery had built it; it has its name now".into(),
        Outcome::UnlinkAgain => "the program had removed it and the crash brought it back".into(),
        Outcome::Gone if file.marks & MARK_REMOVED != 0 => "a process outside of Holdfast removed it".into(),
        Outcome::Gone if witness == Witness::Running && !file.is_void() => {
            "it was removed or moved out of sight since the keeper died; what the page cache has of it was synced".into()
        }
        Outcome::Gone => "the program removed it".into(),
        Outcome::LeaveFile => {
            "the program had removed it, it came back and somebody used it since: left as it is".into()
        }
        Outcome::Release => "nothing of it is left in the log".into(),
        Outcome::Discard => "its records were not wanted".into(),
        Outcome::SetAside(aside) => match aside {
            Aside::Damaged => match file.identity {
                Err(reason) => format!("{reason}: its file cannot be told"),
                Ok(_) => "no path of it can be read".into(),
            },
            Aside::Earlier if file.marks & MARK_LOST != 0 => {
                "an earlier recovery set it aside: a record of it in the log was damaged, or may have been".into()
            }
            Aside::Earlier => "an earlier recovery set it aside".into(),
            Aside::Conflict => {
                "a process outside of Holdfast opened it while it had records in the log".into()
            }
            Aside::Changed => "it was changed after the crash".into(),
            Aside::Unclear => {
                "the clock was set back, so that nobody can tell whether it was changed or removed after the crash; if it \
                 was not, --force is right"
                    .into()
            }
            Aside::Older => {
                "its file system is older than it was known to be, as after the return of a snapshot; all files on it are set \
                 aside"
                    .into()
            }
            Aside::Lost => {
                "a record of it in the log is damaged, or may be: what the log still has of it may be older than what the \
                 file holds, or lack what came before; --export it and look, then --force writes it to the file"
                    .into()
            }
            Aside::Superseded => {
                "it was served again since, and its old records would go over what was written then: save them with --export, \
                 and --discard them"
                    .into()
            }
            Aside::Vacated => "it is not there, and the names in its directory were changed after the crash: nobody can tell whether the \
                 crash took it or somebody removed it; if it was the crash, --force is right"
                .into(),
            Aside::Replaced => stands.unwrap_or_else(|| "another file stands at its path".into()),
            Aside::Missing => match stands {
                Some(stands) => format!("it is not at any of its paths, and {stands}"),
                None => "it is gone, though no program removed it under Holdfast".into(),
            },
            Aside::Absent => match (&location.absent, &location.orphaned) {
                (Some(reason), _) => reason.clone(),
                (None, _) if location.same.is_some() => {
                    "it is there, and no name of it can be seen from here".into()
                }
                (None, Some(_)) => {
                    "neither it nor its directory is there: what is mounted there may be missing".into()
                }
                (None, None) => "no path of it can be read".into(),
            },
        },
    }
}

impl Planned {
    /// Whether a person wants the log's contents.
    pub(super) fn is_forced(&self) -> bool {
        self.facts.request == Request::Force
    }

    /// Whether doing it changes files, not only the pool.
    fn touches_files(&self) -> bool {
        !matches!(
            self.outcome,
            Outcome::Release | Outcome::LeaveFile | Outcome::Discard | Outcome::SetAside(_)
        )
    }

    /// Does what was decided, but for names and removals, which are seen to before.
    fn apply<N: Nvm, D: Disk>(&self, applier: &mut Applier<'_, N, D>) -> io::Result<()> {
        let file = &self.file;
        if self.touches_files() {
            applier.beat();
        }
        match self.outcome {
            Outcome::Sync => applier.sync(file, self.facts.changed),
            Outcome::Replay => applier.replay(file, self.facts.witness),
            Outcome::ReplayInto => applier.replay_into(file, &self.target),
            Outcome::Rebuild => applier.rebuild(file, &self.target),
            Outcome::FinishRebuild => applier.finish_rebuild(file),
            Outcome::Gone => {
                let by_others = self.facts.witness == Witness::Running && self.facts.live;
                applier.gone(file, by_others)
            }
            Outcome::UnlinkAgain
            | Outcome::Release
            | Outcome::LeaveFile
            | Outcome::Discard
            | Outcome::SetAside(_) => Ok(()),
        }
    }

    /// The row of the report, if there is anything to say of this slot.
    fn row(&self, live: &Live, kept: Option<&Kept>) -> Option<FileReport> {
        let outcome = match (kept, self.outcome) {
            (Some(kept), _) if kept.is_put_off => "put off",
            (Some(_), _) => "set aside",
            (None, Outcome::Release) if self.facts.request == Request::Force => "already on disk",
            (None, Outcome::Release) => return None,
            (None, Outcome::Sync) => "synced",
            (None, Outcome::Replay | Outcome::ReplayInto) => "replayed",
            (None, Outcome::Rebuild | Outcome::FinishRebuild) => "rebuilt",
            (None, Outcome::UnlinkAgain | Outcome::Gone) => "unlinked",
            (None, Outcome::Discard | Outcome::LeaveFile) => "discarded",
            (None, Outcome::SetAside(aside)) if !aside.is_for_a_person() && !self.facts.aside => "put off",
            (None, Outcome::SetAside(_)) => "set aside",
        };
        let reason = kept.map_or_else(|| self.reason.clone(), |kept| in_words(&kept.error));
        Some(FileReport {
            path: self.shown.clone(),
            named: self.named.clone(),
            outcome: outcome.into(),
            reason,
            records: live.of(self.file.slot).len() as u64,
            bytes: live.slots.get(&self.file.slot).map_or(0, |log| log.bytes),
            can_be_forced: !self.file.hints.is_empty() && !self.facts.superseded,
        })
    }
}

impl Plan {
    /// Adds a row for every path that a person named and no slot has.
    fn report_unknown(&mut self, options: &RecoverOptions) {
        for wanted in options.force.iter().chain(&options.discard) {
            if !self.files.iter().any(|planned| planned.file.is_meant(wanted)) {
                self.report.files.push(FileReport {
                    path: wanted.display().to_string(),
                    named: wanted.display().to_string(),
                    outcome: "already on disk".into(),
                    reason: "the pool holds nothing of it".into(),
                    records: 0,
                    bytes: 0,
                    can_be_forced: false,
                });
            }
        }
    }

    fn export(
        &self,
        source: &Source<'_, impl Nvm>,
        options: &RecoverOptions,
        which: impl Fn(&Planned) -> bool,
    ) -> Result<(), PoolError> {
        let Some(directory) = &options.export else { return Ok(()) };
        for planned in self.files.iter().filter(|planned| planned.facts.live && which(planned)) {
            export(source, directory, &planned.file, self.live.of(planned.file.slot), &planned.reason)
                .map_err(|error| {
                    PoolError::new(format!(
                        "{} cannot be exported to {}: {error}; nothing was changed",
                        planned.shown,
                        directory.display()
                    ))
                })?;
        }
        Ok(())
    }
}

/// Looks and reports.
pub(super) fn examine(
    source: &Source<'_, impl Nvm + Sync>,
    disk: &impl Disk,
    options: &RecoverOptions,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Report, PoolError> {
    let spill = frames::open(source, disk)?;
    let source = &Source { spill: spill.as_ref().map(|spill| spill as &dyn ReadSpill), ..*source };
    let mut plan = plan(source, disk, options, progress)?;
    plan.export(source, options, |_| true)?;
    plan.report.files = plan.files.iter().filter_map(|planned| planned.row(&plan.live, None)).collect();
    plan.report_unknown(options);
    Ok(plan.report)
}

/// Recovers.
pub(super) fn recover(
    source: &Source<'_, impl Nvm + Sync>,
    disk: &impl Disk,
    options: &RecoverOptions,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<(Recovered, Report), PoolError> {
    let spill = frames::open(source, disk)?;
    let source = &Source { spill: spill.as_ref().map(|spill| spill as &dyn ReadSpill), ..*source };
    let mut plan = plan(source, disk, options, progress)?;
    // What is about to be forgotten is exported with what is kept, and before.
    plan.export(source, options, |planned| {
        matches!(planned.outcome, Outcome::SetAside(_) | Outcome::Discard)
    })?;
    let started = Instant::now();
    let (mut done, total) = (0, plan.report.bytes);
    let mut tell = |bytes: u64| {
        done += bytes;
        progress("replaying", done, total);
    };
    let mut applier = Applier {
        source,
        disk,
        live: &plan.live,
        progress: &mut tell,
        clocks: plan.clocks,
        synced: HashSet::new(),
        before: HashMap::new(),
        yielding: Vec::new(),
    };
    let yields = plan.files.iter().filter(|planned| is_yielding(planned, &plan.files));
    let known = |planned: &Planned| Some((planned.file.identity.clone().ok()?, planned.file.stamp));
    applier.yielding = yields.filter_map(known).collect();
    let mut aside = HashSet::new();
    for planned in &plan.files {
        let is_moved = matches!(planned.outcome, Outcome::Replay | Outcome::Sync | Outcome::FinishRebuild);
        if is_moved && planned.file.takes_name == Some(false) {
            applier.note_refused(&planned.file, planned.outcome == Outcome::FinishRebuild);
        }
        match planned.outcome {
            Outcome::SetAside(why) => {
                if why.is_for_a_person() || on(Canary::ObstaclesDecide) {
                    applier.set_aside(&planned.file);
                } else {
                    applier.put_off(&planned.file);
                }
                aside.insert(planned.file.slot);
            }
            Outcome::Release | Outcome::LeaveFile | Outcome::Discard => applier.release(&planned.file),
            Outcome::Rebuild => applier.note_lost(&planned.file),
            _ => {}
        }
    }
    let mut names_failed = redo(&mut applier, &plan.files);
    let mut errors: Vec<Option<io::Error>> = plan.files.iter().map(|_| None).collect();
    // What has the name of another file may be known by that one's slot alone: it comes first.
    let mut order: Vec<usize> = (0..plan.files.len()).collect();
    order.sort_by_key(|&index| !plan.files[index].file.takers.is_empty());
    for index in order {
        let planned = &plan.files[index];
        errors[index] = match names_failed.remove(&planned.file.slot) {
            Some(error) => Some(error),
            None => planned.apply(&mut applier).err(),
        };
    }
    // One file's truncation is another one's room: all of them together fit, whatever comes first.
    loop {
        let mut is_better = false;
        for (planned, error) in plan.files.iter().zip(&mut errors) {
            if error.as_ref().is_some_and(is_for_want_of_room) {
                *error = planned.apply(&mut applier).err();
                is_better |= !error.as_ref().is_some_and(is_for_want_of_room);
            }
        }
        if !is_better {
            break;
        }
    }
    for index in 0..plan.files.len() {
        let planned = &plan.files[index];
        if is_yielding(planned, &plan.files) {
            let is_kept = |taker: &Planned| {
                let error = plan.files.iter().position(|other| other.file.slot == taker.file.slot);
                aside.contains(&taker.file.slot) || error.is_some_and(|index| errors[index].is_some())
            };
            errors[index] = if takers_to(planned, &plan.files).any(is_kept) {
                Some(io::Error::other("another file was renamed over it, and could not be brought back"))
            } else {
                applier.unlink_again(&planned.file).err()
            };
        }
    }
    let mut rows = Vec::new();
    for (planned, error) in plan.files.iter().zip(errors) {
        let file = &planned.file;
        let kept = error.map(|error| {
            if on(Canary::ObstaclesDecide) {
                applier.set_aside(file);
            }
            aside.insert(file.slot);
            Kept { error, is_put_off: applier.put_off(file) }
        });
        rows.extend(planned.row(&plan.live, kept.as_ref()));
    }
    for planned in plan.files.iter().filter(|planned| planned.facts.lost) {
        if aside.contains(&planned.file.slot) {
            applier.note_loss(&planned.file);
        }
    }
    drop(applier);
    plan.report.files = rows;
    plan.report_unknown(options);
    plan.report.apply_ns = started.elapsed().as_nanos() as u64;
    let mut pinned: Vec<u32> = aside
        .iter()
        .filter_map(|slot| plan.live.slots.get(slot))
        .flat_map(|log| log.segments.clone())
        .collect();
    pinned.sort_unstable();
    pinned.dedup();
    let segment_count = source.layout().segment_count;
    let pinned_frames: Vec<u32> =
        pinned.iter().filter_map(|place| place.checked_sub(segment_count)).collect();
    pinned.retain(|&place| place < segment_count);
    // Whose records were there is noted in the slots by now.
    for &Broken { segment, lost_generation } in &plan.broken {
        let (nvm, layout) = (source.nvm, source.layout());
        if pinned.binary_search(&segment).is_err() {
            set_segment_generation(nvm, layout, segment, plan.counter_start);
            plan.counter_start += 1;
            continue;
        }
        // Files of later lives cannot have lost anything there.
        bound_segment(nvm, layout, segment, plan.counter_start);
        if let Some(generation) = lost_generation {
            set_segment_generation(nvm, layout, segment, generation);
        }
    }
    // Everything else in them is synced to the files and void. Only now may they be written over.
    let mut unused = source.frames().in_use();
    unused.retain(|frame| pinned_frames.binary_search(frame).is_err());
    source.frames().clear(&unused);
    let mut set_aside_slots: Vec<u32> = aside.into_iter().collect();
    set_aside_slots.sort_unstable();
    let recovered = Recovered {
        counter_start: plan.counter_start,
        pinned_segments: pinned,
        pinned_frames,
        set_aside_slots,
    };
    Ok((recovered, plan.report))
}

#[cfg(test)]
mod tests {
    use holdfast_pool::set_segment_generation;

    use super::super::{OpenPool, RecoveredPool, format};
    use super::*;

    fn reopened(path: &Path) -> RecoveredPool {
        let open = OpenPool::open(path, true).unwrap();
        open.recover(&RecoverOptions::default(), &mut |_, _, _| ()).unwrap().0
    }

    /// History 3, without a walk: what a client drew that did not notice the close is below the
    /// next start.
    #[test]
    fn a_clean_pool_starts_above_what_was_drawn_after_its_close() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("tests need a tmpfs at /dev/shm");
        let path = directory.path().join("pool");
        format(&path, 16 << 20, true, false, &mut |_, _| ()).unwrap();
        let mut closed = 1;
        for _ in 0..3 {
            let pool = reopened(&path);
            let layout = pool.superblock.layout;
            for segment in 0..layout.segment_count {
                let late = closed + u64::from(segment);
                set_segment_generation(&pool.mapping, &layout, segment, late);
                assert!(late < pool.counter_start);
            }
            pool.close_clean();
            closed = pool.counter_start;
        }
    }
}
