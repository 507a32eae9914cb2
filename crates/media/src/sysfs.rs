//! What sysfs says of the NVM of this machine. Reads only.

use std::fs;
use std::io;
use std::path::Path;

/// Size of a DAX device, from its sysfs directory.
pub(crate) fn device_len(sysfs: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(sysfs.join("size"))?;
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "size is not a number"))
}

/// What protects stores of this platform against power loss: `memory_controller` or `cpu_cache`
/// (eADR); nothing without NVM. With several regions the weakest counts.
pub fn persistence_domain() -> Option<String> {
    let regions = fs::read_dir("/sys/bus/nd/devices").ok()?;
    let domains: Vec<String> = regions
        .flatten()
        .filter(|region| region.file_name().to_string_lossy().starts_with("region"))
        .map(|region| fs::read_to_string(region.path().join("persistence_domain")).unwrap_or_default())
        .map(|domain| domain.trim().to_owned())
        .collect();
    domains.iter().find(|domain| *domain != "cpu_cache").or(domains.first()).cloned()
}
