//! Names that files get late, or do not get: saving by a rename over the file, renames that fail,
//! exchanges, files made without a name, and files that are used after their removal.

use std::path::Path;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::running::Running;
use holdfast_e2e::{need, report};

const KINDS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// One on which power can be cut.
fn disk(kind: Kind) -> Disk {
    if kind == Kind::Btrfs { Disk::forgetful(kind) } else { Disk::new(kind) }
}

/// Power goes when everything stands still; then recovery.
fn cut(disk: &Disk, pool: &Pool, run: Running) {
    run.stop_all(pool);
    disk.cut_power();
    run.kill_all(pool);
    disk.restore_power();
    pool.recover(&[]).ok();
}

/// Saves a file again and again as editors do, and says how often. The names of the copies are of
/// several sorts.
const SAVE: &str = "
import os, sys, time
root, count = sys.argv[1], int(sys.argv[2])
directory = os.open(root, os.O_RDONLY)
for number in range(count):
    name = ['saved.tmp', 'saved.%d' % number, '.saved.tmp%d' % number][int(sys.argv[3])]
    fd = os.open(root + '/' + name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, b'%06d' % number * 100)
    os.fsync(fd)
    os.close(fd)
    os.rename(root + '/' + name, root + '/saved')
    if len(sys.argv) > 4:
        os.fsync(directory)
        os.write(1, b'saved %d\\n' % number)
time.sleep(60 if len(sys.argv) > 4 else 0)
";

/// Where slots hold the renames, the disk sees one sync for many of them; on btrfs as many as
/// natively, where each was two to four syncs by the keeper.
#[test]
fn a_file_is_saved_by_a_rename_with_no_more_syncs_than_natively() {
    for kind in KINDS {
        for sort in ["0", "1", "2"] {
            let (disk, pool) = (Disk::new(kind), Pool::new().logs_from_sync());
            let program = ["python3", "-c", SAVE, text(&disk.root), "100", sort];
            let (output, summary) = pool.run_summarised(&[], &program);
            output.ok();
            let count = |name| report::number(&summary, name);
            let syncs = count("keeper_fsyncs") + count("syncs_real");
            let expected = if kind == Kind::Btrfs { 95..125 } else { 0..60 };
            assert!(expected.contains(&syncs), "{kind:?}, sort {sort}: {syncs} syncs\n{summary:#}");
            let saved = std::fs::read_to_string(disk.root.join("saved")).expect("file");
            assert_eq!(saved, "000099".repeat(100));
        }
    }
}

#[test]
fn what_was_saved_by_a_rename_is_there_after_a_power_cut() {
    for kind in KINDS {
        let (disk, pool) = (disk(kind), Pool::new().logs_from_sync());
        let program = ["--", "python3", "-c", SAVE, text(&disk.root), "100000", "0", "said"];
        let mut run = Running::start(&pool.run(&[]).args(program));
        run.until("saved 50");
        run.stop_all(&pool);
        let last = run.lines.try_iter().last().unwrap_or("saved 50".to_owned());
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        pool.recover(&[]).ok();
        let last: u32 = last.strip_prefix("saved ").expect("a line").parse().expect("a number");
        let saved = std::fs::read_to_string(disk.root.join("saved")).expect("file");
        let found: u32 = saved.get(..6).expect("a number").parse().expect("a number");
        assert!(found >= last, "{kind:?}: {found} is there, {last} was acknowledged");
        assert_eq!(saved, format!("{found:06}").repeat(100));
    }
}

/// Makes a file that the log has, does something to its names, and writes to it once more.
const NAMED: &str = "
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
root, what = sys.argv[1], sys.argv[2]
os.chdir(root)
def rename2(old, new, flags):
    return libc.renameat2(-100, old.encode(), -100, new.encode(), flags)
def fails(call, *args):
    try: call(*args)
    except OSError: return
    raise Exception('it went well')
