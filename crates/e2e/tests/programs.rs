//! Suites and programs that others wrote, run natively and under Holdfast: the same tests pass, the
//! same fail, the same files come out, and the writes were absorbed. `HOLDFAST_PROGRAMS=long` runs
//! more of each suite.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::site::{Site, Workload};
use holdfast_e2e::workload::mariadb::MariaDb;
use holdfast_e2e::{need, report};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(1500);

fn long() -> bool {
    std::env::var("HOLDFAST_PROGRAMS").is_ok_and(|length| length == "long")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// Runs a program in `dir` under Holdfast; returns what it left, and the summary.
fn held(pool: &Pool, dir: &Path, program: &[&str]) -> (Output, Value) {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let summary = format!("--summary={}", file.path().display());
    let output =
        pool.run(&[]).arg(summary).arg("--").args(program).dir(dir).env("TMPDIR", dir).limit(LIMIT).output();
    let told = std::fs::read_to_string(file.path()).expect("summary");
    assert!(!told.is_empty(), "no summary was written\n{}", output.told());
    (output, report::parse(&told))
}

/// Runs the same program in `dir` natively.
fn native(dir: &Path, program: &[&str]) -> Output {
    Cmd::new(program[0]).args(&program[1..]).dir(dir).env("TMPDIR", dir).limit(LIMIT).output()
}

/// A run that absorbed less proves nothing.
fn must_absorb(summary: &Value, writes_min: u64) {
    let absorbed = report::number(summary, "writes_absorbed");
    assert!(absorbed >= writes_min, "{absorbed} writes absorbed, not {writes_min}\n{summary:#}");
    assert!(report::flag(summary, "drained"), "not everything reached the disk\n{summary:#}");
}

fn fresh(disk: &Disk, name: &str) -> PathBuf {
    let dir = disk.root.join(name);
    std::fs::create_dir(&dir).expect("directory");
    dir
}

/// CPython's own tests of what touches files.
const PYTHON: &[&str] = &[
    "test_file",
    "test_fileio",
    "test_fileinput",
    "test_bufio",
    "test_mmap",
    "test_shelve",
    "test_dbm_dumb",
    "test_fcntl",
    "test_posix",
    "test_pipes",
    "test_gzip",
    "test_glob",
    "test_univnewlines",
];
/// Those that take longer.
const PYTHON_LONG: &[&str] = &[
    "test_io",
    "test_os",
    "test_tempfile",
    "test_shutil",
    "test_pathlib",
    "test_tarfile",
    "test_zipfile",
    "test_sqlite3",
    "test_mailbox",
    "test_largefile",
    "test_subprocess",
    "test_dbm",
    "test_dbm_gnu",
    "test_dbm_ndbm",
    "test_bz2",
    "test_lzma",
    "test_zipapp",
    "test_posixpath",
    "test_signal",
    "test_fork1",
    "test_popen",
    "test_pty",
    "test_eintr",
    "test_logging",
];

/// Every test by name, with how it ended.
const RESULTS: &str = "
import sys, xml.etree.ElementTree
for case in xml.etree.ElementTree.parse(sys.argv[1]).iter('testcase'):
    ends = [child.tag for child in case if child.tag in ('error', 'failure', 'skipped')]
    print(case.get('name'), ends[0] if ends else case.get('result') or 'passed', sep='\\t')
";

fn python_results(junit: &Path, run: &Output) -> BTreeMap<String, String> {
    assert!(junit.exists(), "the suite left no results\n{}", run.told());
    let told = Cmd::new("python3").args(["-c", RESULTS, text(junit)]).ok().stdout;
    let rows = told.lines().filter_map(|line| line.split_once('\t'));
    rows.map(|(name, end)| (name.to_owned(), end.to_owned())).collect()
}

#[test]
fn cpythons_own_tests_of_files_end_as_natively() {
    need::debian_file("/usr/lib/python3.11/test/test_file.py", "libpython3.11-testsuite");
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let modules: Vec<&str> = match long() {
        true => PYTHON.iter().chain(PYTHON_LONG).copied().collect(),
        false => PYTHON.to_vec(),
    };
    let aside = disk::directory();
    let run = |side: &str, start: &dyn Fn(&Path, &[&str]) -> Output| {
        let dir = fresh(&disk, side);
        let junit = aside.path().join(side);
        let tempdir = format!("--tempdir={}", dir.display());
        let results = format!("--junit-xml={}", junit.display());
        let mut program = vec!["python3", "-m", "test", "-u", "largefile", &tempdir, &results];
        program.extend(&modules);
        let output = start(&dir, &program);
        (python_results(&junit, &output), output)
    };
    let (expected, natively) = run("native", &|dir, program| native(dir, program));
    let mut summary = Value::Null;
    let summary_of = std::cell::RefCell::new(&mut summary);
    let (found, output) = run("held", &|dir, program| {
        let (output, told) = held(&pool, dir, program);
        **summary_of.borrow_mut() = told;
        output
    });
    assert!(expected.len() > 500, "only {} tests ran natively\n{}", expected.len(), natively.told());
    let differing: Vec<String> = expected
        .iter()
        .filter(|(name, end)| found.get(*name) != Some(end))
        .map(|(name, end)| format!("{name}: natively {end}, here {:?}", found.get(name)))
        .collect();
    assert!(differing.is_empty() && found.len() == expected.len(), "{differing:#?}\n{}", output.told());
    assert_eq!(output.code(), natively.code(), "{}", output.told());
    must_absorb(&summary, 2000);
    println!("{} tests of {} modules", found.len(), modules.len());
}

/// stress-ng's stressors of files, all at once, each checking what it reads.
const STRESSORS: &[(&str, u32)] = &[
    ("access", 200),
    ("chdir", 200),
    ("chmod", 100),
    ("copy-file", 30),
    ("dentry", 3000),
    ("dir", 300),
    ("dup", 200),
    ("fallocate", 20),
    ("fcntl", 300),
    ("fiemap", 300),
    ("filename", 200),
    ("flock", 300),
    ("fpunch", 2),
    ("fstat", 500),
    ("getdent", 300),
    ("hdd", 3000),
    ("iomix", 500),
    ("link", 4),
    ("lockf", 300),
    ("locka", 300),
    ("lockofd", 300),
    ("open", 500),
    ("readahead", 300),
    ("rename", 500),
    ("revio", 1000),
    ("seek", 3000),
    ("sendfile", 100),
    ("symlink", 1),
    ("sync-file", 50),
    ("touch", 200),
    ("utime", 300),
    ("xattr", 100),
];

fn stress(dir: &Path, seconds: u32) -> Vec<String> {
    let mut program: Vec<String> =
        ["stress-ng", "--verify", "--metrics-brief", "--temp-path"].map(str::to_owned).to_vec();
    program.push(text(dir).to_owned());
    program.extend(["--timeout".to_owned(), format!("{seconds}s")]);
    program
        .extend(["--hdd-bytes", "8m", "--fallocate-bytes", "8m", "--iomix-bytes", "8m"].map(str::to_owned));
    program.extend(["--seek-size", "8m", "--revio-bytes", "8m"].map(str::to_owned));
    program.extend(["--readahead-bytes", "8m", "--sync-file-bytes", "8m"].map(str::to_owned));
    program.extend(["--sendfile-size", "1m"].map(str::to_owned));
    for (name, times) in STRESSORS {
        program.extend([format!("--{name}"), "1".to_owned()]);
        if !long() {
            program.extend([format!("--{name}-ops"), times.to_string()]);
        }
    }
    program
}

/// The stressors that got something done, by name; fails the test where one complains.
fn stressors_that_ran(output: &Output) -> BTreeSet<String> {
    output.ok();
    let told: Vec<&str> = output.stdout.lines().chain(output.stderr.lines()).collect();
    let complaints: Vec<_> =
        told.iter().filter(|line| line.contains("fail:") || line.contains("error:")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}\n{}", output.told());
    let counts = told.iter().filter_map(|line| {
        let mut words = line.split_once("] ")?.1.split_whitespace();
        let (name, count) = (words.next()?, words.next()?.parse::<u64>().ok()?);
        (count > 0).then(|| name.to_owned())
    });
    let names: BTreeSet<&str> = STRESSORS.iter().map(|(name, _)| *name).collect();
    counts.filter(|name| names.contains(name.as_str())).collect()
}

#[test]
fn stress_ngs_file_stressors_find_nothing_wrong() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let seconds = if long() { 120 } else { 12 };
    let end = |side: &str, start: &dyn Fn(&Path, &[&str]) -> Output| {
        let dir = fresh(&disk, side);
        let program = stress(&dir, seconds);
        let output = start(&dir, &program.iter().map(String::as_str).collect::<Vec<_>>());
        (stressors_that_ran(&output), output)
    };
    let (expected, natively) = end("native", &|dir, program| native(dir, program));
    let mut summary = Value::Null;
    let summary_of = std::cell::RefCell::new(&mut summary);
    let (found, output) = end("held", &|dir, program| {
        let (output, told) = held(&pool, dir, program);
        **summary_of.borrow_mut() = told;
        output
    });
    assert_eq!(found, expected, "{}\n{}", natively.told(), output.told());
    assert!(found.len() + 3 > STRESSORS.len(), "{found:?}\n{}", output.told());
    // Other stressors change names all the time, and with durability = write each record waits
    // until the journal has them.
    must_absorb(&summary, 300);
}

