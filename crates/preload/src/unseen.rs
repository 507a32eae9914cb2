//! Programs that are started where the library cannot follow: the keeper is told before they start,
//! so that the summary and `doctor -- PROGRAM` can name them.
//!
//! Must never change the call: what cannot be looked at is left to the kernel's judgement. The
//! caller may be a child that runs in its parent's memory.
#![allow(unsafe_code)] // Arrays of C strings and buffers for the kernel.

use core::ffi::{c_char, c_int};

use holdfast_cache::{Client, Unseen};
use holdfast_canary::{Canary, on};

use crate::raw::{self, call};
use crate::{environment, golang, memory, patch, process, signals};

const LIBRARY: &[u8] = b"libholdfast.so";
const PRELOAD_VARIABLE: &[u8] = b"LD_PRELOAD=";
const SOCKET_VARIABLE: &[u8] = b"HOLDFAST_SOCKET=";
const PATH_BYTES: usize = 256;
const PAGE_BYTES: usize = 4096;
/// What tells how a program is loaded, of nearly every one.
const HEAD_BYTES: usize = 1024;

/// Tells the keeper, if `execveat` with these arguments leads to a program without the library.
///
/// # Safety
/// The arguments are those of an `execveat` that is about to be made; any of them may be bad.
pub unsafe fn tell(dirfd: c_int, path: *const c_char, flags: c_int, environment: *const *const c_char) {
    let Some(client) = process::client().or_else(process::parents_client) else { return };
    // Without our handler of faults nothing of the program's can be looked at.
    if !signals::wait_for_sections() {
        return;
    }
    // SAFETY: the kernel checks the path's address.
    let Ok(stat) = (unsafe { raw::fstatat(dirfd, path, flags & libc::AT_EMPTY_PATH) }) else { return };
    if !stat.regular {
        return;
    }
    // SAFETY: our caller's promise.
    let why = unsafe { of_environment(environment) }
        // SAFETY: as above.
        .or_else(|| unsafe { of_file(dirfd, path, flags, &stat) });
    if let Some(why) = why {
        // SAFETY: the kernel has just read the path.
        client.note_unseen(why, Some((dirfd, unsafe { raw::path(path) })));
    }
}

/// What is to be executed in the place of the program at `path`, if that is one that has no loader
/// and will be a client.
///
/// # Safety
/// The arguments are those of an `execve` that is about to be made; any of them may be bad.
pub unsafe fn agent_for(path: *const c_char, environment: *const *const c_char) -> Option<golang::Agent> {
    let client = process::client().or_else(process::parents_client)?;
    if !signals::wait_for_sections() || patch::is_musl() || golang::is_refused() || environment.is_null() {
        return None;
    }
    // SAFETY: the kernel checks the path's address. X_OK = 1.
    let stat = unsafe {
        let stat = raw::fstatat(libc::AT_FDCWD, path, 0).ok()?;
        raw::check(call!(libc::SYS_faccessat, libc::AT_FDCWD, path, 1)).ok()?;
        stat
    };
    if !stat.regular || stat.ownership.0 & (libc::S_ISUID | libc::S_ISGID) != 0 {
        return None;
    }
    let mut head = [0u8; HEAD_BYTES];
    // SAFETY: the kernel checked the path; the buffers are as long as said.
    let is_static = unsafe {
        let fd = open_to_look(client, libc::AT_FDCWD, path, &stat)?;
        let read = raw::check(call!(libc::SYS_pread64, fd, head.as_mut_ptr(), head.len(), 0)).unwrap_or(0);
        let is_static = head.get(..read).is_some_and(is_static);
        let mut capability = [0u8; 64];
        let name = c"security.capability";
        let raised = call!(libc::SYS_fgetxattr, fd, name.as_ptr(), capability.as_mut_ptr(), capability.len());
        raw::close(fd);
        is_static && raised < 0
    };
    if !is_static || on(Canary::GoChildrenLost) {
        return None;
    }
    // SAFETY: our caller's promise.
    let (library, socket) = unsafe { library_and_socket(environment) }?;
    let library = library_in(&library).filter(|_| socket[0] != 0)?;
    golang::Agent::beside(library.split(|byte| *byte == 0).next()?)
}

