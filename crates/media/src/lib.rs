//! NVM bytes and what makes them durable.
//!
//! This crate maps the media of a pool (a DAX device, a file on a DAX mount, or a volatile stand-in
//! on tmpfs), picks the instructions that make stores durable on this machine, and copies bytes
//! into the mapping while it computes their checksum. It holds nearly all unsafe code of the
//! project.
//!
//! Architecture invariant: no `&[u8]` into NVM leaves this crate. Bytes go in and out by copy, so
//! that every store passes through [`Nvm`], where a simulator can stand in and see it.
//!
//! Architecture invariant: this crate knows nothing of pools, records or files' contents.

mod allocate;
mod bytes;
mod cpu;
mod crc_fold;
mod delay;
mod detect;
mod error;
mod holes;
mod kind;
mod mapping;
mod nvm;
mod probe;
mod stream;
mod stream_avx512;
mod stream_clmul;
mod sysfs;

pub use allocate::{allocate, allocate_over};
pub use bytes::Bytes;
pub use cpu::{CopyPath, FlushPath};
pub use delay::Delay;
pub use detect::is_dax_device;
pub use error::MediaError;
pub use kind::{HUGE_PAGE_BYTES, MediaInfo, MediaKind};
pub use mapping::{Mapping, OpenMode};
pub use nvm::Nvm;
pub use probe::{Candidate, CpuFeatures, cpu_features, probe};
pub use sysfs::persistence_domain;
