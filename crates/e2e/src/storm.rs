//! Many short runs, each cut off at a random instant of its whole life: while it starts, makes its
//! pool, registers files, writes, expires, drains and ends. After some of them the recovery is
//! killed as well, at a random instant, before one is let through.

use std::time::Duration;

use crate::cmd::Cmd;
use crate::crash::promised;
use crate::disk::Disk;
use crate::job::{Cut, Guard, Job};
use crate::pool::Pool;
use crate::proc;
use crate::report;
use crate::site::Workload;
use crate::tally::Tally;
use holdfast_testkit::Random;

/// The time in which a run starts.
const START_MS_MAX: u64 = 40;
/// The time that a recovery takes, and a little more.
const RECOVERY_US_MAX: u64 = 12_000;

/// From how many rounds on an empty log at every cut is a fault of the test.
const ROUNDS_PROVE: u64 = 50;

/// Where the storm blows.
pub struct Storm<'a> {
    /// The file system.
    pub disk: &'a Disk,
    /// The pool, which goes from round to round, and now and then is a new one.
    pub pool: Pool,
    /// What came of it.
    tally: Tally,
    random: Random,
    guard: Guard,
}

impl<'a> Storm<'a> {
    /// A storm with a fresh seed, which is printed.
    pub fn new(disk: &'a Disk, name: &str) -> Self {
        let pool = Pool::with_size("16M");
        Self { disk, pool, tally: Tally::new(), random: Random::named(name), guard: Guard::Holdfast }
    }

    /// The same with what users get who ask for nothing: files are logged from their first sync on.
    pub fn with_defaults(disk: &'a Disk, name: &str) -> Self {
        let mut storm = Self::new(disk, name);
        storm.pool = storm.pool.logs_from_sync();
        storm
    }

    /// The control: the same storm over programs without Holdfast.
    pub fn native(disk: &'a Disk, name: &str) -> Self {
        let mut storm = Self::new(disk, name);
        storm.guard = Guard::Native;
        storm
    }

    /// The same for a workload of another user.
    pub fn given_to(mut self, user: Option<(&str, &str)>) -> Self {
        if let Some((user, capabilities)) = user {
            self.pool = self.pool.given_to(user, capabilities);
        }
        self
    }

    /// A number for the workload.
    pub fn random(&mut self) -> u64 {
        self.random.draw()
    }

    /// Whether there are to be more than the `rounds` that were: a kill of all leaves records to
    /// recover, but who is killed is drawn, and so is whether a killed recovery was done before.
    /// Without any the storm goes on, ten times as long at most.
    pub fn goes_on(&self, rounds: u64) -> bool {
        let blown = self.tally.count("rounds");
        let proves = self.tally.count("acknowledged") > 0
            && (self.guard == Guard::Native || self.tally.count("records recovered") > 0);
        blown < rounds || blown < 10 * rounds && !proves
    }

    /// Kills somebody in a run of `workload`.
    pub fn kill(&mut self, workload: &dyn Workload) {
        let victims = [Cut::Program, Cut::Keeper, Cut::Supervisor, Cut::All];
        let victim = victims[self.random.between(0, 4) as usize];
        let mut job = self.begin(workload);
        let status = job.cut(victim, &self.pool);
        self.tally.kill(victim);
        let acks = job.end();
        if status.success() && self.pool.path.exists() {
            // It was through before. Then everything is on disk.
            let left = report::parse(&self.pool.recover(&["--dry-run"]).ok().stdout);
            assert_eq!(report::number(&left, "records"), 0, "a run that succeeded left records\n{left:#}");
        }
        self.count_acknowledged(&job, workload, &acks);
        self.judge(&job, workload, &acks, &format!("after {victim:?} was killed"));
    }

    /// Cuts the power in a run of `workload`.
    pub fn cut_power(&mut self, workload: &dyn Workload) {
        let mut job = self.begin(workload);
        job.lose_power(self.disk, &self.pool, &mut self.random);
        self.tally.power_cut(self.disk);
        let acks = job.end();
        self.disk.restore_power();
        self.count_acknowledged(&job, workload, &acks);
        self.judge(&job, workload, promised(workload, &acks), &format!("in a power cut of {}", self.disk));
    }

    /// Also those that the program does not promise through the cut: with them it shows that it
    /// ran.
    fn count_acknowledged(&mut self, job: &Job<'_>, workload: &dyn Workload, acks: &[String]) {
        self.tally.add("acknowledged", workload.acknowledged(&job.site, acks) as u64);
    }

