//! One machine: NVM and disk on one power cord, two processes with the real client code, and the
//! keeper's real durable steps. It does what histories say; what must be true afterwards it tells
//! the model.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_board::{Epoch, RequestCell, RequestState, pause};
use holdfast_cache::{Answer, FileRef, Origin, Reason, Refusal, Request};
use holdfast_disk::{Disk, DiskFile};
use holdfast_durable::{BEHIND_AT_ONCE, Durable, Events, Held, ManagedFile, Newcomer, Unanswered};
use holdfast_pool::{Frames, Home, Layout, Segment, Seq, Slot, SpillHeader, Superblock};
use holdfast_recovery::Recovered;

use serde::{Deserialize, Serialize};

use crate::actors::{self, Ending, Interruption, Task};
use crate::disk::{DiskState, SimDisk, SimFile};
use crate::model::Model;
use crate::nvm::{NvmState, SimNvm};
use crate::op::{Amid, Op, Step};
use crate::parts::{PARTS, Parts, RIG, UUID, durable, parts, rig_of};
use crate::program;
use crate::recorder;
use crate::stage::{self, Kind, Role};

/// The processor of the keeper; clients have those of their numbers.
const KEEPER_CPU: u32 = 0;
thread_local! {
    static TROUBLE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Listener;

impl Events<SimFile> for Listener {
    fn trouble(&self, message: String) {
        TROUBLE.with_borrow_mut(|trouble| trouble.push(message));
    }

    fn bypassed(&self, _path: &Path, _reason: Reason) {}

    fn released(&self, _file: &ManagedFile<SimFile>) {}

    fn breathe(&self) {
        stage::point(Kind::FileWrite);
    }
}

/// Seconds since 1970, which is what the simulated clock of a history begins with: records carry
/// real times, and what somebody changes between a crash and recovery must be newer than they are,
/// however long the simulator has been running.
pub fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// How files get into state Behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Behind {
    /// New ones are in it from the start; else they wait for the first round of expiry.
    pub at_once: bool,
    /// Frames of the board.
    pub frames: u32,
}

/// What recovery made of an image.
pub struct Outcome {
    /// What a server of the pool needs.
    pub recovered: Recovered,
    /// NVM afterwards.
    pub nvm: NvmState,
    /// Disk afterwards.
    pub disk: DiskState,
}

/// A machine that runs; there is one at a time in every thread of the simulator.
pub struct Machine {
    nvm: SimNvm,
    disk: SimDisk,
}

/// An empty pool.
pub fn blank_pool(layout: &Layout) -> (NvmState, Superblock) {
    let nvm = SimNvm::new(NvmState::new(layout.pool_bytes));
    let superblock = holdfast_pool::format(&nvm, layout, UUID, 1);
    if let Some(header) = spill_header(&superblock) {
        let home = Home { path: b"/spill".to_vec(), id: header.id, frame_count: header.frame_count };
        Frames { nvm: &nvm, layout }.set_home(&home).expect("a short path");
    }
    let state = nvm.state().crash(crate::nvm::Keep::All, &mut holdfast_testkit::Random::new(0));
    (state, superblock)
}

/// What the file says of itself in which the log of a pool goes on, if it does.
pub(crate) fn spill_header(superblock: &Superblock) -> Option<SpillHeader> {
    let Layout { frame_count, segment_bytes, .. } = superblock.layout;
    let header = SpillHeader { pool: UUID, id: *b"simulated spill!", segment_bytes, frame_count };
    (frame_count > 0).then_some(header)
}

/// How a pool is put into service.
pub struct Service {
    /// The counter's first free number.
    pub counter_start: Seq,
    /// Segments that must not be reused.
    pub pinned_segments: Vec<Segment>,
    /// Frames of the spill file that must not be reused.
    pub pinned_frames: Vec<u32>,
    /// Slots that must not be used.
    pub set_aside_slots: Vec<Slot>,
    /// Whether files enter state Behind.
    pub behind: Option<Behind>,
    /// Whether files are logged from their first sync on.
    pub on_sync: bool,
}

