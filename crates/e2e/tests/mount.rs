//! A directory that is served to programs no library gets into: what they see of it is what they
//! see natively, what they sync is absorbed and survives, and nothing is left of it afterwards.

use std::path::{Path, PathBuf};

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{self, Kind};
use holdfast_e2e::mounted::{
    Mount, SOON, acknowledged, appends, clear, command, directory, disk, disk_with_size, here, is_mounted,
    must_hold, text,
};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::report;
use holdfast_e2e::running::Running;
use holdfast_e2e::{canaries, need};
use rustix::process::Signal;

/// Wrong, and nothing was changed.
const NOT_MOUNTED: i32 = 2;
const KEEPER_FAILED: i32 = 121;
/// The rules, each by the deliberate bug (`crates/canary`) that takes it out, and the test that
/// must notice.
const RULES: [(&str, &str); 3] = [
    ("MountSyncAnswered", "what_only_a_sync_makes_durable_survives_a_power_cut"),
    ("MountOwnerKept", "a_directory_of_ext4_looks_as_it_does_natively"),
    ("MountPrivilegesKept", "a_directory_of_ext4_looks_as_it_does_natively"),
];

/// Stores into a shared mapping and has that brought to the disk.
const STORE: &str = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, 8192)
os.fsync(fd)
map = mmap.mmap(fd, 8192)
map[100:106] = b'stored'
map.flush()
";

/// The kernel went on to believe the mode that it knew: whoever wrote to another's setuid program
/// had it run what was written with the other's rights.
#[test]
fn a_write_of_another_user_takes_rights_away_at_once() {
    let (disk, pool) = (disk(Kind::Ext4), Pool::new());
    let served = directory(&disk, "served");
    let program = served.join("program");
    std::fs::copy("/usr/bin/true", &program).expect("a program");
    Cmd::new("chown").arg("61001:61001").arg(&program).ok();
    Cmd::new("chmod").arg("6777").arg(&program).ok();
    Cmd::new("chmod").arg("0755").arg(&served).ok();
    let mount = Mount::over(&pool, &[], &served);
    let writer = ["--reuid=61002", "--regid=61002", "--clear-groups", "dd", "if=/usr/bin/id", "bs=1M"];
    let to = format!("of={}", text(&program));
    Cmd::new("setpriv").args(writer).args(["conv=notrunc", &to]).ok();
    let mode = Cmd::new("stat").args(["-c", "%a"]).arg(&program).ok().stdout;
    drop(mount.unmount());
    assert_eq!(mode.trim(), "777");
}

/// Root's server made a file and then gave it to the caller by its name. Who moves names beneath
/// the mount was given root's own file within a second, or the setuid bit on it, or could read it.
#[test]
fn nobody_gets_what_is_roots_by_a_name_that_leads_elsewhere() {
    need::root();
    let (disk, pool) = (disk(Kind::Ext4), Pool::new());
    let (below, point, programs) = (directory(&disk, "below"), directory(&disk, "point"), disk::directory());
    Cmd::new("chmod").arg("755").arg(programs.path()).arg(&below).ok();
    let program = programs.path().join("swaps");
    Cmd::new("cc").args(["-O2", "-Wall", "-Werror", "-o"]).arg(&program).arg(here("programs/swaps.c")).ok();
    let users = below.join("users");
    std::fs::create_dir(&users).expect("a directory");
    Cmd::new("chown").arg("61001:61001").arg(&users).ok();
    let mount = Mount::start(&pool, &["--at", text(&point)], &below, &point);
    for (kind, mode) in [("given", "600"), ("setuid", "755"), ("opened", "600")] {
        let roots = users.join("R");
        std::fs::write(&roots, "SECRET\n").expect("a file of root's");
        Cmd::new("chmod").arg(mode).arg(&roots).ok();
        let user = ["--reuid=61001", "--regid=61001", "--clear-groups"];
        let told = Cmd::new("setpriv")
            .args(user)
            .arg(&program)
            .args([kind, text(&point.join("users")), text(&users), "4"])
            .ok()
            .stdout;
        assert!(told.starts_with("not after "), "{kind}: {told}");
        for name in ["R", "x"] {
            drop(std::fs::remove_file(users.join(name)));
        }
    }
    drop(mount.unmount());
}

