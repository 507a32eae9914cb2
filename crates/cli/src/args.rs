//! The command line as data. Parsing validates numbers, sizes and names and nothing else: it opens
//! no file and asks the system for nothing. Help, man pages and completions are generated from
//! these types.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand, ValueEnum};
use holdfast_keeper::config::{FenceChoice, WriteBehind};

use crate::sizes;

/// Durable writes at the speed of non-volatile memory, for unmodified Linux programs.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, max_term_width = 100, after_help = TOP_EXAMPLES)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// Parses a command line. A program that stands where Holdfast's options are is answered with
    /// what is missing, and so is an empty variable.
    pub fn from_line(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let line: Vec<OsString> = line.into_iter().collect();
        Self::try_parse_from(&line).map_err(|mut error| {
            let takes_program = line.get(1).is_some_and(|sub| sub == "run" || sub == "doctor");
            let is_word = matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(word)) if !word.starts_with('-'));
            if error.kind() == ErrorKind::UnknownArgument && takes_program && is_word {
                let tip = "put `--` between Holdfast's options and the program with its arguments";
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
            }
            let is_empty = error.kind() == ErrorKind::InvalidValue
                && std::env::var_os("HOLDFAST_POOL").is_some_and(|pool| pool.is_empty());
            if is_empty {
                let tip = "HOLDFAST_POOL is set to nothing: unset it, or have it name a pool";
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
            }
            error
        })
    }
}

const TOP_EXAMPLES: &str = "\
Examples:
  holdfast demo                                          see it work, in under a minute
  holdfast doctor                                        what this machine offers
  holdfast run --pool /mnt/pmem/db.pool -- sqlite3 app.db
  holdfast run --volatile -- sqlite3 app.db              no NVM: survives kills, not power cuts

Exit status: that of the program for `run`, or 128 + n if signal n killed it; 120 if Holdfast
refused or failed before the program started; 121 if the keeper failed while it ran; 126 and 127
if the program cannot be executed or found; 2 for a wrong command line; 1 for other failures.";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program; its writes are durable in the pool when they return
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Bring back to the files what a crash left in a pool
    #[command(after_help = RECOVER_EXAMPLES)]
    Recover(RecoverArgs),
    /// Say what the keeper of a pool is doing, or what a pool without a keeper holds
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Bring everything absorbed so far to the disk and wait until it is there
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(DrainArgs),
    /// Make a new pool
    #[command(after_help = FORMAT_EXAMPLES)]
    Format(FormatArgs),
    /// Say what NVM, fences and limits this machine has, and what to do about what is missing
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Show it at work: real sqlite3, native and under Holdfast, then a kill -9 and a recovery
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write all of them to a directory
    #[command(after_help = MAN_EXAMPLES)]
    Man(ManArgs),
    /// Own a pool (started by `run`; reads its configuration from standard input)
    #[command(hide = true)]
    Keeper,
}

const RUN_EXAMPLES: &str = "\
Examples:
  holdfast run --pool /mnt/pmem/db.pool --size 4G -- redis-server redis.conf
  holdfast run --volatile -- git commit -m 'a commit'
  holdfast run --volatile --summary -- sqlite3 app.db 'INSERT INTO t VALUES (1)'
  holdfast run --pool /dev/dax0.0 --exclusive /srv/pg -- postgres -D /srv/pg
  holdfast run --pool /mnt/pmem/pg.pool --user postgres -- postgres -D /srv/pg
  holdfast run --volatile --fence lease --write-behind=on -- ./append-only-daemon
  holdfast run --pool /mnt/pmem/db.pool --spill /srv/db.spill --spill-size 16G -- ./bulk-load
  holdfast run --volatile --nvm-latency-ns 300 --nvm-bandwidth 2G/s -- fio job.fio

