//! A keeper as a service of its own: what its manager hears, who joins it, who may end without
//! whom, and that nothing acknowledged is lost on the way.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::need;
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc;
use holdfast_e2e::report;
use holdfast_e2e::running::Running;
use holdfast_e2e::service::Service;
use rustix::process::Signal;

const REFUSED: i32 = 120;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// Appends one numbered line after the other with fsync, and says each; on an error says its
/// number. Ends when it gets a line, or after so many.
const APPEND: &str = "
import os, select, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
for number in range(int(sys.argv[2])):
    try:
        os.write(fd, b'%09d\\n' % number)
        os.fsync(fd)
    except OSError as error:
        os.write(1, b'errno %d\\n' % error.errno)
        break
    os.write(1, b'ack %d\\n' % number)
    if select.select([0], [], [], 0.002)[0] and os.read(0, 1):
        os.write(1, b'end\\n')
        break
";

fn append(service: &Service, pool: &Pool, file: &Path, options: &[&str]) -> Running {
    let cmd = service.join(pool, options).args(["--", "python3", "-c", APPEND, text(file), "100000"]);
    Running::start(&cmd)
}

/// Reads so many acknowledgements more; the last one.
fn acks(program: &mut Running, more: u64) -> u64 {
    let number = |line: &str| line["ack ".len()..].parse::<u64>().expect("a number");
    let first = number(&program.until("ack "));
    (1..more).fold(first, |_, _| number(&program.until("ack ")))
}

/// The file holds the lines 0 to `last`, and maybe more, without a gap.
fn holds(file: &Path, last: u64) {
    let found = std::fs::read_to_string(file).expect("file");
    let lines: Vec<&str> = found.lines().collect();
    assert!(lines.len() as u64 > last, "{} lines, {last} was acknowledged", lines.len());
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("{number:09}"), "line {number} of {}", text(file));
    }
}

fn must_be_clean(pool: &Pool) {
    let told = report::parse(&pool.recover(&["--dry-run"]).ok().stdout);
    assert_eq!(report::number(&told, "records"), 0, "{told:#}");
}

#[test]
fn the_manager_hears_that_it_is_ready_lives_and_ends() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let mut service = Service::start(&pool, &[], Some(Duration::from_millis(600)));
    service.until("READY=1");
    // It is served by now, used or not, and says so.
    let status = report::parse(&service.command(&pool, "status").arg("--json").ok().stdout);
    assert!(report::flag(&status, "running"), "{status:#}");
    let life = service.until("WATCHDOG=1");
    assert!(life.contains("STATUS=0 programs, 0 files not on disk"), "{life}");
    let file = disk.root.join("file");
    let program = service.join(&pool, &[]).args(["--", "python3", "-c", APPEND, text(&file), "50"]).ok();
    assert!(program.stderr.contains("% of "), "{}", program.told());
    // It stays after its last program.
    service.until("WATCHDOG=1");
    service.stop();
    service.until("STOPPING=1");
    assert_eq!(service.end().code(), Some(0), "{}", service.said());
    must_be_clean(&pool);
    holds(&file, 49);
    service.says("is closed");
}

/// The sign of life is what somebody who asks is told, not that a thread runs.
#[test]
fn a_keeper_that_nobody_can_reach_shows_no_life() {
    let pool = Pool::new();
    let service = Service::start(&pool, &[], Some(Duration::from_millis(600)));
    service.until("WATCHDOG=1");
    let socket = std::fs::read_dir(service.home.path()).expect("a directory").flatten();
    let socket: PathBuf = socket
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "sock"))
        .expect("a socket");
    std::fs::rename(&socket, socket.with_extension("away")).expect("moved");
    // What was on its way comes, and then nothing for three times as long as signs are apart.
    let (begun, mut heard) = (Instant::now(), Instant::now());
    while heard.elapsed() < Duration::from_millis(600) {
        if service.message().is_some_and(|message| message.contains("WATCHDOG=1")) {
            heard = Instant::now();
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it shows life that nobody can see");
    }
    std::fs::rename(socket.with_extension("away"), &socket).expect("moved back");
    service.until("WATCHDOG=1");
}

