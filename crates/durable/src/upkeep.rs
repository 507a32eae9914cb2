//! A design on the keeper's side: what becomes, in the background and after deaths, of files whose
//! state it is. Its other half is the client's (`Design` in `cache`).
//!
//! A set of designs is matched in one place ([`Upkeeps::dispatch`]). Whoever has another set (a
//! test with a design of its own) gives it as a type of [`Durable`]. What a design does here
//! decides nothing on durability: it brings bytes to the page cache, and whoever asked for that
//! syncs and expires.

use holdfast_pool::Seq;
use std::io;

use super::file::ManagedFile;
use super::state::Durable;
use super::sync::Pace;
use holdfast_board::{DeadLane, FileRow, FileState, Way};
use holdfast_disk::Disk;
use holdfast_log::Header;
use holdfast_media::Nvm;

/// What a keeper does for files in one state.
pub trait Upkeep {
    /// The way back to state Through, once the page cache has everything; `None`: it always has.
    const LEAVES: Option<Way>;

    /// Brings every byte of a file that comes from a record up to `seq` to the page cache. Returns
    /// the description that it needed.
    ///
    /// # Errors
    /// What the disk says.
    fn drain<N: Nvm, D: Disk, U: Upkeeps>(
        durable: &Durable<N, D, U>,
        file: &ManagedFile<D::File>,
        seq: Seq,
        pace: Pace,
    ) -> io::Result<Option<D::File>>;

    /// As [`Upkeep::drain`], of a range whose page locks a dead client holds. It may say any range.
    ///
    /// # Errors
    /// What the disk says.
    fn drain_held<N: Nvm, D: Disk, U: Upkeeps>(
        durable: &Durable<N, D, U>,
        target: &D::File,
        file: &ManagedFile<D::File>,
        range: (u64, u64),
    ) -> io::Result<()>;

    /// Finishes a durable write that a dead client began, where that needs no disk. False, and
    /// nothing done: it goes to the page cache.
    fn finish<N: Nvm, D: Disk, U: Upkeeps>(
        _durable: &Durable<N, D, U>,
        _dead: &DeadLane,
        _seq: Seq,
        _row: &FileRow,
    ) -> bool {
        false
    }

    /// Whether newer durable records, which live longer, are known to cover all of a record: then
    /// its segment may be given back without it.
    fn is_covered<N: Nvm, D: Disk, U: Upkeeps>(_durable: &Durable<N, D, U>, _header: &Header) -> bool {
        false
    }

    /// Brings the size of a file, and that it was written, to where everybody sees them.
    ///
    /// # Errors
    /// What the disk says.
    fn tell<N: Nvm, D: Disk, U: Upkeeps>(
        _durable: &Durable<N, D, U>,
        _file: &ManagedFile<D::File>,
    ) -> io::Result<()> {
        Ok(())
    }
}

/// What is to be done by the design of a file's state.
pub trait Task {
    /// What comes of it.
    type Output;

    /// Has a design do it.
    fn by<K: Upkeep>(self) -> Self::Output;
}

/// A set of designs.
pub trait Upkeeps: Sized + 'static {
    /// Has the design of a state do something. Of a state that is none of a design, what page rows
    /// still have is kept up: a file that failed keeps its own.
    fn dispatch<T: Task>(state: FileState, task: T) -> T::Output;
}

/// Makes a type that is a set of designs: states, and the design of each. The last one, without a
/// state, is that of all others.
#[macro_export]
macro_rules! upkeeps {
    ($(#[$doc:meta])* $visibility:vis $name:ident { $($state:ident => $design:ty),+ ; $rest:ty }) => {
        $(#[$doc])*
        $visibility struct $name;

        impl $crate::Upkeeps for $name {
            #[inline]
            fn dispatch<T: $crate::UpkeepTask>(state: $crate::FileState, task: T) -> T::Output {
                match state {
                    $($crate::FileState::$state => task.by::<$design>(),)+
                    _ => task.by::<$rest>(),
                }
            }
        }
    };
}
pub(crate) use upkeeps;

struct ToDrain<'a, N: Nvm, D: Disk, U: Upkeeps>(&'a Durable<N, D, U>, &'a ManagedFile<D::File>, Seq, Pace);

impl<N: Nvm, D: Disk, U: Upkeeps> Task for ToDrain<'_, N, D, U> {
    type Output = io::Result<Option<D::File>>;

    fn by<K: Upkeep>(self) -> Self::Output {
        K::drain(self.0, self.1, self.2, self.3)
    }
}

struct ToDrainHeld<'a, N: Nvm, D: Disk, U: Upkeeps>(
    &'a Durable<N, D, U>,
    &'a D::File,
    &'a ManagedFile<D::File>,
    (u64, u64),
);

