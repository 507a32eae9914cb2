//! Names coming and going: a removal is announced before the kernel's call (history 16), files that
//! get another name are settled first, and every change that no slot holds is noted in the ledger.
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_char, c_int, c_uint};

use holdfast_board::{Change, Renamed, kind_of};
use holdfast_cache::{Client, Errno, FileRef, Inode, Named, Removal, Renaming, Replace};
use holdfast_canary::{Canary, on};

use super::room::{self, with_room};
use crate::changing::changing;
use crate::raw::{self, call, give_int};
use crate::relog::{self, Names};
use crate::{adoption, process};

type Name = *const c_char;

const HERE: c_int = libc::AT_FDCWD;

/// What stands at a name: its device, and the cache's file if it is one.
#[derive(Clone, Copy)]
struct Found {
    device: u64,
    ino: u64,
    file: Option<FileRef>,
    regular: bool,
    bytes: u64,
}

impl Found {
    fn inode(self) -> Inode {
        Inode { device: self.device, ino: self.ino }
    }
}

unsafe fn find(client: &Client, dirfd: c_int, path: Name, flags: c_int) -> Option<Found> {
    // SAFETY: the kernel checks the address.
    let stat = unsafe { raw::fstatat(dirfd, path, flags) }.ok()?;
    let seen = if stat.regular { client.find(stat.dev, stat.ino) } else { None };
    let file = seen.map(|seen| seen.file);
    Some(Found { device: stat.dev, ino: stat.ino, file, regular: stat.regular, bytes: stat.size })
}

fn refuse(errno: Errno) -> isize {
    -(errno.0 as isize)
}

/// Notes a change of names that no slot holds: before it is made and once more when it is.
fn count(client: &Client, found: Option<Found>) {
    if let Some(found) = found {
        client.note_change(found.device);
    }
}

unsafe fn unlink_at(dirfd: c_int, path: Name, flags: c_int) -> isize {
    // SAFETY: the kernel checks the address.
    let kernel = || unsafe { call!(libc::SYS_unlinkat, dirfd, path, flags) };
    let Some(client) = process::client() else { return kernel() };
    // SAFETY: the program's path.
    let found = unsafe { find(client, dirfd, path, libc::AT_SYMLINK_NOFOLLOW) };
    let change =
        found.filter(|found| found.file.is_some()).map_or(Change::Any, |found| Change::File(found.ino));
    // SAFETY: the program's path.
    let once = || {
        let mut freed_bytes = None;
        let files = [found.map(Found::inode), None];
        let names = Names { files, changed: &[(dirfd, path)], kept: &[] };
        // SAFETY: the program's path.
        let remove = || {
            // SAFETY: the program's path.
            let (result, bytes) = unsafe { unlink_once(client, dirfd, path, found, kernel) };
            freed_bytes = bytes;
            result
        };
        // SAFETY: the kernel has read the path, if something was found at it.
        let result = unsafe { relog::logged(client, names, remove) };
        (result, freed_bytes)
    };
    let (result, freed_bytes) = changing(client, change, once);
    freed_bytes.into_iter().for_each(room::note_removed);
    result
}

/// Removes a name; how many bytes that will free, if it was announced.
unsafe fn unlink_once(
    client: &Client,
    dirfd: c_int,
    path: Name,
    found: Option<Found>,
    kernel: impl FnOnce() -> isize,
) -> (isize, Option<u64>) {
    let Some(file) = found.and_then(|found| found.file) else {
        return (noted(client, found.map(|found| found.device), kernel), None);
    };
    // SAFETY: the kernel has just read the path.
    let path = unsafe { raw::path(path) };
    let announced = if client.is_among_others(file) {
        client.unlinking_among_others(file)
    } else {
        client.unlinking(file, dirfd, path)
    };
    let removal = match announced {
        Ok(removal) => removal,
        Err(errno) => return (refuse(errno), None),
    };
    let counted = found.filter(|_| removal == Removal::Counted);
    let result = noted(client, counted.map(|found| found.device), kernel);
    client.unlinked(file, removal, result == 0);
    let is_announced = (removal, result) == (Removal::Held, 0);
    (result, found.filter(|_| is_announced).map(|found| found.bytes))
}

