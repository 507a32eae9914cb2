//! A read, up to where the designs part: whether it is the kernel's, the announcement, the state of
//! the file.

use holdfast_media::Nvm;

use crate::behind::Behind;
use crate::calls::{Buffers, ReadCall, Readers};
use crate::client::Client;
use crate::design::{Design, Designs, Read, ToRead};
use crate::errno::Errno;
use crate::file::{FileRef, Place};
use crate::lane::Entry;
use crate::stock::Stock;

/// What became of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// This many bytes are in the buffer.
    Done(usize),
    /// The kernel knows all of the file: make the call.
    Kernel,
    /// The slot was given back meanwhile: look the file up again.
    Stale,
}

impl<N: Nvm> Client<N> {
    /// As [`Client::read_by`], into one buffer and with the calls as functions.
    ///
    /// # Errors
    /// As [`Client::read_by`].
    pub fn read(
        &self,
        file: FileRef,
        place: Place,
        buffer: &mut [u8],
        raw: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
        cursor: impl Fn() -> Result<u64, Errno>,
        seek: impl Fn(u64) -> Result<(), Errno>,
    ) -> Result<Reading, Errno> {
        let read = Read { file, place, bytes: buffer.len() };
        self.read_by::<Stock, _>(&read, buffer, &mut Readers(raw, cursor, seek))
    }

    /// Reads into `buffers`, of together at least as many bytes as asked for, what the file holds
    /// now: every write that was acknowledged before the call, in any process. What they get was
    /// all true at one moment. At the end of the file there is nothing to read, so that place
    /// counts as the cursor.
    ///
    /// # Errors
    /// What the kernel reported, or `EIO` when the keeper is dead.
    pub fn read_by<D: Designs, B: Buffers + ?Sized>(
        &self,
        read: &Read,
        buffers: &mut B,
        call: &mut impl ReadCall,
    ) -> Result<Reading, Errno> {
        let file = read.file;
        if !self.is_current(file) {
            return Ok(Reading::Stale);
        }
        if self.is_in_kernel(file) {
            return Ok(Reading::Kernel);
        }
        // Waits for who keeps the file's writers out.
        let mut lane = self.take_lane()?;
        let state = match lane.enter_reading(file)? {
            Entry::Absorbed(state) => state,
            Entry::Stale => return Ok(Reading::Stale),
            Entry::Unsynced | Entry::Kernel => return Ok(Reading::Kernel),
        };
        let to_read = ToRead { lane: &lane, read, buffers: &mut *buffers, call: &mut *call };
        let bytes = match D::dispatch(state, to_read) {
            Some(bytes) => bytes,
            // The page rows of a file that failed stay where readers find them.
            None => Behind::read(&lane, read, buffers, call),
        };
        lane.finish(file);
        drop(lane);
        let bytes = bytes?;
        if self.keeper_alive() { Ok(Reading::Done(bytes)) } else { Err(Errno::EIO) }
    }
}
