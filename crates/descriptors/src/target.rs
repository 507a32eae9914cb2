//! What a call on a descriptor is about: a managed file, or the kernel's business.
//!
//! The session decides; here are the descriptors: which description a number stands for, and what
//! becomes of numbers of which nothing is known.

use core::ffi::c_int;

use holdfast_cache::{Client, Errno, Origin, Reason, Seen};
use holdfast_session::{Stat, ask, drop_file, give_up, leave_unknown};

use crate::descriptions::{self, Description, State};
use crate::descriptor::Descriptor;
use crate::fds::{self, Row, Unheld};
use crate::raw;
use crate::{critical, process, stream_marks};

pub use crate::open_flags::{kernel_flags, may_read, may_write};
pub use crate::process::announced;

/// A managed file behind a descriptor.
pub type Handle = holdfast_session::Handle<'static>;
/// What a call is about.
pub type Target = holdfast_session::Target<'static>;

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
    holdfast_session::target(client, description, &Descriptor(fd), register)
}

/// The file behind `fd`, if some client's open already made it the cache's.
fn known(client: &Client, fd: c_int) -> Option<Seen> {
    let stat = raw::fstat(fd).ok()?;
    client.find(stat.dev, stat.ino)
}

/// Has the keeper give back a lease on what `stat` describes, which is about to be opened once
/// more.
pub fn end_lease(client: &Client, stat: &Stat) {
    if stat.regular
        && let Some(seen) = client.find(stat.dev, stat.ino)
    {
        // Fails only when the keeper is dead or the disk refuses; then the open waits for the lease
        // to be broken.
        let _ = critical::section(|| client.leave_behind(seen.file, true));
    }
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

/// Whether a number is known to be no regular file's, or turns out to be.
pub fn is_kernels(fd: c_int) -> bool {
    match fds::look(fd) {
        Row::Ignored => true,
        Row::Unknown if process::client().is_some() => matches!(is_file(fd), Err(Unheld::NoFile)),
        _ => false,
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
    if fds::is_untracked(fd) && stream_marks::has(fd) {
        // Fails only when the keeper is dead.
        let _ = critical::section(|| leave_unknown(client, &Descriptor(fd), Reason::Libc));
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
        _ if register => critical::section(|| ask(client, &Descriptor(fd), Origin::Unknown, None)),
        _ => Ok(None),
    };
    holdfast_session::without_description(client, file, described_as)
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
        State::Pending(_) => give_up(client, description, &Descriptor(fd), reason),
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

/// Leaves the file of a name to the kernel, if it is the cache's.
pub fn leave_file_to_kernel(client: &Client, stat: &Stat, reason: Reason) {
    if stat.regular
        && let Some(seen) = client.find(stat.dev, stat.ino)
    {
        critical::section(|| drop_file(client, seen.file, reason));
    }
}

/// Calls `managed` for the file behind `fd` until its slot is not given back under it.
pub fn retry<R>(
    fd: c_int,
    kernel: impl FnMut(bool) -> R,
    refused: impl Fn(Errno) -> R,
    managed: impl FnMut(Handle) -> Option<R>,
) -> R {
    holdfast_session::retry(|| of_change(fd), kernel, refused, managed)
}
