//! Becoming another user before anything is made or opened: what Holdfast does for a program it
//! does as the user that the program runs as, because a keeper serves one. What needs root, and
//! only that, stays behind as a program of its own: the watch.

use std::ffi::{CString, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use holdfast_canary::{Canary, on};
use nix::unistd::User as Known;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::{limits, locate, preload, report};

/// Under which name the watch listens, for who is started anew.
pub const WATCH_VARIABLE: &str = "HOLDFAST_WATCH";
/// The watch lies beside this executable.
const WATCH: &str = "holdfast-watch";
/// It says no more than the name of a socket.
const NAME_BYTES_MAX: u64 = 128;

/// Of whom nobody knows a group: the group that owns nothing.
const NO_GROUP: u32 = 65534;

/// Starts this very command anew as `name`, so that nothing of root is left in the process; returns
/// when that is who runs it. With `watched` root's watch is started before.
pub fn become_user(name: &str, watched: bool) -> anyhow::Result<()> {
    let user = known(name)?;
    let (uid, gid) = (Uid::from_raw(user.uid.as_raw()), Gid::from_raw(user.gid.as_raw()));
    if geteuid() == uid {
        return Ok(());
    }
    if !geteuid().is_root() {
        bail!("only root can become user {name}: leave --user out, or run as root");
    }
    let watch = if watched {
        start_watch(uid)
            .inspect_err(|error| {
                report::say(&format!("root's watch is missing, so outsiders are only noticed: {error:#}"));
            })
            .ok()
    } else {
        None
    };
    let groups = groups(&user)?;
    start_anew(&User { name: name.to_owned(), uid, gid, groups }, watch)
}

/// Has root look at, drain or recover another user's pool as that user: what a pool says is that
/// user's word, and nothing is done on it that the user could not have done. Returns when there is
/// nobody to become. A pool that cannot be seen is told of by whoever opens it.
pub fn become_owner(pool: &Path) -> anyhow::Result<()> {
    let Ok(meta) = std::fs::metadata(pool) else { return Ok(()) };
    let uid = Uid::from_raw(meta.uid());
    if !geteuid().is_root() || uid.is_root() || on(Canary::RootStaysRoot) {
        return Ok(());
    }
    let name = meta.uid().to_string();
    // The pool's group says nothing: root may have given it.
    let user = known(&name).ok();
    let gid = Gid::from_raw(user.as_ref().map_or(NO_GROUP, |user| user.gid.as_raw()));
    let groups = user.and_then(|user| groups(&user).ok()).unwrap_or_default();
    start_anew(&User { name, uid, gid, groups }, None)
}

/// Whether anything here knows a user of that name.
pub fn exists(name: &str) -> bool {
    known(name).is_ok()
}

/// The numbers of a user and of its group.
pub fn ids(name: &str) -> anyhow::Result<(u32, u32)> {
    let user = known(name)?;
    Ok((user.uid.as_raw(), user.gid.as_raw()))
}

/// The number of a user, or of this process'.
pub fn number(name: Option<&str>) -> Option<u32> {
    match name {
        Some(name) => known(name).ok().map(|user| user.uid.as_raw()),
        None => Some(geteuid().as_raw()),
    }
}

struct User {
    name: String,
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

fn start_anew(user: &User, watch: Option<String>) -> anyhow::Result<()> {
    let name = &user.name;
    // These change one thread alone, and there is no other.
    let threads = std::fs::read_dir("/proc/self/task").context("cannot see its own threads")?.count();
    ensure!(threads == 1, "cannot become user {name} with {threads} threads");
    set_thread_groups(&user.groups)
        .and_then(|()| set_thread_res_gid(user.gid, user.gid, user.gid))
        .and_then(|()| set_thread_res_uid(user.uid, user.uid, user.uid))
        .with_context(|| format!("cannot become user {name}"))?;
    let line: Vec<OsString> = std::env::args_os().skip(1).collect();
    let executable = locate::executable()?;
    let mut command = Command::new(&executable);
    command.args(line);
    match watch {
        Some(name) => command.env(WATCH_VARIABLE, name),
        None => command.env_remove(WATCH_VARIABLE),
    };
    limits::give_back(&mut command);
    let failed = command.exec();
    Err(failed).with_context(|| format!("user {name} cannot run {}", executable.display()))
}

/// Starts the watch for a user's keepers; the name under which it listens. It ends after this
/// process, whatever that will be by then, and after the last keeper.
fn start_watch(user: Uid) -> anyhow::Result<String> {
    let program = locate::executable()?.with_file_name(WATCH);
    let mut command = Command::new(&program);
    command.args(["--user", &user.as_raw().to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    preload::keep_out(&mut command);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let mut name = String::new();
    let output = child.stdout.take().expect("it was asked for").take(NAME_BYTES_MAX);
    BufReader::new(output).read_line(&mut name)?;
    ensure!(!name.is_empty(), "{} ended at once", program.display());
    Ok(name.trim_end().to_owned())
}

/// A user by its name, or by its number, as whatever knows the users here says. No program is
/// asked: a service's sandbox (`NoExecPaths=`) lets it execute none but its own.
fn known(name: &str) -> anyhow::Result<Known> {
    let named = Known::from_name(name).with_context(|| format!("cannot ask for user {name}"))?;
    let numbered =
        || name.parse().ok().and_then(|uid| Known::from_uid(nix::unistd::Uid::from_raw(uid)).ok()?);
    named.or_else(numbered).with_context(|| format!("there is no user {name}"))
}

/// All groups of a user.
fn groups(user: &Known) -> anyhow::Result<Vec<Gid>> {
    let name = CString::new(user.name.as_str()).context("a user's name with a NUL")?;
    let groups = nix::unistd::getgrouplist(&name, user.gid);
    let groups = groups.with_context(|| format!("cannot ask for the groups of user {}", user.name))?;
    Ok(groups.into_iter().map(|gid| Gid::from_raw(gid.as_raw())).collect())
}