/// The kernel looks at the inode that it remembers for a name, and the server took away by the
/// name: so whoever had made the one could remove the other out of a sticky directory. Nor do users
/// fill what the file system keeps for root.
#[test]
fn a_user_may_no_more_through_roots_mount_than_without() {
    need::root();
    const USERS: [&str; 2] = ["61001", "61002"];
    let (disk, pool) = (disk_with_size(Kind::Ext4, 192 << 20), Pool::new());
    let (below, point) = (directory(&disk, "below"), directory(&disk, "point"));
    Cmd::new("chmod").arg("1777").arg(&below).ok();
    let by = |user: &str, script: &str, path: &Path| {
        let ids = [format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()];
        Cmd::new("setpriv").args(ids).args(["sh", "-c", script]).arg(path)
    };
    // How much a user gets of a disk of which a third is root's.
    let device = Cmd::new("findmnt").args(["-no", "SOURCE"]).arg(&disk.root).ok().stdout;
    Cmd::new("tune2fs").args(["-m", "33", device.trim()]).ok();
    let fill = |path: &Path| {
        let full =
            by(USERS[0], "dd if=/dev/zero of=$0/full bs=1M; stat -c %s $0/full; rm $0/full", path).output();
        assert!(full.stderr.contains("No space left"), "{}", full.told());
        // The space is free again a moment later.
        Cmd::new("sync").ok();
        std::thread::sleep(std::time::Duration::from_secs(1));
        full.stdout.trim().parse::<u64>().expect("a size")
    };
    let native_bytes = fill(&below);
    let mount = Mount::start(&pool, &["--at", text(&point)], &below, &point);
    let bytes = fill(&point);
    assert!(bytes <= native_bytes + (1 << 20), "{bytes} through the mount, natively {native_bytes}");
    for round in 0..3 {
        let name = format!("file-{round}");
        let at = |directory: &Path| directory.join(&name);
        by(USERS[0], "echo mine > $0 && cat $0", &at(&point)).ok();
        by(USERS[0], "rm $0", &at(&below)).ok();
        by(USERS[1], "echo theirs > $0", &at(&below)).ok();
        let taken = by(USERS[0], "rm -f $0 || mv -f $0 $0-mine", &at(&point)).output();
        assert!(at(&below).exists(), "{name}: {}", taken.told());
    }
    drop(mount.unmount());
}

/// What a user writes into a file of a group that is not theirs, and lets the group execute by an
/// ACL: its mode after each of these.
const GROUPS_FILE: &str = "
import os, struct, sys
path = sys.argv[1]
os.umask(0)
def mode(): return '%o' % (os.stat(path).st_mode & 0o7777)
for act in ['write', 'acl']:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o2766)
    told = [act, mode()]
    if act == 'write': os.write(fd, b'#!/bin/sh')
    entries = [(1, 7), (4, 7), (0x20, 7)]
    acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', tag, rights, 0xffffffff) for tag, rights in entries)
    if act == 'acl': os.setxattr(path, 'system.posix_acl_access', acl)
    told.append(mode())
    print(*told)
    os.close(fd)
    os.unlink(path)
";

/// A user had a program of their own run with the rights of a group that they are not in.
#[test]
fn nobody_gets_a_groups_rights_through_roots_mount() {
    need::root();
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let (disk, pool) = (disk(kind), Pool::new());
        let (below, point) = (directory(&disk, "below"), directory(&disk, "point"));
        Cmd::new("sh").args(["-c", "chgrp 61000 $0 && chmod 2777 $0"]).arg(&below).ok();
        let told = |directory: &Path| {
            let user = ["--reuid=61001", "--regid=61001", "--clear-groups"];
            let script = ["python3", "-c", GROUPS_FILE];
            Cmd::new("setpriv").args(user).args(script).arg(directory.join("file")).ok().stdout
        };
        let native = told(&below);
        let mount = Mount::start(&pool, &["--at", text(&point)], &below, &point);
        assert_eq!(told(&point), native, "{kind:?}");
        drop(mount.unmount());
    }
}

