//! Cutting a program off under load and judging what is left. A workload says how it is prepared, started and checked; this
//! module kills, cuts power, recovers, and demands every acknowledged item. Acknowledgements are kept in the memory of the test,
//! outside everything that is cut.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::cmd::Cmd;
use crate::disk::{self, Disk, Kind};
use crate::pool::Pool;
use crate::random::{self, Random};
use crate::{need, proc, report};

/// What the program acknowledged so far, in order.
pub type Acks = Arc<Mutex<Vec<String>>>;

/// Where a workload runs.
pub struct Site {
    /// Its directory on the file system that may be cut.
    pub dir: PathBuf,
    /// A directory elsewhere, for sockets and scripts.
    pub aside: PathBuf,
}

impl Site {
    /// A path below the directory, as text.
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().expect("paths are text").to_owned()
    }

    /// A path outside the file system that is cut, as text.
    pub fn aside(&self, name: &str) -> String {
        self.aside.join(name).to_str().expect("paths are text").to_owned()
    }
}

/// A program under load whose acknowledgements can be counted and checked.
pub trait Workload {
    /// For messages.
    fn name(&self) -> String;
    /// Makes what the program starts from, natively. It is brought to disk before the load starts.
    fn prepare(&self, site: &Site);
    /// The program and its arguments.
    fn program(&self, site: &Site) -> Vec<String>;
    /// How to tell what a line of the program's output acknowledges, if anything.
    fn acknowledgement(&self) -> fn(&str) -> Option<String> {
        |line| line.strip_prefix("ack ").map(str::to_owned)
    }
    /// Starts clients that load the program and acknowledge by themselves; they must end once it is dead.
    fn start_clients(&self, _site: &Site, _acks: &Acks) -> Vec<JoinHandle<()>> {
        Vec::new()
    }
    /// Runs the program's own checker, natively, and looks for every acknowledged item. An error says what is wrong or lost.
    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String>;
    /// Options for `holdfast run`.
    fn options(&self, _site: &Site) -> Vec<String> {
        Vec::new()
    }
    /// The user it runs as, with capabilities; `None` for root.
    fn user(&self) -> Option<(&str, &str)> {
        None
    }
    /// How many of the last acknowledgements the program does not promise through a power cut, even without Holdfast: one that
    /// ends with a rename or an unlink, without a sync of the directory, leaves that to luck.
    fn acks_loose_max(&self) -> usize {
        0
    }
    /// The smallest number of acknowledgements before the cut.
    fn acks_min(&self) -> usize {
        50
    }
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The program, with all its children.
    Program,
    /// Keeper and program: the supervisor recovers.
    KeeperAndProgram,
    /// Supervisor, keeper and program: `recover` recovers.
    All,
}

/// What stands between the program and the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    Holdfast,
    /// Nothing: slow, and what the program synced must be there.
    Native,
    /// Drops every sync: fast, and it must lose data.
    Eatmydata,
}

/// Kills of all kinds under load on a file system that stays up; nothing acknowledged may be missing.
pub fn survives_kills(workload: &dyn Workload) {
    let disk = Disk::new(Kind::Ext4);
    let pool = pool_for(workload);
    let mut random = Random::new(&workload.name());
    for round in 0..random::rounds() {
        for cut in [Cut::Program, Cut::KeeperAndProgram, Cut::All] {
            let mut job = Job::start(workload, &disk, &pool, Guard::Holdfast);
            job.load(&mut random);
            job.must_absorb(&pool);
            job.cut(cut, &pool);
            let acks = job.end();
            let recovered = pool.recover(&[]);
            recovered.ok();
            if let Err(error) = workload.check(&job.site, &acks) {
                panic!(
                    "{} lost after {cut:?} was killed (round {round}, {} acknowledged): {error}\n{}\nrecovery:\n{}",
                    workload.name(),
                    acks.len(),
                    job.told(),
                    recovered.told()
                );
            }
        }
    }
}

/// The power of the file system is cut under load, everything is killed, power comes back; nothing acknowledged may be missing.
pub fn survives_power_cut(workload: &dyn Workload, kind: Kind) {
    let disk = Disk::new(kind);
    let pool = pool_for(workload);
    let mut random = Random::new(&workload.name());
    for round in 0..random::rounds() {
        let mut job = Job::start(workload, &disk, &pool, Guard::Holdfast);
        job.load(&mut random);
        job.must_absorb(&pool);
        job.lose_power(&disk, &pool);
        let acks = job.end();
        disk.restore_power();
        let recovered = pool.recover(&[]);
        recovered.ok();
        if let Err(error) = workload.check(&job.site, &acks[..acks.len() - workload.acks_loose_max()]) {
            panic!(
                "{} lost in a power cut of {kind:?} (round {round}, {} acknowledged): {error}\n{}\nrecovery:\n{}",
                workload.name(),
                acks.len(),
                job.told(),
                recovered.told()
            );
        }
    }
}

