//! Programs that stand still in the midst of a change of a file (docs/trust.md, Who waits for
//! whom): nobody waits for them for long, what others have acknowledged is kept, and what they do
//! when they go on is the kernel's.

use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::running::{Running, SOON};
use holdfast_e2e::{canaries, need, report};
use rustix::process::Signal;
use serde_json::Value;

/// The rules, each by the deliberate bug (`crates/canary`) that takes it out, and the test that
/// must notice.
const RULES: [(&str, &str); 1] =
    [("StoppedNamesWaitedFor", "who_is_stopped_in_a_rename_keeps_its_file_from_nobody")];

/// Two programs that have a file open. One acts and is stopped in that; the other one then does
/// something beside it.
const PAIR: &str = "
import os, sys
root, first, act, beside, after = sys.argv[1:6]
os.chdir(root)
fd = os.open('file', os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(fd, b'0' * 8192, 0)
exec(first)
orders, order = os.pipe()
child = os.fork()
if child == 0:
    fd = os.open('file', os.O_RDWR)
    os.pwrite(fd, b'1', 8191)
    print('child', os.getpid(), flush=True)
    for step in (act, after):
        os.read(orders, 1)
        exec(step)
        print('done', flush=True)
    os.read(orders, 1)
    os._exit(0)
sys.stdin.readline()
os.write(order, b'1')
sys.stdin.readline()
exec(beside)
print('beside', flush=True)
for _ in range(2):
    sys.stdin.readline()
    os.write(order, b'1')
print('over', os.waitpid(child, 0)[1], flush=True)
";

/// A debugger: it stops a process where it is about to make one of some calls, or, with `after`,
/// has the call made and stops it by a signal.
const STOPPER: &str = "
import ctypes, os, signal, struct, sys
pid, how, calls = int(sys.argv[1]), sys.argv[2], set(map(int, sys.argv[3:]))
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
def ptrace(request, address=0, data=0):
    if libc.ptrace(request, pid, address, data) < 0: raise OSError(ctypes.get_errno(), str(request))
SEIZE, INTERRUPT, SYSCALL, DETACH, INFO = 0x4206, 0x4207, 24, 17, 0x420e
ptrace(SEIZE, 0, 1)
ptrace(INTERRUPT)
os.waitpid(pid, 0x40000000)
print('ready', flush=True)
info = ctypes.create_string_buffer(88)
while True:
    ptrace(SYSCALL)
    os.waitpid(pid, 0x40000000)
    try: libc.ptrace(INFO, pid, 88, ctypes.addressof(info))
    except OSError: continue
    operation, number = info.raw[0], struct.unpack_from('Q', info.raw, 24)[0]
    if operation == 1 and number in calls: break
if how == 'after':
    os.kill(pid, signal.SIGSTOP)
    ptrace(DETACH)
print('stopped', flush=True)
sys.stdin.readline()
if how == 'after': os.kill(pid, signal.SIGCONT)
else: ptrace(DETACH)
print('released', flush=True)
";

const RENAMES: &[&str] = &["82", "264", "316"];
const PWRITE: &[&str] = &["18"];
const PREAD: &[&str] = &["17"];
const FTRUNCATE: &[&str] = &["77"];

/// What the pair does.
struct Play {
    first: &'static str,
    act: &'static str,
    /// `before` a call, or `after` it.
    stopped: (&'static str, &'static [&'static str]),
    beside: &'static str,
    after: &'static str,
}

/// A pair of which one stands still.
struct Pair {
    run: Running,
    stopper: Running,
    child: u32,
}

impl Pair {
    /// Plays up to where the first program stands still.
    fn stopped(pool: &Pool, options: &[&str], root: &Path, play: &Play) -> Self {
        let script = [PAIR, root.to_str().expect("text"), play.first, play.act, play.beside, play.after];
        let mut run = Running::start(&pool.run(options).args(["--", "python3", "-c"]).args(script));
        let line = run.until("child");
        let child = line.split_whitespace().nth(1).and_then(|pid| pid.parse().ok()).expect("a number");
        let (how, calls) = play.stopped;
        let stopper = Cmd::new("python3").args(["-c", STOPPER, &format!("{child}"), how]).args(calls);
        let mut stopper = Running::start(&stopper);
        stopper.until("ready");
        run.go_on();
        stopper.until("stopped");
        wait_until(SOON, "the stop", || is_stopped(child));
        Self { run, stopper, child }
    }

    /// The other program does its part, which must not take long.
    fn beside(&mut self) {
        self.run.go_on();
        // Without the rule it never comes, which is not to take long either.
        let is_spoilt = std::env::var_os("HOLDFAST_CANARY").is_some();
        let until = Instant::now() + if is_spoilt { 2 * SOON } else { 6 * SOON };
        let left = || until.saturating_duration_since(Instant::now());
        while self.run.lines.recv_timeout(left()).expect("the other program waits") != "beside" {}
        assert!(is_stopped(self.child), "it was beside nobody");
    }

    /// The one that stood still goes on, and does the rest.
    fn goes_on(&mut self) {
        self.stopper.go_on();
        self.stopper.until("released");
        self.run.until("done");
        self.run.go_on();
        self.run.until("done");
    }

    fn end(mut self) {
        self.run.go_on();
        assert_eq!(self.run.until("over"), "over 0");
        assert!(self.run.child.wait().expect("its status").success());
    }
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    matches!(stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()), Some("T" | "t"))
}

fn says_who_stood_still(pool: &Pool) {
    let told = pool.status();
    let errors = report::find(&told, "errors").and_then(Value::as_array).expect("a list").clone();
    let is_said = |error: &Value| error.as_str().is_some_and(|text| text.contains("stood still"));
    assert!(errors.iter().any(is_said), "{told:#}");
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A program that was stopped in a rename kept everybody from the file for as long as it stood
/// still.
#[test]
fn who_is_stopped_in_a_rename_keeps_its_file_from_nobody() {
    need::root();
    let free = "os.rename('file', 'new')";
    let over = "os.rename('file', 'other')";
    for (kind, act, name) in
        [(Kind::Ext4, free, "new"), (Kind::Btrfs, free, "new"), (Kind::Xfs, over, "other")]
    {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        std::fs::write(disk.root.join("other"), "other").expect("a file");
        let play = Play {
            first: "os.fsync(fd)",
            act,
            stopped: ("before", RENAMES),
            beside: "os.pwrite(fd, b'b' * 4096, 0); os.fsync(fd); os.mkdir('made'); os.fsync(os.open('.', 0))",
            after: "os.pwrite(fd, b'a' * 100, 0); os.fsync(fd)",
        };
        let mut pair = Pair::stopped(&pool, &[], &disk.root, &play);
        pair.beside();
        says_who_stood_still(&pool);
        pair.goes_on();
        assert!(!disk.root.join("file").exists());
        let bytes = read(&disk.root.join(name));
        assert!(bytes.starts_with(&[b'a'; 100]) && bytes[100..4096].iter().all(|&byte| byte == b'b'));
        pair.end();
    }
}

/// The write that was under way lands when its program goes on, over what was written meanwhile,
/// and stays there: nothing of the log comes over it.
#[test]
fn who_is_stopped_in_a_write_keeps_its_pages_from_nobody() {
    need::root();
    for how in ["before", "after"] {
        let (disk, pool) = (Disk::forgetful(Kind::Ext4), Pool::new());
        let play = Play {
            first: "os.fsync(fd)",
            act: "os.pwrite(fd, b'a' * 4096, 0)",
            stopped: (how, PWRITE),
            beside: "os.pwrite(fd, b'b' * 4096, 0); os.pwrite(fd, b'c' * 4096, 4096); os.fsync(fd)",
            after: "os.fsync(fd)",
        };
        let mut pair = Pair::stopped(&pool, &[], &disk.root, &play);
        pair.beside();
        pair.goes_on();
        let first = if how == "before" { b'a' } else { b'b' };
        let expected = [vec![first; 4096], vec![b'c'; 4096]].concat();
        assert_eq!(read(&disk.root.join("file")), expected);
        pair.run.kill_all(&pool);
        disk.cut_power();
        disk.restore_power();
        pool.recover(&["--replay"]).expect(&[0]);
        assert!(read(&disk.root.join("file")) == expected, "{how}: what was synced is not there");
    }
}

/// What the other program was told is kept although the first one never goes on.
#[test]
fn what_is_acknowledged_beside_a_stopped_program_is_kept() {
    need::root();
    for (act, calls) in [
        ("os.rename('file', 'new')", RENAMES),
        ("os.pwrite(fd, b'a' * 4096, 0)", PWRITE),
        ("os.ftruncate(fd, 100)", FTRUNCATE),
    ] {
        let (disk, pool) = (Disk::forgetful(Kind::Ext4), Pool::new());
        let play = Play {
            first: "os.fsync(fd)",
            act,
            stopped: ("before", calls),
            beside: "os.pwrite(fd, b'b' * 4096, 0); os.fsync(fd)",
            after: "pass",
        };
        let mut pair = Pair::stopped(&pool, &[], &disk.root, &play);
        pair.beside();
        pair.run.kill_all(&pool);
        disk.cut_power();
        disk.restore_power();
        pool.recover(&["--replay"]).expect(&[0]);
        let bytes = read(&disk.root.join("file"));
        assert!(bytes.len() == 8192 && bytes.starts_with(&[b'b'; 4096]), "{act}");
    }
}

/// A first sync has the file for itself while it logs what the file has.
#[test]
fn who_is_stopped_in_a_first_sync_keeps_its_file_from_nobody() {
    need::root();
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new().logs_from_sync());
    let play = Play {
        first: "pass",
        act: "own = os.open('own', os.O_RDWR | os.O_CREAT, 0o644); os.pwrite(own, b'0' * 8192, 0); os.fsync(own)",
        stopped: ("before", PREAD),
        beside: "own = os.open('own', os.O_RDWR); os.pwrite(own, b'b' * 4096, 0); os.fsync(own)",
        after: "os.pwrite(own, b'a' * 100, 0); os.fsync(own)",
    };
    let mut pair = Pair::stopped(&pool, &[], &disk.root, &play);
    pair.beside();
    pair.goes_on();
    let bytes = read(&disk.root.join("own"));
    assert!(bytes.starts_with(&[b'a'; 100]) && bytes[100..4096].iter().all(|&byte| byte == b'b'));
    pair.end();
}

/// An outsider, who asks the keeper by the fence, and whoever has everything brought to the disk.
#[test]
fn who_is_stopped_in_a_write_keeps_no_outsider_and_no_drain_waiting() {
    need::root();
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let play = Play {
        first: "os.fsync(fd)",
        act: "os.pwrite(fd, b'a' * 4096, 0)",
        stopped: ("before", PWRITE),
        beside: "other = os.open('second', os.O_RDWR | os.O_CREAT, 0o644); os.write(other, b'x'); os.fsync(other)",
        after: "os.fsync(fd)",
    };
    let mut pair = Pair::stopped(&pool, &["--fence=fanotify"], &disk.root, &play);
    pair.beside();
    pool.command("drain").limit(Duration::from_secs(20)).output();
    let script = "printf outside | dd conv=notrunc,fsync of=\"$0\" seek=4096 bs=1 2>&1";
    let file = disk.root.join("file");
    let outside = Cmd::new("sh").args(["-c", script]).arg(&file).limit(Duration::from_secs(20)).ok();
    // By itself the fence lets an outsider wait for five seconds, and then says so.
    let told = pool.status().to_string();
    assert!(!told.contains("an outsider waited"), "{}\n{told}", outside.told());
    says_who_stood_still(&pool);
    pair.goes_on();
    let bytes = read(&file);
    assert!(bytes.starts_with(&[b'a'; 4096]) && bytes[4096..].starts_with(b"outside0"));
    pair.end();
}

/// Who is killed while it stands still leaves nothing behind.
#[test]
fn who_is_killed_while_it_stands_still_leaves_nothing() {
    need::root();
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let play = Play {
        first: "os.fsync(fd)",
        act: "os.pwrite(fd, b'a' * 4096, 0)",
        stopped: ("after", PWRITE),
        beside: "os.pwrite(fd, b'b' * 4096, 0); os.fsync(fd)",
        after: "pass",
    };
    let mut pair = Pair::stopped(&pool, &[], &disk.root, &play);
    pair.beside();
    proc::signal(pair.child, Signal::KILL);
    for _ in 0..2 {
        pair.run.go_on();
    }
    pair.run.until("over");
    assert!(read(&disk.root.join("file")).starts_with(&[b'b'; 4096]));
    assert!(pair.run.child.wait().expect("its status").success());
}

/// Each test above with the rule taken out that it is about; with all rules they run in this build
/// already.
/// Two threads ask the keeper for one thing after the other, each for its own files, and look at
/// what came of it.
const ASKS: &str = "
import os, sys, threading, traceback
root, over, done = sys.argv[1], False, [0, 0]
def ask(mine):
    os.mkdir('%s/%d' % (root, mine))
    directory = os.open('%s/%d' % (root, mine), os.O_RDONLY)
    while not over:
        name = '%s/%d/%d' % (root, mine, done[mine])
        said = ('%d-%d ' % (mine, done[mine])).encode() * 40
        fd = os.open(name + '-new', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, said + b'more')
        os.fsync(fd)
        os.rename(name + '-new', name)
        os.fsync(directory)
        os.ftruncate(fd, len(said))
        os.fsync(fd)
        assert os.pread(fd, 4096, 0) == said and os.stat(name).st_size == len(said), name
        os.close(fd)
        if done[mine] % 3 == 2: os.unlink(name)
        done[mine] += 1
def work(mine):
    try: ask(mine)
    except BaseException:
        print('failed', traceback.format_exc().replace('\\n', ' '), flush=True)
        os._exit(1)
threads = [threading.Thread(target=work, args=(mine,)) for mine in range(2)]
for thread in threads: thread.start()
print('ready', flush=True)
sys.stdin.readline()
over = True
for thread in threads: thread.join()
print('asked %d %d' % tuple(done), flush=True)
sys.stdin.read()
";

/// A request may be answered while its asker is stopped, and the keeper may be stopped before, amid
/// and behind its answer: each thread gets its own answer, and none twice.
#[test]
fn answers_wait_for_who_is_stopped() {
    need::root();
    let pause = |ms| std::thread::sleep(Duration::from_millis(ms));
    for options in [&[][..], &["--write-behind=at-once"]] {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let mut run = Running::python(&pool, options, ASKS, &disk.root);
        run.until("ready");
        let keeper = proc::keeper(&pool.path);
        let is_program = |pid: &u32| !proc::is_holdfast(*pid);
        let program = proc::descendants(run.child.id()).into_iter().find(is_program).expect("the program");
        for round in 0..8 {
            let turns = [[program, keeper], [keeper, program]][round % 2];
            for pid in turns {
                proc::signal(pid, Signal::STOP);
                pause(7);
            }
            // The one goes on before the other: asks are answered to who is stopped, and wait for
            // a keeper that is.
            let turns = [[program, keeper], [keeper, program]][round / 2 % 2];
            for pid in turns {
                proc::signal(pid, Signal::CONT);
                pause(if round % 3 == 0 { 300 } else { 23 });
            }
        }
        run.go_on();
        let told = run.until("asked ");
        let asked: Vec<usize> =
            told.split(' ').skip(1).map(|count| count.parse().expect("a number")).collect();
        run.kill_all(&pool);
        pool.recover(&[]).expect(&[0]);
        for (mine, &count) in asked.iter().enumerate() {
            assert!(count > 0, "{told}");
            for number in 0..count {
                let file = disk.root.join(format!("{mine}/{number}"));
                let expected = format!("{mine}-{number} ").repeat(40);
                match number % 3 {
                    2 => assert!(!file.exists(), "{} is there", file.display()),
                    _ => assert!(read(&file) == expected.as_bytes(), "{}", file.display()),
                }
            }
        }
    }
}

#[test]
fn every_rule_that_is_taken_out_is_missed() {
    let survived = canaries::survivors(&RULES);
    assert!(survived.is_empty(), "survived: {survived:?}");
}
