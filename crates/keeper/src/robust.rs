//! The keeper's word in the board: the kernel marks it when the keeper dies, however it dies.
//!
//! A robust futex list (`set_robust_list(2)`) of one entry. At the thread's exit the kernel sets
//! `FUTEX_OWNER_DIED` in the word, which every client loads before it acknowledges anything.
#![allow(unsafe_code)]

use core::ptr;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use holdfast_board::Header;
use holdfast_disk::locked;

#[repr(C)]
struct Node {
    next: *const Node,
}

#[repr(C)]
struct Head {
    list: Node,
    futex_offset: libc::c_long,
    pending: *const Node,
}

/// The number of the thread whose life it is.
static BOUND: AtomicU32 = AtomicU32::new(0);

/// Puts the word right after a stray store; whether that was needed. `ending` is held over it, and
/// by who ends the keeper.
pub fn mend(header: &Header, ending: &Mutex<bool>) -> bool {
    let is_ending = locked(ending);
    let is_wrong = !*is_ending && !header.keeper_alive();
    if is_wrong {
        header.begin_keeper(BOUND.load(Ordering::SeqCst));
    }
    is_wrong
}

/// Ties the board's word of the keeper to the life of the calling thread, which must be one that
/// lives as long as the keeper.
///
/// The board must stay mapped for the rest of the process's life.
pub fn bind_to_this_thread(header: &'static Header) -> io::Result<()> {
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    BOUND.store(tid, Ordering::SeqCst);
    header.begin_keeper(tid);
    let word = header.keeper_word();
    let head: &'static mut Head =
        Box::leak(Box::new(Head { list: Node { next: ptr::null() }, futex_offset: 0, pending: ptr::null() }));
    let node: &'static mut Node = Box::leak(Box::new(Node { next: ptr::from_ref(&head.list) }));
    head.futex_offset = (word.as_ptr() as isize).wrapping_sub(ptr::from_ref(node) as isize) as libc::c_long;
    head.list.next = ptr::from_ref(node);
    // SAFETY: head and node are leaked, form a circular list of one entry as the kernel expects,
    // and the entry plus `futex_offset` is the address of the word, mapped for good. The C
    // library's own list of this thread is replaced; it serves robust pthread mutexes, of which
    // this program has none.
    let result = unsafe { libc::syscall(libc::SYS_set_robust_list, ptr::from_ref(head), size_of::<Head>()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
