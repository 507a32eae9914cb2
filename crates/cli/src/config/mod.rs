//! The configuration: what every keeper is asked for (`holdfast.toml`), and one file for each pool
//! (`pools.d/*.toml`). Flags and variables come before both. A file that is wrong, or that somebody
//! else could have written, stops whoever would need it: nobody runs with less than was asked for.

mod command;
mod settings;

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};

use crate::args::KeeperArgs;
use crate::{locate, user};

pub use command::run;
pub use settings::{Fault, Settings, Text};

/// Names the directory of the configuration, where it is not the usual one.
const DIRECTORY_VARIABLE: &str = "HOLDFAST_CONFIG_DIR";
/// The usual one.
const DIRECTORY: &str = "/etc/holdfast";
/// What every keeper is asked for.
const GENERAL: &str = "holdfast.toml";
/// A file of it for each pool.
const POOLS: &str = "pools.d";
/// Nobody writes more by hand.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A pool that has a file.
#[derive(Debug)]
pub struct Pool {
    /// Its file.
    pub file: PathBuf,
    /// The pool itself.
    pub pool: PathBuf,
    /// What is asked of its keeper, with what is asked of every one.
    pub settings: Settings,
}

/// A file as it stands for itself, whatever is wrong with it.
#[derive(Debug)]
struct Own {
    file: PathBuf,
    text: Text,
    is_general: bool,
}

/// All files together.
#[derive(Debug, Default)]
pub struct Configuration {
    /// The file that is about no pool of its own.
    general: Option<(PathBuf, Settings)>,
    /// Pools by the names of their files.
    pub pools: Vec<Pool>,
    /// What is wrong, and which pool it is about as far as that can be told.
    pub faults: Vec<(Fault, Option<PathBuf>)>,
    /// Every file that could be read, the general one first.
    own: Vec<Own>,
}

/// Where the configuration is.
pub fn directory() -> PathBuf {
    let named = std::env::var_os(DIRECTORY_VARIABLE).filter(|name| !name.is_empty());
    named.map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from)
}

/// The arguments with what the configuration says where they say nothing. Who joins a keeper takes
/// from it only where the pool is.
pub fn complete(args: &KeeperArgs, joins: bool) -> anyhow::Result<KeeperArgs> {
    let configuration = Configuration::load(&directory());
    let pool = match &args.pool {
        Some(pool) => Some(locate::absolute(pool)?),
        // A volatile one is asked for, and none by name.
        None if args.volatile => None,
        None => configuration.default_pool(args.user.as_deref())?,
    };
    configuration.refuse_faults(pool.as_deref())?;
    let mut settings = configuration.settings_of(pool.as_deref());
    settings.pool = pool;
    if joins {
        settings = settings.for_who_joins();
    }
    Ok(settings.under(args))
}

/// The pool that is meant where none is named.
pub fn default_pool() -> anyhow::Result<Option<PathBuf>> {
    let configuration = Configuration::load(&directory());
    let pool = configuration.default_pool(None)?;
    configuration.refuse_faults(pool.as_deref())?;
    Ok(pool)
}

impl Configuration {
    /// Reads all files. There need not be any.
    pub fn load(directory: &Path) -> Self {
        let mut all = Self::default();
        let general = directory.join(GENERAL);
        match read(&general) {
            Ok(None) => {}
            Ok(Some(text)) => {
                let text = Text::read(&general, &text);
                all.take_general(general, text);
            }
            Err(fault) => all.faults.push((fault, None)),
        }
        match files(&directory.join(POOLS)) {
            Ok(files) => files.into_iter().for_each(|file| all.take_pool(file)),
            Err(fault) => all.faults.push((fault, None)),
        }
        all
    }

    fn take_general(&mut self, file: PathBuf, text: Text) {
        let what = "is a pool's: move it to the file of a pool in pools.d";
        for (key, is_said) in
            [("user", text.settings.user.is_some()), ("mounts", !text.settings.mounts.is_empty())]
        {
            if is_said {
                self.faults.push((text.fault_of(&file, key, format!("`{key}` {what}")), None));
            }
        }
        self.faults.extend(text.faults.iter().map(|fault| (fault.clone(), None)));
        if text.faults.is_empty() {
            self.general = Some((file.clone(), text.settings.clone()));
        }
        self.own.push(Own { file, text, is_general: true });
    }

