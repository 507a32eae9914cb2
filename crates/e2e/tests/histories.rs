//! Those of the known histories (docs/crash/histories.md) that only real kernels, programs and
//! processes can tell; the others are scripts of the simulator. Each test must fail when the rule
//! that it is about is taken out: [`every_rule_that_is_taken_out_is_missed`] does so, with a build
//! that can have deliberate bugs.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::running::{Running, SOON};
use holdfast_e2e::{canaries, need, report, tally};
use rustix::process::Signal;

#[path = "histories/damage.rs"]
mod damage;
#[path = "histories/recovered.rs"]
mod recovered;

/// The rules, each by the deliberate bug (`crates/canary`) that takes it out, and the test that
/// must notice.
const RULES: [(&str, &str); 43] = [
    ("DeadKeeperServed", "h11_nothing_is_acknowledged_after_the_keepers_death"),
    ("DeadKeeperServed", "h11_nothing_is_acknowledged_to_those_who_are_forked_later"),
    ("RecoveryPutOff", "h12_recovery_follows_the_keepers_death_at_once"),
    ("LinksUncounted", "recovered::a_file_that_loses_the_name_its_user_knows_keeps_its_bytes"),
    ("DeathUnwatched", "h22_a_dead_program_is_noticed_though_its_child_lives"),
    ("SignalsAtOnce", "h23_a_signal_handler_may_write_to_the_page_its_thread_writes_to"),
    ("FaultsBlocked", "h23_a_bad_address_ends_nobody_where_a_signal_was_put_off"),
    ("RefusalIgnored", "h24_a_program_that_cannot_be_patched_keeps_its_own_syncs"),
    ("AnyFileSystem", "h25_unknown_file_systems_are_left_alone"),
    ("TimesUndrained", "h26_a_file_is_as_old_as_its_last_write"),
    ("SizeUntold", "h26_times_and_sizes_are_what_the_program_made_them"),
    ("TimesUntold", "h26_a_file_is_as_old_as_its_last_write"),
    ("TimesKept", "h26_a_file_is_as_old_as_its_last_write"),
    ("LinksFollowed", "h27_recovery_builds_nothing_behind_a_link"),
    ("IdentityUnchecked", "h27_recovery_writes_to_no_other_file"),
    ("DrainCommandIdle", "h28_a_drained_file_system_can_be_copied_without_the_pool"),
    ("AgeIgnored", "h28_bytes_wait_in_the_log_for_about_a_second"),
    ("DrainSkipped", "h28_a_drained_file_system_can_be_copied_without_the_pool"),
    ("VectorInPlace", "a_vector_that_changes_during_its_call_harms_nobody"),
    ("RoomUnchecked", "a_vector_that_changes_during_its_call_harms_nobody"),
    ("LossIgnored", "damage::a_file_that_lost_a_record_is_set_aside_by_name"),
    ("PlaceUnchecked", "damage::slots_in_each_others_places_are_told"),
    ("ReplayedWhileRunning", "recovered::what_others_sync_right_after_a_kill_stays"),
    ("AheadForgotten", "recovered::what_only_the_log_has_comes_back_after_a_kill"),
    ("RollbackUnseen", "recovered::an_older_state_of_a_volume_is_left_as_it_is"),
    ("WitnessForgotten", "recovered::an_older_state_is_seen_though_its_newest_file_is_closed"),
    ("NameLossIgnored", "recovered::a_file_that_loses_the_name_its_user_knows_keeps_its_bytes"),
    ("VacancyBelieved", "recovered::a_new_file_that_somebody_removed_after_the_crash_stays_away"),
    ("PutBackBelieved", "damage::a_time_that_is_put_back_hides_no_write"),
    ("AttributesAreBytes", "recovered::attributes_that_change_at_boot_keep_no_records_from_a_file"),
    ("ClockBelieved", "recovered::a_clock_that_was_set_back_hides_nobodys_change"),
    ("ParentUnchecked", "recovered::a_new_file_waits_for_its_bind_mount"),
    ("PathBelieved", "recovered::a_file_whose_path_nobody_knows_is_recovered"),
    ("TimesOfRecovery", "recovered::replayed_files_are_as_old_as_their_last_change"),
    ("SupersededForgotten", "recovered::no_old_records_go_over_a_later_life_of_their_file"),
    ("BirthIgnored", "recovered::a_handle_that_is_given_twice_leads_to_nobody_elses_file"),
    ("ParentUnchecked", "recovered::a_rename_is_made_again_in_the_directory_that_it_was_made_in"),
    ("FixedManaged", "recovered::an_append_only_file_is_left_to_the_kernel"),
    ("MadeUnannounced", "what_is_made_while_others_sync_is_not_overtaken"),
    ("AllMeant", "recovered::two_files_of_one_path_are_told_apart"),
    ("ObstaclesDecide", "recovered::what_stands_in_the_way_is_no_decision"),
    ("LifeForgotten", "recovered::a_file_that_is_put_off_is_judged_by_its_own_crash"),
    ("SetAsideUnsaid", "recovered::no_program_is_started_on_files_that_are_set_aside"),
];

