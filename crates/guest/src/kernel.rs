//! A stock Debian kernel with its modules, where it is installed or unpacked.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// What the guest's hardware and file systems need.
const NEEDED: [&str; 10] = [
    "crc32c_generic",
    "crc32c_intel",
    "virtio_pci",
    "virtio_blk",
    "ext4",
    "xfs",
    "nfit",
    "nd_pmem",
    "dax_pmem",
    "device_dax",
];

const INSTALL: &str = "apt-get install -y --no-install-recommends linux-image-amd64, or `apt-get download` the \
                       linux-image package it depends on, `dpkg -x` it into a directory, and name that with --kernel";

/// A kernel image and the directory of its modules.
pub struct Kernel {
    /// The bootable image.
    pub image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The newest one below `root` that has modules.
    pub fn find(root: &Path) -> Result<Self> {
        let Ok(entries) = fs::read_dir(root.join("boot")) else {
            bail!("no kernel in {}: {INSTALL}", root.join("boot").display());
        };
        let mut versions: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned))
            .filter(|version| root.join("lib/modules").join(version).is_dir())
            .collect();
        versions.sort();
        let Some(version) = versions.pop() else {
            bail!("no kernel with modules below {}: {INSTALL}", root.display());
        };
        Ok(Self {
            image: root.join(format!("boot/vmlinuz-{version}")),
            modules: root.join("lib/modules").join(version),
        })
    }

    /// The modules that are needed, each behind those that it needs. What is not there is part of
    /// the kernel.
    pub fn modules(&self) -> Result<Vec<(String, PathBuf)>> {
        let mut all = BTreeMap::new();
        collect(&self.modules.join("kernel"), &mut all)?;
        let mut ordered = Vec::new();
        for name in NEEDED {
            order(name, &all, &mut ordered)?;
        }
        Ok(ordered)
    }
}

fn collect(directory: &Path, all: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("{}", directory.display()))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, all)?;
        } else if let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".ko")) {
            all.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn order(name: &str, all: &BTreeMap<String, PathBuf>, ordered: &mut Vec<(String, PathBuf)>) -> Result<()> {
    let Some(path) = all.get(name) else { return Ok(()) };
    if ordered.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    for needed in depends(&bytes) {
        order(&needed, all, ordered)?;
    }
    ordered.push((name.to_owned(), path.clone()));
    Ok(())
}

/// What a module says that it depends on.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let list = &module[at + KEY.len()..];
    let list = &list[..list.iter().position(|byte| *byte == 0).unwrap_or(list.len())];
    let names = String::from_utf8_lossy(list).replace('-', "_");
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_names_what_it_needs() {
        assert_eq!(depends(b"..\0depends=jbd2,crc-16\0name=x"), ["jbd2", "crc_16"]);
        assert_eq!(depends(b"..\0depends=\0name=x"), Vec::<String>::new());
        assert_eq!(depends(b"nothing"), Vec::<String>::new());
    }

    #[test]
    fn a_missing_kernel_is_named_with_the_command_that_installs_it() {
        let root = tempfile::tempdir().unwrap();
        let error = Kernel::find(root.path()).err().unwrap().to_string();
        assert!(error.contains("apt-get install"), "{error}");
    }
}
