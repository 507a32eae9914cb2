//! What the requests of the kernel have in common: the tree that is served, how its nodes are
//! reached and changed, and how an answer is put.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{
    Errno as Answer, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, Notifier, OpenFlags,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyXattr, Request,
};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::{Gid, Uid, UnlinkatFlags};

use crate::caller::Caller;
use crate::kept::{Kept, Row};
use crate::names::Made;
use crate::nodes::{Node, Nodes};
use crate::once::Once;
use crate::prune::Prune;
use crate::raw::{self, Result, descriptor};
use crate::{attr, data, directory, names, xattr};

/// How long the kernel may believe a name or attributes where nobody can change them past us.
const ALONE: Duration = Duration::from_secs(3600);
/// The same where somebody can.
const SHARED: Duration = Duration::from_secs(1);
/// Inode numbers are not used again while the kernel knows them.
pub const GENERATION: Generation = Generation(0);

/// The tree.
pub struct Server {
    pub nodes: Nodes,
    /// Whether the mount lies over the directory, so that nobody reaches the files past it.
    pub is_alone: bool,
    /// How long the kernel may believe what it is told.
    pub believed: Duration,
    /// By which the kernel is told what it must not believe any more, once there is a session.
    pub notifier: Arc<OnceLock<Notifier>>,
    /// What outlives this server.
    pub kept: Arc<Kept>,
    /// What must not be done twice.
    pub once: Once,
    prune: Prune,
    /// By which the kernel is asked for room.
    device: Arc<OwnedFd>,
}

pub fn answer(error: Errno) -> Answer {
    Answer::from_i32(error as i32)
}

pub fn empty(done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(answer(error)),
    }
}

pub fn told(done: Result<xattr::Told>, reply: ReplyXattr) {
    match done {
        Ok(xattr::Told::Length(len)) => reply.size(len),
        Ok(xattr::Told::Bytes(bytes)) => reply.data(&bytes),
        Err(error) => reply.error(answer(error)),
    }
}

pub fn offset(at: u64) -> Result<i64> {
    i64::try_from(at).map_err(|_| Errno::EINVAL)
}

/// What `setattr` is to change.
pub struct Change {
    pub mode: Option<u32>,
    pub owner: (Option<Uid>, Option<Gid>),
    pub size: Option<u64>,
    pub times: Option<[nix::sys::time::TimeSpec; 2]>,
    /// The caller's writes take setuid and setgid bits away.
    pub drops_privileges: bool,
}

impl Server {
    /// A server of what `nodes` begins with.
    pub fn new(nodes: Nodes, is_alone: bool, kept: Arc<Kept>, once: Once, device: Arc<OwnedFd>) -> Self {
        let believed = if is_alone { ALONE } else { SHARED };
        Self { nodes, is_alone, believed, notifier: Arc::default(), kept, once, prune: Prune::new(), device }
    }

    /// Before there are too many inodes. Nobody waits for an answer meanwhile.
    pub fn make_room(&self) {
        self.prune.make_room(self.nodes.count(), &self.kept, self.device.as_fd());
    }

    /// The handle of a descriptor that the kernel is about to be given.
    pub fn handle(&self, fd: OwnedFd, is_synchronous: bool) -> FileHandle {
        self.kept.set_handle(fd.as_raw_fd());
        raw::handle(fd, is_synchronous)
    }

    /// Closes what is behind a handle; the kernel has its answer.
    pub fn close(&self, open: FileHandle) {
        let number = raw::number(open);
        if self.kept.what(number) == Some(Row::Handle) {
            self.kept.clear(number);
            raw::close(open);
        }
    }

    pub fn entry(&self, found: Result<(INodeNo, FileStat)>, reply: ReplyEntry) {
        match found {
            Ok((inode, stat)) => {
                reply.entry(&self.believed, &attr::from(&stat, inode), GENERATION);
                self.make_room();
            }
            Err(error) => reply.error(answer(error)),
        }
    }

    /// The attributes of a node; by the open file, if one is said, which is the same file.
    pub fn attributes(&self, inode: INodeNo, open: Option<FileHandle>) -> Result<FileAttr> {
        let node = self.nodes.get(inode)?;
        let stat = match open {
            Some(open) => fstat(descriptor(open))?,
            None => fstat(&*node)?,
        };
        // The root has one number for the kernel, and another for those who compare it with others.
        let shown = if inode == INodeNo::ROOT { INodeNo(stat.st_ino) } else { inode };
        Ok(attr::from(&stat, shown))
    }

