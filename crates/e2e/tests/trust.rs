//! Who trusts whom (docs/trust.md), attacked: by root, by the user, and by another user. Each test
//! is an attack that must fail, or a program that must work all the same and be told of.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::{Pool, fresh_path};
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::{canaries, need, report};
use rustix::process::Signal;
use serde_json::Value;

/// What a program or keeper does at once may take so long on a machine that is busy.
const SOON: Duration = Duration::from_secs(10);

/// Users that nothing else on the machine has.
const VICTIM: u32 = 61_001;
const ATTACKER: u32 = 61_002;
// Of the one test that is about their directory in /tmp.
const SQUATTED: u32 = 5;
const SQUATTED_NAME: &str = "games";
const SQUATTER: u32 = 61_004;

/// The rules, each by the deliberate bug (`crates/canary`) that takes it out, and the test that
/// must notice.
const RULES: [(&str, &str); 6] = [
    ("OthersHavePool", "a_pool_that_somebody_else_has_open_is_refused"),
    ("PeerUnchecked", "a_keeper_gives_nothing_to_another_user"),
    ("KeeperBelieved", "nobody_believes_a_keeper_of_another_user"),
    ("StoppedWaitedFor", "a_stopped_writer_keeps_no_outsider_from_its_file"),
    ("PoolShared", "a_pool_that_others_may_write_to_is_refused"),
    ("RootStaysRoot", "root_sees_drains_and_recovers_a_pool_as_its_owner"),
];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// A command as a user who has no name, only a number.
fn as_user(uid: u32, program: &str) -> Cmd {
    Cmd::new("setpriv")
        .args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()])
        .arg(program)
}

/// A pool that a user made, under a name that is removed at the end.
struct OwnPool {
    path: PathBuf,
    uid: u32,
}

impl OwnPool {
    fn new(uid: u32) -> Self {
        let pool = Self { path: fresh_path("trust"), uid };
        pool.command(uid, "format").args(["--volatile", "--size", "64M"]).ok();
        pool
    }

    fn command(&self, uid: u32, subcommand: &str) -> Cmd {
        as_user(uid, text(&need::holdfast())).args([subcommand, "--pool", text(&self.path)])
    }
}

impl Drop for OwnPool {
    fn drop(&mut self) {
        for pid in proc::keepers(&self.path) {
            proc::kill_hard(pid);
        }
        drop(std::fs::remove_file(&self.path));
        drop(std::fs::remove_dir_all(format!("/tmp/holdfast-{}", self.uid)));
    }
}

/// A command that goes on until the end of the test.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(cmd: &Cmd) -> Self {
        let mut child = cmd.spawn();
        let lines = proc::lines(&mut child);
        Self { child, lines }
    }

    /// The rest of the line that begins so.
    fn until(&self, start: &str) -> String {
        let until = Instant::now() + SOON;
        let mut told = String::new();
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim().to_owned();
            }
            told.push_str(&line);
        }
        panic!("it never said `{start}`, but `{told}`");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for pid in proc::families(&[self.child.id()]) {
            proc::kill_hard(pid);
        }
        drop(self.child.wait());
    }
}

/// Says where its keeper is and waits.
const GUEST: &str = "
import os, sys
print('socket', os.environ['HOLDFAST_SOCKET'], flush=True)
sys.stdin.read()
";

/// Says hello as a client does, by hand, and tells how many descriptors came back.
const HELLO: &str = "
import socket, struct, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.settimeout(5)
fds = []
try:
    connection.connect(sys.argv[1])
    connection.send(b'H\\0\\0\\0' + struct.pack('<I', 8))
    fds = socket.recv_fds(connection, 4096, 4)[1]
except OSError as error:
    print(error)
print('descriptors', len(fds))
";

/// Writes 40 times, and syncs.
const WRITER: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
for block in range(40): os.write(fd, b'y' * 100)
os.fsync(fd)
print('written by', os.getuid(), os.getgroups())
";
const WRITTEN_BYTES: u64 = 4000;

fn unseen(summary: &Value) -> Vec<(String, String)> {
    let rows = report::find(summary, "programs_unseen").and_then(Value::as_array).expect("a list");
    let field = |row: &Value, name: &str| row[name].as_str().expect("text").to_owned();
    rows.iter().map(|row| (field(row, "program"), field(row, "reason"))).collect()
}

