//! The command lines of `run` and `serve`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use holdfast_keeper::audience::Level;

use super::KeeperArgs;

pub const RUN_EXAMPLES: &str = "\
Examples:
  holdfast run --pool /mnt/pmem/db.pool --size 4G -- redis-server redis.conf
  holdfast run --volatile -- git commit -m 'a commit'
  holdfast run --volatile --summary -- sqlite3 app.db 'INSERT INTO t VALUES (1)'
  holdfast run --pool /dev/dax0.0 --exclusive /srv/pg -- postgres -D /srv/pg
  holdfast run --pool /mnt/pmem/pg.pool --user postgres -- postgres -D /srv/pg
  holdfast run --volatile --fence lease --write-behind=on -- ./append-only-daemon
  holdfast run --pool /mnt/pmem/db.pool --spill /srv/db.spill --spill-size 16G -- ./bulk-load
  holdfast run --join --pool /mnt/pmem/db.pool -- redis-server redis.conf
  holdfast run --volatile --nvm-latency-ns 300 --nvm-bandwidth 2G/s -- fio job.fio

A pool that does not exist is created. A pool that another keeper of yours owns is joined. A pool
that was left behind by a crash is recovered first. The last example studies slower NVM.";

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// What is asked of the keeper.
    #[command(flatten)]
    pub keeper: KeeperArgs,
    /// Join the keeper that runs already, such as that of a service (`holdfast serve`); never start
    /// one
    #[arg(long)]
    pub join: bool,
    /// Join a keeper that runs already although it was started with other options than these
    #[arg(long)]
    pub join_as_is: bool,
    /// Start the program although recovery set files aside and nobody decided what becomes of them
    #[arg(long)]
    pub ignore_set_aside: bool,
    /// At the end, print what was absorbed to standard error, or write it as JSON to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub summary: Option<PathBuf>,
    /// Do not say at the end how many of the syncs were absorbed
    #[arg(long)]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

pub const SERVE_EXAMPLES: &str = "\
Examples:
  holdfast serve --pool /mnt/pmem/db.pool --size 4G
  holdfast serve --pool /mnt/pmem/redis.pool --user redis        as root: with root's watch
  holdfast run --join --pool /mnt/pmem/db.pool -- redis-server redis.conf
  kill -TERM PID                                                 waits for its programs first

It stays in the foreground until it is told to stop. A service manager that asks for it hears when
the pool is recovered and served (Type=notify), and that it still answers (WatchdogSec=). The files in
contrib/systemd are examples.";

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// What is asked of the keeper.
    #[command(flatten)]
    pub keeper: KeeperArgs,
    /// Say on standard error what matters so much, and more
    #[arg(long, value_enum, default_value_t = LogLevel::Info)]
    pub log_level: LogLevel,
}

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// What needs somebody to act
    Error,
    /// What is not as it was asked for, too
    Warning,
    /// What is worth knowing afterwards, such as files that are left to the kernel, too
    Notice,
    /// The usual course of things, too
    Info,
}

impl From<LogLevel> for Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::Error,
            LogLevel::Warning => Self::Warning,
            LogLevel::Notice => Self::Notice,
            LogLevel::Info => Self::Info,
        }
    }
}