fd = os.open('file', os.O_RDWR | os.O_CREAT, 0o644) if what != 'nameless' else os.open('.', os.O_RDWR | os.O_TMPFILE, 0o644)
os.write(fd, b'first ')
os.fsync(fd)
other = os.open('other', os.O_RDWR | os.O_CREAT, 0o644)
os.write(other, b'other ')
os.fsync(other)
if what == 'rename': fails(os.rename, 'file', 'nowhere/file')
elif what == 'link': fails(os.link, 'file', 'nowhere/file')
elif what == 'exchange in vain': assert rename2('file', 'nothing', 2) != 0
elif what == 'exchange': assert rename2('file', 'other', 2) == 0
elif what == 'exchange with a directory': os.mkdir('made'); assert rename2('file', 'made', 2) == 0
elif what == 'nameless': assert libc.linkat(-100, b'/proc/self/fd/%d' % fd, -100, b'file', 0x400) == 0
os.fsync(fd)
# A file is not logged that would need a commit just after another one, and on btrfs not before
# the next one, which comes after a second.
for _ in range(8 if what == 'nameless' and sys.argv[3].endswith('sync') else 1):
    time.sleep(0.2)
    os.fsync(fd)
os.write(fd, b'second ' * 1000)
os.write(other, b'second ' * 1000)
os.write(1, b'ready\\n')
time.sleep(60)
";

/// A call that failed, or gave two files each other's names, left them to the kernel for good: what
/// was written to them from then on was not durable.
#[test]
fn what_is_written_after_a_change_of_names_is_durable() {
    for kind in KINDS {
        for what in
            ["rename", "link", "exchange in vain", "exchange", "exchange with a directory", "nameless"]
        {
            for durability in ["--durability=sync", "--durability=write"] {
                let (disk, pool) = (disk(kind), Pool::new());
                let program = ["--", "python3", "-c", NAMED, text(&disk.root), what, durability];
                let mut run = Running::start(&pool.run(&[durability]).args(program));
                run.until("ready");
                cut(&disk, &pool, run);
                let [file, other] = match what {
                    "exchange" => ["other", "file"],
                    "exchange with a directory" => ["made", "other"],
                    _ => ["file", "other"],
                };
                for (name, first) in [(file, "first "), (other, "other ")] {
                    let found = std::fs::read_to_string(disk.root.join(name)).expect(name);
                    let expected = format!("{first}{}", "second ".repeat(1000));
                    assert!(
                        found == expected,
                        "{kind:?}, {what}, {durability}: {name}: {} bytes",
                        found.len()
                    );
                }
            }
        }
    }
}

/// Renames files all the time to a name that no file can have, while they are made, synced and
/// removed.
const IMPOSSIBLE: &str = "
import os, random, sys, time
os.chdir(sys.argv[1])
def one(draw):
    name, what = 'file-%d' % draw.randrange(6), draw.random()
    if what < 0.35:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(fd, b'x' * 8)
        if draw.random() < 0.5: os.fsync(fd)
        if draw.random() < 0.5: os.write(fd, b'x' * 8)
        os.close(fd)
    elif what < 0.45: os.unlink(name)
    else: os.rename(name, 'y' * 300)
for process in range(6):
    if os.fork() == 0:
        draw = random.Random(process)
        while True:
            try: one(draw)
            except OSError: pass
time.sleep(0.5)
os.write(1, b'ready\\n')
time.sleep(60)
";

/// The slot had the name that never was when the power went: recovery could not look there, and put
/// the file off for ever, with what had been synced.
#[test]
fn a_rename_that_cannot_be_made_keeps_no_file_away() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        for _ in 0..4 {
            let (disk, pool) = (disk(kind), Pool::new().logs_from_sync());
            let program = ["--", "python3", "-c", IMPOSSIBLE, text(&disk.root)];
            let mut run = Running::start(&pool.run(&[]).args(program));
            run.until("ready");
            cut(&disk, &pool, run);
        }
    }
}

/// Uses files after their removal: some were synced before, some were not.
const REMOVED: &str = "
import os, random, sys
draw = random.Random(int(sys.argv[2]))
held, number = [], 0
while True:
    number += 1
    name = '%s/file-%d' % (sys.argv[1], number % 5)
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, b'%08d' % number)
    if draw.random() < 0.5: os.fsync(fd)
    os.write(fd, b'y' * draw.randint(1, 3000))
    held.append(fd)
    if number > 5 and draw.random() < 0.5:
        again = os.open('%s/file-%d' % (sys.argv[1], draw.choice([number - 1, number - 2]) % 5), os.O_RDWR)
        os.pwrite(again, b'w' * 300, draw.randint(0, 900))
        if draw.random() < 0.5: os.fsync(again)
        held.append(again)
    if number >= 5: os.unlink('%s/file-%d' % (sys.argv[1], (number + 1) % 5))
    some = draw.choice(held)
    os.ftruncate(some, draw.randint(0, 4000))
    if draw.random() < 0.5: os.fsync(some)
    if len(held) > 9: os.close(held.pop(0))
    if number == 2000: os.write(1, b'ready\\n')
