//! What goes on inside of a program: signals, entries that cannot be patched, memory that changes.

use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::report;
use holdfast_e2e::running::{Running, SOON};

use super::{BEHIND, LATE, text};

/// A handler ran while its thread held the lock of a page, and waited for it for ever.
#[test]
fn h23_a_signal_handler_may_write_to_the_page_its_thread_writes_to() {
    let place = disk::directory();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/signals.c");
    let program = place.path().join("signals");
    Cmd::new("cc").args(["-O1", "-pthread", "-o"]).args([&program, &source]).ok();
    let held = Pool::new().run(&[]).arg("--").arg(&program).dir(place.path()).limit(4 * SOON).ok();
    assert!(!held.stdout.contains("FAILED"), "{}", held.told());
    assert!(held.stdout.contains("alarms 1, wrong 0"), "{}", held.told());
}

/// The look at the program's memory faulted while all signals were blocked, which ends a process.
#[test]
fn h23_a_bad_address_ends_nobody_where_a_signal_was_put_off() {
    let place = disk::directory();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/bad_addresses.c");
    let program = place.path().join("bad_addresses");
    Cmd::new("cc").args(["-O1", "-pthread", "-o"]).args([&program, &source]).ok();
    let pool = Pool::new();
    let run = pool.run(&[]).arg("--").arg(&program).arg(place.path().join("file"));
    let told = run.limit(4 * SOON).ok();
    assert!(told.stdout.contains("bad addresses told"), "{}", told.told());
}

/// Where code may not be made writable, stdio's writes went unseen, and the descriptor's sync was
/// absorbed.
#[test]
fn h24_a_program_that_cannot_be_patched_keeps_its_own_syncs() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let compiled = |source: &str, name: &str| {
        let program = disk.root.join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        Cmd::new("cc").args(["-O1", "-w", "-o"]).args([&program, &source]).ok();
        program
    };
    let program = compiled("programs/stdio.c", "stdio");
    // Neither memory nor a file in memory may be made executable.
    let confine = compiled("../preload/tests/programs/no_exec_gain.c", "confine");
    disk.settle();
    let file = disk.root.join("file");
    let program = ["--", text(&confine), "strict", text(&program), text(&file)];
    let mut run = Running::start(&pool.run(&[LATE]).args(program));
    run.until("ack 5");
    disk.cut_power();
    run.kill_all(&pool);
    disk.restore_power();
    pool.recover(&[]).ok();
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(found, "    5\n", "what was synced is not there");
}

/// A program that could not be patched was the keeper's client, so the fence let its `fopen` pass:
/// what it wrote to a file of another client's was undone by recovery.
#[test]
fn h24_a_program_that_cannot_be_patched_is_an_outsider_to_the_fence() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let compiled = |source: &str, name: &str| {
        let program = disk.root.join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        Cmd::new("cc").args(["-O1", "-w", "-o"]).args([&program, &source]).ok();
        program
    };
    let (over, confine) = (
        compiled("programs/over.c", "over"),
        compiled("../preload/tests/programs/no_exec_gain.c", "confine"),
    );
    let file = disk.root.join("file");
    let script = "
import os, subprocess, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b'older bytes')
subprocess.run([sys.argv[2], 'strict', sys.argv[3], sys.argv[1]], check=True)
os.write(1, b'ack done\\n')
time.sleep(60)
";
    let arguments = ["--", "python3", "-c", script, text(&file), text(&confine), text(&over)];
    let mut run = Running::start(&pool.run(&[LATE]).args(arguments));
    run.until("ack done");
    run.kill_all(&pool);
    pool.recover(&[]).ok();
    assert_eq!(std::fs::read_to_string(&file).expect("file"), "NEWER bytes");
}

/// Seconds for which vectors change.
const VECTOR_S: u64 = 3;

/// As `programs/vector.c` has it.
const BLOCK_BYTES: usize = 4096;

/// Lengths and addresses in the vector of a `writev` changed between the looks at it. A record grew
/// beyond the log space that was reserved for it, into a segment that may be another file's, or
/// ended the program.
#[test]
fn a_vector_that_changes_during_its_call_harms_nobody() {
    let (disk, place) = (Disk::new(Kind::Ext4), disk::directory());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/vector.c");
    let program = place.path().join("vector");
    Cmd::new("cc").args(["-O1", "-pthread", "-o"]).args([&program, &source]).ok();
    let of = |name: &str| disk.root.join(name);
    for (options, name) in [(None, "native"), (Some(&[LATE][..]), "through"), (Some(&BEHIND[..]), "behind")] {
        let directory = of(name);
        std::fs::create_dir(&directory).expect("directory");
        disk.settle();
        let pool = Pool::new();
        let arguments = [text(&program), text(&directory), &VECTOR_S.to_string()];
        let run = Running::start(&match options {
            Some(options) => pool.run(options).arg("--").args(arguments),
            None => Cmd::new(&program).args(&arguments[1..]),
        });
        let mut blocks = 0;
        let until = Instant::now() + 4 * SOON + Duration::from_secs(VECTOR_S);
        loop {
            let wait = until.saturating_duration_since(Instant::now());
            let line =
                run.lines.recv_timeout(wait).unwrap_or_else(|_| panic!("{name}: it ended before its time"));
            assert!(!line.starts_with("wrong"), "{name}: {line}");
            blocks += usize::from(line.starts_with("ack "));
            if line == "through" {
                break;
            }
        }
        assert!(blocks > 10, "{name}: {blocks} blocks are synced");
        if options.is_some() {
            let status = pool.status();
            assert!(report::number(&status, "writes_absorbed") > blocks as u64, "{status:#}");
        }
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        let mut told = String::new();
        if options.is_some() {
            let recovered = pool.recover(&[]);
            let found = report::parse(&recovered.ok().stdout);
            let damaged = report::find(&found, "damaged").and_then(|rows| rows.as_array());
            assert!(damaged.is_some_and(Vec::is_empty), "{name}: damage\n{}", recovered.told());
            told = recovered.told();
        }
        let other = std::fs::read(directory.join("other")).expect("file");
        for number in 0..blocks {
            let block = other.get(number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES).unwrap_or_default();
            let expected = format!("{number:08}").repeat(BLOCK_BYTES / 8 - 1) + "endblock";
            assert!(block == expected.as_bytes(), "{name}: block {number} of {blocks} is lost\n{told}");
        }
        let own = std::fs::read(directory.join("own")).unwrap_or_default();
        let strange = own.iter().find(|byte| !b"abt\0".contains(byte));
        assert!(strange.is_none(), "{name}: {strange:?} is in a file that nobody wrote it to");
    }
}
