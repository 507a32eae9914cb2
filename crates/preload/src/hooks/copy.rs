//! Calls by which the kernel itself moves bytes into a file, or gives a descriptor away.
//!
//! The log cannot hold what we do not see: such calls go around it, or the file is left to the
//! kernel.
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_int, c_uint, c_ulong};

use holdfast_board::Change;
use holdfast_cache::Reason;
use libc::{msghdr, off_t, size_t, ssize_t};

use super::original::original;
use super::room::with_room;
use super::sync::synced_as_opened;
use crate::changing::amid;
use crate::fds::{self, Row};
use crate::raw::{self, call, check, give};
use crate::target::{self, Target};
use crate::{behind, cancels, critical, gate, memory, patch, process, unsynced};

/// Makes a call that fills `fd` with content from elsewhere around the log. Where the kernel shares
/// blocks for it, that and the size are the journal's.
fn around(fd: c_int, kernel: impl Fn() -> isize) -> ssize_t {
    let once = || around_once(fd, &kernel);
    give(synced_as_opened(fd, with_room(|| target::held(fd, once, once))))
}

fn around_once(fd: c_int, kernel: &impl Fn() -> isize) -> isize {
    let kernel = || {
        let result = kernel();
        if result >= 0 && process::client().is_some() {
            unsynced::note_pending(fd);
        }
        result
    };
    // What is no file may wait for whoever is at its other end.
    let is_file = matches!(fds::look(fd), Row::Described(_));
    if is_file { amid(Change::Any, || around_noted(fd, kernel)) } else { around_noted(fd, kernel) }
}

fn around_noted(fd: c_int, kernel: impl Fn() -> isize) -> isize {
    if let Some(result) = unsynced::pass_moving_cursor(fd, &kernel) {
        return result;
    }
    match target::of_other(fd) {
        Target::Managed(handle) => {
            let around = || handle.client.around_content(handle.file, || check(kernel()));
            let result = critical::section(|| handle.moving_cursor(around).and_then(|result| result));
            raw::encode(result)
        }
        Target::Refused(errno) => -(errno.0 as isize),
        Target::Kernel | Target::KernelSynced => kernel(),
    }
}

/// `sendfile`.
pub unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    bytes: size_t,
) -> ssize_t {
    behind::bring(from);
    // SAFETY: the program's own call; the kernel checks its addresses.
    around(to, || unsafe { call!(libc::SYS_sendfile, to, from, offset, bytes) })
}

/// `copy_file_range`.
pub unsafe extern "C-unwind" fn copy_file_range(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    // musl's is none.
    if !patch::is_musl() {
        cancels::cancellation_point();
    }
    behind::bring(from);
    // SAFETY: the program's own call; the kernel checks its addresses.
    around(to, || unsafe { call!(libc::SYS_copy_file_range, from, from_offset, to, to_offset, bytes, flags) })
}

/// `splice`: may wait for a pipe, which no lock may do, so its target is left to the kernel.
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    if let Target::Managed(_) = target::of_other(to) {
        target::leave_to_kernel(to, Reason::Uncovered);
    }
    behind::bring(from);
    // SAFETY: the program's own call; the kernel checks its addresses.
    let arguments =
        [from as usize, from_offset as usize, to as usize, to_offset as usize, bytes, flags as usize];
    // SAFETY: as above.
    let result = with_room(|| gate::outside(|| unsafe { cancels::cancellable(libc::SYS_splice, arguments) }));
    give(synced_as_opened(to, result))
}

const FICLONE: c_ulong = 0x4004_9409;
const FICLONERANGE: c_ulong = 0x4020_940d;
const FIDEDUPERANGE: c_ulong = 0xc018_9436;
const FIOQSIZE: c_ulong = 0x5460;
const FS_IOC_SETFLAGS: c_ulong = 0x4008_6602;
const FS_IOC_FSSETXATTR: c_ulong = 0x401c_5820;
/// The bytes that these read: flags, and a structure that begins with flags.
const FLAGS_BYTES: usize = 4;
const XATTR_BYTES: usize = 28;
/// Append-only and immutable, of each.
const FIXED_FLAGS: [u32; 2] = [0x20 | 0x10, 0x10 | 0x8];
/// Of a loop device, whose file the argument names, or begins with: the kernel reads and writes it
/// by itself from then on.
const LOOP_SET_FD: c_ulong = 0x4c00;
const LOOP_CHANGE_FD: c_ulong = 0x4c06;
const LOOP_CONFIGURE: c_ulong = 0x4c0a;
/// Terminals, sockets and descriptors: types 'T' (0x54), 0x89, and FIOCLEX and friends among the
/// former.
const HARMLESS_TYPES: [c_ulong; 3] = [0x54, 0x89, 0x12];
/// Requests on files that change nothing: FIBMAP, FIGETBSZ, FIEMAP, FS_IOC_GETFLAGS,
/// FS_IOC_GETVERSION, FS_IOC_FSGETXATTR, FS_IOC_GETFSLABEL, BTRFS_IOC_FS_INFO, XFS_IOC_FSGEOMETRY,
/// XFS_IOC_DIOINFO.
const HARMLESS: [c_ulong; 11] = [
    0x1,
    0x2,
    0xc020_660b,
    0x8008_6601,
    0x8008_7601,
    0x801c_581f,
    0x8100_9431,
    0x8400_941f,
    0x8100_587e,
    0x8070_5864,
    0x800c_581e,
];

