//! Which mounted file systems are managed, and which volumes outlive this machine without its pool.

use std::path::Path;

use super::finding::{Finding, read};

/// File systems whose files are managed.
const MANAGED: [&str; 3] = ["ext4", "xfs", "btrfs"];
/// File systems that can hold a user's files but are left to the kernel.
const BYPASSED: [&str; 16] = [
    "9p",
    "bcachefs",
    "ceph",
    "cifs",
    "ext2",
    "ext3",
    "exfat",
    "f2fs",
    "glusterfs",
    "nfs",
    "nfs4",
    "ntfs3",
    "overlay",
    "vfat",
    "virtiofs",
    "zfs",
];

/// One line of mountinfo.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    device: String,
    dir: String,
    kind: String,
    source: String,
}

pub(super) fn findings() -> Vec<Finding> {
    let mut mounts: Vec<Mount> = read("/proc/self/mountinfo").lines().filter_map(parse).collect();
    mounts.retain(|mount| {
        MANAGED.contains(&&*mount.kind) || BYPASSED.contains(&&*mount.kind) || mount.kind.starts_with("fuse")
    });
    // Bind mounts show the same file system again.
    let mut seen = std::collections::BTreeSet::new();
    mounts.retain(|mount| seen.insert(mount.device.clone()));
    if mounts.is_empty() {
        let advice = "put the program's files on ext4, xfs or btrfs";
        return vec![Finding::missing("file systems", "none that is managed", advice)];
    }
    mounts.iter().map(judge).collect()
}

/// Reads `36 35 98:0 /root /mnt opts - ext4 /dev/root opts`.
fn parse(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let mut right = right.split(' ');
    Some(Mount {
        device: left.next()?.to_string(),
        dir: left.nth(1)?.to_string(),
        kind: right.next()?.to_string(),
        source: right.next()?.to_string(),
    })
}

fn judge(mount: &Mount) -> Finding {
    let subject = mount.dir.as_str();
    if !MANAGED.contains(&&*mount.kind) {
        let advice =
            "files there are left to the kernel: correct, but no faster. Move them to ext4, xfs or btrfs";
        return Finding::limited(subject, format!("{} is not managed", mount.kind), advice);
    }
    if let Some(what) = shared_volume(&mount.device) {
        let advice = "if it is attached to another machine after a crash, what only the pool holds is missing there: \
                      recover here first, or do not use Holdfast for it";
        return Finding::limited(subject, format!("{} on {}, {what}", mount.kind, mount.source), advice);
    }
    Finding::good(subject, format!("{} on {}, managed", mount.kind, mount.source))
}

/// Whether a block device is replicated or reached over a network; in words.
fn shared_volume(device: &str) -> Option<&'static str> {
    let path = std::fs::canonicalize(Path::new("/sys/dev/block").join(device)).ok()?;
    let name = path.file_name()?.to_string_lossy().into_owned();
    for (prefix, what) in
        [("drbd", "a replicated volume"), ("rbd", "a Ceph volume"), ("nbd", "a network volume")]
    {
        if name.starts_with(prefix) {
            return Some(what);
        }
    }
    let text = path.to_string_lossy();
    if text.contains("/session") || text.contains("/rport-") || text.contains("/nvme-fabrics/") {
        return Some("a volume on a storage network");
    }
    // A partition's parent directory is the disk.
    [path.join("device/model"), path.join("../device/model")]
        .iter()
        .any(|model| {
            ["Elastic Block Store", "PersistentDisk"].iter().any(|cloud| read(model).contains(cloud))
        })
        .then_some("a cloud volume that can move to another machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard";
        let mount = parse(line).expect("well-formed");
        assert_eq!(
            (&*mount.device, &*mount.dir, &*mount.kind, &*mount.source),
            ("254:0", "/", "ext4", "/dev/vda")
        );
        assert_eq!(parse("nonsense"), None);
    }
}
