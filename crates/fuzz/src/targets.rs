//! The three things that are fed: opening a superblock, scanning a segment, recovering a pool.

use std::fs::File;
use std::path::PathBuf;

use holdfast_log::{Stop, record_bytes, scan_segment, sum_segment};
use holdfast_media::Nvm;
use holdfast_pool::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SLOT_BYTES, Segment, Slot, Zone};
use holdfast_recovery::{FileOutcome, PoolError, RecoverOptions, Report, recover};

use crate::choices::Choices;
use crate::image::{self, UUID};
use crate::oracle::Named;
use crate::yard::Yard;

/// What is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// `holdfast_pool::open` on hostile superblocks.
    Open,
    /// `holdfast_log::scan_segment` on hostile segments.
    Scan,
    /// Recovery of hostile pools in a directory full of decoys.
    Recover,
}

impl Target {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Open, Self::Scan, Self::Recover];

    /// Its name, as on the command line and in `corpus/`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Scan => "scan",
            Self::Recover => "recover",
        }
    }
}

/// Where one target is fed, again and again.
pub struct Bench {
    target: Target,
    /// For recovery: the files, and the directory that holds the pool.
    place: Option<(Yard, tempfile::TempDir)>,
}

/// What came of an input: kinds of outcomes.
pub type Outcomes = Vec<String>;

impl Bench {
    /// Prepares a target.
    ///
    /// # Errors
    /// When the directories that recovery needs cannot be made.
    pub fn new(target: Target) -> anyhow::Result<Self> {
        let place = match target {
            Target::Recover => {
                let memory = tempfile::Builder::new().prefix("holdfast-fuzz-").tempdir_in("/dev/shm")?;
                Some((Yard::new()?, memory))
            }
            Target::Open | Target::Scan => None,
        };
        Ok(Self { target, place })
    }

    /// Feeds one input.
    ///
    /// # Errors
    /// What went wrong. A panic does too; it is not caught.
    pub fn feed(&mut self, input: &[u8]) -> anyhow::Result<Outcomes> {
        let mut choices = Choices::new(input);
        match (self.target, &mut self.place) {
            (Target::Open, _) => open(&mut choices),
            (Target::Scan, _) => scan(&mut choices),
            (Target::Recover, Some((yard, memory))) => {
                let pool = memory.path().join("pool");
                let outcomes = recover_in(&mut choices, yard, &pool);
                std::fs::remove_file(&pool)?;
                let _ = std::fs::remove_file(pool.with_extension("spill"));
                outcomes
            }
            (Target::Recover, None) => unreachable!("made by `new`"),
        }
    }
}

fn open(choices: &mut Choices<'_>) -> anyhow::Result<Outcomes> {
    let ram = image::superblock(choices);
    let opened = holdfast_pool::open(&ram);
    anyhow::ensure!(ram.take_stores() == 0, "opening stored something");
    Ok(vec![match opened {
        Ok(superblock) => {
            let layout = superblock.layout;
            let slots_end = layout.slot_offset(Slot::new(layout.slot_count - 1)) + SLOT_BYTES;
            let segments_end = layout.segment_offset(Segment::new(layout.segment_count - 1)) + SEGMENT_BYTES;
            anyhow::ensure!(
                slots_end <= layout.offset(Zone::Segments) && segments_end <= ram.len(),
                "an accepted geometry does not fit: {layout:?} in {} bytes",
                ram.len()
            );
            "accepted".to_owned()
        }
        Err(error) => kind(&error.to_string()),
    }])
}

fn scan(choices: &mut Choices<'_>) -> anyhow::Result<Outcomes> {
    let (ram, layout) = image::segment(choices);
    let (mut next, mut count, mut wrong) = (SEGMENT_HEADER_BYTES, 0, false);
    let mut buffer = Vec::new();
    let found = scan_segment(&ram, &layout, &UUID, Segment::new(0), &mut buffer, |record| {
        let payload_bytes = u64::from(record.header.payload_bytes);
        wrong |= u64::from(record.at) != next || record.payload.len() as u64 != payload_bytes;
        next += record_bytes(payload_bytes);
        count += 1;
    });
    let mut headers = 0;
    let summed = sum_segment(&ram, &layout, &UUID, Segment::new(0), |_| headers += 1);
    anyhow::ensure!(
        (summed.generation, summed.end, summed.stop, headers)
            == (found.generation, found.end, found.stop, count),
        "summed where it stands it is {summed:?} with {headers} records, copied {found:?} with {count}"
    );
    anyhow::ensure!(ram.take_stores() == 0, "the scan stored something");
    anyhow::ensure!(!wrong, "records are not one behind the other");
    anyhow::ensure!(
        u64::from(found.end) == next && next <= SEGMENT_BYTES,
        "the scan ended elsewhere: {found:?}"
    );
    let stop = match found.stop {
        Stop::Full => "full",
        Stop::Tail => "tail",
        Stop::Damaged { valid_at } => {
            anyhow::ensure!(u64::from(valid_at) > next, "damage before the end: {found:?}");
            "damaged"
        }
    };
    Ok(vec![format!(
        "{stop}, {} records",
        ["no", "some", "many"][usize::from(count > 0) + usize::from(count > 5)]
    )])
}

