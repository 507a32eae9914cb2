//! Who else still has a pool mapped: clients of a keeper that died may store to it until they
//! notice.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Process ids of other processes that map the file at `path` now. Processes that may not be
/// examined are left out.
pub fn mapped_by(path: &Path) -> Vec<u32> {
    let Ok(metadata) = std::fs::metadata(path) else { return Vec::new() };
    let (dev, inode) = (metadata.dev(), metadata.ino().to_string());
    let dev = format!("{:02x}:{:02x}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut pids: Vec<u32> = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != std::process::id() && maps(pid, &dev, &inode))
        .collect();
    pids.sort_unstable();
    pids
}

/// Lines of the table read `address rights offset device inode path`.
fn maps(pid: u32, dev: &str, inode: &str) -> bool {
    // Bytes, not text: one odd path name must not hide the other lines.
    let Ok(table) = std::fs::read(format!("/proc/{pid}/maps")) else { return false };
    table.split(|&byte| byte == b'\n').any(|line| {
        let mut fields = line.split(|&byte| byte == b' ').skip(3);
        fields.next() == Some(dev.as_bytes()) && fields.next() == Some(inode.as_bytes())
    })
}
