//! Programs that give up rights (docs/interposition.md): a filter of system calls, another user,
//! fewer capabilities, Landlock, a user namespace, another root directory. They go on as natively,
//! whatever they call then, nothing of before is in reach, and what was acknowledged is there.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{canaries, musl, need, proc, report};
use serde_json::Value;
use tempfile::TempDir;

/// The rules, each by the deliberate bug (`crates/canary`) that takes it out, and the test that
/// must notice.
const RULES: [(&str, &str); 1] = [("PartedUnsettled", "nothing_of_before_covers_what_comes_after")];

/// Hooks that no row of the program calls: their calls need more than a descriptor and a name, or
/// would end it.
const NOT_CALLED: [&str; 12] = [
    "daemon",
    "forkpty",
    "vfork",
    "wordexp",
    "clone",
    "aio_write",
    "acct",
    "swapon",
    "umount2",
    "dlmopen",
    "io_setup",
    "io_uring_setup",
];

const MUSL: &str = "/usr/lib/x86_64-linux-musl/libc.so";

/// A user that is nobody else on the machine.
const NOBODY: &str = "65534";

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The functions that a libc exports, by versions that programs are linked with.
fn functions(libc: &Path) -> BTreeSet<String> {
    let symbols = Cmd::new("nm").args(["-D", "--defined-only", text(libc)]).ok().stdout;
    let name = |line: &str| {
        let [_, kind, name] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        let is_linked = name.contains("@@") || !name.contains('@');
        let name = name.split('@').next().unwrap_or_default();
        (matches!(kind, "T" | "W" | "i") && is_linked).then(|| name.to_owned())
    };
    symbols.lines().filter_map(name).collect()
}

/// `rows.h`: every name of every hook that the libc has, with the row of the program that calls it.
fn rows(libc: &Path) -> String {
    let source = std::fs::read_to_string(here("programs/filters.c")).expect("the program");
    let rows: BTreeSet<&str> =
        source.split("ROW(").skip(1).filter_map(|rest| rest.split(',').next()).collect();
    let table = std::fs::read_to_string(here("../preload/tests/symbols/hooks.txt")).expect("the hooks");
    let (exported, mut all) = (functions(libc), String::from("#define NAMES"));
    for line in table.lines().filter(|line| !line.starts_with('#') && !line.starts_with("holdfast_")) {
        let (names, _) = line.split_once(": ").expect("names: what is done");
        let Some(row) = names.split(' ').find(|name| rows.contains(name)) else {
            assert!(
                names.split(' ').any(|name| NOT_CALLED.contains(&name)),
                "no row of filters.c calls {names}"
            );
            continue;
        };
        for name in names.split(' ').filter(|name| exported.contains(*name)) {
            write!(all, " NAME({row}, {name})").expect("text");
        }
    }
    all + "\n"
}

/// The program, linked with glibc.
fn program() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let build = || {
        let home = disk::directory();
        let libc = Cmd::new("cc").arg("-print-file-name=libc.so.6").ok().stdout;
        std::fs::write(home.path().join("rows.h"), rows(Path::new(libc.trim()))).expect("written");
        let program = home.path().join("filters");
        let source = here("programs/filters.c");
        Cmd::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", text(home.path()), "-o"])
            .args([&program, &source])
            .arg("-ldl")
            .ok();
        (home, program)
    };
    &BUILT.get_or_init(build).1
}

/// A directory on a file system of its own where everybody may write.
struct Place {
    disk: Disk,
    made: std::cell::Cell<u32>,
}

impl Place {
    fn new() -> Self {
        Self { disk: Disk::with_size(Kind::Ext4, 256 << 20), made: std::cell::Cell::new(0) }
    }

    fn directory(&self) -> PathBuf {
        self.made.set(self.made.get() + 1);
        let path = self.disk.root.join(self.made.get().to_string());
        std::fs::create_dir(&path).expect("a directory");
        Cmd::new("chmod").args(["0777", text(&path)]).ok();
        path
    }
}

/// How a program ended, as a shell tells it.
fn status(output: &Output) -> i32 {
    output.code()
}

/// Runs the program natively and under Holdfast: it must print the same.
fn same(place: &Place, program: &Path, options: &[&str], arguments: &[&str]) -> Value {
    let native = Cmd::new(program).args(arguments).dir(place.directory()).output();
    let pool = Pool::new();
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let summary = format!("--summary={}", file.path().display());
    let held = pool.run(options).arg(summary).arg("--").arg(program).args(arguments);
    let held = held.dir(place.directory()).output();
    let differing: Vec<_> = native
        .stdout
        .lines()
        .zip(held.stdout.lines())
        .filter(|(native, held)| native != held)
        .map(|(native, held)| format!("{native} | {held}"))
        .collect();
    assert!(differing.is_empty(), "{arguments:?}: {differing:#?}\n{}", held.told());
    assert_eq!(held.stdout, native.stdout, "{arguments:?}\n{}", held.told());
    assert_eq!(status(&held), status(&native), "{arguments:?}\n{}", held.told());
    assert!(native.stdout.lines().count() > 50, "{}", native.told());
    report::parse(&std::fs::read_to_string(file.path()).expect("summary"))
}

