//! State Through: a write is logged, fenced, then written to the page cache; the page cache is
//! always right.
//!
//! Reads, cursors, sizes and other readers need nothing from us, and draining never writes: it is
//! `fsync` and expire. Source: NVCache (DSN'21, II.B and Algorithm 1) for the order,
//! with the page cache in place of its read cache.

mod resize;
mod write;

pub(crate) use write::Written;
