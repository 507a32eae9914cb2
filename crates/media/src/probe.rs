//! What NVM this machine has, for `doctor` and for messages. Reads sysfs and procfs only.

use std::fmt;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use rustix::fs::{fstat, major, minor};

use crate::cpu::{CopyPath, FlushPath};
use crate::kind::MediaKind;
use crate::sysfs::device_len;

/// A place where a pool could live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The device, or the mount point of the file system.
    pub path: PathBuf,
    /// What a pool there would be.
    pub kind: MediaKind,
    /// Bytes of the device; nothing for a file system.
    pub len: Option<u64>,
    /// The device behind a file system.
    pub source: Option<String>,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.path.display(), self.kind)?;
        if let Some(len) = self.len {
            write!(f, ", {} MiB", len >> 20)?;
        }
        if let Some(source) = &self.source {
            write!(f, ", on {source}")?;
        }
        f.write_str(")")
    }
}

/// All DAX devices and file systems mounted with DAX.
pub fn probe() -> Vec<Candidate> {
    let mut found = dax_devices();
    found.extend(dax_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()));
    found
}

fn dax_devices() -> Vec<Candidate> {
    let Ok(devices) = fs::read_dir("/sys/bus/dax/devices") else { return Vec::new() };
    let mut found: Vec<Candidate> = devices
        .flatten()
        .map(|device| (PathBuf::from("/dev").join(device.file_name()), device.path()))
        .filter(|(path, _)| path.exists())
        .map(|(path, sysfs)| Candidate {
            path,
            kind: MediaKind::DaxDevice,
            len: device_len(&sysfs).ok(),
            source: None,
        })
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Mounts with DAX for all files: `dax` or `dax=always` among the file system's options.
fn dax_mounts(mountinfo: &str) -> Vec<Candidate> {
    let mount = |line: &str| {
        let (mount, file_system) = line.split_once(" - ")?;
        let point = mount.split(' ').nth(4)?;
        let mut fields = file_system.split(' ').skip(1);
        let source = fields.next()?;
        let options = fields.next()?;
        options.split(',').any(|o| o == "dax" || o == "dax=always").then(|| Candidate {
            path: PathBuf::from(unescape(point)),
            kind: MediaKind::DaxFile,
            len: None,
            source: Some(unescape(source)),
        })
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// Undoes the octal escapes of mountinfo (space, tab, newline, backslash).
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

/// Kind and mount point of the file system that holds `fd`, for messages.
pub(crate) fn file_system_of(fd: BorrowedFd<'_>) -> String {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    fstat(fd)
        .ok()
        .and_then(|stat| mount_of(&mountinfo, &format!("{}:{}", major(stat.st_dev), minor(stat.st_dev))))
        .unwrap_or_else(|| "of unknown kind".to_owned())
}

fn mount_of(mountinfo: &str, device: &str) -> Option<String> {
    let line = mountinfo.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    let (mount, file_system) = line.split_once(" - ")?;
    let kind = file_system.split(' ').next()?;
    Some(format!("{kind} on {}", unescape(mount.split(' ').nth(4)?)))
}

/// Bytes of memory the kernel could give without swapping; nothing if it does not say.
pub(crate) fn memory_available() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What the processor offers, for status lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuFeatures {
    /// The best instruction to write cache lines back.
    pub flush: FlushPath,
    /// The fastest way to stream and sum bytes.
    pub copy: CopyPath,
}

impl fmt::Display for CpuFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flush: {}, copy: {}", self.flush, self.copy)
    }
}

/// What the processor offers.
pub fn cpu_features() -> CpuFeatures {
    CpuFeatures { flush: FlushPath::of_cpu(), copy: CopyPath::of_cpu() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_dax_mounts() {
        let mountinfo = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
30 22 259:0 / /mnt/pm\\040em rw,relatime shared:2 - ext4 /dev/pmem0 rw,dax=always\n\
31 22 259:1 / /mnt/b rw - xfs /dev/pmem1 rw,attr2,dax=inode,inode64\n\
32 22 259:2 / /mnt/c rw - xfs /dev/pmem2 rw,dax\n";
        let found = dax_mounts(mountinfo);
        let paths: Vec<_> = found.iter().map(|c| c.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/mnt/pm em", "/mnt/c"]);
        assert_eq!(found[0].to_string(), "/mnt/pm em (DAX file, on /dev/pmem0)");
        assert_eq!(mount_of(mountinfo, "259:0").as_deref(), Some("ext4 on /mnt/pm em"));
        assert_eq!(mount_of(mountinfo, "259:9"), None);
    }
}
