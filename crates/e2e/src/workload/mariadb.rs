//! MariaDB, with InnoDB's double write or without it, cut off: every acknowledged row is there
//! afterwards, the sums that each transaction keeps equal are, and every page of every table has
//! its checksum. It runs as the user `mysql`, with its directory declared exclusive.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cmd::Cmd;
use crate::need;
use crate::proc::wait_until;
use crate::site::{Acks, Site, Workload};
use crate::workload::template::{Place, Template};

const USER: &str = "mysql";

/// Durable at each commit; few buffers, and a short log, so that pages go to their files all the
/// time. Asynchronous I/O would go past the library.
const SETTINGS: [&str; 14] = [
    "--skip-networking",
    "--skip-grant-tables",
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-use-native-aio=OFF",
    "--innodb-flush-method=fsync",
    "--innodb-buffer-pool-size=6M",
    "--innodb-log-file-size=4M",
    "--innodb-max-dirty-pages-pct=0",
    "--innodb-io-capacity=20000",
    "--innodb-io-capacity-max=20000",
    "--innodb-buffer-pool-dump-at-shutdown=OFF",
    "--innodb-fast-shutdown=0",
    "--performance-schema=OFF",
    "--skip-log-bin",
];

/// Rows that are changed all the time: some 300 pages.
const ROWS: u64 = 4000;

/// A server with two sessions.
pub struct MariaDb {
    /// Whether it guards itself against pages that are half written.
    double_write: bool,
    template: Arc<Template>,
}

impl MariaDb {
    /// One that takes it for granted that a page is written as a whole.
    pub fn without_double_write() -> Self {
        Self { double_write: false, ..Self::new() }
    }

    /// With a template that all share.
    pub fn new() -> Self {
        static TEMPLATE: Place = Place::new(Weak::new());
        Self { double_write: true, template: Template::shared(&TEMPLATE, USER, make) }
    }

    /// Waits until the server takes statements.
    pub fn await_answer(&self, site: &Site) {
        wait_until(Duration::from_secs(60), "mariadbd to answer", || ask(site, "SELECT 1").is_ok());
    }

    /// Inserts so many rows, each by a transaction of its own.
    pub fn insert(&self, site: &Site, rows: u64) {
        let inserts = (1..=rows).map(|id| format!("INSERT INTO trial.item VALUES({id}, 'a row');"));
        ask(site, &inserts.collect::<String>()).unwrap_or_else(|error| panic!("{error}"));
    }
}

fn make(site: &Site) {
    let data = format!("--datadir={}", site.path("data"));
    Cmd::new("mariadb-install-db")
        .args(["--no-defaults", &data, "--skip-test-db", "--auth-root-authentication-method=normal"])
        .user(USER, "")
        .dir(&site.aside)
        .ok();
    let native = Native::start(site).unwrap_or_else(|error| panic!("{error}"));
    ask(
        site,
        &format!(
            "CREATE DATABASE trial; USE trial;
            CREATE TABLE item(id BIGINT PRIMARY KEY, payload VARCHAR(600)) ENGINE=InnoDB;
            CREATE TABLE page(id BIGINT PRIMARY KEY, changes BIGINT, filler VARCHAR(1000)) ENGINE=InnoDB;
            CREATE TABLE tally(id BIGINT PRIMARY KEY, changes BIGINT) ENGINE=InnoDB;
            INSERT INTO page SELECT seq, 0, REPEAT('x', 1000) FROM seq_1_to_{ROWS};
            INSERT INTO tally SELECT seq, 0 FROM seq_1_to_10;"
        ),
    )
    .unwrap_or_else(|error| panic!("{error}"));
    native.stop();
}

fn socket(site: &Site) -> String {
    format!("--socket={}", site.aside("mariadb.sock"))
}

fn client(site: &Site) -> Cmd {
    Cmd::new("mariadb")
        .args(["--no-defaults", "--batch", "--skip-column-names", "--unbuffered", &socket(site)])
        .user(USER, "")
        .dir(&site.aside)
}

/// What a server says to statements.
fn ask(site: &Site, statements: &str) -> Result<String, String> {
    let output = client(site).args(["--execute", statements]).output();
    if output.status.success() { Ok(output.stdout) } else { Err(output.told()) }
}

fn server(site: &Site, double_write: bool) -> Vec<String> {
    let program = need::tool("mariadbd").to_str().expect("text").to_owned();
    let place = [
        "--no-defaults".to_owned(),
        format!("--datadir={}", site.path("data")),
        socket(site),
        format!("--pid-file={}", site.aside("mariadb.pid")),
        format!("--tmpdir={}", site.aside.display()),
        format!("--innodb-doublewrite={}", u8::from(double_write)),
    ];
    std::iter::once(program).chain(place).chain(SETTINGS.map(str::to_owned)).collect()
}

/// A server that runs natively, to prepare or to check.
struct Native {
    child: Child,
}

