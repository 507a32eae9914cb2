//! The course of a recovery: scan, resolve, plan, then apply in an order that a crash cannot turn
//! against us.
//!
//! First everything that must not be replayed is marked and what is not wanted is dropped; only
//! then the heartbeat moves and files are written. Otherwise a recovery after a crash in this one
//! would take somebody's change of a file for our own.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Instant;

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{Generation, Segment, Seq, Slot, bound_segment, set_segment_generation};

use super::apply::Applier;
use super::export::export;
use super::frames;
use super::judge::Witness;
use super::live::Live;
use super::payloads::ReadSpill;
use super::plan::{Outcome, Request};
use super::planned::Planned;
use super::redo::redo;
use super::replaced::{is_yielding, takers_of};
use super::scan::Broken;
use super::source::Source;
use super::survey::{Plan, plan};
use super::{FileOutcome, FileReport, PoolError, RecoverOptions, Report};
use holdfast_disk::Disk;

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

/// What whoever serves a recovered pool must know of it.
pub struct Recovered {
    /// The counter's first free number: above every generation, seq and `expired_seq` in the pool.
    pub counter_start: Seq,
    /// Segments with live records of set-aside files; they must not be reused.
    pub pinned_segments: Vec<Segment>,
    /// Frames of the spill file with such records.
    pub pinned_frames: Vec<u32>,
    /// Slots that stay in use for set-aside files.
    pub set_aside_slots: Vec<Slot>,
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
            (Some(kept), _) if kept.is_put_off => FileOutcome::PutOff,
            (Some(_), _) => FileOutcome::SetAside,
            (None, Outcome::Release) if self.facts.request == Request::Force => FileOutcome::AlreadyOnDisk,
            (None, Outcome::Release) => return None,
            (None, Outcome::Sync) => FileOutcome::Synced,
            (None, Outcome::Replay | Outcome::ReplayInto) => FileOutcome::Replayed,
            (None, Outcome::Rebuild | Outcome::FinishRebuild) => FileOutcome::Rebuilt,
            (None, Outcome::UnlinkAgain | Outcome::Gone) => FileOutcome::Unlinked,
            (None, Outcome::Discard | Outcome::LeaveFile) => FileOutcome::Discarded,
            (None, Outcome::SetAside(aside)) if !aside.is_for_a_person() && !self.facts.aside => {
                FileOutcome::PutOff
            }
            (None, Outcome::SetAside(_)) => FileOutcome::SetAside,
        };
        let reason = kept.map_or_else(|| self.reason.clone(), |kept| in_words(&kept.error));
        Some(FileReport {
            path: self.shown.clone(),
            named: self.named.clone(),
            outcome,
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
                    outcome: FileOutcome::Unknown,
                    reason: "the pool holds nothing of a file that is called so, and nothing was done".into(),
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
        // A place that cannot take anything is told although there may be nothing to put there: who
        // named it must not believe that it holds all.
        std::fs::create_dir_all(directory).map_err(|error| PoolError::Export {
            file: "what is set aside".to_owned(),
            directory: directory.clone(),
            error,
        })?;
        for planned in self.files.iter().filter(|planned| planned.facts.live && which(planned)) {
            export(source, directory, &planned.file, self.live.of(planned.file.slot), &planned.reason)
                .map_err(|error| PoolError::Export {
                    file: planned.shown.clone(),
                    directory: directory.clone(),
                    error,
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
    let mut aside = note_decisions(&mut applier, &plan.files);
    let errors = apply(&mut applier, &plan.files, &aside);
    plan.report.files = keep_failed(&mut applier, &plan, errors, &mut aside);
    plan.report_unknown(options);
    plan.report.apply_ns = started.elapsed().as_nanos() as u64;
    let recovered = free_segments(source, &mut plan, aside);
    Ok((recovered, plan.report))
}

/// Marks everything that must not be replayed, and drops what is not wanted: all of it before the
/// first heartbeat. Returns the slots of what is set aside or put off.
fn note_decisions(applier: &mut Applier<'_, impl Nvm, impl Disk>, files: &[Planned]) -> HashSet<Slot> {
    let yields = files.iter().filter(|planned| is_yielding(planned, files));
    let known = |planned: &Planned| Some((planned.file.identity.clone().ok()?, planned.file.stamp));
    applier.yielding = yields.filter_map(known).collect();
    let mut aside = HashSet::new();
    for planned in files {
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
    aside
}

/// Brings names and bytes to the disk. Returns what failed, in the order of the files.
fn apply(
    applier: &mut Applier<'_, impl Nvm, impl Disk>,
    files: &[Planned],
    aside: &HashSet<Slot>,
) -> Vec<Option<io::Error>> {
    let mut names_failed = redo(applier, files);
    let mut errors: Vec<Option<io::Error>> = files.iter().map(|_| None).collect();
    // What has the name of another file may be known by that one's slot alone: it comes first.
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|&index| !files[index].file.takers.is_empty());
    for index in order {
        errors[index] = match names_failed.remove(&files[index].file.slot) {
            Some(error) => Some(error),
            None => files[index].apply(applier).err(),
        };
    }
    // One file's truncation is another one's room: all of them together fit, whatever comes first.
    loop {
        let mut is_better = false;
        for (planned, error) in files.iter().zip(&mut errors) {
            if error.as_ref().is_some_and(is_for_want_of_room) {
                *error = planned.apply(applier).err();
                is_better |= !error.as_ref().is_some_and(is_for_want_of_room);
            }
        }
        if !is_better {
            break;
        }
    }
    for (index, planned) in files.iter().enumerate().filter(|(_, planned)| is_yielding(planned, files)) {
        let is_kept = |taker: &Planned| {
            let at = files.iter().position(|other| other.file.slot == taker.file.slot);
            aside.contains(&taker.file.slot) || at.is_some_and(|index| errors[index].is_some())
        };
        errors[index] = if takers_of(planned, files).any(is_kept) {
            Some(io::Error::other("another file was renamed over it, and could not be brought back"))
        } else {
            applier.unlink_again(&planned.file).err()
        };
    }
    errors
}

/// Sees to it that nothing is lost of what failed, and notes where records were. Returns what is to
/// be told of each file.
fn keep_failed(
    applier: &mut Applier<'_, impl Nvm, impl Disk>,
    plan: &Plan,
    errors: Vec<Option<io::Error>>,
    aside: &mut HashSet<Slot>,
) -> Vec<FileReport> {
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
    rows
}

/// Frees everything in the log but what files that are kept aside need.
fn free_segments(source: &Source<'_, impl Nvm>, plan: &mut Plan, aside: HashSet<Slot>) -> Recovered {
    let mut pinned: Vec<Segment> = aside
        .iter()
        .filter_map(|slot| plan.live.slots.get(slot))
        .flat_map(|log| log.segments.clone())
        .collect();
    pinned.sort_unstable();
    pinned.dedup();
    let segment_count = source.layout().segment_count;
    let pinned_frames: Vec<u32> =
        pinned.iter().filter_map(|place| place.number().checked_sub(segment_count)).collect();
    pinned.retain(|&place| place.number() < segment_count);
    // Whose records were there is noted in the slots by now.
    for &Broken { segment, lost_generation } in &plan.broken {
        let (nvm, layout) = (source.nvm, source.layout());
        if pinned.binary_search(&segment).is_err() {
            let generation = Generation::drawn_at(plan.counter_start);
            set_segment_generation(nvm, layout, segment, generation);
            plan.counter_start = plan.counter_start.next();
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
    let mut set_aside_slots: Vec<Slot> = aside.into_iter().collect();
    set_aside_slots.sort_unstable();
    Recovered { counter_start: plan.counter_start, pinned_segments: pinned, pinned_frames, set_aside_slots }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        let mut closed = Seq::new(1);
        for _ in 0..3 {
            let pool = reopened(&path);
            let layout = pool.superblock.layout;
            for segment in layout.segments() {
                let late = closed.after(segment.into());
                set_segment_generation(&pool.mapping, &layout, segment, Generation::drawn_at(late));
                assert!(late < pool.counter_start);
            }
            pool.close_clean();
            closed = pool.counter_start;
        }
    }
}
