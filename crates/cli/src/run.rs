//! The `run` subcommand, the supervisor: finds or makes the pool, joins or starts its keeper, runs
//! the program with the library and returns its status after the drain. It never lets a program
//! start without Holdfast.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::bail;
use holdfast_canary::{Canary, on};
use holdfast_keeper::config::{KeeperConfig, WriteBehind};
use holdfast_keeper::control::{Control, ControlError};
use holdfast_keeper::status::Summary;
use holdfast_look::summary_file::Target;
use holdfast_recovery::{RecoverOptions, recover};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::args::RunArgs;
use crate::attach::{self, Keeper, recovered_in_words, remove_temporary};
use crate::exit::EXIT_KEEPER;
use crate::program::{self, Refused};
use crate::signals::Signals;
use crate::supervise::{self, Recovered};
use crate::words::{quoted, shown};
use crate::{config, elf, golang, limits, options, preload, report, user, verdict};

/// How long to wait for a keeper without clients to end.
const KEEPER_END_MAX: Duration = Duration::from_secs(5);
/// A signal that comes so soon after the program's end was meant for the program, too.
const SAME_STOP: Duration = Duration::from_secs(1);
/// How often it is seen whether somebody else uses the keeper.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The `run` subcommand.
pub fn run(args: RunArgs) -> anyhow::Result<u8> {
    let args = &RunArgs { keeper: config::complete(&args.keeper, args.join)?, ..args };
    if let Some(user) = &args.keeper.user {
        // Who joins has the fence of the keeper that is there.
        user::become_user(user, !args.join && options::wants_watch(&args.keeper))?;
    }
    let name = args.program.first().expect("the parser asks for one");
    let path = program::resolve(name)?;
    let library = preload::library()?;
    let agent = golang::agent(&path, &library)?;
    let config = options::config_of(&args.keeper)?;
    let target = args.summary.as_deref().map(Target::open).transpose()?;
    let mut keeper =
        if args.join { attach::join_only(&config.pool)? } else { attach::attach(&config, args.keeper.size)? };
    if let Err(refusal) = refuse_what_was_not_agreed(args, &config, &mut keeper) {
        if keeper.child.is_some() {
            keeper.control.drain()?;
        }
        end(keeper, &config.pool);
        return Err(refusal);
    }

    let before = keeper.before()?;
    let signals = Signals::hold()?;
    keeper.control.expect_program()?;
    let started =
        spawn(&path, agent.as_deref(), &args.program, &library, keeper.control.socket_path(), &signals);
    let mut program = match started {
        Ok(program) => program,
        Err(error) => {
            // There is nobody to wait for.
            keeper.control.drain()?;
            return Err(error);
        }
    };
    let ended = supervise::until_the_end(&mut program, &keeper.pidfd, &signals, &config.pool)?;
    let (summary, keeper_well) = finish(keeper, ended.keeper_lost, &config, &signals);
    let verdict = verdict::verdict(&before, &summary, config.durability);
    // The program has run: its status counts, whatever becomes of what is told about it.
    // A summary on standard error ends with the verdict.
    let is_said = target.as_ref().is_some_and(Target::is_standard_error);
    if let Some(Err(error)) = target.map(|target| verdict::write(target, &summary, verdict.as_deref())) {
        report::say(&format!("{error:#}"));
    }
    if let Some(verdict) = verdict.as_ref().filter(|_| !args.quiet && !is_said) {
        report::say(verdict);
    }
    let said = match (is_said, args.quiet) {
        (true, _) => report::summary(&summary),
        (false, true) => String::new(),
        (false, false) => verdict.unwrap_or_default(),
    };
    for told in verdict::left_out(&before, &summary, &said) {
        report::say(&told);
    }
    Ok(match exit_code(ended.status) {
        0 if !keeper_well => EXIT_KEEPER,
        code => code,
    })
}

/// No program starts with less than it was to have.
pub fn refuse_what_was_not_agreed(
    args: &RunArgs,
    config: &KeeperConfig,
    keeper: &mut Keeper,
) -> anyhow::Result<()> {
    refuse_unexpected_volatile(&mut keeper.control, config)?;
    refuse_other_options(args, config, keeper)?;
    match set_aside(&mut keeper.control, &config.pool)? {
        Some(refusal) if !args.ignore_set_aside => bail!(refusal),
        _ => Ok(()),
    }
}

