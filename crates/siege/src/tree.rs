//! What a file system holds, as far as cases are compared: names and which of them are one file,
//! kinds, modes, owners, sizes, bytes, targets, extended attributes, and times where somebody asked
//! for one. It reads; it never judges.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

pub(crate) const PAGE: usize = 4096;
/// Times that the actors ask for are between these.
const ASKED_S: std::ops::Range<i64> = 978_307_200..978_307_500;

/// A name and what stands there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Entry {
    /// All but the bytes.
    pub shape: Shape,
    /// The bytes of each page, as runs of equal ones.
    pub pages: Vec<String>,
}

/// What there is to a name beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Shape {
    kind: &'static str,
    /// The first of its names, of a file that has several.
    same: String,
    names: u64,
    mode: u32,
    owner: (u32, u32),
    size: u64,
    asked_s: Option<i64>,
    target: Option<String>,
    attributes: BTreeMap<String, String>,
}

/// A tree: each name below the root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Tree {
    /// By path.
    pub entries: BTreeMap<String, Entry>,
}

impl Tree {
    /// Reads what is below a root.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let (mut tree, mut firsts) = (Self::default(), BTreeMap::new());
        tree.enter(root, "", &mut firsts)?;
        Ok(tree)
    }

    fn enter(&mut self, dir: &Path, prefix: &str, firsts: &mut BTreeMap<u64, String>) -> anyhow::Result<()> {
        let mut names: Vec<_> = std::fs::read_dir(dir)?.collect::<Result<_, _>>()?;
        names.sort_by_key(std::fs::DirEntry::file_name);
        for name in names {
            let text = name.file_name().to_string_lossy().into_owned();
            // The oracle's own, and what mkfs makes.
            if prefix.is_empty() && (text == ".siege" || text == "lost+found") {
                continue;
            }
            let path = format!("{prefix}{text}");
            let entry =
                Entry::read(&name.path(), &path, firsts).with_context(|| format!("cannot look at {path}"))?;
            let is_directory = entry.shape.kind == "directory";
            self.entries.insert(path.clone(), entry);
            if is_directory {
                self.enter(&name.path(), &format!("{path}/"), firsts)?;
            }
        }
        Ok(())
    }

    /// Enters what stands at a path of a simulated disk.
    pub(crate) fn enter_simulated(
        &mut self,
        path: &str,
        is_directory: bool,
        same: &str,
        names: u64,
        bytes: &[u8],
    ) {
        let shape = Shape {
            kind: if is_directory { "directory" } else { "file" },
            same: same.to_owned(),
            names: if is_directory { 0 } else { names },
            mode: if is_directory { 0o755 } else { 0o644 },
            owner: (0, 0),
            size: bytes.len() as u64,
            asked_s: None,
            target: None,
            attributes: BTreeMap::new(),
        };
        let pages = bytes.chunks(PAGE).map(runs).collect();
        self.entries.insert(path.to_owned(), Entry { shape, pages });
    }

    /// What it says, one by one: path and what of it, and that.
    pub(crate) fn facets(&self) -> BTreeMap<(String, String), String> {
        let mut facets = BTreeMap::new();
        for (path, Entry { shape, pages }) in &self.entries {
            let mut say = |what: String, value: String| drop(facets.insert((path.clone(), what), value));
            say("name".to_owned(), format!("a {} {}", shape.kind, shape.same));
            if shape.kind == "file" {
                say("names".to_owned(), shape.names.to_string());
                say("size".to_owned(), shape.size.to_string());
            }
            for (index, page) in pages.iter().enumerate() {
                say(format!("page {index}"), page.clone());
            }
        }
        facets
    }

    /// The names, and which of them are one file.
    pub(crate) fn names(&self) -> BTreeMap<String, String> {
        let told = |shape: &Shape| format!("{} {}", shape.kind, shape.same);
        self.entries.iter().map(|(path, entry)| (path.clone(), told(&entry.shape))).collect()
    }

    /// Everything but the bytes.
    pub fn shape(&self) -> BTreeMap<&str, &Shape> {
        self.entries.iter().map(|(path, entry)| (path.as_str(), &entry.shape)).collect()
    }

    /// What of this tree is otherwise in another, a line each.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut told = Vec::new();
        let paths: std::collections::BTreeSet<&String> =
            self.entries.keys().chain(other.entries.keys()).collect();
        for path in paths {
            match (self.entries.get(path), other.entries.get(path)) {
                (Some(entry), None) => told.push(format!("{path}: {entry}, but is not there")),
                (None, Some(entry)) => told.push(format!("{path}: nothing, but is {entry}")),
                (Some(one), Some(two)) if one != two => told.push(format!("{path}: {one}, but is {two}")),
                _ => {}
            }
        }
        told
    }
}

