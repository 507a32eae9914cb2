//! The requests of the kernel, each handed on to the directory below. A request that this server
//! does not know is answered `ENOSYS` by fuser, and the kernel does without it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno as Answer, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, Whence};

use crate::names::{self, Caller, Made};
use crate::nodes::{Node, Nodes};
use crate::raw::{self, Result, descriptor};
use crate::{attr, data, directory, xattr};

/// The largest read or write that the kernel asks for at once.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests that nobody waits for, such as reads ahead, at once.
const BACKGROUND_MAX: u16 = 64;
/// How long the kernel may believe a name or attributes where nobody can change them past us.
const ALONE: Duration = Duration::from_secs(3600);
/// The same where somebody can.
const SHARED: Duration = Duration::from_secs(1);
/// Inode numbers are not used again while the kernel knows them.
const GENERATION: Generation = Generation(0);

/// The file system.
pub struct Server {
    nodes: Nodes,
    /// Whether the mount lies over the directory, so that nobody reaches the files past it.
    is_alone: bool,
    believed: Duration,
}

fn answer(error: Errno) -> Answer {
    Answer::from_i32(error as i32)
}

fn handle(fd: OwnedFd) -> FileHandle {
    FileHandle(u64::from(fd.into_raw_fd().unsigned_abs()))
}

fn empty(done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(answer(error)),
    }
}

fn told(done: Result<xattr::Told>, reply: ReplyXattr) {
    match done {
        Ok(xattr::Told::Length(len)) => reply.size(len),
        Ok(xattr::Told::Bytes(bytes)) => reply.data(&bytes),
        Err(error) => reply.error(answer(error)),
    }
}

fn offset(at: u64) -> Result<i64> {
    i64::try_from(at).map_err(|_| Errno::EINVAL)
}

/// What `setattr` is to change.
struct Change {
    mode: Option<u32>,
    owner: (Option<Uid>, Option<Gid>),
    size: Option<u64>,
    times: Option<[nix::sys::time::TimeSpec; 2]>,
    /// The caller's writes take setuid and setgid bits away.
    drops_privileges: bool,
}

impl Server {
    /// A server of what `nodes` begins with.
    pub fn new(nodes: Nodes, is_alone: bool) -> Self {
        Self { nodes, is_alone, believed: if is_alone { ALONE } else { SHARED } }
    }

    fn entry(&self, found: Result<(INodeNo, FileStat)>, reply: ReplyEntry) {
        match found {
            Ok((inode, stat)) => reply.entry(&self.believed, &attr::from(&stat, inode), GENERATION),
            Err(error) => reply.error(answer(error)),
        }
    }

    /// The attributes of a node; by the open file, if one is said, which is the same file.
    fn attributes(&self, inode: INodeNo, open: Option<FileHandle>) -> Result<FileAttr> {
        let node = self.nodes.get(inode)?;
        let stat = match open {
            Some(open) => fstat(descriptor(open))?,
            None => fstat(&*node)?,
        };
        // The root has one number for the kernel, and another for those who compare it with others.
        let shown = if inode == INodeNo::ROOT { INodeNo(stat.st_ino) } else { inode };
        Ok(attr::from(&stat, shown))
    }

