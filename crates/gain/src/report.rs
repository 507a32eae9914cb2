//! What a comparison found, as it is written to JSON, and what it comes to.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::machine::{FileSystem, Machine};
use crate::media::Pool;
use crate::samples::{Change, Spread, change};
use crate::side::Side;
use crate::units;
use crate::workload::Workload;

/// Version of the JSON; a report of another one is refused.
pub const FORMAT: u32 = 1;

/// A comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of these fields.
    pub format: u32,
    /// Version of Holdfast.
    pub holdfast: String,
    /// When it began.
    pub date: String,
    /// The command line.
    pub command: String,
    /// Where it ran.
    pub machine: Machine,
    /// The user's directory.
    pub directory: String,
    /// What that is on.
    pub file_system: FileSystem,
    /// The pool.
    pub pool: Pool,
    /// Times each side did each workload.
    pub rounds: u32,
    /// For so long.
    pub time_ms: u64,
    /// Sides that could not be had, and why.
    pub missing: BTreeMap<String, String>,
    /// What else has to be known of it.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What each workload took.
    pub workloads: Vec<Row>,
}

/// A workload on all sides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// For people.
    pub title: String,
    /// Who does such a thing.
    pub stands_for: String,
    /// What is counted a second.
    pub unit: String,
    /// What ran.
    pub program: String,
    /// The media's limit.
    pub floor: Vec<f64>,
    /// By name.
    pub sides: BTreeMap<String, Samples>,
}

/// A workload on one side.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Samples {
    /// Operations a second, round by round.
    pub per_s: Vec<f64>,
    /// Half of the operations took no longer, round by round.
    pub p50_ns: Vec<u64>,
    /// All but one of a hundred took no longer.
    pub p99_ns: Vec<u64>,
    /// Syncs that Holdfast answered.
    pub syncs_absorbed: u64,
    /// Syncs that it left to the kernel.
    pub syncs_by_kernel: u64,
    /// Why it left files to the kernel.
    pub reasons: BTreeSet<String>,
}

impl Row {
    /// What a workload is, with nothing measured yet.
    pub fn of(workload: Workload, program: String) -> Self {
        Self {
            name: workload.name().to_owned(),
            title: workload.title().to_owned(),
            stands_for: workload.stands_for().to_owned(),
            unit: workload.unit().to_owned(),
            program,
            floor: Vec::new(),
            sides: BTreeMap::new(),
        }
    }

    /// What was measured on a side.
    pub fn samples(&self, side: Side) -> Option<&Samples> {
        self.sides.get(side.name())
    }

    /// How often the native median goes into a side's.
    pub fn against_native(&self, side: Side) -> Option<f64> {
        let median = |side| Some(Spread::of(&self.samples(side)?.per_s)?.median);
        Some(median(side)? / median(Side::Native)?)
    }

    /// Whether Holdfast differs from native by more than the samples do among themselves.
    pub fn change(&self) -> Change {
        let per_s = |side| self.samples(side).map_or(&[][..], |samples| &samples.per_s);
        change(per_s(Side::Native), per_s(Side::Holdfast))
    }
}

impl Samples {
    /// Median of the times that half, or all but one of a hundred, of the operations took.
    pub fn times_ns(&self) -> Option<(u64, u64)> {
        let median = |times: &[u64]| {
            let times: Vec<f64> = times.iter().map(|time| *time as f64).collect();
            Some(Spread::of(&times)?.median as u64)
        };
        Some((median(&self.p50_ns)?, median(&self.p99_ns)?))
    }

    /// What Holdfast answered, and why it did not where that is most; nothing where nothing was
    /// synced.
    pub fn absorbed_in_words(&self) -> Vec<String> {
        let reasons = self.reasons.iter().filter(|_| self.syncs_by_kernel > self.syncs_absorbed);
        let silent = (self.syncs_by_kernel > 0 && self.reasons.is_empty()).then(|| {
            let syncs = units::counted(self.syncs_absorbed + self.syncs_by_kernel, "sync");
            format!("left to the kernel: {} of {syncs}", units::count(self.syncs_by_kernel))
        });
        self.share_in_words().into_iter().chain(silent).chain(reasons.cloned()).collect()
    }

