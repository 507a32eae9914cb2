//! Ways to become another program that lead to libc's own `execve`, which only glibc lets be seen.
//!
//! All of them come to our `execve` in the end, whatever the libc.
#![allow(unsafe_code)] // C entry points and arrays of C strings.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int};

use super::exec::execve;
use super::original::original;
use crate::golang::Arguments;
use crate::raw::{self, give_int};
use crate::{environment, parting, patch};

unsafe extern "C" {
    /// The program's environment.
    static mut environ: *const *const c_char;
}

/// The environment that this program passes on.
pub(super) fn own_environment() -> Arguments {
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
pub(super) unsafe fn search(
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
    let list = unsafe { environment::find(own_environment(), PATH) };
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
