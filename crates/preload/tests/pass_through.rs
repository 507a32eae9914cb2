//! With no keeper in reach, every program must behave exactly as it does without the library.
//!
//! Each C program prints what it sees of the world; it is run with and without the library and both
//! transcripts must be the same. The library's entries are patched in these runs, only the keeper
//! is missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The library. Cargo does not build it for tests by itself, as nothing can link against it. It is
/// built among all libraries, and beside a test: another selection has other features, and then the
/// half of what it needs is built a second time.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--workspace", "--lib", "--test", "pass_through"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let output = build.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(output.status.success(), "cargo build:\n{}", String::from_utf8_lossy(&output.stderr));
        // <target>/<profile>/deps/<this test>
        let library = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("libholdfast.so");
        assert!(library.exists(), "{} was not built", library.display());
        library
    })
}

fn compile(name: &str, into: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
    let program = into.join(name);
    let built = Command::new("cc")
        .args(["-O1", "-w", "-D_FORTIFY_SOURCE=2", "-pthread", "-o"])
        .args([&program, &source])
        .args(["-ldl", "-lutil"])
        .output()
        .expect("a C compiler (cc) is installed");
    assert!(built.status.success(), "cc {name}.c:\n{}", String::from_utf8_lossy(&built.stderr));
    program
}

fn run(program: &Path, arguments: &[&str], preload: bool) -> Output {
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.args(arguments).current_dir(place.path()).env_remove("LD_PRELOAD").env_remove("HOLDFAST_SOCKET");
    if preload {
        command.env("LD_PRELOAD", library()).env("HOLDFAST_SOCKET", "/dev/null/out-of-reach");
    }
    command.output().unwrap()
}

/// What a program printed to standard error, without the library's own line.
fn complaints(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(|line| !line.starts_with("holdfast: the keeper at "))
        .collect()
}

fn assert_same(program: &Path, arguments: &[&str]) {
    let native = run(program, arguments, false);
    let hooked = run(program, arguments, true);
    let shown = program.display();
    assert_eq!(hooked.status, native.status, "{shown}: {}", String::from_utf8_lossy(&hooked.stderr));
    let (native_text, hooked_text) =
        (String::from_utf8_lossy(&native.stdout), String::from_utf8_lossy(&hooked.stdout));
    for (native_line, hooked_line) in native_text.lines().zip(hooked_text.lines()) {
        assert_eq!(hooked_line, native_line, "{shown} sees something else with the library");
    }
    assert_eq!(hooked_text.len(), native_text.len(), "{shown} prints more or less with the library");
    assert_eq!(complaints(&hooked), complaints(&native), "{shown} complains");
    assert!(
        String::from_utf8_lossy(&hooked.stderr)
            .contains("holdfast: the keeper at /dev/null/out-of-reach is out of reach"),
        "{shown}: the library says that it reached no keeper"
    );
}

fn same_with_and_without(name: &str) {
    let place = tempfile::tempdir().unwrap();
    assert_same(&compile(name, place.path()), &[]);
}

#[test]
fn descriptors_offsets_sizes_names_and_errors() {
    same_with_and_without("files");
}

#[test]
fn streams_and_all_their_writes_are_seen() {
    same_with_and_without("stdio");
}

#[test]
fn children_of_every_kind() {
    same_with_and_without("children");
}

#[test]
fn descriptors_sent_away_and_asynchronous_interfaces() {
    same_with_and_without("passing");
}

#[test]
fn threads_signals_and_cancellation() {
    same_with_and_without("threads");
}

#[test]
fn a_long_walk_through_all_calls() {
    let place = tempfile::tempdir().unwrap();
    let program = compile("random", place.path());
    for seed in ["1", "2", "3"] {
        assert_same(&program, &[seed]);
    }
}

#[test]
fn real_programs() {
    let scripts = [
        (
            "sqlite3",
            "sqlite3 a.db 'create table t(x); insert into t values(1),(2); select sum(x) from t; pragma integrity_check'",
        ),
        (
            "python3",
            "python3 -c 'import os,subprocess,tempfile\nf=open(\"f\",\"w+\"); f.write(\"x\"*9999); f.flush(); os.fsync(f.fileno())\n\
             print(subprocess.run([\"cat\",\"f\"],capture_output=True).stdout==b\"x\"*9999, os.popen(\"echo p\").read())'",
        ),
        (
            "git",
            "git init -q . && echo a > a && git add a && git -c user.name=n -c user.email=e commit -qm m && git fsck && git status -s",
        ),
        ("cc", "echo 'int main(void){return 3;}' > m.c; cc -o m m.c; ./m; echo $?"),
        (
            "tar",
            "mkdir d; echo 1 > d/1; ln d/1 d/2; tar cf t.tar d; mkdir x; tar xf t.tar -C x; diff -r d x/d; ls -R x",
        ),
    ];
    for (program, script) in scripts {
        let present = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
        assert!(present.status.success(), "{program} is not installed");
        assert_same(Path::new("/bin/sh"), &["-c", script]);
    }
}

#[test]
fn refused_patches_are_told_and_change_nothing() {
    let place = tempfile::tempdir().unwrap();
    let wrapper = compile("no_exec_gain", place.path());
    let program = compile("stdio", place.path());
    let seen = |how: &str| {
        let output = run(&wrapper, &[how, program.to_str().unwrap()], true);
        assert!(output.status.success(), "{}", complaints(&output));
        let supported = !complaints(&output).contains("not supported");
        (String::from_utf8_lossy(&output.stdout).into_owned(), supported)
    };
    // Memory may not be made executable (the kernel refuses by itself from Linux 6.3 on): a patched
    // copy takes its place.
    for how in ["mdwe", "filter"] {
        let (said, _) = seen(how);
        assert!(said.starts_with("89 writes of 89 seen"), "{how}: {said}");
    }
    let (said, supported) = seen("strict");
    assert!(supported && said.starts_with("0 writes of 89 seen"), "{said}");
}

#[test]
fn nothing_happens_without_a_socket_in_the_environment() {
    let output = Command::new("/bin/sh")
        .args(["-c", "echo out; echo err >&2"])
        .env("LD_PRELOAD", library())
        .env_remove("HOLDFAST_SOCKET")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "err\n");
}

#[test]
fn no_descriptor_stays_behind() {
    let list =
        "for fd in /proc/$$/fd/*; do echo ${fd##*/}; done; ls /proc/self/fd; ls /proc/self/task | wc -l";
    assert_same(Path::new("/bin/sh"), &["-c", list]);
}

#[test]
fn shell_redirections() {
    let script = "echo a > f; echo b >> f; cat < f; (cat f; echo c) > g; cat g; exec 3> h; echo d >&3; exec 3>&-; \
        cat h; cp f i; mv i j; rm f; ls; set -C; echo x > g; echo $?";
    for shell in ["/bin/sh", "/bin/bash"] {
        assert_same(Path::new(shell), &["-c", script]);
    }
}
