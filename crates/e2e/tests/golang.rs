//! Go programs under `holdfast run`, static, with a loader, and with C code: they do what they do
//! natively, all that they sync is absorbed, by themselves and as children, kills and power cuts
//! lose nothing, and what cannot be entered is refused or named. `HOLDFAST_E2E_ROUNDS` multiplies
//! the calls that are compared.

use std::path::Path;

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::running::Running;
use holdfast_e2e::storm::Storm;
use holdfast_e2e::workload::golang::{Lines, build, home, programs, source_with_c, unknown};
use holdfast_e2e::{canaries, crash, need, report};
use holdfast_testkit::rounds;
use serde_json::Value;

const REFUSED: i32 = 120;
/// No capability of root's.
const NOBODY: &str = "nobody";
const WRITES: u64 = 200;

/// The rules, each by the deliberate bug (`crates/canary`) that takes it out, and the test that
/// must notice.
const RULES: [(&str, &str); 5] = [
    ("GoTrusted", "what_cannot_be_led_is_an_outsider"),
    ("GoChildrenLost", "it_is_absorbed_by_itself_and_as_a_child"),
    ("GoThreadsMistaken", "it_is_absorbed_by_itself_and_as_a_child"),
    ("GoFaultsTrusted", "a_busy_program_does_what_it_does_natively"),
    ("HandlersAnywhere", "a_busy_program_does_what_it_does_natively"),
];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// What the stress program says after so many calls.
fn stressed(dir: &Path, calls: u64, program: &Path, start: impl FnOnce(&[&str]) -> Output) -> String {
    std::fs::create_dir(dir).expect("a directory");
    let calls = calls.to_string();
    let output = start(&[text(program), "stress", text(dir), &calls]);
    output.ok();
    output.stdout
}

#[test]
fn a_busy_program_does_what_it_does_natively() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let calls = 4_000 * rounds();
    let natively = |line: &[&str]| Cmd::new(line[0]).args(&line[1..]).output();
    let natively = stressed(&disk.root.join("native"), calls, &programs().plain, natively);
    for (program, kind) in programs().kinds() {
        let under = stressed(&disk.root.join(kind), calls, program, |line| {
            let (output, summary) = pool.run_summarised(&[], line);
            assert!(report::number(&summary, "writes_absorbed") > calls / 20, "{summary:#}{}", output.told());
            must_see_all(&summary);
            output
        });
        assert_eq!(natively, under, "{kind}");
    }
}

/// No program's writes went unseen.
fn must_see_all(summary: &Value) {
    let unseen = report::find(summary, "programs_unseen").and_then(Value::as_array);
    assert!(unseen.is_some_and(Vec::is_empty), "{summary:#}");
}

fn must_absorb(summary: &Value, output: &Output) {
    output.ok();
    let absorbed = report::number(summary, "syncs_absorbed");
    assert!(absorbed >= WRITES, "{summary:#}\n{}", output.told());
    assert!(report::number(summary, "writes_absorbed") >= WRITES, "{summary:#}");
    must_see_all(summary);
}

#[test]
fn it_is_absorbed_by_itself_and_as_a_child() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let [plain, stripped] = [text(&programs().plain), text(&programs().stripped)];
    let [pie, with_c] = [text(&programs().pie), text(&programs().with_c)];
    let (file, count) = (disk.root.join("file"), WRITES.to_string());
    let (file, count) = (text(&file), count.as_str());
    let by_shell = format!("{stripped} write {file} {count}; true");
    let lines: [&[&str]; 8] = [
        &[plain, "write", file, count],
        &[stripped, "write", file, count],
        &["sh", "-c", &by_shell],
        &[plain, "run", stripped, "write", file, count],
        &[pie, "write", file, count],
        &[with_c, "write", file, count],
        &[pie, "run", with_c, "run", plain, "write", file, count],
        &[with_c, "run", pie, "run", with_c, "write", file, count],
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
    let calls = "1600";
    pool.as_user(Cmd::new("mkdir").arg(&under)).ok();
    for program in [&programs().plain, &programs().with_c] {
        let run = pool.run(&[]).args(["--", text(program), "stress", text(&under), calls]).output();
        assert!(run.ok().stdout.contains("calls "), "{}", run.told());
    }
}

#[test]
fn kills_lose_nothing() {
    let disk = Disk::new(Kind::Ext4);
    let mut storm = Storm::with_defaults(&disk, "kills of a Go program");
    let mut kinds = programs().kinds().into_iter().cycle();
    while storm.goes_on(6 * rounds()) {
        storm.kill(&Lines(kinds.next().expect("without end").0));
    }
    storm.tell("kills of a Go program");
}

#[test]
fn a_power_cut_loses_nothing() {
    for (program, _) in programs().kinds() {
        crash::survives_power_cut(&Lines(program), Kind::Ext4);
    }
}

#[test]
fn a_power_cut_without_syncs_loses_lines() {
    need::root();
    // `eatmydata` has no way into Go's code: the lines are written without a sync.
    let disk = Disk::new(Kind::Ext4);
    for (program, _) in programs().kinds() {
        let file = disk.root.join("file");
        Cmd::new(program).args(["write-only", text(&file)]).ok();
        disk.cut_power();
        disk.restore_power();
        assert!(std::fs::read(&file).map_or(true, |left| left.is_empty()), "the power cut is none");
    }
}

