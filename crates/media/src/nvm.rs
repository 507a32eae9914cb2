//! The seam between media and everything above: loads, stores and what makes them durable.
//!
//! It must never hand out references into the media. A crash simulator implements the same trait.

use crate::bytes::Bytes;

/// Bytes of a cache line, the unit that is flushed.
pub(crate) const LINE_BYTES: u64 = 64;

/// Byte-addressed durable memory.
///
/// Offsets and lengths outside the media, and misaligned offsets where alignment is asked for, are
/// programmer errors: they panic in debug builds and abort the process in release builds; they
/// never touch foreign memory.
pub trait Nvm {
    /// Number of bytes.
    fn len(&self) -> u64;

    /// True if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `buf.len()` bytes at `offset` out. Bytes that someone else stores meanwhile may be
    /// torn.
    fn read(&self, offset: u64, buf: &mut [u8]);

    /// The `len` bytes at `offset` for a system call to read from; nothing where the media is no
    /// memory of this process.
    fn lend(&self, _offset: u64, _len: u64) -> Option<Bytes<'_>> {
        None
    }

    /// Says that bytes at `offset` will be read soon; an offset outside the media is ignored.
    #[inline]
    fn prefetch(&self, _offset: u64) {}

    /// Stores `bytes` at `offset` through the cache. Durable after [`flush`](Nvm::flush) of the
    /// range and [`fence`](Nvm::fence).
    fn write(&self, offset: u64, bytes: &[u8]);

    /// Stores `src` at `offset` (a multiple of 64) past the cache and fills the rest of the last
    /// cache line with zeros. Durable after [`fence`](Nvm::fence).
    ///
    /// Returns the crc32c of the `src.len()` bytes that were stored (without the zeros), continued
    /// from `crc` as `crc32c::crc32c_append(crc, bytes)` does. Each source byte is loaded exactly
    /// once, so that the checksum matches the media even if the source changes meanwhile.
    fn write_streaming(&self, offset: u64, src: Bytes<'_>, crc: u32) -> u32;

    /// Loads the aligned word at `offset` with acquire ordering.
    fn load_u64(&self, offset: u64) -> u64;

    /// Stores the aligned word at `offset` in one piece, with release ordering. Durable after
    /// [`flush`](Nvm::flush) and [`fence`](Nvm::fence).
    fn store_u64(&self, offset: u64, value: u64);

    /// Starts writing the cache lines of the range back to the media. Complete after
    /// [`fence`](Nvm::fence).
    fn flush(&self, offset: u64, len: u64);

    /// Waits until everything streamed or flushed before by this thread is durable.
    fn fence(&self);
}
