//! RocksDB's db_bench cut off under load, filling and overwriting with sync: every acknowledged
//! write is in the log files afterwards, without a gap, and `ldb checkconsistency` is content.

use crate::cmd::Cmd;
use crate::need;
use crate::site::{Site, Workload};

/// Keys that the overwrite runs start from; their sequence numbers are 1 to this.
const KEYS: u64 = 5000;

/// A benchmark of db_bench.
pub enum DbBench {
    /// Fills an empty database.
    FillSync,
    /// Overwrites keys that are there.
    Overwrite,
}

impl DbBench {
    /// Sequence numbers used before the load starts.
    fn sequence_base(&self) -> u64 {
        match self {
            DbBench::FillSync => 0,
            DbBench::Overwrite => KEYS,
        }
    }
}

/// Never a compaction or a flush of the memory table: all that was written stays in the log files,
/// where each write has its number.
fn db_bench(site: &Site, benchmark: &str, num: u64) -> Vec<String> {
    let options = [
        format!("--db={}", site.path("db")),
        format!("--benchmarks={benchmark}"),
        format!("--num={num}"),
        "--value_size=200".into(),
        "--write_buffer_size=134217728".into(),
        "--disable_auto_compactions=1".into(),
        "--avoid_flush_during_recovery=1".into(),
        "--compression_type=none".into(),
        "--stats_interval=20".into(),
    ];
    let program = need::tool("db_bench").to_str().expect("text").to_owned();
    std::iter::once(program).chain(options).collect()
}

/// The last sequence number in the log files, after checking that no number below it is missing.
fn last_sequence(site: &Site, base: u64) -> Result<u64, String> {
    let entries = std::fs::read_dir(site.dir.join("db")).map_err(|error| error.to_string())?;
    let mut logs: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    logs.sort();
    let mut last = None;
    for log in logs {
        let dump = Cmd::new("ldb")
            .arg("dump_wal")
            .arg(format!("--walfile={}", log.display()))
            .arg("--header")
            .output();
        if !dump.status.success() {
            return Err(dump.told());
        }
        for line in dump.stdout.lines() {
            let mut fields = line.split(',');
            let (Some(sequence), Some(count)) = (fields.next(), fields.next()) else { continue };
            let (Ok(sequence), Ok(count)) = (sequence.parse::<u64>(), count.parse::<u64>()) else { continue };
            if last.is_some_and(|last: u64| sequence > last + 1) {
                return Err(format!("a gap in {}: {last:?} is followed by {sequence}", log.display()));
            }
            last = Some(sequence + count - 1);
        }
    }
    Ok(last.unwrap_or(base))
}

impl Workload for DbBench {
    fn name(&self) -> String {
        match self {
            DbBench::FillSync => "db_bench fillsync".into(),
            DbBench::Overwrite => "db_bench overwrite with sync".into(),
        }
    }

    fn prepare(&self, site: &Site) {
        if matches!(self, DbBench::Overwrite) {
            let argv = db_bench(site, "fillseq", KEYS);
            Cmd::new(&argv[0]).args(&argv[1..]).ok();
        }
    }

    fn program(&self, site: &Site) -> Vec<String> {
        match self {
            // fillsync does a thousandth of what it is told.
            DbBench::FillSync => db_bench(site, "fillsync", 1_000_000_000),
            DbBench::Overwrite => {
                let mut argv = db_bench(site, "overwrite", KEYS);
                argv.extend(["--use_existing_db=1".into(), "--sync=1".into(), "--duration=60".into()]);
                argv
            }
        }
    }

    /// `... thread 0: (20,340) ops and (...) ops/second in (...) seconds` acknowledges 340 writes.
    fn acknowledgement(&self) -> fn(&str) -> Option<String> {
        |line| {
            let (_, rest) = line.split_once("... thread 0: (")?;
            let (counts, _) = rest.split_once(") ops and")?;
            counts.split_once(',').map(|(_, total)| total.to_owned())
        }
    }

    fn life_ms_max(&self) -> u64 {
        500
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        let counted: u64 = acks.last().map_or(0, |total| total.parse().expect("a count"));
        // It counts a write before it looks whether that failed, as it does once the disk has lost
        // its power.
        let acknowledged = counted.saturating_sub(1);
        if acknowledged == 0 {
            // It makes a database, destroys it and makes it again before its first write: nothing
            // was promised.
            return Ok(());
        }
        let checked =
            Cmd::new("ldb").arg(format!("--db={}", site.path("db"))).arg("checkconsistency").output();
        if !checked.status.success() || !checked.stdout.contains("OK") {
            return Err(checked.told());
        }
        let found = last_sequence(site, self.sequence_base())?;
        if found >= self.sequence_base() + acknowledged {
            Ok(())
        } else {
            Err(format!(
                "{acknowledged} writes above {} acknowledged, last found {found}",
                self.sequence_base()
            ))
        }
    }
}
