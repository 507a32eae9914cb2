//! Where a report goes: a file that is there as a whole or not at all, or standard output, a pipe
//! or a device, which are written straight through.
//!
//! It must never put a regular file in the place of anything else.

use std::fs::{File, Metadata, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use tempfile::NamedTempFile;

use crate::interrupt::Interrupt;

/// How many symbolic links lead to a file at most, as the kernel has it.
const LINKS_MAX: usize = 40;
/// How often is looked whether somebody reads a FIFO.
const LOOK: Duration = Duration::from_millis(20);

/// Where a text goes.
pub struct Target {
    /// As it was named.
    named: PathBuf,
    sink: Sink,
}

enum Sink {
    StandardOutput,
    /// What is no regular file, and the device and number by which it is known.
    Through(File, (u64, u64)),
    /// A file that takes its place when it is complete.
    Whole(PathBuf, NamedTempFile),
}

impl Target {
    /// `-` is standard output, and so is any name of what that is. A FIFO is waited for until
    /// somebody reads it.
    pub fn new(named: &Path, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", named.display());
        let sink = match std::fs::metadata(named) {
            _ if named == Path::new("-") => Sink::StandardOutput,
            Ok(there) if there.is_dir() => bail!("{} is a directory: name a file", named.display()),
            Ok(there) if is_standard_output(&there) => Sink::StandardOutput,
            Ok(there) => match place_of(named, &there) {
                Some(place) => whole(place, there.permissions().mode() & 0o777).with_context(cannot)?,
                None => Sink::Through(through(named, &there, interrupt).with_context(cannot)?, id(&there)),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {
                whole(followed(named).with_context(cannot)?, 0o644).with_context(cannot)?
            }
            Err(error) => return Err(error).with_context(cannot),
        };
        Ok(Self { named: named.to_owned(), sink })
    }

    /// Whether both would end in the same place.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.sink, &other.sink) {
            (Sink::StandardOutput, Sink::StandardOutput) => true,
            (Sink::Through(_, one), Sink::Through(_, two)) => one == two,
            (Sink::Whole(one, _), Sink::Whole(two, _)) => one == two,
            _ => false,
        }
    }

    /// Whether nothing else may be printed to standard output.
    pub fn is_standard_output(&self) -> bool {
        matches!(self.sink, Sink::StandardOutput)
    }

    /// Writes all of it.
    pub fn write(self, text: &str) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.named.display());
        match self.sink {
            Sink::StandardOutput => {
                let mut output = std::io::stdout().lock();
                output.write_all(text.as_bytes()).and_then(|()| output.flush()).with_context(cannot)
            }
            Sink::Through(mut file, _) => file.write_all(text.as_bytes()).with_context(cannot),
            Sink::Whole(path, mut file) => {
                file.write_all(text.as_bytes()).with_context(cannot)?;
                file.persist(path).with_context(cannot)?;
                Ok(())
            }
        }
    }
}

fn id(there: &Metadata) -> (u64, u64) {
    (there.dev(), there.ino())
}

/// What goes to /dev/null has no need of standard output.
fn is_standard_output(there: &Metadata) -> bool {
    let is_null = std::fs::metadata("/dev/null").is_ok_and(|null| id(&null) == id(there));
    let output = rustix::fs::fstat(std::io::stdout());
    !is_null && output.is_ok_and(|output| (output.st_dev, output.st_ino) == id(there))
}

/// The name of a regular file itself; none of anything else, and of a file that has lost its name.
fn place_of(named: &Path, there: &Metadata) -> Option<PathBuf> {
    let place = named.canonicalize().ok().filter(|_| there.is_file())?;
    std::fs::symlink_metadata(&place).is_ok_and(|found| id(&found) == id(there)).then_some(place)
}

