//! The whole surface of libc: every function that glibc or musl exports has a hook, or stands in
//! `symbols/others.txt` with the reason why it needs none; every hook is reached under all its
//! names, and is called by some test.
//!
//! `docs/symbols.md` is made of these lists. `HOLDFAST_BLESS=1 cargo test -p holdfast-preload
//! --test symbols` writes it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const MUSL: &str = "/usr/lib/x86_64-linux-musl/libc.so";

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn output(command: &mut Command, package: &str) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{error}: apt-get install -y {package}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The functions that a library exports, with their addresses.
fn functions(library: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in output(Command::new("nm").args(["-D", "--defined-only"]).arg(library), "binutils").lines() {
        if let [address, "T" | "W" | "i", name] = line.split(' ').collect::<Vec<_>>()[..] {
            let name = name.split('@').next().unwrap().to_owned();
            found.entry(name).or_default().insert(address.to_owned());
        }
    }
    assert!(found.len() > 100, "{}: {} functions", library.display(), found.len());
    found
}

fn glibc() -> PathBuf {
    PathBuf::from(output(Command::new("cc").arg("-print-file-name=libc.so.6"), "gcc").trim())
}

fn musl() -> &'static Path {
    assert!(Path::new(MUSL).exists(), "musl is needed: apt-get install -y musl-tools");
    Path::new(MUSL)
}

/// All names of one hook, and what it does.
struct Hook {
    names: Vec<String>,
    does: String,
}

fn hooks() -> Vec<Hook> {
    let lines = text(here("tests/symbols/hooks.txt"));
    let lines = lines.lines().filter(|line| !line.starts_with('#'));
    let hook = |line: &str| {
        let (names, does) = line.split_once(": ").expect("names: what is done");
        Hook { names: names.split(' ').map(str::to_owned).collect(), does: does.to_owned() }
    };
    lines.map(hook).collect()
}

/// A reason, and the functions that need no hook for it.
struct Others {
    heading: String,
    reason: String,
    names: Vec<String>,
}

fn others() -> Vec<Others> {
    let mut all: Vec<Others> = Vec::new();
    let mut heading = String::new();
    for line in text(here("tests/symbols/others.txt")).lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("== ") {
            heading = name.to_owned();
        } else if let Some(reason) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let reason = reason.to_owned();
            all.push(Others { heading: heading.clone(), reason, names: Vec::new() });
        } else if let Some(others) = all.last_mut() {
            others.names.extend(line.split_whitespace().map(str::to_owned));
        }
    }
    all
}

/// The library, built as the other tests build it.
fn library() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "holdfast-preload"]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    output(build.current_dir(here("")), "cargo");
    // <target>/<profile>/deps/<this test>
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("libholdfast.so")
}

#[test]
fn every_function_of_libc_has_a_hook_or_a_reason() {
    let hooks: BTreeSet<String> = hooks().into_iter().flat_map(|hook| hook.names).collect();
    let mut listed = hooks.clone();
    for name in others().into_iter().flat_map(|others| others.names) {
        assert!(listed.insert(name.clone()), "{name} is listed twice");
    }
    for libc in [glibc(), musl().to_owned()] {
        let missing: Vec<String> =
            functions(&libc).into_keys().filter(|name| !listed.contains(name)).collect();
        assert!(
            missing.is_empty(),
            "{}: give a hook to these functions, or a reason in tests/symbols/others.txt: {}",
            libc.display(),
            missing.join(" ")
        );
    }
}

#[test]
fn the_library_exports_what_the_table_says() {
    let exported: BTreeSet<String> = functions(&library()).into_keys().collect();
    let (listed, libc) = (hooks(), functions(&glibc()));
    let names: BTreeSet<String> = listed.iter().flat_map(|hook| hook.names.clone()).collect();
    let unlisted: Vec<_> = exported.difference(&names).collect();
    assert!(unlisted.is_empty(), "not in tests/symbols/hooks.txt: {unlisted:?}");
    for hook in &listed {
        let addresses: BTreeSet<_> = hook
            .names
            .iter()
            .filter(|name| exported.contains(*name))
            .filter_map(|name| libc.get(name))
            .flatten()
            .collect();
        for name in hook.names.iter().filter(|name| !exported.contains(*name)) {
            // Another name of code that is patched.
            let same = libc.get(name).is_some_and(|own| own.iter().all(|at| addresses.contains(at)));
            assert!(same, "{name} is neither exported nor at the address of a function that is");
        }
    }
}

