//! Calls by which a program gives up rights: the library leaves the process first
//! ([`crate::parting`]), unless the call changes nothing or the kernel is sure to refuse it.
//!
//! The calls themselves are libc's, which makes them in every thread where that is its business.
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use holdfast_cache::Unseen;
use libc::{gid_t, size_t, uid_t};

use super::original::original;
use crate::raw::{self, call, give_int};
use crate::{filter, gate, memory, own_process, parting, unseen};

/// An id that stays as it is.
const SAME: u32 = u32::MAX;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SYS_CHROOT: u32 = 18;
const GROUPS_MAX: usize = 256;
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const SYS_LANDLOCK_RESTRICT_SELF: c_long = 446;
const SECCOMP_SET_MODE_STRICT: usize = 0;
const SECCOMP_SET_MODE_FILTER: usize = 1;

/// Real, effective and saved id.
type Ids = [u32; 3];

/// Whether anything is there to be taken out, so that it is worth a look at what is asked for.
fn is_in() -> bool {
    gate::is_open() && own_process::own_words().is_some()
}

/// Effective and permitted capabilities, of the first 64.
fn capabilities() -> Option<[u64; 2]> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let mut data = [0u32; 6];
    // SAFETY: the kernel reads two words and fills six.
    raw::check(unsafe { call!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) }).ok()?;
    Some(sets(&data))
}

fn sets(data: &[u32; 6]) -> [u64; 2] {
    let whole = |at: usize| u64::from(data[at]) | u64::from(data[at + 3]) << 32;
    [whole(0), whole(1)]
}

fn has(capability: u32) -> bool {
    capabilities().is_none_or(|[effective, _]| effective & 1 << capability != 0)
}

fn ids(number: c_long) -> Ids {
    let mut ids = [0u32; 3];
    let [real, effective, saved] = &mut ids;
    // SAFETY: the kernel fills three words.
    unsafe {
        call!(number, core::ptr::from_mut(real), core::ptr::from_mut(effective), core::ptr::from_mut(saved))
    };
    ids
}

/// Whether these ids, of which [`SAME`] stands for what is there, will be others than before.
fn moves(number: c_long, capability: u32, wanted: Ids) -> bool {
    if !is_in() {
        return true;
    }
    let now = ids(number);
    let is_same = wanted.iter().zip(now).all(|(&wanted, now)| wanted == SAME || wanted == now);
    let one = now.iter().all(|&id| id == now[0]);
    let may = has(capability) || wanted.iter().all(|wanted| *wanted == SAME || now.contains(wanted));
    !(is_same && one) && may
}

fn user(wanted: Ids) -> bool {
    moves(libc::SYS_getresuid, CAP_SETUID, wanted)
}

fn group(wanted: Ids) -> bool {
    moves(libc::SYS_getresgid, CAP_SETGID, wanted)
}

/// Whether a list of groups is another one than now.
fn groups(count: size_t, list: *const gid_t) -> bool {
    if !is_in() {
        return true;
    }
    if !has(CAP_SETGID) {
        return false;
    }
    let mut now = [0 as gid_t; GROUPS_MAX];
    // SAFETY: the kernel fills as many as there is room for.
    let known = raw::check(unsafe { call!(libc::SYS_getgroups, GROUPS_MAX, now.as_mut_ptr()) });
    let Ok(known) = known else { return true };
    if count != known {
        return true;
    }
    if !memory::may_look() {
        return true;
    }
    if count == 0 || !memory::is_range_readable(list.addr(), count * size_of::<gid_t>()) {
        return false;
    }
    // SAFETY: the program's list, readable as probed.
    let wanted = unsafe { core::slice::from_raw_parts(list, count) };
    let now = &now[..known];
    !wanted.iter().all(|group| now.contains(group)) || !now.iter().all(|group| wanted.contains(group))
}

/// Whether a thread's id for files will be another.
fn moves_files_id(number: c_long, wanted: u32) -> bool {
    // SAFETY: touches no memory; an invalid id changes nothing.
    !is_in() || wanted != SAME && unsafe { call!(number, SAME) } as u32 != wanted
}

/// Whether capabilities are lost.
fn drops(data: *const u32) -> bool {
    if !is_in() || !memory::may_look() {
        return true;
    }
    let mut wanted = [0u32; 6];
    // SAFETY: there is room for the words, of which the kernel reads as many.
    let is_read = unsafe { memory::copy_in(wanted.as_mut_ptr().cast(), data.addr(), size_of_val(&wanted)) };
    let Some(now) = capabilities().filter(|_| is_read) else { return is_read };
    sets(&wanted).iter().zip(now).any(|(wanted, now)| now & !wanted != 0)
}

/// Whether a directory is another root than now's.
fn is_other_root(path: *const c_char) -> bool {
    if !is_in() {
        return true;
    }
    // SAFETY: the kernel checks the address.
    let (there, here) =
        unsafe { (raw::fstatat(libc::AT_FDCWD, path, 0), raw::fstatat(libc::AT_FDCWD, c"/".as_ptr(), 0)) };
    match (there, here) {
        (Ok(there), Ok(here)) => (there.dev, there.ino) != (here.dev, here.ino) && has(CAP_SYS_CHROOT),
        (there, _) => there.is_ok(),
    }
}

/// What a change to this root directory is told as: what is started there is a client again where
/// the loader finds the library.
fn root(path: *const c_char) -> Unseen {
    // SAFETY: the kernel checks the address.
    if unsafe { unseen::is_library_missing_in(path) } { Unseen::RootWithout } else { Unseen::Root }
}

/// Whether a filter, if it is one, does not leave us what we need.
fn restricts_us(program: usize) -> bool {
    program != 0 && !filter::lets_us_live(program)
}

