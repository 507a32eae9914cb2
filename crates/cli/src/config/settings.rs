//! One file of the configuration as data: the keys are the names of the command line's options.
//! What is wrong is told with its line. It opens nothing and asks the system for nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use toml::Spanned;
use toml::de::DeTable;

use crate::args::{Behind, Durability, Fence, KeeperArgs};
use crate::sizes;

/// What a file says. A key that is missing says nothing.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Settings {
    /// The pool that the file is about.
    #[serde(deserialize_with = "absolute")]
    pub pool: Option<PathBuf>,
    /// Whose it is.
    pub user: Option<String>,
    /// File systems without which its files cannot be recovered.
    #[serde(deserialize_with = "all_absolute")]
    pub mounts: Vec<PathBuf>,
    #[serde(deserialize_with = "size")]
    size: Option<u64>,
    volatile: Option<bool>,
    durability: Option<Durability>,
    #[serde(deserialize_with = "all_absolute")]
    exclusive: Vec<PathBuf>,
    fence: Option<Fence>,
    include: Vec<String>,
    exclude: Vec<String>,
    write_behind: Option<Behind>,
    #[serde(deserialize_with = "size_or_none")]
    read_cache: Option<u64>,
    /// Where the log goes on when it is full.
    #[serde(deserialize_with = "absolute")]
    pub spill: Option<PathBuf>,
    #[serde(deserialize_with = "size")]
    spill_size: Option<u64>,
    #[serde(deserialize_with = "size")]
    batch_min: Option<u64>,
    #[serde(deserialize_with = "size")]
    batch_max: Option<u64>,
    #[serde(deserialize_with = "time")]
    age_max: Option<u64>,
    #[serde(deserialize_with = "time")]
    stop_max: Option<u64>,
}

/// What is wrong with a file, and where.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The file.
    pub file: PathBuf,
    /// Its line, from 1 on, if it is one line's.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub what: String,
}

