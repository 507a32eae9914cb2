//! The part of the keeper that decides on durability: slots, syncs, expiry, segments, names and the
//! repair of what dead clients leave.
//!
//! It is generic over media and disk, so that a simulator can put both on one power cord and run
//! this very code. Threads, requests, fences and processes are around it (`keeper`, `serve`,
//! `requests`). It never expires a record before a real sync succeeded (invariant 2), and reaches
//! files only through [`holdfast_disk::Disk`], media only through [`holdfast_media::Nvm`].
//!
//! All steps are [`Durable`]'s, and none calls one that calls it. From the ground up:
//!
//! - what is known: of a file (`file`), of all of them (`state`), and of those that have slots
//!   (`table`, `whereabouts`, `graves`, `conflicts`); what a design does is asked through `upkeep`;
//! - the log's space: `segments`, `spilled`, `reclaim`, `spill`;
//! - parts of what is done to a file: its writers are kept out (`holding`), its times kept
//!   (`times`), its page rows brought to the page cache (`drain`, `sums`);
//! - what else must be on the disk: other changes of the file system (`ledger`), directories
//!   (`secured`), names (`renames`, `names`);
//! - a file as a whole: it gets a slot and gives it back (`slots`), is brought to the disk
//!   (`settle`), goes into state Behind and out of it (`behind`), to the kernel (`bypass`), or is
//!   gone (`removed`);
//! - who has all that done: rounds (`expire`), clients (`requests`, `directories`, `unsynced`), the
//!   dead and those that stand still (`repair`, `stalls`), and others (`outsiders`, `looks`).

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
mod moved;
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
mod strays;
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
