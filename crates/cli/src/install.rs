//! The `install` and `remove` subcommands: a pool comes with its file in the configuration, and
//! goes without a trace. Nothing that was acknowledged is ever deleted: what cannot be brought to
//! the disk keeps its pool.

use std::fs::Metadata;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use holdfast_look::keepers;
use holdfast_recovery::{OpenPool, RecoverOptions, recover, refuse_unusable};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::process::{Pid, Signal, kill_process};

use crate::args::{InstallArgs, RemoveArgs};
use crate::attach::BUSY_MAX;
use crate::config::{self, Configuration};
use crate::named::must_be_a_pool;
use crate::words::{name_of, quoted};
use crate::{format, locate, recover as recovering, report, user};

/// How often it is seen whether a keeper has let go of its pool.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The `install` subcommand.
pub fn install(args: &InstallArgs) -> anyhow::Result<u8> {
    let pool = locate::absolute(&args.pool)?;
    format::refuse_volatile_media(&pool, args.volatile)?;
    let (uid, gid) = user::ids(&args.user)?;
    let me = rustix::process::geteuid();
    ensure!(
        me.is_root() || me.as_raw() == uid,
        "only root can install a pool of user {}: run as root",
        args.user
    );
    let directory = config::directory();
    let configuration = Configuration::load(&directory);
    configuration.refuse_faults(Some(&pool))?;
    if let Some(known) = configuration.pools.iter().find(|known| known.pool == pool) {
        bail!("{} is about pool {} already: change it there", known.file.display(), pool.display());
    }
    let stem = pool.file_stem().context("--pool names no file")?;
    let file = directory.join("pools.d").join(stem).with_extension("toml");
    refuse_what_cannot_be_used(&pool, uid)
        .with_context(|| format!("pool {} is not one of user {}", pool.display(), args.user))?;
    let made = make(&pool, args, uid, gid)?;
    if let Err(error) = write(&file, &text(&pool, args)?) {
        if made {
            let _ = std::fs::remove_file(&pool);
        }
        return Err(error);
    }
    let is_made = match (made, pool.exists()) {
        (true, _) => "made",
        (false, true) if !pool.is_file() => "a device: `holdfast format` makes the pool, if it has none",
        (false, true) => "there already",
        (false, false) => "made when its keeper starts",
    };
    report::print(format!(
        "{}: pool {} of user {} ({is_made})\nnext: systemctl enable --now holdfast-recover.service holdfast@{}.service, or \
         `holdfast serve --user {}`\n",
        name_of(&file),
        name_of(&pool),
        args.user,
        args.user,
        args.user
    ))?;
    Ok(0)
}

/// What stands under the pool's name already must be what its keeper will be able to use: else its
/// service is refused at every start.
fn refuse_what_cannot_be_used(pool: &Path, uid: u32) -> anyhow::Result<()> {
    match std::fs::symlink_metadata(pool) {
        Ok(meta) if meta.is_symlink() => bail!("it is a link: name the pool itself"),
        // A device may be given to its user, and formatted, later.
        Ok(meta) if meta.file_type().is_char_device() => Ok(()),
        Ok(_) => Ok(refuse_unusable(pool, uid)?),
        Err(_) => Ok(()),
    }
}

