//! A directory that `holdfast mount` serves, beside one of the same file system: what a write with
//! its sync takes, and what is left of the speed of reads and of large requests. The program that
//! reads and writes is this one, on both sides; it knows nothing of Holdfast.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::Advice;

use crate::lab::{Lab, lay_out};
use crate::report::{Bar, Check, Outcome, Run, interleave};
use crate::running::done;
use crate::worker::{BLOCK_BYTES, Random};

const FILE_BYTES: u64 = 128 << 20;
const LARGE_BYTES: usize = 1 << 20;
const START_MAX: Duration = Duration::from_secs(30);

/// What is done to a file.
#[derive(Clone, Copy)]
enum Work {
    /// Random writes of 4 KiB, with an fsync after each: microseconds for both.
    Sync,
    /// Random reads of 4 KiB that the page cache has: thousands per second.
    Cached,
    /// Reads of 1 MiB one after the other, which the page cache has: MiB per second.
    LargeCached,
    /// The same of a file that the page cache of the side does not have.
    LargeFirst,
    /// Writes of 1 MiB one after the other over the whole file, and one fsync: MiB per second.
    LargeWrites,
    /// The same without an fsync.
    LargeUnsynced,
}

/// Ends with the benchmark.
struct Served {
    child: Child,
    point: PathBuf,
}

impl Served {
    fn start(lab: &Lab, point: &Path) -> Result<Self> {
        let mut command = Command::new(&lab.holdfast);
        command.args(["mount", "--volatile", "--quiet", "--size"]).arg(lab.options.pool_bytes.to_string());
        command.arg("--pool").arg(lab.scratch().join("mount.pool")).arg(point).stdin(Stdio::null());
        let child = command.spawn().context("could not start holdfast mount")?;
        let mut served = Self { child, point: point.to_path_buf() };
        let begun = Instant::now();
        while !served.is_there()? {
            ensure!(served.child.try_wait()?.is_none(), "holdfast mount ended (it needs root and /dev/fuse)");
            ensure!(begun.elapsed() < START_MAX, "holdfast mount does not serve");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(served)
    }

    fn is_there(&self) -> Result<bool> {
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        let point = format!(" {} ", self.point.display());
        Ok(table.lines().any(|line| line.contains(&point) && line.contains(" - fuse.holdfast ")))
    }

    fn end(mut self) -> Result<()> {
        done(Command::new("umount").arg(&self.point))?;
        ensure!(self.child.wait()?.success(), "holdfast mount failed");
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.is_there().unwrap_or(false) {
            // Whatever went wrong is said already.
            let _ = Command::new("umount").arg("-l").arg(&self.point).status();
        }
        let _ = self.child.wait();
    }
}

/// All of it, in turn on both sides.
pub fn mount(lab: &Lab) -> Result<Outcome> {
    let home = lab.home(&crate::lab::Side::Native);
    let (native, point) = (home.join("native"), home.join("served"));
    let mut outcome = Outcome::default();
    for dir in [&native, &point] {
        fs::create_dir_all(dir)?;
        lay_out(&dir.join("file"), FILE_BYTES)?;
    }
    let served = Served::start(lab, &point)?;
    for (what, unit, work, bar) in [
        ("4 KiB write + fsync", "us", Work::Sync, Some(Bar::AtMost(0.125))),
        ("cached 4 KiB reads", "k/s", Work::Cached, Some(Bar::AtLeast(0.95))),
        ("cached 1 MiB reads", "MiB/s", Work::LargeCached, Some(Bar::AtLeast(0.9))),
        ("first 1 MiB reads", "MiB/s", Work::LargeFirst, Some(Bar::AtLeast(0.9))),
        ("1 MiB writes, one fsync", "MiB/s", Work::LargeWrites, Some(Bar::AtLeast(0.9))),
        ("1 MiB writes, no fsync", "MiB/s", Work::LargeUnsynced, None),
    ] {
        let side = |name: &str, dir: &Path| -> Run<'_> {
            let file = dir.join("file");
            let seconds = Duration::from_secs(lab.options.seconds);
            let label = format!("{what}, {name}");
            (label, Box::new(move || lab.settle().and_then(|()| sample(&file, work, seconds))))
        };
        let sides = vec![side("native", &native), side("mount", &point)];
        let series = interleave(lab.options.rounds, unit, sides)?;
        outcome.checks.push(Check::ratio(&series[1], &series[0], bar));
        if matches!(work, Work::Sync) {
            let value = series[1].median();
            outcome.checks.push(Check::value(what, value, "us", Some(Bar::AtMost(15.0))));
        }
        outcome.series.extend(series);
    }
    served.end()?;
    outcome.notes.push(format!(
        "one thread, a file of {} MiB a side; `first` reads have nothing in the side's page cache, and the mount's \
         server may have",
        FILE_BYTES >> 20
    ));
    Ok(outcome)
}

/// One run of one side, by a description of its own.
fn sample(path: &Path, work: Work, limit: Duration) -> Result<f64> {
    let file = File::options().read(true).write(true).open(path)?;
    let blocks = FILE_BYTES / BLOCK_BYTES as u64;
    let mut random = Random::new(7);
    let mut buffer = vec![0x5au8; LARGE_BYTES];
    let place = |random: &mut Random| random.below(blocks) * BLOCK_BYTES as u64;
    let rate = |bytes: u64, start: Instant| (bytes >> 20) as f64 / start.elapsed().as_secs_f64();
    let mut done = 0u64;
    match work {
        Work::Sync => {
            // The first sync of a file may be the kernel's.
            file.write_all_at(&buffer[..BLOCK_BYTES], 0)?;
            file.sync_all()?;
            let start = Instant::now();
            while start.elapsed() < limit {
                file.write_all_at(&buffer[..BLOCK_BYTES], place(&mut random))?;
                file.sync_all()?;
                done += 1;
            }
            Ok(start.elapsed().as_secs_f64() * 1e6 / done as f64)
        }
        Work::Cached => {
            whole(FILE_BYTES, |at| Ok(file.read_exact_at(&mut buffer, at)?))?;
            let start = Instant::now();
            while start.elapsed() < limit {
                for _ in 0..256 {
                    file.read_exact_at(&mut buffer[..BLOCK_BYTES], place(&mut random))?;
                    done += 1;
                }
            }
            Ok(done as f64 / 1e3 / start.elapsed().as_secs_f64())
        }
        Work::LargeCached | Work::LargeFirst => {
            whole(FILE_BYTES, |at| Ok(file.read_exact_at(&mut buffer, at)?))?;
            if matches!(work, Work::LargeFirst) {
                file.sync_all()?;
                rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
            }
            let start = Instant::now();
            whole(FILE_BYTES, |at| Ok(file.read_exact_at(&mut buffer, at)?))?;
            Ok(rate(FILE_BYTES, start))
        }
        Work::LargeWrites | Work::LargeUnsynced => {
            let start = Instant::now();
            whole(FILE_BYTES, |at| Ok(file.write_all_at(&buffer, at)?))?;
            if matches!(work, Work::LargeWrites) {
                file.sync_all()?;
            }
            Ok(rate(FILE_BYTES, start))
        }
    }
}

/// Goes over a file in large steps.
fn whole(bytes: u64, mut step: impl FnMut(u64) -> Result<()>) -> Result<()> {
    (0..bytes / LARGE_BYTES as u64).try_for_each(|number| step(number * LARGE_BYTES as u64))
}
