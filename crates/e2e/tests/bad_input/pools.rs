//! Pools that are none, are damaged, busy or too small, or belong to somebody else.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{need, proc};

use super::{NOBODY, REFUSED, SUPERBLOCK_COPY, Tmpfs, overwrite, text};

/// The command line is wrong.
const USAGE: i32 = 2;

/// Every command refuses the pool, names it, says one of `why`, and leaves it as it is.
fn every_command_refuses(pool: &Pool, status: i32, why: &[&str]) {
    let before = std::fs::read(&pool.path).expect("pool");
    pool.run(&[]).args(["--", "true"]).output().expect(&[REFUSED]).says(&[pool.text()], why);
    pool.command("recover").output().expect(&[status]).says(&[pool.text()], why);
    for command in ["status", "files", "drain", "metrics"] {
        pool.command(command).output().expect(&[status]).says(&[pool.text()], &[]);
    }
    assert!(std::fs::read(&pool.path).expect("pool") == before, "the pool was changed");
}

#[test]
fn not_a_pool() {
    let pool = Pool::new();
    std::fs::write(&pool.path, vec![b'x'; 32 << 20]).expect("file");
    every_command_refuses(&pool, USAGE, &["not a holdfast pool"]);
    // `format` does not take a file with something in it without being told to.
    pool.command("format")
        .args(["--size", "64M", "--volatile"])
        .output()
        .expect(&[1])
        .says(&[pool.text()], &["--force"]);
    pool.command("format").args(["--size", "64M", "--volatile", "--force"]).ok();
    pool.run(&[]).args(["--", "true"]).ok();
}

#[test]
fn a_directory_is_no_pool() {
    let dir = disk::directory();
    let path = text(dir.path());
    let run = Cmd::holdfast("run").args(["--volatile", "--pool", path, "--", "true"]).output();
    run.expect(&[REFUSED]).says(&[path], &["directory", "regular file"]);
}

/// Whoever names what cannot be a pool hears what it is, whatever it lies on, and nothing happens
/// to it.
#[test]
fn what_is_no_pool_is_named_as_what_it_is() {
    let dir = disk::directory();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("ordinary"), "some text").expect("file");
    std::fs::write(at("empty"), "").expect("file");
    let _listener = std::os::unix::net::UnixListener::bind(at("socket")).expect("socket");
    Cmd::new("mkfifo").arg(at("fifo")).ok();
    std::fs::create_dir(at("directory")).expect("directory");
    let instead = [
        ("ordinary", "does not begin as a pool does"),
        ("empty", "an empty file"),
        ("socket", "a socket"),
        ("fifo", "a FIFO"),
        ("directory", "a directory"),
    ];
    for (name, what) in instead {
        for command in ["status", "files", "drain", "metrics", "recover"] {
            let path = at(name);
            let told = Cmd::holdfast(command).args(["--pool", text(&path)]).output();
            told.expect(&[USAGE])
                .says(&[&format!("{} is not a Holdfast pool: it is", text(&path)), what], &[]);
        }
    }
    assert_eq!(std::fs::read_to_string(at("ordinary")).expect("file"), "some text");
    assert_eq!(std::fs::metadata(at("empty")).expect("file").len(), 0);
    assert_eq!(std::fs::read_dir(at("directory")).expect("directory").count(), 0);
}

#[test]
fn wrong_version() {
    let pool = Pool::formatted();
    let mut superblock = std::fs::read(&pool.path).expect("pool")[..128].to_vec();
    superblock[8..12].copy_from_slice(&999u32.to_le_bytes());
    let sum = crc32c::crc32c(&superblock[..124]);
    superblock[124..].copy_from_slice(&sum.to_le_bytes());
    overwrite(&pool.path, 0, &superblock);
    every_command_refuses(&pool, 1, &["version 999"]);
}

#[test]
fn truncated_pool() {
    let pool = Pool::formatted();
    let file = std::fs::OpenOptions::new().write(true).open(&pool.path).expect("pool");
    file.set_len(20 << 20).expect("truncate");
    every_command_refuses(&pool, 1, &["truncated"]);
}

#[test]
fn damaged_superblock_and_copy() {
    let pool = Pool::formatted();
    overwrite(&pool.path, 33, b"\xff\x07");
    overwrite(&pool.path, SUPERBLOCK_COPY + 33, b"\xff\x07");
    every_command_refuses(&pool, 1, &["damaged"]);
    let told = pool.command("recover").output().told();
    assert!(told.contains("backup") && !told.contains("format"), "{told}");
}