    pub fn change(&self, node: &Node, open: Option<FileHandle>, change: &Change) -> Result<()> {
        if change.owner != (None, None) {
            let (uid, gid) = change.owner;
            match open {
                Some(open) => nix::unistd::fchown(descriptor(open), uid, gid)?,
                None => names::set_owner(node, uid, gid)?,
            }
        }
        if let Some(mode) = change.mode {
            let mode = Mode::from_bits_truncate(mode & 0o7777);
            match open {
                Some(open) => nix::sys::stat::fchmod(descriptor(open), mode)?,
                None => names::set_mode(node, mode)?,
            }
        }
        if let Some(size) = change.size {
            let size = offset(size)?;
            match open {
                Some(open) => nix::unistd::ftruncate(descriptor(open), size)?,
                None => nix::unistd::ftruncate(&data::open_again(node, OFlag::O_WRONLY)?, size)?,
            }
            if change.drops_privileges {
                // The answer says what mode it has then.
                let _ = names::drop_privileges(node)?;
            }
        }
        match change.times {
            Some(times) => names::set_times(node, times),
            None => Ok(()),
        }
    }

    /// Before a write of others than root. The kernel believes the mode that it knows, and would go
    /// on to let the bits count.
    pub fn drop_privileges(&self, inode: INodeNo, fd: BorrowedFd<'_>) -> Result<()> {
        if names::drop_privileges(fd)?
            && let Some(notifier) = self.notifier.get()
        {
            // Attributes alone, no pages. A kernel that has forgotten the inode believes nothing.
            let _ = notifier.inval_inode(inode, -1, 0);
        }
        Ok(())
    }

    pub fn open_file(&self, inode: INodeNo, flags: OpenFlags) -> Result<OwnedFd> {
        let node = self.nodes.get(inode)?;
        data::open_again(&node, OFlag::from_bits_retain(flags.0))
    }

    /// Pages may stay from one open to the next where nobody writes past us.
    pub fn open_flags(&self) -> FopenFlags {
        if self.is_alone { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() }
    }

    pub fn two(&self, one: INodeNo, other: INodeNo) -> Result<(Arc<Node>, Arc<Node>)> {
        Ok((self.nodes.get(one)?, self.nodes.get(other)?))
    }
}

impl Server {
    /// Makes a name and answers with what has it then.
    pub fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        made: &Made<'_>,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let caller = Caller::new(request, umask);
        let done = self.nodes.get(parent).and_then(|parent| {
            self.once.act(
                request,
                || 0,
                |before| names::make(&parent, name, made, caller, before.value().is_some()),
            )?;
            names::look_up(&self.nodes, &parent, name)
        });
        self.entry(done, reply);
    }

    /// Takes a name away.
    pub fn remove(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        how: UnlinkatFlags,
        reply: ReplyEmpty,
    ) {
        let caller = Caller::new(request, 0);
        let done = self.nodes.get(parent).and_then(|parent| {
            self.once.act(
                request,
                || 0,
                |before| names::remove(&parent, name, how, caller, before.value().is_some()),
            )
        });
        empty(done, reply);
    }

    /// Writes at the end, wherever that is.
    pub fn append(&self, request: &Request, fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
        let end = || fstat(fd).map_or(0, |stat| stat.st_size.unsigned_abs());
        let wrote = self.once.opened(request, end, |before| {
            let wrote = match before.value() {
                Some(end) => data::append_rest(fd, end, bytes),
                None => data::write(fd, 0, bytes, true),
            };
            // A request has a megabyte.
            wrote.map(|wrote| wrote as i32)
        });
        wrote.map(|wrote| wrote.unsigned_abs() as usize)
    }

    /// Adds a name with its attributes, which counts a lookup; whether no more fit.
    pub fn add_plus(
        &self,
        parent: &Node,
        name: &directory::Name<'_>,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<bool> {
        let mut add = |inode, attributes: &FileAttr| {
            reply.add(inode, name.next, name.name, &self.believed, attributes, GENERATION)
        };
        // Of these two the kernel takes the number alone.
        if matches!(name.name.as_bytes(), b"." | b"..") {
            let number = INodeNo(name.inode);
            return Ok(add(number, &FileAttr { kind: name.kind, ..attr::unknown(number) }));
        }
        let (number, stat) = match names::look_up(&self.nodes, parent, name.name) {
            Ok(found) => found,
            // It is gone by now, or another file system lies there.
            Err(Errno::ENOENT | Errno::EXDEV) => return Ok(false),
            Err(error) => return Err(error),
        };
        let is_full = add(number, &attr::from(&stat, number));
        if is_full {
            self.nodes.forget(number, 1);
        }
        Ok(is_full)
    }
}
