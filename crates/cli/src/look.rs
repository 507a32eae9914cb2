//! The subcommands of those that look at keepers, `status`, `files`, `top` and `metrics`, and
//! `drain`: which pool is meant, and as which user it is looked at.

use std::path::{Path, PathBuf};

use anyhow::bail;
use holdfast_look::keepers::connect;
use holdfast_look::{files, metrics, status, top};

use crate::args::{DrainArgs, FilesArgs, MetricsArgs, StatusArgs, TopArgs};
use crate::named::must_be_a_pool;
use crate::sizes::human_count;
use crate::words::{name_of, quoted};
use crate::{config, locate, report, user};

/// The `status` subcommand.
pub fn status(args: &StatusArgs) -> anyhow::Result<u8> {
    status::print(&pool_of(args.pool.as_deref())?, args.json, args.watch)?;
    Ok(0)
}

/// The `files` subcommand.
pub fn files(args: &FilesArgs) -> anyhow::Result<u8> {
    files::print(pool_of(args.pool.as_deref())?, args.json)?;
    Ok(0)
}

/// The `top` subcommand.
pub fn top(args: &TopArgs) -> anyhow::Result<u8> {
    top::show(&pool_of(args.pool.as_deref())?, args.interval)?;
    Ok(0)
}

/// The `metrics` subcommand.
pub fn metrics(args: &MetricsArgs) -> anyhow::Result<u8> {
    let Some(place) = &args.listen else {
        metrics::print(&pool_of(args.pool.as_deref())?, args.format.into())?;
        return Ok(0);
    };
    // A pool may come and go while it is looked at.
    let pool = named_or_default(args.pool.as_deref())?;
    user::become_owner(&pool)?;
    metrics::serve(place, &pool)
}

/// The `drain` subcommand.
pub fn drain(args: &DrainArgs) -> anyhow::Result<u8> {
    let pool = pool_of(args.pool.as_deref())?;
    let Some(mut control) = connect(&pool)? else {
        let left = status::look(&pool)?;
        if left.records > 0 || !left.damaged.is_empty() {
            bail!(
                "no keeper runs for pool {pool}, and it holds {} records of {} files that are not on disk: run \
                 `holdfast recover --pool {pool}`",
                human_count(left.records),
                left.files.len(),
                pool = quoted(&pool)
            );
        }
        report::print(format!("pool {}: no keeper runs and nothing is left to drain\n", name_of(&pool)))?;
        return Ok(0);
    };
    // Once it is known to hear, it may take as long as the disk does.
    control.status()?;
    let summary = control.drain()?;
    if !summary.drained {
        let errors = control.status().map(|status| status.errors).unwrap_or_default();
        bail!(
            "pool {}: not everything could be brought to the disk; it stays in the pool{}",
            pool.display(),
            errors.last().map(|error| format!(". Last error: {error}")).unwrap_or_default()
        );
    }
    report::print(format!("pool {}: everything absorbed so far is on disk\n", name_of(&pool)))?;
    Ok(0)
}

/// The pool that is meant, whether it exists or not.
pub fn named_or_default(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    match given {
        Some(pool) => locate::absolute(pool),
        None => Ok(config::default_pool()?.unwrap_or_else(locate::default_volatile_pool)),
    }
}

/// The pool that is meant. Root looks at another user's as that user.
pub fn pool_of(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let pool = named_or_default(given)?;
    user::become_owner(&pool)?;
    if given.is_none()
        && !pool.exists()
        && pool == locate::default_volatile_pool()
        && let Some(taken) = locate::taken_default_pool()
    {
        bail!(
            "you have no volatile pool: {} is somebody else's, and no other one in its place is yours. Name a pool \
             with --pool PATH or HOLDFAST_POOL",
            taken.display()
        );
    }
    if !pool.exists() {
        bail!("there is no pool {}: name one with --pool PATH or HOLDFAST_POOL", pool.display());
    }
    must_be_a_pool(&pool)?;
    Ok(pool)
}
