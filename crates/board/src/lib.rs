//! The board: volatile memory shared by the keeper and its clients (a memfd).
//!
//! Position-independent tables of atomics: lanes, file rows, segment rows, page locks, request
//! cells and the table that finds a file by device and inode. Nothing here survives a crash and
//! nothing needs to: it is rebuilt from the log. The board must never hold the only copy of
//! anything durable.
#![deny(unsafe_code)]

mod alive;
mod board;
mod census;
mod changing;
mod clock;
mod counter;
mod draws;
mod end;
mod files;
mod frame_sum;
mod frames;
mod habits;
mod header;
mod hearings;
mod lanes;
mod ledger;
mod loaded;
mod locks;
#[cfg(not(shuttle))]
mod map;
mod mix;
mod moved;
mod numbers;
mod openers;
mod opens;
#[cfg(shuttle)]
mod ordinary;
mod own;
mod owner;
mod page;
mod pages;
mod passing;
mod plan;
mod reclaim;
mod requests;
mod segments;
#[cfg(not(shuttle))]
mod shared;
mod shown;
mod stalls;
mod states;
mod strays;
mod switches;
mod sync;
mod synced;
mod table;
mod taken;
mod takeover;
mod times;
mod took;
mod treelog;
mod uses;
mod versions;
mod ways;

pub use alive::KEEPER_DIED;
pub use board::Board;
pub use census::{Census, Roll, Seen};
pub use changing::{Calls, Change, Changing};
pub use clock::monotonic_ns;
pub use counter::Counter;
pub use files::{FileRow, NO_SIZE, TAKER_ID, ownership_print};
pub use frames::Frames;
pub use habits::{Habits, Renamed, kind_of};
pub use header::Header;
pub use hearings::{Hearing, Hearings};
pub use lanes::{GROUP_SEGMENTS_MAX, LaneCounts, LaneEnd, LaneRow, Locked};
pub use ledger::{Commits, Epoch, Epochs, LedgerRow};
pub use loaded::{Found, Loaded, TakenFrame};
pub use locks::PageLocks;
pub use moved::{Moved, Note};
pub use numbers::{AtomicGeneration, AtomicSeq, Frame, Inode, LaneIndex};
pub use openers::{Openers, Opening};
pub use opens::OpensRow;
pub use page::{FilePage, PAGE_BYTES, Page};
pub use pages::{Content, Pages, ROW_MEDIA_BYTES_MAX, Row, Source, WAYS, pieces};
pub use passing::PassingRow;
pub use plan::{BoardError, Plan};
pub use requests::{AnswerWords, REQUEST_PATH_BYTES, RequestCell, RequestState, RequestWords};
pub use segments::{SegmentRow, SegmentState};
pub use shown::Shown;
pub use stalls::Stall;
pub use states::FileState;
pub use strays::{Ours, Stray};
pub use switches::{Bell, Switch};
#[cfg(shuttle)]
pub use sync::model;
#[cfg(not(shuttle))]
pub use sync::simulate_sleep;
pub use sync::{AtomicU32, AtomicU64, pause, spin_loop, spins, wait, wake};
pub use synced::SyncedFiles;
pub use table::Listed;
pub use taken::Taken;
pub use takeover::DeadLane;
pub use times::{Account, Changes, FileTime, Times, TimesRow};
pub use took::{TOOK_COUNTS, Took};
pub use treelog::{Moment, TreeLog};
pub use versions::{Version, Versions};
pub use ways::Way;
