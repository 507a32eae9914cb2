//! Ways to become, or to start, another program that lead to libc's own `execve`, which only glibc
//! lets be seen.
//!
//! All of them come to our `execve` in the end, whatever the libc.
#![allow(unsafe_code)] // C entry points and arrays of C strings.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_void};

use holdfast_cache::Reason;

use super::aio;
use super::spawn::{execve, hand_over};
use super::streams::original;
use crate::golang::Arguments;
use crate::inherit::Environment;
use crate::raw::{self, give_int};
use crate::{memory, parting, patch, process, streams, target, unseen};

unsafe extern "C" {
    /// The program's environment.
    static mut environ: *const *const c_char;
}

fn own_environment() -> Arguments {
    // SAFETY: libc's variable; the program may not change it during the call.
    unsafe { environ }
}

/// `execv`.
pub unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: Arguments) -> c_int {
    // SAFETY: the program's own call.
    unsafe { execve(path, arguments, own_environment()) }
}

/// `execvp`.
pub unsafe extern "C-unwind" fn execvp(file: *const c_char, arguments: Arguments) -> c_int {
    // SAFETY: the program's own call.
    unsafe { execvpe(file, arguments, own_environment()) }
}

/// `execvpe`: glibc tries a shell where a file is no program, musl does not.
pub unsafe extern "C-unwind" fn execvpe(
    file: *const c_char,
    arguments: Arguments,
    environment: Arguments,
) -> c_int {
    if !patch::is_musl() {
        let original = |environment: Arguments| {
            original!(
                EXECVPE(file => *const c_char, arguments => Arguments, environment => Arguments) -> c_int,
                else give_int(-(libc::ENOSYS as isize))
            )
        };
        if parting::strips() {
            // SAFETY: the program's own call.
            return unsafe { parting::without_library(environment, original) };
        }
        return original(environment);
    }
    let (mut refused, mut last) = (false, libc::ENOENT);
    // SAFETY: the program's strings.
    let failed = unsafe {
        search(file, |path| {
            // SAFETY: the program's own call.
            execve(path, arguments, environment);
            match raw::errno() {
                libc::EACCES => refused = true,
                libc::ENOENT | libc::ENOTDIR => last = raw::errno(),
                errno => return Some(errno),
            }
            None
        })
    };
    give_int(-(failed.unwrap_or(if refused { libc::EACCES } else { last }) as isize))
}

const NAME_BYTES_MAX: usize = 255;
const PATH_BYTES_MAX: usize = 4096;

/// Calls `found` with each path that musl would look for a program at, until that returns
/// something.
///
/// # Safety
/// `file` is a C string.
unsafe fn search(
    file: *const c_char,
    mut found: impl FnMut(*const c_char) -> Option<c_int>,
) -> Option<c_int> {
    const PATH: &[u8] = b"PATH=";
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.is_empty() {
        return Some(libc::ENOENT);
    }
    if name.contains(&b'/') {
        return found(file).or_else(|| Some(raw::errno()));
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(libc::ENAMETOOLONG);
    }
    // SAFETY: libc's array of C strings.
    let list = unsafe { crate::environment::find(own_environment(), PATH) };
    let list = list.map_or(&b"/usr/local/bin:/bin:/usr/bin"[..], |(_, list)| list);
    for directory in list.split(|byte| *byte == b':') {
        let mut path = [0u8; PATH_BYTES_MAX + NAME_BYTES_MAX + 2];
        let slash = usize::from(!directory.is_empty());
        let (Some(place), Some(rest)) = (
            path.get_mut(..directory.len()).filter(|place| place.len() < PATH_BYTES_MAX),
            directory.len().checked_add(slash),
        ) else {
            continue;
        };
        place.copy_from_slice(directory);
        if slash == 1 {
            path[directory.len()] = b'/';
        }
        // The last byte stays zero.
        path[rest..rest + name.len()].copy_from_slice(name);
        if let Some(result) = found(path.as_ptr().cast()) {
            return Some(result);
        }
    }
    None
}

/// Defines a function whose arguments, up to a null one, are the new program's: they are laid out
/// as an array, whose first ones come from registers.
macro_rules! listed {
    ($($name:ident = $run:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            naked_asm!(
                "pop r11",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r11",
                "call {run}",
                "pop r11",
                "add rsp, 40",
                "push r11",
                "ret",
                run = sym $run,
            )
        }
    )*};
}

