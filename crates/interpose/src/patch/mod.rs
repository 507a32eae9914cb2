//! Getting in front of libc's own calls: glibc's entries are patched, because stdio and others do
//! not use the PLT.
//!
//! All or nothing: when one function cannot be replaced, none is. Only the constructor calls this,
//! before the program has threads. musl is never patched: what it does by system calls of its own
//! is for hooks of their own.
#![allow(unsafe_code)] // Looks at libc's variables and writes its code.

mod elf;
mod saved;
mod trampoline;

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::cancels;
use elf::Object;
use trampoline::Text;

/// Names that the C library's file may have.
const LIBC_NAMES: [&[u8]; 2] = [b"/libc.so.6", b"/libpthread.so.0"];

/// A function that this library alone exports, and its address in this process.
const OWN_NAME: &CStr = c"holdfast_seen_writes";
static OWN: AtomicUsize = AtomicUsize::new(0);

/// A libc function whose entry leads to a hook.
pub struct Entry {
    name: &'static CStr,
    hook: *const (),
}

// SAFETY: the pointer is a function's address, which is only ever compared and copied.
unsafe impl Sync for Entry {}

impl Entry {
    /// libc's name, private ones included, and where calls are to go.
    pub const fn new(name: &'static CStr, hook: *const ()) -> Self {
        Self { name, hook }
    }

    /// The hook's address.
    fn address(&self) -> usize {
        self.hook.addr()
    }
}

/// A libc function that a hook needs after all: it runs a child, or does more than one system call.
pub struct Original {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Original {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicUsize::new(0) }
    }

    /// Its address, or 0: the next object behind us that defines it. Entries of these are never
    /// patched.
    pub fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            0 => {
                self.find();
                self.address.load(Ordering::Relaxed)
            }
            address => address,
        }
    }

    fn find(&self) {
        let mut behind_us = false;
        let mut address = 0;
        elf::objects(|_, object| {
            if !behind_us {
                behind_us = object.defines_at(OWN_NAME, OWN.load(Ordering::Relaxed));
            } else if address == 0 {
                address = object.default_of(self.name).unwrap_or(0);
            }
        });
        self.address.store(address, Ordering::Relaxed);
    }
}

macro_rules! originals {
    ($table:ident: $($constant:ident = $name:expr),* $(,)?) => {
        $(
            #[doc = concat!("The function behind `", stringify!($constant), "`.")]
            pub static $constant: Original = Original::new($name);
        )*
        static $table: &[&Original] = &[$(&$constant),*];
    };
}

originals! {
    ORIGINALS:
    FORK = c"fork",
    FORK_SAFE = c"_Fork",
    DAEMON = c"daemon",
    FORKPTY = c"forkpty",
    CLONE = c"clone",
    POSIX_SPAWN = c"posix_spawn",
    POSIX_SPAWNP = c"posix_spawnp",
    SYSTEM = c"system",
    POPEN = c"popen",
    PROC_OPEN = c"_IO_proc_open",
    WORDEXP = c"wordexp",
    POSIX_FALLOCATE = c"posix_fallocate",
    FCHMODAT = c"fchmodat",
    DLOPEN = c"dlopen",
    DLMOPEN = c"dlmopen",
    EXECVPE = c"execvpe",
    FOPEN = c"fopen",
    FDOPEN = c"fdopen",
    FREOPEN = c"freopen",
    FCLOSE = c"fclose",
    FILENO = c"fileno",
    TMPFILE = c"tmpfile",
    PCLOSE = c"pclose",
    SETMNTENT = c"setmntent",
    ENDMNTENT = c"endmntent",
    DPRINTF = c"dprintf",
    VDPRINTF = c"vdprintf",
    CLOSEDIR = c"closedir",
    DIRFD = c"dirfd",
    LOGIN_TTY = c"login_tty",
    MKDTEMP = c"mkdtemp",
    MKSTEMP = c"mkstemp",
    MKOSTEMP = c"mkostemp",
    MKSTEMPS = c"mkstemps",
    MKOSTEMPS = c"mkostemps",
    AIO_WRITE = c"aio_write",
    LIO_LISTIO = c"lio_listio",
    SIGNAL = c"signal",
    SYSV_SIGNAL = c"__sysv_signal",
    SIGSET = c"sigset",
    SIGIGNORE = c"sigignore",
    SIGINTERRUPT = c"siginterrupt",
    SETUID = c"setuid",
    SETEUID = c"seteuid",
    SETREUID = c"setreuid",
    SETRESUID = c"setresuid",
    SETGID = c"setgid",
    SETEGID = c"setegid",
    SETREGID = c"setregid",
    SETRESGID = c"setresgid",
    SETGROUPS = c"setgroups",
    INITGROUPS = c"initgroups",
    SETFSUID = c"setfsuid",
    SETFSGID = c"setfsgid",
    CAPSET = c"capset",
    CHROOT = c"chroot",
    PIVOT_ROOT = c"pivot_root",
    SETNS = c"setns",
    PRCTL = c"prctl",
    // Those of musl alone: glibc's entries lead to us.
    MUSL_CLOSE = c"close",
    MUSL_FCHMOD = c"fchmod",
    MUSL_FCHOWN = c"fchown",
    MUSL_SENDMSG = c"sendmsg",
    MUSL_SENDMMSG = c"sendmmsg",
    MUSL_SIGACTION = c"sigaction",
}

