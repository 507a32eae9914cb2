//! `mount.holdfast`: mount(8), a line of fstab, umount(8) and fusermount3 do what users expect of
//! them, and nothing holds the terminal or a pipe of who mounted.

use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::{need, report};

const SOON: Duration = Duration::from_secs(30);

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// A view of the mounts in which mount(8) finds the helper, and an fstab of our own.
struct Machine {
    disk: Disk,
    pool: Pool,
    /// What lies over directories of the system here.
    over: tempfile::TempDir,
    fstab: PathBuf,
}

impl Machine {
    fn new() -> Self {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("root");
        Cmd::new("mount").args(["--make-rprivate", "/"]).ok();
        let over = tempfile::tempdir().expect("a directory");
        let at = |name: &str| over.path().join(name);
        Cmd::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(over.path()).ok();
        ["upper", "work"].iter().for_each(|name| std::fs::create_dir(at(name)).expect("made"));
        std::os::unix::fs::symlink(need::holdfast(), at("upper/mount.holdfast")).expect("made");
        let options =
            format!("lowerdir=/usr/sbin,upperdir={},workdir={}", text(&at("upper")), text(&at("work")));
        Cmd::new("mount").args(["-t", "overlay", "overlay", "-o", &options, "/usr/sbin"]).ok();
        let fstab = at("fstab");
        std::fs::write(&fstab, "").expect("made");
        Cmd::new("mount").args(["--bind", text(&fstab), "/etc/fstab"]).ok();
        Self { disk: Disk::new(Kind::Ext4), pool: Pool::new(), over, fstab }
    }

    /// What is made in /dev from here on is seen by nobody else.
    fn cover_dev(&self) {
        let at = |name: &str| self.over.path().join(name);
        ["dev", "dev-work", "shm"].iter().for_each(|name| std::fs::create_dir(at(name)).expect("made"));
        Cmd::new("mount").args(["--bind", "/dev/shm"]).arg(at("shm")).ok();
        let options =
            format!("lowerdir=/dev,upperdir={},workdir={}", text(&at("dev")), text(&at("dev-work")));
        Cmd::new("mount").args(["-t", "overlay", "overlay", "-o", &options, "/dev"]).ok();
        Cmd::new("mount").arg("--bind").arg(at("shm")).arg("/dev/shm").ok();
    }

    fn directory(&self, name: &str) -> PathBuf {
        let directory = self.disk.root.join(name);
        std::fs::create_dir(&directory).expect("made");
        directory
    }

    /// The options of one line, with those of the test's pool.
    fn options(&self, more: &str) -> String {
        format!("defaults,nofail,x-test.option,volatile,size=64M,pool={}{more}", self.pool.text())
    }

    fn line(&self, directory: &Path, point: &Path, more: &str) {
        let (directory, point) = (text(directory), text(point));
        let line = format!("{directory} {point} holdfast {} 0 0\n", self.options(more));
        std::fs::write(&self.fstab, line).expect("written");
    }

    fn ends(&self) {
        wait_until(SOON, "the end of the keeper", || proc::keepers(&self.pool.path).is_empty());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        proc::keepers(&self.pool.path).into_iter().for_each(proc::kill_hard);
    }
}

fn table(point: &Path) -> Option<String> {
    let told = Cmd::new("findmnt").args(["-n", "-o", "FSTYPE,OPTIONS", "--mountpoint"]).arg(point).output();
    told.status.success().then_some(told.stdout)
}

/// A sync of a file through the mount.
fn write_through(point: &Path) {
    let mut file = std::fs::File::create(point.join("file")).expect("made");
    for _ in 0..3 {
        file.write_all(b"written").and_then(|()| file.sync_all()).expect("durable");
    }
}

#[test]
fn a_line_of_fstab_is_mounted_and_unmounted() {
    let machine = Machine::new();
    let (served, at) = (machine.directory("served"), machine.directory("at"));
    machine.line(&served, &served, ",durability=write");
    // It ends although its output is a pipe: nobody behind it keeps that open.
    Cmd::new("mount").arg(&served).limit(SOON).ok();
    let told = table(&served).expect("mounted");
    assert!(told.starts_with("fuse.holdfast rw"), "{told}");
    Cmd::new("mount").arg("-a").ok();
    write_through(&served);
    let status = machine.pool.status();
    assert!(report::number(&status, "syncs_absorbed") > 0, "{status:#}");
    Cmd::new("umount").arg(&served).ok();
    assert_eq!(table(&served), None);
    machine.ends();
    assert_eq!(std::fs::read(served.join("file")).expect("read"), b"writtenwrittenwritten");

    machine.line(&served, &at, ",noauto,ro,noexec");
    Cmd::new("mount").arg(&at).limit(SOON).ok();
    let told = table(&at).expect("mounted");
    assert!(told.contains("ro,") && told.contains("noexec"), "{told}");
    std::fs::write(at.join("other"), "").expect_err("for reading only");
    assert_eq!(std::fs::read(at.join("file")).expect("read"), b"writtenwrittenwritten");
    Cmd::new("fusermount3").arg("-u").arg(&at).ok();
    assert_eq!(table(&at), None);
    machine.ends();
}

#[test]
fn mount_by_type_says_what_is_wrong() {
    let machine = Machine::new();
    let served = machine.directory("served");
    let mount = |options: &str, point: &Path| {
        Cmd::new("mount").args(["-t", "holdfast", "-o", options]).arg(&served).arg(point).limit(SOON).output()
    };
    let inside = served.join("inside");
    std::fs::create_dir(&inside).expect("made");
    mount("poool=/x", &served).expect(&[1]).says(&["poool", "unknown"], &[]);
    mount("size=many", &served).expect(&[1]).says(&["many"], &[]);
    mount(&machine.options(""), &inside).expect(&[32]).says(&["may lie in the other"], &[]);
    mount("pool=/no/such/directory/pool", &served).expect(&[32]).says(&["/no/such/directory"], &[]);
    assert!(table(&served).is_none() && proc::keepers(&machine.pool.path).is_empty());
    // Nothing is mounted with -f.
    Cmd::new("mount").args(["-f", "-t", "holdfast"]).arg(&served).arg(&served).ok();
    assert_eq!(table(&served), None);
    mount(&machine.options(""), &served).expect(&[0]);
    let again = mount("remount,ro", &served);
    assert!(!again.status.success(), "{}", again.told());
    Cmd::new("umount").arg(&served).ok();
    machine.ends();
}

/// What is said behind the starter's back is in the system's log.
#[test]
fn what_is_said_later_is_in_the_log() {
    let machine = Machine::new();
    let served = machine.directory("served");
    machine.line(&served, &served, "");
    // The log's place is this view's own.
    machine.cover_dev();
    let log = UnixDatagram::bind("/dev/log").expect("bound");
    log.set_read_timeout(Some(SOON)).expect("set");
    Cmd::new("mount").arg(&served).limit(SOON).ok();
    proc::kill_hard(proc::keeper(&machine.pool.path));
    let mut said = [0; 4096];
    let len = log.recv(&mut said).expect("something is said");
    let said = String::from_utf8_lossy(&said[..len]).into_owned();
    assert!(said.starts_with("<29>holdfast[") && said.contains("died"), "{said}");
    wait_until(SOON, "no mount", || table(&served).is_none());
}
