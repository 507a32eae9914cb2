//! Programs, keeper and supervisor come and go, in order and out of it: who waits for whom, who
//! ends when, and that nothing is lost on the way.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::{need, report};

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// Appends one numbered line after the other with fsync, and says each; on an error says its number
/// and waits to be ended.
const APPEND: &str = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
limit, pause = int(sys.argv[2]), float(sys.argv[3])
for number in range(limit):
    try:
        os.write(fd, b'%09d\\n' % number)
        os.fsync(fd)
    except OSError as error:
        os.write(1, b'errno %d\\n' % error.errno)
        break
    os.write(1, b'ack %d\\n' % number)
    time.sleep(pause)
os.write(1, b'end\\n')
";

/// A run that ends with the test.
struct Run {
    child: Child,
    lines: Receiver<String>,
    stderr: Arc<Mutex<String>>,
    family: Vec<u32>,
}

impl Run {
    fn start(cmd: &Cmd) -> Self {
        let mut child = cmd.spawn();
        let lines = proc::lines(&mut child);
        let stderr = Arc::new(Mutex::new(String::new()));
        let (said, more) = (stderr.clone(), BufReader::new(child.stderr.take().expect("piped")).lines());
        std::thread::spawn(move || {
            for line in more.map_while(Result::ok) {
                said.lock().expect("stderr").push_str(&(line + "\n"));
            }
        });
        Self { child, lines, stderr, family: Vec::new() }
    }

    fn append(pool: &Pool, file: &Path, count: u32, pause_s: f64) -> Self {
        Self::append_with(&[], pool, file, count, pause_s)
    }

    fn append_with(options: &[&str], pool: &Pool, file: &Path, count: u32, pause_s: f64) -> Self {
        let (count, pause_s) = (count.to_string(), pause_s.to_string());
        Self::start(&pool.run(options).args(["--", "python3", "-c", APPEND, text(file), &count, &pause_s]))
    }

    /// Reads up to the line that begins so, and returns it.
    fn until(&mut self, start: &str) -> String {
        let mut told = String::new();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(20)) {
            if line.starts_with(start) {
                self.family = proc::descendants(self.child.id());
                return line;
            }
            told.push_str(&line);
            told.push('\n');
        }
        panic!("the program never said `{start}`, but:\n{told}{}", self.stderr.lock().expect("stderr"));
    }

    fn status(&mut self, limit_s: u64) -> std::process::ExitStatus {
        let mut status = None;
        wait_until(Duration::from_secs(limit_s), "the supervisor's end", || {
            status = self.child.try_wait().expect("wait");
            status.is_some()
        });
        status.expect("just seen")
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.family.extend(proc::descendants(self.child.id()));
        drop(self.child.kill());
        for pid in &self.family {
            // Only what is still below us or was: a number may be used again.
            if proc::alive(*pid) {
                proc::kill_hard(*pid);
            }
        }
        drop(self.child.wait());
    }
}

/// The file holds the lines 0 to `last`, and maybe more, without a gap.
fn holds(file: &Path, last: u64) {
    let found = std::fs::read_to_string(file).expect("file");
    let lines: Vec<&str> = found.lines().collect();
    assert!(lines.len() as u64 > last, "{} lines, {last} was acknowledged", lines.len());
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("{number:09}"), "line {number} of {}", text(file));
    }
}

fn number_of(line: &str) -> u64 {
    line.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

fn must_be_clean(pool: &Pool) {
    let dry = pool.recover(&["--dry-run"]);
    let told = report::parse(&dry.ok().stdout);
    assert_eq!(report::number(&told, "records"), 0, "the pool is not clean\n{}", dry.told());
}

fn no_keeper_soon(pool: &Pool) {
    wait_until(Duration::from_secs(10), "the keeper's end", || proc::keepers(&pool.path).is_empty());
}

#[test]
fn two_programs_share_one_keeper() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let (one, two) = (disk.root.join("one"), disk.root.join("two"));
    let mut first = Run::append(&pool, &one, 100_000, 0.001);
    first.until("ack 10");
    let keeper = proc::keeper(&pool.path);
    let mut second = Run::append(&pool, &two, 50, 0.0);
    second.until("ack 5");
    assert_eq!(proc::keeper(&pool.path), keeper, "the second run has a keeper of its own");
    assert_eq!(report::number(&pool.status(), "keeper_pid"), u64::from(keeper));
    second.until("end");
    assert_eq!(second.status(20).code(), Some(0));
    assert_eq!(proc::keeper(&pool.path), keeper, "the keeper left the first program");
    first.until("ack 1");
    proc::signal(first.child.id(), rustix::process::Signal::TERM);
    assert_eq!(first.status(20).code(), Some(143));
    no_keeper_soon(&pool);
    must_be_clean(&pool);
    holds(&two, 49);
}

