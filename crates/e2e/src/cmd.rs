//! Running a command to its end, with a time limit. What it printed is shown whenever an
//! expectation fails.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::need;

/// What a command may take unless it is told: a busy disk or scheduler stalls it for many seconds,
/// more than once.
const LIMIT: Duration = Duration::from_secs(240);

/// A command to be run.
#[derive(Clone)]
pub struct Cmd {
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
    stdin: Vec<u8>,
    limit: Duration,
}

/// What a command that ended has left.
pub struct Output {
    /// The command line, for messages.
    pub line: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
}

impl Cmd {
    /// A program found in the tests' search path, or by its full path.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let found = if Path::new(program).is_absolute() {
            PathBuf::from(program)
        } else {
            need::tool(program.to_str().expect("program names are text"))
        };
        Self { argv: vec![found.into()], env: Vec::new(), dir: None, stdin: Vec::new(), limit: LIMIT }
    }

    /// The built `holdfast` with a subcommand.
    pub fn holdfast(subcommand: &str) -> Self {
        Self::new(need::holdfast()).arg(subcommand)
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.argv.push(arg.as_ref().into());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.argv.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Adds an environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// Runs in a directory.
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.dir = Some(dir.as_ref().into());
        self
    }

    /// Gives it these bytes on standard input.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Ends it by force after that long (default: a minute).
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it as another user, without that user's groups, with the capabilities named (`setpriv`
    /// spelling, may be empty).
    pub fn user(mut self, user: &str, capabilities: &str) -> Self {
        let id = |flag| {
            let text = Cmd::new("id").args([flag, user]).output();
            text.ok();
            text.stdout.trim().to_owned()
        };
        let mut argv: Vec<OsString> = vec![need::tool("setpriv").into(), "--clear-groups".into()];
        argv.push(format!("--reuid={}", id("-u")).into());
        argv.push(format!("--regid={}", id("-g")).into());
        if !capabilities.is_empty() {
            argv.push(format!("--inh-caps={capabilities}").into());
            argv.push(format!("--ambient-caps={capabilities}").into());
        }
        argv.append(&mut self.argv);
        self.argv = argv;
        self
    }

    /// The command line, for messages.
    pub fn line(&self) -> String {
        self.argv.iter().map(|arg| arg.to_string_lossy().replace('\n', "\\n")).collect::<Vec<_>>().join(" ")
    }

    /// Program and arguments, for another command to run.
    pub fn words(&self) -> &[OsString] {
        &self.argv
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]).env("PATH", need::PATH).env("LC_ALL", "C.UTF-8");
        for name in [
            "LD_PRELOAD",
            "HOLDFAST_POOL",
            "HOLDFAST_DURABILITY",
            "HOLDFAST_SOCKET",
            "HOLDFAST_RUNTIME_DIR",
            "HOLDFAST_CONFIG_DIR",
            "XDG_RUNTIME_DIR",
            "NOTIFY_SOCKET",
            "WATCHDOG_USEC",
            "JOURNAL_STREAM",
        ] {
            command.env_remove(name);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }

    /// Starts it with all three streams piped.
    pub fn spawn(&self) -> Child {
        self.command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", self.line()))
    }

    /// Runs it to its end.
    pub fn output(&self) -> Output {
        let started = Instant::now();
        let mut child = self.spawn();
        let mut stdin = child.stdin.take().expect("piped");
        let bytes = self.stdin.clone();
        // A program may leave its input unread: a broken pipe here is its business.
        let feed = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
        let stdout = drain(child.stdout.take().expect("piped"));
        let stderr = drain(child.stderr.take().expect("piped"));
        let mut timed_out = false;
        let status = loop {
            if let Some(status) = child.try_wait().expect("wait") {
                break status;
            }
            if started.elapsed() > self.limit {
                timed_out = true;
                for pid in crate::proc::descendants(child.id()) {
                    crate::proc::kill_hard(pid);
                }
                drop(child.kill());
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        drop(feed.join());
        let output = Output {
            line: self.line(),
            status,
            stdout: stdout.join().expect("reader"),
            stderr: stderr.join().expect("reader"),
            took: started.elapsed(),
        };
        assert!(!timed_out, "no end after {:?}\n{}", self.limit, output.told());
        output
    }

    /// Runs it and fails the test unless it returns 0.
    pub fn ok(&self) -> Output {
        let output = self.output();
        output.ok();
        output
    }
}

fn drain(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        drop(stream.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Output {
    /// Everything about it, for messages.
    pub fn told(&self) -> String {
        format!(
            "$ {}\n{} after {:?}\n--- stdout\n{}--- stderr\n{}---",
            self.line, self.status, self.took, self.stdout, self.stderr
        )
    }

    /// Its exit code, or minus the signal's number.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| -self.status.signal().unwrap_or(0))
    }

    /// Its standard error without the lines that Holdfast itself says.
    pub fn stderr_of_program(&self) -> String {
        self.stderr
            .lines()
            .filter(|line| !line.starts_with("holdfast: "))
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// Fails the test unless it returned 0.
    pub fn ok(&self) -> &Self {
        self.expect(&[0])
    }

    /// Fails the test unless it returned one of these.
    pub fn expect(&self, codes: &[i32]) -> &Self {
        assert!(
            codes.contains(&self.code()),
            "expected exit {codes:?}, got {}\n{}",
            self.code(),
            self.told()
        );
        self
    }

    /// Fails the test unless standard error names each of `all` and at least one of `any` (upper
    /// and lower case alike).
    pub fn says(&self, all: &[&str], any: &[&str]) -> &Self {
        let text = self.stderr.to_lowercase();
        for word in all {
            assert!(
                text.contains(&word.to_lowercase()),
                "the message does not say `{word}`\n{}",
                self.told()
            );
        }
        assert!(
            any.is_empty() || any.iter().any(|word| text.contains(&word.to_lowercase())),
            "the message says none of {any:?}\n{}",
            self.told()
        );
        assert!(!text.contains("panicked"), "a panic is no message\n{}", self.told());
        self
    }
}
