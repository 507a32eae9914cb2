//! What a call on a descriptor is about: a managed file, or the kernel's business.
//!
//! Asks the keeper at the first change of a file, not when it is opened, unless the open created
//! it. It never turns a file away because of an error of ours: then the change fails with EIO.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use holdfast_board::{Epoch, FileState};
use holdfast_cache::{Client, Errno, FileRef, Origin, Reason, Seen};

use crate::descriptions::{self, DSYNC, Description, State};
use crate::fds::{self, Row, Unheld};
use crate::{critical, process, raw, streams};

/// How often a call is tried again when the file's slot was given back under it.
pub const TRIES: u32 = 64;

/// For descriptors without a row: they share this one memory of reported errors.
static SEEN_ERROR: AtomicU32 = AtomicU32::new(0);

/// A managed file behind a descriptor.
#[derive(Clone, Copy)]
pub struct Handle {
    /// The cache.
    pub client: &'static Client,
    /// The file.
    pub file: FileRef,
    /// The description, if it has a row.
    pub description: Option<&'static Description>,
    /// The description's flags.
    pub flags: u32,
}

/// What a call is about.
#[derive(Clone, Copy)]
pub enum Target {
    /// The kernel alone.
    Kernel,
    /// The kernel, and the program asked for synchronous writes, which the kernel does not know.
    KernelSynced,
    /// The cache.
    Managed(Handle),
    /// Nothing may be done: fail with this.
    Refused(Errno),
}

impl Handle {
    /// Where the errors that this description has reported are counted.
    pub fn seen_error(&self) -> &AtomicU32 {
        self.description.map_or(&SEEN_ERROR, |description| &description.seen_error)
    }

    /// Forgets the file's place, which was given back: the next look asks the keeper again.
    pub fn forget(&self) {
        if let Some(description) = self.description
            && description.state() == State::Managed(self.file)
        {
            description.set_state(State::Pending(Origin::Opened));
        }
    }

    /// Makes a call that moves the cursor in a way that is not followed. Whoever follows it holds
    /// the same lock: a cursor that was learned while the call was under way would be where it was
    /// before, and a record of the next write would stand for another place than the kernel's, so
    /// that what recovery makes is not what was visible (invariant 1).
    /// Only inside a critical section.
    pub fn moving_cursor<R>(&self, call: impl FnOnce() -> R) -> R {
        match self.description.filter(|description| description.remembers_cursor()) {
            Some(description) => description.locked(|| {
                description.set_cursor(None);
                call()
            }),
            None => call(),
        }
    }

    /// Forgets the cursor: the kernel moved it in a way that is not followed.
    pub fn forget_cursor(&self) {
        if let Some(description) = self.description {
            description.set_cursor(None);
        }
    }
}

/// What a change of the content behind `fd` is about. Registers the file if need be.
#[inline]
pub fn of_change(fd: c_int) -> Target {
    let Some(client) = process::client() else { return without_client(fd) };
    match fds::look(fd) {
        Row::Ignored | Row::Readable => Target::Kernel,
        Row::Described(description) => described(client, fd, description, true),
        Row::Unknown => unknown(client, fd, true),
    }
}

/// What a call on `fd` is about that changes nothing a log could hold. Never registers a file that
/// nobody has changed through us.
#[inline]
pub fn of_other(fd: c_int) -> Target {
    let Some(client) = process::client() else { return without_client(fd) };
    match fds::look(fd) {
        Row::Ignored | Row::Readable => Target::Kernel,
        Row::Described(description) => described(client, fd, description, false),
        Row::Unknown => unknown(client, fd, false),
    }
}

#[cold]
fn without_client(fd: c_int) -> Target {
    if let Some(client) = process::parents_client() {
        leave_to_kernel(fd, Reason::HandedAway);
        if let Row::Described(description) = fds::look(fd)
            && let State::Managed(file) = description.state()
            && client.is_managed(file)
        {
            // Nobody could be asked to leave it: what it holds must not be written around.
            return Target::Refused(Errno::EIO);
        }
    }
    Target::Kernel
}

