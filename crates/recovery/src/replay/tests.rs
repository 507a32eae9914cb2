//! Random logs: what is replayed must equal the records applied one by one, whatever an earlier try
//! left behind.

use std::collections::HashSet;
use std::fs::{self, File};

use holdfast_log::RECORD_HEADER_BYTES;
use holdfast_media::{Mapping, OpenMode};
use holdfast_pool::{Layout, Segment, Seq, Slot};

use super::*;
use crate::live::resolve;
use holdfast_disk::OsFile;
use holdfast_testkit::Random;

const POOL_BYTES: u64 = 16 << 20;
/// Segments with random bytes; a record's payload may be any of them.
const SEGMENTS: u64 = 3;

/// A record as the program meant it.
#[derive(Clone)]
enum Effect {
    Write { offset: u64, bytes: Vec<u8> },
    Truncate(u64),
    Punch { offset: u64, bytes: u64 },
}

impl Effect {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } if !bytes.is_empty() => {
                let (from, to) = (*offset as usize, *offset as usize + bytes.len());
                file.resize(file.len().max(to), 0);
                file[from..to].copy_from_slice(bytes);
            }
            Self::Write { .. } => {}
            Self::Truncate(size) => file.resize(*size as usize, 0),
            Self::Punch { offset, bytes } => {
                let end = file.len().min((offset + bytes) as usize);
                let from = end.min(*offset as usize);
                file[from..end].fill(0);
            }
        }
    }
}

struct Rig {
    directory: tempfile::TempDir,
    nvm: Mapping,
    layout: Layout,
}

impl Rig {
    fn new(random: &mut Random) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("tests need a tmpfs at /dev/shm");
        let path = directory.path().join("pool");
        holdfast_media::allocate(&path, POOL_BYTES, |_, _| ()).unwrap();
        let (nvm, _) = Mapping::open(&path, OpenMode::ReadWrite).unwrap();
        let layout = Layout::new(POOL_BYTES).unwrap();
        nvm.write(
            layout.segment_offset(Segment::new(0)),
            &random.bytes((SEGMENTS * holdfast_pool::SEGMENT_BYTES) as usize),
        );
        Self { directory, nvm, layout }
    }

    fn payloads(&self) -> Payloads<'_, Mapping> {
        Payloads { nvm: &self.nvm, layout: &self.layout, spill: None }
    }

    /// A record of a write with its bytes at a random place of the log.
    fn write(&self, random: &mut Random, seq: u64, offset: u64, bytes: u64) -> (Entry, Effect) {
        let lines = (holdfast_pool::SEGMENT_BYTES - bytes) / RECORD_HEADER_BYTES - 1;
        let entry = Entry {
            segment: Segment::new(random.number_below(SEGMENTS) as u32),
            line: random.number_below(lines) as u16,
            bytes: bytes as u32,
            ..entry(seq, Kind::Write, offset, bytes)
        };
        let mut payload = vec![0; bytes as usize];
        self.payloads().read(&entry, 0, &mut payload).unwrap();
        (entry, Effect::Write { offset, bytes: payload })
    }

    /// A log as a scan finds it, and what the live part of it means, in order.
    fn log(
        &self,
        random: &mut Random,
        records: u64,
        space: u64,
        bytes_max: u64,
    ) -> (Vec<Entry>, Vec<Effect>) {
        let mut entries = Vec::new();
        let mut effects: Vec<(u64, Vec<Effect>)> = Vec::new();
        let mut cancelled = HashSet::new();
        for seq in 1..=records {
            let offset = random.number_below(space);
            match random.number_below(20) {
                0 => {
                    entries.push(entry(seq, Kind::Truncate, offset, 0));
                    effects.push((seq, vec![Effect::Truncate(offset)]));
                }
                1 => {
                    let bytes = random.number_below(2 * bytes_max);
                    entries.push(entry(seq, Kind::Punch, offset, bytes));
                    effects.push((seq, vec![Effect::Punch { offset, bytes }]));
                }
                2 if !effects.is_empty() => {
                    let target = random.number_below(effects.len() as u64) as usize;
                    let (number, parts) = &mut effects[target];
                    // An operation fails once at most.
                    if cancelled.insert(*number) {
                        let stays = random.number_below(bytes_max);
                        entries.push(entry(seq, Kind::Cancel, *number, stays));
                        cut(parts, stays);
                    }
                }
                3 | 4 => {
                    let members = 2 + random.number_below(2);
                    let lost =
                        if random.number_below(4) == 0 { random.number_below(members) } else { members };
                    let mut at = offset;
                    let mut parts = Vec::new();
                    for member in 0..members {
                        let bytes = 1 + random.number_below(bytes_max / members);
                        let (mut part, effect) = self.write(random, seq, at, bytes);
                        (part.group_index, part.group_count) = (member as u16, members as u16);
                        at += bytes;
                        parts.push(effect);
                        if member != lost {
                            entries.push(part);
                        }
                    }
                    if lost < members {
                        parts.clear();
                    }
                    effects.push((seq, parts));
                }
                _ => {
                    let bytes = 1 + random.number_below(bytes_max);
                    let (record, effect) = self.write(random, seq, offset, bytes);
                    entries.push(record);
                    effects.push((seq, vec![effect]));
                }
            }
        }
        // A scan finds them in any order.
        for index in (1..entries.len()).rev() {
            entries.swap(index, random.number_below(index as u64 + 1) as usize);
        }
        (entries, effects.into_iter().flat_map(|(_, parts)| parts).collect())
    }

    fn check(&self, seed: u64, records: u64, space: u64, bytes_max: u64) {
        let random = &mut Random::new(seed);
        let (entries, effects) = self.log(random, records, space, bytes_max);
        let bytes = random.number_below(space);
        let synced = random.bytes(bytes as usize);
        let mut meant = synced.clone();
        for effect in &effects {
            effect.apply(&mut meant);
        }
        // What a crash left of the program's own changes, or of an earlier recovery's.
        let mut left = synced;
        for _ in 0..random.number_below(effects.len() as u64 + 1) {
            effects[random.number_below(effects.len() as u64) as usize].apply(&mut left);
        }
        let path = self.directory.path().join("file");
        fs::write(&path, &left).unwrap();
        let live = resolve(entries, &mut Vec::new());
        let file = OsFile::from(File::options().write(true).open(&path).unwrap());
        let mut told = 0;
        replay(&self.payloads(), live.of(Slot::new(0)), &file, &mut |bytes| told += bytes).unwrap();
        assert!(fs::read(&path).unwrap() == meant, "seed {seed}: the file differs");
        assert_eq!(told, live.slots.get(&Slot::new(0)).map_or(0, |log| log.bytes), "seed {seed}");
    }
}

