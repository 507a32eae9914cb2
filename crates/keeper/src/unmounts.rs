//! Notices that somebody starts the program `umount`, and lets go of files that nobody has open for
//! writing: at once where nothing is pending, else once that is on the disk, if it is about these
//! files.
//!
//! A notice, not a permission: everybody on the machine uses that program, and nobody may have to
//! wait for a keeper, which may stand still. So it is a race. The keeper wins it where nothing is
//! pending: the program has to be loaded before it unmounts anything. Where something is, the disk
//! decides. What it is about is read from the program's arguments, as text: it must not look at a
//! place that is to be unmounted, which may hang. It must not look at all without files that it
//! might let go of: some machines unmount something all the time.

use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use crate::keeper::Keeper;

/// The program that unmounts.
const UNMOUNT: &str = "umount";
/// The notice comes when the program is opened; it has its name and arguments a moment later.
const LOOKS: u32 = 5;
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Watches until this process ends. Without it the keeper lets go of files a little later.
pub(crate) fn watch(keeper: &Arc<Keeper>) {
    let Some(notices) = watched() else { return };
    let keeper = Arc::downgrade(keeper);
    let _ = std::thread::Builder::new().name("unmounts".to_owned()).spawn(move || run(&keeper, &notices));
}

fn run(keeper: &Weak<Keeper>, notices: &OwnedFd) {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut reader = Reader::new(notices, &mut buffer);
    loop {
        let heard = reader.next().is_ok();
        while heard && !reader.is_buffer_empty() && reader.next().is_ok() {}
        let Some(keeper) = keeper.upgrade().filter(|keeper| heard && !keeper.is_stopping()) else { return };
        keeper.durable.retire_unused();
        if !keeper.durable.has_unused() {
            continue;
        }
        let mut below = Vec::new();
        for _ in 0..LOOKS {
            below = wanted();
            if !below.is_empty() {
                break;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        if !below.is_empty() {
            keeper.durable.let_go_unused(&|path| below.iter().any(|place| path.starts_with(place)));
        }
    }
}

/// A queue of the openings of that program, which its `execve` is one of.
fn watched() -> Option<OwnedFd> {
    let notices = inotify::init(CreateFlags::CLOEXEC).ok()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let known = ["/usr/bin", "/bin", "/sbin"].map(PathBuf::from);
    let mut is_watched = false;
    for directory in std::env::split_paths(&path).filter(|path| path.is_absolute()).chain(known) {
        let Ok(program) = directory.join(UNMOUNT).canonicalize() else { continue };
        // One that stands for many programs (busybox) is left alone.
        if program.file_name().is_some_and(|name| name == UNMOUNT) {
            is_watched |= inotify::add_watch(&notices, &program, WatchFlags::OPEN).is_ok();
        }
    }
    is_watched.then_some(notices)
}

/// What those that run now are about, as far as that can be seen: everything below these
/// directories.
fn wanted() -> Vec<PathBuf> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut below = Vec::new();
    for process in processes.flatten().map(|process| process.path()) {
        let Ok(name) = std::fs::read_to_string(process.join("comm")) else { continue };
        if name.trim_end() == UNMOUNT
            && let Ok(line) = std::fs::read(process.join("cmdline"))
        {
            let cwd = std::fs::read_link(process.join("cwd")).unwrap_or_default();
            below.extend(places(&line, &cwd));
        }
    }
    if below.is_empty() {
        return below;
    }
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    below.extend(
        mounts.split(|byte| *byte == b'\n').filter_map(|line| mounted(line, &below)).collect::<Vec<_>>(),
    );
    below
}

/// What a command line names, from where it was started: mount points, devices or files. `umount
/// --all` without a name is about all there is.
fn places(line: &[u8], cwd: &Path) -> Vec<PathBuf> {
    let arguments: Vec<&[u8]> =
        line.split(|byte| *byte == 0).skip(1).filter(|part| !part.is_empty()).collect();
    let (options, names): (Vec<&[u8]>, Vec<&[u8]>) = arguments.into_iter().partition(|part| part[0] == b'-');
    if names.is_empty() && options.iter().any(|option| [&b"-a"[..], b"--all"].contains(option)) {
        return vec![PathBuf::from("/")];
    }
    names.into_iter().map(|name| cwd.join(OsString::from_vec(name.to_vec()))).collect()
}

/// Where a line of `mountinfo` says that one of these devices is mounted.
fn mounted(line: &[u8], devices: &[PathBuf]) -> Option<PathBuf> {
    let mut words = line.split(|byte| *byte == b' ');
    let point = words.nth(4)?;
    let source = words.skip_while(|word| *word != b"-").nth(2)?;
    let path = |word: &[u8]| PathBuf::from(OsString::from_vec(unescaped(word)));
    devices.contains(&path(source)).then(|| path(point))
}

/// Blanks and the like stand there as a backslash and three octal digits.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut at = 0;
    while at < word.len() {
        let code = word.get(at + 1..at + 4).filter(|_| word[at] == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => (bytes.push(byte), at += 4).0,
            None => (bytes.push(word[at]), at += 1).0,
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_says_what_it_is_about() {
        let about = |line: &[u8]| places(line, Path::new("/home"));
        assert_eq!(about(b"umount\0/mnt/a\0"), [Path::new("/mnt/a")]);
        assert_eq!(about(b"/bin/umount\0-l\0a\0/dev/sdb1\0"), [Path::new("/home/a"), Path::new("/dev/sdb1")]);
        assert_eq!(about(b"umount\0-a\0"), [Path::new("/")]);
        assert_eq!(about(b"umount\0"), [] as [&Path; 0]);
    }

    #[test]
    fn a_device_is_found_where_it_is_mounted() {
        let line = br"36 35 98:0 /mnt1 /mnt/a\040b rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(mounted(line, &["/dev/root".into()]), Some("/mnt/a b".into()));
        assert_eq!(mounted(line, &["/dev/other".into()]), None);
        assert_eq!(mounted(b"", &["/dev/root".into()]), None);
        assert_eq!(unescaped(br"\134\04"), br"\\04");
    }
}
