//! The program that is executed in the place of a static Go program, and the variable that tells it
//! which one.
#![allow(unsafe_code)] // Arrays of C strings, and another program's start.

use core::ffi::{CStr, c_char};

use super::hooks::Arguments;
use crate::raw::{self, call};
use crate::waits;

/// What the environment asks for a program with.
pub const VARIABLE: &[u8] = b"HOLDFAST_ENTER=";
/// Longer paths are executed as they are.
const PATH_BYTES: usize = 4096;

/// The program that is executed in the place of a Go program.
pub struct Agent {
    path: [u8; AGENT_BYTES],
}

const AGENT_BYTES: usize = 320;
const VARIABLES_MAX: usize = 500;

impl Agent {
    /// The one beside this library.
    pub fn beside(library: &[u8]) -> Option<Self> {
        let directory = library.iter().rposition(|byte| *byte == b'/')? + 1;
        let mut path = [0; AGENT_BYTES];
        path.get_mut(..directory)?.copy_from_slice(library.get(..directory)?);
        let name = holdfast_enter::NAME.as_bytes();
        // The last byte stays zero.
        path.get_mut(..AGENT_BYTES - 1)?.get_mut(directory..directory + name.len())?.copy_from_slice(name);
        // SAFETY: the path ends with a zero. X_OK = 1.
        let found = unsafe { call!(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), 1) };
        (found == 0).then_some(Self { path })
    }

    /// Executes it for the program at `path`. Returns only if that fails. Has a large frame.
    ///
    /// # Safety
    /// The program's own arguments, readable.
    #[cold]
    #[inline(never)]
    pub unsafe fn execute(&self, path: &CStr, arguments: Arguments, environment: Arguments) -> Option<isize> {
        let mut text = [0u8; VARIABLE.len() + PATH_BYTES];
        text[..VARIABLE.len()].copy_from_slice(VARIABLE);
        let place = text.get_mut(VARIABLE.len()..)?;
        if path.to_bytes().starts_with(b"/proc/") {
            // A link that means another file once another program runs here.
            follow(path, place)?;
        } else {
            let name = path.to_bytes_with_nul();
            place.get_mut(..name.len())?.copy_from_slice(name);
        }
        let mut variables = [core::ptr::null::<c_char>(); VARIABLES_MAX];
        let mut count = 0;
        loop {
            // SAFETY: the null end has not been passed.
            let entry = unsafe { *environment.add(count) };
            // One place for the new variable and one for the end.
            let place = variables.get_mut(count).filter(|_| count + 2 < VARIABLES_MAX)?;
            if entry.is_null() {
                *place = text.as_ptr().cast();
                break;
            }
            *place = entry;
            count += 1;
        }
        let words = [self.path.as_ptr().addr(), arguments.addr(), variables.as_ptr().addr(), 0, 0, 0];
        // SAFETY: the program's own call, of another program.
        Some(unsafe { waits::call(libc::SYS_execve, words) })
    }
}

/// Writes where the link at `path` leads to, if that is the file that is meant.
fn follow(path: &CStr, into: &mut [u8]) -> Option<()> {
    // SAFETY: a string, and room for as many bytes as said, of which the last stays zero.
    unsafe {
        let room = into.len() - 1;
        raw::check(call!(libc::SYS_readlink, path.as_ptr(), into.as_mut_ptr(), room)).ok()?;
        let meant = raw::fstatat(libc::AT_FDCWD, path.as_ptr(), 0).ok()?;
        let found = raw::fstatat(libc::AT_FDCWD, into.as_ptr().cast(), 0).ok()?;
        ((meant.dev, meant.ino) == (found.dev, found.ino)).then_some(())
    }
}
