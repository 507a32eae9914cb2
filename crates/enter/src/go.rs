//! Go programs, and where they call the kernel: judged by the bytes of their code, in the files of
//! static ones, and in the memory of those that have a loader.
//!
//! Go's `Syscall6` makes nearly all calls of a program. Its body has been the same bytes since
//! go1.19, and so has the instruction by which a child is started in its parent's memory. A program
//! in which they are not where they are known to be is refused.

use crate::elf::{ET_EXEC, Elf, PF_X, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_TLS, Segment, segments};
use crate::refusal::Refusal;

/// Bytes that are replaced at either place: a jump to any address.
pub const JUMP_BYTES: usize = 14;

/// `Syscall6`: five instructions that are replaced, and those that follow.
const CALL: [u8; 21] = [
    0x49, 0x89, 0xf2, 0x48, 0x89, 0xfa, 0x48, 0x89, 0xce, 0x48, 0x89, 0xdf, 0x0f, 0x05, 0x48, 0x3d, 0x01,
    0xf0, 0xff, 0xff, 0x76,
];
/// `rawVforkSyscall` begins with its second argument.
const VFORK_BEGINS: [u8; 5] = [0x48, 0x8b, 0x7c, 0x24, 0x10];
/// The call in it, with the return address kept in r12; a short jump's distance follows.
const VFORK: [u8; 13] = [0x41, 0x5c, 0x0f, 0x05, 0x41, 0x54, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x76];
/// How far into `rawVforkSyscall` the call may lie.
const VFORK_WITHIN: usize = 96;
/// Go's functions begin at multiples of this.
const STEP: usize = 32;

/// Owner and kind of the note with Go's build id.
const GO_OWNER: &[u8] = b"Go\0\0";
const GO_BUILD_ID: u32 = 4;

/// What is known of a program that can be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Where it begins to run.
    pub entry: u64,
    /// Where its table of program headers lies when it is mapped.
    pub headers: u64,
    /// How many there are.
    pub headers_count: u64,
    /// The first byte of `Syscall6`.
    pub call: u64,
    /// The call by which children in its memory are made, if it makes any.
    pub vfork: Option<u64>,
}

/// Where a program calls the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The first byte of `Syscall6`.
    pub call: u64,
    /// The call by which children in its memory are made, if it makes any.
    pub vfork: Option<u64>,
}

/// Where the notes of a static program lie in its file, and how many bytes they are. The file's
/// first bytes suffice.
pub fn notes(head: &[u8]) -> impl Iterator<Item = (u64, usize)> + '_ {
    let elf = Elf::of(head).filter(|elf| !elf.has(PT_INTERP));
    let notes = elf.into_iter().flat_map(Elf::segments).filter(|segment| segment.kind == PT_NOTE);
    notes.map(|segment| (segment.offset, usize::try_from(segment.file_bytes).unwrap_or(usize::MAX)))
}

/// Whether a whole file is a static program that Go built.
pub fn is_static_go(file: &[u8]) -> bool {
    notes(file).any(|(offset, bytes)| {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        file.get(start..start.saturating_add(bytes)).is_some_and(is_go_note)
    })
}

/// Whether one of these notes is Go's.
pub fn is_go_note(mut notes: &[u8]) -> bool {
    while let Some((head, rest)) = notes.split_at_checked(12) {
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let padded = |bytes: u32| (bytes as usize).saturating_add(3) & !3;
        if word(8) == GO_BUILD_ID && word(0) as usize == GO_OWNER.len() && rest.starts_with(GO_OWNER) {
            return true;
        }
        match rest.get(padded(word(0)).saturating_add(padded(word(4)))..) {
            Some(next) => notes = next,
            None => break,
        }
    }
    false
}

