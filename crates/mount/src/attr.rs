//! What the file system says of a file, in the form that the kernel asks for it, and back.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use nix::sys::stat::{FileStat, SFlag};
use nix::sys::time::{TimeSpec, TimeValLike};

/// The kind of a file.
pub fn kind(stat: &FileStat) -> FileType {
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFDIR => FileType::Directory,
        SFlag::S_IFLNK => FileType::Symlink,
        SFlag::S_IFIFO => FileType::NamedPipe,
        SFlag::S_IFSOCK => FileType::Socket,
        SFlag::S_IFCHR => FileType::CharDevice,
        SFlag::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = match seconds {
        0.. => SystemTime::UNIX_EPOCH + whole,
        _ => SystemTime::UNIX_EPOCH - whole,
    };
    base + Duration::from_nanos(nanoseconds.unsigned_abs())
}

/// A time to set.
pub fn to_set(time: Option<TimeOrNow>) -> TimeSpec {
    let time = match time {
        None => return TimeSpec::UTIME_OMIT,
        Some(TimeOrNow::Now) => return TimeSpec::UTIME_NOW,
        Some(TimeOrNow::SpecificTime(time)) => time,
    };
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => TimeSpec::from_duration(since),
        // Nanoseconds always count forwards.
        Err(before) => {
            let before = before.duration();
            let (seconds, rest) = (before.as_secs().cast_signed(), i64::from(before.subsec_nanos()));
            match rest {
                0 => TimeSpec::seconds(-seconds),
                _ => TimeSpec::new(-seconds - 1, 1_000_000_000 - rest),
            }
        }
    }
}

/// The attributes that a stat tells.
pub fn from(stat: &FileStat, inode: INodeNo) -> FileAttr {
    FileAttr {
        ino: inode,
        size: stat.st_size.unsigned_abs(),
        blocks: stat.st_blocks.unsigned_abs(),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: SystemTime::UNIX_EPOCH,
        kind: kind(stat),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

/// What is said of a file that was not looked at.
pub fn unknown(inode: INodeNo) -> FileAttr {
    FileAttr {
        ino: inode,
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_as_they_were_before_1970_too() {
        for (seconds, nanoseconds) in [(0, 0), (5, 7), (-1, 0), (-1, 999_999_999), (-3, 1)] {
            let set = to_set(Some(TimeOrNow::SpecificTime(time(seconds, nanoseconds))));
            assert_eq!((set.tv_sec(), set.tv_nsec()), (seconds, nanoseconds));
        }
    }
}
