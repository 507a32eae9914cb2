//! A keeper as a service (`holdfast serve`), with this test in the place of its service manager.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::pool::Pool;
use crate::proc::{self, wait_until};

/// What happens soon takes no longer, on a machine that is busy.
const SOON: Duration = Duration::from_secs(30);

/// A service that ends with the test.
pub struct Service {
    /// The keeper.
    pub child: Child,
    /// Its sockets and the manager's.
    pub home: TempDir,
    notify: UnixDatagram,
    stderr: Arc<Mutex<String>>,
}

impl Service {
    /// Starts a keeper for a pool; `watchdog` is how often a sign of life is expected.
    pub fn start(pool: &Pool, options: &[&str], watchdog: Option<Duration>) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let notify = UnixDatagram::bind(home.path().join("notify")).expect("a socket");
        notify.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        let mut cmd = pool
            .command("serve")
            .args(["--volatile", "--size", "64M", "--durability=write"])
            .args(options)
            .env("NOTIFY_SOCKET", home.path().join("notify"))
            .env("HOLDFAST_RUNTIME_DIR", home.path());
        if let Some(every) = watchdog {
            cmd = cmd.env("WATCHDOG_USEC", every.as_micros().to_string());
        }
        let mut child = cmd.spawn();
        let stderr = Arc::new(Mutex::new(String::new()));
        let (said, lines) = (stderr.clone(), BufReader::new(child.stderr.take().expect("piped")).lines());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                said.lock().expect("no holder panics").push_str(&(line + "\n"));
            }
        });
        Self { child, home, notify, stderr }
    }

    /// As `start`, once it is ready.
    pub fn ready(pool: &Pool, options: &[&str]) -> Self {
        let service = Self::start(pool, options, None);
        service.until("READY=1");
        service
    }

    /// `holdfast SUBCOMMAND` as this service's user runs it.
    pub fn command(&self, pool: &Pool, subcommand: &str) -> crate::cmd::Cmd {
        pool.command(subcommand).env("HOLDFAST_RUNTIME_DIR", self.home.path())
    }

    /// `holdfast run --join`, ready for `--` and a program.
    pub fn join(&self, pool: &Pool, options: &[&str]) -> crate::cmd::Cmd {
        let cmd = self.command(pool, "run").args(["--volatile", "--join", "--durability=write"]);
        cmd.args(options)
    }

    /// The next message to the manager, if one comes in a moment.
    pub fn message(&self) -> Option<String> {
        let mut bytes = [0; 4096];
        let count = self.notify.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..count]).into_owned())
    }

    /// Waits for a message with such a line.
    pub fn until(&self, line: &str) -> String {
        let begun = Instant::now();
        loop {
            if let Some(message) = self.message()
                && message.lines().any(|told| told == line)
            {
                return message;
            }
            assert!(begun.elapsed() < SOON, "the manager never heard `{line}`\n{}", self.said());
        }
    }

    /// What it has said on standard error.
    pub fn said(&self) -> String {
        self.stderr.lock().expect("no holder panics").clone()
    }

    /// Waits until it has said that; what it has said by then.
    pub fn says(&self, word: &str) -> String {
        let begun = Instant::now();
        while !self.said().contains(word) {
            assert!(begun.elapsed() < SOON, "it never said `{word}`, but\n{}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.said()
    }

    /// Tells it to stop.
    pub fn stop(&self) {
        proc::signal(self.child.id(), Signal::TERM);
    }

    /// Waits for its end.
    pub fn end(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until(2 * SOON, "the end of the service", || {
            status = self.child.try_wait().expect("wait");
            status.is_some()
        });
        status.expect("just seen")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
