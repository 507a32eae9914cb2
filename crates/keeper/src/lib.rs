//! The keeper: the process that owns a pool.
//!
//! It hands out file slots, expires what is safely in the files, watches for outsiders, repairs
//! what dead clients leave behind and recovers the pool. It must never take a lock of the board
//! while it answers a permission event, and never expire a record before a real `fsync` succeeded
//! (invariant 2).

#![deny(unsafe_code)]

mod above;
mod ages;
mod ahead;
pub mod audience;
pub mod config;
pub mod control;
mod events;
mod expire;
pub mod fence;
mod keeper;
mod late;
mod listing;
mod lookout;
mod nameless;
mod notices;
mod outsiders;
mod patterns;
mod reclaim;
mod register;
mod requests;
mod robust;
mod serve;
mod server;
mod settlers;
mod signals;
mod spill_file;
mod spiller;
mod stalls;
pub mod status;
mod summary;
mod teller;
mod unmanaged;
mod unmounts;
mod via;
mod watches;

pub use patterns::wrong_with_pattern;
pub use serve::serve;

/// Why a keeper stopped before its time.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The pool cannot be used.
    #[error(transparent)]
    Pool(#[from] holdfast_recovery::PoolError),
    /// Its media cannot be mapped for clients.
    #[error("{0}")]
    Media(holdfast_media::MediaError),
    /// Outsiders cannot be noticed as was asked for.
    #[error("{0}")]
    Fence(holdfast_watch::FenceError),
    /// It may not have the descriptors that it needs.
    #[error(transparent)]
    Descriptors(#[from] holdfast_socket::TooFewDescriptors),
    /// The kernel refused something the keeper cannot do without.
    #[error("the keeper could not {what}: {source}")]
    Os {
        /// What it tried.
        what: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

#[cfg(test)]
mod tests;
