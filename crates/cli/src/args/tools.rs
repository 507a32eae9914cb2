//! The command lines of what makes, mends and explains: everything that neither runs nor watches a
//! keeper.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand};

use crate::sizes;

pub const RECOVER_EXAMPLES: &str = "\
Examples:
  holdfast recover --pool /mnt/pmem/db.pool --dry-run
  holdfast recover --pool /mnt/pmem/db.pool
  holdfast recover --pool /mnt/pmem/db.pool --export /root/set-aside
  holdfast recover --pool /mnt/pmem/db.pool --force /srv/app.db
  holdfast recover --pool /mnt/pmem/db.pool --discard /srv/scratch.db
  holdfast recover --pool /mnt/pmem/db.pool --force '#12'
  holdfast recover --all                           as root, at boot: holdfast-recover.service
  holdfast recover --all --waiting                 which pools nobody has recovered yet

A file is set aside, not replayed, when it was changed or replaced after the crash, when that cannot
be told, or when its file system is older than it was known to be. `run` starts no program until you
have decided: --force replays the log over it, --export saves what the log holds, --discard forgets
it. A file that was served again since it was set aside cannot be forced. Exits 1 if any file was set
aside or put off, if a record is damaged, or if the pool holds nothing of a FILE that was named.

A file is put off when something stands in the way: its file system is full, read-only or not mounted,
or the user may not change it. Nothing is decided by that: the next `recover` tries again.";

/// Arguments of `recover`.
#[derive(Args, Debug)]
pub struct RecoverArgs {
    /// The pool
    #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL", required_unless_present = "all")]
    pub pool: Option<PathBuf>,
    /// Every pool that has a file in /etc/holdfast/pools.d, each as its owner, whatever --pool
    /// says; a pool of which a mount is missing is left for later, and told of
    #[arg(long, conflicts_with_all = ["force", "discard", "export", "json"])]
    pub all: bool,
    /// A pool that a keeper serves, or that is not there yet, needs nothing: say so and succeed
    #[arg(long)]
    pub if_needed: bool,
    /// Only name pools that wait for recovery, without a look at their logs; exits 1 if one does
    #[arg(long, conflicts_with_all = ["if_needed", "dry_run", "force", "discard", "export", "json", "replay"])]
    pub waiting: bool,
    /// Look and report; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Replay FILE although it was changed or replaced since the crash (may be given several
    /// times); a path that several files had is not enough: '#12' names one by its number, which
    /// the report says
    #[arg(long, value_name = "FILE", value_parser = OsStringValueParser::new().try_map(file_or_number))]
    pub force: Vec<PathBuf>,
    /// Write what is set aside to this directory
    #[arg(long, value_name = "DIR")]
    pub export: Option<PathBuf>,
    /// Forget what the pool holds for FILE, or '#12' (may be given several times)
    #[arg(long, value_name = "FILE", value_parser = OsStringValueParser::new().try_map(file_or_number))]
    pub discard: Vec<PathBuf>,
    /// Replay the log even where the page cache still has every byte, so that a sync would do
    #[arg(long)]
    pub replay: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// A path, or `#12`. What only looks like a number would be looked for and never found.
fn file_or_number(word: OsString) -> Result<PathBuf, String> {
    let number = word.as_encoded_bytes().strip_prefix(b"#");
    let is_number = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if number.is_none_or(is_number) {
        return Ok(word.into());
    }
    let name = word.to_string_lossy();
    Err(format!("after # stands a number that a report says, as '#12'; a path that begins so is './{name}'"))
}

pub const DRAIN_EXAMPLES: &str = "\
Examples:
  holdfast drain --pool /mnt/pmem/db.pool && lvcreate --snapshot ...";

/// Arguments of `drain`.
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// The pool [default: /dev/shm/holdfast-UID.pool]
    #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL")]
    pub pool: Option<PathBuf>,
}

pub const FORMAT_EXAMPLES: &str = "\
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

pub const DOCTOR_EXAMPLES: &str = "\
Examples:
  holdfast doctor
  holdfast doctor --json
  holdfast doctor -- redis-cli ping      inspects it, runs it once, says what would not be seen

It ends with a verdict: ready, for trials (no NVM), or not usable, for which it exits 1.";

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

