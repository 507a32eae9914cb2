//! This process as a client: connecting in the constructor, again in every forked child, and
//! knowing what we are.
//!
//! Who we are lies in a page that the kernel wipes in forked children, so that a child made by any
//! means can never act under its parent's number. No descriptor and no thread stays behind. A child
//! that runs in its parent's memory (vfork, posix_spawn) is no client at all and must never take a
//! lock or change the tables.

// A static that is written once per process, a wiped page, messages with descriptors.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};

use holdfast_cache::wire::{FrontEnd, HELLO, Hello, WIRE_VERSION, Welcome};
use holdfast_cache::{Client, Errno, Unseen};
use holdfast_canary::{Canary, on};
use rustix::fd::BorrowedFd;
use zerocopy::{FromBytes, IntoBytes};

use crate::raw::{self, call};
use crate::{
    critical, descriptions, fds, gate, golang, holds, hooks, inherit, own_calls, parting, patch, signals,
    streams, tls,
};

/// States of the wiped page's word.
const WIPED: u32 = 0;
const ATTACHING: u32 = 1;
const ATTACHED: u32 = 2;
/// The keeper did not take us although our parent was its client: what is managed is left to the
/// kernel before it is changed, and cannot be changed when the keeper is dead.
const CUT_OFF: u32 = 3;

/// Exit status of a program that could not be started because the keeper has died or ended;
/// `holdfast run` has the same.
const KEEPER_DIED_STATUS: c_int = 121;
const SOCKET_PATH_BYTES: usize = 108;
/// How often a hello is said to a keeper that hangs up.
const TRIES: u32 = 5;
const SOCKET_VARIABLE: &[u8] = b"HOLDFAST_SOCKET=";

/// What a process knows of itself: zeros in every forked child.
#[repr(C)]
pub struct OwnWords {
    /// Whether it is attached.
    state: AtomicU32,
    /// Threads that take a record lock (`locks`).
    pub locking: AtomicU32,
    /// Threads that open a file again (`locks`).
    pub reading: AtomicU32,
}

/// Null until this process, or one it was forked from, has been a client.
static PAGE: AtomicPtr<OwnWords> = AtomicPtr::new(core::ptr::null_mut());
static OWN_PID: AtomicI32 = AtomicI32::new(0);
/// What brings our calls to the log; forked children inherit it.
static FRONT_END: AtomicU8 = AtomicU8::new(FrontEnd::Glibc as u8);
static ALL_BYPASSED: AtomicBool = AtomicBool::new(false);

struct Shared<T>(UnsafeCell<T>);
// SAFETY: written only by the constructor and by `attach_child`, both of which exclude each other
// and all readers by the page's word (or by being the only thread).
unsafe impl<T> Sync for Shared<T> {}

static CLIENT: Shared<MaybeUninit<Client>> = Shared(UnsafeCell::new(MaybeUninit::uninit()));
static SOCKET_PATH: Shared<[u8; SOCKET_PATH_BYTES]> = Shared(UnsafeCell::new([0; SOCKET_PATH_BYTES]));

/// What this process knows of itself, once it or one that it was forked from has been a client.
pub fn own_words() -> Option<&'static OwnWords> {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: null, or a page that is never unmapped, aligned and used only through these atomics.
    unsafe { page.as_ref() }
}

fn page_word() -> Option<&'static AtomicU32> {
    own_words().map(|words| &words.state)
}

fn attached() -> &'static Client {
    // SAFETY: callers have seen `ATTACHED`, which is stored after the client was written; it is
    // replaced only in a forked child, where the kernel has wiped the word.
    unsafe { (*CLIENT.0.get()).assume_init_ref() }
}

/// Whether this process was forked by a client and has not said hello yet.
pub fn is_new_child() -> bool {
    page_word().is_some_and(|word| word.load(Ordering::SeqCst) == WIPED)
}

