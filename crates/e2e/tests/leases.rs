//! Write-behind without privilege: the program's only description of a file is leased (`--fence
//! lease`), and whoever else opens or cuts the file waits until everything is in it. As root and as
//! an ordinary user.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind, give_to};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::{need, report};

const LEASED: [&str; 6] = ["--fence", "lease", "--write-behind", "at-once", "--age-max", "60000"];

/// Does what it is told by lines, each a Python statement; answers each with a line.
const SERVANT: &str = "
import fcntl, mmap, os, sys
files = {}
def create(name, flags=0):
    files[name] = os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o644)
def fill(name, count, byte):
    for block in range(count):
        os.pwrite(files[name], bytes([byte]) * 4096, block * 4096)
def append(name, text):
    os.write(files[name], text.encode())
    os.fsync(files[name])
def has(name, offset, text):
    got = os.pread(files[name], len(text), offset)
    assert got == text.encode(), got
def shows_nothing(name):
    F_GETSIG, F_GETLEASE = 11, 1025
    fd = files[name]
    assert fcntl.fcntl(fd, F_GETLEASE) == fcntl.F_UNLCK and fcntl.fcntl(fd, F_GETSIG) == fcntl.fcntl(fd, fcntl.F_GETOWN) == 0
for line in sys.stdin:
    try:
        exec(line)
        print('done', flush=True)
    except Exception as error:
        print('failed:', repr(error), flush=True)
";

struct Servant {
    child: Child,
    tells: ChildStdin,
    hears: BufReader<ChildStdout>,
    pool: Pool,
    user: &'static str,
    _disk: Disk,
    root: PathBuf,
}

impl Servant {
    fn start(user: &'static str) -> Self {
        Self::start_on(user, if user == "root" { Pool::new() } else { Pool::of_user(user, "") })
    }

    fn start_on(user: &'static str, pool: Pool) -> Self {
        let disk = Disk::with_size(Kind::Ext4, 1 << 30);
        give_to(&disk.root, user);
        let root = disk.root.clone();
        let run = pool.run(&LEASED).args(["--", "python3", "-c", SERVANT]);
        let mut child = run.spawn();
        let tells = child.stdin.take().expect("piped");
        let hears = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, tells, hears, pool, user, _disk: disk, root }
    }

    fn told(&mut self, line: &str) -> String {
        writeln!(self.tells, "{line}").expect("it listens");
        let mut answer = String::new();
        self.hears.read_line(&mut answer).expect("it answers");
        answer.trim().to_owned()
    }

    fn tell(&mut self, line: &str) {
        assert_eq!(self.told(line), "done", "{}: {line}", self.user);
    }

    fn path(&self, name: &str) -> String {
        self.root.join(name).to_str().expect("paths are text").to_owned()
    }

    /// A new file with bytes that the kernel does not have.
    fn behind(&mut self, name: &str) -> String {
        let path = self.path(name);
        self.tell(&format!("create('{path}')"));
        self.tell(&format!("fill('{path}', 64, {})", b'a'));
        self.must_be("behind", name);
        // Who only looks, without opening it, is told within moments.
        wait_until(Duration::from_secs(1), "the size", || {
            std::fs::metadata(&path).expect("file").len() == 64 * 4096
        });
        let written = std::fs::metadata(&path).expect("file").modified().expect("a time");
        assert!(written.elapsed().expect("a past time") < Duration::from_secs(1), "{}: {name}", self.user);
        path
    }

    fn count(&self, state: &str) -> u64 {
        let status = self.pool.status();
        report::find(&status, "files").and_then(|files| files.get(state)?.as_u64()).unwrap_or(0)
    }

    fn must_be(&self, state: &str, what: &str) {
        assert!(self.count(state) > 0, "{}: {what}: not {state}: {:#}", self.user, self.pool.status());
    }

    /// A command of somebody who is no client, as this user.
    fn outside(&self, line: &[&str]) -> Cmd {
        let cmd = Cmd::new(line[0]).args(&line[1..]);
        if self.user == "root" { cmd } else { cmd.user(self.user, "") }
    }
}

impl Drop for Servant {
    fn drop(&mut self) {
        let family = proc::descendants(self.child.id());
        for pid in family {
            if !proc::is_holdfast(pid) {
                proc::kill_hard(pid);
            }
        }
        drop(self.child.kill());
        drop(self.child.wait());
        wait_until(Duration::from_secs(40), "the keeper's end", || proc::keepers(&self.pool.path).is_empty());
    }
}

fn all(byte: u8, path: &str, what: &str) {
    let bytes = std::fs::read(path).expect("file");
    assert!(
        bytes.len() == 64 * 4096 && bytes.iter().all(|&found| found == byte),
        "{what}: {} bytes",
        bytes.len()
    );
}

const USERS: [&str; 2] = ["root", "nobody"];