/// Nothing is brought to the files by itself within a test.
const LATE: &str = "--age-max=3600000";
const BEHIND: [&str; 3] = ["--write-behind=at-once", LATE, "--fence=fanotify"];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// Lines with their numbers, each said once it is durable.
const APPEND: &str = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1000000):
    try:
        os.write(fd, b'%09d\\n' % number)
        os.fsync(fd)
    except OSError as error:
        os.write(1, b'errno %d\\n' % error.errno)
        break
    if 'sync' in sys.argv and number == 99:
        os.sync()
    os.write(1, b'ack %d\\n' % number)
time.sleep(60)
";

/// A program whose keeper died went on alone; the next keeper wrote older records over what it had
/// synced.
#[test]
fn h11_nothing_is_acknowledged_after_the_keepers_death() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("log");
    let mut run = Running::python(&pool, &[], APPEND, &file);
    run.until("ack 100");
    proc::kill_hard(proc::keeper(&pool.path));
    assert_eq!(run.until("errno"), "errno 5");
}

/// The same of a child that was forked after the keeper's death: what it synced, as a native
/// program's, was undone by the records that the keeper had left.
#[test]
fn h11_nothing_is_acknowledged_to_those_who_are_forked_later() {
    let script = "
import os, sys, time
def tried(who, fd):
    try:
        os.pwrite(fd, who, 0)
        os.fsync(fd)
        said = b'acknowledged'
    except OSError as error:
        said = b'errno %d' % error.errno
    os.write(1, who + b' ' + said + b'\\n')
files = [os.open(sys.argv[1] + name, os.O_RDWR | os.O_CREAT, 0o600) for name in ('one', 'two')]
for fd in files:
    tried(b'parent', fd)
os.write(1, b'ready\\n')
input()
for generation in b'child', b'grandchild':
    if os.fork():
        time.sleep(60)
    tried(generation, files[0])
    tried(generation, os.open(sys.argv[1] + 'two', os.O_RDWR))
    tried(generation, os.open(sys.argv[1] + 'new', os.O_RDWR | os.O_CREAT, 0o600))
os.write(1, b'end\\n')
time.sleep(60)
";
    for options in [&[][..], &["--durability=sync"]] {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let mut run = Running::python(&pool, options, script, &disk.root.join("file-"));
        run.until("ready");
        proc::kill_hard(proc::keeper(&pool.path));
        run.go_on();
        for who in ["child", "grandchild"] {
            for _ in 0..3 {
                assert_eq!(run.until(who), format!("{who} errno 5"), "{options:?}");
            }
        }
        run.until("end");
    }
}

/// Where every write is promised to be durable, a file that was made without a name got one, a
/// later sync of another file made that durable, and what it had been written before was gone.
#[test]
fn bytes_of_a_file_without_a_name_are_durable_once_it_has_one() {
    let script = "
import os, sys, time
root = os.path.dirname(sys.argv[1])
fd = os.open(root, os.O_TMPFILE | os.O_RDWR)
os.write(fd, b'n' * 5000)
root_fd = os.open('/', os.O_RDONLY)
os.link('/proc/self/fd/%d' % fd, sys.argv[1], src_dir_fd=root_fd, follow_symlinks=True)
os.write(fd, b'l' * 10)
other = os.open(root + '/other', os.O_RDWR | os.O_CREAT)
os.write(other, b'o')
os.fsync(other)
print('ready', flush=True)
time.sleep(60)
";
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let file = disk.root.join("file");
        let mut run = Running::python(&pool, &["--durability=write", LATE], script, &file);
        run.until("ready");
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        pool.recover(&[]).ok();
        let found = std::fs::read(&file).expect("the file, by its name");
        assert!(found == [vec![b'n'; 5000], vec![b'l'; 10]].concat(), "{kind:?}: {} bytes", found.len());
    }
}

