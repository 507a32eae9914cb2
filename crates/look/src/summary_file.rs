//! Where `--summary` goes. It is opened before the program starts, so that what is wrong with it is
//! told in time, and with care: others can put links, files and pipes under names that somebody is
//! about to use. Nothing is written before the program has ended.

use std::fs::{File, Metadata};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use serde::Serialize;

use crate::report;

/// As many as the kernel follows.
const LINKS_MAX: usize = 40;
/// Everybody may put something there.
const OPEN_TO_ALL: u32 = 0o002;

/// Where a summary goes.
pub enum Target {
    /// To standard error, as text.
    StandardError,
    /// To a file, as JSON.
    File {
        /// As it was named.
        path: PathBuf,
        /// Open for writing.
        opened: File,
    },
}

impl Target {
    /// Opens what was named.
    pub fn open(named: &Path) -> anyhow::Result<Self> {
        if named == Path::new("-") {
            return Ok(Self::StandardError);
        }
        let open = || -> anyhow::Result<_> {
            let path = std::path::absolute(named)?;
            let opened = open(&path)?;
            // What opens and takes nothing, as /dev/full or /proc/version, refuses nothing at all,
            // too.
            rustix::io::write(&opened, &[])?;
            Ok((path, opened))
        };
        let (path, opened) = open().with_context(|| format!("cannot write --summary={}", named.display()))?;
        Ok(Self::File { path, opened })
    }

    /// Whether it is told to people, where the verdict would be told, too.
    pub fn is_standard_error(&self) -> bool {
        matches!(self, Self::StandardError)
    }

    /// Writes what is told: the one for people to standard error, the other to a file.
    pub fn write(self, to_people: impl FnOnce() -> String, told: &impl Serialize) -> anyhow::Result<()> {
        let Self::File { path, opened } = self else {
            report::say_lines(&to_people());
            return Ok(());
        };
        let told = report::json(told)?;
        let write = || -> anyhow::Result<()> {
            let is_file = opened.metadata()?.is_file();
            // The program may have removed the file that it had before.
            let mut file = if is_file { open(&path)? } else { opened };
            if is_file {
                file.set_len(0)?;
            }
            Ok(file.write_all(told.as_bytes())?)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    let path = without_links(path)?;
    let mut options = File::options();
    // A pipe that nobody reads would keep us for ever.
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if !is_magic(&path) {
        flags |= OFlags::NOFOLLOW;
    }
    options.append(true).create(true).custom_flags(flags.bits().cast_signed());
    let file = match options.open(&path) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {
            bail!("nobody reads from it: start who does first")
        }
        opened => opened?,
    };
    let meta = file.metadata()?;
    if (meta.is_file() || meta.file_type().is_fifo()) && !is_magic(&path) {
        refuse_prepared(&path, &meta)?;
    }
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// The same file by a name that is no link, unless the kernel alone can follow it. Only links are
/// followed that are ours or root's.
fn without_links(path: &Path) -> anyhow::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let meta = match std::fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_symlink() && !is_magic(&path) => meta,
            _ => return Ok(path),
        };
        if !is_trusted(meta.uid()) {
            bail!(
                "{} is a link of another user's (uid {}): name the file that you mean",
                path.display(),
                meta.uid()
            );
        }
        let to = std::fs::read_link(&path)?;
        path = path.parent().unwrap_or(Path::new("/")).join(to);
    }
    bail!("{} has too many links", path.display())
}

/// Links there lead to what is open, which need not have a name.
fn is_magic(path: &Path) -> bool {
    let directory = path.parent().unwrap_or(Path::new("/"));
    rustix::fs::statfs(directory).is_ok_and(|fs| fs.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

/// As kernels that protect files and pipes (`/proc/sys/fs`), which not every machine has do: where
/// everybody may make files, one that was there before is used only if nobody else made it.
fn refuse_prepared(path: &Path, meta: &Metadata) -> anyhow::Result<()> {
    let directory = std::fs::metadata(path.parent().unwrap_or(Path::new("/")))?;
    let owner = meta.uid();
    if directory.mode() & OPEN_TO_ALL == 0 || is_trusted(owner) || owner == directory.uid() {
        return Ok(());
    }
    bail!("it is another user's (uid {owner}) in a directory that is open to all: name another file")
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_of_ours_is_followed_and_the_pipe_of_nobody_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, pipe] = ["file", "link", "pipe"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("file", &link).unwrap();
        let write = |path: &Path| Target::open(path).and_then(|target| target.write(String::new, &["told"]));
        std::fs::write(&file, "longer than nothing ".repeat(1000)).unwrap();
        write(&link).unwrap();
        assert!(std::fs::read_to_string(&file).unwrap().starts_with('['));
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        write(Path::new("/dev/null")).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let Err(error) = Target::open(&pipe) else { panic!("nobody reads") };
        assert!(format!("{error:#}").contains("nobody reads"), "{error:#}");
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).unwrap()
        });
        let target = loop {
            match Target::open(&pipe) {
                Ok(target) => break target,
                Err(_) => std::thread::yield_now(),
            }
        };
        target.write(String::new, &["told"]).unwrap();
        assert!(reader.join().unwrap().ends_with("]\n"));
    }
}