/// Why the program is not absorbed.
fn reasons(summary: &Value) -> Vec<String> {
    let rows = report::find(summary, "programs_unseen").and_then(Value::as_array).expect("a list");
    let of_ours =
        rows.iter().filter(|row| row["program"].as_str().is_some_and(|path| path.ends_with("/filters")));
    of_ours.map(|row| row["reason"].as_str().expect("text").to_owned()).collect()
}

/// What takes rights away, and what is said of it.
const SITUATIONS: [(&str, &str); 11] = [
    ("refuses", "filters its system calls"),
    ("user", "became another user"),
    ("effective", "became another user"),
    ("files-user", "became another user"),
    ("group", "changed its groups"),
    ("groups", "changed its groups"),
    ("capabilities", "dropped capabilities"),
    ("landlock", "Landlock"),
    ("namespace", "user namespace"),
    ("root", "root directory"),
    ("refuses-all", "filters its system calls"),
];

fn calls(when: &str, threads: &str) {
    need::root();
    let place = Place::new();
    for (situation, reason) in SITUATIONS {
        let summary = same(&place, program(), &[], &["calls", situation, when, threads]);
        let told = reasons(&summary);
        assert!(told.iter().any(|told| told.contains(reason)), "{situation}: {told:?}");
        let absorbed = report::number(&summary, "writes_absorbed");
        let wanted = if when == "after" { 7 } else { 0 };
        assert!(absorbed >= wanted, "{situation}: {summary:#}");
        assert!(report::flag(&summary, "drained"), "{situation}: {summary:#}");
    }
}

#[test]
fn rights_given_up_before_anything_is_written() {
    calls("before", "0");
}

#[test]
fn rights_given_up_when_files_are_in_the_log() {
    calls("after", "0");
}

#[test]
fn rights_given_up_while_other_threads_write_and_wait() {
    calls("after", "1");
}

/// Each call in a process of its own, which the filter ends as it does natively.
#[test]
fn filters_that_kill() {
    let place = Place::new();
    for situation in ["strict", "few"] {
        same(&place, program(), &[], &["each", situation]);
    }
}

/// With files whose newest bytes the kernel does not have.
#[test]
fn rights_given_up_in_state_behind() {
    let place = Place::new();
    for situation in ["refuses", "user", "landlock"] {
        same(&place, program(), &["--write-behind=on"], &["calls", situation, "after", "1"]);
    }
}

/// What changes nothing, what is only asked, and a filter under which the library can live.
#[test]
fn what_takes_nothing_away_leaves_it_in() {
    need::root();
    let place = Place::new();
    let native = Cmd::new(program()).args(["stay", "nothing", text(&place.directory().join("file"))]).ok();
    let file = place.directory().join("file");
    let pool = Pool::new();
    let arguments = [text(program()), "stay", "nothing", text(&file)];
    let (held, summary) = pool.run_summarised(&[], &arguments);
    assert_eq!(held.ok().stdout, native.stdout);
    assert_eq!(report::number(&summary, "writes_absorbed"), 20, "{summary:#}\n{}", held.told());
    assert!(reasons(&summary).is_empty(), "{summary:#}");
}

/// A child that runs in its parent's memory takes nothing out of that.
#[test]
fn a_child_in_its_parents_memory_parts_alone() {
    need::root();
    let place = Place::new();
    let native = Cmd::new(program()).args(["lend", "nothing", text(&place.directory().join("file"))]).ok();
    let file = place.directory().join("file");
    let (held, summary) = Pool::new().run_summarised(&[], &[text(program()), "lend", "nothing", text(&file)]);
    assert_eq!(held.ok().stdout, native.stdout);
    assert_eq!(report::number(&summary, "writes_absorbed"), 4, "{summary:#}\n{}", held.told());
    let told = reasons(&summary);
    for reason in ["became another user", "root directory", "filters its system calls"] {
        assert!(told.iter().any(|told| told.contains(reason)), "{reason}: {told:?}");
    }
}

/// What a program starts that has parted: a client where it can be one, and else as natively.
#[test]
fn what_it_starts_goes_without_the_library_where_it_must() {
    need::root();
    let place = Place::new();
    for (how, has_library) in [("refuses-exec", false), ("groups", true)] {
        let pool = Pool::new();
        let native = Cmd::new(program()).args(["start", how]).dir(place.directory()).ok();
        let held = pool.run(&[]).arg("--").arg(program()).args(["start", how]).dir(place.directory()).ok();
        let has = |output: &Output| output.stdout.contains("LD_PRELOAD=");
        assert!(!has(&native) && has(&held) == has_library, "{how}\n{}", held.told());
        let own = |line: &&str| !line.contains("holdfast") && !line.contains("HOLDFAST");
        let lines =
            |output: &Output| output.stdout.lines().filter(own).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(&held), lines(&native), "{how}");
    }
}

