//! Becoming another user before anything is made or opened: what Holdfast does for a program it
//! does as the user that the program runs as, because a keeper serves one. What needs root, and
//! only that, stays behind as a program of its own: the watch.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use holdfast_canary::{Canary, on};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::{locate, preload, report};

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
    let (uid, gid) = ids(name)?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
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
    let groups: Vec<Gid> = numbers(name, "-G")?.into_iter().map(Gid::from_raw).collect();
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
    let gid = numbers(&name, "-g").ok().and_then(|numbers| numbers.first().copied()).unwrap_or(NO_GROUP);
    let groups = numbers(&name, "-G").unwrap_or_default().into_iter().map(Gid::from_raw).collect();
    start_anew(&User { name, uid, gid: Gid::from_raw(gid), groups }, None)
}

/// Whether anything here knows a user of that name.
pub fn exists(name: &str) -> bool {
    numbers(name, "-u").is_ok()
}

/// The numbers of a user and of its group.
pub fn ids(name: &str) -> anyhow::Result<(u32, u32)> {
    let first = |which| numbers(name, which)?.first().copied().context("it has no number");
    Ok((first("-u")?, first("-g")?))
}

/// The number of a user, or of this process'.
pub fn number(name: Option<&str>) -> Option<u32> {
    match name {
        Some(name) => numbers(name, "-u").ok()?.first().copied(),
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

/// What `id` says of a user: it asks whatever knows the users here.
fn numbers(name: &str, which: &str) -> anyhow::Result<Vec<u32>> {
    let asked = Command::new("id").args([which, "--", name]).output().context("cannot run `id`")?;
    ensure!(asked.status.success(), "there is no user {name}");
    let told = String::from_utf8(asked.stdout).context("`id` said no numbers")?;
    told.split_whitespace().map(|word| word.parse().context("`id` said no number")).collect()
}