#[test]
fn two_programs_write_one_file() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("shared");
    let script = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
mine = int(sys.argv[2])
for number in range(400):
    os.pwrite(fd, bytes([65 + mine]) * 700, (2 * number + mine) * 700)
    if number % 20 == 0: os.fsync(fd)
";
    let start =
        |mine: &str| Run::start(&pool.run(&[]).args(["--", "python3", "-c", script, text(&file), mine]));
    let (mut one, mut two) = (start("0"), start("1"));
    assert_eq!((one.status(20).code(), two.status(20).code()), (Some(0), Some(0)));
    let expected: Vec<u8> = (0..800usize).flat_map(|part| vec![65 + (part % 2) as u8; 700]).collect();
    assert!(std::fs::read(&file).expect("file") == expected, "the parts are not where they belong");
}

#[test]
fn children_may_outlive_the_program() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("late");
    let script = format!(
        "(sleep 1; dd if=/dev/zero of={} bs=4k count=10 conv=fsync; sleep 0.3) </dev/null >/dev/null 2>&1 & exit 3",
        text(&file)
    );
    pool.run(&[]).args(["--", "sh", "-c", &script]).output().expect(&[3]);
    wait_until(Duration::from_secs(10), "the child's file", || {
        std::fs::metadata(&file).is_ok_and(|meta| meta.len() == 40960)
    });
    no_keeper_soon(&pool);
    must_be_clean(&pool);
}

/// strace kills a child that it has just made, to see what the kernel can do: announced, and never
/// heard of.
#[test]
fn a_child_that_is_killed_before_its_hello_is_not_waited_for() {
    need::tool("strace");
    let pool = Pool::new();
    let begun = Instant::now();
    for _ in 0..2 {
        pool.run(&[]).args(["--", "strace", "-f", "-o", "/dev/null", "true"]).ok();
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn a_killed_keeper_means_eio_and_recovery_at_once() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("log");
    let mut run = Run::append(&pool, &file, 1_000_000, 0.0);
    run.until("ack 200");
    proc::kill_hard(proc::keeper(&pool.path));
    assert_eq!(run.until("errno"), "errno 5");
    run.until("end");
    assert_eq!(run.status(20).code(), Some(121), "the supervisor's status says that the keeper died");
    must_be_clean(&pool);
    holds(&file, 200);
    // The next run finds a pool in order.
    pool.run(&[]).args(["--", "true"]).ok();
}

/// When the programs take too long the keeper stops without them.
#[test]
fn sigterm_stops_the_keeper_cleanly() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let file = disk.root.join(format!("log-{}", signal.as_raw()));
        let mut run = Run::append_with(&["--stop-max=300ms"], &pool, &file, 1_000_000, 0.002);
        let last = number_of(&run.until("ack 60"));
        let keeper = proc::keeper(&pool.path);
        proc::signal(keeper, signal);
        wait_until(Duration::from_secs(10), "the keeper's end", || !proc::alive(keeper));
        // The program goes on after a clean stop or is told: never is a write lost that it was told
        // of.
        drop(run);
        no_keeper_soon(&pool);
        must_be_clean(&pool);
        holds(&file, last);
    }
}

/// Says so, and on SIGTERM writes and syncs for a second before it ends, as databases do.
const SERVICE: &str = "
import os, signal, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
def append(number):
    os.write(fd, b'%09d\\n' % number)
    os.fsync(fd)
