//! Whether anybody else has a pool open that is about to be served from. A descriptor of it that
//! somebody kept, a client of an earlier keeper's, say, could be written to while the pool is in
//! use, and by what stands in it the keeper writes to files.
//!
//! The kernel tells: it grants a write lease on the only description of a file. So nobody is
//! overlooked, whoever they are and wherever they keep it. Must never hold the lease for longer
//! than it takes to ask.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_canary::{Canary, on};
use holdfast_disk::lease;

use super::open::program_of;
use super::{PoolError, RecoveredPool};

/// Programs that were killed have it until the last of them is gone, and commands that look at it
/// for moments.
const LETTING_GO_MAX: Duration = Duration::from_secs(5);

impl RecoveredPool {
    /// Refuses a pool that somebody else has open, and names them if it can. Devices, and file
    /// systems without leases, do not tell.
    pub fn refuse_others(&self) -> Result<(), PoolError> {
        let begun = Instant::now();
        while matches!(lease::is_shared(self.lock.as_fd()), Ok(true)) && !on(Canary::OthersHavePool) {
            if begun.elapsed() >= LETTING_GO_MAX {
                let who = match &opened_by(&self.path)[..] {
                    [] => "by somebody who cannot be named".to_owned(),
                    pids => {
                        let named = pids.iter().map(|&pid| format!("{pid}{}", program_of(pid.into())));
                        format!("in process {}", named.collect::<Vec<_>>().join(", "))
                    }
                };
                return Err(PoolError::OthersHaveIt { pool: self.path.clone(), who });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Process ids of other processes that have the file at `path` open. Processes that may not be
/// examined are left out.
fn opened_by(path: &Path) -> Vec<u32> {
    let Ok(file) = fs::metadata(path) else { return Vec::new() };
    let has_it = |pid: u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| fs::metadata(entry.path()).ok())
            .any(|meta| (meta.dev(), meta.ino()) == (file.dev(), file.ino()))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != std::process::id() && has_it(pid))
        .collect();
    pids.sort_unstable();
    pids
}
