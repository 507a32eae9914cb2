//! Changes that no fence sees as an open: outsiders who cut a file by its path, remove it, move it
//! or change its mode; and processes of a run whose calls go past the library. Each is made while
//! the log has acknowledged bytes of the file; then the power is cut. What the file system had
//! committed must stay so: nothing is undone, and nothing comes back.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::LazyLock;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::workload::golang;
use holdfast_e2e::{canaries, report};
use holdfast_testkit::rounds;
use rustix::process::Signal;

/// The rules, each by the deliberate bug (`crates/canary`) that takes it out, and the test that
/// must notice.
const RULES: [(&str, &str); 11] = [
    ("SizeUnlooked", "f4_a_sync_of_the_program_covers_what_was_cut_by_path_at_once"),
    ("CutUnheard", "f4_what_was_cut_by_path_and_synced_stays_cut"),
    ("RemovalUnmarked", "f4_a_directory_that_was_removed_outside_stays_removed"),
    ("MovesUncounted", "f4_a_sync_of_the_program_covers_a_removal_outside"),
    ("MovesUncounted", "f4_a_file_that_was_moved_outside_stays_there"),
    ("ModesUncounted", "f4_a_sync_of_the_program_covers_a_mode_that_was_set_outside"),
    ("AttributesUnheard", "f4_a_sync_of_the_program_covers_attributes_that_were_set_outside"),
    ("AttributesUnlooked", "f4_a_sync_of_what_was_written_covers_a_mode_that_was_set_just_now"),
    ("OthersUnasked", "f4_a_sync_with_nothing_of_its_own_covers_what_was_set_just_now"),
    ("OpensUnasked", "f10_what_a_client_wrote_by_calls_of_its_own_is_kept"),
    ("GoTrusted", "f10_a_go_program_is_named_before_it_opens_a_file"),
];

/// What a program or keeper does at once may take so long on a machine that is busy.
const SOON: Duration = Duration::from_secs(10);
/// How long a keeper has no processor: longer than what is done meanwhile takes.
const ASLEEP: Duration = Duration::from_millis(400);
/// Nothing is brought to the files by itself within a test.
const LATE: &str = "--age-max=3600000";
/// Both defaults, and the fence that needs no privilege; `None` is natively.
const SETTINGS: [(Kind, Option<&[&str]>); 6] = [
    (Kind::Ext4, None),
    (Kind::Xfs, None),
    (Kind::Ext4, Some(&["--durability=sync", "--fence=fanotify", LATE])),
    (Kind::Xfs, Some(&["--durability=sync", "--fence=fanotify", LATE])),
    (Kind::Ext4, Some(&["--durability=write", "--fence=fanotify", LATE])),
    (Kind::Xfs, Some(&["--durability=sync", "--fence=inotify", LATE])),
];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// Makes two files, `dir/f` with 8,000 bytes `a` and `g`, syncs both and says so; then does what it
/// is told, a line each.
const PROGRAM: &str = "
import os, sys
os.chdir(sys.argv[1])
if not os.path.isdir('dir'): os.mkdir('dir')
root = os.open('.', os.O_RDONLY)
os.fsync(root)
files = {}
for name in ['dir/f', 'g']:
    fd = files[name] = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(fd, b'a' * 8000, 0)
    os.fsync(fd)
    os.pwrite(fd, b'b' * 1000, 0)
    os.fsync(fd)
print('ready', flush=True)
for line in sys.stdin:
    what, _, name = line.strip().partition(' ')
    if what == 'sync': os.fsync(files[name])
    if what == 'write': os.pwrite(files[name], b'd' * 100, 0)
    if what == 'append': os.pwrite(files[name], b'c' * 100, 8000)
    print('done', flush=True)
";

