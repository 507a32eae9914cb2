//! The state of a pool: what its keeper says, or what a look at one without a keeper finds, which
//! changes nothing.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_keeper::status::{Process, Status};
use holdfast_recovery::{RecoverOptions, Report};
use serde::Serialize;

use crate::keepers::connect;
use crate::report::{self, Made};
use crate::sizes::{human_bytes, human_count, human_ns};
use crate::words::{name_of, quoted, shown, shown_lines};

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

/// Prints it, again and again with so many seconds between if `watch` says so, until nobody reads.
pub fn print(pool: &Path, json: bool, watch: Option<u64>) -> anyhow::Result<()> {
    let Some(pause_s) = watch else {
        let answer = answer(pool)?;
        report::print(if json { report::json(&answer)? } else { in_words(&answer) })?;
        return Ok(());
    };
    let clear = if std::io::stdout().is_terminal() && !json { CLEAR } else { "" };
    loop {
        // Between one keeper and the next there may be nothing to be seen for a moment.
        let told = match answer(pool) {
            Ok(answer) if json => report::json_line(&answer)?,
            Ok(answer) => in_words(&answer) + if clear.is_empty() { "\n" } else { "" },
            Err(error) if json => report::json_line(&serde_json::json!({
                "running": false, "pool": pool, "error": format!("{error:#}")
            }))?,
            Err(error) => format!("{}\n", shown(&format!("{error:#}"))),
        };
        if !report::print_on(format!("{clear}{told}"))? {
            return Ok(());
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

/// What a recovery would do; changes nothing.
pub fn look(pool: &Path) -> anyhow::Result<Report> {
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
    let pool = name_of(&answer.pool);
    let Some(status) = &answer.status else {
        let left = answer.unrecovered.clone().unwrap_or_default();
        let next = what_is_next(&left, &answer.pool);
        return format!("pool {pool}: no keeper runs\n{}{next}", report::recovery(&left, Made::Would));
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