/// The control: the same power cut with every sync dropped must lose acknowledged data, or the test above proves nothing.
pub fn control_loses_in_power_cut(workload: &dyn Workload, kind: Kind) {
    need::tool("eatmydata");
    let disk = Disk::new(kind);
    let pool = pool_for(workload);
    let mut random = Random::new(&workload.name());
    // Anybody on this machine may call sync at the wrong moment, but hardly three times.
    let lost = (0..3).any(|_| {
        let mut job = Job::start(workload, &disk, &pool, Guard::Eatmydata);
        job.load(&mut random);
        job.lose_power(&disk, &pool);
        let acks = job.end();
        disk.restore_power();
        let verdict = workload.check(&job.site, &acks);
        println!("{} on {kind:?}: control, {} acknowledged: {verdict:?}", workload.name(), acks.len());
        verdict.is_err()
    });
    assert!(lost, "{}: without syncs nothing was lost on {kind:?}: the power cut is none", workload.name());
}

/// The other control: the same power cut of the program by itself keeps what it acknowledged, so the cut takes only what was not
/// synced.
pub fn native_survives_power_cut(workload: &dyn Workload, kind: Kind) {
    let disk = Disk::new(kind);
    let pool = pool_for(workload);
    let mut random = Random::new(&workload.name());
    let mut job = Job::start(workload, &disk, &pool, Guard::Native);
    job.load(&mut random);
    job.lose_power(&disk, &pool);
    let acks = job.end();
    disk.restore_power();
    if let Err(error) = workload.check(&job.site, &acks[..acks.len() - workload.acks_loose_max()]) {
        panic!("{} on {kind:?}: natively lost in a power cut: {error}\n{}", workload.name(), job.told());
    }
}

/// The program is ended by force without a power cut and without Holdfast; the checker must be content, or it proves nothing.
pub fn checker_accepts_native_kill(workload: &dyn Workload) {
    let disk = Disk::new(Kind::Ext4);
    let pool = pool_for(workload);
    let mut random = Random::new(&workload.name());
    let mut job = Job::start(workload, &disk, &pool, Guard::Eatmydata);
    job.load(&mut random);
    job.cut(Cut::All, &pool);
    let acks = job.end();
    if let Err(error) = workload.check(&job.site, &acks) {
        panic!("{}: the checker complains of a plain kill: {error}\n{}", workload.name(), job.told());
    }
}

fn pool_for(workload: &dyn Workload) -> Pool {
    match workload.user() {
        Some((user, capabilities)) => Pool::of_user(user, capabilities),
        None => Pool::new(),
    }
}

/// One program under load.
struct Job<'a> {
    workload: &'a dyn Workload,
    site: Site,
    supervisor: Child,
    line: String,
    /// In the environment of every process of the job.
    mark: String,
    acks: Acks,
    said: Arc<Mutex<String>>,
    threads: Vec<JoinHandle<()>>,
    _aside: TempDir,
}

impl<'a> Job<'a> {
    fn start(workload: &'a dyn Workload, disk: &Disk, pool: &Pool, guard: Guard) -> Self {
        let aside = disk::directory();
        let dir = tempfile::Builder::new().prefix("site-").tempdir_in(&disk.root).expect("site").keep();
        let site = Site { dir, aside: aside.path().to_owned() };
        if let Some((user, _)) = workload.user() {
            disk::give_to(&site.dir, user);
            disk::give_to(&site.aside, user);
        }
        workload.prepare(&site);
        disk.settle();
        let mark = format!("HOLDFAST_E2E_JOB={}", aside.path().display());
        let cmd = match guard {
            Guard::Holdfast => {
                let options = workload.options(&site);
                let options: Vec<&str> = options.iter().map(String::as_str).collect();
                pool.run(&options).arg("--")
            }
            Guard::Native => pool.as_user(Cmd::new("env")),
            Guard::Eatmydata => pool.as_user(Cmd::new("eatmydata")),
        };
        let cmd = cmd.args(workload.program(&site)).env("HOLDFAST_E2E_JOB", aside.path()).dir(&site.aside);
        let mut supervisor = cmd.spawn();
        let (acks, said) = (Acks::default(), Arc::default());
        let stdout = supervisor.stdout.take().expect("piped");
        let stderr = supervisor.stderr.take().expect("piped");
        let told = workload.acknowledgement();
        let mut threads = vec![listen(stdout, told, &acks, &said), listen(stderr, told, &acks, &said)];
        threads.extend(workload.start_clients(&site, &acks));
        Self { workload, site, supervisor, line: cmd.line(), mark, acks, said, threads, _aside: aside }
    }

    fn acknowledged(&self) -> usize {
        self.acks.lock().expect("acks").len()
    }

    /// Waits until enough is acknowledged, and then a random while.
    fn load(&mut self, random: &mut Random) {
        let started = Instant::now();
        while self.acknowledged() < self.workload.acks_min() {
            if let Some(status) = self.supervisor.try_wait().expect("wait") {
                panic!("the program ended by itself ({status})\n{}", self.told());
            }
            assert!(started.elapsed() < Duration::from_secs(60), "too few acknowledgements\n{}", self.told());
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(random.between(0, 700)));
    }