fn must_get(output: &Output, descriptors: u32) {
    let told = format!("descriptors {descriptors}");
    assert!(output.stdout.lines().any(|line| line == told), "{}", output.told());
}

/// What a keeper of root gave to every process that descended from a run: its board, and a
/// descriptor of the whole pool that can be written to.
#[test]
fn a_keeper_gives_nothing_to_another_user() {
    need::root();
    let pool = Pool::new();
    let run = Running::start(&pool.run(&[]).args(["--", "python3", "-c", GUEST]));
    let socket = run.until("socket ");
    must_get(&Cmd::new("python3").args(["-c", HELLO, &socket]).ok(), 2);
    must_get(&as_user(VICTIM, "python3").args(["-c", HELLO, &socket]).ok(), 0);
    // The same as one of a run's, and with root as one of its users only.
    let nobody = ["setpriv", "--reuid=61001", "--regid=61001", "--clear-groups"];
    for start in [&nobody[..], &["setpriv", "--ruid=61001"], &["env"]] {
        let mut program = vec!["env", "-u", "LD_PRELOAD"];
        program.extend(start);
        program.extend(["python3", "-c", HELLO, &socket]);
        let output = pool.run(&["--join-as-is"]).arg("--").args(program).output();
        must_get(output.ok(), if start == ["env"] { 2 } else { 0 });
    }
    // Nor is he told that there is none.
    for command in ["status", "files", "metrics", "drain"] {
        let asked = as_user(VICTIM, text(&need::holdfast())).args([command, "--pool"]).arg(&pool.path);
        let told = asked.output();
        assert!(told.code() != 0, "{}", told.told());
        told.says(&["permission"], &[]);
        assert!(!told.stderr.contains("no keeper runs"), "{}", told.told());
    }
}

/// Whoever asks for their own pool is not told of a name that was made up for the occasion.
#[test]
fn a_default_pool_whose_name_is_taken_is_named_as_it_is() {
    const ROBBED: u32 = 61_005;
    need::root();
    let taken = PathBuf::from(format!("/dev/shm/holdfast-{ROBBED}.pool"));
    std::fs::create_dir(&taken).expect("a directory of another user's");
    let told: Vec<Output> = ["status", "files", "drain", "metrics"]
        .map(|command| as_user(ROBBED, text(&need::holdfast())).arg(command).output())
        .into();
    std::fs::remove_dir(&taken).expect("it is empty");
    for told in told {
        told.expect(&[1]).says(&[text(&taken), "somebody else's", "--pool"], &[]);
    }
}

/// A program of a run that becomes another user works, natively, and is told of with what to do.
#[test]
fn a_program_of_another_user_works_and_is_named() {
    need::root();
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    Cmd::new("chmod").args(["0777", text(&disk.root)]).ok();
    let file = disk.root.join("file");
    let nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"];
    let program = [&nobody[..], &["python3", "-c", WRITER, text(&file)]].concat();
    let (output, summary) = pool.run_summarised(&[], &program);
    output.ok().says(&["NOTHING was absorbed", "runs as another user", "--user"], &[]);
    assert_eq!(std::fs::metadata(&file).expect("written").len(), WRITTEN_BYTES);
    assert_eq!(report::number(&summary, "writes_absorbed"), 0, "{summary:#}");
    let told = unseen(&summary);
    assert!(
        told.iter().any(|(path, why)| path.contains("python3") && why.contains("another user")),
        "{told:?}"
    );
}

