//! The worker: does one workload for a while and prints what it took, as a line of JSON. It is a
//! process of its own, an ordinary program that is started on each side.
//!
//! It must never call the kernel past libc: the library would not see it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::workload::{ENTRY_BYTES, FRAME_BYTES, PAGE_BYTES, Workload};

/// Size of the file that pages are written to.
const FILE_BYTES: u64 = 32 << 20;
/// A measurement ends early once it has written so much in new places: memory and disk are the
/// user's.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// Files that are made at most, for the same reason.
const FILES_MAX: u64 = 20_000;
/// Operations whose time is kept.
const TIMES_MAX: usize = 4 << 20;
/// This part of a measurement's time goes by before anything counts.
pub const WARM_UP: u32 = 5;
/// Frames in the write-ahead log before it is brought to the database, as SQLite has it.
const CHECKPOINT_FRAMES: u64 = 1000;

/// What a worker measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Operations that were done.
    pub operations: u64,
    /// In this time.
    pub elapsed_ns: u64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// All but one of a hundred took no longer.
    pub p99_ns: u64,
}

/// Does a workload in a directory and prints what it took.
pub fn work(workload: &OsStr, dir: &Path, time_ms: u64) -> anyhow::Result<()> {
    let name = workload.to_string_lossy();
    let workload = Workload::named(&name).with_context(|| format!("there is no workload {name}"))?;
    let measured = match workload {
        Workload::Random => random(dir, Some(File::sync_all), time_ms),
        Workload::Append => append(dir, time_ms),
        Workload::Transactions => transactions(dir, time_ms),
        Workload::Create => create(dir, time_ms),
        Workload::Replace => replace(dir, time_ms),
        Workload::Plain => random(dir, None, time_ms),
    }?;
    let mut line = serde_json::to_string(&measured).context("cannot write JSON")?;
    line.push('\n');
    std::io::stdout().write_all(line.as_bytes()).context("cannot write to standard output")
}

