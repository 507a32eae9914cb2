//! The watch as a program of its own: what root does for a keeper that is not root's.
//!
//! It believes nothing that a keeper says but who its clients are, and that concerns only files
//! which the keeper's user may write to: a file is watched if the keeper has a descriptor of it
//! that can be written to. Who waits to open such a file waits for this keeper within a deadline; a
//! keeper that misses it loses its watch, and everybody is let in. So there is one keeper at a
//! time, since the kernel asks them one after the other, and none after one that was lost. Nothing
//! is ever opened here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::protocol::{HELLO, Line, Place, Said, opener_in};
use crate::{FILE_SYSTEMS, FenceError, Key, Ledger, Opener, Outsiders, fanotify, peer};

/// How long an open may wait for what the keeper has to do. A keeper lets a process that stands
/// still in a write delay it by five seconds.
const ACT_MAX: Duration = Duration::from_secs(7);
/// How long all opens may wait for the keeper to say whose they are, which takes it a moment: who
/// is slower each time has used it up.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// An answer in that time is no slow one.
const PROMPT: Duration = Duration::from_millis(10);
/// Of so much time a keeper may be slow for one part.
const SLOW_SHARE: u32 = 4;
/// Connections that wait to be taken or closed.
const BACKLOG: i32 = 8;
/// A socket of a name that the kernel makes up, and that name.
pub fn listen() -> io::Result<(OwnedFd, Vec<u8>)> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_unnamed())?;
    rustix::net::listen(&socket, BACKLOG)?;
    let bound = SocketAddrUnix::try_from(rustix::net::getsockname(&socket)?)?;
    let name = bound.abstract_name().ok_or(io::ErrorKind::AddrNotAvailable)?.to_vec();
    Ok((socket, name))
}

/// Connects to a watch, which must be root's.
pub fn connect(name: &[u8]) -> io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    // As it was when it began to listen.
    let (_, user) = peer(&socket)?;
    if user != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "who listens there is not root"));
    }
    Ok(socket)
}