/// A crate with a library, a program, a build script and tests of its own; no dependencies.
fn plant_crate(dir: &Path) {
    let file = |name: &str, contents: &str| {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().expect("below")).expect("directory");
        std::fs::write(path, contents).expect("file");
    };
    file(
        "Cargo.toml",
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\nbuild = \"build.rs\"\n[workspace]\n",
    );
    file(
        "build.rs",
        "fn main() {\n    let out = std::env::var(\"OUT_DIR\").unwrap();\n    std::fs::write(format!(\"{out}/made.rs\"), \
         \"pub const MADE: u32 = 42;\\n\").unwrap();\n    println!(\"cargo:rerun-if-changed=build.rs\");\n}\n",
    );
    let mut library = String::from("include!(concat!(env!(\"OUT_DIR\"), \"/made.rs\"));\n");
    for module in 0..20 {
        library += &format!("pub mod part_{module};\n");
        file(
            &format!("src/part_{module}.rs"),
            &format!(
                "use std::collections::BTreeMap;\npub fn count(words: &[String]) -> BTreeMap<String, usize> {{\n    \
                 let mut counts = BTreeMap::new();\n    for word in words {{\n        *counts.entry(format!(\"{{word}}-\
                 {module}\")).or_insert(0) += {module};\n    }}\n    counts\n}}\n#[test]\nfn counts() {{\n    \
                 assert_eq!(count(&[\"a\".to_string()]).len(), 1);\n}}\n"
            ),
        );
    }
    file("src/lib.rs", &library);
    file(
        "src/main.rs",
        "fn main() {\n    let words: Vec<String> = std::env::args().collect();\n    let sum: usize = \
         small::part_7::count(&words).values().sum();\n    println!(\"{} {}\", small::MADE, sum);\n}\n",
    );
}