/// `unlink`.
pub unsafe extern "C-unwind" fn unlink(path: Name) -> c_int {
    // SAFETY: the program's path.
    give_int(unsafe { unlink_at(HERE, path, 0) })
}

/// `unlinkat`.
pub unsafe extern "C-unwind" fn unlinkat(dirfd: c_int, path: Name, flags: c_int) -> c_int {
    // SAFETY: the program's path.
    give_int(unsafe { unlink_at(dirfd, path, flags) })
}

/// `remove`: a file or an empty directory.
pub unsafe extern "C-unwind" fn remove(path: Name) -> c_int {
    // SAFETY: the program's path.
    let mut result = unsafe { unlink_at(HERE, path, 0) };
    if result == -(libc::EISDIR as isize) {
        // SAFETY: the program's path.
        result = unsafe { unlink_at(HERE, path, libc::AT_REMOVEDIR) };
    }
    give_int(result)
}

/// `rmdir`.
pub unsafe extern "C-unwind" fn rmdir(path: Name) -> c_int {
    // SAFETY: the program's path.
    give_int(unsafe { unlink_at(HERE, path, libc::AT_REMOVEDIR) })
}

/// Makes a call that changes names on a file system, which no slot holds: noted before it is made
/// and once more when it is, and taken back when it was refused.
fn noted(client: &Client, device: Option<u64>, kernel: impl FnOnce() -> isize) -> isize {
    let Some(device) = device else { return kernel() };
    let epoch = client.note_change(device);
    let result = client.taking(Some(device), kernel);
    match (result, epoch) {
        (0, _) => drop(client.note_change(device)),
        (_, Some(epoch)) => client.withdraw_change(device, epoch),
        _ => {}
    }
    result
}

/// The device of the directory in which a name is about to be made, and so that of what gets it.
unsafe fn device_of_directory(dirfd: c_int, path: Name) -> Option<u64> {
    // SAFETY: the program's path.
    if !unsafe { is_readable(path) } {
        return None;
    }
    // SAFETY: the kernel has just read the path.
    relog::in_directory(unsafe { raw::path(path) }, |directory| {
        // SAFETY: what it points to lives through the call.
        unsafe { raw::fstatat(dirfd, directory.as_ptr(), 0) }.ok().map(|stat| stat.dev)
    })?
}

/// Makes something at a name by the kernel's call.
unsafe fn make(dirfd: c_int, path: Name, kernel: impl Fn() -> isize) -> c_int {
    let Some(client) = process::client() else { return give_int(kernel()) };
    let make_once = || {
        if on(Canary::MadeUnannounced) {
            let result = kernel();
            if result == 0 {
                // SAFETY: the kernel has read the path.
                count(client, unsafe { find(client, dirfd, path, libc::AT_SYMLINK_NOFOLLOW) });
            }
            return result;
        }
        // SAFETY: the program's path.
        noted(client, unsafe { device_of_directory(dirfd, path) }, &kernel)
    };
    give_int(with_room(|| changing(client, Change::Any, make_once)))
}

/// `mkdirat`.
pub unsafe extern "C-unwind" fn mkdirat(dirfd: c_int, path: Name, mode: c_uint) -> c_int {
    // SAFETY: the program's path; the kernel checks it.
    unsafe { make(dirfd, path, || call!(libc::SYS_mkdirat, dirfd, path, mode)) }
}

/// `mkdir`.
pub unsafe extern "C-unwind" fn mkdir(path: Name, mode: c_uint) -> c_int {
    // SAFETY: the program's path.
    unsafe { mkdirat(HERE, path, mode) }
}

/// `symlinkat`.
pub unsafe extern "C-unwind" fn symlinkat(target: Name, dirfd: c_int, path: Name) -> c_int {
    // SAFETY: the program's paths; the kernel checks them.
    unsafe { make(dirfd, path, || call!(libc::SYS_symlinkat, target, dirfd, path)) }
}

/// `symlink`.
pub unsafe extern "C-unwind" fn symlink(target: Name, path: Name) -> c_int {
    // SAFETY: the program's paths.
    unsafe { symlinkat(target, HERE, path) }
}

