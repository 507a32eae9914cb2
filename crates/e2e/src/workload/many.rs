//! Many writers: processes with several threads each, which overwrite their own parts of shared
//! files and append to shared logs. What each one does follows from the seed, so the files are
//! checked to the byte against the journal in which the writers note each operation once it
//! returned. The parts share pages, so that writers meet in the page locks.

pub mod writers;

use std::collections::BTreeMap;

use crate::need;
use crate::site::{Site, Workload};
use holdfast_testkit::Random;

/// Files that are overwritten, each by all writers.
pub const SHARED_FILES: u64 = 3;
/// Files that are appended to, each by all writers.
pub const LOGS: u64 = 2;
/// Bytes of a writer's part of a shared file: no multiple of a page.
const PART_BYTES: u64 = 50_000;
const RECORD_HEAD_BYTES: usize = 24;

/// Processes and threads.
#[derive(Clone, Copy, Debug)]
pub struct Crew {
    /// Decides every operation.
    pub seed: u64,
    /// Processes.
    pub processes: u64,
    /// Threads of each.
    pub threads: u64,
    /// Operations of each thread; it ends after them.
    pub operations: u64,
    /// Whether each operation is synced before it is noted, which a run without Holdfast needs to
    /// be durable.
    pub synced: bool,
    /// Whether the disk may fail under the running writers, before they are killed: the kernel then
    /// takes only the first pages of a write, and tells its program so, which cannot note it any
    /// more.
    pub disk_may_fail: bool,
}

/// What a writer does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes at an offset of a shared file.
    Write {
        /// Which file.
        file: u64,
        /// Where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Appends a record that says what it is.
    Append {
        /// Which log.
        log: u64,
        /// The record.
        bytes: Vec<u8>,
    },
}

impl Operation {
    /// What a write that ends short may have written: its bytes up to the end of one of its pages.
    fn short_forms(&self) -> impl Iterator<Item = Self> + '_ {
        const PAGE_BYTES: u64 = 4096;
        let (file, offset, bytes) = match self {
            Self::Write { file, offset, bytes } => (*file, *offset, bytes.as_slice()),
            Self::Append { .. } => (0, 0, &[][..]),
        };
        let ends = (offset / PAGE_BYTES + 1..).map(move |page| page * PAGE_BYTES - offset);
        ends.take_while(move |end| *end < bytes.len() as u64).map(move |end| Self::Write {
            file,
            offset,
            bytes: bytes[..end as usize].to_vec(),
        })
    }
}

/// The operations of one writer, in order.
pub struct Operations {
    random: Random,
    writer: u64,
    number: u64,
}

impl Operations {
    /// Those of the writer with that number.
    pub fn new(seed: u64, writer: u64) -> Self {
        let mixed = seed ^ (writer + 1).wrapping_mul(0xd134_2543_de82_ef95);
        Self { random: Random::new(mixed), writer, number: 0 }
    }
}

fn filled(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.draw().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

impl Iterator for Operations {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        self.number += 1;
        let random = &mut self.random;
        let len = match random.between(0, 10) {
            0..6 => random.between(1, 700),
            6..9 => random.between(700, 9000),
            _ => random.between(9000, 40_000),
        };
        if random.between(0, 3) == 0 {
            let body = filled(random, len as usize);
            let sum = crc32c::crc32c(&body);
            let head = [self.writer, self.number, len | u64::from(sum) << 32].map(u64::to_le_bytes).concat();
            let log = random.between(0, LOGS);
            return Some(Operation::Append { log, bytes: [head, body].concat() });
        }
        let file = random.between(0, SHARED_FILES);
        let offset = self.writer * PART_BYTES + random.between(0, PART_BYTES - len);
        Some(Operation::Write { file, offset, bytes: filled(random, len as usize) })
    }
}

/// The name of a shared file.
pub fn file_name(file: u64) -> String {
    format!("shared-{file}")
}

/// The name of a log.
pub fn log_name(log: u64) -> String {
    format!("log-{log}")
}

impl Crew {
    fn writers(&self) -> u64 {
        self.processes * self.threads
    }