/// Two rounds at once gave back the slots of removed files, the second one those that new files had
/// by then: what these had synced was lost. It takes more open files than slots.
#[test]
fn files_keep_their_slots_while_others_are_removed() {
    let script = "
import os, random, sys, time
root = sys.argv[1]
os.mkdir(root)
for child in range(2):
    if os.fork() == 0:
        number = 0
        while True:
            number += 1
            name = f'{root}/removed-{child}-{number}'
            fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(fd, b'removed')
            os.fsync(fd)
            os.close(fd)
            os.unlink(name)
def write(child):
    draw = random.Random(child)
    acknowledged = os.open(f'{sys.argv[2]}-{child}', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    files = [os.open(f'{root}/held-{child}-{n}', os.O_RDWR | os.O_CREAT, 0o600) for n in range(400)]
    for number in range(1, 1 << 30):
        which = draw.randrange(len(files))
        os.pwrite(files[which], b'%09d' % number, 0)
        os.fsync(files[which])
        os.write(acknowledged, b'%d %d\\n' % (which, number))
for child in range(3):
    if os.fork() == 0:
        write(child)
time.sleep(float(sys.argv[3]))
os.write(1, b'ready\\n')
time.sleep(60)
";
    for round in 0..6 {
        let (disk, pool, notes) = (Disk::new(Kind::Ext4), Pool::with_size("16M"), disk::directory());
        let (root, told) = (disk.root.join("root"), notes.path().join("told"));
        let seconds = format!("{}", 0.8 + 0.1 * f64::from(round));
        let program = ["--", "python3", "-c", script, text(&root), text(&told), &seconds];
        let mut run = Running::start(&pool.run(&["--durability=sync"]).args(program));
        run.until("ready");
        run.stop_all(&pool);
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        pool.recover(&[]).ok();
        for child in 0..3 {
            let told = std::fs::read_to_string(format!("{}-{child}", text(&told))).expect("acknowledgements");
            let mut last = std::collections::BTreeMap::new();
            for line in told.lines() {
                let (which, number) = line.split_once(' ').expect("two numbers");
                last.insert(which.to_owned(), number.parse::<u64>().expect("a number"));
            }
            assert!(last.len() > 20, "{} files", last.len());
            for (which, number) in last {
                let path = root.join(format!("held-{child}-{which}"));
                let found = std::fs::read_to_string(&path).unwrap_or_default();
                let found: u64 = found.parse().unwrap_or_default();
                assert!(
                    found >= number,
                    "round {round}: {} has {found}, {number} was acknowledged",
                    text(&path)
                );
            }
        }
    }
}

/// Where the bytes of a mapping lie was in a journal that the next sync, which the log answered,
/// did not commit.
#[test]
fn what_was_pushed_from_a_mapping_is_there_when_another_file_is_synced_later() {
    let script = "
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None)
SIZE = 1 << 20
other = os.open(sys.argv[1] + '.other', os.O_RDWR | os.O_CREAT, 0o600)
for _ in range(2):
    os.write(other, b'o')
    os.fsync(other)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.posix_fallocate(fd, 0, SIZE)
os.fsync(fd)
map = mmap.mmap(fd, SIZE)
os.fsync(other)
map[:] = b'm' * SIZE
assert libc.sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(0), 7) == 0
os.pwrite(other, b'acknowledged', 0)
os.fsync(other)
os.write(1, b'ready\\n')
time.sleep(60)
";
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new().logs_from_sync());
        let file = disk.root.join("file");
        let mut run = Running::python(&pool, &[], script, &file);
        run.until("ready");
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        pool.recover(&[]).ok();
        let found = std::fs::read(&file).expect("file");
        assert!(
            found == vec![b'm'; 1 << 20],
            "{kind:?}: {} bytes",
            found.iter().filter(|byte| **byte == b'm').count()
        );
    }
}

/// Files that no keeper ever manages are none of its death's business: pid files on /run, shared
/// memory, what a service writes on its way out.
#[test]
fn h11_what_was_never_managed_goes_on() {
    let script = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b'x')
os.fsync(fd)
os.write(1, b'ready\\n')
input()
for path in sys.argv[1] + '.new', '/dev/shm/holdfast-e2e-%d' % os.getpid(), '/proc/self/comm':
    try:
        for _ in range(2):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(fd, b'x')
            if '/proc' not in path: os.fsync(fd)
        said = b'works'
    except OSError as error:
        said = b'errno %d' % error.errno
    os.write(1, b'new ' + said + b'\\n')
    if '/shm' in path: os.unlink(path)
os.write(1, b'end\\n')
time.sleep(60)
";
    for options in [&[][..], &["--durability=sync"]] {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let mut run = Running::python(&pool, options, script, &disk.root.join("file"));
        run.until("ready");
        proc::kill_hard(proc::keeper(&pool.path));
        run.go_on();
        for said in ["new errno 5", "new works", "new works"] {
            assert_eq!(run.until("new"), said, "{options:?}");
        }
        run.until("end");
    }
}

/// The keeper died with bytes that only the log had; outsiders read old ones until somebody came
/// and recovered.
#[test]
fn h12_recovery_follows_the_keepers_death_at_once() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let script = "
import os, sys, time
os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600), b'n' * 100000)
print('ready', flush=True)
time.sleep(60)
";
    let mut run = Running::python(&pool, &BEHIND, script, &file);
    run.until("ready");
    // Its end may be there already, for the sake of who looks at its size.
    let blocks = std::fs::metadata(&file).expect("file").blocks();
    assert!(blocks * 512 < 50_000, "nothing but the log has the bytes: {blocks} blocks");
    proc::kill_hard(proc::keeper(&pool.path));
    // The program lives on, and so does the supervisor.
    wait_until(SOON, "what was acknowledged", || {
        std::fs::read(&file).is_ok_and(|bytes| bytes == [b'n'; 100_000])
    });
}

