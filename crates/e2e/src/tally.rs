//! Counts what was done to the programs, and says it in one line that begins with `tally:`, which
//! the test harness does not swallow. `HOLDFAST_E2E_TALLY` names a file to which the lines are
//! added as well.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

use crate::disk::Disk;
use crate::job::Cut;
use holdfast_testkit::Random;

/// Counts by name.
pub(crate) struct Tally {
    counts: BTreeMap<String, u64>,
    started: Instant,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self { counts: BTreeMap::new(), started: Instant::now() }
    }

    /// Something happened `count` times.
    pub(crate) fn add(&mut self, what: &str, count: u64) {
        *self.counts.entry(what.to_owned()).or_default() += count;
    }

    /// Somebody was killed.
    pub(crate) fn kill(&mut self, cut: Cut) {
        self.add("kills", 1);
        self.add(
            match cut {
                Cut::Program => "of the program",
                Cut::Keeper => "of the keeper",
                Cut::KeeperAndProgram => "of keeper and program",
                Cut::Supervisor => "of the supervisor",
                Cut::All => "of all",
            },
            1,
        );
    }

    /// The power was cut.
    pub(crate) fn power_cut(&mut self, disk: &Disk) {
        self.add("power cuts", 1);
        if let Some(counts) = disk.counts() {
            self.counts.insert("blocks lost".into(), counts.blocks_lost);
            self.counts.insert("unflushed blocks kept".into(), counts.blocks_kept);
        }
    }

    /// How often so far.
    pub(crate) fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    /// Says it all.
    pub(crate) fn tell(&self, test: &str, random: &Random) {
        let counts: Vec<String> = self.counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
        say(&format!(
            "{test}: {}; seed {}, {:.1} s",
            counts.join(", "),
            random.seed(),
            self.started.elapsed().as_secs_f64()
        ));
    }
}

/// Says a line of the tally: a test's name, counts, and after a semicolon what is not to be added
/// up.
pub fn say(told: &str) {
    let line = format!("tally: {told}\n");
    // Past print!, whose output the harness keeps to itself when a test passes.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("HOLDFAST_E2E_TALLY") {
        let file = std::fs::File::options().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("HOLDFAST_E2E_TALLY is a file");
    }
}