/// The remedy: root has keeper and program run as the user.
#[test]
fn root_can_run_it_all_as_a_user() {
    need::root();
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    Cmd::new("chmod").args(["0777", text(&disk.root)]).ok();
    let file = disk.root.join("file");
    let summary = disk.root.join("summary");
    let option = format!("--summary={}", text(&summary));
    let run = || pool.run(&["--user", "postgres", &option]);
    let output = run().args(["--", "python3", "-c", WRITER, text(&file)]).ok();
    let id = |which| Cmd::new("id").args([which, "postgres"]).ok().stdout.trim().to_owned();
    let mut groups: Vec<String> = id("-G").split(' ').map(str::to_owned).collect();
    groups.sort_by_key(|group| group.parse::<u32>().expect("a number"));
    let told = format!("written by {} [{}]", id("-u"), groups.join(", "));
    assert!(output.stdout.contains(&told), "{told}\n{}", output.told());
    let summary = report::parse(&std::fs::read_to_string(&summary).expect("summary"));
    assert!(report::number(&summary, "writes_absorbed") >= 40, "{summary:#}\n{}", output.told());
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata(&pool.path).expect("a pool").uid().to_string();
    assert_eq!(owner, id("-u"));
    // Nobody else can.
    let user = as_user(VICTIM, text(&need::holdfast()));
    user.args(["run", "--volatile", "--user", "postgres", "--", "true"])
        .output()
        .expect(&[120])
        .says(&["only root", "postgres"], &[]);
    pool.run(&["--user", "no-such-user"])
        .args(["--", "true"])
        .output()
        .expect(&[120])
        .says(&["no user no-such-user"], &[]);
}

/// Syncs a file twice, so that the second write is in the log, and stays.
const KEEPS: &str = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
for byte in b'ab':
    os.write(fd, bytes([byte]) * 4096)
    os.fsync(fd)
os.write(1, b'kept\\n')
time.sleep(600)
";

/// What a pool says is its owner's word: root does nothing on it that the owner could not do.
#[test]
fn root_sees_drains_and_recovers_a_pool_as_its_owner() {
    need::root();
    let (disk, pool) = (Disk::new(Kind::Ext4), OwnPool::new(VICTIM));
    Cmd::new("chmod").args(["0777", text(&disk.root)]).ok();
    let file = disk.root.join("file");
    let run = || {
        let run = pool.command(VICTIM, "run").args(["--volatile", "--durability=write", "--age-max", "1h"]);
        let run = Running::start(&run.args(["--", "python3", "-c", KEEPS, text(&file)]));
        run.until("kept");
        run
    };
    let as_root = |subcommand: &str| Cmd::holdfast(subcommand).args(["--pool", text(&pool.path)]);
    let first = run();
    let status = report::parse(&as_root("status").arg("--json").ok().stdout);
    assert!(report::flag(&status, "running"), "{status:#}");
    assert!(as_root("files").ok().stdout.contains(text(&file)));
    as_root("metrics").ok();
    assert!(as_root("drain").ok().stdout.contains("on disk"));
    drop(first);
    let second = run();
    let keeper = proc::keeper(&pool.path);
    for pid in proc::descendants(second.child.id()).into_iter().chain([keeper]) {
        proc::kill_hard(pid);
    }
    drop(second);
    wait_until(SOON, "the keeper's end", || proc::keepers(&pool.path).is_empty());
    // Root's own by now: the owner of the pool has no say in it.
    let owned_by = |uid| std::os::unix::fs::chown(&file, Some(uid), Some(uid)).expect("root may");
    owned_by(0);
    let told = as_root("recover").arg("--replay").output();
    told.expect(&[1]);
    assert!(told.stdout.contains("put off") || told.stdout.contains("set aside"), "{}", told.told());
    owned_by(VICTIM);
    as_root("recover").ok();
    // Nobody else gains by it.
    let other = pool.command(VICTIM + 1, "status").output();
    other.expect(&[1]).says(&[], &["no permission", "belongs to another user"]);
}

/// Stands between a keeper and whoever connects to a socket in the victim's directory, and passes
/// everything on, descriptors included.
const FALSE_KEEPER: &str = "
import os, select, socket, sys
real, directory, name = sys.argv[1:4]
os.mkdir(directory)
os.chmod(directory, 0o755)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(directory + '/' + name)
os.chmod(directory + '/' + name, 0o666)
listener.listen(16)
print('listens', flush=True)
ends = {}
while True:
    for ready in select.select([listener, *ends], [], [])[0]:
        if ready is listener:
            theirs, ours = listener.accept()[0], socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.connect(real)
            ends[theirs], ends[ours] = ours, theirs
            continue
        if ready not in ends: continue
        other = ends[ready]
        try:
            data, fds, _, _ = socket.recv_fds(ready, 1 << 20, 4)
            if data: socket.send_fds(other, [data], fds)
        except OSError: data = b''
        for fd in fds: os.close(fd)
        if not data:
            for end in ready, other: end.close(); del ends[end]
