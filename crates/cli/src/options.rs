//! What `run` and `serve` ask of a keeper: options that contradict each other are refused before
//! anything is started, and what was asked for by name is compared with what a running keeper has.
//! It starts nothing and opens nothing.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use holdfast_keeper::config::KeeperConfig;
use serde_json::Value;

use crate::args::{Behind, Fence, KeeperArgs};
use crate::sizes::human_bytes;
use crate::{format, locate, user};

/// What the keeper is told, from the command line.
pub fn config_of(args: &KeeperArgs) -> anyhow::Result<KeeperConfig> {
    refuse_contradictions(args)?;
    let pool = match &args.pool {
        Some(pool) => locate::absolute(pool)?,
        None if args.volatile => locate::default_volatile_pool(),
        None => bail!(
            "no pool is named: give --pool PATH, a DAX device or a file on a DAX file system (`holdfast doctor` \
             lists them), have a file in /etc/holdfast/pools.d name it, or --volatile to use memory, which survives a \
             crash of the program but not a power cut"
        ),
    };
    locate::refuse_no_text("--pool", &pool)?;
    format::refuse_volatile_media(&pool, args.volatile)?;
    refuse_batch_above_pool(args, &pool)?;
    let exclusive = args.exclusive.iter().map(|dir| exclusive_directory(dir));
    let plain = KeeperConfig::new(pool);
    Ok(KeeperConfig {
        volatile: args.volatile,
        // A spill file stays, and knows its pool.
        temporary: args.pool.is_none() && args.spill.is_none(),
        exclusive: exclusive.collect::<Result<_, _>>()?,
        fence: args.fence.map_or(plain.fence, Into::into),
        watch: std::env::var(user::WATCH_VARIABLE).ok(),
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        batch_bytes_min: args.batch_min.unwrap_or(0),
        batch_bytes_max: args.batch_max.unwrap_or(0),
        age_ms_max: args.age_max.unwrap_or(plain.age_ms_max),
        durability: args.durability.map_or(plain.durability, Into::into),
        write_behind: args.write_behind.map_or(plain.write_behind, Into::into),
        read_cache_bytes: args.read_cache.unwrap_or(plain.read_cache_bytes),
        spill: args.spill.as_deref().map(spill_path).transpose()?,
        spill_bytes: args.spill_size.unwrap_or(0),
        stop_ms_max: args.stop_max.unwrap_or(plain.stop_ms_max),
        nvm_latency_ns: args.nvm_latency_ns.unwrap_or(0),
        nvm_bandwidth_bytes_per_s: args.nvm_bandwidth.unwrap_or(0),
        ..plain
    })
}

/// A directory that the user vouches for, as its files are compared: by their real paths.
fn exclusive_directory(named: &Path) -> anyhow::Result<PathBuf> {
    let path = named.canonicalize().with_context(|| format!("--exclusive {}", named.display()))?;
    locate::refuse_no_text("--exclusive", &path)?;
    ensure!(
        path.is_dir(),
        "--exclusive {}: it is no directory, and only files below one are meant: name the directory",
        named.display()
    );
    Ok(path)
}

/// The lower bound of a batch against the upper one that the pool's size implies.
fn refuse_batch_above_pool(args: &KeeperArgs, pool: &Path) -> anyhow::Result<()> {
    let half = format::expected_bytes(pool, args.size).map(|bytes| bytes / 2);
    if let (Some(min), None, Some(half)) = (args.batch_min, args.batch_max, half)
        && min > half
    {
        bail!(
            "--batch-min {} is above half of the pool, {}, which is the default of --batch-max: lower it, or have a larger \
             pool (--size)",
            human_bytes(min),
            human_bytes(half)
        );
    }
    Ok(())
}

/// Whether root's watch is of use to who becomes another user.
pub fn wants_watch(args: &KeeperArgs) -> bool {
    matches!(args.fence, None | Some(Fence::Auto | Fence::Fanotify))
}

/// Options that contradict each other, wherever they come from.
pub fn refuse_contradictions(args: &KeeperArgs) -> anyhow::Result<()> {
    let alone = args.exclusive.is_empty();
    if args.fence == Some(Fence::None) && alone {
        bail!("--fence none manages only files below --exclusive directories, and none is given");
    }
    let behind = args.write_behind.filter(|behind| *behind != Behind::Off);
    if behind.is_some() && args.fence == Some(Fence::Inotify) && alone {
        bail!(
            "--write-behind needs a fence at which others wait, and --fence inotify only hears of them \
             afterwards: give --exclusive DIR, --fence lease, or --fence fanotify (as root)"
        );
    }
    if behind.is_none() && args.read_cache.is_some() {
        bail!("--read-cache serves files that are written behind: add --write-behind=on, or leave it out");
    }
    let memory_bytes = memory_bytes();
    if let Some(asked) = args.read_cache.filter(|asked| *asked > memory_bytes) {
        bail!(
            "--read-cache {} is more than this machine's memory, {}: lower it",
            human_bytes(asked),
            human_bytes(memory_bytes)
        );
    }
    if args.spill.is_none() && args.spill_size.is_some() {
        bail!("--spill-size is the size of a spill file: name one with --spill FILE, or leave it out");
    }
    if let (Some(min), Some(max)) = (args.batch_min, args.batch_max)
        && min > max
    {
        bail!("--batch-min {} is above --batch-max {}", human_bytes(min), human_bytes(max));
    }
    Ok(())
}

fn memory_bytes() -> u64 {
    let told = rustix::system::sysinfo();
    told.totalram.saturating_mul(told.mem_unit.into())
}

