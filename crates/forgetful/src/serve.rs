//! The process that serves the disk as one FUSE file, and obeys the lines on its standard input.
//!
//! It must never touch a file system of the test, which may wait for this very process.

use std::ffi::OsStr;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};

use crate::tear::Page;
use crate::undo;
use crate::volatile::{Error, Volatile};

/// The file's name below the mount point.
pub(crate) const FILE: &str = "image";

const FILE_INODE: INodeNo = INodeNo(2);
const NO_CACHE: Duration = Duration::ZERO;

struct OneFile(Arc<Mutex<Volatile>>);

fn locked(disk: &Mutex<Volatile>) -> MutexGuard<'_, Volatile> {
    disk.lock().expect("no holder panics")
}

fn errno(error: Error) -> Errno {
    match error {
        Error::Off | Error::Flush => Errno::EIO,
        Error::Range => Errno::ENOSPC,
    }
}

impl OneFile {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let file = inode == FILE_INODE;
        let size = if file { locked(&self.0).bytes() } else { 0 };
        FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: if file { FileType::RegularFile } else { FileType::Directory },
            perm: if file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == FILE {
            reply.entry(&NO_CACHE, &self.attributes(FILE_INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&NO_CACHE, &self.attributes(inode));
    }

    /// Past the page cache of this machine, which would remember what the disk forgot.
    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(locked(&self.0).epoch()), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match locked(&self.0).read(handle.0, offset, size as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _how: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match locked(&self.0).write(handle.0, offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// A loop device sends one for each flush of the file system above it.
    fn fsync(&self, _request: &Request, _inode: INodeNo, handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        match locked(&self.0).flush(handle.0) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// A close is no promise.
    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}

/// Serves a disk of `len` bytes that tears at `block_bytes` as `mount_point/image` until standard
/// input ends; then takes down every loop device and mount that is still on it. Says `ready` first,
/// and one line for each line it obeys: `cut SEED`, `restore`, `fail-flushes COUNT`,
/// `tear PAGE_BYTES MARK_AT MARK MARK WHOLE`, `counts`.
fn serve(mount_point: &Path, len: u64, block_bytes: usize) -> io::Result<()> {
    // When memory is short, none must be sought for this process by writing to a file system that
    // waits for it. Not everywhere is root allowed to ask; then memory must not be short.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let disk = Arc::new(Mutex::new(Volatile::new(len, block_bytes)));
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("holdfast-forgetful".into())];
    let session = fuser::spawn_mount(OneFile(disk.clone()), mount_point, &config)?;
    say("ready")?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let order = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        let mut disk = locked(&disk);
        match (order, &numbers[..]) {
            ("cut", [seed]) => disk.cut(*seed),
            ("restore", []) => disk.restore(),
            ("fail-flushes", [count]) => disk.fail_flushes(*count as u32),
            ("tear", [bytes, mark_at, first, second, whole]) => {
                let mark = [*first as u8, *second as u8];
                disk.tear(Page { bytes: *bytes as usize, mark_at: *mark_at as usize, mark }, *whole);
            }
            ("counts", []) => {}
            _ => return Err(io::Error::other(format!("unknown order {line:?}"))),
        }
        let told = format!("{} {} {} {}", disk.flushes, disk.cuts, disk.blocks_lost, disk.blocks_kept);
        drop(disk);
        say(&told)?;
    }
    // Whoever is left gets errors instead of waiting.
    locked(&disk).cut(0);
    undo::take_down(mount_point);
    drop(session);
    Ok(())
}

/// The program that serves one disk, with the arguments MOUNT_POINT BYTES BLOCK_BYTES.
/// [`Disk`](crate::Disk) starts it.
pub fn program(arguments: &[String]) -> ExitCode {
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(mount_point), Some(len), Some(block_bytes)) = (arguments.first(), number(1), number(2)) else {
        eprintln!("a forgetful disk needs: MOUNT_POINT BYTES BLOCK_BYTES");
        return ExitCode::from(2);
    };
    match serve(Path::new(mount_point), len, block_bytes as usize) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the forgetful disk at {mount_point}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush())
}
