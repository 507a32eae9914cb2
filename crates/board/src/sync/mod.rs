//! What the board is made of: atomic words, sleeping on them, and giving others a moment.
//!
//! With `--cfg shuttle` the same code runs under a model checker (`holdfast-model`): the words then
//! live in ordinary memory and every access is a choice of the checker. Nothing of that exists in
//! any other build.

pub use core::sync::atomic::Ordering;

#[cfg(not(shuttle))]
mod kernel;
#[cfg(not(shuttle))]
pub use kernel::{
    AtomicI32, AtomicU32, AtomicU64, fence, moment, now_ns, pause, simulate_sleep, spin_loop, spins, wait,
    wake,
};

#[cfg(shuttle)]
pub mod model;
#[cfg(shuttle)]
pub use model::{
    AtomicI32, AtomicU32, AtomicU64, fence, moment, now_ns, pause, spin_loop, spins, wait, wake,
};
