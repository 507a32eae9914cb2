//! One write of a program to a managed file: around the log where no record can say what it does,
//! else by the cache, at the cursor with the cursor followed; a synchronous write is a write and
//! then exactly a sync.

use holdfast_cache::{Asked, Designs, Errno, Outcome, Place, WriteCall};
use holdfast_canary::{Canary, on};
use holdfast_media::{Bytes, Nvm};

use crate::backing::Backing;
use crate::description::{DIRECT, SYNC};
use crate::handle::Handle;

/// The cursor is learned from writes up to this size.
const LEARN_BYTES_MAX: usize = 64 << 10;

/// Where a call reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// At the description's cursor, which moves.
    Cursor,
    /// At an offset.
    At(u64),
}

/// What a program asks for by one write.
pub struct Request<'a> {
    /// The bytes.
    pub parts: &'a [Bytes<'a>],
    /// Where.
    pub spot: Spot,
    /// At the end of the file instead; the cursor moves as the spot says.
    pub appends: bool,
    /// The call leaves the cursor behind its bytes if it is at the cursor.
    pub is_followed: bool,
    /// The bytes are to be durable when it returns: the program said so.
    pub is_synchronous: bool,
    /// Only the kernel knows the result: how far it can read the bytes, or what it thinks of a
    /// flag.
    pub is_kernels: bool,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// So many bytes are written, and durable.
    Done(usize),
    /// They are written, and the sync that belongs to the call failed.
    SyncFailed(Errno),
    /// Nothing is acknowledged.
    Failed(Errno),
    /// The file is left to the kernel, or there is nothing to write: the call was not made.
    Kernel,
    /// The slot was given back meanwhile: to be tried again.
    Stale,
}

impl<N: Nvm> Handle<'_, N> {
    /// Makes a write.
    #[inline]
    pub fn write<D: Designs, B: Backing>(
        &self,
        backing: &B,
        request: &Request<'_>,
        call: &mut impl WriteCall,
    ) -> Ended {
        if self.flags & DIRECT != 0 && self.client.hides_bytes(self.file) {
            // Fails only when the keeper is dead or the disk refuses; then the write fails, too.
            let _ = backing.section(|| self.client.leave_behind(self.file, true));
        }
        if self.client.is_among_others(self.file)
            && let Err(errno) = backing.section(|| self.client.unlog(self.file))
        {
            return Ended::Failed(errno);
        }
        if request.is_synchronous
            && let Err(errno) = self.log_from_now(backing)
        {
            return Ended::Failed(errno);
        }
        if request.is_kernels {
            return self.write_around(backing, request.spot, call);
        }
        let outcome = backing.section(|| {
            let follows = request.spot == Spot::Cursor && request.is_followed;
            let remembered = self.description.filter(|it| follows && it.remembers_cursor());
            let Some(description) = remembered else {
                if request.spot == Spot::Cursor {
                    self.forget_cursor();
                }
                return self.absorb::<D, B>(backing, request, None, call);
            };
            description.locked(|| {
                let before = description.cursor();
                let outcome = self.absorb::<D, B>(backing, request, before, call);
                description.set_cursor(match (outcome, before) {
                    (Ok(Outcome::Absorbed { bytes, .. } | Outcome::Passed { bytes }), Some(before)) => {
                        Some(before + bytes as u64)
                    }
                    // Larger writes may have gone around the log, without an offset to learn from.
                    (Ok(Outcome::Absorbed { bytes, offset }), None) if bytes <= LEARN_BYTES_MAX => {
                        Some(offset + bytes as u64)
                    }
                    _ => None,
                });
                outcome
            })
        });
        match outcome {
            Ok(Outcome::Absorbed { bytes, .. } | Outcome::Passed { bytes }) => {
                self.end_write::<D, B>(backing, request, bytes)
            }
            Ok(Outcome::Kernel) => Ended::Kernel,
            Ok(Outcome::Stale) => Ended::Stale,
            Err(errno) => Ended::Failed(errno),
        }
    }

    /// Ends a call of which the log has the bytes.
    #[inline]
    fn end_write<D: Designs, B: Backing>(&self, backing: &B, request: &Request<'_>, bytes: usize) -> Ended {
        if !request.is_synchronous || on(Canary::SynchronousUnsynced) {
            return Ended::Done(bytes);
        }
        let asked = if self.flags & SYNC != 0 { Asked::Whole } else { Asked::Data };
        let synced = self
            .look_at(backing)
            .and_then(|()| self.client.sync_by::<D>(self.file, self.seen_error(), || backing.fsync(asked)));
        match synced {
            Ok(()) => Ended::Done(bytes),
            Err(errno) => Ended::SyncFailed(errno),
        }
    }

    #[cold]
    fn write_around<B: Backing>(&self, backing: &B, spot: Spot, call: &mut impl WriteCall) -> Ended {
        let mut around = || self.client.around(self.file, || call.write());
        let done = backing.section(|| match spot {
            Spot::Cursor => self.moving_cursor(around),
            Spot::At(_) => around(),
        });
        match done.and_then(|result| result) {
            Ok(bytes) => Ended::Done(bytes),
            Err(errno) => Ended::Failed(errno),
        }
    }

    fn absorb<D: Designs, B: Backing>(
        &self,
        backing: &B,
        request: &Request<'_>,
        known: Option<u64>,
        call: &mut impl WriteCall,
    ) -> Result<Outcome, Errno> {
        let place = match request.spot {
            _ if request.appends => Place::Append,
            Spot::Cursor => Place::Cursor { known },
            Spot::At(offset) => Place::At(offset),
        };
        let total: usize = request.parts.iter().map(Bytes::len).sum();
        let end = match place {
            Place::At(offset) | Place::Cursor { known: Some(offset) } => offset.saturating_add(total as u64),
            Place::Cursor { known: None } | Place::Append => 0,
        };
        if self.client.makes_longer(self.file, end) {
            // Afterwards nobody would see any more that somebody outside had cut it.
            self.look_at(backing)?;
        }
        self.client.write_by::<D>(self.file, place, request.parts, call)
    }

    /// Makes a call that writes to a file which is left to the kernel, and may be taken back at any
    /// moment: what is under way then is noted. `None`, and the call is not made: it is the log's
    /// again, or too many such calls are under way.
    pub fn pass_by<B: Backing, R>(&self, backing: &B, spot: Spot, call: impl FnOnce() -> R) -> Option<R> {
        let pass = || self.client.pass_by(self.file, call);
        backing.section(|| match spot {
            Spot::Cursor => self.moving_cursor(pass),
            Spot::At(_) => pass(),
        })
    }

    /// The kernel changed content that no record tells of. It is brought to the disk before the
    /// call is acknowledged (invariant 5).
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed.
    pub fn settle_stray<B: Backing>(&self, backing: &B) -> Result<(), Errno> {
        self.forget_cursor();
        backing.section(|| self.client.around(self.file, || ()))
    }
}