#[test]
fn a_service_that_is_told_to_stop_waits_for_its_programs() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let mut service = Service::ready(&pool, &["--stop-timeout", "5m"]);
    let mut program = append(&service, &pool, &file, &[]);
    acks(&mut program, 20);
    service.stop();
    service.until("STOPPING=1");
    // Nobody new, but who is there is served as before.
    let late = service.join(&pool, &[]).args(["--", "true"]).output();
    late.expect(&[REFUSED]).says(&["was told to stop"], &[]);
    acks(&mut program, 50);
    program.go_on();
    program.until("end");
    assert_eq!(program.child.wait().expect("wait").code(), Some(0));
    assert_eq!(service.end().code(), Some(0), "{}", service.said());
    must_be_clean(&pool);
    holds(&file, 70);
}

#[test]
fn a_program_that_does_not_end_is_waited_for_until_the_deadline() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let mut service = Service::ready(&pool, &["--stop-timeout", "1s"]);
    let mut program = append(&service, &pool, &file, &[]);
    acks(&mut program, 20);
    let told = Instant::now();
    service.stop();
    let mut last = 0;
    let error = loop {
        let line = program.lines.recv_timeout(Duration::from_secs(60)).expect("a line");
        match line.strip_prefix("ack ") {
            Some(number) => last = number.parse().expect("a number"),
            None => break line,
        }
    };
    assert!(told.elapsed() >= Duration::from_secs(1), "it failed before the deadline");
    assert_eq!(error, "errno 5");
    assert_eq!(service.end().code(), Some(0), "{}", service.said());
    drop(program.child.wait());
    must_be_clean(&pool);
    holds(&file, last);
}

#[test]
fn of_two_services_one_stops_and_the_other_goes_on() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let (one, two) = (disk.root.join("one"), disk.root.join("two"));
    let mut service = Service::ready(&pool, &[]);
    let mut first = append(&service, &pool, &one, &[]);
    let mut second = append(&service, &pool, &two, &[]);
    let acknowledged = acks(&mut first, 20);
    acks(&mut second, 20);
    proc::signal(first.child.id(), Signal::TERM);
    assert_eq!(first.child.wait().expect("wait").code(), Some(128 + 15));
    holds(&one, acknowledged);
    acks(&mut second, 20);
    // And without its supervisor, too.
    let mut stdin = second.child.stdin.take().expect("piped");
    drop(second.child.kill());
    drop(second.child.wait());
    let last = acks(&mut second, 50);
    let status = report::parse(&service.command(&pool, "status").arg("--json").ok().stdout);
    assert_eq!(status["clients"].as_array().map(Vec::len), Some(1), "{status:#}");
    stdin.write_all(b"\n").expect("it waits");
    second.until("end");
    holds(&two, last);
    service.stop();
    assert_eq!(service.end().code(), Some(0), "{}", service.said());
    must_be_clean(&pool);
}

#[test]
fn a_service_recovers_before_it_is_ready_and_is_not_started_twice() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let service = Service::ready(&pool, &["--age-max", "1h"]);
    let mut program = append(&service, &pool, &file, &[]);
    let last = acks(&mut program, 30);
    let twice = service.command(&pool, "serve").arg("--volatile").output();
    twice.expect(&[1]).says(&["serves pool", pool.text(), "already"], &[]);
    let (supervisor, keeper) = (program.child.id(), service.child.id());
    for pid in proc::descendants(supervisor).into_iter().chain([supervisor, keeper]) {
        proc::kill_hard(pid);
    }
    drop(program);
    drop(service);
    let service = Service::ready(&pool, &[]);
    service.says("recovered pool");
    holds(&file, last);
}

#[test]
fn who_joins_starts_no_keeper() {
    let pool = Pool::new();
    let join = || pool.command("run").args(["--volatile", "--join", "--", "true"]).output();
    join().expect(&[REFUSED]).says(&["there is no pool", pool.text(), "--join makes none"], &[]);
    assert!(!pool.path.exists(), "a pool was made");
    pool.command("format").args(["--size", "64M", "--volatile"]).ok();
    join().expect(&[REFUSED]).says(&["no keeper runs", pool.text(), "--join starts none", "serve"], &[]);
    assert!(proc::keepers(&pool.path).is_empty(), "a keeper was started");
}

