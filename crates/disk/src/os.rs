//! The kernel's file systems.

// `sync_file_range` and writes from memory that others may change have no safe wrappers.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use holdfast_board::{FileTime, Times};
use holdfast_canary::{Canary, on};
use holdfast_media::Bytes;
use holdfast_pool::{Identity, Ownership, Parent};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, ResolveFlags, Statx, StatxAttributes,
    StatxFlags, StatxTimestamp, Timespec, Timestamps, UTIME_OMIT, fallocate, futimens, listxattr, mkdirat,
    openat, renameat_with, statx, unlinkat,
};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::{Access, Change, Clock, Disk, DiskFile, Notice, Stat};
use crate::identity::{self, FsKind};
use crate::locked;
use crate::walk::open_through;

/// Zeros written at once where holes cannot be punched.
const ZEROS_BYTES: usize = 1 << 20;
/// Looks at the clocks until two of them are close together.
const CLOCK_LOOKS_MAX: u32 = 16;
/// `STATX_MNT_ID_UNIQUE` of Linux 6.8: a mount's number that is never given out twice.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// All mounted file systems.
#[derive(Debug)]
pub struct OsDisk {
    /// Without inotify no directory can be watched.
    notices: Option<OwnedFd>,
}

impl OsDisk {
    /// The file systems as this process sees them.
    pub fn new() -> Self {
        Self { notices: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok() }
    }
}

impl Default for OsDisk {
    fn default() -> Self {
        Self::new()
    }
}

/// Opens `path` as it stands there: absolute, no symbolic link on the way.
fn open_beneath(path: &[u8], flags: OFlags) -> io::Result<OsFile> {
    if path.first() != Some(&b'/') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "its path is not absolute"));
    }
    if !is_plain(path) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "its path has empty parts, or . or .. among them",
        ));
    }
    let resolve = if on(Canary::LinksFollowed) {
        ResolveFlags::empty()
    } else {
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
    };
    Ok(OsFile::from(open_through(path, flags | OFlags::CLOEXEC, resolve)?))
}

/// Whether an absolute path has the one form in which the keeper stores it. Another form of it
/// could be taken for another file, or lead out of where it seems to lead.
fn is_plain(path: &[u8]) -> bool {
    path == b"/" || path[1..].split(|&byte| byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

impl Disk for OsDisk {
    type File = OsFile;

    fn open(&self, path: &Path) -> io::Result<OsFile> {
        File::open(path).map(OsFile::from)
    }

    fn hold(&self, path: &Path) -> io::Result<OsFile> {
        Ok(OsFile::from(openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?))
    }

    fn look(&self, path: &Path) -> io::Result<Stat> {
        Ok(stat_of(&statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, STAT_WANTED)?))
    }

    fn directory(&self, path: &Path) -> io::Result<Parent> {
        let (handle_type, handle) = identity::handle_at(path)?;
        Ok(Parent { handle_type, handle })
    }

    fn find(&self, path: &[u8]) -> io::Result<OsFile> {
        open_beneath(path, OFlags::PATH | OFlags::NOFOLLOW)
    }

    fn find_directory(&self, path: &[u8]) -> io::Result<OsFile> {
        open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    fn find_by_identity(&self, beside: &OsFile, identity: &Identity) -> io::Result<(OsFile, Vec<u8>)> {
        let file = OsFile::from(identity::open_by_identity(beside, identity)?);
        let name = std::fs::read_link(file.magic_path())?;
        Ok((file, name.into_os_string().into_vec()))
    }

    fn clock(&self) -> Clock {
        let first = look_at_clock();
        // Whoever was interrupted between the looks tries again.
        (0..CLOCK_LOOKS_MAX).fold(first, |best, _| {
            let width = |clock: &Clock| clock.booted_ns_max - clock.booted_ns_min;
            if width(&best) < 1000 {
                return best;
            }
            let next = look_at_clock();
            if width(&next) < width(&best) { next } else { best }
        })
    }

    fn boot(&self) -> [u8; 16] {
        static BOOT: OnceLock<[u8; 16]> = OnceLock::new();
        *BOOT.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
            u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
        })
    }

    fn watch(&self, directory: &Path) -> Option<i32> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(self.notices.as_ref()?, directory, flags).ok()
    }

    fn unwatch(&self, watch: i32) {
        if let Some(queue) = &self.notices {
            let _ = inotify::remove_watch(queue, watch);
        }
    }

    fn take_notices(&self) -> Vec<Notice> {
        let Some(queue) = &self.notices else { return Vec::new() };
        let mut buffer = [MaybeUninit::<u8>::uninit(); 16_384];
        let mut reader = Reader::new(queue, &mut buffer);
        let mut notices = Vec::new();
        while let Ok(event) = reader.next() {
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                notices.push(Notice { watch: None, change: Change::Other });
                continue;
            }
            let name = event.file_name().map(|name| name.to_bytes().to_vec());
            let plain = !flags.contains(ReadFlags::ISDIR);
            let change = match name {
                _ if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED) => {
                    Change::Gone
                }
                Some(name) if plain && flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) => {
                    Change::Created(name)
                }
                Some(name) if plain && flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) => {
                    Change::Removed(name)
                }
                // Mode or times of a file in it are the file's own.
                Some(_) if flags.contains(ReadFlags::ATTRIB) => continue,
                _ => Change::Other,
            };
            notices.push(Notice { watch: Some(event.wd()), change });
        }
        notices
    }
}

