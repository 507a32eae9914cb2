//! What this process is: the one that the library was loaded into, a forked child of it, a child
//! that runs in its parent's memory, or a Go program whose threads know nothing of libc.
//!
//! Who we are lies in a page that the kernel wipes in forked children, so that a child made by any
//! means can never act under its parent's number.
#![allow(unsafe_code)] // A wiped page.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::raw::{self, call};
use crate::tls;

/// Of the wiped page's word: a forked child that has not looked yet.
pub const WIPED: u32 = 0;

/// What a process knows of itself: zeros in every forked child.
#[repr(C)]
pub struct OwnWords {
    /// How far it is a client ([`WIPED`], or what its users make of it).
    pub state: AtomicU32,
    /// Threads that take a record lock (`locks`).
    pub locking: AtomicU32,
    /// Threads that open a file again (`locks`).
    pub reading: AtomicU32,
}

/// Null until this process, or one it was forked from, has been a client.
static PAGE: AtomicPtr<OwnWords> = AtomicPtr::new(core::ptr::null_mut());
static OWN_PID: AtomicI32 = AtomicI32::new(0);
/// Go runs, or will, on threads of its own making.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Whether this process is a Go program whose threads know nothing of libc.
#[inline]
pub fn is_entered() -> bool {
    ENTERED.load(Ordering::Relaxed)
}

/// From now on it is.
pub fn enter() {
    ENTERED.store(true, Ordering::SeqCst);
}

/// Remembers which process this is.
pub fn remember() {
    OWN_PID.store(raw::getpid(), Ordering::Relaxed);
}

/// From now on this process knows itself by `words`; or, with `None`, it has never been a client.
/// Whether it knew itself before.
pub fn know_by(words: Option<&'static OwnWords>) -> bool {
    let page = words.map_or(core::ptr::null_mut(), |words| core::ptr::from_ref(words).cast_mut());
    !PAGE.swap(page, Ordering::SeqCst).is_null()
}

/// What this process knows of itself, once it or one that it was forked from has been a client.
#[inline]
pub fn own_words() -> Option<&'static OwnWords> {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: null, or a page that is never unmapped, aligned and used only through these atomics.
    unsafe { page.as_ref() }
}

/// How far it is a client.
#[inline]
pub fn page_word() -> Option<&'static AtomicU32> {
    own_words().map(|words| &words.state)
}

/// Whether this process was forked by a client and has not said hello yet.
pub fn is_new_child() -> bool {
    page_word().is_some_and(|word| word.load(Ordering::SeqCst) == WIPED)
}

/// Whether this is a child that runs in its parent's memory.
#[inline]
pub fn runs_in_parents_memory() -> bool {
    // The flag alone does not tell parent from child: `system` waits with it set and may take
    // signals meanwhile.
    // One that has given up rights may not even ask.
    tls::with(|thread| thread.spawning.get() != 0)
        && (is_quiet() || raw::getpid() != OWN_PID.load(Ordering::Relaxed))
}

/// Whether this is a child in its parent's memory that has given up rights.
pub fn is_quiet() -> bool {
    tls::with(|thread| thread.quiet.get() != 0)
}

/// Maps a page that reads as zero in every forked child.
pub fn wiped_page() -> Option<&'static OwnWords> {
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
