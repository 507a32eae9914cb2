//! Finding the file of a slot: by comparing kernel handles at its path hints, and by handle alone where allowed.
//! It opens and compares; it never changes anything and never trusts a name.

use std::collections::{HashMap, HashSet};
use std::io;

use holdfast_canary::{Canary, on};
use holdfast_pool::Identity;

use super::directory::{nearest, split};
use super::file::SlotFile;
use super::plan::Place;
use crate::disk::{Access, Disk, DiskFile, Stat};

/// The file of a slot, found.
pub(super) struct SameFile<F> {
    /// Found, or open for reading.
    pub(super) file: F,
    /// Its name now.
    pub(super) path: Vec<u8>,
    /// What the file system says of it.
    pub(super) stat: Stat,
}

/// What stands at one path.
enum At<F> {
    Same(SameFile<F>),
    Other(&'static str),
    Empty,
    Orphaned,
    Absent(String),
}

/// What was found out about a slot's file.
pub(super) struct Location<F> {
    pub(super) same: Option<SameFile<F>>,
    /// A path of it at which nothing stands, newest first.
    pub(super) empty: Option<Vec<u8>>,
    /// A path of it whose directory is missing on its mounted file system.
    pub(super) orphaned: Option<Vec<u8>>,
    /// A path of it at which something else stands, and what.
    pub(super) other: Option<(Vec<u8>, &'static str)>,
    /// Why nothing can be said, if so.
    pub(super) absent: Option<String>,
}

impl<F> Location<F> {
    fn nowhere() -> Self {
        Self { same: None, empty: None, orphaned: None, other: None, absent: None }
    }

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

    fn note(&mut self, path: &[u8], found: At<F>) {
        match found {
            At::Same(file) => self.same = Some(file),
            At::Empty => self.empty = self.empty.take().or_else(|| Some(path.to_vec())),
            At::Orphaned => self.orphaned = self.orphaned.take().or_else(|| Some(path.to_vec())),
            At::Other(what) => self.other = self.other.take().or_else(|| Some((path.to_vec(), what))),
            At::Absent(reason) => self.absent = self.absent.take().or(Some(reason)),
        }
    }
}

/// What others make of the names of a file.
#[derive(Clone, Copy, Default)]
pub(super) struct Others<'a> {
    /// How many files call each name their newest: an older one that another file has taken over is not free.
    pub(super) newest: Option<&'a HashMap<Vec<u8>, usize>>,
    /// Names whose files recovery is about to remove or to rename first of all.
    pub(super) vacated: Option<&'a HashSet<Vec<u8>>>,
}

impl Others<'_> {
    /// Nobody else matters to where a file is.
    pub(super) const NONE: Others<'static> = Others { newest: None, vacated: None };

    fn claim(&self, path: &[u8]) -> bool {
        self.newest.is_some_and(|newest| newest.get(path).is_some_and(|&count| count > 0))
    }

    fn vacate(&self, path: &[u8]) -> bool {
        self.vacated.is_some_and(|vacated| vacated.contains(path))
    }
}

/// Looks for the file at its hints, newest first, then anywhere on its file system if the kernel lets us.
pub(super) fn locate<D: Disk>(disk: &D, file: &SlotFile, others: Others<'_>) -> Location<D::File> {
    let mut location = Location::nowhere();
    let identity = file.identity.as_ref().ok();
    // A name that the file gave up by a rename is none to build it at, whoever has the new one.
    let given_up = file.rename().is_some() && !on(Canary::RenameBuiltOld);
    for (age, hint) in file.hints.iter().enumerate() {
        let found = match at_path(disk, &hint.path, identity) {
            At::Other(_) if others.vacate(&hint.path) => At::Empty,
            found => found,
        };
        match found {
            At::Same(file) => {
                location.same = Some(file);
                return location;
            }
            _ if age > 0 && given_up => {}
            At::Empty if age > 0 && others.claim(&hint.path) => {
                location.note(&hint.path, At::Other("another file of this pool is to stand"));
            }
            found => location.note(&hint.path, found),
        }
    }
    if let Some(identity) = identity {
        location.same = file.hints.iter().find_map(|hint| by_handle(disk, &hint.path, identity));
    }
    location
}

