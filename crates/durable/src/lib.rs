//! The part of the keeper that decides on durability: slots, syncs, expiry, segments, names and the
//! repair of what dead clients leave.
//!
//! It is generic over media and disk, so that a simulator can put both on one power cord and run
//! this very code. Threads, requests, fences and processes are around it (`keeper`, `serve`,
//! `requests`). It never expires a record before a real sync succeeded (invariant 2), and reaches
//! files only through [`holdfast_disk::Disk`], media only through [`holdfast_media::Nvm`].

mod behind;
mod bypass;
mod conflicts;
mod designs;
mod directories;
mod drain;
mod expire;
mod failures;
mod file;
mod frames;
mod graves;
mod holding;
mod ledger;
mod lent;
mod looks;
mod names;
mod noted;
mod outsiders;
mod reclaim;
mod reclaimer;
mod removed;
mod renames;
mod repair;
mod requests;
mod rewrite;
mod secured;
mod segments;
mod settle;
mod slots;
mod spill;
mod spilled;
mod stalls;
mod state;
mod sums;
mod sync;
mod table;
mod tell;
mod times;
mod turn;
mod unsynced;
mod upkeep;
mod watched;
mod whereabouts;

pub use behind::BEHIND_AT_ONCE;
pub use designs::{Behind, Stock, Through};
pub use file::{BYPASSED_FILE, Held, ManagedFile, Meta};
pub use graves::REMOVED_FILES_MAX;
pub use looks::Tale;
pub use reclaim::{Effort, Reclaimed};
pub use requests::Unanswered;
pub use rewrite::LiveRecords;
pub use slots::{Newcomer, Refusal};
pub use spill::{Order, Spilled};
pub use state::{Counters, Events, KEEPER_ID};
pub use sync::{Pace, Synced, Writers, is_held};
pub use upkeep::{Task as UpkeepTask, Upkeep, Upkeeps};

/// For [`upkeeps`].
pub use holdfast_board::FileState;

/// Everything that decisions on durability need, with the designs of the product where no others
/// are named.
pub type Durable<N, D, U = Stock> = state::Durable<N, D, U>;
