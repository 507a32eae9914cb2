//! PostgreSQL under pgbench cut off: every acknowledged row is there afterwards, the sums of
//! pgbench's tables agree, pg_amcheck is content and every page has its checksum. It runs as the
//! user `postgres`: once with its directory declared exclusive, once behind the fanotify fence, for
//! which that user is given the capability.

use std::io::{BufRead, BufReader, Write};
use std::process::Child;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cmd::Cmd;
use crate::need;
use crate::proc::wait_until;
use crate::site::{Acks, Site, Workload};
use crate::workload::template::{Place, Template};

const USER: &str = "postgres";

/// Pages go to their files all the time, and from there to the disk at once.
const BARE: [&str; 8] = [
    "full_page_writes=off",
    "shared_buffers=4MB",
    "checkpoint_flush_after=1",
    "bgwriter_delay=10ms",
    "bgwriter_lru_maxpages=1000",
    "bgwriter_flush_after=1",
    "backend_flush_after=1",
    "max_wal_size=32MB",
];

/// What keeps others from its files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// Its directory is declared exclusive.
    Exclusive,
    /// fanotify, for which its user is given the capability.
    Fanotify,
}

/// A server with pgbench and a session as its clients.
pub struct Postgres {
    fence: Fence,
    /// Whether it guards itself against pages that are half written.
    full_page_writes: bool,
    template: Arc<Template>,
}

impl Postgres {
    /// With a template that all share.
    pub fn new(fence: Fence) -> Self {
        static TEMPLATE: Place = Place::new(Weak::new());
        Self { fence, full_page_writes: true, template: Template::shared(&TEMPLATE, USER, make) }
    }

    /// One that takes it for granted that a page is written as a whole, with so few buffers that it
    /// writes pages all the time, and has the kernel write each at once: a power cut meets some.
    pub fn without_full_page_writes() -> Self {
        Self { full_page_writes: false, ..Self::new(Fence::Exclusive) }
    }
}

fn make(site: &Site) {
    let data = site.path("data");
    Cmd::new("initdb").args(["-N", "-k", "-A", "trust", "-D", &data]).user(USER, "").dir(&site.aside).ok();
    let native = Native::start(site).unwrap_or_else(|error| panic!("{error}"));
    let aside = site.aside.to_str().expect("text");
    Cmd::new("pgbench").args(["-i", "-q", "-s", "1", "-h", aside, "postgres"]).user(USER, "").dir(aside).ok();
    psql(site, "CREATE TABLE item(id bigint PRIMARY KEY, payload text); CREATE EXTENSION amcheck").ok();
    native.stop();
}

fn client(site: &Site, program: &str) -> Cmd {
    Cmd::new(program).args(["-h", site.aside.to_str().expect("text"), "-d", "postgres"]).dir(&site.aside)
}

fn psql(site: &Site, question: &str) -> Cmd {
    client(site, "psql").args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-c", question]).user(USER, "")
}

fn server(site: &Site) -> Vec<String> {
    let program = need::tool("postgres").to_str().expect("text").to_owned();
    let options =
        ["-D", &site.path("data"), "-k", site.aside.to_str().expect("text"), "-c", "listen_addresses="]
            .map(str::to_owned);
    std::iter::once(program).chain(options).collect()
}

/// A server that runs natively, to prepare or to check.
struct Native<'a> {
    site: &'a Site,
    child: Child,
}

impl<'a> Native<'a> {
    fn start(site: &'a Site) -> Result<Self, String> {
        let argv = server(site);
        let mut child = Cmd::new(&argv[0]).args(&argv[1..]).user(USER, "").dir(&site.aside).spawn();
        let stderr = child.stderr.take().expect("piped");
        let reader = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default());
        for _ in 0..1500 {
            if child.try_wait().expect("wait").is_some() {
                return Err(format!("postgres does not start:\n{}", reader.join().expect("reader")));
            }
            if psql(site, "SELECT 1").output().status.success() {
                return Ok(Self { site, child });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(child.kill());
        Err("postgres does not answer".into())
    }

    fn stop(mut self) {
        let data = self.site.path("data");
        Cmd::new(need::tool("postgres").with_file_name("pg_ctl"))
            .args(["stop", "-m", "fast", "-D", &data])
            .user(USER, "")
            .dir(&self.site.aside)
            .ok();
        drop(self.child.wait());
    }
}

/// One checkpoint after the other: pages go to the disk with no flush between them.
fn checkpoints(site: &Site) -> JoinHandle<()> {
    let mut session = client(site, "psql").args(["-XqAt", "-v", "ON_ERROR_STOP=1"]).user(USER, "").spawn();
    std::thread::spawn(move || {
        let mut stdin = session.stdin.take().expect("piped");
        let mut lines = BufReader::new(session.stdout.take().expect("piped")).lines();
        while stdin.write_all(b"CHECKPOINT; SELECT 1;\n").is_ok() && matches!(lines.next(), Some(Ok(_))) {}
        drop(stdin);
        drop(session.wait());
    })
}

impl Workload for Postgres {
    fn name(&self) -> String {
        match self.fence {
            _ if !self.full_page_writes => "postgres without full_page_writes".into(),
            Fence::Exclusive => "postgres --exclusive".into(),
            Fence::Fanotify => "postgres --fence fanotify".into(),
        }
    }

