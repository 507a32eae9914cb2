//! The keeper's state, shared by its threads: event loop, request server, expirer, settlers and
//! fence.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use holdfast_board::Inode;
use holdfast_cache::wire::FrontEnd;
use holdfast_cache::{FileRef, Reason, Unseen};
use holdfast_media::{Mapping, MediaInfo};
use holdfast_pool::MARK_VOID;

use crate::ages::Ages;
use crate::audience::{Audience, Level, Stage};
use crate::config::KeeperConfig;
use crate::fence::Fence;
use crate::patterns::Patterns;
use crate::status::{BypassedFile, UnseenProgram};
use crate::unmanaged::UnmanagedClients;
use crate::watches::Lookout;
use holdfast_disk::locked;
use holdfast_disk::{OsDisk, OsFile};
use holdfast_durable::{Durable, Events, ManagedFile};
use holdfast_recovery::Report;

/// Pauses of a gentle drain.
const BREATH_MIN: Duration = Duration::from_micros(50);
const BREATH_MAX: Duration = Duration::from_millis(1);
const ERRORS_KEPT_MAX: usize = 20;
const BYPASSED_KEPT_MAX: usize = 100;
/// Files whose names are kept for those who ask what the kernel synced.
const MANAGED_KEPT_MAX: usize = 64;
const PROGRAMS_KEPT_MAX: usize = 20;

/// A process attached to this keeper.
pub(crate) struct Attached {
    pub pid: u32,
    /// What brings its calls to the log.
    pub front_end: FrontEnd,
    /// The program it ran when it said hello, if that can be seen.
    pub program: Option<(u64, u64)>,
    /// It opens and writes files where its hooks do not see it.
    pub blind: bool,
    /// As `blind`, and its library does not know: it was seen.
    pub past: bool,
    pub pidfd: Arc<OwnedFd>,
}

/// A registration between its two halves: the fence stands, the client asks the kernel whether it
/// is alone.
pub(crate) struct Pending {
    pub place: FileRef,
    pub client: u32,
    /// The client's descriptor.
    pub fd: i32,
    /// Somebody opened the file in between, and when.
    pub tainted: Option<Instant>,
    /// Kept so that the watch can be taken back.
    pub since: Instant,
}

/// What the keeper keeps of what happens to files, and the fence that follows it.
#[derive(Default)]
pub(crate) struct Notes {
    pub fence: OnceLock<Fence>,
    pub lookout: OnceLock<Lookout>,
    pub errors: Mutex<VecDeque<String>>,
    pub bypassed: Mutex<Vec<(BypassedFile, Option<Inode>)>>,
    /// The first files that became managed.
    pub managed_first: Mutex<Vec<(Inode, PathBuf)>>,
    pub programs: Mutex<Vec<UnseenProgram>>,
    /// How many processes each front end has had.
    pub front_ends: Mutex<BTreeMap<String, u64>>,
    pub unmanaged: UnmanagedClients,
    audience: Option<Arc<dyn Audience>>,
}

impl Notes {
    /// What is kept is said to somebody, too.
    pub(crate) fn told_to(audience: Arc<dyn Audience>) -> Self {
        Self { audience: Some(audience), ..Self::default() }
    }

    pub(crate) fn stage(&self, stage: Stage<'_>) {
        if let Some(audience) = &self.audience {
            audience.stage(stage);
        }
    }

    pub(crate) fn announce(&self, text: &str) {
        if let Some(audience) = &self.audience {
            audience.announce(text);
        }
    }

    fn say(&self, level: Level, text: &str) {
        if let Some(audience) = &self.audience {
            audience.say(level, text);
        }
    }

    /// Keeps the name of a file that is left to the kernel, and why.
    pub(crate) fn left_to_kernel(&self, path: &Path, inode: Option<Inode>, reason: Reason) {
        let mut bypassed = locked(&self.bypassed);
        let path = path.to_string_lossy().into_owned();
        if bypassed.len() < BYPASSED_KEPT_MAX && !bypassed.iter().any(|(known, _)| known.path == path) {
            self.say(Level::Notice, &format!("left to the kernel: {path}: {reason}"));
            bypassed.push((BypassedFile { path, reason: reason.to_string(), syncs: None }, inode));
        }
    }

    /// Keeps the name of a file that is managed from now on, for those who ask what was synced.
    pub(crate) fn managed(&self, path: &Path, inode: Inode) {
        let mut first = locked(&self.managed_first);
        if first.len() < MANAGED_KEPT_MAX && !first.iter().any(|(known, _)| *known == inode) {
            first.push((inode, path.to_owned()));
        }
    }

    /// Keeps the name of a program whose writes are not seen, and why. False when that is known.
    pub(crate) fn unseen(&self, program: PathBuf, why: Unseen) -> bool {
        let unseen =
            UnseenProgram { program: program.to_string_lossy().into_owned(), reason: why.to_string() };
        let mut programs = locked(&self.programs);
        let is_new = programs.len() < PROGRAMS_KEPT_MAX && !programs.contains(&unseen);
        if is_new {
            self.say(
                Level::Warning,
                &format!("not absorbed: what {} writes: {}", unseen.program, unseen.reason),
            );
            programs.push(unseen);
        }
        is_new
    }
}

impl Notes {
    /// As `trouble`, unless it was said before.
    pub(crate) fn once(&self, message: String) {
        if !locked(&self.errors).contains(&message) {
            self.trouble(message);
        }
    }
}

impl Events<OsFile> for Notes {
    /// Keeps an error for `status`, newest last.
    fn trouble(&self, message: String) {
        let mut errors = locked(&self.errors);
        // What goes on and on is said once.
        if !errors.contains(&message) {
            self.say(Level::Error, &message);
        }
        if errors.len() == ERRORS_KEPT_MAX {
            errors.pop_front();
        }
        errors.push_back(message);
    }

