//! Programs as services, users and containers start them: each is absorbed, or the summary names it
//! and says why not, and `doctor -- PROGRAM` says the same beforehand.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::wait_until;
use holdfast_e2e::{proc, report};
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// Writes 40 blocks by stdio and by system calls, and syncs.
const WRITER: &str = "
import os, sys
with open(sys.argv[1], 'w') as file:
    for block in range(20): file.write('x' * 9000)
    file.flush()
    os.fsync(file.fileno())
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for block in range(20): os.write(fd, b'y' * 100)
os.fsync(fd)
print('written')
";
const WRITTEN_BYTES: u64 = 20 * 9000 + 20 * 100;

struct Place {
    disk: Disk,
    pool: Pool,
    aside: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { disk: Disk::new(Kind::Ext4), pool: Pool::new(), aside: disk::directory() };
        // Users that programs become may write here.
        Cmd::new("chmod").args(["0777", text(&place.disk.root)]).ok();
        place
    }

    fn file(&self, name: &str) -> PathBuf {
        self.disk.root.join(name)
    }

    /// Starts the writer by way of `start`; returns what it left and the summary.
    fn write(&self, start: &[&str], name: &str) -> (Output, Value) {
        let file = self.file(name);
        let mut program = start.to_vec();
        program.extend(["python3", "-c", WRITER, text(&file)]);
        let (output, summary) = self.pool.run_summarised(&[], &program);
        output.ok();
        assert!(output.stdout.contains("written"), "{}", output.told());
        assert_eq!(std::fs::metadata(&file).expect("written").len(), WRITTEN_BYTES, "{}", output.told());
        (output, summary)
    }

    fn must_absorb(&self, start: &[&str], name: &str) {
        let (output, summary) = self.write(start, name);
        let absorbed = report::number(&summary, "writes_absorbed");
        assert!(absorbed >= 40, "{absorbed} absorbed\n{summary:#}\n{}", output.told());
        assert!(report::flag(&summary, "drained"), "{summary:#}");
    }

    /// Nothing is absorbed, and summary and doctor name the program and the reason.
    fn must_say_not_absorbed(&self, start: &[&str], name: &str, program: &str, reason: &str) {
        let (output, summary) = self.write(start, name);
        let told = unseen(&summary);
        assert!(
            told.iter().any(|(path, why)| path.contains(program) && why.contains(reason)),
            "not told of {program} ({reason})\n{summary:#}\n{}",
            output.told()
        );
        let mut line = start.to_vec();
        let file = self.file(&format!("{name}-doctor"));
        line.extend(["python3", "-c", WRITER, text(&file)]);
        let doctor = Cmd::holdfast("doctor").arg("--").args(&line).ok();
        let says = doctor
            .stdout
            .lines()
            .any(|line| line.contains("not absorbed") && line.contains(program) && line.contains(reason));
        assert!(says, "doctor does not tell of {program} ({reason})\n{}", doctor.told());
    }
}

fn unseen(summary: &Value) -> Vec<(String, String)> {
    let rows = report::find(summary, "programs_unseen").and_then(Value::as_array).expect("a list");
    let field = |row: &Value, name: &str| row[name].as_str().expect("text").to_owned();
    rows.iter().map(|row| (field(row, "program"), field(row, "reason"))).collect()
}

fn compiled(source: &str, into: &Path, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let program = into.join(source.file_stem().expect("a name"));
    Cmd::new("gcc").args(["-O1", "-w", "-o"]).args([&program, &source]).args(options).ok();
    program
}

/// As systemd starts a unit with MemoryDenyWriteExecute: by prctl from version 254 on, by a filter
/// before.
#[test]
fn memory_that_may_not_become_executable_does_not_keep_it_out() {
    let place = Place::new();
    let confine = compiled("../preload/tests/programs/no_exec_gain.c", place.aside.path(), &[]);
    for how in ["mdwe", "filter"] {
        place.must_absorb(&[text(&confine), how], how);
    }
    // And the whole of Holdfast inside such a unit.
    let file = place.file("inside");
    let output = Cmd::new(&confine)
        .arg("mdwe")
        .arg(holdfast_e2e::need::holdfast())
        .args(["run", "--volatile", "--durability=write", "--size", "64M", "--summary"])
        .args(["--pool", place.pool.text(), "--"])
        .args(["python3", "-c", WRITER, text(&file)])
        .ok();
    assert!(output.stderr.contains("writes absorbed       40"), "{}", output.told());
    // Where not even a file in memory may be made, it says so.
    place.must_say_not_absorbed(&[text(&confine), "strict"], "strict", "python3", "could not be replaced");
}

