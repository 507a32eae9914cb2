//! Pools and files after a crash: what is brought back, and what waits for a word.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{proc, report};

use super::{SUPERBLOCK_COPY, overwrite, text};

#[test]
fn a_superblock_is_mended_from_its_copy() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = crashed(&disk, &pool);
    overwrite_content_by_power_cut(&disk, &file);
    let superblock = std::fs::read(&pool.path).expect("pool")[..4096].to_vec();
    overwrite(&pool.path, 0, &[0; 4096]);
    pool.recover(&["--dry-run"]).ok();
    assert!(std::fs::read(&pool.path).expect("pool")[..4096] == [0; 4096], "a dry run changed the pool");
    let recovered = pool.command("recover").output();
    assert!(recovered.ok().stdout.contains("the superblock or its copy was damaged"), "{}", recovered.told());
    assert!(content(&file) == absorbed_content());
    assert!(std::fs::read(&pool.path).expect("pool")[..4096] == superblock);
    // The copy likewise, by `run`, which has nothing else to say.
    overwrite(&pool.path, SUPERBLOCK_COPY, b"x");
    pool.run(&[])
        .args(["--", "true"])
        .output()
        .ok()
        .says(&["the superblock or its copy was damaged"], &["damaged"]);
    let again = pool.run(&[]).args(["--", "true"]).output();
    assert!(!again.ok().told().contains("superblock"), "{}", again.told());
}

/// A pool with acknowledged writes to `file` of which the disk knows nothing for certain, after
/// everybody was killed.
fn crashed(disk: &Disk, pool: &Pool) -> PathBuf {
    let file = disk.root.join("file");
    std::fs::write(&file, vec![b'o'; 20_000]).expect("file");
    disk.settle();
    let script = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY)
os.fsync(fd)
for block in range(4):
    os.pwrite(fd, b'n' * 4096, block * 4096)
    os.fsync(fd)
print('done', flush=True)
time.sleep(60)
";
    let program = ["--age-max", "60000", "--", "python3", "-c", script, text(&file)];
    let mut supervisor = pool.run(&[]).args(program).spawn();
    let mut stdout = std::io::BufReader::new(supervisor.stdout.take().expect("piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).expect("line");
    if line != "done\n" {
        let mut told = String::new();
        drop(std::io::Read::read_to_string(&mut supervisor.stderr.take().expect("piped"), &mut told));
        panic!("the program said `{line}`\n{told}");
    }
    let keeper = proc::keeper(&pool.path);
    let family = proc::descendants(supervisor.id());
    drop(supervisor.kill());
    proc::kill_hard(keeper);
    for pid in &family {
        proc::kill_hard(*pid);
    }
    drop(supervisor.wait());
    // A dying process still holds what it holds.
    proc::wait_until(Duration::from_secs(10), "the end of those killed", || {
        !family.iter().chain([&keeper]).any(|pid| proc::alive(*pid))
    });
    file
}

/// The same, and somebody wrote to the file afterwards, before recovery.
fn changed_after_crash(disk: &Disk, pool: &Pool) -> PathBuf {
    let file = crashed(disk, pool);
    // While the page cache has every byte, nobody's change is in recovery's way.
    disk.cut_power();
    disk.restore_power();
    // No machine comes back sooner than recovery's allowance between two times
    // (docs/crash/recovery.md); this disk does.
    std::thread::sleep(Duration::from_millis(40));
    overwrite(&file, 0, b"by somebody else");
    file
}

fn content(file: &Path) -> Vec<u8> {
    std::fs::read(file).expect("file")
}

fn absorbed_content() -> Vec<u8> {
    let mut expected = vec![b'o'; 20_000];
    expected[..16384].fill(b'n');
    expected
}

#[test]
fn unchanged_file_is_recovered() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = crashed(&disk, &pool);
    let before = std::fs::read(&pool.path).expect("pool");
    let dry = pool.recover(&["--dry-run"]);
    dry.ok();
    assert!(std::fs::read(&pool.path).expect("pool") == before, "a dry run changed the pool");
    assert!(report::number(&report::parse(&dry.stdout), "records") >= 4, "{}", dry.told());
    // What is only looked at is not said to have been done.
    for look in [pool.command("status"), pool.command("recover").arg("--dry-run")] {
        let told = look.ok().stdout;
        assert!(told.contains("would be synced: ") && told.contains("it would be synced"), "{told}");
        assert!(!told.contains("was synced") && !told.contains("applied"), "{told}");
    }
    let recovered = pool.recover(&[]);
    assert!(report::number(&report::parse(&recovered.ok().stdout), "records") >= 4, "{}", recovered.told());
    assert!(content(&file) == absorbed_content());
    let again = pool.recover(&[]);
    assert_eq!(report::number(&report::parse(&again.ok().stdout), "records"), 0, "{}", again.told());
}