def stop(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in range(10, 60):
        append(number)
        time.sleep(0.02)
    os.write(1, b'saved\\n')
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
for number in range(10): append(number)
os.write(1, b'ready\\n')
while True: time.sleep(1)
";

/// A service manager sends SIGTERM to all of a service: what its programs write on their way out
/// is theirs to keep, and other programs of the same pool keep their keeper.
#[test]
fn sigterm_to_a_whole_service_leaves_its_programs_time() {
    use rustix::process::Signal;
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let (file, other) = (disk.root.join("service"), disk.root.join("other"));
    let mut service = Run::start(&pool.run(&[]).args(["--", "python3", "-c", SERVICE, text(&file)]));
    service.until("ready");
    let mut second = Run::append(&pool, &other, 100_000, 0.005);
    second.until("ack 5");
    let keeper = proc::keeper(&pool.path);
    for pid in service.family.iter().copied().chain([keeper, service.child.id()]) {
        proc::signal(pid, Signal::TERM);
    }
    service.until("saved");
    assert_eq!(service.status(10).code(), Some(0));
    holds(&file, 59);
    assert!(report::flag(&pool.status(), "stopping"), "the keeper was told to stop");
    // The other program is served, and nobody new is.
    second.until("ack 1");
    assert_eq!(proc::keeper(&pool.path), keeper);
    let refused = pool.run(&[]).args(["--", "true"]).output();
    refused.expect(&[120]).says(&["was told to stop", &keeper.to_string()], &[]);
    second.until("ack 2");
    proc::signal(second.child.id(), Signal::TERM);
    assert_eq!(second.status(20).code(), Some(143));
    no_keeper_soon(&pool);
    must_be_clean(&pool);
}

#[test]
fn a_second_sigterm_stops_the_keeper_at_once() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("log");
    let mut run = Run::append(&pool, &file, 1_000_000, 0.002);
    run.until("ack 20");
    let keeper = proc::keeper(&pool.path);
    proc::signal(keeper, rustix::process::Signal::TERM);
    wait_until(Duration::from_secs(10), "the keeper to hear it", || report::flag(&pool.status(), "stopping"));
    // Not one that belongs to the first.
    std::thread::sleep(Duration::from_millis(1500));
    run.until("ack 1");
    proc::signal(keeper, rustix::process::Signal::TERM);
    assert_eq!(run.until("errno"), "errno 5");
    no_keeper_soon(&pool);
    must_be_clean(&pool);
}

/// A keeper that stops when its last program has ended is waited for by who wants the pool next.
#[test]
fn a_run_waits_for_a_keeper_that_stops() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("log");
    let mut run = Run::append(&pool, &file, 400, 0.005);
    run.until("ack 20");
    let keeper = proc::keeper(&pool.path);
    proc::signal(keeper, rustix::process::Signal::TERM);
    wait_until(Duration::from_secs(10), "the keeper to hear it", || report::flag(&pool.status(), "stopping"));
    let begun = Instant::now();
    pool.run(&[]).args(["--", "true"]).ok();
    assert!(begun.elapsed() > Duration::from_millis(200), "it did not wait");
    run.until("end");
    holds(&file, 399);
}

#[test]
fn a_killed_supervisor_leaves_the_keeper_at_work() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("log");
    let mut run = Run::append(&pool, &file, 700, 0.002);
    run.until("ack 50");
    drop(run.child.kill());
    drop(run.child.wait());
    run.until("ack 200");
    assert_eq!(proc::keepers(&pool.path).len(), 1, "the keeper left its client");
    run.until("end");
    no_keeper_soon(&pool);
    must_be_clean(&pool);
    holds(&file, 699);
}

#[test]
fn signals_are_forwarded() {
    let pool = Pool::new();
    let script = "trap 'echo got TERM; exit 5' TERM; trap 'echo got HUP' HUP; echo ready; while :; do sleep 0.05; done";
    let mut run = Run::start(&pool.run(&[]).args(["--", "sh", "-c", script]));
    run.until("ready");
    proc::signal(run.child.id(), rustix::process::Signal::HUP);
    run.until("got HUP");
    proc::signal(run.child.id(), rustix::process::Signal::TERM);
    run.until("got TERM");
    assert_eq!(run.status(10).code(), Some(5));
    no_keeper_soon(&pool);
}