#[test]
fn programs_that_no_library_gets_into_are_absorbed() {
    let (disk, pool, home) = (disk(Kind::Ext4), Pool::new(), disk::directory());
    let c = appends(home.path());
    let go = home.path().join("appends-go");
    let source = here("programs/appends.go");
    let built = Cmd::new("go").args(["build", "-buildvcs=false", "-o"]).arg(&go).arg(source);
    built.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod").limit(4 * SOON).ok();
    let served = directory(&disk, "served");
    let mount = Mount::over(&pool, &["--durability=sync"], &served);
    for (program, file) in [(&c, "by-c"), (&go, "by-go")] {
        Cmd::new(program).arg(served.join(file)).arg("200").ok();
    }
    let shell = "for n in 0 1 2 3 4 5 6 7 8 9; do printf '%09d\\n' $n | \
                 busybox dd of=$1 bs=10 seek=$n conv=notrunc,fsync; done";
    Cmd::new("busybox").args(["sh", "-ec", shell, "sh"]).arg(served.join("by-sh")).ok();
    let summary = mount.unmount();
    for (file, last) in [("by-c", 199), ("by-go", 199), ("by-sh", 9)] {
        must_hold(&served.join(file), last);
    }
    // A first sync may be the kernel's, and the shell opens its file anew each time.
    assert!(report::number(&summary, "syncs_absorbed") >= 380, "{summary:#}");
    assert_eq!(summary["programs_unseen"].as_array().map(Vec::len), Some(0), "{summary:#}");
}

#[test]
fn sqlite_is_absorbed_without_a_library_in_it() {
    let (disk, pool) = (disk(Kind::Xfs), Pool::new());
    let served = directory(&disk, "served");
    let mount = Mount::over(&pool, &["--durability=sync"], &served);
    for mode in ["delete", "wal"] {
        let base = served.join(mode);
        let rows: String = (0..50).map(|row| format!("insert into t values({row});")).collect();
        let script = format!("pragma journal_mode={mode}; create table t(a); {rows} pragma integrity_check;");
        let told = Cmd::new("sqlite3").arg(&base).arg(script).ok();
        assert!(told.stdout.ends_with("ok\n"), "{}", told.told());
    }
    let summary = mount.unmount();
    assert!(report::number(&summary, "syncs_absorbed") > 50, "{summary:#}");
    assert_eq!(summary["front_ends"]["mount"], 1, "{summary:#}");
    for mode in ["delete", "wal"] {
        let told = Cmd::new("sqlite3").arg(served.join(mode)).arg("select sum(a) from t").ok();
        assert_eq!(told.stdout, "1225\n");
    }
}

fn rules(directory: &Path) -> Output {
    Cmd::new("python3").arg(here("tests/mount_rules.py")).arg(directory).limit(4 * SOON).ok()
}

fn looks_native(kind: Kind) {
    let (disk, pool) = (disk(kind), Pool::new());
    let (native, served) = (directory(&disk, "native"), directory(&disk, "served"));
    let mount = Mount::over(&pool, &[], &served);
    let through = rules(&served);
    mount.unmount();
    let native = rules(&native);
    assert!(native.stdout.lines().count() > 200, "{}", native.told());
    for (through, native) in through.stdout.lines().zip(native.stdout.lines()) {
        assert_eq!(through, native, "through the mount, and natively");
    }
    assert_eq!(through.stdout.len(), native.stdout.len());
}

#[test]
fn a_directory_of_ext4_looks_as_it_does_natively() {
    looks_native(Kind::Ext4);
}

#[test]
fn a_directory_of_xfs_looks_as_it_does_natively() {
    looks_native(Kind::Xfs);
}

#[test]
fn a_directory_of_btrfs_looks_as_it_does_natively() {
    looks_native(Kind::Btrfs);
}