/// A keeper that runs already keeps the options it was started with: a program that was to have
/// others would be promised less than it was told.
fn refuse_other_options(args: &RunArgs, config: &KeeperConfig, keeper: &mut Keeper) -> anyhow::Result<()> {
    let status = keeper.control.status()?;
    options::refuse_another_size(&config.pool, status.pool_bytes, args.keeper.size)?;
    if keeper.child.is_some() {
        let behind = config.write_behind != WriteBehind::Off;
        if behind && config.exclusive.is_empty() && status.summary.fence == "inotify" {
            report::say(
                "--write-behind has no effect: others are only noticed here. Give --exclusive DIR or --fence \
                 lease, or run as root",
            );
        }
        return Ok(());
    }
    let told = options::not_in_force(&args.keeper, config, &status.options).join("; ");
    let (pid, pool) = (status.keeper_pid, config.pool.display());
    match (told.is_empty(), args.join_as_is) {
        (true, _) => Ok(()),
        (false, true) => {
            report::say(&format!("joining keeper {pid} as it is: {told}"));
            Ok(())
        }
        (false, false) => bail!(
            "keeper {pid} of pool {pool} runs with other options: {told}. Wait for its programs to end, name \
             another pool, or accept its options with --join-as-is"
        ),
    }
}

/// Says once that the pool is volatile; refuses if that was not agreed to.
fn refuse_unexpected_volatile(control: &mut Control, config: &KeeperConfig) -> anyhow::Result<()> {
    let pool = config.pool.display();
    if control.status()?.summary.volatile {
        if !config.volatile {
            bail!("pool {pool} is volatile: a power cut erases it. Add --volatile if that will do");
        }
        report::say(&format!("pool {pool} is volatile (survives a process crash, not a power cut)"));
    }
    Ok(())
}

/// Why no program is started: recovery set files aside or put them off, and they have older bytes
/// than their programs were promised.
fn set_aside(control: &mut Control, pool: &Path) -> anyhow::Result<Option<String>> {
    let Some(recovered) = control.status()?.summary.recovered else { return Ok(None) };
    let undecided: Vec<_> = recovered
        .files
        .iter()
        .filter(|file| report::is_unresolved(file))
        .map(|file| shown(&file.path))
        .collect();
    if undecided.is_empty() || on(Canary::SetAsideUnsaid) {
        return Ok(None);
    }
    Ok(Some(format!(
        "recovery did not bring {} back, and a program would meet older bytes than it was promised: {}. `holdfast recover \
         --pool {}` tries again and says why and what can be done; or start it all the same with --ignore-set-aside",
        if undecided.len() == 1 { "a file" } else { "files" },
        few(&undecided),
        quoted(pool)
    )))
}

/// The first of some names, and how many more there are.
fn few(names: &[String]) -> String {
    const MOST: usize = 10;
    match names.len().checked_sub(MOST) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..MOST].join(", ")),
    }
}

/// Starts the program, or what is executed in its place: our library first in LD_PRELOAD,
/// everything else as we were given it.
fn spawn(
    path: &Path,
    agent: Option<&Path>,
    line: &[OsString],
    library: &Path,
    socket: &Path,
    signals: &Signals,
) -> anyhow::Result<Child> {
    let name = line.first().map_or(path.as_os_str(), OsString::as_os_str);
    let mut command = Command::new(path);
    if let Some(agent) = agent {
        command = Command::new(agent);
        command.env(holdfast_enter::VARIABLE, path);
    }
    command.arg0(name).args(line.iter().skip(1));
    let inherited = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let mut preloaded = preload::with_library(&inherited, library);
    // Its runtime ends the program unless it comes before all others; the library takes it away
    // from the children.
    if let Ok(Some(runtime)) = elf::sanitizer(path) {
        let ours = std::mem::replace(&mut preloaded, OsString::from(runtime));
        preloaded.push(":");
        preloaded.push(ours);
    }
    command.env("LD_PRELOAD", preloaded).env("HOLDFAST_SOCKET", socket).env_remove(user::WATCH_VARIABLE);
    signals.give_to(&mut command);
    limits::give_back(&mut command);
    command.spawn().map_err(|error| {
        Refused::Unusable { program: name.to_string_lossy().into_owned(), reason: error.to_string() }.into()
    })
}

