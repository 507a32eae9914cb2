//! The library's start: the constructor, which gets in front of libc, meets the keeper, and takes
//! the signals; and where `holdfast-enter` begins a Go program.
//!
//! Whatever fails leaves the program as it would be without the library, or says why it may not be
//! started. Nothing here runs twice.
#![allow(unsafe_code)] // The environment, a symbol for the linker.

use core::ffi::{c_char, c_int};

use holdfast_cache::wire::FrontEnd;
use holdfast_cache::{Client, Errno, Reason, Unseen};
use holdfast_canary::{Canary, on};

use crate::forked::FORKED;
use crate::golang::Arguments;
use crate::hooks::{ENTRIES, execve, exports, fork_by, holdfast_seen_writes, syscall};
use crate::parting::{self, GiveNamesBack};
use crate::process::SOCKET_PATH_BYTES;
use crate::raw::{self, call};
use crate::{
    cancels, descriptions, environment, gate, golang, inherit, own_calls, own_process, patch, process,
    signals, streams, target, uncovered,
};

/// Exit status of a program that could not be started because the keeper has died or ended;
/// `holdfast run` has the same.
const KEEPER_DIED_STATUS: c_int = 121;
const SOCKET_VARIABLE: &[u8] = b"HOLDFAST_SOCKET=";

/// How exported names are given back when the library leaves the process.
static GIVE_NAMES_BACK: GiveNamesBack = exports::release;

/// Where Go's calls go.
static OF_GO: golang::Hooks = golang::Hooks {
    syscall,
    forks: before_go_forks,
    fork: fork_by,
    is_kernels: target::is_kernels,
    leave: leave_for,
    execute: execute_for_go,
};

/// The program is about to do what cannot be followed.
fn leave_for(why: Unseen) {
    gate::within(|| uncovered::leave_all_to_kernel(Reason::OwnCalls, why));
}

fn before_go_forks(shares_numbers: bool) {
    descriptions::share_all();
    if shares_numbers {
        uncovered::leave_to_kernel(Reason::Uncovered);
    }
}

/// # Safety
/// A path and arrays of C strings.
unsafe fn execute_for_go(
    why: Option<Unseen>,
    path: *const c_char,
    arguments: Arguments,
    environment: Arguments,
) {
    if let Some(client) = process::client()
        && let Some(why) = why
    {
        // SAFETY: the caller's promise.
        client.note_unseen(why, Some((libc::AT_FDCWD, unsafe { raw::path(path) })));
    }
    // SAFETY: as above.
    unsafe { execve(path, arguments, environment) };
}

/// Begins the program that was mapped, or executes one that was refused. `holdfast-enter` calls it.
/// Returns a status, when nothing can be begun.
///
/// # Safety
/// `arguments` is the array that the kernel passed, and nobody uses this stack any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_enter(arguments: Arguments) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { golang::enter(arguments) }
}

unsafe extern "C" {
    /// The program's environment. Constructors get it as an argument too, but from glibc alone.
    static mut environ: *mut *const c_char;
}

/// The socket path in the environment.
///
/// # Safety
/// `environment` is null or a null-terminated array of C strings.
unsafe fn socket_path(mut environment: *const *const c_char) -> Option<[u8; SOCKET_PATH_BYTES]> {
    if environment.is_null() {
        return None;
    }
    loop {
        // SAFETY: within the array: its null end has not been passed.
        let entry = unsafe { *environment };
        if entry.is_null() {
            return None;
        }
        // SAFETY: a C string.
        let bytes = unsafe { raw::path(entry) }.to_bytes();
        if let Some(value) = bytes.strip_prefix(SOCKET_VARIABLE) {
            let mut path = [0; SOCKET_PATH_BYTES];
            // The last byte stays zero.
            if value.is_empty() || value.len() >= SOCKET_PATH_BYTES {
                return None;
            }
            path.get_mut(..value.len())?.copy_from_slice(value);
            return Some(path);
        }
        // SAFETY: not yet at the end.
        environment = unsafe { environment.add(1) };
    }
}