/// link(a, b), link(a, c), write, unlink(c): the removal of one name was taken for that of the
/// file, and the slot then knew none that was left.
#[test]
fn h16_a_file_that_loses_one_of_its_names_keeps_its_bytes() {
    // Without the right to open files by their handles: names are all that recovery has.
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::of_user("nobody", ""));
    disk::give_to(&disk.root, "nobody");
    disk.settle();
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
fd = os.open('a', os.O_WRONLY | os.O_CREAT, 0o600)
os.pwrite(fd, b'1' * 4096, 0)
os.link('a', 'b')
os.link('a', 'c')
os.pwrite(fd, b'2' * 4096, 4096)
os.unlink('c')
os.pwrite(fd, b'3' * 4096, 8192)
print('ready', flush=True)
time.sleep(60)
";
    let mut run = Running::python(&pool, &[LATE], script, &disk.root);
    run.until("ready");
    disk.cut_power();
    run.kill_all(&pool);
    disk.restore_power();
    let told = pool.recover(&[]);
    let expected = [[b'1'; 4096], [b'2'; 4096], [b'3'; 4096]].concat();
    let found = std::fs::read(disk.root.join("b")).unwrap_or_default();
    assert!(found == expected, "{} bytes of b\n{}", found.len(), told.told());
}

/// A program kept a number of a slot that had gone to another file, and wrote into that.
#[test]
fn h20_a_slot_in_new_hands_is_closed_to_its_old_owner() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let script = "
import os, sys
os.chdir(sys.argv[1])
new = lambda name: os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
old, other = new('x'), new('y')
os.pwrite(old, b'x' * 100, 0)
os.pwrite(other, b'y' * 100, 0)
os.rename('y', 'x')
files = [new('z%d' % number) for number in range(8)]
for fd in files: os.pwrite(fd, b'z' * 100, 0)
assert os.pwrite(old, b'old' * 30, 0) == 90
for fd in files: assert os.pread(fd, 200, 0) == b'z' * 100, os.pread(fd, 200, 0)
assert os.pread(old, 200, 0) == b'old' * 30 + b'x' * 10
";
    let (output, summary) = pool.run_summarised(&BEHIND, &["python3", "-c", script, text(&disk.root)]);
    output.ok();
    assert!(report::number(&summary, "writes_absorbed") >= 10, "{summary:#}");
}

/// A child that never called us kept the socket open, and nobody heard of its parent's death; a
/// program that closed all its descriptors was taken for dead.
#[test]
fn h22_a_dead_program_is_noticed_though_its_child_lives() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let mut steady = Running::python(&pool, &[], APPEND, &disk.root.join("steady"));
    steady.until("ack 5");
    let script = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
os.write(fd, b'parent')
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print('ready', os.getpid(), flush=True)
while True: os.pwrite(fd, b'p' * 4096, 0)
";
    let mut run = Running::python(&pool, &[], script, &disk.root.join("file"));
    let parent: u32 =
        run.until("ready").rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a number");
    let is_client = || pool.status()["clients"].as_array().is_some_and(|all| all.contains(&parent.into()));
    assert!(is_client(), "{:#}", pool.status());
    proc::kill_hard(parent);
    wait_until(SOON, "the keeper's notice of the death", || !is_client());
    let script = "
import os, sys
os.closerange(3, 1 << 20)
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
for number in range(50):
    os.write(fd, b'line')
    os.fsync(fd)
";
    let closed = disk.root.join("closed");
    pool.run(&[]).args(["--", "python3", "-c", script, text(&closed)]).limit(4 * SOON).ok();
    drop(run);
    drop(steady);
    wait_until(2 * SOON, "the keeper's end, with its last client", || proc::keepers(&pool.path).is_empty());
}

/// A handler ran while its thread held the lock of a page, and waited for it for ever.
#[test]
fn h23_a_signal_handler_may_write_to_the_page_its_thread_writes_to() {
    let place = disk::directory();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/signals.c");
    let program = place.path().join("signals");
    Cmd::new("cc").args(["-O1", "-pthread", "-o"]).args([&program, &source]).ok();
    let held = Pool::new().run(&[]).arg("--").arg(&program).dir(place.path()).limit(4 * SOON).ok();
    assert!(!held.stdout.contains("FAILED"), "{}", held.told());
    assert!(held.stdout.contains("alarms 1, wrong 0"), "{}", held.told());
}