    /// A run in which nothing was absorbed proves nothing.
    fn must_absorb(&self, pool: &Pool) {
        let status = pool.status();
        assert!(
            report::number(&status, "writes_absorbed") > 0,
            "nothing was absorbed: the test proves nothing\n{status:#}\n{}",
            self.told()
        );
    }

    /// Cuts the power of the disk while everybody stands still, and kills all.
    ///
    /// They must stand still, because the shutdown ioctl is no instant: an fsync under way in the kernel may be told of success
    /// (one cut in twenty, ext4 and xfs alike) for data that the shutdown then takes away. A real disk does not do that.
    fn lose_power(&mut self, disk: &Disk, pool: &Pool) {
        let mut stopped = Vec::new();
        // The keeper last: the kernel asks it before a program may open a file.
        for keepers_turn in [false, true] {
            // Children may be forked until their parents stand still: again, until none is new.
            loop {
                let mut fresh = self.family(pool);
                fresh.retain(|pid| {
                    !stopped.contains(pid) && (keepers_turn || !proc::keepers(&pool.path).contains(pid))
                });
                if fresh.is_empty() {
                    break;
                }
                for pid in &fresh {
                    proc::signal(*pid, Signal::STOP);
                }
                let started = Instant::now();
                // Who is in the kernel for longer waits for somebody that stands still (a vfork for its child).
                while !fresh.iter().all(|pid| proc::at_rest(*pid))
                    && started.elapsed() < Duration::from_secs(2)
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                stopped.extend(fresh);
            }
        }
        disk.cut_power();
        // The killed never run again: nothing happens after the cut.
        self.cut(Cut::All, pool);
    }

    /// Every living process of the job: supervisor, keeper, program, children.
    fn family(&self, pool: &Pool) -> Vec<u32> {
        let mut pids = proc::descendants(self.supervisor.id());
        pids.extend(proc::with_environment(&self.mark));
        pids.extend(proc::keepers(&pool.path));
        pids.push(self.supervisor.id());
        pids.sort_unstable();
        pids.dedup();
        pids.retain(|pid| proc::alive(*pid));
        pids
    }

    fn cut(&mut self, cut: Cut, pool: &Pool) {
        let keepers = proc::keepers(&pool.path);
        let family = proc::descendants(self.supervisor.id());
        if cut == Cut::All {
            drop(self.supervisor.kill());
        }
        if cut != Cut::Program {
            for pid in &keepers {
                proc::kill_hard(*pid);
            }
        }
        // Children are forked while we kill: again, until none is left. The supervisor's own processes are not the program.
        loop {
            let mut pids = proc::descendants(self.supervisor.id());
            pids.extend(proc::with_environment(&self.mark));
            pids.extend(family.iter().filter(|pid| proc::alive(**pid)));
            pids.retain(|pid| !proc::is_holdfast(*pid));
            if pids.is_empty() {
                break;
            }
            for pid in pids {
                proc::kill_hard(pid);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.supervisor.try_wait().expect("wait") {
                break status;
            }
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "the supervisor does not end\n{}",
                self.told()
            );
            std::thread::sleep(Duration::from_millis(2));
        };
        if cut != Cut::Program {
            // A dying process still holds what it holds.
            proc::wait_until(Duration::from_secs(10), "the keeper's end", || {
                !keepers.iter().any(|pid| proc::alive(*pid))
            });
        }
        match cut {
            Cut::Program => {
                assert_eq!(status.code(), Some(137), "status of a killed program\n{}", self.told())
            }
            Cut::KeeperAndProgram => {
                // The program may end by itself, with its own complaint about EIO, before it is killed.
                assert!(!status.success(), "success after the keeper was killed\n{}", self.told());
            }
            Cut::All => {}
        }
    }

    /// Waits for the listeners and returns what was acknowledged.
    fn end(&mut self) -> Vec<String> {
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
        self.acks.lock().expect("acks").clone()
    }

    fn told(&self) -> String {
        let said = self.said.lock().expect("said");
        let tail: String = said.chars().rev().take(3000).collect::<Vec<_>>().into_iter().rev().collect();
        format!("$ {}\n...{tail}", self.line)
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // After a failed expectation nothing may go on in the background.
        drop(self.supervisor.kill());
        for pid in proc::with_environment(&self.mark) {
            proc::kill_hard(pid);
        }
        drop(self.supervisor.wait());
        // The next round needs the room.
        drop(std::fs::remove_dir_all(&self.site.dir));
    }
}

fn listen(
    stream: impl Read + Send + 'static,
    told: fn(&str) -> Option<String>,
    acks: &Acks,
    said: &Arc<Mutex<String>>,
) -> JoinHandle<()> {
    let (acks, said) = (acks.clone(), said.clone());
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut bytes = Vec::new();
        while stream.read_until(b'\n', &mut bytes).is_ok_and(|length| length > 0) {
            // What is cut off in the middle of a line says nothing.
            if bytes.pop() != Some(b'\n') {
                break;
            }
            let line = String::from_utf8_lossy(&bytes).into_owned();
            bytes.clear();
            match told(&line) {
                Some(item) => acks.lock().expect("acks").push(item),
                None => said.lock().expect("said").push_str(&(line + "\n")),
            }
        }
    })
}
