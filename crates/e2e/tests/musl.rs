//! Programs whose C library is musl. What they call themselves is absorbed; what musl does by
//! system calls of its own (stdio, `dprintf`, POSIX AIO) is left to the kernel, the files concerned
//! before it can happen, and the summary says so.
//!
//! The conformance checks and SQLite are compiled with musl. `HOLDFAST_CONFORMANCE=THEME` runs one
//! theme of the checks.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::transcript::differences;
use holdfast_e2e::workload::sqlite::{MUSL_DELETE, MUSL_WAL};
use holdfast_e2e::{crash, disk, musl, proc, report, tally};
use serde_json::Value;
use tempfile::TempDir;

const BY_LIBC: &str = "musl writes it by system calls of its own";

/// Checks that differ, with the reason. The library brings functions that musl has not, and which
/// programs therefore do not look for; musl's `stat` ends the program where ours, like glibc's,
/// returns `EFAULT`.
const DIFFERENT: [&str; 2] = ["every_form_of_", "all_ways_to_stat"];

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The program of `programs/guest.c`.
fn guest(directory: &Path) -> PathBuf {
    let program = directory.join("guest-musl");
    musl::compile(&program, [source("programs/guest.c")]);
    program
}

/// The conformance checks.
fn checks() -> &'static str {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let build = || {
        let home = disk::directory();
        let program = home.path().join("conform");
        let entries = std::fs::read_dir(source("conformance")).expect("sources");
        let sources = entries.map(|entry| entry.expect("source").path());
        musl::compile(&program, sources.filter(|path| path.extension().is_some_and(|name| name == "c")));
        (home, program)
    };
    BUILT.get_or_init(build).1.to_str().expect("text")
}

fn themes() -> Vec<String> {
    let list = Cmd::new(checks()).arg("list").ok().stdout;
    let mut themes: Vec<String> =
        list.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    themes.sort();
    themes.dedup();
    if let Ok(wanted) = std::env::var("HOLDFAST_CONFORMANCE") {
        themes.retain(|theme| *theme == wanted);
    }
    assert!(!themes.is_empty(), "no such theme");
    themes
}

fn fresh(root: &Path, name: &str) -> PathBuf {
    let path = root.join(name);
    std::fs::create_dir(&path).expect("directory");
    path
}

fn tree(directory: &Path) -> String {
    Cmd::new(checks()).arg("tree").arg(directory).ok().stdout
}

/// Why a file was left to the kernel, if it was.
fn bypassed(summary: &Value, path: &Path) -> Option<String> {
    let files =
        report::find(summary, "bypassed").and_then(|files| files.as_array().cloned()).unwrap_or_default();
    let path = path.to_str().expect("text");
    let file = files.into_iter().find(|file| file["path"] == path)?;
    file["reason"].as_str().map(str::to_owned)
}