/// What the new program's environment says.
unsafe fn of_environment(environment: *const *const c_char) -> Option<Unseen> {
    // SAFETY: our caller's promise.
    let (library, socket) = unsafe { library_and_socket(environment) }?;
    let library = library_in(&library);
    match (library, socket[0]) {
        (None, _) | (_, 0) => Some(Unseen::Environment),
        (Some(library), _) if is_missing(&library) || is_missing(&socket) => Some(Unseen::OutOfReach),
        _ => None,
    }
}

/// The values of both variables; `None` where the kernel will refuse the call.
unsafe fn library_and_socket(
    mut environment: *const *const c_char,
) -> Option<([u8; PATH_BYTES], [u8; PATH_BYTES])> {
    let (mut library, mut socket) = ([0; PATH_BYTES], [0; PATH_BYTES]);
    while !environment.is_null() {
        if !memory::is_range_readable(environment.addr(), size_of::<usize>()) {
            // The kernel will refuse the call.
            return None;
        }
        // SAFETY: readable, as probed.
        let entry = unsafe { *environment };
        if entry.is_null() {
            break;
        }
        // SAFETY: a string of the environment to be; its bytes are probed.
        unsafe {
            value(entry, PRELOAD_VARIABLE, &mut library);
            value(entry, SOCKET_VARIABLE, &mut socket);
            environment = environment.add(1);
        }
    }
    Some((library, socket))
}

/// Copies the value of the entry if it begins with `name`; what does not fit is cut off.
///
/// # Safety
/// `entry` is meant to be a C string.
unsafe fn value(entry: *const c_char, name: &[u8], into: &mut [u8; PATH_BYTES]) {
    let byte = |at: usize| {
        let address = entry.addr().wrapping_add(at);
        if (at == 0 || address.is_multiple_of(PAGE_BYTES)) && !memory::is_range_readable(address, 1) {
            return 0;
        }
        // SAFETY: readable, as probed at the start and at each new page.
        unsafe { entry.add(at).cast::<u8>().read() }
    };
    if !name.iter().enumerate().all(|(at, wanted)| byte(at) == *wanted) {
        return;
    }
    for (at, place) in into.iter_mut().take(PATH_BYTES - 1).enumerate() {
        *place = byte(name.len() + at);
        if *place == 0 {
            return;
        }
    }
}

/// The path of our library in a value of LD_PRELOAD.
fn library_in(value: &[u8; PATH_BYTES]) -> Option<[u8; PATH_BYTES]> {
    let text = value.split(|byte| *byte == 0).next()?;
    let part = text.split(|byte| matches!(byte, b' ' | b':')).find(|part| part.ends_with(LIBRARY))?;
    let mut path = [0; PATH_BYTES];
    path.get_mut(..part.len())?.copy_from_slice(part);
    Some(path)
}

fn is_missing(path: &[u8; PATH_BYTES]) -> bool {
    // SAFETY: the path ends with a zero. F_OK = 0.
    let result = unsafe { call!(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), 0) };
    raw::check(result).is_err_and(|errno| errno.0 == libc::ENOENT)
}

/// Whether the library that this program's environment names is not under its path in a directory
/// that is to be the root directory. Where nothing can be found out it is not called missing: the
/// loader will say so.
///
/// # Safety
/// `root` may be bad: the kernel checks the address.
pub unsafe fn is_library_missing_in(root: *const c_char) -> bool {
    // SAFETY: libc's own array, if there is one.
    let Some(library) = (unsafe { own_library() }) else { return false };
    // SAFETY: as the caller says; opens a directory for its name alone.
    let opened = raw::check(unsafe {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        call!(libc::SYS_openat, libc::AT_FDCWD, root, flags)
    });
    let Ok(root) = opened else { return false };
    // What is not absolute is looked for where the program happens to stand.
    let inside = library.iter().position(|byte| *byte != b'/').filter(|slashes| *slashes > 0);
    let is_missing = inside.and_then(|at| library.get(at..)).is_some_and(|path| {
        // SAFETY: the path ends with a zero. F_OK = 0.
        let result = unsafe { call!(libc::SYS_faccessat, root as c_int, path.as_ptr(), 0) };
        raw::check(result).is_err_and(|errno| matches!(errno.0, libc::ENOENT | libc::ENOTDIR))
    });
    raw::close(root as c_int);
    is_missing
}

