//! Pools that are none, are damaged, busy or too small, or belong to somebody else.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::running::Running;
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
    std::fs::write(at("zeros"), vec![0; 32 << 20]).expect("file");
    let _listener = std::os::unix::net::UnixListener::bind(at("socket")).expect("socket");
    Cmd::new("mkfifo").arg(at("fifo")).ok();
    std::fs::create_dir(at("directory")).expect("directory");
    let instead = [
        ("ordinary", "does not begin as a pool does"),
        ("empty", "an empty file"),
        ("zeros", "a file of zeros"),
        ("socket", "a socket"),
        ("fifo", "a FIFO"),
        ("directory", "a directory"),
    ];
    for (name, what) in instead {
        for command in ["status", "files", "drain", "metrics", "recover", "remove", "serve --volatile"] {
            let path = at(name);
            let mut words = command.split(' ');
            let command = Cmd::holdfast(words.next().expect("a command")).args(words);
            let told = command.args(["--pool", text(&path)]).output();
            assert!(!told.told().contains("holdfast format"), "{}", told.told());
            told.expect(&[USAGE])
                .says(&[&format!("{} is not a Holdfast pool: it is", text(&path)), what], &[]);
        }
    }
    assert_eq!(std::fs::read_to_string(at("ordinary")).expect("file"), "some text");
    assert_eq!(std::fs::metadata(at("empty")).expect("file").len(), 0);
    assert_eq!(std::fs::read_dir(at("directory")).expect("directory").count(), 0);
}

/// A device that is no memory was told to be made another mode.
#[test]
fn a_device_is_no_pool() {
    need::root();
    for device in ["/dev/null", "/dev/zero"] {
        for command in ["status", "files", "drain", "metrics", "recover"] {
            let told = Cmd::holdfast(command).args(["--pool", device]).output();
            told.expect(&[USAGE]).says(&[device, "is not a Holdfast pool", "a device, and no DAX one"], &[]);
        }
        let run = Cmd::holdfast("run").args(["--volatile", "--pool", device, "--", "true"]).output();
        run.expect(&[REFUSED]).says(&[device, "neither a regular file nor a DAX character device"], &[]);
    }
}

/// What is refused before the program starts leaves no pool that was not there before.
#[test]
fn a_refused_run_leaves_no_new_pool() {
    let small = Tmpfs::new("24m");
    let spill = format!("--spill={}", text(&small.0.path().join("spill")));
    let refused: [(&[&str], &str); 7] = [
        (&["--spill=/etc"], "/etc"),
        (&["--spill=/dev/null"], "/dev/null"),
        (&["--include=["], "["),
        (&["--exclude=["], "["),
        (&[&spill, "--spill-size=96M"], "spill"),
        (&[&spill, "--spill-size=1"], "at least"),
        (&[&spill, "--spill-size=900T"], "can account for at most"),
    ];
    for (options, names) in refused {
        let pool = Pool::new();
        pool.run(options).args(["--", "true"]).output().expect(&[REFUSED]).says(&[names], &[]);
        assert!(!pool.path.exists(), "{options:?}");
        pool.command("serve").args(["--volatile", "--size=64M"]).args(options).output().expect(&[1]);
        assert!(!pool.path.exists(), "{options:?}");
        // One that was there stays.
        let pool = Pool::formatted();
        pool.run(options).args(["--", "true"]).output().expect(&[REFUSED]);
        pool.run(&[]).args(["--", "true"]).ok();
    }
    assert_eq!(std::fs::read_dir(small.0.path()).expect("directory").count(), 0);
}

/// The keeper could not be told of such a path, and said that about its configuration.
#[test]
fn paths_that_are_no_text_are_refused_by_name() {
    let home = disk::directory();
    let odd = home.path().join(OsStr::from_bytes(b"d\xff"));
    std::fs::create_dir(&odd).expect("directory");
    let pool = Pool::new();
    let mut path = pool.path.clone().into_os_string();
    path.push(OsStr::from_bytes(b"\xff"));
    let run = |pool: &OsStr| Cmd::holdfast("run").args(["--volatile", "--size=64M", "--pool"]).arg(pool);
    let told = [
        (run(&path), "--pool /dev/shm/"),
        (run(pool.path.as_os_str()).arg("--exclusive").arg(&odd), "--exclusive /"),
        (run(pool.path.as_os_str()).arg("--spill").arg(odd.join("s")), "--spill /"),
    ];
    for (run, names) in told {
        let told = run.args(["--", "echo", "the program ran"]).output();
        told.expect(&[REFUSED]).says(&[names, "\\xff", "is not UTF-8", "rename"], &[]);
        assert!(!told.stdout.contains("the program ran"), "{}", told.told());
    }
    let format = Cmd::holdfast("format").args(["--volatile", "--size=64M", "--pool"]).arg(&path).output();
    format.expect(&[1]).says(&["\\xff", "is not UTF-8"], &[]);
    assert!(!Path::new(&path).exists() && !pool.path.exists());
}

/// What is said fits what stands there.
#[test]
fn short_files_and_lost_links_are_told_as_what_they_are() {
    let pool = Pool::new();
    std::fs::write(&pool.path, [0]).expect("file");
    let run = pool.run(&[]).args(["--", "true"]).output();
    run.expect(&[REFUSED]).says(&[pool.text(), "not a Holdfast pool"], &[]);
    assert!(!run.stderr.contains("superblock"), "{}", run.told());
    std::fs::remove_file(&pool.path).expect("removed");
    for target in [Path::new("/dev/shm/holdfast-leads-nowhere"), &pool.path] {
        std::os::unix::fs::symlink(target, &pool.path).expect("link");
        let run = pool.run(&[]).args(["--", "true"]).output();
        run.expect(&[REFUSED]).says(&[pool.text(), "a symbolic link", "remove the link"], &[]);
        let format = pool.command("format").args(["--volatile", "--size=64M"]).output();
        format.expect(&[1]).says(&[pool.text(), "a symbolic link", "remove the link"], &[]);
        std::fs::remove_file(&pool.path).expect("removed");
    }
}

/// A pool that is cut under its keeper, which then dies: nobody says that all is in it.
#[test]
fn a_pool_that_was_cut_in_use_is_not_said_to_hold_everything() {
    let pool = Pool::new();
    let mut run = Running::start(&pool.run(&[]).args(["--", "sh", "-c", "echo begun; read line"]));
    run.until("begun");
    let keeper = proc::keeper(&pool.path);
    let file = std::fs::OpenOptions::new().write(true).open(&pool.path).expect("pool");
    file.set_len(20 << 20).expect("truncate");
    proc::kill_hard(keeper);
    run.go_on();
    let mut said = String::new();
    run.child.stderr.take().expect("piped").read_to_string(&mut said).expect("what it says");
    for told in [pool.text(), "it is truncated", "cannot be had from the pool"] {
        assert!(said.contains(told), "{told}\n{said}");
    }
    assert!(!said.contains("What was acknowledged is in the pool"), "{said}");
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
