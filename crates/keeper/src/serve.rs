//! Starting, running and stopping a keeper: the event loop over hellos, control connections, client deaths and
//! signals.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use holdfast_board::{Board, KEEPER_DIED, PAGE_BYTES, Plan, SegmentState, wake};
use holdfast_cache::wire::{DRAIN, EXPECT, HELLO, Hello, STATUS, WIRE_VERSION, Welcome};
use holdfast_canary::{Canary, on};
use holdfast_media::{Delay, Mapping, OpenMode};
use rustix::event::epoll;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};
use zerocopy::{FromBytes, IntoBytes};

use crate::KeeperError;
use crate::config::{FenceChoice, KeeperConfig, WriteBehind};
use crate::disk::{OsDisk, OsFile};
use crate::durable::{Durable, Events, locked};
use crate::fence::Fence;
use crate::keeper::{Attached, Keeper, Notes, parent_of, program_of};
use crate::outsiders::Gate;
use crate::patterns::Patterns;
use crate::recovery::{OpenPool, PoolError, RecoverOptions, RecoveredPool, Report, mapped_by};
use crate::runtime::{send_json, send_with_descriptors};
use crate::settlers::{self, Queue};
use crate::{expire, reclaim, requests, runtime, signals, teller};

/// Threads that answer requests which wait for the disk.
const SETTLERS: usize = 2;
/// How long a keeper waits for the first client or control connection before it ends by itself.
const FIRST_USE: Duration = Duration::from_secs(10);
/// How long a program that a supervisor has announced may take to say hello.
const PROGRAM_PENDING: Duration = Duration::from_secs(10);
/// How long an announced child may take to say hello.
const FORK_PENDING: Duration = Duration::from_secs(5);
/// A terabyte.
const FRAMES_MAX: u64 = 1 << 28;
const MESSAGE_BYTES_MAX: usize = 64;

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const FIRST_CLIENT: u64 = 16;
const FIRST_CONNECTION: u64 = 1 << 40;

/// Runs a keeper in this process until it is told to stop or is no longer needed. Recovers the pool first.
/// `ready` is called once clients may connect, with the socket path and the report of recovery.
pub fn serve(config: KeeperConfig, ready: impl FnOnce(&Path, Option<&Report>)) -> Result<(), KeeperError> {
    let signals = signals::stop_signals().map_err(os("watch for signals"))?;
    runtime::raise_descriptor_limit();
    let pool = OpenPool::open(&config.pool, config.volatile)?;
    let was_clean = pool.is_clean();
    let (pool, report) = pool.recover(&RecoverOptions::default(), &mut |_, _, _| {})?;
    let strangers = mapped_by(&config.pool);
    if !strangers.is_empty() {
        return Err(KeeperError::Pool(PoolError {
            message: format!(
                "pool {} is still mapped by clients of an earlier keeper (processes {strangers:?}); everything they \
                 were acknowledged is in their files, but the pool can be used only when they have ended",
                config.pool.display()
            ),
            busy: true,
        }));
    }
    let report = (!was_clean).then_some(report);
    let (keeper, lock) = build(config, pool, report.clone())?;
    let keeper = Arc::new(keeper);
    let threads = start_threads(&keeper)?;
    let (listener, socket) = listen(&keeper).map_err(os("listen for clients"))?;
    // The word is looked at to the end of this process, and longer by the kernel: the board is never unmapped.
    let board: &'static Arc<Board> = Box::leak(Box::new(Arc::clone(&keeper.durable.board)));
    crate::robust::bind_to_this_thread(&board.header().keeper.word)
        .map_err(os("register its robust futex"))?;
    ready(&socket, report.as_ref());
    let mut events =
        EventLoop::new(Arc::clone(&keeper), listener, signals).map_err(os("watch its clients"))?;
    let result = events.run();
    // Nobody is served any more: who starts now is told so, and who wants the pool knows that it is soon free.
    drop(events);
    let closed = close(&keeper, threads);
    if closed.is_ok() {
        // Its absence tells programs started from now on that no record of their files is live.
        let _ = std::fs::remove_file(&socket);
    }
    drop(lock);
    result.map_err(os("watch its clients"))?;
    closed
}

fn os(what: &'static str) -> impl Fn(io::Error) -> KeeperError {
    move |source| KeeperError::Os { what: what.to_owned(), source }
}

