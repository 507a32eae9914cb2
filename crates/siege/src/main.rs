//! The command: plays cases within a time budget, prints each difference with the command that
//! repeats it, and a summary. All of it happens in namespaces of its own, so that nothing is left
//! mounted and nobody running however it ends.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::{need, tally};
use holdfast_siege::calibrate::{self, Wrong, calibrate};
use holdfast_siege::disk::Kind;
use holdfast_siege::explore::{Found, Plan, explore, in_seconds};
use holdfast_siege::op::Case;
use holdfast_siege::play::Tools;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::getpid;

/// Plays short sequences of operations under Holdfast and natively, each with a power cut, and
/// compares what is left.
#[derive(Parser)]
#[command(
    name = "holdfast-siege",
    after_help = "Examples:
  holdfast-siege --fs ext4 --length 1                          all sequences of one operation
  holdfast-siege --fs xfs --length 2 --seconds 600 --keep-going
                                                               of two, as many as fit into ten minutes
  holdfast-siege --fs ext4 --length 2 --slice 0/4              a quarter of them
  holdfast-siege --fs btrfs --length 3,4 --seed 7 --seconds 60  drawn ones
  holdfast-siege --fs ext4 --case 'append a/old; o:cut a/old; fsync a/old'
                                                               one, as a difference prints it

A step is `verb path [path]`, made by the program, with q: before it by a second program under the same keeper, with
o: by a process without Holdfast. Before the first step there are the directories a, a/sub and b, and files of 12288
bytes: a/old and b/clean, which nobody touched, a/live, which the program wrote to and synced, and a/made, which it
made and synced. Needs root and loop devices. Exits 1 if there are differences."
)]
struct Args {
    /// The file systems.
    #[arg(long, value_delimiter = ',', default_value = "ext4")]
    fs: Vec<Kind>,
    /// How many operations: 1 and 2 are played in whole, more are drawn as long as there is time.
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1")]
    length: Vec<usize>,
    /// This case alone.
    #[arg(long, value_name = "STEPS")]
    case: Option<Case>,
    /// Play the case so many times.
    #[arg(long, value_name = "N", default_value_t = 1)]
    times: u64,
    /// End after so many seconds, which the file systems and lengths share.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// At most so many cases of each length.
    #[arg(long, value_name = "N", default_value_t = usize::MAX)]
    cases: usize,
    /// Decides the order of the cases, and which are drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only the part with this number (from 0 on) of so many.
    #[arg(long, value_name = "K/N", value_parser = slice, default_value = "0/1")]
    slice: (usize, usize),
    /// Of one and two operations only those that the program makes by itself.
    #[arg(long)]
    alone: bool,
    /// Go on behind a difference.
    #[arg(long)]
    keep_going: bool,
    /// Print differences as they are found, with all their steps.
    #[arg(long)]
    whole: bool,
    /// Cases at once. They wait more than they compute.
    #[arg(long, value_name = "N", default_value_t = 4)]
    workers: usize,
    /// Let a deliberate bug show; needs --holdfast with a build that has it (docs/testing.md).
    #[arg(long, value_name = "NAME")]
    canary: Option<String>,
    /// Drop every sync in place of Holdfast: the control, which must differ.
    #[arg(long)]
    forget: bool,
    /// Hold the simulator's disks to the kernels instead of Holdfast: all cases of one and two
    /// operations that both know.
    #[arg(long)]
    calibrate: bool,
    /// With --calibrate: so many ways of syncing in between for each case.
    #[arg(long, value_name = "N", default_value_t = 16)]
    plans: usize,
    /// With --calibrate: a model that is wrong, which must differ.
    #[arg(long, value_name = "NAME")]
    wrong: Option<Wrong>,
    /// Also tell of what is known not to be promised: with --calibrate by the models, else of what
    /// outsiders changed elsewhere.
    #[arg(long)]
    strict: bool,
    /// The `holdfast` to test [default: HOLDFAST_BIN, or target/release/holdfast].
    #[arg(long, value_name = "PATH")]
    holdfast: Option<PathBuf>,
    /// Let so many milliseconds go by after each step of an outsider: what is then still different
    /// was not noticed at all, and what no longer is was noticed too late.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    outsider_pause: u64,
    /// An option for every `holdfast run`.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    run_option: Vec<String>,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
    /// Print what recovery said with each difference.
    #[arg(long)]
    verbose: bool,
}

fn slice(text: &str) -> Result<(usize, usize), String> {
    let parts =
        text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    parts.filter(|(part, parts)| part < parts).ok_or_else(|| "a slice is K/N, K below N".to_owned())
}

fn main() -> ExitCode {
    let args = Args::parse();
    // In a namespace of its own the first process is number 1, and waits for what the killed leave
    // behind.
    let ran = if getpid().is_init() { run(&args) } else { Err(enter_namespaces()) };
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("holdfast-siege: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs this program again, alone with its processes and mounts: whoever kills it kills all.
/// Returns only if that fails.
fn enter_namespaces() -> anyhow::Error {
    need::root();
    let this = match std::env::current_exe() {
        Ok(this) => this,
        Err(error) => return error.into(),
    };
    let mut unshare = Command::new(need::tool("unshare"));
    unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]).arg(this);
    unshare.args(std::env::args_os().skip(1)).exec().into()
}

/// Others' scratch file systems would stay mounted here for as long as we run, whatever they do.
fn let_go_of_others() -> anyhow::Result<()> {
    let scratch = std::env::temp_dir().join("holdfast-");
    let scratch = scratch.to_str().context("temporary directory")?;
    let table = std::fs::read_to_string("/proc/self/mountinfo").context("mounts")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    for point in points.filter(|point| point.starts_with(scratch)) {
        // One that lies in another may be gone with that.
        let _ = unmount(point, UnmountFlags::DETACH);
    }
    Ok(())
}