#[test]
fn random_calls_leave_what_they_leave_in_memory() {
    let (disk, pool) = (disk(Kind::Ext4), Pool::new());
    let served = directory(&disk, "served");
    let seed = holdfast_testkit::Random::named("mount").draw() % 1_000_000;
    let play = |file: PathBuf, seed: u64| {
        let script = here("tests/mount_fsx.py");
        Cmd::new("python3").arg(script).arg(file).args([seed.to_string(), "400".into()]).limit(4 * SOON).ok();
    };
    let mount = Mount::over(&pool, &[], &served);
    (0..3).for_each(|file| play(served.join(format!("over-{file}")), seed + file));
    mount.unmount();
    // Elsewhere the kernel believes what it knows for a moment only.
    let at = directory(&disk, "at");
    let mount = Mount::start(&pool, &["--at", text(&at)], &served, &at);
    (3..5).for_each(|file| play(at.join(format!("at-{file}")), seed + file));
    mount.unmount();
}

#[test]
fn what_was_acknowledged_survives_a_kill_of_all() {
    let (disk, pool, home) = (disk(Kind::Btrfs), Pool::new(), disk::directory());
    let program = appends(home.path());
    let served = directory(&disk, "served");
    for (round, cleared) in [true, false].into_iter().enumerate() {
        let file = served.join(format!("file-{round}"));
        let mount = Mount::over(&pool, &["--age-max=60s"], &served);
        let mut running = Running::start(&Cmd::new(&program).arg(&file).arg("1000000"));
        let last = acknowledged(&mut running, 300);
        mount.kill_all();
        assert!(!running.child.wait().expect("wait").success(), "it gets an error");
        let last =
            last.max(running.lines.iter().last().map_or(0, |line| line[4..].parse().expect("a number")));
        if cleared {
            clear(&served);
            pool.recover(&["--replay"]).ok();
        } else {
            // Who mounts it again takes away what is dead, and recovers.
            Mount::over(&pool, &[], &served).unmount();
        }
        must_hold(&file, last);
    }
}

#[test]
fn what_was_acknowledged_survives_a_power_cut() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool, home) = (disk(kind), Pool::new(), disk::directory());
        let program = appends(home.path());
        let served = directory(&disk, "served");
        disk.settle();
        let file = served.join("file");
        let mount = Mount::over(&pool, &["--age-max=60s"], &served);
        // Its sync is the kernel's, and takes along what is in the page cache: it comes first.
        let mapped = served.join("mapped");
        Cmd::new("python3").args(["-c", STORE]).arg(&mapped).ok();
        let mut running = Running::start(&Cmd::new(&program).arg(&file).arg("1000000"));
        let last = acknowledged(&mut running, 300);
        disk.cut_power();
        mount.kill_all();
        drop(running.child.wait());
        clear(&served);
        disk.restore_power();
        // The disk alone has lost it: the log is what brings it back.
        let alone = std::fs::read_to_string(&file).map_or(0, |found| found.lines().count());
        assert!((alone as u64) < last, "the disk has {alone} lines, and no cut can be shown");
        pool.recover(&[]).ok();
        must_hold(&file, last);
        assert_eq!(&std::fs::read(&mapped).expect("read")[100..106], b"stored");
    }
}

/// Writes a file and a name and syncs both; then writes a file that nobody syncs.
const SYNCED: &str = "
import os, sys
os.chdir(sys.argv[1])
fd = os.open('synced', os.O_WRONLY | os.O_CREAT, 0o644)
os.write(fd, b'synced')
os.fsync(fd)
os.mkdir('made')
os.fsync(os.open('.', os.O_RDONLY))
os.write(os.open('lost', os.O_WRONLY | os.O_CREAT, 0o644), b'lost')
";