/// Lets the deliberate bug show that the environment names.
///
/// # Safety
/// `environment` is as the loader passes it.
#[cfg(feature = "canaries")]
unsafe fn arm_canary(mut environment: *const *const c_char) {
    loop {
        // SAFETY: pointers to C strings up to a null one.
        let entry = unsafe { *environment };
        if entry.is_null() {
            return;
        }
        // SAFETY: a C string.
        let bytes = unsafe { raw::path(entry) }.to_bytes();
        let value = bytes.strip_prefix(holdfast_canary::VARIABLE.as_bytes());
        if let Some(name) = value.and_then(|rest| rest.strip_prefix(b"=")) {
            holdfast_canary::arm_named(name);
        }
        // SAFETY: not yet at the end.
        environment = unsafe { environment.add(1) };
    }
}

/// Whether not even the directory of a path is there.
fn is_out_of_sight(path: &[u8; SOCKET_PATH_BYTES]) -> bool {
    let mut directory = *path;
    let Some(end) = directory.iter().rposition(|byte| *byte == b'/') else { return false };
    directory[end..].fill(0);
    // SAFETY: the path ends with a zero. F_OK = 0.
    let result = unsafe { call!(libc::SYS_faccessat, libc::AT_FDCWD, directory.as_ptr(), 0) };
    end > 0 && raw::check(result) == Err(Errno(libc::ENOENT))
}

fn say_out_of_reach(shown: &[u8]) {
    raw::say(&[
        b"holdfast: the keeper at ",
        shown,
        b" is out of reach of this program: its writes go to the disk as usual\n",
    ]);
}

/// Says why the keeper did not take this process, which goes on as an outsider; or ends it, where
/// it must not be started.
#[cold]
fn turned_away(errno: Errno, path: &[u8; SOCKET_PATH_BYTES]) {
    let shown = path.split(|byte| *byte == 0).next().unwrap_or_default();
    match errno {
        Errno(libc::EINVAL) => {
            raw::say(&[
                b"holdfast: the keeper at ",
                shown,
                b" does not take this process: writes go to the disk as usual\n",
            ]);
        }
        Errno(libc::EPERM) => {
            raw::say(&[
                b"holdfast: the keeper at ",
                shown,
                b" is another user's than this program: its writes go to the disk as usual\n",
            ]);
        }
        // Another root directory, without the keeper's (its parent has told the keeper): an
        // outsider, as where the library is out of sight, too. What it inherits was left to the
        // kernel.
        Errno(libc::ENOENT) if is_out_of_sight(path) => say_out_of_reach(shown),
        // A keeper that ended well takes its socket with it: no record of any file is live, but
        // nobody would make durable what this program writes, which was started to have just that.
        Errno(libc::ENOENT) => {
            raw::say(&[
                b"holdfast: no keeper at ",
                shown,
                b": the run that this program was started in is over. Start it with `holdfast run`, or without \
                  HOLDFAST_SOCKET and LD_PRELOAD in its environment\n",
            ]);
            raw::exit(KEEPER_DIED_STATUS);
        }
        // One that died left records that recovery will write over whatever this program did
        // (history 11).
        Errno(libc::ECONNREFUSED | libc::ECONNRESET | libc::EPIPE | libc::EAGAIN) => {
            raw::say(&[
                b"holdfast: the keeper at ",
                shown,
                b" has died: no program can be started in this run any more\n",
            ]);
            raw::exit(KEEPER_DIED_STATUS);
        }
        // Another user's program, or one without a free descriptor: an outsider, against whom the
        // fences stand.
        _ => say_out_of_reach(shown),
    }
}

/// Leads the calls of Go's code to the hooks. What the keeper is to be told where that cannot be:
/// then nothing that the program writes or reads is seen.
fn lead_go(patched: bool) -> Option<Unseen> {
    let go = own_calls::find_go();
    let why = match go {
        own_calls::Go { program: false, library: false } => None,
        own_calls::Go { library: false, .. } if patched && !patch::is_musl() => golang::lead(&OF_GO).err(),
        _ => Some(Unseen::OwnCalls),
    };
    why.filter(|_| !on(Canary::GoTrusted))
}

