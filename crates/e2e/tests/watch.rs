//! Root's watch (docs/trust.md): what it does for another user's keeper, what it may do, and what
//! becomes of both without each other.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::running::Running;
use holdfast_e2e::{need, report};
use rustix::process::Signal;

/// Who the keeper is.
const USER: &str = "postgres";
/// A user that nothing else on the machine has.
const ATTACKER: u32 = 61_002;
/// `SYS_ADMIN`, `SYS_PTRACE` and `DAC_READ_SEARCH`.
const CAPABILITIES: &str = "0000000000280004";

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

fn number_of(which: &str) -> u32 {
    Cmd::new("id").args([which, USER]).ok().stdout.trim().parse().expect("a number")
}

/// One whose root everybody may write to.
fn open_disk(kind: Kind) -> Disk {
    need::root();
    let disk = Disk::new(kind);
    Cmd::new("chmod").args(["0777", text(&disk.root)]).ok();
    disk
}

/// Watches among a process and its descendants.
fn watches(pid: u32) -> Vec<u32> {
    let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    proc::families(&[pid]).into_iter().filter(|pid| name(pid).trim() == "holdfast-watch").collect()
}

fn status_of(pid: u32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect(field);
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Appends records and syncs them, until it is told to go on and end.
const WRITER: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o666)
for number in range(200):
    os.pwrite(fd, b'%06d\\n' % number, 7 * number)
    os.fsync(fd)
print('written', flush=True)
sys.stdin.readline()
os.lseek(fd, 0, 2)
os.write(fd, b'again\\n')
os.fsync(fd)
other = os.open(sys.argv[1] + '-new', os.O_RDWR | os.O_CREAT, 0o666)
os.write(other, b'new')
os.fsync(other)
print('again', flush=True)
sys.stdin.readline()
";

fn lines(count: u32) -> String {
    (0..count).map(|number| format!("{number:06}\n")).collect()
}

#[test]
fn a_users_program_has_its_outsiders_wait() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        for behind in ["--write-behind=off", "--write-behind=at-once"] {
            let (disk, pool) = (open_disk(kind), Pool::new());
            let (file, summary) = (disk.root.join("file"), disk.root.join("summary"));
            let option = format!("--summary={}", text(&summary));
            let options = ["--user", USER, behind, &option, "--age-max=3600000"];
            let mut run = Running::python(&pool, &options, WRITER, &file);
            run.until("written");
            // Root reads the newest, wherever it is.
            assert_eq!(std::fs::read_to_string(&file).expect("file"), lines(200), "{kind:?} {behind}");
            let mut outsider = std::fs::File::options().append(true).open(&file).expect("outsider");
            outsider.write_all(b"outside\n").expect("write");
            drop(outsider);
            run.go_on();
            run.until("again");
            run.go_on();
            assert!(run.child.wait().expect("run").success());
            let expected = lines(200) + "outside\nagain\n";
            assert_eq!(std::fs::read_to_string(&file).expect("file"), expected, "{kind:?} {behind}");
            let summary = report::parse(&std::fs::read_to_string(&summary).expect("summary"));
            assert_eq!(summary["fence"], "fanotify", "{summary:#}");
            assert!(report::number(&summary, "writes_absorbed") >= 190, "{summary:#}");
        }
    }
}

/// A process that ends with the test.
struct Ended(Child);

