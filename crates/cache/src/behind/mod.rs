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
mod loaded;
mod optimistic;
mod publish;
mod read;
mod times;
mod write;

pub use optimistic::OPTIMISTIC_BYTES_MAX;
pub use publish::{Payload, Places, fetch, finish};
pub use times::Look;

use holdfast_log::Kind;
use holdfast_media::Nvm;

use crate::calls::{Buffers, ReadCall, WriteCall};
use crate::client::Client;
use crate::design::{Design, Read, Resize, Write, Written};
use crate::errno::Errno;
use crate::lane::Lane;
use crate::stop::Stop;

/// The design of state Behind, on the client's side.
pub struct Behind;

impl Design for Behind {
    #[inline]
    fn write<N: Nvm>(
        lane: &mut Lane<'_, N>,
        write: &Write<'_>,
        call: &mut impl WriteCall,
    ) -> Result<Written, Stop> {
        write::write(lane, write, call)
    }

    #[inline]
    fn read<N: Nvm, B: Buffers + ?Sized>(
        lane: &Lane<'_, N>,
        read: &Read,
        buffers: &mut B,
        call: &mut impl ReadCall,
    ) -> Result<usize, Errno> {
        read::read(lane, read, buffers, call)
    }

    /// Databases set the size that a file has after each checkpoint. Nothing changes but times: no
    /// row lies beyond it, and a kernel that still has the file shorter adds zeros where rows have
    /// the bytes.
    fn is_idle<N: Nvm>(client: &Client<N>, resize: &Resize) -> bool {
        let row = client.row(resize.file);
        resize.kind == Kind::Truncate && row.end() == resize.offset && row.page_rows().get() > 0
    }

    fn resize<N: Nvm>(
        lane: &mut Lane<'_, N>,
        resize: &Resize,
        is_idle: bool,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if is_idle {
            return raw();
        }
        let client = lane.client();
        client.log_resize(lane, resize, raw)
    }
}
