//! Children: forked ones become clients of their own, and those that run in our memory are marked.
//!
//! In a child that runs in its parent's memory no hook may change a table or take a lock; it may
//! ask the keeper.
#![allow(unsafe_code)] // C entry points, calls of libc's own functions by address.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_long, c_void};

use holdfast_cache::{Reason, Unseen};
use libc::pid_t;

use super::original::original;
use super::spawned::{Program, before_spawn};
use super::streams;
use crate::golang::Arguments;
use crate::inherit::Environment;
use crate::patch::{self, Original};
use crate::raw::{self, call, give_int};
use crate::{descriptions, gate, parting, process, spawning, tls, uncovered};

/// Runs a call that forks. `is_child` tells its result in the child.
fn forking<R: Copy>(fork: impl FnOnce() -> R, is_child: impl Fn(R) -> bool, failed: impl Fn(R) -> bool) -> R {
    let client = process::client();
    if let Some(client) = client {
        // Both sides move the same cursors from now on.
        descriptions::share_all();
        client.announce_fork();
        tls::with(|thread| thread.forking.set(1));
    }
    let result = fork();
    if let Some(client) = client {
        if is_child(result) {
            // Now, not at the first write: the keeper waits for the announced child.
            let _child: Option<_> = process::client();
        } else if failed(result) {
            client.withdraw_fork();
        }
        tls::with(|thread| thread.forking.set(0));
    }
    result
}

fn fork_through(original: &Original) -> pid_t {
    let address = original.address();
    forking(
        || {
            if address == 0 {
                // SAFETY: forks without libc's handlers, which this libc does not have.
                return give_int(unsafe { call!(libc::SYS_fork) });
            }
            // SAFETY: libc's function of this name has this shape.
            unsafe {
                let fork: unsafe extern "C" fn() -> pid_t = core::mem::transmute(address);
                fork()
            }
        },
        |pid| pid == 0,
        |pid| pid < 0,
    )
}

/// Forks by a system call of the program's own, which runs no child in its memory.
///
/// # Safety
/// The program's own call; the child goes on from here.
pub unsafe fn fork_by(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let make = || unsafe { call!(number, a, b, c, d, e, f) };
    gate::within(|| forking(make, |pid| pid == 0, |pid| pid < 0)).unwrap_or_else(make)
}

/// `fork`.
pub unsafe extern "C-unwind" fn fork() -> pid_t {
    fork_through(&patch::FORK)
}

#[allow(non_snake_case)] // libc's name.
/// `_Fork`: without handlers, usable in signal handlers.
pub unsafe extern "C-unwind" fn _Fork() -> pid_t {
    fork_through(&patch::FORK_SAFE)
}

/// `daemon`: returns in the child only, unless it fails.
pub unsafe extern "C-unwind" fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
    let address = patch::DAEMON.address();
    if address == 0 {
        return give_int(-(libc::ENOSYS as isize));
    }
    // SAFETY: libc's function of this name has this shape.
    let original: unsafe extern "C" fn(c_int, c_int) -> c_int = unsafe { core::mem::transmute(address) };
    let parent = raw::getpid();
    let result = forking(
        // SAFETY: the program's own call.
        || unsafe { original(no_chdir, no_close) },
        |_| raw::getpid() != parent,
        |_| raw::getpid() == parent,
    );
    if patch::is_musl() {
        streams::forget_standard();
    }
    result
}

/// `forkpty`.
pub unsafe extern "C-unwind" fn forkpty(
    terminal: *mut c_int,
    name: *mut c_char,
    settings: *const c_void,
    size: *const c_void,
) -> pid_t {
    type Function = unsafe extern "C" fn(*mut c_int, *mut c_char, *const c_void, *const c_void) -> pid_t;
    let address = patch::FORKPTY.address();
    if address == 0 {
        return give_int(-(libc::ENOSYS as isize));
    }
    // SAFETY: libc's function of this name has this shape.
    let original: Function = unsafe { core::mem::transmute(address) };
    // SAFETY: the program's own call.
    let pid = forking(|| unsafe { original(terminal, name, settings, size) }, |pid| pid == 0, |pid| pid < 0);
    if pid == 0 && patch::is_musl() {
        streams::forget_standard();
    }
    pid
}

/// `vfork`: the child runs in our memory, on our stack, until it becomes another program. The
/// return address is kept in a register, as the child overwrites its place.
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn vfork() -> pid_t {
    naked_asm!(
        "sub rsp, 8",
        "call {begins}",
        "add rsp, 8",
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "test rax, rax",
        "jz 2f",
        "push rax",
        "call {ends}",
        "pop rax",
        "test rax, rax",
        "js 3f",
        "2:",
        "ret",
        "3:",
        "mov rdi, rax",
        "sub rsp, 8",
        "call {failed}",
        "add rsp, 8",
        "ret",
        begins = sym spawning::spawning_begins,
        ends = sym spawning::spawning_ends,
        failed = sym vfork_failed,
        number = const libc::SYS_vfork as i32,
    )
}

extern "C" fn vfork_failed(result: isize) -> c_int {
    give_int(result)
}

/// Runs a call that makes a child in our memory.
fn spawning<R>(spawn: impl FnOnce() -> R) -> R {
    spawning::spawning_begins();
    let result = gate::outside(spawn);
    spawning::spawning_ends();
    result
}

