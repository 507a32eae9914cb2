//! What can be wrong with a pool, a file, a disk or a program: each ends in a message that names
//! the thing and says what to do, a status that is not 0, and nothing damaged.

use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{need, proc, report};

#[path = "bad_input/crashed.rs"]
mod crashed;
#[path = "bad_input/pools.rs"]
mod pools;

/// `run` refused, or failed before the program started.
const REFUSED: i32 = 120;

const NOBODY: &str = "nobody";

/// Where a pool has the copy of its superblock.
const SUPERBLOCK_COPY: u64 = 4096 + 2048;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    let mut file = std::fs::OpenOptions::new().write(true).open(path).expect("pool");
    file.seek(SeekFrom::Start(offset)).and_then(|_| file.write_all(bytes)).expect("write");
}

/// A checkout in root's home: the loader goes on without a library that it cannot read, and nothing
/// would be durable.
#[test]
fn a_library_that_the_user_cannot_read_is_no_missing_one() {
    need::root();
    let home = disk::directory();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("mode");
    };
    mode(home.path(), 0o755);
    let built = need::holdfast();
    let (program, library) = (home.path().join("holdfast"), home.path().join("libholdfast.so"));
    std::fs::copy(&built, &program).expect("copied");
    std::fs::copy(built.with_file_name("libholdfast.so"), &library).expect("copied");
    mode(&library, 0o600);
    let run = Cmd::new(&program).args(["run", "--volatile", "--", "true"]).user(NOBODY, "").output();
    run.expect(&[REFUSED])
        .says(&["libholdfast.so"], &["Permission denied"])
        .says(&["install"], &["whoever runs holdfast"]);
}

/// `su` keeps the variable of whoever called it, and a container's /run may be read-only: a keeper
/// is found elsewhere then.
#[test]
fn a_runtime_directory_that_is_not_ours() {
    need::root();
    let roots = disk::directory();
    let pool = Pool::of_user(NOBODY, "");
    let run = pool.run(&[]).env("XDG_RUNTIME_DIR", text(roots.path()));
    run.args(["--", "true"]).ok();
    let pool = Pool::new();
    let script = "mount -t tmpfs -o ro none /run && exec \"$@\"";
    let namespace = Cmd::new(need::tool("unshare")).args(["-m", "sh", "-c", script, "sh"]);
    let run = namespace.arg(need::holdfast()).args(["run", "--volatile", "--size", "64M", "--pool"]);
    run.args([pool.text(), "--", "true"]).ok();
}

/// A tmpfs of its own, unmounted at the end.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn new(size: &str) -> Self {
        need::root();
        let dir = disk::directory();
        Cmd::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(dir.path()).ok();
        Self(dir)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        drop(Cmd::new("umount").arg("-l").arg(self.0.path()).output());
    }
}

