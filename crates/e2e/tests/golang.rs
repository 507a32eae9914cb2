//! Static Go programs under `holdfast run`: they do what they do natively, all that they sync is
//! absorbed, by themselves and as children, kills and power cuts lose nothing, and what cannot be
//! entered is refused or named. `HOLDFAST_E2E_ROUNDS` multiplies the calls that are compared.

use std::path::{Path, PathBuf};

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::storm::Storm;
use holdfast_e2e::workload::golang::{Lines, build, home, programs};
use holdfast_e2e::{crash, need, report};
use holdfast_testkit::rounds;
use serde_json::Value;

const REFUSED: i32 = 120;
/// No capability of root's.
const NOBODY: &str = "nobody";
const WRITES: u64 = 500;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// What the stress program says after so many calls.
fn stressed(dir: &Path, calls: u64, start: impl FnOnce(&[&str]) -> Output) -> String {
    std::fs::create_dir(dir).expect("a directory");
    let calls = calls.to_string();
    let output = start(&[text(&programs().plain), "stress", text(dir), &calls]);
    output.ok();
    output.stdout
}

#[test]
fn a_busy_program_does_what_it_does_natively() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let calls = 8_000 * rounds();
    let natively =
        stressed(&disk.root.join("native"), calls, |line| Cmd::new(line[0]).args(&line[1..]).output());
    let under = stressed(&disk.root.join("under"), calls, |line| {
        let (output, summary) = pool.run_summarised(&[], line);
        assert!(report::number(&summary, "writes_absorbed") > calls / 20, "{summary:#}");
        assert!(!summary.to_string().contains("system calls of its own"), "{summary:#}");
        output
    });
    assert_eq!(natively, under);
}

fn must_absorb(summary: &Value, output: &Output) {
    output.ok();
    let absorbed = report::number(summary, "syncs_absorbed");
    assert!(absorbed >= WRITES, "{summary:#}\n{}", output.told());
    assert!(report::number(summary, "writes_absorbed") >= WRITES, "{summary:#}");
    let unseen = report::find(summary, "programs_unseen").and_then(Value::as_array);
    assert!(unseen.is_some_and(Vec::is_empty), "{summary:#}");
}

#[test]
fn it_is_absorbed_by_itself_and_as_a_child() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let (plain, stripped) = (text(&programs().plain), text(&programs().stripped));
    let (file, count) = (disk.root.join("file"), WRITES.to_string());
    let (file, count) = (text(&file), count.as_str());
    let by_shell = format!("{stripped} write {file} {count}; true");
    let lines: [&[&str]; 4] = [
        &[plain, "write", file, count],
        &[stripped, "write", file, count],
        &["sh", "-c", &by_shell],
        &[plain, "run", stripped, "write", file, count],
    ];
    for line in lines {
        let (output, summary) = pool.run_summarised(&[], line);
        must_absorb(&summary, &output);
    }
}

/// The kernel lets no such user say which program a process is.
#[test]
fn another_users_program_knows_itself() {
    let dir = disk::directory();
    disk::give_to(dir.path(), NOBODY);
    let pool = Pool::of_user(NOBODY, "");
    let under = dir.path().join("under");
    let calls = "3200";
    let plain = text(&programs().plain);
    pool.as_user(Cmd::new("mkdir").arg(&under)).ok();
    let run = pool.run(&[]).args(["--", plain, "stress", text(&under), calls]).output();
    assert!(run.ok().stdout.contains("calls "), "{}", run.told());
}

#[test]
fn kills_lose_nothing() {
    let disk = Disk::new(Kind::Ext4);
    let mut storm = Storm::with_defaults(&disk, "kills of a Go program");
    while storm.goes_on(6 * rounds()) {
        storm.kill(&Lines);
    }
    storm.tell("kills of a Go program");
}

#[test]
fn a_power_cut_loses_nothing() {
    crash::survives_power_cut(&Lines, Kind::Ext4);
}

#[test]
fn a_power_cut_without_syncs_loses_lines() {
    need::root();
    // `eatmydata` has no way into a static program: the lines are written without a sync.
    let disk = Disk::new(Kind::Ext4);
    let file = disk.root.join("file");
    Cmd::new(&programs().plain).args(["write-only", text(&file)]).ok();
    disk.cut_power();
    disk.restore_power();
    assert!(std::fs::read(&file).map_or(true, |left| left.is_empty()), "the power cut is none");
}

/// A copy of the program in which the instructions are not as they are known to be: two that do not
/// depend on each other, exchanged.
fn unknown() -> PathBuf {
    const CALL: [u8; 14] =
        [0x49, 0x89, 0xf2, 0x48, 0x89, 0xfa, 0x48, 0x89, 0xce, 0x48, 0x89, 0xdf, 0x0f, 0x05];
    let path = home().join(format!("unknown-{}", std::process::id()));
    let mut bytes = std::fs::read(&programs().plain).expect("readable");
    let at = bytes.windows(CALL.len()).position(|window| window == CALL).expect("Go's call");
    bytes[at..at + 6].copy_from_slice(&[0x49, 0x89, 0xf2, 0x48, 0x8b, 0xd7]);
    std::fs::write(&path, bytes).expect("written");
    std::fs::set_permissions(&path, std::fs::metadata("/bin/true").expect("facts").permissions())
        .expect("mode");
    path
}

/// Refused as what `run` starts; as a child it works, and is named with the reason.
fn must_be_refused(program: &Path, why: &str) {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let line = [text(program), "write", text(&file), "20"];
    pool.run(&[]).arg("--").args(line).output().expect(&[REFUSED]).says(&[text(program), why], &[]);
    let by_shell = format!("{}; true", line.join(" "));
    let (output, summary) = pool.run_summarised(&[], &["sh", "-c", &by_shell]);
    output.ok();
    assert_eq!(std::fs::metadata(&file).expect("written").len(), 1 << 20);
    let unseen = report::find(&summary, "programs_unseen").expect("named").to_string();
    assert!(unseen.contains(text(program)) && unseen.contains(why), "{summary:#}");
}

#[test]
fn unknown_calls_are_refused() {
    must_be_refused(&unknown(), "where they are known to be");
}

#[test]
fn static_c_code_is_refused() {
    let source = home().join("with_c.go");
    let own = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/golang.go"));
    let with_c = own.expect("readable").replacen("import (", "import \"C\"\nimport (", 1);
    std::fs::write(&source, with_c).expect("written");
    let program = home().join("with-c");
    build(&source, &program, &["-ldflags=-linkmode external -extldflags -static"], true);
    must_be_refused(&program, "with C code");
}

#[test]
fn a_program_without_its_agent_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["holdfast", "libholdfast.so"] {
        std::fs::copy(need::holdfast().with_file_name(name), dir.path().join(name)).expect("copied");
    }
    let run = Cmd::new(dir.path().join("holdfast")).arg("run").arg("--volatile").arg("--pool");
    let run = run.arg(dir.path().join("pool")).arg("--").arg(&programs().plain).arg("say").output();
    run.expect(&[REFUSED]).says(&["holdfast-enter"], &[]);
}
