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
mod clock;
mod design;
mod errno;
mod file;
mod lane;
mod names;
mod notes;
mod read;
mod reason;
mod request;
mod resize;
mod stock;
mod stop;
mod sync;
pub mod through;
mod treelog;
mod unsynced;
pub mod wire;
mod write;

pub use behind::OPTIMISTIC_BYTES_MAX;
pub use calls::{Buffers, ReadCall, WriteCall};
pub use client::Client;
pub use design::{Design, Designs, Read, Resize, Task, Write, Written};
pub use errno::Errno;
pub use file::{FileRef, Look, Origin, Outcome, Place, Seen};
/// For [`designs`].
pub use holdfast_board::{FileState, Inode};
pub use lane::Lane;
pub use names::{Named, Removal, Renaming, Replace};
pub use read::Reading;
pub use reason::{Reason, Unseen};
pub use request::{Answer, Behind, FileRequest, Onto, Program, Refusal, Request};
pub use stock::Stock;
pub use stop::Stop;
pub use sync::Asked;
pub use unsynced::Content;