";

/// Another user made the pool that the victim names, and the directory in which the victim looks
/// for keepers; whoever serves there passes all on to a real keeper.
#[test]
fn nobody_believes_a_keeper_of_another_user() {
    need::root();
    let disk = Disk::new(Kind::Ext4);
    Cmd::new("chmod").args(["0777", text(&disk.root)]).ok();
    let pool = OwnPool::new(ATTACKER);
    let guest = ["--volatile", "--exclusive", "/", "--", "python3", "-c", GUEST];
    let keeper = Running::start(&pool.command(ATTACKER, "run").args(guest));
    let real = keeper.until("socket ");
    // The victim is kept from nothing.
    std::fs::set_permissions(&pool.path, PermissionsExt::from_mode(0o666)).expect("mode");
    let directory = format!("/tmp/holdfast-{VICTIM}");
    drop(std::fs::remove_dir_all(&directory));
    let name = Path::new(&real).file_name().expect("a name").to_str().expect("text").to_owned();
    let start = as_user(ATTACKER, "python3").args(["-c", FALSE_KEEPER, &real, &directory, &name]);
    let false_keeper = Running::start(&start);
    false_keeper.until("listens");

    let file = disk.root.join("file");
    let program = ["--", "python3", "-c", WRITER, text(&file)];
    let output = pool.command(VICTIM, "run").args(["--volatile", "--exclusive", "/"]).args(program).output();
    let status = pool.command(VICTIM, "status").output();
    // The library alone, which has nothing but the path of a socket.
    let library = need::holdfast().with_file_name("libholdfast.so");
    let direct = as_user(VICTIM, "env")
        .arg(format!("LD_PRELOAD={}", text(&library)))
        .arg(format!("HOLDFAST_SOCKET={directory}/{name}"))
        .args(["python3", "-c", WRITER, text(&file)])
        .output();
    drop(std::fs::remove_dir_all(&directory));
    output.expect(&[120]).says(&["belongs to another user", &ATTACKER.to_string()], &[]);
    status.expect(&[1]).says(&["belongs to another user"], &[]);
    direct.ok().says(&["another user's"], &[]);
}

/// Another user made the directory in which the victim's keepers take connections. They take them
/// elsewhere, and whoever has the pool finds out where.
#[test]
fn nobody_keeps_a_keeper_from_its_socket() {
    need::root();
    let disk = Disk::new(Kind::Ext4);
    Cmd::new("chmod").args(["0777", text(&disk.root)]).ok();
    let directory = format!("/tmp/holdfast-{SQUATTED}");
    drop(std::fs::remove_dir_all(&directory));
    as_user(SQUATTER, "mkdir").args(["-m", "0755", &directory]).ok();
    let pool = OwnPool::new(SQUATTED);
    let made = || {
        let entries = std::fs::read_dir("/tmp").expect("a directory").flatten();
        entries.filter(|entry| entry.path().to_string_lossy().starts_with(&format!("{directory}-"))).count()
    };
    let before = made();
    let guest = ["--volatile", "--exclusive", "/", "--", "python3", "-c", GUEST];
    let keeper = Running::start(&pool.command(SQUATTED, "run").args(guest));
    keeper.until("socket ");
    pool.command(SQUATTED, "status").ok();
    assert_eq!(made(), before + 1);
    proc::keepers(&pool.path).into_iter().for_each(proc::kill_hard);
    drop(keeper);
    let file = disk.root.join("file");
    let program = ["--", "python3", "-c", WRITER, text(&file)];
    let options = ["--volatile", "--exclusive", "/", "--summary=-"];
    let output = pool.command(SQUATTED, "run").args(options).args(program).output();
    let root = Cmd::new(text(&need::holdfast()))
        .args(["run", "--user", SQUATTED_NAME, "--volatile", "--pool", text(&pool.path), "--", "true"])
        .output();
    let after = made();
    drop(std::fs::remove_dir_all(&directory));
    output.ok();
    root.ok();
    assert_eq!(after, before, "what was made for a socket goes with it, and what was left by a kill");
}

