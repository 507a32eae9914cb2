//! From a snapshot to verdicts: images of NVM and disk are drawn, recovery runs on them, and the
//! oracle looks at what it made of the files.

use std::fmt;

use holdfast_pool::Superblock;
use holdfast_recovery::{FileOutcome, FileReport, RecoverOptions, Recovered, Report, recover_on};
use holdfast_testkit::Random;

use crate::disk::{DiskState, Left, SimDisk};
use crate::known::{Digest, Known};
use crate::machine::{Behind, Machine, Outcome, Service};
use crate::model::{Model, Tree};
use crate::nvm::{Keep, NvmState, SimNvm};
use crate::op::{Op, Step};
use crate::recorder::{self, Snapshot};
use crate::stage;

/// Seconds between a power cut and the next start.
const LATER_S: u64 = 1000;
/// In one of so many images only processes die.
const RUNS_ONE_IN: usize = 5;
/// Pieces up to which all combinations are drawn.
const ALL_COMBINATIONS_MAX: usize = 3;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Histories played.
    pub histories: u64,
    /// Of them, those of the exhaustive sets.
    pub histories_of_sets: u64,
    /// Moments at which the power failed.
    pub crash_points: u64,
    /// Images of NVM and disk that were recovered and checked.
    pub images: u64,
    /// Of them, those that a crash inside recovery left.
    pub images_inside_recovery: u64,
    /// Of the images, those that had come up before, and were judged by what recovery made of them
    /// then.
    pub images_known: u64,
    /// Runs of recovery.
    pub recoveries: u64,
    /// Of the images, those in which somebody changed a file before recovery.
    pub tampered: u64,
    /// Of the images, those in which only processes died.
    pub running: u64,
    /// Of the images, those that went on to serve programs, and crashed again.
    pub afterlives: u64,
    /// Writes of histories that ended without a system call (state Behind).
    pub writes_behind: u64,
}

impl Counts {
    /// Adds what another thread counted.
    pub fn add(&mut self, other: &Self) {
        self.histories += other.histories;
        self.histories_of_sets += other.histories_of_sets;
        self.crash_points += other.crash_points;
        self.images += other.images;
        self.images_inside_recovery += other.images_inside_recovery;
        self.images_known += other.images_known;
        self.recoveries += other.recoveries;
        self.tampered += other.tampered;
        self.running += other.running;
        self.afterlives += other.afterlives;
        self.writes_behind += other.writes_behind;
    }
}

/// What went wrong.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which promise is broken, and how.
    pub what: String,
    /// How it came about.
    pub trail: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)
    }
}

/// How thoroughly images are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Images drawn at each crash point, when not all combinations are.
    pub images: usize,
    /// One image in so many is crashed again inside recovery.
    pub inside_one_in: usize,
    /// One image in so many serves programs afterwards.
    pub afterlife_one_in: usize,
    /// In one image in so many somebody changes a file before recovery.
    pub tamper_one_in: usize,
}

/// Checks images of one pool.
pub struct Checker<'a> {
    /// The pool's superblock.
    pub superblock: &'a Superblock,
    /// What recovery makes of images of this pool; `None`: every one is recovered.
    pub known: Option<&'a mut Known>,
    /// How thoroughly.
    pub effort: Effort,
    /// What is known is recovered all the same, and compared.
    pub doubts: bool,
    /// Whether files are in state Behind when the pool is served again.
    pub behind: Option<Behind>,
    /// Whether files are logged from their first sync on then.
    pub on_sync: bool,
    /// Counted so far.
    pub counts: Counts,
}

struct Image {
    nvm: NvmState,
    disk: DiskState,
    /// A name that somebody changed, and what stands there.
    tampered: Option<(Vec<u8>, Vec<u8>)>,
    /// Only processes died.
    runs: bool,
}