/// Whether what the kernel says of a file is that nobody may write to it in place (`chattr +a`,
/// `+i`).
fn is_fixed(found: &Statx) -> bool {
    found.stx_attributes.intersects(StatxAttributes::APPEND | StatxAttributes::IMMUTABLE)
}

/// One look at the two clocks.
fn look_at_clock() -> Clock {
    let ns = |id: ClockId| {
        let time = clock_gettime(id);
        (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
    };
    let before = ns(ClockId::Boottime);
    let now_ns = ns(ClockId::Realtime);
    let after = ns(ClockId::Boottime);
    Clock {
        now_ns,
        booted_ns_min: now_ns.saturating_sub(after),
        booted_ns_max: now_ns.saturating_sub(before),
    }
}

/// Whether quotas are in force on a device, as far as its mounts say: then nobody can tell how much
/// fits.
fn has_quota(dev: u64) -> bool {
    static KNOWN: Mutex<Vec<(u64, bool)>> = Mutex::new(Vec::new());
    let mut known = locked(&KNOWN);
    if let Some(&(_, quota)) = known.iter().find(|(device, _)| *device == dev) {
        return quota;
    }
    let device = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let quota = mounts.lines().filter(|line| line.split(' ').nth(2) == Some(&device)).any(|line| {
        let options = line.rsplit(' ').next().unwrap_or_default();
        options.split(',').any(|option| option.contains("quota") && !option.contains("noquota"))
    });
    known.push((dev, quota));
    quota
}

/// Whether an ext4 has a journal, as far as the kernel tells.
fn has_journal(dev: u64, uuid: [u8; 16]) -> bool {
    type Known = Vec<((u64, [u8; 16]), bool)>;
    static KNOWN: Mutex<Known> = Mutex::new(Vec::new());
    let mut known = locked(&KNOWN);
    if let Some(&(_, journal)) = known.iter().find(|(whose, _)| *whose == (dev, uuid)) {
        return journal;
    }
    let device = format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let task = std::fs::read_link(device).and_then(|device| {
        let name = device.file_name().unwrap_or_default().to_owned();
        std::fs::read_to_string(Path::new("/sys/fs/ext4").join(name).join("journal_task"))
    });
    let journal = task.is_ok_and(|task| task.trim().parse::<u32>().is_ok());
    known.push(((dev, uuid), journal));
    journal
}

/// What is asked of a file.
const STAT_WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(MNT_ID_UNIQUE);

fn stat_of(found: &Statx) -> Stat {
    let told = StatxFlags::from_bits_retain(found.stx_mask);
    let ns = |time: &StatxTimestamp| {
        time.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.tv_nsec))
    };
    let mode = u32::from(found.stx_mode);
    Stat {
        dev: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
        ino: found.stx_ino,
        is_file: mode & libc::S_IFMT == libc::S_IFREG,
        links: found.stx_nlink.into(),
        size: found.stx_size,
        ownership: Ownership { mode: mode & 0o7777, owner: found.stx_uid, group: found.stx_gid },
        modified_ns: ns(&found.stx_mtime),
        changed_ns: ns(&found.stx_ctime),
        mount: if told.contains(MNT_ID_UNIQUE) { found.stx_mnt_id } else { 0 },
        is_fixed: is_fixed(found),
        born_ns: told.contains(StatxFlags::BTIME).then(|| ns(&found.stx_btime)),
    }
}

/// Whose description a descriptor is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// Our own.
    Ours,
    /// A program's, which may append.
    Lent,
}

/// A descriptor.
#[derive(Debug)]
pub struct OsFile {
    file: File,
    whose: Whose,
    /// It has our lease on it, which is given back with it at the latest.
    leased: AtomicBool,
}

