//! A pool on /dev/shm under a unique name, removed at the end of the test, and the commands on it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use serde_json::Value;

use crate::cmd::{Cmd, Output};
use crate::{proc, report};

/// A path for a pool that no test has used or will use. The time is in it because process ids come
/// round within one run of all tests, and a test that was killed leaves its pool.
pub fn fresh_path(kind: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970");
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("/dev/shm/holdfast-{kind}-{}-{}-{count}.pool", std::process::id(), since.as_nanos()).into()
}

/// A volatile pool of one test.
pub struct Pool {
    /// Where it is, or will be once something creates it.
    pub path: PathBuf,
    /// Who it belongs to: a user's name and capabilities; empty for the tests' own user.
    user: Option<(String, String)>,
    size: &'static str,
    /// How much of what programs write is logged, unless a run's options say it.
    durability: &'static str,
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

impl Pool {
    /// A name for a pool; the first `run` creates it.
    pub fn new() -> Self {
        Self { path: fresh_path("e2e"), user: None, size: "64M", durability: "write" }
    }

    /// The same with another size, in `--size` spelling.
    pub fn with_size(size: &'static str) -> Self {
        let mut pool = Self::new();
        pool.size = size;
        pool
    }

    /// The same for runs that log what users' own runs would: from a file's first sync on.
    pub fn logs_from_sync(mut self) -> Self {
        self.durability = "sync";
        self
    }

    /// The same for another user.
    pub fn of_user(user: &str, capabilities: &str) -> Self {
        Self::new().given_to(user, capabilities)
    }

    /// The same for a user, with capabilities.
    pub fn given_to(mut self, user: &str, capabilities: &str) -> Self {
        self.user = Some((user.into(), capabilities.into()));
        self
    }

    /// An existing, freshly formatted pool.
    pub fn formatted() -> Self {
        let pool = Self::new();
        pool.command("format").args(["--size", pool.size, "--volatile"]).ok();
        pool
    }

    /// The pool's path as text.
    pub fn text(&self) -> &str {
        self.path.to_str().expect("pool paths are text")
    }

    /// The command as the pool's user.
    pub fn as_user(&self, cmd: Cmd) -> Cmd {
        match &self.user {
            Some((user, capabilities)) => cmd.user(user, capabilities),
            None => cmd,
        }
    }

    /// `holdfast SUBCOMMAND --pool THIS`, as the pool's user.
    pub fn command(&self, subcommand: &str) -> Cmd {
        self.as_user(Cmd::holdfast(subcommand).arg("--pool").arg(&self.path))
    }

    /// `holdfast run` on this pool, with the options, ready for `--` and a program. The pool is
    /// created when missing. `HOLDFAST_E2E_RUN_OPTIONS` adds options to every run, so that all
    /// tests can be run in another state of the files. A run that asks for a fence which cannot
    /// carry write-behind is refused with it, so it goes without.
    pub fn run(&self, options: &[&str]) -> Cmd {
        let more = std::env::var("HOLDFAST_E2E_RUN_OPTIONS").unwrap_or_default();
        let notices = options.windows(2).any(|pair| pair == ["--fence", "inotify"]);
        let fits = |option: &&str| !(notices && option.starts_with("--write-behind="));
        let more: Vec<&str> = more.split_whitespace().filter(fits).collect();
        // Most tests ask what becomes of every write; an option says otherwise.
        let asks = options.iter().copied().chain(more.iter().copied());
        let says = asks.into_iter().any(|option| option.starts_with("--durability"));
        self.as_user(
            Cmd::holdfast("run")
                .arg("--volatile")
                .arg("--pool")
                .arg(&self.path)
                .args(["--size", self.size])
                .args(&more)
                .args((!says).then(|| format!("--durability={}", self.durability)))
                .args(options),
        )
    }

    /// What `status --json` says; fails the test when no keeper answers.
    pub fn status(&self) -> Value {
        report::parse(&self.command("status").arg("--json").ok().stdout)
    }

    /// Runs `recover --json`, with more options.
    pub fn recover(&self, options: &[&str]) -> Output {
        self.command("recover").arg("--json").args(options).output()
    }

    /// Runs a program and returns what it left together with the JSON summary; its exit status is
    /// the caller's business.
    pub fn run_summarised(&self, options: &[&str], program: &[&str]) -> (Output, Value) {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let summary = format!("--summary={}", file.path().display());
        let output = self.run(options).arg(summary).arg("--").args(program).output();
        let text = std::fs::read_to_string(file.path()).expect("summary");
        assert!(!text.is_empty(), "no summary was written\n{}", output.told());
        (output, report::parse(&text))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for pid in proc::keepers(&self.path) {
            proc::kill_hard(pid);
        }
        drop(std::fs::remove_file(&self.path));
    }
}
