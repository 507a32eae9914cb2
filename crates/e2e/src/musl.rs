//! Building C programs with musl: the tests' own sources, and SQLite's as the crate
//! `libsqlite3-sys` ships them, which nothing else builds.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::cmd::Cmd;
use crate::{disk, need, report};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The kernel's headers alone: glibc's lie beside them.
fn kernel_headers(directory: &Path) -> PathBuf {
    let headers = directory.join("kernel-headers");
    std::fs::create_dir_all(&headers).expect("directory");
    for (name, place) in [
        ("linux", "/usr/include/linux"),
        ("asm-generic", "/usr/include/asm-generic"),
        ("asm", "/usr/include/x86_64-linux-gnu/asm"),
    ] {
        need::debian_file(place, "linux-libc-dev");
        if !headers.join(name).exists() {
            symlink(place, headers.join(name)).expect("link");
        }
    }
    headers
}

/// Compiles sources of the conformance checks, or others that are written for glibc, into a program
/// that is linked with musl.
pub fn compile(program: &Path, sources: impl IntoIterator<Item = impl AsRef<OsStr>>) {
    build(program, sources, &[]);
}

/// The same, linked statically.
pub fn compile_statically(program: &Path, sources: impl IntoIterator<Item = impl AsRef<OsStr>>) {
    build(program, sources, &["-static"]);
}

fn build(program: &Path, sources: impl IntoIterator<Item = impl AsRef<OsStr>>, options: &[&str]) {
    let headers = kernel_headers(program.parent().expect("a directory"));
    let shim = here("conformance/musl");
    Cmd::new(need::tool("musl-gcc"))
        .args(["-O1", "-w", "-pthread"])
        .args(options)
        .arg("-include")
        .arg(shim.join("musl.h"))
        .arg("-idirafter")
        .arg(headers)
        .arg("-o")
        .arg(program)
        .args(sources)
        .arg(shim.join("musl.c"))
        .ok();
}

/// SQLite's source, where Cargo keeps that of `libsqlite3-sys`.
fn sqlite_source() -> PathBuf {
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--format-version", "1", "--locked"]).current_dir(here(""));
    let output = metadata.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let packages = report::parse(&String::from_utf8_lossy(&output.stdout));
    let packages = packages["packages"].as_array().cloned().unwrap_or_default();
    let package = packages.iter().find(|package| package["name"] == "libsqlite3-sys");
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    Path::new(manifest.expect("libsqlite3-sys is a dependency")).with_file_name("sqlite3")
}

/// SQLite as an object that is linked with musl, statically or not. Suites share it: to compile it
/// takes longer than most of their tests.
fn sqlite_object(source: &Path) -> PathBuf {
    let source = source.join("sqlite3.c");
    let written = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    // Another version lies elsewhere, so its object has another name.
    let name = source.to_string_lossy().replace('/', "-");
    let object = std::env::temp_dir().join(format!("holdfast-e2e-musl{name}.o"));
    if written(&object) < written(&source) {
        // Several suites may compile it at once: each moves what it has made into place.
        let own = object.with_extension(std::process::id().to_string());
        let cc =
            Cmd::new(need::tool("musl-gcc")).args(["-O1", "-w", "-DSQLITE_OMIT_LOAD_EXTENSION", "-c", "-o"]);
        cc.arg(&own).arg(&source).limit(std::time::Duration::from_secs(240)).ok();
        std::fs::rename(&own, &object).expect("renamed");
    }
    object
}

/// The program of `programs/rows.c`, with SQLite, linked with musl, maybe statically.
pub fn rows(statically: bool) -> &'static Path {
    static BUILT: [OnceLock<(TempDir, PathBuf)>; 2] = [const { OnceLock::new() }; 2];
    let build = || {
        let (home, source) = (disk::directory(), sqlite_source());
        let program = home.path().join("rows");
        Cmd::new(need::tool("musl-gcc"))
            .args(["-O1", "-w"])
            .args(statically.then_some("-static"))
            .arg("-I")
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .arg(here("programs/rows.c"))
            .arg(sqlite_object(&source))
            .ok();
        (home, program)
    };
    &BUILT[usize::from(statically)].get_or_init(build).1
}
