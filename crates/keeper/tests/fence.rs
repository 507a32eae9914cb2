//! The fence against real outsiders: other processes that open, write, map, pass on and hold
//! watched files.
//!
//! The fanotify tests need CAP_SYS_ADMIN and say so when they cannot run.

use holdfast_pool::{Generation, Slot};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use holdfast_cache::FileRef;
use holdfast_keeper::config::FenceChoice;
use holdfast_keeper::fence::{Fence, FenceError, FenceKind, Outsiders, scan_holders, writers_outside};
use holdfast_watch::server;
use rustix::process::{PidfdFlags, pidfd_open};

const LONG: Duration = Duration::from_secs(60);

fn file(slot: u32, generation: u64) -> FileRef {
    FileRef { slot: Slot::new(slot), generation: Generation::new(generation) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Arrived(u32, u64),
    Left(u32, u64, bool),
}

type Hook = Box<dyn Fn(u32) + Send + Sync>;

/// Writes down what it is told, and checks that calls for one file alternate and never overlap.
#[derive(Default)]
struct Sink {
    ours: Mutex<HashSet<u32>>,
    told: Mutex<Vec<Told>>,
    changed: Condvar,
    inside: Mutex<HashSet<u32>>,
    on_arrived: Mutex<Option<Arc<Hook>>>,
    client_opens: AtomicU64,
    reader_stop: Mutex<()>,
}

impl Sink {
    fn enter(&self, slot: u32) {
        assert!(self.inside.lock().unwrap().insert(slot), "two calls at once for slot {slot}");
    }

    fn leave(&self, slot: u32, told: Told) {
        let mut log = self.told.lock().unwrap();
        let last = log.iter().rev().find(|told| match told {
            Told::Arrived(of, _) | Told::Left(of, _, _) => *of == slot,
        });
        let wanted = matches!(last, Some(Told::Arrived(..)));
        assert_eq!(matches!(told, Told::Left(..)), wanted, "calls must alternate: {told:?} after {last:?}");
        log.push(told);
        self.inside.lock().unwrap().remove(&slot);
        self.changed.notify_all();
    }

    fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }

    fn wait(&self, what: &str, done: impl Fn(&[Told]) -> bool) {
        let log = self.told.lock().unwrap();
        let (log, timeout) = self.changed.wait_timeout_while(log, LONG, |log| !done(log)).unwrap();
        assert!(!timeout.timed_out(), "waited in vain for: {what}; told so far: {:?}", *log);
    }

    fn on_arrived(&self, hook: impl Fn(u32) + Send + Sync + 'static) {
        *self.on_arrived.lock().unwrap() = Some(Arc::new(Box::new(hook)));
    }

    fn adopt(&self, child: &Child) {
        self.ours.lock().unwrap().insert(child.id());
    }
}

impl Outsiders for Sink {
    fn is_ours(&self, pid: u32) -> bool {
        pid == std::process::id() || self.ours.lock().unwrap().contains(&pid)
    }

    fn arrived(&self, slot: u32, generation: u64) {
        self.enter(slot);
        let hook = self.on_arrived.lock().unwrap().clone();
        if let Some(hook) = hook {
            hook(slot);
        }
        self.leave(slot, Told::Arrived(slot, generation));
    }

    fn left(&self, slot: u32, generation: u64, wrote: bool) {
        self.enter(slot);
        self.leave(slot, Told::Left(slot, generation, wrote));
    }

    fn client_opens(&self, _slot: u32, _ino: u64) -> u64 {
        drop(self.reader_stop.lock().unwrap());
        self.client_opens.load(Ordering::SeqCst)
    }
}

/// A directory on the file system the build goes to, with one file in it that the keeper has open.
struct Place {
    dir: PathBuf,
    file: PathBuf,
    own: File,
}

impl Place {
    fn new(name: &str) -> Place {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fence-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("data");
        fs::write(&file, "before\n").unwrap();
        let own = OpenOptions::new().read(true).write(true).open(&file).unwrap();
        Place { dir, file, own }
    }

    fn via(&self) -> PathBuf {
        via(&self.own)
    }