unsafe extern "C" {
    /// The program's environment.
    static mut environ: *const *const c_char;
}

/// The library's path in this program's own environment.
///
/// # Safety
/// The environment is as libc has it.
unsafe fn own_library() -> Option<[u8; PATH_BYTES]> {
    // SAFETY: libc's own array of C strings, if there is one.
    let text = unsafe {
        let environment = environ;
        if environment.is_null() {
            return None;
        }
        environment::find(environment, PRELOAD_VARIABLE)?.1
    };
    let mut value = [0; PATH_BYTES];
    value.get_mut(..PATH_BYTES - 1)?.get_mut(..text.len())?.copy_from_slice(text);
    library_in(&value)
}

/// What the file says.
///
/// # Safety
/// The kernel has just read the path.
unsafe fn of_file(dirfd: c_int, path: *const c_char, flags: c_int, stat: &raw::Stat) -> Option<Unseen> {
    let (mode, owner, group) = stat.ownership;
    // SAFETY: no arguments.
    let (user, users_group) = unsafe { (call!(libc::SYS_geteuid) as u32, call!(libc::SYS_getegid) as u32) };
    if mode & libc::S_ISUID != 0 && owner != user || mode & libc::S_ISGID != 0 && group != users_group {
        return Some(Unseen::Privileged);
    }
    if flags & libc::AT_EMPTY_PATH != 0 {
        return raises(Place::Open(dirfd)).then_some(Unseen::Privileged);
    }
    let client = process::client().or_else(process::parents_client)?;
    // SAFETY: the kernel checks the path.
    let Some(fd) = (unsafe { open_to_look(client, dirfd, path, stat) }) else {
        // It may be executed all the same.
        let is_privileged = dirfd == libc::AT_FDCWD && raises(Place::Named(path));
        return is_privileged.then_some(Unseen::Privileged);
    };
    let mut head = [0u8; HEAD_BYTES];
    // SAFETY: the buffer is as long as said.
    let bytes = raw::check(unsafe { call!(libc::SYS_pread64, fd, head.as_mut_ptr(), head.len(), 0) });
    let is_privileged = raises(Place::Open(fd));
    raw::close(fd);
    if is_privileged {
        return Some(Unseen::Privileged);
    }
    let head = head.get(..bytes.ok()?)?;
    (is_static(head) || script_is_static(client, head)).then_some(Unseen::Static)
}