    fn prepare(&self, site: &Site) {
        self.template.copy_to(site);
    }

    fn program(&self, site: &Site) -> Vec<String> {
        let mut line = server(site);
        if !self.full_page_writes {
            for setting in BARE {
                line.extend(["-c".to_owned(), setting.to_owned()]);
            }
        }
        line
    }

    fn options(&self, site: &Site) -> Vec<String> {
        match self.fence {
            Fence::Exclusive => vec!["--exclusive".into(), site.path("data")],
            Fence::Fanotify => vec!["--fence".into(), "fanotify".into()],
        }
    }

    fn user(&self) -> Option<(&str, &str)> {
        match self.fence {
            Fence::Exclusive => Some((USER, "")),
            Fence::Fanotify => Some((USER, "+sys_admin")),
        }
    }

    /// pgbench for load, and a session that inserts one row after the other and hears of each.
    fn start_clients(&self, site: &Site, acks: &Acks) -> Vec<JoinHandle<()>> {
        wait_until(Duration::from_secs(30), "postgres to answer", || {
            psql(site, "SELECT 1").output().status.success()
        });
        let aside = site.aside.to_str().expect("text");
        let pgbench = Cmd::new("pgbench")
            .args(["-n", "-c", "2", "-T", "60", "-h", aside, "postgres"])
            .user(USER, "")
            .dir(aside);
        let mut inserts =
            client(site, "psql").args(["-XqAt", "-v", "ON_ERROR_STOP=1"]).user(USER, "").spawn();
        let acks = acks.clone();
        let mut clients = if self.full_page_writes { Vec::new() } else { vec![checkpoints(site)] };
        clients.extend([
            // It ends with an error once the server is dead, as it should.
            std::thread::spawn(move || drop(pgbench.output())),
            std::thread::spawn(move || {
                let mut stdin = inserts.stdin.take().expect("piped");
                let mut lines = BufReader::new(inserts.stdout.take().expect("piped")).lines();
                for id in 1.. {
                    let insert =
                        format!("INSERT INTO item VALUES({id}, repeat('{id}-', 30)) RETURNING id;\n");
                    if stdin.write_all(insert.as_bytes()).is_err() {
                        break;
                    }
                    match lines.next() {
                        Some(Ok(line)) if line == id.to_string() => acks.lock().expect("acks").push(line),
                        _ => break,
                    }
                }
                drop(stdin);
                drop(inserts.wait());
            }),
        ]);
        clients
    }

    fn life_ms_max(&self) -> u64 {
        800
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        // The killed server may stay a zombie, whose number would keep the next one from starting;
        // after a reboot it is gone.
        for lock in [site.dir.join("data/postmaster.pid"), site.aside.join(".s.PGSQL.5432.lock")] {
            drop(std::fs::remove_file(lock));
        }
        let native = Native::start(site)?;
        let verdict = check_running(site, acks);
        native.stop();
        verdict?;
        let checked =
            Cmd::new("pg_checksums").args(["--check", "-D", &site.path("data")]).user(USER, "").output();
        let good = checked.status.success() && checked.stdout.contains("Bad checksums:  0");
        if good { Ok(()) } else { Err(checked.told()) }
    }
}

fn check_running(site: &Site, acks: &[String]) -> Result<(), String> {
    let ask = |question: &str| {
        let output = psql(site, question).output();
        if output.status.success() { Ok(output.stdout) } else { Err(output.told()) }
    };
    let acknowledged: u64 = acks.last().map_or(0, |id| id.parse().expect("an id"));
    let whole = ask(&format!(
        "SELECT count(*) FROM item WHERE id <= {acknowledged} AND payload = repeat(id || '-', 30)"
    ))?;
    if whole.trim() != acknowledged.to_string() {
        return Err(format!("{acknowledged} rows acknowledged, {} there", whole.trim()));
    }
    let sums = ask(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
        (SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)",
    )?;
    let mut parts = sums.trim().split('|');
    let first = parts.next().unwrap_or_default().to_owned();
    if !parts.all(|part| part == first) {
        return Err(format!("pgbench's sums disagree: {}", sums.trim()));
    }
    let checked = client(site, "pg_amcheck").user(USER, "").output();
    if checked.status.success() { Ok(()) } else { Err(checked.told()) }
}
