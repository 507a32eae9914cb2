//! The designs behind one interface: how writes, syncs, truncations and names are absorbed.
//!
//! State Through (write-through) and state Behind (write-behind) stand beside each other. The cache
//! translates what a program does to a file into records, board changes and requests to the keeper.
//! It never opens, closes or names a file itself: kernel calls on the file are handed in by the
//! caller.
#![forbid(unsafe_code)]

mod ask;
pub mod behind;
mod calls;
mod changing;
mod client;
mod design;
mod lane;
mod names;
mod request;
mod resize;
mod stop;
pub mod through;
mod treelog;
mod unsynced;
pub mod wire;
mod write;

pub use ask::{Reason, Unseen};
pub use behind::{GLANCE_BYTES_MAX, Reading};
pub use calls::{ReadCall, WriteCall};
pub use client::{Client, Errno, FileRef, Look, Origin, Outcome, Place, Seen};
pub use design::{Design, Designs, Read, Resize, Stock, Task, Write, Written};
/// For [`designs`].
pub use holdfast_board::FileState;
pub use lane::Lane;
pub use names::{Named, Removal, Renaming, Replace};
pub use request::{Answer, FileRequest, Onto, Program, Refusal, Request};
pub use stop::Stop;
pub use treelog::Inode;
pub use unsynced::Content;
