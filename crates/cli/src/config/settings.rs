//! One file of the configuration as data: the keys are the names of the command line's options.
//! What is wrong is told with its line. It opens nothing and asks the system for nothing.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

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
#[derive(Debug)]
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

impl Settings {
    /// Reads the text of a file.
    pub fn read(file: &Path, text: &str) -> Result<Self, Fault> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let at = error.span().map(|span| span.start.min(text.len()));
            let line = at.map(|at| text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1);
            // A message of several lines would look like several faults.
            let what = error.message().trim_end().replace('\n', "; ");
            Fault { file: file.to_owned(), line, what }
        })
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