/// Serves a keeper of `user` at a time, until `starter` (a pidfd) has ended and there is none, or
/// one was lost.
pub fn serve(listener: &OwnedFd, user: u32, starter: BorrowedFd<'_>) -> io::Result<()> {
    let seat = Arc::new(AtomicU32::new(FREE));
    let mut has_starter = true;
    loop {
        match seat.load(Ordering::SeqCst) {
            LOST => return Ok(()),
            FREE if !has_starter => return Ok(()),
            _ => {}
        }
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        if has_starter {
            fds.push(PollFd::from_borrowed_fd(starter, PollFlags::IN));
        }
        // Whether the keeper has gone is looked at now and then.
        let pause = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
        if let Err(error) = poll(&mut fds, Some(&pause))
            && error != Errno::INTR
        {
            return Err(error.into());
        }
        has_starter &= fds.get(1).is_none_or(|starter| starter.revents().is_empty());
        if fds[0].revents().is_empty() {
            continue;
        }
        let Ok(connection) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else { continue };
        let is_welcome = peer(&connection).is_ok_and(|(_, who)| who == user);
        let takes = || seat.compare_exchange(FREE, TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !is_welcome || !takes() {
            continue;
        }
        let taken = Arc::clone(&seat);
        let served = std::thread::Builder::new().name("keeper".to_owned()).spawn(move || {
            let left = if serve_keeper(connection) { FREE } else { LOST };
            taken.store(left, Ordering::SeqCst);
        });
        if served.is_err() {
            seat.store(FREE, Ordering::SeqCst);
        }
    }
}

/// Until it ends, or loses its watch: then the result is false.
fn serve_keeper(connection: OwnedFd) -> bool {
    let line = Arc::new(Line::new(connection));
    let keeper = Arc::new(Keeper::new(Arc::clone(&line)));
    let ledger = Ledger::new(keeper.clone());
    let engine = match fanotify::Engine::start(&ledger) {
        Ok(engine) => engine,
        Err(error) => {
            let errno = match error {
                FenceError::NotPermitted => Errno::PERM,
                FenceError::Unsupported => Errno::NOSYS,
                FenceError::Os { .. } => Errno::IO,
            };
            let _ = line.answer(HELLO, errno.raw_os_error() as u64);
            return true;
        }
    };
    let mut heard = line.answer(HELLO, 0).ok().and_then(|()| line.hear());
    while let Some((number, said, file)) = heard {
        let done = match said {
            Said::Watch(place) => watch(&engine, &ledger, place, file),
            Said::Unwatch(place) => {
                unwatch(&engine, &ledger, place, file);
                Ok(())
            }
            Said::Present(place) => {
                present(&engine, &ledger, place, file);
                Ok(())
            }
            // Nothing that a keeper says.
            _ => break,
        };
        let errno = done.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        if line.answer(number, errno as u64).is_err() {
            break;
        }
        heard = line.hear();
    }
    // First nobody waits for the keeper any more, then the readers end and everybody is let in.
    line.close();
    drop(engine);
    ledger.stop();
    !keeper.is_lost.load(Ordering::SeqCst)
}

fn watch(engine: &fanotify::Engine, ledger: &Ledger, place: Place, file: Option<OwnedFd>) -> io::Result<()> {
    let file = file.ok_or(Errno::BADF)?;
    may_be_watched(file.as_fd())?;
    let key = Key::of_fd(&file)?;
    ledger.add(key, place.slot, place.generation);
    let marked = engine.mark_open(file.as_fd());
    if marked.is_err() {
        ledger.remove(key, place.slot, place.generation);
    }
    marked
}

/// Whoever can write to a file may have others wait for it; that its user may write to it, the
/// descriptor shows.
fn may_be_watched(file: BorrowedFd<'_>) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    let mode = flags & OFlags::RWMODE;
    if flags.contains(OFlags::PATH) || mode != OFlags::WRONLY && mode != OFlags::RDWR {
        return Err(Errno::BADF.into());
    }
    // Others may be slow to answer who asks them.
    if !FILE_SYSTEMS.contains(&(fstatfs(file)?.f_type as u32)) {
        return Err(Errno::NOTSUP.into());
    }
    let is_file = FileType::from_raw_mode(fstat(file)?.st_mode) == FileType::RegularFile;
    if is_file { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// Where a descriptor of ours leads.
fn magic_path(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The descriptor's path, if the file is the one that is watched under that key.
fn leads_to(key: Key, file: Option<&OwnedFd>) -> Option<PathBuf> {
    let via = magic_path(file?);
    // Of a file that was marked, so that nobody is slow here.
    Key::of(&via).is_ok_and(|found| found == key).then_some(via)
}

fn unwatch(engine: &fanotify::Engine, ledger: &Ledger, place: Place, file: Option<OwnedFd>) {
    let Some(key) = ledger.find(place.slot, place.generation) else { return };
    if ledger.remove(key, place.slot, place.generation)
        && let Some(via) = leads_to(key, file.as_ref())
    {
        engine.unmark(&via);
    }
}

fn present(engine: &fanotify::Engine, ledger: &Arc<Ledger>, place: Place, file: Option<OwnedFd>) {
    let Some(key) = ledger.find(place.slot, place.generation) else { return };
    if let Some(via) = leads_to(key, file.as_ref()) {
        // Without it who was there is never seen to have left, and the file stays the kernel's.
        let _ = engine.ask_closes(&via);
    }
    ledger.present(key);
}

/// Whether a keeper is served.
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const LOST: u32 = 2;

/// The keeper at the other end of a line.
struct Keeper {
    line: Arc<Line>,
    /// For how long it was slow to say whose opens were, as of when.
    slow: Mutex<(Duration, Instant)>,
    is_lost: AtomicBool,
}

impl Keeper {
    fn new(line: Arc<Line>) -> Self {
        Self { line, slow: Mutex::new((Duration::ZERO, Instant::now())), is_lost: AtomicBool::new(false) }
    }

    /// `None`: it lost its watch by now.
    fn ask(&self, what: Said, patience: Duration) -> Option<u64> {
        let answer = self.line.ask(what, None, patience);
        if let Err(error) = &answer {
            // That it has ended is no fault of the keeper's; not to answer is, and not to listen.
            if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
                self.is_lost.store(true, Ordering::SeqCst);
            }
            self.line.close();
        }
        answer.ok()
    }

    /// For the thread that answers all opens.
    fn ask_at_once(&self, what: Said) -> Option<u64> {
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let debt = slow.0.saturating_sub((begun - slow.1) / SLOW_SHARE);
        let answer = self.ask(what, ANSWER_MAX.saturating_sub(debt));
        let now = Instant::now();
        *slow = (debt + (now - begun).saturating_sub(PROMPT), now);
        answer
    }
}

impl Outsiders for Keeper {
    fn is_ours(&self, pid: u32) -> bool {
        self.ask(Said::IsOurs(pid), ANSWER_MAX) == Some(1)
    }

    fn opener(&self, tid: u32) -> Opener {
        self.ask_at_once(Said::Opener(tid)).map_or(Opener::Outsider(tid), opener_in)
    }

    fn goes_past(&self, pid: u32) {
        self.ask(Said::Past(pid), ACT_MAX);
    }

    fn arrived(&self, slot: u32, generation: u64) {
        self.ask(Said::Arrived(Place { slot, generation }), ACT_MAX);
    }

    fn reads(&self, slot: u32, generation: u64) {
        self.ask(Said::Reads(Place { slot, generation }), ACT_MAX);
    }

    fn left(&self, slot: u32, generation: u64, wrote: bool) {
        self.ask(Said::Left(Place { slot, generation }, wrote), ACT_MAX);
    }

    fn client_opens(&self, _slot: u32, _ino: u64) -> u64 {
        0
    }
}