    fn share_in_words(&self) -> Option<String> {
        let syncs = self.syncs_absorbed + self.syncs_by_kernel;
        if syncs == 0 {
            return None;
        }
        // Never rounded up: 100 % is all of them.
        let thousandths = self.syncs_absorbed * 1000 / syncs;
        Some(match self.syncs_by_kernel {
            0 => "100 % of syncs absorbed".to_owned(),
            _ => format!("{}.{} % of syncs absorbed", thousandths / 10, thousandths % 10),
        })
    }
}

impl Report {
    /// What it comes to, a sentence a line.
    pub fn verdict(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.nothing_absorbed().into_iter().collect();
        let told = |wanted: Change, is_synced: bool| {
            let of_kind = |row: &&Row| (row.name != Workload::Plain.name()) == is_synced;
            let rows = self.workloads.iter().filter(of_kind).filter(|row| row.change() == wanted);
            let told = rows.filter_map(|row| {
                Some(format!("{} {}", row.name, units::ratio(row.against_native(Side::Holdfast)?)))
            });
            told.collect::<Vec<_>>().join(", ")
        };
        for (change, is_synced, what) in [
            (Change::Faster, true, "Faster under Holdfast"),
            (Change::Slower, true, "SLOWER under Holdfast"),
            (Change::Noise, true, "No difference beyond the spread"),
            (Change::TooFew, true, "Too few rounds to say whether it is more than noise"),
            (Change::Faster, false, "Without a sync, faster all the same"),
            (Change::Noise, false, "Without a sync, no difference beyond the spread"),
            (Change::TooFew, false, "Without a sync, too few rounds to say"),
            (Change::Slower, false, "The price where nobody syncs"),
        ] {
            match told(change, is_synced) {
                rows if rows.is_empty() => {}
                rows => lines.push(format!("{what}: {rows}.")),
            }
        }
        lines.push(if self.pool.is_emulated {
            "The pool was memory that stands for NVM. Real NVM is slower, and survives a power cut."
                .to_owned()
        } else {
            "The pool was NVM: what was synced under Holdfast survives a power cut.".to_owned()
        });
        lines
    }

