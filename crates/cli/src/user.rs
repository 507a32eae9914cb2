//! Becoming another user before anything is made or opened: what Holdfast does for a program it
//! does as the user that the program runs as, because a keeper serves one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::locate;

/// Starts this very command anew as `name`, so that nothing of root is left in the process; returns
/// when that is who runs it.
pub fn become_user(name: &str) -> anyhow::Result<()> {
    let uid = Uid::from_raw(numbers(name, "-u")?.first().copied().context("it has no number")?);
    if geteuid() == uid {
        return Ok(());
    }
    if !geteuid().is_root() {
        bail!("only root can become user {name}: leave --user out, or run as root");
    }
    let gid = Gid::from_raw(numbers(name, "-g")?.first().copied().context("it has no group")?);
    let groups: Vec<Gid> = numbers(name, "-G")?.into_iter().map(Gid::from_raw).collect();
    // These change one thread alone, and there is no other.
    let threads = std::fs::read_dir("/proc/self/task").context("cannot see its own threads")?.count();
    ensure!(threads == 1, "cannot become user {name} with {threads} threads");
    set_thread_groups(&groups)
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid))
        .with_context(|| format!("cannot become user {name}"))?;
    let line: Vec<OsString> = std::env::args_os().skip(1).collect();
    let executable = locate::executable()?;
    let failed = Command::new(&executable).args(line).exec();
    Err(failed).with_context(|| format!("user {name} cannot run {}", executable.display()))
}

/// What `id` says of a user: it asks whatever knows the users here.
fn numbers(name: &str, which: &str) -> anyhow::Result<Vec<u32>> {
    let asked = Command::new("id").args([which, "--", name]).output().context("cannot run `id`")?;
    ensure!(asked.status.success(), "there is no user {name}");
    let told = String::from_utf8(asked.stdout).context("`id` said no numbers")?;
    told.split_whitespace().map(|word| word.parse().context("`id` said no number")).collect()
}