/// Each process says what brings its calls to the log.
#[test]
fn each_front_end_is_told() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let kinds = programs().kinds();
    let say = kinds.map(|(program, _)| format!("{} say;", text(program))).concat();
    let (output, summary) = pool.run_summarised(&[], &["sh", "-c", &say]);
    output.ok();
    let count = |front_end: &str| summary["front_ends"][front_end].as_u64();
    for (_, kind) in kinds {
        assert_eq!(count(kind), Some(1), "{summary:#}");
    }
    assert!(count("glibc") >= Some(1) && count("none").is_none(), "{summary:#}");

    let file = disk.root.join("file");
    let mut running =
        Running::start(&pool.run(&[]).args(["--", text(&programs().with_c), "lines", text(&file)]));
    running.until("ack 3");
    let status = pool.status();
    running.kill_all(&pool);
    assert_eq!(status["processes"][0]["front_end"], "Go with C code", "{status:#}");

    for (program, kind) in [kinds[1], kinds[2]] {
        let told = Cmd::holdfast("doctor").arg("--").arg(program).arg("say").ok().stdout;
        assert!(
            told.contains(&format!("1 {kind}")) && told.contains("no way around libc was found"),
            "{told}"
        );
    }
    let told = Cmd::holdfast("doctor").arg("--").arg(unknown(kinds[2].0)).arg("say").ok().stdout;
    assert!(told.contains("1 none") && told.contains("where no hook can be led to"), "{told}");
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
    must_be_refused(&unknown(&programs().plain), "where they are known to be");
}

/// It has the library, but not all of its calls come there: it is left to the kernel, and named.
#[test]
fn what_cannot_be_led_is_an_outsider() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    for program in [&programs().pie, &programs().with_c].map(|program| unknown(program)) {
        let (output, summary) = pool.run_summarised(&[], &[text(&program), "write", text(&file), "20"]);
        output.ok();
        assert_eq!(std::fs::metadata(&file).expect("written").len(), 1 << 20);
        let unseen = report::find(&summary, "programs_unseen").expect("named").to_string();
        let why = "where they are known to be";
        assert!(unseen.contains(text(&program)) && unseen.contains(why), "{summary:#}");
        assert_eq!(summary["front_ends"]["none"], 1, "{summary:#}");
    }
}

/// Its text may not be changed, and neither may libc's: no memory and no file in memory may be made
/// executable.
#[test]
fn a_program_whose_text_cannot_be_changed_is_an_outsider() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let confine = home().join(format!("confine-{}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests/programs/no_exec_gain.c");
    Cmd::new("cc").args(["-O1", "-w", "-o"]).args([&confine, &source]).ok();
    let file = disk.root.join("file");
    let program = text(&programs().with_c);
    let line = [text(&confine), "strict", program, "write", text(&file), "20"];
    let (output, summary) = pool.run_summarised(&[], &line);
    output.ok();
    assert_eq!(std::fs::metadata(&file).expect("written").len(), 1 << 20);
    let unseen = report::find(&summary, "programs_unseen").expect("named").to_string();
    assert!(unseen.contains(program) && summary["front_ends"]["none"].as_u64() >= Some(1), "{summary:#}");
}

/// The kernel gives it more rights than who starts it has, and the loader takes no library then.
#[test]
fn a_setuid_program_is_refused_or_named() {
    use std::os::unix::fs::PermissionsExt;
    let pool = Pool::of_user(NOBODY, "");
    let dir = disk::directory();
    disk::give_to(dir.path(), NOBODY);
    for program in [&programs().plain, &programs().with_c] {
        let raised = home().join(format!("raised-{}", std::process::id()));
        std::fs::copy(program, &raised).expect("copied");
        std::fs::set_permissions(&raised, std::fs::Permissions::from_mode(0o4755)).expect("mode");
        let said = pool.run(&[]).args(["--", text(&raised), "say"]).output();
        said.expect(&[REFUSED]).says(&[text(&raised), "is setuid"], &[]);
        let summary = dir.path().join("summary");
        let by_shell = format!("{} say; true", text(&raised));
        let run = pool.run(&[]).arg(format!("--summary={}", summary.display()));
        assert_eq!(run.args(["--", "sh", "-c", &by_shell]).ok().stdout, "said\n");
        let summary = report::parse(&std::fs::read_to_string(&summary).expect("a summary"));
        let unseen = report::find(&summary, "programs_unseen").expect("named").to_string();
        assert!(unseen.contains(text(&raised)) && unseen.contains("more privilege"), "{summary:#}");
        std::fs::remove_file(raised).expect("removed");
    }
}

#[test]
fn static_c_code_is_refused() {
    let (source, program) = (source_with_c(), home().join("static-with-c"));
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

/// Each test above with the rule taken out that it is about; with all rules they run in this build
/// already.
#[test]
fn every_rule_that_is_taken_out_is_missed() {
    let survived = canaries::survivors(&RULES);
    assert!(survived.is_empty(), "survived: {survived:?}");
}