listed! {
    execl = run_list;
    execlp = run_found_list;
    execle = run_list_with_environment;
}

unsafe extern "C" fn run_list(path: *const c_char, arguments: Arguments) -> c_int {
    // SAFETY: the program's own call.
    unsafe { execve(path, arguments, own_environment()) }
}

unsafe extern "C" fn run_found_list(file: *const c_char, arguments: Arguments) -> c_int {
    // SAFETY: the program's own call.
    unsafe { execvpe(file, arguments, own_environment()) }
}

unsafe extern "C" fn run_list_with_environment(path: *const c_char, arguments: Arguments) -> c_int {
    let mut at = 0;
    // SAFETY: the program's arguments, which end with a null one, behind which the environment is
    // passed.
    unsafe {
        while !(*arguments.add(at)).is_null() {
            at += 1;
        }
        execve(path, arguments, (*arguments.add(at + 1)).cast())
    }
}

/// Which program musl is about to start in a child that no hook is called in.
#[derive(Clone, Copy)]
pub(super) enum Program {
    At(*const c_char),
    Found(*const c_char),
    Shell,
}

/// Does in the parent what `execve` and the calls before it do in a child of glibc's: files of
/// descriptors that the program inherits, or that `actions` open for it, are left to the kernel.
/// Returns the environment it shall have.
///
/// # Safety
/// The arguments are those of musl's `posix_spawn`, or null.
pub(super) unsafe fn before_spawn(
    program: Program,
    actions: *const c_void,
    environment: Arguments,
    told: &mut Environment,
) -> Arguments {
    if !streams::active() || process::client().is_none() {
        return environment;
    }
    let own = own_environment();
    // SAFETY: the caller's promise.
    unsafe {
        match program {
            Program::At(path) => unseen::tell(libc::AT_FDCWD, path, 0, environment),
            Program::Found(file) => {
                search(file, |path| {
                    let stat = raw::fstatat(libc::AT_FDCWD, path, 0).ok().filter(|stat| stat.regular)?;
                    unseen::tell(libc::AT_FDCWD, path, 0, environment);
                    Some(stat.size as c_int)
                });
            }
            Program::Shell => unseen::tell(libc::AT_FDCWD, c"/bin/sh".as_ptr(), 0, own),
        }
        follow(actions);
        hand_over(environment, told)
    }
}

/// One of musl's file actions, which lie in a list.
#[repr(C)]
struct Action {
    next: *const Action,
    previous: *const Action,
    what: c_int,
    fd: c_int,
    source: c_int,
    flags: c_int,
    mode: u32,
    path: [c_char; 0],
}

/// Leaves to the kernel what file actions duplicate or open for writing.
///
/// # Safety
/// `actions` is null or musl's `posix_spawn_file_actions_t`.
unsafe fn follow(actions: *const c_void) {
    const CLOSE: c_int = 1;
    const DUP2: c_int = 2;
    const OPEN: c_int = 3;
    const CHDIR: c_int = 4;
    const FCHDIR: c_int = 5;
    let Some(client) = process::client().filter(|_| !actions.is_null()) else { return };
    // SAFETY: the list's head follows two numbers.
    let mut action = unsafe { *actions.byte_add(8).cast::<*const Action>() };
    while !action.is_null() && memory::is_range_readable(action.addr(), size_of::<Action>()) {
        // SAFETY: readable, as probed.
        let Action { next, what, source, flags, .. } = unsafe { action.read() };
        match what {
            DUP2 => {
                let _: target::Target = target::of_other(source);
                target::leave_to_kernel(source, Reason::HandedAway);
            }
            OPEN if target::may_write(flags) || flags & libc::O_TRUNC != 0 => {
                // SAFETY: the path ends the structure.
                let path = unsafe { (&raw const (*action).path).cast::<c_char>() };
                // SAFETY: the kernel checks the address.
                if let Ok(stat) = unsafe { raw::fstatat(libc::AT_FDCWD, path, 0) } {
                    target::leave_file_to_kernel(client, &stat, Reason::HandedAway);
                }
            }
            OPEN | CLOSE | CHDIR | FCHDIR => {}
            // A musl that we do not know.
            _ => aio::leave_to_kernel(Reason::Uncovered),
        }
        action = next;
    }
}
