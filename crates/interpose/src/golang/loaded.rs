//! Go programs that have a loader: those with C code (cgo), and those without fixed addresses (PIE)
//! or C code. The library is in them already, and leads their calls to the hooks before Go runs.
//!
//! Where C code makes the threads, each has libc's thread-local storage, and hooks use that; where
//! Go makes them, they have what threads of a static program have. Which it is shows in what the
//! program asks libraries for. A program of which that cannot be told is left to the kernel. Must
//! never lead one of the two places and not the other.
#![allow(unsafe_code)] // Walks structures that the loader mapped, and has code changed.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicU8, Ordering};

use holdfast_cache::Unseen;
use holdfast_canary::{Canary, on};
use holdfast_enter::{JUMP_BYTES, Places, Refusal, places};

use super::hooks::{self, Hooks, unseen};
use super::ways::{self, Way};
use super::{calls, plain, thread};
use crate::{own_process, patch};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PF_X: u32 = 1;
const SEGMENTS_MAX: usize = 16;

const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_PLTRELSZ: u64 = 2;
const DT_JMPREL: u64 = 23;

/// Who makes the program's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// libc, of which each has its storage.
    Libc,
    /// Go, whose threads have nothing of libc's.
    Go,
}

/// Not led.
const NOT: u8 = 0;
const BY_LIBC: u8 = 1;
const BY_GO: u8 = 2;
static LED: AtomicU8 = AtomicU8::new(NOT);

/// Who makes the threads of the program whose calls were led to the hooks.
pub fn led() -> Option<Threads> {
    match LED.load(Ordering::Relaxed) {
        BY_LIBC => Some(Threads::Libc),
        BY_GO => Some(Threads::Go),
        _ => None,
    }
}

/// Leads the calls of this program, which is one of Go's, to the hooks. Only the constructor calls
/// it, once libc is patched.
///
/// # Errors
/// Why it cannot be: then nothing is changed.
pub fn lead(hooks: &'static Hooks) -> Result<(), Unseen> {
    let mut program = Program { code: [(0, &[]); SEGMENTS_MAX], dynamic: None, base: 0, fits: true };
    // SAFETY: the callback gets back the pointer passed here, during this call only.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut program).cast()) };
    let threads = program.threads().ok_or(Unseen::OwnCalls)?;
    let code = program.code.iter().copied().filter(|(_, text)| !text.is_empty());
    let found = places(code).map_err(unseen)?;
    let (call, vfork) = match threads {
        Threads::Libc => (ways::LIBC_CALL, ways::LIBC_VFORK),
        Threads::Go => {
            thread::look().map_err(unseen)?;
            (ways::CALL, ways::VFORK)
        }
    };
    hooks::set(hooks);
    // SAFETY: both lie in the program's text, which nobody runs yet, and the ways take what stands
    // in registers there.
    if !unsafe { replace(&found, call, vfork) } {
        return Err(unseen(Refusal::Forbidden));
    }
    LED.store(if threads == Threads::Libc { BY_LIBC } else { BY_GO }, Ordering::SeqCst);
    if threads == Threads::Go {
        own_process::enter();
    }
    Ok(())
}

/// # Safety
/// Nobody runs these places yet, and the ways are made for them.
unsafe fn replace(found: &Places, call: Way, vfork: Way) -> bool {
    let address = |way: Way| (way as *const ()).addr();
    let first = (found.call as usize, address(call));
    let Some(place) = found.vfork else {
        // SAFETY: the caller's promise.
        return unsafe { patch::lead(&[first], JUMP_BYTES) };
    };
    // The byte after the jump's place holds how far the program goes when the call succeeds.
    let next = place as usize + JUMP_BYTES;
    // SAFETY: text of the program, in which the place was found with what follows it.
    let distance = unsafe { *core::ptr::with_exposed_provenance::<i8>(next - 1) };
    thread::set_vfork_ways(next, next.wrapping_add_signed(distance.into()));
    // SAFETY: the caller's promise.
    unsafe { patch::lead(&[first, (place as usize, address(vfork))], JUMP_BYTES) }
}