/// A program, under Holdfast or not, that does what it is told, and ends with the test.
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

    fn until(&self, start: &str) -> String {
        let until = Instant::now() + SOON;
        let mut told = String::new();
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if line.starts_with(start) {
                return line;
            }
            told.push_str(&line);
        }
        panic!("the program never said `{start}`, but `{told}`");
    }

    fn tell(&mut self, what: &str) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{what}").expect("the program listens");
        self.until("done");
    }

    /// Everything stands still, the power goes, and nobody is left.
    fn lose_power(mut self, disk: &Disk, pool: &Pool) {
        let mut all = proc::keepers(&pool.path);
        all.extend(proc::descendants(self.child.id()));
        all.push(self.child.id());
        all.iter().for_each(|pid| proc::signal(*pid, Signal::STOP));
        disk.cut_power();
        all.iter().for_each(|pid| proc::kill_hard(*pid));
        drop(self.child.wait());
        wait_until(SOON, "the end of those killed", || !all.iter().any(|pid| proc::alive(*pid)));
        disk.restore_power();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let family = proc::descendants(self.child.id());
        drop(self.child.kill());
        for pid in family.iter().filter(|pid| proc::alive(**pid)) {
            proc::kill_hard(*pid);
        }
        drop(self.child.wait());
    }
}

/// What is done by others, and what makes it durable: the program's own sync, or somebody's of the
/// file system.
type Act = fn(&Path);
type Check = fn(&Path, &Output);

/// Does it under every setting on each file system, and natively: what must hold natively must hold
/// under Holdfast.
fn each(act: Act, syncs: &[&str], check: Check) {
    each_recovered(act, syncs, &[0], check);
}

fn each_recovered(act: Act, syncs: &[&str], statuses: &[i32], check: Check) {
    let program = ["python3".into(), "-c".into(), PROGRAM.into()];
    for _ in 0..rounds() {
        for setting in SETTINGS {
            once(setting, &program, (act, syncs), (statuses, check));
        }
    }
}

fn once(
    (kind, options): (Kind, Option<&[&str]>),
    program: &[String],
    (act, syncs): (Act, &[&str]),
    (statuses, check): (&[i32], Check),
) {
    let (disk, pool) = (Disk::new(kind), Pool::new());
    let cmd = match options {
        Some(options) => pool.run(options).arg("--").args(program),
        None => Cmd::new(&program[0]).args(&program[1..]),
    };
    let mut running = Running::start(&cmd.arg(&disk.root));
    running.until("ready");
    if options.is_some() {
        let status = pool.status();
        assert!(report::number(&status, "syncs_absorbed") > 0, "nothing was absorbed\n{status:#}");
        assert!(report::number(&status, "backlog_bytes") > 0, "nothing is in the log\n{status:#}");
    }
    // Until the program waits for it, the keeper does not run while the others do something.
    let asleep = if syncs.contains(&"asleep") { proc::keepers(&pool.path) } else { Vec::new() };
    asleep.iter().for_each(|pid| proc::signal(*pid, Signal::STOP));
    let wakes = std::thread::spawn(move || {
        std::thread::sleep(ASLEEP);
        asleep.iter().for_each(|pid| proc::signal(*pid, Signal::CONT));
    });
    act(&disk.root);
    for sync in syncs {
        match *sync {
            "asleep" => {}
            "outsider" => disk.settle(),
            "go" | "go stripped" => {
                let program = &go()[usize::from(*sync != "go")];
                let run = options.map(|options| pool.run(options).arg("--").arg(program));
                run.unwrap_or_else(|| Cmd::new(program)).arg(disk.root.join("dir/f")).ok();
            }
            "wait" => soon(),
            "named" if options.is_some() => must_be_named(&pool),
            "named" => {}
            told => running.tell(told),
        }
    }
    wakes.join().expect("a keeper that wakes up");
    running.lose_power(&disk, &pool);
    let recovered = match options {
        Some(_) => pool.recover(&[]),
        None => Cmd::new("true").output(),
    };
    let told = format!("{kind:?} {options:?}\n{}", recovered.told());
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        recovered.expect(statuses);
        check(&disk.root, &recovered);
    }));
    if let Err(panic) = checked {
        eprintln!("{told}");
        std::panic::resume_unwind(panic);
    }
}

fn must_be(file: &Path, expected: &[u8]) {
    let found = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let head = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
    assert!(
        found == expected,
        "{}: {} bytes {:?}, not {} bytes {:?}",
        file.display(),
        found.len(),
        head(&found),
        expected.len(),
        head(expected)
    );
}

fn whole() -> Vec<u8> {
    [[b'b'; 1000].as_slice(), &[b'a'; 7000]].concat()
}

