//! The program: `holdfast-watch --user NUMBER`, started by `holdfast run --user` as root. It says
//! where it listens on its standard output, and ends after its starter and the last keeper.
//!
//! Root's rights are given up before anybody is listened to: what is left are three capabilities,
//! without which nobody can be asked to wait or be looked at, and a user that nobody else is. Were
//! it the keeper's, that user could stop it, and all whom it has wait with it.

use std::io::Write;
use std::process::ExitCode;

use holdfast_watch::server;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getppid, getrlimit, pidfd_open, setrlimit, setsid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// To have others wait, to see what they have open, and to see into their directories below
/// `/proc`.
const NEEDED: CapabilitySet =
    CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_PTRACE).union(CapabilitySet::DAC_READ_SEARCH);

/// A number that no user has: it lies behind all that are given to users and containers.
const NOBODY_ELSE: u32 = 2_147_480_000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let user = match &words[..] {
        [option, user] if option == "--user" => user.parse().ok(),
        _ => None,
    };
    let Some(user) = user else {
        eprintln!(
            "holdfast-watch: usage: holdfast-watch --user NUMBER (`holdfast run --user` starts it, as root)"
        );
        return ExitCode::from(2);
    };
    match watch(user) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holdfast-watch: {error}");
            ExitCode::FAILURE
        }
    }
}

fn watch(user: u32) -> std::io::Result<()> {
    // What is typed at the starter's terminal is not meant for it.
    let _ = setsid();
    let starter = getppid().map_or_else(|| Err(std::io::ErrorKind::NotFound.into()), pidfd_of)?;
    let (listener, name) = server::listen()?;
    let limit = getrlimit(Resource::Nofile);
    // Each open that waits has a descriptor here.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    give_up_rights()?;
    let mut out = std::io::stdout();
    out.write_all(&name)?;
    out.write_all(b"\n")?;
    out.flush()?;
    server::serve(&listener, user, std::os::fd::AsFd::as_fd(&starter))
}

fn pidfd_of(pid: Pid) -> std::io::Result<std::os::fd::OwnedFd> {
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// These change one thread alone, and there is no other.
fn give_up_rights() -> std::io::Result<()> {
    let (user, group) = (Uid::from_raw(NOBODY_ELSE), Gid::from_raw(NOBODY_ELSE));
    set_keep_capabilities(true)?;
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    let left = CapabilitySets { effective: NEEDED, permitted: NEEDED, inheritable: CapabilitySet::empty() };
    set_capabilities(None, left)?;
    set_no_new_privs(true)?;
    Ok(())
}