impl<N: Nvm, D: Disk, U: Upkeeps> Task for ToDrainHeld<'_, N, D, U> {
    type Output = io::Result<()>;

    fn by<K: Upkeep>(self) -> Self::Output {
        K::drain_held(self.0, self.1, self.2, self.3)
    }
}

struct ToFinish<'a, N: Nvm, D: Disk, U: Upkeeps>(&'a Durable<N, D, U>, &'a DeadLane, Seq, &'a FileRow);

impl<N: Nvm, D: Disk, U: Upkeeps> Task for ToFinish<'_, N, D, U> {
    type Output = bool;

    fn by<K: Upkeep>(self) -> bool {
        K::finish(self.0, self.1, self.2, self.3)
    }
}

struct ToSeeCovered<'a, N: Nvm, D: Disk, U: Upkeeps>(&'a Durable<N, D, U>, &'a Header);

impl<N: Nvm, D: Disk, U: Upkeeps> Task for ToSeeCovered<'_, N, D, U> {
    type Output = bool;

    fn by<K: Upkeep>(self) -> bool {
        K::is_covered(self.0, self.1)
    }
}

struct ToTell<'a, N: Nvm, D: Disk, U: Upkeeps>(&'a Durable<N, D, U>, &'a ManagedFile<D::File>);

impl<N: Nvm, D: Disk, U: Upkeeps> Task for ToTell<'_, N, D, U> {
    type Output = io::Result<()>;

    fn by<K: Upkeep>(self) -> Self::Output {
        K::tell(self.0, self.1)
    }
}

struct ToLeave;

impl Task for ToLeave {
    type Output = Option<Way>;

    fn by<K: Upkeep>(self) -> Self::Output {
        K::LEAVES
    }
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    fn state(&self, file: &ManagedFile<D::File>) -> FileState {
        self.board.row(file.slot).state()
    }

    /// Brings every byte of a file that comes from a record up to `seq` to the page cache. Returns
    /// the description that it needed.
    ///
    /// # Errors
    /// What the disk says.
    pub fn drain(&self, file: &ManagedFile<D::File>, seq: Seq, pace: Pace) -> io::Result<Option<D::File>> {
        U::dispatch(self.state(file), ToDrain(self, file, seq, pace))
    }

    /// As [`Durable::drain`], of a range whose page locks a dead client holds.
    pub(super) fn drain_range(
        &self,
        target: &D::File,
        file: &ManagedFile<D::File>,
        range: (u64, u64),
    ) -> io::Result<()> {
        U::dispatch(self.state(file), ToDrainHeld(self, target, file, range))
    }

    /// Finishes what a dead client began in a file, without a disk; false: not so.
    pub(super) fn finish(&self, dead: &DeadLane, seq: Seq, row: &FileRow) -> bool {
        U::dispatch(row.state(), ToFinish(self, dead, seq, row))
    }

    /// Whether newer durable records are known to cover all of a record.
    pub(super) fn is_covered(&self, row: &FileRow, header: &Header) -> bool {
        U::dispatch(row.state(), ToSeeCovered(self, header))
    }

    /// Brings the size of a file, and that it was written, to where everybody sees them.
    ///
    /// # Errors
    /// What the disk says.
    pub fn tell(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        U::dispatch(self.state(file), ToTell(self, file))
    }

    /// The way from a file's state back to Through, if it is one in which the page cache may lag.
    pub(super) fn way_back(&self, file: &ManagedFile<D::File>) -> Option<Way> {
        let state = self.state(file);
        state.lags().then(|| U::dispatch(state, ToLeave)).flatten()
    }
}