/// Judges a whole file.
///
/// # Errors
/// Why it cannot be entered.
pub fn judge(file: &[u8]) -> Result<Program, Refusal> {
    let elf = Elf::of(file).filter(|_| is_static_go(file)).ok_or(Refusal::NotGo)?;
    if elf.half(16) != ET_EXEC || elf.has(PT_DYNAMIC) || elf.has(PT_TLS) {
        return Err(Refusal::NotPlain);
    }
    let mut found = Sites::default();
    for segment in segments(file).filter(|segment| segment.flags & PF_X != 0) {
        found.look(segment.address, elf.bytes_of(&segment).ok_or(Refusal::Unknown)?);
    }
    let places = found.places()?;
    let table = elf.long(32);
    let holds_table = |segment: &Segment| {
        table.checked_sub(segment.offset).is_some_and(|inside| inside < segment.file_bytes)
    };
    let mapped = segments(file).find(holds_table).ok_or(Refusal::NotPlain)?;
    Ok(Program {
        entry: elf.long(24),
        headers: mapped.address + (table - mapped.offset),
        headers_count: elf.count() as u64,
        call: places.call,
        vfork: places.vfork,
    })
}

/// The code of a program's file, by its addresses.
pub fn code(file: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let parts = segments(file).filter(|segment| segment.flags & PF_X != 0);
    parts.filter_map(move |segment| Some((segment.address, Elf(file).bytes_of(&segment)?)))
}

/// Looks for both places in all of a program's code, by its addresses.
///
/// # Errors
/// [`Refusal::Unknown`]: they are not where they are known to be.
pub fn places<'a>(code: impl Iterator<Item = (u64, &'a [u8])>) -> Result<Places, Refusal> {
    let mut found = Sites::default();
    code.for_each(|(address, text)| found.look(address, text));
    found.places()
}

/// What was found in the text.
#[derive(Default)]
struct Sites {
    call: u64,
    calls: u32,
    vfork: u64,
    vforks: u32,
}

impl Sites {
    fn places(&self) -> Result<Places, Refusal> {
        if self.calls != 1 || self.vforks > 1 {
            return Err(Refusal::Unknown);
        }
        Ok(Places { call: self.call, vfork: (self.vforks == 1).then_some(self.vfork) })
    }

    /// Looks at each place where a function may begin.
    fn look(&mut self, address: u64, text: &[u8]) {
        let first = (address.wrapping_neg() % STEP as u64) as usize;
        for at in (first..text.len()).step_by(STEP) {
            let Some(function) = text.get(at..) else { return };
            if function.starts_with(&CALL) {
                self.call = address + at as u64;
                self.calls += 1;
            } else if function.starts_with(&VFORK_BEGINS)
                && let Some(inside) = position(function, &VFORK)
            {
                self.vfork = address + (at + inside) as u64;
                self.vforks += 1;
            }
        }
    }
}