#[test]
fn an_idle_keeper_uses_no_cpu() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let script = format!(
        "dd if=/dev/zero of={} bs=4k count=100 conv=fsync; echo ready; sleep 60",
        text(&disk.root.join("file"))
    );
    let mut run = Run::start(&pool.run(&[]).args(["--", "sh", "-c", &script]));
    run.until("ready");
    let keeper = proc::keeper(&pool.path);
    std::thread::sleep(Duration::from_millis(2500));
    let before = proc::cpu_ticks(keeper);
    std::thread::sleep(Duration::from_secs(5));
    let used = proc::cpu_ticks(keeper) - before;
    assert!(used <= 1, "an idle keeper used {used} ticks in 5 s");
}

/// The pool is taken away, so that only what reached the disk by itself counts.
#[test]
fn an_idle_programs_data_is_on_disk_within_about_a_second() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let file = disk.root.join("log");
        let mut run = Run::append(&pool, &file, 100, 0.0);
        // The program stays, idle.
        run.until("ack 99");
        let script = format!(
            "dd if=/dev/zero of={} bs=4k count=5; echo ready; sleep 60",
            text(&disk.root.join("other"))
        );
        let mut idle = Run::start(&pool.run(&[]).args(["--", "sh", "-c", &script]));
        idle.until("ready");
        let mut status = pool.status();
        let written = Instant::now();
        while report::number(&status, "files_dirty") > 0 {
            assert!(written.elapsed() < Duration::from_secs(3), "{status:#}");
            std::thread::sleep(Duration::from_millis(50));
            status = pool.status();
        }
        println!("{kind:?}: on disk after {:?}", written.elapsed());
        disk.cut_power();
        drop(run);
        drop(idle);
        for keeper in proc::keepers(&pool.path) {
            proc::kill_hard(keeper);
        }
        no_keeper_soon(&pool);
        disk.restore_power();
        holds(&file, 99);
        assert_eq!(std::fs::metadata(disk.root.join("other")).expect("file").len(), 20480);
    }
}

#[test]
fn drain_brings_everything_to_disk() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("log");
    let (count, pause) = ("50", "0");
    let options = ["--age-max", "60000"];
    let script = format!("{APPEND}\ntime.sleep(60)");
    let mut run =
        Run::start(&pool.run(&options).args(["--", "python3", "-c", &script, text(&file), count, pause]));
    run.until("end");
    assert!(report::number(&pool.status(), "files_dirty") > 0, "{:#}", pool.status());
    pool.command("drain").ok();
    assert_eq!(report::number(&pool.status(), "files_dirty"), 0, "{:#}", pool.status());
    disk.cut_power();
    for keeper in proc::keepers(&pool.path) {
        proc::kill_hard(keeper);
    }
    drop(run);
    disk.restore_power();
    holds(&file, 49);
}

#[test]
fn the_board_is_small() {
    for (size, bytes) in [("64M", 64u64 << 20), ("512M", 512 << 20)] {
        let pool = Pool::with_size(size);
        let mut run = Run::start(&pool.run(&[]).args(["--", "sh", "-c", "echo ready; sleep 60"]));
        run.until("ready");
        let status = pool.status();
        assert_eq!(report::number(&status, "pool_bytes"), bytes, "{status:#}");
        let board = report::number(&status, "board_bytes");
        assert!(board <= bytes / 64 + (8 << 20), "a board of {board} bytes for {size}");
    }
}

#[test]
fn a_killed_client_does_not_hold_up_others() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let shared = disk.root.join("log");
    let mut steady = Run::append(&pool, &disk.root.join("steady"), 1_000_000, 0.001);
    steady.until("ack 5");
    for _ in 0..12 {
        // Killed at any moment, also while it writes.
        let mut victim = Run::append(&pool, &shared, 1_000_000, 0.0);
        victim.until("ack 30");
        for pid in proc::descendants(victim.child.id()) {
            if !proc::is_holdfast(pid) {
                proc::kill_hard(pid);
            }
        }
        assert_eq!(victim.status(20).code(), Some(137));
        std::fs::remove_file(&shared).expect("remove");
    }
    let started = Instant::now();
    steady.until("ack");
    assert!(started.elapsed() < Duration::from_secs(2), "the other program hung");
}