#[test]
fn empty_file_is_no_pool_to_recover() {
    let pool = Pool::new();
    std::fs::write(&pool.path, b"").expect("file");
    pool.command("recover").output().expect(&[USAGE]).says(&[pool.text()], &["not a holdfast pool", "empty"]);
}

#[test]
fn missing_pool() {
    let pool = Pool::new();
    pool.command("recover").output().expect(&[1]).says(&[pool.text()], &["there is no pool"]);
    pool.command("status").output().expect(&[1]).says(&[pool.text()], &[]);
    pool.command("drain").output().expect(&[1]).says(&[pool.text()], &[]);
}

#[test]
fn another_users_pool() {
    need::root();
    for mode in [0o600, 0o666] {
        let pool = Pool::formatted();
        std::fs::set_permissions(&pool.path, std::fs::Permissions::from_mode(mode)).expect("mode");
        let run = pool.run(&[]).args(["--", "true"]).user(NOBODY, "").output();
        run.expect(&[REFUSED])
            .says(&[pool.text()], &["permission", "owner", "belongs", "owned", "another user"]);
        let recover = pool.command("recover").user(NOBODY, "").output();
        recover
            .expect(&[1])
            .says(&[pool.text()], &["permission", "owner", "belongs", "owned", "another user"]);
    }
}

#[test]
fn busy_pool_names_its_owner() {
    let pool = Pool::new();
    let mut program = pool.run(&[]).args(["--", "sleep", "30"]).spawn();
    // A keeper that has only just made the pool may give way to another one: the program's own is
    // asked for.
    proc::wait_until(Duration::from_secs(10), "the program", || {
        proc::descendants(program.id()).into_iter().any(|pid| !proc::is_holdfast(pid))
    });
    let keeper = proc::keeper(&pool.path);
    let pid = keeper.to_string();
    let recover = pool.command("recover").output();
    recover.expect(&[1]).says(&[pool.text(), &pid], &["use", "busy", "owned", "running"]);
    let format = pool.command("format").args(["--size", "64M", "--volatile", "--force"]).output();
    format.expect(&[1]).says(&[pool.text(), &pid], &["use", "busy", "owned", "running"]);
    assert!(proc::alive(keeper), "the keeper did not survive the attempts");
    for pid in proc::descendants(program.id()) {
        if !proc::is_holdfast(pid) {
            proc::kill_hard(pid);
        }
    }
    drop(program.wait());
}

#[test]
fn pool_on_a_full_tmpfs() {
    let tmpfs = Tmpfs::new("24m");
    let path = tmpfs.0.path().join("pool");
    let run = || {
        Cmd::holdfast("run")
            .args(["--volatile", "--size", "64M", "--pool", text(&path), "--", "true"])
            .output()
    };
    run().expect(&[REFUSED]).says(&[text(&path)], &["space", "full", "room"]);
    assert!(!path.exists(), "half a pool was left behind");
    let format =
        Cmd::holdfast("format").args(["--volatile", "--size", "64M", "--pool", text(&path)]).output();
    format.expect(&[1]).says(&[text(&path)], &["space", "full", "room"]);
    assert!(!path.exists(), "half a pool was left behind");
    Cmd::holdfast("run")
        .args(["--volatile", "--size", "16M", "--pool", text(&path), "--", "true"])
        .output()
        .ok();
}

#[test]
fn impossible_size() {
    let pool = Pool::with_size("1M");
    pool.run(&[]).args(["--", "true"]).output().expect(&[REFUSED, 2]).says(&["16 MiB"], &[]);
    assert!(!pool.path.exists(), "half a pool was left behind");
    let pool = Pool::with_size("many");
    pool.run(&[]).args(["--", "true"]).output().expect(&[2]).says(&["--size", "many"], &[]);
}

#[test]
fn volatile_media_needs_consent() {
    let pool = Pool::formatted();
    let run = Cmd::holdfast("run").args(["--pool", pool.text(), "--", "true"]).output();
    run.expect(&[REFUSED]).says(&[pool.text(), "--volatile"], &["power", "volatile"]);
    let run = Cmd::holdfast("run").args(["--", "true"]).output();
    run.expect(&[REFUSED]).says(&["--volatile", "--pool"], &[]);
    let disk = Disk::new(Kind::Ext4);
    let path = disk.root.join("pool");
    // A file on an ordinary disk is no memory at all.
    let run = Cmd::holdfast("run")
        .args(["--volatile", "--size", "64M", "--pool", text(&path), "--", "true"])
        .output();
    run.expect(&[REFUSED]).says(&[text(&path)], &["tmpfs", "dax", "dev/shm"]);
}
