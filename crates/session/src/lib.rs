//! What every front end does with a file: it becomes the log's when it is first changed, its writes
//! and syncs are answered from there, and what goes wrong on the way is tried again.
//!
//! A front end translates calls and owns descriptors, cursors and threads; it shows a file here as
//! a [`Backing`], and one call of a program as a `WriteCall` or `ReadCall` of the cache's. One that
//! has no calls of its own uses [`File`]. Nothing here knows which front end it is, allocates, or
//! keeps a descriptor open.
#![forbid(unsafe_code)]

mod adopt;
mod backing;
mod description;
mod file;
mod first_sync;
mod handle;
mod leave;
mod opens;
mod write;

pub use adopt::{adopt, ask};
pub use backing::{Backing, Calls, Stat};
pub use description::{
    APPEND, DIRECT, DSYNC, Description, KERNEL_FLAGS, NAMELESS, SHARED, SYNC, State, WRITE_ONLY,
    note_path_change,
};
pub use file::File;
pub use first_sync::{as_born, leaves_sync, note_change, pass, pass_moving_cursor};
pub use handle::{Handle, TRIES, Target, retry, target, without_description};
pub use leave::{drop_file, give_up, leave_unknown};
pub use opens::{Announced, announce_open, note_open, opened};
pub use write::{Ended, Request, Spot};