/// The program's own object, as the loader has mapped it.
struct Program {
    code: [(u64, &'static [u8]); SEGMENTS_MAX],
    dynamic: Option<*const [u64; 2]>,
    base: u64,
    /// All of its code is in `code`.
    fits: bool,
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is what `lead` passed; `info` is valid during the callback.
    let (program, info) = unsafe { (&mut *data.cast::<Program>(), &*info) };
    // SAFETY: the loader's name for the object, a string; the program's own is empty, and it comes
    // first.
    if !info.dlpi_name.is_null() && unsafe { *info.dlpi_name } != 0 {
        return 1;
    }
    program.base = info.dlpi_addr;
    // SAFETY: the table of program headers.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let mut count = 0;
    for header in headers {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        match header.p_type {
            PT_DYNAMIC => program.dynamic = Some(core::ptr::with_exposed_provenance(start as usize)),
            PT_LOAD if header.p_flags & PF_X != 0 => {
                let address: *const u8 = core::ptr::with_exposed_provenance(start as usize);
                // SAFETY: the loader has mapped it, readable, and code is changed by us alone, once
                // nobody looks at these bytes any more.
                let text = unsafe { core::slice::from_raw_parts(address, header.p_filesz as usize) };
                match program.code.get_mut(count) {
                    Some(place) => *place = (start, text),
                    None => program.fits = false,
                }
                count += 1;
            }
            _ => {}
        }
    }
    1
}

/// What the dynamic section tells.
#[derive(Default)]
struct Dynamic {
    needs: bool,
    strings: u64,
    symbols: u64,
    /// Tables of relocations, and their bytes.
    tables: [(u64, u64); 2],
}

impl Program {
    /// Who makes its threads; `None` where that cannot be told.
    fn threads(&self) -> Option<Threads> {
        if !self.fits {
            return None;
        }
        let dynamic = self.dynamic()?;
        // Go's own C code asks libc for these: for one to make threads, for the other to set
        // handlers, which have to come to ours.
        match (dynamic.needs, self.asks_for(&dynamic, &[c"pthread_create", c"sigaction"])) {
            (false, _) if on(Canary::GoThreadsMistaken) => Some(Threads::Libc),
            (false, _) => Some(Threads::Go),
            (true, true) => Some(Threads::Libc),
            (true, false) => None,
        }
    }

    fn dynamic(&self) -> Option<Dynamic> {
        let mut found = Dynamic::default();
        let mut entry = self.dynamic?;
        loop {
            // SAFETY: the dynamic section ends with a zero tag.
            let [tag, value] = unsafe { *entry };
            // glibc writes absolute addresses into the section; objects it may not write to keep
            // offsets.
            let address = if value < self.base { self.base + value } else { value };
            match tag {
                0 => break,
                DT_NEEDED => found.needs = true,
                DT_STRTAB => found.strings = address,
                DT_SYMTAB => found.symbols = address,
                DT_RELA => found.tables[0].0 = address,
                DT_RELASZ => found.tables[0].1 = value,
                DT_JMPREL => found.tables[1].0 = address,
                DT_PLTRELSZ => found.tables[1].1 = value,
                _ => {}
            }
            // SAFETY: not yet at the end.
            entry = unsafe { entry.add(1) };
        }
        Some(found)
    }

    /// Whether the program has places that the loader fills with each of these functions.
    fn asks_for(&self, dynamic: &Dynamic, names: &[&CStr]) -> bool {
        names.iter().all(|name| {
            dynamic.tables.iter().any(|(table, bytes)| {
                let first: *const libc::Elf64_Rela = core::ptr::with_exposed_provenance(*table as usize);
                let count = *bytes as usize / size_of::<libc::Elf64_Rela>();
                // SAFETY: a table of the program's, which the loader has gone through or is going
                // through; each entry names a symbol of its table, whose name is in its strings.
                (0..count).any(|at| unsafe {
                    let index = ((*first.add(at)).r_info >> 32) as usize;
                    let symbols: *const libc::Elf64_Sym =
                        core::ptr::with_exposed_provenance(dynamic.symbols as usize);
                    let strings: *const c_char = core::ptr::with_exposed_provenance(dynamic.strings as usize);
                    let symbol = &*symbols.add(index);
                    index != 0
                        && symbol.st_shndx == 0
                        && CStr::from_ptr(strings.add(symbol.st_name as usize)) == *name
                })
            })
        })
    }
}

/// From now on the program's calls are the kernel's, but for those that start programs.
pub fn release() {
    calls::release();
    plain::release();
}