    /// Compares the files below `dir` with what the writers noted.
    pub fn judge(&self, dir: &std::path::Path, noted: &BTreeMap<u64, u64>) -> Result<(), String> {
        let read = |name: String| std::fs::read(dir.join(name)).unwrap_or_default();
        let files: Vec<Vec<u8>> = (0..SHARED_FILES).map(|file| read(file_name(file))).collect();
        let mut appended = BTreeMap::<u64, Vec<(u64, u64)>>::new();
        for log in 0..LOGS {
            let bytes = read(log_name(log));
            let whole = self.whole_part(log, &bytes, noted);
            for (writer, number) in records(whole).map_err(|e| format!("{}: {e}", log_name(log)))? {
                appended.entry(writer).or_default().push((number, log));
            }
        }
        for writer in 0..self.writers() {
            let done = noted.get(&writer).copied().unwrap_or_default();
            let found = appended.remove(&writer).unwrap_or_default();
            self.judge_writer(writer, done, &files, found)
                .map_err(|error| format!("writer {writer} noted {done}: {error}"))?;
        }
        if appended.is_empty() { Ok(()) } else { Err(format!("records of nobody: {appended:?}")) }
    }

    /// A log without the beginning of an append at its end that a failing disk cut short: at the
    /// end of a page, and of what its writer had under way.
    fn whole_part<'a>(&self, log: u64, bytes: &'a [u8], noted: &BTreeMap<u64, u64>) -> &'a [u8] {
        const PAGE_BYTES: usize = 4096;
        let whole = &bytes[..whole_bytes(bytes)];
        let rest = &bytes[whole.len()..];
        let is_cut_short = self.disk_may_fail
            && bytes.len().is_multiple_of(PAGE_BYTES)
            && (0..self.writers()).any(|writer| {
                let done = noted.get(&writer).copied().unwrap_or_default();
                let next = Operations::new(self.seed, writer).nth(done as usize);
                matches!(next, Some(Operation::Append { log: to, bytes }) if to == log && bytes.starts_with(rest))
            });
        if is_cut_short { whole } else { bytes }
    }

    /// The operation that was under way is there whole, or not at all; every one before it is
    /// there.
    fn judge_writer(
        &self,
        writer: u64,
        done: u64,
        files: &[Vec<u8>],
        mut found: Vec<(u64, u64)>,
    ) -> Result<(), String> {
        // Each log is in order; between the logs there is none.
        if !(0..LOGS).all(|log| found.iter().filter(|row| row.1 == log).is_sorted()) {
            return Err("its appends are out of order".into());
        }
        found.sort_unstable();
        let mut model = Model::new(writer);
        let mut operations = Operations::new(self.seed, writer);
        operations.by_ref().take(done as usize).for_each(|operation| model.perform(operation));
        let Err(before) = model.compare(files, &found) else { return Ok(()) };
        let next = operations.next().expect("they never end");
        if self.disk_may_fail
            && next.short_forms().any(|short| {
                let mut model = model.clone();
                model.perform(short);
                model.compare(files, &found).is_ok()
            })
        {
            return Ok(());
        }
        model.perform(next);
        model.compare(files, &found).map_err(|after| format!("{before}; with the next one {after}"))
    }
}

/// What the operations of one writer make.
#[derive(Clone)]
struct Model {
    writer: u64,
    done: u64,
    /// Its part of each shared file.
    parts: Vec<Vec<u8>>,
    /// Number and log of each append.
    appended: Vec<(u64, u64)>,
}

impl Model {
    fn new(writer: u64) -> Self {
        let parts = vec![vec![0; PART_BYTES as usize]; SHARED_FILES as usize];
        Self { writer, done: 0, parts, appended: Vec::new() }
    }

