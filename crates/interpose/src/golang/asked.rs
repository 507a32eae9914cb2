//! The static program that the environment asks for: it is mapped beside this library, or refused,
//! and begun when nobody uses the stack any more.
//!
//! It is mapped before the keeper is met, so that all that may be refused is refused while the
//! program can still be executed as it is.
#![allow(unsafe_code)] // Maps a program and begins it.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use holdfast_cache::Unseen;
use holdfast_enter::{Program, Refusal};

use super::agent::VARIABLE;
use super::hooks::{self, Arguments, Hooks, unseen};
use super::image::Whole;
use super::start::{self, Beginning};
use super::{map, plain, thread};
use crate::{cancels, environment, own_process, raw, signals};

/// Nobody asked for a program.
const NONE: u8 = 0;
/// It is mapped.
const MAPPED: u8 = 1;
/// It cannot be entered.
const REFUSED: u8 = 2;
/// One that is not Go's is mapped.
const MAPPED_PLAIN: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(NONE);
static WHY: AtomicU8 = AtomicU8::new(0);
/// The path that was asked for: in the environment that the kernel passed.
static PATH: AtomicUsize = AtomicUsize::new(0);
/// Where the kernel put the auxiliary vector.
static AUXILIARY: AtomicUsize = AtomicUsize::new(0);
static ENTRY: AtomicU64 = AtomicU64::new(0);
static HEADERS: AtomicU64 = AtomicU64::new(0);
static HEADERS_COUNT: AtomicU64 = AtomicU64::new(0);

/// Whether a program was mapped that is about to begin.
pub fn is_mapped() -> bool {
    matches!(STATE.load(Ordering::Relaxed), MAPPED | MAPPED_PLAIN)
}

/// Whether it is one that Go did not build.
pub fn is_plain() -> bool {
    STATE.load(Ordering::Relaxed) == MAPPED_PLAIN
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
    hooks::set(hooks);
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
    match map(path) {
        Ok((program, state)) => {
            remember(&program);
            STATE.store(state, Ordering::Relaxed);
        }
        Err(refusal) => {
            WHY.store(unseen(refusal) as u8, Ordering::Relaxed);
            STATE.store(REFUSED, Ordering::Relaxed);
        }
    }
}

/// Maps a program of Go's, or another one.
fn map(path: &CStr) -> Result<(Program, u8), Refusal> {
    let file = Whole::open(path).ok_or(Refusal::Forbidden)?;
    if holdfast_enter::is_static_go(file.bytes()) {
        thread::look()?;
        return map::map(&file, path).map(|program| (program, MAPPED));
    }
    plain::map(&file, path).map(|program| (program, MAPPED_PLAIN))
}

fn remember(program: &Program) {
    ENTRY.store(program.entry, Ordering::Relaxed);
    HEADERS.store(program.headers, Ordering::Relaxed);
    HEADERS_COUNT.store(program.headers_count, Ordering::Relaxed);
}

fn beginning() -> Beginning {
    Beginning {
        auxiliary: AUXILIARY.load(Ordering::Relaxed),
        entry: ENTRY.load(Ordering::Relaxed),
        headers: HEADERS.load(Ordering::Relaxed),
        headers_count: HEADERS_COUNT.load(Ordering::Relaxed),
        without_pointer: is_plain(),
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
            unsafe { start::begin(arguments, path, &beginning()) }
        }
        MAPPED_PLAIN => {
            plain::take_signals();
            cancels::forget_cancellation();
            own_process::enter();
            // SAFETY: the caller's promise; the program is mapped.
            unsafe { start::begin(arguments, path, &beginning()) }
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
    if let Some(hooks) = hooks::hooks() {
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