/// What calls a hook: themes of the conformance checks, and programs of this crate's tests.
fn tests_of(hook: &Hook, sources: &BTreeMap<String, String>) -> Vec<String> {
    let calls = |source: &str, name: &str| {
        source.match_indices(name).any(|(at, _)| {
            let before = source[..at].chars().next_back().unwrap_or(' ');
            let after = source[at + name.len()..].chars().next().unwrap_or(' ');
            let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            !is_name(before) && after == '('
                || source[..at].ends_with("SYS_") && !is_name(after)
                || source[..at].ends_with("ROW(") && after == ','
                || before == '"' && after == '"'
        })
    };
    let found = sources.iter().filter(|(_, source)| hook.names.iter().any(|name| calls(source, name)));
    found.map(|(name, _)| name.clone()).collect()
}

/// Programs that call them all, named where no other test does.
fn programs_of_all() -> BTreeMap<String, String> {
    BTreeMap::from([("filters.c".to_owned(), text(here("../e2e/programs/filters.c")))])
}

fn sources() -> BTreeMap<String, String> {
    let mut sources = BTreeMap::new();
    for (directory, suffix) in
        [("../e2e/conformance", ""), ("../e2e/conformance/fuzz", ".c"), ("tests/programs", ".c")]
    {
        for entry in std::fs::read_dir(here(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|name| name == "c") {
                let name = path.file_stem().unwrap().to_str().unwrap();
                sources.insert(format!("{name}{suffix}"), text(&path));
            }
        }
    }
    sources
}

/// What stands above the table.
const HEAD: &str = "\
# Every function of libc

Made by `crates/preload/tests/symbols.rs` from the lists in `crates/preload/tests/symbols`, which it
compares with what glibc and musl export. Tests: themes of the conformance checks
(`crates/e2e/conformance`), or programs (`.c`) of other tests and the differential fuzzer; at most
three are named. With musl what libc writes by itself is left to the kernel
([interposition.md](interposition.md)).

## With a hook

| function | what is done | test |
| --- | --- | --- |
";

fn table() -> String {
    const TESTS_MAX: usize = 3;
    let mut page = String::from(HEAD);
    let sources = sources();
    for hook in hooks() {
        if hook.does.starts_with("our own") {
            continue;
        }
        let mut tests = tests_of(&hook, &sources);
        if tests.is_empty() {
            tests = tests_of(&hook, &programs_of_all());
        }
        assert!(!tests.is_empty(), "no test calls {}", hook.names[0]);
        let names = hook.names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ");
        let tests =
            tests.iter().take(TESTS_MAX).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ");
        writeln!(page, "| {names} | {} | {tests} |", hook.does).unwrap();
    }
    let mut heading = String::new();
    for group in others() {
        if group.heading != heading {
            heading.clone_from(&group.heading);
            write!(page, "\n## {heading}\n\n| function | why it needs no hook |\n| --- | --- |\n").unwrap();
        }
        let count = group.names.len();
        let names = match heading.starts_with("Neither") {
            true => format!("{count} functions, `{}` the first", group.names[0]),
            false => group.names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" "),
        };
        writeln!(page, "| {names} | {} |", group.reason).unwrap();
    }
    page
}

#[test]
fn the_table_is_current_and_every_hook_has_a_test() {
    let (path, table) = (here("../../docs/symbols.md"), table());
    if std::env::var_os("HOLDFAST_BLESS").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let command = "HOLDFAST_BLESS=1 cargo test -p holdfast-preload --test symbols";
    assert!(text(&path) == table, "docs/symbols.md is not current: {command}");
}