/// A program that gave up rights in the midst of its work is left to the kernel from then on. Only
/// the summary said so where most of its syncs had been absorbed.
#[test]
fn a_program_that_gives_up_rights_is_named_at_the_end() {
    const PARTING: &str = "
import ctypes, os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for number in range(200): os.pwrite(fd, b'x' * 100, number * 100), os.fsync(fd)
if sys.argv[2] == 'user': os.setresuid(65534, 65534, 65534)
else:
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capset(header, data) == 0
for number in range(20): os.pwrite(fd, b'y' * 100, number * 100), os.fsync(fd)
";
    let place = Place::new();
    for (how, why) in [("user", "it became another user"), ("capabilities", "it dropped capabilities")] {
        let file = place.file(how);
        let program = ["--", "python3", "-c", PARTING, text(&file), how];
        let output = place.pool.run(&[]).args(program).ok();
        output.says(&["not absorbed: what", "python3", "it gave up rights", why, "syncs absorbed"], &[]);
        // A summary says it already.
        let output = place.pool.run(&["--summary"]).args(program).ok();
        assert_eq!(output.stderr.matches("not absorbed: what").count(), 1, "{}", output.told());
    }
}

#[test]
fn su_and_sudo_are_followed_or_named() {
    let place = Place::new();
    let script = "exec python3 -c \"$0\" \"$1\"";
    let file = place.file("su");
    let program = ["su", "postgres", "-s", "/bin/sh", "-c", script, "--", WRITER, text(&file)];
    // A keeper serves one user: what became another one is left to the kernel, and told of.
    let other = "runs as another user";
    let (output, summary) = place.pool.run_summarised(&[], &program);
    output.ok().says(&["NOTHING was absorbed", "python3", other, "--user"], &[]);
    assert!(
        unseen(&summary).iter().any(|(path, why)| path.contains("python3") && why.contains(other)),
        "{summary:#}\n{}",
        output.told()
    );
    assert_eq!(std::fs::metadata(&file).expect("written").len(), WRITTEN_BYTES);
    let start = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"];
    place.must_say_not_absorbed(&start, "setpriv", "python3", other);

    // sudo clears the environment, when it is another user's already.
    place.must_say_not_absorbed(&["sudo", "-u", "postgres"], "sudo", "sudo", "became another user");
    // Who stays the same user is followed, or named.
    place.must_absorb(&["setpriv", "--groups=0"], "setpriv-root");
    let start = format!("exec python3 -c '{}' {}", WRITER.replace('\'', "\""), text(&place.file("su-root")));
    let (output, summary) = place.pool.run_summarised(&[], &["su", "root", "-s", "/bin/sh", "-c", &start]);
    output.ok();
    assert!(report::number(&summary, "writes_absorbed") >= 40, "{summary:#}\n{}", output.told());
    place.must_say_not_absorbed(&["sudo"], "sudo-root", "sudo", "changed its groups");
    place.must_say_not_absorbed(&["env", "-i"], "env", "python3", "environment without the library");
}