fn build(
    config: KeeperConfig,
    pool: RecoveredPool,
    recovered: Option<Report>,
) -> Result<(Keeper, OwnedFd), KeeperError> {
    let RecoveredPool { mapping, superblock, lock, counter_start, pinned_segments, set_aside_slots, .. } =
        pool;
    let pool_fd: OwnedFd = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&config.pool)
        .map_err(os("open the pool for clients"))?
        .into();
    let media = Mapping::open_fd(pool_fd.as_fd(), &config.pool, OpenMode::ReadOnly)
        .map_err(|error| KeeperError::Pool(PoolError { message: error.to_string(), busy: false }))?
        .1;
    mapping.set_delay(delay(&config));
    let frames = match config.write_behind {
        WriteBehind::Off => 0,
        _ => (config.read_cache_bytes / PAGE_BYTES).min(FRAMES_MAX),
    };
    let plan = Plan::new(superblock.layout.slot_count, superblock.layout.segment_count)
        .with_read_cache(frames as u32);
    let (board, board_fd) = Board::create(plan).map_err(|error| KeeperError::Os {
        what: "make the board".to_owned(),
        source: io::Error::other(format!("{error:?}")),
    })?;
    board.header().counter.set(counter_start);
    board.header().write_behind.word.store(config.write_behind as u32, Ordering::SeqCst);
    for &segment in &pinned_segments {
        board.segments()[segment as usize].set_state(SegmentState::Pinned);
    }
    let patterns = Patterns::new(&config.include, &config.exclude).map_err(|error| KeeperError::Os {
        what: "understand a pattern".to_owned(),
        source: io::Error::other(error.to_string()),
    })?;
    let notes = Arc::new(Notes::default());
    let durable = Durable::new(
        (mapping, superblock),
        Arc::new(board),
        OsDisk::new(),
        set_aside_slots,
        Arc::clone(&notes) as Arc<dyn Events<OsFile>>,
    );
    let keeper = Keeper {
        config,
        durable,
        media,
        board_fd,
        pool_fd,
        patterns,
        notes,
        pending: Mutex::default(),
        clients: Mutex::default(),
        recovered,
        segments_pinned: pinned_segments.len(),
        stopping: AtomicBool::new(false),
        reclaim_stuck: AtomicBool::new(false),
        drain_wanted: AtomicU64::new(0),
        drain_done: Mutex::new((0, true)),
        drain_signal: Condvar::new(),
    };
    Ok((keeper, lock))
}

fn delay(config: &KeeperConfig) -> Delay {
    Delay { write_latency_ns: config.nvm_latency_ns, bandwidth_bytes_per_s: config.nvm_bandwidth_bytes_per_s }
}

struct Threads {
    server: std::thread::JoinHandle<()>,
    expirer: std::thread::JoinHandle<()>,
    reclaimer: std::thread::JoinHandle<()>,
    teller: std::thread::JoinHandle<()>,
    settlers: Vec<std::thread::JoinHandle<()>>,
    queue: Arc<Queue>,
}

fn start_threads(keeper: &Arc<Keeper>) -> Result<Threads, KeeperError> {
    if keeper.config.fence != FenceChoice::None {
        let fence = Fence::start(keeper.config.fence, Arc::new(Gate(Arc::clone(keeper))))
            .map_err(|error| KeeperError::Pool(PoolError { message: error.to_string(), busy: false }))?;
        let announces = u32::from(fence.kind().only_notices());
        keeper.durable.board.header().announces_opens.word.store(announces, Ordering::SeqCst);
        let _ = keeper.notes.fence.set(fence);
    }
    let queue = Arc::new(Queue::default());
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.to_owned()).spawn(body).map_err(os("start a thread"))
    };
    let mut settlers = Vec::new();
    for _ in 0..SETTLERS {
        let (keeper, queue) = (Arc::clone(keeper), Arc::clone(&queue));
        settlers.push(spawn("settler", Box::new(move || settlers::run(&keeper, &queue)))?);
    }
    let (served, to_settlers) = (Arc::clone(keeper), Arc::clone(&queue));
    let server = spawn("requests", Box::new(move || requests::serve(&served, &to_settlers)))?;
    let expired = Arc::clone(keeper);
    let expirer = spawn("expirer", Box::new(move || expire::run(&expired)))?;
    let reclaimed = Arc::clone(keeper);
    let reclaimer = spawn("reclaimer", Box::new(move || reclaim::run(&reclaimed)))?;
    let told = Arc::clone(keeper);
    let teller = spawn("teller", Box::new(move || teller::run(&told)))?;
    Ok(Threads { server, expirer, reclaimer, teller, settlers, queue })
}

fn listen(keeper: &Keeper) -> io::Result<(OwnedFd, std::path::PathBuf)> {
    runtime::prepare_directory()?;
    let path = runtime::socket_path(&keeper.durable.superblock.uuid);
    // We own the pool, so nobody listens here any more.
    let _ = std::fs::remove_file(&path);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path)?)?;
    // Who may be a client is decided by who they are, not by the socket's mode.
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    rustix::net::listen(&listener, 128)?;
    Ok((listener, path))
}