/// A pool is as good as who can write to it.
#[test]
fn a_pool_that_others_may_write_to_is_refused() {
    let pool = Pool::formatted();
    for mode in [0o620, 0o602] {
        std::fs::set_permissions(&pool.path, PermissionsExt::from_mode(mode)).expect("mode");
        pool.run(&[]).args(["--", "true"]).output().expect(&[120]).says(&["others may write"], &[]);
        pool.recover(&[]).expect(&[1]).says(&["others may write"], &[]);
        pool.command("status").output().expect(&[1]).says(&["others may write"], &[]);
    }
}

/// Opens a pool and keeps it; with a second argument, as a message that nobody has read.
const HAS_IT_OPEN: &str = "
import os, socket, sys
kept = [os.open(sys.argv[1], os.O_RDWR)]
if len(sys.argv) > 2:
    ends = socket.socketpair()
    socket.send_fds(ends[0], [b'x'], kept)
    os.close(kept[0])
print('has it', flush=True)
sys.stdin.read()
";

/// Who kept a descriptor of a pool wrote to it while it was in use by the next keeper, and that one
/// wrote to files by what it found there.
#[test]
fn a_pool_that_somebody_else_has_open_is_refused() {
    std::thread::scope(|scope| {
        for hidden in [false, true] {
            scope.spawn(move || {
                let pool = Pool::formatted();
                let mut keeps = vec!["-c", HAS_IT_OPEN, pool.text()];
                keeps.extend(hidden.then_some("hidden"));
                let keeps = Running::start(&Cmd::new("python3").args(keeps));
                keeps.until("has it");
                let start = || pool.run(&[]).args(["--", "true"]).limit(Duration::from_secs(60)).output();
                let pid = keeps.child.id().to_string();
                let who = if hidden { "cannot be named" } else { &pid };
                start().expect(&[120]).says(&["is open", who], &[]);
                drop(keeps);
                start().ok();
            });
        }
    });
}

/// Takes what a client gets and tries to make it smaller and larger.
const RESIZE: &str = "
import os, socket, struct, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
connection.send(b'H\\0\\0\\0' + struct.pack('<I', 8))
board = socket.recv_fds(connection, 4096, 4)[1][0]
for size in 0, 1 << 40:
    try: os.ftruncate(board, size); print('resized')
    except OSError as error: print(error)
";

/// Whoever cut the board ended its keeper and every client by SIGBUS.
#[test]
fn no_client_can_cut_the_board() {
    let pool = Pool::new();
    let run = Running::start(&pool.run(&[]).args(["--", "python3", "-c", GUEST]));
    let socket = run.until("socket ");
    let output = Cmd::new("python3").args(["-c", RESIZE, &socket]).ok();
    assert!(!output.stdout.contains("resized"), "{}", output.told());
    assert_eq!(output.stdout.matches("Operation not permitted").count(), 2, "{}", output.told());
    pool.status();
}

/// Connects and says nothing.
const SILENT: &str = "
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = []
for _ in range(600):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.setblocking(False)
    try: one.connect(sys.argv[1]); held.append(one)
    except OSError: one.close()
print('connected', len(held), flush=True)
sys.stdin.read()
";