/// Where keepers are found is said by name; what is wrong with the place is told, not passed over.
#[test]
fn a_directory_that_is_named_must_be_ours_alone() {
    let pool = Pool::formatted();
    let place = tempfile::tempdir().expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(place.path(), open).expect("opened to all");
    let serve = pool.command("serve").env("HOLDFAST_RUNTIME_DIR", place.path()).arg("--volatile");
    serve.output().expect(&[1]).says(&["of this user alone", text(place.path())], &[]);
}

/// What goes to the journal has levels, and no name can make another line of it.
#[test]
fn what_is_said_has_levels_and_lines_of_our_own_alone() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let service = Service::ready(&pool, &[]);
    let name = disk.root.join("a\n<0>b\u{1b}[2J");
    let map = "import mmap, os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 4096); \
               m = mmap.mmap(fd, 4096); m[0] = 1; os.fsync(fd)";
    service.join(&pool, &[]).args(["--", "python3", "-c", map, text(&name)]).ok();
    let said = service.says("left to the kernel");
    let line = said.lines().find(|line| line.contains("left to the kernel")).expect("it is told");
    assert!(line.contains(r"a\n<0>b\u{1b}[2J: mapped shared and writable"), "{said}");
    assert!(said.lines().all(|line| line.starts_with("holdfast: ")), "{said}");
    let quiet = Pool::new();
    let quiet_service = Service::ready(&quiet, &["--log-level", "error"]);
    assert_eq!(quiet_service.said(), "");
}

/// The unit files of contrib/systemd, with the units that they change as Debian has them.
#[test]
fn systemd_takes_the_unit_files() {
    for (file, package) in [
        ("/lib/systemd/system/redis-server.service", "redis-server"),
        ("/lib/systemd/system/postgresql@.service", "postgresql-common"),
    ] {
        need::debian_file(file, package);
    }
    let units = tempfile::tempdir().expect("a directory");
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    Cmd::new("cp").arg("-r").arg(contrib.join(".")).arg(units.path()).ok();
    for unit in ["redis-server.service", "postgresql@.service"] {
        std::fs::copy(Path::new("/lib/systemd/system").join(unit), units.path().join(unit)).expect("copied");
    }
    // As far as the drop-in knows it.
    let stand_in = "[Service]\nType=notify\nUser=mysql\nExecStart=/bin/true\n";
    std::fs::write(units.path().join("mariadb.service"), stand_in).expect("written");
    std::fs::write(units.path().join("any.service"), stand_in).expect("written");
    let mut names = vec!["holdfast@.service".to_owned(), "holdfast-recover.service".to_owned()];
    for unit in ["redis-server", "postgresql@", "mariadb", "any"] {
        names.push(format!("{unit}.service.d/holdfast.conf"));
    }
    for name in names {
        let path = units.path().join(name);
        let unit = std::fs::read_to_string(&path).expect("a unit");
        // What is installed elsewhere is here, or stands for it.
        let unit = unit
            .replace("/usr/local/lib/holdfast/holdfast", text(&need::holdfast()))
            .replace("/usr/sbin/mariadbd", "/bin/true")
            .replace("USER", "mysql")
            .replace("PROGRAM", "/bin/true");
        std::fs::write(&path, unit).expect("written");
    }
    let verify = |unit: &str| {
        Cmd::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no", unit])
            .env("SYSTEMD_UNIT_PATH", format!("{}:", text(units.path())))
            .output()
    };
    for unit in [
        "holdfast-recover.service",
        "holdfast@redis.service",
        "redis-server.service",
        "postgresql@15-main.service",
        "mariadb.service",
        "any.service",
    ] {
        let output = verify(unit);
        assert_eq!((output.code(), output.stderr.as_str()), (0, ""), "{}", output.told());
    }
    // It would say so.
    let spoilt = units.path().join("redis-server.service.d/holdfast.conf");
    let unit =
        std::fs::read_to_string(&spoilt).expect("a unit").replace("NotifyAccess=all", "NotifyAccess=x");
    std::fs::write(&spoilt, unit).expect("written");
    assert_ne!(verify("redis-server.service").stderr, "");
}
