//! Functions of libc that open, write or close by system calls of their own where libc is musl
//! ([`crate::streams`]).
//!
//! With glibc, whose entries are patched, they do nothing but call libc's own. With musl, streams
//! are opened by our `open`, numbers that libc is about to close are forgotten before, and the file
//! behind a stream is left to the kernel.
#![allow(unsafe_code)] // C entry points, calls of libc's own functions by address.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use holdfast_board::Change;

use super::original::original;
use super::{numbers, open};
use crate::changing::amid;
use crate::raw::{self, set_errno};
use crate::{fds, gate, patch, process, streams, target};

type Name = *const c_char;
/// A `FILE` or a `DIR`.
type Stream = *mut c_void;

const HERE: c_int = libc::AT_FDCWD;
const NEW_FILE_MODE: c_uint = 0o666;

/// Defines hooks that call libc's own function, and with musl something of ours instead.
macro_rules! with_musl {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $original:ident, else $missing:expr; $ours:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            if streams::active() {
                return $ours;
            }
            original!($original($($argument => $kind),*) -> $result, else $missing)
        }
    )*};
}

const NO_STREAM: Stream = core::ptr::null_mut();

with_musl! {
    fopen(path: Name, mode: Name) -> Stream = FOPEN, else NO_STREAM;
        // SAFETY: the program's strings.
        unsafe { open_stream(path, mode) };
    fdopen(fd: c_int, mode: Name) -> Stream = FDOPEN, else NO_STREAM;
        stream_of(fd, mode);
    freopen(path: Name, mode: Name, stream: Stream) -> Stream = FREOPEN, else NO_STREAM;
        // SAFETY: the program's strings and stream.
        unsafe { reopen(path, mode, stream) };
    fclose(stream: Stream) -> c_int = FCLOSE, else -1;
        closing(stream, || original!(FCLOSE(stream => Stream) -> c_int, else -1));
    pclose(stream: Stream) -> c_int = PCLOSE, else -1;
        closing(stream, || original!(PCLOSE(stream => Stream) -> c_int, else -1));
    tmpfile() -> Stream = TMPFILE, else NO_STREAM;
        made(original!(TMPFILE() -> Stream, else NO_STREAM));
    setmntent(path: Name, mode: Name) -> Stream = SETMNTENT, else NO_STREAM;
        // SAFETY: the program's strings.
        unsafe { open_stream(path, mode) };
    endmntent(stream: Stream) -> c_int = ENDMNTENT, else 1;
        closing(stream, || original!(ENDMNTENT(stream => Stream) -> c_int, else 1));
    vdprintf(fd: c_int, format: Name, arguments: *mut c_void) -> c_int = VDPRINTF, else -1;
        {
            streams::writes(fd);
            original!(VDPRINTF(fd => c_int, format => Name, arguments => *mut c_void) -> c_int, else -1)
        };
    closedir(directory: Stream) -> c_int = CLOSEDIR, else -1;
        closing_number(
            original!(DIRFD(directory => Stream) -> c_int, else -1),
            || original!(CLOSEDIR(directory => Stream) -> c_int, else -1),
        );
    login_tty(fd: c_int) -> c_int = LOGIN_TTY, else -1;
        {
            let result = original!(LOGIN_TTY(fd => c_int) -> c_int, else -1);
            forget_standard();
            if fd > 2 && result == 0 {
                fds::retire(fd);
            }
            result
        };
    mkdtemp(template: *mut c_char) -> *mut c_char = MKDTEMP, else core::ptr::null_mut();
        amid(Change::Any, || {
            let made = original!(MKDTEMP(template => *mut c_char) -> *mut c_char, else core::ptr::null_mut());
            if !made.is_null() {
                // SAFETY: libc has made a directory of this name; the kernel checks the address.
                count_name(unsafe { raw::fstatat(HERE, made, libc::AT_SYMLINK_NOFOLLOW) }.ok());
            }
            made
        });
    mkstemp(template: *mut c_char) -> c_int = MKSTEMP, else -1;
        amid(Change::Any, || made_file(original!(MKSTEMP(template => *mut c_char) -> c_int, else -1)));
    mkostemp(template: *mut c_char, flags: c_int) -> c_int = MKOSTEMP, else -1;
        amid(Change::Any, || made_file(original!(MKOSTEMP(template => *mut c_char, flags => c_int) -> c_int, else -1)));
    mkstemps(template: *mut c_char, suffix: c_int) -> c_int = MKSTEMPS, else -1;
        amid(Change::Any, || made_file(original!(MKSTEMPS(template => *mut c_char, suffix => c_int) -> c_int, else -1)));
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int = MKOSTEMPS, else -1;
        amid(Change::Any, || made_file(
            original!(MKOSTEMPS(template => *mut c_char, suffix => c_int, flags => c_int) -> c_int, else -1),
        ));
    aio_write(control: *mut c_void) -> c_int = AIO_WRITE, else -1;
        {
            // SAFETY: the program's structure, which begins with the descriptor.
            unsafe { writing(control.cast()) };
            original!(AIO_WRITE(control => *mut c_void) -> c_int, else -1)
        };
    lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int =
        LIO_LISTIO, else -1;
        {
            for at in 0..usize::try_from(count).unwrap_or(0) {
                // SAFETY: the program says that so many pointers lie there.
                unsafe { writing((*list.add(at)).cast()) };
            }
            original!(
                LIO_LISTIO(mode => c_int, list => *const *mut c_void, count => c_int, event => *mut c_void) -> c_int,
                else -1
            )
        };
}

