//! Talking to a running keeper from another process: status and drain. A connection that is held
//! keeps the keeper from ending by itself. Must never believe who is another user, nor take the
//! late answer to a question that was given up for that to the next one.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use holdfast_cache::wire::{
    self, ANSWER_NUMBER_BYTES, DRAIN, EXPECT, FILES, OTHER_VERSION, STATUS, WIRE_VERSION,
};
use holdfast_canary::{Canary, on};
use holdfast_media::{Mapping, OpenMode};
use holdfast_pool::{FormatError, VERSION};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::status::{FileLine, FilePart, Status, Summary};
use holdfast_recovery::{PoolError, open_file, quoted};
use holdfast_socket::{ANSWER_MAX, Peer, connect_unless, is_stopped, told_path};

/// Answers are JSON in one message; the kernel limits messages to less than this.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Why a keeper could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No keeper owns the pool at the moment.
    #[error("no keeper is running for pool {0}")]
    NoKeeper(PathBuf),
    /// It is there and says nothing.
    #[error(
        "keeper {pid} of pool {pool} has not answered for {} s or longer: is it stopped? (`kill -CONT {pid}` has \
         it go on)",
        ANSWER_MAX.as_secs()
    )]
    Silent {
        /// The pool.
        pool: PathBuf,
        /// The keeper.
        pid: u32,
    },
    /// It is stopped.
    #[error(
        "keeper {pid} of pool {pool} is stopped (by SIGSTOP, job control or a debugger) and answers nobody: \
         `kill -CONT {pid}` has it go on"
    )]
    Stopped {
        /// The pool.
        pool: PathBuf,
        /// The keeper.
        pid: u32,
    },
    /// It does not understand this command, or the other way round.
    #[error(
        "the keeper with pid {pid} of pool {pool} is of another version of holdfast: {theirs}, and this command is \
         {}. Use the command that it was started with, or end it (`kill {pid}`: it brings everything to the disk \
         first) and start it anew",
        version()
    )]
    OtherVersion {
        /// The pool.
        pool: PathBuf,
        /// The keeper.
        pid: u32,
        /// What it is.
        theirs: String,
    },
    /// It is of a version that makes other pools.
    #[error(
        "the keeper with pid {pid} of pool {pool} is of another version of holdfast: {theirs}; the pool has format version \
         {found}, and this command is {}, which knows version {VERSION}. Use the command that it was started with{program}; \
         to go on with this one, end the keeper (`kill {pid}`: it brings everything to the disk first) and make the pool \
         anew",
        version()
    )]
    OtherFormat {
        /// The pool.
        pool: PathBuf,
        /// The keeper.
        pid: u32,
        /// What it is.
        theirs: String,
        /// The version of its pool's format.
        found: u32,
        /// Where its program is, if that can be seen.
        program: String,
    },
    /// It goes on with what it was asked for, and nobody waits for it.
    #[error(
        "a signal ended the wait for keeper {pid} of pool {pool}, which goes on bringing everything to the disk: \
         `holdfast status` says how far it is"
    )]
    GivenUp {
        /// The pool.
        pool: PathBuf,
        /// The keeper.
        pid: u32,
    },
    /// The conversation broke off.
    #[error("the keeper of pool {pool} (pid {pid}) did not answer: {source}{}", of_another_version(source))]
    Broken {
        /// The pool.
        pool: PathBuf,
        /// The keeper; 0: that is not known.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody else may be at the other end.
    #[error("whoever serves pool {pool} is not believed: {source}")]
    Stranger {
        /// The pool.
        pool: PathBuf,
        /// Whom it belongs to.
        source: io::Error,
    },
    /// The pool could not be read.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// A connection to the keeper of one pool.
pub struct Control {
    pool: PathBuf,
    socket: PathBuf,
    line: Line,
    keeper_pid: u32,
}

/// Questions and answers. A keeper that stood still answers all that it was asked meanwhile once it
/// goes on, also what nobody waits for any more: each answer says which question it is to.
struct Line {
    connection: OwnedFd,
    /// That of the last question.
    number: u32,
    /// The version that questions are of.
    version: u32,
    /// Who is at the other end, where that is a keeper.
    keeper_pid: Option<u32>,
}

/// What this program is, to those of other versions.
pub(crate) fn version() -> String {
    format!("{} (wire {WIRE_VERSION})", env!("CARGO_PKG_VERSION"))
}

/// How long a keeper that is stopped is waited for: it may be about to go on.
const STOPPED_MAX: Duration = Duration::from_secs(2);
/// How often it is seen whether it is.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Who waits for the disk looks so often whether the keeper lives.
const LIFE_EVERY: Duration = Duration::from_secs(5);
/// A keeper that says nothing for so long will not bring anything to the disk, either.
const LIFE_MAX: Duration = Duration::from_secs(60);

/// Since when a keeper has been seen to be stopped without a break.
#[derive(Default)]
struct Standstill(Option<Instant>);

impl Standstill {
    /// Whether it has been for too long.
    fn is_over(&mut self, pid: Option<u32>) -> bool {
        if pid.is_some_and(is_stopped) {
            self.0.get_or_insert_with(Instant::now).elapsed() >= STOPPED_MAX
        } else {
            self.0 = None;
            false
        }
    }
}

/// What became of a question.
#[derive(Debug)]
enum Unanswered {
    /// Nobody answered in time.
    Silent,
    /// Nobody answers, as the keeper is stopped.
    Stopped,
    /// Who asked waits no longer.
    GivenUp,
    /// The keeper is of another version: which, if it says so.
    OtherVersion(String),
    /// The conversation broke off.
    Broken(io::Error),
}

impl From<io::Error> for Unanswered {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<rustix::io::Errno> for Unanswered {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Broken(error.into())
    }
}

impl Line {
    fn new(connection: OwnedFd, keeper_pid: Option<u32>) -> Self {
        Self { connection, number: 0, version: WIRE_VERSION, keeper_pid }
    }

    /// Asks for something: the number that the answer will have.
    fn send(&mut self, kind: u8, argument: u32) -> Result<u32, Unanswered> {
        self.number = self.number.wrapping_add(1);
        let request = wire::request(kind, self.number, argument, self.version);
        rustix::net::send(&self.connection, &request, SendFlags::NOSIGNAL)?;
        Ok(self.number)
    }

    /// The next answer to anything, if one comes within this time.
    fn hear(&self, time: Duration) -> Result<Option<Vec<u8>>, Unanswered> {
        set_socket_timeout(&self.connection, Timeout::Recv, Some(time))?;
        let mut answer = vec![0u8; ANSWER_BYTES_MAX];
        let bytes = match rustix::net::recv(&self.connection, &mut answer[..], RecvFlags::empty()) {
            Ok((0, _)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok((bytes, _)) => bytes,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        answer.truncate(bytes);
        // Before answers had numbers they were JSON alone; no question ever gets this number.
        if answer.starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(&answer).is_ok() {
            return Err(Unanswered::OtherVersion("an older one, which does not say which".to_owned()));
        }
        Ok(Some(answer))
    }

    /// Asks for something, and waits for the answer to that, so long at most.
    fn ask<T: serde::de::DeserializeOwned>(
        &mut self,
        kind: u8,
        argument: u32,
        patience: Duration,
    ) -> Result<T, Unanswered> {
        let number = self.send(kind, argument)?;
        let mut standstill = Standstill::default();
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Err(Unanswered::Silent);
            }
            match self.hear(left.min(LOOK_AGAIN))? {
                Some(answer) => {
                    if let Some(told) = answer_to(number, &answer) {
                        return told;
                    }
                }
                None if standstill.is_over(self.keeper_pid) => return Err(Unanswered::Stopped),
                None => {}
            }
        }
    }

    /// Asks for what takes as long as the disk does, and waits for it while the keeper shows that
    /// it lives, up to the moment that `gives_up` says so.
    fn ask_at_length<T: serde::de::DeserializeOwned>(
        &mut self,
        kind: u8,
        gives_up: &mut dyn FnMut() -> bool,
    ) -> Result<T, Unanswered> {
        let number = self.send(kind, 0)?;
        let mut standstill = Standstill::default();
        let (mut heard, mut looked) = (Instant::now(), Instant::now());
        loop {
            match self.hear(LOOK_AGAIN)? {
                Some(answer) => {
                    if let Some(told) = answer_to(number, &answer) {
                        return told;
                    }
                    heard = Instant::now();
                }
                None if gives_up() => return Err(Unanswered::GivenUp),
                None if standstill.is_over(self.keeper_pid) => return Err(Unanswered::Stopped),
                None if heard.elapsed() >= LIFE_MAX => return Err(Unanswered::Silent),
                None => {}
            }
            if looked.elapsed() >= LIFE_EVERY {
                // Its event loop answers this at once, whatever the disk does.
                self.send(STATUS, 0)?;
                looked = Instant::now();
            }
        }
    }
}

/// What an answer says, if it is that to the question with this number.
fn answer_to<T: serde::de::DeserializeOwned>(number: u32, answer: &[u8]) -> Option<Result<T, Unanswered>> {
    let (found, text) = answer.split_at_checked(ANSWER_NUMBER_BYTES).unwrap_or_default();
    let is_meant = found == number.to_le_bytes() || on(Canary::LateAnswersTaken);
    is_meant.then(|| serde_json::from_slice(text).map_err(|_| Unanswered::OtherVersion(other_version(text))))
}

/// What a conversation that a keeper ended may mean.
fn of_another_version(source: &io::Error) -> &'static str {
    // Reset: it ended without having read what was asked.
    if matches!(source.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) {
        ": it ended the conversation. Either it is ending, or it is of another version of holdfast: use the command that \
         it was started with"
    } else {
        ""
    }
}

