//! Directories, reached without following a symbolic link: a path in a pool may lead only where it says.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fsync, mkdirat, openat2};
use rustix::io::Errno;

/// Opens `path` as one of its hints says it: absolute, no symbolic link on the way.
pub(super) fn open_beneath(path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    if path.first() != Some(&b'/') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "its path is not absolute"));
    }
    if !is_plain(path) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "its path has empty parts, or . or .. among them",
        ));
    }
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// Whether an absolute path has the one form in which the keeper stores it. Another form of it could be taken for
/// another file, or lead out of where it seems to lead.
fn is_plain(path: &[u8]) -> bool {
    path == b"/" || path[1..].split(|&byte| byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

/// The directory part and the last name of an absolute path, if it has both.
pub(super) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = path.iter().rposition(|&byte| byte == b'/')?;
    let name = &path[at + 1..];
    if name.is_empty() || name == b"." || name == b".." {
        return None;
    }
    Some((if at == 0 { b"/" } else { &path[..at] }, name))
}

/// Opens the directory of `path`.
pub(super) fn parent(path: &[u8]) -> io::Result<OwnedFd> {
    let (directory, _) = split(path)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "its path has no file name"))?;
    open_beneath(directory, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Opens the nearest directory above `path` that is there, with its path.
pub(super) fn nearest(path: &[u8]) -> io::Result<(OwnedFd, &[u8])> {
    let mut at = path;
    loop {
        let (directory, _) = split(at).ok_or(io::ErrorKind::NotFound)?;
        match open_beneath(directory, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => at = directory,
            opened => return Ok((opened?, directory)),
        }
    }
}

/// Opens the directory of `path`; makes it, and those above it, durably and for us alone where they are missing.
pub(super) fn make_parent(path: &[u8]) -> io::Result<OwnedFd> {
    match parent(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let (directory, _) = split(path).ok_or(io::ErrorKind::InvalidInput)?;
    let (_, name) = split(directory).ok_or(io::ErrorKind::NotFound)?;
    let above = make_parent(directory)?;
    match mkdirat(&above, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => fsync(&above)?,
        Err(error) => return Err(error.into()),
    }
    parent(path)
}

/// Makes names in a directory durable.
pub(super) fn sync(directory: OwnedFd) -> io::Result<()> {
    File::from(directory).sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split_at_their_last_name() {
        assert_eq!(split(b"/a/b"), Some((&b"/a"[..], &b"b"[..])));
        assert_eq!(split(b"/a"), Some((&b"/"[..], &b"a"[..])));
        assert_eq!(split(b"/a/"), None);
        assert_eq!(split(b"/a/.."), None);
        assert_eq!(split(b"a"), None);
    }

    #[test]
    fn the_nearest_directory_is_found() {
        assert_eq!(nearest(b"/proc/none/none/a").unwrap().1, b"/proc");
        assert_eq!(nearest(b"/none").unwrap().1, b"/");
        assert!(nearest(b"/proc/self/none/a").is_err(), "a link is no directory");
    }

    #[test]
    fn no_link_is_followed() {
        assert!(open_beneath(b"/proc/self/status", OFlags::RDONLY).is_err());
        assert!(open_beneath(b"proc/version", OFlags::RDONLY).is_err());
        assert!(open_beneath(b"/proc/version", OFlags::RDONLY).is_ok());
    }

    #[test]
    fn a_path_has_one_form() {
        for path in ["/proc/../proc/version", "/proc/./version", "/proc//version", "/proc/", "//proc"] {
            assert!(open_beneath(path.as_bytes(), OFlags::RDONLY).is_err(), "{path}");
        }
        assert!(open_beneath(b"/", OFlags::RDONLY).is_ok());
    }
}