    /// Starts a run and lets it live a random while.
    fn begin<'w>(&mut self, workload: &'w dyn Workload) -> Job<'w> {
        if self.random.between(0, 8) == 0 {
            drop(std::fs::remove_file(&self.pool.path));
        }
        let job = Job::start(workload, self.disk, &self.pool, self.guard);
        let life_us = match self.random.between(0, 4) {
            0 => self.random.between(0, START_MS_MAX * 1000),
            _ => self.random.between(0, workload.life_ms_max() * 1000),
        };
        std::thread::sleep(Duration::from_micros(life_us));
        job
    }

    /// Recovers, after killing some recoveries, and demands everything that was acknowledged.
    fn judge(&mut self, job: &Job<'_>, workload: &dyn Workload, acks: &[String], when: &str) {
        // A run that was killed before it made its pool has acknowledged nothing.
        let mut told = String::from("there was no pool");
        if self.pool.path.exists() {
            let killed_before = self.tally.count("of a recovery");
            while self.random.between(0, 3) == 0 {
                self.kill_recovery();
            }
            let killed = self.tally.count("of a recovery") - killed_before;
            // A kill leaves the page cache as it was: then a sync does, unless the log is asked
            // for.
            let options: &[&str] = if self.random.between(0, 1) == 0 { &[] } else { &["--replay"] };
            let recovered = self.pool.recover(options);
            let report = report::parse(&recovered.ok().stdout);
            let damaged = report::find(&report, "damaged").and_then(|rows| rows.as_array());
            assert!(
                damaged.is_some_and(Vec::is_empty),
                "damage {when}\n{}\n{}",
                recovered.told(),
                job.told()
            );
            self.tally.add("records recovered", report::number(&report, "records"));
            told = format!("({killed} were killed before it)\n{}", recovered.told());
        }
        if let Err(error) = workload.check(&job.site, acks) {
            panic!(
                "{} lost {when} (round {}): {error}\n{}\nrecovery:\n{told}",
                workload.name(),
                self.tally.count("rounds"),
                job.told()
            );
        }
        self.tally.add("rounds", 1);
    }

    /// Kills `recover`, or a keeper that recovers because it starts.
    fn kill_recovery(&mut self) {
        let cmd: Cmd = match self.random.between(0, 2) {
            0 => self.pool.command("recover"),
            _ => self.pool.run(&[]).args(["--", "true"]),
        };
        let mark = format!("{}-{}", std::process::id(), self.random.draw());
        let mut child = cmd.env("HOLDFAST_E2E_JOB", &mark).spawn();
        std::thread::sleep(Duration::from_micros(self.random.between(0, RECOVERY_US_MAX)));
        drop(child.kill());
        // Its keeper may just be starting: again, until none is left. One that is about to end has
        // no environment any more, but still holds the pool.
        let mut seen = Vec::new();
        proc::wait_until(Duration::from_secs(10), "the end of a killed recovery", || {
            seen.extend(proc::with_environment(&mark));
            seen.retain(|pid| proc::alive(*pid));
            seen.iter().for_each(|pid| proc::kill_hard(*pid));
            seen.is_empty()
        });
        drop(child.wait());
        self.tally.add("kills", 1);
        self.tally.add("of a recovery", 1);
    }

    /// Says what came of it. A storm in which nothing was acknowledged or recovered proves nothing.
    pub fn tell(self, name: &str) {
        self.tally.tell(name, &self.random);
        assert!(self.tally.count("acknowledged") > 0, "{name}: nothing was acknowledged");
        // Who changes names all the time has most of its syncs made by the kernel, as natively: a
        // few cuts may find nothing in the log, and on btrfs no cut does.
        let programs = ["dpkg", "editor", "git", "leveldb", "maildir", "rsync"];
        let names = programs.iter().any(|program| name.contains(program));
        let (few, btrfs) = (self.tally.count("rounds") < ROUNDS_PROVE, name.ends_with("Btrfs"));
        // RocksDB makes, renames and removes files in the seconds that it lives here: on btrfs one
        // cut in some fifteen finds records.
        let syncs_itself = names && (btrfs || few) || name.contains("rocksdb") && btrfs && few;
        assert!(
            self.guard == Guard::Native || syncs_itself || self.tally.count("records recovered") > 0,
            "{name}: nothing was recovered"
        );
    }
}
