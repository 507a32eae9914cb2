//! A case on a disk of the crash simulator instead of a kernel's file system: the same files before
//! it, the same calls, and every tree that a power cut may leave. All lengths are an eighth of the
//! real ones, so that a page of 4096 bytes is two of the simulator's blocks.

use std::collections::{BTreeMap, HashSet};
use std::io;

use holdfast_sim::disk::calls::Found;
use holdfast_sim::disk::rules::Rules;
use holdfast_sim::disk::{BLOCK_BYTES, DiskState, Journal};

use crate::disk::Kind;
use crate::op::{Case, Step};
use crate::oracle::Plan;
use crate::play::BEFORE;
use crate::tree::{PAGE, Tree};

const SCALE: usize = 8;
const UNIT: u64 = (PAGE / SCALE) as u64;
const _: () = assert!((UNIT as usize).is_multiple_of(BLOCK_BYTES), "a page is whole blocks");
const NOW_UNIX_S: u64 = 1_700_000_000;

/// The verbs that the simulator's disk knows.
const VERBS: &[&str] = &[
    "create",
    "mkdir",
    "rmdir",
    "link",
    "rename",
    "exchange",
    "unlink",
    "write",
    "fill",
    "append",
    "over",
    "hole",
    "shrink",
    "grow",
    "cut",
    "otrunc",
    "punch",
    "fsync",
    "fdatasync",
    "syncfs",
];

/// The simulator's model of a file system.
pub fn model(kind: Kind) -> Journal {
    match kind {
        Kind::Ext4 | Kind::Ext4Fast => Journal::Ext4,
        Kind::Xfs => Journal::Xfs,
        Kind::Btrfs => Journal::Btrfs,
    }
}

/// Whether the simulator's disk knows all steps of a case.
pub fn knows(case: &Case) -> bool {
    case.steps.iter().all(|step| VERBS.contains(&step.verb.name))
}

/// All trees that a power cut may leave behind a case, for each of these ways of syncing in
/// between; none if they are more than so many.
pub fn trees(
    kind: Kind,
    rules: Rules,
    case: &Case,
    plans: &[Plan],
    states_max: usize,
) -> Option<Vec<HashSet<Tree>>> {
    let mut fresh = DiskState::new(model(kind), NOW_UNIX_S, 1);
    make_files(&mut fresh).expect("an empty disk takes them");
    fresh.set_rules(rules);
    let named = case.paths();
    for (path, steps) in BEFORE.iter().filter(|(path, _)| named.iter().any(|named| named == path)) {
        for step in *steps {
            let step: Step = step.parse().expect("steps of the machine's own");
            play(&mut fresh, &step, path.as_bytes()[2]).expect("steps that succeed");
        }
    }
    let mut states = 0;
    let mut left_by = |plan: &Plan| {
        let mut disk = fresh.clone();
        for (index, step) in std::iter::once(None).chain(case.steps.iter().map(Some)).enumerate() {
            // A step that fails changes nothing, natively either.
            let _ = step.map(|step| play(&mut disk, step, b'A' + index as u8 - 1));
            for sync in plan.iter().filter(|sync| sync.after == index) {
                let _ = spontaneous(&mut disk, &sync.call);
            }
        }
        let mut known = HashSet::new();
        disk.every_crash(|left| {
            states += 1;
            known.insert(left.names());
            states < states_max
        });
        (states < states_max).then(|| known.iter().map(tree).collect())
    };
    plans.iter().map(&mut left_by).collect()
}

/// A sync of the oracle's own. That pages are written back alone is nothing new: any may be.
fn spontaneous(disk: &mut DiskState, call: &str) -> io::Result<()> {
    match call.split_once(' ') {
        Some(("fsync", path)) => disk.sync_path(&format!("/{path}"), false),
        Some(("range", _)) => Ok(()),
        None if call == "syncfs" => {
            disk.sync_file_system();
            Ok(())
        }
        None if call == "commit" => {
            // It is there already when it is made a second time.
            let _ = disk.make_file("/.siege");
            disk.put("/.siege", None, b"z")?;
            disk.sync_path("/.siege", false)
        }
        _ => unreachable!("{call} is no sync of the oracle's"),
    }
}

fn make_files(disk: &mut DiskState) -> io::Result<()> {
    disk.remove_name("/d")?;
    for directory in ["/a", "/b", "/a/sub"] {
        disk.make_directory(directory)?;
    }
    for (path, letter) in [("/a/old", b'o'), ("/a/live", b'l'), ("/b/clean", b'c')] {
        disk.make_file(path)?;
        disk.put(path, Some(0), &[letter; 3 * UNIT as usize])?;
    }
    disk.sync_file_system();
    disk.forget_inodes();
    Ok(())
}

fn play(disk: &mut DiskState, step: &Step, tag: u8) -> io::Result<()> {
    let paths: Vec<String> = step.paths.iter().map(|path| format!("/{path}")).collect();
    let (path, to) = (paths.first().map_or("/", String::as_str), paths.get(1).map_or("/", String::as_str));
    let scaled = |bytes: usize| vec![tag; bytes / SCALE];
    match step.verb.name {
        "create" => disk.make_file(path),
        "mkdir" => disk.make_directory(path),
        "rmdir" | "unlink" => disk.remove_name(path),
        "link" => disk.link_name(path, to),
        "rename" => disk.rename_name(path, to),
        "exchange" => disk.exchange_names(path, to),
        "write" => disk.put(path, Some(0), &scaled(5000)),
        "fill" => disk.put(path, Some(0), &scaled(3 * PAGE)),
        "append" => disk.put(path, None, &scaled(1000)),
        "over" => disk.put(path, Some(UNIT), &scaled(PAGE)),
        "hole" => disk.put(path, Some(8 * UNIT), &scaled(PAGE)),
        "shrink" | "cut" => disk.resize(path, 5000 / SCALE as u64),
        "grow" => disk.resize(path, 20_000 / SCALE as u64),
        "otrunc" => disk.resize(path, 0),
        "punch" => disk.punch_hole(path, UNIT, UNIT),
        "fsync" => disk.sync_path(path, false),
        "fdatasync" => disk.sync_path(path, true),
        "syncfs" => {
            disk.sync_file_system();
            Ok(())
        }
        verb => unreachable!("{verb} is not simulated"),
    }
}

/// As a kernel would show it.
fn tree(names: &BTreeMap<String, Found>) -> Tree {
    let mut firsts: BTreeMap<u32, &str> = BTreeMap::new();
    let mut tree = Tree::default();
    for (path, found) in names.iter().filter(|(path, _)| *path != ".siege") {
        let first = firsts.entry(found.file).or_insert(path);
        let same = if found.is_directory || *first == path { "" } else { first };
        let bytes: Vec<u8> = found.bytes.iter().flat_map(|byte| [*byte; SCALE]).collect();
        tree.enter_simulated(path, found.is_directory, same, found.names, &bytes);
    }
    tree
}
