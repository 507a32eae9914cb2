//! What an ELF file says of itself: how it is loaded, and where it may call the kernel behind
//! libc's back. It only reads; it never runs or maps what it looks at, and a damaged file is an
//! error, not a panic.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use object::elf::{EM_X86_64, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, Object, ObjectSection, ReadCache, SectionKind};

/// How the kernel would load a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not an ELF file.
    NotElf,
    /// An ELF file for another machine or with 32-bit addresses, in words.
    Foreign(&'static str),
    /// No program interpreter: nothing can be preloaded.
    Static,
    /// Loaded by this program interpreter.
    Dynamic(PathBuf),
}

/// Reads as little of the file as tells how it is loaded.
pub fn kind(path: &Path) -> anyhow::Result<Kind> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let cache = ReadCache::new(file);
    match FileKind::parse(&cache) {
        Ok(FileKind::Elf64) => {}
        Ok(FileKind::Elf32) => return Ok(Kind::Foreign("a 32-bit program")),
        _ => return Ok(Kind::NotElf),
    }
    let damaged = || format!("{} is a damaged ELF file", path.display());
    let header = FileHeader64::<Endianness>::parse(&cache).with_context(damaged)?;
    let endian = header.endian().with_context(damaged)?;
    if header.e_machine(endian) != EM_X86_64 {
        return Ok(Kind::Foreign("a program for another processor"));
    }
    for segment in header.program_headers(endian, &cache).with_context(damaged)? {
        if let Some(name) = segment.interpreter(endian, &cache).with_context(damaged)? {
            return Ok(Kind::Dynamic(PathBuf::from(String::from_utf8_lossy(name).into_owned())));
        }
    }
    Ok(Kind::Static)
}

/// The address sanitizer's runtime, if a program needs it: its name, as in the program's list of
/// libraries.
pub fn sanitizer(path: &Path) -> anyhow::Result<Option<String>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let damaged = || format!("{} is a damaged ELF file", path.display());
    let file = object::read::elf::ElfFile64::<Endianness>::parse(&*bytes).with_context(damaged)?;
    let endian = file.endian();
    let Some((dynamic, link)) = file.elf_section_table().dynamic(endian, &*bytes).with_context(damaged)?
    else {
        return Ok(None);
    };
    let strings = file.elf_section_table().strings(endian, &*bytes, link).with_context(damaged)?;
    for entry in dynamic {
        if entry.d_tag(endian) == u64::from(object::elf::DT_NEEDED)
            && let Ok(name) = entry.string(endian, strings)
            && name.starts_with(b"libasan.so.")
        {
            return Ok(Some(String::from_utf8_lossy(name).into_owned()));
        }
    }
    Ok(None)
}

/// Ways around libc that one object file contains.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SideDoors {
    /// Functions it imports that lead around the hooks.
    pub imports: BTreeSet<String>,
    /// System calls that its own `syscall` instructions make and that change files.
    pub system_calls: BTreeSet<&'static str>,
    /// Built by the Go tool chain, whose runtime calls the kernel by itself, where that cannot be
    /// led to hooks.
    pub go: bool,
}

impl SideDoors {
    #[cfg(test)]
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Looks through the imports and the code of one object file.
pub fn side_doors(path: &Path) -> anyhow::Result<SideDoors> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file =
        object::File::parse(&*bytes).with_context(|| format!("{} is a damaged ELF file", path.display()))?;
    let mut doors = SideDoors::default();
    for import in file.imports().with_context(|| format!("cannot read the imports of {}", path.display()))? {
        let name = String::from_utf8_lossy(import.name());
        if leads_around(&name) {
            doors.imports.insert(name.into_owned());
        }
    }
    let is_go = file.sections().any(|section| section.name() == Ok(".note.go.buildid"));
    for section in file.sections() {
        if section.kind() == SectionKind::Text
            && let Ok(code) = section.data()
        {
            doors.system_calls.extend(system_calls_in(code));
        }
    }
    if is_go {
        // Of the calls that its runtime makes for itself none changes a program's files.
        doors.system_calls.clear();
        let is_program = matches!(kind(path), Ok(Kind::Dynamic(_)));
        doors.go = !is_program || holdfast_enter::places(holdfast_enter::code(&bytes)).is_err();
    }
    Ok(doors)
}

/// Imported functions whose effect on files the hooks do not see or leave to the kernel.
fn leads_around(name: &str) -> bool {
    name == "syscall"
        || ["io_setup", "io_submit", "io_uring_setup", "io_uring_enter"].contains(&name)
        || (name.starts_with("io_uring_queue_init"))
}

