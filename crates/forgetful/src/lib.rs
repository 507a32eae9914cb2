//! A disk that forgets what was not flushed, for tests that cut the power.
//!
//! One process serves one file by FUSE, from memory. A file system on a loop device over that file
//! sees a disk with a volatile write cache: what it wrote is durable once it was flushed, and a
//! power cut takes the rest, or lets a random part of it through. The process is a separate one, so
//! that a test that dies never waits for a disk that died with it; when its standard input ends it
//! takes down whatever still uses the disk.
//!
//! It must never call anything durable that was not flushed, nor forget what was.

mod client;
mod serve;
mod tear;
mod undo;
mod volatile;

pub use client::{Counts, Disk};
pub use serve::program;
pub use tear::Page;
pub use volatile::{Error, Volatile};
