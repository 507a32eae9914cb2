//! Servers of a mount that are killed: another one goes on, and programs see no error; nothing is
//! lost, and nothing is done twice.

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{self, Kind};
use holdfast_e2e::mounted::{
    Mount, SOON, acknowledged, appends, clear, directory, disk, goes_on, here, must_hold, said, text,
};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::running::Running;

/// One transaction for each row, until there is a file "stop" beside the database.
const ROWS: &str = "
import os, sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
base.execute('pragma synchronous=full')
base.execute('create table t(a integer primary key)')
row = 0
while not os.path.exists(os.path.dirname(sys.argv[1]) + '/stop'):
    row += 1
    base.execute('insert into t values(?)', (row,))
    print('ack', row, flush=True)
";

/// Programs wait while one server follows another, and see no error; nothing is lost, nothing is
/// done twice.
fn outlives_its_servers(over: bool) {
    let (disk, pool, home) = (disk(Kind::Ext4), Pool::new(), disk::directory());
    let program = appends(home.path());
    let (served, at) = (directory(&disk, "served"), directory(&disk, "at"));
    let point = if over { &served } else { &at };
    let mount = match over {
        true => Mount::over(&pool, &["--age-max=60s"], &served),
        false => Mount::start(&pool, &["--at", text(&at)], &served, &at),
    };
    let script = here("tests/mount_kills.py");
    let worker =
        |number: u32| Running::start(&Cmd::new("python3").arg(&script).arg(point).arg(number.to_string()));
    let mut workers: Vec<Running> = (0..3).map(worker).collect();
    let mut static_one = Running::start(&Cmd::new(&program).arg(point.join("file")).arg("1000000"));
    for _ in 0..5 {
        for worker in &mut workers {
            goes_on(worker);
        }
        goes_on(&mut static_one);
        mount.kill_server();
    }
    std::fs::write(point.join("stop"), "").expect("made");
    for worker in &mut workers {
        let ended = worker.child.wait().expect("wait");
        let last = worker.lines.iter().last().unwrap_or_default();
        assert!(
            ended.success() && last.starts_with("well"),
            "{ended:?}: {last}: {}",
            said(&mut worker.child)
        );
    }
    proc::kill_hard(static_one.child.id());
    drop(static_one.child.wait());
    let last = static_one.lines.iter().last().map_or(0, |line| line[4..].parse().expect("a number"));
    Cmd::new("umount").arg(point).ok();
    let (status, told, _) = mount.end();
    assert_eq!(status, 0, "{told}");
    assert_eq!(told.matches("another one goes on").count(), 5, "{told}");
    must_hold(&served.join("file"), last);
}

#[test]
fn servers_are_killed_and_programs_see_nothing_of_it() {
    outlives_its_servers(true);
}

#[test]
fn the_same_where_others_may_write_past_the_mount() {
    outlives_its_servers(false);
}

#[test]
fn a_database_outlives_the_servers_of_its_directory() {
    let (disk, pool) = (disk(Kind::Xfs), Pool::new());
    let served = directory(&disk, "served");
    let mount = Mount::over(&pool, &["--age-max=60s"], &served);
    let base = served.join("base");
    let mut database = Running::start(&Cmd::new("python3").args(["-c", ROWS]).arg(&base));
    for _ in 0..5 {
        goes_on(&mut database);
        mount.kill_server();
    }
    std::fs::write(served.join("stop"), "").expect("made");
    assert!(database.child.wait().expect("wait").success(), "{}", said(&mut database.child));
    let last = database.lines.iter().last().map_or(0, |line| line[4..].parse::<u64>().expect("a number"));
    let told = Cmd::new("sqlite3").arg(&base).arg("pragma integrity_check; select count(*) from t").ok();
    assert_eq!(told.stdout, format!("ok\n{last}\n"));
    mount.unmount();
}

/// The second server is killed before it serves: the holder has everything still.
#[test]
fn a_server_that_is_killed_while_it_takes_over_is_followed() {
    let (disk, pool, home) = (disk(Kind::Ext4), Pool::new(), disk::directory());
    let program = appends(home.path());
    let served = directory(&disk, "served");
    let file = served.join("file");
    let mount = Mount::over(&pool, &["--age-max=60s"], &served);
    let mut running = Running::start(&Cmd::new(&program).arg(&file).arg("1000000"));
    for _ in 0..3 {
        goes_on(&mut running);
        let first = mount.servers();
        proc::kill_hard(first[0]);
        let mut second = None;
        wait_until(SOON, "a second server", || {
            second = mount.all_servers().into_iter().find(|pid| !first.contains(pid));
            second.is_some()
        });
        proc::kill_hard(second.expect("there is one"));
        wait_until(SOON, "a third server", || {
            let found = mount.all_servers();
            found.len() == 2 && !found.contains(&first[0])
        });
    }
    let last = goes_on(&mut running);
    proc::kill_hard(running.child.id());
    drop(running.child.wait());
    Cmd::new("umount").arg(&served).ok();
    let (status, told, _) = mount.end();
    assert_eq!(status, 0, "{told}");
    must_hold(&file, last);
}

/// A crash after the second server: what the first one had acknowledged is in the log still.
#[test]
fn what_killed_servers_acknowledged_survives_a_power_cut() {
    let (disk, pool, home) = (disk(Kind::Ext4), Pool::new(), disk::directory());
    let program = appends(home.path());
    let served = directory(&disk, "served");
    disk.settle();
    let file = served.join("file");
    let mut mount = Mount::over(&pool, &["--age-max=60s"], &served);
    let mut running = Running::start(&Cmd::new(&program).arg(&file).arg("1000000"));
    for _ in 0..2 {
        goes_on(&mut running);
        mount.kill_server();
    }
    mount.family = proc::descendants(mount.pid());
    let last = goes_on(&mut running);
    disk.cut_power();
    mount.kill_all();
    drop(running.child.wait());
    clear(&served);
    disk.restore_power();
    pool.recover(&[]).ok();
    must_hold(&file, last);
}

/// Without its holder a server takes the mount with it; what it acknowledged is kept.
#[test]
fn a_server_without_a_holder_loses_nothing_and_leaves_no_mount() {
    let (disk, pool, home) = (disk(Kind::Ext4), Pool::new(), disk::directory());
    let program = appends(home.path());
    let served = directory(&disk, "served");
    let file = served.join("file");
    let mount = Mount::over(&pool, &["--age-max=60s"], &served);
    let mut running = Running::start(&Cmd::new(&program).arg(&file).arg("1000000"));
    let last = acknowledged(&mut running, 100);
    let [server, holder] = mount.servers();
    proc::kill_hard(holder);
    proc::kill_hard(server);
    let (status, said, _) = mount.end();
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("was killed by signal 9") && said.contains("is unmounted"), "{said}");
    assert!(!running.child.wait().expect("wait").success(), "it gets an error");
    must_hold(&file, last);
}
