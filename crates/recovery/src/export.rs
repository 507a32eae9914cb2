//! Writing out what the log holds for a file, for a person to look at. It changes neither pool nor
//! files.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use holdfast_log::Kind;
use holdfast_media::Nvm;
use serde::Serialize;

use super::entry::Entry;
use super::file::SlotFile;
use super::replay::replay;
use super::source::Source;
use super::words::shown_json;
use holdfast_disk::{DiskFile, OsFile};

#[derive(Serialize)]
struct RecordRow {
    seq: u64,
    kind: &'static str,
    offset: u64,
    length: u64,
    time_unix_s: u64,
    segment: u32,
    byte: u32,
}

#[derive(Serialize)]
struct Info<'a> {
    path: String,
    reason: &'a str,
    slot: u32,
    inode: Option<u64>,
    names: Vec<String>,
}

/// Makes `directory/<slot>-<name>/` with `data` (the records applied to an empty file),
/// `records.json` and `info.json`, for this user's eyes alone. A name that is taken is left alone:
/// whatever stands there may have been prepared by somebody. Durable when it returns: the records
/// may be discarded next.
pub(super) fn export(
    source: &Source<'_, impl Nvm>,
    directory: &Path,
    file: &SlotFile,
    entries: &[Entry],
    reason: &str,
) -> io::Result<()> {
    let shown = file.shown();
    let name = shown.rsplit('/').next().unwrap_or("file");
    let name: String = name.chars().filter(|char| !char.is_control()).take(100).collect();
    fs::create_dir_all(directory)?;
    let target = new_directory(directory, &format!("{}-{name}", file.slot))?;
    let data = OsFile::from(new_file(&target.join("data"))?);
    replay(&source.payloads(), entries, &data, &mut |_| {})?;
    data.sync()?;
    let rows: Vec<RecordRow> = entries.iter().map(row).collect();
    json(&target.join("records.json"), &rows)?;
    let info = Info {
        path: shown,
        reason,
        slot: file.slot.number(),
        inode: file.identity.as_ref().ok().map(|identity| identity.inode),
        names: file.hints.iter().map(|hint| String::from_utf8_lossy(&hint.path).into_owned()).collect(),
    };
    json(&target.join("info.json"), &info)?;
    File::open(&target)?.sync_all()?;
    File::open(directory)?.sync_all()
}

/// A directory under a name that was free: `name`, `name.2`, `name.3` and so on.
fn new_directory(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let names = (1..).map(|nth| if nth == 1 { name.to_owned() } else { format!("{name}.{nth}") });
    for name in names {
        let path = parent.join(name);
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path),
        }
    }
    unreachable!("there is always one more name")
}

fn new_file(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn row(entry: &Entry) -> RecordRow {
    let (kind, length) = match entry.kind {
        Kind::Write => ("write", u64::from(entry.bytes)),
        Kind::Truncate => ("truncate", 0),
        Kind::Punch => ("punch", entry.extent),
        Kind::Cancel => ("cancel", entry.extent),
    };
    RecordRow {
        seq: entry.seq.get(),
        kind,
        offset: entry.file_offset,
        length,
        time_unix_s: entry.unix_time_ns / 1_000_000_000,
        segment: entry.segment.number(),
        byte: entry.at(),
    }
}

fn json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut out = BufWriter::new(new_file(path)?);
    out.write_all(shown_json(&serde_json::to_string_pretty(value)?).as_bytes())?;
    out.write_all(b"\n")?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}