/// As an outsider: natively, by a process of its own.
fn outside(script: &str, root: &Path) {
    Cmd::new("python3")
        .args(["-c", &format!("import os, sys; os.chdir(sys.argv[1]); {script}"), text(root)])
        .ok();
}

fn cut(root: &Path) {
    outside("os.truncate('dir/f', 500)", root);
}

fn must_be_cut(root: &Path, _: &Output) {
    must_be(&root.join("dir/f"), &[b'b'; 500]);
    must_be(&root.join("g"), &whole());
}

/// Its sync may end while the keeper still brings the file to the disk: then it is left to a
/// person, as it is.
#[test]
fn f4_what_was_cut_by_path_and_synced_stays_cut() {
    let act: Act = |root| {
        cut(root);
        soon();
    };
    each_recovered(act, &["outsider"], &[0, 1], must_be_cut);
}

/// The program's own sync is real: it makes the outsider's change durable, as natively.
#[test]
fn f4_a_sync_of_the_program_covers_what_was_cut_by_path() {
    each(cut, &["sync dir/f"], must_be_cut);
}

/// What the program writes after the cut counts, and nothing that was cut comes back between.
#[test]
fn f4_what_is_written_after_a_cut_is_kept_without_what_was_cut() {
    each(cut, &["append dir/f", "sync dir/f"], |root, _| {
        let expected = [[b'b'; 500].as_slice(), &[0; 7500], &[b'c'; 100]].concat();
        must_be(&root.join("dir/f"), &expected);
    });
}

#[test]
fn f4_what_was_made_longer_by_path_stays_so() {
    let act: Act = |root| outside("os.truncate('dir/f', 9000)", root);
    each(act, &["sync dir/f"], |root, _| {
        must_be(&root.join("dir/f"), &[whole(), vec![0; 1000]].concat());
    });
}

fn must_be_gone(root: &Path, _: &Output) {
    assert!(!root.join("dir/f").exists(), "the removed file is back");
    must_be(&root.join("g"), &whole());
}

#[test]
fn f4_a_file_that_was_removed_outside_stays_removed() {
    let act: Act = |root| {
        outside("os.remove('dir/f')", root);
        soon();
    };
    each(act, &["outsider"], must_be_gone);
}

/// The sync of another file of the program, which it has written to, makes the removal durable, as
/// natively.
#[test]
fn f4_a_sync_of_the_program_covers_a_removal_outside() {
    let act: Act = |root| {
        outside("os.remove('dir/f')", root);
        soon();
    };
    each(act, &["append g", "sync g"], |root, _| {
        assert!(!root.join("dir/f").exists(), "the removed file is back");
        must_be(&root.join("g"), &[whole(), vec![b'c'; 100]].concat());
    });
}

/// The program syncs the removed file itself, which it still has open.
#[test]
fn f4_a_sync_of_the_removed_file_covers_its_removal() {
    each(|root| outside("os.remove('dir/f')", root), &["sync dir/f"], must_be_gone);
}

#[test]
fn f4_a_directory_that_was_removed_outside_stays_removed() {
    let act: Act = |root| {
        Cmd::new("rm").arg("-rf").arg(root.join("dir")).ok();
        soon();
    };
    each(act, &["outsider"], |root, _| {
        assert!(!root.join("dir").exists(), "the directory is back");
        must_be(&root.join("g"), &whole());
    });
}

#[test]
fn f4_a_file_that_was_replaced_outside_stays_replaced() {
    let act: Act = |root| {
        outside("open('new', 'w').write('new'); os.rename('new', 'dir/f')", root);
        soon();
    };
    each(act, &["outsider"], |root, output| {
        must_be(&root.join("dir/f"), b"new");
        assert!(!output.stdout.contains("set aside"), "{}", output.told());
    });
}

#[test]
fn f4_a_file_that_was_moved_outside_stays_there() {
    let act: Act = |root| {
        outside("os.rename('dir/f', 'elsewhere')", root);
        soon();
    };
    each(act, &["append g", "sync g"], |root, _| {
        assert!(!root.join("dir/f").exists(), "the old name is back");
        must_be(&root.join("elsewhere"), &whole());
    });
}