#[inline]
fn described(
    client: &'static Client,
    fd: c_int,
    description: &'static Description,
    register: bool,
) -> Target {
    let mut flags = description.flags();
    if flags & descriptions::SHARED != 0 {
        // Another process may have changed it meanwhile.
        let now = raw::fcntl(fd, libc::F_GETFL, 0);
        flags = flags & !KERNEL_FLAGS | if now < 0 { flags } else { kernel_flags(now as c_int) };
    }
    let file = match description.state() {
        State::Managed(file) => Ok(Some(file)),
        State::Plain => Ok(None),
        State::Pending(origin) => {
            // Of a new file every change counts, the first one above all.
            let counts = origin == Origin::Created && !client.logs_on_sync();
            return settle_pending(client, fd, description, origin, register || counts);
        }
    };
    target(client, file, Some(description), flags)
}

fn target(
    client: &'static Client,
    file: Result<Option<FileRef>, Errno>,
    description: Option<&'static Description>,
    flags: u32,
) -> Target {
    match file {
        Ok(Some(file)) => Target::Managed(Handle { client, file, description, flags }),
        Ok(None) if flags & DSYNC != 0 => Target::KernelSynced,
        Ok(None) => Target::Kernel,
        Err(errno) => Target::Refused(errno),
    }
}

#[cold]
fn settle_pending(
    client: &'static Client,
    fd: c_int,
    description: &'static Description,
    origin: Origin,
    register: bool,
) -> Target {
    let file = critical::section(|| {
        description.locked(|| match description.state() {
            State::Managed(file) => Ok(Some(file)),
            State::Plain => Ok(None),
            State::Pending(_) => {
                if process::bypasses_all() {
                    give_up(client, fd, description, Reason::AsyncIo);
                    return Ok(None);
                }
                let stat = raw::fstat(fd);
                if stat.as_ref().is_ok_and(|stat| streams::hold(fd, stat)) {
                    give_up(client, fd, description, Reason::Libc);
                    return Ok(None);
                }
                if let Some(seen) = stat.as_ref().ok().and_then(|stat| client.find(stat.dev, stat.ino))
                    && (seen.state != FileState::Bypassed || origin == Origin::Unknown)
                {
                    adopt(client, description, seen);
                    return Ok(Some(seen.file));
                }
                // One that is left to the kernel may be managed again: the reason may be gone.
                if !register {
                    return Ok(None);
                }
                // What it holds by now is read back before the log stands for it, and what else was
                // done to it is looked at.
                let changed = !client.logs_on_sync() && !stat.is_ok_and(|stat| description.is_as_born(&stat));
                let is_held = origin == Origin::Created && !changed;
                let noted = description.take_noted().filter(|_| is_held);
                let origin = if is_held || origin != Origin::Created { origin } else { Origin::Opened };
                let file = ask(client, fd, origin, noted)?;
                match file {
                    Some(file) => adopt(client, description, Seen { file, state: FileState::Through }),
                    None => description.set_state(State::Plain),
                }
                if let (Some(file), Ok(stat)) = (file, stat) {
                    if streams::hold(fd, &stat) {
                        // Another thread made a stream of it meanwhile.
                        drop_file(client, file, Reason::Libc);
                    }
                    adopt_others(file, &stat);
                }
                Ok(file)
            }
        })
    });
    target(client, file, Some(description), description.flags())
}

/// The program may have other descriptions of a file that is the cache's from now on, which were
/// left to the kernel when nobody could vouch for them: what they write is now to be logged too, or
/// a replay would cover it with older bytes.
fn adopt_others(file: FileRef, stat: &raw::Stat) {
    for (fd, description) in fds::described(0, c_int::MAX) {
        let moment = fds::moment(fd);
        let is_it = || raw::fstat(fd).is_ok_and(|other| (other.dev, other.ino) == (stat.dev, stat.ino));
        // Other threads may close or replace the number.
        let is_still = || {
            matches!(moment.row(), Row::Described(now) if core::ptr::eq(now, description)) && moment.lasts(fd)
        };
        if description.state() == State::Plain && is_it() && is_still() {
            description.add_flags(descriptions::SHARED);
            description.set_state(State::Managed(file));
        }
    }
}

/// A file that was opened without a name has one now, and can be managed as any other that was
/// there before it was opened.
pub fn note_named(stat: &raw::Stat) {
    for (_, description) in fds::described(0, c_int::MAX) {
        let is_it = description.file() == Some((stat.dev, stat.ino));
        if is_it && description.flags() & descriptions::NAMELESS != 0 {
            description.remove_flags(descriptions::NAMELESS);
            description.set_state(State::Pending(Origin::Opened));
        }
    }
}

