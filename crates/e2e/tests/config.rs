//! The configuration: what is wrong is told by line and stops whoever needs it, flags come first,
//! and the pools that it names are installed, recovered all at once and removed without a trace.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::need;
use holdfast_e2e::pool::{Pool, fresh_path};
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::report;
use holdfast_e2e::running::Running;
use serde_json::Value;

const REFUSED: i32 = 120;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// A directory of configuration files that others can read.
struct Etc {
    dir: tempfile::TempDir,
}

impl Etc {
    fn new() -> Self {
        let etc = Self { dir: tempfile::tempdir().expect("a directory") };
        std::fs::create_dir(etc.dir.path().join("pools.d")).expect("made");
        for dir in [etc.dir.path().to_owned(), etc.dir.path().join("pools.d")] {
            std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).expect("mode");
        }
        etc
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("mode");
        path
    }

    fn holdfast(&self, words: &[&str]) -> Cmd {
        Cmd::new(need::holdfast()).args(words).env("HOLDFAST_CONFIG_DIR", self.dir.path())
    }

    fn output(&self, words: &[&str]) -> Output {
        self.holdfast(words).output()
    }
}

/// What the keeper of a run says of its options, asked from within the run.
fn options_of(run: Cmd, pool: &Pool) -> Value {
    let inside = format!("{} status --json --pool {}", text(&need::holdfast()), pool.text());
    let output = run.args(["--", "sh", "-c", &inside]).ok();
    report::parse(&output.stdout)["options"].clone()
}

#[test]
fn what_is_wrong_is_told_by_file_and_line() {
    let etc = Etc::new();
    etc.output(&["config", "check"]).ok();
    etc.write("holdfast.toml", "durability = 'sync'\n# of all\nage-maximum = '1s'\n");
    etc.write("pools.d/a.toml", "pool = '/mnt/a.pool'\nsize = '4GB'\n");
    etc.write("pools.d/b.toml", "user = 'root'\n");
    etc.write("pools.d/c.toml", "pool = '/mnt/c.pool'\nuser = 'no-such-user'\n");
    etc.write("pools.d/d.toml", "pool = '/mnt/c.pool'\n");
    etc.write("pools.d/e.toml", "pool = '/mnt/e.pool'\nbatch-min = '2M'\nbatch-max = '1M'\n");
    // One that is wrong hides no other one, nor what `run` would refuse of what is left.
    let many = "pool = '/mnt/h.pool'\nbogus = 1\nsize = '4Q'\nuser = 'no-such-user'\nage-max = '1d'\n\
                include = ['srv/*']\n= 3\nexclusive = ['/nonexistent']\n";
    etc.write("pools.d/h.toml", many);
    etc.write("pools.d/i.toml", "pool = '/mnt/i.pool'\nsize = '1'\n");
    etc.write("pools.d/j.toml", "pool = '/mnt/j.pool'\nsize = '64M'\nbatch-max = '64M'\n");
    let open = etc.write("pools.d/f.toml", "pool = '/mnt/f.pool'\n");
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o666)).expect("mode");
    // Neither is read: an editor's, and something else.
    etc.write("pools.d/.g.toml", "x");
    etc.write("pools.d/g.toml~", "x");
    let output = etc.output(&["config", "check"]);
    let all = [
        "holdfast.toml:3: unknown field `age-maximum`, expected one of",
        "pools.d/a.toml:2: unknown unit \"GB\": write K, M, G or T",
        "pools.d/b.toml: it names no pool: add pool = ",
        "pools.d/c.toml:2: there is no user no-such-user",
        "pools.d/d.toml:1: ",
        "c.toml is about the same pool: keep one",
        "pools.d/e.toml:2: --batch-min 2.0 MiB is above --batch-max 1.0 MiB",
        "pools.d/f.toml: others may have written it",
        "chmod go-w",
        "pools.d/h.toml:2: unknown field `bogus`",
        "pools.d/h.toml:3: unknown unit \"Q\"",
        "pools.d/h.toml:4: there is no user no-such-user",
        "pools.d/h.toml:5: unknown unit \"d\"",
        "pools.d/h.toml:6: --include 'srv/*': it is compared with absolute paths",
        "pools.d/h.toml:7: ",
        "pools.d/h.toml:8: --exclusive /nonexistent: no such file",
        "pools.d/i.toml:2: --size: a pool needs at least 16777216 bytes (16 MiB)",
        "pools.d/j.toml:3: --batch-max 64.0 MiB is above the pool's log",
    ];
    output.expect(&[1]).says(&all, &[]);
    assert_eq!(output.stderr.lines().count(), 16, "{}", output.told());
    // File by file, line by line.
    let stderr = output.stderr.to_lowercase();
    let at = |line: &str| stderr.find(&line.to_lowercase()).expect(line);
    assert!(all[9..].windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{}", output.told());
}

