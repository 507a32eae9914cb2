//! A design: one way to absorb what is done to a file, on the client's side. Its other half is the
//! keeper's (`Upkeep` in `durable`).
//!
//! A set of designs says which one belongs to which state of a file, and is matched in one place
//! ([`Designs::dispatch`]), once for an operation, with the operation announced: so the state is
//! what it was looked at as until the operation ends. Whoever has another set (a test with a design
//! of its own) gives it as a type; nothing is called by a pointer.

use crate::stop::Stop;
use holdfast_board::FileState;
use holdfast_log::Kind;
use holdfast_media::{Bytes, Nvm};

use crate::calls::{Buffers, ReadCall, WriteCall};
use crate::client::Client;
use crate::errno::Errno;
use crate::file::{FileRef, Place};
use crate::lane::Lane;

/// What is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// To which file.
    pub file: FileRef,
    /// Where.
    pub place: Place,
    /// The bytes.
    pub parts: &'a [Bytes<'a>],
    /// How many they are together.
    pub total: u64,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is logged, and whoever reads the file finds it.
    Done {
        /// Bytes written.
        bytes: usize,
        /// Where they went.
        offset: u64,
    },
    /// The kernel put it elsewhere than the record says: the record is cancelled, the file must be
    /// settled.
    Misplaced {
        /// Bytes written.
        bytes: usize,
    },
    /// Nothing happened: nobody knows where an append would go.
    SizeUnknown,
    /// Nothing happened: it needs the page cache, and the file for itself.
    Alone,
}

/// What is to be read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// From which file.
    pub file: FileRef,
    /// Where.
    pub place: Place,
    /// How many bytes at most.
    pub bytes: usize,
}

/// A truncation, or a punched hole.
#[derive(Clone, Copy, Debug)]
pub struct Resize {
    /// Of which file.
    pub file: FileRef,
    /// What the record says that it is.
    pub kind: Kind,
    /// The new size, or where the hole begins.
    pub offset: u64,
    /// The length of the hole.
    pub extent: u64,
}

/// What a client does to files in one state.
///
/// `write`, `read` and `resize` are called with the operation announced on the lane and end neither
/// the announcement nor the lane's locks: whoever calls does that, whatever happens here.
pub trait Design {
    /// Makes a write durable and visible, in this order (invariant 1). The lane has room for it,
    /// and other writers may be in.
    ///
    /// # Errors
    /// What the kernel reported, or `EIO` when the keeper is dead; [`Stop::Taken`] of a lock that was
    /// not to be had.
    fn write<N: Nvm>(
        lane: &mut Lane<'_, N>,
        write: &Write<'_>,
        call: &mut impl WriteCall,
    ) -> Result<Written, Stop>;

    /// Reads what the file holds now, where the page cache may lack bytes; how many there were.
    ///
    /// # Errors
    /// What the kernel reported, or `EIO` when the keeper is dead.
    fn read<N: Nvm, B: Buffers + ?Sized>(
        lane: &Lane<'_, N>,
        read: &Read,
        buffers: &mut B,
        call: &mut impl ReadCall,
    ) -> Result<usize, Errno>;

    /// Whether a resize changes nothing but times, so that the page cache need not have what is
    /// newer than it. The caller has the file exclusively.
    #[inline]
    fn is_idle<N: Nvm>(_client: &Client<N>, _resize: &Resize) -> bool {
        false
    }

    /// Makes a resize durable and visible, in this order (invariant 7). The caller has the file
    /// exclusively, and the page cache has all of it but for an idle one.
    ///
    /// # Errors
    /// What the kernel reported.
    fn resize<N: Nvm>(
        lane: &mut Lane<'_, N>,
        resize: &Resize,
        is_idle: bool,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno>;

    /// A sync of the file is about to be answered from the log. Every acknowledged byte is durable
    /// already, unless a design says otherwise here.
    ///
    /// # Errors
    /// `EIO` when it is not durable.
    #[inline]
    fn sync<N: Nvm>(_client: &Client<N>, _file: FileRef) -> Result<(), Errno> {
        Ok(())
    }
}

/// What is to be done by the design of a file's state.
pub trait Task {
    /// What comes of it.
    type Output;

    /// Has a design do it.
    fn by<D: Design>(self) -> Self::Output;
}

/// A set of designs.
pub trait Designs {
    /// Has the design of a state do something; `None`: the state is of no design of this set. A
    /// file in it is changed by nobody who has this set: only its own design knows what it holds.
    fn dispatch<T: Task>(state: FileState, task: T) -> Option<T::Output>;
}

/// Makes a type that is a set of designs: states, and the design of each.
#[macro_export]
macro_rules! designs {
    ($(#[$doc:meta])* $visibility:vis $name:ident { $($state:ident => $design:ty),+ $(,)? }) => {
        $(#[$doc])*
        $visibility struct $name;

        impl $crate::Designs for $name {
            #[inline(always)]
            fn dispatch<T: $crate::Task>(state: $crate::FileState, task: T) -> Option<T::Output> {
                match state {
                    $($crate::FileState::$state => Some(task.by::<$design>()),)+
                    _ => None,
                }
            }
        }
    };
}

pub(crate) struct ToWrite<'a, 'b, 'c, N: Nvm, C> {
    pub(crate) lane: &'a mut Lane<'b, N>,
    pub(crate) write: &'a Write<'c>,
    pub(crate) call: &'a mut C,
}

impl<N: Nvm, C: WriteCall> Task for ToWrite<'_, '_, '_, N, C> {
    type Output = Result<Written, Stop>;

    #[inline(always)]
    fn by<D: Design>(self) -> Self::Output {
        D::write(self.lane, self.write, self.call)
    }
}

pub(crate) struct ToRead<'a, 'b, N: Nvm, B: ?Sized, C> {
    pub(crate) lane: &'a Lane<'b, N>,
    pub(crate) read: &'a Read,
    pub(crate) buffers: &'a mut B,
    pub(crate) call: &'a mut C,
}

impl<N: Nvm, B: Buffers + ?Sized, C: ReadCall> Task for ToRead<'_, '_, N, B, C> {
    type Output = Result<usize, Errno>;

    #[inline(always)]
    fn by<D: Design>(self) -> Self::Output {
        D::read(self.lane, self.read, self.buffers, self.call)
    }
}

pub(crate) struct ToSeeIdle<'a, N: Nvm>(pub(crate) &'a Client<N>, pub(crate) &'a Resize);

impl<N: Nvm> Task for ToSeeIdle<'_, N> {
    type Output = bool;

    #[inline(always)]
    fn by<D: Design>(self) -> bool {
        D::is_idle(self.0, self.1)
    }
}

pub(crate) struct ToResize<'a, 'b, N: Nvm, R> {
    pub(crate) lane: &'a mut Lane<'b, N>,
    pub(crate) resize: &'a Resize,
    pub(crate) is_idle: bool,
    pub(crate) raw: R,
}

impl<N: Nvm, R: FnOnce() -> Result<(), Errno>> Task for ToResize<'_, '_, N, R> {
    type Output = Result<(), Errno>;

    #[inline(always)]
    fn by<D: Design>(self) -> Self::Output {
        D::resize(self.lane, self.resize, self.is_idle, self.raw)
    }
}

pub(crate) struct ToSync<'a, N: Nvm>(pub(crate) &'a Client<N>, pub(crate) FileRef);

impl<N: Nvm> Task for ToSync<'_, N> {
    type Output = Result<(), Errno>;

    #[inline(always)]
    fn by<D: Design>(self) -> Self::Output {
        D::sync(self.0, self.1)
    }
}