/// Each is refused before the program starts, and says what is wrong and what would do.
#[test]
fn options_that_cannot_be_kept() {
    let pool = Pool::formatted();
    let refused: &[(&[&str], i32, &[&str])] = &[
        (&["--nvm-bandwidth", "2"], 2, &["--nvm-bandwidth", "1M/s"]),
        (&["--age-max", "2d"], 2, &["--age-max", "ms, s, m or h"]),
        (&["--read-cache", "1M"], 2, &["--write-behind"]),
        (&["--fence", "none"], REFUSED, &["--fence none", "--exclusive"]),
        (&["--fence", "inotify", "--write-behind", "on"], REFUSED, &["--write-behind", "--fence lease"]),
        (&["--batch-min", "2M", "--batch-max", "1M"], REFUSED, &["--batch-min", "--batch-max"]),
        (&["--summary=/no/such/directory/file"], REFUSED, &["/no/such/directory/file"]),
        (&["--exclusive=/proc/self/status"], REFUSED, &["--exclusive /proc/self/status", "no directory"]),
        (&["--batch-min=1G"], REFUSED, &["--batch-min 1.0 GiB", "half of the pool", "--size"]),
        (&["--write-behind=on", "--read-cache=900G"], REFUSED, &["--read-cache 900.0 GiB", "memory"]),
        (&["--spill=/var/tmp/no-such-spill", "--spill-size=1"], REFUSED, &["no-such-spill", "at least"]),
        (&["--spill=/var/tmp/no-such-spill", "--spill-size=900T"], REFUSED, &["900.0 TiB", "at most"]),
        (&["--batch-max=64M"], REFUSED, &["--batch-max 64.0 MiB", "the pool's log", "--size"]),
        (&["--write-behind=on", "--read-cache=1"], REFUSED, &["--read-cache 1 B", "4.0 KiB"]),
        (&["--include="], REFUSED, &["--include ''", "no path is empty"]),
        (&["--include=srv/**"], REFUSED, &["--include 'srv/**'", "absolute paths"]),
        (&["--exclude=./tmp"], REFUSED, &["--exclude ./tmp", "absolute paths"]),
        // Both open for writing, and take nothing.
        (&["--summary=/dev/full"], REFUSED, &["--summary=/dev/full", "no space left"]),
        (&["--summary=/proc/version"], REFUSED, &["--summary=/proc/version"]),
    ];
    for (options, status, says) in refused {
        let run = Cmd::holdfast("run").args(["--volatile", "--pool", pool.text()]).args(*options);
        let output = run.args(["--", "echo", "the program ran"]).output();
        output.expect(&[*status]).says(says, &[]);
        assert!(!output.stdout.contains("the program ran"), "{}", output.told());
    }
    let other =
        Cmd::holdfast("run").args(["--volatile", "--pool", pool.text(), "--size", "1G", "--", "true"]);
    other.output().expect(&[REFUSED]).says(&[pool.text(), "--size", "1.0 GiB"], &[]);
    let empty = Cmd::holdfast("run").env("HOLDFAST_POOL", "").args(["--volatile", "--", "true"]);
    empty.output().expect(&[2]).says(&["HOLDFAST_POOL"], &[]);
}

/// Help that nobody gets is a failure, as with what other commands print.
#[test]
fn help_that_cannot_be_written_is_no_success() {
    for words in ["--help", "--version", "help", "run --help", "doctor --json"] {
        let script = format!("{} {words} > /dev/full", text(&need::holdfast()));
        let told = Cmd::new("sh").args(["-c", &script]).output();
        told.expect(&[1]).says(&["cannot write to standard output", "no space left"], &[]);
        let gone = format!("set -o pipefail; {} {words} | true", text(&need::holdfast()));
        Cmd::new("bash").args(["-c", &gone]).output().expect(&[0]).says(&[], &[]);
    }
}

/// A run that asked for every write to be durable joined a keeper that absorbs nothing before a
/// file's first sync, and said nothing.
#[test]
fn a_joined_keeper_that_promises_less_is_refused() {
    let pool = Pool::formatted();
    let run = |options: &[&str]| {
        Cmd::holdfast("run").args(["--volatile", "--pool", pool.text()]).args(options).arg("--")
    };
    let mut first = run(&["--durability=sync", "--age-max=2s"]).args(["sleep", "30"]).spawn();
    proc::wait_until(Duration::from_secs(10), "the program", || {
        proc::descendants(first.id()).into_iter().any(|pid| !proc::is_holdfast(pid))
    });
    let asks = ["--durability=write", "--age-max=5s"];
    let refused = run(&asks).args(["echo", "the program ran"]).output();
    refused
        .expect(&[REFUSED])
        .says(&[pool.text(), "--durability is sync, not write", "2000 ms, not 5000 ms", "--join-as-is"], &[]);
    assert!(!refused.stdout.contains("the program ran"), "{}", refused.told());
    let joined = run(&[asks[0], asks[1], "--join-as-is"]).arg("true").ok();
    assert!(joined.stderr.contains("--durability is sync, not write"), "{}", joined.told());
    // What is not asked for by name asks for nothing, and what is the same is the same.
    for options in [&[][..], &["--durability=sync", "--age-max=2000ms"]] {
        let joined = run(options).arg("true").ok();
        assert!(!joined.stderr.contains("as it is"), "{}", joined.told());
    }
    proc::descendants(first.id())
        .into_iter()
        .filter(|pid| !proc::is_holdfast(*pid))
        .for_each(proc::kill_hard);
    drop(first.wait());
}