fn position(function: &[u8], wanted: &[u8]) -> Option<usize> {
    // The byte after it is the distance of a jump.
    let within = function.get(..function.len().min(VFORK_WITHIN))?;
    let found = within.windows(wanted.len()).position(|window| window == wanted)?;
    (found + JUMP_BYTES <= function.len()).then_some(found)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::elf::{EM_X86_64, HEADER_BYTES, MAGIC, PT_LOAD};

    const ADDRESS: u64 = 0x40_0000;

    /// A program with one segment, whose text begins after the headers and a note.
    fn program(kinds: &[u32], text: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [GO_OWNER.len() as u32, 4, GO_BUILD_ID] {
            note.extend(word.to_le_bytes());
        }
        note.extend(GO_OWNER);
        note.extend(*b"made");
        let count = 2 + kinds.len();
        let note_at = 64 + count * HEADER_BYTES;
        let text_at = (note_at + note.len()).next_multiple_of(STEP);
        let mut file = Vec::new();
        file.extend(MAGIC);
        file.resize(16, 0);
        file.extend(ET_EXEC.to_le_bytes());
        file.extend(EM_X86_64.to_le_bytes());
        file.resize(24, 0);
        file.extend((ADDRESS + text_at as u64).to_le_bytes());
        file.extend(64u64.to_le_bytes());
        file.resize(54, 0);
        file.extend((HEADER_BYTES as u16).to_le_bytes());
        file.extend((count as u16).to_le_bytes());
        file.resize(64, 0);
        let mut header = |kind: u32, offset: usize, bytes: usize| {
            file.extend(kind.to_le_bytes());
            file.extend(5u32.to_le_bytes());
            for long in [offset as u64, ADDRESS + offset as u64, 0, bytes as u64, bytes as u64, 4096] {
                file.extend(long.to_le_bytes());
            }
        };
        header(PT_LOAD, 0, text_at + text.len());
        header(PT_NOTE, note_at, note.len());
        kinds.iter().for_each(|kind| header(*kind, note_at, note.len()));
        file.extend(note);
        file.resize(text_at, 0);
        file.extend(text);
        file
    }

    fn padded(parts: &[&[u8]]) -> Vec<u8> {
        let mut text = Vec::new();
        for part in parts {
            text.extend(*part);
            text.push(0x15);
            text.resize(text.len().next_multiple_of(64), 0xcc);
        }
        text
    }

    fn vfork() -> Vec<u8> {
        [&VFORK_BEGINS[..], &[0x90; 30], &VFORK].concat()
    }

    #[test]
    fn both_places_are_found() {
        let file = program(&[], &padded(&[&[0xcc; 100], &CALL, &vfork()]));
        let found = judge(&file).expect("a program of Go's");
        let text = found.entry;
        assert_eq!((found.call, found.vfork), (text + 128, Some(text + 192 + 35)));
        assert_eq!((found.headers, found.headers_count), (ADDRESS + 64, 2));
        let segment = segments(&file).next().expect("one");
        assert_eq!((segment.address, segment.file_bytes), (ADDRESS, file.len() as u64));
        let without = judge(&program(&[], &padded(&[&CALL]))).expect("a program of Go's");
        assert_eq!(without.vfork, None);
    }

    #[test]
    fn calls_that_are_missing_or_there_twice_are_refused() {
        let vfork = vfork();
        for parts in
            [&[&[0xcc_u8; 4][..]][..], &[&CALL, &CALL], &[&CALL, &vfork, &vfork], &[&[0x90], &CALL[1..]]]
        {
            assert_eq!(judge(&program(&[], &padded(parts))), Err(Refusal::Unknown));
        }
    }

    #[test]
    fn code_in_several_parts_has_each_place_once() {
        let (call, vfork) = (padded(&[&CALL]), padded(&[&vfork()]));
        let parts = [(0x1000, &call[..]), (0x8000, &vfork[..])];
        assert_eq!(places(parts.into_iter()), Ok(Places { call: 0x1000, vfork: Some(0x8000 + 35) }));
        let twice = [(0x1000, &call[..]), (0x2000, &vfork[..]), (0x3000, &call[..])];
        assert_eq!(places(twice.into_iter()), Err(Refusal::Unknown));
        assert_eq!(places(core::iter::empty()), Err(Refusal::Unknown));
    }

    #[test]
    fn loaders_and_c_code_are_refused() {
        let text = padded(&[&CALL]);
        assert_eq!(judge(&program(&[PT_INTERP], &text)), Err(Refusal::NotGo));
        for kind in [PT_TLS, PT_DYNAMIC] {
            assert_eq!(judge(&program(&[kind], &text)), Err(Refusal::NotPlain));
        }
    }

    #[test]
    fn no_cut_of_a_file_is_taken_for_more_than_it_is() {
        let file = program(&[], &padded(&[&CALL, &vfork()]));
        for bytes in 0..file.len() - 64 {
            assert!(judge(&file[..bytes]).is_err(), "{bytes}");
        }
        assert_eq!(judge(b"#!/bin/sh\n"), Err(Refusal::NotGo));
    }
}