A pool that does not exist is created. A pool that another keeper of yours owns is joined. A pool
that was left behind by a crash is recovered first. The last example studies slower NVM.";

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The pool: a DAX device, a file on a DAX file system, or (with --volatile) a file on tmpfs.
    /// With --volatile the default is /dev/shm/holdfast-UID.pool, which goes once everything is on
    /// the disk and its last program has ended
    #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL")]
    pub pool: Option<PathBuf>,
    /// Size of a pool that has to be created [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes)]
    pub size: Option<u64>,
    /// Accept a pool that survives a crash of the program but not a power cut
    #[arg(long)]
    pub volatile: bool,
    /// What is guaranteed when a call returns [default: sync]
    #[arg(long, value_enum, env = "HOLDFAST_DURABILITY")]
    pub durability: Option<Durability>,
    /// You vouch that nobody else opens the files below DIR (may be given several times)
    #[arg(long, value_name = "DIR")]
    pub exclusive: Vec<PathBuf>,
    /// How to notice others who open managed files [default: auto]
    #[arg(long, value_enum)]
    pub fence: Option<Fence>,
    /// Join a keeper that runs already although it was started with other options than these
    #[arg(long)]
    pub join_as_is: bool,
    /// Start the program although recovery set files aside and nobody decided what becomes of them
    #[arg(long)]
    pub ignore_set_aside: bool,
    /// Manage only files whose absolute path matches (may be given several times)
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Never manage files whose absolute path matches (may be given several times)
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Let writes reach the page cache later than the log where nobody can see the difference
    /// [default: off]
    #[arg(long, value_enum)]
    pub write_behind: Option<Behind>,
    /// Memory for pages that are read often, or whose newest bytes are scattered over the log, with
    /// --write-behind [default: 32M]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes_or_none, requires = "write_behind")]
    pub read_cache: Option<u64>,
    /// When the log is full let it go on in FILE, in order, on any local disk; made if it does not
    /// exist
    #[arg(long, value_name = "FILE")]
    pub spill: Option<PathBuf>,
    /// Size of a spill file that has to be made [default: 16 times the pool, at least 1G]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes, requires = "spill")]
    pub spill_size: Option<u64>,
    /// Start bringing files to disk once this much is logged [default: an eighth of the pool]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes)]
    pub batch_min: Option<u64>,
    /// Bring files to disk at the latest when this much is logged [default: half of the pool]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes)]
    pub batch_max: Option<u64>,
    /// Bring files to disk at the latest when the oldest logged write is this old, for example
    /// 200ms or 5s; with --write-behind when a file was not written for so long, and at the latest
    /// after thirty times that. A number alone is milliseconds [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = sizes::parse_ms)]
    pub age_max: Option<u64>,
    /// How long a keeper that gets SIGTERM goes on for programs that have not ended yet, for
    /// example 30s; it ends with the last of them. Choose less than your service manager waits
    /// before it kills [default: 75s]
    #[arg(long, value_name = "TIME", value_parser = sizes::parse_ms)]
    pub stop_max: Option<u64>,
    /// Inject latency: every durable write takes at least this long
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    pub nvm_latency_ns: Option<u64>,
    /// Inject a write bandwidth limit, for example 2G/s; at least 1M/s
    #[arg(long, value_name = "SIZE/s", value_parser = sizes::parse_bytes_per_s)]
    pub nvm_bandwidth: Option<u64>,
    /// Become this user first, with all of its groups: keeper and program run as it does. Needs
    /// root, whose watch (holdfast-watch) stays behind for the fanotify fence. The environment
    /// stays as it is
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// At the end, print what was absorbed to standard error, or write it as JSON to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub summary: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// What a returned call guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// As natively: a write is durable once the program has synced the file, and after a file's
    /// first sync when it returns. Files that are never synced cost next to nothing
    Sync,
    /// Every write of every file is durable when it returns
    Write,
}

impl From<Durability> for holdfast_keeper::config::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Write => Self::Write,
            Durability::Sync => Self::Sync,
        }
    }
}

/// Whether writes may reach the page cache later than the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Behind {
    /// Every write goes to the page cache before it returns
    Off,
    /// Files below --exclusive directories or behind the fanotify or lease fence; new files once
    /// they are written again and again
    On,
    /// As on, new files at once
    AtOnce,
}

