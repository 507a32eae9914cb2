//! An open file as its front end has it: what the kernel is asked about it, and what only the front
//! end knows of the process around it.

use core::ffi::c_int;

use holdfast_board::Times;
use holdfast_cache::{Asked, Errno, FileRef, Look, Reason};
use holdfast_media::Bytes;

/// What the kernel says of a file.
#[derive(Clone, Copy)]
pub struct Stat {
    /// Device, as `st_dev`.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// A regular file.
    pub regular: bool,
    /// Mode bits, owner and group.
    pub ownership: (u32, u32, u32),
    /// Time of the last change of any kind, in nanoseconds.
    pub changed_ns: u64,
    /// The times that a write moves.
    pub times: Times,
}

/// An open file, as its front end has it.
pub trait Backing {
    /// The descriptor of this process by which the keeper is shown the file.
    fn fd(&self) -> c_int;

    /// What the kernel says of the file.
    ///
    /// # Errors
    /// What the kernel says.
    fn stat(&self) -> Result<Stat, Errno>;

    /// What of the file others may have changed, and nothing of its times.
    ///
    /// # Errors
    /// What the kernel says.
    fn look(&self) -> Result<Look, Errno>;

    /// Those of [`KERNEL_FLAGS`](crate::KERNEL_FLAGS) that the description has now; `None` where
    /// the kernel does not say.
    fn kernel_flags(&self) -> Option<u32>;

    /// A whole `fsync` of the program's own description. What else it would natively have made
    /// durable is durable behind it, too (invariant 9), and one in the place of less counts as the
    /// keeper's.
    ///
    /// # Errors
    /// What the kernel says.
    fn fsync(&self, asked: Asked) -> Result<(), Errno>;

    /// Has the kernel tell, as a sync by the program would and once, that it could not write what
    /// it had.
    ///
    /// # Errors
    /// What the program's own sync would have said.
    fn check(&self) -> Result<(), Errno>;

    /// Hands all of the file's first `bytes` bytes to `log`, once; false when they could not be
    /// read, or were fewer.
    fn read_whole(&self, bytes: u64, log: &mut dyn FnMut(&[Bytes<'_>])) -> bool;

    /// Whether no other description of the file exists.
    fn is_sole(&self) -> bool;

    /// Whether the file lies where files are managed; true where that cannot be told.
    fn may_be_managed(&self) -> bool;

    /// Does something in which locks are held: nothing of the program's may run in it.
    fn section<R>(&self, work: impl FnOnce() -> R) -> R;

    /// Why no file is managed any more, if that is so: the process writes them where it is not
    /// seen.
    fn bypasses_all(&self) -> Option<Reason> {
        None
    }

    /// Whether this file may be written through the process where that is not seen.
    fn writes_unseen(&self, _stat: &Stat) -> Option<Reason> {
        None
    }

    /// Whether any file may be.
    fn may_write_unseen(&self) -> bool {
        false
    }

    /// The file is the log's from now on: what other descriptions of the process write to it must
    /// be logged, too.
    fn adopted(&self, _file: FileRef, _stat: &Stat) {}
}

/// The kernel's calls on an open file, for a front end that has none of a program's own to make.
pub trait Calls: Backing {
    /// Reads at an offset.
    ///
    /// # Errors
    /// What the kernel says.
    fn pread(&self, part: &mut [u8], offset: u64) -> Result<usize, Errno>;

    /// Writes at an offset.
    ///
    /// # Errors
    /// What the kernel says.
    fn pwrite(&self, parts: &[Bytes<'_>], offset: u64) -> Result<usize, Errno>;

    /// Writes at the end of the file.
    ///
    /// # Errors
    /// What the kernel says.
    fn append(&self, parts: &[Bytes<'_>]) -> Result<usize, Errno>;

    /// Sets the file's size.
    ///
    /// # Errors
    /// What the kernel says.
    fn truncate(&self, size: u64) -> Result<(), Errno>;

    /// Makes a hole, and leaves the size as it is.
    ///
    /// # Errors
    /// What the kernel says.
    fn punch(&self, offset: u64, bytes: u64) -> Result<(), Errno>;
}