/// What somebody cut away after the keeper's death is not what the page cache had.
#[test]
fn what_somebody_cut_away_is_told_as_theirs() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = crashed(&disk, &pool);
    // Times on a disk may be as coarse as a tick.
    std::thread::sleep(Duration::from_millis(40));
    std::fs::OpenOptions::new().write(true).open(&file).expect("file").set_len(100).expect("cut");
    let told = pool.command("recover").ok().stdout;
    assert!(told.contains("somebody else changed it since, and it stays as they left it"), "{told}");
    assert!(!told.contains("had all of it"), "{told}");
    assert_eq!(content(&file).len(), 100);
}

#[test]
fn run_recovers_by_itself() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = crashed(&disk, &pool);
    overwrite_content_by_power_cut(&disk, &file);
    let (output, summary) = pool.run_summarised(&[], &["cat", text(&file)]);
    output.ok();
    assert!(
        output.stdout.as_bytes() == absorbed_content(),
        "the program reads {} bytes",
        output.stdout.len()
    );
    assert!(report::find(&summary, "recovered").is_some_and(|recovered| !recovered.is_null()), "{summary:#}");
}

/// Takes back what the page cache holds, as a power cut does.
fn overwrite_content_by_power_cut(disk: &Disk, file: &Path) {
    disk.cut_power();
    disk.restore_power();
    assert!(content(file) != absorbed_content(), "the power cut took nothing back");
}

#[test]
fn changed_file_is_set_aside_and_forced() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = changed_after_crash(&disk, &pool);
    let theirs = content(&file);
    let recovered = pool.command("recover").output();
    recovered.expect(&[1]);
    let status = pool.command("status").ok().stdout;
    assert!(status.contains("before that is decided") && !status.contains("the next run"), "{status}");
    let told = format!("{}{}", recovered.stdout, recovered.stderr);
    for word in [text(&file), "set aside", "--force"] {
        assert!(told.contains(word), "recovery does not say `{word}`\n{}", recovered.told());
    }
    assert!(content(&file) == theirs, "recovery wrote over somebody's change");
    let forced = pool.command("recover").arg("--force").arg(&file).output();
    forced.ok();
    assert!(content(&file) == absorbed_content(), "--force did not replay\n{}", forced.told());
    pool.command("recover").ok();
}

/// A slip in a name looked like success, and what it was meant for stayed as it was.
#[test]
fn names_that_mean_nothing_are_told() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = crashed(&disk, &pool);
    let recover = |words: &[&str]| pool.command("recover").args(words).output();
    for option in ["--force", "--discard"] {
        for slip in ["#", "#abc", "#1x", "#-1"] {
            recover(&["--dry-run", option, slip]).expect(&[2]).says(&[slip, "'#12'"], &[]);
        }
        for wrong in ["/wrong", "#4711"] {
            let told = recover(&["--dry-run", option, wrong]);
            told.expect(&[1]).says(&[&format!("holds nothing of {wrong}")], &[]);
            assert!(told.stdout.contains(&format!("unknown: {wrong}")), "{}", told.told());
            assert!(told.stdout.contains(" of 1 files in "), "{}", told.told());
        }
        recover(&["--dry-run", option, text(&file)]).ok();
    }
    for place in ["/proc/none/x", text(&file)] {
        recover(&["--export", place]).expect(&[1]).says(&["cannot be exported", place], &[]);
    }
    let mixed = recover(&["--json", "--force", text(&file), "--force", "/wrong"]);
    let files = report::parse(&mixed.expect(&[1]).stdout)["files"].clone();
    let outcomes: Vec<_> = files.as_array().expect("rows").iter().map(|row| row["outcome"].clone()).collect();
    assert!(outcomes.len() == 2 && outcomes[0] != "unknown" && outcomes[1] == "unknown", "{outcomes:?}");
    // A pool that was closed cleanly knows nothing, either.
    pool.command("recover").ok();
    recover(&["--force", "/wrong"]).expect(&[1]).says(&["holds nothing of /wrong"], &[]);
    recover(&["--export", text(&file)]).expect(&[1]).says(&["cannot be exported"], &[]);
}