/// Whether a `prctl` takes rights away.
fn restricts(option: c_int, argument: usize, more: usize) -> bool {
    match option {
        libc::PR_SET_SECCOMP => match argument as c_uint {
            libc::SECCOMP_MODE_STRICT => true,
            // Without a filter it is a question.
            libc::SECCOMP_MODE_FILTER => restricts_us(more),
            _ => false,
        },
        // Calls from elsewhere than a range are turned away.
        PR_SET_SYSCALL_USER_DISPATCH => argument != 0,
        _ => false,
    }
}

fn part_if(condition: bool, why: Unseen) {
    if condition {
        parting::part(why);
    }
}

/// A system call is about to be made through `syscall`.
pub fn before(number: c_long, [a, b, c, ..]: [usize; 6]) {
    let (x, y, z) = (a as u32, b as u32, c as u32);
    let (condition, why) = match number {
        libc::SYS_setuid => (user([x; 3]), Unseen::Identity),
        libc::SYS_setgid => (group([x; 3]), Unseen::Identity),
        libc::SYS_setreuid => (user([x, y, y]), Unseen::Identity),
        libc::SYS_setregid => (group([x, y, y]), Unseen::Identity),
        libc::SYS_setresuid => (user([x, y, z]), Unseen::Identity),
        libc::SYS_setresgid => (group([x, y, z]), Unseen::Identity),
        libc::SYS_setgroups => (groups(a, b as *const gid_t), Unseen::Identity),
        libc::SYS_setfsuid | libc::SYS_setfsgid => (moves_files_id(number, x), Unseen::Identity),
        libc::SYS_capset => (drops(b as *const u32), Unseen::Capabilities),
        libc::SYS_chroot => (is_other_root(a as *const c_char), root(a as *const c_char)),
        libc::SYS_pivot_root => (true, root(a as *const c_char)),
        libc::SYS_unshare => (x & libc::CLONE_NEWUSER as u32 != 0, Unseen::Namespace),
        libc::SYS_setns => (enters_user_namespace(y as c_int), Unseen::Namespace),
        libc::SYS_prctl => (restricts(a as c_int, b, c), Unseen::Filter),
        libc::SYS_seccomp => match a {
            SECCOMP_SET_MODE_STRICT => (b == 0 && c == 0, Unseen::Filter),
            SECCOMP_SET_MODE_FILTER => (restricts_us(c), Unseen::Filter),
            _ => return,
        },
        SYS_LANDLOCK_RESTRICT_SELF => (true, Unseen::Landlock),
        _ => return,
    };
    part_if(condition, why);
}

/// Whether a namespace of this kind, or of any kind, may be one of users.
fn enters_user_namespace(kind: c_int) -> bool {
    kind == 0 || kind & libc::CLONE_NEWUSER != 0
}

macro_rules! rights {
    ($($name:ident($($argument:ident: $kind:ty),*) = $original:ident, $number:expr, $why:expr, if $changes:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            if $changes {
                parting::part($why);
            }
            original!(
                $original($($argument => $kind),*) -> c_int,
                // SAFETY: the program's own call.
                else give_int(unsafe { call!($number, $($argument),*) })
            )
        }
    )*};
}

rights! {
    setuid(id: uid_t) = SETUID, libc::SYS_setuid, Unseen::Identity, if user([id; 3]);
    seteuid(id: uid_t) = SETEUID, libc::SYS_setreuid, Unseen::Identity, if user([SAME, id, SAME]);
    setreuid(real: uid_t, id: uid_t) = SETREUID, libc::SYS_setreuid, Unseen::Identity, if user([real, id, id]);
    setresuid(real: uid_t, id: uid_t, saved: uid_t) = SETRESUID, libc::SYS_setresuid, Unseen::Identity,
        if user([real, id, saved]);
    setgid(id: gid_t) = SETGID, libc::SYS_setgid, Unseen::Identity, if group([id; 3]);
    setegid(id: gid_t) = SETEGID, libc::SYS_setregid, Unseen::Identity, if group([SAME, id, SAME]);
    setregid(real: gid_t, id: gid_t) = SETREGID, libc::SYS_setregid, Unseen::Identity, if group([real, id, id]);
    setresgid(real: gid_t, id: gid_t, saved: gid_t) = SETRESGID, libc::SYS_setresgid, Unseen::Identity,
        if group([real, id, saved]);
    setgroups(count: size_t, list: *const gid_t) = SETGROUPS, libc::SYS_setgroups, Unseen::Identity,
        if groups(count, list);
    initgroups(user: *const c_char, group: gid_t) = INITGROUPS, libc::SYS_getpid, Unseen::Identity,
        if !is_in() || has(CAP_SETGID);
    setfsuid(id: uid_t) = SETFSUID, libc::SYS_setfsuid, Unseen::Identity, if moves_files_id(libc::SYS_setfsuid, id);
    setfsgid(id: gid_t) = SETFSGID, libc::SYS_setfsgid, Unseen::Identity, if moves_files_id(libc::SYS_setfsgid, id);
    capset(header: *mut c_void, data: *const u32) = CAPSET, libc::SYS_capset, Unseen::Capabilities, if drops(data);
    chroot(path: *const c_char) = CHROOT, libc::SYS_chroot, root(path), if is_other_root(path);
    pivot_root(new: *const c_char, old: *const c_char) = PIVOT_ROOT, libc::SYS_pivot_root, root(new), if true;
    setns(fd: c_int, kind: c_int) = SETNS, libc::SYS_setns, Unseen::Namespace, if enters_user_namespace(kind);
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) = PRCTL, libc::SYS_prctl, Unseen::Filter,
        if restricts(option, a as usize, b as usize);
}
