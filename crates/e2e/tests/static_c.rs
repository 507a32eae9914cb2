//! Static C programs under `holdfast run`, of glibc and of musl: they do what they do natively, all
//! that they sync is absorbed, by themselves and as children of each other and of dynamic programs,
//! kills and power cuts lose nothing, and what cannot be entered is refused or named.
//! `HOLDFAST_CONFORMANCE=THEME` runs one theme of the conformance checks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::running::Running;
use holdfast_e2e::storm::Storm;
use holdfast_e2e::transcript::differences;
use holdfast_e2e::workload::sqlite::{STATIC_DELETE, STATIC_WAL};
use holdfast_e2e::workload::static_c::{LINKED, Lines, Linked, appends, home, source};
use holdfast_e2e::{crash, need, report, tally};
use holdfast_testkit::rounds;
use serde_json::Value;

const REFUSED: i32 = 120;

/// Checks that differ: a C library is mapped beside the program, and it does not use it.
const DIFFERENT: &str = "libc_can_be_found";

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// No program's writes went unseen.
fn must_see_all(summary: &Value) {
    let unseen = report::find(summary, "programs_unseen").and_then(Value::as_array);
    assert!(unseen.is_some_and(Vec::is_empty), "{summary:#}");
}

#[test]
fn it_is_absorbed_by_itself_and_as_a_child() {
    const LINES: u64 = 50;
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let (file, count) = (disk.root.join("file"), LINES.to_string());
    let busybox = need::tool("busybox");
    let busybox = text(&busybox);
    for linked in LINKED {
        let (program, file) = (text(appends(linked)), text(&file));
        let own = format!("{program} {file} {count}; true");
        let there_and_back = format!("exec sh -c \"{busybox} sh -c '{own}'; true\"");
        let spawned = format!("echo {count} | {busybox} xargs {program} {file}");
        let lines: [&[&str]; 5] = [
            &[program, file, &count],
            &["sh", "-c", &own],
            &[busybox, "sh", "-c", &own],
            &[busybox, "sh", "-c", &there_and_back],
            &[busybox, "sh", "-c", &spawned],
        ];
        for line in lines {
            let (output, summary) = pool.run_summarised(&[], line);
            output.ok();
            let absorbed = report::number(&summary, "syncs_absorbed");
            assert!(absorbed >= LINES - 1, "{linked:?} {line:?}: {summary:#}\n{}", output.told());
            must_see_all(&summary);
        }
        let written = std::fs::read_to_string(file).expect("written");
        assert_eq!(written.lines().count() as u64, 5 * LINES, "{linked:?}");
        std::fs::remove_file(file).expect("removed");
    }
}

#[test]
fn busybox_writes_and_traps() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let busybox = need::tool("busybox");
    let script = "trap 'echo trapped' USR1; kill -USR1 $$; dd if=/dev/zero of=a bs=4k count=64 conv=fsync \
                  2> /dev/null; dd if=/dev/zero of=a bs=4k count=64 conv=notrunc,fsync 2> /dev/null; cp a b; \
                  sync; sleep 1 & kill $!; wait $!; echo ended $?; readlink /proc/self/exe; cat b | wc -c";
    let natively = Cmd::new(&busybox).args(["sh", "-c", script]).dir(fresh(&disk.root, "native")).ok().stdout;
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let run = pool.run(&[]).arg(format!("--summary={}", file.path().display())).arg("--").arg(&busybox);
    let held = run.args(["sh", "-c", script]).dir(fresh(&disk.root, "held")).ok().stdout;
    assert_eq!(natively, held);
    let summary = report::parse(&std::fs::read_to_string(file.path()).expect("summary"));
    assert!(report::number(&summary, "writes_absorbed") >= 64, "{summary:#}");
    must_see_all(&summary);
}

fn fresh(root: &Path, name: &str) -> PathBuf {
    let path = root.join(name);
    std::fs::create_dir(&path).expect("directory");
    path
}

/// The conformance checks.
fn checks(linked: Linked, aside: &Path) -> PathBuf {
    let program = aside.join(format!("conform-{linked:?}"));
    let entries = std::fs::read_dir(source("conformance")).expect("sources");
    let sources = entries.map(|entry| entry.expect("source").path());
    let sources: Vec<PathBuf> =
        sources.filter(|path| path.extension().is_some_and(|name| name == "c")).collect();
    match linked {
        Linked::Musl => holdfast_e2e::musl::compile_statically(&program, sources),
        _ => linked.build(&program, &sources, &["-lutil"]),
    }
    program
}

#[test]
fn the_conformance_checks_show_no_difference_with_glibc() {
    must_agree_everywhere(Linked::Glibc);
}

#[test]
fn the_conformance_checks_show_no_difference_with_musl() {
    must_agree_everywhere(Linked::Musl);
}