#[test]
fn an_outside_writer_is_not_undone_by_recovery() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    for fence in ["fanotify", "inotify"] {
        let db = disk.root.join(format!("{fence}.db"));
        let script = "
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)
db.execute('CREATE TABLE item(id INTEGER PRIMARY KEY)')
for row in range(100): db.execute('INSERT INTO item VALUES(?)', (row,))
print('ready', flush=True)
time.sleep(60)
";
        let options = ["--fence", fence, "--age-max", "60000"];
        let mut run = Run::start(&pool.run(&options).args(["--", "python3", "-c", script, text(&db)]));
        run.until("ready");
        // Somebody without Holdfast commits; then everything is killed, before the age limit.
        let rows: String = (1000..1200).map(|row| format!("INSERT INTO item VALUES({row});")).collect();
        Cmd::new("sqlite3").arg(&db).arg(format!("BEGIN; {rows} COMMIT;")).ok();
        for keeper in proc::keepers(&pool.path) {
            drop(run.child.kill());
            proc::kill_hard(keeper);
        }
        drop(run);
        // Set aside or not needed: either way the outsider's rows stay.
        pool.recover(&[]).expect(&[0, 1]);
        let told =
            Cmd::new("sqlite3").arg(&db).arg("PRAGMA integrity_check; SELECT count(*) FROM item").ok().stdout;
        assert_eq!(told, "ok\n300\n", "fence {fence}");
        for file in [text(&db).to_owned(), format!("{}-journal", text(&db))] {
            pool.recover(&["--discard", &file]);
        }
    }
}

#[test]
fn outside_readers_see_every_write_at_once() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("log");
    let mut run = Run::append(&pool, &file, 1_000_000, 0.001);
    for _ in 0..30 {
        let last = run.lines.try_iter().last().unwrap_or_else(|| run.until("ack"));
        holds(&file, number_of(&last));
    }
}