impl Native {
    fn start(site: &Site) -> Result<Self, String> {
        let argv = server(site, true);
        let mut child = Cmd::new(&argv[0]).args(&argv[1..]).user(USER, "").dir(&site.aside).spawn();
        let stderr = child.stderr.take().expect("piped");
        let reader = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default());
        for _ in 0..3000 {
            if child.try_wait().expect("wait").is_some() {
                return Err(format!("mariadbd does not start:\n{}", reader.join().expect("reader")));
            }
            if ask(site, "SELECT 1").is_ok() {
                return Ok(Self { child });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(child.kill());
        Err("mariadbd does not answer".into())
    }

    /// Has it write everything to its files and end.
    fn stop(mut self) {
        Cmd::new("kill").arg(self.child.id().to_string()).ok();
        drop(self.child.wait());
    }
}

/// A session that is told statements one after the other, as long as each is answered.
fn session(
    site: &Site,
    mut statements: impl FnMut(u64) -> String + Send + 'static,
    mut answered: impl FnMut(String) + Send + 'static,
) -> JoinHandle<()> {
    let mut session = client(site).arg("trial").spawn();
    std::thread::spawn(move || {
        let mut stdin = session.stdin.take().expect("piped");
        let mut lines = BufReader::new(session.stdout.take().expect("piped")).lines();
        for turn in 1.. {
            let is_told = writeln!(stdin, "{}", statements(turn)).is_ok();
            match lines.next() {
                Some(Ok(line)) if is_told => answered(line),
                _ => break,
            }
        }
        drop(stdin);
        drop(session.wait());
    })
}

impl Default for MariaDb {
    fn default() -> Self {
        Self::new()
    }
}

impl Workload for MariaDb {
    fn name(&self) -> String {
        if self.double_write { "mariadb".into() } else { "mariadb without double write".into() }
    }

    fn prepare(&self, site: &Site) {
        self.template.copy_to(site);
    }

    fn program(&self, site: &Site) -> Vec<String> {
        server(site, self.double_write)
    }

    fn options(&self, site: &Site) -> Vec<String> {
        vec!["--exclusive".into(), site.path("data")]
    }

    fn user(&self) -> Option<(&str, &str)> {
        Some((USER, ""))
    }

    /// One session changes rows all over a table and keeps count in another one; one inserts a row
    /// after the other and hears of each.
    fn start_clients(&self, site: &Site, acks: &Acks) -> Vec<JoinHandle<()>> {
        self.await_answer(site);
        let changes = |turn: u64| {
            let (step, row) = (turn * 37 % 97, turn % 10 + 1);
            format!(
                "BEGIN; UPDATE page SET changes = changes + 1 WHERE id % 97 = {step};
                UPDATE tally SET changes = changes + ROW_COUNT() WHERE id = {row}; COMMIT; SELECT {turn};"
            )
        };
        let inserts = |id: u64| {
            format!("INSERT INTO item VALUES({id}, REPEAT('{id}-', 30)); SELECT {id};").replace('\n', " ")
        };
        let acks = acks.clone();
        vec![
            session(site, changes, drop),
            session(site, inserts, move |line| acks.lock().expect("acks").push(line)),
        ]
    }

    fn life_ms_max(&self) -> u64 {
        1500
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        let native = Native::start(site)?;
        let verdict = check_running(site, acks);
        native.stop();
        verdict?;
        let tables = tables(&site.dir.join("data")).map_err(|error| error.to_string())?;
        if tables.len() < 4 {
            return Err(format!("there are only {} files of tables", tables.len()));
        }
        tables.iter().try_for_each(|table| check_pages(table))
    }
}

/// The pages of the system's table where InnoDB keeps its second copies.
const COPIES: [u64; 2] = [64, 192];

/// Every page has its checksum. Not so the second copies, of which a server that never saw a power
/// cut leaves some without one.
fn check_pages(table: &Path) -> Result<(), String> {
    let [first, behind] = COPIES;
    let parts = if table.ends_with("ibdata1") {
        vec![format!("--end-page={}", first - 1), format!("--start-page={behind}")]
    } else {
        vec!["--start-page=0".to_owned()]
    };
    for part in parts {
        let checked = Cmd::new("innochecksum").arg(part).arg(table).output();
        if !checked.status.success() {
            return Err(format!("{}: {}", table.display(), checked.told()));
        }
    }
    Ok(())
}

/// The files of InnoDB that have pages.
fn tables(data: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = vec![data.join("ibdata1")];
    for entry in data.join("trial").read_dir()? {
        let path = entry?.path();
        found.extend(Some(path).filter(|path| path.extension().is_some_and(|ending| ending == "ibd")));
    }
    Ok(found)
}

fn check_running(site: &Site, acks: &[String]) -> Result<(), String> {
    let acknowledged: u64 = acks.last().map_or(0, |id| id.parse().expect("an id"));
    let whole = ask(
        site,
        &format!(
            "SELECT COUNT(*) FROM trial.item WHERE id <= {acknowledged} AND payload = REPEAT(CONCAT(id, '-'), 30)"
        ),
    )?;
    if whole.trim() != acknowledged.to_string() {
        return Err(format!("{acknowledged} rows acknowledged, {} there", whole.trim()));
    }
    let sums =
        ask(site, "SELECT (SELECT SUM(changes) FROM trial.page) = (SELECT SUM(changes) FROM trial.tally)")?;
    if sums.trim() != "1" {
        return Err("the sums of two tables, which each transaction keeps equal, are not".into());
    }
    let checked = ask(site, "CHECK TABLE trial.item, trial.page, trial.tally EXTENDED")?;
    let good = checked.lines().filter(|line| line.ends_with("\tOK")).count();
    if good == 3 && checked.lines().count() == 3 { Ok(()) } else { Err(checked) }
}