/// What a file holds is read back for its first sync; where the program's descriptor cannot be
/// read, a description of our own would break the lease, and wait for itself.
#[test]
fn a_file_that_is_only_written_is_synced_at_once() {
    need::root();
    for user in USERS {
        let pool = if user == "root" { Pool::new() } else { Pool::of_user(user, "") };
        let mut servant = Servant::start_on(user, pool.logs_from_sync());
        let path = servant.path("log");
        servant.tell(&format!("files['{path}'] = os.open('{path}', os.O_WRONLY | os.O_CREAT, 0o644)"));
        let since = Instant::now();
        for line in ["one\\n", "two\\n"] {
            servant.tell(&format!("append('{path}', '{line}')"));
        }
        assert!(since.elapsed() < Duration::from_secs(5), "{user}: {:?}", since.elapsed());
        assert_eq!(std::fs::read_to_string(&path).expect("file"), "one\ntwo\n");
    }
}

#[test]
fn who_reads_from_outside_waits_for_the_newest() {
    need::root();
    for user in USERS {
        let mut servant = Servant::start(user);
        let aside = servant.path("aside");
        for tool in ["cat", "cp", "dd", "mmap", "exec"] {
            let path = servant.behind(tool);
            let waited = Instant::now();
            let mapping = format!(
                "import mmap; f = open('{path}', 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); \
                 open('{aside}', 'wb').write(m[:])"
            );
            let copy = format!("cat {path} > {aside}");
            match tool {
                "cp" => servant.outside(&["cp", &path, &aside]).ok(),
                "dd" => servant
                    .outside(&["dd", &format!("if={path}"), &format!("of={aside}"), "status=none"])
                    .ok(),
                "mmap" => servant.outside(&["python3", "-c", &mapping]).ok(),
                // Somebody who may not even execute it opens nothing.
                "exec" => {
                    servant.outside(&["sh", "-c", &format!("{path} 2>/dev/null")]).output().expect(&[126]);
                    servant.outside(&["sh", "-c", &copy]).ok()
                }
                _ => servant.outside(&["sh", "-c", &copy]).ok(),
            };
            assert!(waited.elapsed() < Duration::from_secs(5), "{user}, {tool}: {:?}", waited.elapsed());
            all(b'a', &aside, tool);
            // It goes on, where everybody sees it at once.
            servant.tell(&format!("fill('{path}', 64, {})", b'b'));
            all(b'b', &path, tool);
        }
        // Programs that do not want to wait are refused, and find everything when they come again.
        for tool in ["dd", "tar"] {
            let path = servant.behind(&format!("impatient-{tool}"));
            let (from, to) = (format!("if={path}"), format!("of={aside}"));
            let (line, refused): (Vec<&str>, i32) = match tool {
                "dd" => (vec!["dd", &from, &to, "iflag=nonblock", "status=none"], 1),
                _ => (vec!["tar", "-cf", &aside, "-C", "/", &path[1..]], 2),
            };
            servant
                .outside(&line)
                .output()
                .expect(&[refused])
                .says(&["Resource temporarily unavailable"], &[]);
            wait_until(Duration::from_secs(5), "the drain", || servant.outside(&line).output().code() == 0);
            match tool {
                "dd" => all(b'a', &aside, tool),
                _ => {
                    let archived = servant.outside(&["tar", "-xOf", &aside]).ok().stdout;
                    assert!(
                        archived.len() == 64 * 4096 && archived.bytes().all(|byte| byte == b'a'),
                        "{user}"
                    );
                }
            }
        }
        let status = servant.pool.status();
        assert_eq!(
            report::find(&status, "errors").and_then(|list| list.as_array().map(Vec::len)),
            Some(0),
            "{status:#}"
        );
    }
}

#[test]
fn who_follows_a_log_from_outside_sees_every_line() {
    need::root();
    for user in USERS {
        let mut servant = Servant::start(user);
        let path = servant.path("log");
        servant.tell(&format!("create('{path}', os.O_APPEND)"));
        for line in 0..50 {
            servant.tell(&format!("append('{path}', 'line {line}\\n')"));
        }
        servant.must_be("behind", "a log");
        let mut tail = servant.outside(&["tail", "-n", "+1", "-f", &path]).spawn();
        let mut lines = BufReader::new(tail.stdout.take().expect("piped")).lines();
        for line in 0..100 {
            if line >= 50 {
                servant.tell(&format!("append('{path}', 'line {line}\\n')"));
            }
            assert_eq!(lines.next().expect("a line").expect("text"), format!("line {line}"), "{user}");
        }
        drop(tail.kill());
        drop(tail.wait());
    }
}