#[test]
fn programs_that_the_library_cannot_enter_are_named() {
    let place = Place::new();
    std::fs::write(
        place.aside.path().join("still.c"),
        "#include <stdio.h>\nint main(int argc, char **argv) { __asm__ volatile(\"int $0x80\" : : \"a\"(20) : \
         \"r8\", \"r9\", \"r10\", \"r11\", \"memory\"); FILE *f = fopen(argv[1], \"w\"); fputs(\"x\", f); \
         return fclose(f); }\n",
    )
    .expect("source");
    let source = place.aside.path().join("still.c");
    let still = place.aside.path().join("still");
    Cmd::new("gcc").args(["-static", "-o"]).args([&still, &source]).ok();
    let secret = place.aside.path().join("secret");
    Cmd::new("gcc").arg("-o").args([&secret, &source]).ok();
    Cmd::new("chown").args(["root:root", text(&secret)]).ok();
    Cmd::new("chmod").args(["4755", text(&secret)]).ok();
    Cmd::new("chmod").args(["0755", text(place.aside.path())]).ok();
    let file = place.file("still");
    for start in [
        format!("{} {}; true", text(&still), text(&file)),
        format!("exec {} {}", text(&still), text(&file)),
        format!(
            "python3 -c 'import subprocess; subprocess.run([\"{}\", \"{}\"])'",
            text(&still),
            text(&file)
        ),
    ] {
        let (output, summary) = place.pool.run_summarised(&[], &["sh", "-c", &start]);
        output.ok();
        let is_named = |(path, why): &(String, String)| {
            path == text(&still) && why.contains("one of its system calls cannot be led")
        };
        assert!(unseen(&summary).iter().any(is_named), "{start}\n{summary:#}");
    }
    let pool = Pool::of_user("postgres", "");
    let start = format!("{} {}; true", text(&secret), text(&file));
    let exclusive = text(&place.disk.root).to_owned();
    let summary = place.file("summary");
    let option = format!("--summary={}", text(&summary));
    pool.run(&["--exclusive", &exclusive, &option]).args(["--", "sh", "-c", &start]).ok();
    let summary = report::parse(&std::fs::read_to_string(&summary).expect("summary"));
    let told = unseen(&summary);
    assert!(
        told.iter().any(|(path, why)| path == text(&secret) && why.contains("more privilege")),
        "{told:?}"
    );
}

#[test]
fn namespaces_of_a_container_are_followed_or_named() {
    let place = Place::new();
    place.must_absorb(&["unshare", "-m", "-p", "-f", "--mount-proc"], "pids");
    place.must_absorb(&["unshare", "-m", "-p", "-f", "--mount-proc", "-i", "-u", "-n"], "all");
    // But not one of users, in which a program may take another's keeper for its own user's.
    place.must_say_not_absorbed(
        &["unshare", "-U", "-r", "-m", "-p", "-f"],
        "users",
        "unshare",
        "user namespace",
    );
    // A directory under another name: the keeper knows the file by what it is.
    let bound = place.file("bound");
    std::fs::create_dir(&bound).expect("directory");
    let script = "mount --bind \"$1\" /mnt && exec python3 -c \"$2\" /mnt/file";
    let program = ["unshare", "-m", "sh", "-c", script, "sh", text(&bound), WRITER];
    let (output, summary) = place.pool.run_summarised(&[], &program);
    output.ok();
    assert_eq!(std::fs::metadata(bound.join("file")).expect("written").len(), WRITTEN_BYTES);
    let absorbed = report::number(&summary, "writes_absorbed");
    let bypassed = report::find(&summary, "bypassed").and_then(Value::as_array).expect("a list");
    assert!(absorbed >= 40 || !bypassed.is_empty(), "neither absorbed nor named\n{summary:#}");
}