/// What brings this process's calls to the log, if `all` of them can be.
///
/// # Safety
/// `environment` is null or libc's own array.
unsafe fn front_end(environment: *mut *const c_char, all: bool) -> FrontEnd {
    const VARIABLE: &[u8] = b"HOLDFAST_FRONT_END=";
    let environment = environment.cast_const();
    // SAFETY: the caller's promise.
    let asked =
        (!environment.is_null()).then(|| unsafe { environment::find(environment, VARIABLE) }).flatten();
    match golang::led() {
        _ if !all => FrontEnd::None,
        Some(golang::Threads::Libc) => FrontEnd::GoWithC,
        Some(golang::Threads::Go) => FrontEnd::GoWithLoader,
        None if golang::is_plain() => FrontEnd::StaticC,
        None if golang::is_mapped() => FrontEnd::StaticGo,
        None if patch::is_musl() => FrontEnd::Musl,
        None if asked.is_some_and(|(_, value)| value == b"mount") => FrontEnd::Mount,
        None => FrontEnd::Glibc,
    }
}

unsafe extern "C" fn construct() {
    patch::find_originals(holdfast_seen_writes as *const () as usize, exports::find_originals);
    parting::set_give_names_back(&GIVE_NAMES_BACK);
    if !patch::is_musl() {
        exports::release_musls();
    }
    // SAFETY: libc has set it up, as its constructors run before ours, which depend on it; no other
    // thread exists.
    let environment = unsafe { environ };
    #[cfg(feature = "canaries")]
    // SAFETY: libc's own array.
    unsafe {
        arm_canary(environment);
    }
    // SAFETY: libc's own array.
    let Some(path) = (unsafe { socket_path(environment) }) else { return };
    // SAFETY: asks the loader for a number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    let is_musl = patch::is_musl();
    if !is_musl && !patch::is_glibc() {
        // Who knows what it does by itself. As a client it would be trusted to hide nothing; so it
        // stays an outsider, against whom the fences stand.
        raw::say(&[
            b"holdfast: this program's C library is neither glibc nor musl: its writes go to the disk as usual\n",
        ]);
        return;
    }
    if !is_musl {
        // SAFETY: the kernel's own array, in which nothing has been moved yet.
        unsafe { golang::prepare(environment.cast_const().cast(), &OF_GO) };
    }
    if raw::is_emulated() {
        // It translates code once, before it is patched or after, and has not all the instructions
        // of the processor.
        raw::say(&[b"holdfast: this program runs under valgrind: its writes go to the disk as usual\n"]);
        return;
    }
    let patched = is_musl || patch::patch_libc(ENTRIES);
    let not_led = lead_go(patched);
    // SAFETY: libc's own array.
    let front_end = unsafe { front_end(environment, patched && not_led.is_none()) };
    process::set_front_end(front_end);
    let client = match process::connect(&path, false) {
        Ok(client) => client,
        Err(errno) => {
            golang::release();
            turned_away(errno, &path);
            return;
        }
    };
    // SAFETY: libc's own array; constructors run before the program's threads.
    unsafe { become_client(client, &path, environment, patched, not_led) };
}

/// Makes this process the keeper's client, who may be trusted with less where calls are not seen.
///
/// # Safety
/// `environment` is libc's own array, and there is one thread.
unsafe fn become_client(
    client: Client,
    path: &[u8; SOCKET_PATH_BYTES],
    environment: *mut *const c_char,
    patched: bool,
    not_led: Option<Unseen>,
) {
    let Some(words) = own_process::wiped_page() else {
        client.forbid_behind();
        return;
    };
    if !patched && !on(Canary::RefusalIgnored) {
        process::bypass_all();
        // What it reads by stdio is not seen either.
        client.forbid_behind();
        if client.note_unseen(Unseen::Unpatched, None) {
            raw::say(&[
                b"holdfast: libc could not be patched: files of this program go to the disk as usual\n",
            ]);
        }
    }
    if let Some(why) = not_led {
        // An outsider, against whom the fences stand.
        process::bypass_all();
        client.forbid_behind();
        client.note_unseen(why, None);
    }
    if patch::is_musl() {
        // What it reads by itself (stdio, its own files in /etc) is not seen.
        client.forbid_behind();
    }
    if golang::is_plain() {
        // Its reads are its own.
        client.forbid_behind();
    }
    own_process::remember();
    if golang::led() == Some(golang::Threads::Go) {
        // As in a static program: handlers are Go's, and threads are nobody's to cancel.
        signals::stand_apart();
        cancels::forget_cancellation();
    } else if patched {
        signals::take_over();
    }
    process::become_client(client, path, words, FORKED);
    // SAFETY: the caller's promise.
    unsafe {
        inherit::take(environment);
        inherit::forget_sanitizer(environment);
    }
    if patch::is_musl() {
        streams::begin();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn() = construct;