fn cargo(dir: &Path, args: &[&str]) -> Vec<String> {
    // The compiler beside it, without rustup in between.
    let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
    let mut line = vec!["env".to_owned(), format!("RUSTC={}", rustc.display())];
    line.push(format!("CARGO_HOME={}", dir.join("home").display()));
    line.push("CARGO_INCREMENTAL=1".to_owned());
    line.push(env!("CARGO").to_owned());
    line.extend(args.iter().map(|arg| (*arg).to_owned()));
    line.extend(["--offline", "--quiet"].map(str::to_owned));
    line
}

#[test]
fn a_crate_is_built_to_the_same_bytes() {
    need::tool("gcc");
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let dir = fresh(&disk, "crate");
    plant_crate(&dir);
    let binary = dir.join("target/debug/small");
    let build = cargo(&dir, &["build"]);
    let build: Vec<&str> = build.iter().map(String::as_str).collect();
    native(&dir, &build).ok();
    let expected = std::fs::read(&binary).expect("built natively");
    std::fs::remove_dir_all(dir.join("target")).expect("cleared");

    let (output, summary) = held(&pool, &dir, &build);
    output.ok();
    must_absorb(&summary, 200);
    assert!(std::fs::read(&binary).expect("built") == expected, "another program came out");

    // What it left is what it needs to go on: nothing is built again, and a change of one file is.
    let before = std::fs::metadata(&binary).and_then(|meta| meta.modified()).expect("built");
    held(&pool, &dir, &build).0.ok();
    assert_eq!(std::fs::metadata(&binary).and_then(|meta| meta.modified()).expect("built"), before);
    let main = dir.join("src/main.rs");
    let changed = std::fs::read_to_string(&main).expect("source").replace("{} {}", "changed {} {}");
    std::fs::write(&main, changed).expect("source");
    held(&pool, &dir, &build).0.ok();
    assert_eq!(Cmd::new(&binary).ok().stdout, "changed 42 7\n");
    let test = cargo(&dir, &["test", "--lib"]);
    let (output, summary) = held(&pool, &dir, &test.iter().map(String::as_str).collect::<Vec<_>>());
    output.ok();
    assert!(output.stdout.contains("20 passed"), "{}", output.told());
    must_absorb(&summary, 100);
}