/// Brings the files up to date that `FIDEDUPERANGE` compares with.
unsafe fn bring_targets(range: usize) {
    const HEAD_BYTES: usize = 24;
    const COUNT_AT: usize = 16;
    const TARGET_BYTES: usize = 32;
    if !memory::may_look() || !memory::is_range_readable(range, HEAD_BYTES) {
        return;
    }
    // SAFETY: readable as probed: two offsets, then how many targets follow.
    let count = unsafe { ((range + COUNT_AT) as *const u16).read_unaligned() };
    for at in (0..usize::from(count)).map(|index| range + HEAD_BYTES + index * TARGET_BYTES) {
        if !memory::is_range_readable(at, size_of::<i64>()) {
            return;
        }
        // SAFETY: readable as probed; a target begins with its descriptor.
        behind::bring(unsafe { (at as *const i64).read_unaligned() } as c_int);
    }
}

/// The descriptor that a request on a loop device is about.
fn file_of_loop(request: c_ulong, argument: usize) -> Option<c_int> {
    match request {
        LOOP_SET_FD | LOOP_CHANGE_FD => Some(argument as c_int),
        LOOP_CONFIGURE if memory::may_look() => {
            let mut word = [0u8; size_of::<c_int>()];
            // SAFETY: as many bytes as there is room for.
            let is_read = unsafe { memory::copy_in(word.as_mut_ptr(), argument, size_of::<c_int>()) };
            is_read.then(|| c_int::from_le_bytes(word))
        }
        _ => None,
    }
}

fn first_four(bytes: &[u8; XATTR_BYTES]) -> [u8; 4] {
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

/// Before a file becomes append-only or immutable: recovery could not write to it, nor remove or
/// rename it, and the flag may be durable before the log's records are in it. What is fixed may be
/// a directory, in which no name can be made or removed any more.
#[cold]
fn prepare_to_fix(fd: c_int) {
    let Some(client) = process::client().or_else(process::parents_client) else { return };
    let Ok(stat) = raw::fstat(fd) else { return };
    if stat.regular {
        // Whatever this descriptor may: `chattr` has one to read by.
        target::leave_file_to_kernel(client, &stat, Reason::Fixed);
        target::leave_to_kernel(fd, Reason::Fixed);
    } else {
        // What fails is told to whoever syncs next.
        // SAFETY: as the program would call it.
        unsafe { super::sync::syncfs(fd) };
    }
}

/// `ioctl`. What is not known to be harmless leaves the file to the kernel.
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    let kernel = || unsafe { call!(libc::SYS_ioctl, fd, request, argument) };
    // The kernel takes 32 bits; callers sign-extend.
    let request = request & 0xffff_ffff;
    let is_harmless = HARMLESS_TYPES.contains(&(request >> 8 & 0xff));
    if let Some(file) = file_of_loop(request, argument) {
        behind::show(file);
        target::leave_to_kernel(file, Reason::Uncovered);
    }
    if request == libc::FIOASYNC && process::client().is_some_and(|client| client.leases_files()) {
        // A lease of the keeper's would show in it.
        behind::show(fd);
    }
    if process::client().is_some() && (!is_harmless || matches!(request, libc::FIONREAD | FIOQSIZE)) {
        // Where its bytes lie on disk, for instance, or how many there are.
        behind::bring(fd);
        if request == FICLONE {
            behind::bring(argument as c_int);
        }
        if request == FIDEDUPERANGE {
            // SAFETY: the program's own structure.
            unsafe { bring_targets(argument) };
        }
        if request == FICLONERANGE && memory::may_look() {
            let mut range = [0u64; 4];
            let bytes = size_of_val(&range);
            // SAFETY: four words: the source's descriptor, its range, the place.
            if unsafe { memory::copy_in(range.as_mut_ptr().cast(), argument, bytes) } {
                behind::bring(range[0] as c_int);
                // The kernel must clone from the descriptor that was looked at.
                let argument = range.as_ptr().addr();
                // SAFETY: our own structure.
                let kernel = || unsafe { call!(libc::SYS_ioctl, fd, request, argument) };
                return around(fd, kernel) as c_int;
            }
        }
    }
    if process::client().is_none() || is_harmless || HARMLESS.contains(&request) {
        return give(kernel()) as c_int;
    }
    match request {
        FICLONE | FICLONERANGE => around(fd, kernel) as c_int,
        // The kernel compares first: content stays the same.
        FIDEDUPERANGE => give(kernel()) as c_int,
        FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR => {
            let mut attributes = [0u8; XATTR_BYTES];
            let bytes = if request == FS_IOC_SETFLAGS { FLAGS_BYTES } else { XATTR_BYTES };
            // SAFETY: there is room for so many.
            let is_read =
                memory::may_look() && unsafe { memory::copy_in(attributes.as_mut_ptr(), argument, bytes) };
            let (own, flags) = (attributes.as_ptr().addr(), u32::from_le_bytes(first_four(&attributes)));
            if !is_read || flags & FIXED_FLAGS[usize::from(request == FS_IOC_FSSETXATTR)] != 0 {
                prepare_to_fix(fd);
            }
            behind::show(fd);
            // What was looked at.
            let argument = if is_read { own } else { argument };
            let result = amid(Change::Any, || {
                // SAFETY: our own structure, or an address that the kernel checks.
                let result = unsafe { call!(libc::SYS_ioctl, fd, request, argument) };
                match target::of_other(fd) {
                    Target::Managed(handle) => handle.client.note_attributes(handle.file),
                    _ => unsynced::note_change(fd),
                }
                result
            });
            give(result) as c_int
        }
        // Programs ask whether a file can do something; one that cannot stays in the log.
        _ if matches!(target::of_other(fd), Target::Managed(_)) => {
            let result = around(fd, kernel) as c_int;
            if result >= 0 {
                target::leave_to_kernel(fd, Reason::Uncovered);
            }
            result
        }
        _ => give(kernel()) as c_int,
    }
}

