//! The `serve` subcommand: a keeper in the foreground, as a service of its own. The service manager
//! hears when it is ready, what it does, and that it still answers: it asks its own socket, as
//! anybody would, before it says so. It starts no program, and ends only when it is told to.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use holdfast_keeper::KeeperError;
use holdfast_keeper::audience::{Audience, Level, Stage};
use holdfast_keeper::config::KeeperConfig;
use holdfast_keeper::control::Control;
use holdfast_keeper::status::Status;
use holdfast_recovery::Report;

use crate::args::ServeArgs;
use crate::attach::{self, BUSY_MAX};
use crate::named::must_be_a_pool;
use crate::notify::{self, Notify};
use crate::report;
use crate::sizes::{human_bytes, human_count};
use crate::words::{shown, shown_lines};
use crate::{config, format, options, user};

/// How often the line for people is told anew.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// Signs of life in the time in which one is expected.
const SIGNS: u32 = 3;
/// A recovery that makes progress is given so much time for more of it.
const MORE_TIME: Duration = Duration::from_secs(90);
/// How often it is seen whether a pool's owner has let go of it.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The `serve` subcommand.
pub fn run(args: ServeArgs) -> anyhow::Result<u8> {
    let args = ServeArgs { keeper: config::complete(&args.keeper, false)?, ..args };
    if let Some(user) = &args.keeper.user {
        user::become_user(user, options::wants_watch(&args.keeper))?;
    }
    let config = KeeperConfig { service: true, ..options::config_of(&args.keeper)? };
    must_be_a_pool(&config.pool)?;
    let service = Arc::new(Service::new(&config.pool, args.log_level.into())?);
    match serve(&config, args.keeper.size, &service) {
        Ok(()) => {
            service.say(Level::Info, &format!("pool {} is closed", config.pool.display()));
            Ok(0)
        }
        Err(error) => {
            service.say(Level::Error, &format!("{error:#}"));
            service.tell(|notify| notify.status(&format!("{error:#}")));
            Ok(1)
        }
    }
}

fn serve(config: &KeeperConfig, size_bytes: Option<u64>, service: &Arc<Service>) -> anyhow::Result<()> {
    let begun = Instant::now();
    // No working directory of the user's stays busy.
    std::env::set_current_dir("/").context("cannot change to /")?;
    let mut is_new = false;
    loop {
        if !config.pool.exists() {
            let size_bytes = size_bytes.unwrap_or(format::POOL_BYTES_DEFAULT);
            format::create(&config.pool, size_bytes, config.volatile, false)?;
            is_new = true;
            let words = report::durability_in_words(config.volatile);
            let pool = config.pool.display();
            service.say(Level::Notice, &format!("made pool {pool}, {}, {words}", human_bytes(size_bytes)));
        }
        refuse_what_is_served(&config.pool)?;
        let served = holdfast_keeper::serve(config.clone(), Arc::clone(service) as Arc<dyn Audience>);
        match served {
            Ok(()) => return Ok(()),
            // A recovery, or a keeper that is just ending: both soon let go of it.
            Err(KeeperError::Pool(pool)) if pool.is_busy() && begun.elapsed() < BUSY_MAX => {
                service.tell(|notify| notify.status(&pool.to_string()));
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(error) => {
                if is_new && !service.has_served.load(Ordering::SeqCst) {
                    attach::remove_unused(&config.pool);
                }
                return Err(error.into());
            }
        }
    }
}

fn refuse_what_is_served(pool: &Path) -> anyhow::Result<()> {
    let Ok(mut control) = Control::connect(pool) else { return Ok(()) };
    match control.status() {
        Ok(status) if !status.stopping => bail!(
            "keeper {} serves pool {} already: programs join it with `holdfast run`",
            status.keeper_pid,
            pool.display()
        ),
        // It is ending.
        _ => Ok(()),
    }
}

/// This keeper, as its manager sees it.
struct Service {
    pool: PathBuf,
    notify: Option<Arc<Notify>>,
    /// What matters less is not said.
    level: Level,
    /// Standard error is the journal, which takes levels.
    is_journal: bool,
    /// When more time was asked for last.
    asked: Mutex<Option<Instant>>,
    /// Programs could come: the pool may be needed.
    has_served: AtomicBool,
    /// Nobody is served any more: nobody need ask.
    closing: Arc<AtomicBool>,
}

impl Service {
    fn new(pool: &Path, level: Level) -> anyhow::Result<Self> {
        Ok(Self {
            pool: pool.to_owned(),
            notify: Notify::from_environment()?.map(Arc::new),
            level,
            is_journal: is_journal(),
            asked: Mutex::default(),
            has_served: AtomicBool::new(false),
            closing: Arc::default(),
        })
    }

    fn tell(&self, what: impl FnOnce(&Notify)) {
        if let Some(notify) = &self.notify {
            what(notify);
        }
    }

    fn more_time(&self, what: &str, done_bytes: u64, total_bytes: u64) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.is_some_and(|at| at.elapsed() < Duration::from_secs(1)) {
            return;
        }
        *asked = Some(Instant::now());
        let (done, total) = (human_bytes(done_bytes), human_bytes(total_bytes));
        self.tell(|notify| {
            notify.send(&format!("EXTEND_TIMEOUT_USEC={}", MORE_TIME.as_micros()));
            notify.status(&format!("{what} pool {}: {done} of {total}", self.pool.display()));
        });
    }

    fn ready(&self, recovered: Option<&Report>) {
        self.has_served.store(true, Ordering::SeqCst);
        if let Some(outcome) = recovered {
            let level = if report::needs_attention(outcome) { Level::Error } else { Level::Notice };
            self.say_lines(level, &attach::recovered_in_words(outcome, &self.pool));
        }
        let pid = std::process::id();
        self.say(Level::Info, &format!("keeper {pid} serves pool {}", self.pool.display()));
        self.tell(|notify| notify.send("READY=1"));
        let Some(notify) = self.notify.clone() else { return };
        let (pool, closing, watchdog) = (self.pool.clone(), Arc::clone(&self.closing), notify::watchdog());
        let looked_after = std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || show_life(&pool, &notify, watchdog, &closing));
        if let Err(error) = looked_after {
            self.say(Level::Error, &format!("cannot start the thread that says signs of life: {error}"));
        }
    }

    /// Says text of ours; names in it were made harmless.
    fn say_lines(&self, level: Level, text: &str) {
        if level > self.level {
            return;
        }
        let mark = match level {
            _ if self.is_journal => format!("<{}>", level as u8),
            Level::Error => "holdfast: error: ".to_owned(),
            Level::Warning => "holdfast: warning: ".to_owned(),
            Level::Notice | Level::Info => "holdfast: ".to_owned(),
        };
        let text = shown_lines(text.trim_end());
        let lines: String = text.lines().map(|line| format!("{mark}{line}\n")).collect();
        // There is nobody left to tell.
        let _ = std::io::stderr().lock().write_all(lines.as_bytes());
    }
}