/// `mknodat`: a new file made so is known only when it is opened.
pub unsafe extern "C-unwind" fn mknodat(
    dirfd: c_int,
    path: Name,
    mode: c_uint,
    device: libc::dev_t,
) -> c_int {
    // SAFETY: the program's path; the kernel checks it.
    unsafe { make(dirfd, path, || call!(libc::SYS_mknodat, dirfd, path, mode, device)) }
}

/// `mknod`.
pub unsafe extern "C-unwind" fn mknod(path: Name, mode: c_uint, device: libc::dev_t) -> c_int {
    // SAFETY: the program's path.
    unsafe { mknodat(HERE, path, mode, device) }
}

/// `__xmknodat`: `mknodat` of programs built against older libcs.
pub unsafe extern "C-unwind" fn __xmknodat(
    version: c_int,
    dirfd: c_int,
    path: Name,
    mode: c_uint,
    device: *const libc::dev_t,
) -> c_int {
    if version != 0 {
        return give_int(-(libc::EINVAL as isize));
    }
    // SAFETY: the program passes the device's place.
    unsafe { mknodat(dirfd, path, mode, *device) }
}

/// `__xmknod`, as `__xmknodat`.
pub unsafe extern "C-unwind" fn __xmknod(
    version: c_int,
    path: Name,
    mode: c_uint,
    device: *const libc::dev_t,
) -> c_int {
    // SAFETY: the program's own call.
    unsafe { __xmknodat(version, HERE, path, mode, device) }
}

/// `mkfifoat`.
pub unsafe extern "C-unwind" fn mkfifoat(dirfd: c_int, path: Name, mode: c_uint) -> c_int {
    // SAFETY: the program's path.
    unsafe { mknodat(dirfd, path, mode | libc::S_IFIFO, 0) }
}

/// `mkfifo`.
pub unsafe extern "C-unwind" fn mkfifo(path: Name, mode: c_uint) -> c_int {
    // SAFETY: the program's path.
    unsafe { mkfifoat(HERE, path, mode) }
}

/// Whether the kernel can read a path. If not, it says so itself.
unsafe fn is_readable(path: Name) -> bool {
    let fault = Err(Errno(libc::EFAULT));
    // SAFETY: the kernel checks the address.
    unsafe { raw::fstatat(HERE, path, libc::AT_SYMLINK_NOFOLLOW) }.map(|_| ()) != fault
}

unsafe fn rename_at(old_dirfd: c_int, old: Name, new_dirfd: c_int, new: Name, flags: c_uint) -> isize {
    // SAFETY: the program's paths.
    with_room(|| unsafe { rename_once(old_dirfd, old, new_dirfd, new, flags) })
}

unsafe fn rename_once(old_dirfd: c_int, old: Name, new_dirfd: c_int, new: Name, flags: c_uint) -> isize {
    let Some(client) = process::client() else {
        // SAFETY: the program's call; the kernel checks the addresses.
        return unsafe { kernel_rename(old_dirfd, old, new_dirfd, new, flags) };
    };
    // SAFETY: the program's paths.
    changing(client, Change::Any, || unsafe { rename_by(client, old_dirfd, old, new_dirfd, new, flags) })
}

unsafe fn kernel_rename(old_dirfd: c_int, old: Name, new_dirfd: c_int, new: Name, flags: c_uint) -> isize {
    // SAFETY: the kernel checks the addresses.
    unsafe {
        match flags {
            0 => call!(libc::SYS_renameat, old_dirfd, old, new_dirfd, new),
            _ => call!(libc::SYS_renameat2, old_dirfd, old, new_dirfd, new, flags),
        }
    }
}