/// A length in a message as the kernel has it: musl's are half as wide, and what fills them up may
/// be anything.
fn length_of(word: usize) -> usize {
    if patch::is_musl() { word & 0xffff_ffff } else { word }
}

/// Leaves the files of all descriptors in a message to the kernel. An address that cannot be read
/// is the kernel's to refuse.
unsafe fn give_away(message: *const msghdr) {
    if message.is_null() || !memory::is_range_readable(message.addr(), size_of::<msghdr>()) {
        return;
    }
    // SAFETY: the program says that it is a message, and it can be read.
    let message = unsafe { message.read_unaligned() };
    let (control, bytes) = (message.msg_control.cast::<u8>(), length_of(message.msg_controllen));
    let mut at = 0usize;
    while at.checked_add(16).is_some_and(|end| end <= bytes) {
        if control.is_null() || !memory::is_range_readable(control.addr() + at, 16) {
            return;
        }
        // SAFETY: a control header lies within the buffer: 8 bytes of length, 4 of level, 4 of
        // type.
        let (length, level, kind) = unsafe {
            let header = control.add(at);
            (
                length_of(header.cast::<usize>().read_unaligned()),
                header.add(8).cast::<c_int>().read_unaligned(),
                header.add(12).cast::<c_int>().read_unaligned(),
            )
        };
        if length < 16 || length > bytes - at || !memory::is_range_readable(control.addr() + at, length) {
            return;
        }
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            for index in 0..(length - 16) / 4 {
                // SAFETY: within the header's length.
                let fd = unsafe { control.add(at + 16 + index * 4).cast::<c_int>().read_unaligned() };
                behind::show(fd);
                if let Target::Managed(_) | Target::Kernel | Target::KernelSynced = target::of_other(fd) {
                    target::leave_to_kernel(fd, Reason::HandedAway);
                }
            }
        }
        at += length.next_multiple_of(8);
    }
}

/// `sendmsg`.
pub unsafe extern "C-unwind" fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if process::client().is_some() {
        // SAFETY: the program's own message.
        unsafe { give_away(message) };
    }
    if patch::is_musl() {
        // Its own puts the widths right.
        return original!(
            MUSL_SENDMSG(socket => c_int, message => *const msghdr, flags => c_int) -> ssize_t,
            else give(-(libc::ENOSYS as isize))
        );
    }
    let arguments = [socket as usize, message as usize, flags as usize, 0, 0, 0];
    // SAFETY: the program's own call.
    give(gate::outside(|| unsafe { cancels::cancellable(libc::SYS_sendmsg, arguments) }))
}

/// `sendmmsg`.
pub unsafe extern "C-unwind" fn sendmmsg(
    socket: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if process::client().is_some() {
        for index in 0..count.min(1024) as usize {
            let message = messages.wrapping_add(index);
            if messages.is_null() || !memory::is_range_readable(message.addr(), size_of::<libc::mmsghdr>()) {
                break;
            }
            // SAFETY: the program's own messages, as far as they can be read.
            unsafe { give_away(&raw const (*message).msg_hdr) };
        }
    }
    if patch::is_musl() {
        return original!(
            MUSL_SENDMMSG(
                socket => c_int, messages => *mut libc::mmsghdr, count => c_uint, flags => c_int
            ) -> c_int,
            else give(-(libc::ENOSYS as isize)) as c_int
        );
    }
    let arguments = [socket as usize, messages as usize, count as usize, flags as usize, 0, 0];
    // SAFETY: the program's own call.
    give(gate::outside(|| unsafe { cancels::cancellable(libc::SYS_sendmmsg, arguments) })) as c_int
}