/// Runs all themes natively and under Holdfast.
fn must_agree_everywhere(linked: Linked) {
    let (disk, aside) = (Disk::new(Kind::Ext4), disk::directory());
    let wanted = std::env::var("HOLDFAST_CONFORMANCE").ok();
    let (mut failures, mut absorbed) = (Vec::new(), 0);
    let checks = checks(linked, aside.path());
    let list = Cmd::new(&checks).arg("list").ok().stdout;
    let mut themes: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    themes.sort_unstable();
    themes.dedup();
    for theme in themes.into_iter().filter(|theme| wanted.as_deref().is_none_or(|wanted| wanted == *theme)) {
        let run = Duration::from_secs(120);
        let native = fresh(&disk.root, &format!("native-{theme}"));
        let native = Cmd::new(&checks).args(["run", theme]).arg(native).limit(run).ok().stdout;
        let held = fresh(&disk.root, &format!("held-{theme}"));
        let pool = Pool::new();
        let argv = [text(&checks), "run", theme, text(&held)];
        let (output, summary) = pool.run_summarised(&["--age-max", "200"], &argv);
        output.ok();
        let mut found = differences(&native, &output.stdout);
        found.retain(|found| !found.contains(DIFFERENT));
        failures.extend(found);
        assert!(report::flag(&summary, "drained"), "{theme}: not everything is on disk");
        absorbed += report::number(&summary, "writes_absorbed");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(absorbed > 2_000 || wanted.is_some(), "{absorbed} writes absorbed");
    tally::say(&format!("conformance of static programs ({linked:?}): {absorbed} writes absorbed"));
}

#[test]
fn handlers_and_bad_addresses_are_as_natively() {
    // musl cannot send a thread a signal with a value.
    for linked in [Linked::Glibc, Linked::GlibcPie] {
        let program = home().join(format!("signals-{linked:?}"));
        linked.build(&program, &[source("programs/signals.c")], &[]);
        let place = disk::directory();
        let native = Cmd::new(&program).dir(place.path()).ok();
        std::fs::remove_file(place.path().join("signals.data")).expect("written natively");
        let pool = Pool::new();
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let summary = format!("--summary={}", file.path().display());
        let held = pool.run(&[]).arg(summary).arg("--").arg(&program).dir(place.path()).ok();
        assert_eq!(held.stdout, native.stdout, "{linked:?}");
        let summary = report::parse(&std::fs::read_to_string(file.path()).expect("summary"));
        assert!(report::number(&summary, "writes_absorbed") > 7_000, "{linked:?}: {summary:#}");
        pool.run(&[]).arg("--").arg(&program).arg("die").dir(place.path()).output().expect(&[139]);
    }
}

/// Cancels and handlers end calls that wait, in hooks as elsewhere.
#[test]
fn calls_that_wait_end_as_natively() {
    for linked in LINKED {
        let program = home().join(format!("waits-{linked:?}"));
        linked.build(&program, &[source("programs/waits.c")], &[]);
        let disk = Disk::new(Kind::Ext4);
        let native = Cmd::new(&program).dir(fresh(&disk.root, "native")).ok();
        let pool = Pool::new();
        let held = pool.run(&[]).arg("--").arg(&program).dir(fresh(&disk.root, "held")).ok();
        assert_eq!(held.stdout, native.stdout, "{linked:?}");
        assert!(native.stdout.contains("open: cancelled 1"), "{}", native.stdout);
    }
}

#[test]
fn kills_lose_nothing() {
    let disk = Disk::new(Kind::Ext4);
    let mut storm = Storm::with_defaults(&disk, "kills of a static program");
    let mut kinds = LINKED.into_iter().cycle();
    while storm.goes_on(6 * rounds()) {
        storm.kill(&Lines(kinds.next().expect("without end")));
    }
    storm.tell("kills of a static program");
}

#[test]
fn a_power_cut_loses_nothing() {
    for linked in [Linked::Glibc, Linked::Musl] {
        crash::survives_power_cut(&Lines(linked), Kind::Ext4);
    }
}

#[test]
fn sqlite_survives_kills() {
    crash::survives_kills(&STATIC_DELETE);
    crash::survives_kills(&STATIC_WAL);
}

/// Each process says what brings its calls to the log.
#[test]
fn its_front_end_is_told() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let program = appends(Linked::Musl);
    let (output, summary) = pool.run_summarised(&[], &[text(program), text(&file), "3"]);
    output.ok();
    assert_eq!(summary["front_ends"]["static C"], 1, "{summary:#}");
    let mut running = Running::start(&pool.run(&[]).args(["--", text(program), text(&file), "100000000"]));
    running.until("ack 3");
    let status = pool.status();
    running.kill_all(&pool);
    assert_eq!(status["processes"][0]["front_end"], "static C", "{status:#}");
    let told = Cmd::holdfast("doctor").arg("--").arg(program).arg(&file).arg("3").ok().stdout;
    assert!(told.contains("1 static C"), "{told}");
}

/// A program that does what cannot be followed, for one reason.
fn other(define: &str) -> PathBuf {
    let program = home().join(format!("other-{define}"));
    Linked::Musl.build(&program, &[source("programs/static_other.c")], &[&format!("-D{define}")]);
    program
}

fn must_be_named(program: &Path, reason: &str, why: &str) {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let line = format!("{} {reason} {}; true", text(program), text(&file));
    let (output, summary) = pool.run_summarised(&[], &["sh", "-c", &line]);
    output.ok();
    assert_eq!(std::fs::read_to_string(&file).expect("written"), "wordword", "{}", output.told());
    let unseen = report::find(&summary, "programs_unseen").expect("named").to_string();
    assert!(unseen.contains(text(program)) && unseen.contains(why), "{summary:#}");
}

#[test]
fn calls_that_cannot_be_led_are_refused() {
    for (define, reason) in [("OLD_CALLS", "old"), ("BETWEEN_JUMPS", "jumps")] {
        let program = other(define);
        let why = "cannot be led to the log";
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let file = disk.root.join("file");
        let run = pool.run(&[]).args(["--", text(&program), reason, text(&file)]).output();
        run.expect(&[REFUSED]).says(&[text(&program), why, "holdfast mount"], &[]);
        assert!(!file.exists(), "{define} was started");
        must_be_named(&program, reason, why);
    }
}

#[test]
fn what_it_cannot_be_followed_in_is_named() {
    let program = other("NOTHING");
    must_be_named(&program, "loads", "makes memory executable");
    must_be_named(&program, "shares", "runs a process in its memory");
}
