//! Finding the file of a slot: by comparing kernel handles and times of birth at its path hints,
//! and by handle alone where allowed. It opens and compares; it never changes anything and never
//! trusts a name.

use std::collections::{HashMap, HashSet};
use std::io;

use holdfast_canary::{Canary, on};
use holdfast_pool::{Hint, Identity, Parent};

use super::directory::{nearest, nearest_above, parent, split};
use super::file::SlotFile;
use super::plan::Place;
use holdfast_disk::{Access, Disk, DiskFile, Stat};

/// The file of a slot, found.
pub(super) struct SameFile<F> {
    /// Found, or open for reading.
    pub(super) file: F,
    /// Its name now.
    pub(super) path: Vec<u8>,
    /// Whether that leads to it: a file that was found by its handle alone may have none that can
    /// be seen from here.
    pub(super) is_reachable: bool,
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
    /// The mount through which its paths, or what is left of them, are reached.
    pub(super) mount: u64,
    /// Its file system says that there is no such file any more.
    pub(super) is_gone: bool,
    /// It says the same of each directory that had a name of it, and another one stands there: they
    /// were removed, with nothing in them, so whoever removed the file did it before the crash.
    pub(super) is_removed: bool,
}

impl<F> Location<F> {
    fn nowhere() -> Self {
        Self {
            same: None,
            empty: None,
            orphaned: None,
            other: None,
            absent: None,
            mount: 0,
            is_gone: false,
            is_removed: false,
        }
    }

