//! Starting and stopping a keeper: its pool, its board and its threads. What it hears while it runs
//! is `events`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use holdfast_board::{Board, PAGE_BYTES, Plan, SegmentState};
use holdfast_media::{Mapping, MediaInfo, OpenMode};
use holdfast_pool::Layout;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::KeeperError;
use crate::ages::Ages;
use crate::audience::{Audience, Stage};
use crate::config::{Durability, FenceChoice, KeeperConfig, WriteBehind};
use crate::events::EventLoop;
use crate::fence::{Fence, FenceKind};
use crate::keeper::{Keeper, Notes};
use crate::lookout;
use crate::outsiders::Gate;
use crate::patterns::Patterns;
use crate::settlers::{self, Queue};
use crate::spill_file::{Wanted, prepare};
use crate::watches::Lookout;
use crate::{ahead, expire, notices, reclaim, server, signals, spiller, stalls, teller};
use holdfast_disk::locked;
use holdfast_disk::{OsDisk, OsFile};
use holdfast_durable::{Durable, Events};
use holdfast_recovery::{OpenPool, PoolError, RecoverOptions, RecoveredPool, Report, mapped_by};

/// Threads that answer requests which wait for the disk, beside those that settle ahead of
/// requests.
const SETTLERS: usize = 2 + ahead::THREADS_MAX;
/// One copies segments while the disk has work from another.
const SPILLERS: usize = 2;
/// A terabyte.
const FRAMES_MAX: u64 = 1 << 28;

/// Runs a keeper in this process until it is told to stop or, unless it is a service, is no longer
/// needed. Recovers the pool first.
pub fn serve(config: KeeperConfig, audience: Arc<dyn Audience>) -> Result<(), KeeperError> {
    let signals = signals::stop_signals().map_err(os("watch for signals"))?;
    holdfast_socket::raise_descriptor_limit()?;
    let pool = OpenPool::open(&config.pool, config.volatile)?;
    let was_clean = pool.is_clean();
    let (pool, report) = pool.recover(&RecoverOptions::default(), &mut |what, done_bytes, total_bytes| {
        audience.stage(Stage::Recovering { what, done_bytes, total_bytes });
    })?;
    let strangers = mapped_by(&config.pool);
    if !strangers.is_empty() {
        return Err(PoolError::StillMapped { pool: config.pool, processes: strangers }.into());
    }
    pool.refuse_others()?;
    let report = (!was_clean || report.is_superblock_mended).then_some(report);
    let (keeper, lock) = build(config, pool, report.clone(), Arc::clone(&audience))?;
    let keeper = Arc::new(keeper);
    let threads = start_threads(&keeper)?;
    let (listener, socket) = listen(&keeper).map_err(os("listen for clients"))?;
    // The word is looked at to the end of this process, and longer by the kernel: the board is
    // never unmapped.
    let board: &'static Arc<Board> = Box::leak(Box::new(Arc::clone(&keeper.durable.board)));
    crate::robust::bind_to_this_thread(board.header()).map_err(os("register its robust futex"))?;
    audience.stage(Stage::Ready { socket: &socket, recovered: report.as_ref() });
    let mut events =
        EventLoop::new(Arc::clone(&keeper), listener, signals).map_err(os("watch its clients"))?;
    let result = events.run();
    // Nobody is served any more: who starts now is told so, and who wants the pool knows that it is
    // soon free.
    drop(events);
    audience.stage(Stage::Closing);
    let closed = close(&keeper, threads);
    if closed.is_ok() {
        let is_empty = keeper.segments_pinned == 0 && keeper.durable.set_aside_count() == 0;
        if keeper.config.temporary && is_empty {
            // While it is locked: whoever opens it meanwhile finds that it has no name any more.
            let _ = std::fs::remove_file(&keeper.config.pool);
        }
        // Its absence tells programs started from now on that no record of their files is live.
        holdfast_socket::forget(&socket);
    }
    drop(lock);
    result.map_err(os("watch its clients"))?;
    closed
}

fn os(what: &'static str) -> impl Fn(io::Error) -> KeeperError {
    move |source| KeeperError::Os { what: what.to_owned(), source }
}

fn patterns(config: &KeeperConfig) -> Result<Patterns, KeeperError> {
    Patterns::new(&config.include, &config.exclude).map_err(|error| KeeperError::Os {
        what: "understand a pattern".to_owned(),
        source: io::Error::other(error.to_string()),
    })
}

