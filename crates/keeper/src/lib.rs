//! The keeper: the process that owns a pool.
//!
//! It hands out file slots, expires what is safely in the files, watches for outsiders, repairs
//! what dead clients leave behind and recovers the pool. It must never take a lock of the board
//! while it answers a permission event, and never expire a record before a real `fsync` succeeded
//! (invariant 2).

#![deny(unsafe_code)]
#![cfg_attr(shuttle, allow(dead_code, reason = "what is around `durable` uses it"))]

pub mod disk;
pub mod durable;
pub mod identity;
mod lease;
mod spill;

// What decides on durability runs under the model checker, too (`--cfg shuttle`); what is around it
// needs a kernel.
#[cfg(not(shuttle))]
mod ages;
mod ahead;
#[cfg(not(shuttle))]
pub mod audience;
#[cfg(not(shuttle))]
pub mod config;
#[cfg(not(shuttle))]
pub mod control;
#[cfg(not(shuttle))]
mod events;
#[cfg(not(shuttle))]
mod expire;
#[cfg(not(shuttle))]
pub mod fence;
#[cfg(not(shuttle))]
mod keeper;
#[cfg(not(shuttle))]
mod late;
#[cfg(not(shuttle))]
mod listing;
#[cfg(not(shuttle))]
mod lookout;
#[cfg(not(shuttle))]
mod natives;
#[cfg(not(shuttle))]
mod outsiders;
#[cfg(not(shuttle))]
mod patterns;
#[cfg(not(shuttle))]
mod peer;
#[cfg(not(shuttle))]
mod reclaim;
#[cfg(not(shuttle))]
pub mod recovery;
#[cfg(not(shuttle))]
mod register;
#[cfg(not(shuttle))]
mod requests;
#[cfg(not(shuttle))]
mod robust;
#[cfg(not(shuttle))]
mod runtime;
#[cfg(not(shuttle))]
mod serve;
#[cfg(not(shuttle))]
mod settlers;
#[cfg(not(shuttle))]
mod signals;
#[cfg(not(shuttle))]
mod spill_file;
#[cfg(not(shuttle))]
mod spiller;
#[cfg(not(shuttle))]
pub mod status;
#[cfg(not(shuttle))]
mod summary;
#[cfg(not(shuttle))]
mod teller;
#[cfg(not(shuttle))]
mod unmounts;
#[cfg(not(shuttle))]
mod via;

#[cfg(not(shuttle))]
pub use runtime::DIRECTORY_VARIABLE;
#[cfg(not(shuttle))]
pub use serve::serve;

/// Why a keeper stopped before its time.
#[cfg(not(shuttle))]
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The pool cannot be used.
    #[error(transparent)]
    Pool(#[from] recovery::PoolError),
    /// The kernel refused something the keeper cannot do without.
    #[error("the keeper could not {what}: {source}")]
    Os {
        /// What it tried.
        what: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

#[cfg(all(test, not(shuttle)))]
mod tests;