/// Does one operation after the other, each with its number, until the time is over or so many are
/// done. What is done in the first fifth of that which ends it does not count: a start is not what
/// a program that runs does.
fn repeat(
    time_ms: u64,
    operations_max: u64,
    mut operation: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<Measured> {
    let mut times: Vec<u32> = Vec::with_capacity(1 << 16);
    let (time, started) = (Duration::from_millis(time_ms), Instant::now());
    let (mut first, mut counted_from, mut before) = (0, Duration::ZERO, Duration::ZERO);
    let mut is_warm = false;
    for number in 0.. {
        operation(number)?;
        let done = number + 1;
        let goes_on = done < operations_max;
        let now = started.elapsed();
        if times.len() < TIMES_MAX {
            times.push((now - before).as_nanos().min(u128::from(u32::MAX)) as u32);
        }
        before = now;
        // The number may end it long before the time does: what counts must not be a rest of it.
        let is_warmed_up = now >= time / WARM_UP || done >= operations_max / u64::from(WARM_UP);
        if goes_on && !is_warm && is_warmed_up {
            (is_warm, first, counted_from) = (true, done, now);
            times.clear();
        } else if !goes_on || now >= time {
            times.sort_unstable();
            let at = |percent: usize| u64::from(times[(times.len() - 1) * percent / 100]);
            let elapsed_ns = (now - counted_from).as_nanos() as u64;
            return Ok(Measured { operations: done - first, elapsed_ns, p50_ns: at(50), p99_ns: at(99) });
        }
    }
    bail!("there are no more numbers")
}

type Sync = fn(&File) -> std::io::Result<()>;

fn random(dir: &Path, sync: Option<Sync>, time_ms: u64) -> anyhow::Result<Measured> {
    let path = dir.join(if sync.is_some() { "synced" } else { "unsynced" });
    let file = filled(&path)?;
    let page = [0x5a; PAGE_BYTES];
    let mut place = 0x9e37_79b9_7f4a_7c15u64;
    let measured = repeat(time_ms, u64::MAX, |_| {
        // Xorshift: the places are the same on each side.
        place ^= place << 13;
        place ^= place >> 7;
        place ^= place << 17;
        let offset = place % (FILE_BYTES / PAGE_BYTES as u64) * PAGE_BYTES as u64;
        file.write_all_at(&page, offset).with_context(|| cannot_write(&path))?;
        if let Some(sync) = sync {
            sync(&file).with_context(|| cannot_sync(&path))?;
        }
        Ok(())
    });
    // Whoever is measured next must not pay for it.
    file.sync_all().with_context(|| cannot_sync(&path))?;
    measured
}

/// A file that has all of its pages; it is filled once, page by page, as databases grow theirs.
fn filled(path: &Path) -> anyhow::Result<File> {
    let opened = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file = opened.with_context(|| format!("cannot make {}", path.display()))?;
    if file.metadata().with_context(|| cannot_write(path))?.len() < FILE_BYTES {
        for page in 0..FILE_BYTES / PAGE_BYTES as u64 {
            let offset = page * PAGE_BYTES as u64;
            file.write_all_at(&[0xa5; PAGE_BYTES], offset).with_context(|| cannot_write(path))?;
        }
        file.sync_all().with_context(|| cannot_sync(path))?;
    }
    Ok(file)
}

fn append(dir: &Path, time_ms: u64) -> anyhow::Result<Measured> {
    let path = dir.join("log");
    let mut file = new(&path)?;
    let measured = repeat(time_ms, GROWTH_BYTES_MAX / ENTRY_BYTES as u64, |_| {
        file.write_all(&[0x5a; ENTRY_BYTES]).with_context(|| cannot_write(&path))?;
        file.sync_data().with_context(|| cannot_sync(&path))?;
        Ok(())
    });
    removed(&path)?;
    measured
}

/// What SQLite does for a transaction of one page with a write-ahead log, where there is no SQLite.
fn transactions(dir: &Path, time_ms: u64) -> anyhow::Result<Measured> {
    let (database, log) = (dir.join("pattern.db"), dir.join("pattern.db-wal"));
    let (pages, frames) = (filled(&database)?, new(&log)?);
    let measured = repeat(time_ms, u64::MAX, |number| {
        let frame = number % CHECKPOINT_FRAMES;
        frames
            .write_all_at(&[0x5a; FRAME_BYTES], frame * FRAME_BYTES as u64)
            .with_context(|| cannot_write(&log))?;
        frames.sync_data().with_context(|| cannot_sync(&log))?;
        if frame + 1 == CHECKPOINT_FRAMES {
            for page in 0..CHECKPOINT_FRAMES {
                pages
                    .write_all_at(&[0x5a; PAGE_BYTES], page * PAGE_BYTES as u64)
                    .with_context(|| cannot_write(&database))?;
            }
            pages.sync_data().with_context(|| cannot_sync(&database))?;
        }
        Ok(())
    });
    removed(&log)?;
    measured
}

fn create(dir: &Path, time_ms: u64) -> anyhow::Result<Measured> {
    let home = dir.join("made");
    std::fs::create_dir(&home).with_context(|| format!("cannot make {}", home.display()))?;
    let directory = File::open(&home).with_context(|| format!("cannot open {}", home.display()))?;
    let measured = repeat(time_ms, FILES_MAX, |number| {
        let path = home.join(number.to_string());
        let mut file = new(&path)?;
        file.write_all(&[0x5a; PAGE_BYTES]).with_context(|| cannot_write(&path))?;
        file.sync_all().with_context(|| cannot_sync(&path))?;
        directory.sync_all().with_context(|| cannot_sync(&home))?;
        Ok(())
    });
    std::fs::remove_dir_all(&home).with_context(|| format!("cannot remove {}", home.display()))?;
    measured
}

fn replace(dir: &Path, time_ms: u64) -> anyhow::Result<Measured> {
    let (path, next) = (dir.join("state"), dir.join("state.new"));
    drop(new(&path)?);
    repeat(time_ms, u64::MAX, |_| {
        let mut file = new(&next)?;
        file.write_all(&[0x5a; PAGE_BYTES]).with_context(|| cannot_write(&next))?;
        file.sync_all().with_context(|| cannot_sync(&next))?;
        std::fs::rename(&next, &path).with_context(|| format!("cannot replace {}", path.display()))?;
        Ok(())
    })
}

fn new(path: &PathBuf) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("cannot make {}", path.display()))
}

fn removed(path: &Path) -> anyhow::Result<()> {
    std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write to {}", path.display())
}

fn cannot_sync(path: &Path) -> String {
    format!("cannot sync {}", path.display())
}

/// What a worker printed.
pub fn read(printed: &str) -> anyhow::Result<Measured> {
    let measured: Measured = serde_json::from_str(printed.trim()).context("the workload said nothing")?;
    if measured.operations == 0 || measured.elapsed_ns == 0 {
        bail!("the workload did nothing");
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_works_and_leaves_little() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        for workload in Workload::ALL {
            for _ in 0..2 {
                work(workload.name().as_ref(), dir.path(), 1).expect("it works");
            }
        }
        let left = std::fs::read_dir(dir.path()).expect("a directory").flatten();
        let mut left: Vec<_> = left.map(|entry| entry.file_name().into_string().expect("text")).collect();
        left.sort();
        assert_eq!(left, ["pattern.db", "state", "synced", "unsynced"]);
        assert!(work("nothing".as_ref(), dir.path(), 1).is_err());
    }

    #[test]
    fn times_are_of_the_operations() {
        let mut done = 0;
        let measured = repeat(3_600_000, 10, |number| {
            done += 1;
            assert_eq!(number + 1, done);
            Ok(())
        });
        let measured = measured.expect("it works");
        // A fifth of what ends it, and no more, is not counted.
        assert_eq!((done, measured.operations), (10, 8), "{measured:?}");
        assert_eq!(repeat(3_600_000, 1, |_| Ok(())).expect("it works").operations, 1);
        assert!(measured.p50_ns <= measured.p99_ns && measured.p99_ns <= measured.elapsed_ns.max(1));
        assert!(read("").is_err());
    }
}
