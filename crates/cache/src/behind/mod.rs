//! State Behind: a write is logged, fenced and entered in the page rows of the board; the page
//! cache follows later. A durable write costs a lock, a copy and one fence, and no system call.
//!
//! A page row says which bytes of its page are newer than the page cache. What does not fit one (a
//! second interval in the same page, a full set, no frame) is written to the page cache as in state
//! Through, which is right for every byte that no row covers; where a row does, the keeper drains
//! it first, with the file's other writers kept out. So there is no write that cannot be done.
//!
//! Source: NVCache (DSN'21, II.C and II.D): pages whose newest bytes are in the log only, a read
//! cache beside it. One interval per page stands for its lists of entries, frames of shared memory
//! for its private read cache.

mod direct;
mod glance;
mod loaded;
mod publish;
mod read;
mod times;
mod write;

pub use glance::GLANCE_BYTES_MAX;
pub use publish::{Payload, fetch, finish};
pub use read::{Buffers, Reading};
pub use times::Look;
pub(crate) use write::Written;
