//! What is above Go's calls: the hooks, which are told once, and the words for what cannot be led
//! to them. It knows no program.
#![allow(unsafe_code)] // The program's own calls.

use core::ffi::{c_char, c_int, c_long};
use core::sync::atomic::{AtomicPtr, Ordering};

use holdfast_cache::Unseen;
use holdfast_enter::Refusal;

/// What is above Go's calls.
pub struct Hooks {
    /// Makes a system call as its hook does; -1 and `errno`, as libc's `syscall`.
    pub syscall: unsafe extern "C-unwind" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long,
    /// Go's own thread is about to make a child, which may share its descriptor numbers.
    pub forks: fn(shares_numbers: bool),
    /// Forks by this call, as libc's `fork` does.
    pub fork: unsafe fn(c_long, [usize; 6]) -> isize,
    /// Whether a number is known to be no regular file's: calls on it are the kernel's, and may
    /// wait.
    pub is_kernels: fn(c_int) -> bool,
    /// The program is about to do what cannot be followed, for this reason.
    pub leave: fn(Unseen),
    /// Executes a program as it is, which could not be entered for this reason.
    pub execute: unsafe fn(Option<Unseen>, *const c_char, Arguments, Arguments),
}

/// Arguments of a program, or an environment: an array of C strings with a null end.
pub type Arguments = *const *const c_char;

static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(core::ptr::null_mut());

/// Has Go's calls go there.
pub fn set(hooks: &'static Hooks) {
    HOOKS.store(core::ptr::from_ref(hooks).cast_mut(), Ordering::Release);
}

/// The hooks, once a program was asked for or led.
#[inline]
pub fn hooks() -> Option<&'static Hooks> {
    // SAFETY: null, or what was set, which lives for ever.
    unsafe { HOOKS.load(Ordering::Acquire).as_ref() }
}

/// What the keeper is told of a program that was refused.
pub fn unseen(refusal: Refusal) -> Unseen {
    match refusal {
        Refusal::NotGo => Unseen::Static,
        Refusal::NotPlain => Unseen::GoWithC,
        Refusal::Unknown => Unseen::GoUnknown,
        Refusal::Machine => Unseen::GoMachine,
        Refusal::Forbidden => Unseen::GoForbidden,
        Refusal::Call(_) => Unseen::StaticCall,
        Refusal::PlainMachine => Unseen::StaticMachine,
        Refusal::PlainForbidden => Unseen::StaticForbidden,
    }
}
