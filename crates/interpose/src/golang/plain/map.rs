//! Mapping a static program as the kernel would, and having its calls led to the hooks. Nothing of
//! the program runs yet, and no other thread is there.
#![allow(unsafe_code)] // Maps memory, and writes to the program's code.

use core::arch::x86_64::__cpuid_count;
use core::ffi::CStr;

use holdfast_enter::{
    NEAR_JUMP_BYTES, Plain, Program, Refusal, Site, find_sites, judge_plain, led, scratch_bytes, segments,
};

use super::super::image::{Whole, map_segment};
use super::super::{name, thread};
use super::stubs::{self, Room};
use super::ways;
use crate::raw::{self, call};

const PAGE: u64 = 4096;
const PF_W: u32 = 2;
const PF_X: u32 = 1;
/// What stays free behind a program that may grow there.
const GAP: u64 = 64 << 10;

/// Maps the program of this file, which is at `path`.
///
/// # Errors
/// Why it cannot be entered. It can still be executed.
pub fn map(file: &Whole, path: &CStr) -> Result<Program, Refusal> {
    let plain = judge_plain(file.bytes())?;
    thread::look().map_err(|why| match why {
        Refusal::Machine => Refusal::PlainMachine,
        _ => Refusal::PlainForbidden,
    })?;
    if !has_xsavec() {
        return Err(Refusal::PlainMachine);
    }
    let sites = Sites::find(file.bytes())?;
    let base = map_all(file, &plain, sites.all().len()).ok_or(Refusal::PlainForbidden)?;
    lead(file.bytes(), &plain, base, sites.all())?;
    name::take(file.fd, path);
    Ok(Program {
        entry: plain.entry + base,
        headers: plain.headers + base,
        headers_count: plain.headers_count,
        call: 0,
        vfork: None,
    })
}

/// Whether the processor saves what hooks may change of a thread's registers in that way.
fn has_xsavec() -> bool {
    const STATES: u32 = 0xd;
    const OSXSAVE: u32 = 1 << 27;
    const XSAVEC: u32 = 1 << 1;
    __cpuid_count(0, 0).eax >= STATES
        && __cpuid_count(1, 0).ecx & OSXSAVE != 0
        && __cpuid_count(STATES, 1).eax & XSAVEC != 0
}

/// Memory of the constructor's own, zero.
struct Memory {
    address: usize,
    bytes: usize,
}

impl Memory {
    fn new(bytes: usize) -> Option<Self> {
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let bytes = bytes.max(1);
        // SAFETY: lies where nothing was.
        let mapped = unsafe { call!(libc::SYS_mmap, 0, bytes, writable, private, -1isize, 0) };
        Some(Self { address: raw::check(mapped).ok()?, bytes })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and not looked at any more.
        unsafe { call!(libc::SYS_munmap, self.address, self.bytes) };
    }
}

/// All calls of a program that are to be led.
struct Sites {
    memory: Memory,
    count: usize,
}

impl Sites {
    fn find(file: &[u8]) -> Result<Self, Refusal> {
        let forbidden = Refusal::PlainForbidden;
        let scratch = Memory::new(scratch_bytes(file)).ok_or(forbidden)?;
        // As many bytes for each, at least; what is not used of the memory costs nothing.
        let room = file.len() / NEAR_JUMP_BYTES + 1;
        let memory = Memory::new(room * size_of::<Site>()).ok_or(forbidden)?;
        let mut sites = Self { memory, count: 0 };
        // SAFETY: mapped, zero, and nobody else's.
        let scratch = unsafe {
            let first = core::ptr::with_exposed_provenance_mut::<u8>(scratch.address);
            core::slice::from_raw_parts_mut(first, scratch.bytes)
        };
        find_sites(file, scratch, |site| {
            if sites.count == room {
                return Err(forbidden);
            }
            let to = core::ptr::with_exposed_provenance_mut::<Site>(sites.memory.address);
            // SAFETY: below `room`, for as many of which there is memory.
            unsafe { to.add(sites.count).write(site) };
            sites.count += 1;
            Ok(())
        })?;
        Ok(sites)
    }

    fn all(&self) -> &[Site] {
        // SAFETY: so many were written.
        unsafe {
            core::slice::from_raw_parts(core::ptr::with_exposed_provenance(self.memory.address), self.count)
        }
    }
}

/// Where the stubs lie: behind the program.
fn room_of(plain: &Plain, base: u64) -> u64 {
    (plain.end + base + GAP).next_multiple_of(PAGE)
}

/// Maps the program, and memory for so many stubs. How much higher it lies than its file says.
fn map_all(file: &Whole, plain: &Plain, count: usize) -> Option<u64> {
    let room_bytes = stubs::bytes(count) as u64;
    let base =
        if plain.moves { free_place(room_of(plain, 0) + room_bytes - plain.first)? - plain.first } else { 0 };
    for segment in segments(file.bytes()) {
        map_segment(&segment, base, file.fd)?;
    }
    let room = room_of(plain, base);
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let fixed = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the kernel refuses addresses at which something is.
    let mapped = unsafe { call!(libc::SYS_mmap, room, room_bytes, writable, fixed, -1isize, 0) };
    (raw::check(mapped).ok()? as u64 == room).then_some(base)
}

/// An address at which so many bytes are free.
fn free_place(bytes: u64) -> Option<u64> {
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: lies where nothing was, and is gone at once; nobody else maps anything meanwhile.
    unsafe {
        let mapped =
            raw::check(call!(libc::SYS_mmap, 0, bytes, libc::PROT_NONE, private, -1isize, 0)).ok()?;
        call!(libc::SYS_munmap, mapped, bytes);
        Some(mapped as u64)
    }
}

/// Puts jumps to stubs in the places of the calls.
fn lead(file: &[u8], plain: &Plain, base: u64, sites: &[Site]) -> Result<(), Refusal> {
    let forbidden = Refusal::PlainForbidden;
    let mut room = Room::new(room_of(plain, base) as usize, sites.len());
    protect(file, base, true).ok_or(forbidden)?;
    // SAFETY: mapped above, for so many.
    unsafe { room.lead(led(), ways::address()) };
    for site in sites {
        let higher = Site {
            start: site.start + base,
            call: site.call + base,
            after: site.after + base,
            end: site.end + base,
        };
        // SAFETY: text of the program, mapped writable, which nobody runs yet; the room is mapped.
        unsafe {
            let first = core::ptr::with_exposed_provenance_mut::<u8>(higher.start as usize);
            let program = core::slice::from_raw_parts_mut(first, (site.end - site.start) as usize);
            room.add(&higher, program).ok_or(Refusal::Call(site.call))?;
        }
    }
    protect(file, base, false).ok_or(forbidden)?;
    room.close().ok_or(forbidden)
}

/// Makes the program's code writable, or code again.
fn protect(file: &[u8], base: u64, writable: bool) -> Option<()> {
    for segment in segments(file).filter(|segment| segment.flags & PF_X != 0) {
        let start = (segment.address + base) / PAGE * PAGE;
        let bytes = segment.address + base + segment.memory_bytes - start;
        let own = if segment.flags & PF_W != 0 { libc::PROT_WRITE } else { 0 };
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { libc::PROT_EXEC | own };
        // SAFETY: the program's own code, which nobody runs yet.
        raw::check(unsafe { call!(libc::SYS_mprotect, start, bytes, protection) }).ok()?;
    }
    Some(())
}