/// A program that has written, parted and written again, until it says so.
fn written(pool: &Pool, options: &[&str], file: &Path, how: &str) -> std::process::Child {
    let arguments = ["write", how, text(file)];
    let run = pool.run(options).arg("--").arg(program()).args(arguments);
    let mut child = run.dir(file.parent().expect("a directory")).spawn();
    let lines = proc::lines(&mut child);
    let line = lines.recv_timeout(Duration::from_secs(20));
    assert!(line.as_ref().is_ok_and(|line| line.trim() == "acknowledged"), "{how}: {line:?}");
    child
}

fn kill(pool: &Pool, child: &mut std::process::Child) {
    for pid in proc::families(&[child.id()]).into_iter().chain(proc::keepers(&pool.path)) {
        proc::kill_hard(pid);
    }
    drop(child.wait());
}

/// All of a file as the program wrote it last.
fn must_be_newest(file: &Path, how: &str, told: &str) {
    let content = std::fs::read(file).expect("read");
    assert_eq!(content.len(), 4096, "{how}\n{told}");
    assert!(content.iter().all(|byte| *byte == b'b'), "{how}: {:?}\n{told}", content.first());
}

/// No record that was made before the parting is live after it.
#[test]
fn nothing_of_before_covers_what_comes_after() {
    need::root();
    let place = Place::new();
    for (how, options) in [("user", &[][..]), ("few-waiting", &[]), ("user", &["--durability=sync"])] {
        let (pool, file) = (Pool::new(), place.directory().join("file"));
        let mut child = written(&pool, options, &file, how);
        kill(&pool, &mut child);
        let recovered = pool.recover(&["--replay"]);
        must_be_newest(&file, how, &recovered.ok().told());
    }
}

#[test]
fn what_was_acknowledged_before_and_after_survives_a_power_cut() {
    need::root();
    let disk = Disk::with_size(Kind::Ext4, 256 << 20);
    Cmd::new("chmod").args(["0777", text(&disk.root)]).ok();
    let (pool, file) = (Pool::new(), disk.root.join("file"));
    let mut child = written(&pool, &[], &file, "user");
    disk.cut_power();
    kill(&pool, &mut child);
    disk.restore_power();
    let recovered = pool.recover(&[]);
    must_be_newest(&file, "power cut", &recovered.ok().told());
}

/// Who became another user reaches nothing of the old one's.
#[test]
fn another_user_finds_no_way_to_the_pool() {
    need::root();
    let place = Place::new();
    let (pool, file) = (Pool::new(), place.directory().join("file"));
    let mut child = written(&pool, &[], &file, "user");
    let ours = proc::with_environment(pool.text());
    drop(ours);
    let family = proc::families(&[child.id()]);
    let of =
        |pid: &u32, what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let nobodys: Vec<u32> = family
        .into_iter()
        .filter(|pid| of(pid, "status").lines().any(|line| line.starts_with("Uid:") && line.contains(NOBODY)))
        .collect();
    assert_eq!(nobodys.len(), 1, "one program is another user's");
    let maps = of(&nobodys[0], "maps");
    assert!(maps.contains("/filters"), "{maps}");
    assert!(!maps.contains(pool.text()) && !maps.contains("memfd:holdfast"), "{maps}");
    for open in std::fs::read_dir(format!("/proc/{}/fd", nobodys[0])).expect("descriptors").flatten() {
        let leads = std::fs::read_link(open.path()).unwrap_or_default();
        assert!(!text(&leads).contains("holdfast-e2e-") || leads == file, "{}", leads.display());
    }
    kill(&pool, &mut child);
}

/// musl, whose functions were never ours.
#[test]
fn programs_of_musl_part_too() {
    need::root();
    let place = Place::new();
    let home = disk::directory();
    need::debian_file(MUSL, "musl-tools");
    std::fs::write(home.path().join("rows.h"), rows(Path::new(MUSL))).expect("written");
    std::fs::copy(here("programs/filters.c"), home.path().join("filters.c")).expect("copied");
    let program = home.path().join("filters");
    musl::compile(&program, [home.path().join("filters.c")]);
    for situation in ["user", "landlock", "capabilities"] {
        same(&place, &program, &[], &["calls", situation, "after", "0"]);
    }
}

/// With a rule taken out, the test beside it must fail.
#[test]
fn every_rule_that_is_taken_out_is_missed() {
    let survived = canaries::survivors(&RULES);
    assert!(survived.is_empty(), "survived: {survived:?}");
}