/// This process is a client no more. Board and pool are unmapped, unless others may look there
/// still: then they find nothing. Only once nobody gets in any more.
pub fn detach(is_unused: bool) {
    if PAGE.swap(core::ptr::null_mut(), Ordering::SeqCst).is_null() {
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
        ATTACHED if runs_in_parents_memory() && !parting::is_quiet() => Some(attached()),
        // With a dead keeper it is a client, if only to be refused.
        CUT_OFF if attached().keeper_alive() => Some(attached()),
        _ => None,
    }
}

/// Whether this is a child that runs in its parent's memory.
#[inline]
pub fn runs_in_parents_memory() -> bool {
    // The flag alone does not tell parent from child: `system` waits with it set and may take
    // signals meanwhile.
    // One that has given up rights may not even ask.
    tls::with(|thread| thread.spawning.get() != 0)
        && (parting::is_quiet() || raw::getpid() != OWN_PID.load(Ordering::Relaxed))
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
        OWN_PID.store(raw::getpid(), Ordering::Relaxed);
        gate::reset_for_child();
        descriptions::reset_for_child();
        holds::reset_for_child();
        fds::reset_changes();
        descriptions::share_all();
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
                streams::tell_again(attached());
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

/// Says hello to the keeper and maps what it sends back. All descriptors are closed again. A keeper
/// hangs up on those who wait too long with their hello, which one without a processor may do: one
/// that has died takes no second connection.
fn connect(path: &[u8; SOCKET_PATH_BYTES], forked: bool) -> Result<Client, Errno> {
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
    be_patient(socket, 10)?;
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
        hooks::limits::learn(client);
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

/// Maps a page that reads as zero in every forked child.
fn wiped_page() -> Option<&'static OwnWords> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let address = raw::check(unsafe {
        call!(
            libc::SYS_mmap,
            0,
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1isize,
            0
        )
    })
    .ok()?;
    // SAFETY: the page was just mapped.
    raw::check(unsafe { call!(libc::SYS_madvise, address, 4096, libc::MADV_WIPEONFORK) }).ok()?;
    // SAFETY: mapped, zeroed, aligned, never unmapped.
    Some(unsafe { &*(address as *const OwnWords) })
}

/// The socket path in the environment.
///
/// # Safety
/// `environment` is null or a null-terminated array of C strings.
unsafe fn socket_path(mut environment: *const *const c_char) -> Option<[u8; SOCKET_PATH_BYTES]> {
    if environment.is_null() {
        return None;
    }
    loop {
        // SAFETY: within the array: its null end has not been passed.
        let entry = unsafe { *environment };
        if entry.is_null() {
            return None;
        }
        // SAFETY: a C string.
        let bytes = unsafe { raw::path(entry) }.to_bytes();
        if let Some(value) = bytes.strip_prefix(SOCKET_VARIABLE) {
            let mut path = [0; SOCKET_PATH_BYTES];
            // The last byte stays zero.
            if value.is_empty() || value.len() >= SOCKET_PATH_BYTES {
                return None;
            }
            path.get_mut(..value.len())?.copy_from_slice(value);
            return Some(path);
        }
        // SAFETY: not yet at the end.
        environment = unsafe { environment.add(1) };
    }
}

/// Lets the deliberate bug show that the environment names.
///
/// # Safety
/// `environment` is as the loader passes it.
#[cfg(feature = "canaries")]
unsafe fn arm_canary(mut environment: *const *const c_char) {
    loop {
        // SAFETY: pointers to C strings up to a null one.
        let entry = unsafe { *environment };
        if entry.is_null() {
            return;
        }
        // SAFETY: a C string.
        let bytes = unsafe { raw::path(entry) }.to_bytes();
        let value = bytes.strip_prefix(holdfast_canary::VARIABLE.as_bytes());
        if let Some(name) = value.and_then(|rest| rest.strip_prefix(b"=")) {
            holdfast_canary::arm_named(name);
        }
        // SAFETY: not yet at the end.
        environment = unsafe { environment.add(1) };
    }
}

