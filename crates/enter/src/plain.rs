//! Static programs that Go did not build: glibc's and musl's, with or without fixed addresses.

use crate::elf::{ET_DYN, ET_EXEC, Elf, PF_X, PT_DYNAMIC, PT_INTERP, segments};
use crate::go::is_static_go;
use crate::numbers::is_led;
use crate::refusal::Refusal;
use crate::sites::{self, PARTS_MAX, Part, Site};

const SECTION_BYTES: usize = 64;
const SHT_PROGBITS: u32 = 1;
const SHF_EXECINSTR: u64 = 4;
const DT_TEXTREL: u64 = 22;
const DT_FLAGS: u64 = 30;
const DF_TEXTREL: u64 = 4;
const PAGE: u64 = 4096;

/// What is known of a program that may be entered, as its file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Where it begins to run.
    pub entry: u64,
    /// Where its table of program headers lies when it is mapped.
    pub headers: u64,
    /// How many there are.
    pub headers_count: u64,
    /// It may lie anywhere: its addresses count from where it is mapped.
    pub moves: bool,
    /// The page that is mapped first.
    pub first: u64,
    /// Where the last page ends.
    pub end: u64,
}

/// Judges a file by its headers alone.
///
/// # Errors
/// [`Refusal::NotGo`]: it is no static program that could be entered.
pub fn judge_plain(file: &[u8]) -> Result<Plain, Refusal> {
    let elf = Elf::of(file).ok_or(Refusal::NotGo)?;
    let kind = elf.half(16);
    if !matches!(kind, ET_EXEC | ET_DYN) || elf.has(PT_INTERP) || changes_its_code(elf) {
        return Err(Refusal::NotGo);
    }
    if is_static_go(file) {
        return Err(Refusal::NotPlain);
    }
    let table = elf.long(32);
    let mapped = segments(file)
        .find(|segment| table.checked_sub(segment.offset).is_some_and(|inside| inside < segment.file_bytes))
        .ok_or(Refusal::NotGo)?;
    let (mut first, mut end) = (u64::MAX, 0);
    for segment in segments(file) {
        let over = segment.address.checked_add(segment.memory_bytes).ok_or(Refusal::NotGo)?;
        elf.bytes_of(&segment).ok_or(Refusal::NotGo)?;
        (first, end) = (first.min(segment.address / PAGE * PAGE), end.max(over));
    }
    // Below two gigabytes a jump reaches all of it.
    let end = end.checked_next_multiple_of(PAGE).ok_or(Refusal::NotGo)?;
    if end.checked_sub(first).is_none_or(|bytes| bytes > 1 << 30) {
        return Err(Refusal::NotGo);
    }
    Ok(Plain {
        entry: elf.long(24),
        headers: mapped.address + (table - mapped.offset),
        headers_count: elf.count() as u64,
        moves: kind == ET_DYN,
        first,
        end,
    })
}

/// Whether it relocates its own code at its start.
fn changes_its_code(elf: Elf<'_>) -> bool {
    let dynamic = elf.segments().find(|segment| segment.kind == PT_DYNAMIC);
    let entries = dynamic.and_then(|segment| elf.bytes_of(&segment)).unwrap_or_default();
    entries.chunks_exact(16).any(|entry| {
        let word = |at: usize| entry.get(at..at + 8).and_then(|word| word.try_into().ok());
        let [Some(tag), Some(value)] = [word(0), word(8)].map(|word| word.map(u64::from_le_bytes)) else {
            return true;
        };
        tag == DT_TEXTREL || tag == DT_FLAGS && value & DF_TEXTREL != 0
    })
}

/// Parts of a program, without memory of one's own.
struct Parts<'a> {
    parts: [Part<'a>; PARTS_MAX],
    count: usize,
}