impl From<File> for OsFile {
    fn from(file: File) -> Self {
        Self { file, whose: Whose::Ours, leased: AtomicBool::new(false) }
    }
}

impl Drop for OsFile {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl From<OwnedFd> for OsFile {
    fn from(fd: OwnedFd) -> Self {
        Self::from(File::from(fd))
    }
}

impl AsFd for OsFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl OsFile {
    /// A program's own description, on which we have a lease.
    pub fn leased(file: File) -> Self {
        Self { file, whose: Whose::Lent, leased: AtomicBool::new(true) }
    }

    /// What the lease on it says.
    pub fn lease(&self) -> crate::lease::Lease {
        crate::lease::state(self.file.as_fd())
    }

    /// Opens it for reading and writing past the page cache; through it where its file system
    /// cannot.
    fn reopen_direct(&self) -> io::Result<Self> {
        let open = |flags: i32| {
            File::options().read(true).write(true).custom_flags(flags).open(self.magic_path()).map(Self::from)
        };
        open(libc::O_DIRECT).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => open(0),
            _ => Err(error),
        })
    }

    /// The path by which the kernel finds this description.
    pub fn magic_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

impl DiskFile for OsFile {
    fn stat(&self) -> io::Result<Stat> {
        Ok(stat_of(&statx(&self.file, c"", AtFlags::EMPTY_PATH, STAT_WANTED)?))
    }

    const HAS_TIMES: bool = true;

