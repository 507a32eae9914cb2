//! What machine the numbers come from. It changes nothing.

use std::fs;
use std::path::{Path, PathBuf};

/// The first program of this name in PATH, or where Debian keeps PostgreSQL's.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    std::env::split_paths(&path)
        .chain(versions.map(|version| version.path().join("bin")))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// Type and device of the file system that holds `path`.
pub fn file_system(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (device, at, kind) = (words.next()?, words.next()?, words.next()?);
            path.starts_with(at).then(|| (at.len(), format!("{kind} ({device})")))
        })
        // A later mount on the same place hides the earlier one, and max_by_key takes the last of
        // equals.
        .max_by_key(|(length, _)| *length)
        .map(|(_, text)| text)
}

/// What a pool lies on, in words.
pub fn media(pool: &Path) -> String {
    if pool.starts_with("/dev/dax") {
        return "a DAX device".into();
    }
    let parent = pool.parent().unwrap_or(Path::new("/"));
    match file_system(parent) {
        Some(text) if text.starts_with("tmpfs") => {
            "EMULATED NVM: a tmpfs file in DRAM, which survives a kill but not a power cut".into()
        }
        Some(text) => format!("a file on {text}"),
        None => "a file on an unknown file system".into(),
    }
}

/// What a line of a file in `/proc` says.
pub fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_string())
}