    fn path(&self) -> &str {
        self.file.to_str().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn via(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Set where all of this is tried with root's watch between the fence and the kernel.
const BY_WATCH: &str = "HOLDFAST_TEST_BY_WATCH";

/// The name of a watch, which serves this process's own user.
fn watch() -> Option<String> {
    std::env::var_os(BY_WATCH)?;
    let (listener, name) = server::listen().unwrap();
    std::thread::spawn(move || {
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        server::serve(&listener, rustix::process::geteuid().as_raw(), own.as_fd()).unwrap();
    });
    Some(String::from_utf8(name).unwrap())
}

/// The same cases once more, by way of a watch.
#[test]
fn a_watch_in_between_changes_nothing() {
    if std::env::var_os(BY_WATCH).is_some() {
        return;
    }
    // Not those of other fences, and none that needs the machine to itself.
    let others = ["--skip", "inotify", "--skip", "lost_notices", "--skip", "no_fence"];
    let mut again = Command::new(std::env::current_exe().unwrap());
    let output = again.args(others).env(BY_WATCH, "1").output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}");
    let passed = told.lines().find_map(|line| line.strip_prefix("test result: ok. ")).unwrap_or_default();
    let count: u32 = passed.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
    assert!(count > 12, "{told}");
}

/// A fanotify fence that watches the place's file as slot 1, generation 10; `None` without the
/// privilege.
fn fanotify(place: &Place) -> Option<(Fence, Arc<Sink>)> {
    let sink = Arc::new(Sink::default());
    match Fence::start(FenceChoice::Fanotify, watch().as_deref(), sink.clone()) {
        Ok(fence) => {
            assert_eq!(fence.kind(), FenceKind::Fanotify);
            fence.watch_open(file(1, 10), place.own.as_fd()).unwrap();
            Some((fence, sink))
        }
        Err(FenceError::NotPermitted | FenceError::Unsupported) => {
            let root = rustix::process::geteuid().is_root();
            assert!(!root, "permission events are refused to root here: run on a kernel that has fanotify");
            eprintln!("not run: fanotify permission events need CAP_SYS_ADMIN: run as root");
            None
        }
        Err(err) => panic!("{err}"),
    }
}

fn inotify(place: &Place) -> (Fence, Arc<Sink>) {
    let sink = Arc::new(Sink::default());
    let fence = Fence::start(FenceChoice::Inotify, None, sink.clone()).unwrap();
    assert_eq!(fence.kind(), FenceKind::Inotify);
    fence.watch(file(1, 10), &place.via()).unwrap();
    (fence, sink)
}

/// A Python process that runs `code` with the file's path in `path`; it says "ready" by `ready()`
/// and waits for a line by `wait()`.
struct Python {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Python {
    fn start(place: &Place, code: &str) -> Python {
        let prelude = "import os, sys, mmap, time, socket, threading, ctypes\npath = sys.argv[1]\n\
            def ready(what='ready'): print(what, flush=True)\n\
            def wait(): sys.stdin.readline()\n";
        let mut child = Command::new("python3")
            .args(["-S", "-c", &format!("{prelude}{code}"), place.path()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Python { child, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {rest}");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn run(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether some processes cannot be looked into (without root, those of others): then nobody is
/// known to have left whose coming was only noticed.
fn blind() -> bool {
    scan_holders(&[], &|_| false).unreadable > 0
}

const ARRIVED: Told = Told::Arrived(1, 10);
const LEFT: Told = Told::Left(1, 10, true);

fn pause() {
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn no_fence_watches_nothing() {
    let place = Place::new("none");
    let sink = Arc::new(Sink::default());
    let fence = Fence::start(FenceChoice::None, None, sink.clone()).unwrap();
    assert_eq!(fence.kind().to_string(), "none");
    fence.watch(file(1, 10), &place.via()).unwrap();
    run(&["dd", "if=/dev/zero", &format!("of={}", place.path()), "bs=1", "count=1", "status=none"]);
    fence.unwatch(file(1, 10), Some(&place.via()));
    assert_eq!(sink.told(), []);
}

#[test]
fn what_is_not_permitted_is_said_and_auto_does_without() {
    let sink = Arc::new(Sink::default());
    let kind = Fence::start(FenceChoice::Auto, None, sink.clone()).unwrap().kind();
    match Fence::start(FenceChoice::Fanotify, None, sink) {
        Ok(_) => assert_eq!(kind, FenceKind::Fanotify),
        Err(err) => {
            assert_eq!(kind, FenceKind::Inotify);
            assert!(err.to_string().contains("--fence inotify"), "{err}");
        }
    }
}

#[test]
fn readers_are_let_in_without_ado() {
    let place = Place::new("readers");
    let Some((_fence, sink)) = fanotify(&place) else { return };
    assert_eq!(run(&["cat", place.path()]), "before\n");
    run(&["tar", "-cf", "/dev/null", "-C", place.dir.to_str().unwrap(), "data"]);
    let mut tail = Command::new("tail").args(["-f", place.path()]).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 7];
    tail.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    pause();
    tail.kill().unwrap();
    tail.wait().unwrap();
    let threads = "def r():\n  for _ in range(50): os.close(os.open(path, os.O_RDONLY))\n\
        ts = [threading.Thread(target=r) for _ in range(4)]\n[t.start() for t in ts]\n[t.join() for t in ts]\n";
    Python::start(&place, threads).end();
    pause();
    // Of some 200 opens a few may go by the safe way, when the opener cannot be looked at in time.
    let told = sink.told();
    let arrived = told.iter().filter(|what| matches!(what, Told::Arrived(..))).count();
    assert!(arrived <= 10 && told.len() == 2 * arrived, "{told:?}");
}

#[test]
fn a_writer_waits_until_the_file_is_ready_for_it() {
    let place = Place::new("writer");
    let Some((_fence, sink)) = fanotify(&place) else { return };
    let seen = Arc::new(Mutex::new(Vec::new()));
    {
        let (seen, path) = (seen.clone(), place.file.clone());
        sink.on_arrived(move |_| {
            std::thread::sleep(Duration::from_millis(200));
            // The keeper's own open of the watched file, on a thread of the fence: must not
            // deadlock.
            seen.lock().unwrap().push(fs::read_to_string(&path).unwrap());
        });
    }
    let of = format!("of={}", place.path());
    run(&["sh", "-c", &format!("printf after | dd {of} conv=notrunc status=none")]);
    sink.wait("left", |told| told == [ARRIVED, LEFT]);
    assert_eq!(*seen.lock().unwrap(), ["before\n"]);
    // With O_TRUNC the file is cut only after the permission.
    run(&["sh", "-c", &format!("printf x > {}", place.path())]);
    sink.wait("left again", |told| told == [ARRIVED, LEFT, ARRIVED, LEFT]);
    assert_eq!(seen.lock().unwrap()[1], "aftere\n");
}

#[test]
fn an_open_that_cuts_is_a_writer_even_if_it_only_reads() {
    let place = Place::new("trunc");
    let Some((_fence, sink)) = fanotify(&place) else { return };
    Python::start(&place, "os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))").end();
    sink.wait("left", |told| told == [ARRIVED, LEFT]);
}

#[test]
fn a_holder_keeps_the_file_bypassed_until_it_is_gone() {
    let place = Place::new("holder");
    let Some((_fence, sink)) = fanotify(&place) else { return };
    let mut holder = Python::start(&place, "fd = os.open(path, os.O_RDWR)\nready()\nwait()");
    holder.line();
    pause();
    assert_eq!(sink.told(), [ARRIVED]);
    // Another one comes and goes.
    Python::start(&place, "os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))").end();
    pause();
    assert_eq!(sink.told(), [ARRIVED]);
    holder.kill();
    sink.wait("left", |told| told == [ARRIVED, LEFT]);
}

#[test]
fn a_shared_mapping_outlives_its_descriptor() {
    let place = Place::new("mapping");
    let Some((_fence, sink)) = fanotify(&place) else { return };
    let code = "fd = os.open(path, os.O_RDWR)\nm = mmap.mmap(fd, 4)\nm2 = None\nos.close(fd)\nready()\nwait()\n\
        m.close()\nready()\nwait()";
    let mut holder = Python::start(&place, code);
    holder.line();
    pause();
    assert_eq!(sink.told(), [ARRIVED]);
    let (dev, ino) = (place.own.metadata().unwrap().dev(), place.own.metadata().unwrap().ino());
    let found = writers_outside(dev, ino, &|pid| pid == std::process::id()).unwrap();
    assert_eq!(found, [holder.child.id()]);
    holder.go();
    holder.line();
    sink.wait("left", |told| told == [ARRIVED, LEFT]);
    holder.end();
}

#[test]
fn a_descriptor_sent_away_or_inherited_still_counts() {
    let place = Place::new("sent");
    let Some((_fence, sink)) = fanotify(&place) else { return };
    // In flight between two processes no table shows it; the child then takes it out and keeps it.
    let code = "a, b = socket.socketpair()\nfd = os.open(path, os.O_RDWR)\ntime.sleep(0.2)\n\
        socket.send_fds(a, [b'x'], [fd])\nos.close(fd)\n\
        if os.fork() == 0:\n  wait()\n  _, fds, _, _ = socket.recv_fds(b, 1, 1)\n  ready()\n  wait()\n  os._exit(0)\n\
        ready()\na.close()\nb.close()\nos.wait()\n";
    let mut sender = Python::start(&place, code);
    sender.line();
    pause();
    assert_eq!(sink.told(), [ARRIVED], "in flight");
    sender.go();
    sender.line();
    pause();
    assert_eq!(sink.told(), [ARRIVED], "received");
    sender.go();
    sender.end();
    sink.wait("left", |told| told == [ARRIVED, LEFT]);

    let inherited = format!("exec 3<>{}; sleep 0.7 & exec 3>&-; exit", place.path());
    let begun = Instant::now();
    assert!(Command::new("sh").args(["-c", &inherited]).status().unwrap().success());
    sink.wait("left by the child", |told| told == [ARRIVED, LEFT, ARRIVED, LEFT]);
    assert!(begun.elapsed() > Duration::from_millis(600));
}

/// Its flags are in the opener's memory, and there they are read.
#[test]
fn an_open_by_openat2_is_what_its_flags_say() {
    let place = Place::new("openat2");
    let Some((_fence, sink)) = fanotify(&place) else { return };
    let code = |flags: u32| {
        format!(
            "how = (ctypes.c_uint64 * 3)({flags}, 0, 0)\nlibc = ctypes.CDLL(None)\n\
             fd = libc.syscall(437, -100, path.encode(), how, 24)\nassert fd >= 0\nready()\nwait()"
        )
    };
    let mut reader = Python::start(&place, &code(0));
    reader.line();
    let mut writer = Python::start(&place, &code(2));
    writer.line();
    assert_eq!(sink.told(), [ARRIVED], "a reader is no concern of anybody's");
    writer.end();
    sink.wait("left", |told| told == [ARRIVED, LEFT]);
    reader.end();
}

#[test]
fn an_opener_killed_while_it_waits_is_forgotten() {
    let place = Place::new("killed");
    let Some((_fence, sink)) = fanotify(&place) else { return };
    let (here, gate) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(())));
    let held = gate.lock().unwrap();
    {
        let (here, gate) = (here.clone(), gate.clone());
        sink.on_arrived(move |_| {
            *here.lock().unwrap() = true;
            drop(gate.lock().unwrap());
        });
    }
    let writer = Python::start(&place, "os.open(path, os.O_RDWR)\nready()\nwait()");
    while !*here.lock().unwrap() {
        std::thread::sleep(Duration::from_millis(5));
    }
    writer.kill();
    drop(held);
    sink.wait("left", |told| told == [ARRIVED, LEFT]);
}

#[test]
fn unwatching_and_stopping_let_everybody_in() {
    let place = Place::new("unwatch");
    let Some((fence, sink)) = fanotify(&place) else { return };
    let (gate, hooked) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(0)));
    let held = gate.lock().unwrap();
    {
        let (gate, hooked) = (gate.clone(), hooked.clone());
        sink.on_arrived(move |_| {
            *hooked.lock().unwrap() += 1;
            drop(gate.lock().unwrap());
        });
    }
    let open = "os.open(path, os.O_RDWR)\nready('open')\nwait()";
    let (mut first, mut second) = (Python::start(&place, open), Python::start(&place, open));
    while *hooked.lock().unwrap() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
    // An old generation is not ours to end.
    fence.unwatch(file(1, 9), Some(&place.via()));
    std::thread::sleep(Duration::from_millis(50));
    fence.unwatch(file(1, 10), Some(&place.via()));
    // One of the two is still inside `arrived`, the other was let in.
    drop(held);
    assert_eq!((first.line(), second.line()), ("open".into(), "open".into()));
    Python::start(&place, open).end();
    pause();
    assert_eq!(sink.told(), [ARRIVED]);
    first.end();
    second.end();

    // A fence that stops while somebody waits.
    let place = Place::new("stopped");
    let Some((fence, sink)) = fanotify(&place) else { return };
    let held = gate.lock().unwrap();
    {
        let gate = gate.clone();
        sink.on_arrived(move |_| drop(gate.lock().unwrap()));
    }
    let mut waiting = Python::start(&place, open);
    std::thread::sleep(Duration::from_millis(300));
    drop(fence);
    drop(held);
    assert_eq!(waiting.line(), "open");
    waiting.end();
}

#[test]
fn an_outsider_from_before_the_watch_is_followed_too() {
    let place = Place::new("present");
    let mut early = Python::start(&place, "fd = os.open(path, os.O_RDWR)\nready()\nwait()");
    early.line();
    let Some((fence, sink)) = fanotify(&place) else { return };
    pause();
    assert_eq!(sink.told(), []);
    let meta = place.own.metadata().unwrap();
    let found = writers_outside(meta.dev(), meta.ino(), &|pid| pid == std::process::id());
    assert_eq!(found, Some(vec![early.child.id()]));
    fence.present(file(1, 10), &place.via());
    sink.wait("arrived", |told| told == [ARRIVED]);
    pause();
    assert_eq!(sink.told(), [ARRIVED]);
    early.end();
    sink.wait("left", |told| told == [ARRIVED, LEFT]);
}

#[test]
fn many_outsiders_at_once() {
    let place = Place::new("many");
    let Some((_fence, sink)) = fanotify(&place) else { return };
    let code = "import random\n\
        for i in range(30):\n  fd = os.open(path, random.choice([os.O_RDWR, os.O_RDONLY, os.O_WRONLY]))\n\
        \x20 time.sleep(random.random() * 0.004)\n  os.close(fd)\n";
    let all: Vec<Python> = (0..24).map(|_| Python::start(&place, code)).collect();
    all.into_iter().for_each(Python::end);
    sink.wait("the last has left", |told| matches!(told.last(), Some(Told::Left(..))));
    pause();
    let told = sink.told();
    assert!(matches!(told.last(), Some(Told::Left(..))), "{told:?}");
    println!("720 opens by 24 outsiders: arrived {} times", told.len() / 2);
}

#[test]
fn clients_are_not_disturbed() {
    let place = Place::new("clients");
    let Some((fence, sink)) = fanotify(&place) else { return };
    let timing = "def best(n):\n  ts = []\n  for _ in range(n):\n    t = time.perf_counter_ns()\n\
        \x20   fd = os.open(path, os.O_RDWR)\n    ts.append(time.perf_counter_ns() - t)\n    os.close(fd)\n\
        \x20 ts.sort()\n  return ts[n // 2], ts[n * 99 // 100]\n\
        wait()\nready(best(2000))\n\
        def t():\n  ready(best(500))\nth = threading.Thread(target=t)\nth.start()\nth.join()\nwait()\nready(best(2000))\n";
    let mut client = Python::start(&place, timing);
    sink.adopt(&client.child);
    // Meanwhile an outsider's open of another file is stuck: clients must not notice.
    let other = Place::new("clients-other");
    fence.watch_open(file(2, 20), other.own.as_fd()).unwrap();
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock().unwrap();
    {
        let gate = gate.clone();
        sink.on_arrived(move |_| drop(gate.lock().unwrap()));
    }
    let stuck = Python::start(&other, "os.close(os.open(path, os.O_RDWR))");
    client.go();
    println!("open by a client, watched, ns (median, 99 %): {}", client.line());
    println!("the same on a second thread: {}", client.line());
    drop(held);
    stuck.end();
    sink.wait("the other file's outsider left", |told| {
        told == [Told::Arrived(2, 20), Told::Left(2, 20, true)]
    });
    fence.unwatch(file(1, 10), Some(&place.via()));
    client.go();
    println!("not watched: {}", client.line());
    client.end();
    // The keeper's own opens, and the cost of one look over all processes.
    fence.watch_open(file(1, 11), place.own.as_fd()).unwrap();
    for _ in 0..100 {
        drop(OpenOptions::new().write(true).open(place.via()).unwrap());
    }
    let begun = Instant::now();
    let meta = place.own.metadata().unwrap();
    assert_eq!(writers_outside(meta.dev(), meta.ino(), &|pid| pid == std::process::id()), Some(vec![]));
    println!("a look over all processes: {} us", begun.elapsed().as_micros());
    pause();
    assert_eq!(sink.told().len(), 2);
}

#[test]
fn a_slot_can_be_watched_anew() {
    let place = Place::new("anew");
    let Some((fence, sink)) = fanotify(&place) else { return };
    let other = Place::new("anew-other");
    fence.watch_open(file(1, 11), other.own.as_fd()).unwrap();
    fence.watch_open(file(2, 12), place.own.as_fd()).unwrap();
    // Late, for the old generation.
    fence.unwatch(file(1, 10), Some(&place.via()));
    Python::start(&place, "os.close(os.open(path, os.O_RDWR))").end();
    Python::start(&other, "os.close(os.open(path, os.O_RDWR))").end();
    sink.wait("both", |told| {
        told.contains(&Told::Left(1, 11, true)) && told.contains(&Told::Left(2, 12, true))
    });
    assert!(fence.watch(file(3, 13), Path::new("/proc/self/fd/9999")).is_err());
}

#[test]
fn inotify_tells_outsiders_from_clients() {
    let place = Place::new("inotify");
    let (_fence, sink) = inotify(&place);
    // A client announces before it opens, another a little later.
    sink.client_opens.fetch_add(1, Ordering::SeqCst);
    drop(File::open(&place.file).unwrap());
    pause();
    assert_eq!(sink.told(), []);
    drop(File::open(&place.file).unwrap());
    std::thread::sleep(Duration::from_millis(1));
    sink.client_opens.fetch_add(1, Ordering::SeqCst);
    sink.wait("the late announcement explains", |told| told.len().is_multiple_of(2));
    pause();
    let told = sink.told();
    assert!(told.is_empty() || told == [ARRIVED, Told::Left(1, 10, false)], "{told:?}");

    let (before, opens) = (told.len(), sink.client_opens.load(Ordering::SeqCst));
    assert_eq!(run(&["cat", place.path()]), "before\n");
    if blind() {
        sink.wait("the reader came", |told| told[before..] == [ARRIVED]);
        pause();
        assert_eq!(sink.told()[before..], [ARRIVED]);
        return;
    }
    sink.wait("the reader came and left", |told| told[before..] == [ARRIVED, LEFT]);
    let mut holder = Python::start(&place, "fd = os.open(path, os.O_RDWR)\nready()\nwait()");
    holder.line();
    pause();
    assert_eq!(sink.told()[before..], [ARRIVED, LEFT, ARRIVED]);
    holder.kill();
    sink.wait("the writer left", |told| told[before..] == [ARRIVED, LEFT, ARRIVED, LEFT]);
    // The outsiders' opens are not held against the clients.
    sink.client_opens.store(opens + 1, Ordering::SeqCst);
    drop(File::open(&place.file).unwrap());
    pause();
    assert_eq!(sink.told().len(), before + 4);
}

#[test]
fn inotify_finds_a_writer_behind_a_clients_open() {
    let place = Place::new("behind");
    let (_fence, sink) = inotify(&place);
    // As if the kernel had merged the client's notice with the outsider's.
    sink.client_opens.fetch_add(1, Ordering::SeqCst);
    let mut holder = Python::start(&place, "fd = os.open(path, os.O_RDWR)\nready()\nwait()");
    holder.line();
    sink.wait("arrived", |told| told == [ARRIVED]);
    holder.end();
    if !blind() {
        sink.wait("left", |told| told == [ARRIVED, LEFT]);
    }
}

#[test]
fn lost_notices_count_as_opens_of_every_file() {
    let place = Place::new("overflow");
    let (fence, sink) = inotify(&place);
    let quiet = Place::new("overflow-quiet");
    fence.watch_open(file(2, 20), quiet.own.as_fd()).unwrap();
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let stopped = sink.reader_stop.lock().unwrap();
    for _ in 0..limit / 2 + 1000 {
        drop(File::open(&place.file).unwrap());
    }
    drop(stopped);
    sink.wait("the quiet file too", |told| told.contains(&Told::Arrived(2, 20)));
    if blind() {
        return;
    }
    sink.wait("and back", |told| told.contains(&Told::Left(2, 20, true)));
    fence.unwatch(file(2, 20), Some(&quiet.via()));
}