fn recover_in(choices: &mut Choices<'_>, yard: &mut Yard, pool: &PathBuf) -> anyhow::Result<Outcomes> {
    let (ram, layout) = image::pool(choices, yard);
    let path = pool.with_extension("spill");
    let spill = image::spill(choices, &ram, &layout, &path);
    let named = Named::read(&ram, &layout, spill.as_deref());
    if let Some(bytes) = &spill {
        std::fs::write(&path, bytes)?;
    }
    ram.store(&File::create(pool)?)?;
    let before = yard.look()?;
    let mut outcomes = Vec::new();
    if choices.once_in(4) {
        let bytes = std::fs::read(pool)?;
        let options = RecoverOptions { dry_run: true, ..RecoverOptions::default() };
        let looked = recover(pool, &options, &mut |_, _, _| ());
        outcomes.push(format!("dry run: {}", if looked.is_ok() { "report" } else { "refused" }));
        anyhow::ensure!(std::fs::read(pool)? == bytes, "a dry run changed the pool");
        anyhow::ensure!(yard.look()? == before, "a dry run changed files");
    }
    let first = recover(pool, &RecoverOptions::default(), &mut |_, _, _| ());
    outcomes.extend(summary(&first));
    let after = yard.look()?;
    if let Some(trespass) = named.trespass(&before, &after) {
        anyhow::bail!("{trespass}\n{first:#?}");
    }
    if let Some(bytes) = &spill {
        anyhow::ensure!(std::fs::read(&path)? == *bytes, "recovery wrote to the spill file");
    }
    // Invariant 8: what was recovered stays, what was set aside stays set aside.
    let second = recover(pool, &RecoverOptions::default(), &mut |_, _, _| ());
    let mut again = yard.look()?;
    let mut after = after;
    // What was put off is tried again: the same bytes, written anew, under whatever name.
    let put_off =
        second.iter().flat_map(|report| &report.files).filter(|file| file.outcome == FileOutcome::PutOff);
    let tried: Vec<u64> = put_off.filter_map(|file| Some(after.get(file.path.as_bytes())?.inode)).collect();
    for seen in after.values_mut().chain(again.values_mut()).filter(|seen| tried.contains(&seen.inode)) {
        seen.modified = (0, 0);
    }
    anyhow::ensure!(
        first.is_ok() == second.is_ok(),
        "the second recovery ended otherwise: {first:#?}\n{second:#?}"
    );
    anyhow::ensure!(again == after, "the second recovery changed files again: {first:#?}\n{second:#?}");
    anyhow::ensure!(std::fs::metadata(pool)?.len() == ram.len(), "the pool's size changed");
    if after != before {
        yard.restore()?;
    }
    Ok(outcomes)
}

fn summary(result: &Result<Report, PoolError>) -> Outcomes {
    let report = match result {
        Ok(report) => report,
        Err(error) => return vec![kind(&error.to_string())],
    };
    let mut outcomes: Outcomes =
        report.files.iter().map(|file| format!("{}: {}", file.outcome, kind(&file.reason))).collect();
    outcomes.extend(report.damaged.iter().map(|text| format!("damaged: {}", kind(text))));
    if report.clean {
        outcomes.push("clean".to_owned());
    }
    outcomes.sort();
    outcomes.dedup();
    outcomes
}

/// A message without what differs from input to input.
fn kind(message: &str) -> String {
    let words = message.split_whitespace().filter(|word| !word.contains(['/', '#']));
    let plain = words.map(|word| word.trim_matches(|c: char| c.is_ascii_digit() || c == ',' || c == '('));
    let text: Vec<&str> = plain.filter(|word| !word.is_empty()).take(12).collect();
    text.join(" ").chars().filter(|c| c.is_ascii() && !c.is_ascii_control()).collect()
}