/// Makes the pool where nobody but root can put something else in its place before it is given
/// away; elsewhere its keeper makes it.
fn make(pool: &Path, args: &InstallArgs, uid: u32, gid: u32) -> anyhow::Result<bool> {
    let directory = pool.parent().context("--pool names no file")?;
    let meta = std::fs::metadata(directory).with_context(|| format!("--pool {}", pool.display()))?;
    let me = rustix::process::geteuid().as_raw();
    let is_ours_alone = meta.uid() == me && meta.mode() & 0o022 == 0;
    if pool.exists() || !is_ours_alone {
        return Ok(false);
    }
    let size_bytes = args.size.unwrap_or(format::POOL_BYTES_DEFAULT);
    format::create(pool, size_bytes, args.volatile, false)?;
    if me != uid {
        rustix::fs::chown(pool, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .with_context(|| format!("cannot give pool {} to user {}", pool.display(), args.user))?;
    }
    Ok(true)
}

fn text(pool: &Path, args: &InstallArgs) -> anyhow::Result<String> {
    let value = |text: &str| toml::Value::from(text).to_string();
    let path = |path: &Path| -> anyhow::Result<String> {
        let path = locate::absolute(path)?;
        Ok(value(path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?))
    };
    let mut text = format!("pool = {}\nuser = {}\n", path(pool)?, value(&args.user));
    if let Some(size) = args.size {
        text += &format!("size = {size}\n");
    }
    if args.volatile {
        text += "volatile = true\n";
    }
    let mounts: Vec<String> = args.mount.iter().map(|mount| path(mount)).collect::<Result<_, _>>()?;
    if !mounts.is_empty() {
        text += &format!("mounts = [{}]\n", mounts.join(", "));
    }
    Ok(text)
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    let directory = file.parent().expect("it has one");
    let written = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .and_then(|()| std::fs::File::options().write(true).create_new(true).mode(0o644).open(file))
        .and_then(|mut opened| opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all()));
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// The `remove` subcommand.
pub fn remove(args: &RemoveArgs) -> anyhow::Result<u8> {
    let pool = locate::absolute(&args.pool)?;
    let configuration = Configuration::load(&config::directory());
    let known = configuration.pools.iter().find(|known| known.pool == pool);
    let seen = std::fs::symlink_metadata(&pool);
    match &seen {
        Ok(meta) => {
            ensure!(!meta.is_symlink(), "{} is a link: name the pool itself", pool.display());
            must_be_a_pool(&pool)?;
            let me = rustix::process::geteuid();
            if args.close_only || meta.uid() == me.as_raw() || !me.is_root() {
                user::become_owner(&pool)?;
                close(&pool)?;
            } else {
                close_as_owner(&pool)?;
            }
        }
        Err(_) if known.is_some() && !args.close_only => {}
        Err(error) => bail!("there is no pool {}: {error}", pool.display()),
    }
    if args.close_only {
        return Ok(0);
    }
    let mut told = match seen.ok().filter(Metadata::is_file) {
        Some(meta) => {
            unlink(&pool, &meta)?;
            format!("pool {} is removed: everything was on the disk\n", name_of(&pool))
        }
        None if pool.exists() => {
            format!("{} is closed; a device stays what it is\n", name_of(&pool))
        }
        None => String::new(),
    };
    if let Some(known) = known {
        std::fs::remove_file(&known.file)
            .with_context(|| format!("cannot remove {}", known.file.display()))?;
        told += &format!("{} is removed\n", name_of(&known.file));
        if let Some(spill) = &known.settings.spill {
            told += &format!("its spill file holds nothing any more: rm {}\n", quoted(spill));
        }
    }
    report::print(told)?;
    Ok(0)
}

/// What is another user's is closed by a process that is that user.
fn close_as_owner(pool: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(locate::executable()?);
    let closed = command.args(["remove", "--close-only", "--pool"]).arg(pool).status();
    ensure!(closed.context("cannot start it")?.success(), "pool {} stays", pool.display());
    Ok(())
}

/// Everything on the disk, no keeper, and nothing in the log.
fn close(pool: &Path) -> anyhow::Result<()> {
    if let Some(mut control) = keepers::connect(pool)? {
        let now = control.status()?;
        if !now.clients.is_empty() {
            let clients: Vec<String> = now.clients.iter().map(u32::to_string).collect();
            bail!(
                "programs use pool {} (processes {}): stop their services first",
                pool.display(),
                clients.join(" ")
            );
        }
        let pid = i32::try_from(control.keeper_pid()).ok().and_then(Pid::from_raw);
        let drained = control.drain()?.drained;
        ensure!(drained, "not everything could be brought to the disk: `holdfast status` says why");
        if let Some(pid) = pid {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    let begun = Instant::now();
    let report = loop {
        match recover(pool, &RecoverOptions::default(), &mut |_, _, _| {}) {
            Err(error) if error.is_busy() && begun.elapsed() < BUSY_MAX => std::thread::sleep(LOOK_AGAIN),
            outcome => break outcome?,
        }
    };
    if report::needs_attention(&report) {
        bail!("{}", recovering::advice(&report, pool).trim_end());
    }
    // Somebody may have come between.
    let is_clean = OpenPool::open(pool, true)?.is_clean();
    ensure!(is_clean, "pool {} was used again meanwhile: try again", pool.display());
    Ok(())
}

/// Removes the pool that was seen, and nothing that was put in its place.
fn unlink(pool: &Path, seen: &Metadata) -> anyhow::Result<()> {
    let cannot = || format!("cannot remove {}", pool.display());
    let (parent, name) = pool.parent().zip(pool.file_name()).with_context(cannot)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, Mode::empty()).with_context(cannot)?;
    let now = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).with_context(cannot)?;
    ensure!(
        (now.st_dev, now.st_ino) == (seen.dev(), seen.ino()),
        "{} was replaced meanwhile: it stays",
        pool.display()
    );
    rustix::fs::unlinkat(&directory, name, AtFlags::empty()).with_context(cannot)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::Settings;

    #[test]
    fn what_install_writes_is_read_as_it_was_meant() {
        let args = InstallArgs {
            pool: PathBuf::from("/mnt/a\"b.pool"),
            user: "redis".to_owned(),
            size: Some(64 << 20),
            mount: vec![PathBuf::from("/srv/a b")],
            volatile: true,
        };
        let settings = Settings::read(Path::new("x"), &text(&args.pool, &args).unwrap()).unwrap();
        assert_eq!(settings.pool.as_ref(), Some(&args.pool));
        assert_eq!((settings.user.as_deref(), &settings.mounts), (Some("redis"), &args.mount));
        let made = settings.under(&crate::args::KeeperArgs::default());
        assert_eq!((made.size, made.volatile), (Some(64 << 20), true));
    }

    #[test]
    fn what_was_put_in_its_place_stays() {
        let dir = tempfile::tempdir().unwrap();
        let [pool, other] = ["pool", "other"].map(|name| dir.path().join(name));
        std::fs::write(&pool, "1").unwrap();
        std::fs::write(&other, "2").unwrap();
        let seen = std::fs::metadata(&pool).unwrap();
        std::fs::rename(&other, &pool).unwrap();
        assert!(unlink(&pool, &seen).unwrap_err().to_string().contains("it stays"));
        assert!(pool.exists());
        unlink(&pool, &std::fs::metadata(&pool).unwrap()).unwrap();
        assert!(!pool.exists());
    }
}
