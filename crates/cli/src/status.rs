//! The `status` and `drain` subcommands: ask the keeper, or look at a pool that has none without
//! changing it.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use holdfast_keeper::control::{Control, ControlError};
use holdfast_keeper::status::{Process, Status};
use holdfast_recovery::{RecoverOptions, Report};
use serde::Serialize;

use crate::args::{DrainArgs, StatusArgs};
use crate::sizes::{human_bytes, human_count, human_ns};
use crate::words::{quoted, shown, shown_lines};
use crate::{config, locate, report, user};

/// What `status --json` prints.
#[derive(Serialize)]
struct Answer {
    /// Whether a keeper owns the pool now.
    running: bool,
    /// The pool.
    pool: PathBuf,
    /// What the keeper says.
    #[serde(flatten)]
    status: Option<Status>,
    /// Without a keeper: what a recovery would do.
    unrecovered: Option<Report>,
}

/// The `status` subcommand.
pub fn run(args: &StatusArgs) -> anyhow::Result<u8> {
    let pool = pool_of(args.pool.as_deref())?;
    let Some(pause_s) = args.watch else {
        let answer = answer(&pool)?;
        report::print(if args.json { report::json(&answer)? } else { in_words(&answer) })?;
        return Ok(0);
    };
    let clear = if std::io::stdout().is_terminal() && !args.json { CLEAR } else { "" };
    loop {
        // Between one keeper and the next there may be nothing to be seen for a moment.
        let told = match answer(&pool) {
            Ok(answer) if args.json => report::json_line(&answer)?,
            Ok(answer) => in_words(&answer) + if clear.is_empty() { "\n" } else { "" },
            Err(error) if args.json => report::json_line(&serde_json::json!({
                "running": false, "pool": pool, "error": format!("{error:#}")
            }))?,
            Err(error) => format!("{}\n", shown(&format!("{error:#}"))),
        };
        if !report::print_on(format!("{clear}{told}"))? {
            return Ok(0);
        }
        std::thread::sleep(Duration::from_secs(pause_s));
    }
}

/// To the upper left, and away with what is there.
const CLEAR: &str = "\x1b[H\x1b[2J";

fn answer(pool: &Path) -> anyhow::Result<Answer> {
    // A conversation that is held keeps a keeper from ending: a new one each time.
    Ok(match connect(pool)? {
        Some(mut control) => Answer {
            running: true,
            status: Some(control.status()?),
            unrecovered: None,
            pool: pool.to_owned(),
        },
        None => {
            Answer { running: false, status: None, unrecovered: Some(look(pool)?), pool: pool.to_owned() }
        }
    })
}

/// The `drain` subcommand.
pub fn drain(args: &DrainArgs) -> anyhow::Result<u8> {
    let pool = pool_of(args.pool.as_deref())?;
    let Some(mut control) = connect(&pool)? else {
        let left = look(&pool)?;
        if left.records > 0 || !left.damaged.is_empty() {
            bail!(
                "no keeper runs for pool {pool}, and it holds {} records of {} files that are not on disk: run \
                 `holdfast recover --pool {pool}`",
                human_count(left.records),
                left.files.len(),
                pool = quoted(&pool)
            );
        }
        report::print(format!("pool {}: no keeper runs and nothing is left to drain\n", pool.display()))?;
        return Ok(0);
    };
    // Once it is known to hear, it may take as long as the disk does.
    control.status()?;
    let summary = control.drain()?;
    if !summary.drained {
        let errors = control.status().map(|status| status.errors).unwrap_or_default();
        bail!(
            "pool {}: not everything could be brought to the disk; it stays in the pool{}",
            pool.display(),
            errors.last().map(|error| format!(". Last error: {error}")).unwrap_or_default()
        );
    }
    report::print(format!("pool {}: everything absorbed so far is on disk\n", pool.display()))?;
    Ok(0)
}

