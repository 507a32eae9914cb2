//! Mail delivery: every message that was acknowledged is in `new/`, or where a reader moved it,
//! once and whole. A message that has left `tmp/` at all is whole, acknowledged or not, because it
//! was synced before its rename.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::need;
use crate::site::{Site, Workload};
use holdfast_testkit::Random;

/// One mail directory.
#[derive(Clone, Copy, Debug)]
pub struct Maildir {
    /// Decides the messages.
    pub seed: u64,
    /// Processes that deliver at once. With more than one a reader moves messages from `new/` to
    /// `cur/` meanwhile.
    pub deliverers: u64,
    /// Messages of each; it ends after them.
    pub deliveries: u64,
    /// Whether a message gets its name in `new/` by a link, and loses the one in `tmp/` afterwards,
    /// instead of by a rename.
    pub links: bool,
}

const SCRIPT: &str = include_str!("../../tests/maildir.py");
/// What a reader appends to the name of a message that was seen.
const SEEN: &str = ":2,S";

fn message(seed: u64, name: &str) -> Vec<u8> {
    let length = 1 + name.bytes().map(usize::from).sum::<usize>() * 7919 % 12_000;
    format!("message {name} of {seed}\n").into_bytes().into_iter().cycle().take(length).collect()
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).expect("directory").flatten();
    entries.map(|entry| entry.file_name().into_string().expect("text")).collect()
}

impl Maildir {
    /// Makes the directories.
    pub fn make(&self, dir: &Path) {
        for name in ["tmp", "new", "cur"] {
            fs::create_dir(dir.join(name)).expect("directory");
        }
    }

    /// The program and its arguments.
    pub fn command(&self, dir: &Path) -> Vec<String> {
        let python = need::tool("python3").to_str().expect("text").to_owned();
        let dir = dir.to_str().expect("text").to_owned();
        let numbers = [self.seed, self.deliveries, self.deliverers, u64::from(self.links)]
            .map(|number| number.to_string());
        [vec![python, "-c".into(), SCRIPT.into(), dir], numbers.to_vec()].concat()
    }

    /// Looks for every acknowledged message, and at every one that is there.
    fn judge(&self, dir: &Path, acks: &[String]) -> Result<(), String> {
        // Where each message is, without what readers append.
        let mut places = BTreeMap::<String, Vec<&str>>::new();
        for place in ["tmp", "new", "cur"] {
            for name in names(&dir.join(place)) {
                let bytes = fs::read(dir.join(place).join(&name)).map_err(|error| error.to_string())?;
                let name = name.strip_suffix(SEEN).unwrap_or(&name);
                let whole = message(self.seed, name);
                if place != "tmp" && bytes != whole {
                    return Err(format!("{place}/{name} has {} bytes of {}", bytes.len(), whole.len()));
                }
                places.entry(name.to_owned()).or_default().push(place);
            }
        }
        let is_wrong = |places: &[&str]| match places {
            // It was cut off before it could remove the first name.
            ["tmp", _] if self.links => false,
            _ => places.len() > 1,
        };
        if let Some((name, twice)) = places.iter().find(|(_, places)| is_wrong(places)) {
            let inode = |place: &&str| {
                let found = [name.clone(), format!("{name}{SEEN}")].map(|name| dir.join(place).join(name));
                let stat = found.iter().find_map(|path| path.metadata().ok());
                stat.map_or(String::new(), |stat| {
                    format!(", inode {} with {} links, {} bytes", stat.ino(), stat.nlink(), stat.len())
                })
            };
            let told: Vec<String> = twice.iter().map(|place| format!("{place}{}", inode(place))).collect();
            return Err(format!("{name} is in {}", told.join("; and in ")));
        }
        for ack in acks {
            let (what, name) = ack.split_once(' ').ok_or_else(|| format!("acknowledged {ack:?}"))?;
            let place = places.get(name).and_then(|places| places.last()).map_or("nowhere", |place| *place);
            let right = match what {
                "seen" => place == "cur",
                // A reader had part of it.
                "torn" => false,
                _ => place == "new" || place == "cur",
            };
            if !right {
                return Err(format!("{name}, {what}, is in {place}"));
            }
        }
        Ok(())
    }
}

impl Workload for Maildir {
    fn name(&self) -> String {
        format!("mail of {} deliverers, by link: {}, seed {}", self.deliverers, self.links, self.seed)
    }

    fn prepare(&self, site: &Site) {
        self.make(&site.dir);
    }

    fn program(&self, site: &Site) -> Vec<String> {
        self.command(&site.dir)
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        self.judge(&site.dir, acks)
    }
}

/// A mail directory with so many deliverers and a fresh seed, which is printed.
pub fn maildir(deliverers: u64) -> Maildir {
    let seed = Random::named("mail").draw() % 1_000_000;
    Maildir { seed, deliverers, deliveries: 1_000_000, links: false }
}