fn entry(seq: u64, kind: Kind, file_offset: u64, extent: u64) -> Entry {
    Entry {
        seq: Seq::new(seq),
        file_offset,
        extent,
        segment: Segment::new(0),
        bytes: 0,
        slot: Slot::new(0),
        unix_time_ns: 0,
        is_called: false,
        is_last: false,
        line: 0,
        group_index: 0,
        group_count: 1,
        kind,
    }
}

/// What a cancel record leaves of a write; nothing of anything else.
fn cut(parts: &mut Vec<Effect>, stays: u64) {
    let mut left = stays as usize;
    parts.retain_mut(|part| match part {
        Effect::Write { bytes, .. } => {
            bytes.truncate(left);
            left -= bytes.len();
            !bytes.is_empty()
        }
        Effect::Truncate(_) | Effect::Punch { .. } => false,
    });
}

#[test]
fn small_random_logs_are_replayed_as_if_one_by_one() {
    let rig = Rig::new(&mut Random::new(1));
    for seed in 0..400 {
        let records = 1 + seed % 60;
        rig.check(seed, records, 600, 100);
    }
}

#[test]
fn large_random_logs_are_replayed_as_if_one_by_one() {
    let rig = Rig::new(&mut Random::new(2));
    for seed in 0..6 {
        rig.check(seed, 60, 24 << 20, 1 << 20);
    }
}

/// Many small records are written with few calls, and each byte once.
#[test]
fn neighbours_are_written_at_once() {
    let rig = Rig::new(&mut Random::new(3));
    let random = &mut Random::new(4);
    let entries: Vec<Entry> =
        (0..2000).map(|index| rig.write(random, index + 1, (index * 7 % 1000) * 1024, 1024).0).collect();
    let path = rig.directory.path().join("file");
    let file = OsFile::from(File::create(&path).unwrap());
    let mut told = Vec::new();
    replay(&rig.payloads(), &entries, &file, &mut |bytes| told.push(bytes)).unwrap();
    assert_eq!(told, [1000 * 1024, 1000 * 1024]);
}