impl From<Behind> for WriteBehind {
    fn from(behind: Behind) -> Self {
        match behind {
            Behind::Off => Self::Off,
            Behind::On => Self::On,
            Behind::AtOnce => Self::AtOnce,
        }
    }
}

/// Fences against processes that are no clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fence {
    /// fanotify when permitted, else inotify
    Auto,
    /// Others wait until the file is settled; needs root
    Fanotify,
    /// Others are noticed and the file is marked; needs nothing
    Inotify,
    /// As inotify; who opens a file that the program has open alone waits, so that it may be
    /// written behind. O_NONBLOCK openers are refused once (EAGAIN). Needs only the owner's rights
    /// and Linux 6.9
    Lease,
    /// Manage only files below --exclusive directories
    None,
}

impl From<Fence> for FenceChoice {
    fn from(fence: Fence) -> Self {
        match fence {
            Fence::Auto => Self::Auto,
            Fence::Fanotify => Self::Fanotify,
            Fence::Inotify => Self::Inotify,
            Fence::Lease => Self::Lease,
            Fence::None => Self::None,
        }
    }
}

const RECOVER_EXAMPLES: &str = "\
Examples:
  holdfast recover --pool /mnt/pmem/db.pool --dry-run
  holdfast recover --pool /mnt/pmem/db.pool
  holdfast recover --pool /mnt/pmem/db.pool --export /root/set-aside
  holdfast recover --pool /mnt/pmem/db.pool --force /srv/app.db
  holdfast recover --pool /mnt/pmem/db.pool --discard /srv/scratch.db
  holdfast recover --pool /mnt/pmem/db.pool --force '#12'

A file is set aside, not replayed, when it was changed or replaced after the crash, when that cannot
be told, or when its file system is older than it was known to be. `run` starts no program until you
have decided: --force replays the log over it, --export saves what the log holds, --discard forgets
it. A file that was served again since it was set aside cannot be forced. Exits 1 if any file was set
aside or put off, or if a record is damaged.

A file is put off when something stands in the way: its file system is full, read-only or not mounted,
or the user may not change it. Nothing is decided by that: the next `recover` tries again.";

/// Arguments of `recover`.
#[derive(Args, Debug)]
pub struct RecoverArgs {
    /// The pool
    #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL")]
    pub pool: PathBuf,
    /// Look and report; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Replay FILE although it was changed or replaced since the crash (may be given several
    /// times); a path that several files had is not enough: '#12' names one by its number, which
    /// the report says
    #[arg(long, value_name = "FILE")]
    pub force: Vec<PathBuf>,
    /// Write what is set aside to this directory
    #[arg(long, value_name = "DIR")]
    pub export: Option<PathBuf>,
    /// Forget what the pool holds for FILE, or '#12' (may be given several times)
    #[arg(long, value_name = "FILE")]
    pub discard: Vec<PathBuf>,
    /// Replay the log even where the page cache still has every byte, so that a sync would do
    #[arg(long)]
    pub replay: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

const STATUS_EXAMPLES: &str = "\
Examples:
  holdfast status
  holdfast status --pool /mnt/pmem/db.pool --json";

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// The pool [default: /dev/shm/holdfast-UID.pool]
    #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL")]
    pub pool: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const DRAIN_EXAMPLES: &str = "\
Examples:
  holdfast drain --pool /mnt/pmem/db.pool && lvcreate --snapshot ...";

/// Arguments of `drain`.
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// The pool [default: /dev/shm/holdfast-UID.pool]
    #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL")]
    pub pool: Option<PathBuf>,
}

const FORMAT_EXAMPLES: &str = "\
Examples:
  holdfast format --pool /mnt/pmem/db.pool --size 4G
  holdfast format --pool /dev/dax0.0
  holdfast format --pool /dev/shm/test.pool --size 256M --volatile

All space is allocated now, so that no write can ever find the pool's own file system full.";