impl Audience for Service {
    fn stage(&self, stage: Stage<'_>) {
        match stage {
            Stage::Recovering { what, done_bytes, total_bytes } => {
                self.more_time(what, done_bytes, total_bytes);
            }
            Stage::Ready { recovered, .. } => self.ready(recovered),
            Stage::Stopping { clients } => {
                self.say(Level::Info, &format!("told to stop; {clients} programs are attached"));
                self.tell(|notify| {
                    notify.send(&format!("STOPPING=1\nSTATUS=waits for {clients} programs to end"));
                });
            }
            Stage::Closing => {
                self.closing.store(true, Ordering::SeqCst);
                self.tell(|notify| notify.send("STOPPING=1\nSTATUS=brings the last of it to the disk"));
            }
        }
    }

    fn say(&self, level: Level, text: &str) {
        // One line: a name may hold another.
        self.say_lines(level, &shown(text));
    }
}

/// Whether standard error goes to the journal, which says so by the numbers of the stream.
fn is_journal() -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    std::fs::metadata("/proc/self/fd/2").is_ok_and(|meta| stream == format!("{}:{}", meta.dev(), meta.ino()))
}

/// Asks the keeper of this process for its state as anybody would, and says so only once it has
/// answered: a keeper that does not answer is to be started anew.
fn show_life(pool: &Path, notify: &Notify, watchdog: Option<Duration>, closing: &AtomicBool) {
    let pause = watchdog.map_or(TOLD_EVERY, |every| (every / SIGNS).min(TOLD_EVERY));
    while !closing.load(Ordering::SeqCst) {
        let asked = Control::connect(pool).and_then(|mut control| control.status());
        if let Ok(status) = asked {
            let life = if watchdog.is_some() { "WATCHDOG=1\n" } else { "" };
            notify.send(&format!("{life}STATUS={}", shown(&in_a_line(&status))));
        }
        std::thread::sleep(pause);
    }
}

fn in_a_line(status: &Status) -> String {
    let summary = &status.summary;
    let syncs = if summary.is_board_damaged { 0 } else { summary.syncs_absorbed + summary.syncs_real };
    let share = summary.syncs_absorbed.saturating_mul(1000).checked_div(syncs);
    let absorbed = share.map_or_else(String::new, |share| {
        format!(", {}.{} % of {} syncs absorbed", share / 10, share % 10, human_count(syncs))
    });
    let what = if status.stopping { "stopping, " } else { "" };
    let (clients, dirty) = (status.clients.len(), status.files_dirty);
    let errors = status.errors.last().map(|error| format!("; {error}")).unwrap_or_default();
    format!("{what}{clients} programs, {dirty} files not on disk{absorbed}{errors}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_keeper::status::Summary;

    #[test]
    fn the_line_for_people_says_what_matters() {
        let summary = Summary { syncs_absorbed: 3782, syncs_real: 15, ..Summary::default() };
        let status = Status { clients: vec![1, 2], files_dirty: 3, summary, ..Status::default() };
        assert_eq!(in_a_line(&status), "2 programs, 3 files not on disk, 99.6 % of 3,797 syncs absorbed");
        let mut failing = Status { stopping: true, ..Status::default() };
        failing.errors.push("no space".to_owned());
        assert_eq!(in_a_line(&failing), "stopping, 0 programs, 0 files not on disk; no space");
    }
}
