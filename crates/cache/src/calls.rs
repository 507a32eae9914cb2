//! What a front end does for one call of a program: the kernel's own calls on the file, which the
//! cache makes where it needs them and never by itself.

use crate::errno::Errno;

/// A call that writes.
pub trait WriteCall {
    /// Makes the program's own call, without the sync that it may ask for; how many bytes it wrote.
    ///
    /// # Errors
    /// What the kernel says.
    fn write(&mut self) -> Result<usize, Errno>;

    /// The cursor, or for a call that leaves the cursor alone the end of the file: where what was
    /// written last at the cursor or at the end of the file ends.
    ///
    /// # Errors
    /// What the kernel says.
    fn landed(&self) -> Result<u64, Errno>;

    /// Whether the cursor can be set. Where it cannot, only writes at an offset can do without the
    /// program's own call.
    #[inline]
    fn sets_cursor(&self) -> bool {
        true
    }

    /// Sets the cursor, as the program's own call would have; nothing for a call at an offset.
    ///
    /// # Errors
    /// What the kernel says.
    fn set_cursor(&self, to: u64) -> Result<(), Errno>;
}

/// A call that reads.
pub trait ReadCall {
    /// Reads from the file itself at an offset.
    ///
    /// # Errors
    /// What the kernel says.
    fn read(&mut self, part: &mut [u8], offset: u64) -> Result<usize, Errno>;

    /// The cursor. [`ReadCall::set_cursor`] always follows, so it may be moved ahead to where it
    /// will most likely be.
    ///
    /// # Errors
    /// What the kernel says.
    fn cursor(&self) -> Result<u64, Errno>;

    /// Sets the cursor.
    ///
    /// # Errors
    /// What the kernel says.
    fn set_cursor(&self, to: u64) -> Result<(), Errno>;
}

/// Where a read puts its bytes: one buffer after the other.
pub trait Buffers {
    /// The buffer with this number, if there are so many.
    fn part(&mut self, index: usize) -> Option<&mut [u8]>;
}

impl Buffers for [u8] {
    fn part(&mut self, index: usize) -> Option<&mut [u8]> {
        (index == 0).then_some(self)
    }
}

/// A call that writes, put together from functions; without the last one it cannot set the cursor.
pub(crate) struct Writing<W, C, S>(pub(crate) W, pub(crate) C, pub(crate) Option<S>);

impl<W, C, S> WriteCall for Writing<W, C, S>
where
    W: FnMut() -> Result<usize, Errno>,
    C: Fn() -> Result<u64, Errno>,
    S: Fn(u64) -> Result<(), Errno>,
{
    #[inline]
    fn write(&mut self) -> Result<usize, Errno> {
        (self.0)()
    }

    #[inline]
    fn landed(&self) -> Result<u64, Errno> {
        (self.1)()
    }

    #[inline]
    fn sets_cursor(&self) -> bool {
        self.2.is_some()
    }

    #[inline]
    fn set_cursor(&self, to: u64) -> Result<(), Errno> {
        self.2.as_ref().map_or(Ok(()), |seek| seek(to))
    }
}

/// A call that reads, put together from functions.
pub(crate) struct Readers<R, C, S>(pub(crate) R, pub(crate) C, pub(crate) S);

impl<R, C, S> ReadCall for Readers<R, C, S>
where
    R: FnMut(&mut [u8], u64) -> Result<usize, Errno>,
    C: Fn() -> Result<u64, Errno>,
    S: Fn(u64) -> Result<(), Errno>,
{
    #[inline]
    fn read(&mut self, part: &mut [u8], offset: u64) -> Result<usize, Errno> {
        (self.0)(part, offset)
    }

    #[inline]
    fn cursor(&self) -> Result<u64, Errno> {
        (self.1)()
    }

    #[inline]
    fn set_cursor(&self, to: u64) -> Result<(), Errno> {
        (self.2)(to)
    }
}
