//! The event loop: hellos, control connections, client deaths and signals. It must never wait for a
//! file or the disk.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_cache::Unseen;
use holdfast_cache::wire::{
    self, DRAIN, EXPECT, FILES, FrontEnd, HELLO, Hello, OTHER_VERSION, STATUS, WIRE_VERSION, Welcome,
};
use holdfast_canary::{Canary, on};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use zerocopy::{FromBytes, IntoBytes};

use crate::audience::Stage;
use crate::control::version;
use crate::keeper::{Attached, Keeper, parent_of, program_of};
use crate::signals;
use holdfast_disk::locked;
use holdfast_recovery::mapped_by;
use holdfast_socket::{Peer, Stranger};
use holdfast_socket::{send_answer, send_with_descriptors};

/// How long a keeper waits for the first client or control connection before it ends by itself.
const FIRST_USE: Duration = Duration::from_secs(10);
/// How long a program that a supervisor has announced may take to say hello.
const PROGRAM_PENDING: Duration = Duration::from_secs(10);
/// How long an announced child may take to say hello.
const FORK_PENDING: Duration = Duration::from_secs(5);
/// How long a connection may say nothing at first. The library tries again.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// Connections that have said nothing yet. Of programs that start all at once each says hello
/// before it waits, so none of theirs is old.
const SILENT_CONNECTIONS_MAX: usize = 256;
/// Connections of those who control us.
const CONTROLS_MAX: usize = 1024;
/// Connections taken before others are heard again.
const ACCEPTED_MAX: usize = 64;
/// Strangers that are looked at in a second, to be named: it takes longer than to connect.
const STRANGERS_MAX: u32 = 32;
/// How long nobody is let in when there is no descriptor left for them.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(100);
/// Signals that follow each other so soon mean the same stop: who ends a service may tell its
/// keeper more than once.
const SAME_STOP: Duration = Duration::from_secs(1);
const MESSAGE_BYTES_MAX: usize = 64;

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const FIRST_CLIENT: u64 = 16;
const FIRST_CONNECTION: u64 = 1 << 40;

/// A connection of a process of our user's.
struct Conversation {
    /// Shared with who answers later: there may be no descriptor left for another one.
    connection: Arc<OwnedFd>,
    peer: Peer,
    /// It has asked for something: no client, which says hello once, but who supervises some.
    controls: bool,
    since: Instant,
}

/// Everything that a running keeper listens to.
pub(crate) struct EventLoop {
    keeper: Arc<Keeper>,
    epoll: OwnedFd,
    listener: OwnedFd,
    /// Readable when the keeper shall stop.
    signals: OwnedFd,
    /// Since when it is told to stop.
    told_to_stop: Option<Instant>,
    connections: HashMap<u64, Conversation>,
    next_connection: u64,
    next_client: u32,
    /// Who started us for a program, and may have ended by now; a service has none.
    supervisor: Option<u32>,
    /// Supervisors that announced a program which has not said hello yet, and when.
    expected: Vec<(u32, Instant)>,
    used: bool,
    started: Instant,
    forks_since: Option<Instant>,
    /// Until then there is no room for more connections.
    full_until: Option<Instant>,
    /// Strangers that were looked at since then.
    strangers: (Instant, u32),
}

impl EventLoop {
    pub(crate) fn new(keeper: Arc<Keeper>, listener: OwnedFd, signals: OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |fd: BorrowedFd<'_>, token| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        };
        let is_service = keeper.config.service;
        watch(listener.as_fd(), LISTENER)?;
        watch(signals.as_fd(), SIGNALS)?;
        Ok(Self {
            keeper,
            epoll,
            listener,
            signals,
            told_to_stop: None,
            connections: HashMap::new(),
            next_connection: FIRST_CONNECTION,
            next_client: 1,
            supervisor: Some(std::os::unix::process::parent_id()).filter(|_| !is_service),
            expected: Vec::new(),
            used: false,
            started: Instant::now(),
            forks_since: None,
            full_until: None,
            strangers: (Instant::now(), 0),
        })
    }