/// A root directory of its own, as `chroot` and containers give one: with the library and the
/// socket inside it is followed, without them it is named.
#[test]
fn a_root_directory_of_its_own_is_followed_or_named() {
    let place = Place::new();
    let root = place.file("root");
    for dir in ["bin", "usr", "lib", "lib64", "proc", "dev", "tmp", "srv"] {
        std::fs::create_dir_all(root.join(dir)).expect("directory");
    }
    let mounts = "
set -e
for dir in bin usr lib lib64 dev; do mount --bind /$dir \"$1/$dir\"; done
mount -t proc proc \"$1/proc\"
shift
";
    let chroot = "exec chroot \"$@\"";
    let script = format!("{mounts}{chroot}");
    let start = |script: &str| -> (Output, Value) {
        let root = text(&root).to_owned();
        let program = [
            "unshare",
            "-m",
            "-p",
            "-f",
            "sh",
            "-c",
            script,
            "sh",
            &root,
            &root,
            "python3",
            "-c",
            WRITER,
            "/srv/file",
        ];
        let (output, summary) = place.pool.run_summarised(&[], &program);
        output.ok();
        assert_eq!(std::fs::metadata(root_file(&place)).expect("written").len(), WRITTEN_BYTES);
        (output, summary)
    };
    let (output, summary) = start(&script);
    let told = unseen(&summary);
    // It goes without the library, so the loader misses nothing.
    assert!(!output.stderr.contains("cannot be preloaded"), "{}", output.told());
    assert!(
        told.iter().any(|(path, why)| {
            path.ends_with("chroot") && why.contains("root directory, where the library does not exist")
        }),
        "{summary:#}\n{}",
        output.told()
    );

    // The library alone: it runs as an outsider, and says so.
    let built = holdfast_e2e::need::holdfast();
    let library = built.parent().expect("a directory");
    std::fs::create_dir_all(root.join(library.strip_prefix("/").expect("absolute"))).expect("directory");
    let (output, summary) =
        start(&format!("{mounts}mount --bind {0} \"$1/{0}\"\n{chroot}", library.display()));
    assert!(output.stderr.contains("is out of reach of this program"), "{}", output.told());
    assert!(unseen(&summary).iter().any(|(_, why)| why.contains("root directory")), "{summary:#}");

    // The library's directory and the socket's under their own paths.
    for dir in [library, Path::new("/run/holdfast")] {
        std::fs::create_dir_all(root.join(dir.strip_prefix("/").expect("absolute"))).expect("directory");
    }
    let with_library = format!(
        "{mounts}for dir in {} /run/holdfast; do mount --bind $dir \"$1/$dir\"; done\n{chroot}",
        library.display()
    );
    let (output, summary) = start(&with_library);
    // What `chroot` itself would have written goes to the disk; what it starts is a client.
    let told = unseen(&summary);
    assert!(
        told.iter()
            .all(|(path, why)| path.ends_with("chroot") && why.ends_with("changed its root directory")),
        "{summary:#}\n{}",
        output.told()
    );
    let absorbed = report::number(&summary, "writes_absorbed");
    let bypassed = report::find(&summary, "bypassed").and_then(Value::as_array).expect("a list");
    assert!(absorbed >= 40 || !bypassed.is_empty(), "neither absorbed nor named\n{summary:#}");
}

fn root_file(place: &Place) -> PathBuf {
    place.file("root").join("srv/file")
}

/// Forks twice, leaves session, directory and descriptors behind, and writes when its starter is
/// long gone.
#[test]
fn a_daemon_is_followed_until_its_end() {
    let place = Place::new();
    let file = place.file("daemon");
    let script = format!(
        "
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir('/')
os.umask(0)
os.closerange(0, 1024)
null = os.open('/dev/null', os.O_RDWR)
os.dup2(null, 1); os.dup2(null, 2)
time.sleep(0.7)
{}
time.sleep(30)
",
        WRITER.trim()
    );
    let options = ["--age-max", "60000"];
    let output = place.pool.run(&options).args(["--", "python3", "-c", &script, text(&file)]).ok();
    // Whoever reads what it says is not kept waiting by the keeper.
    assert!(output.took < Duration::from_secs(5), "{}", output.told());
    wait_until(Duration::from_secs(10), "the daemon's file", || {
        std::fs::metadata(&file).is_ok_and(|meta| meta.len() == WRITTEN_BYTES)
    });
    let status = place.pool.status();
    assert!(report::number(&status, "writes_absorbed") >= 40, "{status:#}");
    // The only client left is the daemon: killed together with its keeper, what it wrote is in the
    // log.
    let clients = report::find(&status, "clients").and_then(Value::as_array).expect("a list").clone();
    let keeper = proc::keeper(&place.pool.path);
    proc::kill_hard(keeper);
    for client in clients {
        proc::kill_hard(client.as_u64().expect("a number") as u32);
    }
    wait_until(Duration::from_secs(10), "the keeper's end", || proc::keepers(&place.pool.path).is_empty());
    let recovered = place.pool.recover(&[]);
    let told = report::parse(&recovered.ok().stdout);
    assert!(report::number(&told, "records") >= 40, "{told:#}");
}
