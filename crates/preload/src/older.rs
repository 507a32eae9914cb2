//! What the library asks for by names that a program's C library may have elsewhere, or not at all:
//! glibc before 2.34 has keys of threads in `libpthread.so.0`, which programs without threads do
//! not load, and before 2.30 no `gettid`.
//!
//! A library that asks for a version of a symbol that is not there keeps the program from starting.
//! So the linker binds these names to functions here (build.rs), which look for libc's own when
//! they are called: by Rust's runtime and the unwinder, for storage of threads that no hook uses.
//! Must not be called before the constructor has run.

use core::ffi::{c_int, c_void};

use holdfast_interpose::patch::{self, Original};
use holdfast_interpose::raw;

/// The function behind a name, if this process has one.
///
/// # Safety
/// `F` is the type of a pointer to that function.
unsafe fn own<F: Copy>(original: &Original) -> Option<F> {
    let address = original.address();
    // SAFETY: the caller's promise; the address is that of a function which is never unmapped.
    (address != 0).then(|| unsafe { core::mem::transmute_copy(&address) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn holdfast_key_create(
    key: *mut libc::pthread_key_t,
    destructor: Option<unsafe extern "C" fn(*mut c_void)>,
) -> c_int {
    type Create =
        unsafe extern "C" fn(*mut libc::pthread_key_t, Option<unsafe extern "C" fn(*mut c_void)>) -> c_int;
    // SAFETY: the function's type, and the caller's arguments.
    unsafe { own::<Create>(&patch::KEY_CREATE).map_or(libc::EAGAIN, |create| create(key, destructor)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn holdfast_key_delete(key: libc::pthread_key_t) -> c_int {
    type Delete = unsafe extern "C" fn(libc::pthread_key_t) -> c_int;
    // SAFETY: as above.
    unsafe { own::<Delete>(&patch::KEY_DELETE).map_or(libc::EINVAL, |delete| delete(key)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn holdfast_set_specific(key: libc::pthread_key_t, value: *const c_void) -> c_int {
    type Set = unsafe extern "C" fn(libc::pthread_key_t, *const c_void) -> c_int;
    // SAFETY: as above.
    unsafe { own::<Set>(&patch::SET_SPECIFIC).map_or(libc::EINVAL, |set| set(key, value)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn holdfast_once(control: *mut c_int, routine: unsafe extern "C" fn()) -> c_int {
    type Once = unsafe extern "C" fn(*mut c_int, unsafe extern "C" fn()) -> c_int;
    // SAFETY: as above.
    unsafe { own::<Once>(&patch::ONCE).map_or(libc::ENOSYS, |once| once(control, routine)) }
}

/// Without libc's (2.18 has the first) nothing of the thread is dropped at its end.
#[unsafe(no_mangle)]
unsafe extern "C" fn holdfast_thread_atexit(
    destructor: unsafe extern "C" fn(*mut c_void),
    object: *mut c_void,
    library: *mut c_void,
) -> c_int {
    type AtExit = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, *mut c_void) -> c_int;
    // SAFETY: as above.
    unsafe { own::<AtExit>(&patch::THREAD_ATEXIT).map_or(-1, |at_exit| at_exit(destructor, object, library)) }
}

#[unsafe(no_mangle)]
extern "C" fn holdfast_gettid() -> libc::pid_t {
    raw::gettid() as libc::pid_t
}
