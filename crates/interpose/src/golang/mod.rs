//! Go programs. Into those that have a loader this library is preloaded, and leads their calls to
//! the hooks ([`loaded`]). In the place of a static one `holdfast-enter` is executed, and this
//! library maps the program beside itself, has its calls come to the hooks, and begins it.
//!
//! The program is mapped before the keeper is met, so that all that may be refused is refused while
//! the program can still be executed as it is. Once Go runs, it has the thread pointer and all
//! signal handlers: the hooks run on threads' areas ([`thread`]) that Go does not know of.
#![allow(unsafe_code)] // Maps a program and begins it.

mod calls;
mod loaded;
mod map;
mod name;
mod start;
mod thread;
mod ways;

use core::ffi::{CStr, c_char, c_int, c_long};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use holdfast_cache::Unseen;
use holdfast_enter::{Program, Refusal};

use crate::raw::{self, call};
use crate::{cancels, environment, own_process, signals};

pub use loaded::{Threads, lead, led, release};

/// Where Go's code leads.
type Way = unsafe extern "C" fn();

const VARIABLE: &[u8] = b"HOLDFAST_ENTER=";
/// Longer paths are executed as they are.
const PATH_BYTES: usize = 4096;

/// Nobody asked for a program.
const NONE: u8 = 0;
/// It is mapped.
const MAPPED: u8 = 1;
/// It cannot be entered.
const REFUSED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(NONE);
static WHY: AtomicU8 = AtomicU8::new(0);
/// The path that was asked for: in the environment that the kernel passed.
static PATH: AtomicUsize = AtomicUsize::new(0);
/// Where the kernel put the auxiliary vector.
static AUXILIARY: AtomicUsize = AtomicUsize::new(0);
static ENTRY: AtomicU64 = AtomicU64::new(0);
static HEADERS: AtomicU64 = AtomicU64::new(0);
static HEADERS_COUNT: AtomicU64 = AtomicU64::new(0);

/// What is above Go's calls.
pub struct Hooks {
    /// Makes a system call as its hook does; -1 and `errno`, as libc's `syscall`.
    pub syscall: unsafe extern "C-unwind" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long,
    /// Go's own thread is about to make a child, which may share its descriptor numbers.
    pub forks: fn(shares_numbers: bool),
    /// Executes a program as it is, which could not be entered for this reason.
    pub execute: unsafe fn(Option<Unseen>, *const c_char, Arguments, Arguments),
}

/// Arguments of a program, or an environment: an array of C strings with a null end.
pub type Arguments = *const *const c_char;

static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(core::ptr::null_mut());

fn set_hooks(hooks: &'static Hooks) {
    HOOKS.store(core::ptr::from_ref(hooks).cast_mut(), Ordering::Release);
}

/// The hooks, once a program was asked for or led.
#[inline]
fn hooks() -> Option<&'static Hooks> {
    // SAFETY: null, or what was set, which lives for ever.
    unsafe { HOOKS.load(Ordering::Acquire).as_ref() }
}

/// Whether a program was mapped that is about to begin.
pub fn is_mapped() -> bool {
    STATE.load(Ordering::Relaxed) == MAPPED
}

/// Whether a program was refused that is to be executed as it is.
pub fn is_refused() -> bool {
    STATE.load(Ordering::Relaxed) == REFUSED
}

/// Maps the program that the environment asks for. Only the constructor calls it, before the keeper
/// is met.
///
/// # Safety
/// `environment` is null or the array that the kernel passed.
pub unsafe fn prepare(environment: *const *const c_char, hooks: &'static Hooks) {
    if environment.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let Some((at, _)) = (unsafe { environment::find(environment, VARIABLE) }) else { return };
    // SAFETY: asks the loader for an address; the kernel's string.
    let is_agent = unsafe {
        let name: *const c_char =
            core::ptr::with_exposed_provenance(libc::getauxval(libc::AT_EXECFN) as usize);
        !name.is_null() && raw::path(name).to_bytes().ends_with(holdfast_enter::NAME.as_bytes())
    };
    if !is_agent {
        return;
    }
    set_hooks(hooks);
    // SAFETY: as above; the vector lies behind the array's null end.
    let path = unsafe {
        let mut end = environment;
        while !(*end).is_null() {
            end = end.add(1);
        }
        AUXILIARY.store(end.add(1).addr(), Ordering::Relaxed);
        let path = (*environment.add(at)).add(VARIABLE.len());
        PATH.store(path.expose_provenance(), Ordering::Relaxed);
        raw::path(path)
    };
    let mapped = thread::look().and_then(|()| map::map(path));
    match mapped {
        Ok(program) => {
            remember(&program);
            STATE.store(MAPPED, Ordering::Relaxed);
        }
        Err(refusal) => {
            WHY.store(unseen(refusal) as u8, Ordering::Relaxed);
            STATE.store(REFUSED, Ordering::Relaxed);
        }
    }
}

fn remember(program: &Program) {
    ENTRY.store(program.entry, Ordering::Relaxed);
    HEADERS.store(program.headers, Ordering::Relaxed);
    HEADERS_COUNT.store(program.headers_count, Ordering::Relaxed);
}

fn unseen(refusal: Refusal) -> Unseen {
    match refusal {
        Refusal::NotGo => Unseen::Static,
        Refusal::NotPlain => Unseen::GoWithC,
        Refusal::Unknown => Unseen::GoUnknown,
        Refusal::Machine => Unseen::GoMachine,
        Refusal::Forbidden => Unseen::GoForbidden,
    }
}

/// Begins the program that was mapped, or executes one that was refused. Returns a status, when
/// nothing can be begun.
///
/// # Safety
/// `arguments` is the array that the kernel passed, and nobody uses this stack any more.
pub unsafe fn enter(arguments: Arguments) -> c_int {
    const NOT_STARTED: c_int = 126;
    let path: *const c_char = core::ptr::with_exposed_provenance(PATH.load(Ordering::Relaxed));
    match STATE.load(Ordering::Relaxed) {
        MAPPED => {
            signals::stand_apart();
            cancels::forget_cancellation();
            own_process::enter();
            // SAFETY: the caller's promise; the program is mapped.
            unsafe { start::begin(arguments, path) }
        }
        // SAFETY: the caller's promise.
        REFUSED => unsafe { execute(arguments, path) },
        _ => {}
    }
    raw::say(&[b"holdfast-enter: nothing to start\n"]);
    NOT_STARTED
}

/// Executes the program as it is, which the keeper is told.
unsafe fn execute(arguments: Arguments, path: *const c_char) {
    let auxiliary = AUXILIARY.load(Ordering::Relaxed);
    if let Some(hooks) = hooks() {
        let why = Unseen::from_u64(u64::from(WHY.load(Ordering::Relaxed)));
        // SAFETY: the arrays are the kernel's, as the caller says; no entry is looked at again. The
        // path is a string of the environment, which stays where it is.
        unsafe {
            let environment = start::without_variable(arguments, auxiliary);
            (hooks.execute)(why, path, arguments, environment);
        }
    }
    // SAFETY: as above.
    raw::say(&[b"holdfast: cannot start ", unsafe { CStr::from_ptr(path) }.to_bytes(), b"\n"]);
}

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
        // SAFETY: the program's own call, of another program.
        Some(unsafe { call!(libc::SYS_execve, self.path.as_ptr(), arguments, variables.as_ptr()) })
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