/// Whoever asked for Holdfast and got the kernel alone hears so without asking.
#[test]
fn nothing_absorbed_is_said() {
    let tmpfs = Tmpfs::new("24m");
    let file = tmpfs.0.path().join("file");
    let write = |to: &Path| {
        let to = format!("of={}", text(to));
        Pool::new().run(&[]).args(["--", "dd", "if=/dev/zero", &to, "bs=4k", "count=4", "conv=fsync"]).ok()
    };
    let output = write(&file);
    assert!(output.stderr.contains("NOTHING was absorbed"), "{}", output.told());
    assert!(output.stderr.contains(text(&file)), "{}", output.told());
    let disk = Disk::new(Kind::Ext4);
    let output = write(&disk.root.join("file"));
    assert!(!output.stderr.contains("NOTHING"), "{}", output.told());
    // A redirection that is not synced had nothing to be absorbed.
    let redirected = |program: &str| {
        let pool = Pool::new().logs_from_sync();
        let run = pool.run(&[]);
        let script = format!("{} -- {program} > {}", run.line(), text(&disk.root.join("file")));
        Cmd::new("sh").args(["-c", &script]).ok()
    };
    let output = redirected("ls /");
    assert!(!output.stderr.contains("NOTHING"), "{}", output.told());
    let output = redirected("dd if=/dev/zero bs=4k count=4 conv=fsync");
    assert!(output.stderr.contains("its opening was not seen"), "{}", output.told());
    // Of one that is mapped before its first sync that is said.
    let map = "import mmap, os, sys; fd = os.open(sys.argv[1], os.O_RDWR); m = mmap.mmap(fd, 16384); m[0] = 1; m.flush()";
    let output = Pool::new()
        .logs_from_sync()
        .run(&[])
        .args(["--", "python3", "-c", map, text(&disk.root.join("file"))])
        .ok();
    assert!(output.stderr.contains("NOTHING was absorbed"), "{}", output.told());
    assert!(output.stderr.contains("mapped shared and writable"), "{}", output.told());
    // One that is written and not synced is not the reason: what was synced is named.
    let file = disk.root.join("was there");
    std::fs::write(&file, "before").expect("file");
    let dd =
        format!("sh -c 'echo said; dd if=/dev/zero \"of={}\" bs=4k count=1 conv=notrunc,fsync'", text(&file));
    let output = redirected(&dd);
    let named =
        format!("none of 1 syncs absorbed: 1 file ({}) was synced once, and the first sync", text(&file));
    assert!(output.stderr.contains(&named) && !output.stderr.contains("not seen"), "{}", output.told());
    let on_tmpfs =
        format!("sh -c 'echo said; dd if=/dev/zero of={}/b bs=4k count=1 conv=fsync'", text(tmpfs.0.path()));
    let output = redirected(&on_tmpfs);
    assert!(
        output.stderr.contains("/b) is on tmpfs") && !output.stderr.contains("not seen"),
        "{}",
        output.told()
    );
    // A pipe has nothing to be synced, and the kernel says so.
    let output = Pool::new()
        .logs_from_sync()
        .run(&[])
        .args(["--", "sh", "-c", "dd if=/dev/zero count=1 conv=fsync | cat"])
        .output();
    assert!(!output.stderr.contains("absorbed"), "{}", output.told());
}

fn same_as_native(native: &Output, held: &Output) {
    assert_eq!(
        (native.code(), &native.stdout, native.stderr_of_program()),
        (held.code(), &held.stdout, held.stderr_of_program()),
        "natively:\n{}\nunder Holdfast:\n{}",
        native.told(),
        held.told()
    );
}

