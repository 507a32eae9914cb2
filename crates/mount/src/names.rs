//! Making, moving and finding names. What a caller makes belongs to the caller, with the mode that
//! the file system below would have given it: the kernel hands over its mask, and a default ACL of
//! the directory takes its place.
//!
//! Must never change what a name leads to: beneath the mount it may lead elsewhere by then.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fuser::INodeNo;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, RenameFlags, open, openat, renameat};
use nix::sys::stat::{
    FchmodatFlags, FileStat, Mode, SFlag, UtimensatFlags, fchmodat, fstat, fstatat, mkdirat, mknodat,
    utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, linkat, symlinkat, unlinkat};
use rustix::fs::{StatxAttributes, StatxFlags};

use crate::caller::Caller;
use crate::nodes::{Node, Nodes, is};
use crate::raw::{self, Result};

/// An inode that is looked at and not opened.
const LOOK: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// A name that the kernel asks for; counts a lookup.
pub fn look_up(nodes: &Nodes, parent: &Node, name: &OsStr) -> Result<(INodeNo, FileStat)> {
    let fd = openat(parent, name, LOOK, Mode::empty())?;
    let stat = fstat(&fd)?;
    // Another file system below: it is none of ours, and numbers its files as it likes.
    if stat.st_dev != nodes.device() && is_mount_root(&fd) {
        return Err(Errno::EXDEV);
    }
    Ok((nodes.look_up(fd, &stat), stat))
}