unsafe extern "C" {
    /// The program's environment. Constructors get it as an argument too, but from glibc alone.
    static mut environ: *mut *const c_char;
}

/// Whether not even the directory of a path is there.
fn is_out_of_sight(path: &[u8; SOCKET_PATH_BYTES]) -> bool {
    let mut directory = *path;
    let Some(end) = directory.iter().rposition(|byte| *byte == b'/') else { return false };
    directory[end..].fill(0);
    // SAFETY: the path ends with a zero. F_OK = 0.
    let result = unsafe { call!(libc::SYS_faccessat, libc::AT_FDCWD, directory.as_ptr(), 0) };
    end > 0 && raw::check(result) == Err(Errno(libc::ENOENT))
}

fn say_out_of_reach(shown: &[u8]) {
    raw::say(&[
        b"holdfast: the keeper at ",
        shown,
        b" is out of reach of this program: its writes go to the disk as usual\n",
    ]);
}

/// Says why the keeper did not take this process, which goes on as an outsider; or ends it, where
/// it must not be started.
#[cold]
fn turned_away(errno: Errno, path: &[u8; SOCKET_PATH_BYTES]) {
    let shown = path.split(|byte| *byte == 0).next().unwrap_or_default();
    match errno {
        Errno(libc::EINVAL) => {
            raw::say(&[
                b"holdfast: the keeper at ",
                shown,
                b" does not take this process: writes go to the disk as usual\n",
            ]);
        }
        Errno(libc::EPERM) => {
            raw::say(&[
                b"holdfast: the keeper at ",
                shown,
                b" is another user's than this program: its writes go to the disk as usual\n",
            ]);
        }
        // Another root directory, without the keeper's (its parent has told the keeper): an
        // outsider, as where the library is out of sight, too. What it inherits was left to the
        // kernel.
        Errno(libc::ENOENT) if is_out_of_sight(path) => say_out_of_reach(shown),
        // A keeper that ended well takes its socket with it: no record of any file is live, but
        // nobody would make durable what this program writes, which was started to have just that.
        Errno(libc::ENOENT) => {
            raw::say(&[
                b"holdfast: no keeper at ",
                shown,
                b": the run that this program was started in is over. Start it with `holdfast run`, or without \
                  HOLDFAST_SOCKET and LD_PRELOAD in its environment\n",
            ]);
            raw::exit(KEEPER_DIED_STATUS);
        }
        // One that died left records that recovery will write over whatever this program did
        // (history 11).
        Errno(libc::ECONNREFUSED | libc::ECONNRESET | libc::EPIPE | libc::EAGAIN) => {
            raw::say(&[
                b"holdfast: the keeper at ",
                shown,
                b" has died: no program can be started in this run any more\n",
            ]);
            raw::exit(KEEPER_DIED_STATUS);
        }
        // Another user's program, or one without a free descriptor: an outsider, against whom the
        // fences stand.
        _ => say_out_of_reach(shown),
    }
}

/// Leads the calls of Go's code to the hooks. What the keeper is to be told where that cannot be:
/// then nothing that the program writes or reads is seen.
fn lead_go(patched: bool) -> Option<Unseen> {
    let go = own_calls::find_go();
    let why = match go {
        own_calls::Go { program: false, library: false } => None,
        own_calls::Go { library: false, .. } if patched && !patch::is_musl() => golang::lead().err(),
        _ => Some(Unseen::OwnCalls),
    };
    why.filter(|_| !on(Canary::GoTrusted))
}