/// Arguments of `format`.
#[derive(Args, Debug)]
pub struct FormatArgs {
    /// Where: a DAX device, a file on a DAX file system, or (with --volatile) a file on tmpfs
    #[arg(long, value_name = "PATH")]
    pub pool: PathBuf,
    /// Size of the pool [default: all of a device, 256M for a file]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes)]
    pub size: Option<u64>,
    /// Overwrite a pool although it holds records that are not yet in the files
    #[arg(long)]
    pub force: bool,
    /// Accept media that survives a crash of the program but not a power cut
    #[arg(long)]
    pub volatile: bool,
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  holdfast doctor
  holdfast doctor --json
  holdfast doctor -- redis-cli ping      inspects it, runs it once, says what would not be seen";

/// Arguments of `doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// A program to inspect and to run once under a throw-away pool
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

const DEMO_EXAMPLES: &str = "\
Examples:
  holdfast demo
  holdfast demo --dir /srv/scratch --seconds 2

Needs the sqlite3 shell (apt-get install sqlite3) and a directory on ext4, xfs or btrfs.";

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Directory for the test databases, on ext4, xfs or btrfs [default: ./target, else .]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Seconds per measurement
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub seconds: u64,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  holdfast completions bash > /etc/bash_completion.d/holdfast";

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

const MAN_EXAMPLES: &str = "\
Examples:
  holdfast man | man -l -
  holdfast man --dir /usr/local/share/man/man1";

/// Arguments of `man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Write one page per subcommand to this directory instead of printing the main page
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::from_line(std::iter::once("holdfast").chain(line.iter().copied()).map(OsString::from))
    }

    fn run_args(line: &[&str]) -> RunArgs {
        match parse(line).expect("valid").command {
            Command::Run(args) => *args,
            other => panic!("not run: {other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_visible_subcommand_has_examples() {
        for sub in Arguments::command().get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{} has no examples", sub.get_name());
        }
    }

    #[test]
    fn run_takes_the_program_after_the_dashes_only() {
        let args = run_args(&["run", "--volatile", "--size", "64M", "--", "ls", "--size", "-l"]);
        assert_eq!(args.program, ["ls", "--size", "-l"]);
        assert_eq!(args.size, Some(64 << 20));
        assert!(args.summary.is_none());
        assert!(parse(&["run", "--volatile"]).is_err());
        assert!(parse(&["run", "ls"]).is_err());
    }

    #[test]
    fn a_program_without_the_dashes_is_answered_with_what_is_missing() {
        for line in [&["run", "--volatile", "ls", "-l"][..], &["doctor", "ls"]] {
            let said = parse(line).expect_err("must be refused").to_string();
            assert!(said.contains("put `--` between"), "{said}");
        }
        let said = parse(&["run", "--poool", "x", "--", "ls"]).expect_err("must be refused").to_string();
        assert!(said.contains("--pool") && !said.contains("put `--` between"), "{said}");
    }

    #[test]
    fn summary_takes_its_file_with_an_equals_sign_only() {
        assert_eq!(run_args(&["run", "--summary", "--", "ls"]).summary, Some(PathBuf::from("-")));
        assert_eq!(run_args(&["run", "--summary=a.json", "--", "ls"]).summary, Some(PathBuf::from("a.json")));
    }

    #[test]
    fn wrong_values_are_usage_errors() {
        for line in [
            &["run", "--size", "many", "--", "ls"][..],
            &["run", "--age-max", "0", "--", "ls"],
            &["run", "--fence", "moat", "--", "ls"],
            &["run", "--durability", "never", "--", "ls"],
            &["format"],
        ] {
            assert_eq!(parse(line).expect_err("must be refused").exit_code(), 2, "{line:?}");
        }
    }

    #[test]
    fn lists_may_be_given_several_times() {
        let args = run_args(&[
            "run",
            "--exclusive",
            "/a",
            "--exclusive",
            "/b",
            "--nvm-bandwidth",
            "2G/s",
            "--",
            "x",
        ]);
        assert_eq!(args.exclusive.len(), 2);
        assert_eq!(args.nvm_bandwidth, Some(2 << 30));
    }
}
