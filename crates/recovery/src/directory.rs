//! Directories, reached without following a symbolic link: a path in a pool may lead only where it
//! says.

use std::io;

use holdfast_disk::{Disk, DiskFile};

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
pub(super) fn parent<D: Disk>(disk: &D, path: &[u8]) -> io::Result<D::File> {
    let (directory, _) = split(path)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "its path has no file name"))?;
    disk.find_directory(directory)
}

/// Opens the nearest directory above `path` that is there, with its path.
pub(super) fn nearest<'a, D: Disk>(disk: &D, path: &'a [u8]) -> io::Result<(D::File, &'a [u8])> {
    climb(disk, path, |error| error.kind() == io::ErrorKind::NotFound)
}

/// The same, above whatever stands in the place of directories by now.
pub(super) fn nearest_above<'a, D: Disk>(disk: &D, path: &'a [u8]) -> io::Result<(D::File, &'a [u8])> {
    climb(disk, path, |error| {
        matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
    })
}

/// Opens the directory of `path`, or goes up from one that fails in a way that `goes_on`.
fn climb<'a, D: Disk>(
    disk: &D,
    path: &'a [u8],
    goes_on: impl Fn(&io::Error) -> bool,
) -> io::Result<(D::File, &'a [u8])> {
    let mut at = path;
    loop {
        let (directory, _) = split(at).ok_or(io::ErrorKind::NotFound)?;
        match disk.find_directory(directory) {
            Err(error) if goes_on(&error) => at = directory,
            opened => return Ok((opened?, directory)),
        }
    }
}

/// Opens the directory of `path`; makes it, and those above it, durably and for us alone where they
/// are missing.
pub(super) fn make_parent<D: Disk>(disk: &D, path: &[u8]) -> io::Result<D::File> {
    match parent(disk, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let (directory, _) = split(path).ok_or(io::ErrorKind::InvalidInput)?;
    let (_, name) = split(directory).ok_or(io::ErrorKind::NotFound)?;
    let above = make_parent(disk, directory)?;
    match above.make_directory(name) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => above.sync()?,
    }
    parent(disk, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_disk::OsDisk;

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
        assert_eq!(nearest(&OsDisk::new(), b"/proc/none/none/a").unwrap().1, b"/proc");
        assert_eq!(nearest(&OsDisk::new(), b"/none").unwrap().1, b"/");
        assert!(nearest(&OsDisk::new(), b"/proc/self/none/a").is_err(), "a link is no directory");
    }

    #[test]
    fn no_link_is_followed() {
        let disk = OsDisk::new();
        assert!(disk.find(b"/proc/self/status").is_err());
        assert!(disk.find(b"proc/version").is_err());
        assert!(disk.find(b"/proc/version").is_ok());
    }

    #[test]
    fn a_path_has_one_form() {
        let disk = OsDisk::new();
        for path in ["/proc/../proc/version", "/proc/./version", "/proc//version", "/proc/", "//proc"] {
            assert!(disk.find(path.as_bytes()).is_err(), "{path}");
        }
        assert!(disk.find(b"/").is_ok());
    }
}
