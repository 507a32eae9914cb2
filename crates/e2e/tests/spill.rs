//! A log that is too short goes on in a file of the disk it writes for, and the power fails in the
//! middle of it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;

use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc;

const BLOCKS: u64 = 8192;
/// Twice what the log holds.
const WRITES: u64 = 10_000;
const STEP: u64 = 100;

/// Writes whole blocks, scattered, each with its number in it, and tells how far it has come.
const WRITER: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
blocks, step, at = int(sys.argv[2]), int(sys.argv[3]), 1
for number in range(1, 1 << 30):
    at = (at * 1664525 + 1013904223) % (1 << 32)
    os.pwrite(fd, number.to_bytes(8, 'little') * 512, (at >> 8) % blocks * 4096)
    if number % step == 0: print(number, flush=True)
";

/// The block of each write, from the first on.
fn places() -> impl Iterator<Item = usize> {
    let next = |at: &u64| Some((at * 1_664_525 + 1_013_904_223) % (1 << 32));
    std::iter::successors(next(&1), next).map(|at| ((at >> 8) % BLOCKS) as usize)
}

fn kill_all(pool: &Pool, mut supervisor: Child) {
    let roots = [supervisor.id(), proc::keeper(Path::new(pool.text()))];
    for pid in proc::families(&roots) {
        proc::kill_hard(pid);
    }
    supervisor.wait().expect("it ends");
}

/// Runs the writer until much is in frames, then cuts the power and kills everything. Returns how
/// many writes were acknowledged for certain.
fn crash(disk: &Disk, pool: &Pool, file: &Path, options: &[&str]) -> u64 {
    std::fs::write(file, vec![0; BLOCKS as usize * 4096]).expect("write");
    disk.settle();
    let spill = disk.root.join("spill");
    let named = [
        "--age-max=3600000",
        "--fence=fanotify",
        "--spill-size=96M",
        "--spill",
        spill.to_str().expect("text"),
    ];
    let numbers = [BLOCKS.to_string(), STEP.to_string()];
    let cmd = pool.run(&[&named[..], options].concat()).args(["--", "python3", "-c", WRITER]);
    let mut supervisor = cmd.arg(file).args(&numbers).spawn();
    let mut lines = BufReader::new(supervisor.stdout.take().expect("piped")).lines();
    let mut told = 0;
    while told < WRITES {
        told = lines.next().expect("it goes on").expect("text").parse().expect("a number");
    }
    let status = pool.status();
    let used = status["frames_used"].as_u64().expect("a number");
    assert!(used >= 3, "{used} frames in use: {status}");
    // When it became managed: its directory, and a commit of what nobody had counted, of which
    // there may be one more when a second is over.
    let syncs = status["summary"]["keeper_fsyncs"].as_u64().expect("a number");
    assert!(syncs <= 3, "the file itself was brought to the disk: {status}");
    disk.cut_power_seeded(told);
    kill_all(pool, supervisor);
    disk.restore_power();
    told
}

fn survives(options: &[&str]) {
    let disk = Disk::forgetful(Kind::Ext4);
    let pool = Pool::with_size("16M");
    let file = disk.root.join("file");
    let told = crash(&disk, &pool, &file, options);
    pool.recover(&[]).ok();
    let mut least = vec![0; BLOCKS as usize];
    (1..=told).zip(places()).for_each(|(number, block)| least[block] = number);
    let bytes = std::fs::read(&file).expect("read");
    for (block, (bytes, least)) in bytes.chunks(4096).zip(least).enumerate() {
        let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
        assert!(number >= least, "block {block} is that of write {number}, {least} was acknowledged");
        assert!(bytes.chunks(8).all(|part| part == &bytes[..8]), "block {block} is torn");
    }
}

#[test]
fn what_was_spilled_survives_a_power_cut() {
    survives(&[]);
}

#[test]
fn what_was_spilled_from_behind_survives_a_power_cut() {
    survives(&["--write-behind=at-once"]);
}

#[test]
fn recovery_without_the_spill_file_says_what_to_do() {
    let disk = Disk::forgetful(Kind::Ext4);
    let pool = Pool::with_size("16M");
    let file = disk.root.join("file");
    crash(&disk, &pool, &file, &[]);
    let (spill, away) = (disk.root.join("spill"), disk.root.join("away"));
    std::fs::rename(&spill, &away).expect("rename");
    let before = std::fs::read(&file).expect("read");
    let output = pool.recover(&[]);
    output.says(&[spill.to_str().expect("text"), "put it back"], &[]);
    assert!(!output.status.success());
    assert!(std::fs::read(&file).expect("read") == before, "nothing was replayed");
    std::fs::rename(&away, &spill).expect("rename");
    pool.recover(&[]).ok();
}