/// Connections that nobody says anything on took all of a keeper's descriptors: it span, and every
/// program that was started hung.
#[test]
fn silent_connections_stop_nobody() {
    need::root();
    let pool = Pool::new();
    let limited = "ulimit -n 120 && exec \"$@\"";
    let holdfast = need::holdfast();
    let options = ["run", "--volatile", "--size=64M", "--pool", pool.text(), "--", "python3", "-c", GUEST];
    let run = Running::start(&Cmd::new("sh").args(["-c", limited, "sh", text(&holdfast)]).args(options));
    let socket = run.until("socket ");
    let keeper = proc::keeper(&pool.path);
    // Another user's are not kept at all.
    let others = Running::start(&as_user(VICTIM, "python3").args(["-c", SILENT, &socket]));
    others.until("connected ");
    wait_until(SOON, "all of them turned away", || descriptors(keeper) < 60);
    let output = pool.run(&["--join-as-is"]).args(["--", "true"]).limit(SOON).output();
    output.ok();
    // The user's own take what there is, and nobody spins over that.
    let own = Running::start(&Cmd::new("python3").args(["-c", SILENT, &socket]));
    own.until("connected ");
    wait_until(SOON, "the keeper without descriptors", || descriptors(keeper) > 110);
    let (before, begun) = (proc::cpu_ticks(keeper), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let ticks = proc::cpu_ticks(keeper) - before;
    // A hundred of them are a second.
    assert!(ticks < 50, "{ticks} ticks in {:?}", begun.elapsed());
    // And not for ever.
    wait_until(Duration::from_secs(60), "the end of the silence", || descriptors(keeper) < 60);
    pool.run(&["--join-as-is"]).args(["--", "true"]).ok();
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").count()
}

/// Asking a keeper that is stopped never ended.
#[test]
fn a_stopped_keeper_is_told_of() {
    let pool = Pool::new();
    let run = Running::start(&pool.run(&[]).args(["--", "python3", "-c", GUEST]));
    run.until("socket ");
    let keeper = proc::keeper(&pool.path);
    proc::signal(keeper, Signal::STOP);
    wait_until(SOON, "the keeper's stop", || proc::at_rest(keeper));
    let (status, drain) = std::thread::scope(|scope| {
        let ask = |what: &'static str| {
            let command = pool.command(what).limit(Duration::from_secs(60));
            scope.spawn(move || command.output())
        };
        let (status, drain) = (ask("status"), ask("drain"));
        (status.join().expect("asked"), drain.join().expect("asked"))
    });
    proc::signal(keeper, Signal::CONT);
    for output in [status, drain] {
        output.expect(&[1]).says(&["is stopped", &format!("kill -CONT {keeper}")], &[]);
    }
    pool.command("drain").ok();
}

/// Writes a megabyte again and again; the media take a second for each.
const SLOW: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'a' * 4096)
os.fsync(fd)
print('ready', flush=True)
for _ in range(4): os.pwrite(fd, b'b' * 1000000, 4096)
print('written', flush=True)
sys.stdin.read()
";

/// A process that was stopped in the middle of a write hung whoever opened the file, for ever. In
/// state Behind the file is not taken from it (`stalls.rs`).
#[test]
fn a_stopped_writer_keeps_no_outsider_from_its_file() {
    need::root();
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let options = ["--write-behind=at-once", "--fence=fanotify", "--nvm-bandwidth=1M/s", "--age-max=3600000"];
    let run = Running::start(&pool.run(&options).args(["--", "python3", "-c", SLOW, text(&file)]));
    run.until("ready");
    std::thread::sleep(Duration::from_millis(300));
    let clients = pool.status();
    let clients = report::find(&clients, "clients").and_then(Value::as_array).expect("a list").clone();
    let [client] = &clients[..] else { panic!("{clients:?}") };
    let client = client.as_u64().expect("a number") as u32;
    proc::signal(client, Signal::STOP);
    wait_until(SOON, "the writer's stop", || proc::at_rest(client));
    let script = "printf outside | dd conv=notrunc,fsync of=\"$0\" 2>&1";
    let outside = Cmd::new("sh").args(["-c", script, text(&file)]).limit(Duration::from_secs(40)).ok();
    assert!(outside.took < Duration::from_secs(30), "{}", outside.told());
    assert!(outside.took > Duration::from_secs(2), "the writer was in no write\n{}", outside.told());
    let told = pool.status();
    let errors = report::find(&told, "errors").and_then(Value::as_array).expect("a list").clone();
    assert!(
        errors.iter().any(|error| error.as_str().is_some_and(|text| text.contains("stands still"))),
        "{told:#}"
    );
    // It goes on as if nothing had been.
    proc::signal(client, Signal::CONT);
    run.until("written");
    let bytes = std::fs::read(&file).expect("a file");
    assert_eq!((&bytes[..8], bytes.len()), (&b"outsidea"[..], 1_004_096));
    assert!(bytes[4096..].iter().all(|byte| *byte == b'b'));
}

