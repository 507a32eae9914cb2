//! The `mount` subcommand, the supervisor of a mount: starts or joins a keeper, starts under it a
//! server that is a program like any other, mounts, and unmounts at the end. All that can be wrong
//! with what was asked is found before anything is changed. It touches no file behind the mount.

mod detached;
mod fuse;
pub mod helper;
mod place;
mod server;
mod spaces;
mod watch;

use anyhow::{Context, bail};
use holdfast_keeper::config::{KeeperConfig, WriteBehind};
use holdfast_keeper::status::Summary;
use holdfast_look::summary_file::Target;

use crate::args::{KeeperArgs, MountArgs, RunArgs};
use crate::attach::{self, Keeper};
use crate::exit::EXIT_KEEPER;
use crate::notify::Notify;
use crate::signals::Signals;
use crate::words::quoted;
use crate::{config, options, preload, report, run, verdict};
use detached::Detached;
use fuse::{Mounted, Way};
use place::Place;
use server::{Server, Start};
use spaces::Views;
use watch::Watch;

pub use server::serve;

/// The server failed.
const EXIT_SERVER: u8 = 1;

/// The `mount` subcommand.
pub fn run(args: MountArgs) -> anyhow::Result<u8> {
    let detached = args.detached.then(Detached::begin).transpose()?;
    refuse_options(&args)?;
    let place = Place::find(&args.directory, args.at.as_deref(), &args.mount_options)?;
    let way = fuse::way()?;
    let args = args.into_run();
    let said = config::complete(&args.keeper, args.join)?;
    // What the configuration asks of keepers in general is not for a mount.
    let keeper = KeeperArgs {
        user: None,
        write_behind: args.keeper.write_behind,
        read_cache: args.keeper.read_cache,
        ..said
    };
    let args = RunArgs { keeper, ..args };
    let library = preload::library()?;
    let config = options::config_of(&args.keeper)?;
    let notify = Notify::from_environment()?;
    let target = args.summary.as_deref().map(Target::open).transpose()?;
    // No working directory of the user's stays busy, least of all the one that is covered.
    std::env::set_current_dir("/").context("cannot change to /")?;

    let views = if place.is_over() { Some(spaces::part(&place.volume)?) } else { None };
    let mut keeper =
        if args.join { attach::join_only(&config.pool)? } else { attach::attach(&config, args.keeper.size)? };
    let agreed = refuse_foreign_keeper(&place, &keeper)
        .and_then(|()| run::refuse_what_was_not_agreed(&args, &config, &mut keeper));
    if let Err(refusal) = agreed {
        if keeper.child.is_some() {
            keeper.control.drain()?;
        }
        run::end(keeper, &config.pool);
        return Err(refusal);
    }
    let before = keeper.before()?;
    let signals = Signals::hold()?;
    keeper.control.expect_program()?;
    let start =
        Start { place: &place, library: &library, socket: keeper.control.socket_path(), signals: &signals };
    let (mounted, server) = match begin(&start, way, views.as_ref()) {
        Ok(begun) => begun,
        Err(error) => {
            // There is nobody to wait for.
            keeper.control.drain()?;
            run::end(keeper, &config.pool);
            return Err(error);
        }
    };
    mounted.read_ahead();
    say_mounted(&args, &place, &config, notify.as_ref());
    if let Some(mut detached) = detached {
        detached.mounted();
    }
    let watch = Watch {
        start,
        view: views.as_ref().map(|views| &views.inner),
        mounted: &mounted,
        server,
        keeper: &keeper.pidfd,
        pool: &config.pool,
    };
    let ended = watch.until_the_end()?;
    if let Some(notify) = &notify {
        notify.send("STOPPING=1");
    }
    let (summary, keeper_well) = run::finish(keeper, ended.keeper_lost, &config, &signals);
    let judged = (&summary, verdict::verdict(&before, &summary, config.durability));
    Ok(conclude(args.quiet, target, &place, judged, (keeper_well, ended.is_well)))
}

fn refuse_options(args: &MountArgs) -> anyhow::Result<()> {
    if args.keeper.user.is_some() {
        bail!("--user has no meaning here: run `holdfast mount --at MOUNTPOINT` as that user");
    }
    if args.keeper.write_behind.is_some_and(|behind| WriteBehind::from(behind) != WriteBehind::Off) {
        bail!("--write-behind is not for a mount: the kernel has its pages already. Leave it out");
    }
    Ok(())
}

/// A keeper that runs already sees the users' mounts, and finds files by their names.
fn refuse_foreign_keeper(place: &Place, keeper: &Keeper) -> anyhow::Result<()> {
    if place.is_over() && keeper.child.is_none() {
        bail!(
            "keeper {} has the pool already, and could not see the files below {} any more: give --at MOUNTPOINT, or \
             another pool",
            keeper.control.keeper_pid(),
            place.directory.display()
        );
    }
    Ok(())
}

/// Starts the server and mounts. If one of them fails, nothing is left of the other.
fn begin(start: &Start<'_>, way: Way, views: Option<&Views>) -> anyhow::Result<(Mounted, Server)> {
    let place = start.place;
    let (mounted, mut server) = match way {
        Way::Root(device) => {
            let copy = device.try_clone().context("cannot copy a descriptor")?;
            let server = start.first(copy.into())?;
            let mounted = views.map_or(Ok(()), Views::back).and_then(|()| fuse::mount_device(&device, place));
            match mounted {
                Ok(mounted) => (mounted, server),
                Err(error) => return Err(server.give_up(error)),
            }
        }
        Way::Helper(helper) => {
            let (mounted, device) = fuse::mount_by_helper(helper, place)?;
            match start.first(device) {
                Ok(server) => (mounted, server),
                Err(error) => {
                    mounted.detach();
                    return Err(error);
                }
            }
        }
    };
    match server.mounted() {
        Ok(()) => Ok((mounted, server)),
        Err(error) => {
            mounted.detach();
            Err(server.give_up(error))
        }
    }
}

fn say_mounted(args: &RunArgs, place: &Place, config: &KeeperConfig, notify: Option<&Notify>) {
    let (directory, point) = (place.directory.display(), place.point.display());
    let what = if place.is_over() { format!("{point}") } else { format!("{directory} at {point}") };
    if let Some(notify) = notify {
        notify.send(&format!("READY=1\nSTATUS=serves {what}"));
    }
    if !args.quiet {
        let quoted = quoted(&place.point);
        report::say(&format!(
            "mounted {what}, pool {}. `umount {quoted}` or Ctrl-C ends it",
            config.pool.display()
        ));
    }
}

/// Says how it went: whether the keeper brought everything to the disk, and the server served to
/// the end.
fn conclude(
    quiet: bool,
    target: Option<Target>,
    place: &Place,
    (summary, verdict): (&Summary, Option<String>),
    (keeper_well, server_well): (bool, bool),
) -> u8 {
    // It was mounted: its status counts, whatever becomes of what is told about it.
    let is_said = target.as_ref().is_some_and(Target::is_standard_error);
    if let Some(Err(error)) = target.map(|target| verdict::write(target, summary, verdict.as_deref())) {
        report::say(&format!("{error:#}"));
    }
    if let Some(verdict) = verdict.filter(|_| !quiet && !is_said) {
        report::say(&verdict);
    }
    if !quiet && keeper_well && server_well {
        report::say(&format!("unmounted {}; everything is on the disk", place.point.display()));
    }
    match (keeper_well, server_well) {
        (false, _) => EXIT_KEEPER,
        (true, false) => EXIT_SERVER,
        (true, true) => 0,
    }
}
