//! A sqlite3 shell that is fed one-row transactions and answers after each commit. A row counts as
//! acknowledged only when the shell's answer to the statement after its commit has been read.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};

use crate::interrupt::Interrupt;
use crate::job;

/// How sqlite3 makes a transaction atomic.
#[derive(Clone, Copy)]
pub enum Journal {
    /// A rollback journal, made and deleted per transaction.
    Delete,
    /// A write-ahead log, synced per transaction.
    Wal,
}

impl Journal {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Delete, Self::Wal];

    /// As in `PRAGMA journal_mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Wal => "wal",
        }
    }

    /// For people.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Delete => "rollback journal (default)",
            Self::Wal => "WAL, synchronous=FULL",
        }
    }
}

/// What a session did from its first acknowledged row, or from when it was counted, to its last.
pub struct Done {
    /// Rows acknowledged in that time.
    pub rows: u64,
    /// The time.
    pub elapsed: Duration,
}

/// Rows acknowledged, as the thread that reads answers sees it.
struct Acknowledged {
    rows: u64,
    first: Instant,
    last: Instant,
}

/// A running shell; it ends with this.
pub struct Session {
    child: Child,
    input: Option<ChildStdin>,
    answers: Option<JoinHandle<anyhow::Result<Acknowledged>>>,
    seen: Arc<AtomicU64>,
    next: u64,
    /// Rows that do not count, and when counting began; else all count.
    counted_from: Option<(u64, Instant)>,
    /// Where its error messages go.
    messages: File,
    interrupt: Interrupt,
}

/// At most so many statements are under way: enough that the shell never waits for us.
const UNDER_WAY_MAX: u64 = 500;

impl Session {
    /// Starts the shell and makes the table; returns when the first row is acknowledged.
    pub fn open(
        mut command: Command,
        database: &Path,
        journal: Journal,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        interrupt.check()?;
        let messages = tempfile::tempfile_in("/dev/shm").context("cannot make a file in /dev/shm")?;
        command.arg(database).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(messages.try_clone()?);
        let mut child = command.spawn().context("cannot start sqlite3")?;
        drop(command);
        let input = child.stdin.take();
        let output = child.stdout.take().context("sqlite3 has no output")?;
        let seen = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&seen);
        let answers = Some(std::thread::spawn(move || read_answers(BufReader::new(output), &counter)));
        let interrupt = interrupt.clone();
        let mut session =
            Self { child, input, answers, seen, next: 1, counted_from: None, messages, interrupt };
        session.send(&format!(
            ".bail on\n.output /dev/null\nPRAGMA journal_mode={};\n.output stdout\nPRAGMA synchronous=FULL;\n\
             CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT);\n",
            journal.name()
        ))?;
        session.insert()?;
        while session.seen.load(Ordering::Acquire) == 0 {
            session.look("ended before its first row")?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(session)
    }

    /// The process that was started: sqlite3, or the supervisor over it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Keeps the shell busy for this long.
    pub fn insert_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let started = Instant::now();
        while started.elapsed() < time {
            if self.next - self.seen.load(Ordering::Acquire) < UNDER_WAY_MAX {
                self.insert()?;
            } else {
                self.look("ended early")?;
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    /// What was acknowledged before does not count.
    pub fn count_from_now(&mut self) {
        self.counted_from = Some((self.seen.load(Ordering::Acquire), Instant::now()));
    }

    /// Fails if there is no sense in going on.
    fn look(&mut self, ended: &str) -> anyhow::Result<()> {
        self.interrupt.check()?;
        if self.answers.as_ref().is_some_and(|thread| thread.is_finished()) {
            return Err(self.trouble(ended));
        }
        Ok(())
    }

    /// One committed row; the SELECT answers only after the commit.
    fn insert(&mut self) -> anyhow::Result<()> {
        let id = self.next;
        self.next += 1;
        self.send(&format!("INSERT INTO t VALUES ({id}, 'row {id} of the demonstration'); SELECT {id};\n"))
    }

    fn send(&mut self, text: &str) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("sqlite3 has no input")?;
        input.write_all(text.as_bytes()).map_err(|_| self.trouble("takes no more input"))
    }

    /// An error with the messages of the shell and of everything around it.
    fn trouble(&mut self, what: &str) -> anyhow::Error {
        // What a signal from a terminal ended is no trouble of its own.
        if let Err(interrupted) = self.interrupt.check() {
            return interrupted;
        }
        // It may have said nothing yet about what closed its input.
        drop(self.input.take());
        drop(self.child.wait());
        let mut text = String::new();
        let read = self.messages.rewind().and_then(|()| self.messages.read_to_string(&mut text));
        match text.trim_end() {
            said if read.is_ok() && !said.is_empty() => anyhow!("sqlite3 {what}. It said:\n{said}"),
            _ => anyhow!("sqlite3 {what}"),
        }
    }

    /// Lets the shell finish what it was given.
    pub fn close(mut self) -> anyhow::Result<Done> {
        drop(self.input.take());
        let acknowledged = self.acknowledged()?;
        let status = self.child.wait().context("cannot wait for sqlite3")?;
        if !status.success() {
            return Err(self.trouble(&format!("failed ({status})")));
        }
        if acknowledged.rows + 1 != self.next {
            let what = format!("acknowledged {} rows of {}", acknowledged.rows, self.next - 1);
            return Err(self.trouble(&what));
        }
        let (rows, from) = self.counted_from.unwrap_or((0, acknowledged.first));
        Ok(Done {
            rows: acknowledged.rows - rows,
            elapsed: acknowledged.last.saturating_duration_since(from),
        })
    }

    /// After a kill: the last row the shell acknowledged, counting what was still in the pipe.
    pub fn acknowledged_after_kill(mut self) -> anyhow::Result<u64> {
        drop(self.input.take());
        self.child.wait().context("cannot wait for sqlite3")?;
        Ok(self.acknowledged()?.rows)
    }

    fn acknowledged(&mut self) -> anyhow::Result<Acknowledged> {
        let thread = self.answers.take().context("the answers were read before")?;
        thread.join().map_err(|_| anyhow!("sqlite3's answers could not be read"))?
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.input.take());
        job::end(&mut self.child);
    }
}

