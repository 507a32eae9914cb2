//! The library and its place in LD_PRELOAD. Whatever else is preloaded stays, behind ours.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

use crate::locate;

/// Name of the library that is preloaded.
const LIBRARY: &str = "libholdfast.so";
/// The loader splits LD_PRELOAD at these and has no way to quote them.
const SEPARATORS: [char; 2] = [' ', ':'];

/// The library, which lies beside this executable.
pub fn library() -> anyhow::Result<PathBuf> {
    let executable = locate::executable()?;
    let library = executable.with_file_name(LIBRARY);
    // The loader would go on without one that it cannot read.
    match std::fs::File::open(&library).and_then(|file| file.metadata()) {
        Ok(found) if found.is_file() => {}
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => bail!(
            "{}: {error}: whoever runs holdfast must be able to enter its directory and read this file: \
             `install` both into one that all can enter, such as /usr/local/lib/holdfast",
            library.display()
        ),
        _ => bail!(
            "{} is missing: it must lie beside {} (`cargo build --release` makes both)",
            library.display(),
            executable.display()
        ),
    }
    if library.to_string_lossy().contains(SEPARATORS) {
        bail!("{} cannot be preloaded: move it to a path without spaces and colons", library.display());
    }
    Ok(library)
}

/// LD_PRELOAD with the library first.
pub fn with_library(inherited: &OsStr, library: &Path) -> OsString {
    let mut value = library.as_os_str().to_os_string();
    let rest = without_library(inherited);
    if !rest.is_empty() {
        value.push(":");
        value.push(rest);
    }
    value
}

/// Keeps a process of Holdfast's own out of the run that it may be started in: it must not become a
/// client of the outer keeper.
pub fn keep_out(command: &mut Command) {
    command.env_remove("HOLDFAST_SOCKET");
    command.env("LD_PRELOAD", without_library(&std::env::var_os("LD_PRELOAD").unwrap_or_default()));
}

/// LD_PRELOAD without the library, wherever it lies.
fn without_library(inherited: &OsStr) -> OsString {
    let parts = inherited.as_bytes().split(|byte| SEPARATORS.contains(&char::from(*byte)));
    let foreign = |part: &&[u8]| {
        !part.is_empty() && Path::new(OsStr::from_bytes(part)).file_name() != Some(LIBRARY.as_ref())
    };
    OsString::from_vec(parts.filter(foreign).collect::<Vec<_>>().join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        let library = Path::new("/opt/libholdfast.so");
        for (inherited, expected) in [
            ("", "/opt/libholdfast.so"),
            ("libjemalloc.so", "/opt/libholdfast.so:libjemalloc.so"),
            ("a.so /opt/libholdfast.so b.so", "/opt/libholdfast.so:a.so:b.so"),
            ("/elsewhere/libholdfast.so:a.so", "/opt/libholdfast.so:a.so"),
        ] {
            assert_eq!(with_library(OsStr::new(inherited), library), expected, "{inherited}");
        }
        assert_eq!(without_library(OsStr::new("/opt/libholdfast.so")), "");
    }
}
