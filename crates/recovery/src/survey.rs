//! Reads the pool and decides what is to become of each file; changes nothing.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{
    MARK_CONFLICT, MARK_CREATED, MARK_LOST, MARK_REMOVED, MARK_SET_ASIDE, MARK_SUPERSEDED, Seq, Slot,
};

use super::file::SlotFile;
use super::judge::{Changed, Clocks, Witness};
use super::live::{Live, resolve};
use super::locate::{Location, Others, locate, locate_forced};
use super::loss::Loss;
use super::plan::{Aside, Facts, Outcome, Place, Request, decide};
use super::planned::Planned;
use super::reasons::reason;
use super::replaced::{is_left_alone, mark_replaced};
use super::scan::{Broken, Scan, counter_start, counter_start_clean, scan};
use super::slots::{SlotState, slot_states};
use super::source::Source;
use super::witnesses::{Judge, clocks};
use super::{PoolError, RecoverOptions, Report};
use holdfast_disk::Disk;

/// What a pool holds, and what is going to become of it.
pub(super) struct Plan {
    pub(super) live: Live,
    pub(super) files: Vec<Planned>,
    pub(super) counter_start: Seq,
    pub(super) clocks: Clocks,
    pub(super) report: Report,
    /// Segments that are damaged.
    pub(super) broken: Vec<Broken>,
}

/// Reads the pool and decides; changes nothing.
pub(super) fn plan(
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
            counter_start(source, found.seq_max.max(found.generation_max.seq()), is_damaged)
        }
    };
    let counter_start = counter_start.ok_or_else(|| PoolError::Counter(source.name.to_owned()));
    // A look around still works in such a pool, and helps.
    let counter_start = if options.dry_run { counter_start.unwrap_or_default() } else { counter_start? };
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
        .map(Slot::new)
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
            return Err(PoolError::Unclear { named: wanted.clone(), meant: meant.join(", ") });
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
    let outcome = match decide(&facts) {
        Outcome::Replay if request == Request::None && is_kept_out(&file, &location, witness) => {
            Outcome::SetAside(Aside::Replaced)
        }
        outcome => outcome,
    };
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
    let reason = reason(outcome, &facts, &location, &file, options.dry_run);
    let named = file.number();
    let (target, stands) = (target.unwrap_or_default(), location.same.map(|same| same.path));
    Planned { file, facts, outcome, target, stands, reason, shown, named }
}

/// Whether the crash took a rename over another file, and somebody used that one since: at its old
/// name nobody would look for what was renamed.
fn is_kept_out<F>(file: &SlotFile, location: &Location<F>, witness: Witness) -> bool {
    let (Some((from, _)), Some(same)) = (file.rename(), &location.same) else { return false };
    let is_at_old = file.replaced().is_some() && from == same.path;
    is_at_old && location.other.is_some() && witness == Witness::Cut
}

/// Nobody under Holdfast removed the file, and somebody did. It is not the crash that took it, so
/// it is not built anew, and whatever has its name now is not in its place.
fn removed_outside(facts: Facts) -> Facts {
    let place = if facts.place == Place::Taken { Place::Empty } else { facts.place };
    Facts { unlinking: true, created: false, place, ..facts }
}