/// The same, and then everybody dies: the log must not be laid over what the outsider wrote.
#[test]
fn what_an_outsider_wrote_beside_a_stopped_writer_is_not_undone() {
    need::root();
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let options = ["--write-behind=at-once", "--fence=fanotify", "--nvm-bandwidth=1M/s", "--age-max=3600000"];
    let run = Running::start(&pool.run(&options).args(["--", "python3", "-c", SLOW, text(&file)]));
    run.until("ready");
    std::thread::sleep(Duration::from_millis(300));
    let family = proc::descendants(run.child.id());
    let keeper = proc::keeper(&pool.path);
    for &pid in family.iter().filter(|pid| **pid != keeper) {
        proc::signal(pid, Signal::STOP);
    }
    wait_until(SOON, "the writer's stop", || {
        family.iter().filter(|pid| **pid != keeper).all(|pid| proc::at_rest(*pid))
    });
    let script = "printf outside | dd conv=notrunc,fsync of=\"$0\" 2>&1";
    Cmd::new("sh").args(["-c", script, text(&file)]).limit(Duration::from_secs(40)).ok();
    // The keeper first: else it repairs what the others leave.
    proc::kill_hard(keeper);
    drop(run);
    wait_until(SOON, "the keeper's end", || proc::keepers(&pool.path).is_empty());
    let recovered = pool.recover(&["--replay"]).expect(&[1]).stdout.clone();
    assert!(recovered.contains("set aside"), "{recovered}");
    assert!(std::fs::read(&file).expect("a file").starts_with(b"outsidea"), "{recovered}");
}

/// Puts another file in the place of its keeper's pool, starts a child, which is a client anew, and
/// says what that has mapped.
const REPLACED: &str = "
import os, shutil, subprocess, sys
pool = sys.argv[1]
os.rename(pool, pool + '.moved')
shutil.copy(pool + '.moved', pool)
told = subprocess.check_output(['cat', '/proc/self/maps']).decode()
os.rename(pool + '.moved', pool)
print('\\n'.join(line for line in told.splitlines() if '.pool' in line))
";

#[test]
fn what_stands_at_the_pools_name_is_not_what_clients_map() {
    let pool = Pool::new();
    let told = pool.run(&[]).args(["--", "python3", "-c", REPLACED, pool.text()]).ok().stdout;
    let moved = format!("{}.moved", pool.text());
    assert!(told.lines().count() > 0 && told.lines().all(|line| line.ends_with(&moved)), "{told}");
}

/// What others put under the name of a summary: a link to a file of ours, and a pipe that nobody
/// reads, at which `run` waited for ever.
#[test]
fn a_summary_follows_no_link_of_another_users_and_waits_for_no_reader() {
    let (pool, place) = (Pool::new(), tempfile::tempdir().expect("a directory"));
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o777)).expect("mode");
    let [ours, link, pipe, own] = ["ours", "link", "pipe", "own"].map(|name| place.path().join(name));
    std::fs::write(&ours, "precious").expect("a file");
    as_user(ATTACKER, "ln").args(["-s", text(&ours), text(&link)]).ok();
    as_user(ATTACKER, "mkfifo").args(["-m", "666", text(&pipe)]).ok();
    std::os::unix::fs::symlink(&ours, &own).expect("a link");
    let run = |to: &Path| {
        let summary = format!("--summary={}", text(to));
        pool.run(&[&summary]).args(["--", "echo", "started"]).limit(SOON * 3).output()
    };
    for (to, says) in [(&link, "a link of another user's"), (&pipe, "nobody reads")] {
        let output = run(to);
        output.expect(&[120]).says(&["--summary", says], &[]);
        assert_eq!((output.stdout.as_str(), &*std::fs::read_to_string(&ours).expect("it")), ("", "precious"));
    }
    run(&own).ok();
    report::parse(&std::fs::read_to_string(&ours).expect("the summary"));
    assert!(run(Path::new("/dev/stdout")).ok().stdout.starts_with("started\n{"));
}

/// Each test above with the rule taken out that it is about; with all rules they run in this build
/// already.
#[test]
fn every_rule_that_is_taken_out_is_missed() {
    let survived = canaries::survivors(&RULES);
    assert!(survived.is_empty(), "survived: {survived:?}");
}
