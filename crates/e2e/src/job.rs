//! One program under load, from its start to the last of its processes: how it is started, stopped,
//! killed and listened to.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ExitStatus};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::cmd::Cmd;
use crate::disk::{self, Disk};
use crate::pool::Pool;
use crate::site::{Acks, Site, Workload};
use crate::{proc, report};
use holdfast_testkit::Random;

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The program, with all its children.
    Program,
    /// The keeper: the program hears of it by EIO, and the supervisor recovers.
    Keeper,
    /// Keeper and program: the supervisor recovers.
    KeeperAndProgram,
    /// The supervisor, and the program a moment later: the keeper brings everything to disk and
    /// ends.
    Supervisor,
    /// Supervisor, keeper and program: `recover` recovers.
    All,
}

/// What stands between the program and the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    Holdfast,
    /// Nothing: slow, and what the program synced must be there.
    Native,
    /// Drops every sync: fast, and it must lose data.
    Eatmydata,
}

/// One program under load.
pub(crate) struct Job<'a> {
    workload: &'a dyn Workload,
    pub(crate) site: Site,
    supervisor: Child,
    line: String,
    /// In the environment of every process of the job.
    mark: String,
    acks: Acks,
    said: Arc<Mutex<String>>,
    threads: Vec<JoinHandle<()>>,
    _aside: TempDir,
    _memory: TempDir,
}

impl<'a> Job<'a> {
    pub(crate) fn start(workload: &'a dyn Workload, disk: &Disk, pool: &Pool, guard: Guard) -> Self {
        let aside = disk::directory();
        let dir = tempfile::Builder::new().prefix("site-").tempdir_in(&disk.root).expect("site").keep();
        let memory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
        let site = Site {
            dir,
            aside: aside.path().to_owned(),
            memory: memory.path().to_owned(),
            over: Arc::default(),
        };
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
        Self {
            workload,
            site,
            supervisor,
            line: cmd.line(),
            mark,
            acks,
            said,
            threads,
            _aside: aside,
            _memory: memory,
        }
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.workload.acknowledged(&self.site, &self.acks.lock().expect("acks"))
    }

    /// Waits until enough is acknowledged, and then a random while.
    pub(crate) fn load(&mut self, random: &mut Random) {
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
    pub(crate) fn must_absorb(&self, pool: &Pool) {
        let status = pool.status();
        assert!(
            report::number(&status, "writes_absorbed") > 0,
            "nothing was absorbed: the test proves nothing\n{status:#}\n{}",
            self.told()
        );
    }

    /// Cuts the power of the disk, and kills all. Where a cut is no instant, everybody must stand
    /// still meanwhile.
    pub(crate) fn lose_power(&mut self, disk: &Disk, pool: &Pool, random: &mut Random) {
        if !disk.cuts_at_an_instant() {
            self.stop(pool);
        }
        disk.cut_power_seeded(random.draw());
        // The killed never run again: nothing happens after the cut.
        self.cut(Cut::All, pool);
    }

    /// Stops every process of the job, and waits until none is inside the kernel.
    fn stop(&self, pool: &Pool) {
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
                // Who is in the kernel for longer waits for somebody that stands still (a vfork for
                // its child).
                while !fresh.iter().all(|pid| proc::at_rest(*pid))
                    && started.elapsed() < Duration::from_secs(2)
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                stopped.extend(fresh);
            }
        }
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

    /// Kills at once, at whatever the job is doing (it may be starting, or over), and waits until
    /// all of it is gone. Returns how the supervisor ended.
    pub(crate) fn cut(&mut self, cut: Cut, pool: &Pool) -> ExitStatus {
        let keepers = proc::keepers(&pool.path);
        if matches!(cut, Cut::All | Cut::Supervisor) {
            // Nobody may be started between the look at who is there and the kill. A vfork is
            // waited for.
            proc::signal(self.supervisor.id(), Signal::STOP);
            let stopping = Instant::now();
            while !proc::at_rest(self.supervisor.id()) && stopping.elapsed() < Duration::from_millis(200) {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        // Some programs write over their environment, and are orphans once the supervisor is dead;
        // and who is about to end has none any more, but still holds what it holds.
        let mut known = self.family(pool);
        if matches!(cut, Cut::All | Cut::Supervisor) {
            drop(self.supervisor.kill());
        }
        if matches!(cut, Cut::All | Cut::Keeper | Cut::KeeperAndProgram) {
            for pid in &keepers {
                proc::kill_hard(*pid);
            }
        }
        let started = Instant::now();
        let over = |job: &Self, limit_s: u64, what: &str| {
            assert!(started.elapsed() < Duration::from_secs(limit_s), "{what} after {cut:?}\n{}", job.told());
            std::thread::sleep(Duration::from_millis(1));
        };
        // A program whose keeper died may wait for something else than its files.
        let mut patience = if cut == Cut::Keeper { Duration::from_secs(3) } else { Duration::ZERO };
        let status = loop {
            if started.elapsed() >= patience {
                patience = Duration::ZERO;
                known = self.living(&known, pool);
                self.kill_program(cut == Cut::All, &known);
            }
            if let Some(status) = self.supervisor.try_wait().expect("wait") {
                break status;
            }
            over(self, 30, "the supervisor does not end");
        };
        if cut == Cut::Supervisor {
            // A moment in which the program runs on without one.
            std::thread::sleep(Duration::from_millis(10));
        }
        // What is left without a supervisor: a program, and a keeper that ends after it, or is
        // still starting.
        loop {
            known = self.living(&known, pool);
            self.kill_program(cut == Cut::All, &known);
            if known.is_empty() {
                break;
            }
            over(self, 40, &format!("{known:?} do not end"));
        }
        self.site.over.store(true, Ordering::Relaxed);
        if cut == Cut::Program {
            // It may have ended by itself, or not have started, at the same moment.
            assert!(
                matches!(status.code(), Some(137) | Some(0)),
                "status {status} of a killed program\n{}",
                self.told()
            );
        }
        status
    }

    /// Kills every process of the program, and with `holdfast` Holdfast's own.
    fn kill_program(&self, holdfast: bool, living: &[u32]) {
        for pid in living {
            // The supervisor is the child of this process, and must not leave a number that
            // somebody else gets.
            if *pid != self.supervisor.id() && (holdfast || !proc::is_holdfast(*pid)) {
                proc::kill_hard(*pid);
            }
        }
    }

    /// Who lives of the job, of `known` and of their children.
    fn living(&self, known: &[u32], pool: &Pool) -> Vec<u32> {
        let mut pids = self.family(pool);
        pids.extend(proc::families(known));
        pids.sort_unstable();
        pids.dedup();
        pids.retain(|pid| proc::alive(*pid));
        pids
    }

    /// Waits for the listeners and returns what was acknowledged.
    pub(crate) fn end(&mut self) -> Vec<String> {
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
        self.acks.lock().expect("acks").clone()
    }

    pub(crate) fn told(&self) -> String {
        let said = self.said.lock().expect("said");
        let tail: String = said.chars().rev().take(3000).collect::<Vec<_>>().into_iter().rev().collect();
        format!("$ {}\n...{tail}", self.line)
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // After a failed expectation nothing may go on in the background.
        self.site.over.store(true, Ordering::Relaxed);
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