/// Numbers of the x86_64 system calls that change a file or make it durable.
const FILE_CALLS: [(u32, &str); 24] = [
    (1, "write"),
    (18, "pwrite64"),
    (20, "writev"),
    (26, "msync"),
    (40, "sendfile"),
    (74, "fsync"),
    (75, "fdatasync"),
    (76, "truncate"),
    (77, "ftruncate"),
    (82, "rename"),
    (87, "unlink"),
    (162, "sync"),
    (209, "io_submit"),
    (263, "unlinkat"),
    (264, "renameat"),
    (275, "splice"),
    (277, "sync_file_range"),
    (285, "fallocate"),
    (296, "pwritev"),
    (306, "syncfs"),
    (316, "renameat2"),
    (326, "copy_file_range"),
    (328, "pwritev2"),
    (426, "io_uring_enter"),
];

/// Finds `mov $number, %eax` shortly before a `syscall` instruction that is followed by something
/// compilers put there. This is a guess from bytes: a number that is computed is missed, and the
/// result is a hint for a person, never a decision.
fn system_calls_in(code: &[u8]) -> impl Iterator<Item = &'static str> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    const MOV_EAX: u8 = 0xb8;
    const LOOK_BACK_BYTES: usize = 24;
    // ret, jmp, pop, and what mov, cmp and test of the result begin with.
    const AFTER: [u8; 22] = [
        0xc3, 0xeb, 0xe9, 0x58, 0x5b, 0x5c, 0x5d, 0x5e, 0x5f, 0x3d, 0x41, 0x44, 0x45, 0x48, 0x49, 0x4c, 0x4d,
        0x83, 0x85, 0x89, 0x8b, 0x90,
    ];
    code.windows(2).enumerate().filter(|(_, pair)| **pair == SYSCALL).filter_map(move |(at, _)| {
        if code.get(at + 2).is_some_and(|next| !AFTER.contains(next)) {
            return None;
        }
        let before = &code[at.saturating_sub(LOOK_BACK_BYTES)..at];
        let number =
            before.windows(5).rev().find(|bytes| bytes[0] == MOV_EAX && bytes[3] == 0 && bytes[4] == 0)?;
        let number = u32::from(number[1]) | u32::from(number[2]) << 8;
        FILE_CALLS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_names_its_loader() {
        let Kind::Dynamic(loader) = kind(Path::new("/bin/true")).expect("readable") else {
            panic!("/bin/true is not dynamic");
        };
        assert!(loader.to_string_lossy().contains("ld-"), "{loader:?}");
    }

    #[test]
    fn text_is_not_elf_and_a_torn_header_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = dir.path().join("text");
        std::fs::write(&text, "#!/bin/sh\n").expect("written");
        assert_eq!(kind(&text).expect("readable"), Kind::NotElf);
        std::fs::write(&text, "").expect("written");
        assert_eq!(kind(&text).expect("readable"), Kind::NotElf);

        let mut torn = std::fs::read("/bin/true").expect("readable");
        torn.truncate(100);
        std::fs::write(&text, torn).expect("written");
        assert!(kind(&text).is_err());
    }

    #[test]
    fn a_32_bit_header_is_foreign() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("old");
        let mut bytes = b"\x7fELF\x01\x01\x01".to_vec();
        bytes.resize(64, 0);
        std::fs::write(&path, bytes).expect("written");
        assert_eq!(kind(&path).expect("readable"), Kind::Foreign("a 32-bit program"));
    }

    #[test]
    fn own_system_calls_are_found_by_number() {
        // mov $74,%eax; mov $3,%edi; syscall  -- and a getpid, which changes nothing
        let code =
            [0xb8, 74, 0, 0, 0, 0xbf, 3, 0, 0, 0, 0x0f, 0x05, 0x89, 0xc3, 0xb8, 39, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(system_calls_in(&code).collect::<Vec<_>>(), ["fsync"]);
        // The same two bytes inside another instruction's constant.
        let constant = [0xb8, 1, 0, 0, 0, 0x48, 0xd3, 0xe0, 0xa9, 0x0f, 0x05, 0x20, 0x1b];
        assert_eq!(system_calls_in(&constant).count(), 0);
    }

    #[test]
    fn plain_programs_have_no_side_doors() {
        let doors = side_doors(Path::new("/bin/true")).expect("readable");
        assert!(doors.is_empty(), "{doors:?}");
    }
}