    /// The location as the decision table knows it. What is to be removed must have a name.
    pub(super) fn place(&self, void: bool) -> Place {
        match self {
            Self { same: Some(same), .. } if void && !same.is_reachable => Place::Absent,
            Self { same: Some(_), .. } => Place::Same,
            // Wherever its directory is by now: a removed file that is no more is not awaited.
            Self { is_gone: true, .. } if void => Place::Orphaned,
            Self { is_removed: true, .. } => Place::Orphaned,
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
    /// How many files call each name their newest: an older one that another file has taken over is
    /// not free.
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

/// Looks for the file at its hints, newest first, then anywhere on its file system if the kernel
/// lets us.
pub(super) fn locate<D: Disk>(disk: &D, file: &SlotFile, others: Others<'_>) -> Location<D::File> {
    let mut location = Location::nowhere();
    let identity = file.identity.as_ref().ok();
    // A name that the file gave up by a rename is none to build it at, whoever has the new one.
    let given_up = file.rename().is_some() && !on(Canary::RenameBuiltOld);
    for (age, hint) in file.hints.iter().enumerate() {
        let found = match at_path(disk, &hint.path, file, hint.parent.as_ref()) {
            At::Other(_) if others.vacate(&hint.path) => At::Empty,
            found => found,
        };
        let (found, path) = match moved_parent(disk, &found, hint, identity) {
            Some(path) => (at_path(disk, &path, file, hint.parent.as_ref()), path),
            None => (found, hint.path.clone()),
        };
        let found = match found {
            At::Other(_)
                if age == 0 && file.takes_name == Some(true) && replaced_at(disk, &path, file).is_some() =>
            {
                At::Empty
            }
            found => found,
        };
        if location.mount == 0 {
            location.mount = mount_of(disk, &path);
        }
        match found {
            At::Same(file) => {
                location.same = Some(file);
                return location;
            }
            _ if age > 0 && given_up => {}
            At::Empty if age > 0 && others.claim(&hint.path) => {
                location.note(&hint.path, At::Other("another file of this pool is to stand"));
            }
            found => location.note(&path, found),
        }
    }
    if let Some(identity) = identity {
        for hint in &file.hints {
            match by_handle(disk, &hint.path, file, identity) {
                ByHandle::Found(found) => {
                    location.same = Some(found);
                    break;
                }
                ByHandle::Gone => location.is_gone = true,
                ByHandle::Unknown => {}
            }
        }
        // Where its directory is, or nothing stands in that one's place, other rules decide.
        location.is_removed = location.same.is_none()
            && location.empty.is_none()
            && location.other.is_none()
            && location.orphaned.is_none()
            && location.is_gone
            && !on(Canary::RemovedParentsAwaited)
            && !file.hints.is_empty()
            && file.hints.iter().all(|hint| is_parent_removed(disk, hint, identity));
    }
    location
}

/// Whether the file system says that the directory of a name is no more. One that is hidden by a
/// mount, or was moved, is still found by its handle.
fn is_parent_removed<D: Disk>(disk: &D, hint: &Hint, identity: &Identity) -> bool {
    let Some(parent) = &hint.parent else { return false };
    let Ok((beside, _)) = nearest(disk, &hint.path) else { return false };
    if beside.file_system().ok() != Some(identity.fs_uuid) {
        return false;
    }
    let (handle_type, handle) = (parent.handle_type, parent.handle.clone());
    let wanted = Identity { fs_uuid: identity.fs_uuid, handle_type, handle, inode: 0 };
    match disk.find_by_identity(&beside, &wanted) {
        // The kernel does not compare all of a handle.
        Ok((found, _)) => found.identity_on(wanted.fs_uuid).is_ok_and(|found| !found.is_same(&wanted)),
        Err(error) => is_stale(&error),
    }
}

/// Whether a file system says that a handle is of nothing that is still there.
fn is_stale(error: &io::Error) -> bool {
    [io::ErrorKind::NotFound, io::ErrorKind::StaleNetworkFileHandle].contains(&error.kind())
}

/// The path that a hint has now whose directory is elsewhere, if the kernel lets us look for it by
/// its handle.
fn moved_parent<D: Disk>(
    disk: &D,
    found: &At<D::File>,
    hint: &Hint,
    identity: Option<&Identity>,
) -> Option<Vec<u8>> {
    let (At::Orphaned, Some(parent), Some(identity)) = (found, &hint.parent, identity) else { return None };
    let (beside, _) = nearest(disk, &hint.path).ok()?;
    let (handle_type, handle) = (parent.handle_type, parent.handle.clone());
    let wanted = Identity { fs_uuid: identity.fs_uuid, handle_type, handle, inode: 0 };
    let (directory, path) = disk.find_by_identity(&beside, &wanted).ok()?;
    let found = directory.identity_on(wanted.fs_uuid);
    let is_it = found.is_ok_and(|found| found.is_same(&wanted));
    let (_, name) = split(&hint.path)?;
    (is_it && path.first() == Some(&b'/')).then(|| [&path, &b"/"[..], name].concat())
}

/// The mount through which a path, or the nearest directory above it, is reached; 0 if that cannot
/// be told.
fn mount_of<D: Disk>(disk: &D, path: &[u8]) -> u64 {
    nearest(disk, path).and_then(|(directory, _)| directory.stat()).map_or(0, |stat| stat.mount)
}

/// Where a file still stands under the name that a held rename took it from: alone, or beside the
/// new one. btrfs brings the new name to disk with the sync of its directory, and the loss of the
/// old one only with that of the other. Its directory may be somewhere else by now, as where a
/// mount is missing that it was reached through.
pub(super) fn left_behind<D: Disk>(disk: &D, file: &SlotFile, same: &SameFile<D::File>) -> Option<Vec<u8>> {
    let (from, to) = file.rename()?;
    if from == same.path {
        return Some(from.to_vec());
    }
    if to == same.path {
        let stands_twice = same.stat.links == 2 && matches!(at_path(disk, from, file, None), At::Same(_));
        return stands_twice.then(|| from.to_vec());
    }
    // The kernel may tell no path of what was found by its handle.
    let stands = moved_parent(disk, &At::Orphaned, file.hints.get(1)?, file.identity.as_ref().ok())?;
    matches!(at_path(disk, &stands, file, None), At::Same(_)).then_some(stands)
}

/// The file without a slot that stands at `path`, if it is the one from which the slot says that
/// its file takes the name.
pub(super) fn replaced_at<D: Disk>(disk: &D, path: &[u8], file: &SlotFile) -> Option<Stat> {
    let (base, identity) = (file.replaced()?.base.as_ref()?, file.identity.as_ref().ok()?);
    let found = disk.find(path).ok()?;
    let stat = found.stat().ok().filter(|stat| stat.is_file && base.is_of(stat.born_ns))?;
    let directory = parent(disk, path).ok()?;
    let is_here = directory.file_system().is_ok_and(|uuid| uuid == identity.fs_uuid)
        && directory.stat().is_ok_and(|above| above.dev == stat.dev);
    let there = found.identity_on(identity.fs_uuid).ok()?;
    (is_here && (there.handle_type, &there.handle) == (base.handle_type, &base.handle)).then_some(stat)
}

/// Looks at one path that a person named: the file itself, or whatever regular file stands there.
pub(super) fn locate_forced<D: Disk>(disk: &D, file: &SlotFile, path: &[u8]) -> Location<D::File> {
    let mut location = Location::nowhere();
    let parent = file.hints.iter().find(|hint| hint.path == path).and_then(|hint| hint.parent.as_ref());
    location.note(path, at_path(disk, path, file, parent));
    location
}

fn at_path<D: Disk>(disk: &D, path: &[u8], file: &SlotFile, parent: Option<&Parent>) -> At<D::File> {
    match disk.find(path) {
        Ok(found) => what_stands(found, path, file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            nothing_stands(disk, path, file.identity.as_ref().ok(), parent)
        }
        Err(error) => At::Absent(unreachable_because(&error)),
    }
}

fn what_stands<F: DiskFile>(found: F, path: &[u8], file: &SlotFile) -> At<F> {
    let stat = match found.stat() {
        Ok(stat) => stat,
        Err(error) => return At::Absent(unreachable_because(&error)),
    };
    if !stat.is_file {
        return At::Other("something that is no regular file stands");
    }
    let Ok(identity) = &file.identity else { return At::Other("a file stands") };
    match found.reopen(Access::Read).and_then(|open| open.identity()) {
        Ok(there) if there.fs_uuid != identity.fs_uuid => {
            At::Absent("another file system is mounted at its place".into())
        }
        Ok(there) if there.is_same(identity) && file.is_born(&stat) || on(Canary::IdentityUnchecked) => {
            At::Same(SameFile { file: found, path: path.to_vec(), is_reachable: true, stat })
        }
        Ok(_) => At::Other("another file stands"),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            At::Absent("another file system is mounted at its place".into())
        }
        Err(error) => At::Absent(unreachable_because(&error)),
    }
}

fn nothing_stands<D: Disk>(
    disk: &D,
    path: &[u8],
    identity: Option<&Identity>,
    parent: Option<&Parent>,
) -> At<D::File> {
    let (directory, found) = match nearest(disk, path) {
        Ok(found) => found,
        Err(error) => return At::Absent(unreachable_because(&error)),
    };
    let is_at_parent = split(path).is_some_and(|(parent, _)| parent == found);
    // Where the file system is not mounted, the directory its mount point stands in belongs to
    // another one.
    match (identity, directory.file_system()) {
        (Some(identity), Ok(uuid)) if uuid != identity.fs_uuid => {
            At::Absent("its file system is not mounted where it was: mount it there".into())
        }
        (Some(_), Err(error)) if error.kind() == io::ErrorKind::Unsupported => {
            At::Absent("its file system is not mounted where it was: mount it there".into())
        }
        (Some(_), Err(error)) => At::Absent(unreachable_because(&error)),
        // What is mounted above it, or stands in its place, may hide where the file belongs.
        (Some(identity), _) if is_at_parent && !is_parent(&directory, identity, parent) => At::Absent(
            "another directory stands where its own was: what is mounted there may be missing".into(),
        ),
        _ if is_at_parent => At::Empty,
        _ => At::Orphaned,
    }
}

/// Opens the directory of the name that a held rename gave a file, wherever that directory is now,
/// with the name. It is the directory that the slot knows, and no other: what is mounted above it
/// may be missing, and the name would come to stand where nobody looks for it.
pub(super) fn renamed_to<'a, D: Disk>(disk: &D, file: &'a SlotFile) -> io::Result<(D::File, &'a [u8])> {
    let (Some(hint), Ok(identity)) = (file.hints.first(), &file.identity) else { return Err(not_there()) };
    let (path, name) = split(&hint.path).ok_or_else(not_there)?;
    match disk.find_directory(path) {
        Ok(directory) if is_parent(&directory, identity, hint.parent.as_ref()) => {
            return Ok((directory, name));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let moved = moved_parent(disk, &At::Orphaned, hint, Some(identity)).ok_or_else(not_there)?;
    let (path, _) = split(&moved).ok_or_else(not_there)?;
    let directory = disk.find_directory(path)?;
    let is_it = is_parent(&directory, identity, hint.parent.as_ref());
    is_it.then_some((directory, name)).ok_or_else(not_there)
}

fn not_there() -> io::Error {
    io::Error::other(
        "the directory that its last rename moved it to is not there: what is mounted there may be missing",
    )
}

/// Whether a directory is the one in which a name was; where that was not known, it is.
fn is_parent<F: DiskFile>(directory: &F, identity: &Identity, parent: Option<&Parent>) -> bool {
    let Some(parent) = parent.filter(|_| !on(Canary::ParentUnchecked)) else { return true };
    directory
        .identity_on(identity.fs_uuid)
        .is_ok_and(|found| (found.handle_type, &found.handle) == (parent.handle_type, &parent.handle))
}

fn unreachable_because(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ELOOP) => "a directory of its path is a symbolic link now".into(),
        _ => format!("its path cannot be examined: {error}"),
    }
}

/// What the kernel says of a file's handle.
enum ByHandle<F> {
    Found(SameFile<F>),
    Gone,
    Unknown,
}

/// Opens the file by its handle, on the file system of the nearest directory of `path` that is
/// still there.
fn by_handle<D: Disk>(disk: &D, path: &[u8], slot: &SlotFile, identity: &Identity) -> ByHandle<D::File> {
    // What is to be removed is not awaited for what stands above it now.
    let found = if slot.is_void() { nearest_above(disk, path) } else { nearest(disk, path) };
    let Ok((mount, _)) = found else { return ByHandle::Unknown };
    if mount.file_system().ok() != Some(identity.fs_uuid) {
        return ByHandle::Unknown;
    }
    let (file, path) = match disk.find_by_identity(&mount, identity) {
        Ok(found) => found,
        Err(error) => {
            return if is_stale(&error) { ByHandle::Gone } else { ByHandle::Unknown };
        }
    };
    let (Ok(found), Ok(stat)) = (file.identity_on(identity.fs_uuid), file.stat()) else {
        return ByHandle::Unknown;
    };
    // The kernel does not compare all of a handle: ext4 takes a generation of zero for any. An
    // inode without a name only waits for its last descriptor to be closed: that file is gone.
    if !found.is_same(identity) || !slot.is_born(&stat) || stat.links == 0 || !stat.is_file {
        return ByHandle::Gone;
    }
    // A file that nobody looked up yet has no path, of which the kernel says "/".
    let is_reachable = on(Canary::PathBelieved)
        || disk
            .find(&path)
            .and_then(|there| there.identity_on(identity.fs_uuid))
            .is_ok_and(|there| there.is_same(identity));
    ByHandle::Found(SameFile { file, path, is_reachable, stat })
}
