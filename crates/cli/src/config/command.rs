//! `config check` and `config show`: what is wrong with the configuration, and what comes of it.
//! They change nothing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{Configuration, Fault, Own, Pool, Settings, directory, read};
use crate::args::{ConfigArgs, ConfigCommand, KeeperArgs};
use crate::options::Wrong;
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
    let mut faults: Vec<Fault> = configuration.faults.iter().map(|(fault, _)| fault.clone()).collect();
    // What no single key shows, and what `run` and `serve` would refuse: of what can be read of a
    // file, whatever else is wrong with it.
    for own in &configuration.own {
        faults.extend(refused(&configuration, own));
    }
    faults.sort_by(|one, other| (&one.file, one.line).cmp(&(&other.file, other.line)));
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
    let notes: String = configuration.pools.iter().flat_map(unmounted).collect();
    report::print(format!("{notes}{}: {files} {a}, {pools} {is}, nothing is wrong\n", name_of(directory)))?;
    Ok(0)
}

/// What `run` and `serve` would refuse of a file's options, and what its pool cannot keep of them.
fn refused(configuration: &Configuration, own: &Own) -> Vec<Fault> {
    let settings = &own.text.settings;
    let general = configuration.own.iter().find(|own| own.is_general).filter(|_| !own.is_general);
    let general = general.map(|general| general.text.settings.clone()).unwrap_or_default();
    // Half of a contradiction may be what could not be read.
    let is_whole =
        own.text.faults.is_empty() && !configuration.own.iter().any(|own| own.is_general && own.text.is_torn);
    let wrong_with = if is_whole { options::wrong_with } else { options::wrong_alone };
    let asked = |settings: Settings| settings.under(&KeeperArgs::default());
    let args = asked(settings.clone().over(&general));
    // What is the general file's fault is told of that one alone.
    let known = wrong_with(&asked(general));
    let mut wrong = wrong_with(&args);
    wrong.retain(|wrong| !known.contains(wrong));
    wrong.extend(args.pool.iter().flat_map(|pool| options::too_much_for(pool, &args)));
    if let Some(name) = settings.user.as_ref().filter(|name| !own.is_general && !user::exists(name)) {
        let what = format!("there is no user {name}: make one, or name another in `user`");
        wrong.push(Wrong { key: "user", what });
    }
    wrong.into_iter().map(|wrong| own.text.fault_of(&own.file, wrong.key, wrong.what)).collect()
}

/// A mount may come later: that it is not there is no fault of the file.
fn unmounted(pool: &Pool) -> Vec<String> {
    let Ok(mounted) = locate::mounted() else { return Vec::new() };
    let missing = pool.settings.mounts.iter().filter(|mount| !mounted.contains(mount));
    let told = missing.map(|mount| {
        format!(
            "note: {}: {} is not mounted now, and without it `holdfast recover --all` leaves the pool for later\n",
            name_of(&pool.file),
            name_of(mount)
        )
    });
    told.collect()
}

/// What is asked of the keeper of a pool, each line with the file that says it.
fn show(directory: &Path, pool: Option<&Path>) -> anyhow::Result<u8> {
    let configuration = Configuration::load(directory);
    let pool = pool.map(locate::absolute).transpose()?;
    configuration.refuse_faults(pool.as_deref())?;
    let mut text = String::new();
    let meant = |known: &&Pool| pool.as_ref().is_none_or(|pool| *pool == known.pool);
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
