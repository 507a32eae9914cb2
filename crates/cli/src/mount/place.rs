//! What is to be mounted where, and every reason why not: all of them are found before anything is
//! changed. It reads tables of the kernel's and looks at no file below the directory.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{StatVfs, statvfs};
use rustix::mount::{MountFlags, UnmountFlags, unmount};

use crate::report;
use crate::words::quoted;

/// The kind of file system that our mounts have.
pub const KIND: &str = "fuse.holdfast";
/// File systems whose files are managed.
const MANAGED: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// One line of mountinfo.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// The number of the mount.
    pub id: u64,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The kind of file system.
    pub kind: String,
}

/// All mounts that this process sees; later ones lie over earlier ones.
pub fn mounts() -> anyhow::Result<Vec<Mount>> {
    let table = std::fs::read("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// Reads `36 35 98:0 /root /mnt opts - ext4 /dev/root opts`.
fn parse(line: &[u8]) -> Option<Mount> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = words.iter().position(|word| *word == b"-")?;
    Some(Mount {
        id: std::str::from_utf8(words.first()?).ok()?.parse().ok()?,
        point: unescaped(words.get(4)?).into(),
        kind: String::from_utf8_lossy(words.get(dash + 1)?).into_owned(),
    })
}

/// A path as the kernel writes it there: blanks and the like as three octal digits.
fn unescaped(word: &[u8]) -> OsString {
    let (mut plain, mut rest) = (Vec::new(), word);
    while let Some((&first, more)) = rest.split_first() {
        let digits = more.get(..3).filter(|digits| first == b'\\' && digits.iter().all(u8::is_ascii_digit));
        let value = digits.and_then(|digits| {
            digits.iter().try_fold(0u8, |sum, digit| sum.checked_mul(8)?.checked_add(digit - b'0'))
        });
        plain.push(value.unwrap_or(first));
        rest = if value.is_some() { &more[3..] } else { more };
    }
    OsString::from_vec(plain)
}

/// The mount that a path lies on.
pub fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    // Of mounts at one point the last one lies on top.
    above.max_by_key(|mount| mount.point.as_os_str().len())
}

/// What is mounted where.
pub struct Place {
    /// The directory that is served.
    pub directory: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Where the file system that the directory is on begins.
    pub volume: PathBuf,
    /// What the kernel allows on it.
    pub facts: StatVfs,
    /// What it is not to allow besides.
    pub asked: MountFlags,
}

impl Place {
    /// Finds out whether `directory` can be mounted over itself, or `at` another place.
    pub fn find(directory: &Path, at: Option<&Path>, options: &[String]) -> anyhow::Result<Self> {
        let directory = existing(directory)?;
        let point = at.map_or_else(|| Ok(directory.clone()), existing)?;
        let mounts = mounts()?;
        let on = mount_of(&mounts, &directory).context("the directory is on no mount")?;
        refuse_file_system(&directory, on)?;
        let place = Self {
            facts: statvfs(&directory).with_context(|| format!("cannot look at {}", directory.display()))?,
            volume: on.point.clone(),
            directory,
            point,
            asked: flags(options),
        };
        place.refuse_point(&mounts)?;
        place.refuse_user()?;
        Ok(place)
    }

    /// Whether the mount lies over the directory, so that nobody reaches the files past it.
    pub fn is_over(&self) -> bool {
        self.directory == self.point
    }

    fn refuse_point(&self, mounts: &[Mount]) -> anyhow::Result<()> {
        let (directory, point) = (self.directory.display(), self.point.display());
        if self.is_over() {
            let below =
                |mount: &&Mount| mount.point.starts_with(&self.directory) && mount.point != self.directory;
            if let Some(below) = mounts.iter().find(below) {
                bail!(
                    "{} is mounted below {directory}, where nobody could reach it any more: unmount it, name a \
                     directory beside it, or give --at MOUNTPOINT",
                    below.point.display()
                );
            }
            return Ok(());
        }
        if self.point.starts_with(&self.directory) || self.directory.starts_with(&self.point) {
            bail!(
                "--at {point}: neither of it and {directory} may lie in the other: name an empty directory elsewhere"
            );
        }
        if let Some(used) = mounts.iter().find(|mount| mount.point == self.point) {
            bail!("--at {point} is in use: a file system ({}) is mounted there. Name another one", used.kind);
        }
        Ok(())
    }

    fn refuse_user(&self) -> anyhow::Result<()> {
        if !rustix::process::geteuid().is_root() && self.is_over() {
            bail!(
                "only root can mount over {}: give --at MOUNTPOINT, an empty directory of yours, or run as root",
                self.directory.display()
            );
        }
        Ok(())
    }
}

