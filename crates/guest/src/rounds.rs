//! Boot after boot: each judges what the one before had acknowledged, loads anew, and is cut.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use holdfast_e2e::need;
use holdfast_e2e::workload::many;
use holdfast_testkit::Random;

use crate::initramfs::Content;
use crate::kernel::Kernel;
use crate::machine::{Images, Machine};

/// Programs of this machine that the guest needs.
const PROGRAMS: [&str; 4] = ["ndctl", "mkfs.ext4", "mkfs.xfs", "sqlite3"];
/// A DAX device, ext4 and xfs.
const NVDIMMS: usize = 3;
const DISK_BYTES: u64 = 1 << 30;
const BOOT_MAX: Duration = Duration::from_secs(120);
/// Acknowledgements of each program before the cut.
const ACKS_MIN: usize = 15;

/// What a boot had acknowledged when it was cut.
struct Cut {
    media: &'static str,
    directory: String,
    seed: u64,
    writers: BTreeMap<u64, u64>,
    rows: u64,
    scattered: u64,
}

/// Runs `cuts` power cuts on each kind of media, after a control without Holdfast that must lose
/// data.
pub fn run(kernel: &Path, cuts: u64, seed: Option<u64>) -> Result<()> {
    let started = Instant::now();
    let seed = seed.unwrap_or_else(|| Random::named("guest").seed());
    let mut random = Random::new(seed);
    let kernel = Kernel::find(kernel)?;
    // In memory: the NVM's pages are touched often.
    let home = tempfile::Builder::new().prefix("holdfast-guest-").tempdir_in("/dev/shm")?;
    let platter = home.path().join("platter");
    std::fs::create_dir(&platter)?;
    let mut server = Command::new(std::env::current_exe()?);
    server.arg("disk");
    let disk = holdfast_forgetful::Disk::start(server, &platter, DISK_BYTES, 4096);
    let images = Images {
        kernel: kernel.image.clone(),
        initramfs: home.path().join("initramfs"),
        disks: vec![disk.file()],
        nvdimms: NVDIMMS,
        home: home.path().to_owned(),
    };
    content(&kernel)?.write(&images.initramfs)?;
    images.create()?;

    let media =
        ["none"].into_iter().chain(["device", "ext4", "xfs"].into_iter().cycle().take(3 * cuts as usize));
    let (mut before, mut acknowledged, mut boots) = (None, 0, 0);
    for media in media.map(Some).chain([None]) {
        let cut = boot(&images, &disk, before.as_ref(), media, &mut random)
            .with_context(|| format!("boot {boots}, seed {seed}"))?;
        boots += 1;
        acknowledged += cut.as_ref().map_or(0, |cut| cut.rows + cut.writers.values().sum::<u64>());
        before = cut;
    }
    let counts = disk.counts();
    println!(
        "tally: guest: acknowledged {acknowledged}, blocks lost {}, boots {boots}, power cuts {}, unflushed blocks kept \
         {}; seed {seed}, {:.1} s",
        counts.blocks_lost,
        counts.cuts,
        counts.blocks_kept,
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The guest's file system.
fn content(kernel: &Kernel) -> Result<Content> {
    let mut content = Content::new(kernel, include_str!("init.sh"))?;
    let holdfast = need::holdfast();
    let own = [holdfast.with_file_name("libholdfast.so"), holdfast, std::env::current_exe()?];
    for program in PROGRAMS.map(need::tool).iter().chain(&own) {
        content.program(program)?;
    }
    Ok(content)
}

/// One boot: judges `before`, and loads on `media`, if any, until it is cut.
fn boot(
    images: &Images,
    disk: &holdfast_forgetful::Disk,
    before: Option<&Cut>,
    media: Option<&'static str>,
    random: &mut Random,
) -> Result<Option<Cut>> {
    // Odd: no writers that are strangers to each other.
    let seed = random.draw() | 1;
    let directory = format!("round-{seed:x}");
    let journal = if random.between(0, 2) == 0 { "WAL" } else { "TRUNCATE" };
    let mut orders = Vec::new();
    match before {
        None => orders.push(("setup", "1".to_owned())),
        Some(cut) => {
            let noted: Vec<String> =
                cut.writers.iter().map(|(writer, number)| format!("{writer}:{number}")).collect();
            orders.extend([
                ("judge", cut.directory.clone()),
                ("judge_media", cut.media.to_owned()),
                ("judge_seed", cut.seed.to_string()),
                ("judge_noted", noted.join(",")),
                ("judge_rows", cut.rows.to_string()),
                ("judge_scattered", cut.scattered.to_string()),
            ]);
        }
    }
    if let Some(media) = media {
        orders.extend([
            ("load", directory.clone()),
            ("load_media", media.to_owned()),
            ("load_seed", seed.to_string()),
            ("journal", journal.to_owned()),
        ]);
    }
    let mut machine = Machine::boot(images, &orders)?;
    if let Some(cut) = before {
        machine.wait("a verdict", BOOT_MAX, |machine| {
            !machine.heard("blocks whole").is_empty() || !machine.heard("blocks lost").is_empty()
        })?;
        judge(cut, &machine)?;
    }
    let Some(media) = media else {
        machine.wait("the end", BOOT_MAX, |machine| !machine.heard("over").is_empty())?;
        return machine.kill().map(|_| None);
    };
    machine.wait("the load", BOOT_MAX, |machine| !machine.heard("load").is_empty())?;
    machine.wait("acknowledgements", BOOT_MAX, |machine| {
        let spilled = media == "none" || last(&machine.heard("frames ")) > 0;
        machine.heard("row ").len() >= ACKS_MIN && machine.heard("0 ").len() >= ACKS_MIN && spilled
    })?;
    std::thread::sleep(Duration::from_millis(random.between(0, 2500)));
    let lines = machine.kill()?;
    disk.cut(random.draw());
    disk.restore();
    let writers = lines.iter().filter(|line| line.starts_with(|start: char| start.is_ascii_digit()));
    let journal: String = writers.map(|line| format!("{line}\n")).collect();
    let told = |what: &str| {
        last(&lines.iter().filter_map(|line| line.strip_prefix(what).map(str::to_owned)).collect::<Vec<_>>())
    };
    let writers = many::noted(&journal).map_err(anyhow::Error::msg)?;
    Ok(Some(Cut { media, directory, seed, writers, rows: told("row "), scattered: told("scattered ") }))
}

/// The highest number among lines.
fn last(lines: &[String]) -> u64 {
    lines.iter().filter_map(|line| line.trim().parse().ok()).max().unwrap_or_default()
}

/// Compares what the guest says is there with what was acknowledged.
fn judge(cut: &Cut, machine: &Machine) -> Result<()> {
    let (writers, database) = (machine.heard("writers "), machine.heard("database "));
    let blocks = machine.heard("blocks ");
    let recovered = machine.heard("recovered ");
    let writers_whole = writers == ["whole"];
    let database_whole = database[0].trim() == format!("ok {}", cut.rows);
    let told = format!(
        "media {}: {} rows, {} scattered blocks and {:?} acknowledged: writers {writers:?}, database {database:?}, blocks \
         {blocks:?}, recovered {recovered:?}",
        cut.media, cut.rows, cut.scattered, cut.writers
    );
    if cut.media == "none" {
        // The control.
        ensure!(
            !writers_whole || !database_whole,
            "without syncs nothing was lost: the power cut is none. {told}"
        );
        return Ok(());
    }
    if !writers_whole || !database_whole || blocks != ["whole"] || !recovered[0].starts_with("0 ") {
        bail!("lost. {told}");
    }
    // Something of the last moments always waits for its sync.
    ensure!(
        recovered[0].contains("found") && !recovered[0].contains("found 0 records"),
        "nothing was absorbed. {told}"
    );
    println!("{told}");
    Ok(())
}
