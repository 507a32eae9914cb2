//! The file of a program, as numbers: its headers and segments. A damaged file has none.

pub(crate) const PT_LOAD: u32 = 1;
pub(crate) const PT_DYNAMIC: u32 = 2;
pub(crate) const PT_INTERP: u32 = 3;
pub(crate) const PT_NOTE: u32 = 4;
pub(crate) const PT_TLS: u32 = 7;
pub(crate) const PF_X: u32 = 1;
pub(crate) const ET_EXEC: u16 = 2;
pub(crate) const ET_DYN: u16 = 3;
pub(crate) const EM_X86_64: u16 = 62;
pub(crate) const HEADER_BYTES: usize = 56;
/// The file of a program for 64 bits, least byte first.
pub(crate) const MAGIC: &[u8] = b"\x7fELF\x02\x01";

/// A part of the file, as its program header tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub(crate) kind: u32,
    /// `PF_R`, `PF_W`, `PF_X`.
    pub flags: u32,
    /// Where it lies in the file.
    pub offset: u64,
    /// Where it goes.
    pub address: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes in memory; what is more is zero.
    pub memory_bytes: u64,
}

/// A file's bytes, as numbers.
#[derive(Clone, Copy)]
pub(crate) struct Elf<'a>(pub(crate) &'a [u8]);

impl<'a> Elf<'a> {
    /// A program for this processor.
    pub(crate) fn of(file: &'a [u8]) -> Option<Self> {
        let elf = Self(file);
        (file.starts_with(MAGIC)
            && elf.half(18) == EM_X86_64
            && usize::from(elf.half(54)) == HEADER_BYTES
            && file.get(elf.table()..elf.table().checked_add(elf.count() * HEADER_BYTES)?).is_some())
        .then_some(elf)
    }

    pub(crate) fn number<const BYTES: usize>(self, at: usize) -> [u8; BYTES] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; BYTES])
    }

    pub(crate) fn half(self, at: usize) -> u16 {
        u16::from_le_bytes(self.number(at))
    }

    pub(crate) fn word(self, at: usize) -> u32 {
        u32::from_le_bytes(self.number(at))
    }

    pub(crate) fn long(self, at: usize) -> u64 {
        u64::from_le_bytes(self.number(at))
    }

    pub(crate) fn table(self) -> usize {
        usize::try_from(self.long(32)).unwrap_or(usize::MAX)
    }

    pub(crate) fn count(self) -> usize {
        usize::from(self.half(56))
    }

    pub(crate) fn segments(self) -> impl Iterator<Item = Segment> + Clone + 'a {
        (0..self.count()).map(move |index| {
            let at = self.table() + index * HEADER_BYTES;
            Segment {
                kind: self.word(at),
                flags: self.word(at + 4),
                offset: self.long(at + 8),
                address: self.long(at + 16),
                file_bytes: self.long(at + 32),
                memory_bytes: self.long(at + 40),
            }
        })
    }

    pub(crate) fn has(self, kind: u32) -> bool {
        self.segments().any(|segment| segment.kind == kind)
    }

    pub(crate) fn bytes_of(self, segment: &Segment) -> Option<&'a [u8]> {
        let start = usize::try_from(segment.offset).ok()?;
        self.0.get(start..start.checked_add(usize::try_from(segment.file_bytes).ok()?)?)
    }
}

/// What is mapped of a program, in the file's order.
pub fn segments(file: &[u8]) -> impl Iterator<Item = Segment> + Clone + '_ {
    Elf::of(file).into_iter().flat_map(Elf::segments).filter(|segment| segment.kind == PT_LOAD)
}