/// Of two options that contradict each other the later one counts.
fn flags(options: &[String]) -> MountFlags {
    let known = [
        ("ro", "rw", MountFlags::RDONLY),
        ("nosuid", "suid", MountFlags::NOSUID),
        ("nodev", "dev", MountFlags::NODEV),
        ("noexec", "exec", MountFlags::NOEXEC),
        ("noatime", "atime", MountFlags::NOATIME),
        ("nodiratime", "diratime", MountFlags::NODIRATIME),
        ("relatime", "", MountFlags::RELATIME),
        ("strictatime", "", MountFlags::STRICTATIME),
    ];
    options.iter().fold(MountFlags::empty(), |mut all, option| {
        for (set, unset, flag) in known {
            all.set(flag, option == set || all.contains(flag) && option != unset);
        }
        all
    })
}

fn refuse_file_system(directory: &Path, on: &Mount) -> anyhow::Result<()> {
    if on.kind == KIND {
        bail!("{} is mounted already: `umount {}` ends it", directory.display(), quoted(&on.point));
    }
    if !MANAGED.contains(&&*on.kind) {
        bail!(
            "{} is on {}, and only files on ext4, xfs and btrfs are managed: name a directory on one of them",
            directory.display(),
            on.kind
        );
    }
    Ok(())
}

/// The real path of a directory that is there. A mount of ours whose server is gone is taken away.
fn existing(path: &Path) -> anyhow::Result<PathBuf> {
    let shown = path.display();
    match path.canonicalize() {
        Ok(real) if std::fs::metadata(&real).is_err_and(|error| is_gone(&error)) => {
            take_away(&real)?;
            existing(path)
        }
        Ok(real) if real.is_dir() => Ok(real),
        Ok(_) => bail!("{shown} is no directory"),
        Err(error) if is_gone(&error) => {
            take_away(&std::path::absolute(path).with_context(|| format!("cannot use {shown}"))?)?;
            existing(path)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{shown} does not exist: make it, or name a directory that is there")
        }
        Err(error) => Err(error).with_context(|| format!("cannot use {shown}")),
    }
}

/// Whether an error says that the server of a mount is gone.
fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotConnected
}

/// Takes away a mount of ours that nobody serves any more.
fn take_away(path: &Path) -> anyhow::Result<()> {
    let mounts = mounts()?;
    let is_ours = mount_of(&mounts, path).is_some_and(|on| on.kind == KIND && on.point == path);
    let shown = path.display();
    if !is_ours {
        bail!("{shown}: its file system is gone (transport endpoint is not connected): unmount it first");
    }
    unmount(path, UnmountFlags::DETACH).with_context(|| {
        format!("{shown} was mounted by a server that is gone: `umount -l {}` first", quoted(path))
    })?;
    report::say(&format!("took away what a server that is gone had mounted at {shown}"));
    Ok(())
}

/// A program of the PATH.
pub fn tool(name: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&search).map(|directory| directory.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_of_a_path_is_the_one_on_top() {
        let table = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                     30 21 8:2 / /srv rw shared:3 - xfs /dev/sdb rw\n\
                     31 21 0:9 / /a\\040b rw - tmpfs none rw\n\
                     32 30 0:44 / /srv rw - fuse.holdfast /srv rw";
        let mounts: Vec<Mount> = table.as_bytes().split(|byte| *byte == b'\n').filter_map(parse).collect();
        assert_eq!(mounts.len(), 4);
        let on = |path: &str| mount_of(&mounts, Path::new(path)).expect("one").id;
        assert_eq!(on("/home/x"), 21);
        assert_eq!(on("/srv/x"), 32);
        assert_eq!(on("/srvx"), 21);
        assert_eq!(on("/a b/c"), 31);
    }

    #[test]
    fn the_later_option_counts() {
        let options = |words: &[&str]| flags(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(options(&["ro", "noexec", "rw"]), MountFlags::NOEXEC);
        assert_eq!(options(&["rw", "nosuid", "ro"]), MountFlags::NOSUID | MountFlags::RDONLY);
    }

    #[test]
    fn what_cannot_be_mounted_is_refused_with_what_to_do() {
        let refused = |directory: &str, at: Option<&str>| {
            let found = Place::find(Path::new(directory), at.map(Path::new), &[]);
            format!("{:#}", found.map(|place| place.point).expect_err("refused"))
        };
        assert!(refused("/no/such/directory", None).contains("does not exist"));
        assert!(refused("/dev/null", None).contains("is no directory"));
        assert!(refused("/dev/shm", None).contains("on tmpfs"));
        assert!(refused("/proc", None).contains("on proc"));
    }
}