/// What glibc before 2.34 has in `libpthread.so.0`, looked for when used.
pub static KEY_CREATE: Original = Original::new(c"pthread_key_create");
/// As above.
pub static KEY_DELETE: Original = Original::new(c"pthread_key_delete");
/// As above.
pub static SET_SPECIFIC: Original = Original::new(c"pthread_setspecific");
/// As above.
pub static ONCE: Original = Original::new(c"pthread_once");
/// What glibc has since 2.18.
pub static THREAD_ATEXIT: Original = Original::new(c"__cxa_thread_atexit_impl");
/// liburing's, looked for when used: it may be loaded late.
pub static IO_URING_QUEUE_INIT: Original = Original::new(c"io_uring_queue_init");
/// As above.
pub static IO_URING_QUEUE_INIT_PARAMS: Original = Original::new(c"io_uring_queue_init_params");
/// As above.
pub static IO_URING_QUEUE_INIT_MEM: Original = Original::new(c"io_uring_queue_init_mem");

/// Looks up, ahead of use, what the hooks need from libc, and which one it is. `own` is the address
/// of `holdfast_seen_writes`; `exported` learns what libc has under the names that are exported.
pub fn find_originals(own: usize, exported: impl Fn(&dyn Fn(&CStr) -> Option<usize>)) {
    OWN.store(own, Ordering::Relaxed);
    for original in ORIGINALS {
        original.find();
    }
    elf::objects(|name, object| {
        let musl = names_musl(name);
        if musl || is_libc(name) {
            // musl does not tell whether there is one thread alone; there the calls cost next to
            // nothing. Nor does glibc before 2.32, which has them in libpthread: no program without
            // it has threads.
            let never_tells = musl || !is_main(name);
            let flag = if never_tells { Some(0) } else { object.default_of(c"__libc_single_threaded") };
            let set = object.default_of(c"pthread_setcanceltype");
            let test = object.default_of(c"pthread_testcancel");
            exported(&|name| object.function(name));
            cancels::set_cancellation(flag.map(|flag| flag as *mut u8), set.unwrap_or(0), test.unwrap_or(0));
        }
        IS_MUSL.fetch_or(musl, Ordering::Relaxed);
    });
}

static IS_MUSL: AtomicBool = AtomicBool::new(false);

/// Whether the program's C library is musl. No, until the constructor has looked.
#[inline]
pub fn is_musl() -> bool {
    IS_MUSL.load(Ordering::Relaxed)
}

/// Whether the program's C library is glibc.
pub fn is_glibc() -> bool {
    let mut found = false;
    elf::objects(|name, _| found |= is_main(name));
    found
}

fn is_libc(name: &CStr) -> bool {
    LIBC_NAMES.iter().any(|end| name.to_bytes().ends_with(end))
}