";

/// Where no fence watches, a removal that no slot held left the slot to the nameless file: what was
/// written to it was set aside after every crash.
#[test]
fn nothing_is_set_aside_for_files_that_were_removed() {
    for (kind, seed) in [(Kind::Ext4, "1"), (Kind::Ext4, "2"), (Kind::Xfs, "3"), (Kind::Btrfs, "4")] {
        let (disk, pool) = (disk(kind), Pool::new().logs_from_sync());
        let exclusive = format!("--exclusive={}", text(&disk.root));
        let program = ["--", "python3", "-c", REMOVED, text(&disk.root), seed];
        let mut run = Running::start(&pool.run(&[&exclusive]).args(program));
        run.until("ready");
        cut(&disk, &pool, run);
    }
}

/// Threads that have more files open than the pool has slots: none of their calls may fail.
const MANY: &str = "
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
enum { THREADS = 24, FILES = 14, SECONDS = 3 };
static time_t end;
static void must(long result, const char *what) {
    if (result < 0) { printf(\"%s: %s\\n\", what, strerror(errno)); exit(1); }
}
static void *work(void *argument) {
    long thread = (long)argument, made = 0;
    unsigned seed = thread * 77 + 1;
    static char bytes[3000];
    char name[64];
    int fd[FILES];
    long named[FILES];
    memset(fd, -1, sizeof fd);
    sprintf(name, \"d%ld\", thread);
    must(mkdir(name, 0755), \"mkdir\");
    while (time(NULL) < end) {
        int i = rand_r(&seed) % FILES, what = rand_r(&seed) % 10;
        if (fd[i] < 0) {
            sprintf(name, \"d%ld/%ld\", thread, named[i] = ++made);
            must(fd[i] = open(name, O_RDWR | O_CREAT | O_EXCL, 0644), \"open\");
            must(write(fd[i], bytes, 8), \"write\");
        } else if (what < 4) {
            must(pwrite(fd[i], bytes, 1 + rand_r(&seed) % 2999, rand_r(&seed) % 12000), \"pwrite\");
        } else if (what == 8 && named[i]) {
            sprintf(name, \"d%ld/%ld\", thread, named[i]);
            must(unlink(name), \"unlink\");
            named[i] = 0;
        } else if (what == 9 && !named[i]) {
            must(close(fd[i]), \"close\");
            fd[i] = -1;
        }
    }
    return 0;
}
int main(void) {
    pthread_t threads[THREADS];
    end = time(NULL) + SECONDS;
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
}
";

/// Some ended with EOPNOTSUPP: the slot of their file had just been given to another one.
#[test]
fn no_call_fails_for_want_of_slots() {
    let aside = disk::directory();
    let (source, program) = (aside.path().join("many.c"), aside.path().join("many"));
    std::fs::write(&source, MANY).expect("source");
    Cmd::new(need::tool("gcc")).args(["-O2", "-pthread", "-o", text(&program), text(&source)]).ok();
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::with_size("16M"));
    let output = pool.run(&["--durability=write"]).args(["--", text(&program)]).dir(&disk.root).output();
    assert!(output.status.success(), "{}", output.told());
}

/// Saves `d/t` over an older one, which is on the disk, as the new one is if it is `settled`. Then
/// what the last argument says happens to the directory.
const REPLACE: &str = "
import os, sys, time
root, begun, then = sys.argv[1:]
os.chdir(root)
def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
def save(name, what):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, what)
    os.fsync(fd)
    os.close(fd)
save('d/t', b'old')
for _ in range(2):
    save('d/tmp', b'old')
    os.rename('d/tmp', 'd/t')
    sync('d')
if then == 'settled': save('d/tmp', b'new')
print('made', flush=True)
while not os.path.exists(begun): time.sleep(0.01)
if then != 'settled': save('d/tmp', b'new')
os.rename('d/tmp', 'd/t')
sync('d')
if then in ('directory', 'link', 'file'):
    os.rename('d', 'e')
    if then == 'directory': os.mkdir('d')
    if then == 'link': os.symlink('e', 'd')
    if then == 'file': save('d', b'file')
    sync('.')
print('saved', flush=True)
time.sleep(60)
";

/// A file that has a second name, and goes on being written there once a new file has its first
/// one; `link` makes the second name.
const OUTLIVES: &str = "
import os, sys, time
os.chdir(sys.argv[1])
if sys.argv[2] == 'linked here': os.link('name', 'other')
writer = os.open('other', os.O_WRONLY | os.O_APPEND)
fd = os.open('new', os.O_WRONLY | os.O_CREAT, 0o644)
os.write(fd, b'new' * 100)
os.fsync(fd)
os.close(fd)
os.rename('new', 'name')
for number in range(20):
    os.write(writer, b'more ')
    os.fsync(writer)
directory = os.open('.', os.O_RDONLY)
os.fsync(directory)
os.write(writer, b'more ')
os.fsync(writer)
os.write(1, b'written\\n')
time.sleep(60)
";

/// Recovery removed it, with its other name, as the one whose name was taken.
#[test]
fn a_file_with_another_name_outlives_a_save_over_one() {
    for (kind, how) in
        [Kind::Ext4, Kind::Xfs].into_iter().flat_map(|kind| [(kind, "linked before"), (kind, "linked here")])
    {
        for pool in [Pool::new().logs_from_sync(), Pool::new()] {
            let disk = disk(kind);
            std::fs::write(disk.root.join("name"), "old ").expect("a file");
            if how == "linked before" {
                std::fs::hard_link(disk.root.join("name"), disk.root.join("other")).expect("a link");
            }
            disk.settle();
            let program = ["--", "python3", "-c", OUTLIVES, text(&disk.root), how];
            let mut run = Running::start(&pool.run(&[]).args(program));
            run.until("written");
            cut(&disk, &pool, run);
            let read = |name| {
                std::fs::read_to_string(disk.root.join(name)).unwrap_or_else(|error| error.to_string())
            };
            let expected = format!("old {}", "more ".repeat(21));
            assert_eq!((read("name"), read("other")), ("new".repeat(100), expected), "{kind:?}, {how}");
        }
    }
}

/// The power is gone behind a save, and back, and nothing is recovered yet.
fn replaced(disk: &Disk, pool: &Pool, then: &str) {
    std::fs::create_dir(disk.root.join("d")).expect("directory");
    disk.settle();
    let home = tempfile::tempdir().expect("directory");
    let begun = home.path().join("begun");
    let program = ["--", "python3", "-c", REPLACE, text(&disk.root), text(&begun), then];
    let mut run = Running::start(&pool.run(&[]).args(program));
    run.until("made");
    disk.settle();
    std::fs::write(&begun, "").expect("word");
    run.until("saved");
    run.stop_all(pool);
    disk.cut_power();
    run.kill_all(pool);
    disk.restore_power();
}

/// Recovery put the replaced file off for good, and nothing could be run on the pool any more.
#[test]
fn a_replaced_file_is_not_awaited_where_its_directory_was() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        for then in ["directory", "link", "file"] {
            let (disk, pool) = (Disk::new(kind), Pool::new().logs_from_sync());
            replaced(&disk, &pool, then);
            pool.recover(&[]).ok();
            assert_eq!(std::fs::read_to_string(disk.root.join("e/t")).expect("file"), "new", "{then}");
        }
    }
}

/// Recovery removed the old file, and could not bring the new one back either.
#[test]
fn a_replaced_file_stays_where_others_moved_it_until_the_new_one_is_there() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new().logs_from_sync());
        replaced(&disk, &pool, "nothing");
        std::fs::rename(disk.root.join("d"), disk.root.join("z")).expect("move");
        let recovered = pool.command("recover").output();
        assert!(disk.root.join("z/t").exists(), "{}", recovered.told());
    }
}

/// What others wrote to the old file is kept, and so is the new one: it stayed at its first name,
/// where nobody looks for it, and nothing was said.
#[test]
fn a_save_over_a_file_that_others_wrote_to_since_is_set_aside() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new().logs_from_sync());
        replaced(&disk, &pool, "settled");
        assert_eq!(std::fs::read_to_string(disk.root.join("d/t")).expect("file"), "old", "the cut took it");
        assert!(disk.root.join("d/tmp").exists(), "a commit had it");
        std::thread::sleep(std::time::Duration::from_secs(2));
        std::fs::write(disk.root.join("d/t"), "others").expect("file");
        let recovered = pool.command("recover").output();
        assert_eq!(recovered.status.code(), Some(1), "{}", recovered.told());
        assert!(recovered.told().contains("set aside"), "{}", recovered.told());
        assert_eq!(std::fs::read_to_string(disk.root.join("d/t")).expect("file"), "others");
    }
}