    fn take_pool(&mut self, file: PathBuf) {
        match read(&file) {
            Ok(Some(text)) => {
                let text = Text::read(&file, &text);
                self.take_pool_of(&file, &text);
                self.own.push(Own { file, text, is_general: false });
            }
            // It has just gone.
            Ok(None) => {}
            Err(fault) => self.faults.push((fault, None)),
        }
    }

    fn take_pool_of(&mut self, file: &Path, text: &Text) {
        let settings = text.settings.clone();
        if !text.faults.is_empty() {
            let about = settings.pool.filter(|_| !text.is_torn);
            return self.faults.extend(text.faults.iter().map(|fault| (fault.clone(), about.clone())));
        }
        let Some(pool) = settings.pool.clone() else {
            let what = "it names no pool: add pool = \"/PATH\"";
            return self.faults.push((Fault::of(file, what), None));
        };
        if let Some(other) = self.pools.iter().find(|other| other.pool == pool) {
            let what = format!("{} is about the same pool: keep one of them", other.file.display());
            return self.faults.push((text.fault_of(file, "pool", what), Some(pool)));
        }
        // The pool that is meant where none is named is not every pool's.
        let settings = match &self.general {
            Some((_, general)) => settings.over(general),
            None => settings,
        };
        self.pools.push(Pool { file: file.to_owned(), pool, settings });
    }

    /// The pool of a user, who is this one unless another is named; else the one of everybody.
    fn default_pool(&self, user: Option<&str>) -> anyhow::Result<Option<PathBuf>> {
        // Who a user is others are asked: not where nothing comes of it.
        let me = if self.pools.is_empty() { None } else { user::number(user) };
        let is_theirs = |known: &&Pool| {
            let owner = known.settings.user.as_deref();
            owner.is_some() && (owner == user || me.is_some() && user::number(owner) == me)
        };
        let theirs: Vec<&Pool> = self.pools.iter().filter(is_theirs).collect();
        match theirs[..] {
            [] => Ok(self.general.as_ref().and_then(|(_, settings)| settings.pool.clone())),
            [one] => Ok(Some(one.pool.clone())),
            [one, another, ..] => bail!(
                "which pool? {} and {} are about pools of this user: name one with --pool",
                one.file.display(),
                another.file.display()
            ),
        }
    }

    fn settings_of(&self, pool: Option<&Path>) -> Settings {
        let own = self.pools.iter().find(|known| Some(known.pool.as_path()) == pool);
        let general = || self.general.as_ref().map(|(_, settings)| settings.clone());
        own.map(|known| known.settings.clone()).or_else(general).unwrap_or_default()
    }

    /// A fault in a file that is known to be about another pool is not this one's.
    pub fn refuse_faults(&self, pool: Option<&Path>) -> anyhow::Result<()> {
        let concerns = |about: &Option<PathBuf>| about.is_none() || about.as_deref() == pool;
        match self.faults.iter().find(|(_, about)| concerns(about)) {
            Some((fault, _)) => Err(anyhow!("{fault} (`holdfast config check` looks at all files)")),
            None => Ok(()),
        }
    }
}

/// The files of a directory that end in `.toml`, by name. There need not be such a directory.
fn files(directory: &Path) -> Result<Vec<PathBuf>, Fault> {
    let unreadable = |error: std::io::Error| Fault::of(directory, format!("cannot be read: {error}"));
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        // Editors leave hidden files beside those that they change.
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.extension().is_some_and(|end| end == "toml") && !is_hidden {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The text of a file that root or this user wrote, and nobody else. Nothing if there is none.
fn read(path: &Path) -> Result<Option<String>, Fault> {
    let unreadable = |error: std::io::Error| {
        let remedy = match error.kind() {
            ErrorKind::PermissionDenied => {
                ": whoever runs keepers and programs has to read it (chmod a+r; it is no place for secrets)"
            }
            ErrorKind::InvalidData => ": write it in UTF-8",
            _ => "",
        };
        Fault::of(path, format!("cannot be read: {error}{remedy}"))
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let meta = file.metadata().map_err(unreadable)?;
    let me = rustix::process::geteuid().as_raw();
    if !meta.is_file() {
        return Err(Fault::of(path, "is no file: name another one"));
    }
    if (meta.uid() != 0 && meta.uid() != me) || meta.mode() & 0o022 != 0 {
        let what = format!(
            "others may have written it (it is user {}'s, mode {:o}): chown it to root, and chmod go-w",
            meta.uid(),
            meta.mode() & 0o7777
        );
        return Err(Fault::of(path, what));
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(Fault::of(path, "is longer than 1 MiB: that is no configuration"));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    Ok(Some(text))
}