/// Makes a file that the cache has already the one behind a description.
pub fn adopt(client: &Client, description: &Description, seen: Seen) {
    // What was reported to others before this open is none of its business.
    if let Some(row) = client.board().files().get(seen.file.slot as usize) {
        description.seen_error.store(row.error_epoch.load(Ordering::SeqCst), Ordering::SeqCst);
        description.synced_seq.store(row.newest_seq.load(Ordering::SeqCst), Ordering::SeqCst);
    }
    description.set_state(State::Managed(seen.file));
}

/// Before a sync through `fd` is absorbed: whether somebody outside cut the file by its path,
/// removed it or gave it away, which no fence sees. It is durable when this returns, or the sync is
/// real.
pub fn look_at(handle: &Handle, fd: c_int) -> Result<(), Errno> {
    if !handle.client.is_watched(handle.file) {
        return Ok(());
    }
    let Ok(look) = raw::look(fd) else { return Ok(()) };
    critical::section(|| handle.client.look_at(handle.file, look))
}

/// Before a sync through `fd`: as [`look_at`], and what others did is heard of if it may be what
/// the sync is for, because nothing was written since the last one.
pub fn look_before_sync(handle: &Handle, fd: c_int) -> Result<(), Errno> {
    look_at(handle, fd)?;
    let newest = handle.client.newest_seq(handle.file);
    let is_new = handle.description.is_some_and(|description| {
        description.synced_seq.load(Ordering::Relaxed) != newest
            && description.synced_seq.swap(newest, Ordering::Relaxed) != newest
    });
    if is_new { Ok(()) } else { critical::section(|| handle.client.hear_all(handle.file)) }
}

/// The file behind `fd`, if some client's open already made it the cache's.
fn known(client: &Client, fd: c_int) -> Option<Seen> {
    let stat = raw::fstat(fd).ok()?;
    client.find(stat.dev, stat.ino)
}

/// Tells the keeper's fence that the open which has just been made was a client's. Only of files
/// that were the cache's when they were opened: of others the fence had no notice.
pub fn note_open(client: &Client, stat: &raw::Stat) -> Option<Seen> {
    let seen = if stat.regular { client.find(stat.dev, stat.ino) } else { None };
    if let Some(seen) = &seen {
        client.note_open(seen.file);
    }
    seen
}

/// Makes an open of the library's: a fence that asks whose an open is knows it for one.
#[inline]
pub fn announced<R>(open: impl FnOnce() -> R) -> R {
    match process::client() {
        Some(client) => client.open_announced(raw::gettid, open),
        None => open(),
    }
}

/// An open that was announced to a fence which hears of every open, but not whose it was.
#[derive(Clone, Copy)]
pub struct Announced {
    dev: u64,
    ino: u64,
    /// Counted in the file's row, not by inode number.
    in_row: bool,
}

/// Has the keeper give back a lease on what `stat` describes, which is about to be opened once
/// more.
pub fn end_lease(client: &Client, stat: &raw::Stat) {
    if stat.regular
        && let Some(seen) = client.find(stat.dev, stat.ino)
    {
        // Fails only when the keeper is dead or the disk refuses; then the open waits for the lease
        // to be broken.
        let _ = critical::section(|| client.leave_behind(seen.file, true));
    }
}

/// Announces the open that is about to be made of what `stat` describes.
pub fn announce_open(client: &Client, stat: &raw::Stat, flags: c_int) -> Option<Announced> {
    if !stat.regular {
        return None;
    }
    let seen = client.find(stat.dev, stat.ino);
    match seen {
        Some(seen) => client.note_open(seen.file),
        // The file may get its row at this very moment.
        None if may_write(flags) => client.board().header().opens(stat.ino).begin(),
        None => return None,
    }
    Some(Announced { dev: stat.dev, ino: stat.ino, in_row: seen.is_some() })
}