#[test]
fn no_permission_on_the_file_is_as_natively() {
    let disk = Disk::new(Kind::Ext4);
    let file = disk.root.join("file");
    std::fs::write(&file, "of root").expect("file");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("mode");
    let script = format!(
        "cat {0}; echo >> {0}; echo > {1}/new; dd if=/dev/zero of={0} count=1 2>&1 | head -n 1; rm -f {0}; mv {0} {0}2",
        text(&file),
        text(&disk.root)
    );
    let native = Cmd::new("env").args(["sh", "-c", &script]).user(NOBODY, "").output();
    let pool = Pool::of_user(NOBODY, "");
    let held = pool.run(&[]).args(["--", "sh", "-c", &script]).output();
    assert!(native.stderr.contains("Permission denied"), "{}", native.told());
    same_as_native(&native, &held);
}

#[test]
fn file_size_limit_is_as_natively() {
    let disk = Disk::new(Kind::Ext4);
    let script = |name: &str| {
        let file = disk.root.join(name);
        format!(
            "trap '' XFSZ; ulimit -f 8; dd if=/dev/zero of={} bs=3000 count=10 conv=fsync 2>&1 | grep -o 'File too large'",
            text(&file)
        )
    };
    let native = Cmd::new("sh").args(["-c", &script("native")]).ok();
    let held = Pool::new().run(&[]).args(["--", "sh", "-c", &script("held")]).ok();
    assert_eq!(native.stdout, held.stdout);
    let length = |name: &str| std::fs::metadata(disk.root.join(name)).expect("file").len();
    assert_eq!(length("native"), length("held"));
}

#[test]
fn unsupported_file_system_is_bypassed_and_named() {
    let tmpfs = Tmpfs::new("24m");
    let file = tmpfs.0.path().join("file");
    let program = ["dd", "if=/dev/zero", &format!("of={}", text(&file)), "bs=4k", "count=10", "conv=fsync"];
    let (output, summary) = Pool::new().run_summarised(&[], &program);
    output.ok();
    assert_eq!(std::fs::metadata(&file).expect("file").len(), 40960);
    assert_eq!(report::number(&summary, "writes_absorbed"), 0, "{summary:#}");
    let rows = report::find(&summary, "bypassed").filter(|rows| rows.is_array());
    let rows =
        rows.or_else(|| summary.get("bypassed")).and_then(|rows| rows.as_array()).expect("rows").clone();
    let row = rows
        .iter()
        .find(|row| row["path"] == text(&file))
        .unwrap_or_else(|| panic!("not named in {summary:#}"));
    assert!(row["reason"].as_str().is_some_and(|reason| reason.contains("file system")), "{row:#}");
}

#[test]
fn missing_library() {
    let dir = disk::directory();
    let alone = dir.path().join("holdfast");
    std::fs::copy(need::holdfast(), &alone).expect("copy");
    let pool = Pool::new();
    let run = Cmd::new(&alone)
        .args(["run", "--volatile", "--size", "64M", "--pool", pool.text(), "--", "true"])
        .output();
    run.expect(&[REFUSED]).says(&[text(dir.path()), "libholdfast.so"], &[]);
}

#[test]
fn static_program() {
    let disk = Disk::new(Kind::Ext4);
    let (source, program) = (disk.root.join("main.c"), disk.root.join("program"));
    let old = "int main(void) { __asm__ volatile(\"int $0x80\" : : \"a\"(20) : \"memory\"); return 0; }";
    std::fs::write(&source, old).expect("source");
    Cmd::new("gcc").args(["-static", "-o"]).arg(&program).arg(&source).ok();
    let run = Pool::new().run(&[]).arg("--").arg(&program).output();
    run.expect(&[REFUSED]).says(&[text(&program), "cannot be led", "holdfast mount"], &["static"]);
}

