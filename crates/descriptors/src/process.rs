//! This process as a client: connecting in the constructor, and again in every forked child.
//!
//! What we are is told by [`own_process`]. No descriptor and no thread stays behind. A child
//! that runs in its parent's memory (vfork, posix_spawn) is no client at all and must never take a
//! lock or change the tables.

// A static that is written once per process, messages with descriptors.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use holdfast_cache::wire::{FrontEnd, HELLO, Hello, WIRE_VERSION, Welcome};
use holdfast_cache::{Client, Errno};
use holdfast_canary::{Canary, on};
use rustix::fd::BorrowedFd;
use zerocopy::{FromBytes, IntoBytes};

use crate::own_process::{OwnWords, WIPED, is_quiet, page_word, runs_in_parents_memory};
use crate::raw::{self, call};
use crate::{critical, own_process, size_limit, tls};

/// States of the wiped page's word, beside [`WIPED`].
const ATTACHING: u32 = 1;
const ATTACHED: u32 = 2;
/// The keeper did not take us although our parent was its client: what is managed is left to the
/// kernel before it is changed, and cannot be changed when the keeper is dead.
const CUT_OFF: u32 = 3;

/// Room for the path of a keeper's socket, with a zero at its end.
pub const SOCKET_PATH_BYTES: usize = 108;
/// How often a hello is said to a keeper that hangs up.
const TRIES: u32 = 5;

/// What brings our calls to the log; forked children inherit it.
static FRONT_END: AtomicU8 = AtomicU8::new(FrontEnd::Glibc as u8);
static ALL_BYPASSED: AtomicBool = AtomicBool::new(false);

/// What is done in a forked child, by what this process' tables are.
#[derive(Clone, Copy)]
pub struct Forked {
    /// Before it says hello.
    pub begins: fn(),
    /// Once it is a client.
    pub is_client: fn(&Client),
}

struct Shared<T>(UnsafeCell<T>);
// SAFETY: written only by the constructor and by `attach_child`, both of which exclude each other
// and all readers by the page's word (or by being the only thread).
unsafe impl<T> Sync for Shared<T> {}

static CLIENT: Shared<MaybeUninit<Client>> = Shared(UnsafeCell::new(MaybeUninit::uninit()));
static FORKED: Shared<Forked> = Shared(UnsafeCell::new(Forked { begins: || {}, is_client: |_| {} }));
static SOCKET_PATH: Shared<[u8; SOCKET_PATH_BYTES]> = Shared(UnsafeCell::new([0; SOCKET_PATH_BYTES]));

fn attached() -> &'static Client {
    // SAFETY: callers have seen `ATTACHED`, which is stored after the client was written; it is
    // replaced only in a forked child, where the kernel has wiped the word.
    unsafe { (*CLIENT.0.get()).assume_init_ref() }
}

/// This process is a client no more. Board and pool are unmapped, unless others may look there
/// still: then they find nothing. Only once nobody gets in any more.
pub fn detach(is_unused: bool) {
    if !own_process::know_by(None) {
        return;
    }
    // SAFETY: written before the page existed; nobody but its users, of whom there are none, or who
    // may go on using it as it stays, has its address.
    unsafe {
        if is_unused {
            (*CLIENT.0.get()).assume_init_drop();
        } else {
            (*CLIENT.0.get()).assume_init_ref().cover();
        }
    }
}

/// This process as a client; `None` when calls go to the kernel: never attached, cut off, or a
/// child that runs in its parent's memory. What is cut off because the keeper has died goes on as
/// its parent does, whose board refuses what must not be acknowledged any more (history 11).
#[inline]
pub fn client() -> Option<&'static Client> {
    let word = page_word()?;
    if word.load(Ordering::Acquire) != ATTACHED && !attach_child(word) && attached().keeper_alive() {
        return None;
    }
    if runs_in_parents_memory() {
        return None;
    }
    Some(attached())
}

/// The parent's client, in a child that runs in its memory or that the keeper could not take (no
/// descriptor left, another user by now). Only requests about files may be made through it: such a
/// child leaves every file it touches to the kernel.
#[inline]
pub fn parents_client() -> Option<&'static Client> {
    let word = page_word()?;
    match word.load(Ordering::Acquire) {
        ATTACHED if runs_in_parents_memory() && !is_quiet() => Some(attached()),
        // With a dead keeper it is a client, if only to be refused.
        CUT_OFF if attached().keeper_alive() => Some(attached()),
        _ => None,
    }
}

