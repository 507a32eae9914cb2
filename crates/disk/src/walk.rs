//! Opening a path through no symbolic link, where the kernel may not be asked for that in one call:
//! sandboxes answer `openat2` with `ENOSYS`, since they cannot look at what it is given (systemd's
//! `RestrictSUIDSGID=`, for one).
//!
//! Must find and refuse what `openat2` does with `RESOLVE_NO_SYMLINKS`, and must never follow a
//! link.

use std::io;

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

/// Opens an absolute path that has no empty parts, nor `.` nor `..`.
pub(crate) fn open_through(path: &[u8], flags: OFlags, resolve: ResolveFlags) -> io::Result<OwnedFd> {
    match openat2(CWD, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS) if resolve.contains(ResolveFlags::NO_SYMLINKS) => walk(path, flags),
        opened => Ok(opened?),
    }
}

/// The same, part by part: a path that is changed meanwhile is found as it is at each part's turn,
/// as by the kernel.
fn walk(path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let through = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).peekable();
    if parts.peek().is_none() {
        return Ok(openat(CWD, "/", flags, Mode::empty())?);
    }
    let mut above = openat(CWD, "/", through, Mode::empty())?;
    while let Some(part) = parts.next() {
        // It opens a link itself, which is then refused.
        let found = openat(&above, part, through, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&found)?.st_mode).is_symlink() {
            return Err(Errno::LOOP.into());
        }
        if parts.peek().is_none() {
            return Ok(openat(&above, part, flags | OFlags::NOFOLLOW, Mode::empty())?);
        }
        above = found;
    }
    unreachable!("the last part returns")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_walked_to_is_what_the_kernel_finds() {
        let root = std::env::temp_dir().canonicalize().unwrap().join(format!("walk-{}", std::process::id()));
        std::fs::create_dir_all(root.join("directory/below")).unwrap();
        std::fs::write(root.join("directory/file"), "x").unwrap();
        symlink("directory", root.join("link")).unwrap();
        symlink("file", root.join("directory/to-file")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        let names = [
            "directory",
            "directory/below",
            "directory/file",
            "directory/file/below",
            "directory/to-file",
            "directory/missing",
            "missing/file",
            "link",
            "link/file",
            "link/missing",
            "dangling",
            "dangling/file",
        ];
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let kinds = [OFlags::PATH, OFlags::RDONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::DIRECTORY];
        let which = |open: io::Result<OwnedFd>| {
            open.map(|open| fstat(&open).unwrap().st_ino).map_err(|error| error.raw_os_error())
        };
        for flags in kinds.map(|flags| flags | OFlags::CLOEXEC) {
            for path in names.map(|name| root.join(name)).iter().chain([&std::path::PathBuf::from("/")]) {
                let path = path.as_os_str().as_bytes();
                let by_kernel = openat2(CWD, path, flags, Mode::empty(), resolve).map_err(io::Error::from);
                let told = format!("{} {flags:?}", String::from_utf8_lossy(path));
                assert_eq!(which(walk(path, flags)), which(by_kernel), "{told}");
            }
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
