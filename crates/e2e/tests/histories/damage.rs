//! Damage of a pool, and writers that nobody knows of: neither costs a file anything without a
//! word (docs/crash/damage.md).

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_e2e::cmd::Output;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc;
use holdfast_e2e::report;
use holdfast_e2e::running::Running;

use super::{BEHIND, LATE, text};

/// `run` refused.
const REFUSED: i32 = 120;
const SLOTS: usize = 8192;
const SLOT_BYTES: usize = 4096;
const BLOCK: usize = 4096;

/// Writes a block of each of two files twice, with syncs.
const TWICE: &str = "
import os, sys, time
os.chdir(sys.argv[1])
fds = [os.open(name, os.O_WRONLY) for name in ('a', 'b')]
for letters in b'pr', b'qs':
    for fd, letter in zip(fds, letters):
        os.pwrite(fd, bytes([letter]) * 4096, 0)
        os.fsync(fd)
print('ready', flush=True)
time.sleep(60)
";

/// Two files of which a power cut took all that was written last, and the pool that has it.
fn cut_off(disk: &Disk, pool: &Pool) -> [PathBuf; 2] {
    let files = ["a", "b"].map(|name| disk.root.join(name));
    for file in &files {
        std::fs::write(file, vec![b'o'; BLOCK]).expect("file");
    }
    disk.settle();
    let mut run = Running::python(pool, &[LATE], TWICE, &disk.root);
    run.until("ready");
    disk.cut_power();
    run.kill_all(pool);
    disk.restore_power();
    files
}

fn content(file: &Path) -> Vec<u8> {
    std::fs::read(file).expect("file")
}

fn outcome_of(told: &Output, name: &str) -> Option<String> {
    let report = report::parse(&told.stdout);
    let files = report::find(&report, "files")?.as_array()?.clone();
    let of_name = |file: &&serde_json::Value| file["path"].as_str().is_some_and(|path| path.ends_with(name));
    files.iter().find(of_name).and_then(|file| Some(file["outcome"].as_str()?.to_owned()))
}

#[test]
fn a_file_that_lost_a_record_is_set_aside_by_name() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let [a, b] = cut_off(&disk, &pool);
    let media = std::fs::File::options().read(true).write(true).open(&pool.path).expect("pool");
    let mut bytes = std::fs::read(&pool.path).expect("pool");
    let newest = bytes.chunks(64).position(|line| line.iter().all(|byte| *byte == b'q')).expect("a record");
    bytes[newest * 64 + 700] ^= 4;
    let damaged = newest as u64 * 64 + 700;
    media.write_all_at(&bytes[damaged as usize..][..1], damaged).expect("damage");
    // No keeper serves from a pool that somebody else has open.
    drop(media);
    let left = content(&a);
    let told = pool.recover(&[]);
    told.expect(&[1]);
    assert_eq!(outcome_of(&told, "/a").as_deref(), Some("set aside"), "{}", told.told());
    assert!(content(&a) == left, "it got older bytes than it was promised\n{}", told.told());
    assert!(content(&b) == vec![b's'; BLOCK], "what is whole\n{}", told.told());
    let refused = pool.run(&[]).args(["--", "true"]).output();
    refused.expect(&[REFUSED]).says(&[text(&a)], &["--ignore-set-aside"]);
}

#[test]
fn slots_in_each_others_places_are_told() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let [a, b] = cut_off(&disk, &pool);
    let media = std::fs::File::options().read(true).write(true).open(&pool.path).expect("pool");
    let bytes = std::fs::read(&pool.path).expect("pool");
    let [first, second] = [&a, &b].map(|file| {
        let slots = bytes[SLOTS..].chunks(SLOT_BYTES);
        let path = [text(file).as_bytes(), b"\0"].concat();
        let mut holds = slots.map(|slot| slot.windows(path.len()).any(|part| part == path));
        SLOTS + SLOT_BYTES * holds.position(|holds| holds).expect("a slot of each")
    });
    for (from, to) in [(first, second), (second, first)] {
        media.write_all_at(&bytes[from..from + SLOT_BYTES], to as u64).expect("damage");
    }
    let left = [&a, &b].map(|file| content(file));
    let told = pool.recover(&[]);
    told.expect(&[1]);
    let kept =
        report::find(&report::parse(&told.stdout), "files").and_then(|rows| Some(rows.as_array()?.len()));
    assert_eq!(kept, Some(2), "{}", told.told());
    assert!([&a, &b].map(|file| content(file)) == left, "{}", told.told());
    pool.run(&[]).args(["--", "true"]).output().expect(&[REFUSED]);
}

/// Writes pages anywhere in a file, again and again, so that some are always being drained.
const ANYWHERE: &str = "
import os, random, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for turn in range(10**9):
    for _ in range(64):
        os.pwrite(fd, b'p' * 4096, 4096 * random.randrange(256))
    os.fsync(fd)
    if turn == 20:
        print('ready', flush=True)
";
const DRAINING: [&str; 4] = ["--write-behind=at-once", "--fence=fanotify", "--age-max", "20"];
const PAGES: usize = 256;