/// The pool that is meant, whether it exists or not.
pub fn named_or_default(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    match given {
        Some(pool) => locate::absolute(pool),
        None => Ok(config::default_pool()?.unwrap_or_else(locate::default_volatile_pool)),
    }
}

/// The pool that is meant. Root looks at another user's as that user.
pub fn pool_of(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let pool = named_or_default(given)?;
    user::become_owner(&pool)?;
    if !pool.exists() {
        bail!("there is no pool {}: name one with --pool PATH or HOLDFAST_POOL", pool.display());
    }
    Ok(pool)
}

/// The keeper of a pool, if one runs, for whoever does not look at the pool itself. That nobody may
/// see whether there is one is an error.
pub fn keeper(pool: &Path) -> anyhow::Result<Option<Control>> {
    match Control::connect(pool) {
        Ok(control) => Ok(Some(control)),
        Err(ControlError::NoKeeper(_)) => Ok(None),
        Err(ControlError::Pool(_)) if !pool.exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The keeper of a pool, if one runs.
pub fn connect(pool: &Path) -> anyhow::Result<Option<Control>> {
    match Control::connect(pool) {
        Ok(control) => Ok(Some(control)),
        // A pool that cannot be read: whoever looks at it next says what to do about it.
        Err(ControlError::NoKeeper(_) | ControlError::Pool(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What a recovery would do; changes nothing.
fn look(pool: &Path) -> anyhow::Result<Report> {
    let options = RecoverOptions { dry_run: true, ..RecoverOptions::default() };
    Ok(holdfast_recovery::recover(pool, &options, &mut |_, _, _| {})?)
}

/// What brings back what is in a pool that no keeper has.
fn what_is_next(left: &Report, pool: &Path) -> String {
    let pool = quoted(pool);
    if left.clean || left.records == 0 && left.damaged.is_empty() {
        String::new()
    } else if left.files.iter().any(report::is_unresolved) {
        format!(
            "  not all of it can be brought back: no run starts a program before that is decided; `holdfast recover --pool \
             {pool}` says how\n"
        )
    } else {
        format!("  the next run recovers it, or now: holdfast recover --pool {pool}\n")
    }
}

fn in_words(answer: &Answer) -> String {
    let pool = answer.pool.display();
    let Some(status) = &answer.status else {
        let left = answer.unrecovered.clone().unwrap_or_default();
        let next = what_is_next(&left, &answer.pool);
        return format!("pool {pool}: no keeper runs\n{}{next}", report::recovery(&left));
    };
    let in_words = |process: &Process| format!("{} ({})", process.pid, process.front_end);
    let clients: Vec<String> = status.processes.iter().map(in_words).collect();
    let what = match (status.stopping, status.options.service) {
        (true, _) => "stops when its clients have ended",
        (false, true) => "runs as a service",
        (false, false) => "runs",
    };
    let mut text = format!("pool {pool}: keeper {} {what}\n", status.keeper_pid);
    text += &report::table(&[
        ("media", status.media.clone()),
        ("durability", report::durability_in_words(status.summary.volatile).to_string()),
        ("flush path", status.flush_path.clone()),
        ("clients", if clients.is_empty() { "none".to_string() } else { clients.join(", ") }),
        ("pool", human_bytes(status.pool_bytes)),
        ("board", human_bytes(status.board_bytes)),
        (
            "segments free",
            format!("{} of {}", human_count(status.segments_free), human_count(status.segments)),
        ),
        (
            "spill frames used",
            format!("{} of {}", human_count(status.frames_used), human_count(status.frames)),
        ),
        ("file slots used", format!("{} of {}", human_count(status.slots_used), human_count(status.slots))),
        ("files not on disk", human_count(status.files_dirty)),
        ("oldest not on disk", status.oldest_ns.map_or_else(|| "none".to_string(), human_ns)),
        ("backlog at most", human_bytes(status.backlog_bytes)),
    ]);
    for error in &status.errors {
        text += &format!("  error: {}\n", shown_lines(error));
    }
    text + &report::counters(&status.summary)
}