/// The look at the program's memory faulted while all signals were blocked, which ends a process.
#[test]
fn h23_a_bad_address_ends_nobody_where_a_signal_was_put_off() {
    let place = disk::directory();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/bad_addresses.c");
    let program = place.path().join("bad_addresses");
    Cmd::new("cc").args(["-O1", "-pthread", "-o"]).args([&program, &source]).ok();
    let run = Pool::new().run(&[]).arg("--").arg(&program).arg(place.path().join("file"));
    let told = run.limit(4 * SOON).ok();
    assert!(told.stdout.contains("bad addresses told"), "{}", told.told());
}

/// Where code may not be made writable, stdio's writes went unseen, and the descriptor's sync was
/// absorbed.
#[test]
fn h24_a_program_that_cannot_be_patched_keeps_its_own_syncs() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let compiled = |source: &str, name: &str| {
        let program = disk.root.join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        Cmd::new("cc").args(["-O1", "-w", "-o"]).args([&program, &source]).ok();
        program
    };
    let program = compiled("programs/stdio.c", "stdio");
    // Neither memory nor a file in memory may be made executable.
    let confine = compiled("../preload/tests/programs/no_exec_gain.c", "confine");
    disk.settle();
    let file = disk.root.join("file");
    let program = ["--", text(&confine), "strict", text(&program), text(&file)];
    let mut run = Running::start(&pool.run(&[LATE]).args(program));
    run.until("ack 5");
    disk.cut_power();
    run.kill_all(&pool);
    disk.restore_power();
    pool.recover(&[]).ok();
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(found, "    5\n", "what was synced is not there");
}

/// A program that could not be patched was the keeper's client, so the fence let its `fopen` pass:
/// what it wrote to a file of another client's was undone by recovery.
#[test]
fn h24_a_program_that_cannot_be_patched_is_an_outsider_to_the_fence() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let compiled = |source: &str, name: &str| {
        let program = disk.root.join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        Cmd::new("cc").args(["-O1", "-w", "-o"]).args([&program, &source]).ok();
        program
    };
    let (over, confine) = (
        compiled("programs/over.c", "over"),
        compiled("../preload/tests/programs/no_exec_gain.c", "confine"),
    );
    let file = disk.root.join("file");
    let script = "
import os, subprocess, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b'older bytes')
subprocess.run([sys.argv[2], 'strict', sys.argv[3], sys.argv[1]], check=True)
os.write(1, b'ack done\\n')
time.sleep(60)
";
    let arguments = ["--", "python3", "-c", script, text(&file), text(&confine), text(&over)];
    let mut run = Running::start(&pool.run(&[LATE]).args(arguments));
    run.until("ack done");
    run.kill_all(&pool);
    pool.recover(&[]).ok();
    assert_eq!(std::fs::read_to_string(&file).expect("file"), "NEWER bytes");
}

/// A volume that others mount, too, failed over to them without the pool.
#[test]
fn h25_unknown_file_systems_are_left_alone() {
    let memory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let of = format!("of={}", text(&memory.path().join("file")));
    let dd = ["dd", "if=/dev/zero", &of, "bs=4k", "count=10", "conv=fsync"];
    let (output, summary) = Pool::new().run_summarised(&["--exclusive", text(memory.path())], &dd);
    output.ok();
    assert_eq!(report::number(&summary, "writes_absorbed"), 0, "{summary:#}");
}

/// A late drain changed the times that `cp -p` had set; tools skipped files whose size looked old;
/// a descriptor of the keeper's kept a program from being started.
#[test]
fn h26_times_and_sizes_are_what_the_program_made_them() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let script = "
import fcntl, os, subprocess, sys
os.chdir(sys.argv[1])
fd = os.open('timed', os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b't' * 5000)
os.utime('timed', (1000000000, 1000000000))
fd = os.open('sized', os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b's' * 5000)
assert os.fstat(fd).st_size == os.stat('sized').st_size == 5000
fcntl.flock(fd, fcntl.LOCK_EX)
os.close(fd)
fcntl.flock(os.open('sized', os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
fd = os.open('script', os.O_WRONLY | os.O_CREAT, 0o700)
os.write(fd, b'#!/bin/sh\\nexit 7\\n')
os.close(fd)
assert subprocess.run(['./script']).returncode == 7
";
    let (output, summary) = pool.run_summarised(&BEHIND, &["python3", "-c", script, text(&disk.root)]);
    output.ok();
    assert!(report::number(&summary, "writes_absorbed") >= 2, "{summary:#}");
    let modified = std::fs::metadata(disk.root.join("timed")).and_then(|meta| meta.modified()).expect("file");
    assert_eq!(
        modified,
        std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000),
        "the program set this time"
    );
}

/// What the keeper brought to the kernel later made files look newer than their last write: to
/// their program, and for good.
#[test]
fn h26_a_file_is_as_old_as_its_last_write() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
def times(name):
    stat = os.stat(name)
    return stat.st_mtime_ns, stat.st_ctime_ns