/// Reads `1`, `2`, `3`, ... until the shell is gone.
fn read_answers(output: impl BufRead, seen: &AtomicU64) -> anyhow::Result<Acknowledged> {
    let started = Instant::now();
    let mut acknowledged = Acknowledged { rows: 0, first: started, last: started };
    for line in output.split(b'\n') {
        let line = match line {
            Ok(line) => line,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("cannot read sqlite3's answers"),
        };
        let expected = acknowledged.rows + 1;
        if line != expected.to_string().as_bytes() {
            // A kill can cut the last line short.
            if expected.to_string().as_bytes().starts_with(&line) {
                break;
            }
            bail!("sqlite3 answered {:?} where row {expected} was due", String::from_utf8_lossy(&line));
        }
        acknowledged.rows = expected;
        acknowledged.last = Instant::now();
        if expected == 1 {
            acknowledged.first = acknowledged.last;
        }
        seen.store(expected, Ordering::Release);
    }
    Ok(acknowledged)
}

/// The version of the shell, if there is one.
pub fn version() -> Option<String> {
    let told = Command::new("sqlite3").arg("--version").output().ok()?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    Some(told.split(' ').next().unwrap_or_default().to_owned())
}

/// One question to a shell of its own, without Holdfast.
pub fn ask(database: &Path, question: &str) -> anyhow::Result<String> {
    let output =
        Command::new("sqlite3").arg(database).arg(question).output().context("cannot start sqlite3")?;
    let answer = if output.status.success() { output.stdout } else { output.stderr };
    Ok(String::from_utf8_lossy(&answer).trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> anyhow::Result<u64> {
        Ok(read_answers(text.as_bytes(), &AtomicU64::new(0))?.rows)
    }

    #[test]
    fn answers_are_counted_in_order() {
        assert_eq!(rows("1\n2\n3\n").expect("in order"), 3);
        assert_eq!(rows("").expect("nothing yet"), 0);
        assert!(rows("1\n3\n").is_err());
        assert!(rows("1\nError: disk I/O error\n").is_err());
    }

    #[test]
    fn a_line_cut_short_by_a_kill_does_not_count() {
        let text: String = (1..=9).map(|row| format!("{row}\n")).collect();
        assert_eq!(rows(&format!("{text}1")).expect("cut short"), 9);
    }

    #[test]
    fn a_real_shell_acknowledges_every_row() {
        if version().is_none() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let interrupt = Interrupt::note().expect("signals");
        for journal in Journal::ALL {
            let database = dir.path().join(journal.name());
            let session = Session::open(Command::new("sqlite3"), &database, journal, &interrupt);
            let mut session = session.expect("started");
            session.insert_for(Duration::from_millis(50)).expect("running");
            let done = session.close().expect("all acknowledged");
            assert_eq!(ask(&database, "SELECT count(*) FROM t;").expect("answered"), done.rows.to_string());
            assert_eq!(ask(&database, "PRAGMA journal_mode;").expect("answered"), journal.name());
        }
    }
}
