//! Who has a file open, according to `/proc`. Only looks; never opens the files it finds, never
//! waits for a network file system.
//!
//! A look is a moment's truth about tables of open files, shared mappings and loop devices.
//! Descriptions in flight between processes or held by the kernel for anything else are not in it:
//! the callers account for those by the close events.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};

use crate::key::Key;

/// A process outside that has a file open or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Device number of the file.
    pub dev: u64,
    /// Inode number of the file.
    pub ino: u64,
    /// The process; 0: the kernel, for a loop device.
    pub pid: u32,
    /// Whether it can write through what it has.
    pub writes: bool,
    /// Whether it has it mapped shared and writable now.
    pub maps: bool,
}

/// What a process has of one file.
#[derive(Clone, Copy, Default)]
struct Found {
    writes: bool,
    maps: bool,
}

/// What one look over all processes found.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Who holds what.
    pub holders: Vec<Holder>,
    /// Processes that could not be looked into (other users').
    pub unreadable: usize,
}

/// Has any process outside `ours` this inode open for writing now, or mapped shared and writable?
/// `None` when it cannot be told because some process cannot be looked into and none was found
/// otherwise.
pub fn writers_outside(dev: u64, ino: u64, ours: &dyn Fn(u32) -> bool) -> Option<Vec<u32>> {
    let scan = scan_holders(&[(dev, ino)], ours);
    let writers: Vec<u32> =
        scan.holders.iter().filter(|holder| holder.writes).map(|holder| holder.pid).collect();
    if writers.is_empty() && scan.unreadable > 0 { None } else { Some(writers) }
}

/// Who outside `ours` has one of these inodes (device, inode number) open or mapped shared, in one
/// look over all processes.
pub fn scan_holders(files: &[(u64, u64)], ours: &dyn Fn(u32) -> bool) -> Scan {
    let mut scan = Scan { holders: loop_devices(files), ..Scan::default() };
    let Ok(processes) = fs::read_dir("/proc") else {
        scan.unreadable = 1;
        return scan;
    };
    for pid in processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        if ours(pid) {
            continue;
        }
        let mut found = HashMap::new();
        let looked = look_into(pid, files, &mut found);
        scan.holders.extend(found.into_iter().map(|(key, found)| Holder {
            dev: key.dev,
            ino: key.ino,
            pid,
            writes: found.writes,
            maps: found.maps,
        }));
        if looked.is_err() && may_hold_files(pid) {
            scan.unreadable += 1;
        }
    }
    scan
}

/// The loop devices over these inodes, by which others write (history 10). Who attached them may
/// have ended, and the kernel has the files open itself.
fn loop_devices(files: &[(u64, u64)]) -> Vec<Holder> {
    let Ok(devices) = fs::read_dir("/sys/block") else { return Vec::new() };
    let loops = devices.flatten().filter(|device| device.file_name().as_encoded_bytes().starts_with(b"loop"));
    let over = |device: fs::DirEntry| {
        let said = fs::read(device.path().join("loop/backing_file")).ok()?;
        let path = Path::new(OsStr::from_bytes(said.strip_suffix(b"\n")?));
        let key = identity(path).ok().filter(|key| files.contains(&(key.dev, key.ino)))?;
        let writes = fs::read(device.path().join("ro")).is_ok_and(|ro| ro.starts_with(b"0"));
        Some(Holder { dev: key.dev, ino: key.ino, pid: 0, writes, maps: false })
    };
    loops.filter_map(over).collect()
}

/// Whether a process that we cannot look into counts. Kernel threads and the dead have no files
/// open. Root cannot look into processes of root with more capabilities, such as the first one of a
/// container: they are the machine's own, and counting them would make a restricted root blind for
/// good.
fn may_hold_files(pid: u32) -> bool {
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name, in parentheses, may contain anything: the fields begin behind the last one.
    let Some((_, fields)) = stat.rsplit_once(") ") else { return true };
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next().unwrap_or("?");
    let flags: u64 = fields.nth(5).and_then(|field| field.parse().ok()).unwrap_or(0);
    let of_root = |pid: &str| user_of(pid) == Some(0);
    state != "Z"
        && state != "X"
        && flags & KERNEL_THREAD == 0
        && !(of_root("self") && of_root(&pid.to_string()))
}