/// `dprintf`: tells of the number and ends in a jump, as its arguments cannot be passed on
/// otherwise.
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn dprintf(fd: c_int, format: Name) -> c_int {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "call {before}",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test r11, r11",
        "jz 2f",
        "jmp r11",
        "2:",
        "mov eax, -1",
        "ret",
        before = sym before_dprintf,
    )
}

extern "C" fn before_dprintf(fd: c_int) -> usize {
    // The gate passes no list of arguments on whose length nobody knows.
    gate::within(|| {
        if streams::active() {
            streams::writes(fd);
        }
    });
    patch::DPRINTF.address()
}

/// The number behind a stream, if it has one. Leaves `errno` alone.
fn number_of(stream: Stream) -> Option<c_int> {
    let errno = raw::errno();
    let fd = original!(FILENO(stream => Stream) -> c_int, else -1);
    set_errno(errno);
    (fd >= 0).then_some(fd)
}

/// A stream that libc has just made.
pub(super) fn made(stream: Stream) -> Stream {
    if !stream.is_null()
        && let Some(fd) = number_of(stream)
    {
        // Whatever libc had of that number before is over.
        fds::retire(fd);
        streams::opened(fd);
    }
    stream
}

/// How a stream's mode opens its file; `None` for one that libc refuses.
///
/// # Safety
/// `mode` is a C string.
unsafe fn flags_of(mode: Name) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let first = *mode.first()?;
    let has = |letter: u8| mode.contains(&letter);
    let access = match first {
        b'r' | b'w' | b'a' if has(b'+') => libc::O_RDWR,
        b'r' => libc::O_RDONLY,
        b'w' | b'a' => libc::O_WRONLY,
        _ => return None,
    };
    let how = match first {
        b'w' => libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_CREAT | libc::O_APPEND,
        _ => 0,
    };
    let exclusive = if has(b'x') { libc::O_EXCL } else { 0 };
    let cloexec = if has(b'e') { libc::O_CLOEXEC } else { 0 };
    Some(access | how | exclusive | cloexec)
}

/// `fopen`, in the two steps that musl takes: so the open is ours.
///
/// # Safety
/// The program's strings.
unsafe fn open_stream(path: Name, mode: Name) -> Stream {
    // SAFETY: the caller's promise.
    let Some(flags) = (unsafe { flags_of(mode) }) else {
        return original!(FOPEN(path => Name, mode => Name) -> Stream, else NO_STREAM);
    };
    // SAFETY: the program's path.
    let fd = unsafe { open::__open_nocancel(path, flags, NEW_FILE_MODE) };
    if fd < 0 {
        return NO_STREAM;
    }
    let stream = stream_of(fd, mode);
    if stream.is_null() {
        let errno = raw::errno();
        // SAFETY: a number that nobody else knows.
        unsafe { numbers::__close_nocancel(fd) };
        set_errno(errno);
    }
    stream
}