    fn times(&self) -> io::Result<Times> {
        let stat = rustix::fs::fstat(&self.file)?;
        Ok(Times {
            modified: FileTime::new(stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: FileTime::new(stat.st_ctime, stat.st_ctime_nsec as i64),
        })
    }

    fn set_modified(&self, modified: FileTime) -> io::Result<()> {
        let Some((tv_sec, tv_nsec)) = modified.parts() else { return Ok(()) };
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let last_modification = Timespec { tv_sec, tv_nsec };
        Ok(futimens(&self.file, &Timestamps { last_access, last_modification })?)
    }

    /// The label that a security module gives every file is given anew.
    fn has_attributes(&self) -> bool {
        const LABEL: &[u8] = b"security.selinux\0";
        let mut names = [0u8; LABEL.len() + 1];
        match listxattr(self.magic_path(), &mut names) {
            Ok(bytes) => bytes != 0 && &names[..bytes] != LABEL,
            Err(error) => error != Errno::OPNOTSUPP,
        }
    }

    /// A file system that was shut down tells nothing of its files any more; then the kernel's own
    /// table of names does.
    fn is_removed(&self) -> bool {
        match self.stat() {
            Ok(stat) => stat.links == 0,
            Err(_) => std::fs::read_link(self.magic_path())
                .is_ok_and(|path| path.as_os_str().as_bytes().ends_with(b" (deleted)")),
        }
    }

    fn path_now(&self) -> Option<PathBuf> {
        let path = std::fs::read_link(self.magic_path()).ok()?;
        let is_gone = path.as_os_str().as_bytes().ends_with(b" (deleted)");
        (path.is_absolute() && !is_gone).then_some(path)
    }

    fn identity(&self) -> io::Result<Identity> {
        identity::identify(self).map(|(identity, _)| identity)
    }

    fn identity_on(&self, file_system: [u8; 16]) -> io::Result<Identity> {
        identity::identify_on(self, file_system)
    }

    fn file_system(&self) -> io::Result<[u8; 16]> {
        identity::file_system(self).map(|(uuid, _)| uuid)
    }

    fn reopen(&self, access: Access) -> io::Result<Self> {
        if access == Access::Direct {
            return self.reopen_direct();
        }
        identity::reopen(self, access == Access::Write).map(Self::from)
    }

    fn is_open_for_writing(&self) -> bool {
        crate::lease::try_read_lease(self.as_fd()).is_err()
    }

    fn sync(&self) -> io::Result<()> {
        super::fsync::fsync(&self.file)
    }

    fn sync_data(&self) -> io::Result<()> {
        super::fsync::fdatasync(&self.file)
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        rustix::fs::syncfs(&self.file)?;
        // One that was shut down tells of success, and of no attributes.
        self.stat().map(drop)
    }

    fn sync_file_system(&self) {
        let _ = rustix::fs::syncfs(&self.file);
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.whose == Whose::Ours {
            return self.file.write_all_at(bytes, offset);
        }
        let mut written = 0;
        while written < bytes.len() {
            match crate::lease::write_in_place(self.as_fd(), &bytes[written..], offset + written as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write_lent_at(&self, ranges: &[Bytes<'_>], offset: u64) -> io::Result<()> {
        let all: usize = ranges.iter().map(Bytes::len).sum();
        // SAFETY: `Bytes` is laid out as `iovec`, and what it says is readable for the time of the
        // call.
        let written = unsafe {
            libc::pwritev(
                self.file.as_raw_fd(),
                ranges.as_ptr().cast(),
                ranges.len() as libc::c_int,
                offset as libc::off_t,
            )
        };
        match usize::try_from(written) {
            Ok(written) if written == all => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        const BTRFS: u32 = 0x9123_683e;
        // btrfs' quota groups come and go without a trace in its mounts, and overwriting takes
        // space there.
        let unknown =
            rustix::fs::fstatfs(&self.file)?.f_type as u32 == BTRFS || has_quota(self.file.metadata()?.dev());
        if unknown {
            return Ok(0);
        }
        let space = rustix::fs::fstatvfs(&self.file)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes) {
            Err(Errno::OPNOTSUPP) => {
                let end = offset.saturating_add(bytes).min(self.file.metadata()?.len());
                let zeros = vec![0u8; ZEROS_BYTES];
                let mut at = offset;
                while at < end {
                    let step = (end - at).min(zeros.len() as u64);
                    self.file.write_all_at(&zeros[..step as usize], at)?;
                    at += step;
                }
                Ok(())
            }
            done => Ok(done?),
        }
    }

    fn held_entries(&self, wanted: &dyn Fn(u64) -> bool) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        crate::entries::held(self.file.as_fd(), wanted, &mut |held| found.push(Self::from(held)))?;
        Ok(found)
    }

    fn orders_names(&self) -> bool {
        match identity::file_system(self) {
            Ok((_, FsKind::Xfs)) => true,
            Ok((uuid, FsKind::Ext4)) => self.file.metadata().is_ok_and(|meta| has_journal(meta.dev(), uuid)),
            _ => false,
        }
    }

    fn commits_quickly(&self) -> bool {
        matches!(identity::file_system(self), Ok((_, FsKind::Btrfs)))
    }

    fn journal_count(&self) -> Option<u64> {
        super::commit::journal_count(self.file.as_fd())
    }

    fn commit(&self) -> io::Result<()> {
        super::commit::commit(self.file.as_fd(), self.orders_names())
    }

    fn try_clone(&self) -> io::Result<Self> {
        // The lease is the first one's to give back.
        Ok(Self { file: self.file.try_clone()?, whose: self.whose, leased: AtomicBool::new(false) })
    }

    fn give_back(&self) {
        // Once: the next lease on it may be its program's.
        if self.leased.swap(false, Ordering::SeqCst) {
            crate::lease::give_back(self.file.as_fd());
        }
    }

    fn begin_write_back(&self, range: &Range<u64>) {
        let bytes = range.end - range.start;
        // SAFETY: a system call on a descriptor that lives through the call; it touches no memory
        // of ours.
        let _ = unsafe {
            libc::sync_file_range(
                self.file.as_raw_fd(),
                range.start as i64,
                bytes as i64,
                libc::SYNC_FILE_RANGE_WRITE,
            )
        };
    }

    fn set_ownership(&self, ownership: Ownership) -> io::Result<()> {
        match std::os::unix::fs::fchown(&self.file, Some(ownership.owner), Some(ownership.group)) {
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
        self.file.set_permissions(std::fs::Permissions::from_mode(ownership.mode & 0o7777))
    }

    fn create(&self, name: &[u8]) -> io::Result<Self> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self::from(openat(&self.file, OsStr::from_bytes(name), flags, Mode::RUSR | Mode::WUSR)?))
    }

    fn make_directory(&self, name: &[u8]) -> io::Result<()> {
        Ok(mkdirat(&self.file, OsStr::from_bytes(name), Mode::RWXU)?)
    }

    fn rename(&self, from: &[u8], directory: &Self, to: &[u8]) -> io::Result<()> {
        Ok(renameat_with(&self.file, from, &directory.file, to, RenameFlags::NOREPLACE)?)
    }

    fn replace(&self, from: &[u8], directory: &Self, to: &[u8]) -> io::Result<()> {
        Ok(renameat_with(&self.file, from, &directory.file, to, RenameFlags::empty())?)
    }

    fn remove(&self, name: &[u8]) -> io::Result<()> {
        Ok(unlinkat(&self.file, name, AtFlags::empty())?)
    }
}