/// Lets no client acknowledge anything more, drains, and closes the pool cleanly if everything reached the disk.
fn close(keeper: &Arc<Keeper>, threads: Threads) -> Result<(), KeeperError> {
    let header = keeper.durable.board.header();
    header.keeper.word.fetch_or(KEEPER_DIED, Ordering::SeqCst);
    let patience = Instant::now() + Duration::from_secs(2);
    while keeper.durable.board.lanes().iter().any(|lane| lane.announce.load(Ordering::SeqCst) != 0)
        && Instant::now() < patience
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    keeper.stopping.store(true, Ordering::SeqCst);
    keeper.durable.ring_expirer();
    header.request_wake.word.fetch_add(1, Ordering::SeqCst);
    wake(&header.request_wake.word, u32::MAX);
    let _ = threads.server.join();
    threads.queue.close();
    let _ = threads.expirer.join();
    let _ = threads.reclaimer.join();
    let _ = threads.teller.join();
    for settler in threads.settlers {
        let _ = settler.join();
    }
    let busy = keeper.durable.board.lanes().iter().any(|lane| lane.announce.load(Ordering::SeqCst) != 0);
    let clean = keeper.durable.expire_all() && keeper.durable.expire_all() && !busy;
    if !clean {
        return Err(KeeperError::Os {
            what: "bring everything to disk; the pool keeps it for `holdfast recover`".to_owned(),
            source: io::Error::other(locked(&keeper.notes.errors).back().cloned().unwrap_or_default()),
        });
    }
    keeper.durable.close(keeper.segments_pinned == 0);
    Ok(())
}

struct EventLoop {
    keeper: Arc<Keeper>,
    epoll: OwnedFd,
    listener: OwnedFd,
    /// Readable when the keeper shall stop; kept open for `epoll`.
    _signals: OwnedFd,
    connections: HashMap<u64, OwnedFd>,
    next_connection: u64,
    next_client: u32,
    /// Who started us; it may have ended by now.
    supervisor: u32,
    /// Processes whose descendants may be clients although they gave up our user id.
    ancestors: Vec<u32>,
    /// Supervisors that announced a program which has not said hello yet, and when.
    expected: Vec<(u32, Instant)>,
    used: bool,
    started: Instant,
    forks_since: Option<Instant>,
}