impl Entry {
    fn read(at: &Path, path: &str, firsts: &mut BTreeMap<u64, String>) -> anyhow::Result<Self> {
        let stat = std::fs::symlink_metadata(at)?;
        let kind = match stat.file_type() {
            kind if kind.is_dir() => "directory",
            kind if kind.is_file() => "file",
            kind if kind.is_symlink() => "link",
            kind if kind.is_socket() => "socket",
            _ => "other",
        };
        let same = match kind {
            "directory" => String::new(),
            _ => firsts.entry(stat.ino()).or_insert_with(|| path.to_owned()).clone(),
        };
        let bytes = if kind == "file" { std::fs::read(at)? } else { Vec::new() };
        let target = (kind == "link").then(|| std::fs::read_link(at)).transpose()?;
        Ok(Self {
            shape: Shape {
                kind,
                same: if same == path { String::new() } else { same },
                names: if kind == "directory" { 0 } else { stat.nlink() },
                mode: stat.mode() & 0o7777,
                owner: (stat.uid(), stat.gid()),
                size: if kind == "file" { stat.size() } else { 0 },
                asked_s: ASKED_S.contains(&stat.mtime()).then(|| stat.mtime() - ASKED_S.start),
                target: target.map(|target| target.to_string_lossy().into_owned()),
                attributes: if kind == "link" { BTreeMap::new() } else { attributes(at)? },
            },
            pages: bytes.chunks(PAGE).map(runs).collect(),
        })
    }
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape = &self.shape;
        write!(f, "a {} {:o}", shape.kind, shape.mode)?;
        if shape.owner != (0, 0) {
            write!(f, " of {}:{}", shape.owner.0, shape.owner.1)?;
        }
        if shape.kind == "file" {
            write!(f, " of {} bytes [{}]", shape.size, self.pages.join(" | "))?;
        }
        if shape.names > 1 {
            write!(f, ", {} names", shape.names)?;
        }
        if !shape.same.is_empty() {
            write!(f, ", the same as {}", shape.same)?;
        }
        if let Some(target) = &shape.target {
            write!(f, " to {target}")?;
        }
        if let Some(asked) = shape.asked_s {
            write!(f, ", time as asked {asked}")?;
        }
        for (name, value) in &shape.attributes {
            write!(f, ", {name}={value}")?;
        }
        Ok(())
    }
}

/// A page as runs of equal bytes: actors write letters.
fn runs(page: &[u8]) -> String {
    let mut told = String::new();
    for run in page.chunk_by(|one, two| one == two) {
        let byte = match run[0] {
            0 => "zeros".to_owned(),
            byte if byte.is_ascii_graphic() => char::from(byte).to_string(),
            byte => format!("0x{byte:02x}"),
        };
        let sep = if told.is_empty() { "" } else { " " };
        if run.len() == PAGE { write!(told, "{byte}") } else { write!(told, "{sep}{byte}*{}", run.len()) }
            .expect("a string takes all");
    }
    told
}

fn attributes(at: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::listxattr(at, &mut names[..])?;
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 4096];
            let length = rustix::fs::getxattr(at, name, &mut value[..])?;
            Ok((
                String::from_utf8_lossy(name).into_owned(),
                String::from_utf8_lossy(&value[..length]).into_owned(),
            ))
        })
        .collect()
}
