//! Finding the file of a slot: by comparing kernel handles at its path hints, and by handle alone where allowed.
//! It opens and compares; it never changes anything and never trusts a name.

use std::io;
use std::os::fd::OwnedFd;

use holdfast_pool::Identity;
use rustix::fs::{FileType, OFlags, fstat};

use super::directory::{nearest, open_beneath, split};
use super::file::SlotFile;
use super::plan::Place;
use crate::identity::{file_system, identify, open_by_identity, reopen};

/// The file of a slot, found.
pub(super) struct SameFile {
    /// An `O_PATH` or read-only descriptor.
    pub(super) fd: OwnedFd,
    /// Its name now.
    pub(super) path: Vec<u8>,
    /// Last change of contents or inode, in seconds since 1970.
    pub(super) ctime_unix_s: i64,
    /// Number of names.
    pub(super) links: u64,
}

/// What stands at one path.
enum At {
    Same(SameFile),
    Other(&'static str),
    Empty,
    Orphaned,
    Absent(String),
}

/// What was found out about a slot's file.
#[derive(Default)]
pub(super) struct Location {
    pub(super) same: Option<SameFile>,
    /// A path of it at which nothing stands, newest first.
    pub(super) empty: Option<Vec<u8>>,
    /// A path of it whose directory is missing on its mounted file system.
    pub(super) orphaned: Option<Vec<u8>>,
    /// A path of it at which something else stands, and what.
    pub(super) other: Option<(Vec<u8>, &'static str)>,
    /// Why nothing can be said, if so.
    pub(super) absent: Option<String>,
}

impl Location {
    /// The location as the decision table knows it.
    pub(super) fn place(&self) -> Place {
        match self {
            Self { same: Some(_), .. } => Place::Same,
            Self { empty: Some(_), .. } => Place::Empty,
            Self { other: Some(_), .. } => Place::Taken,
            Self { orphaned: Some(_), .. } => Place::Orphaned,
            _ => Place::Absent,
        }
    }

    fn note(&mut self, path: &[u8], found: At) {
        match found {
            At::Same(file) => self.same = Some(file),
            At::Empty => self.empty = self.empty.take().or_else(|| Some(path.to_vec())),
            At::Orphaned => self.orphaned = self.orphaned.take().or_else(|| Some(path.to_vec())),
            At::Other(what) => self.other = self.other.take().or_else(|| Some((path.to_vec(), what))),
            At::Absent(reason) => self.absent = self.absent.take().or(Some(reason)),
        }
    }
}

/// Looks for the file at its hints, newest first, then anywhere on its file system if the kernel lets us.
///
/// `claimed` are the newest paths of other files: an older name that another file has taken over is not free.
pub(super) fn locate(file: &SlotFile, claimed: &dyn Fn(&[u8]) -> bool) -> Location {
    let mut location = Location::default();
    let identity = file.identity.as_ref().ok();
    for (age, hint) in file.hints.iter().enumerate() {
        match at_path(&hint.path, identity) {
            At::Empty if age > 0 && claimed(&hint.path) => {
                location.note(&hint.path, At::Other("another file of this pool is to stand"));
            }
            found => location.note(&hint.path, found),
        }
        if location.same.is_some() {
            return location;
        }
    }
    if let Some(identity) = identity {
        location.same = file.hints.iter().find_map(|hint| by_handle(&hint.path, identity));
    }
    location
}

/// Looks at one path that a person named: the file itself, or whatever regular file stands there.
pub(super) fn locate_forced(file: &SlotFile, path: &[u8]) -> Location {
    let mut location = Location::default();
    location.note(path, at_path(path, file.identity.as_ref().ok()));
    location
}

fn at_path(path: &[u8], identity: Option<&Identity>) -> At {
    match open_beneath(path, OFlags::PATH | OFlags::NOFOLLOW) {
        Ok(fd) => what_stands(fd, path, identity),
        Err(error) if error.kind() == io::ErrorKind::NotFound => nothing_stands(path, identity),
        Err(error) => At::Absent(unreachable_because(&error)),
    }
}

fn what_stands(fd: OwnedFd, path: &[u8], identity: Option<&Identity>) -> At {
    let stat = match fstat(&fd) {
        Ok(stat) => stat,
        Err(error) => return At::Absent(unreachable_because(&error.into())),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return At::Other("something that is no regular file stands");
    }
    let Some(identity) = identity else { return At::Other("a file stands") };
    match reopen(&fd, false).and_then(identify) {
        Ok((found, _)) if found.fs_uuid != identity.fs_uuid => {
            At::Absent("another file system is mounted at its place".into())
        }
        Ok((found, _)) if found.handle_type == identity.handle_type && found.handle == identity.handle => {
            At::Same(SameFile {
                fd,
                path: path.to_vec(),
                ctime_unix_s: stat.st_ctime as i64,
                links: stat.st_nlink as u64,
            })
        }
        Ok(_) => At::Other("another file stands"),
        Err(error) => At::Absent(unreachable_because(&error)),
    }
}

fn nothing_stands(path: &[u8], identity: Option<&Identity>) -> At {
    let (directory, found) = match nearest(path) {
        Ok(found) => found,
        Err(error) => return At::Absent(unreachable_because(&error)),
    };
    // Where the file system is not mounted, the directory its mount point stands in belongs to another one.
    match (identity, file_system(directory)) {
        (Some(identity), Ok((uuid, _))) if uuid != identity.fs_uuid => {
            At::Absent("its file system is not mounted".into())
        }
        (Some(_), Err(error)) => At::Absent(unreachable_because(&error)),
        _ if split(path).is_some_and(|(parent, _)| parent == found) => At::Empty,
        _ => At::Orphaned,
    }
}

fn unreachable_because(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ELOOP) => "a directory of its path is a symbolic link now".into(),
        _ => format!("its path cannot be examined: {error}"),
    }
}

/// Opens the file by its handle, on the file system of the nearest directory of `path` that is still there.
fn by_handle(path: &[u8], identity: &Identity) -> Option<SameFile> {
    let (mount, _) = nearest(path).ok()?;
    if file_system(&mount).ok()?.0 != identity.fs_uuid {
        return None;
    }
    let fd = open_by_identity(&mount, identity).ok()?;
    // The kernel does not compare all of a handle: ext4 takes a generation of zero for any.
    let (found, _) = identify(&fd).ok()?;
    if (found.handle_type, &found.handle) != (identity.handle_type, &identity.handle) {
        return None;
    }
    let stat = fstat(&fd).ok()?;
    // An inode without a name only waits for its last descriptor to be closed: that file is gone.
    if stat.st_nlink == 0 || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let name = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd))).ok()?;
    Some(SameFile {
        fd,
        path: std::os::unix::ffi::OsStringExt::into_vec(name.into_os_string()),
        ctime_unix_s: stat.st_ctime as i64,
        links: stat.st_nlink as u64,
    })
}