/// Drains, or tells what recovery did if the keeper died. Returns the counters, and whether all
/// went well.
pub fn finish(
    mut keeper: Keeper,
    lost: Option<Recovered>,
    config: &KeeperConfig,
    signals: &Signals,
) -> (Summary, bool) {
    let begun = Instant::now();
    // Who ends a service tells its program and us at the same moment.
    let mut gives_up = || signals.ask_to_end() && begun.elapsed() > SAME_STOP;
    let lost = match lost {
        Some(recovered) => recovered,
        None => match keeper.control.drain_unless(&mut gives_up) {
            Ok(summary) => {
                if !summary.drained {
                    say_not_drained(&mut keeper.control, &config.pool);
                }
                let well = summary.drained;
                end(keeper, &config.pool);
                return (summary, well);
            }
            Err(error @ ControlError::GivenUp { .. }) => {
                report::say(&error.to_string());
                let summary = keeper.control.status().map(|status| status.summary).unwrap_or_default();
                return (Summary { drained: false, ..summary }, false);
            }
            Err(error) => {
                report::say(&format!("{error}; recovering"));
                // A keeper that was killed owns the pool until the last of it is gone.
                ends_within(&keeper.pidfd, KEEPER_END_MAX);
                recover(&config.pool, &RecoverOptions::default(), &mut |_, _, _| {})
            }
        },
    };
    if let Some(mut child) = keeper.child {
        // Already dead; this only takes its status away.
        let _ = child.try_wait();
    }
    let mut summary =
        Summary { pool: config.pool.display().to_string(), volatile: config.volatile, ..Summary::default() };
    match lost {
        Ok(outcome) => {
            report::say_lines(&recovered_in_words(&outcome, &config.pool));
            summary.drained = !report::needs_attention(&outcome);
            summary.recovered = Some(outcome);
            remove_temporary(config);
        }
        Err(error) if error.is_damage() => report::say(&format!(
            "{error}. What was acknowledged and is not in the files yet cannot be had from the pool as it is"
        )),
        Err(error) if error.is_busy() => report::say(&format!("{error}. It recovers what was acknowledged")),
        Err(error) => report::say(&format!(
            "{error}. What was acknowledged is in the pool: `holdfast recover --pool {}`",
            quoted(&config.pool)
        )),
    }
    (summary, false)
}

fn say_not_drained(control: &mut Control, pool: &Path) {
    let errors = control.status().map(|status| status.errors).unwrap_or_default();
    report::say(&format!(
        "not everything could be brought to the disk{}. It stays in the pool: remove the cause, then \
         `holdfast drain --pool {pool}` or `holdfast recover --pool {pool}`",
        errors.last().map(|error| format!(" ({error})")).unwrap_or_default(),
        pool = quoted(pool)
    ));
}

/// Lets go of the keeper. One that we started and that nobody uses ends now; when we return it has
/// let go of the pool and of the user's file systems.
pub fn end(keeper: Keeper, pool: &Path) {
    let Keeper { mut control, child, pidfd, .. } = keeper;
    let in_use = |control: &mut Control| control.status().map_or(true, |status| !status.clients.is_empty());
    let mut used = in_use(&mut control);
    drop(control);
    let Some(mut child) = child else { return };
    let begun = Instant::now();
    while !used && begun.elapsed() < KEEPER_END_MAX && !ends_within(&pidfd, LOOK_AGAIN) {
        // A child that the program forked last may have become its client meanwhile.
        used = Control::connect(pool).is_ok_and(|mut control| in_use(&mut control));
    }
    let _ = child.try_wait();
}

/// Waits until the process behind a pidfd has ended, or the time is over. Whether it has ended.
fn ends_within(pidfd: &OwnedFd, time: Duration) -> bool {
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout)).is_ok_and(|ended| ended > 0)
}

/// The program's status as a shell gives it.
fn exit_code(status: ExitStatus) -> u8 {
    const KILLED: i32 = 128;
    let code = status.code().unwrap_or_else(|| KILLED + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_a_shells() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(exit_code(ExitStatus::from_raw(11 | 0x80)), 139);
    }
}
