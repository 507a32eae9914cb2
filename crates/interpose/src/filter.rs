//! Whether a filter of system calls that the program is about to install lets the library live:
//! whether it allows every call of ours, and every call that is answered in the kernel's place.
//!
//! The filter is a program of classic BPF, which is gone through for each of these calls; what is
//! not known of a call, its addresses above all, may be anything. Never says yes where it cannot
//! tell.
#![allow(unsafe_code)] // Reads the program's filter.

use core::ffi::c_long;

use crate::memory;
use crate::raw::{self, call};

/// One instruction, as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    k: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Program {
    length: u16,
    code: *const Instruction,
}

/// The kernel takes no longer filter.
const LENGTH_MAX: usize = 4096;
/// More steps, or more ways at once, are not gone for one call.
const STEPS_MAX: u32 = 20_000;
const WAYS_MAX: usize = 24;
const CELLS: usize = 16;
const X86_64: u32 = 0xc000_003e;
const DATA_BYTES: u32 = 64;
const ARGUMENTS_AT: u32 = 16;

/// Returns what is done with a call.
const ACTION: u32 = 0xffff_0000;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const REFUSE: u32 = 0x0005_0000;

/// A call, and the arguments that are known of it: which, and the lower half of its value.
type Call = (c_long, &'static [(usize, u32)]);

const READABLE: u32 = libc::PROT_READ as u32;
const PLAIN: u32 = READABLE | libc::PROT_WRITE as u32;

/// What must be allowed.
const NEEDED: &[Call] = &[
    // The library's own.
    (libc::SYS_futex, &[]),
    (libc::SYS_mmap, &[(2, PLAIN)]),
    (libc::SYS_mmap, &[(2, READABLE)]),
    (libc::SYS_mmap, &[(2, 0)]),
    (libc::SYS_munmap, &[]),
    (libc::SYS_madvise, &[]),
    (libc::SYS_rt_sigprocmask, &[]),
    (libc::SYS_rt_sigaction, &[]),
    (libc::SYS_rt_sigreturn, &[]),
    (libc::SYS_rt_tgsigqueueinfo, &[]),
    (libc::SYS_tgkill, &[]),
    (libc::SYS_getpid, &[]),
    (libc::SYS_gettid, &[]),
    (libc::SYS_sched_yield, &[]),
    (libc::SYS_nanosleep, &[]),
    (libc::SYS_clock_nanosleep, &[]),
    (libc::SYS_socket, &[(0, libc::AF_UNIX as u32)]),
    (libc::SYS_connect, &[]),
    (libc::SYS_getsockopt, &[]),
    (libc::SYS_setsockopt, &[]),
    (libc::SYS_sendto, &[]),
    (libc::SYS_recvfrom, &[]),
    (libc::SYS_recvmsg, &[]),
    (libc::SYS_geteuid, &[]),
    (libc::SYS_getegid, &[]),
    (libc::SYS_getresuid, &[]),
    (libc::SYS_getresgid, &[]),
    (libc::SYS_getgroups, &[]),
    (libc::SYS_capget, &[]),
    (libc::SYS_prlimit64, &[]),
    (libc::SYS_faccessat, &[]),
    (libc::SYS_fstatfs, &[]),
    (libc::SYS_dup2, &[]),
    (libc::SYS_dup3, &[]),
    (libc::SYS_exit_group, &[]),
    // What is answered in the kernel's place, or asked in another way than libc would.
    (libc::SYS_open, &[]),
    (libc::SYS_openat, &[]),
    (libc::SYS_creat, &[]),
    (libc::SYS_close, &[]),
    (libc::SYS_close_range, &[]),
    (libc::SYS_dup, &[]),
    (libc::SYS_fcntl, &[]),
    (libc::SYS_read, &[]),
    (libc::SYS_readv, &[]),
    (libc::SYS_pread64, &[]),
    (libc::SYS_preadv, &[]),
    (libc::SYS_preadv2, &[]),
    (libc::SYS_write, &[]),
    (libc::SYS_writev, &[]),
    (libc::SYS_pwrite64, &[]),
    (libc::SYS_pwritev, &[]),
    (libc::SYS_pwritev2, &[]),
    (libc::SYS_lseek, &[]),
    (libc::SYS_stat, &[]),
    (libc::SYS_lstat, &[]),
    (libc::SYS_fstat, &[]),
    (libc::SYS_newfstatat, &[]),
    (libc::SYS_statx, &[]),
    (libc::SYS_ftruncate, &[]),
    (libc::SYS_truncate, &[]),
    (libc::SYS_fallocate, &[]),
    (libc::SYS_fsync, &[]),
    (libc::SYS_fdatasync, &[]),
    (libc::SYS_sync, &[]),
    (libc::SYS_syncfs, &[]),
    (libc::SYS_sync_file_range, &[]),
    (libc::SYS_sendfile, &[]),
    (libc::SYS_copy_file_range, &[]),
    (libc::SYS_splice, &[]),
    (libc::SYS_unlink, &[]),
    (libc::SYS_unlinkat, &[]),
    (libc::SYS_rmdir, &[]),
    (libc::SYS_rename, &[]),
    (libc::SYS_renameat, &[]),
    (libc::SYS_renameat2, &[]),
    (libc::SYS_link, &[]),
    (libc::SYS_linkat, &[]),
    (libc::SYS_symlink, &[]),
    (libc::SYS_symlinkat, &[]),
    (libc::SYS_mkdir, &[]),
    (libc::SYS_mkdirat, &[]),
    (libc::SYS_mknod, &[]),
    (libc::SYS_mknodat, &[]),
    (libc::SYS_chmod, &[]),
    (libc::SYS_fchmod, &[]),
    (libc::SYS_fchmodat, &[]),
    (libc::SYS_chown, &[]),
    (libc::SYS_lchown, &[]),
    (libc::SYS_fchown, &[]),
    (libc::SYS_fchownat, &[]),
    (libc::SYS_utime, &[]),
    (libc::SYS_utimes, &[]),
    (libc::SYS_futimesat, &[]),
    (libc::SYS_utimensat, &[]),
    (libc::SYS_setxattr, &[]),
    (libc::SYS_lsetxattr, &[]),
    (libc::SYS_fsetxattr, &[]),
    (libc::SYS_removexattr, &[]),
    (libc::SYS_lremovexattr, &[]),
    (libc::SYS_fremovexattr, &[]),
    (libc::SYS_setrlimit, &[]),
];

/// What the kernel may refuse, but not punish: a program that starts goes on without.
const WANTED: &[Call] = &[
    (libc::SYS_mprotect, &[]),
    (libc::SYS_pkey_mprotect, &[]),
    (libc::SYS_mmap, &[]),
    (libc::SYS_memfd_create, &[]),
    (libc::SYS_mremap, &[]),
    (libc::SYS_ioctl, &[]),
];

/// Where the evaluation of a filter stands.
#[derive(Clone, Copy)]
struct Way {
    at: usize,
    accumulator: Option<u32>,
    index: Option<u32>,
    cells: [Option<u32>; CELLS],
}

/// Whether the program's memory can be read. Where faults do not come to us the kernel is asked, of
/// a byte of each page.
fn is_readable(first: usize, bytes: usize) -> bool {
    const PAGE_BYTES: usize = 4096;
    if memory::may_look() {
        return memory::is_range_readable(first, bytes);
    }
    let Some(last) = first.checked_add(bytes - 1) else { return false };
    let pages = (first & !(PAGE_BYTES - 1)..=last).step_by(PAGE_BYTES);
    pages.map(|page| page.max(first)).all(|address| {
        let mut byte = 0u8;
        let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let there = libc::iovec { iov_base: core::ptr::without_provenance_mut(address), iov_len: 1 };
        // SAFETY: the kernel fills one byte, and checks the other address.
        let read = unsafe {
            let (here, there) = (&raw const here, &raw const there);
            call!(libc::SYS_process_vm_readv, raw::getpid(), here, 1, there, 1, 0)
        };
        read == 1
    })
}

/// Whether the library can live under the filter of this `struct sock_fprog`.
pub fn lets_us_live(program: usize) -> bool {
    if !is_readable(program, size_of::<Program>()) {
        return false;
    }
    let mut head = Program { length: 0, code: core::ptr::null() };
    // SAFETY: there is room for the structure, which may be anything.
    let is_read = unsafe { memory::copy_in((&raw mut head).cast(), program, size_of::<Program>()) };
    let length = usize::from(head.length);
    if !is_read || length == 0 || length > LENGTH_MAX {
        return false;
    }
    if !is_readable(head.code.addr(), length * size_of::<Instruction>()) {
        return false;
    }
    let fetch = |at: usize| {
        // SAFETY: readable, as probed; the program may write to it meanwhile, and gets what it
        // deserves then.
        (at < length).then(|| unsafe { head.code.add(at).read_volatile() })
    };
    NEEDED.iter().all(|call| ends(&fetch, call, |action| matches!(action, ALLOW | LOG)))
        && WANTED.iter().all(|call| ends(&fetch, call, |action| matches!(action, ALLOW | LOG | REFUSE)))
}

/// Whether a call ends well, whatever it is that is not known of it.
fn ends(fetch: &impl Fn(usize) -> Option<Instruction>, call: &Call, well: impl Fn(u32) -> bool) -> bool {
    let start = Way { at: 0, accumulator: Some(0), index: Some(0), cells: [Some(0); CELLS] };
    let mut ways = [start; WAYS_MAX];
    let (mut count, mut steps) = (1, 0);
    while let Some(mut way) = ways.get(..count).and_then(|ways| ways.last().copied()) {
        count -= 1;
        loop {
            steps += 1;
            if steps > STEPS_MAX {
                return false;
            }
            match step(fetch, call, &mut way) {
                Some(Step::On) => {}
                Some(Step::Either(other)) => {
                    let Some(place) = ways.get_mut(count) else { return false };
                    *place = Way { at: other, ..way };
                    count += 1;
                }
                Some(Step::End(Some(value))) if well(value & ACTION) => break,
                _ => return false,
            }
        }
    }
    true
}

enum Step {
    On,
    /// It goes on here, and there as well.
    Either(usize),
    End(Option<u32>),
}

/// The word of a call at an offset of `struct seccomp_data`, if it is known.
fn word((number, arguments): &Call, offset: u32) -> Option<u32> {
    match offset {
        0 => Some(*number as u32),
        4 => Some(X86_64),
        _ => {
            let is_argument = offset >= ARGUMENTS_AT && offset.is_multiple_of(8);
            let which = (offset.wrapping_sub(ARGUMENTS_AT) / 8) as usize;
            arguments.iter().find(|(known, _)| is_argument && *known == which).map(|(_, value)| *value)
        }
    }
}

/// `None`: no instruction that a filter may have.
fn step(fetch: &impl Fn(usize) -> Option<Instruction>, call: &Call, way: &mut Way) -> Option<Step> {
    const LOAD: u16 = 0x20;
    let Instruction { code, if_true, if_false, k } = fetch(way.at)?;
    way.at += 1;
    let operand = if code & 0x08 != 0 { way.index } else { Some(k) };
    match code {
        LOAD if k < DATA_BYTES && k.is_multiple_of(4) => way.accumulator = word(call, k),
        // BPF_LD and BPF_LDX: lengths, numbers, cells.
        0x80 => way.accumulator = Some(DATA_BYTES),
        0x81 => way.index = Some(DATA_BYTES),
        0x00 => way.accumulator = Some(k),
        0x01 => way.index = Some(k),
        0x60 => way.accumulator = *way.cells.get(k as usize)?,
        0x61 => way.index = *way.cells.get(k as usize)?,
        0x02 => *way.cells.get_mut(k as usize)? = way.accumulator,
        0x03 => *way.cells.get_mut(k as usize)? = way.index,
        // BPF_MISC.
        0x07 => way.index = way.accumulator,
        0x87 => way.accumulator = way.index,
        // BPF_RET.
        0x06 => return Some(Step::End(Some(k))),
        0x16 => return Some(Step::End(way.accumulator)),
        // BPF_JMP.
        0x05 => way.at = way.at.checked_add(k as usize)?,
        0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
            let (yes, no) = (way.at + usize::from(if_true), way.at + usize::from(if_false));
            let holds = way.accumulator.zip(operand).map(|(a, b)| match code & 0xf0 {
                0x10 => a == b,
                0x20 => a > b,
                0x30 => a >= b,
                _ => a & b != 0,
            });
            way.at = if holds == Some(false) { no } else { yes };
            if holds.is_none() && yes != no {
                return Some(Step::Either(no));
            }
        }
        // BPF_ALU.
        _ if code & 0x07 == 0x04 => way.accumulator = calculated(code & 0xf0, way.accumulator, operand)?,
        _ => return None,
    }
    Some(Step::On)
}

/// What an operation makes of two words; `None` for one that does not exist.
fn calculated(operation: u16, a: Option<u32>, b: Option<u32>) -> Option<Option<u32>> {
    let both = a.zip(b);
    Some(match operation {
        0x00 => both.map(|(a, b)| a.wrapping_add(b)),
        0x10 => both.map(|(a, b)| a.wrapping_sub(b)),
        0x20 => both.map(|(a, b)| a.wrapping_mul(b)),
        0x30 => both.and_then(|(a, b)| a.checked_div(b)),
        0x40 => both.map(|(a, b)| a | b),
        // Of what is not known nothing is left.
        0x50 if b == Some(0) => Some(0),
        0x50 => both.map(|(a, b)| a & b),
        0x60 => both.map(|(a, b)| a.checked_shl(b).unwrap_or(0)),
        0x70 => both.map(|(a, b)| a.checked_shr(b).unwrap_or(0)),
        0x80 => a.map(u32::wrapping_neg),
        0x90 => both.and_then(|(a, b)| a.checked_rem(b)),
        0xa0 => both.map(|(a, b)| a ^ b),
        _ => return None,
    })
}