/// A pool keeps the size that it was made with.
pub fn refuse_another_size(pool: &Path, found_bytes: u64, asked_bytes: Option<u64>) -> anyhow::Result<()> {
    if let Some(asked) = asked_bytes.filter(|asked| *asked != found_bytes) {
        bail!(
            "pool {} has {}, not the {} of --size: leave --size out, or drain the pool and make it anew with \
             `holdfast format`",
            pool.display(),
            human_bytes(found_bytes),
            human_bytes(asked)
        );
    }
    Ok(())
}

/// The spill file's path as the pool keeps it: recovery follows no symbolic link.
fn spill_path(path: &Path) -> anyhow::Result<PathBuf> {
    let path = locate::absolute(path)?;
    let named = path
        .parent()
        .zip(path.file_name())
        .with_context(|| format!("--spill {}: no file", path.display()))?;
    let directory = named.0.canonicalize().with_context(|| format!("--spill {}", path.display()))?;
    let real = directory.join(named.1);
    locate::refuse_no_text("--spill", &real)?;
    Ok(real)
}

/// The options that were asked for by name and that a running keeper does not have, in words.
/// What is left to the defaults asks for nothing.
pub fn not_in_force(args: &KeeperArgs, asked: &KeeperConfig, running: &KeeperConfig) -> Vec<String> {
    let named = [
        ("--durability", "durability", args.durability.is_some()),
        ("--fence", "fence", args.fence.is_some_and(|fence| fence != Fence::Auto)),
        ("--include", "include", !args.include.is_empty()),
        ("--exclude", "exclude", !args.exclude.is_empty()),
        ("--write-behind", "write_behind", args.write_behind.is_some()),
        ("--read-cache", "read_cache_bytes", args.read_cache.is_some()),
        ("--spill", "spill", args.spill.is_some()),
        ("--batch-min", "batch_bytes_min", args.batch_min.is_some()),
        ("--batch-max", "batch_bytes_max", args.batch_max.is_some()),
        ("--age-max", "age_ms_max", args.age_max.is_some()),
        ("--stop-max", "stop_ms_max", args.stop_max.is_some()),
        ("--nvm-latency-ns", "nvm_latency_ns", args.nvm_latency_ns.is_some()),
        ("--nvm-bandwidth", "nvm_bandwidth_bytes_per_s", args.nvm_bandwidth.is_some()),
    ];
    let [wanted, found] = [asked, running].map(|config| serde_json::to_value(config).unwrap_or_default());
    let mut told: Vec<String> = named
        .into_iter()
        .filter(|(_, field, by_name)| *by_name && wanted[field] != found[field])
        .map(|(option, field, _)| {
            format!("{option} is {}, not {}", in_words(field, &found[field]), in_words(field, &wanted[field]))
        })
        .collect();
    let vouched = |dir: &PathBuf| running.exclusive.iter().any(|known| dir.starts_with(known));
    told.extend(
        asked
            .exclusive
            .iter()
            .filter(|dir| !vouched(dir))
            .map(|dir| format!("--exclusive {} is not among its own", dir.display())),
    );
    told
}

fn in_words(field: &str, value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::Number(number) if field.contains("_bytes") => {
            number.as_u64().filter(|bytes| *bytes > 0).map_or("the default".to_owned(), human_bytes)
        }
        Value::Number(number) if field.contains("_ms") => format!("{number} ms"),
        Value::Array(values) if values.is_empty() => "none".to_owned(),
        Value::Array(values) => {
            values.iter().map(|value| in_words(field, value)).collect::<Vec<_>>().join(" ")
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};

    fn asked(options: &[&str]) -> (KeeperArgs, anyhow::Result<KeeperConfig>) {
        let line = ["holdfast", "run", "--volatile", "--pool", "/dev/shm/no-such-pool"];
        let line = line.iter().chain(options).chain(&["--", "true"]).map(Into::into);
        let parsed = Arguments::from_line(line).expect("a command line").command;
        let Command::Run(args) = parsed else { panic!("not `run`") };
        let config = config_of(&args.keeper);
        (args.keeper, config)
    }

    #[test]
    fn contradictions_are_refused() {
        for (options, says) in [
            (&["--fence", "none"][..], "--exclusive"),
            (&["--fence=inotify", "--write-behind=on"], "--fence lease"),
            (&["--write-behind=off", "--read-cache=1M"], "--write-behind=on"),
            (&["--batch-min=2M", "--batch-max=1M"], "above"),
            (&["--batch-min=1G"], "half of the pool, 128.0 MiB"),
            (&["--write-behind=on", "--read-cache=900G"], "this machine's memory"),
            (&["--exclusive=/proc/self/status"], "no directory"),
        ] {
            let error = asked(options).1.expect_err("a contradiction").to_string();
            assert!(error.contains(says), "{options:?}: {error}");
        }
        asked(&["--fence=inotify", "--write-behind=on", "--exclusive=/tmp"]).1.expect("a sound one");
        let alone = ["holdfast", "run", "--volatile", "--read-cache=1M", "--", "true"];
        assert!(Arguments::from_line(alone.map(Into::into)).is_err(), "--read-cache alone");
    }

    #[test]
    fn only_what_was_asked_for_by_name_differs() {
        let (args, config) = asked(&["--durability=write", "--age-max=5s", "--exclusive=/tmp"]);
        let config = config.expect("sound");
        let running = KeeperConfig::new(config.pool.clone());
        let told = not_in_force(&args, &config, &running).join("; ");
        assert_eq!(
            told,
            "--durability is sync, not write; --age-max is 1000 ms, not 5000 ms; --exclusive /tmp is not among its own"
        );
        assert!(not_in_force(&args, &config, &config).is_empty());
        let (plain_args, plain) = asked(&[]);
        assert!(not_in_force(&plain_args, &plain.expect("sound"), &config).is_empty());
    }
}