    /// Serves until nobody needs the keeper any more, or signals say so.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            self.end_silence();
            self.listen_again();
            let patience = self.patience();
            let timeout = patience.map(|left| rustix::event::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()) + 1_000_000,
            });
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    SIGNALS if self.stop() => return Ok(()),
                    SIGNALS => {}
                    token if token >= FIRST_CONNECTION => self.converse(token),
                    client => self.reap((client - FIRST_CLIENT) as u32),
                }
            }
            if self.is_unused() || self.stop_by().is_some_and(|until| until <= Instant::now()) {
                return Ok(());
            }
        }
    }

    /// A signal says that the keeper shall stop. A service manager sends it to programs and keeper
    /// alike, and what programs write on their way out must not fail: the keeper waits for them.
    /// Whether it stops now all the same, since it is told so again.
    fn stop(&mut self) -> bool {
        signals::take(&self.signals);
        if let Some(told) = self.told_to_stop {
            return told.elapsed() >= SAME_STOP;
        }
        self.told_to_stop = Some(Instant::now());
        let patience = self.patience_stopping();
        self.keeper.told_to_stop.store(true, Ordering::SeqCst);
        let notes = &self.keeper.notes;
        notes.stage(Stage::Stopping { clients: locked(&self.keeper.clients).len() });
        if !self.is_unused() {
            self.keeper.notes.announce(&format!(
                "keeper {} of pool {} stops when its programs have ended, in {} s at the latest; a second signal \
                 stops it at once",
                std::process::id(),
                self.keeper.config.pool.display(),
                patience.as_secs_f32()
            ));
        }
        false
    }

    fn patience_stopping(&self) -> Duration {
        Duration::from_millis(self.keeper.config.stop_ms_max)
    }

    /// When it stops at the latest, if it was told to.
    fn stop_by(&self) -> Option<Instant> {
        self.told_to_stop.map(|told| told + self.patience_stopping())
    }

    /// How long to sleep: without a limit while somebody uses the keeper.
    fn patience(&self) -> Option<Duration> {
        let silent = self.connections.values().filter(|known| !known.controls);
        let silence = silent.map(|known| known.since + SILENT_MAX).min();
        let turns = silence.into_iter().chain(self.full_until).chain(self.stop_by()).min();
        let turn = turns.map(|until| until.saturating_duration_since(Instant::now()));
        self.patience_unused().into_iter().chain(turn).min()
    }

    /// How long to sleep until the keeper may be one that nobody uses.
    fn patience_unused(&self) -> Option<Duration> {
        if !self.connections.is_empty() || self.has_clients() {
            return None;
        }
        let until = match (self.expected.last(), self.forks_since) {
            (Some((_, since)), _) => *since + PROGRAM_PENDING,
            (None, Some(since)) => since + FORK_PENDING,
            (None, None) if self.keeper.config.service => return None,
            (None, None) => self.started + FIRST_USE,
        };
        Some(until.saturating_duration_since(Instant::now()))
    }

    fn has_clients(&self) -> bool {
        !locked(&self.keeper.clients).is_empty()
    }

    fn is_unused(&mut self) -> bool {
        if !self.connections.is_empty() || self.has_clients() {
            return false;
        }
        self.expected.retain(|(_, since)| since.elapsed() < PROGRAM_PENDING);
        if !self.expected.is_empty() {
            return false;
        }
        if self.keeper.durable.board.header().forks_pending() > 0 {
            // A child has the pool mapped from its parent. One that was killed before it said hello
            // never comes.
            let may_come = self.forks_since.is_some() || !mapped_by(&self.keeper.config.pool).is_empty();
            if may_come {
                let since = *self.forks_since.get_or_insert_with(Instant::now);
                if since.elapsed() < FORK_PENDING {
                    return false;
                }
            }
        }
        let is_over = self.used || self.started.elapsed() >= FIRST_USE;
        self.told_to_stop.is_some() || is_over && !self.keeper.config.service
    }

    fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> bool {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN).is_ok()
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_MAX {
            let connection = match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(connection) => connection,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    return self.stop_listening();
                }
                // Nobody is left, or whoever was there has gone.
                Err(_) => return,
            };
            let Ok(peer) = Peer::of(&connection) else { continue };
            if let Err(stranger) = peer.has_our_user()
                && !on(Canary::PeerUnchecked)
            {
                self.turn_away(&peer, stranger);
                continue;
            }
            self.make_room();
            let token = self.next_connection;
            self.next_connection += 1;
            let connection = Arc::new(connection);
            let known = Conversation { connection, peer, controls: false, since: Instant::now() };
            self.connections.insert(token, known);
            // A program that starts says hello at once and waits: mostly it has done so by now.
            self.converse(token);
            let watched =
                self.connections.get(&token).map(|known| self.watch(known.connection.as_fd(), token));
            if watched == Some(false) {
                self.connections.remove(&token);
            }
        }
    }

    /// Lets go of connections that have said nothing for too long.
    fn end_silence(&mut self) {
        self.connections.retain(|_, known| known.controls || known.since.elapsed() < SILENT_MAX);
    }

    /// Lets go of the oldest connection of a kind of which there are too many.
    fn make_room(&mut self) {
        for (controls, most) in [(false, SILENT_CONNECTIONS_MAX), (true, CONTROLS_MAX)] {
            let of_kind = || self.connections.iter().filter(|(_, known)| known.controls == controls);
            if of_kind().count() >= most
                && let Some(&oldest) = of_kind().min_by_key(|(_, known)| known.since).map(|(token, _)| token)
            {
                self.connections.remove(&oldest);
            }
        }
    }

    /// There is no descriptor for whoever wants in: they wait, and everybody else is served.
    /// Without this the listener would be ready again and again.
    fn stop_listening(&mut self) {
        self.full_until = Some(Instant::now() + NO_ROOM_PAUSE);
        let nothing = epoll::EventFlags::empty();
        let _ = epoll::modify(&self.epoll, &self.listener, epoll::EventData::new_u64(LISTENER), nothing);
    }

    fn listen_again(&mut self) {
        if self.full_until.is_some_and(|until| until <= Instant::now()) {
            self.full_until = None;
            let readable = epoll::EventFlags::IN;
            let _ = epoll::modify(&self.epoll, &self.listener, epoll::EventData::new_u64(LISTENER), readable);
        }
    }

    fn converse(&mut self, token: u64) {
        let Some(Conversation { connection, peer, controls, .. }) = self.connections.get_mut(&token) else {
            return;
        };
        let mut message = [0u8; MESSAGE_BYTES_MAX];
        let received = rustix::net::recv(&*connection, &mut message, RecvFlags::DONTWAIT);
        let bytes = match received {
            Ok((bytes, _)) if bytes > 0 => bytes,
            Err(Errno::AGAIN | Errno::INTR) => return,
            _ => {
                holdfast_socket::leave_standard_error_with(self.supervisor, connection);
                self.connections.remove(&token);
                return;
            }
        };
        let request = &message[..bytes];
        // Not when somebody only looks how it is, before whoever started us has said a word.
        let is_look = matches!(message[0], STATUS | FILES | DRAIN) && self.supervisor != Some(peer.pid);
        self.used |= !is_look;
        let argument = wire::argument(request);
        match message[0] {
            // It is told what we are, and says so to whoever runs it.
            STATUS | FILES | DRAIN if argument.is_none() => {
                *controls = true;
                if send_answer(connection, request, &our_version(), SendFlags::DONTWAIT).is_err() {
                    self.connections.remove(&token);
                }
            }
            HELLO => {
                let said = self.connections.remove(&token);
                if let (Some(said), Ok(hello)) = (said, Hello::read_from_bytes(&message[..bytes])) {
                    self.welcome(&said.connection, &said.peer, &hello);
                }
            }
            STATUS => {
                *controls = true;
                // Who does not listen must not keep us.
                if send_answer(connection, request, &self.keeper.status(), SendFlags::DONTWAIT).is_err() {
                    self.connections.remove(&token);
                }
            }
            FILES => {
                *controls = true;
                let files = self.keeper.files(argument.unwrap_or(0));
                if send_answer(connection, request, &files, SendFlags::DONTWAIT).is_err() {
                    self.connections.remove(&token);
                }
            }
            EXPECT => {
                *controls = true;
                self.expected.push((peer.pid, Instant::now()));
            }
            DRAIN => {
                *controls = true;
                let (supervisor, connection) = (peer.pid, Arc::clone(connection));
                // The program has ended, if it ever became a client.
                self.no_longer_expected(supervisor);
                if !self.drain(connection, message) {
                    // Who asked would wait for an answer that never comes.
                    self.connections.remove(&token);
                }
            }
            _ => {
                // Perhaps a newer version's.
                let _ = send_answer(connection, request, &our_version(), SendFlags::DONTWAIT);
                self.connections.remove(&token);
            }
        }
    }

    /// Answers a question for a drain once that is done. Whether there is somebody to do it.
    fn drain(&self, connection: Arc<OwnedFd>, asked: [u8; MESSAGE_BYTES_MAX]) -> bool {
        let keeper = Arc::clone(&self.keeper);
        let drain = move || {
            let clean = keeper.drain();
            let summary = keeper.summary(clean);
            let _ = send_answer(&connection, &asked, &summary, SendFlags::empty());
        };
        std::thread::Builder::new().name("drain".to_owned()).spawn(drain).is_ok()
    }

    fn no_longer_expected(&mut self, supervisor: u32) {
        if let Some(at) = self.expected.iter().position(|(pid, _)| *pid == supervisor) {
            self.expected.remove(at);
        }
    }

    /// A process of another user's wants to be served. If it is one of a run's, what it writes is
    /// not absorbed, and that is said.
    fn turn_away(&mut self, peer: &Peer, stranger: Stranger) {
        if self.strangers.0.elapsed() > Duration::from_secs(1) {
            self.strangers = (Instant::now(), 0);
        }
        self.strangers.1 += 1;
        if self.strangers.1 > STRANGERS_MAX {
            return;
        }
        let why = match stranger {
            Stranger::Other(_) => Unseen::OtherUser,
            Stranger::Mixed => Unseen::MixedUser,
        };
        if self.descends_from_ours(peer.pid)
            && let Ok(program) = std::fs::read_link(format!("/proc/{}/exe", peer.pid))
        {
            self.keeper.notes.unseen(program, why);
        }
    }

    fn welcome(&mut self, connection: &OwnedFd, peer: &Peer, hello: &Hello) {
        let pid = peer.pid;
        if hello.forked != 0 {
            self.keeper.durable.board.header().end_fork();
            self.forks_since = None;
        }
        let Some(pidfd) = self.admit(connection, peer, hello) else {
            let _ = rustix::net::send(connection, Welcome::refusal().as_bytes(), SendFlags::NOSIGNAL);
            return;
        };
        // The same process with another program: what the old one left is repaired.
        let earlier: Vec<u32> = locked(&self.keeper.clients)
            .iter()
            .filter(|(_, attached)| attached.pid == pid)
            .map(|(id, _)| *id)
            .collect();
        // Seldom: programs that supervisors start are few among all that start.
        if !self.expected.is_empty()
            && let Some(parent) = parent_of(pid)
        {
            self.no_longer_expected(parent);
        }
        let past = self.descends_from_past(pid);
        let client = self.next_client;
        self.next_client += 1;
        self.keeper.last_client.store(client, Ordering::SeqCst);
        let pidfd = Arc::new(pidfd);
        if !on(Canary::DeathUnwatched) && !self.watch(pidfd.as_fd(), FIRST_CLIENT + u64::from(client)) {
            return;
        }
        let front_end = FrontEnd::from_u8(hello.front_end).unwrap_or(FrontEnd::None);
        *locked(&self.keeper.notes.front_ends).entry(front_end.to_string()).or_default() += 1;
        let blind = hello.blind != 0 || past;
        locked(&self.keeper.clients)
            .insert(client, Attached { pid, front_end, program: program_of(pid), blind, past, pidfd });
        let keeper = &self.keeper;
        let welcome = Welcome::new(
            client,
            &keeper.durable.superblock.layout,
            keeper.durable.superblock.uuid,
            &keeper.media,
            keeper.config.delay(),
        );
        let _ = send_with_descriptors(
            connection,
            welcome.as_bytes(),
            &[keeper.board_fd.as_fd(), keeper.pool_fd.as_fd()],
        );
        // Nothing of it is in the way of the new one more than of any other client: who starts does
        // not wait for this.
        for client in earlier {
            self.reap(client);
        }
    }

    /// The process behind a hello, if it may be a client: wholly of our user, and of our version.
    fn admit(&mut self, connection: &OwnedFd, peer: &Peer, hello: &Hello) -> Option<OwnedFd> {
        let process = peer.process(connection).ok()?;
        if let Err(stranger) = peer.is_our_user(&process)
            && !on(Canary::PeerUnchecked)
        {
            self.turn_away(peer, stranger);
            return None;
        }
        (hello.version.get() == WIRE_VERSION).then_some(process)
    }

    /// A client's process ended (or another program took its place).
    fn reap(&mut self, client: u32) {
        let gone = locked(&self.keeper.clients).remove(&client);
        if let Some(attached) = gone {
            let _ = epoll::delete(&self.epoll, &attached.pidfd);
            self.keeper.reap(client);
        }
    }

    /// Whether a process was forked by one whose library does not see all of its calls, and runs on
    /// in its program.
    fn descends_from_past(&self, pid: u32) -> bool {
        // Seldom: no look at the processes of others.
        if !locked(&self.keeper.clients).values().any(|attached| attached.past) {
            return false;
        }
        let (parent, program) = (parent_of(pid), program_of(pid));
        let is_parent = |attached: &Attached| {
            attached.past && Some(attached.pid) == parent && attached.program == program
        };
        locked(&self.keeper.clients).values().any(is_parent)
    }

    /// Whether a process descends from a client, or from somebody who is connected and controls us.
    /// By numbers, which may be others' by now: good for what is told to people, and nothing else.
    fn descends_from_ours(&self, pid: u32) -> bool {
        let controls = |pid| self.connections.values().any(|known| known.controls && known.peer.pid == pid);
        let mut at = pid;
        for _ in 0..64 {
            if self.keeper.is_client(at) || controls(at) {
                return at > 1;
            }
            match parent_of(at) {
                Some(parent) if parent > 1 => at = parent,
                _ => return false,
            }
        }
        false
    }
}

/// What is answered to a request of another version.
fn our_version() -> BTreeMap<&'static str, String> {
    [(OTHER_VERSION, version())].into()
}
