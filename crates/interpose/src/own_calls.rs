//! Whether the program, or a library that it was started with, is one of Go's, whose runtime calls
//! the kernel by itself even where it is linked with libc: no hook sees what it does to files,
//! unless its calls are led there ([`crate::golang`]).
//!
//! Told by the note that Go's linker leaves, which no other tool chain writes, or by the mark at
//! the head of what it says of its build. It only reads what the loader has mapped.
#![allow(unsafe_code)] // Walks structures that the loader mapped.

use core::ffi::{c_int, c_void};

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const WRITABLE: u32 = 2;
/// Owner and kind of the note with Go's build id.
const GO_OWNER: &[u8] = b"Go\0\0";
const GO_BUILD_ID: u32 = 4;
/// Begins what a Go program says of its build, at the start of a segment with data, at an address
/// that is a multiple of 16.
const BUILD_INFO: &[u8; 14] = b"\xff Go buildinf:";
const BUILD_INFO_STEP: usize = 16;
const BUILD_INFO_WITHIN: usize = 64 << 10;

/// What is mapped now of Go's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Go {
    /// The program.
    pub program: bool,
    /// A library.
    pub library: bool,
}

/// Which objects that are mapped now are Go's.
pub fn find_go() -> Go {
    let mut found = Go::default();
    // SAFETY: the callback gets back the pointer passed here, during this call only.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    found
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is what `find_go` passed; `info` is valid during the callback.
    let (found, info) = unsafe { (&mut *data.cast::<Go>(), &*info) };
    // SAFETY: the loader's name for the object, a string; the program's own is empty.
    let is_program = info.dlpi_name.is_null() || unsafe { *info.dlpi_name } == 0;
    for index in 0..usize::from(info.dlpi_phnum) {
        // SAFETY: within the table of program headers.
        let header = unsafe { &*info.dlpi_phdr.add(index) };
        let bytes = match header.p_type {
            PT_NOTE => header.p_memsz as usize,
            // Of the program itself: every one that starts pays for this.
            PT_LOAD if is_program && header.p_flags & WRITABLE != 0 => {
                (header.p_filesz as usize).min(BUILD_INFO_WITHIN)
            }
            _ => continue,
        };
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr) as *const u8;
        // SAFETY: the loader has mapped the object's segments, readable. Nothing is kept, and what
        // its program may write to meanwhile is not there yet: this is its constructors' thread.
        let bytes = unsafe { core::slice::from_raw_parts(start, bytes) };
        if if header.p_type == PT_NOTE { is_go_note(bytes) } else { is_go_data(start.addr(), bytes) } {
            *(if is_program { &mut found.program } else { &mut found.library }) = true;
        }
    }
    0
}

/// Whether one of these notes is Go's.
fn is_go_note(mut notes: &[u8]) -> bool {
    let padded = |bytes: u32| (bytes as usize).saturating_add(3) & !3;
    while let Some((head, rest)) = notes.split_at_checked(12) {
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (owner_bytes, content_bytes, kind) = (word(0), word(4), word(8));
        if kind == GO_BUILD_ID && owner_bytes as usize == GO_OWNER.len() && rest.starts_with(GO_OWNER) {
            return true;
        }
        match rest.get(padded(owner_bytes).saturating_add(padded(content_bytes))..) {
            Some(next) => notes = next,
            None => break,
        }
    }
    false
}

/// Whether data that is mapped at `address` says of itself that Go built it.
fn is_go_data(address: usize, data: &[u8]) -> bool {
    let skipped = address.wrapping_neg() % BUILD_INFO_STEP;
    (skipped..data.len()).step_by(BUILD_INFO_STEP).any(|at| data[at..].starts_with(BUILD_INFO))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(owner: &[u8], kind: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [owner.len() as u32, 5, kind] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(owner);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(b"build\0\0\0");
        bytes
    }

    #[test]
    fn gos_note_is_found_behind_others_and_no_other_is_taken_for_it() {
        let others =
            [note(b"GNU\0", 3), note(b"GNU\0", 4), note(b"Go\0\0", 3), note(b"stapsdt\0", 4)].concat();
        assert!(!is_go_note(&others));
        assert!(is_go_note(&[others.clone(), note(b"Go\0\0", 4)].concat()));
        assert!(!is_go_note(&others[..others.len() - 3]) && !is_go_note(&[0xff; 40]) && !is_go_note(b""));
    }

    #[test]
    fn gos_mark_is_found_where_it_may_stand() {
        let mut data = vec![0u8; 4096];
        data[40..54].copy_from_slice(BUILD_INFO);
        assert!(is_go_data(0x1008, &data) && !is_go_data(0x1000, &data));
    }

    #[test]
    fn this_program_is_none_of_gos() {
        assert_eq!(find_go(), Go::default());
    }
}