/// What brings this process's calls to the log, if `all` of them can be.
///
/// # Safety
/// `environment` is null or libc's own array.
unsafe fn front_end(environment: *mut *const c_char, all: bool) -> FrontEnd {
    const VARIABLE: &[u8] = b"HOLDFAST_FRONT_END=";
    let environment = environment.cast_const();
    // SAFETY: the caller's promise.
    let asked = (!environment.is_null()).then(|| unsafe { inherit::find(environment, VARIABLE) }).flatten();
    match golang::led() {
        _ if !all => FrontEnd::None,
        Some(golang::Threads::Libc) => FrontEnd::GoWithC,
        Some(golang::Threads::Go) => FrontEnd::GoWithLoader,
        None if golang::is_mapped() => FrontEnd::StaticGo,
        None if patch::is_musl() => FrontEnd::Musl,
        None if asked.is_some_and(|(_, value)| value == b"mount") => FrontEnd::Mount,
        None => FrontEnd::Glibc,
    }
}

unsafe extern "C" fn construct() {
    patch::find_originals();
    // SAFETY: libc has set it up, as its constructors run before ours, which depend on it; no other
    // thread exists.
    let environment = unsafe { environ };
    #[cfg(feature = "canaries")]
    // SAFETY: libc's own array.
    unsafe {
        arm_canary(environment);
    }
    // SAFETY: libc's own array.
    let Some(path) = (unsafe { socket_path(environment) }) else { return };
    // SAFETY: asks the loader for a number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    let is_musl = patch::is_musl();
    if !is_musl && !patch::is_glibc() {
        // Who knows what it does by itself. As a client it would be trusted to hide nothing; so it
        // stays an outsider, against whom the fences stand.
        raw::say(&[
            b"holdfast: this program's C library is neither glibc nor musl: its writes go to the disk as usual\n",
        ]);
        return;
    }
    if !is_musl {
        // SAFETY: the kernel's own array, in which nothing has been moved yet.
        unsafe { golang::prepare(environment.cast_const().cast()) };
    }
    if raw::is_emulated() {
        // It translates code once, before it is patched or after, and has not all the instructions
        // of the processor.
        raw::say(&[b"holdfast: this program runs under valgrind: its writes go to the disk as usual\n"]);
        return;
    }
    let patched = is_musl || patch::patch_libc();
    let not_led = lead_go(patched);
    // SAFETY: libc's own array.
    let front_end = unsafe { front_end(environment, patched && not_led.is_none()) };
    FRONT_END.store(front_end as u8, Ordering::Relaxed);
    let client = match connect(&path, false) {
        Ok(client) => client,
        Err(errno) => {
            golang::release();
            turned_away(errno, &path);
            return;
        }
    };
    let Some(words) = wiped_page() else {
        client.forbid_behind();
        return;
    };
    if !patched && !on(Canary::RefusalIgnored) {
        bypass_all();
        // What it reads by stdio is not seen either.
        client.forbid_behind();
        if client.note_unseen(Unseen::Unpatched, None) {
            raw::say(&[
                b"holdfast: libc could not be patched: files of this program go to the disk as usual\n",
            ]);
        }
    }
    if let Some(why) = not_led {
        // An outsider, against whom the fences stand.
        bypass_all();
        client.forbid_behind();
        client.note_unseen(why, None);
    }
    if is_musl {
        // What it reads by itself (stdio, its own files in /etc) is not seen.
        client.forbid_behind();
    }
    OWN_PID.store(raw::getpid(), Ordering::Relaxed);
    if golang::led() == Some(golang::Threads::Go) {
        // As in a static program: handlers are Go's, and threads are nobody's to cancel.
        signals::stand_apart();
        raw::forget_cancellation();
    } else if patched {
        signals::take_over();
    }
    // SAFETY: `PAGE` is null, so nobody reads these yet.
    unsafe {
        *SOCKET_PATH.0.get() = path;
        (*CLIENT.0.get()).write(client);
    }
    words.state.store(ATTACHED, Ordering::Release);
    PAGE.store(core::ptr::from_ref(words).cast_mut(), Ordering::Release);
    // SAFETY: libc's own array; constructors run before the program's threads.
    unsafe {
        inherit::take(environment);
        inherit::forget_sanitizer(environment);
    }
    if is_musl {
        streams::begin();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn() = construct;