/// Kills whoever writes to a file in state Behind, amid drains.
fn killed_amid_drains(disk: &Disk, pool: &Pool) -> PathBuf {
    killed_at_once(disk, pool, &DRAINING, ANYWHERE)
}

/// Kills a program that writes to a file, keeper and supervisor, once it says that it is ready.
fn killed_at_once(disk: &Disk, pool: &Pool, options: &[&str], script: &str) -> PathBuf {
    let file = disk.root.join("file");
    std::fs::write(&file, vec![b'o'; PAGES * BLOCK]).expect("file");
    disk.settle();
    let mut run = Running::python(pool, options, script, &file);
    run.until("ready");
    // At once, and without a pause: whoever writes next may be there within a millisecond.
    let mut family = proc::descendants(run.child.id());
    family.extend(proc::keepers(&pool.path));
    drop(run.child.kill());
    family.iter().for_each(|pid| proc::kill_hard(*pid));
    while family.iter().any(|pid| proc::alive(*pid)) {
        std::thread::yield_now();
    }
    file
}

/// Deaths of each kind of disk.
fn rounds() -> usize {
    std::env::var("HOLDFAST_E2E_DEATHS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3)
}

#[test]
fn who_writes_right_after_a_death_is_not_written_over() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let mut over = 0;
        let disk = Disk::new(kind);
        for round in 0..rounds() {
            let pool = Pool::new();
            let file = killed_amid_drains(&disk, &pool);
            let open = std::fs::File::options().read(true).write(true).open(&file).expect("file");
            open.write_all_at(&vec![b'x'; PAGES * BLOCK], 0).and_then(|()| open.sync_all()).expect("written");
            let told = pool.recover(&[]);
            let stays = content(&file).iter().all(|byte| *byte == b'x');
            over += usize::from(!stays);
            if rounds() <= 3 {
                assert!(stays, "{kind:?}, round {round}\n{}", told.told());
                // Or there was nothing to replay: the deaths came right behind a sync.
                assert_ne!(outcome_of(&told, "/file").as_deref(), Some("replayed"), "{}", told.told());
            }
        }
        println!("{kind:?}: written over {over} times of {}", rounds());
        assert!(over * 20 <= rounds(), "{kind:?}: {over}");
    }
}

/// Writes to a file in state Behind, and changes it by a call for which it has the file for itself.
const CALLS: &str = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
os.fsync(fd)
for block in range(4):
    os.pwrite(fd, b'p' * 4096, block * 4096)
time.sleep(0.05)
CALL
print('ready', flush=True)
time.sleep(60)
";

/// The last that the program did was a call of its own, which moved the times of the file: for 20
/// ms nothing told it from what others did then, and that was written over.
#[test]
fn who_writes_right_behind_a_call_is_not_written_over() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let disk = Disk::new(kind);
        for call in ["os.ftruncate(fd, 70000)", "os.utime(fd)", "os.pwrite(fd, b'p' * (3 << 20), 0)"] {
            let pool = Pool::new();
            let file = killed_at_once(&disk, &pool, &BEHIND, &CALLS.replace("CALL", call));
            let open = std::fs::File::options().write(true).open(&file).expect("file");
            open.write_all_at(b"by somebody else", 0).and_then(|()| open.sync_all()).expect("written");
            let told = pool.recover(&[]);
            assert!(content(&file).starts_with(b"by somebody else"), "{kind:?}, {call}\n{}", told.told());
            // What is set aside has no next life on this disk.
            std::fs::remove_file(&file).expect("removed");
        }
    }
}

/// As `touch -r`, `rsync -t` and restoring programs do.
#[test]
fn a_time_that_is_put_back_hides_no_write() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let file = killed_amid_drains(&disk, &pool);
        // What is done so soon may be the program's own call.
        std::thread::sleep(Duration::from_millis(100));
        let open = std::fs::File::options().read(true).write(true).open(&file).expect("file");
        let modified = open.metadata().and_then(|meta| meta.modified()).expect("its time");
        open.write_all_at(&vec![b'x'; PAGES * BLOCK], 0).expect("written");
        open.set_modified(modified).and_then(|()| open.sync_all()).expect("put back");
        let told = pool.recover(&[]);
        assert!(content(&file).iter().all(|byte| *byte == b'x'), "{kind:?}\n{}", told.told());
        // Or there was nothing to replay: the deaths came right behind a sync.
        assert_ne!(outcome_of(&told, "/file").as_deref(), Some("replayed"), "{}", told.told());
    }
}

#[test]
fn a_death_amid_drains_sets_nothing_aside() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let disk = Disk::new(kind);
        for round in 0..rounds() {
            let pool = Pool::new();
            let file = killed_amid_drains(&disk, &pool);
            let told = pool.recover(&[]);
            assert_eq!(told.code(), 0, "{kind:?}, round {round}: {}", told.told());
            let bytes = content(&file);
            assert!(bytes.iter().all(|byte| matches!(byte, b'o' | b'p')), "{kind:?}");
        }
    }
}
