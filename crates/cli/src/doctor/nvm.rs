//! Which non-volatile memory there is and how the processor makes stores durable. It opens no
//! device.

use std::path::Path;

use holdfast_media::{FlushPath, cpu_features, persistence_domain, probe};

use super::finding::Finding;

pub(super) fn findings() -> Vec<Finding> {
    vec![media(), flush_path(), power_fail_domain()]
}

/// What is looked at first.
pub(super) const SUBJECT: &str = "NVM";

fn media() -> Finding {
    let usable: Vec<String> = probe().iter().map(ToString::to_string).collect();
    if !usable.is_empty() {
        return Finding::good(SUBJECT, usable.join(", "));
    }
    let blocks = pmem_blocks();
    if !blocks.is_empty() {
        // A namespace in raw mode has no pages that could be mapped.
        let advice = if blocks.iter().any(|block| can_dax(block)) {
            "mkfs.ext4 -b 4096 or mkfs.xfs -m reflink=0, mount with -o dax=always, and put the pool there"
        } else {
            "ndctl create-namespace -f -e NAMESPACE -m fsdax (or -m devdax), which erases it"
        };
        return Finding::missing(SUBJECT, format!("{} without a DAX file system", blocks.join(", ")), advice);
    }
    let advice = "run --volatile works without (it survives kills, not power cuts). To rehearse with a DAX file system \
                  in memory, boot with memmap=4G!12G";
    Finding::missing(SUBJECT, "none", advice)
}

/// NVM that the kernel shows as block devices.
fn pmem_blocks() -> Vec<String> {
    let Ok(listed) = std::fs::read_dir(Path::new("/sys/class/block")) else { return Vec::new() };
    let names = listed.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut found: Vec<String> =
        names.filter(|name| name.starts_with("pmem")).map(|name| format!("/dev/{name}")).collect();
    found.sort();
    found
}

fn can_dax(block: &str) -> bool {
    let name = block.trim_start_matches("/dev/");
    std::fs::read_to_string(format!("/sys/class/block/{name}/queue/dax")).is_ok_and(|dax| dax.trim() == "1")
}

fn flush_path() -> Finding {
    const SUBJECT: &str = "flush path";
    let cpu = cpu_features();
    let found = format!("non-temporal stores ({}), {}", cpu.copy, cpu.flush);
    if cpu.flush == FlushPath::Clflush {
        return Finding::limited(
            SUBJECT,
            found,
            "nothing in software: this processor flushes line after line",
        );
    }
    Finding::good(SUBJECT, found)
}

fn power_fail_domain() -> Finding {
    const SUBJECT: &str = "power-fail domain";
    match persistence_domain().as_deref() {
        Some("") => Finding::limited(
            SUBJECT,
            "the platform does not say",
            "check the platform: without ADR, what has been flushed can still be lost in a power cut",
        ),
        None => Finding::limited(SUBJECT, "unknown (no NVM)", "nothing, as long as pools are volatile"),
        Some("cpu_cache") => Finding::good(SUBJECT, "processor caches (eADR): stores need no flush"),
        Some("memory_controller") => Finding::good(SUBJECT, "memory controller (ADR): stores are flushed"),
        Some(other) => Finding::limited(
            SUBJECT,
            format!("{other:?}"),
            "check the platform: without ADR, what has been flushed can still be lost in a power cut",
        ),
    }
}
