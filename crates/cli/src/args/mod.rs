//! The command line as data. Parsing validates numbers, sizes and names and nothing else: it opens
//! no file and asks the system for nothing. Help, man pages and completions are generated from
//! these types.

mod bench;
mod keeper;
mod look;
mod mount;
mod run;
mod tools;

use std::ffi::OsString;
use std::sync::LazyLock;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use crate::words::shown;

pub use bench::{BenchArgs, BenchCommand, BenchWorkerArgs};
pub use keeper::{Behind, Durability, Fence, KeeperArgs};
pub use look::{FilesArgs, MetricsArgs, StatusArgs, TopArgs};
pub use mount::{FLAGS as MOUNT_FLAGS, MountArgs, MountServerArgs};
pub use run::{RunArgs, ServeArgs};
pub use tools::{
    CompletionsArgs, ConfigArgs, ConfigCommand, DemoArgs, DoctorArgs, DrainArgs, FormatArgs, InstallArgs,
    ManArgs, RecoverArgs, RemoveArgs,
};

/// Durable writes at the speed of non-volatile memory, for unmodified Linux programs.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version = VERSION.as_str(), max_term_width = 100, after_help = TOP_EXAMPLES)]
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
            show_names(&mut error);
            error
        })
    }
}

/// The words that somebody may have pasted, as people read them.
fn show_names(error: &mut clap::Error) {
    let words: Vec<(ContextKind, String)> = error
        .context()
        .filter_map(|(kind, value)| match value {
            ContextValue::String(word) if *word != shown(word) => Some((kind, shown(word))),
            _ => None,
        })
        .collect();
    if !words.is_empty() {
        // It has such a word in the midst of its own.
        error.remove(ContextKind::Suggested);
    }
    for (kind, word) in words {
        error.insert(kind, ContextValue::String(word));
    }
}

/// What `--version` says. A pool goes with the program only if its format does.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!("{} (pools of format version {})", env!("CARGO_PKG_VERSION"), holdfast_pool::VERSION)
});

const TOP_EXAMPLES: &str = "\
Examples:
  holdfast demo                                          see it work, in under a minute
  holdfast doctor                                        what this machine offers
  holdfast bench /srv/db                                 what would be gained there
  holdfast run --pool /mnt/pmem/db.pool -- sqlite3 app.db
  holdfast run --volatile -- sqlite3 app.db              no NVM: survives kills, not power cuts

Exit status: that of the program for `run`, or 128 + n if signal n killed it; 120 if Holdfast
refused or failed before the program started; 121 if the keeper failed while it ran; 126 and 127
if the program cannot be executed or found; 2 for a wrong command line,
also one that names as a pool what is none; 1 for other failures.";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program; its writes are durable in the pool when they return
    #[command(after_help = run::RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Serve a directory to programs that `run` cannot enter (Go, static, setuid, containers)
    #[command(after_help = mount::MOUNT_EXAMPLES)]
    Mount(Box<MountArgs>),
    /// Own a pool as a service: programs join with `run --join`
    #[command(after_help = run::SERVE_EXAMPLES)]
    Serve(Box<ServeArgs>),
    /// Bring back to the files what a crash left in a pool
    #[command(after_help = tools::RECOVER_EXAMPLES)]
    Recover(RecoverArgs),
    /// Say what the keeper of a pool is doing, or what a pool without a keeper holds
    #[command(after_help = look::STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Watch a keeper at work: rates, the pool, what is not on disk, each file
    #[command(after_help = look::TOP_EXAMPLES)]
    Top(TopArgs),
    /// List the files that a keeper knows, with their states
    #[command(after_help = look::FILES_EXAMPLES)]
    Files(FilesArgs),
    /// Print what a keeper counted for Prometheus, or serve it
    #[command(after_help = look::METRICS_EXAMPLES)]
    Metrics(MetricsArgs),
    /// Bring everything absorbed so far to the disk and wait until it is there
    #[command(after_help = tools::DRAIN_EXAMPLES)]
    Drain(DrainArgs),
    /// Make a new pool
    #[command(after_help = tools::FORMAT_EXAMPLES)]
    Format(FormatArgs),
    /// Make a pool for the services of a user, with its file in the configuration
    #[command(after_help = tools::INSTALL_EXAMPLES)]
    Install(InstallArgs),
    /// Bring everything to the disk, end the keeper, and delete the pool and its file
    #[command(after_help = tools::REMOVE_EXAMPLES)]
    Remove(RemoveArgs),
    /// Check the configuration in /etc/holdfast, or print what comes of it
    #[command(after_help = tools::CONFIG_EXAMPLES)]
    Config(ConfigArgs),
    /// Say what NVM, fences and limits this machine has, and what to do about what is missing
    #[command(after_help = tools::DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Measure what would be gained on a directory, beside native, eatmydata, tmpfs and the floor
    #[command(after_help = bench::BENCH_EXAMPLES)]
    Bench(BenchArgs),
    /// Show it at work: real sqlite3, native and under Holdfast, then a power cut and a recovery
    #[command(after_help = tools::DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Print a completion script for a shell
    #[command(after_help = tools::COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write all of them to a directory
    #[command(after_help = tools::MAN_EXAMPLES)]
    Man(ManArgs),
    /// Do a workload (started by `bench`)
    #[command(hide = true)]
    BenchWorker(BenchWorkerArgs),
    /// Own a pool (started by `run`; reads its configuration from standard input)
    #[command(hide = true)]
    Keeper,
    /// Serve a mount (started by `mount`; the device is its standard input)
    #[command(hide = true)]
    MountServer(MountServerArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::path::PathBuf;

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
        assert_eq!(args.keeper.size, Some(64 << 20));
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
            &["status", "--watch=0"],
            &["top", "--interval", "fast"],
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
        assert_eq!(args.keeper.exclusive.len(), 2);
        assert_eq!(args.keeper.nvm_bandwidth, Some(2 << 30));
    }
}