/// No answer that anybody gives.
#[derive(Deserialize)]
enum Nothing {}

/// How long a keeper may take to say its version, of which only the number is not known.
const VERSION_MAX: Duration = Duration::from_secs(3);

/// What a keeper says that it is, whose answer is not the one that was asked for.
fn other_version(text: &[u8]) -> String {
    let told: Option<BTreeMap<String, String>> = serde_json::from_slice(text).ok();
    let told = told.and_then(|told| told.get(OTHER_VERSION).cloned());
    told.unwrap_or_else(|| "its answer is not understood".to_owned())
}

impl Control {
    /// Connects to the keeper of `pool`, if one runs.
    pub fn connect(pool: &Path) -> Result<Self, ControlError> {
        let file = open_file(pool, OpenMode::ReadOnly)?;
        let (mapping, _) = Mapping::open_fd(file.as_fd(), pool, OpenMode::ReadOnly)
            .map_err(|error| PoolError::Unmapped { pool: pool.to_owned(), error })?;
        let of_other_format = match holdfast_pool::open(&mapping) {
            Ok(_) => None,
            Err(FormatError::Version { found }) => Some(found),
            Err(error) => return Err(PoolError::Unread { pool: pool.to_owned(), error }.into()),
        };
        let (keeper, told) = holdfast_pool::owner(&mapping);
        let keeper = keeper.and_then(|pid| u32::try_from(pid).ok());
        // Every keeper says it before it tells anybody that it is ready.
        let told = told.map(told_path).ok_or_else(|| ControlError::NoKeeper(pool.to_owned()));
        let served = told.and_then(|socket| Self::at(pool, socket, keeper));
        match (of_other_format, served) {
            (None, served) => served,
            (Some(found), Ok(mut served)) => Err(served.of_other_format(found)),
            (Some(found), Err(ControlError::NoKeeper(_))) => Err(ControlError::Pool(PoolError::Unusable {
                pool: pool.to_owned(),
                error: FormatError::Version { found },
                todo: "look at it with the version of Holdfast that made it",
            })),
            (Some(_), Err(error)) => Err(error),
        }
    }

