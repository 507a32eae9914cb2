//! What `run` and `serve` ask of a keeper: options that contradict each other are refused before
//! anything is started, and what was asked for by name is compared with what a running keeper has.
//! It starts nothing and opens nothing.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use holdfast_keeper::config::KeeperConfig;
use holdfast_keeper::wrong_with_pattern;
use holdfast_pool::Layout;
use serde_json::Value;

use crate::args::{Behind, Fence, KeeperArgs};
use crate::sizes::human_bytes;
use crate::words::quoted;
use crate::{format, locate, user};

/// The least that a cache of pages can hold.
const PAGE_BYTES: u64 = 4096;

/// What is wrong with an option.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The option, as a key of the configuration.
    pub key: &'static str,
    /// What is wrong with it, and what to do.
    pub what: String,
}

/// All that is wrong with options wherever they come from, and whatever the pool is.
pub fn wrong_with(args: &KeeperArgs) -> Vec<Wrong> {
    let mut found = Vec::new();
    contradictions(args, &mut |key, what| found.push(Wrong { key, what }));
    found.extend(wrong_alone(args));
    found
}

/// What is wrong with options each for itself, whatever the others are.
pub fn wrong_alone(args: &KeeperArgs) -> Vec<Wrong> {
    let mut found = Vec::new();
    let mut tell = |key, what| found.push(Wrong { key, what });
    values(args, &mut tell);
    patterns(args, &mut tell);
    for dir in &args.exclusive {
        if let Err(error) = exclusive_directory(dir) {
            tell("exclusive", format!("{error:#}"));
        }
    }
    if let Some(Err(error)) = args.spill.as_deref().map(spill_path) {
        tell("spill", format!("{error:#}"));
    }
    found
}

/// The first of what is wrong.
fn refuse_first(wrong: Vec<Wrong>) -> anyhow::Result<()> {
    wrong.into_iter().next().map_or(Ok(()), |wrong| Err(anyhow!(wrong.what)))
}