/// A mount may come later, so it is no fault that it is not there.
#[test]
fn a_mount_that_is_missing_is_noted() {
    let etc = Etc::new();
    etc.write("pools.d/a.toml", "pool = '/mnt/a.pool'\nmounts = ['/nonexistent', '/proc']\n");
    let output = etc.output(&["config", "check"]);
    assert!(output.ok().stdout.contains("a.toml: /nonexistent is not mounted now"), "{}", output.told());
    assert!(
        !output.stdout.contains("/proc") && output.stdout.contains("nothing is wrong"),
        "{}",
        output.told()
    );
}

#[test]
fn flags_come_before_the_pools_file_and_that_before_the_general_one() {
    let (etc, pool) = (Etc::new(), Pool::new());
    etc.write(
        "holdfast.toml",
        "durability = 'write'\nage-max = '7s'\nfence = 'none'\nexclusive = ['/tmp']\n",
    );
    let own = format!("pool = '{}'\nvolatile = true\nsize = '64M'\nage-max = 300\n", pool.text());
    etc.write("pools.d/own.toml", &own);
    let run = |more: &[&str]| etc.holdfast(&["run", "--pool", pool.text()]).args(more);
    let options = options_of(run(&[]), &pool);
    assert_eq!(
        (&options["durability"], &options["age_ms_max"]),
        (&"write".into(), &300.into()),
        "{options:#}"
    );
    assert_eq!(std::fs::metadata(&pool.path).expect("made").len(), 64 << 20);
    let options = options_of(run(&["--durability=sync", "--age-max", "2s"]), &pool);
    assert_eq!(
        (&options["durability"], &options["age_ms_max"]),
        (&"sync".into(), &2000.into()),
        "{options:#}"
    );
    // Without the files it is as if there were none.
    let plain = Cmd::holdfast("run").args(["--volatile", "--pool", pool.text()]);
    assert_eq!(options_of(plain, &pool)["age_ms_max"], 1000);
    let shown = etc.output(&["config", "show", "--pool", pool.text()]);
    let line =
        |key: &str| shown.ok().stdout.lines().find(|line| line.starts_with(key)).expect(key).to_owned();
    assert!(line("age-max = 300").contains("own.toml"), "{}", shown.told());
    assert!(line("durability = \"write\"").contains("holdfast.toml"), "{}", shown.told());
}

/// Nobody runs with less than the configuration asked for, and no slip stops another pool.
#[test]
fn a_file_that_is_wrong_stops_its_own_pool_alone() {
    let (etc, mine, other) = (Etc::new(), Pool::new(), Pool::new());
    let run = |pool: &Pool| {
        etc.holdfast(&["run", "--volatile", "--size", "64M", "--pool", pool.text(), "--", "true"]).output()
    };
    let file = etc.write("pools.d/mine.toml", &format!("pool = '{}'\n\ndurability = 'writ'\n", mine.text()));
    run(&mine).expect(&[REFUSED]).says(&["mine.toml:3: unknown variant `writ`", "config check"], &[]);
    run(&other).ok();
    // One of which nobody can say what it is about stops all.
    etc.write("pools.d/mine.toml", "pool = \n");
    run(&other).expect(&[REFUSED]).says(&["mine.toml:1: "], &[]);
    etc.write("pools.d/mine.toml", &format!("pool = '{}'\n", mine.text()));
    run(&mine).ok();
    std::os::unix::fs::chown(&file, Some(4711), None).expect("given away");
    run(&mine).expect(&[REFUSED]).says(&["others may have written it", "user 4711"], &[]);
}

/// Writes a block without end after a first sync.
const WRITER: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
os.write(fd, b'x' * 4096)
os.fsync(fd)
os.write(fd, b'y' * 4096)
os.fsync(fd)
os.write(1, b'synced\\n')
os.read(0, 1)
";

