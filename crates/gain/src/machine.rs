//! The machine and the file system that numbers come from. It changes nothing.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// What was measured on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor.
    pub cpu: String,
    /// How many of them this process may use.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Version of the kernel.
    pub kernel: String,
    /// Name of the distribution.
    pub system: String,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let memory = field("/proc/meminfo", "MemTotal", ':');
        let kib = memory.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Self {
            cpu: field("/proc/cpuinfo", "model name", ':').unwrap_or_else(|| "unknown".into()),
            cpus: std::thread::available_parallelism().map_or(1, |count| count.get()),
            memory_bytes: kib.unwrap_or(0) * 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            system: field("/etc/os-release", "PRETTY_NAME", '=').unwrap_or_default().replace('"', ""),
        }
    }

    /// In a line.
    pub fn in_words(&self) -> String {
        let memory = crate::units::bytes(self.memory_bytes);
        format!("{} x {}, {memory}, Linux {}, {}", self.cpus, self.cpu, self.kernel, self.system)
    }
}

fn field(path: &str, name: &str, separator: char) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(separator)?.1.trim().to_owned())
}

/// The file system that a directory is on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FileSystem {
    /// Its kind, as the kernel names it.
    pub kind: String,
    /// The device below.
    pub device: String,
    /// How it is mounted.
    pub options: String,
}

impl FileSystem {
    /// Of a directory.
    pub fn of(dir: &Path) -> anyhow::Result<Self> {
        let dir = dir.canonicalize().with_context(|| format!("cannot use {}", dir.display()))?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
        Ok(Self::among(&mounts, &dir).unwrap_or_default())
    }

    /// The mount with the longest name that the directory lies below; of equals the last one hides
    /// the others.
    fn among(mounts: &str, dir: &Path) -> Option<Self> {
        let read = |line: &str| {
            let (mount, system) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(4);
            let (point, options) = (unescaped(fields.next()?), fields.next()?);
            let mut system = system.split(' ');
            let (kind, device) = (system.next()?, system.next()?);
            let options = format!("{options},{}", system.next().unwrap_or_default());
            dir.starts_with(&point).then(|| {
                let found = Self { kind: kind.to_owned(), device: unescaped(device), options };
                (point.len(), found)
            })
        };
        mounts.lines().filter_map(read).max_by_key(|(length, _)| *length).map(|(_, found)| found)
    }

    /// Whether Holdfast absorbs what is done to files there.
    pub fn is_managed(&self) -> bool {
        ["ext2", "ext3", "ext4", "xfs", "btrfs"].contains(&self.kind.as_str())
    }

    /// Whether it is in memory.
    pub fn is_memory(&self) -> bool {
        ["tmpfs", "ramfs"].contains(&self.kind.as_str())
    }
}

/// Undoes the octal escapes of mountinfo.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_on_the_last_of_the_nearest_mounts() {
        let mounts = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n\
30 22 0:30 / /srv/a\\040b rw - xfs /dev/vdb rw\n\
31 22 0:31 / /srv/a\\040b rw - tmpfs tmpfs rw,size=1g\n";
        let at = |dir: &str| FileSystem::among(mounts, Path::new(dir)).expect("a file system");
        assert_eq!((at("/srv/a b/c").kind.as_str(), at("/srv/a b/c").is_memory()), ("tmpfs", true));
        assert_eq!((at("/srv/a").device.as_str(), at("/srv/a").is_managed()), ("/dev/vda", true));
        assert_eq!(at("/").options, "rw,relatime,rw,discard");
        assert!(!FileSystem::default().is_managed());
    }

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::here();
        assert!(machine.cpus > 0 && machine.memory_bytes > 0 && !machine.kernel.is_empty());
    }
}
