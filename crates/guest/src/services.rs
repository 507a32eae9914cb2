//! Services under systemd, from installation to removal, with a power cut between: a root file
//! system with Debian's systemd and Redis gets the package, two services join one keeper and a
//! third has its own, one stops, one is stopped with its keeper, the package is upgraded, and the
//! power goes while all three write. The next boot must recover before they start, and hold
//! everything that was acknowledged on the serial line.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::need;

use crate::initramfs::Content;
use crate::kernel::Kernel;
use crate::machine::{Images, Machine};

const DISK_BYTES: u64 = 512 << 20;
/// A file on DAX, and a device.
const NVDIMMS: usize = 2;
/// For each step. Beside other work an emulated processor is slow.
const STEP_MAX: Duration = Duration::from_secs(600);
/// Acknowledgements of each service before the cut.
const ACKS_MIN: usize = 20;
const SERVICES: [&str; 3] = ["redis", "ledger", "lone"];

/// Runs all of it.
pub fn run(kernel: &Path, root: &Path) -> Result<()> {
    let started = Instant::now();
    ensure!(
        root.is_file(),
        "there is no root file system {}: crates/guest/src/root.sh makes one",
        root.display()
    );
    let kernel = Kernel::find(kernel)?;
    let home = tempfile::Builder::new().prefix("holdfast-guest-").tempdir_in("/dev/shm")?;
    let platter = home.path().join("platter");
    fs::create_dir(&platter)?;
    let mut server = Command::new(std::env::current_exe()?);
    server.arg("disk");
    let disk = holdfast_forgetful::Disk::start(server, &platter, DISK_BYTES, 4096);
    let images = Images {
        kernel: kernel.image.clone(),
        initramfs: home.path().join("initramfs"),
        disks: vec![home.path().join("root"), disk.file()],
        nvdimms: NVDIMMS,
        home: home.path().to_owned(),
    };
    Cmd::new("cp").arg("--sparse=always").arg(root).arg(&images.disks[0]).ok();
    content(&kernel, home.path())?.write(&images.initramfs)?;
    images.create()?;

    let journal = ("systemd.journald.forward_to_console", "1".to_owned());
    let mut machine = Machine::boot(&images, &[("setup", "1".to_owned()), journal.clone()])?;
    println!("the first boot; seconds of its clock, and steps:");
    wait(&mut machine, "the first boot's steps", |machine| !machine.heard("ready").is_empty())?;
    let before = acks(&machine);
    machine.wait("acknowledgements", STEP_MAX, |machine| {
        acks(machine).iter().zip(&before).all(|(now, before)| *now >= before + ACKS_MIN)
    })?;
    let lines = machine.kill()?;
    disk.cut(started.elapsed().as_nanos() as u64);
    disk.restore();
    let acknowledged = SERVICES.map(|service| last(&lines, service));

    println!("power cut after {:.1} s; the second boot:", started.elapsed().as_secs_f64());
    let mut machine = Machine::boot(&images, &[journal])?;
    wait(&mut machine, "the second boot's steps", |machine| !machine.heard("over").is_empty())?;
    judge(&machine, &acknowledged)?;
    let (counts, total) = (disk.counts(), acknowledged.iter().sum::<u64>());
    println!(
        "tally: services: acknowledged {total}, blocks lost {}, boots 2, power cuts {}; {:.1} s",
        counts.blocks_lost,
        counts.cuts,
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The guest's first file system: what makes the media, and what is to be put in the root file
/// system.
fn content(kernel: &Kernel, home: &Path) -> Result<Content> {
    let mut content = Content::new(kernel, include_str!("services/init.sh"))?;
    for program in ["ndctl", "mkfs.ext4"] {
        content.program(&need::tool(program))?;
    }
    content.text("steps", include_str!("services/steps.sh"));
    content.text("before", include_str!("services/before.sh"));
    content.text("after", include_str!("services/after.sh"));
    let package = package(home)?;
    content.add("holdfast.deb", &package)?;
    content.add("newer.deb", &newer(&package, home)?)?;
    Ok(content)
}

/// The package of what is built.
fn package(home: &Path) -> Result<PathBuf> {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/deb/build.sh");
    let built = need::holdfast();
    let built = built.parent().context("it lies in a directory")?;
    let made = Cmd::new(build).arg(home.join("package")).env("HOLDFAST_BUILT", built).ok();
    let package = made.stdout.lines().find(|line| line.ends_with(".deb")).context("no package")?;
    Ok(PathBuf::from(package))
}

/// The same with a later version.
fn newer(package: &Path, home: &Path) -> Result<PathBuf> {
    let (tree, newer) = (home.join("tree"), home.join("newer.deb"));
    Cmd::new("dpkg-deb").arg("--raw-extract").args([package, &tree]).ok();
    let control = tree.join("DEBIAN/control");
    let text = fs::read_to_string(&control)?;
    let later: Vec<String> = text
        .lines()
        .map(
            |line| {
                if line.starts_with("Version: ") { format!("{line}+newer\n") } else { format!("{line}\n") }
            },
        )
        .collect();
    fs::write(&control, later.concat())?;
    Cmd::new("dpkg-deb").args(["--root-owner-group", "-Zgzip", "--build"]).args([&tree, &newer]).ok();
    fs::remove_dir_all(&tree)?;
    Ok(newer)
}

/// How many acknowledgements each service has sent.
fn acks(machine: &Machine) -> [usize; 3] {
    SERVICES.map(|service| machine.heard(&format!("{service} ")).len())
}

/// The last number that a service acknowledged. They only grow.
fn last(lines: &[String], service: &str) -> u64 {
    let numbers = lines.iter().filter_map(|line| line.strip_prefix(service)?.trim().parse().ok());
    numbers.max().unwrap_or_default()
}

/// Waits, and prints what the boot did so far, with the guest's seconds.
fn wait(machine: &mut Machine, what: &str, holds: impl Fn(&Machine) -> bool) -> Result<()> {
    let printed = Cell::new(0);
    machine.wait(what, STEP_MAX, |machine| {
        let steps = machine.heard("step ");
        steps[printed.replace(steps.len()).min(steps.len())..].iter().for_each(|step| println!("{step}"));
        holds(machine)
    })
}

/// Compares what the second boot found with what was acknowledged.
fn judge(machine: &Machine, acknowledged: &[u64; 3]) -> Result<()> {
    let found = machine.heard("found ");
    let recovered = machine.heard("recovered ");
    let told =
        format!("acknowledged {acknowledged:?} of {SERVICES:?}; found {found:?}; recovered {recovered:?}");
    for (service, acknowledged) in SERVICES.iter().zip(acknowledged) {
        let line = found.iter().find_map(|line| line.strip_prefix(service)).context(told.clone())?;
        let mut words = line.split_whitespace();
        let is_whole = *service == "redis" || words.next() == Some("ok");
        let number: u64 = words.next().and_then(|word| word.parse().ok()).context(told.clone())?;
        ensure!(is_whole && number >= *acknowledged, "{service} lost something: {told}");
    }
    let records = recovered.iter().flat_map(|line| line.split("found ").skip(1));
    let records = records.filter(|found| !found.starts_with("0 ")).count();
    ensure!(records == 2, "the pools had nothing to bring back: {told}");
    // The control: the disk by itself has not what Redis had acknowledged.
    let disk = machine.heard("disk ");
    let commands = disk.first().and_then(|commands| commands.trim().parse::<u64>().ok());
    ensure!(
        commands.is_some_and(|commands| commands < acknowledged[0]),
        "the disk had lost nothing, so that the cut shows nothing: it has {disk:?} commands; {told}"
    );
    let failed = machine.heard("units failed:");
    ensure!(failed.iter().all(|units| units.trim().is_empty()), "units failed: {failed:?}");
    println!("{told}; the disk alone had {} of redis", disk[0]);
    Ok(())
}