#[test]
fn setuid_program() {
    let disk = Disk::new(Kind::Ext4);
    let program = disk.root.join("program");
    std::fs::copy("/bin/true", &program).expect("copy");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("mode");
    let run = Pool::of_user(NOBODY, "").run(&[]).arg("--").arg(&program).output();
    run.expect(&[REFUSED]).says(&[text(&program)], &["set-user-id", "setuid", "set-uid"]);
}

#[test]
fn program_with_capabilities() {
    let disk = Disk::new(Kind::Ext4);
    let program = disk.root.join("program");
    std::fs::copy("/bin/true", &program).expect("copy");
    // cap_net_raw, permitted and effective (struct vfs_cap_data, revision 2).
    let mut capabilities = [0u8; 20];
    capabilities[..4].copy_from_slice(&0x0200_0001u32.to_le_bytes());
    capabilities[4..8].copy_from_slice(&(1u32 << 13).to_le_bytes());
    let hex: String = capabilities.iter().map(|byte| format!("{byte:02x}")).collect();
    let set = "import os, sys; os.setxattr(sys.argv[1], 'security.capability', bytes.fromhex(sys.argv[2]))";
    Cmd::new("python3").args(["-c", set, text(&program), &hex]).ok();
    let run = Pool::of_user(NOBODY, "").run(&[]).arg("--").arg(&program).output();
    run.expect(&[REFUSED]).says(&[text(&program)], &["file capabilities"]);
    // One that a program of the run starts is named, and one that its user may not read as well.
    for mode in [0o755, 0o711] {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).expect("mode");
        let script = format!("{}; true", text(&program));
        let run = Pool::of_user(NOBODY, "").run(&[]).args(["--", "sh", "-c", &script]).ok();
        run.says(&["absorbed: ", text(&program), "more privilege"], &[]);
    }
}

#[test]
fn unknown_program() {
    let run = Pool::new().run(&[]).args(["--", "no-such-program-anywhere"]).output();
    run.expect(&[127]).says(&["no-such-program-anywhere"], &["not found", "no such"]);
    let run = Pool::new().run(&[]).args(["--", "/no/such/program"]).output();
    run.expect(&[127]).says(&["/no/such/program"], &["not found", "no such"]);
    let dir = disk::directory();
    let file = dir.path().join("plain");
    std::fs::write(&file, "plain text").expect("file");
    let run = Pool::new().run(&[]).arg("--").arg(&file).output();
    run.expect(&[126]).says(&[text(&file)], &["permission", "execut"]);
}

#[test]
fn usage_errors() {
    Cmd::holdfast("run").output().expect(&[2]).says(&["usage"], &[]);
    Cmd::holdfast("nonsense").output().expect(&[2]).says(&["nonsense"], &[]);
    Cmd::holdfast("run")
        .args(["--durability", "never", "--", "true"])
        .output()
        .expect(&[2])
        .says(&["never"], &[]);
    Cmd::holdfast("recover").output().expect(&[1, 2]).says(&["--pool"], &[]);
}

/// Scripts must not have to guess: times are in nanoseconds, those of options in the milliseconds
/// that they were given in, and never in seconds.
#[test]
fn no_time_in_json_is_in_seconds() {
    fn keys(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    found.push(name.clone());
                    keys(value, found);
                }
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
            _ => {}
        }
    }
    let pool = Pool::formatted();
    let mut found = Vec::new();
    keys(&report::parse(&pool.recover(&[]).ok().stdout), &mut found);
    let script = format!("{} status --json --pool {}", text(&need::holdfast()), pool.text());
    keys(&report::parse(&pool.run(&[]).args(["--", "sh", "-c", &script]).output().ok().stdout), &mut found);
    for time in ["scan_ns", "apply_ns", "stall_ns", "age_ms_max", "stop_ms_max"] {
        assert!(found.iter().any(|name| name == time), "{time} is missing in {found:?}");
    }
    let in_seconds: Vec<_> =
        found.iter().filter(|name| name.ends_with("_s") && !name.ends_with("_per_s")).collect();
    assert!(in_seconds.is_empty(), "{in_seconds:?}");
}