    /// Connects to whoever listens there.
    fn at(pool: &Path, socket: PathBuf, keeper: Option<u32>) -> Result<Self, ControlError> {
        let broken =
            |source| ControlError::Broken { pool: pool.to_owned(), pid: keeper.unwrap_or_default(), source };
        let mut standstill = Standstill::default();
        let connected =
            connect_unless(&socket, || standstill.is_over(keeper)).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => match keeper {
                    Some(pid) if is_stopped(pid) => ControlError::Stopped { pool: pool.to_owned(), pid },
                    Some(pid) => ControlError::Silent { pool: pool.to_owned(), pid },
                    None => broken(error),
                },
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    ControlError::NoKeeper(pool.to_owned())
                }
                io::ErrorKind::PermissionDenied => {
                    ControlError::Stranger { pool: pool.to_owned(), source: error }
                }
                _ => broken(error),
            })?;
        let peer = Peer::of(&connected).map_err(broken)?;
        let line = Line::new(connected, Some(peer.pid));
        Ok(Self { pool: pool.to_owned(), socket, line, keeper_pid: peer.pid })
    }

    /// What to say of a keeper whose pool is of another version of the format.
    fn of_other_format(&mut self, found: u32) -> ControlError {
        // Whoever is asked by no version says of which it is.
        self.line.version = 0;
        let theirs = match self.line.ask::<Nothing>(STATUS, 0, VERSION_MAX) {
            Err(Unanswered::OtherVersion(theirs)) => theirs,
            Err(Unanswered::Stopped) => {
                return ControlError::Stopped { pool: self.pool.clone(), pid: self.keeper_pid };
            }
            _ => "it does not say which".to_owned(),
        };
        let program = std::fs::read_link(format!("/proc/{}/exe", self.keeper_pid));
        let program = program.map(|path| format!(" ({})", quoted(&path))).unwrap_or_default();
        ControlError::OtherFormat { pool: self.pool.clone(), pid: self.keeper_pid, theirs, found, program }
    }

    /// Where clients connect; the value of `HOLDFAST_SOCKET`.
    pub fn socket_path(&self) -> &Path {
        &self.socket
    }

    /// The keeper's process id.
    pub fn keeper_pid(&self) -> u32 {
        self.keeper_pid
    }

    /// Asks for the keeper's state.
    pub fn status(&mut self) -> Result<Status, ControlError> {
        self.ask(STATUS, 0)
    }

    /// Asks for all files that have slots, in the order of these.
    pub fn files(&mut self) -> Result<Vec<FileLine>, ControlError> {
        let mut files = Vec::new();
        let mut next = Some(0u32);
        while let Some(from) = next {
            let part: FilePart = self.ask(FILES, from)?;
            files.extend(part.files);
            // Whatever is said: it ends.
            next = part.next.filter(|slot| *slot > from);
        }
        Ok(files)
    }

    /// Tells the keeper that this process is about to start a program that will be its client: it
    /// stays until that program has connected, even when this process is killed before.
    pub fn expect_program(&mut self) -> Result<(), ControlError> {
        let sent = rustix::net::send(&self.line.connection, &[EXPECT], SendFlags::NOSIGNAL);
        sent.map(|_| ()).map_err(|error| ControlError::Broken {
            pool: self.pool.clone(),
            pid: self.keeper_pid,
            source: error.into(),
        })
    }

    /// Brings everything absorbed so far to the disk; returns once it is there (or says it is not).
    pub fn drain(&mut self) -> Result<Summary, ControlError> {
        self.drain_unless(&mut || false)
    }

    /// As [`Control::drain`], up to the moment that `gives_up` says so, which is asked repeatedly.
    pub fn drain_unless(&mut self, gives_up: &mut dyn FnMut() -> bool) -> Result<Summary, ControlError> {
        // However long the disk takes.
        let told = self.line.ask_at_length(DRAIN, gives_up);
        told.map_err(|unanswered| self.unanswered(unanswered))
    }

    fn ask<T: serde::de::DeserializeOwned>(&mut self, kind: u8, argument: u32) -> Result<T, ControlError> {
        let told = self.line.ask(kind, argument, ANSWER_MAX);
        told.map_err(|unanswered| self.unanswered(unanswered))
    }

    fn unanswered(&self, unanswered: Unanswered) -> ControlError {
        let (pool, pid) = (self.pool.clone(), self.keeper_pid);
        match unanswered {
            Unanswered::Silent => ControlError::Silent { pool, pid },
            Unanswered::Stopped => ControlError::Stopped { pool, pid },
            Unanswered::GivenUp => ControlError::GivenUp { pool, pid },
            Unanswered::OtherVersion(theirs) => ControlError::OtherVersion { pool, pid, theirs },
            Unanswered::Broken(source) => ControlError::Broken { pool, pid, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// The keeper was stopped for longer than somebody waits, and answers all it was asked.
    #[test]
    fn a_late_answer_is_not_taken_for_that_to_the_next_question() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut line = Line::new(ours, None);
        let hear = || {
            let mut request = [0; wire::REQUEST_BYTES];
            let (bytes, _) = rustix::net::recv(&theirs, &mut request, RecvFlags::empty()).unwrap();
            assert_eq!(bytes, wire::REQUEST_BYTES);
            request
        };
        let answer = |request: &[u8], text: &str| {
            holdfast_socket::send_answer(&theirs, request, &text, SendFlags::empty()).unwrap();
        };
        for round in 0..3 {
            let given_up = line.ask::<String>(STATUS, 0, Duration::from_millis(1));
            assert!(matches!(given_up, Err(Unanswered::Silent)), "{given_up:?}");
            let first = hear();
            std::thread::scope(|scope| {
                let second = scope.spawn(|| line.ask::<String>(FILES, 7, ANSWER_MAX).unwrap());
                let asked = hear();
                assert_eq!((asked[0], wire::argument(&asked)), (FILES, Some(7)));
                answer(&first, "late");
                answer(&asked, "in time");
                assert_eq!(second.join().unwrap(), "in time", "{round}");
            });
        }
    }

    /// A keeper of the time before answers had numbers.
    #[test]
    fn an_answer_without_a_number_is_an_older_keepers() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut line = Line::new(ours, None);
        rustix::net::send(&theirs, b"{\"keeper_pid\":1}", SendFlags::empty()).unwrap();
        let answer = line.ask::<String>(STATUS, 0, Duration::from_secs(60));
        assert!(
            matches!(&answer, Err(Unanswered::OtherVersion(theirs)) if theirs.contains("older")),
            "{answer:?}"
        );
        drop(theirs);
        let Err(Unanswered::Broken(source)) = line.ask::<String>(STATUS, 0, ANSWER_MAX) else {
            panic!("answered")
        };
        assert!(
            source.kind() == io::ErrorKind::BrokenPipe || !of_another_version(&source).is_empty(),
            "{source}"
        );
    }
}