def rests(name):
    seen = times(name)
    until = time.time() + 0.6
    while time.time() < until:
        assert times(name) == seen, (name, seen, times(name))
        time.sleep(0.001)
    return seen
fd = os.open('drained', os.O_RDWR | os.O_CREAT, 0o600)
for page in range(0, 100, 3):
    os.pwrite(fd, b'd' * 4096, page * 4096)
first = rests('drained')
assert first[0] == first[1]
os.chmod('drained', 0o640)
changed = rests('drained')
assert changed[0] == first[0] and changed[1] > first[1], (first, changed)
os.utime('drained', (1000000000, 1000000000))
os.pwrite(fd, b'e' * 100, 50)
last = rests('drained')
assert last[0] == last[1] > changed[1], (changed, last)
fd = os.open('set', os.O_RDWR | os.O_CREAT, 0o600)
# Set while bytes wait in the log, most times: before the time of the last write and after it.
for _ in range(20):
    os.write(fd, b's' * 5000)
    os.utime('set', (1000000000, 1000000000))
    assert times('set')[0] == 1000000000 * 10 ** 9
assert rests('set')[0] == 1000000000 * 10 ** 9
os.write(fd, b's' * 5000)
os.utime('set', (1000000000, 4000000000))
assert rests('set')[0] == 4000000000 * 10 ** 9
os.write(fd, b's' * 5000)
assert rests('set')[0] < 4000000000 * 10 ** 9
print(last[0])
";
    let options = ["--write-behind=at-once", "--age-max=200", "--fence=fanotify"];
    let (output, summary) = pool.run_summarised(&options, &["python3", "-c", script, text(&disk.root)]);
    let told = output.ok().stdout.trim().parse::<i64>().expect("nanoseconds");
    assert!(report::number(&summary, "writes_absorbed") >= 30, "{summary:#}");
    let meta = std::fs::metadata(disk.root.join("drained")).expect("file");
    assert_eq!(meta.mtime() * 1_000_000_000 + meta.mtime_nsec(), told, "the time that its program saw");
}

/// A directory was replaced by a link to another user's: recovery, as root, wrote there.
#[test]
fn h27_recovery_builds_nothing_behind_a_link() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let (directory, elsewhere) = (disk.root.join("directory"), disk.root.join("elsewhere"));
    std::fs::create_dir(&directory).expect("directory");
    disk.settle();
    // With the first file of a directory the keeper syncs it; the second is in the log alone.
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
for name in 'first', 'second':
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, b'bytes')
    os.fsync(fd)
print('ready', flush=True)
time.sleep(60)
";
    let mut run = Running::python(&pool, &[LATE], script, &directory);
    run.until("ready");
    disk.cut_power();
    run.kill_all(&pool);
    disk.restore_power();
    assert!(!directory.join("second").exists(), "the crash takes the file");
    // Even the directory that it was in, which its handle would tell, is not reached by a link.
    std::fs::rename(&directory, &elsewhere).expect("rename");
    std::os::unix::fs::symlink(&elsewhere, &directory).expect("link");
    let told = pool.recover(&[]);
    let is_built = elsewhere.join("second").exists();
    assert!(!is_built, "recovery wrote behind the link\n{}", told.told());
}

/// Another file stood at the name of a slot, and got the slot's bytes.
#[test]
fn h27_recovery_writes_to_no_other_file() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    std::fs::write(&file, "").expect("file");
    disk.settle();
    let mut run = Running::python(&pool, &[LATE], APPEND, &file);
    run.until("ack 20");
    // Within the allowance for a file's times: later on they, too, would tell that it is another
    // one.
    let mut stopped = proc::keepers(&pool.path);
    stopped.extend(proc::descendants(run.child.id()));
    stopped.iter().for_each(|pid| proc::signal(*pid, Signal::STOP));
    std::fs::rename(&file, disk.root.join("kept")).expect("rename");
    std::fs::write(&file, "of somebody else").expect("file");
    run.kill_all(&pool);
    // Only processes died: by itself recovery would write to no file at all.
    let told = pool.recover(&["--replay"]);
    let found = std::fs::read_to_string(&file).expect("file");
    assert_eq!(found, "of somebody else", "{}", told.told());
}

/// What a copy of the disk without the pool holds after `and`.
fn copied(options: &[&str], word: &str, and: impl FnOnce(&Pool)) -> String {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("log");
    // A page a line: the keeper brings the last page of a file to the kernel soon, for its size and
    // times.
    let script = APPEND.replace("%09d", "%4095d");
    let program = ["--", "python3", "-c", &script, text(&file), "100", word];
    let mut run = Running::start(&pool.run(options).args(program));
    run.until("ack 99");
    and(&pool);
    disk.cut_power();
    run.kill_all(&pool);
    disk.restore_power();
    std::fs::read_to_string(&file).unwrap_or_default()
}