#[test]
fn f4_a_sync_of_the_program_covers_a_mode_that_was_set_outside() {
    let act: Act = |root| {
        outside("os.chmod('dir/f', 0o600)", root);
        soon();
    };
    each(act, &["sync dir/f"], |root, _| {
        let mode = std::fs::metadata(root.join("dir/f")).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        must_be(&root.join("dir/f"), &whole());
    });
}

fn must_have_attributes(root: &Path, _: &Output) {
    // By a process: `f` may be open to its owner alone.
    let script =
        "assert os.getxattr('dir/f', 'user.f4') == b'1'; assert os.stat('dir/f').st_mtime == 978307200";
    outside(script, root);
    must_be(&root.join("dir/f"), &whole());
}

/// Extended attributes and times, without a word to the keeper but the kernel's.
const SET_ATTRIBUTES: &str =
    "os.setxattr('dir/f', 'user.f4', b'1'); os.utime('dir/f', (978307200, 978307200))";

#[test]
fn f4_a_sync_of_the_program_covers_attributes_that_were_set_outside() {
    let act: Act = |root| {
        outside(SET_ATTRIBUTES, root);
        soon();
    };
    each(act, &["sync dir/f"], must_have_attributes);
}

/// A keeper that has no processor just now has not heard of what was done a moment ago: a sync that
/// has nothing else to cover waits for it.
#[test]
fn f4_a_sync_with_nothing_of_its_own_covers_what_was_set_just_now() {
    each(|root| outside(SET_ATTRIBUTES, root), &["asleep", "sync dir/f"], must_have_attributes);
}

#[test]
fn f4_a_sync_with_nothing_of_its_own_covers_a_move_just_now() {
    each(
        |root| outside("os.rename('dir/f', 'elsewhere')", root),
        &["asleep", "sync dir/f"],
        |root, _| {
            assert!(!root.join("dir/f").exists(), "the old name is back");
            must_be(&root.join("elsewhere"), &whole());
        },
    );
}

/// Of mode and owner the program's own look tells, whatever it has written since.
#[test]
fn f4_a_sync_of_what_was_written_covers_a_mode_that_was_set_just_now() {
    let act: Act = |root| outside("os.chmod('dir/f', 0o600)", root);
    each(act, &["asleep", "write dir/f", "sync dir/f"], |root, _| {
        let mode = std::fs::metadata(root.join("dir/f")).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        must_be(&root.join("dir/f"), &[[b'd'; 100].as_slice(), &whole()[100..]].concat());
    });
}

/// What is noticed by a thread of the keeper takes its wake-up, which takes its time on a machine
/// that is busy.
fn soon() {
    std::thread::sleep(Duration::from_millis(200));
}

/// The fences that ask whose an open is, and natively.
const ASKING: [(Kind, Option<&[&str]>); 5] =
    [SETTINGS[0], SETTINGS[1], SETTINGS[2], SETTINGS[3], SETTINGS[4]];

/// The program whose calls are in part its own, which the library does not see.
fn each_mixed(settings: &[(Kind, Option<&[&str]>)], told: &[&str], check: Check) {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let program = home().join("mixed");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/own_calls.c");
        Cmd::new("cc").args(["-O2", "-Wall", "-Werror", "-o"]).arg(&program).arg(source).ok();
        program
    });
    let program = [text(&BUILT).to_owned()];
    for _ in 0..rounds() {
        for setting in settings {
            once(*setting, &program, (|_| {}, told), (&[0], check));
        }
    }
}

/// A Go program that uses C, dynamically linked and preloaded, in which the calls are not where
/// they are known to be; and the same without its symbols and its build id.
fn go() -> &'static [PathBuf; 2] {
    static BUILT: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
        [("go", ""), ("go-stripped", "-ldflags=-s -w -buildid=")].map(|(name, flags)| {
            let program = home().join(name);
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/go");
            let flags = if flags.is_empty() { None } else { Some(flags) };
            let build = Cmd::new("go").args(["build", "-buildvcs=false", "-o"]).arg(&program).args(flags);
            let caches = golang::home().join("cache");
            build
                .arg(".")
                .env("CGO_ENABLED", "1")
                .env("GOCACHE", caches)
                .env("HOME", home())
                .dir(source)
                .ok();
            golang::unknown(&program)
        })
    });
    &BUILT
}