impl Fault {
    /// Of the file as a whole.
    pub fn of(file: &Path, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line: None, what: what.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Fault {}

/// So many lines that are no TOML are told of one file: more say nothing new.
const TORN_MAX: usize = 20;

/// A file as it was read.
#[derive(Debug, Default)]
pub struct Text {
    /// What it says, without the keys that are wrong.
    pub settings: Settings,
    /// All that is wrong with it, by line.
    pub faults: Vec<Fault>,
    /// Whether it is no TOML: then nobody can be sure what it is about.
    pub is_torn: bool,
    /// The lines of its keys.
    lines: BTreeMap<String, usize>,
}

impl Text {
    /// Reads the text of a file: each key for itself, so that one that is wrong hides no other one.
    pub fn read(file: &Path, text: &str) -> Self {
        let fault = |error: &toml::de::Error, line| {
            // A message of several lines would look like several faults.
            let what = error.message().trim_end().replace('\n', "; ");
            Fault { file: file.to_owned(), line: line_at(text, error.span()).or(line), what }
        };
        let mut read = Self::default();
        let mut whole = text.to_owned();
        // A reader of TOML makes little of what follows a line that is none: it is read without it.
        while let Err(error) = DeTable::parse(&whole) {
            read.is_torn = true;
            read.faults.push(fault(&error, None));
            let is_out = line_at(text, error.span()).is_some_and(|line| blank(&mut whole, line));
            if !is_out || read.faults.len() == TORN_MAX {
                break;
            }
        }
        for (key, value) in DeTable::parse_recoverable(&whole).0.into_inner() {
            let line = line_at(text, Some(key.span()));
            read.lines.extend(line.map(|line| (key.get_ref().to_string(), line)));
            let alone = DeTable::from_iter([(key, value)]);
            let alone = toml::Deserializer::from(Spanned::new(0..text.len(), alone));
            match Settings::deserialize(alone) {
                Ok(settings) => read.settings = settings.over(&read.settings),
                Err(error) => read.faults.push(fault(&error, line)),
            }
        }
        read.faults.sort_by_key(|fault| fault.line);
        read
    }

    /// What is wrong with the value of a key, which may stand in another file.
    pub fn fault_of(&self, file: &Path, key: &str, what: String) -> Fault {
        Fault { file: file.to_owned(), line: self.lines.get(key).copied(), what }
    }
}

/// The line that something is in, from 1 on.
fn line_at(text: &str, span: Option<Range<usize>>) -> Option<usize> {
    let at = span?.start.min(text.len());
    Some(text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1)
}

/// Takes the text of a line away, and leaves all others where they are. Whether there was any.
fn blank(text: &mut String, line: usize) -> bool {
    let Some(found) = text.split('\n').nth(line - 1) else { return false };
    let from = found.as_ptr() as usize - text.as_ptr() as usize;
    let (bytes, had_any) = (found.len(), !found.trim().is_empty());
    text.replace_range(from..from + bytes, &" ".repeat(bytes));
    had_any
}

impl Settings {
    /// Reads the text of a file, of which nothing counts if anything is wrong with it.
    pub fn read(file: &Path, text: &str) -> Result<Self, Fault> {
        let read = Text::read(file, text);
        read.faults.into_iter().next().map_or(Ok(read.settings), Err)
    }

    /// These, and what they do not say as `base` says it.
    pub fn over(self, base: &Self) -> Self {
        let words = |own: Vec<String>, base: &Vec<String>| if own.is_empty() { base.clone() } else { own };
        let paths = |own: Vec<PathBuf>, base: &Vec<PathBuf>| if own.is_empty() { base.clone() } else { own };
        Self {
            pool: self.pool.or_else(|| base.pool.clone()),
            user: self.user.or_else(|| base.user.clone()),
            mounts: paths(self.mounts, &base.mounts),
            size: self.size.or(base.size),
            volatile: self.volatile.or(base.volatile),
            durability: self.durability.or(base.durability),
            exclusive: paths(self.exclusive, &base.exclusive),
            fence: self.fence.or(base.fence),
            include: words(self.include, &base.include),
            exclude: words(self.exclude, &base.exclude),
            write_behind: self.write_behind.or(base.write_behind),
            read_cache: self.read_cache.or(base.read_cache),
            spill: self.spill.or_else(|| base.spill.clone()),
            spill_size: self.spill_size.or(base.spill_size),
            batch_min: self.batch_min.or(base.batch_min),
            batch_max: self.batch_max.or(base.batch_max),
            age_max: self.age_max.or(base.age_max),
            stop_max: self.stop_max.or(base.stop_max),
        }
    }

    /// Who joins a keeper has it as it is: only whose it is and what its pool lies on stay.
    pub fn for_who_joins(self) -> Self {
        Self { pool: self.pool, user: self.user, volatile: self.volatile, ..Self::default() }
    }

    /// The arguments, and what they do not say as these settings say it.
    pub fn under(self, args: &KeeperArgs) -> KeeperArgs {
        let args = args.clone();
        KeeperArgs {
            pool: args.pool.or(self.pool),
            size: args.size.or(self.size),
            volatile: args.volatile || self.volatile == Some(true),
            durability: args.durability.or(self.durability),
            exclusive: if args.exclusive.is_empty() { self.exclusive } else { args.exclusive },
            fence: args.fence.or(self.fence),
            include: if args.include.is_empty() { self.include } else { args.include },
            exclude: if args.exclude.is_empty() { self.exclude } else { args.exclude },
            write_behind: args.write_behind.or(self.write_behind),
            read_cache: args.read_cache.or(self.read_cache),
            spill: args.spill.or(self.spill),
            spill_size: args.spill_size.or(self.spill_size),
            batch_min: args.batch_min.or(self.batch_min),
            batch_max: args.batch_max.or(self.batch_max),
            age_max: args.age_max.or(self.age_max),
            stop_max: args.stop_max.or(self.stop_max),
            nvm_latency_ns: args.nvm_latency_ns,
            nvm_bandwidth: args.nvm_bandwidth,
            user: args.user.or(self.user),
        }
    }
}

/// A text that a function of the command line reads, or a number that stands for itself.
struct Read(fn(&str) -> Result<u64, String>);

impl Visitor<'_> for Read {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text such as \"64M\" or \"5s\", or a number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        (self.0)(text).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        if number < 0 {
            return Err(E::invalid_value(Unexpected::Signed(number), &self));
        }
        self.visit_str(&number.to_string())
    }
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_any(Read(sizes::parse_bytes)).map(Some)
}