/// With durability = sync the log has nothing of a file before somebody asks for it.
#[test]
fn what_only_a_sync_makes_durable_survives_a_power_cut() {
    let (disk, pool) = (disk(Kind::Ext4), Pool::new());
    let served = directory(&disk, "served");
    disk.settle();
    let mount = Mount::over(&pool, &["--durability=sync", "--age-max=60s"], &served);
    Cmd::new("python3").args(["-c", SYNCED]).arg(&served).ok();
    disk.cut_power();
    mount.kill_all();
    clear(&served);
    disk.restore_power();
    pool.recover(&[]).ok();
    assert_eq!(std::fs::read(served.join("synced")).expect("synced"), b"synced");
    assert!(served.join("made").is_dir());
    assert!(std::fs::read(served.join("lost")).map_or(true, |left| left.is_empty()), "the power cut is none");
}

#[test]
fn without_its_supervisor_a_mount_is_served_until_it_is_unmounted() {
    let (disk, pool, home) = (disk(Kind::Ext4), Pool::new(), disk::directory());
    let program = appends(home.path());
    let served = directory(&disk, "served");
    let mut mount = Mount::over(&pool, &[], &served);
    let mut supervisor = mount.supervisor.take().expect("not ended");
    supervisor.kill().and_then(|()| supervisor.wait()).expect("killed");
    Cmd::new(&program).arg(served.join("file")).arg("100").ok();
    Cmd::new("umount").arg(&served).ok();
    let left = || mount.family.iter().copied().filter(|pid| proc::alive(*pid)).count();
    wait_until(SOON, "the end of server and keeper", || left() == 0);
    let told = report::parse(&pool.recover(&["--dry-run"]).ok().stdout);
    assert_eq!(report::number(&told, "records"), 0, "{told:#}");
    must_hold(&served.join("file"), 99);
}

#[test]
fn a_signal_unmounts_once_nobody_has_a_file_open_there() {
    let (disk, pool) = (disk(Kind::Ext4), Pool::new());
    let served = directory(&disk, "served");
    let mount = Mount::over(&pool, &[], &served);
    proc::signal(mount.pid(), Signal::INT);
    let (status, said, _) = mount.end();
    assert_eq!(status, 0, "{said}");

    let mount = Mount::over(&pool, &[], &served);
    let mut held = std::fs::File::create(served.join("held")).expect("made");
    proc::signal(mount.pid(), Signal::TERM);
    wait_until(SOON, "no mount for others", || !is_mounted(&served));
    std::io::Write::write_all(&mut held, b"still served").expect("written");
    held.sync_all().expect("synced");
    assert!(proc::alive(mount.server()));
    drop(held);
    let (status, said, _) = mount.end();
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("ends with the last program"), "{said}");
    assert_eq!(std::fs::read(served.join("held")).expect("read"), b"still served");
}

#[test]
fn without_its_keeper_a_mount_ends_and_is_recovered() {
    let (disk, pool, home) = (disk(Kind::Ext4), Pool::new(), disk::directory());
    let program = appends(home.path());
    let served = directory(&disk, "served");
    let file = served.join("file");
    let mount = Mount::over(&pool, &["--age-max=60s"], &served);
    let mut running = Running::start(&Cmd::new(&program).arg(&file).arg("1000000"));
    let last = acknowledged(&mut running, 100);
    proc::kill_hard(proc::keeper(&pool.path));
    let (status, said, _) = mount.end();
    assert_eq!(status, KEEPER_FAILED, "{said}");
    assert!(said.contains("died; programs get EIO"), "{said}");
    assert!(!running.child.wait().expect("wait").success(), "it gets an error");
    must_hold(&file, last);
}