/// The name that a held rename took a file from, if the file still stands there: alone, or beside the new one. btrfs brings the new
/// name to disk with the sync of its directory, and the loss of the old one only with that of the other.
pub(super) fn left_behind<'a, D: Disk>(
    disk: &D,
    file: &'a SlotFile,
    same: &SameFile<D::File>,
) -> Option<&'a [u8]> {
    let (from, to) = file.rename()?;
    let stands_twice = || {
        to == same.path
            && same.stat.links == 2
            && matches!(at_path(disk, from, file.identity.as_ref().ok()), At::Same(_))
    };
    (from == same.path || stands_twice()).then_some(from)
}

/// Looks at one path that a person named: the file itself, or whatever regular file stands there.
pub(super) fn locate_forced<D: Disk>(disk: &D, file: &SlotFile, path: &[u8]) -> Location<D::File> {
    let mut location = Location::nowhere();
    location.note(path, at_path(disk, path, file.identity.as_ref().ok()));
    location
}

fn at_path<D: Disk>(disk: &D, path: &[u8], identity: Option<&Identity>) -> At<D::File> {
    match disk.find(path) {
        Ok(found) => what_stands(found, path, identity),
        Err(error) if error.kind() == io::ErrorKind::NotFound => nothing_stands(disk, path, identity),
        Err(error) => At::Absent(unreachable_because(&error)),
    }
}

fn what_stands<F: DiskFile>(file: F, path: &[u8], identity: Option<&Identity>) -> At<F> {
    let stat = match file.stat() {
        Ok(stat) => stat,
        Err(error) => return At::Absent(unreachable_because(&error)),
    };
    if !stat.is_file {
        return At::Other("something that is no regular file stands");
    }
    let Some(identity) = identity else { return At::Other("a file stands") };
    match file.reopen(Access::Read).and_then(|open| open.identity()) {
        Ok(found) if found.fs_uuid != identity.fs_uuid => {
            At::Absent("another file system is mounted at its place".into())
        }
        Ok(found)
            if found.handle_type == identity.handle_type && found.handle == identity.handle
                || on(Canary::IdentityUnchecked) =>
        {
            At::Same(SameFile { file, path: path.to_vec(), stat })
        }
        Ok(_) => At::Other("another file stands"),
        Err(error) => At::Absent(unreachable_because(&error)),
    }
}

fn nothing_stands<D: Disk>(disk: &D, path: &[u8], identity: Option<&Identity>) -> At<D::File> {
    let (directory, found) = match nearest(disk, path) {
        Ok(found) => found,
        Err(error) => return At::Absent(unreachable_because(&error)),
    };
    // Where the file system is not mounted, the directory its mount point stands in belongs to another one.
    match (identity, directory.file_system()) {
        (Some(identity), Ok(uuid)) if uuid != identity.fs_uuid => {
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
fn by_handle<D: Disk>(disk: &D, path: &[u8], identity: &Identity) -> Option<SameFile<D::File>> {
    let (mount, _) = nearest(disk, path).ok()?;
    if mount.file_system().ok()? != identity.fs_uuid {
        return None;
    }
    let (file, path) = disk.find_by_identity(&mount, identity).ok()?;
    // The kernel does not compare all of a handle: ext4 takes a generation of zero for any.
    let found = file.identity().ok()?;
    if (found.handle_type, &found.handle) != (identity.handle_type, &identity.handle) {
        return None;
    }
    let stat = file.stat().ok()?;
    // An inode without a name only waits for its last descriptor to be closed: that file is gone.
    (stat.links > 0 && stat.is_file).then_some(SameFile { file, path, stat })
}
