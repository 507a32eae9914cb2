//! rsync over its own earlier copy: every file is whole, in a version that is not older than
//! acknowledged, and as old as its source.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::disk::Kind;
use crate::need;
use crate::site::{Site, Workload};

const SCRIPT: &str = include_str!("../../tests/rsync.py");
const FILES: u64 = 6;
/// As the script has it.
const EPOCH_S: i64 = 1_000_000_000;

/// Copies of one tree.
pub struct Rsync {
    /// Where it runs.
    pub kind: Kind,
}

fn content(version: u64, file: u64) -> Vec<u8> {
    let lines = 1 + (version * 37 + file * 101) % 400;
    format!("version {version:08} of file {file}\n").repeat(lines as usize).into_bytes()
}

impl Workload for Rsync {
    fn name(&self) -> String {
        "rsync".into()
    }

    fn prepare(&self, site: &Site) {
        need::tool("rsync");
        for name in ["source", "target"] {
            let dir = if name == "source" { site.memory.join(name) } else { site.dir.join(name) };
            fs::create_dir(dir).expect("directory");
        }
    }

    fn program(&self, site: &Site) -> Vec<String> {
        let python = need::tool("python3").to_str().expect("text").to_owned();
        let places = [site.memory("source"), site.path("target"), FILES.to_string()];
        [vec![python, "-c".into(), SCRIPT.into()], places.to_vec()].concat()
    }

    /// rsync syncs no directory: the renames of a round become durable with the syncs of the next,
    /// where a journal keeps their order.
    fn acks_loose_max(&self) -> usize {
        if self.kind == Kind::Btrfs { usize::MAX } else { 1 }
    }

    fn acks_min(&self) -> usize {
        5
    }

    fn life_ms_max(&self) -> u64 {
        700
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        let promised = acks.last().map_or(0, |ack| ack.parse::<u64>().expect("a number"));
        for file in 0..FILES {
            let path = site.dir.join(format!("target/{}/file-{file}", file % 2));
            let found = match fs::read(&path) {
                Err(_) if promised == 0 => continue,
                Err(error) => return Err(format!("file {file} of version {promised}: {error}")),
                Ok(found) => found,
            };
            let told = String::from_utf8_lossy(&found[..found.len().min(16)]).into_owned();
            let version: u64 = told.strip_prefix("version ").and_then(|told| told.parse().ok()).unwrap_or(0);
            if version == 0 || found != content(version, file) {
                return Err(format!("file {file} has {} bytes, which begin with {told:?}", found.len()));
            }
            if version < promised {
                return Err(format!("file {file} has version {version}, acknowledged is {promised}"));
            }
            // The sync comes before the time is set; the next round's covers it.
            let dated = fs::metadata(&path).map_err(|error| error.to_string())?.mtime() - EPOCH_S;
            if version == promised && dated != version as i64 {
                return Err(format!("file {file} of version {version} is dated {dated}"));
            }
        }
        Ok(())
    }
}