/// Whether every file this process changes must be left to the kernel.
#[inline]
pub fn bypasses_all() -> bool {
    ALL_BYPASSED.load(Ordering::Relaxed)
}

/// From now on every file this process changes is left to the kernel.
pub fn bypass_all() {
    ALL_BYPASSED.store(true, Ordering::SeqCst);
}

/// A forked child's first hook: becomes a client of its own.
#[cold]
fn attach_child(word: &AtomicU32) -> bool {
    critical::section(|| {
        loop {
            match word.compare_exchange(WIPED, ATTACHING, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(ATTACHED) => return true,
                Err(CUT_OFF) => return false,
                Err(_) => raw::sched_yield(),
            }
        }
        own_process::remember();
        // SAFETY: written by the constructor, before the page existed.
        let forked = unsafe { &*FORKED.0.get() };
        (forked.begins)();
        let announced = tls::with(|thread| thread.forking.replace(0)) != 0;
        // SAFETY: written by the constructor, before the page existed.
        let path = unsafe { &*SOCKET_PATH.0.get() };
        match connect(path, announced) {
            Ok(client) => {
                // SAFETY: the word says `ATTACHING`, so nobody else looks at the client; the old
                // one was written by the parent and holds nothing but mappings, which are ours by
                // inheritance.
                unsafe {
                    let place = CLIENT.0.get();
                    (*place).assume_init_drop();
                    (*place).write(client);
                }
                word.store(ATTACHED, Ordering::Release);
                (forked.is_client)(attached());
                true
            }
            Err(_) => {
                if announced {
                    // The mapping is still the parent's: take back what it announced for us.
                    attached().withdraw_fork();
                }
                word.store(CUT_OFF, Ordering::Release);
                false
            }
        }
    })
}

/// Sets what brings this process' calls to the log, which is told to the keeper.
pub fn set_front_end(front_end: FrontEnd) {
    FRONT_END.store(front_end as u8, Ordering::Relaxed);
}

/// From now on this process is the client that the keeper at `path` has taken. Only the constructor
/// calls it, with a page that [`own_process::wiped_page`] made.
pub fn become_client(
    client: Client,
    path: &[u8; SOCKET_PATH_BYTES],
    words: &'static OwnWords,
    forked: Forked,
) {
    // SAFETY: there is no page yet, so nobody reads these.
    unsafe {
        *SOCKET_PATH.0.get() = *path;
        *FORKED.0.get() = forked;
        (*CLIENT.0.get()).write(client);
    }
    words.state.store(ATTACHED, Ordering::Release);
    own_process::know_by(Some(words));
}

/// Makes an open of the library's: a fence that asks whose an open is knows it for one.
#[inline]
pub fn announced<R>(open: impl FnOnce() -> R) -> R {
    match client() {
        Some(client) => client.open_announced(raw::gettid, open),
        None => open(),
    }
}

/// Says hello to the keeper and maps what it sends back. All descriptors are closed again. A keeper
/// hangs up on those who wait too long with their hello, which one without a processor may do: one
/// that has died takes no second connection.
pub fn connect(path: &[u8; SOCKET_PATH_BYTES], forked: bool) -> Result<Client, Errno> {
    let mut tries = 0;
    loop {
        tries += 1;
        match connect_once(path, forked) {
            Err(Errno(libc::ECONNRESET | libc::EPIPE)) if tries < TRIES => {}
            other => return other,
        }
    }
}

fn connect_once(path: &[u8; SOCKET_PATH_BYTES], forked: bool) -> Result<Client, Errno> {
    // SAFETY: creates a descriptor, touches no memory.
    let socket = raw::check(unsafe {
        call!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0)
    })? as c_int;
    let client = converse(socket, path, forked);
    raw::close(socket);
    client
}

#[repr(C, align(8))]
struct Control([u8; 64]);

