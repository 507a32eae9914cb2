//! SQLite cut off under load, with a rollback journal and with a write-ahead log: every committed
//! row is there afterwards, whole, and `PRAGMA integrity_check` is content.

use std::collections::BTreeSet;

use crate::cmd::Cmd;
use crate::site::{Site, Workload};
use crate::{musl, need};

/// Commits rows one by one and says so after each commit. The second table makes every transaction
/// touch several pages.
const COMMIT_ROWS: &str = "
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('PRAGMA journal_mode=' + sys.argv[2])
db.execute('PRAGMA synchronous=FULL')
row = 0
while True:
    row += 1
    db.execute('BEGIN IMMEDIATE')
    db.execute(\"INSERT INTO item VALUES(?1, printf('%0600d', ?1))\", (row,))
    db.execute('UPDATE total SET items = items + 1')
    db.execute('COMMIT')
    os.write(1, b'ack %d\\n' % row)
";

/// sqlite3 that commits one row after the other.
pub struct Sqlite {
    journal: &'static str,
    options: &'static [&'static str],
    /// Built with musl, instead of python3's; statically or not.
    musl: Option<bool>,
}

/// With a rollback journal.
pub const DELETE: Sqlite = Sqlite { journal: "DELETE", options: &[], musl: None };
/// With a write-ahead log.
pub const WAL: Sqlite = Sqlite { journal: "WAL", options: &[], musl: None };
/// With a write-ahead log, behind the fence that needs no privilege.
pub const WAL_INOTIFY: Sqlite = Sqlite { journal: "WAL", options: &["--fence", "inotify"], musl: None };

/// Linked with musl, with a rollback journal.
pub const MUSL_DELETE: Sqlite = Sqlite { journal: "DELETE", options: &[], musl: Some(false) };
/// Linked with musl, with a write-ahead log.
pub const MUSL_WAL: Sqlite = Sqlite { journal: "WAL", options: &[], musl: Some(false) };
/// Linked with musl statically, with a rollback journal.
pub const STATIC_DELETE: Sqlite = Sqlite { journal: "DELETE", options: &[], musl: Some(true) };
/// The same with a write-ahead log.
pub const STATIC_WAL: Sqlite = Sqlite { journal: "WAL", options: &[], musl: Some(true) };

impl Workload for Sqlite {
    fn name(&self) -> String {
        let linked = self.musl.map_or("", |statically| if statically { " (static)" } else { " (musl)" });
        format!("sqlite3 {}{linked}", self.journal)
    }

    fn prepare(&self, site: &Site) {
        let schema = "CREATE TABLE item(id INTEGER PRIMARY KEY, payload TEXT);
                      CREATE TABLE total(items INTEGER); INSERT INTO total VALUES(0);";
        Cmd::new("sqlite3").arg(site.path("app.db")).arg(schema).ok();
    }

    fn program(&self, site: &Site) -> Vec<String> {
        if let Some(statically) = self.musl {
            let program = musl::rows(statically).to_str().expect("text").to_owned();
            return vec![program, site.path("app.db"), self.journal.into()];
        }
        let python = need::tool("python3").to_str().expect("text").to_owned();
        vec![python, "-c".into(), COMMIT_ROWS.into(), site.path("app.db"), self.journal.into()]
    }

    fn options(&self, _site: &Site) -> Vec<String> {
        self.options.iter().map(|option| (*option).to_owned()).collect()
    }

    /// A rollback journal's removal is the commit, and `synchronous=FULL` does not sync the
    /// directory after it.
    fn acks_loose_max(&self) -> usize {
        usize::from(self.journal == "DELETE")
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        let ask = |question: &str| {
            let output = Cmd::new("sqlite3").arg(site.path("app.db")).arg(question).output();
            if output.status.success() { Ok(output.stdout) } else { Err(output.told()) }
        };
        let integrity = ask("PRAGMA integrity_check")?;
        if integrity.trim() != "ok" {
            return Err(format!("integrity_check: {integrity}"));
        }
        let rows = ask("SELECT id FROM item WHERE payload = printf('%0600d', id) ORDER BY id")?;
        let rows: BTreeSet<&str> = rows.lines().collect();
        if let Some(lost) = acks.iter().find(|row| !rows.contains(row.as_str())) {
            return Err(format!("row {lost} of {} is missing; {} rows are whole", acks.len(), rows.len()));
        }
        let agree = ask("SELECT (SELECT items FROM total) = (SELECT count(*) FROM item)")?;
        if agree.trim() == "1" { Ok(()) } else { Err("a transaction is there in part".into()) }
    }
}