    fn bypassed(&self, path: &Path, reason: Reason) {
        self.left_to_kernel(path, None, reason);
    }

    /// A gentle drain takes a third of a processor.
    fn breathe(&self) {
        thread_local! {
            static BREATHED: Cell<Option<Instant>> = const { Cell::new(None) };
        }
        let worked = BREATHED.get().map_or(Duration::ZERO, |last| last.elapsed());
        std::thread::sleep((worked * 2).clamp(BREATH_MIN, BREATH_MAX));
        BREATHED.set(Some(Instant::now()));
    }

    fn released(&self, file: &ManagedFile<OsFile>) {
        // Nobody has it open for writing, or it has no name by which it could be opened again.
        if !file.meta().written_natively {
            self.unmanaged.forget_file(file.dev, file.ino);
        }
        if let Some(lookout) = self.lookout.get() {
            lookout.remove(file.place());
        }
        if file.fenced
            && let Some(fence) = self.fence.get()
        {
            let is_gone = file.meta().marks & MARK_VOID != 0;
            fence.unwatch(file.place(), (!is_gone).then(|| file.held().magic_path()).as_deref());
        }
    }
}

/// Everything the keeper's threads share.
pub(crate) struct Keeper {
    pub config: KeeperConfig,
    pub durable: Durable<Mapping, OsDisk>,
    pub media: MediaInfo,
    pub board_fd: OwnedFd,
    /// When it was made.
    pub since: Instant,
    /// A description of the pool for clients; the lock is on another one.
    pub pool_fd: OwnedFd,
    pub patterns: Patterns,
    pub notes: Arc<Notes>,
    pub pending: Mutex<HashMap<(u64, u64), Pending>>,
    /// The ages of dirty files.
    pub ages: Mutex<Ages>,
    /// When slots were looked for last and none could be freed.
    pub slots_full_since: Mutex<Option<Instant>>,
    pub clients: Mutex<HashMap<u32, Attached>>,
    /// The highest id that a client was given.
    pub last_client: AtomicU32,
    pub recovered: Option<Report>,
    pub segments_pinned: usize,
    /// A signal said so: it stops when nobody needs it any more.
    pub told_to_stop: AtomicBool,
    /// It stops now.
    pub stopping: AtomicBool,
    /// Nobody finds the pool any more: nothing is managed from then on.
    pub is_nameless: AtomicBool,
    /// Space is short, and the reclaimer finds nothing to free without the disk.
    pub reclaim_stuck: AtomicBool,
    /// Space is short, and the spill file has room.
    pub spill_wanted: AtomicBool,
    /// What fills the log lies together in its files: they are brought to disk, and nothing is
    /// spilled.
    pub in_order: AtomicBool,
    /// Nothing is acknowledged any more, and nobody may put that right.
    pub ending: Mutex<bool>,
    /// Drains asked for, and done up to.
    pub drain_wanted: AtomicU64,
    pub drain_done: Mutex<(u64, bool)>,
    pub drain_signal: std::sync::Condvar,
}

impl Keeper {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Repairs what a client left that is dead or has become another program.
    pub(crate) fn reap(self: &Arc<Self>, client: u32) {
        locked(&self.pending).retain(|_, pending| pending.client != client);
        self.notes.unmanaged.forget_client(client);
        self.durable.repair_lanes(client);
        if self.durable.keeps_files(client) {
            // Not here: it may wait for locks of another client that died, whose end is noticed by
            // this very thread.
            let keeper = Arc::clone(self);
            let started = std::thread::Builder::new()
                .name("repair".to_owned())
                .spawn(move || keeper.durable.repair_files(client));
            if started.is_err() {
                self.durable.repair_files(client);
            }
        }
    }

    /// The process id of a client.
    pub(crate) fn pid_of(&self, client: u32) -> Option<u32> {
        locked(&self.clients).get(&client).map(|attached| attached.pid)
    }

    /// Whether a process is attached and still runs the program that is. One that has become
    /// another program, which no library of ours is in (static, or with more privilege), reads and
    /// writes where we do not see it.
    pub(crate) fn is_running_client(&self, pid: u32) -> bool {
        let attached: Vec<_> = locked(&self.clients)
            .values()
            .filter(|attached| attached.pid == pid)
            .map(|attached| attached.program)
            .collect();
        !attached.is_empty() && attached.contains(&program_of(pid))
    }

    /// Whether a process is attached.
    pub(crate) fn is_client(&self, pid: u32) -> bool {
        locked(&self.clients).values().any(|attached| attached.pid == pid)
    }

    /// Whether a process was forked by a client and runs on in its program: it says hello before
    /// its first change of a file.
    pub(crate) fn is_fork_of_client(&self, pid: u32) -> bool {
        let Some(parent) = parent_of(pid) else { return false };
        let program = program_of(pid);
        program.is_some()
            && locked(&self.clients)
                .values()
                .any(|attached| attached.pid == parent && attached.program == program && !attached.blind)
    }

    /// Whether a client may have a file open of which its hooks know nothing.
    pub(crate) fn is_blind(&self, pid: u32) -> bool {
        locked(&self.clients).values().any(|attached| attached.pid == pid && attached.blind)
    }

    /// From now on a client opens and writes files unseen.
    pub(crate) fn note_blind(&self, client: u32) {
        if let Some(attached) = locked(&self.clients).get_mut(&client) {
            attached.blind = true;
        }
    }
}

/// The parent of a process.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold anything; the fields follow its last parenthesis.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Device and inode of the program that a process runs.
pub(crate) fn program_of(pid: u32) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}/exe")).ok().map(|meta| (meta.dev(), meta.ino()))
}