fn converse(socket: c_int, path: &[u8; SOCKET_PATH_BYTES], forked: bool) -> Result<Client, Errno> {
    let address =
        libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: path.map(|byte| byte as c_char) };
    // SAFETY: the address is as long as said.
    raw::check(unsafe {
        call!(libc::SYS_connect, socket, &raw const address, size_of::<libc::sockaddr_un>())
    })?;
    if !is_our_user(socket)? && !on(Canary::KeeperBelieved) {
        // A keeper hangs up as soon as it knows whom to name. Others may have us wait a second.
        be_patient(socket, 1)?;
        let mut nothing = [0u8; 1];
        // SAFETY: the buffer is as long as said.
        unsafe { call!(libc::SYS_recvfrom, socket, nothing.as_mut_ptr(), nothing.len(), 0, 0, 0) };
        return Err(Errno(libc::EPERM));
    }
    // A keeper that is stuck must not hang every program that starts.
    be_patient(socket, 30)?;
    let hello = Hello {
        kind: HELLO,
        forked: u8::from(forked),
        blind: u8::from(bypasses_all()),
        front_end: FRONT_END.load(Ordering::Relaxed),
        version: WIRE_VERSION.into(),
    };
    // SAFETY: the buffer is as long as said. A keeper that went away must not kill us by SIGPIPE.
    raw::check(unsafe {
        call!(
            libc::SYS_sendto,
            socket,
            hello.as_bytes().as_ptr(),
            size_of::<Hello>(),
            libc::MSG_NOSIGNAL,
            0,
            0
        )
    })?;

    let mut answer = [0u8; size_of::<Welcome>()];
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: answer.as_mut_ptr().cast(), iov_len: answer.len() };
    // SAFETY: all-zero is a valid message header.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    let bytes = loop {
        // SAFETY: header, part and control buffer are valid for writes.
        let result = unsafe { call!(libc::SYS_recvmsg, socket, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if result != -(libc::EINTR as isize) {
            break match raw::check(result)? {
                // It hung up without an answer.
                0 => return Err(Errno(libc::ECONNRESET)),
                bytes => bytes,
            };
        }
    };
    let fds = received(&control, message.msg_controllen);
    let client = match (fds, Welcome::read_from_bytes(&answer)) {
        // SAFETY: the kernel just installed these descriptors for us; they are closed below.
        ([Some(board), Some(pool)], Ok(welcome)) if bytes == answer.len() => unsafe {
            Client::attach(&welcome, BorrowedFd::borrow_raw(board), BorrowedFd::borrow_raw(pool))
        },
        _ => Err(Errno::EINVAL),
    };
    for fd in fds.into_iter().flatten() {
        raw::close(fd);
    }
    if let Ok(client) = &client {
        size_limit::learn(client);
    }
    client
}

/// Whether who listens at the other end is the user that we are: nobody else's word counts, and
/// nobody else is shown what we write.
fn is_our_user(socket: c_int) -> Result<bool, Errno> {
    let mut listener = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is as long as said.
    raw::check(unsafe {
        call!(
            libc::SYS_getsockopt,
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            &raw mut listener,
            &raw mut bytes
        )
    })?;
    // SAFETY: no arguments.
    Ok(listener.uid == unsafe { call!(libc::SYS_geteuid) } as u32)
}

/// Sets how long an answer is waited for.
fn be_patient(socket: c_int, seconds: i64) -> Result<(), Errno> {
    let patience = libc::timeval { tv_sec: seconds, tv_usec: 0 };
    // SAFETY: the value is as long as said.
    raw::check(unsafe {
        call!(
            libc::SYS_setsockopt,
            socket,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            &raw const patience,
            size_of::<libc::timeval>()
        )
    })
    .map(|_| ())
}

/// The descriptors in a control buffer; fewer than two when the process has no numbers left.
fn received(control: &Control, bytes: usize) -> [Option<c_int>; 2] {
    let word =
        |at: usize| -> Option<u32> { Some(u32::from_le_bytes(control.0.get(at..at + 4)?.try_into().ok()?)) };
    // cmsghdr: length (8 bytes), level, type, then the descriptors.
    let length = word(0).map_or(0, |length| bytes.min(length as usize));
    let carries = word(8) == Some(libc::SOL_SOCKET as u32) && word(12) == Some(libc::SCM_RIGHTS as u32);
    [20, 24].map(|end| if carries && length >= end { word(end - 4).map(|fd| fd as c_int) } else { None })
}
