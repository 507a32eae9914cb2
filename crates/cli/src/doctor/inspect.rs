//! Looks at one program: whether the library can be loaded, which of its calls would not be seen,
//! and, by running it once under a throw-away volatile pool, which of its files were bypassed and
//! why.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::Context;
use holdfast_keeper::status::Summary;
use serde::Serialize;

use crate::elf::{self, Kind, SideDoors};
use crate::{locate, program, report, words};

/// What was found out about a program.
#[derive(Serialize)]
pub(super) struct Inspection {
    program: PathBuf,
    /// Its C library is musl.
    musl: bool,
    /// Per file: ways around the hooks, in words.
    not_seen: BTreeMap<PathBuf, Vec<String>>,
    /// Files that import syscall(), which most use for harmless calls.
    generic_calls: Vec<PathBuf>,
    /// How the one run ended.
    ended: String,
    /// What the run's keeper counted; null if it did not get so far.
    summary: Option<Summary>,
}

/// Inspects the program and runs it once.
pub(super) fn inspect(line: &[OsString]) -> anyhow::Result<Inspection> {
    let name = line.first().context("no program is named")?;
    let path = program::resolve(name)?;
    let mut not_seen = BTreeMap::new();
    let mut generic_calls = Vec::new();
    for file in loaded_files(&path) {
        // What cannot be parsed cannot be judged; the run below still tells.
        let mut doors = elf::side_doors(&file).unwrap_or_default();
        if doors.imports.remove("syscall") {
            generic_calls.push(file.clone());
        }
        let doors = in_words(&doors);
        if !doors.is_empty() {
            not_seen.insert(file, doors);
        }
    }
    let (status, summary) = run_once(line)?;
    let musl = matches!(elf::kind(&path), Ok(Kind::Dynamic(loader)) if program::is_musl(&loader));
    Ok(Inspection { program: path, musl, not_seen, generic_calls, ended: status.to_string(), summary })
}

/// The program and the libraries its loader would load, except those whose own calls are hooked or
/// harmless.
fn loaded_files(path: &Path) -> Vec<PathBuf> {
    const HOOKED: [&str; 6] =
        ["libc.so", "ld-linux", "ld-musl", "libpthread.so", "libholdfast.so", "linux-vdso.so"];
    let Ok(Kind::Dynamic(loader)) = elf::kind(path) else { return Vec::new() };
    let listed = Command::new(loader).arg("--list").arg(path).env_remove("LD_PRELOAD").output();
    let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let libraries =
        text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let judged = libraries.filter(|library| {
        let name = library.rsplit('/').next().unwrap_or_default();
        !HOOKED.iter().any(|hooked| name.starts_with(hooked))
    });
    std::iter::once(path.to_path_buf()).chain(judged.map(PathBuf::from)).collect()
}

fn in_words(doors: &SideDoors) -> Vec<String> {
    let mut words = Vec::new();
    if doors.go {
        words.push("Go: its runtime calls the kernel itself where no hook can be led to, so none of its file calls are seen".to_string());
    }
    for import in &doors.imports {
        words.push(match import.as_str() {
            name if name.starts_with("io_uring") => format!("uses {name}: its files are bypassed"),
            name => format!("uses {name} (libaio): its files are bypassed"),
        });
    }
    if !doors.system_calls.is_empty() {
        let names: Vec<&str> = doors.system_calls.iter().copied().collect();
        words.push(format!("seems to call the kernel itself: {}", names.join(", ")));
    }
    words
}

fn name_of(file: &Path) -> String {
    words::name_of(Path::new(file.file_name().unwrap_or_default()))
}

/// Runs the program under a pool that is thrown away afterwards.
fn run_once(line: &[OsString]) -> anyhow::Result<(ExitStatus, Option<Summary>)> {
    let dir = tempfile::Builder::new()
        .prefix("holdfast-doctor-")
        .tempdir_in("/dev/shm")
        .context("cannot make a directory in /dev/shm")?;
    let target = dir.path().join("summary.json");
    let mut summary_option = OsString::from("--summary=");
    summary_option.push(&target);
    // The program's own output must not spoil ours.
    let messages =
        std::io::stderr().as_fd().try_clone_to_owned().context("cannot duplicate standard error")?;
    let status = Command::new(locate::executable()?)
        // Every write is asked about, synced or not.
        .args(["run", "--volatile", "--quiet", "--durability", "write", "--size", "64M", "--pool"])
        .arg(dir.path().join("pool"))
        .arg(summary_option)
        .arg("--")
        .args(line)
        .stdout(Stdio::from(messages))
        .status()
        .context("cannot run holdfast")?;
    let summary = std::fs::read(&target).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    Ok((status, summary))
}

impl Inspection {
    /// For people.
    pub(super) fn in_words(&self) -> String {
        let mut text = format!("{}\n  the library can be loaded\n", words::name_of(&self.program));
        if self.musl {
            text += "  its C library is musl: what the program calls is absorbed; files that musl writes by itself (streams of stdio, \
                     dprintf,\n  POSIX AIO) are bypassed, and no file is in state Behind while it runs\n";
        }
        if self.not_seen.is_empty() && self.generic_calls.is_empty() {
            text += "  no way around libc was found in it or in its libraries\n";
        }
        for (file, doors) in &self.not_seen {
            for door in doors {
                let _ = writeln!(text, "  {}: {door}", words::name_of(file));
            }
        }
        if !self.generic_calls.is_empty() {
            let names: Vec<String> = self.generic_calls.iter().map(|file| name_of(file)).collect();
            text += "  these import syscall(), mostly for what has nothing to do with files; file calls made that way are \
                     not seen:\n";
            let _ = writeln!(text, "    {}", names.join(" "));
        }
        let _ = writeln!(text, "  one run under a throw-away pool: {}", self.ended);
        match &self.summary {
            Some(summary) => text += &report::counters(summary),
            None => text += "  it left no summary: its messages above say why\n",
        }
        text
    }
}