impl<'a> Parts<'a> {
    /// `None`: there are more.
    fn of(all: impl Iterator<Item = Part<'a>>) -> Option<Self> {
        let mut found = Self { parts: [Part { address: 0, bytes: &[] }; PARTS_MAX], count: 0 };
        for part in all {
            *found.parts.get_mut(found.count)? = part;
            found.count += 1;
        }
        Some(found)
    }

    fn all(&self) -> &[Part<'a>] {
        self.parts.get(..self.count).unwrap_or_default()
    }
}

/// The code, by the sections of the file; without them, by its segments, if these hold nothing
/// else.
fn code(file: &[u8]) -> Option<Parts<'_>> {
    let by_sections = Parts::of(sections(file))?;
    if by_sections.count > 0 {
        return Some(by_sections);
    }
    let by_segments = Parts::of(parts(file, PF_X))?;
    let holds_headers = segments(file).any(|segment| segment.flags & PF_X != 0 && segment.offset == 0);
    (by_segments.count > 0 && !holds_headers).then_some(by_segments)
}

/// All that is mapped with one of these flags.
fn parts(file: &[u8], flags: u32) -> impl Iterator<Item = Part<'_>> + Clone {
    let wanted = Elf::of(file).into_iter().flat_map(Elf::segments);
    let wanted =
        wanted.filter(move |segment| segment.kind == crate::elf::PT_LOAD && segment.flags & flags != 0);
    wanted.filter_map(move |segment| {
        Some(Part { address: segment.address, bytes: Elf(file).bytes_of(&segment)? })
    })
}

fn sections(file: &[u8]) -> impl Iterator<Item = Part<'_>> + Clone {
    let elf = Elf(file);
    let table = usize::try_from(elf.long(40)).unwrap_or(usize::MAX);
    let is_sound = table != 0 && usize::from(elf.half(58)) == SECTION_BYTES;
    let count = if is_sound { usize::from(elf.half(60)) } else { 0 };
    (0..count).filter_map(move |index| {
        let at = table.checked_add(index * SECTION_BYTES)?;
        file.get(at..at.checked_add(SECTION_BYTES)?)?;
        let is_code = elf.word(at + 4) == SHT_PROGBITS && elf.long(at + 8) & SHF_EXECINSTR != 0;
        let start = usize::try_from(elf.long(at + 24)).ok()?;
        let bytes = file.get(start..start.checked_add(usize::try_from(elf.long(at + 32)).ok()?)?)?;
        let address = elf.long(at + 16);
        // What the segments do not map is not run.
        let is_mapped = segments(file).any(|segment| {
            segment.flags & PF_X != 0
                && address.checked_sub(segment.address).is_some_and(|inside| {
                    inside.saturating_add(bytes.len() as u64) <= segment.file_bytes
                        && segment.offset.wrapping_add(inside) == start as u64
                })
        });
        (is_code && is_mapped && !bytes.is_empty()).then_some(Part { address, bytes })
    })
}

/// How many bytes of memory, all zero, [`find_sites`] needs.
pub fn scratch_bytes(file: &[u8]) -> usize {
    Parts::of(parts(file, u32::MAX)).map_or(0, |data| sites::scratch_bytes(data.all()))
}

/// Finds where the program calls the kernel, each with what it takes to replace it, in the order of
/// their addresses.
///
/// # Errors
/// [`Refusal::Call`]: one cannot be replaced, or there is a doubt.
pub fn find_sites(
    file: &[u8],
    scratch: &mut [u8],
    each: impl FnMut(Site) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let code = code(file).ok_or(Refusal::NotGo)?;
    let data = Parts::of(parts(file, u32::MAX)).ok_or(Refusal::NotGo)?;
    sites::find(code.all(), data.all(), scratch, |number| is_led(number.into()), each)
}

/// What stands at an address.
pub fn text(file: &[u8], address: u64, bytes: usize) -> Option<&[u8]> {
    let part = parts(file, PF_X).find(|part| part.has(address))?;
    part.bytes.get((address - part.address) as usize..)?.get(..bytes)
}