#[test]
fn who_writes_or_cuts_from_outside_does_so_after_everything() {
    need::root();
    for user in USERS {
        let mut servant = Servant::start(user);
        let path = servant.behind("written");
        let write = format!("printf outside | dd of={path} bs=1 seek=5000 conv=notrunc status=none");
        servant.outside(&["sh", "-c", &write]).ok();
        servant.tell(&format!("has('{path}', 4990, 'aaaaaaaaaaoutsideaaaa')"));
        servant.tell(&format!("os.pwrite(files['{path}'], b'inside', 4994)"));
        let bytes = std::fs::read(&path).expect("file");
        assert_eq!(&bytes[4990..5010], b"aaaainsideoutsideaaa", "{user}");

        // By its name, without an open: no other fence sees that.
        let path = servant.behind("cut");
        let cut = format!("import os; os.truncate('{path}', 10000)");
        servant.outside(&["python3", "-c", &cut]).ok();
        assert_eq!(std::fs::metadata(&path).expect("file").len(), 10_000, "{user}");
        servant.tell(&format!("os.pwrite(files['{path}'], b'end', 9997)"));
        servant.tell(&format!("has('{path}', 9990, 'aaaaaaaend')"));
        assert_eq!(std::fs::read(&path).expect("file").len(), 10_000, "{user}");

        // The program itself, by its name and by another description.
        let path = servant.behind("own");
        servant.tell(&format!("os.truncate('{path}', 9000)"));
        servant.tell(&format!("assert open('{path}', 'rb').read() == b'a' * 9000"));
        let path = servant.behind("again");
        servant.tell(&format!("os.pwrite(os.open('{path}', os.O_WRONLY), b'second', 7)"));
        servant.tell(&format!("has('{path}', 0, 'aaaaaaaseconda')"));
        let path = servant.behind("looked-at");
        servant.tell(&format!("shows_nothing('{path}')"));
        servant.tell(&format!("fill('{path}', 64, {})", b'c'));
        all(b'c', &path, user);
    }
}

#[test]
fn a_second_database_connection_from_outside_sees_every_row() {
    need::root();
    for user in USERS {
        let mut servant = Servant::start(user);
        let path = servant.path("db");
        servant.tell("import sqlite3");
        servant.tell(&format!("db = sqlite3.connect('{path}', isolation_level=None)"));
        servant.tell("db.execute('CREATE TABLE item(id INTEGER PRIMARY KEY)')");
        for row in 0..20 {
            servant.tell(&format!("db.execute('INSERT INTO item VALUES({row})')"));
        }
        for row in 20..40 {
            servant.tell(&format!("db.execute('INSERT INTO item VALUES({row})')"));
            let question = "SELECT count(*) FROM item; PRAGMA integrity_check";
            let told = servant.outside(&["sqlite3", &path, question]).ok().stdout;
            assert_eq!(told, format!("{}\nok\n", row + 1), "{user}");
        }
    }
}

#[test]
fn a_killed_program_leaves_its_bytes_to_who_comes_next() {
    need::root();
    for user in USERS {
        let mut servant = Servant::start(user);
        let path = servant.behind("killed");
        for pid in proc::descendants(servant.child.id()) {
            if !proc::is_holdfast(pid) {
                proc::kill_hard(pid);
            }
        }
        all(b'a', &path, user);
    }
}

#[test]
fn a_killed_keeper_keeps_nobody_waiting() {
    // Its leases outlive it in the program's descriptions; recovery gives them back.
    need::root();
    for user in USERS {
        let mut servant = Servant::start(user);
        let path = servant.behind("recovered");
        let begun = Instant::now();
        for pid in proc::keepers(&servant.pool.path) {
            proc::kill_hard(pid);
        }
        wait_until(Duration::from_secs(20), "recovery", || {
            std::fs::read(&path).expect("file").iter().all(|&byte| byte == b'a')
        });
        all(b'a', &path, user);
        assert!(begun.elapsed() < Duration::from_secs(20), "{user}: {:?}", begun.elapsed());
        assert!(servant.told(&format!("fill('{path}', 1, 98)")).starts_with("failed: OSError(5"), "{user}");
    }
}

#[test]
fn the_lease_fence_lets_go_of_what_is_closed() {
    need::root();
    let mut servant = Servant::start("nobody");
    let path = servant.behind("closed");
    servant.tell(&format!("os.close(files.pop('{path}'))"));
    // Nothing of it is open for writing in anybody's hands once it is asked for: it can be
    // executed, locked and removed.
    assert!(Path::new(&path).exists());
    std::fs::write(&path, "#!/bin/sh\necho it runs\n").expect("file");
    servant.outside(&["chmod", "755", &path]).ok();
    assert_eq!(servant.outside(&[&path]).ok().stdout, "it runs\n");
    let locked = servant.behind("locked");
    servant.tell(&format!("fcntl.flock(files['{locked}'], fcntl.LOCK_EX)"));
    servant.tell(&format!("os.close(files.pop('{locked}'))"));
    servant.outside(&["flock", "-w", "2", &locked, "true"]).ok();
}