    fn perform(&mut self, operation: Operation) {
        self.done += 1;
        match operation {
            Operation::Write { file, offset, bytes } => {
                let at = (offset - self.writer * PART_BYTES) as usize;
                self.parts[file as usize][at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Operation::Append { log, .. } => self.appended.push((self.done, log)),
        }
    }

    fn compare(&self, files: &[Vec<u8>], found: &[(u64, u64)]) -> Result<(), String> {
        let start = (self.writer * PART_BYTES) as usize;
        for (file, part) in self.parts.iter().enumerate() {
            // A file that ends early reads as zeros there.
            let byte = |at: usize| files[file].get(start + at).copied().unwrap_or_default();
            if let Some(at) = (0..part.len()).find(|at| byte(*at) != part[*at]) {
                return Err(format!("{} differs at {}", file_name(file as u64), start + at));
            }
        }
        if found == self.appended {
            return Ok(());
        }
        let missing = self.appended.iter().find(|row| !found.contains(row));
        let foreign = found.iter().find(|row| !self.appended.contains(row));
        Err(format!("append missing: {missing:?}, too much: {foreign:?} (number, log)"))
    }
}

/// Writer and number of each record; an error says where a log is torn.
fn records(log: &[u8]) -> Result<Vec<(u64, u64)>, String> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < log.len() {
        let Some((writer, number, bytes)) = record(&log[at..]) else {
            return Err(format!("torn at {at} of {} bytes, after {} records", log.len(), found.len()));
        };
        found.push((writer, number));
        at += bytes;
    }
    Ok(found)
}

/// Bytes of the whole records at the beginning of a log.
fn whole_bytes(log: &[u8]) -> usize {
    let mut at = 0;
    while let Some((_, _, bytes)) = record(&log[at..]) {
        at += bytes;
    }
    at
}

/// Writer, number and length of the record at the beginning of some bytes, if it is whole.
fn record(log: &[u8]) -> Option<(u64, u64, usize)> {
    let head = log.get(..RECORD_HEAD_BYTES)?;
    let word = |index: usize| u64::from_le_bytes(head[index * 8..index * 8 + 8].try_into().expect("8 bytes"));
    let (len, sum) = ((word(2) & 0xffff_ffff) as usize, (word(2) >> 32) as u32);
    let body = log.get(RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + len)?;
    (crc32c::crc32c(body) == sum).then(|| (word(0), word(1), RECORD_HEAD_BYTES + len))
}

/// The last operation that each writer noted; an error says which note is missing.
pub fn noted(journal: &str) -> Result<BTreeMap<u64, u64>, String> {
    let mut last = BTreeMap::new();
    for line in journal.lines() {
        let mut numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok());
        let (Some(writer), Some(number)) = (numbers.next(), numbers.next()) else {
            return Err(format!("the journal says {line:?}"));
        };
        let before = last.insert(writer, number).unwrap_or_default();
        if before + 1 != number {
            return Err(format!("writer {writer} noted {number} after {before}"));
        }
    }
    Ok(last)
}

impl Workload for Crew {
    fn name(&self) -> String {
        format!("{} processes of {} writers", self.processes, self.threads)
    }

    fn prepare(&self, _site: &Site) {}

    fn program(&self, site: &Site) -> Vec<String> {
        let program = need::own("holdfast-writers").to_str().expect("text").to_owned();
        let (dir, journal) = (site.dir.to_str().expect("text").to_owned(), self.journal(site));
        let numbers = [self.seed, self.processes, self.threads, self.operations, u64::from(self.synced)];
        [program, dir, journal].into_iter().chain(numbers.map(|number| number.to_string())).collect()
    }

    /// With and without a fence, and files that expire seldom or all the time. Not behind inotify:
    /// it tells an open of a client from another's only afterwards, and a file that is cut in
    /// between is left to a person.
    fn options(&self, site: &Site) -> Vec<String> {
        let age_ms_max = ["5", "50", "1000"][(self.seed / 8 % 3) as usize];
        let mut options = vec!["--age-max".to_owned(), age_ms_max.to_owned()];
        if (self.seed / 24).is_multiple_of(3) {
            options.extend(["--exclusive".into(), site.dir.to_str().expect("text").into()]);
        }
        options
    }

    fn check(&self, site: &Site, _acks: &[String]) -> Result<(), String> {
        let journal = std::fs::read_to_string(self.journal(site)).unwrap_or_default();
        noted(&journal).and_then(|noted| self.judge(&site.dir, &noted))
    }

    fn acknowledged(&self, site: &Site, _acks: &[String]) -> usize {
        // A line is at least this long.
        std::fs::metadata(self.journal(site)).map_or(0, |meta| meta.len() as usize / 8)
    }
}