/// A library that makes python3 slow to start: it says that it is loaded, and lets ours have its
/// turn later.
const SLOW: &str = "
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void slow(void) {
    if (strncmp(program_invocation_short_name, \"python\", 6)) return;
    close(open(getenv(\"SLOW_MARK\"), O_CREAT | O_WRONLY, 0600));
    usleep(1500000);
}
";

#[test]
fn a_program_whose_supervisor_is_killed_before_it_connected_is_absorbed_all_the_same() {
    // The keeper had nobody left and ended; the program then ran without it, its writes as durable
    // as nothing.
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::formatted());
    let aside = holdfast_e2e::disk::directory();
    let (source, library, mark) =
        (aside.path().join("slow.c"), aside.path().join("slow.so"), aside.path().join("mark"));
    std::fs::write(&source, SLOW).expect("source");
    Cmd::new("cc").args(["-shared", "-fPIC", "-D_GNU_SOURCE", "-o"]).arg(&library).arg(&source).ok();
    let file = disk.root.join("log");
    let run = pool.run(&[]).args(["--", "python3", "-c", APPEND, text(&file), "1000000", "0.001"]);
    let mut run = Run::start(&run.env("LD_PRELOAD", &library).env("SLOW_MARK", &mark));
    wait_until(Duration::from_secs(20), "the program's start", || mark.exists());
    run.family = proc::descendants(run.child.id());
    drop(run.child.kill());
    drop(run.child.wait());
    let last = number_of(&run.until("ack 50"));
    assert!(report::number(&pool.status(), "writes_absorbed") >= last, "{:#}", pool.status());
    drop(run);
    no_keeper_soon(&pool);
    must_be_clean(&pool);
    holds(&file, last);
}

#[test]
fn a_program_without_a_keeper_is_not_started() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::formatted());
    let file = disk.root.join("file");
    // Told where the keeper of a run was that is over.
    let told =
        pool.run(&[]).args(["--", "sh", "-c", "echo $HOLDFAST_SOCKET $LD_PRELOAD"]).ok().stdout.clone();
    let mut words = told.split_whitespace();
    let (socket, library) = (words.next().expect("socket"), words.next().expect("library"));
    no_keeper_soon(&pool);
    let late = Cmd::new("dd").args(["if=/dev/zero", "bs=4k", "count=1"]).arg(format!("of={}", text(&file)));
    late.env("HOLDFAST_SOCKET", socket)
        .env("LD_PRELOAD", library)
        .output()
        .expect(&[121])
        .says(&["no keeper", "holdfast run"], &[]);
    assert!(!file.exists(), "it wrote without a keeper");
}

/// Where the run's program found its keeper.
fn socket_of(run: &Run) -> String {
    let environments = run.family.iter().filter_map(|pid| std::fs::read(format!("/proc/{pid}/environ")).ok());
    let variables: Vec<u8> = environments.flatten().collect();
    let variables = String::from_utf8_lossy(&variables).into_owned();
    let found = variables.split('\0').find_map(|variable| variable.strip_prefix("HOLDFAST_SOCKET="));
    found.expect("a client").to_owned()
}

fn is_listening(socket: &str) -> bool {
    let listed = std::fs::read_to_string("/proc/net/unix").expect("sockets");
    listed.lines().any(|line| line.ends_with(socket))
}

#[test]
fn a_pool_is_waited_for_while_its_keeper_ends() {
    // A keeper whose memory is gone still has its lock for a moment; one that is draining, for
    // longer.
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    for round in 0..6 {
        let file = disk.root.join(format!("log-{round}"));
        let mut run = Run::append_with(&["--stop-max=1ms"], &pool, &file, 1_000_000, 0.0);
        let last = number_of(&run.until("ack 40"));
        let keeper = proc::keeper(&pool.path);
        let socket = socket_of(&run);
        proc::signal(keeper, rustix::process::Signal::TERM);
        wait_until(Duration::from_secs(10), "the beginning of the keeper's end", || !is_listening(&socket));
        must_be_clean(&pool);
        drop(run);
        holds(&file, last);
    }
}

/// Kills its keeper, then writes to what was opened for it, and to a file that nobody synced.
const OUTPUT: &str = "
import os, signal, socket, struct, sys, time
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
synced = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT, 0o600)
for _ in range(2):
    os.write(synced, b'x')
    os.fsync(synced)
os.write(log, b'before\\n')
keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
keeper.connect(os.environ['HOLDFAST_SOCKET'])
pid = struct.unpack('iii', keeper.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
os.kill(pid, signal.SIGKILL)
try: keeper.recv(1)
except ConnectionResetError: pass
os.write(log, b'after\\n')
os.write(1, b'said\\n')
for number, data in ((synced, b'y'), (log, None)):
    try:
        os.write(number, data) if data else os.fsync(number)
        print('acknowledged without a keeper')
    except OSError as error: print(error.errno, flush=True)
";

/// Of what nobody has asked to be durable nothing is in the pool, and a keeper that was killed
/// keeps no program from its output. What is durable by the log, and every sync, fails.
#[test]
fn output_that_nobody_syncs_outlives_the_keeper() {
    let disk = Disk::new(Kind::Ext4);
    let at = |name: &str| text(&disk.root.join(name)).to_owned();
    // In a file of its own, since a shell is to open the output.
    let program = at("program.py");
    std::fs::write(&program, OUTPUT).expect("program");
    let pool = Pool::new().logs_from_sync();
    let run = pool.run(&[]);
    let run = run.args(["--", "python3", &program, &at("log"), &at("synced")]);
    let script = format!("{} > {}", run.line(), at("output"));
    let told = Cmd::new("sh").args(["-c", &script]).output();
    assert!(told.stderr.contains("recovered pool"), "{}", told.told());
    let read = |name: &str| std::fs::read_to_string(at(name)).expect("file");
    assert_eq!(read("output"), "said\n5\n5\n", "{}", told.told());
    assert_eq!((read("log"), read("synced")), ("before\nafter\n".to_owned(), "xx".to_owned()));
}
