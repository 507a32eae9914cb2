//! `recover --all`: every pool of the configuration, one after the other, each by a process of its
//! own that is its owner. One that cannot be recovered now keeps no other from it.

use std::process::{Command, Stdio};

use anyhow::Context;

use crate::args::RecoverArgs;
use crate::config::{self, Configuration, Pool};
use crate::words::{name_of, quoted};
use crate::{locate, report};

/// Recovers all pools. The status is 1 if anything is left for a person.
pub fn run(args: &RecoverArgs) -> anyhow::Result<u8> {
    let directory = config::directory();
    let configuration = Configuration::load(&directory);
    let mut is_well = true;
    // What can be read counts: a slip in one file costs the others nothing.
    for (fault, _) in &configuration.faults {
        report::say(&fault.to_string());
        is_well = false;
    }
    if configuration.pools.is_empty() && is_well && !args.waiting {
        report::print(format!("no pool has a file in {}/pools.d\n", name_of(&directory)))?;
    }
    for pool in &configuration.pools {
        is_well &= recovered(pool, args).unwrap_or_else(|error| {
            report::say(&format!("pool {}: {error:#}", pool.pool.display()));
            false
        });
    }
    Ok(u8::from(!is_well))
}

fn recovered(pool: &Pool, args: &RecoverArgs) -> anyhow::Result<bool> {
    let mounted = locate::mounted().context("cannot see what is mounted (is /proc mounted?)")?;
    let mut mounts = pool.settings.mounts.iter().filter(|_| !args.waiting);
    let missing = mounts.find(|mount| !mounted.contains(mount));
    if let Some(missing) = missing {
        report::say(&format!(
            "pool {path} is left for later: {missing} is not mounted, which {file} says that it needs. Mount it, then \
             `holdfast recover --pool {path}`",
            path = quoted(&pool.pool),
            missing = missing.display(),
            file = pool.file.display()
        ));
        return Ok(false);
    }
    let mut command = Command::new(locate::executable()?);
    let how = if args.waiting { "--waiting" } else { "--if-needed" };
    command.args(["recover", how, "--pool"]).arg(&pool.pool).stdin(Stdio::null());
    for (flag, is_given) in [("--dry-run", args.dry_run), ("--replay", args.replay)] {
        command.args(is_given.then_some(flag));
    }
    Ok(command.status().context("cannot start it")?.success())
}