/// Whether this is the head of a script that a static program interprets: the kernel starts that by
/// itself.
fn script_is_static(client: &Client, head: &[u8]) -> bool {
    let line = head.strip_prefix(b"#!").and_then(|rest| rest.split(|byte| *byte == b'\n').next());
    let words = line.unwrap_or_default().split(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
    let Some(name) = words.into_iter().find(|word| !word.is_empty()) else { return false };
    let mut path = [0u8; PATH_BYTES];
    // The last byte stays zero.
    let Some(place) = path.get_mut(..PATH_BYTES - 1).and_then(|path| path.get_mut(..name.len())) else {
        return false;
    };
    place.copy_from_slice(name);
    let path: *const c_char = path.as_ptr().cast();
    // SAFETY: the path ends with a zero.
    let Ok(stat) = (unsafe { raw::fstatat(libc::AT_FDCWD, path, 0) }) else { return false };
    // SAFETY: as above.
    let Some(fd) =
        stat.regular.then(|| unsafe { open_to_look(client, libc::AT_FDCWD, path, &stat) }).flatten()
    else {
        return false;
    };
    let mut head = [0u8; HEAD_BYTES];
    // SAFETY: the buffer is as long as said.
    let bytes = raw::check(unsafe { call!(libc::SYS_pread64, fd, head.as_mut_ptr(), head.len(), 0) });
    raw::close(fd);
    bytes.ok().and_then(|bytes| head.get(..bytes)).is_some_and(is_static)
}

/// Where a program's file is.
enum Place {
    Open(c_int),
    /// From the working directory.
    Named(*const c_char),
}

/// Whether the kernel gives the program capabilities for its file's sake, so that its loader
/// ignores the library. Root has them anyway.
fn raises(place: Place) -> bool {
    const NAME: &core::ffi::CStr = c"security.capability";
    // The largest form that there is has 24 bytes.
    let mut value = [0u8; 64];
    let (into, bytes) = (value.as_mut_ptr(), value.len());
    // SAFETY: the kernel checks the path; the buffer is as long as said; no arguments else.
    let (found, user) = unsafe {
        let found = match place {
            Place::Open(fd) => call!(libc::SYS_fgetxattr, fd, NAME.as_ptr(), into, bytes),
            Place::Named(path) => call!(libc::SYS_getxattr, path, NAME.as_ptr(), into, bytes),
        };
        (raw::check(found), call!(libc::SYS_getuid))
    };
    found.is_ok_and(|bytes| value.get(..bytes).is_some_and(gives_capabilities)) && user != 0
}

/// Whether an attribute `security.capability` gives any: its words are what it is about, and then
/// in turn what is permitted and what is inherited.
fn gives_capabilities(value: &[u8]) -> bool {
    [4, 12].iter().any(|&at| value.get(at..at + 4).is_some_and(|permitted| permitted != [0; 4]))
}

/// Opens a program's file for a look.
///
/// # Safety
/// The kernel checks the path.
unsafe fn open_to_look(
    client: &Client,
    dirfd: c_int,
    path: *const c_char,
    stat: &raw::Stat,
) -> Option<c_int> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the caller's promise.
    let opened = unsafe { process::announced(|| call!(libc::SYS_openat, dirfd, path, flags)) };
    let fd = raw::check(opened).ok()? as c_int;
    holdfast_session::note_open(client, stat);
    Some(fd)
}

/// Whether this is the head of an ELF program of 64 bits that names no loader.
fn is_static(head: &[u8]) -> bool {
    const PT_INTERP: u16 = 3;
    const HEADER_BYTES: usize = 56;
    let half = |at: usize| head.get(at..at + 2).map(|two| u16::from(two[0]) | u16::from(two[1]) << 8);
    if !head.starts_with(b"\x7fELF\x02") {
        return false;
    }
    // The table of program headers follows the file's header; one that lies elsewhere is not
    // judged.
    let (Some(64), Some(count)) = (half(32), half(56)) else { return false };
    let mut kinds = (0..usize::from(count)).map(|index| half(64 + index * HEADER_BYTES));
    count > 0 && !kinds.any(|kind| kind.is_none_or(|kind| kind == PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_a_loader_are_not_static() {
        let head = std::fs::read("/bin/true").unwrap();
        assert!(!is_static(&head[..1024]));
        assert!(!is_static(b"#!/bin/sh"));
        assert!(!is_static(b"\x7fELF\x02"));
    }

    #[test]
    fn only_what_is_permitted_gives_capabilities() {
        let value = |words: [u32; 5]| words.map(u32::to_le_bytes).concat();
        assert!(gives_capabilities(&value([0x0200_0001, 1 << 13, 0, 0, 0])));
        assert!(gives_capabilities(&value([0x0200_0000, 0, 0, 1, 0])));
        assert!(!gives_capabilities(&value([0x0200_0000, 0, 1 << 13, 0, 0])));
        assert!(!gives_capabilities(&[]));
    }

    #[test]
    fn the_library_is_found_among_others() {
        let value = |text: &str| {
            let mut value = [0; PATH_BYTES];
            value[..text.len()].copy_from_slice(text.as_bytes());
            library_in(&value).map(|path| path.split(|byte| *byte == 0).next().unwrap().to_vec())
        };
        assert_eq!(value("/a/libholdfast.so:b.so").unwrap(), b"/a/libholdfast.so");
        assert_eq!(value("b.so /a/libholdfast.so").unwrap(), b"/a/libholdfast.so");
        assert!(value("b.so").is_none() && value("").is_none());
    }
}
