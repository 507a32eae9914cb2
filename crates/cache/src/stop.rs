//! Why an operation does not go on: what decides how the call is answered is told from what the
//! program is to see.

use crate::errno::Errno;

/// Why an operation stopped before it did anything that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The keeper takes the file from who has a lock of it and stands still. Nothing was done.
    Taken,
    /// The program is to see this.
    Error(Errno),
}

impl From<Errno> for Stop {
    #[inline]
    fn from(errno: Errno) -> Self {
        Self::Error(errno)
    }
}

impl From<Stop> for Errno {
    /// For who is never in the way of a file that is taken: in state Behind none is.
    #[inline]
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Taken => Self::EIO,
            Stop::Error(errno) => errno,
        }
    }
}

/// Why there is no room in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// Expiry cannot make any: the call must go around the log.
    Full,
    /// The keeper is dead.
    Stopped,
}

impl From<NoRoom> for Errno {
    fn from(why: NoRoom) -> Self {
        match why {
            NoRoom::Full => Self::ENOSPC,
            NoRoom::Stopped => Self::EIO,
        }
    }
}