/// Defines hooks that mark the thread and call libc's function. `before` is what musl, whose child
/// makes its calls unseen, needs to have done before, and `after` what is done with its result.
macro_rules! spawns {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $original:expr, else $missing:expr
        $(, before($told:ident) $before:stmt)? $(, after $after:expr)?;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: its child runs in our memory.")]
        #[allow(non_snake_case)] // libc's name.
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            let address = $original.address();
            if address == 0 {
                return $missing;
            }
            type Function = unsafe extern "C" fn($($kind),*) -> $result;
            // SAFETY: libc's function of this name has this shape.
            let original: Function = unsafe { core::mem::transmute(address) };
            $(
                let mut $told = Environment::new();
                $before
            )?
            // SAFETY: the program's own call.
            let result = spawning(|| unsafe { original($($argument),*) });
            $(let result = $after(result);)?
            result
        }
    )*};
}

/// What comes before musl's `posix_spawn` of a shell.
fn before_shell(told: &mut Environment) {
    // SAFETY: there are no arguments to be wrong.
    unsafe { before_spawn(Program::Shell, core::ptr::null(), core::ptr::null(), told) };
}

spawns! {
    spawn_at(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Arguments, environment: Arguments) -> c_int = patch::POSIX_SPAWN, else libc::ENOSYS,
        // SAFETY: the program's own call.
        before(told) let environment = unsafe { before_spawn(Program::At(path), actions, environment, &mut told) };
    spawn_found(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Arguments, environment: Arguments) -> c_int = patch::POSIX_SPAWNP, else libc::ENOSYS,
        // SAFETY: the program's own call.
        before(told) let environment = unsafe { before_spawn(Program::Found(path), actions, environment, &mut told) };
    system(command: *const c_char) -> c_int = patch::SYSTEM, else -1, before(told) before_shell(&mut told);
    popen(command: *const c_char, mode: *const c_char) -> *mut c_void =
        patch::POPEN, else core::ptr::null_mut(), before(told) before_shell(&mut told), after piped;
    _IO_proc_open(stream: *mut c_void, command: *const c_char, mode: *const c_char) -> *mut c_void =
        patch::PROC_OPEN, else core::ptr::null_mut();
    wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int =
        patch::WORDEXP, else 1, before(told) before_shell(&mut told);
}

/// Defines the hooks of those that get an environment: what they start may have to go without the
/// library when it is out of this process itself.
macro_rules! posix_spawns {
    ($($name:ident = $hook:ident, $original:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        pub unsafe extern "C-unwind" fn $name(
            pid: *mut pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: Arguments,
            environment: Arguments,
        ) -> c_int {
            let original = |environment: Arguments| {
                original!(
                    $original(
                        pid => *mut pid_t, path => *const c_char, actions => *const c_void,
                        attributes => *const c_void, arguments => Arguments, environment => Arguments
                    ) -> c_int,
                    else libc::ENOSYS
                )
            };
            if parting::strips() {
                // SAFETY: the program's own call.
                return unsafe { parting::without_library(environment, original) };
            }
            // SAFETY: as above.
            gate::within(|| unsafe { $hook(pid, path, actions, attributes, arguments, environment) })
                .unwrap_or_else(|| original(environment))
        }
    )*};
}

posix_spawns! {
    posix_spawn = spawn_at, POSIX_SPAWN;
    posix_spawnp = spawn_found, POSIX_SPAWNP;
}

fn piped(stream: *mut c_void) -> *mut c_void {
    if crate::streams::active() && process::client().is_some() { streams::made(stream) } else { stream }
}

/// `clone`. Has up to seven arguments; those that were not passed are passed on unread.
pub unsafe extern "C-unwind" fn clone(
    function: *const c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_void,
    thread_area: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    type Function = unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        c_int,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
    ) -> c_int;
    let address = patch::CLONE.address();
    if address == 0 {
        return give_int(-(libc::ENOSYS as isize));
    }
    // SAFETY: libc's function of this name has this shape.
    let original: Function = unsafe { core::mem::transmute(address) };
    let call =
        // SAFETY: the program's own call.
        || unsafe { original(function, stack, flags, argument, parent_tid, thread_area, child_tid) };
    // The child begins elsewhere, and never leaves by the gate.
    let call = || gate::outside(call);
    if flags & libc::CLONE_THREAD != 0 {
        return call();
    }
    if flags & libc::CLONE_FILES != 0 {
        // What the child opens and closes changes our numbers, unseen.
        uncovered::leave_to_kernel(Reason::Uncovered);
    }
    if flags & libc::CLONE_VM == 0 {
        return forking(call, |_| false, |pid| pid < 0);
    }
    if flags & libc::CLONE_VFORK == 0 || flags & libc::CLONE_SETTLS != 0 {
        // Two processes in one memory at once, or a child without our mark: nothing here is made
        // for that.
        uncovered::leave_to_kernel(Reason::Uncovered);
    }
    spawning(call)
}

/// `unshare`.
pub unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_NEWUSER != 0 {
        parting::part(Unseen::Namespace);
    }
    if flags & libc::CLONE_FILES != 0 {
        gate::within(uncovered::unsharing);
    }
    // SAFETY: touches no memory.
    give_int(unsafe { call!(libc::SYS_unshare, flags) })
}
