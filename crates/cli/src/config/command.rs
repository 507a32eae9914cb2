//! `config check` and `config show`: what is wrong with the configuration, and what comes of it.
//! They change nothing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{Configuration, Fault, Settings, directory, read};
use crate::args::{ConfigArgs, ConfigCommand, KeeperArgs};
use crate::words::{name_of, quoted};
use crate::{locate, options, report, user};

/// The `config` subcommand.
pub fn run(args: &ConfigArgs) -> anyhow::Result<u8> {
    match &args.command {
        ConfigCommand::Check => check(&directory()),
        ConfigCommand::Show { pool } => show(&directory(), pool.as_deref()),
    }
}

fn check(directory: &Path) -> anyhow::Result<u8> {
    let configuration = Configuration::load(directory);
    let mut faults: Vec<Fault> = Vec::new();
    for pool in &configuration.pools {
        let args = pool.settings.clone().under(&KeeperArgs::default());
        for wrong in options::wrong_with(&args) {
            faults.push(Fault::of(&pool.file, wrong.what));
        }
        if let Some(name) = &pool.settings.user
            && !user::exists(name)
        {
            let what = format!("there is no user {name}: make one, or name another in `user`");
            faults.push(Fault::of(&pool.file, what));
        }
    }
    let read = configuration.faults.into_iter().map(|(fault, _)| fault);
    let faults: Vec<Fault> = read.chain(faults).collect();
    for fault in &faults {
        report::say(&fault.to_string());
    }
    if !faults.is_empty() {
        return Ok(1);
    }
    let general = configuration.general.is_some();
    let pools = configuration.pools.len();
    let files = pools + usize::from(general);
    let (a, is) = (if files == 1 { "file" } else { "files" }, if pools == 1 { "pool" } else { "pools" });
    report::print(format!("{}: {files} {a}, {pools} {is}, nothing is wrong\n", name_of(directory)))?;
    Ok(0)
}

/// What is asked of the keeper of a pool, each line with the file that says it.
fn show(directory: &Path, pool: Option<&Path>) -> anyhow::Result<u8> {
    let configuration = Configuration::load(directory);
    let pool = pool.map(locate::absolute).transpose()?;
    configuration.refuse_faults(pool.as_deref())?;
    let mut text = String::new();
    let meant = |known: &&super::Pool| pool.as_ref().is_none_or(|pool| *pool == known.pool);
    let general = configuration.general.as_ref().map(|(file, _)| file.clone());
    let mut sources: Vec<(String, Vec<PathBuf>)> = configuration
        .pools
        .iter()
        .filter(meant)
        .map(|known| {
            let title = format!("# pool {}", quoted(&known.pool));
            (title, general.iter().cloned().chain([known.file.clone()]).collect())
        })
        .collect();
    if sources.is_empty() {
        let what = match &pool {
            Some(pool) => format!("# pool {}, which has no file of its own", quoted(pool)),
            None => "# every pool".to_owned(),
        };
        sources.push((what, general.into_iter().collect()));
    }
    for (title, files) in sources {
        let _ = writeln!(text, "{title}");
        for (key, (value, file)) in merged(&files)? {
            let _ = writeln!(text, "{key} = {value}  # {}", name_of(&file));
        }
    }
    report::print(text)?;
    Ok(0)
}

type Lines = std::collections::BTreeMap<String, (toml::Value, PathBuf)>;

/// What the last of some files says of each key. An empty list says nothing, as in [`Settings`].
fn merged(files: &[PathBuf]) -> anyhow::Result<Lines> {
    let mut lines = Lines::new();
    for file in files {
        let Some(text) = read(file)? else { continue };
        Settings::read(file, &text)?;
        let table: toml::Table = toml::from_str(&text)?;
        for (key, value) in table {
            let says_nothing = value.as_array().is_some_and(|values| values.is_empty());
            if !says_nothing {
                lines.insert(key, (value, file.clone()));
            }
        }
    }
    Ok(lines)
}
