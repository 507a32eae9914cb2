//! What each of Go's threads has to run hooks with: a stack, and thread-local storage as the
//! loader made it for the first thread. Both lie in its area, which the GS base points to: Go on
//! this processor leaves that register alone. A thread that libc made for Go has storage already,
//! and uses the stack of an area alone, to which a word of that storage points.
//!
//! Go's own thread pointer is changed for the length of a call. The word below the other one holds
//! the same goroutine, so that a handler of Go's that comes meanwhile finds it. Such a handler
//! never comes back to a hook, never ends one by a jump, and waits for nobody who could wait for
//! one. A new thread inherits the GS base of the one that made it: an area knows the thread pointer
//! of its owner, and whoever has another one gets an area of its own, or one whose owner has ended.
//! Nothing here may use thread-local storage but on an area.
#![allow(unsafe_code)] // Instructions, memory that the loader laid out.

use core::arch::asm;
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use holdfast_enter::Refusal;

use crate::raw::{self, call};
use crate::tls;
use crate::waits::{self, Waits};

/// Of an area: what cannot be accessed, then the stack, then thread-local storage, then [`Area`].
const GUARD_BYTES: usize = 4096;
pub const STACK_BYTES: usize = 64 << 10;
const STORAGE_BYTES: usize = 24 << 10;
const AREA_AT: usize = STACK_BYTES + STORAGE_BYTES;
pub const AREA_BYTES: usize = AREA_AT + 4096;
/// What glibc keeps above the thread pointer that our calls of it may look at.
const HEAD_BYTES: usize = 704;
/// Room for it, and for what it may have beyond.
const HEAD_ROOM: usize = 4096;
/// How many areas are looked at for one whose owner has ended.
const LOOKS: u32 = 32;

/// Nobody is in it.
pub const FREE: u32 = 0;
/// Its owner makes a call.
pub const BUSY: u32 = 1;
/// It gets another owner.
pub const TAKEN: u32 = 2;

/// What belongs to one thread. The instructions ([`super::ways`]) know the places of its
/// fields.
#[repr(C)]
pub struct Area {
    /// The thread pointer for hooks.
    pointer: usize,
    /// Go's thread pointer of the owner.
    owner: AtomicU64,
    state: AtomicU32,
    /// The owner's number.
    thread: AtomicU32,
    stack: usize,
    /// Go's registers.
    saved: [usize; 3],
    number: c_long,
    arguments: [usize; 6],
    next: AtomicPtr<Area>,
    /// Of signals that come in hooks: where threads put them off.
    pub waits: Waits,
}

impl Area {
    /// The thread has another number now: it is the only one of a forked child.
    pub fn take_number(&self) {
        self.thread.store(raw::gettid(), Ordering::SeqCst);
    }

    /// The call that its thread makes.
    pub fn call(&self) -> (c_long, [usize; 6]) {
        (self.number, self.arguments)
    }
}

/// All areas.
static FIRST: AtomicPtr<Area> = AtomicPtr::new(core::ptr::null_mut());
/// Where to look next.
static CURSOR: AtomicPtr<Area> = AtomicPtr::new(core::ptr::null_mut());
/// The first thread's storage, and how much of it lies below its thread pointer.
static POINTER: AtomicUsize = AtomicUsize::new(0);
static BELOW: AtomicUsize = AtomicUsize::new(0);
/// Where Go goes on after it made a child in its memory: where that failed, and where not.
pub static VFORK_FAILED: AtomicUsize = AtomicUsize::new(0);
/// As above.
pub static VFORK_DONE: AtomicUsize = AtomicUsize::new(0);

/// Sets where `rawVforkSyscall` goes on.
pub fn set_vfork_ways(failed: usize, done: usize) {
    VFORK_FAILED.store(failed, Ordering::Relaxed);
    VFORK_DONE.store(done, Ordering::Relaxed);
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Area, owner) == 8 && offset_of!(Area, state) == 16 && offset_of!(Area, stack) == 24);
    assert!(offset_of!(Area, saved) == 32 && offset_of!(Area, number) == 56);
    assert!(offset_of!(Area, arguments) == 64 && offset_of!(Area, waits) == waits::AREA_AT);
};

/// Two words, as C returns them.
#[repr(C)]
pub struct Made {
    area: *mut Area,
    /// What is not needed of the new memory: all of it, or nothing.
    unneeded: usize,
}

/// An area for the thread with Go's thread pointer `owner`: of one that has ended, or the new
/// memory at `base`, on whose stack this runs.
pub unsafe extern "C" fn make(base: usize, owner: u64) -> Made {
    if let Some(made) = make_of_another(base, owner) {
        return made;
    }
    let (below, from) = (BELOW.load(Ordering::Relaxed), POINTER.load(Ordering::Relaxed));
    let pointer = base + AREA_AT - HEAD_ROOM;
    let area: *mut Area = core::ptr::with_exposed_provenance_mut(base + AREA_AT);
    // SAFETY: the new memory is ours and zero; `look` has found that what is copied fits. The first
    // thread's storage is used by nobody any more.
    unsafe {
        call!(libc::SYS_mprotect, base, GUARD_BYTES, libc::PROT_NONE);
        let to = |address: usize| core::ptr::with_exposed_provenance_mut::<u8>(address);
        let (first, all) = (from - below, below + HEAD_BYTES);
        core::ptr::copy_nonoverlapping(to(first).cast_const(), to(pointer - below), all);
        // A new thread's block of ours is zero.
        let block = tls::offset();
        core::ptr::write_bytes(to(pointer.wrapping_add_signed(block)), 0, size_of::<tls::Thread>());
        // Where the block says that it lies itself.
        for word in [0, 16] {
            to(pointer + word).cast::<usize>().write(pointer);
        }
    }
    // SAFETY: the new memory is ours, and is not looked at before it is whole.
    unsafe { add(area, pointer, base, owner) };
    Made { area, unneeded: 0 }
}

