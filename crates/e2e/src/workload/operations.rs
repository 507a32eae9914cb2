//! Random single operations on files (write, append, truncate, rename, remove), each acknowledged,
//! cut off at a random moment: the files are what exactly the acknowledged operations make of them,
//! give or take the one under way.

use std::collections::BTreeMap;
use std::path::Path;

use crate::cmd::Cmd;
use crate::disk;
use crate::need;
use crate::site::{Site, Workload};

/// Operations that follow from a seed.
pub struct Operations {
    /// Decides every operation.
    pub seed: u64,
}

const SCRIPT: &str = include_str!("../../tests/operations.py");

/// Contents by name. An empty file and none are the same: between the call that makes a file and
/// the first write to it nothing was acknowledged.
fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).expect("directory").flatten();
    let row = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().expect("text");
        (name, std::fs::read(entry.path()).expect("file"))
    };
    entries.map(row).filter(|(_, bytes)| !bytes.is_empty()).collect()
}

fn differences(found: &BTreeMap<String, Vec<u8>>, expected: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let mut names: Vec<&String> = found.keys().chain(expected.keys()).collect();
    names.sort();
    names.dedup();
    let tell = |name: &&String| match (found.get(*name), expected.get(*name)) {
        (Some(found), Some(expected)) if found == expected => None,
        (Some(found), Some(expected)) => {
            let at = found.iter().zip(expected).position(|(one, other)| one != other);
            Some(format!("{name}: {} bytes for {}, first difference at {at:?}", found.len(), expected.len()))
        }
        (Some(found), None) => Some(format!("{name}: should not be there ({} bytes)", found.len())),
        (None, expected) => Some(format!("{name}: missing ({:?} bytes)", expected.map(Vec::len))),
    };
    names.iter().filter_map(tell).collect()
}

impl Workload for Operations {
    fn name(&self) -> String {
        format!("random operations, seed {}", self.seed)
    }

    fn prepare(&self, _site: &Site) {}

    fn program(&self, site: &Site) -> Vec<String> {
        let python = need::tool("python3").to_str().expect("text").to_owned();
        let dir = site.dir.to_str().expect("text").to_owned();
        vec![python, "-c".into(), SCRIPT.into(), dir, self.seed.to_string(), "1000000".into(), "acked".into()]
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        let done: u64 = acks.last().map_or(0, |number| number.parse().expect("a number"));
        let found = tree(&site.dir);
        let mut told = Vec::new();
        for count in [done, done + 1] {
            let scratch = disk::directory();
            let dir = scratch.path().to_str().expect("text");
            let (seed, count_text) = (self.seed.to_string(), count.to_string());
            Cmd::new("python3")
                .args(["-c", SCRIPT, dir, &seed, &count_text, "acked"])
                .env("LD_PRELOAD", NO_SYNC)
                .ok();
            let differ = differences(&found, &tree(scratch.path()));
            if differ.is_empty() {
                return Ok(());
            }
            told.push(format!("against {count} operations: {}", differ.join("; ")));
        }
        Err(told.join("\n"))
    }

    fn acks_min(&self) -> usize {
        100
    }
}

/// The expected files need not be durable.
const NO_SYNC: &str = "libeatmydata.so";

/// Operations from a fresh seed, which is printed.
pub fn operations() -> Operations {
    need::tool("eatmydata");
    Operations { seed: holdfast_testkit::Random::named("operations").draw() }
}