/// Where the programs are built; on a file system of which no test manages files.
fn home() -> &'static Path {
    static HOME: LazyLock<PathBuf> = LazyLock::new(|| {
        // Kept to the end of the process, which nobody tells; it is small, and its name is one.
        let home = std::env::temp_dir().join("holdfast-e2e-unseen");
        std::fs::create_dir_all(&home).expect("directory");
        home
    });
    &HOME
}

/// The summary names a program whose calls are not seen.
fn must_be_named(pool: &Pool) {
    let status = pool.status();
    let named = report::find(&status, "programs_unseen").and_then(|list| list.as_array()).cloned();
    let calls = |program: &serde_json::Value| {
        let told = program.to_string();
        told.contains("system calls of its own") || told.contains("system calls are not where")
    };
    assert!(named.is_some_and(|named| named.iter().any(calls)), "{status:#}");
}

#[test]
fn f10_what_a_client_removed_by_a_call_of_its_own_stays_removed() {
    each_mixed(&SETTINGS, &["own unlink", "wait", "own syncfs"], must_be_gone);
}

#[test]
fn f10_what_a_client_cut_by_a_call_of_its_own_stays_cut() {
    each_mixed(&SETTINGS, &["own cut", "sync dir/f"], must_be_cut);
}

/// An open by a call of its own makes a program an outsider, and the summary names it.
#[test]
fn f10_what_a_client_wrote_by_calls_of_its_own_is_kept() {
    each_mixed(&ASKING, &["own write", "named", "append g"], |root, _| {
        must_be(&root.join("dir/f"), &[[b'd'; 1000].as_slice(), &[b'a'; 7000]].concat());
        must_be(&root.join("g"), &[whole(), vec![b'c'; 100]].concat());
    });
}

#[test]
fn f10_what_a_go_program_synced_is_kept() {
    each(|_| {}, &["go", "named"], must_be_written_by_go);
}

#[test]
fn f10_a_stripped_go_program_is_recognised() {
    each(|_| {}, &["go stripped", "named"], must_be_written_by_go);
}

fn must_be_written_by_go(root: &Path, _: &Output) {
    must_be(&root.join("dir/f"), &[[b'd'; 1000].as_slice(), &[b'a'; 7000]].concat());
    must_be(&root.join("g"), &whole());
}

/// It is one of the outsiders from its start, and not only once it has opened something.
#[test]
fn f10_a_go_program_is_named_before_it_opens_a_file() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let missing = disk.root.join("missing");
    let (output, summary) = pool.run_summarised(&[LATE], &[text(&go()[0]), text(&missing)]);
    assert_eq!(output.code(), 1, "{}", output.told());
    assert!(summary.to_string().contains("system calls are not where"), "{summary:#}");
}

/// The keeper stands still meanwhile, and the program has written something, so that its sync has
/// nothing to ask the keeper for: only its own look can find the cut.
#[test]
fn f4_a_sync_of_the_program_covers_what_was_cut_by_path_at_once() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let options = SETTINGS[2].1.expect("options");
    let program = ["--", "python3", "-c", PROGRAM, text(&disk.root)];
    let mut running = Running::start(&pool.run(options).args(program));
    running.until("ready");
    let keeper = proc::keeper(&pool.path);
    proc::signal(keeper, Signal::STOP);
    cut(&disk.root);
    running.tell("write dir/f");
    let stdin = running.child.stdin.as_mut().expect("piped");
    writeln!(stdin, "sync dir/f").expect("the program listens");
    // It asks the keeper, and must not be answered by the log.
    let answered = running.lines.recv_timeout(Duration::from_millis(300));
    assert!(answered.is_err(), "the sync was absorbed over an outsider's cut");
    proc::signal(keeper, Signal::CONT);
    running.until("done");
    running.lose_power(&disk, &pool);
    pool.recover(&[]).ok();
    must_be(&disk.root.join("dir/f"), &[[b'd'; 100].as_slice(), &[b'b'; 400]].concat());
}

/// Each test above with the rule taken out that it is about; with all rules they run in this build
/// already.
#[test]
fn every_rule_that_is_taken_out_is_missed() {
    let survived = canaries::survivors_side_by_side(&RULES);
    assert!(survived.is_empty(), "survived: {survived:?}");
}