/// The same for a thread of a program of C. One that had an area when its thread
/// pointer was another keeps it.
pub unsafe extern "C" fn make_for_plain(base: usize, owner: u64, current: *const Area) -> Made {
    // SAFETY: null, or an area, and these are never unmapped.
    if let Some(area) = unsafe { current.as_ref() }
        && area.thread.load(Ordering::SeqCst) == raw::gettid()
    {
        area.owner.store(owner, Ordering::SeqCst);
        return Made { area: current.cast_mut(), unneeded: base };
    }
    // SAFETY: the caller's promise.
    unsafe { make(base, owner) }
}

/// The same for a thread that libc made, which has storage of its own.
pub unsafe extern "C" fn make_for_libc(base: usize, owner: u64) -> Made {
    if let Some(made) = make_of_another(base, owner) {
        return made;
    }
    let area: *mut Area = core::ptr::with_exposed_provenance_mut(base + AREA_AT);
    // SAFETY: the new memory is ours, and is not looked at before it is whole.
    unsafe {
        call!(libc::SYS_mprotect, base, GUARD_BYTES, libc::PROT_NONE);
        add(area, owner as usize, base, owner);
    }
    Made { area, unneeded: 0 }
}

/// Gives this thread an area whose owner has ended, if there is one.
fn make_of_another(base: usize, owner: u64) -> Option<Made> {
    let area = left_behind()?;
    area.owner.store(owner, Ordering::SeqCst);
    area.thread.store(raw::gettid(), Ordering::SeqCst);
    area.waits.forget();
    area.state.store(FREE, Ordering::SeqCst);
    Some(Made { area: core::ptr::from_ref(area).cast_mut(), unneeded: base })
}

/// Adds an area to all others.
///
/// # Safety
/// It lies in the new memory at `base`.
unsafe fn add(area: *mut Area, pointer: usize, base: usize, owner: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        area.write(Area {
            pointer,
            owner: AtomicU64::new(owner),
            state: AtomicU32::new(FREE),
            thread: AtomicU32::new(raw::gettid()),
            stack: base + STACK_BYTES,
            saved: [0; 3],
            number: 0,
            arguments: [0; 6],
            next: AtomicPtr::new(core::ptr::null_mut()),
            waits: Waits::default(),
        });
        let mut first = FIRST.load(Ordering::SeqCst);
        loop {
            (*area).next.store(first, Ordering::SeqCst);
            match FIRST.compare_exchange(first, area, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => first = now,
            }
        }
    }
}

/// An area whose owner has ended, taken.
fn left_behind() -> Option<&'static Area> {
    let pid = raw::getpid();
    let mut at = CURSOR.load(Ordering::SeqCst);
    for _ in 0..LOOKS {
        if at.is_null() {
            at = FIRST.load(Ordering::SeqCst);
        }
        // SAFETY: null, or an area, and these are never unmapped.
        let area = unsafe { at.as_ref() }?;
        at = area.next.load(Ordering::SeqCst);
        // SAFETY: touches no memory; signal 0 is none.
        let found = unsafe { call!(libc::SYS_tgkill, pid, area.thread.load(Ordering::SeqCst), 0) };
        if found == -(libc::ESRCH as isize)
            && area.state.compare_exchange(FREE, TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            CURSOR.store(at, Ordering::SeqCst);
            return Some(area);
        }
    }
    CURSOR.store(at, Ordering::SeqCst);
    None
}

/// Looks whether areas can be made here: what the processor has, and how the loader has laid out
/// thread-local storage. On the first thread, before Go.
pub fn look() -> Result<(), Refusal> {
    const AT_HWCAP2: u64 = 26;
    const FSGSBASE: u64 = 2;
    // SAFETY: asks the loader for a number.
    if unsafe { libc::getauxval(AT_HWCAP2) } & FSGSBASE == 0 {
        return Err(Refusal::Machine);
    }
    let pointer: usize;
    // SAFETY: the first word at the thread pointer is its address.
    unsafe { asm!("mov {0}, qword ptr fs:[0]", out(reg) pointer) };
    let mut found = Storage { lowest: pointer, program: 0 };
    // SAFETY: the callback gets back the pointer passed here, during this call only.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    let below = pointer - found.lowest;
    if found.program != pointer || below + HEAD_ROOM > STORAGE_BYTES {
        return Err(Refusal::Forbidden);
    }
    POINTER.store(pointer, Ordering::Relaxed);
    BELOW.store(below, Ordering::Relaxed);
    Ok(())
}

struct Storage {
    /// The first byte of all objects' storage.
    lowest: usize,
    /// Where the program's own ends.
    program: usize,
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is what `look` passed; `info` is valid during the callback.
    let (found, info) = unsafe { (&mut *data.cast::<Storage>(), &*info) };
    if info.dlpi_tls_data.is_null() {
        return 0;
    }
    found.lowest = found.lowest.min(info.dlpi_tls_data.addr());
    // SAFETY: the loader's name for the object, a string; the program's own is empty.
    if info.dlpi_name.is_null() || unsafe { *info.dlpi_name } == 0 {
        // SAFETY: the table of program headers.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        if let Some(storage) = headers.iter().find(|header| header.p_type == libc::PT_TLS) {
            found.program = info.dlpi_tls_data.addr() + storage.p_memsz as usize;
        }
    }
    0
}