#[test]
fn the_conformance_checks_show_no_difference() {
    let disk = Disk::new(Kind::Ext4);
    let mut failures = Vec::new();
    let mut absorbed = 0;
    for theme in themes() {
        let run = Duration::from_secs(120);
        let native = fresh(&disk.root, &format!("native-{theme}"));
        let native = Cmd::new(checks()).args(["run", &theme]).arg(native).limit(run).ok().stdout;
        let held = fresh(&disk.root, &format!("held-{theme}"));
        let pool = Pool::new();
        let argv = [checks(), "run", &theme, held.to_str().expect("text")];
        let (output, summary) = pool.run_summarised(&["--age-max", "200"], &argv);
        output.ok();
        let mut found = differences(&native, &output.stdout);
        found.retain(|found| !DIFFERENT.iter().any(|check| found.contains(check)));
        failures.extend(found);
        assert!(report::flag(&summary, "drained"), "{theme}: not everything is on disk");
        absorbed += report::number(&summary, "writes_absorbed");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(
        absorbed > 1_000 || std::env::var_os("HOLDFAST_CONFORMANCE").is_some(),
        "{absorbed} writes absorbed"
    );
    tally::say(&format!("conformance of musl programs: {absorbed} writes absorbed"));
}

/// The programs of the library's own tests, absorbed, and where the keeper is out of reach.
#[test]
fn the_librarys_own_programs_show_no_difference() {
    let disk = Disk::new(Kind::Ext4);
    let library = holdfast_e2e::need::holdfast().with_file_name("libholdfast.so");
    for (name, arguments) in [
        ("files", vec![]),
        ("children", vec![]),
        ("passing", vec![]),
        ("threads", vec![]),
        ("random", vec!["1"]),
    ] {
        let program = disk.root.join(format!("program-{name}"));
        musl::compile(&program, [source(&format!("../preload/tests/programs/{name}.c"))]);
        let fresh = |how: &str| fresh(&disk.root, &format!("{name}-{how}"));
        let alone = Cmd::new(&program).args(&arguments);
        let native = alone.clone().dir(fresh("native")).ok().stdout;
        let outside = alone.env("LD_PRELOAD", &library).env("HOLDFAST_SOCKET", "/dev/null/out-of-reach");
        assert_eq!(outside.dir(fresh("outside")).ok().stdout, native, "{name}, without a keeper");
        let pool = Pool::new();
        let held = pool.run(&[]).arg("--").arg(&program).args(&arguments).dir(fresh("held")).ok().stdout;
        assert_eq!(held, native, "{name}");
    }
}

/// A write that nobody saw, to a file of which the log holds an older one, would be undone by
/// recovery. So what a run left is compared with what it is after the keeper was killed before
/// anything expired, and the log was replayed.
#[test]
fn recovery_undoes_nothing_that_musl_wrote_by_itself() {
    let disk = Disk::new(Kind::Ext4);
    for theme in ["libc", "streams", "programs", "async"] {
        let directory = fresh(&disk.root, theme);
        let (done, place) = (disk.root.join(format!("{theme}-done")), directory.display());
        let pool = Pool::with_size("256M");
        let script = format!(
            "{checks} run {theme} {place} > {done}.text 2>&1; touch {done}; sleep 60",
            checks = checks(),
            done = done.display()
        );
        let mut run = pool.run(&["--age-max", "600000"]).arg("--").args(["sh", "-c", &script]).spawn();
        proc::wait_until(Duration::from_secs(100), "the checks' end", || done.exists());
        let (keeper, others) = (proc::keeper(&pool.path), proc::descendants(run.id()));
        let absorbed = report::number(&pool.status(), "writes_absorbed");
        run.kill().expect("killed");
        others.into_iter().chain([keeper]).for_each(proc::kill_hard);
        run.wait().expect("ended");
        let before = tree(&directory);
        let recovered = pool.recover(&["--replay"]);
        recovered.ok();
        assert!(absorbed > 0, "{theme}: nothing was in the log");
        assert_eq!(before, tree(&directory), "{theme}\n{}", recovered.told());
    }
}

#[test]
fn sqlite_with_a_rollback_journal_survives_kills() {
    crash::survives_kills(&MUSL_DELETE);
}

#[test]
fn sqlite_with_a_write_ahead_log_survives_kills() {
    crash::survives_kills(&MUSL_WAL);
}

/// Two C libraries, one keeper, one database: each sees the other's rows, and none is lost.
#[test]
fn musl_and_glibc_programs_share_a_database() {
    let disk = Disk::new(Kind::Ext4);
    let database = disk.root.join("app.db");
    let schema = "CREATE TABLE item(id INTEGER PRIMARY KEY, payload TEXT);
                  CREATE TABLE total(items INTEGER); INSERT INTO total VALUES(0);";
    Cmd::new("sqlite3").arg(&database).arg(schema).ok();
    for journal in ["DELETE", "WAL"] {
        let (pool, rows) = (Pool::new(), 60);
        let other = format!(
            "for row in $(seq {rows}); do sqlite3 -cmd '.timeout 20000' -cmd 'PRAGMA synchronous=FULL' {database} \
             \"BEGIN IMMEDIATE; INSERT INTO item VALUES((SELECT 1 + ifnull(max(id), 0) FROM item), 'other'); \
             UPDATE total SET items = items + 1; COMMIT\" > /dev/null || exit 1; done",
            database = database.display(),
        );
        let script = format!(
            "{program} {database} {journal} {rows} & {other}; wait $!",
            program = musl::rows(false).display(),
            database = database.display(),
        );
        Cmd::new("sqlite3").arg(&database).arg("DELETE FROM item; UPDATE total SET items = 0").ok();
        let (output, summary) = pool.run_summarised(&[], &["sh", "-c", &script]);
        output.ok();
        assert_eq!(
            output.stdout.lines().filter(|line| line.starts_with("ack ")).count(),
            rows,
            "{}",
            output.told()
        );
        let ask = "PRAGMA integrity_check; SELECT count(*), max(id), (SELECT items FROM total) FROM item";
        let answer = Cmd::new("sqlite3").arg(&database).arg(ask).ok().stdout;
        assert_eq!(answer, format!("ok\n{0}|{0}|{0}\n", 2 * rows), "{journal}");
        assert!(report::number(&summary, "syncs_absorbed") > 0, "{journal}: {summary:#}");
    }
}

#[test]
fn a_database_of_a_musl_program_is_absorbed_and_its_streams_are_not() {
    let disk = Disk::new(Kind::Ext4);
    let program = guest(&disk.root);
    let native = Cmd::new(&program).dir(&disk.root).ok().stdout;
    let content = |name: &str| std::fs::read(disk.root.join(name)).expect("read");
    let (data, text) = (content("guest.data"), content("guest.text"));
    let pool = Pool::new();
    let script = format!("cd {} && {} > out", disk.root.display(), program.display());
    let (output, summary) = pool.run_summarised(&[], &["sh", "-c", &script]);
    output.ok();
    assert_eq!(content("out"), native.as_bytes());
    assert!(report::number(&summary, "writes_absorbed") >= 600, "{summary:#}");
    assert_eq!(bypassed(&summary, &disk.root.join("guest.data")), None);
    assert!(
        bypassed(&summary, &disk.root.join("guest.text")).is_some_and(|why| why.contains(BY_LIBC)),
        "{summary:#}"
    );
    assert!(bypassed(&summary, &disk.root.join("out")).is_some(), "{summary:#}");
    assert_eq!((content("guest.data"), content("guest.text")), (data, text));
}

/// The library leaves `O_SYNC` out of the kernel's open, and does its work in the log: which a
/// stream's writes do not reach.
#[test]
fn a_stream_on_a_synchronous_descriptor_stays_synchronous() {
    let disk = Disk::new(Kind::Ext4);
    let program = disk.root.join("synced");
    musl::compile(&program, [source("programs/synced.c")]);
    for way in ["stream", "dprintf"] {
        let native = Cmd::new(&program).arg(way).dir(&disk.root).ok().stdout;
        let held = Pool::new().run(&[]).arg("--").arg(&program).arg(way).dir(&disk.root).ok().stdout;
        assert_eq!((native.as_str(), held.as_str()), ("synchronous\n", "synchronous\n"), "{way}");
    }
}

#[test]
fn doctor_says_what_is_left_to_the_kernel() {
    let disk = Disk::new(Kind::Ext4);
    let program = guest(&disk.root);
    let doctor = Cmd::holdfast("doctor").arg("--").arg(&program).dir(&disk.root).output();
    let told = doctor.told();
    assert!(told.contains("its C library is musl"), "{told}");
    assert!(told.contains(BY_LIBC), "{told}");
}

/// What the log holds of a file is on the disk before a stream writes to it, and never comes back
/// over that.
#[test]
fn streams_of_a_musl_program_write_to_files_that_others_have_written() {
    let disk = Disk::new(Kind::Ext4);
    let program = guest(&disk.root);
    let pool = Pool::new();
    let script = format!(
        "cd {root} && printf managed > guest.data && printf managed > guest.text && {program} && printf last >> guest.text",
        root = disk.root.display(),
        program = program.display()
    );
    for options in [&[][..], &["--write-behind=at-once"][..]] {
        let (output, _) = pool.run_summarised(options, &["sh", "-c", &script]);
        output.ok();
        let text = std::fs::read_to_string(disk.root.join("guest.text")).expect("text");
        assert!(text.starts_with("line 0\n") && text.ends_with("line 199\nlast"), "{text}");
        let data = std::fs::read(disk.root.join("guest.data")).expect("data");
        assert_eq!((data.len(), &data[3..8]), (600 * 700, &b"child"[..]));
    }
}