/// Whether a mount begins here, and not just a subvolume.
fn is_mount_root(fd: &OwnedFd) -> bool {
    let told = rustix::fs::statx(fd, "", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::empty());
    told.is_ok_and(|told| told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Makes a regular file and opens it. A file that is there although it should not be is the one to
/// make, if `may_be_made`.
///
/// One that somebody else made meanwhile is not opened here, where nobody looks whether the caller
/// may: `ESTALE` has the kernel look the name up and ask itself.
pub fn create(
    parent: &Node,
    name: &OsStr,
    mode: u32,
    flags: OFlag,
    caller: Caller,
    may_be_made: bool,
) -> Result<OwnedFd> {
    let plain = flags & (OFlag::O_ACCMODE | OFlag::O_TRUNC) | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let wanted = caller.mode(parent, mode);
    let made = caller.act(|| openat(parent, name, plain | OFlag::O_CREAT | OFlag::O_EXCL, wanted));
    match made {
        Err(Errno::EEXIST) => match may_be_made.then(|| open_made(parent, name, plain, caller)) {
            Some(Ok(fd)) => Ok(fd),
            _ if flags.contains(OFlag::O_EXCL) => Err(Errno::EEXIST),
            _ => Err(Errno::ESTALE),
        },
        made => made,
    }
}

/// Opens what a server before this one may have made for the caller.
fn open_made(parent: &Node, name: &OsStr, flags: OFlag, caller: Caller) -> Result<OwnedFd> {
    let found = openat(parent, name, LOOK, Mode::empty())?;
    let stat = fstat(&found)?;
    if !is(&stat, SFlag::S_IFREG) || !caller.owns(stat.st_uid) {
        return Err(Errno::EEXIST);
    }
    open(&*raw::path_of(&found), flags & !OFlag::O_NOFOLLOW, Mode::empty())
}

/// Counts a lookup of a file that was made and opened.
pub fn made(nodes: &Nodes, fd: BorrowedFd<'_>) -> Result<(INodeNo, FileStat)> {
    let stat = fstat(fd)?;
    let look = open(&*raw::path_of(fd), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok((nodes.look_up(look, &stat), stat))
}

/// What else can be made.
pub enum Made<'a> {
    /// A directory.
    Directory(u32),
    /// A file, pipe, socket or device, with its kind in the mode.
    Node(u32, u32),
    /// A symbolic link.
    Link(&'a OsStr),
}

/// Makes a name. One that is there already is the one to make, if `may_be_made`.
pub fn make(parent: &Node, name: &OsStr, made: &Made<'_>, caller: Caller, may_be_made: bool) -> Result<()> {
    let done = caller.act(|| match *made {
        Made::Directory(mode) => mkdirat(parent, name, caller.mode(parent, mode)),
        Made::Node(mode, device) => {
            let kind = SFlag::from_bits_truncate(mode) & SFlag::S_IFMT;
            mknodat(parent, name, kind, caller.mode(parent, mode), u64::from(device))
        }
        Made::Link(target) => symlinkat(target, parent, name),
    });
    match done {
        Err(Errno::EEXIST) if may_be_made => Ok(()),
        done => done,
    }
}

/// `chmod` of what an `O_PATH` descriptor is open on.
pub fn set_mode(fd: impl AsFd, mode: Mode) -> Result<()> {
    let path = raw::path_of(fd);
    fchmodat(AT_FDCWD, &*path, mode, FchmodatFlags::FollowSymlink)
}

/// One more name for a file.
pub fn link(node: &Node, parent: &Node, name: &OsStr, may_be_made: bool) -> Result<()> {
    let done = if node.is_link {
        linkat(node, "", parent, name, AtFlags::AT_EMPTY_PATH)
    } else {
        linkat(AT_FDCWD, &*raw::path_of(node), parent, name, AtFlags::AT_SYMLINK_FOLLOW)
    };
    match done {
        Err(Errno::EEXIST) if may_be_made && number(parent, name)? == fstat(node)?.st_ino => Ok(()),
        done => done,
    }
}

/// The number of the inode that has a name, below.
pub fn number(parent: &Node, name: &OsStr) -> Result<u64> {
    Ok(fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)?.st_ino)
}

/// Takes a name away. One that is not there is gone already, if `may_be_gone`.
pub fn remove(
    parent: &Node,
    name: &OsStr,
    how: UnlinkatFlags,
    caller: Caller,
    may_be_gone: bool,
) -> Result<()> {
    match caller.act(|| unlinkat(parent, name, how)) {
        Err(Errno::ENOENT) if may_be_gone => Ok(()),
        done => done,
    }
}

/// Moves a name. If it may be done already, `before` says which inode had the name.
pub fn rename(
    (from, name): (&Node, &OsStr),
    (to, new_name): (&Node, &OsStr),
    flags: RenameFlags,
    caller: Caller,
    before: Option<u64>,
) -> Result<()> {
    if let Some(before) = before {
        let is_there = |found: Result<u64>| found.is_ok_and(|found| found == before);
        // Two names of one file stay as they are; then doing it again does nothing.
        if !is_there(number(from, name)) && is_there(number(to, new_name)) {
            return Ok(());
        }
    }
    caller.act(|| match flags.is_empty() {
        true => renameat(from, name, to, new_name),
        false => {
            let (name, new_name) = (raw::c_name(name)?, raw::c_name(new_name)?);
            raw::rename(from.as_fd(), &name, to.as_fd(), &new_name, flags.bits())
        }
    })
}

/// The writes of others than root take setuid and setgid bits away, as natively: the kernel leaves
/// that to us.
///
/// Whether there were any.
pub fn drop_privileges(fd: impl AsFd) -> Result<bool> {
    let stat = fstat(&fd)?;
    let group = if stat.st_mode & 0o0010 == 0 { 0 } else { 0o2000 };
    let taken = stat.st_mode & (0o4000 | group);
    if taken == 0 || !is(&stat, SFlag::S_IFREG) {
        return Ok(false);
    }
    set_mode(fd, Mode::from_bits_truncate(stat.st_mode & 0o7777 & !taken)).map(|()| true)
}

/// `chown` of a node.
pub fn set_owner(node: &Node, uid: Option<Uid>, gid: Option<Gid>) -> Result<()> {
    if node.is_link {
        return fchownat(node, "", uid, gid, AtFlags::AT_EMPTY_PATH);
    }
    fchownat(AT_FDCWD, &*raw::path_of(node), uid, gid, AtFlags::empty())
}

/// `utimensat` of a node.
pub fn set_times(node: &Node, times: [TimeSpec; 2]) -> Result<()> {
    if node.is_link {
        return raw::set_times_of_link(node, times);
    }
    let [accessed, modified] = times;
    let path = raw::path_of(node);
    utimensat(AT_FDCWD, &*path, &accessed, &modified, UtimensatFlags::FollowSymlink)
}
