//! The requests of the kernel, each handed on to the directory below. A request that this server
//! does not know is answered `ENOSYS` by fuser, and the kernel does without it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno as Answer, FileHandle, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use holdfast_canary::{Canary, on};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag};
use nix::unistd::{Gid, Uid, UnlinkatFlags, Whence};

use crate::caller::Caller;
use crate::names::{self, Made};
use crate::raw::{self, descriptor};
use crate::tree::{Change, GENERATION, Server, answer, empty, offset, told};
use crate::{attr, data, directory, xattr};

/// The largest read or write that the kernel asks for at once.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests that nobody waits for, such as reads ahead, at once.
const BACKGROUND_MAX: u16 = 64;

fn is_synchronous(flags: i32) -> bool {
    flags & libc::O_DSYNC != 0
}

/// Behind a change that is no write, which the kernel follows with a sync of its own accord: where
/// the description is synchronous, natively such a change is durable when it returns.
fn synced_as_opened(open: FileHandle) -> raw::Result<()> {
    if raw::is_synchronous(open) { nix::unistd::fsync(descriptor(open)) } else { Ok(()) }
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
            | InitFlags::FUSE_HAS_RESEND
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
        self.make(request, parent, name, &Made::Node(mode, device), umask, reply);
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
        self.make(request, parent, name, &Made::Directory(mode), umask, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.make(request, parent, name, &Made::Link(target.as_os_str()), 0, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(request, parent, name, UnlinkatFlags::NoRemoveDir, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(request, parent, name, UnlinkatFlags::RemoveDir, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = nix::fcntl::RenameFlags::from_bits_retain(flags.bits());
        let caller = Caller::new(request, 0);
        let done = self.two(parent, new_parent).and_then(|(from, to)| {
            let moved = || names::number(&from, name).unwrap_or(0);
            self.once.act(request, moved, |before| {
                names::rename((&from, name), (&to, new_name), flags, caller, before.value())
            })
        });
        empty(done, reply);
    }

    fn link(
        &self,
        request: &Request,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let made = self.two(inode, new_parent).and_then(|(node, parent)| {
            self.once.act(
                request,
                || 0,
                |before| names::link(&node, &parent, new_name, before.value().is_some()),
            )?;
            names::look_up(&self.nodes, &parent, new_name)
        });
        self.entry(made, reply);
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(inode, flags) {
            Ok(fd) => reply.opened(self.handle(fd, is_synchronous(flags.0)), self.open_flags()),
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
        let made = self.nodes.get(parent).and_then(|parent| {
            self.once.opened(
                request,
                || 0,
                |before| {
                    let may_be_made = before.value().is_some();
                    let fd = names::create(&parent, name, mode, flags, caller, may_be_made)?;
                    Ok(raw::number(self.handle(fd, false)))
                },
            )
        });
        let known = made.and_then(|number| {
            let open = raw::handle_of(number, is_synchronous(flags.bits()));
            match names::made(&self.nodes, descriptor(open)) {
                Ok(known) => Ok((open, known)),
                Err(error) => {
                    self.close(open);
                    Err(error)
                }
            }
        });
        match known {
            Ok((open, (inode, stat))) => {
                reply.created(&self.believed, &attr::from(&stat, inode), GENERATION, open, self.open_flags())
            }
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
        request: &Request,
        inode: INodeNo,
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
            true if !on(Canary::MountPrivilegesKept) => self.drop_privileges(inode, fd),
            _ => Ok(()),
        };
        let wrote = privileged.and_then(|()| {
            Caller::new(request, 0).act_on_content(|| match appends {
                true => self.append(request, fd, bytes),
                false => data::write(fd, offset, bytes, false),
            })
        });
        match wrote {
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
        self.close(open);
    }

    /// The library knows whether the log has it all; never `ENOSYS`, after which the kernel would
    /// not ask again (decision 57).
    fn fsync(&self, _request: &Request, _inode: INodeNo, open: FileHandle, data: bool, reply: ReplyEmpty) {
        let fd = descriptor(open);
        let synced = match data {
            _ if on(Canary::MountSyncAnswered) => Ok(()),
            true => nix::unistd::fdatasync(fd),
            false => nix::unistd::fsync(fd),
        };
        empty(synced, reply);
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(inode, OpenFlags(libc::O_RDONLY)) {
            Ok(fd) if self.is_alone => {
                reply.opened(
                    self.handle(fd, false),
                    FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
                );
            }
            Ok(fd) => reply.opened(self.handle(fd, false), FopenFlags::empty()),
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
        self.make_room();
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
        self.close(open);
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
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = self.nodes.get(inode).and_then(|node| {
            self.once.act(
                request,
                || 0,
                |before| {
                    let flags = if before.value().is_some() { 0 } else { flags };
                    let set = || xattr::set(&node, name, value, flags);
                    let is_acl = name.as_encoded_bytes().starts_with(b"system.posix_acl_");
                    if is_acl { Caller::new(request, 0).act_on_content(set) } else { set() }
                },
            )
        });
        empty(set, reply);
    }

    fn getxattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        told(self.nodes.get(inode).and_then(|node| xattr::get(&node, name, size)), reply);
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        told(self.nodes.get(inode).and_then(|node| xattr::list(&node, size)), reply);
    }

    fn removexattr(&self, request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.nodes.get(inode).and_then(|node| {
            self.once.act(
                request,
                || 0,
                |before| match xattr::remove(&node, name) {
                    Err(Errno::ENODATA) if before.value().is_some() => Ok(()),
                    removed => removed,
                },
            )
        });
        empty(removed, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        inode: INodeNo,
        open: FileHandle,
        at: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (fd, mode) = (descriptor(open), FallocateFlags::from_bits_retain(mode));
        let done = offset(at).and_then(|at| Ok((at, offset(len)?))).and_then(|(at, len)| {
            Caller::new(request, 0).act_on_content(|| nix::fcntl::fallocate(fd, mode, at, len))
        });
        let privileged = done.and_then(|()| match request.uid() {
            0 => Ok(()),
            _ => self.drop_privileges(inode, fd),
        });
        empty(privileged.and_then(|()| synced_as_opened(open)), reply);
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
        request: &Request,
        _inode_in: INodeNo,
        open_in: FileHandle,
        offset_in: u64,
        inode_out: INodeNo,
        open_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The answer has 32 bits.
        let len = len.min(u64::from(u32::MAX >> 1)) as usize;
        let copied = offset(offset_in).and_then(|from| {
            let (input, output, to) = (descriptor(open_in), descriptor(open_out), offset(offset_out)?);
            let copied =
                Caller::new(request, 0).act_on_content(|| raw::copy(input, from, output, to, len))?;
            if request.uid() != 0 {
                self.drop_privileges(inode_out, descriptor(open_out))?;
            }
            synced_as_opened(open_out).map(|()| copied)
        });
        match copied {
            Ok(copied) => reply.written(copied as u32),
            Err(error) => reply.error(answer(error)),
        }
    }
}