/// Leaves acknowledged writes in the pool's log, as a crash of everything does.
fn crash(pool: &Pool, file: &Path) {
    let run = pool.run(&["--age-max", "1h"]).args(["--", "python3", "-c", WRITER, text(file)]);
    let mut running = Running::start(&run);
    running.until("synced");
    let keeper = proc::keepers(&pool.path);
    let supervisor = running.child.id();
    for pid in proc::descendants(supervisor).into_iter().chain([supervisor]).chain(keeper) {
        proc::kill_hard(pid);
    }
    wait_until(std::time::Duration::from_secs(10), "the keeper's end", || {
        proc::keepers(&pool.path).is_empty()
    });
}

#[test]
fn all_pools_are_recovered_as_far_as_their_mounts_are_there() {
    let (etc, disk) = (Etc::new(), Disk::new(Kind::Ext4));
    let (early, late, absent) = (Pool::new(), Pool::new(), Pool::new());
    crash(&early, &disk.root.join("early"));
    crash(&late, &disk.root.join("late"));
    let nowhere = etc.dir.path().join("not mounted");
    let root = text(&disk.root);
    etc.write("pools.d/1.toml", &format!("pool = '{}'\nmounts = ['{}']\n", late.text(), text(&nowhere)));
    etc.write("pools.d/2.toml", "pool = 'relative'\n");
    etc.write("pools.d/3.toml", &format!("pool = '{}'\nmounts = ['/proc', '{root}']\n", early.text()));
    etc.write("pools.d/4.toml", &format!("pool = '{}'\n", absent.text()));
    let records =
        |pool: &Pool| report::number(&report::parse(&pool.recover(&["--dry-run"]).ok().stdout), "records");
    assert!(records(&early) > 0 && records(&late) > 0);
    // Who logs in hears of both, whatever is mounted.
    let waiting = etc.output(&["recover", "--all", "--waiting"]);
    waiting.expect(&[1]);
    for pool in [&early, &late] {
        let says = format!("pool {} waits for recovery: ", pool.text());
        assert!(waiting.stdout.contains(&says), "{}", waiting.told());
    }
    assert!(records(&early) > 0 && records(&late) > 0, "it was to look only");
    let output = etc.output(&["recover", "--all"]);
    let says = ["not mounted", late.text(), "1.toml", "left for later", "2.toml:1: \"relative\""];
    output.expect(&[1]).says(&says, &[]);
    assert!(output.stdout.contains(&format!("there is no pool {}", absent.text())), "{}", output.told());
    assert_eq!(records(&early), 0);
    assert!(records(&late) > 0, "it was to be left for later");
    // Its mount comes, the slip is mended, and one of them is in use: nothing is wrong.
    std::fs::remove_file(etc.dir.path().join("pools.d/2.toml")).expect("removed");
    etc.write("pools.d/1.toml", &format!("pool = '{}'\n", late.text()));
    let again =
        format!("HOLDFAST_CONFIG_DIR={} {} recover --all", text(etc.dir.path()), text(&need::holdfast()));
    let output = early.run(&[]).args(["--", "sh", "-c", &again]).ok();
    assert!(output.stdout.contains("nothing is to be done"), "{}", output.told());
    assert_eq!(records(&late), 0);
    assert_eq!(etc.output(&["recover", "--all", "--waiting"]).ok().stdout, "");
}