    fn change(&self, node: &Node, open: Option<FileHandle>, change: &Change) -> Result<()> {
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
                names::drop_privileges(node)?;
            }
        }
        match change.times {
            Some(times) => names::set_times(node, times),
            None => Ok(()),
        }
    }

    fn open_file(&self, inode: INodeNo, flags: OpenFlags) -> Result<OwnedFd> {
        let node = self.nodes.get(inode)?;
        data::open_again(&node, OFlag::from_bits_retain(flags.0))
    }

    /// Pages may stay from one open to the next where nobody writes past us.
    fn open_flags(&self) -> FopenFlags {
        if self.is_alone { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() }
    }

    fn two(&self, one: INodeNo, other: INodeNo) -> Result<(Arc<Node>, Arc<Node>)> {
        Ok((self.nodes.get(one)?, self.nodes.get(other)?))
    }
}

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let common = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_POSIX_ACL
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        let cached = match self.is_alone {
            // Else the times of our own writes would empty the page cache.
            true => InitFlags::FUSE_EXPLICIT_INVAL_DATA | InitFlags::FUSE_CACHE_SYMLINKS,
            false => InitFlags::FUSE_AUTO_INVAL_DATA,
        };
        for wanted in (common | cached).iter() {
            // A kernel without one of them does what it did before there was such a flag.
            let _ = config.add_capabilities(wanted);
        }
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_readahead(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.nodes.get(parent).and_then(|parent| names::look_up(&self.nodes, &parent, name));
        self.entry(found, reply);
    }

    fn forget(&self, _request: &Request, inode: INodeNo, lookups: u64) {
        self.nodes.forget(inode, lookups);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, open: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode, open) {
            Ok(attributes) => reply.attr(&self.believed, &attributes),
            Err(error) => reply.error(answer(error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        open: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let is_timed = atime.is_some() || mtime.is_some();
        let change = Change {
            mode,
            owner: (uid.map(Uid::from_raw), gid.map(Gid::from_raw)),
            size,
            times: is_timed.then(|| [attr::to_set(atime), attr::to_set(mtime)]),
            drops_privileges: request.uid() != 0,
        };
        let done = self.nodes.get(inode).and_then(|node| self.change(&node, open, &change));
        match done.and_then(|()| self.attributes(inode, open)) {
            Ok(attributes) => reply.attr(&self.believed, &attributes),
            Err(error) => reply.error(answer(error)),
        }
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        let target = self.nodes.get(inode).and_then(|node| nix::fcntl::readlinkat(&*node, ""));
        match target {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(answer(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let caller = Caller::new(request, umask);
        let made = self
            .nodes
            .get(parent)
            .and_then(|parent| names::make(&self.nodes, &parent, name, &Made::Node(mode, device), caller));
        self.entry(made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let caller = Caller::new(request, umask);
        let made = self
            .nodes
            .get(parent)
            .and_then(|parent| names::make(&self.nodes, &parent, name, &Made::Directory(mode), caller));
        self.entry(made, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let caller = Caller::new(request, 0);
        let made = self.nodes.get(parent).and_then(|parent| {
            names::make(&self.nodes, &parent, name, &Made::Link(target.as_os_str()), caller)
        });
        self.entry(made, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent = self.nodes.get(parent);
        empty(
            parent.and_then(|parent| nix::unistd::unlinkat(&*parent, name, UnlinkatFlags::NoRemoveDir)),
            reply,
        );
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent = self.nodes.get(parent);
        empty(
            parent.and_then(|parent| nix::unistd::unlinkat(&*parent, name, UnlinkatFlags::RemoveDir)),
            reply,
        );
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = nix::fcntl::RenameFlags::from_bits_retain(flags.bits());
        let done = self.two(parent, new_parent).and_then(|(from, to)| match flags.is_empty() {
            true => nix::fcntl::renameat(&*from, name, &*to, new_name),
            false => nix::fcntl::renameat2(&*from, name, &*to, new_name, flags),
        });
        empty(done, reply);
    }

    fn link(
        &self,
        _request: &Request,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let both = self.two(inode, new_parent);
        let made = both.and_then(|(node, parent)| names::link(&self.nodes, &node, &parent, new_name));
        self.entry(made, reply);
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(inode, flags) {
            Ok(fd) => reply.opened(handle(fd), self.open_flags()),
            Err(error) => reply.error(answer(error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (flags, caller) = (OFlag::from_bits_retain(flags), Caller::new(request, umask));
        let parent = self.nodes.get(parent);
        match parent.and_then(|parent| names::create(&self.nodes, &parent, name, mode, flags, caller)) {
            Ok((inode, stat, fd)) => reply.created(
                &self.believed,
                &attr::from(&stat, inode),
                GENERATION,
                handle(fd),
                self.open_flags(),
            ),
            Err(error) => reply.error(answer(error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        open: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        data::read(descriptor(open), offset, size as usize, |read| match read {
            Ok(bytes) => reply.data(bytes),
            Err(error) => reply.error(answer(error)),
        });
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        open: FileHandle,
        offset: u64,
        bytes: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Pages of a mapping have their place; and where nobody else writes, the kernel knows the
        // end.
        let appends =
            !self.is_alone && flags.0 & libc::O_APPEND != 0 && !how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let fd = descriptor(open);
        let privileged = match how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            true => names::drop_privileges(fd),
            false => Ok(()),
        };
        match privileged.and_then(|()| data::write(fd, offset, bytes, appends)) {
            Ok(wrote) => reply.written(wrote as u32),
            Err(error) => reply.error(answer(error)),
        }
    }

    /// A close makes no promise: the kernel need not tell of it.
    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _open: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Answer::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        open: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
        raw::close(open);
    }

    /// The library knows whether the log has it all; never `ENOSYS`, after which the kernel would
    /// not ask again (decision 57).
    fn fsync(&self, _request: &Request, _inode: INodeNo, open: FileHandle, data: bool, reply: ReplyEmpty) {
        let fd = descriptor(open);
        empty(if data { nix::unistd::fdatasync(fd) } else { nix::unistd::fsync(fd) }, reply);
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(inode, OpenFlags(libc::O_RDONLY)) {
            Ok(fd) if self.is_alone => {
                reply.opened(handle(fd), FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE);
            }
            Ok(fd) => reply.opened(handle(fd), FopenFlags::empty()),
            Err(error) => reply.error(answer(error)),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        open: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = directory::list(descriptor(open), offset, |name| {
            Ok(reply.add(INodeNo(name.inode), name.next, name.kind, name.name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(answer(error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        inode: INodeNo,
        open: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.nodes.get(inode).and_then(|parent| {
            directory::list(descriptor(open), offset, |name| self.add_plus(&parent, name, &mut reply))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(answer(error)),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        open: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        reply.ok();
        raw::close(open);
    }

    fn fsyncdir(&self, request: &Request, inode: INodeNo, open: FileHandle, data: bool, reply: ReplyEmpty) {
        self.fsync(request, inode, open, data, reply);
    }

    fn statfs(&self, _request: &Request, inode: INodeNo, reply: ReplyStatfs) {
        let told = self.nodes.get(inode).and_then(|node| nix::sys::statvfs::fstatvfs(node.as_fd()));
        match told {
            Ok(told) => reply.statfs(
                told.blocks(),
                told.blocks_free(),
                told.blocks_available(),
                told.files(),
                told.files_free(),
                told.block_size() as u32,
                told.name_max() as u32,
                told.fragment_size() as u32,
            ),
            Err(error) => reply.error(answer(error)),
        }
    }

    fn setxattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        empty(self.nodes.get(inode).and_then(|node| xattr::set(&node, name, value, flags)), reply);
    }

    fn getxattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        told(self.nodes.get(inode).and_then(|node| xattr::get(&node, name, size)), reply);
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        told(self.nodes.get(inode).and_then(|node| xattr::list(&node, size)), reply);
    }

    fn removexattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.nodes.get(inode).and_then(|node| xattr::remove(&node, name)), reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        _inode: INodeNo,
        open: FileHandle,
        at: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (fd, mode) = (descriptor(open), FallocateFlags::from_bits_retain(mode));
        let done = offset(at)
            .and_then(|at| Ok((at, offset(len)?)))
            .and_then(|(at, len)| nix::fcntl::fallocate(fd, mode, at, len));
        let privileged = done.and_then(|()| match request.uid() {
            0 => Ok(()),
            _ => names::drop_privileges(fd),
        });
        empty(privileged, reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        _inode: INodeNo,
        open: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        // The kernel answers all others itself.
        let whence = match whence {
            libc::SEEK_DATA => Whence::SeekData,
            libc::SEEK_HOLE => Whence::SeekHole,
            _ => return reply.error(Answer::EINVAL),
        };
        // The descriptor's cursor is used by nobody.
        match nix::unistd::lseek(descriptor(open), offset, whence) {
            Ok(found) => reply.offset(found),
            Err(error) => reply.error(answer(error)),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _inode_in: INodeNo,
        open_in: FileHandle,
        offset_in: u64,
        _inode_out: INodeNo,
        open_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The answer has 32 bits.
        let len = len.min(u64::from(u32::MAX >> 1)) as usize;
        let copied = offset(offset_in).and_then(|from| {
            raw::copy(descriptor(open_in), from, descriptor(open_out), offset(offset_out)?, len)
        });
        match copied {
            Ok(copied) => reply.written(copied as u32),
            Err(error) => reply.error(answer(error)),
        }
    }
}

impl Server {
    /// Adds a name with its attributes, which counts a lookup; whether no more fit.
    fn add_plus(
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