fn all_lines() -> String {
    (0..100).map(|number| format!("{number:4095}\n")).collect()
}

/// A snapshot of the volume lacked what the log had.
#[test]
fn h28_a_drained_file_system_can_be_copied_without_the_pool() {
    let found = copied(&BEHIND, "", |pool| drop(pool.command("drain").ok()));
    assert!(found == all_lines(), "{} bytes are there after a drain", found.len());
}

/// `sync` was the kernel's alone, which had nothing of the file.
#[test]
fn h28_a_program_that_syncs_all_file_systems_syncs_the_log_with_them() {
    let found = copied(&BEHIND, "sync", |_| ());
    assert!(found == all_lines(), "{} bytes are there after a sync", found.len());
}

/// The same of a program that nobody asked to drain, and that has been idle for a while.
#[test]
fn h28_bytes_wait_in_the_log_for_about_a_second() {
    let found = copied(&["--write-behind=at-once", "--fence=fanotify"], "", |pool| {
        wait_until(SOON, "a clean pool", || report::number(&pool.status(), "files_dirty") == 0);
    });
    assert!(found == all_lines(), "{} bytes are there after a while", found.len());
}

/// Seconds for which vectors change.
const VECTOR_S: u64 = 3;
/// As `programs/vector.c` has it.
const BLOCK_BYTES: usize = 4096;

/// Lengths and addresses in the vector of a `writev` changed between the looks at it. A record grew
/// beyond the log space that was reserved for it, into a segment that may be another file's, or
/// ended the program.
#[test]
fn a_vector_that_changes_during_its_call_harms_nobody() {
    let (disk, place) = (Disk::new(Kind::Ext4), disk::directory());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/vector.c");
    let program = place.path().join("vector");
    Cmd::new("cc").args(["-O1", "-pthread", "-o"]).args([&program, &source]).ok();
    let of = |name: &str| disk.root.join(name);
    for (options, name) in [(None, "native"), (Some(&[LATE][..]), "through"), (Some(&BEHIND[..]), "behind")] {
        let directory = of(name);
        std::fs::create_dir(&directory).expect("directory");
        disk.settle();
        let pool = Pool::new();
        let arguments = [text(&program), text(&directory), &VECTOR_S.to_string()];
        let run = Running::start(&match options {
            Some(options) => pool.run(options).arg("--").args(arguments),
            None => Cmd::new(&program).args(&arguments[1..]),
        });
        let mut blocks = 0;
        let until = Instant::now() + 4 * SOON + Duration::from_secs(VECTOR_S);
        loop {
            let wait = until.saturating_duration_since(Instant::now());
            let line =
                run.lines.recv_timeout(wait).unwrap_or_else(|_| panic!("{name}: it ended before its time"));
            assert!(!line.starts_with("wrong"), "{name}: {line}");
            blocks += usize::from(line.starts_with("ack "));
            if line == "through" {
                break;
            }
        }
        assert!(blocks > 10, "{name}: {blocks} blocks are synced");
        if options.is_some() {
            let status = pool.status();
            assert!(report::number(&status, "writes_absorbed") > blocks as u64, "{status:#}");
        }
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        let mut told = String::new();
        if options.is_some() {
            let recovered = pool.recover(&[]);
            let found = report::parse(&recovered.ok().stdout);
            let damaged = report::find(&found, "damaged").and_then(|rows| rows.as_array());
            assert!(damaged.is_some_and(Vec::is_empty), "{name}: damage\n{}", recovered.told());
            told = recovered.told();
        }
        let other = std::fs::read(directory.join("other")).expect("file");
        for number in 0..blocks {
            let block = other.get(number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES).unwrap_or_default();
            let expected = format!("{number:08}").repeat(BLOCK_BYTES / 8 - 1) + "endblock";
            assert!(block == expected.as_bytes(), "{name}: block {number} of {blocks} is lost\n{told}");
        }
        let own = std::fs::read(directory.join("own")).unwrap_or_default();
        let strange = own.iter().find(|byte| !b"abt\0".contains(byte));
        assert!(strange.is_none(), "{name}: {strange:?} is in a file that nobody wrote it to");
    }
}

/// Deliberate bugs are in the build that is made for them, and in nothing that ships.
#[test]
fn what_ships_can_have_no_deliberate_bug() {
    let has = |path: &Path| {
        let bytes = std::fs::read(path).expect("a built file");
        // The name of one: that of the variable may be part of the code that compares it.
        bytes.windows(13).any(|part| part == b"SignalsAtOnce")
    };
    for (program, can) in [(need::holdfast(), false), (canaries::binary(), true)] {
        for path in [program.clone(), program.with_file_name("libholdfast.so")] {
            assert_eq!(has(&path), can, "{}", path.display());
        }
    }
}