/// The open that was announced is over; `stat` tells what was opened.
pub fn opened(client: &Client, announced: Option<Announced>, stat: Option<&raw::Stat>) -> Option<Seen> {
    if let Some(announced) = announced.filter(|announced| !announced.in_row) {
        client.board().header().opens(announced.ino).end();
    }
    let stat = stat.filter(|stat| stat.regular)?;
    if announced.is_some_and(|announced| (announced.dev, announced.ino) == (stat.dev, stat.ino)) {
        return client.find(stat.dev, stat.ino);
    }
    note_open(client, stat)
}

fn ask(client: &Client, fd: c_int, origin: Origin, noted: Option<Epoch>) -> Result<Option<FileRef>, Errno> {
    client.register(fd, origin, noted, || is_sole(fd)).or_else(|errno| {
        // A keeper that died kept nothing of what it would never have managed.
        if client.keeper_alive() || raw::is_on_managed_file_system(fd) { Err(errno) } else { Ok(None) }
    })
}

/// Makes a call on a regular file, whose number is its own until the call ends ([`fds::hold`]).
/// Where `fd` is something else the call is the kernel's in one step, by `other`, and may wait; so
/// it is with files of other file systems than those on which files are managed (`/proc`, FUSE).
#[inline]
pub fn held(fd: c_int, mut work: impl FnMut() -> isize, other: impl FnOnce() -> isize) -> isize {
    if let Row::Ignored = fds::look(fd) {
        return other();
    }
    let held = fds::try_hold(fd, || {
        match fds::look(fd) {
            Row::Ignored => Err(Unheld::NoFile),
            // A child in our memory, and whoever has no keeper, looks for itself.
            Row::Unknown if process::client().is_some() => is_file(fd),
            Row::Described(row) if !row.may_be_managed(|device| look_where(device, fd)) => {
                Err(Unheld::NoFile)
            }
            _ => Ok(()),
        }
        .map(|()| work())
    });
    match held.flatten() {
        Ok(result) => result,
        Err(Unheld::NoFile) => other(),
        // The kernel is not asked: by now the number may be a file's of which it does not know all.
        Err(Unheld::Closed) => -(libc::EBADF as isize),
    }
}

/// Whether the file behind a description lies where files are managed.
#[cold]
fn look_where(device: Option<u64>, fd: c_int) -> bool {
    let device = device.or_else(|| raw::fstat(fd).ok().map(|stat| stat.dev));
    device.is_none_or(|device| raw::may_be_managed(device, fd))
}

/// Whether a number of which nothing is known is a regular file's.
#[cold]
fn is_file(fd: c_int) -> Result<(), Unheld> {
    let moment = fds::moment(fd);
    match raw::fstat(fd) {
        Ok(stat) if stat.regular && raw::may_be_managed(stat.dev, fd) => Ok(()),
        Ok(stat) if stat.regular => Err(Unheld::NoFile),
        Ok(_) => {
            fds::ignore_at(fd, moment);
            Err(Unheld::NoFile)
        }
        Err(Errno(libc::EBADF)) => Err(Unheld::Closed),
        // The kernel may say what it is about.
        Err(_) => Ok(()),
    }
}

/// A descriptor whose opening was not seen, or that has no row.
#[cold]
fn unknown(client: &'static Client, fd: c_int, register: bool) -> Target {
    let moment = fds::moment(fd);
    let Ok(flags) = raw::check(raw::fcntl(fd, libc::F_GETFL, 0)) else { return Target::Kernel };
    let flags = flags as c_int;
    let Ok(stat) = raw::fstat(fd) else { return Target::Kernel };
    if !stat.regular || flags & libc::O_PATH != 0 {
        fds::ignore_at(fd, moment);
        return Target::Kernel;
    }
    if !may_write(flags) {
        if may_read(flags) {
            fds::note_readable_at(fd, moment);
        }
        return Target::Kernel;
    }
    let described_as = descriptions::SHARED | kernel_flags(flags);
    if fds::is_untracked(fd) && streams::has(fd) {
        // Fails only when the keeper is dead.
        let _ = critical::section(|| leave_unknown(client, fd, Reason::Libc));
        return Target::Kernel;
    }
    if let Some((index, description)) = descriptions::allocate(described_as, Origin::Unknown) {
        if fds::describe_at(fd, moment, index, description) {
            return described(client, fd, description, register);
        }
        description.release();
    }
    let file = match client.find(stat.dev, stat.ino) {
        Some(seen) if !process::bypasses_all() => Ok(Some(seen.file)),
        _ if register => critical::section(|| ask(client, fd, Origin::Unknown, None)),
        _ => Ok(None),
    };
    target(client, file, None, described_as)
}