/// What the keeper is told, from the command line.
pub fn config_of(args: &KeeperArgs) -> anyhow::Result<KeeperConfig> {
    refuse_first(wrong_with(args))?;
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
    refuse_first(too_much_for(&pool, args))?;
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

/// What a pool of its size cannot keep of what is asked.
pub fn too_much_for(pool: &Path, args: &KeeperArgs) -> Vec<Wrong> {
    let Some(bytes) = format::expected_bytes(pool, args.size) else { return Vec::new() };
    // What is no pool, or too small for one, others say.
    let Ok(layout) = Layout::new(bytes) else { return Vec::new() };
    let mut found = Vec::new();
    let mut tell = |key, what| found.push(Wrong { key, what });
    let larger = "lower it, or have a larger pool (--size)";
    if let (Some(min), None) = (args.batch_min, args.batch_max)
        && min > bytes / 2
    {
        let (min, half) = (human_bytes(min), human_bytes(bytes / 2));
        let of_pool = "which is the default of --batch-max";
        tell(
            "batch-min",
            format!("--batch-min {min} is above half of the pool, {half}, {of_pool}: {larger}"),
        );
    }
    let log_bytes = layout.log_bytes();
    if let Some(max) = args.batch_max.filter(|max| *max > log_bytes) {
        let (max, most) = (human_bytes(max), human_bytes(log_bytes));
        let never = "so that so much is never logged";
        tell("batch-max", format!("--batch-max {max} is above the pool's log, {most}, {never}: {larger}"));
    }
    let spill_bytes_max = layout.spill_bytes_max();
    if let Some(asked) = args.spill_size.filter(|asked| *asked > spill_bytes_max) {
        let (asked, most) = (human_bytes(asked), human_bytes(spill_bytes_max));
        tell(
            "spill-size",
            format!("--spill-size {asked}: this pool can account for at most {most}: {larger}"),
        );
    }
    found
}

/// Whether root's watch is of use to who becomes another user.
pub fn wants_watch(args: &KeeperArgs) -> bool {
    matches!(args.fence, None | Some(Fence::Auto | Fence::Fanotify))
}

/// Options that contradict each other.
fn contradictions(args: &KeeperArgs, tell: &mut impl FnMut(&'static str, String)) {
    let alone = args.exclusive.is_empty();
    if args.fence == Some(Fence::None) && alone {
        let what = "--fence none manages only files below --exclusive directories, and none is given";
        tell("fence", what.to_owned());
    }
    let behind = args.write_behind.filter(|behind| *behind != Behind::Off);
    if behind.is_some() && args.fence == Some(Fence::Inotify) && alone {
        let what = "--write-behind needs a fence at which others wait, and --fence inotify only hears of them \
                    afterwards: give --exclusive DIR, --fence lease, or --fence fanotify (as root)";
        tell("write-behind", what.to_owned());
    }
    if behind.is_none() && args.read_cache.is_some() {
        let what =
            "--read-cache serves files that are written behind: add --write-behind=on, or leave it out";
        tell("read-cache", what.to_owned());
    }
    if args.spill.is_none() && args.spill_size.is_some() {
        let what = "--spill-size is the size of a spill file: name one with --spill FILE, or leave it out";
        tell("spill-size", what.to_owned());
    }
    if let (Some(min), Some(max)) = (args.batch_min, args.batch_max)
        && min > max
    {
        let (min, max) = (human_bytes(min), human_bytes(max));
        tell("batch-min", format!("--batch-min {min} is above --batch-max {max}"));
    }
}

/// Sizes that nothing can have.
fn values(args: &KeeperArgs, tell: &mut impl FnMut(&'static str, String)) {
    if let Some(Err(error)) = args.size.map(Layout::new) {
        tell("size", format!("--size: {error}"));
    }
    let memory_bytes = memory_bytes();
    match args.read_cache {
        Some(asked) if asked > memory_bytes => {
            let (asked, most) = (human_bytes(asked), human_bytes(memory_bytes));
            tell(
                "read-cache",
                format!("--read-cache {asked} is more than this machine's memory, {most}: lower it"),
            );
        }
        Some(asked @ 1..PAGE_BYTES) => {
            let (asked, page) = (human_bytes(asked), human_bytes(PAGE_BYTES));
            tell(
                "read-cache",
                format!("--read-cache {asked} holds no page, which has {page}: raise it, or say 0 for none"),
            );
        }
        _ => {}
    }
}

/// Patterns that are none, or that no file's absolute path can match.
fn patterns(args: &KeeperArgs, tell: &mut impl FnMut(&'static str, String)) {
    let named = [("include", &args.include), ("exclude", &args.exclude)];
    for (key, pattern) in
        named.into_iter().flat_map(|(key, patterns)| patterns.iter().map(move |one| (key, one)))
    {
        if let Some(wrong) = wrong_with_pattern(pattern) {
            tell(key, format!("--{key} {}: {wrong}", quoted(Path::new(pattern))));
        }
    }
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
            (&["--size=1M"], "at least 16777216 bytes (16 MiB)"),
            (&["--size=64M", "--batch-max=64M"], "--batch-max 64.0 MiB is above the pool's log, 60.0 MiB"),
            (&["--write-behind=on", "--read-cache=1"], "holds no page"),
            (&["--write-behind=on", "--read-cache=4095"], "holds no page"),
            (&["--include="], "no path is empty"),
            (&["--include=/a", "--include=srv/*"], "--include 'srv/*': it is compared with absolute paths"),
            (&["--exclude=*.tmp", "--exclude=./a"], "--exclude ./a: it is compared with absolute paths"),
            (&["--include=["], "--include '[': "),
            (&["--size=64M", "--spill=/tmp/s", "--spill-size=900T"], "can account for at most"),
        ] {
            let error = asked(options).1.expect_err("a contradiction").to_string();
            assert!(error.contains(says), "{options:?}: {error}");
        }
        asked(&["--fence=inotify", "--write-behind=on", "--exclusive=/tmp"]).1.expect("a sound one");
        asked(&["--write-behind=on", "--read-cache=0"]).1.expect("no cache");
        asked(&["--size=64M", "--batch-max=50M"]).1.expect("all of the log");
        for pattern in ["/a", "*", "?srv", "[/]a", "{/a,/b}", "**/a", "\\/a"] {
            asked(&["--include", pattern]).1.expect(pattern);
        }
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
