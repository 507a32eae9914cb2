//! What a history's programs, and its keeper, reach of the machine that runs: the rig under it,
//! files that are open, and what is under way.
//!
//! It must never say what happens next: that is the machine's.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use holdfast_board::{Board, Epoch, Plan};
use holdfast_cache::{Client, FileRef};
use holdfast_durable::Durable;
use holdfast_pool::Layout;
use rustix::fd::AsFd;

use crate::disk::{SimDisk, SimFile};
use crate::model::FileIndex;
use crate::nvm::{NvmState, SimNvm};
use crate::stage;

/// One set of them, so that pages are evicted.
const LOADED_PAGES: u32 = 8;
pub(crate) const UUID: [u8; 16] = *b"simulated pool!!";

/// What lasts longer than a history: memory that killed clients may never let go of.
pub(crate) struct Rig {
    pub(crate) layout: Layout,
    pub(crate) frames: u32,
    pub(crate) board: Arc<Board>,
    pub(crate) nvm: SimNvm,
    pub(crate) clients: [Client<SimNvm>; 2],
}

/// What a program knows of an open file.
pub(crate) struct Handle {
    pub file: SimFile,
    pub reference: Option<FileRef>,
    /// Created by this program and not changed since.
    pub is_as_born: bool,
    /// When its creation was noted in the ledger.
    pub noted: Option<Epoch>,
    pub seen_error: std::sync::atomic::AtomicU32,
}

/// A history's own part of the machine.
pub(crate) struct Parts {
    pub disk: SimDisk,
    pub durable: Rc<Durable<SimNvm, SimDisk>>,
    pub handles: BTreeMap<FileIndex, Handle>,
    /// What each thread has under way.
    pub under_way: [Option<UnderWay>; 2],
    /// Inodes of files whose programs lend their descriptions when they are registered.
    pub lends: Vec<u32>,
    /// Files without a name, whose descriptors are closed when the step is over.
    pub closing: Vec<FileIndex>,
    /// Whether the last of them stays open, and that one (`Op::Haunt`).
    pub keeps_ghost: bool,
    pub ghost: Option<(FileIndex, Handle)>,
    /// Numbers the payloads, so that no two look alike.
    pub next_payload: u8,
    /// Writes that ended without a system call.
    pub writes_behind: u64,
}

/// What a thread has under way.
#[derive(Clone, Copy)]
pub(crate) enum UnderWay {
    /// A change of a file.
    Change(FileIndex, u64),
    /// A removal or a rename that was announced.
    Naming(u64),
}

thread_local! {
    static RIGS: RefCell<Vec<&'static Rig>> = const { RefCell::new(Vec::new()) };
    pub(crate) static RIG: RefCell<Option<&'static Rig>> = const { RefCell::new(None) };
    pub(crate) static PARTS: RefCell<Option<Parts>> = const { RefCell::new(None) };
}

pub(crate) fn rig_of(layout: Layout, frames: u32) -> &'static Rig {
    RIGS.with_borrow_mut(|rigs| {
        if let Some(rig) = rigs.iter().find(|rig| rig.layout == layout && rig.frames == frames) {
            return *rig;
        }
        holdfast_board::simulate_sleep(stage::sleep);
        // Where there are frames, there is room for loaded pages, too; else all that no row has is
        // read from the kernel.
        let plan = Plan::new(layout.slot_count, layout.segment_count).with_frames(frames);
        let plan = plan.with_loaded(if frames > 0 { LOADED_PAGES } else { 0 });
        let (board, fd) = Board::create(plan).expect("memory for a board");
        let nvm = SimNvm::new(NvmState::new(layout.pool_bytes));
        let client = |id: u32| {
            let board = Board::open(fd.as_fd(), layout.slot_count, layout.segment_count).expect("a board");
            Client::new(nvm.on_cpu(id), board, layout, UUID, id).with_first_lane(id as usize)
        };
        let clients = [client(1), client(2)];
        let rig: &'static Rig =
            Box::leak(Box::new(Rig { layout, frames, board: Arc::new(board), nvm, clients }));
        rigs.push(rig);
        rig
    })
}

/// Lets `with` use the machine's parts; nothing in it may reach a point of the stage.
pub(crate) fn parts<T>(with: impl FnOnce(&mut Parts) -> T) -> T {
    PARTS.with_borrow_mut(|parts| with(parts.as_mut().expect("a machine that runs")))
}

/// The process of a thread.
pub(crate) fn client(thread: u8) -> &'static Client<SimNvm> {
    RIG.with_borrow(|rig| &rig.expect("a machine that runs").clients[usize::from(thread)])
}

pub(crate) fn durable() -> Rc<Durable<SimNvm, SimDisk>> {
    parts(|parts| Rc::clone(&parts.durable))
}

/// The path of a name.
pub(crate) fn path(name: u8) -> [u8; 4] {
    [b'/', b'd', b'/', name]
}