impl Machine {
    /// Starts the keeper on a recovered pool; nothing of the model but the files' contents is
    /// known.
    pub fn start(nvm: NvmState, disk: DiskState, superblock: Superblock, service: Service) -> Self {
        let rig = rig_of(superblock.layout, service.behind.map_or(0, |behind| behind.frames));
        RIG.set(Some(rig));
        // The parts of the history before are let go of while their disk is still there.
        PARTS.take();
        rig.board.reset();
        rig.clients.iter().for_each(|client| client.board().begin_anew());
        rig.board.header().begin_keeper(1);
        rig.board.begin_counter(service.counter_start);
        let write_behind = service.behind.map_or(0, |behind| if behind.at_once { BEHIND_AT_ONCE } else { 1 });
        rig.board.header().write_behind.set_level(write_behind);
        rig.board.header().logs_on_sync.set(service.on_sync);
        stage::set_fine(service.behind.is_some());
        for &segment in &service.pinned_segments {
            rig.board.segments()[segment.index()].set_state(holdfast_board::SegmentState::Pinned);
        }
        *rig.nvm.state() = nvm;
        recorder::model(|model| *model = Model::of(&disk.tree(), disk.is_ordered()));
        let disk = SimDisk::new(disk);
        let durable = Durable::new(
            (rig.nvm.on_cpu(KEEPER_CPU), superblock),
            Arc::clone(&rig.board),
            disk.clone(),
            service.set_aside_slots,
            Arc::new(Listener),
        );
        if superblock.layout.frame_count > 0 {
            durable.use_spill(&service.pinned_frames).expect("a spill file");
        }
        PARTS.set(Some(Parts {
            disk: disk.clone(),
            durable: Rc::new(durable),
            handles: BTreeMap::new(),
            under_way: [None; 2],
            lends: Vec::new(),
            closing: Vec::new(),
            keeps_ghost: false,
            ghost: None,
            next_payload: 0,
            writes_behind: 0,
        }));
        TROUBLE.take();
        recorder::complaint();
        Self { nvm: rig.nvm.clone(), disk }
    }

    /// From now on the file that lost its last name last stays open.
    pub fn keep_ghost(&self) {
        parts(|parts| parts.keeps_ghost = true);
    }

    /// From now on snapshots are taken.
    pub fn record(&self) {
        recorder::record(&self.nvm, &self.disk);
    }

    /// Makes a step. Gives the ending, or `None` when there was nothing to do it to.
    pub fn step(&self, step: &Step) -> Option<Ending> {
        if !program::is_possible(step.op) {
            return None;
        }
        let task = |thread: u8, op: Op| -> Task { Box::new(move || program::perform(thread, op)) };
        let (interruption, killed) = match step.amid {
            Amid::Nothing => (Interruption::Never, false),
            Amid::Other(at, thread, op) => (Interruption::Other(at, task(thread, op)), false),
            Amid::Within(at, thread, op) => (Interruption::Within(at, task(thread, op)), false),
            Amid::Killed(at) => (Interruption::Killed(at), true),
            Amid::KilledAmid(at, thread, op) => (Interruption::KilledAmid(at, task(thread, op)), true),
        };
        let role = if step.op.is_clients() { Role::Client } else { Role::Keeper };
        let thread = step.thread;
        let repair = move || {
            let refusals = || parts(|parts| parts.disk.state().refusals);
            let before = refusals();
            durable().repair(u32::from(thread) + 1);
            program::died(thread, refusals() != before);
        };
        let mut repaired = false;
        let mut help = |call: usize, interrupted: bool| -> Option<Task> {
            if killed && interrupted && !repaired {
                repaired = true;
                return Some(Box::new(repair));
            }
            // Space may be short, or a sync may have failed.
            (call < 24).then(|| -> Task {
                Box::new(|| {
                    durable().expire_all();
                })
            })
        };
        let ending = actors::play(role, task(step.thread, step.op), interruption, next_request, &mut help);
        if ending.interrupted && killed && !repaired {
            actors::play(Role::Extra, Box::new(repair), Interruption::Never, next_request, &mut |_, _| None);
        }
        parts(|parts| {
            for index in std::mem::take(&mut parts.closing) {
                let closed = parts.handles.remove(&index).filter(|_| parts.keeps_ghost);
                parts.ghost = closed.map(|handle| (index, handle)).or_else(|| parts.ghost.take());
            }
        });
        stage::point(Kind::Step);
        if !ending.hangs {
            program::look_at_everything();
        }
        Some(ending)
    }

    /// What the machine has now.
    pub fn state(&self) -> (NvmState, DiskState) {
        (self.nvm.state().clone(), self.disk.state().clone())
    }
}