/// A descriptor of the pool for clients, and what media they have by it.
fn open_for_clients(lock: &OwnedFd, config: &KeeperConfig) -> Result<(OwnedFd, MediaInfo), KeeperError> {
    let pool_fd: OwnedFd = std::fs::File::options()
        .read(true)
        .write(true)
        // What we have locked, whatever stands at its name by now.
        .open(format!("/proc/self/fd/{}", lock.as_raw_fd()))
        .map_err(os("open the pool for clients"))?
        .into();
    let media =
        Mapping::open_fd(pool_fd.as_fd(), &config.pool, OpenMode::ReadOnly).map_err(KeeperError::Media)?.1;
    Ok((pool_fd, media))
}

fn make_board(config: &KeeperConfig, layout: &Layout) -> Result<(Board, OwnedFd), KeeperError> {
    let frames = match config.write_behind {
        WriteBehind::Off => 0,
        _ => (config.read_cache_bytes / PAGE_BYTES).min(FRAMES_MAX),
    };
    let plan = Plan::new(layout.slot_count, layout.segment_count).with_read_cache(frames as u32);
    Board::create(plan).map_err(|error| KeeperError::Os {
        what: "make the board".to_owned(),
        source: io::Error::other(format!("{error:?}")),
    })
}

fn build(
    config: KeeperConfig,
    pool: RecoveredPool,
    recovered: Option<Report>,
    audience: Arc<dyn Audience>,
) -> Result<(Keeper, OwnedFd), KeeperError> {
    let RecoveredPool {
        mapping,
        superblock,
        lock,
        counter_start,
        pinned_segments,
        pinned_frames,
        set_aside_slots,
        ..
    } = pool;
    if let Some(path) = &config.spill {
        let (size_bytes, volatile) = (config.spill_bytes, config.volatile);
        let wanted = Wanted { path, size_bytes, volatile, pinned: &pinned_frames, pool: &config.pool };
        prepare(&mapping, &superblock, &wanted)?;
    }
    let (pool_fd, media) = open_for_clients(&lock, &config)?;
    mapping.set_delay(config.delay());
    let (board, board_fd) = make_board(&config, &superblock.layout)?;
    board.begin_counter(counter_start);
    board.header().write_behind.set_level(config.write_behind as u32);
    let logs_on_sync = config.durability == Durability::Sync;
    board.header().logs_on_sync.set(logs_on_sync);
    for &segment in &pinned_segments {
        board.segments()[segment.index()].set_state(SegmentState::Pinned);
    }
    let patterns = patterns(&config)?;
    let notes = Arc::new(Notes::told_to(audience));
    let durable = Durable::new(
        (mapping, superblock),
        Arc::new(board),
        OsDisk::new(),
        set_aside_slots,
        Arc::clone(&notes) as Arc<dyn Events<OsFile>>,
    );
    if config.spill.is_some() {
        durable.use_spill(&pinned_frames).map_err(os("open the spill file"))?;
    }
    let ages = Mutex::new(Ages::new(Duration::from_millis(config.age_ms_max)));
    let keeper = Keeper {
        config,
        durable,
        media,
        board_fd,
        since: Instant::now(),
        pool_fd,
        patterns,
        notes,
        pending: Mutex::default(),
        ages,
        slots_full_since: Mutex::default(),
        clients: Mutex::default(),
        last_client: AtomicU32::default(),
        recovered,
        segments_pinned: pinned_segments.len() + pinned_frames.len(),
        told_to_stop: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
        is_nameless: AtomicBool::new(false),
        reclaim_stuck: AtomicBool::new(false),
        spill_wanted: AtomicBool::new(false),
        in_order: AtomicBool::new(false),
        ending: Mutex::default(),
        drain_wanted: AtomicU64::new(0),
        drain_done: Mutex::new((0, true)),
        drain_signal: Condvar::new(),
    };
    Ok((keeper, lock))
}

struct Threads {
    server: std::thread::JoinHandle<()>,
    expirer: std::thread::JoinHandle<()>,
    reclaimer: std::thread::JoinHandle<()>,
    spillers: Vec<std::thread::JoinHandle<()>>,
    listener: std::thread::JoinHandle<()>,
    lookout: std::thread::JoinHandle<()>,
    teller: std::thread::JoinHandle<()>,
    stalls: std::thread::JoinHandle<()>,
    settlers: Vec<std::thread::JoinHandle<()>>,
    queue: Arc<Queue>,
}