/// musl is its own loader, and goes by the name under which the program asks for that.
fn names_musl(name: &CStr) -> bool {
    let file = name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    file.starts_with(b"ld-musl-") || file == b"libc.so"
}

/// Replaces libc's functions by the hooks. False, with nothing replaced, when the system or libc's
/// shape forbids it.
pub fn patch_libc(entries: &[Entry]) -> bool {
    // glibc before 2.34 has some of them a second time, in libpthread, for programs with threads.
    let (mut complete, mut fits) = (false, true);
    elf::objects(|name, object| {
        if is_libc(name) {
            each_target(entries, &object, |entry, symbol| {
                complete |= is_main(name);
                fits &= trampoline::has_room(symbol.address, entry.address(), symbol.bytes);
            });
        }
    });
    if !complete || !fits {
        return false;
    }
    elf::objects(|name, object| {
        if is_libc(name) {
            complete &= patch_object(entries, &object).unwrap_or(!is_main(name));
        }
    });
    complete
}

/// Whether this is the part of glibc that every program has.
fn is_main(name: &CStr) -> bool {
    name.to_bytes().ends_with(LIBC_NAMES[0])
}

fn each_target(entries: &[Entry], object: &Object, mut visit: impl FnMut(&Entry, elf::Symbol)) {
    for entry in entries {
        object.find(entry.name, |symbol| {
            if symbol.function {
                visit(entry, symbol);
            }
        });
    }
}

/// Whether an object's functions lead to the hooks now, if it has any of them.
fn patch_object(entries: &[Entry], object: &Object) -> Option<bool> {
    let (mut first, mut last, mut found) = (usize::MAX, 0, 0);
    each_target(entries, object, |_, symbol| {
        first = first.min(symbol.address);
        last = last.max(symbol.address);
        found += 1;
    });
    if found == 0 {
        return None;
    }
    // SAFETY: all addresses are functions of one object, so between them lies its text.
    let Some(text) = (unsafe { Text::open(first, last) }) else { return Some(false) };
    let mut fits = true;
    each_target(entries, object, |entry, symbol| {
        fits &= text.fits(symbol.address, entry.address(), symbol.bytes)
    });
    if fits {
        each_target(entries, object, |entry, symbol| {
            saved::keep(symbol.address);
            // SAFETY: constructors run before the program's threads, and we are not inside one of
            // these functions; the table pairs each name with a hook of the same shape.
            unsafe { text.replace(symbol.address, entry.address(), symbol.bytes) };
        });
    }
    let is_done = fits && !saved::is_full() && text.finish();
    if is_done {
        saved::note_object(first, last);
    }
    Some(is_done)
}

/// Has places in the program's own code lead to ours for good: at each address that is named stands
/// a jump to the other one, in at most `room` bytes. False, with nothing changed, when the system
/// refuses.
///
/// # Safety
/// All lie in one part of the code, and nobody runs these bytes yet.
pub unsafe fn lead(jumps: &[(usize, usize)], room: usize) -> bool {
    let first = jumps.iter().map(|(place, _)| *place).min();
    let Some((first, last)) = first.zip(jumps.iter().map(|(place, _)| *place).max()) else { return false };
    // SAFETY: the caller's promise.
    let Some(text) = (unsafe { Text::open(first, last) }) else { return false };
    if !jumps.iter().all(|(place, to)| text.fits(*place, *to, room)) {
        return false;
    }
    for (place, to) in jumps {
        // SAFETY: as above.
        unsafe { text.replace(*place, *to, room) };
    }
    text.finish()
}

/// Gives libc's functions their first bytes back. False where the system refuses: then they lead to
/// the hooks still.
pub fn unpatch() -> bool {
    saved::objects().all(|(first, last)| {
        // SAFETY: the range that was patched.
        let Some(text) = (unsafe { Text::open(first, last) }) else { return false };
        for (address, bytes) in saved::entries().filter(|(address, _)| (first..=last).contains(address)) {
            // SAFETY: what stood there before; a thread is at the jump's first byte or elsewhere.
            unsafe { text.restore(address, bytes) };
        }
        text.finish()
    })
}
