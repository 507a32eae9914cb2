//! Nothing private of Holdfast shows in a program: sanitizers, valgrind, narrow limits and lsof see
//! in the program of `programs/guest.c` what they see natively. Where the library cannot be at work
//! the program says so and runs on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{need, proc, report};

/// The guest's own writes: by descriptor, by three threads, by stdio, by its child.
const WRITES: u64 = 1 + 3 * 200 + 200 + 1;
const LEFT: &str = "writes go to the disk as usual";

fn guest(directory: &Path, options: &[&str]) -> PathBuf {
    let program = directory.join("guest");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/guest.c");
    Cmd::new("gcc").args(["-g", "-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source).args(options).ok();
    program
}

/// Runs a shell line natively and under Holdfast. Both must print the same; returns what was said
/// on standard error and how many writes were absorbed.
fn compare(disk: &Disk, options: &[&str], line: &str) -> (String, u64) {
    let line = format!("cd {} && {line}", disk.root.display());
    let native = Cmd::new("sh").args(["-c", &line]).output();
    native.ok();
    let (held, summary) = Pool::new().run_summarised(options, &["sh", "-c", &line]);
    held.ok();
    assert_eq!(held.stdout, native.stdout, "{line}\n{}", held.told());
    assert!(report::flag(&summary, "drained"), "{line}");
    (held.stderr, report::number(&summary, "writes_absorbed"))
}

#[test]
fn sanitizers_find_nothing() {
    let disk = Disk::new(Kind::Ext4);
    let pool = Pool::new();
    for sanitizer in ["address", "thread", "undefined"] {
        let program = guest(&disk.root, &[&format!("-fsanitize={sanitizer}"), "-fno-sanitize-recover"]);
        let text = program.to_str().expect("text");
        let native = Cmd::new(&program).dir(&disk.root).ok().stdout;
        for mode in ["off", "at-once"] {
            let script = format!("--write-behind={mode}");
            let file = tempfile::NamedTempFile::new().expect("temporary file");
            let summary = format!("--summary={}", file.path().display());
            let held = pool.run(&[&script]).arg(summary).arg("--").arg(text).dir(&disk.root).output();
            let summary = report::parse(&std::fs::read_to_string(file.path()).expect("summary"));
            held.ok();
            assert_eq!(held.stdout, native, "{sanitizer}, {}", held.told());
            let absorbed = report::number(&summary, "writes_absorbed");
            assert!(absorbed >= WRITES, "{sanitizer}, {mode}: {absorbed} writes absorbed");
        }
    }
}

/// The address sanitizer must be loaded before all other libraries, or it ends the program; its
/// children are no business of its.
#[test]
fn the_sanitizers_runtime_is_not_left_to_children() {
    let disk = Disk::new(Kind::Ext4);
    let program = disk.root.join("parent");
    let source = disk.root.join("parent.c");
    std::fs::write(&source, "#include <stdlib.h>\nint main(void) { return system(\"echo $LD_PRELOAD\"); }\n")
        .expect("source");
    Cmd::new("gcc").arg("-fsanitize=address").arg("-o").arg(&program).arg(&source).ok();
    let (held, _) = Pool::new().run_summarised(&[], &[program.to_str().expect("text")]);
    held.ok();
    assert!(held.stdout.ends_with("/libholdfast.so\n") && !held.stdout.contains(':'), "{}", held.told());
}

/// valgrind translates code before it is patched, and does not know every instruction that makes
/// stores durable.
#[test]
fn valgrind_runs_the_program_as_natively() {
    need::tool("valgrind");
    let disk = Disk::new(Kind::Ext4);
    guest(&disk.root, &[]);
    let (told, _) = compare(&disk, &[], "valgrind -q --error-exitcode=9 ./guest");
    assert!(told.contains("runs under valgrind") && told.contains(LEFT), "{told}");
}

#[test]
fn few_descriptors_are_enough() {
    let disk = Disk::new(Kind::Ext4);
    guest(&disk.root, &[]);
    // Three of its own, a file, a stream or a directory, and what connecting takes for a moment.
    let (told, absorbed) = compare(&disk, &[], "ulimit -n 8 && ./guest");
    assert!(absorbed >= WRITES, "{absorbed} writes absorbed\n{told}");
    // Natively the guest needs five; connecting takes more, so the kernel has its files.
    compare(&disk, &[], "ulimit -n 5 && ./guest");
}

#[test]
fn an_address_space_too_small_for_the_pool_leaves_the_files_to_the_kernel() {
    let disk = Disk::new(Kind::Ext4);
    guest(&disk.root, &[]);
    let (told, _) = compare(&disk, &[], "ulimit -v 50000 && ./guest");
    assert!(told.contains(LEFT), "{told}");
    let (told, absorbed) = compare(&disk, &[], "ulimit -v 1000000 && ./guest");
    assert!(absorbed >= WRITES, "{absorbed} writes absorbed\n{told}");
}

/// The files that lsof lists of a process, without addresses, numbers and places.
fn listed(pid: u32) -> Vec<String> {
    let output =
        Cmd::new(need::tool("lsof")).args(["-w", "-F", "fn", "-p", &pid.to_string()]).output().stdout;
    let mut lines = Vec::new();
    let mut kind = String::new();
    for line in output.lines() {
        match line.split_at(1) {
            ("f", rest) => kind = rest.to_owned(),
            ("n", rest) => lines.push(format!("{kind} {rest}")),
            _ => {}
        }
    }
    lines
}

/// No descriptor, and in memory nothing but the library, the pool and the board.
#[test]
fn lsof_shows_only_mappings() {
    let disk = Disk::new(Kind::Ext4);
    let program = guest(&disk.root, &[]);
    let pool = Pool::new();
    let seen = |child: &mut std::process::Child, root: u32| {
        let find = || {
            let all = std::iter::once(root).chain(proc::descendants(root));
            all.filter(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program))
                .find(|pid| {
                    std::fs::read_to_string(format!("/proc/{pid}/syscall"))
                        .is_ok_and(|text| text.starts_with("34 "))
                })
        };
        proc::wait_until(Duration::from_secs(20), "the guest waits", || find().is_some());
        let guest = find().expect("waits");
        let lines = listed(guest);
        proc::kill_hard(guest);
        child.wait().expect("wait");
        lines
    };
    let line = format!("cd {} && GUEST_WAITS=1 exec ./guest", disk.root.display());
    let mut native = Cmd::new("sh").args(["-c", &line]).spawn();
    let root = native.id();
    let natively = seen(&mut native, root);
    let mut held = pool.run(&[]).arg("--").args(["sh", "-c", &line]).spawn();
    let root = held.id();
    let held = seen(&mut held, root);
    let is_descriptor = |line: &&String| line.as_bytes()[0].is_ascii_digit();
    let numbers = |lines: &[String]| -> Vec<String> {
        lines
            .iter()
            .filter(is_descriptor)
            .map(|line| line.split(' ').next().unwrap_or("").to_owned())
            .collect()
    };
    assert_eq!(numbers(&held), numbers(&natively), "{held:#?}\n{natively:#?}");
    let is_new = |line: &&String| !is_descriptor(line) && !natively.contains(line);
    let ours = |line: &&String| {
        line.contains("libholdfast.so") || line.contains(pool.text()) || line.contains("memfd:")
    };
    let others: Vec<_> = held.iter().filter(is_new).filter(|line| !ours(line)).collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// A disk that will not take a write refuses it at once, and with the kernel's own error, in every
/// state of a file.
#[test]
fn a_quota_refuses_the_write_itself() {
    let disk = Disk::new(Kind::Btrfs);
    let limit = |name: &str| {
        let home = disk.root.join(name);
        Cmd::new("btrfs").args(["subvolume", "create"]).arg(&home).ok();
        Cmd::new("btrfs").args(["qgroup", "limit", "4M"]).arg(&home).ok();
        home
    };
    Cmd::new("btrfs").args(["quota", "enable"]).arg(&disk.root).ok();
    let script = "import os,sys,errno\n\
        fd=os.open(sys.argv[1]+'/a',os.O_RDWR|os.O_CREAT)\n\
        done=0\n\
        error='none'\n\
        try:\n\
        \x20for i in range(200):\n\
        \x20 done+=os.write(fd,os.urandom(65536))\n\
        \x20 os.fsync(fd)\n\
        except OSError as e: error=errno.errorcode[e.errno]\n\
        print(error, os.fstat(fd).st_size==done, os.lseek(fd,0,1)==done, 1<<20 < done < 4<<20)\n";
    let run =
        |home: &Path| ["python3".to_owned(), "-c".to_owned(), script.to_owned(), home.display().to_string()];
    let native = Cmd::new(need::tool("python3")).args(&run(&limit("native"))[1..]).ok().stdout;
    assert!(native.starts_with("EDQUOT True True True"), "{native}");
    for (name, options) in [("through", &[][..]), ("behind", &["--write-behind=at-once"][..])] {
        let line = run(&limit(name));
        let (held, summary) = Pool::new().run_summarised(options, &line.each_ref().map(String::as_str));
        held.ok();
        assert_eq!(held.stdout, native, "{name}: {}", held.told());
        assert!(report::flag(&summary, "drained"), "{name}");
        assert!(report::number(&summary, "writes_absorbed") > 10, "{name}: {summary:#}");
    }
}

/// What a program writes by io_uring or libaio is not seen. Its files are the kernel's from then
/// on, in either state, and it is said so; nothing of them is lost or torn.
#[test]
fn asynchronous_writes_are_right_and_named() {
    let disk = Disk::new(Kind::Ext4);
    let fio = need::tool("fio").to_str().expect("text").to_owned();
    for engine in ["io_uring", "libaio"] {
        for mode in ["off", "at-once"] {
            let name = format!("{engine}-{mode}");
            let job = format!(
                "cd {} && {fio} --name=a --filename={name} --rw=randwrite --bs=4k --size=1M --fsync=8 \
                 --verify=crc32c --verify_state_save=0 --randseed=7",
                disk.root.display()
            );
            let line = format!("{job} --ioengine={engine} --iodepth=8 --do_verify=1 --output=/dev/null");
            // Written before by the same program in the usual way: records that could be laid over
            // what follows.
            let line = format!(
                "{job} --ioengine=psync --do_verify=0 --verify_pattern=7 --output=/dev/null && {line}"
            );
            let mode = format!("--write-behind={mode}");
            let (held, summary) = Pool::new().run_summarised(&[&mode], &["sh", "-c", &line]);
            held.ok();
            assert!(report::flag(&summary, "drained"), "{name}");
            assert!(report::number(&summary, "writes_absorbed") >= 256, "{name}: {summary:#}");
            let unseen = report::find(&summary, "programs_unseen").unwrap_or_default().to_string();
            assert!(unseen.contains("fio") && unseen.contains("io_uring or libaio"), "{name}: {unseen}");
            Cmd::new("sh").args(["-c", &format!("{job} --ioengine=psync --verify_only=1")]).ok();
        }
    }
}