impl Ended {
    /// What it says, line by line.
    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        BufReader::new(self.0.stdout.take().expect("piped")).lines().map_while(Result::ok)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A watch that was started by hand.
struct Watch {
    process: Ended,
    name: String,
}

impl Watch {
    fn start() -> Self {
        need::root();
        let program = need::holdfast().with_file_name("holdfast-watch");
        let child = Command::new(&program)
            .args(["--user", &number_of("-u").to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}: cargo build --release", program.display()));
        let mut process = Ended(child);
        let name = process.lines().next().expect("its name");
        Self { process, name }
    }

    fn pid(&self) -> u32 {
        self.process.0.id()
    }
}

/// Speaks to a watch as a keeper does, and tells what it answers to each descriptor.
const KEEPER: &str = "
import os, socket, struct, sys, time
name, root = sys.argv[1:3]
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect('\\0' + name)
hello = line.recv(100)
if not hello:
    print('refused')
    sys.exit()
assert struct.unpack('<5Q', hello) == (0, 10, 0, 0, 0)
number = 0
def watch(what, fd):
    global number
    number += 1
    socket.send_fds(line, [struct.pack('<5Q', number, 1, number, 7, 0)], [fd])
    told = struct.unpack('<5Q', line.recv(100))
    assert told[:2] == (number, 10), told
    print(what, os.strerror(told[4]), flush=True)
own = root + '/own'
watch('read only', os.open(root + '/roots', os.O_RDONLY))
watch('by path', os.open(own, os.O_PATH))
watch('directory', os.open(root, os.O_RDONLY))
watch('device', os.open('/dev/null', os.O_RDWR))
watch('pipe', os.pipe()[1])
watch('in memory', os.memfd_create('file'))
watch('own', os.open(own, os.O_WRONLY))
print('ready', flush=True)
late = float(sys.argv[3])
while late == 0: time.sleep(60)
while True:
    number, kind = struct.unpack('<5Q', line.recv(100))[:2]
    time.sleep(late)
    # Whoever it is, an outsider opens.
    line.send(struct.pack('<5Q', number, 10, 0, 0, 2 << 32 | 1 if kind == 4 else 0))
";

/// One that answers so many seconds late, or never (0).
fn keeper_of(uid: u32, watch: &Watch, disk: &Disk, late: &str) -> Ended {
    let mut command = Command::new("python3");
    command.args(["-c", KEEPER, &watch.name, text(&disk.root), late]).stdout(Stdio::piped());
    Ended(command.uid(uid).gid(uid).spawn().expect("python3"))
}

/// Files for a keeper to show: its own, and one of root's.
fn files(disk: &Disk) {
    std::fs::write(disk.root.join("roots"), "roots").expect("file");
    std::fs::write(disk.root.join("own"), "own").expect("file");
    std::os::unix::fs::chown(disk.root.join("own"), Some(number_of("-u")), None).expect("chown");
}

#[test]
fn the_watch_has_few_rights_and_hears_its_user_alone() {
    let (disk, watch) = (open_disk(Kind::Ext4), Watch::start());
    files(&disk);
    for field in ["Uid:", "CapPrm:", "CapEff:", "CapInh:", "CapAmb:", "NoNewPrivs:", "Groups:"] {
        let expected = match field {
            "Uid:" => ["2147480000"; 4].join(" "),
            "CapPrm:" | "CapEff:" => CAPABILITIES.to_owned(),
            "CapInh:" | "CapAmb:" => "0000000000000000".to_owned(),
            "NoNewPrivs:" => "1".to_owned(),
            _ => String::new(),
        };
        assert_eq!(status_of(watch.pid(), field), expected, "{field}");
    }
    // Who could stop it, or take its descriptors away, would stop all who wait for it.
    let (pid, mut as_user) = (watch.pid().to_string(), Command::new("sh"));
    as_user.args(["-c", "kill -STOP $0; prlimit --pid $0 --nofile=3:3; kill -KILL $0", &pid]);
    as_user.uid(number_of("-u")).gid(number_of("-g")).stderr(Stdio::null()).status().expect("sh");
    assert_eq!(status_of(watch.pid(), "State:"), "S (sleeping)");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
    assert!(!limits.lines().any(|line| line.starts_with("Max open files            3 ")), "{limits}");
    for stranger in [ATTACKER, 0] {
        let told: Vec<String> = keeper_of(stranger, &watch, &disk, "0").lines().collect();
        assert_eq!(told, ["refused"], "user {stranger}");
    }
}

#[test]
fn nobody_has_others_wait_for_a_file_that_is_not_theirs() {
    let (disk, watch) = (open_disk(Kind::Xfs), Watch::start());
    files(&disk);
    let mut keeper = keeper_of(number_of("-u"), &watch, &disk, "0");
    let told: Vec<String> = keeper.lines().take_while(|line| line != "ready").collect();
    let expected = [
        "read only Bad file descriptor",
        "by path Bad file descriptor",
        "directory Bad file descriptor",
        "device Operation not supported",
        "pipe Operation not supported",
        "in memory Operation not supported",
        "own Success",
    ];
    assert_eq!(told, expected);
}

/// Nobody waits for it then for more than ten seconds, nor again and again, and no other takes its
/// place.
#[test]
fn a_keeper_that_does_not_answer_loses_its_watch() {
    for late in ["0", "1.5"] {
        let (disk, mut watch) = (open_disk(Kind::Ext4), Watch::start());
        files(&disk);
        let mut keeper = keeper_of(number_of("-u"), &watch, &disk, late);
        assert!(keeper.lines().any(|line| line == "ready"));
        let second: Vec<String> = keeper_of(number_of("-u"), &watch, &disk, late).lines().collect();
        assert_eq!(second, ["refused"], "one at a time");
        let mut waited = Vec::new();
        for _ in 0..8 {
            let begun = Instant::now();
            std::fs::File::options().write(true).open(disk.root.join("own")).expect("own");
            waited.push(begun.elapsed());
        }
        assert!(waited[0] > Duration::from_secs(1), "{late}: {waited:?}");
        assert!(waited.iter().all(|waited| *waited < Duration::from_secs(12)), "{late}: {waited:?}");
        assert!(waited.last().is_some_and(|last| *last < Duration::from_secs(1)), "{late}: {waited:?}");
        wait_until(Duration::from_secs(10), "the end of the watch", || {
            watch.process.0.try_wait().expect("watch").is_some()
        });
    }
}

/// Listens where root's watch is said to be, and says that all is well.
const FALSE_WATCH: &str = "
import socket, struct, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind('\\0' + sys.argv[1])
listener.listen(4)
print('listens', flush=True)
while True:
    line = listener.accept()[0]
    try:
        line.send(struct.pack('<5Q', 0, 10, 0, 0, 0))
        while True:
            number = struct.unpack('<5Q', line.recv(100))[0]
            line.send(struct.pack('<5Q', number, 10, 0, 0, 0))
    except Exception: pass
";

/// Whoever is believed there can have a keeper take outsiders for its clients.
#[test]
fn a_watch_that_is_not_roots_is_not_believed() {
    let (disk, pool) = (open_disk(Kind::Ext4), Pool::new().given_to(USER, ""));
    let name = format!("holdfast-e2e-{}", std::process::id());
    let mut listens = Command::new("python3");
    listens.args(["-c", FALSE_WATCH, &name]).stdout(Stdio::piped()).uid(ATTACKER).gid(ATTACKER);
    let mut watch = Ended(listens.spawn().expect("python3"));
    assert_eq!(watch.lines().next().as_deref(), Some("listens"));
    let file = disk.root.join("file");
    let program = ["--", "touch", text(&file)];
    let run = |fence: &str| pool.run(&[fence]).args(program).env("HOLDFAST_WATCH", &name).output();
    run("--fence=fanotify").expect(&[120]).says(&["is not root"], &[]);
    run("--fence=auto").ok();
    assert!(file.exists());
}

/// What an outsider and the program write from then on is there, after a kill as well.
#[test]
fn without_its_watch_a_keeper_leaves_its_files_to_the_kernel() {
    for behind in ["--write-behind=off", "--write-behind=at-once"] {
        let (disk, pool) = (open_disk(Kind::Ext4), Pool::new());
        let file = disk.root.join("file");
        let options = ["--user", USER, behind, "--age-max=3600000"];
        let mut run = Running::python(&pool, &options, WRITER, &file);
        run.until("written");
        let found = watches(run.child.id());
        assert_eq!(found.len(), 1, "{found:?}");
        found.iter().for_each(|&pid| proc::kill_hard(pid));
        wait_until(Duration::from_secs(20), "everything in the page cache", || {
            std::fs::read_to_string(&file).is_ok_and(|found| found == lines(200))
        });
        let status = || pool.command("status").arg("--json").user(USER, "").ok().stdout;
        wait_until(Duration::from_secs(20), "word of it", || status().contains("root's watch has ended"));
        let mut outsider = std::fs::File::options().append(true).open(&file).expect("outsider");
        outsider.write_all(b"outside\n").expect("write");
        outsider.sync_all().expect("sync");
        drop(outsider);
        run.go_on();
        run.until("again");
        // Nor is a new one managed, at which nobody would be noticed.
        let status = report::parse(&status());
        let bypassed = status["summary"]["bypassed"].to_string();
        assert!(bypassed.matches("root's watch has ended").count() >= 2, "{status:#}");
        assert!(bypassed.contains("file-new") && !bypassed.contains("outside Holdfast"), "{status:#}");
        run.kill_all(&pool);
        pool.command("recover").user(USER, "").ok();
        let expected = lines(200) + "outside\nagain\n";
        assert_eq!(std::fs::read_to_string(&file).expect("file"), expected, "{behind}");
    }
}

/// A run whose watch was killed said nothing of it, and its summary that somebody had the files
/// open.
#[test]
fn a_lost_watch_is_said_at_the_end() {
    let (disk, pool) = (open_disk(Kind::Ext4), Pool::new());
    let mut run = Running::python(&pool, &["--user", USER], WRITER, &disk.root.join("file"));
    run.until("written");
    watches(run.child.id()).iter().for_each(|&pid| proc::kill_hard(pid));
    let status = || pool.command("status").arg("--json").user(USER, "").ok().stdout;
    wait_until(Duration::from_secs(20), "word of it", || status().contains("root's watch has ended"));
    run.go_on();
    run.until("again");
    run.go_on();
    let mut said = String::new();
    run.child.stderr.take().expect("piped").read_to_string(&mut said).expect("what it says");
    assert!(run.child.wait().expect("its end").success(), "{said}");
    let last = said.lines().last().expect("a line");
    assert!(last.contains("root's watch (holdfast-watch) has ended"), "{said}");
}

/// Writes some files, and then one for seconds on end: a writer that can be stopped in that.
const MANY: &str = "
import os, sys
files = [os.open(sys.argv[1] + '-%d' % n, os.O_RDWR | os.O_CREAT, 0o666) for n in range(9)]
for fd in files: os.pwrite(fd, b'a' * 64, 0)
print('ready', flush=True)
while True: os.pwrite(files[8], b'b' * 1000000, 0)
";

/// A keeper that has lost its watch has to bring one file after the other to the disk, and one of
/// them waits for a stopped writer. What an outsider wrote to the others meanwhile was undone.
#[test]
fn what_an_outsider_wrote_after_the_watch_was_lost_is_not_undone() {
    let (disk, pool) = (open_disk(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let options = ["--user", USER, "--nvm-bandwidth=1M/s", "--age-max=3600000"];
    let mut run = Running::python(&pool, &options, MANY, &file);
    run.until("ready");
    std::thread::sleep(Duration::from_millis(300));
    let keeper = proc::keeper(&pool.path);
    let found = watches(run.child.id());
    let mut programs = proc::descendants(run.child.id());
    programs.retain(|pid| *pid != keeper && !found.contains(pid));
    programs.iter().for_each(|&pid| proc::signal(pid, Signal::STOP));
    wait_until(Duration::from_secs(20), "the writer's stop", || {
        programs.iter().all(|&pid| proc::at_rest(pid))
    });
    found.iter().for_each(|&pid| proc::kill_hard(pid));
    let is_told = || {
        let status = pool.command("status").arg("--json").user(USER, "").ok().stdout;
        status.contains("root's watch has ended")
    };
    wait_until(Duration::from_secs(4), "word of it", is_told);
    for number in 0..8 {
        let mut outsider =
            std::fs::File::options().write(true).open(disk.root.join(format!("file-{number}")));
        let outsider = outsider.as_mut().expect("outsider");
        outsider.write_all(b"outside").expect("write");
        outsider.sync_all().expect("sync");
    }
    // The keeper first: else it repairs what the others leave.
    proc::kill_hard(keeper);
    run.kill_all(&pool);
    let recovered = pool.command("recover").args(["--json", "--replay"]).user(USER, "").output();
    // Of what was not on the disk by then nobody says that somebody opened it. A keeper that was
    // quick had everything there.
    let told = &recovered.stdout;
    let is_told = told.contains("root's watch ended") || told.contains("\"files\": []");
    assert!(is_told && !told.contains("opened it while"), "{}", recovered.told());
    for number in 0..8 {
        let found = std::fs::read(disk.root.join(format!("file-{number}"))).expect("file");
        assert!(found.starts_with(b"outsidea"), "file {number}\n{}", recovered.told());
    }
}