impl Checker<'_> {
    /// How many images a snapshot has.
    pub fn images_of(&self, snapshot: &Snapshot) -> usize {
        let pending = snapshot.nvm.pending();
        if pending == 0 {
            self.effort.images.min(3)
        } else if pending <= ALL_COMBINATIONS_MAX {
            self.effort.images.max(1 << pending)
        } else {
            self.effort.images
        }
    }

    /// Draws one image of a snapshot and checks it. Gives what recovery left, unless that was known
    /// before and not `needed`.
    pub fn check(
        &mut self,
        snapshot: &Snapshot,
        image: usize,
        seed: &[u64],
        needed: bool,
    ) -> Result<Option<Outcome>, Violation> {
        let mut random = Random::of(&[seed, &[image as u64]].concat());
        let (keep, left) = choose(snapshot.nvm.pending(), image, &mut random);
        let mut nvm = snapshot.nvm.crash(keep, &mut random);
        let mut disk = snapshot.disk.crash(left, LATER_S, &mut random);
        let running = if random.one_in(RUNS_ONE_IN) { snapshot.disk.all_die() } else { None };
        let runs = running.is_some();
        if let Some(running) = running {
            self.counts.running += 1;
            (nvm, disk) = (snapshot.nvm.crash(Keep::All, &mut random), running);
        }
        let tampered = if !runs && random.one_in(self.effort.tamper_one_in) {
            self.counts.tampered += 1;
            disk.tamper(&mut random)
        } else {
            None
        };
        let depth = if random.one_in(self.effort.inside_one_in) { 2 } else { 0 };
        let with_afterlife = tampered.is_none() && random.one_in(self.effort.afterlife_one_in);
        let image = Image { nvm, disk, tampered, runs };
        if !needed && self.knows(&image, &snapshot.model, None) {
            self.counts.images += 1;
            self.counts.images_known += 1;
            return Ok(None);
        }
        let mut trail = vec![
            format!("crash before or after: {:?}", snapshot.kind),
            format!("NVM keeps {keep:?}: {}", snapshot.nvm.difference(&image.nvm)),
            format!("disk keeps {left:?}: {}", SimDisk::new(snapshot.disk.clone()).describe()),
        ];
        if runs {
            trail.push("no: only processes die, NVM and page cache keep everything".to_owned());
        }
        if let Some((name, _)) = &image.tampered {
            trail.push(format!("somebody changes {}", String::from_utf8_lossy(name)));
        }
        let result = self.recover(&image, &snapshot.model, depth, &mut random, &mut trail)?;
        if with_afterlife && result.recovered.set_aside_slots.is_empty() {
            self.afterlife(&result, &mut random, &mut trail)?;
        }
        Ok(Some(result))
    }

    /// Whether it is known what recovery makes of an image, and that is right: of the first one,
    /// which a second follows; or of the second, which must leave the files that the first has
    /// left.
    fn knows(&mut self, image: &Image, model: &Model, first: Option<&Tree>) -> bool {
        // What the kernel has beside the disk is in no digest.
        let Some(known) = self.known.as_ref().filter(|_| !image.runs) else { return false };
        let Some(fate) = known.get(image.digest()).cloned() else { return false };
        if self.doubts {
            let (_, report, found) = self.run(image, &[]).expect("a recovery like the one before");
            assert!(report.damaged.is_empty() && found == *fate.found, "two recoveries of one image differ");
            assert_eq!(report.files.iter().any(is_wrongly_kept), fate.keeps_back);
        }
        let as_before = match first {
            None => fate.twice,
            Some(found) => *fate.found == *found,
        };
        as_before && image.is_right(model, &fate.found, fate.keeps_back).is_ok()
    }

    fn run(&mut self, image: &Image, trail: &[String]) -> Result<(Outcome, Report, Tree), Violation> {
        let (nvm, disk) = (SimNvm::new(image.nvm.clone()), SimDisk::new(image.disk.clone()));
        self.counts.recoveries += 1;
        recorder::attach(&nvm, &disk);
        stage::begin();
        let done = recover_on(&nvm, self.superblock, &disk, &RecoverOptions::default());
        let (recovered, report) =
            done.map_err(|error| violation(trail, format!("recovery refuses the pool: {error}")))?;
        let (nvm, disk) = (nvm.state().clone(), disk.state().clone());
        // What is in the page cache only does not count.
        let left = disk.crash(Left::Synced, 0, &mut Random::new(0)).tree();
        Ok((Outcome { recovered, nvm, disk }, report, left))
    }

    fn recover(
        &mut self,
        image: &Image,
        model: &Model,
        depth: usize,
        random: &mut Random,
        trail: &mut Vec<String>,
    ) -> Result<Outcome, Violation> {
        self.counts.images += 1;
        if depth > 0 {
            // The recorder looks at what the run below works on.
            recorder::record_next();
        }
        let outcome = self.run(image, trail);
        let inside = recorder::recorded();
        let (result, report, found) = outcome?;
        judge(image, model, &report, &found, trail)?;
        // Recovering again, after a power cut right behind the first time, gives the same files.
        let again = Image {
            nvm: result.nvm.crash(Keep::None, random),
            disk: result.disk.crash(Left::Synced, 1, random),
            tampered: image.tampered.clone(),
            runs: false,
        };
        if !self.knows(&again, model, Some(&found)) {
            trail.push("recovery runs a second time".to_owned());
            let (_, report, second) = self.run(&again, trail)?;
            judge(&again, model, &report, &second, trail)?;
            if second != found {
                return Err(violation(trail, "recovering twice gives other files".to_owned()));
            }
            trail.pop();
            self.note(&again, &report, &found, false);
        }
        self.note(image, &report, &found, true);
        for snapshot in inside {
            if !random.one_in(3) {
                continue;
            }
            // Its own numbers: whether it is known changes nothing for the next.
            let random = &mut Random::new(random.draw());
            let length = trail.len();
            let (keep, left) = choose(snapshot.nvm.pending(), random.below(8), random);
            let nvm = snapshot.nvm.crash(keep, random);
            trail.push(format!(
                "crash inside recovery, before or after {:?}; NVM keeps {keep:?} ({}), disk {left:?}",
                snapshot.kind,
                snapshot.nvm.difference(&nvm)
            ));
            let mut disk = snapshot.disk.crash(left, LATER_S, random);
            let mut tampered = image.tampered.clone();
            if tampered.is_none() && random.one_in(self.effort.tamper_one_in) {
                tampered = disk.tamper(random);
                trail.extend(
                    tampered
                        .iter()
                        .map(|(name, _)| format!("somebody changes {}", String::from_utf8_lossy(name))),
                );
            }
            self.counts.images_inside_recovery += 1;
            let image = Image { nvm, disk, tampered, runs: false };
            if self.knows(&image, model, None) {
                self.counts.images += 1;
                self.counts.images_known += 1;
            } else {
                self.recover(&image, model, depth - 1, random, trail)?;
            }
            trail.truncate(length);
        }
        Ok(result)
    }

    fn note(&mut self, image: &Image, report: &Report, found: &Tree, twice: bool) {
        if let Some(known) = self.known.as_mut().filter(|_| !image.runs) {
            known.note(image.digest(), found, report.files.iter().any(is_wrongly_kept), twice);
        }
    }

    /// Serves programs from a recovered pool, crashes, and recovers again.
    fn afterlife(
        &mut self,
        result: &Outcome,
        random: &mut Random,
        trail: &mut Vec<String>,
    ) -> Result<(), Violation> {
        self.counts.afterlives += 1;
        let machine = Machine::start(
            result.nvm.crash(Keep::All, random),
            result.disk.crash(Left::Everything, 1, random),
            *self.superblock,
            Service::of(&result.recovered, self.behind, self.on_sync),
        );
        let name = b'a' + random.below(2) as u8;
        let steps = [
            Op::Create(name),
            Op::Write(name, 16 * random.below(3) as u32, 40),
            Op::Append(name, 10 + random.below(300) as u32),
        ];
        for op in &steps[..1 + random.below(steps.len())] {
            machine.step(&Step::alone(0, *op));
            trail.push(format!("afterwards: {op}"));
        }
        if let Some(wrong) = recorder::complaint() {
            return Err(violation(trail, wrong));
        }
        let (nvm, disk) = machine.state();
        let model = recorder::model(|model| model.clone());
        let image = Image {
            nvm: nvm.crash(Keep::None, random),
            disk: disk.crash(Left::Any, LATER_S, random),
            tampered: None,
            runs: false,
        };
        trail.push("and another crash".to_owned());
        self.recover(&image, &model, 0, random, trail).map(|_| ())
    }
}