#[test]
fn what_is_installed_is_found_by_its_user_and_removed_without_a_trace() {
    need::root();
    let (etc, disk) = (Etc::new(), Disk::new(Kind::Ext4));
    Cmd::new("chmod").args(["0777", text(&disk.root)]).ok();
    let house = tempfile::tempdir_in("/dev/shm").expect("a directory");
    std::fs::set_permissions(house.path(), PermissionsExt::from_mode(0o755)).expect("mode");
    let (pool, file) = (house.path().join("pg.pool"), disk.root.join("file"));
    let install = ["install", "--pool", text(&pool), "--user", "postgres", "--size", "64M", "--volatile"];
    etc.holdfast(&install).args(["--mount", text(&disk.root)]).ok();
    let uid: u32 = Cmd::new("id").args(["-u", "postgres"]).ok().stdout.trim().parse().expect("a number");
    assert_eq!(std::fs::metadata(&pool).expect("made").uid(), uid);
    etc.output(&["config", "check"]).ok();
    etc.output(&install).expect(&[1]).says(&["pg.toml is about pool", "already"], &[]);
    // Neither the user's program nor root says which pool, and root becomes the user.
    let write = ["--", "python3", "-c", WRITER, text(&file)];
    etc.holdfast(&["run"]).args(write).stdin("\n").user("postgres", "").ok();
    let mut running = Running::start(&etc.holdfast(&["run", "--user", "postgres"]).args(write));
    running.until("synced");
    let output = etc.output(&["remove", "--pool", text(&pool)]);
    output.expect(&[1]).says(&["programs use pool", text(&pool), "stop their services"], &[]);
    running.go_on();
    assert_eq!(running.child.wait().expect("wait").code(), Some(0));
    // A keeper without programs is ended.
    // A service's sandbox may keep it from executing any program but its own.
    etc.holdfast(&["config", "check"]).env("PATH", "/nowhere").ok();
    let mut serve = Running::start(&etc.holdfast(&["serve", "--user", "postgres", "--fence", "inotify"]));
    wait_until(std::time::Duration::from_secs(30), "the keeper", || {
        let status = etc.output(&["status", "--json", "--pool", text(&pool)]);
        status.code() == 0 && report::flag(&report::parse(&status.stdout), "running")
    });
    etc.output(&["remove", "--pool", text(&pool)]).ok();
    assert_eq!(serve.child.wait().expect("wait").code(), Some(0));
    let left = |dir: &Path| std::fs::read_dir(dir).expect("readable").count();
    assert_eq!((left(house.path()), left(&etc.dir.path().join("pools.d"))), (0, 0));
    assert_eq!(std::fs::metadata(&file).expect("written").len(), 8192);
    etc.output(&["remove", "--pool", text(&pool)]).expect(&[1]).says(&["there is no pool"], &[]);
}

/// What was acknowledged and cannot go to its file keeps its pool.
#[test]
fn a_pool_with_something_in_it_is_not_removed() {
    let (etc, disk) = (Etc::new(), Disk::new(Kind::Ext4));
    let pool = Pool::new();
    let file = disk.root.join("file");
    crash(&pool, &file);
    disk.cut_power();
    disk.restore_power();
    std::fs::write(&file, "somebody else's by now").expect("written");
    let output = etc.output(&["remove", "--pool", pool.text()]);
    output.expect(&[1]).says(&["set aside", "--discard"], &[]);
    assert!(pool.path.exists());
    // Once somebody has decided it goes.
    pool.command("recover").args(["--discard", text(&file)]).ok();
    etc.output(&["remove", "--pool", pool.text()]).ok();
    assert!(!pool.path.exists());
    let absent = fresh_path("absent");
    etc.output(&["remove", "--pool", text(&absent)]).expect(&[1]).says(&["there is no pool"], &[]);
}

/// A pool whose keeper would be refused at every start was said to be "there already".
#[test]
fn what_no_keeper_could_use_is_not_installed() {
    need::root();
    let (etc, house) = (Etc::new(), tempfile::tempdir_in("/dev/shm").expect("a directory"));
    let [roots, others, own, link, no_pool] =
        ["roots", "others", "own", "link", "none"].map(|name| house.path().join(name));
    for pool in [&roots, &others, &own] {
        Cmd::holdfast("format").args(["--volatile", "--size", "64M", "--pool", text(pool)]).ok();
    }
    std::os::unix::fs::symlink(&own, &link).expect("a link");
    std::fs::write(&no_pool, vec![b'x'; 1 << 20]).expect("a file");
    Cmd::new("chown").args(["postgres", text(&own), text(&no_pool)]).ok();
    Cmd::new("chown").args(["nobody", text(&others)]).ok();
    let install = |pool| etc.output(&["install", "--pool", text(pool), "--user", "postgres", "--volatile"]);
    for (pool, says) in [
        (&roots, "belongs to another user (uid 0"),
        (&others, "belongs to another user"),
        (&link, "it is a link"),
        (&no_pool, "name a pool"),
    ] {
        install(pool).expect(&[1]).says(&[text(pool), "postgres", says], &[]);
    }
    let installed = std::fs::read_dir(etc.dir.path().join("pools.d")).expect("a directory").count();
    assert_eq!(installed, 0);
    assert!(install(&own).ok().stdout.contains("there already"));
}
