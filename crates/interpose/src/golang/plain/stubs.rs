//! The memory near a program in which the instructions lie that stand in the place of its calls.
#![allow(unsafe_code)] // Writes instructions.

use core::ffi::c_long;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use holdfast_enter::{Known, STUB_BYTES, Site, TABLE_BYTES, jump, led, write};

use crate::raw::{self, call};

const PAGE: usize = 4096;
/// Before the stubs: which numbers are led, and where to.
const HEAD_BYTES: usize = TABLE_BYTES + PAGE;

/// Where a stub's own call lies, and the program's in whose place it is.
#[repr(C)]
struct Place {
    /// The stub's.
    call: AtomicU64,
    /// The program's.
    original: AtomicU64,
}

/// The first stub, and how many there are.
static STUBS: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Where it says of each which call it stands for.
static PLACES: AtomicUsize = AtomicUsize::new(0);
/// Which numbers are led.
static TABLE: AtomicUsize = AtomicUsize::new(0);

/// Room for the stubs of a program, near it.
pub struct Room {
    head: usize,
    stubs: usize,
    places: usize,
    end: usize,
    count: usize,
}

/// Bytes of memory for so many.
pub fn bytes(count: usize) -> usize {
    let stubs = (count * STUB_BYTES).next_multiple_of(PAGE);
    HEAD_BYTES + stubs + (count * size_of::<Place>()).next_multiple_of(PAGE)
}

impl Room {
    /// In the memory at `head`, of [`bytes`], which is zero and may be written to.
    pub fn new(head: usize, count: usize) -> Self {
        let stubs = head + HEAD_BYTES;
        let places = stubs + (count * STUB_BYTES).next_multiple_of(PAGE);
        Self { head, stubs, places, end: head + bytes(count), count: 0 }
    }

    /// Has calls of these numbers led to `way`.
    ///
    /// # Safety
    /// The room's memory is there.
    pub unsafe fn lead(&self, numbers: impl Iterator<Item = c_long>, way: usize) {
        // SAFETY: the caller's promise; numbers are below the table's length.
        unsafe {
            core::ptr::with_exposed_provenance_mut::<usize>(self.head + TABLE_BYTES).write(way);
            numbers.for_each(|number| flag(self.head, number).store(1, Ordering::Relaxed));
        }
        TABLE.store(self.head, Ordering::Relaxed);
    }

    /// Writes the stub of a site, where `program` stands, and puts a jump there.
    ///
    /// # Safety
    /// The room's memory is there, and `program` is the site's bytes, which may be written to.
    pub unsafe fn add(&mut self, site: &Site, program: &mut [u8]) -> Option<()> {
        let address = self.stubs + self.count * STUB_BYTES;
        let place = self.places + self.count * size_of::<Place>();
        if address + STUB_BYTES > self.places || place + size_of::<Place>() > self.end {
            return None;
        }
        let known = Known { table: self.head as u64, way: (self.head + TABLE_BYTES) as u64 };
        // SAFETY: within the room.
        let (to, place) = unsafe {
            let to = core::ptr::with_exposed_provenance_mut::<[u8; STUB_BYTES]>(address);
            (&mut *to, &*core::ptr::with_exposed_provenance::<Place>(place))
        };
        let stub = write(to, address as u64, site, program, &known)?;
        let jump = jump(site, address as u64)?;
        place.call.store(address as u64 + u64::from(stub.call), Ordering::Relaxed);
        place.original.store(site.call, Ordering::Relaxed);
        // Whoever comes into the midst of it is stopped.
        program.fill(0xcc);
        program.get_mut(..jump.len())?.copy_from_slice(&jump);
        self.count += 1;
        Some(())
    }

    /// From now on the stubs are code.
    pub fn close(self) -> Option<()> {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: the room's own memory.
        let closed = unsafe { call!(libc::SYS_mprotect, self.stubs, self.places - self.stubs, protection) };
        raw::check(closed).ok()?;
        STUBS.store(self.stubs, Ordering::Relaxed);
        PLACES.store(self.places, Ordering::Relaxed);
        COUNT.store(self.count, Ordering::Relaxed);
        Some(())
    }
}

/// # Safety
/// The table is there, and the number below its length.
unsafe fn flag<'a>(table: usize, number: c_long) -> &'a AtomicU8 {
    // SAFETY: the caller's promise.
    unsafe { &*core::ptr::with_exposed_provenance::<AtomicU8>(table + number as usize) }
}

/// The library leaves the process: calls go to the kernel at once, but for those that start
/// programs, and those that set handlers, which stay ours.
pub fn release() {
    let table = TABLE.load(Ordering::Relaxed);
    for number in led().filter(|_| table != 0) {
        if !matches!(number, libc::SYS_execve | libc::SYS_execveat | libc::SYS_rt_sigaction) {
            // SAFETY: the table was made before it was named, and is never unmapped.
            unsafe { flag(table, number) }.store(0, Ordering::Relaxed);
        }
    }
}

/// The stub in which an instruction lies: its call, and the program's in whose place that is.
pub fn place_of(instruction: u64) -> Option<(u64, u64)> {
    let stubs = STUBS.load(Ordering::Relaxed);
    let inside = usize::try_from(instruction).ok()?.checked_sub(stubs)?;
    let at = inside / STUB_BYTES;
    if stubs == 0 || at >= COUNT.load(Ordering::Relaxed) {
        return None;
    }
    let place = PLACES.load(Ordering::Relaxed) + at * size_of::<Place>();
    // SAFETY: within the places, which are never unmapped.
    let place = unsafe { &*core::ptr::with_exposed_provenance::<Place>(place) };
    Some((place.call.load(Ordering::Relaxed), place.original.load(Ordering::Relaxed)))
}