pub const DEMO_EXAMPLES: &str = "\
Examples:
  holdfast demo
  holdfast demo --dir /srv/scratch --seconds 2

Needs the sqlite3 shell (apt-get install sqlite3) and a directory on ext4, xfs or btrfs.

As root it cuts the power of an ext4 file system on a loop device, natively, under eatmydata where it is
installed, and under Holdfast, and looks for each acknowledged row. Otherwise it kills everything, which
the page cache survives natively, too. It exits 1 if a row is lost.";

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

pub const CONFIG_EXAMPLES: &str = "\
Examples:
  holdfast config check
  holdfast config show --pool /mnt/pmem/redis.pool
  HOLDFAST_CONFIG_DIR=./etc holdfast config check        files that are not installed yet

/etc/holdfast/holdfast.toml is about every keeper, and names the pool that is meant where none is
named (pool = \"/mnt/pmem/db.pool\"). A file in /etc/holdfast/pools.d is about one pool:

  pool = \"/mnt/pmem/redis.pool\"
  user = \"redis\"
  size = \"4G\"
  mounts = [\"/mnt/pmem\", \"/var/lib/redis\"]
  age-max = \"200ms\"

The other keys are the options of `holdfast serve` without their dashes. Flags and variables come
first, then the pool's file, then holdfast.toml. Who joins a keeper (`--join`) has it as it is.";

const CHECK_EXAMPLES: &str = "\
Examples:
  holdfast config check
  HOLDFAST_CONFIG_DIR=./new holdfast config check        before it is put in place";

const SHOW_EXAMPLES: &str = "\
Examples:
  holdfast config show
  holdfast config show --pool /mnt/pmem/redis.pool       what the keeper of this pool is asked for";

/// Arguments of `config`.
#[derive(Args, Debug)]
pub struct ConfigArgs {
    /// What to do with it.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What `config` does.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say what is wrong with it, file by file and line by line; exits 1 if anything is
    #[command(after_help = CHECK_EXAMPLES)]
    Check,
    /// Print what is asked of keepers, each line with the file that says it
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Only of this pool
        #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL")]
        pool: Option<PathBuf>,
    },
}

pub const INSTALL_EXAMPLES: &str = "\
Examples:
  holdfast install --pool /mnt/pmem/redis.pool --user redis --size 4G
  holdfast install --pool /mnt/pmem/pg.pool --user postgres --mount /mnt/pmem --mount /srv/pg

It makes the pool, gives it to the user, and writes /etc/holdfast/pools.d/NAME.toml, where NAME is that
of the pool. Where others than root may write to the pool's directory, its keeper makes the pool.";

/// Arguments of `install`.
#[derive(Args, Debug)]
pub struct InstallArgs {
    /// The pool: a DAX device, or a file on a DAX file system
    #[arg(long, value_name = "PATH")]
    pub pool: PathBuf,
    /// Whose services are to use it: a keeper serves one user
    #[arg(long, value_name = "NAME")]
    pub user: String,
    /// Size of the pool, if it has to be made [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes)]
    pub size: Option<u64>,
    /// A mount without which its files cannot be recovered (may be given several times)
    #[arg(long, value_name = "DIR")]
    pub mount: Vec<PathBuf>,
    /// Accept media that survives a crash of the program but not a power cut
    #[arg(long)]
    pub volatile: bool,
}

pub const REMOVE_EXAMPLES: &str = "\
Examples:
  systemctl disable --now redis-server holdfast@redis
  holdfast remove --pool /mnt/pmem/redis.pool

Everything goes to the disk, its keeper ends, and pool and configuration file are deleted; a device
stays. It refuses while programs use the pool, and when something cannot be brought to the disk.";

/// Arguments of `remove`.
#[derive(Args, Debug)]
pub struct RemoveArgs {
    /// The pool
    #[arg(long, value_name = "PATH")]
    pub pool: PathBuf,
    /// Bring everything to the disk and end the keeper, but delete nothing
    #[arg(long)]
    pub close_only: bool,
}

pub const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  holdfast completions bash > /etc/bash_completion.d/holdfast";

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

pub const MAN_EXAMPLES: &str = "\
Examples:
  holdfast man | man -l -
  holdfast man --dir /usr/local/share/man";

/// Arguments of `man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Write a page for each subcommand and file to man1, man5 and man8 in this directory
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}
