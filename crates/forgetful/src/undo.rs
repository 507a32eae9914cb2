//! Takes down what still uses a disk: file systems on loop devices over its file.
//!
//! It works by commands in child processes: an unmount may need an answer from this process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Unmounts and detaches everything on `mount_point`, then unmounts that. Errors are of no use to
/// anybody here.
pub(crate) fn take_down(mount_point: &Path) {
    for device in loop_devices(mount_point) {
        let name = device.to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if !loop_devices(mount_point).contains(&device) {
            continue;
        }
        for mount in mounts.lines().filter(|line| {
            line.split_once(" - ").is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(name.as_str()))
        }) {
            run("umount", &["-l", mount.split(' ').nth(4).unwrap_or_default()]);
        }
        // A device that was busy when it was detached is let go of at any moment, and may be
        // somebody else's by now.
        if loop_devices(mount_point).contains(&device) {
            run("losetup", &["-d", &name]);
        }
    }
    run("umount", &["-l", &mount_point.to_string_lossy()]);
}

/// The loop devices whose file lies below `mount_point`.
fn loop_devices(mount_point: &Path) -> Vec<PathBuf> {
    let Ok(blocks) = fs::read_dir("/sys/block") else { return Vec::new() };
    let on_ours = |block: &fs::DirEntry| {
        let backing = fs::read_to_string(block.path().join("loop/backing_file")).unwrap_or_default();
        Path::new(backing.trim_end()).starts_with(mount_point)
    };
    blocks.flatten().filter(on_ours).map(|block| Path::new("/dev").join(block.file_name())).collect()
}

fn run(program: &str, arguments: &[&str]) {
    let _ = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
}