/// Whether `open` flags allow writing.
pub fn may_write(flags: c_int) -> bool {
    flags & libc::O_PATH == 0 && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
}

/// The flags of a description that `F_SETFL` changes.
pub const KERNEL_FLAGS: u32 = descriptions::APPEND | descriptions::DIRECT;

/// Those of [`KERNEL_FLAGS`] that `open` flags ask for.
pub fn kernel_flags(flags: c_int) -> u32 {
    let append = if flags & libc::O_APPEND != 0 { descriptions::APPEND } else { 0 };
    append | if flags & libc::O_DIRECT != 0 { descriptions::DIRECT } else { 0 }
}

/// Whether `open` flags allow reading: a fourth mode of access allows neither reading nor writing.
pub fn may_read(flags: c_int) -> bool {
    flags & libc::O_PATH == 0 && matches!(flags & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR)
}

/// Brings the file behind `fd` to the disk and leaves it to the kernel for good, for a change that
/// cannot be followed. Also called by children that run in their parent's memory, with their
/// parent's number.
#[cold]
pub fn leave_to_kernel(fd: c_int, reason: Reason) {
    let Some(client) = process::client().or_else(process::parents_client) else { return };
    let Row::Described(description) = fds::look(fd) else {
        // Not a row of ours: it matters only if the file is somebody's already.
        if let Row::Unknown = fds::look(fd)
            && let Ok(stat) = raw::fstat(fd)
            && stat.regular
            && let Some(seen) = client.find(stat.dev, stat.ino)
        {
            critical::section(|| drop_file(client, seen.file, reason));
        }
        return;
    };
    critical::section(|| match description.state() {
        State::Managed(file) => drop_file(client, file, reason),
        State::Plain => {}
        State::Pending(_) => give_up(client, fd, description, reason),
    });
}

/// Leaves the file behind `fd` to the kernel and has the keeper let go of it, for a call that no
/// other description of the file may stand in the way of. All descriptions of this process are the
/// kernel's afterwards. Whether the file was the keeper's: a thread of it may be done with its
/// description a moment later.
#[cold]
pub fn let_go(fd: c_int) -> bool {
    leave_to_kernel(fd, Reason::Uncovered);
    let Some(client) = process::client() else { return false };
    // Whoever reads it may be the only one who has it open still, besides the keeper.
    let of_row = match fds::look(fd) {
        Row::Described(description) => match description.state() {
            State::Managed(file) => Some(file),
            _ => None,
        },
        _ => None,
    };
    let Some(file) = of_row.or_else(|| known(client, fd).map(|seen| seen.file)) else { return false };
    critical::section(|| {
        for (_, other) in fds::described(0, c_int::MAX) {
            if other.state() == State::Managed(file) {
                other.set_state(State::Plain);
            }
        }
        // Without an answer the keeper is dead, and its descriptions are gone with it.
        let _ = client.let_go(file, Reason::Uncovered);
    });
    true
}

/// Leaves the file of a pending description to the kernel.
fn give_up(client: &Client, fd: c_int, description: &Description, reason: Reason) {
    match leave_unknown(client, fd, reason) {
        Ok(Some(file)) => description.set_state(State::Managed(file)),
        Ok(None) => description.set_state(State::Plain),
        Err(_) => {}
    }
}

/// Leaves the file behind `fd` to the kernel, of which it is not known whether it has a place.
/// Returns that.
fn leave_unknown(client: &Client, fd: c_int, reason: Reason) -> Result<Option<FileRef>, Errno> {
    let file = match known(client, fd) {
        Some(seen) => Some(seen.file),
        // The keeper must hear of it, or another open of the file could be managed beside this one.
        None => {
            let origin = match reason {
                Reason::Libc => Origin::Libc,
                Reason::AsyncIo => Origin::AsyncIo,
                Reason::MappedShared => Origin::Mapped,
                _ => Origin::Unknown,
            };
            // A place, if somebody else's registration came in between.
            client.register(fd, origin, None, || false)?
        }
    };
    if let Some(file) = file {
        drop_file(client, file, reason);
    }
    Ok(file)
}