/// The effective user of a process.
fn user_of(pid: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// First the open files, then the mappings: who maps a file and then closes it is met in one or the
/// other.
fn look_into(pid: u32, files: &[(u64, u64)], found: &mut HashMap<Key, Found>) -> io::Result<()> {
    let base = format!("/proc/{pid}");
    let open_count = look_at_table(&base, files, found)?;
    if open_count == 0 {
        // The first thread may be gone, or share no table: then look at each thread's.
        for task in fs::read_dir(format!("{base}/task"))?.flatten() {
            if let Some(task) = task.file_name().to_str() {
                match look_at_table(&format!("{base}/task/{task}"), files, found) {
                    Err(err) if !gone(&err) => return Err(err),
                    _ => {}
                }
            }
        }
    }
    look_at_mappings(&base, files, found)
}

fn gone(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::NotFound || err.raw_os_error() == Some(libc::ESRCH)
}

/// Goes through one table of open files; how many there were.
fn look_at_table(base: &str, files: &[(u64, u64)], found: &mut HashMap<Key, Found>) -> io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(format!("{base}/fd"))? {
        let Ok(entry) = entry else { break };
        let Ok(number) = entry.file_name().into_string() else { continue };
        count += 1;
        let key = match identity(format!("{base}/fd/{number}")) {
            Ok(key) => key,
            Err(err) if gone(&err) => continue,
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied => return Err(err),
            // A file of a dead server or disk: not one of ours.
            Err(_) => continue,
        };
        if !files.contains(&(key.dev, key.ino)) {
            continue;
        }
        let info = fs::read_to_string(format!("{base}/fdinfo/{number}"));
        let Some(writes) = info.map_or(Some(true), |info| writes_by_info(&info)) else { continue };
        found.entry(key).or_default().writes |= writes;
    }
    Ok(count)
}

/// Whether a description writes, by its `fdinfo`; `None` if it cannot even read (`O_PATH`).
fn writes_by_info(info: &str) -> Option<bool> {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let Some(flags) = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()) else {
        return Some(true);
    };
    (flags & libc::O_PATH == 0).then_some(flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// The inode a magic link leads to, or a path, without asking a server for it.
fn identity(link: impl AsRef<Path>) -> io::Result<Key> {
    let stat = statx(CWD, link.as_ref(), AtFlags::STATX_DONT_SYNC, StatxFlags::INO | StatxFlags::TYPE)?;
    Ok(Key { dev: makedev(stat.stx_dev_major, stat.stx_dev_minor), ino: stat.stx_ino })
}

fn look_at_mappings(base: &str, files: &[(u64, u64)], found: &mut HashMap<Key, Found>) -> io::Result<()> {
    let maps = match fs::read(format!("{base}/maps")) {
        Ok(maps) => maps,
        Err(err) if gone(&err) => return Ok(()),
        Err(err) => return Err(err),
    };
    // Names may be of any bytes; nothing here looks at them.
    for line in String::from_utf8_lossy(&maps).lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(access), _, Some(device), Some(ino)) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        // A private mapping never reaches the file.
        if access.as_bytes().get(3) != Some(&b's') {
            continue;
        }
        let Ok(ino) = ino.parse::<u64>() else { continue };
        for &(dev, watched) in files.iter().filter(|(_, watched)| *watched == ino) {
            if !same_device(base, range, device, dev) {
                continue;
            }
            let maps = access.as_bytes()[1] == b'w';
            let writes = maps || may_become_writable(base, range);
            let known = found.entry(Key { dev, ino: watched }).or_default();
            known.writes |= writes;
            known.maps |= maps;
        }
    }
    Ok(())
}

/// `maps` shows the super block's device, which on btrfs is not the one `stat` shows: the link
/// settles it.
fn same_device(base: &str, range: &str, shown: &str, dev: u64) -> bool {
    let mut numbers = shown.split(':').map(|part| u32::from_str_radix(part, 16).ok());
    if let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next())
        && makedev(major, minor) == dev
    {
        return true;
    }
    identity(format!("{base}/map_files/{range}")).map_or(true, |key| key.dev == dev)
}

/// A shared mapping made read-only can be made writable later if the description it came from can
/// write; only `smaps` tells.
fn may_become_writable(base: &str, range: &str) -> bool {
    let Ok(smaps) = fs::read(format!("{base}/smaps")) else { return true };
    let smaps = String::from_utf8_lossy(&smaps);
    let flags = smaps
        .lines()
        .skip_while(|line| !line.starts_with(range))
        .find_map(|line| line.strip_prefix("VmFlags:"));
    flags.is_none_or(|flags| flags.split_ascii_whitespace().any(|flag| flag == "mw"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fdinfo_tells_writers_from_readers() {
        assert_eq!(writes_by_info("pos:\t0\nflags:\t0100000\nmnt_id:\t25\n"), Some(false));
        assert_eq!(writes_by_info("pos:\t0\nflags:\t0100001\nmnt_id:\t25\n"), Some(true));
        assert_eq!(writes_by_info("pos:\t0\nflags:\t02100002\n"), Some(true));
        assert_eq!(writes_by_info("pos:\t0\nflags:\t012000000\n"), None);
        assert_eq!(writes_by_info("what"), Some(true));
    }
}