impl Crew {
    /// In memory, where the kernel keeps it through every kill, and no file that Holdfast would
    /// manage.
    fn journal(&self, site: &Site) -> String {
        site.memory("journal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crew() -> Crew {
        Crew { seed: 7, processes: 1, threads: 2, operations: 40, synced: false, disk_may_fail: false }
    }

    /// Does the operations of all writers natively, in turns.
    fn perform(dir: &std::path::Path, crew: &Crew, counts: &[u64]) {
        use std::os::unix::fs::FileExt;
        let open = |name: String| {
            std::fs::File::options()
                .create(true)
                .append(name.starts_with("log"))
                .write(true)
                .open(dir.join(name))
        };
        for (writer, count) in counts.iter().enumerate() {
            for (operation, _) in Operations::new(crew.seed, writer as u64).zip(0..*count) {
                match operation {
                    Operation::Write { file, offset, bytes } => {
                        open(file_name(file)).unwrap().write_all_at(&bytes, offset).unwrap();
                    }
                    Operation::Append { log, bytes } => {
                        std::io::Write::write_all(&mut open(log_name(log)).unwrap(), &bytes).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn the_judge_takes_what_was_noted_and_one_more() {
        let dir = tempfile::tempdir().unwrap();
        perform(dir.path(), &crew(), &[20, 15]);
        for counts in [[20, 15], [19, 15], [20, 14]] {
            crew()
                .judge(dir.path(), &counts.into_iter().enumerate().map(|(w, n)| (w as u64, n)).collect())
                .unwrap();
        }
    }

    #[test]
    fn the_judge_sees_a_lost_operation_a_torn_record_and_a_changed_byte() {
        let dir = tempfile::tempdir().unwrap();
        perform(dir.path(), &crew(), &[20, 15]);
        let noted = BTreeMap::from([(0, 20), (1, 15)]);
        for (name, at) in [(log_name(0), 30), (file_name(0), 60_000)] {
            let bytes = std::fs::read(dir.path().join(&name)).unwrap();
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            std::fs::write(dir.path().join(&name), &changed).unwrap();
            crew().judge(dir.path(), &noted).unwrap_err();
            std::fs::write(dir.path().join(&name), &bytes[..bytes.len() - 1]).unwrap();
            crew().judge(dir.path(), &noted).unwrap_err();
            std::fs::write(dir.path().join(&name), &bytes).unwrap();
        }
        crew().judge(dir.path(), &noted).unwrap();
        crew().judge(dir.path(), &BTreeMap::from([(0, 22), (1, 15)])).unwrap_err();
        crew().judge(dir.path(), &BTreeMap::from([(0, 18), (1, 15)])).unwrap_err();
        noted_must_be_without_gaps();
    }

    #[test]
    fn the_judge_takes_an_append_that_a_failing_disk_cut_at_the_end_of_a_page() {
        let page_rest = |log: u64, dir: &std::path::Path| {
            let bytes = std::fs::read(dir.join(log_name(log))).unwrap_or_default();
            (4096 - bytes.len() % 4096) % 4096
        };
        let failing = || Crew { disk_may_fail: true, ..crew() };
        let shown = (0..40).filter(|&done| {
            let dir = tempfile::tempdir().unwrap();
            perform(dir.path(), &crew(), &[done, 15]);
            let next = Operations::new(crew().seed, 0).nth(done as usize);
            let Some(Operation::Append { log, bytes }) = next else { return false };
            let rest = page_rest(log, dir.path());
            if rest == 0 || rest >= bytes.len() {
                return false;
            }
            let path = dir.path().join(log_name(log));
            let before = std::fs::read(&path).unwrap();
            std::fs::write(&path, [&before, &bytes[..rest]].concat()).unwrap();
            let noted = BTreeMap::from([(0, done), (1, 15)]);
            failing().judge(dir.path(), &noted).unwrap();
            crew().judge(dir.path(), &noted).unwrap_err();
            std::fs::write(&path, [&before, &bytes[..rest - 1]].concat()).unwrap();
            failing().judge(dir.path(), &noted).unwrap_err();
            true
        });
        assert!(shown.count() > 0, "no append of these ends behind a page");
    }

    fn noted_must_be_without_gaps() {
        assert_eq!(noted("1 1\n0 1\n1 2\n").unwrap(), BTreeMap::from([(0, 1), (1, 2)]));
        noted("1 1\n1 3\n").unwrap_err();
    }
}