fn run(args: &Args) -> anyhow::Result<bool> {
    let_go_of_others()?;
    let home = tempfile::Builder::new().prefix("holdfast-siege-").tempdir_in("/dev/shm")?;
    mount("siege", home.path(), "tmpfs", MountFlags::empty(), None).context("tmpfs")?;
    let same = play(args, home.path());
    unmount(home.path(), UnmountFlags::DETACH)?;
    same
}

fn play(args: &Args, home: &Path) -> anyhow::Result<bool> {
    let tools = Arc::new(Tools {
        actor: compile(home)?,
        holdfast: holdfast(args)?,
        pause_ms: args.outsider_pause,
        options: args.run_option.clone(),
        canary: args.canary.clone(),
        forgets: args.forget,
    });
    if args.calibrate {
        return calibrated(args, &tools, home);
    }
    let mut same = true;
    let mut summaries = serde_json::Map::new();
    for (index, fs) in args.fs.iter().enumerate() {
        let share = args.seconds.map(|seconds| seconds / args.fs.len() as u64);
        let plan = Plan {
            fs: *fs,
            lengths: args.length.clone(),
            case: args.case.clone(),
            times: args.times,
            seed: args.seed,
            slice: args.slice,
            until: share.map(in_seconds),
            keep_going: args.keep_going,
            shorten: !args.whole && args.case.is_none(),
            alone: args.alone,
            strict: args.strict,
            workers: if args.case.is_some() { 1 } else { args.workers },
            cases_max: args.cases,
        };
        let found = explore(&plan, &tools, home, &|difference| {
            if !args.json {
                println!("{difference}");
                if args.verbose {
                    println!("{}", difference.recovery);
                }
            }
        })?;
        same &= found.differences.is_empty();
        if args.json {
            summaries.insert(fs.name().to_owned(), serde_json::to_value(&found)?);
        } else {
            tell(*fs, args, &found);
        }
        if !same && !args.keep_going && index + 1 < args.fs.len() {
            break;
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&summaries)?);
    }
    Ok(same)
}

/// Native runs need none.
fn holdfast(args: &Args) -> anyhow::Result<PathBuf> {
    if args.calibrate {
        return Ok(PathBuf::new());
    }
    Ok(args.holdfast.clone().unwrap_or_else(need::holdfast).canonicalize()?)
}

/// Holds the simulator's disks to the kernels.
fn calibrated(args: &Args, tools: &Arc<Tools>, home: &Path) -> anyhow::Result<bool> {
    let mut same = true;
    let mut summaries = serde_json::Map::new();
    for fs in &args.fs {
        let share = args.seconds.map(|seconds| seconds / args.fs.len() as u64);
        let plan = calibrate::Plan {
            fs: *fs,
            case: args.case.clone(),
            seed: args.seed,
            slice: args.slice,
            until: share.map(in_seconds),
            plans: args.plans,
            wrong: args.wrong,
            strict: args.strict,
            workers: if args.case.is_some() { 1 } else { args.workers },
        };
        let found = calibrate(&plan, tools, home)?;
        same &= found.differences.is_empty();
        if args.json {
            summaries.insert(fs.name().to_owned(), serde_json::to_value(&found)?);
            continue;
        }
        let name = fs.name();
        for difference in &found.differences {
            println!("{:?} on {name}: {}", difference.kind, difference.case);
            difference.told.iter().for_each(|line| println!("    {line}"));
            println!("    $ holdfast-siege --calibrate --fs {name} --case '{}'", difference.case);
        }
        for (weaker, cases) in &found.weaker {
            println!("summary: {name}: weaker on purpose in {cases} cases: {weaker}");
        }
        println!(
            "summary: {name}: {} cases of {} in {:.0} s, {} differences, {} native trees of {} runs, {} trees of the \
             model, {} not judged, seed {}",
            found.cases,
            found.of,
            found.seconds,
            found.differences.len(),
            found.native_trees,
            found.native_runs,
            found.model_trees,
            found.unjudged,
            args.seed
        );
        tally::say(&format!(
            "calibration on {name}: sequences {}, native runs {}, power cuts {}; seed {}, {:.1} s",
            found.cases, found.native_runs, found.native_runs, args.seed, found.seconds
        ));
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&summaries)?);
    }
    Ok(same)
}

fn tell(fs: Kind, args: &Args, found: &Found) {
    let total: u64 = found.cases.values().sum();
    for (length, count) in &found.cases {
        let of = found.of.get(length).map_or("drawn".to_owned(), |of| format!("of {of}"));
        println!("summary: {}: length {length}: {count} cases {of}", fs.name());
    }
    println!(
        "summary: {}: {total} cases in {:.0} s, {} differ ({} differences), {} with records, {} set aside for an \
         outsider, {} native runs, seed {}",
        fs.name(),
        found.seconds,
        found.differing,
        found.differences.len(),
        found.with_records,
        found.set_aside,
        found.native_runs,
        args.seed
    );
    for (case, trouble) in &found.unjudged {
        println!("summary: {}: not judged, since natively `{case}` ends with: {trouble}", fs.name());
    }
    tally::say(&format!(
        "siege on {}: sequences {total}, native runs {}, power cuts {}; seed {}, {:.1} s",
        fs.name(),
        found.native_runs,
        total + found.native_runs,
        args.seed,
        found.seconds
    ));
}

fn compile(home: &Path) -> anyhow::Result<PathBuf> {
    let (source, actor) = (home.join("actor.c"), home.join("actor"));
    std::fs::write(&source, include_str!("actor.c"))?;
    Cmd::new("gcc").args(["-O1", "-Wall", "-Werror", "-o"]).arg(&actor).arg(&source).ok();
    Ok(actor)
}
