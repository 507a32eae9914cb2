//! Builds the guest's file system in memory: a cpio archive ("newc" format) with the programs, the
//! libraries that they need, and the kernel's modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::need;

use crate::kernel::Kernel;

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;

/// What the archive is to hold.
pub struct Content {
    files: BTreeMap<String, Vec<u8>>,
}

impl Content {
    /// Busybox, the kernel's modules with their order, and the first process.
    pub fn new(kernel: &Kernel, init: &str) -> Result<Self> {
        let mut content = Self { files: BTreeMap::new() };
        content.add("bin/busybox", &need::tool("busybox"))?;
        let modules = kernel.modules()?;
        for (name, path) in &modules {
            content.add(&format!("lib/modules/{name}.ko"), path)?;
        }
        let order: String = modules.iter().map(|(name, _)| format!("{name}\n")).collect();
        content.text("etc/modules", &order);
        content.text("first", include_str!("first.sh"));
        content.text("init", init);
        Ok(content)
    }

    /// A program of this machine, with the libraries that it needs.
    pub fn program(&mut self, program: &Path) -> Result<()> {
        let name = program.file_name().context("a program has a name")?.to_string_lossy();
        self.add(&format!("bin/{name}"), program)?;
        for library in libraries(program) {
            self.add(library.to_string_lossy().trim_start_matches('/'), &library)?;
        }
        ensure!(self.files.contains_key("lib64/ld-linux-x86-64.so.2"), "ldd names no dynamic linker");
        Ok(())
    }

    /// A file of this machine.
    pub fn add(&mut self, name: &str, from: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.files.insert(name.to_owned(), bytes);
        Ok(())
    }

    /// A file of this text.
    pub fn text(&mut self, name: &str, text: &str) {
        self.files.insert(name.to_owned(), text.as_bytes().to_vec());
    }

    /// Writes the archive.
    pub fn write(&self, target: &Path) -> Result<()> {
        let mut archive = Archive::default();
        for directory in directories(self.files.keys()) {
            archive.entry(&directory, DIRECTORY, &[]);
        }
        for (name, bytes) in &self.files {
            archive.entry(name, EXECUTABLE, bytes);
        }
        archive.entry("TRAILER!!!", 0, &[]);
        fs::write(target, archive.bytes).with_context(|| format!("cannot write {}", target.display()))
    }
}

/// The libraries of a program, as the dynamic linker finds them.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let told = Cmd::new("ldd").arg(program).ok().stdout;
    told.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// The directories of all files, and those that are mounted on.
fn directories<'a>(files: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
    let mounts = ["dev", "proc", "sys", "run", "tmp"].map(str::to_owned);
    let parents = files.flat_map(|name| Path::new(name).ancestors().skip(1));
    let names = parents.map(|parent| parent.to_string_lossy().into_owned()).filter(|name| !name.is_empty());
    names.chain(mounts).collect()
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let numbers =
            [self.entries, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend(b"070701");
        for number in numbers {
            self.bytes.extend(format!("{number:08X}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_what_the_kernel_reads() {
        let mut archive = Archive::default();
        archive.entry("a", EXECUTABLE, b"hello");
        let text = String::from_utf8(archive.bytes).unwrap();
        assert!(text.starts_with("07070100000001000081ED"), "{text}");
        assert_eq!(&text[54..62], "00000005", "the length of the content");
        assert_eq!(&text[94..102], "00000002", "the length of the name with its end");
        assert_eq!(&text[110..], "a\0hello\0\0\0", "aligned to four bytes");
    }

    #[test]
    fn every_directory_comes_with_its_parents() {
        let names = ["bin/a".to_owned(), "lib/modules/b.ko".to_owned()];
        let found = directories(names.iter());
        for name in ["bin", "lib", "lib/modules", "dev"] {
            assert!(found.contains(name), "{name}");
        }
    }
}