/// Writes in state Behind since the machine started.
pub fn writes_behind() -> u64 {
    parts(|parts| parts.writes_behind)
}

/// What the keeper reported since the machine started.
pub fn trouble() -> Vec<String> {
    TROUBLE.with_borrow(Clone::clone)
}

/// The next request that a client posted.
fn next_request() -> Option<Task> {
    let board = RIG.with_borrow(|rig| Arc::clone(&rig.expect("a machine that runs").board));
    let index = board.requests().iter().position(RequestCell::take)?;
    Some(Box::new(move || {
        let cell = &board.requests()[index];
        let answered = loop {
            match answer(cell) {
                Ok(answer) => break Ok(answer),
                Err(Unanswered::Refused(refusal)) => break Err(refusal),
                // Somebody has the file: tried again, as the settlers do.
                Err(Unanswered::Later) => pause(Duration::from_micros(100)),
            }
        };
        cell.set_answer(Answer::encode(answered));
        cell.set_state(RequestState::Done);
    }))
}

/// As the keeper's request server, where descriptors and paths are simulated ones.
fn answer(cell: &RequestCell) -> Result<Answer, Unanswered> {
    let durable = durable();
    match Request::decode(cell.asked()).ok_or(Refusal::Malformed)? {
        Request::Register { fd, origin, noted, .. } => {
            let place = register(&durable, fd.cast_unsigned(), origin == Origin::Created, noted)?;
            Ok(Answer::Place(place))
        }
        Request::SyncDirectory { really, .. } => {
            let directory = Path::new("/d");
            if really || durable.absorb_directory_sync(directory).is_none() {
                durable.sync_directory(directory)?;
            }
            Ok(Answer::Done)
        }
        Request::File(place, request) => {
            let path = || String::from_utf8(cell.path()).ok().map(Into::into);
            durable.answer(cell.client(), place, request, path)
        }
        Request::Unseen { .. }
        | Request::Moved
        | Request::LetGo
        | Request::Room { .. }
        | Request::LogAgain { .. }
        | Request::Follow { .. } => Err(Refusal::Malformed.into()),
    }
}

fn register(
    durable: &Durable<SimNvm, SimDisk>,
    inode: u32,
    created: bool,
    noted: Option<Epoch>,
) -> Result<FileRef, Refusal> {
    let (key, path, lent) = parts(|parts| {
        let handle = parts.handles.values().find(|handle| handle.file.id == inode);
        let key = handle.map(|handle| handle.file.key());
        let lends = parts.lends.contains(&inode);
        let lent = handle.filter(|_| lends).and_then(|handle| handle.file.try_clone().ok());
        let state = parts.disk.state();
        let path = state.path_of(inode);
        (key, path, lent)
    });
    let ((dev, ino), Some(path)) = (key.ok_or(Refusal::Kernels)?, path) else {
        return Err(Refusal::Kernels);
    };
    if let Some(slot) = durable.board.find(dev, ino) {
        let row = durable.board.row(slot);
        if row.state().is_in_use() {
            return Ok(FileRef { slot, generation: row.generation() });
        }
    }
    let place = match durable.free_slot(|_| false) {
        Some(place) => place,
        None => {
            durable.free_slots();
            durable.free_slot(|_| false).ok_or(Refusal::Kernels)?
        }
    };
    let path = String::from_utf8(path).map_err(|_| Refusal::Kernels)?;
    let description = durable.disk.open(Path::new(&path)).map_err(|_| Refusal::Kernels)?;
    let identity = description.identity().map_err(|_| Refusal::Kernels)?;
    let newcomer = Newcomer {
        identity: &identity,
        path: Path::new(&path),
        created,
        noted,
        fenced: false,
        bypass: None,
        unsynced: durable.board.header().logs_on_sync.is_on(),
    };
    let held = match lent {
        Some(lent) => Held::Lent(description, Arc::new(lent)),
        None if created => Held::Path(description),
        None => Held::Open(description),
    };
    durable.take_slot(place, held, &newcomer).map_err(|_| Refusal::Kernels)?;
    if durable.board.header().write_behind.is_on()
        && let Some(file) = durable.file(place)
    {
        // Both programs' descriptors are known here: nobody sees the file where we do not.
        durable.allow_behind(&file, created);
    }
    Ok(place)
}