#[test]
fn changed_file_is_exported_and_discarded() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = changed_after_crash(&disk, &pool);
    let theirs = content(&file);
    let out = disk.root.join("out");
    std::fs::create_dir(&out).expect("directory");
    // Somebody prepared links where it is about to write.
    let elsewhere = out.with_extension("elsewhere");
    std::fs::create_dir(&elsewhere).expect("directory");
    let name = file.file_name().expect("a name").to_str().expect("text");
    for slot in 0..16 {
        std::os::unix::fs::symlink(&elsewhere, out.join(format!("{slot}-{name}"))).expect("link");
    }
    let exported = pool.command("recover").arg("--export").arg(&out).output();
    exported.expect(&[0, 1]);
    assert!(std::fs::read_dir(&elsewhere).expect("directory").next().is_none(), "a link was followed");
    let others = Cmd::new("find").arg(&out).args(["-type", "f", "-perm", "/077"]).ok();
    assert!(others.stdout.is_empty(), "others may read {}", others.stdout);
    let found = Cmd::new("grep").args(["-rlc", "nnnnnnnnnnnnnnnn"]).arg(&out).output();
    assert!(found.status.success(), "nothing exported holds the writes\n{}", exported.told());
    assert!(content(&file) == theirs, "the export wrote to the file");
    pool.command("recover").arg("--discard").arg(&file).ok();
    assert!(content(&file) == theirs, "the discard wrote to the file");
    pool.command("recover").ok();
}

#[test]
fn replaced_file_is_set_aside() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = crashed(&disk, &pool);
    disk.cut_power();
    disk.restore_power();
    std::fs::rename(&file, disk.root.join("moved")).expect("rename");
    std::fs::remove_file(disk.root.join("moved")).expect("remove");
    std::fs::write(&file, "another file").expect("file");
    let recovered = pool.command("recover").output();
    recovered.expect(&[1]);
    let told = format!("{}{}", recovered.stdout, recovered.stderr);
    assert!(told.contains(text(&file)) && told.contains("set aside"), "{}", recovered.told());
    assert_eq!(std::fs::read_to_string(&file).expect("file"), "another file");
}

#[test]
fn format_refuses_unrecovered_records() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = crashed(&disk, &pool);
    let format = pool.command("format").args(["--size", "64M", "--volatile"]).output();
    format.expect(&[1]).says(&[pool.text()], &["recover", "--force"]);
    pool.recover(&[]).ok();
    assert!(content(&file) == absorbed_content());
}

#[test]
fn damaged_record_is_reported_and_the_rest_recovered() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = crashed(&disk, &pool);
    let mut bytes = std::fs::read(&pool.path).expect("pool");
    // The second of four written blocks: valid records follow it, so it is damage and no torn end.
    let runs: Vec<usize> = (0..bytes.len() - 4096)
        .step_by(64)
        .filter(|at| {
            bytes[*at..*at + 64].iter().all(|byte| *byte == b'n')
                && bytes[*at - 64..*at].iter().any(|byte| *byte != b'n')
        })
        .collect();
    assert!(runs.len() >= 4, "{} blocks found in the pool", runs.len());
    bytes[runs[1] + 1000] ^= 1;
    overwrite(&pool.path, runs[1] as u64 + 1000, &[bytes[runs[1] + 1000]]);
    let recovered = pool.recover(&[]);
    let told = report::parse(&recovered.stdout);
    let damaged = report::find(&told, "damaged").and_then(|rows| rows.as_array()).expect("rows").clone();
    assert!(!damaged.is_empty(), "the damage was not reported\n{}", recovered.told());
    recovered.expect(&[1]);
    assert!(content(&file)[..4096].iter().all(|byte| *byte == b'n'), "what came before the damage");
}
