//! A simulated file system: what programs see, what is durable, and everything in between that a
//! power cut may leave.
//!
//! The fault model of docs/crash: of unsynced writes any block may be there in any of its versions
//! since the last sync, sizes that writes made lag independently of blocks, and changes of names
//! become durable as [`rules`] says: with truncations and holes in the order of a journal
//! ([`Journal::Ext4`], [`Journal::Xfs`]), or each by itself ([`Journal::Btrfs`],
//! [`Journal::Lagging`], [`Journal::Bare`]). A sync may fail once, and so may the kernel's own
//! writing back, of which nobody hears before the next sync: either drops the dirty pages, of which
//! no later sync writes what is not written again. Every description of the file hears of it once;
//! one that was opened afterwards only if nobody had heard of it before (`errseq_sample`). Inode
//! numbers are reused at once, but on btrfs, and the number of a file that a power cut took is
//! given again with its generation, as xfs does.

mod bytes;
pub mod calls;
mod commit;
mod content;
mod crash;
mod file;
mod inode;
mod journal;
mod names;
pub mod rules;
mod spill;
mod state;
mod sync;

pub use content::BLOCK_BYTES;
pub use crash::Left;
pub use file::SimFile;
pub use rules::Journal;
pub use state::{DEVICE, DiskState, SimDisk};