#[test]
fn what_cannot_be_mounted_is_refused_before_anything_is_changed() {
    let (disk, pool) = (disk(Kind::Ext4), Pool::new());
    let (served, at) = (directory(&disk, "served"), directory(&disk, "at"));
    let inside = served.join("inside");
    std::fs::create_dir(&inside).expect("made");
    let refused = |options: &[&str], directory: &Path, says: &[&str]| {
        command(&pool, options, directory).output().expect(&[NOT_MOUNTED]).says(says, &[]);
        assert!(proc::keepers(&pool.path).is_empty());
        assert!(!is_mounted(&served) && !is_mounted(&at));
    };
    refused(&[], Path::new("/no/such/directory"), &["does not exist"]);
    refused(&[], Path::new("/dev/shm"), &["tmpfs", "ext4, xfs and btrfs"]);
    refused(&["--at", "/no/such/place"], &served, &["does not exist"]);
    refused(&["--at", text(&inside)], &served, &["may lie in the other"]);
    refused(&["--at", text(&disk.root)], &served, &["may lie in the other"]);
    refused(&["--at", "/dev/shm"], &served, &["is in use", "tmpfs"]);
    refused(&[], &disk.root.join("served/../../mount/served/none"), &["does not exist"]);
    refused(&["--user=nobody"], &served, &["--user"]);
    refused(&["--write-behind=on"], &served, &["--write-behind"]);
    Cmd::new("mount").args(["-t", "tmpfs", "none"]).arg(&inside).ok();
    refused(&[], &served, &["is mounted below", "inside"]);
    Cmd::new("umount").arg(&inside).ok();

    let mount = Mount::over(&pool, &[], &served);
    let again = command(&Pool::new(), &[], &served).output();
    again.expect(&[NOT_MOUNTED]).says(&["is mounted already", "umount"], &[]);
    // Its keeper could not see the files below.
    let other = command(&pool, &[], &at).output();
    other.expect(&[NOT_MOUNTED]).says(&["has the pool already", "--at"], &[]);
    mount.unmount();
}

#[test]
fn who_is_not_root_mounts_elsewhere_by_fusermount3() {
    need::tool("fusermount3");
    // As udev has it wherever there is one.
    Cmd::new("chmod").args(["666", "/dev/fuse"]).ok();
    let disk = disk(Kind::Ext4);
    let pool = Pool::of_user("nobody", "");
    let (served, at) = (directory(&disk, "served"), directory(&disk, "at"));
    for path in [&served, &at] {
        disk::give_to(path, "nobody");
    }
    command(&pool, &[], &served).output().expect(&[NOT_MOUNTED]).says(&["only root", "--at"], &[]);
    let mount = Mount::start(&pool, &["--at", text(&at)], &served, &at);
    let shell = "echo by nobody >$1/file && sync $1/file && mv $1/file $1/moved && cat $1/moved";
    let told = Cmd::new("busybox").args(["sh", "-ec", shell, "sh"]).arg(&at).user("nobody", "").ok();
    assert_eq!(told.stdout, "by nobody\n");
    mount.kill_server();
    Cmd::new("busybox").args(["cat"]).arg(at.join("moved")).user("nobody", "").ok();
    // Nobody else may look at it, root included.
    Cmd::new("stat").arg(at.join("moved")).output().expect(&[1]);
    proc::signal(mount.pid(), Signal::TERM);
    let (status, said, _) = mount.end();
    assert_eq!(status, 0, "{said}");
    assert_eq!(std::fs::read(served.join("moved")).expect("read"), b"by nobody\n");
}

/// The kernel keeps inodes that nobody uses, each of which is a descriptor of the server's: with
/// more of them than it may have, programs got `Too many open files`.
#[test]
fn more_files_than_descriptors_are_served() {
    let (disk, pool) = (disk(Kind::Ext4), Pool::new());
    let served = directory(&disk, "served");
    for number in 0..3000 {
        std::fs::write(served.join(number.to_string()), number.to_string()).expect("made");
    }
    let no_more = ["setpriv", "--inh-caps=-sys_resource", "--bounding-set=-sys_resource"];
    let by = [&no_more[..], &["prlimit", "--nofile=1000:1000"]].concat();
    let mount = Mount::started_by(&by, &pool, &[], &served, &served);
    for _ in 0..2 {
        for number in 0..3000 {
            let found = std::fs::read_to_string(served.join(number.to_string())).expect("read");
            assert_eq!(found, number.to_string());
        }
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", mount.server())).expect("descriptors").count();
    assert!(open < 1000, "{open}");
    mount.unmount();
}

/// Each test above with the rule taken out that it is about; with all rules they run in this build
/// already.
#[test]
fn every_rule_that_is_taken_out_is_missed() {
    let survived = canaries::survivors(&RULES);
    assert!(survived.is_empty(), "survived: {survived:?}");
}