unsafe fn rename_by(
    client: &Client,
    old_dirfd: c_int,
    old: Name,
    new_dirfd: c_int,
    new: Name,
    flags: c_uint,
) -> isize {
    // SAFETY: the program's path.
    if !unsafe { is_readable(new) } {
        // SAFETY: the kernel checks the addresses.
        return unsafe { kernel_rename(old_dirfd, old, new_dirfd, new, flags) };
    }
    // SAFETY: the program's paths.
    let (moved, target) = unsafe {
        (
            find(client, old_dirfd, old, libc::AT_SYMLINK_NOFOLLOW),
            find(client, new_dirfd, new, libc::AT_SYMLINK_NOFOLLOW),
        )
    };
    let swaps = flags & libc::RENAME_EXCHANGE != 0;
    // One that is renamed over the kernel logs with the other, or not at all.
    let files = [moved, target.filter(|_| swaps)].map(|found| found.map(Found::inode));
    let changed = &[(old_dirfd, old), (new_dirfd, new)];
    let kept = if swaps { &changed[..] } else { &changed[1..] };
    // SAFETY: the program's paths.
    let rename =
        || unsafe { rename_found(client, (old_dirfd, old), (new_dirfd, new), flags, (moved, target)) };
    // SAFETY: the kernel has read the paths, if something was found at the old one.
    unsafe { relog::logged(client, Names { files, changed, kept }, rename) }
}

/// Renames what was found at the two names.
unsafe fn rename_found(
    client: &Client,
    (old_dirfd, old): (c_int, Name),
    (new_dirfd, new): (c_int, Name),
    flags: c_uint,
    (moved, target): (Option<Found>, Option<Found>),
) -> isize {
    // SAFETY: the kernel checks the addresses.
    let rename = |flags: c_uint| unsafe { kernel_rename(old_dirfd, old, new_dirfd, new, flags) };
    let kernel = || rename(flags);
    let swaps = flags & libc::RENAME_EXCHANGE != 0;
    let is_over = flags == 0 && [moved, target].iter().all(|found| found.is_some_and(|found| found.regular));
    let note_over = |renamed: Renamed| {
        if is_over {
            // SAFETY: the kernel has just read the path.
            let kind = kind_of(unsafe { raw::path(old) }.to_bytes());
            client.board().header().habits.note_rename_over(kind, renamed);
        }
    };
    let (from, to) = (moved.and_then(|found| found.file), target.and_then(|found| found.file));
    if from.is_none() && to.is_none() {
        let result = noted(client, moved.map(|found| found.device), kernel);
        if result == 0 {
            note_over(Renamed::Left);
            if [moved, target.filter(|_| swaps)].into_iter().flatten().any(|found| !found.regular) {
                client.directory_renamed();
            }
        }
        return result;
    }
    // Two names of one file: the kernel does nothing.
    let taken = to.filter(|_| from != to && flags & libc::RENAME_NOREPLACE == 0);
    // SAFETY: the kernel has just read the path.
    let back = swaps.then(|| (old_dirfd, unsafe { raw::path(old) }));
    let is_of_directory = [moved, target].into_iter().flatten().any(|found| !found.regular);
    let to_free = target.is_none() && flags & !libc::RENAME_NOREPLACE == 0;
    // SAFETY: the kernel has just read the path.
    let to_path = unsafe { raw::path(new) };
    let device = moved.or(target).map_or(0, |found| found.device);
    let to = (new_dirfd, to_path);
    // Two names of one file are none that one takes from the other.
    let to_taken = is_over && moved.zip(target).is_none_or(|(moved, target)| moved.ino != target.ino);
    let renaming = Renaming { named: from, target: taken, device, to, to_free, to_taken, back };
    let was_logged = is_over && from.is_some_and(|file| client.has_live(file));
    let result = client.renaming(renaming, |replace| {
        let refused = if replace == Replace::Never { libc::RENAME_NOREPLACE } else { 0 };
        raw::check(rename(flags | refused)).map(|_| ())
    });
    match result {
        Ok(Ok(named)) => {
            note_over(match named {
                Named::Held => Renamed::Held,
                Named::Settled if was_logged => Renamed::Settled,
                Named::Settled => Renamed::Left,
            });
            if swaps && is_of_directory {
                client.directory_renamed();
            }
            0
        }
        Ok(Err(errno)) | Err(errno) => refuse(errno),
    }
}

/// `rename`.
pub unsafe extern "C-unwind" fn rename(old: Name, new: Name) -> c_int {
    // SAFETY: the program's paths.
    give_int(unsafe { rename_at(HERE, old, HERE, new, 0) })
}