fn start_threads(keeper: &Arc<Keeper>) -> Result<Threads, KeeperError> {
    if keeper.config.fence != FenceChoice::None {
        let gate = Arc::new(Gate::new(Arc::clone(keeper)));
        let fence = Fence::start(keeper.config.fence, keeper.config.watch.as_deref(), gate)
            .map_err(KeeperError::Fence)?;
        if keeper.config.watch.is_some() && fence.kind() == FenceKind::Inotify {
            keeper.notes.trouble("root's watch cannot be used here: outsiders are only noticed".to_owned());
        }
        let (header, kind) = (keeper.durable.board.header(), fence.kind());
        let is_leased = kind == FenceKind::Lease;
        if is_leased || kind.only_notices() {
            header.have_opens_announced(is_leased);
        }
        header.asks_openers.set(kind == FenceKind::Fanotify);
        let _ = keeper.notes.fence.set(fence);
        let _ = keeper.notes.lookout.set(Lookout::new().map_err(unwatched)?);
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
    let server = spawn("requests", Box::new(move || server::serve(&served, &to_settlers)))?;
    let expired = Arc::clone(keeper);
    let expirer = spawn("expirer", Box::new(move || expire::run(&expired)))?;
    let reclaimed = Arc::clone(keeper);
    let reclaimer = spawn("reclaimer", Box::new(move || reclaim::run(&reclaimed)))?;
    let mut spillers = Vec::new();
    for _ in 0..if keeper.config.spill.is_some() { SPILLERS } else { 0 } {
        let spilled = Arc::clone(keeper);
        spillers.push(spawn("spiller", Box::new(move || spiller::run(&spilled)))?);
    }
    let heard = Arc::clone(keeper);
    let listener = spawn(
        "listener",
        Box::new(move || {
            if let Some(lookout) = heard.notes.lookout.get() {
                lookout::listen(&heard, lookout);
            }
        }),
    )?;
    let watched = Arc::clone(keeper);
    let lookout = spawn(
        "lookout",
        Box::new(move || {
            if let Some(lookout) = watched.notes.lookout.get() {
                lookout::run(&watched, lookout);
            }
        }),
    )?;
    let told = Arc::clone(keeper);
    notices::watch(keeper);
    let teller = spawn("teller", Box::new(move || teller::run(&told)))?;
    let waited = Arc::clone(keeper);
    let stalls = spawn("stalls", Box::new(move || stalls::run(&waited)))?;
    Ok(Threads { server, expirer, reclaimer, spillers, listener, lookout, teller, stalls, settlers, queue })
}

fn unwatched(source: io::Error) -> KeeperError {
    let what = match source.raw_os_error() {
        Some(libc::EMFILE) => {
            "watch files: its user has as many inotify instances as `sysctl fs.inotify.max_user_instances` \
             allows; raise that, or end what holds them"
        }
        _ => "watch files",
    };
    os(what)(source)
}

fn listen(keeper: &Keeper) -> io::Result<(OwnedFd, std::path::PathBuf)> {
    let words = keeper.durable.words();
    let path = holdfast_socket::prepare(&keeper.durable.superblock.uuid, words.socket())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path)?)?;
    // Who may be a client is decided by who they are, not by the socket's mode.
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    rustix::net::listen(&listener, 128)?;
    words.set_socket(path.as_os_str().as_encoded_bytes());
    Ok((listener, path))
}

/// Lets no client acknowledge anything more, drains, and closes the pool cleanly if everything
/// reached the disk.
fn close(keeper: &Arc<Keeper>, threads: Threads) -> Result<(), KeeperError> {
    let header = keeper.durable.board.header();
    {
        let mut is_ending = locked(&keeper.ending);
        *is_ending = true;
        header.end_keeper();
    }
    let patience = Instant::now() + Duration::from_secs(2);
    while keeper.durable.board.lanes().iter().any(|lane| lane.is_announced()) && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
    keeper.stopping.store(true, Ordering::SeqCst);
    keeper.durable.ring_expirer();
    header.request_wake.ring_all();
    header.stalled.ring_all();
    let _ = threads.server.join();
    threads.queue.close();
    let _ = threads.expirer.join();
    let _ = threads.reclaimer.join();
    if let Some(lookout) = keeper.notes.lookout.get() {
        lookout.ring();
    }
    let _ = threads.listener.join();
    let _ = threads.lookout.join();
    let _ = threads.teller.join();
    let _ = threads.stalls.join();
    for thread in threads.spillers.into_iter().chain(threads.settlers) {
        let _ = thread.join();
    }
    let busy = keeper.durable.board.lanes().iter().any(|lane| lane.is_announced());
    let durable = &keeper.durable;
    let clean = durable.expire_all() && durable.expire_all() && !busy && !durable.has_rows_left();
    if !clean {
        return Err(KeeperError::Os {
            what: "bring everything to disk; the pool keeps it for `holdfast recover`".to_owned(),
            source: io::Error::other(locked(&keeper.notes.errors).back().cloned().unwrap_or_default()),
        });
    }
    keeper.durable.close(keeper.segments_pinned == 0);
    Ok(())
}
