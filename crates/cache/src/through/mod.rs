//! State Through: a write is logged, fenced, then written to the page cache; the page cache is
//! always right.
//!
//! Reads, cursors, sizes and other readers need nothing from us, and draining never writes: it is
//! `fsync` and expire. Source: NVCache (DSN'21, II.B and Algorithm 1) for the order,
//! with the page cache in place of its read cache.

mod write;

use holdfast_media::Nvm;

use crate::calls::{Buffers, ReadCall, WriteCall};
use crate::design::{Design, Read, Resize, Write, Written};
use crate::errno::Errno;
use crate::lane::Lane;
use crate::stop::Stop;

/// The design of state Through, on the client's side.
pub struct Through;

impl Design for Through {
    #[inline]
    fn write<N: Nvm>(
        lane: &mut Lane<'_, N>,
        write: &Write<'_>,
        call: &mut impl WriteCall,
    ) -> Result<Written, Stop> {
        write::write(lane, write, call)
    }

    /// Never called: the page cache has everything, so reads are the kernel's.
    fn read<N: Nvm, B: Buffers + ?Sized>(
        _: &Lane<'_, N>,
        _: &Read,
        _: &mut B,
        _: &mut impl ReadCall,
    ) -> Result<usize, Errno> {
        Err(Errno::EIO)
    }

    fn resize<N: Nvm>(
        lane: &mut Lane<'_, N>,
        resize: &Resize,
        _is_idle: bool,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let client = lane.client();
        client.log_resize(lane, resize, raw)
    }
}