fn drop_file(client: &Client, file: FileRef, reason: Reason) {
    // Fails only when the keeper is dead or the disk refuses the data; then every write to the file
    // fails too.
    let _ = client.bypass(file, reason);
}

/// Leaves the file of a name to the kernel, if it is the cache's.
pub fn leave_file_to_kernel(client: &Client, stat: &raw::Stat, reason: Reason) {
    if stat.regular
        && let Some(seen) = client.find(stat.dev, stat.ino)
    {
        critical::section(|| drop_file(client, seen.file, reason));
    }
}

/// Whether no other description of the file exists: the kernel grants a write lease only then.
/// Called with signals blocked.
fn is_sole(fd: c_int) -> bool {
    const F_SETLEASE: c_int = 1024;
    const F_SETSIG: c_int = 10;
    const F_GETSIG: c_int = 11;
    const F_GETOWN: c_int = 9;
    if raw::is_leased(fd) {
        return false;
    }
    // Giving a lease back takes the description's owner, signal and `O_ASYNC` with it: the
    // program's own stay.
    let is_async = raw::fcntl(fd, libc::F_GETFL, 0) & libc::O_ASYNC as isize != 0;
    if is_async || raw::fcntl(fd, F_GETSIG, 0) != 0 || raw::fcntl(fd, F_GETOWN, 0) != 0 {
        return false;
    }
    // Somebody may open the file in the moment the lease stands. The signal for that would be
    // SIGIO, which ends a program that does not expect it; this one is ignored by default.
    if raw::check(raw::fcntl(fd, F_SETSIG, libc::SIGURG as usize)).is_err() {
        return false;
    }
    let granted = raw::check(raw::fcntl(fd, F_SETLEASE, libc::F_WRLCK as usize)).is_ok();
    if granted {
        raw::fcntl(fd, F_SETLEASE, libc::F_UNLCK as usize);
    }
    raw::fcntl(fd, F_SETSIG, 0);
    granted
}

/// The name of a descriptor of this process, as a path.
fn path_of(fd: c_int) -> [u8; 25] {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = 1;
    let mut rest = fd / 10;
    while rest > 0 {
        digits += 1;
        rest /= 10;
    }
    rest = fd;
    for place in path.iter_mut().skip(14).take(digits).rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path
}

/// Opens the file behind `fd` again with other flags, and puts it in its place. False when that
/// failed.
fn reopen(fd: c_int, change: impl FnOnce(c_int) -> c_int) -> bool {
    let (Ok(flags), Ok(close_on_exec)) =
        (raw::check(raw::fcntl(fd, libc::F_GETFL, 0)), raw::check(raw::fcntl(fd, libc::F_GETFD, 0)))
    else {
        return false;
    };
    let close_on_exec = if close_on_exec != 0 { libc::O_CLOEXEC } else { 0 };
    let cursor = raw::cursor(fd);
    raw::reopen(&path_of(fd), change(flags as c_int), cursor.ok(), fd, close_on_exec).is_ok()
}

/// Opens the file behind `fd` again with the sync flags that were left out, and puts it in its
/// place: for a descriptor whose writes we shall not see. False when that failed.
pub fn restore_sync(fd: c_int, sync_flags: c_int) -> bool {
    reopen(fd, |flags| flags | sync_flags)
}

/// Has nobody write by `fd` any more.
pub fn close_to_writes(fd: c_int) {
    reopen(fd, |flags| flags & !libc::O_ACCMODE | libc::O_RDONLY);
}

/// Calls `work` for the target's file until its slot is not given back under it.
pub fn retry<R>(
    fd: c_int,
    mut kernel: impl FnMut(bool) -> R,
    refused: impl Fn(Errno) -> R,
    mut managed: impl FnMut(Handle) -> Option<R>,
) -> R {
    for _ in 0..TRIES {
        match of_change(fd) {
            Target::Kernel => return kernel(false),
            Target::KernelSynced => return kernel(true),
            Target::Refused(errno) => return refused(errno),
            Target::Managed(handle) => match managed(handle) {
                Some(result) => return result,
                None => handle.forget(),
            },
        }
    }
    refused(Errno::EIO)
}