/// One test of this file, in a process of its own, with the build that can have deliberate bugs.
/// Returns whether it passed.
fn play(test: &str, bug: Option<&str>, holdfast: &Path) -> (bool, String) {
    let this = std::env::current_exe().expect("the test's own path");
    let mut cmd = Cmd::new(&this).args(["--exact", test, "--test-threads=1"]).env("HOLDFAST_BIN", holdfast);
    if let Some(bug) = bug {
        cmd = cmd.env("HOLDFAST_CANARY", bug);
    }
    let output = cmd.limit(Duration::from_secs(60)).output();
    let [passed, failed] =
        ["1 passed; 0 failed;", "0 passed; 1 failed;"].map(|end| output.stdout.contains(end));
    assert!(passed != failed, "{test} with {bug:?} was not run\n{}", output.told());
    (passed, output.told())
}

/// How often a test is played with a rule taken out, until it fails.
const PLAYS_MAX: usize = 3;

/// Every test above, with all rules and with each of those taken out that it is about.
#[test]
fn every_rule_that_is_taken_out_is_missed() {
    let holdfast = canaries::binary();
    let mut plays: Vec<(&str, Option<&str>)> = RULES.iter().map(|(bug, test)| (*test, Some(*bug))).collect();
    let mut tests: Vec<&str> = RULES.iter().map(|(_, test)| *test).collect();
    tests.dedup();
    tests.sort_unstable();
    tests.dedup();
    plays.extend(tests.iter().map(|test| (*test, None)));
    let (next, wrong) = (AtomicUsize::new(0), std::sync::Mutex::new(Vec::new()));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((test, bug)) = plays.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (mut passed, mut told) = play(test, *bug, &holdfast);
                    // Another rule may stand in, by how late something comes.
                    for _ in 1..PLAYS_MAX {
                        if passed && bug.is_some() {
                            (passed, told) = play(test, *bug, &holdfast);
                        }
                    }
                    if passed != bug.is_none() {
                        let what = if passed { "SURVIVED" } else { "fails with all rules" };
                        let told = if passed { String::new() } else { told };
                        wrong.lock().expect("list").push(format!("{what}: {bug:?} in {test}\n{told}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("list");
    let caught = RULES.len() - wrong.iter().filter(|line| line.starts_with("SURVIVED")).count();
    let seconds = begun.elapsed().as_secs();
    tally::say(&format!(
        "known histories, real: histories {}, rules taken out {}, rules missed {caught}; {seconds} s",
        tests.len(),
        RULES.len()
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A directory that a program had made, and not noted yet, was lost, while what another one synced
/// after it was not: natively that sync commits both.
#[test]
fn what_is_made_while_others_sync_is_not_overtaken() {
    need::tool("strace");
    let calls =
        ["os.mkdir('made')", "os.symlink('to', 'made')", "os.mkfifo('made')", "os.link('old', 'made')"];
    for (kind, call) in [Kind::Ext4, Kind::Xfs].into_iter().flat_map(|kind| calls.map(|call| (kind, call))) {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let directory = disk.root.join("sub");
        std::fs::create_dir(&directory).expect("directory");
        std::fs::write(directory.join("old"), "").expect("file");
        disk.settle();
        let others = "
import os, sys, time
os.chdir(sys.argv[1])
def sync(name):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, b'bytes')
    os.fsync(fd)
for name in 'before', 'known', 'after':
    sync(name)
    print('synced', name, flush=True)
    input()
time.sleep(60)
";
        let mut other = Running::python(&pool, &[LATE], others, &disk.root);
        other.until("synced before");
        // The kernel has made it, and the program has not heard of it for two seconds.
        let script =
            format!("import os, sys; os.chdir(sys.argv[1]); print('ready', flush=True); input(); {call}");
        let delay = "inject=mkdir,mkdirat,symlink,symlinkat,mknod,mknodat,link,linkat:delay_exit=2000000";
        let strace = ["--", "strace", "-f", "-qq", "-o", "/dev/null", "-e", delay];
        let cmd = pool.run(&[LATE]).args(strace).args(["python3", "-c", &script, text(&directory)]);
        let mut run = Running::start(&cmd);
        run.until("ready");
        // By now nothing is pending any more: the death of a process that the other one started is
        // a change that nobody knows of.
        other.go_on();
        other.until("synced known");
        run.go_on();
        let made = directory.join("made");
        wait_until(2 * SOON, "what is made", || std::fs::symlink_metadata(&made).is_ok());
        other.go_on();
        other.until("synced after");
        disk.cut_power();
        run.kill_all(&pool);
        drop(other);
        disk.restore_power();
        let told = pool.recover(&[]);
        told.ok();
        assert_eq!(std::fs::read(disk.root.join("after")).expect("synced"), b"bytes", "{}", told.told());
        assert!(std::fs::symlink_metadata(&made).is_ok(), "{kind:?}: {call} is lost\n{}", told.told());
    }
}
