//! Model checking of the concurrent core: the real code of `board`, `cache` and `log` under the
//! Shuttle scheduler, which chooses every interleaving, with media and page cache in ordinary
//! memory.
//!
//! `cargo test -p holdfast-model` builds the models with `--cfg shuttle` into a directory of their
//! own and runs them. `HOLDFAST_MODEL_FACTOR=100` explores a hundred times as many schedules,
//! `HOLDFAST_MODEL_SEED` repeats a run. This crate must never hold a copy of a protocol: what it
//! checks is what ships.
#![forbid(unsafe_code)]

#[cfg(shuttle)]
mod disk;
#[cfg(shuttle)]
mod explore;
#[cfg(shuttle)]
mod house;
#[cfg(shuttle)]
mod media;
#[cfg(shuttle)]
mod yard;

#[cfg(shuttle)]
pub use explore::{caught, exhaust, explore, schedules};
#[cfg(shuttle)]
pub use house::{House, SLOT};
#[cfg(shuttle)]
pub use media::Media;
#[cfg(shuttle)]
pub use yard::{FILE, Yard};