#[test]
fn db_bench_with_several_threads_reads_what_it_wrote() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let num: u32 = if long() { 40_000 } else { 3_000 };
    let dir = fresh(&disk, "db");
    let options = [
        format!("--db={}", dir.join("rocks").display()),
        format!("--num={num}"),
        "--threads=4".into(),
        "--sync=1".into(),
        "--value_size=400".into(),
        // Small, so that tables are flushed and compacted in the background meanwhile.
        "--write_buffer_size=262144".into(),
        "--target_file_size_base=262144".into(),
        "--compression_type=none".into(),
        "--verify_checksum=1".into(),
    ];
    let bench = |benchmarks: &str, existing: bool| {
        let mut line = vec!["db_bench".to_owned(), format!("--benchmarks={benchmarks}")];
        line.extend(options.iter().cloned());
        line.push(format!("--use_existing_db={}", u8::from(existing)));
        line
    };
    let line = bench("fillrandom,overwrite,readwhilewriting,updaterandom,compact,verifychecksum", false);
    let (output, summary) = held(&pool, &dir, &line.iter().map(String::as_str).collect::<Vec<_>>());
    output.ok();
    assert!(output.stdout.contains("updaterandom"), "{}", output.told());
    must_absorb(&summary, u64::from(num));
    assert!(report::number(&summary, "syncs_absorbed") > 0, "{summary:#}");

    let checked =
        Cmd::new("ldb").arg(format!("--db={}", dir.join("rocks").display())).arg("checkconsistency").ok();
    assert!(checked.stdout.contains("OK"), "{}", checked.told());
    let line = bench("verifychecksum,readseq", true);
    let output = native(&dir, &line.iter().map(String::as_str).collect::<Vec<_>>());
    output.ok();
    assert!(!output.stderr.to_lowercase().contains("corrupt"), "{}", output.told());
}

/// Everything of PostgreSQL under Holdfast, the making of the cluster too, and the checksums of its
/// pages judged at the end.
#[test]
fn postgres_is_made_loaded_and_checked_with_checksums() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::of_user("postgres", "+sys_admin"));
    let dir = fresh(&disk, "pg");
    disk::give_to(&dir, "postgres");
    let data = dir.join("data");
    let run = |program: &[&str]| {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        disk::give_to(file.path(), "postgres");
        let summary = format!("--summary={}", file.path().display());
        let cmd = pool.run(&[summary.as_str(), "--"]).args(program).dir(&dir).limit(LIMIT);
        cmd.ok();
        report::parse(&std::fs::read_to_string(file.path()).expect("summary"))
    };
    let initdb = need::tool("initdb");
    let summary = run(&[text(&initdb), "-k", "-A", "trust", "-D", text(&data)]);
    must_absorb(&summary, 2000);
    // The whole life of a server in one run: started, loaded with several clients, stopped.
    let scale = if long() { "10" } else { "1" };
    let seconds = if long() { "60" } else { "4" };
    let script = "
set -e
pg_ctl -D \"$1\" -o \"-k $2 -c listen_addresses= -c max_wal_size=64MB\" -w -l \"$2/log\" start >/dev/null
trap 'pg_ctl -D \"$1\" -m fast -w stop >/dev/null' EXIT
pgbench -h \"$2\" -i -q -s \"$3\" postgres
pgbench -h \"$2\" -n -c 4 -j 2 -T \"$4\" postgres
psql -h \"$2\" -Xq -c CHECKPOINT -c 'VACUUM FULL pgbench_accounts' -c 'CREATE EXTENSION amcheck' postgres
pg_amcheck -h \"$2\" -d postgres
";
    let summary = run(&["/bin/sh", "-c", script, "sh", text(&data), text(&dir), scale, seconds]);
    must_absorb(&summary, 500);
    let checked = Cmd::new("pg_checksums").args(["--check", "-D", text(&data)]).user("postgres", "").ok();
    assert!(checked.stdout.contains("Bad checksums:  0"), "{}", checked.told());
}

/// InnoDB makes a table longer after some hundred transactions. Its log was left to the kernel for
/// two thirds of the others then.
#[test]
fn the_log_of_mariadb_without_native_aio_is_absorbed() {
    let (disk, server) = (Disk::new(Kind::Ext4), MariaDb::new());
    let (user, capabilities) = server.user().expect("a user");
    let pool = Pool::new().logs_from_sync().given_to(user, capabilities);
    let (aside, memory) = (disk::directory(), disk::directory());
    let site = Site {
        dir: fresh(&disk, "mariadb"),
        aside: aside.path().to_owned(),
        memory: memory.path().to_owned(),
        over: Arc::default(),
    };
    for directory in [&site.dir, &site.aside] {
        disk::give_to(directory, user);
    }
    server.prepare(&site);
    let options = server.options(&site);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut run = pool.run(&options).arg("--").args(server.program(&site)).dir(&site.aside).spawn();
    server.await_answer(&site);
    let syncs = || {
        let status = pool.status();
        [report::number(&status, "syncs_absorbed"), report::number(&status, "syncs_real")]
    };
    let before = syncs();
    server.insert(&site, 1000);
    let [absorbed, real] = [0, 1].map(|which| syncs()[which] - before[which]);
    Cmd::new("kill").arg(run.id().to_string()).ok();
    assert!(run.wait().expect("wait").success(), "the server ends when it is told to");
    assert!(absorbed >= 900 && real <= 100, "{absorbed} syncs absorbed, {real} were the kernel's");
}