fn stream_of(fd: c_int, mode: Name) -> Stream {
    streams::opened(fd);
    let stream = original!(FDOPEN(fd => c_int, mode => Name) -> Stream, else NO_STREAM);
    if stream.is_null() {
        streams::closed(fd);
    }
    stream
}

/// A description of a file that another one of libc's own making is about to follow: the file is
/// the kernel's when that comes.
struct Forerunner(Option<c_int>);

impl Forerunner {
    /// # Safety
    /// The program's path, or null.
    unsafe fn new(path: Name, flags: c_int) -> Self {
        // SAFETY: the kernel checks the address.
        let stat = unsafe { raw::fstatat(HERE, path, 0) };
        let is_file = stat.as_ref().map_or(flags & libc::O_CREAT != 0, |stat| stat.regular);
        if !target::may_write(flags) || flags & libc::O_EXCL != 0 || !is_file {
            return Self(None);
        }
        let flags = flags & !libc::O_TRUNC | libc::O_CLOEXEC;
        // SAFETY: the program's path.
        let fd = unsafe { open::__open_nocancel(path, flags, NEW_FILE_MODE) };
        if fd < 0 {
            return Self(None);
        }
        streams::opened(fd);
        Self(Some(fd))
    }

    fn end(self) {
        if let Some(fd) = self.0 {
            let errno = raw::errno();
            // SAFETY: our own number.
            unsafe { numbers::__close_nocancel(fd) };
            streams::closed(fd);
            set_errno(errno);
        }
    }
}

/// # Safety
/// The program's strings and stream.
unsafe fn reopen(path: Name, mode: Name, stream: Stream) -> Stream {
    let call = || original!(FREOPEN(path => Name, mode => Name, stream => Stream) -> Stream, else NO_STREAM);
    if path.is_null() {
        // Only the mode changes.
        return call();
    }
    let before = number_of(stream);
    // SAFETY: the caller's promise.
    let forerunner = unsafe { Forerunner::new(path, flags_of(mode).unwrap_or(0)) };
    let reopened = match before {
        Some(fd) => fds::closing_unseen(fd, call),
        None => call(),
    };
    match (before, if reopened.is_null() { None } else { number_of(reopened) }) {
        (Some(fd), Some(now)) if fd == now => streams::give(fd),
        (before, now) => {
            if let Some(fd) = now {
                streams::opened(fd);
            }
            if let Some(fd) = before {
                streams::closed(fd);
            }
        }
    }
    forerunner.end();
    reopened
}

/// Makes a call that writes out a stream and closes its number.
fn closing(stream: Stream, close: impl FnOnce() -> c_int) -> c_int {
    let fd = if stream.is_null() || process::client().is_none() { None } else { number_of(stream) };
    let Some(fd) = fd else { return close() };
    let result = closing_number(fd, close);
    streams::closed(fd);
    result
}

/// Makes a call that closes a number.
fn closing_number(fd: c_int, close: impl FnOnce() -> c_int) -> c_int {
    if process::client().is_none() {
        return close();
    }
    streams::closing(fd);
    fds::closing_unseen(fd, close)
}

/// libc has put a terminal, or nothing, in the place of the standard streams.
pub(super) fn forget_standard() {
    if process::client().is_some() {
        (0..=2).for_each(fds::retire);
    }
}

/// Counts a name that libc has made, which no slot holds.
fn count_name(stat: Option<raw::Stat>) {
    if let (Some(client), Some(stat)) = (process::client(), stat) {
        client.note_change(stat.dev);
    }
}

/// A file that libc has just made and opened.
fn made_file(fd: c_int) -> c_int {
    if fd >= 0 && process::client().is_some() {
        fds::retire(fd);
        count_name(raw::fstat(fd).ok());
        if streams::has(fd) {
            streams::give(fd);
        }
    }
    fd
}

/// POSIX AIO is about to write.
///
/// # Safety
/// `control` is null or the program's control block, which begins with the descriptor.
unsafe fn writing(control: *const c_int) {
    // SAFETY: the caller's promise.
    let Some(&fd) = (unsafe { control.as_ref() }) else { return };
    numbers::expect_aio();
    streams::writes(fd);
}