impl Service {
    /// Serves what was recovered.
    pub fn of(recovered: &Recovered, behind: Option<Behind>, on_sync: bool) -> Self {
        Self {
            behind,
            on_sync,
            counter_start: recovered.counter_start,
            pinned_segments: recovered.pinned_segments.clone(),
            pinned_frames: recovered.pinned_frames.clone(),
            set_aside_slots: recovered.set_aside_slots.clone(),
        }
    }
}

/// Whether a person is asked to decide without need. What was renamed over while it got its first
/// records is kept too: nothing is lost or changed by that.
fn is_wrongly_kept(row: &FileReport) -> bool {
    matches!(row.outcome, FileOutcome::SetAside | FileOutcome::PutOff)
        && !row.reason.starts_with("another file stands")
        && !row.reason.starts_with("an earlier recovery")
}

impl Image {
    fn digest(&self) -> Digest {
        let mut digest = self.disk.digest();
        self.nvm.digest().halves().iter().for_each(|&half| digest.add(half));
        digest
    }

    /// Whether recovery may leave these files of it.
    fn is_right(&self, model: &Model, found: &Tree, keeps_back: bool) -> Result<(), String> {
        let tampered = self.tampered.as_ref().map(|(name, _)| model.tied_to(name, &self.disk.tree()));
        let exempt = tampered.unwrap_or_default();
        if let Some((name, bytes)) = &self.tampered
            && found.get(name) != Some(bytes)
        {
            return Err(format!(
                "{}: recovery changed what somebody else wrote",
                String::from_utf8_lossy(name)
            ));
        }
        model.check(found, &exempt)?;
        if exempt.is_empty() && !model.has_conflict() && keeps_back {
            return Err("a file is kept back without need".to_owned());
        }
        Ok(())
    }
}