/// `renameat`.
pub unsafe extern "C-unwind" fn renameat(old_dirfd: c_int, old: Name, new_dirfd: c_int, new: Name) -> c_int {
    // SAFETY: the program's paths.
    give_int(unsafe { rename_at(old_dirfd, old, new_dirfd, new, 0) })
}

/// `renameat2`.
pub unsafe extern "C-unwind" fn renameat2(
    old_dirfd: c_int,
    old: Name,
    new_dirfd: c_int,
    new: Name,
    flags: c_uint,
) -> c_int {
    // SAFETY: the program's paths.
    give_int(unsafe { rename_at(old_dirfd, old, new_dirfd, new, flags) })
}

unsafe fn link_at(old_dirfd: c_int, old: Name, new_dirfd: c_int, new: Name, flags: c_int) -> isize {
    // SAFETY: the program's paths.
    with_room(|| unsafe { link_once(old_dirfd, old, new_dirfd, new, flags) })
}

unsafe fn link_once(old_dirfd: c_int, old: Name, new_dirfd: c_int, new: Name, flags: c_int) -> isize {
    // SAFETY: the kernel checks the addresses.
    let kernel = || unsafe { call!(libc::SYS_linkat, old_dirfd, old, new_dirfd, new, flags) };
    let Some(client) = process::client() else { return kernel() };
    // SAFETY: the program's paths.
    changing(client, Change::Any, || unsafe {
        link_by(client, (old_dirfd, old), (new_dirfd, new), flags, kernel)
    })
}

unsafe fn link_by(
    client: &Client,
    (old_dirfd, old): (c_int, Name),
    (new_dirfd, new): (c_int, Name),
    flags: c_int,
    kernel: impl Fn() -> isize,
) -> isize {
    // SAFETY: the program's path.
    if !unsafe { is_readable(new) } {
        return kernel();
    }
    let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    let stat_flags = follow | flags & libc::AT_EMPTY_PATH;
    // SAFETY: the program's path.
    let found = unsafe { find(client, old_dirfd, old, stat_flags) };
    let (files, new_name) = ([found.map(Found::inode), None], &[(new_dirfd, new)]);
    // SAFETY: the program's paths.
    let link =
        || unsafe { link_found(client, found, (old_dirfd, old, stat_flags), (new_dirfd, new), kernel) };
    // SAFETY: the kernel has read the paths, if something was found at the old one.
    unsafe { relog::logged(client, Names { files, changed: new_name, kept: new_name }, link) }
}

/// Links what was found at a name.
unsafe fn link_found(
    client: &Client,
    found: Option<Found>,
    (old_dirfd, old, stat_flags): (c_int, Name, c_int),
    (new_dirfd, new): (c_int, Name),
    kernel: impl Fn() -> isize,
) -> isize {
    let Some((device, file)) = found.and_then(|found| Some((found.device, found.file?))) else {
        let device = found.map(|found| found.device);
        // Somebody may be about to take the only name that it had.
        let result = client.taking(device, || noted(client, device, kernel));
        // SAFETY: the program's path.
        let linked = unsafe { raw::fstatat(old_dirfd, old, stat_flags) };
        if let (0, Ok(stat)) = (result, linked) {
            adoption::note_named(client, &stat);
        }
        return result;
    };
    // SAFETY: the kernel has just read the path.
    let to = (new_dirfd, unsafe { raw::path(new) });
    let renaming =
        Renaming { named: Some(file), target: None, device, to, to_free: false, to_taken: false, back: None };
    let result = client.renaming(renaming, |_| raw::check(kernel()).map(|_| ()));
    match result.and_then(|result| result) {
        Ok(_) => 0,
        Err(errno) => refuse(errno),
    }
}

/// `link`.
pub unsafe extern "C-unwind" fn link(old: Name, new: Name) -> c_int {
    // SAFETY: the program's paths.
    give_int(unsafe { link_at(HERE, old, HERE, new, 0) })
}

/// `linkat`.
pub unsafe extern "C-unwind" fn linkat(
    old_dirfd: c_int,
    old: Name,
    new_dirfd: c_int,
    new: Name,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's paths.
    give_int(unsafe { link_at(old_dirfd, old, new_dirfd, new, flags) })
}
