//! What is left behind when all has ended: the pool that nobody named, and the sockets of keepers
//! that were killed.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc;
use holdfast_e2e::running::Running;

/// Whose default pool no other test uses.
const NOBODY: &str = "nobody";
const POOL: &str = "/dev/shm/holdfast-65534.pool";

/// A run on the pool that nobody named.
fn run(options: &[&str], program: &[&str]) -> Cmd {
    Cmd::holdfast("run")
        .args(["--volatile", "--size=16M"])
        .args(options)
        .arg("--")
        .args(program)
        .user(NOBODY, "")
}

const APPEND: &str = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
for number in range(20):
    os.write(fd, b'%03d\\n' % number)
    os.fsync(fd)
if len(sys.argv) > 2: time.sleep(float(sys.argv[2]))
";

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

fn open_to_all(disk: &Disk) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&disk.root, mode).expect("mode");
}

/// One test, since there is one such pool.
#[test]
fn a_pool_that_nobody_named_goes_with_its_keeper() {
    drop(std::fs::remove_file(POOL));
    let disk = Disk::new(Kind::Ext4);
    open_to_all(&disk);
    let (file, pool) = (disk.root.join("file"), Path::new(POOL));
    run(&[], &["python3", "-c", APPEND, text(&file)]).ok();
    assert!(!pool.exists(), "after a clean end");
    run(&["--fence=fanotify"], &["true"]).output().expect(&[120]);
    assert!(!pool.exists(), "after a start that failed");

    // Each may be the last to use the pool, or the next to open it.
    std::thread::scope(|scope| {
        for number in 0..3 {
            let directory = &disk.root;
            scope.spawn(move || {
                for round in 0..12 {
                    let file = directory.join(format!("file-{number}-{round}"));
                    run(&[], &["python3", "-c", APPEND, text(&file)]).ok();
                    assert_eq!(std::fs::read(&file).expect("file").len(), 80, "{}", text(&file));
                }
            });
        }
    });
    assert!(!pool.exists(), "after the last of several");

    // Whatever was acknowledged is needed until it is in its files.
    let held = run(&[], &["python3", "-c", APPEND, text(&file), "60"]);
    let mut child = held.spawn();
    proc::wait_until(Duration::from_secs(20), "the file", || {
        std::fs::metadata(&file).is_ok_and(|meta| meta.len() == 160)
    });
    let family = proc::descendants(child.id());
    for pid in family.into_iter().chain([child.id()]) {
        proc::kill_hard(pid);
    }
    drop(child.wait());
    proc::wait_until(Duration::from_secs(20), "their end", || proc::keepers(pool).is_empty());
    assert!(pool.exists(), "after a crash");
    run(&[], &["true"]).ok();
    assert!(!pool.exists(), "after the run that recovered it");
}

/// A socket at which nobody listens, as a killed keeper leaves it.
fn dead_socket(directory: &Path, name: &str, age_s: u64) -> PathBuf {
    let path = directory.join(name);
    drop(UnixListener::bind(&path).expect("bound"));
    made_ago(&path, age_s);
    path
}

fn made_ago(path: &Path, age_s: u64) {
    Cmd::new("touch").args(["-h", "-d", &format!("{age_s} seconds ago")]).arg(path).ok();
}

#[test]
fn sockets_of_dead_keepers_go_with_the_next_one_that_starts() {
    let home = disk::directory();
    let directory = home.path().join("holdfast");
    std::fs::create_dir(&directory).expect("directory");
    let dead = dead_socket(&directory, "11111111111111111111111111111111.sock", 3600);
    // Between bind and listen it looks the same.
    let starting = dead_socket(&directory, "22222222222222222222222222222222.sock", 5);
    let served = directory.join("33333333333333333333333333333333.sock");
    let _listener = UnixListener::bind(&served).expect("bound");
    made_ago(&served, 3600);
    let other = directory.join("notes.txt");
    std::fs::write(&other, "").expect("written");
    made_ago(&other, 3600);
    Cmd::new("chown").args(["-R", "65534:65534"]).arg(home.path()).ok();
    Cmd::new("chmod").args(["-R", "go-w,u+rwX"]).arg(home.path()).ok();

    let pool = Pool::of_user(NOBODY, "");
    pool.run(&[]).env("XDG_RUNTIME_DIR", text(home.path())).args(["--", "true"]).ok();
    assert!(!dead.exists(), "a dead keeper's socket stayed");
    for stays in [starting, served, other] {
        assert!(stays.exists(), "{} went", text(&stays));
    }
}

/// Asks for syncs, a hundred at a time, whenever it is told to.
const SYNCS: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
number = 0
while True:
    for _ in range(100):
        os.write(fd, b'%06d\\n' % number)
        os.fsync(fd)
        number += 1
    print('synced', number, flush=True)
    if not sys.stdin.readline(): break
";

/// Something removes the pool while it is in use, as cleaners of temporary files do: what is
/// acknowledged from the notice on survives without it.
#[test]
fn a_pool_that_is_removed_while_it_is_used_holds_nothing_back() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        // The ioctl that cuts the power is none of btrfs.
        let disk = if kind == Kind::Btrfs { Disk::forgetful(kind) } else { Disk::new(kind) };
        let pool = Pool::new();
        let (file, told) = (disk.root.join("file"), disk::directory());
        let said = told.path().join("said");
        let run = pool.run(&["--age-max", "600000"]).arg("--").args(["python3", "-c", SYNCS, text(&file)]);
        let redirected = Cmd::new("sh").args(["-c", "exec \"$@\" 2> \"$0\"", text(&said)]).args(run.words());
        let mut run = Running::start(&redirected);
        run.until("synced 100");
        std::fs::remove_file(&pool.path).expect("it is there");
        let is_said = || {
            let said = std::fs::read_to_string(&said).unwrap_or_default();
            said.contains("was removed while it was in use")
        };
        proc::wait_until(Duration::from_secs(30), "notice", is_said);
        run.go_on();
        run.until("synced 200");
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        let text = std::fs::read_to_string(&file).expect("text");
        let numbers: Vec<&str> = text.lines().collect();
        assert_eq!(numbers.len(), 200, "{kind:?}");
    }
}