fn judge(
    image: &Image,
    model: &Model,
    report: &Report,
    found: &Tree,
    trail: &[String],
) -> Result<(), Violation> {
    if !report.damaged.is_empty() {
        return Err(violation(trail, format!("recovery calls the pool damaged: {:?}", report.damaged)));
    }
    image.is_right(model, found, report.files.iter().any(is_wrongly_kept)).map_err(|wrong| {
        let rows: Vec<String> = report
            .files
            .iter()
            .map(|row| format!("{}: {} ({} records; {})", row.path, row.outcome, row.records, row.reason))
            .collect();
        violation(trail, format!("{wrong}; recovery says: {rows:?}"))
    })
}

fn violation(trail: &[String], what: String) -> Violation {
    Violation { what, trail: trail.to_vec() }
}

/// The first images of a crash point are the extremes, then all combinations of a few pieces, then
/// random ones.
fn choose(pending: usize, image: usize, random: &mut Random) -> (Keep, Left) {
    const KEEPS: [Keep; 5] = [Keep::None, Keep::All, Keep::AllButOne, Keep::One, Keep::Any];
    const LEFTS: [Left; 6] = [Left::Synced, Left::Everything, Left::Names, Left::Bytes, Left::Any, Left::Any];
    let any = |random: &mut Random| LEFTS[random.below(LEFTS.len())];
    if pending == 0 {
        let left = match image {
            0 => Left::Synced,
            1 => Left::Everything,
            _ => any(random),
        };
        return (Keep::None, left);
    }
    if pending <= ALL_COMBINATIONS_MAX && image < 1 << pending {
        return (Keep::Mask(image as u64), any(random));
    }
    match image {
        0 => (Keep::None, Left::Synced),
        1 => (Keep::All, any(random)),
        2 => (Keep::AllButOne, any(random)),
        _ => (KEEPS[random.below(KEEPS.len())], any(random)),
    }
}