impl EventLoop {
    fn new(keeper: Arc<Keeper>, listener: OwnedFd, signals: OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |fd: BorrowedFd<'_>, token| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        };
        watch(listener.as_fd(), LISTENER)?;
        watch(signals.as_fd(), SIGNALS)?;
        Ok(Self {
            keeper,
            epoll,
            listener,
            _signals: signals,
            connections: HashMap::new(),
            next_connection: FIRST_CONNECTION,
            next_client: 1,
            supervisor: std::os::unix::process::parent_id(),
            ancestors: Vec::new(),
            expected: Vec::new(),
            used: false,
            started: Instant::now(),
            forks_since: None,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let patience = self.patience();
            let timeout = patience.map(|left| rustix::event::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()) + 1_000_000,
            });
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    SIGNALS => return Ok(()),
                    token if token >= FIRST_CONNECTION => self.converse(token),
                    client => self.bury((client - FIRST_CLIENT) as u32),
                }
            }
            if self.keeper.config.exit_when_unused && self.is_unused() {
                return Ok(());
            }
        }
    }

    /// How long to sleep: without a limit while somebody uses the keeper.
    fn patience(&self) -> Option<Duration> {
        if !self.keeper.config.exit_when_unused || !self.connections.is_empty() || self.has_clients() {
            return None;
        }
        let until = match (self.expected.last(), self.forks_since) {
            (Some((_, since)), _) => *since + PROGRAM_PENDING,
            (None, Some(since)) => since + FORK_PENDING,
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
        if self.keeper.durable.board.header().forks_pending.word.load(Ordering::SeqCst) as i32 > 0 {
            let since = *self.forks_since.get_or_insert_with(Instant::now);
            if since.elapsed() < FORK_PENDING {
                return false;
            }
        }
        self.used || self.started.elapsed() >= FIRST_USE
    }

    fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> bool {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN).is_ok()
    }

    fn accept(&mut self) {
        while let Ok(connection) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
            let token = self.next_connection;
            self.next_connection += 1;
            if self.watch(connection.as_fd(), token) {
                self.connections.insert(token, connection);
            }
        }
    }

    fn converse(&mut self, token: u64) {
        let Some(connection) = self.connections.get(&token) else { return };
        let mut message = [0u8; MESSAGE_BYTES_MAX];
        let received = rustix::net::recv(connection, &mut message, RecvFlags::DONTWAIT);
        let bytes = match received {
            Ok((bytes, _)) if bytes > 0 => bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            _ => {
                runtime::leave_standard_error_with(self.supervisor, connection);
                self.connections.remove(&token);
                return;
            }
        };
        let Ok(peer) = rustix::net::sockopt::socket_peercred(connection) else { return };
        let ours = peer.uid == rustix::process::geteuid();
        // Not when somebody only looks whether anybody is there.
        self.used = true;
        match message[0] {
            HELLO => {
                let connection = self.connections.remove(&token);
                if let (Some(connection), Ok(hello)) = (connection, Hello::read_from_bytes(&message[..bytes]))
                {
                    self.welcome(&connection, peer.pid, ours, &hello);
                }
            }
            STATUS if ours => {
                let _ = send_json(connection, &self.keeper.status());
                self.remember_ancestor(peer.pid);
            }
            EXPECT if ours => {
                let supervisor = peer.pid.as_raw_nonzero().get() as u32;
                self.remember_ancestor(peer.pid);
                self.expected.push((supervisor, Instant::now()));
            }
            DRAIN if ours => {
                let connection = connection.try_clone();
                // The program has ended, if it ever became a client.
                self.no_longer_expected(peer.pid.as_raw_nonzero().get() as u32);
                if let Ok(connection) = connection {
                    let keeper = Arc::clone(&self.keeper);
                    let _ = std::thread::Builder::new().name("drain".to_owned()).spawn(move || {
                        let clean = keeper.drain();
                        let _ = send_json(&connection, &keeper.summary(clean));
                    });
                }
            }
            _ => {
                self.connections.remove(&token);
            }
        }
    }

    fn no_longer_expected(&mut self, supervisor: u32) {
        if let Some(at) = self.expected.iter().position(|(pid, _)| *pid == supervisor) {
            self.expected.remove(at);
        }
    }

    fn remember_ancestor(&mut self, pid: Pid) {
        let pid = pid.as_raw_nonzero().get() as u32;
        if !self.ancestors.contains(&pid) {
            self.ancestors.push(pid);
        }
    }

    fn welcome(&mut self, connection: &OwnedFd, pid: Pid, ours: bool, hello: &Hello) {
        let pid_number = pid.as_raw_nonzero().get() as u32;
        if hello.forked != 0 {
            self.keeper.durable.board.header().forks_pending.word.fetch_sub(1, Ordering::SeqCst);
            self.forks_since = None;
        }
        let allowed = hello.version.get() == WIRE_VERSION && (ours || self.descends_from_ours(pid_number));
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        let (Ok(pidfd), true) = (pidfd, allowed) else {
            let _ = rustix::net::send(connection, Welcome::refusal().as_bytes(), SendFlags::NOSIGNAL);
            return;
        };
        // The same process with another program: what the old one left is repaired.
        let earlier: Vec<u32> = locked(&self.keeper.clients)
            .iter()
            .filter(|(_, attached)| attached.pid == pid_number)
            .map(|(id, _)| *id)
            .collect();
        for client in earlier {
            self.bury(client);
        }
        if let Some(parent) = parent_of(pid_number) {
            self.no_longer_expected(parent);
        }
        let client = self.next_client;
        self.next_client += 1;
        let pidfd = Arc::new(pidfd);
        if !on(Canary::DeathUnwatched) && !self.watch(pidfd.as_fd(), FIRST_CLIENT + u64::from(client)) {
            return;
        }
        locked(&self.keeper.clients).insert(
            client,
            Attached { pid: pid_number, program: program_of(pid_number), blind: hello.blind != 0, pidfd },
        );
        let keeper = &self.keeper;
        let welcome = Welcome::new(
            client,
            &keeper.durable.superblock.layout,
            keeper.durable.superblock.uuid,
            &keeper.media,
            delay(&keeper.config),
        );
        let _ = send_with_descriptors(
            connection,
            welcome.as_bytes(),
            &[keeper.board_fd.as_fd(), keeper.pool_fd.as_fd()],
        );
    }

    /// A client's process ended (or another program took its place).
    fn bury(&mut self, client: u32) {
        let gone = locked(&self.keeper.clients).remove(&client);
        if let Some(attached) = gone {
            let _ = epoll::delete(&self.epoll, &attached.pidfd);
            self.keeper.bury(client);
        }
    }

    fn descends_from_ours(&self, pid: u32) -> bool {
        let supervisor = std::os::unix::process::parent_id();
        let mut at = pid;
        for _ in 0..64 {
            if at == supervisor || self.ancestors.contains(&at) || self.keeper.is_client(at) {
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