fn size_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_any(Read(sizes::parse_bytes_or_none)).map(Some)
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_any(Read(sizes::parse_ms)).map(Some)
}

/// A service has no working directory that anybody would think of.
fn absolute<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    must_be_absolute(PathBuf::deserialize(from)?).map(Some)
}

fn all_absolute<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
    Vec::<PathBuf>::deserialize(from)?.into_iter().map(must_be_absolute).collect()
}

fn must_be_absolute<E: Error>(path: PathBuf) -> Result<PathBuf, E> {
    if path.is_absolute() {
        return Ok(path);
    }
    Err(E::custom(format!("{path:?} is not the whole of a path: let it begin with /")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};

    fn read(text: &str) -> Result<Settings, String> {
        Settings::read(Path::new("a.toml"), text).map_err(|fault| fault.to_string())
    }

    fn args(options: &[&str]) -> KeeperArgs {
        let line = ["holdfast", "serve"].iter().chain(options).map(Into::into);
        match Arguments::from_line(line).expect("a command line").command {
            Command::Serve(args) => args.keeper,
            other => panic!("not `serve`: {other:?}"),
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, says) in [
            ("durability = 'write'\n\nfens = 'auto'\n", "a.toml:3: unknown field `fens`"),
            ("# x\ndurability = 'never'", "a.toml:2: unknown variant `never`, expected `sync` or `write`"),
            ("size = '4GB'", "a.toml:1: unknown unit \"GB\": write K, M, G or T"),
            ("size = -4", "a.toml:1: invalid value: integer `-4`"),
            ("\nage-max = '2h'", "a.toml:2: must be from 1 ms to an hour"),
            ("pool = 'db.pool'", "a.toml:1: \"db.pool\" is not the whole of a path"),
            ("mounts = ['/srv',\n 'srv']", "is not the whole of a path"),
            ("size = '4G'\nsize = '5G'", "a.toml:2: duplicate key"),
            ("volatile = 'yes'", "a.toml:1: invalid type"),
            ("user = \n", "a.toml:1: "),
        ] {
            let told = read(text).expect_err(text);
            assert!(told.contains(says) && !told.contains('\n'), "{text}: {told}");
        }
    }

    #[test]
    fn one_key_that_is_wrong_hides_no_other() {
        let text = "pool = '/x'\nbogus = 1\nsize = '4Q'\nuser = 5\nage-max = '1d'\nbatch-max\nbatch-min = '1M'\n\
                    bogus = 2\nspill = [\n'/a']\n[include]\nx = 1\n";
        let read = Text::read(Path::new("a.toml"), text);
        let told: Vec<String> = read.faults.iter().map(ToString::to_string).collect();
        let lines: Vec<Option<usize>> = read.faults.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [2, 3, 4, 5, 6, 8, 9, 11].map(Some), "{told:#?}");
        assert!(told[3].contains("unknown unit \"d\""), "{told:#?}");
        assert_eq!(read.settings.pool, Some(PathBuf::from("/x")));
        assert_eq!((read.settings.batch_min, read.settings.batch_max), (Some(1 << 20), None));
        assert_eq!(read.fault_of(Path::new("b"), "batch-min", "x".to_owned()).to_string(), "b:7: x");
        assert_eq!(read.fault_of(Path::new("b"), "mounts", "x".to_owned()).to_string(), "b: x");
    }

    #[test]
    fn flags_come_before_the_pools_file_and_that_before_the_general_one() {
        let general = read("durability = 'write'\nage-max = 200\nexclude = ['/a']\nfence = 'lease'").unwrap();
        let of_pool = read("pool = '/p'\nage-max = '5s'\nsize = '64M'\nvolatile = true").unwrap();
        let both = of_pool.over(&general);
        let made = both.clone().under(&args(&["--fence", "inotify", "--exclude", "/b"]));
        assert_eq!(made.pool, Some(PathBuf::from("/p")));
        assert_eq!((made.size, made.age_max, made.volatile), (Some(64 << 20), Some(5000), true));
        assert_eq!((made.durability, made.fence), (Some(Durability::Write), Some(Fence::Inotify)));
        assert_eq!(made.exclude, ["/b"]);
        let joined = both.for_who_joins().under(&args(&[]));
        assert_eq!((joined.age_max, joined.size, joined.volatile), (None, None, true));
    }
}
