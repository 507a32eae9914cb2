//! The command line of `mount`.

use std::path::PathBuf;

use clap::Args;

use super::{KeeperArgs, RunArgs};

/// Options that are handed on to the kernel, and those that say what is so anyway.
pub const FLAGS: [&str; 14] = [
    "ro",
    "rw",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noexec",
    "exec",
    "noatime",
    "atime",
    "nodiratime",
    "diratime",
    "relatime",
    "strictatime",
];

pub const MOUNT_EXAMPLES: &str = "\
Examples:
  holdfast mount --pool /mnt/pmem/srv.pool /srv/data         over the directory itself (as root)
  holdfast mount --volatile /srv/data                        no NVM: survives kills, not power cuts
  holdfast mount --volatile --at ~/fast ~/data               elsewhere; needs no root
  holdfast mount --pool /mnt/pmem/srv.pool --age-max 200ms /srv/data
  holdfast mount --join --pool /mnt/pmem/db.pool --at /mnt/fast /srv/data
  umount /srv/data                                           or fusermount3 -u, Ctrl-C, kill -TERM
  mount -t holdfast -o pool=/mnt/pmem/srv.pool /srv/data /srv/data     in the background

For what `holdfast run` cannot enter: programs of Go, static and setuid ones, containers' volumes,
shared writable mappings. Every program that uses the directory meanwhile has its writes in the
pool; `run` is faster where it works. It stays in the foreground until the directory is unmounted,
and then brings everything to the disk. A service manager that asks for it hears when the directory
is served (Type=notify). mount(8) and fstab mount by mount.holdfast, see mount.holdfast(8).

Exit status: 0 once it is unmounted and everything is on the disk; 2 if nothing was mounted, or for
a wrong command line; 1 if its server failed; 121 if the keeper failed while it was mounted.";

/// Arguments of `mount`.
#[derive(Args, Debug)]
pub struct MountArgs {
    /// What is asked of the keeper.
    #[command(flatten)]
    pub keeper: KeeperArgs,
    /// Mount here and leave DIR as it is. Who writes to DIR itself meanwhile is an outsider.
    /// Without it the mount lies over DIR, so that nobody reaches the files past it
    #[arg(long, value_name = "MOUNTPOINT")]
    pub at: Option<PathBuf>,
    /// Join the keeper that runs already, such as that of a service (`holdfast serve`); never start
    /// one. Needs --at
    #[arg(long, requires = "at")]
    pub join: bool,
    /// Join a keeper that runs already although it was started with other options than these
    #[arg(long, requires = "at")]
    pub join_as_is: bool,
    /// Mount although recovery set files aside and nobody decided what becomes of them
    #[arg(long)]
    pub ignore_set_aside: bool,
    /// At the end, print what was absorbed to standard error, or write it as JSON to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub summary: Option<PathBuf>,
    /// Say nothing when it is mounted and unmounted
    #[arg(long)]
    pub quiet: bool,
    /// What the kernel is asked for as well: ro, nosuid, nodev, noexec, noatime, nodiratime,
    /// relatime, strictatime
    #[arg(long, value_name = "OPTIONS", value_delimiter = ',', value_parser = FLAGS)]
    pub mount_options: Vec<String>,
    /// Leave the terminal once it is mounted (started by `mount.holdfast`)
    #[arg(long, hide = true)]
    pub detached: bool,
    /// The directory to serve, on ext4, xfs or btrfs
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

impl MountArgs {
    /// What is asked of a run: the mount's server is a program like any other.
    pub fn into_run(self) -> RunArgs {
        RunArgs {
            keeper: self.keeper,
            join: self.join,
            join_as_is: self.join_as_is,
            ignore_set_aside: self.ignore_set_aside,
            summary: self.summary,
            quiet: self.quiet,
            program: Vec::new(),
        }
    }
}

/// Arguments of the server, which `mount` starts.
#[derive(Args, Debug)]
pub struct MountServerArgs {
    /// Nobody reaches the files past the mount
    #[arg(long)]
    pub alone: bool,
    /// Go on for a server that was killed; standard input leads to its holder
    #[arg(long)]
    pub successor: bool,
    /// The directory below
    pub directory: PathBuf,
}
