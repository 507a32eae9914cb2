//! The sides of a comparison, and how a program is started on each.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Host;

const PRELOAD: &str = "LD_PRELOAD";

/// How a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// As it is.
    Native,
    /// Under Holdfast.
    Holdfast,
    /// Under eatmydata, which drops every sync.
    Eatmydata,
    /// As it is, with its files on tmpfs.
    Tmpfs,
}

impl Side {
    /// All, in the order of the report.
    pub const ALL: [Self; 4] = [Self::Native, Self::Holdfast, Self::Eatmydata, Self::Tmpfs];

    /// Its name in a report, and for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Holdfast => "Holdfast",
            Self::Eatmydata => "eatmydata",
            Self::Tmpfs => "tmpfs",
        }
    }

    /// What it is.
    pub fn what(self) -> &'static str {
        match self {
            Self::Native => "the program as it is, in the directory",
            Self::Holdfast => "the same under holdfast run",
            Self::Eatmydata => "the same with every sync dropped",
            Self::Tmpfs => "the program as it is, in memory",
        }
    }

    /// Whether what was synced survives a power cut; under Holdfast that is the pool's to say.
    pub fn is_durable(self) -> bool {
        matches!(self, Self::Native | Self::Holdfast)
    }
}

/// The pool of a comparison.
#[derive(Clone, Debug)]
pub struct PoolChoice {
    /// Where it is.
    pub path: PathBuf,
    /// How large it is made; a device's is as large as that.
    pub bytes: Option<u64>,
}

/// A program on a side, without its arguments; what Holdfast did is in `summary` afterwards.
pub fn command(host: &Host, side: Side, pool: &PoolChoice, summary: &Path, program: &OsStr) -> Command {
    let mut command = match side {
        Side::Native | Side::Tmpfs => Command::new(program),
        Side::Eatmydata => {
            let mut command = Command::new("eatmydata");
            command.arg(program);
            command
        }
        Side::Holdfast => {
            let mut command = Command::new(&host.executable);
            command.args(["run", "--volatile", "--quiet", "--pool"]).arg(&pool.path);
            if let Some(bytes) = pool.bytes {
                command.arg("--size").arg(bytes.to_string());
            }
            let mut told = std::ffi::OsString::from("--summary=");
            told.push(summary);
            command.arg(told).arg("--").arg(program);
            command
        }
    };
    (host.keep_out)(&mut command);
    // What else is preloaded would be measured: under eatmydata, say, nothing native is durable.
    // Holdfast and eatmydata set their own.
    command.env_remove(PRELOAD);
    command
}

/// What was preloaded into this process, beside Holdfast, and is not into any side; in words.
pub fn left_out(host: &Host) -> Option<String> {
    let mut command = Command::new("true");
    (host.keep_out)(&mut command);
    let inherited = match command.get_envs().find(|(name, _)| *name == PRELOAD) {
        Some((_, kept)) => kept.map(OsStr::to_owned),
        None => std::env::var_os(PRELOAD),
    };
    let inherited = inherited.filter(|value| !value.is_empty())?;
    Some(format!("LD_PRELOAD={} was left out on every side", (host.shown)(&inherited.to_string_lossy())))
}

/// The first program of this name in PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let dirs = std::env::var_os("PATH")?;
    std::env::split_paths(&dirs).map(|dir| dir.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(keep_out: fn(&mut Command)) -> Host {
        Host {
            executable: "holdfast".into(),
            version: "0",
            keep_out,
            say: |_| {},
            print: |_| Ok(()),
            shown: str::to_owned,
        }
    }

    #[test]
    fn nothing_foreign_is_preloaded_on_any_side() {
        let host = host(|command| {
            command.env(PRELOAD, "libeatmydata.so");
        });
        let pool = PoolChoice { path: "pool".into(), bytes: None };
        for side in Side::ALL {
            let command = command(&host, side, &pool, Path::new("summary"), OsStr::new("true"));
            let set: Vec<_> = command.get_envs().filter(|(name, _)| *name == PRELOAD).collect();
            assert_eq!(set, [(OsStr::new(PRELOAD), None)], "{side:?}");
        }
        let told = left_out(&host).expect("it is said");
        assert_eq!(told, "LD_PRELOAD=libeatmydata.so was left out on every side");
    }

    #[test]
    fn where_nothing_foreign_is_preloaded_nothing_is_said() {
        let ours = host(|command| {
            command.env(PRELOAD, "");
        });
        assert_eq!(left_out(&ours), None);
    }
}