/// Where the file is made that a name stands for which leads nowhere yet.
fn followed(named: &Path) -> anyhow::Result<PathBuf> {
    let mut path = std::path::absolute(named)?;
    for _ in 0..LINKS_MAX {
        let dir = path.parent().context("it is no file")?.canonicalize()?;
        match std::fs::read_link(&path) {
            Ok(next) => path = dir.join(next),
            Err(_) => return Ok(dir.join(path.file_name().context("it is no file")?)),
        }
    }
    bail!("too many symbolic links")
}

fn whole(path: PathBuf, mode: u32) -> anyhow::Result<Sink> {
    let dir = path.parent().context("it is no file")?;
    let file = tempfile::Builder::new()
        .prefix(".holdfast-bench-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(dir)?;
    Ok(Sink::Whole(path, file))
}

/// Opens what is there. An open that waits in the kernel could not be interrupted.
fn through(path: &Path, there: &Metadata, interrupt: &Interrupt) -> anyhow::Result<File> {
    loop {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        match File::options().write(true).custom_flags(flags).open(path) {
            Ok(file) => {
                fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
                return Ok(file);
            }
            Err(error)
                if there.file_type().is_fifo()
                    && error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) =>
            {
                interrupt.check()?;
                std::thread::sleep(LOOK);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn target(path: &Path) -> anyhow::Result<Target> {
        Target::new(path, &Interrupt::none())
    }

    fn written(path: &Path, text: &str) {
        target(path).expect("a target").write(text).expect("written");
    }

    #[test]
    fn a_file_is_there_as_a_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("report.json");
        let count = || std::fs::read_dir(dir.path()).expect("a directory").count();
        drop(target(&path).expect("a target"));
        assert_eq!(count(), 0);
        written(&path, "{}");
        assert_eq!((count(), std::fs::read_to_string(&path).expect("text").as_str()), (1, "{}"));
        assert!(target(dir.path()).is_err());
        assert!(target(Path::new("/proc/self/none")).is_err());
    }

    #[test]
    fn links_stay_and_lead_to_the_report() {
        let (dir, other) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        let (link, file) = (dir.path().join("link"), other.path().join("file"));
        symlink(&file, dir.path().join("second")).expect("a link");
        symlink("second", &link).expect("a link");
        for text in ["new", "replaced"] {
            written(&link, text);
            assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink());
            assert!(std::fs::symlink_metadata(&file).expect("there").is_file());
            assert_eq!(std::fs::read_to_string(&file).expect("text"), text);
        }
        symlink("round", dir.path().join("round")).expect("a link");
        assert!(target(&dir.path().join("round")).is_err());
    }

    #[test]
    fn what_is_no_regular_file_is_written_through() {
        let dir = tempfile::tempdir().expect("a directory");
        let (fifo, null) = (dir.path().join("fifo"), dir.path().join("null"));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
        symlink("/dev/null", &null).expect("a link");
        let from = fifo.clone();
        let reader = std::thread::spawn(move || std::fs::read_to_string(from));
        written(&fifo, "through");
        assert_eq!(reader.join().expect("it ends").expect("text"), "through");
        assert!(std::fs::symlink_metadata(&fifo).expect("there").file_type().is_fifo());
        written(&null, "nothing");
        assert!(std::fs::symlink_metadata(&null).expect("there").is_symlink());
        assert!(std::fs::metadata("/dev/null").expect("there").file_type().is_char_device());
    }

    #[test]
    fn one_place_has_many_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        symlink("file", &link).expect("a link");
        let is_same =
            |one: &Path, two: &Path| target(one).expect("a target").is_same(&target(two).expect("a target"));
        for _ in 0..2 {
            assert!(is_same(&file, &link) && is_same(&file, &dir.path().join("./file")));
            assert!(!is_same(&file, &dir.path().join("other")));
            // It is the same whether it is there or not.
            written(&file, "there");
        }
        assert!(is_same(Path::new("-"), Path::new("-")) && !is_same(Path::new("-"), &file));
        assert!(is_same(Path::new("/dev/null"), Path::new("/dev/../dev/null")));
    }
}