    /// Says so where Holdfast had no part in anything that was synced: its rates are not its own.
    fn nothing_absorbed(&self) -> Option<String> {
        let synced = self.workloads.iter().filter(|row| row.name != Workload::Plain.name());
        let held: Vec<&Samples> = synced.filter_map(|row| row.samples(Side::Holdfast)).collect();
        if held.is_empty() || held.iter().any(|samples| samples.syncs_absorbed > 0) {
            return None;
        }
        let reason = held.iter().find_map(|samples| samples.reasons.first());
        let reason = reason.map_or("no reason is recorded", String::as_str);
        Some(format!("NOTHING was absorbed: {}.", reason.trim_end_matches('.')))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A report with these rates for its workloads, native and under Holdfast.
    pub fn made(rates: &[(Workload, &[f64], &[f64])]) -> Report {
        let workloads = rates.iter().map(|(workload, native, held)| {
            let samples = |per_s: &[f64]| Samples {
                per_s: per_s.to_vec(),
                p50_ns: per_s.iter().map(|rate| (1e9 / rate) as u64).collect(),
                p99_ns: per_s.iter().map(|rate| (2e9 / rate) as u64).collect(),
                ..Samples::default()
            };
            let mut row = Row::of(*workload, "the worker".into());
            row.floor = vec![2e6; 3];
            row.sides.insert(Side::Native.name().into(), samples(native));
            let absorbed = Samples { syncs_absorbed: 999, syncs_by_kernel: 1, ..samples(held) };
            row.sides.insert(Side::Holdfast.name().into(), absorbed);
            row
        });
        Report {
            format: FORMAT,
            holdfast: "0.1.0".into(),
            date: "2026-01-02T03:04:05Z".into(),
            command: "holdfast bench".into(),
            machine: Machine::here(),
            directory: "/srv/<a> & b".into(),
            file_system: FileSystem { kind: "ext4".into(), device: "/dev/vda".into(), options: "rw".into() },
            pool: Pool { is_emulated: true, ..Pool::default() },
            rounds: 5,
            time_ms: 500,
            missing: BTreeMap::from([("eatmydata".into(), "not installed".into())]),
            notes: Vec::new(),
            workloads: workloads.collect(),
        }
    }

    #[test]
    fn the_verdict_tells_gains_from_noise() {
        let (slow, fast) = (&[10.0, 11.0, 12.0, 13.0][..], &[100.0, 110.0, 120.0, 130.0][..]);
        let report = made(&[
            (Workload::Random, slow, fast),
            (Workload::Append, fast, slow),
            (Workload::Replace, slow, slow),
            (Workload::Plain, fast, fast),
        ]);
        let lines = report.verdict();
        assert_eq!(lines[0], "Faster under Holdfast: random 10.0 x.");
        assert_eq!(lines[1], "SLOWER under Holdfast: append 0.10 x.");
        assert_eq!(lines[2], "No difference beyond the spread: replace 1.00 x.");
        assert_eq!(lines[3], "Without a sync, no difference beyond the spread: plain 1.00 x.");
        assert!(lines[4].contains("memory"), "{lines:?}");
        let few = made(&[(Workload::Random, &slow[..3], fast)]);
        assert!(few.verdict()[0].starts_with("Too few rounds"), "{:?}", few.verdict());
    }

    #[test]
    fn where_nothing_was_absorbed_that_comes_first() {
        let rates = &[10.0, 11.0, 12.0, 13.0][..];
        let mut report = made(&[(Workload::Random, rates, rates), (Workload::Append, rates, rates)]);
        let first = |report: &Report| report.verdict().remove(0);
        let unabsorbed = |row: &mut Row| {
            let held = row.sides.get_mut(Side::Holdfast.name()).expect("it has been measured");
            held.syncs_absorbed = 0;
            held.reasons.insert(format!("left to the kernel: {} is shut", row.name));
        };
        unabsorbed(&mut report.workloads[0]);
        assert!(first(&report).starts_with("No difference"), "{:?}", report.verdict());
        unabsorbed(&mut report.workloads[1]);
        assert_eq!(first(&report), "NOTHING was absorbed: left to the kernel: random is shut.");
        for row in &mut report.workloads {
            row.sides.get_mut(Side::Holdfast.name()).expect("it has been measured").reasons.clear();
        }
        assert_eq!(first(&report), "NOTHING was absorbed: no reason is recorded.");
    }

    #[test]
    fn what_is_left_to_the_kernel_is_said_without_a_reason_too() {
        let mut samples = Samples { syncs_by_kernel: 2000, ..Samples::default() };
        let told = ["0.0 % of syncs absorbed", "left to the kernel: 2,000 of 2,000 syncs"];
        assert_eq!(samples.absorbed_in_words(), told);
        samples.reasons.insert("left to the kernel: why".into());
        assert_eq!(samples.absorbed_in_words(), ["0.0 % of syncs absorbed", "left to the kernel: why"]);
        assert_eq!(Samples { syncs_absorbed: 5, ..Samples::default() }.absorbed_in_words().len(), 1);
    }

    #[test]
    fn a_share_is_never_rounded_up() {
        let share = |syncs_absorbed, syncs_by_kernel| {
            Samples { syncs_absorbed, syncs_by_kernel, ..Samples::default() }.share_in_words()
        };
        assert_eq!(share(0, 0), None);
        assert_eq!(share(99_999, 1).as_deref(), Some("99.9 % of syncs absorbed"));
        assert_eq!(share(5, 0).as_deref(), Some("100 % of syncs absorbed"));
        assert_eq!(share(0, 5).as_deref(), Some("0.0 % of syncs absorbed"));
    }

    #[test]
    fn a_report_survives_its_json() {
        let report = made(&[(Workload::Random, &[1.0], &[2.0])]);
        let text = serde_json::to_string(&report).expect("JSON");
        let again: Report = serde_json::from_str(&text).expect("a report");
        assert_eq!(again.workloads[0].samples(Side::Holdfast).expect("there").per_s, [2.0]);
        assert_eq!(again.verdict(), report.verdict());
    }
}
