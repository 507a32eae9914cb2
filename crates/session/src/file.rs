//! A file for a front end that has no calls of a program's own to make: every operation at an
//! offset or at the end, by the kernel's calls that its [`Calls`] are.

use core::ffi::CStr;
use core::marker::PhantomData;

use holdfast_board::{Epoch, Inode};
use holdfast_cache::{
    Asked, Client, Designs, Errno, Origin, Outcome, Place, Read, ReadCall, Reading, Removal, Resize, Stock,
    WriteCall,
};
use holdfast_log::Kind;
use holdfast_media::{Bytes, Mapping, Nvm};

use crate::adopt::adopt;
use crate::backing::Calls;
use crate::description::{DSYNC, Description};
use crate::first_sync::pass;
use crate::handle::{Handle, TRIES, Target, retry, target};
use crate::opens::note_open;
use crate::write::{Ended, Request, Spot};

/// An open file.
pub struct File<'a, B, N: Nvm = Mapping, D = Stock> {
    client: &'a Client<N>,
    description: Description,
    backing: B,
    designs: PhantomData<D>,
}

/// A write by the kernel's own calls.
struct Plain<'a, B> {
    backing: &'a B,
    parts: &'a [Bytes<'a>],
    /// `None`: at the end of the file.
    offset: Option<u64>,
}

impl<B: Calls> WriteCall for Plain<'_, B> {
    fn write(&mut self) -> Result<usize, Errno> {
        match self.offset {
            Some(offset) => self.backing.pwrite(self.parts, offset),
            None => self.backing.append(self.parts),
        }
    }

    fn landed(&self) -> Result<u64, Errno> {
        self.backing.stat().map(|stat| stat.size)
    }

    /// There is none that a program could ask for.
    fn set_cursor(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }
}

/// Reads by the kernel's own calls.
struct Reader<'a, B>(&'a B);

impl<B: Calls> ReadCall for Reader<'_, B> {
    fn read(&mut self, part: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.0.pread(part, offset)
    }

    fn cursor(&self) -> Result<u64, Errno> {
        Err(Errno::EINVAL)
    }

    fn set_cursor(&self, _: u64) -> Result<(), Errno> {
        Ok(())
    }
}

impl<'a, B: Calls, N: Nvm, D: Designs> File<'a, B, N, D> {
    /// A file that the front end has just opened. `made`: its open created the file, and when that
    /// was noted; `flags` are those of a [`Description`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(
        client: &'a Client<N>,
        backing: B,
        flags: u32,
        made: Option<Option<Epoch>>,
    ) -> Result<Self, Errno> {
        let (description, stat) = (Description::new(), backing.stat()?);
        let seen = note_open(client, &stat);
        description.begin(flags, if made.is_some() { Origin::Created } else { Origin::Opened });
        description.remember_birth(&stat);
        description.remember_noted(made.flatten());
        if let Some(seen) = seen.filter(|seen| !seen.state.is_bypassed()) {
            adopt(client, &description, seen.file);
        }
        Ok(Self { client, description, backing, designs: PhantomData })
    }

    /// The front end's part of it.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    fn target(&self, register: bool) -> Target<'_, N> {
        target(self.client, &self.description, &self.backing, register)
    }

    /// What answers it, once it has been changed; `None`: the kernel, or nobody was asked.
    pub fn managed(&self) -> Option<Handle<'_, N>> {
        match self.target(false) {
            Target::Managed(handle) => Some(handle),
            _ => None,
        }
    }

    /// Makes a call that changes content without the log, while nobody asked for the durability of
    /// a file that has no row.
    fn pass<R>(&self, raw: impl FnOnce() -> Result<R, Errno>) -> Option<Result<R, Errno>> {
        let passes = self.client.logs_on_sync();
        passes.then(|| pass(self.client, &self.description, &self.backing, raw)).flatten()
    }

    /// Writes at an offset; how many bytes.
    ///
    /// # Errors
    /// What the kernel says, or `EIO` when the keeper is dead or the disk failed.
    pub fn write_at(&self, parts: &[Bytes<'_>], offset: u64) -> Result<usize, Errno> {
        self.write(parts, Some(offset))
    }

    /// Writes at the end of the file; how many bytes.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn append(&self, parts: &[Bytes<'_>]) -> Result<usize, Errno> {
        self.write(parts, None)
    }

    fn write(&self, parts: &[Bytes<'_>], offset: Option<u64>) -> Result<usize, Errno> {
        let mut call = Plain { backing: &self.backing, parts, offset };
        if let Some(written) = self.pass(|| call.write()) {
            return written;
        }
        let request = Request {
            parts,
            spot: Spot::At(offset.unwrap_or(0)),
            appends: offset.is_none(),
            is_followed: false,
            is_synchronous: self.description.flags() & DSYNC != 0,
            is_kernels: false,
        };
        let call = core::cell::RefCell::new(call);
        retry(
            || self.target(true),
            |synced| self.write_natively(&mut *call.borrow_mut(), synced),
            Err,
            |handle| match handle.write::<D, B>(&self.backing, &request, &mut *call.borrow_mut()) {
                Ended::Done(bytes) => Some(Ok(bytes)),
                Ended::SyncFailed(errno) | Ended::Failed(errno) => Some(Err(errno)),
                Ended::Stale => None,
                Ended::Kernel => {
                    let passed = handle
                        .pass_by(&self.backing, request.spot, || call.borrow_mut().write())
                        .map(|written| self.synced_after(written, request.is_synchronous));
                    match passed {
                        None if self.client.is_bypassed(handle.file) => {
                            Some(self.write_natively(&mut *call.borrow_mut(), request.is_synchronous))
                        }
                        passed => passed,
                    }
                }
            },
        )
    }

    fn write_natively(&self, call: &mut Plain<'_, B>, synced: bool) -> Result<usize, Errno> {
        let written = call.write();
        self.synced_after(written, synced)
    }

    fn synced_after(&self, written: Result<usize, Errno>, synced: bool) -> Result<usize, Errno> {
        let bytes = written?;
        if synced && bytes > 0 {
            self.sync_by_kernel(|| self.backing.fsync(Asked::Whole))?;
        }
        Ok(bytes)
    }

    /// Has the kernel answer a sync, which is counted.
    fn sync_by_kernel(&self, sync: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let inode = self.backing.stat().map_or(Inode::NONE, |stat| Inode { device: stat.dev, ino: stat.ino });
        let begun_ns = self.client.note_kernels_sync(inode);
        let synced = sync();
        self.client.note_kernels_sync_took(begun_ns);
        synced
    }

    /// Reads at an offset into buffers of together at least `bytes` bytes; how many there were.
    ///
    /// # Errors
    /// What the kernel says, or `EIO` when the keeper is dead.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
        for turn in 0..TRIES {
            let Ok(stat) = self.backing.stat() else { return self.backing.pread(buffer, offset) };
            let Some(seen) = self.client.find(stat.dev, stat.ino) else {
                return self.backing.pread(buffer, offset);
            };
            let asks_kernel = turn == 0 && self.client.leaves_to_kernel(seen.file, buffer.len());
            if !asks_kernel {
                let read = Read { file: seen.file, place: Place::At(offset), bytes: buffer.len() };
                let found = self
                    .backing
                    .section(|| self.client.read_by::<D, [u8]>(&read, buffer, &mut Reader(&self.backing)))?;
                match found {
                    Reading::Done(bytes) => return Ok(bytes),
                    Reading::Kernel => {}
                    Reading::Stale => continue,
                }
            }
            let raw = || self.backing.pread(buffer, offset);
            if let Some(read) = self.client.read_by_kernel(seen.file, raw) {
                return read;
            }
        }
        Err(Errno::EIO)
    }

    /// Sets the size.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.resize(Kind::Truncate, (size, 0), || self.backing.truncate(size))
    }

    /// Makes a hole.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn punch(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.resize(Kind::Punch, (offset, bytes), || self.backing.punch(offset, bytes))
    }

    fn resize(
        &self,
        kind: Kind,
        (offset, extent): (u64, u64),
        raw: impl Fn() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let pending = |result: Result<(), Errno>| {
            if result.is_ok()
                && let Ok(stat) = self.backing.stat()
            {
                self.client.note_change(stat.dev);
            }
            result
        };
        if let Some(result) = self.pass(&raw) {
            return pending(result);
        }
        let natively = |synced: bool| {
            raw()?;
            if synced { self.backing.fsync(Asked::Whole) } else { Ok(()) }
        };
        retry(
            || self.target(true),
            |synced| pending(natively(synced)),
            Err,
            |handle| {
                let resize = Resize { file: handle.file, kind, offset, extent };
                match self.backing.section(|| self.client.resize_by::<D>(&resize, &raw)) {
                    Ok(Outcome::Absorbed { .. }) => Some(Ok(())),
                    Ok(Outcome::Passed { .. }) => Some(pending(Ok(()))),
                    Ok(Outcome::Kernel) => Some(pending(natively(handle.flags & DSYNC != 0))),
                    Ok(Outcome::Stale) => None,
                    Err(errno) => Some(Err(errno)),
                }
            },
        )
    }

    /// Has everything that was done to the file be durable.
    ///
    /// # Errors
    /// What the sync reported, or `EIO` when the keeper is dead.
    pub fn sync(&self) -> Result<(), Errno> {
        // The first to ask for a file's durability has it logged.
        match self.target(self.client.logs_on_sync()) {
            Target::Managed(handle) => handle.sync::<D, B>(&self.backing, true, Asked::Whole),
            Target::Refused(errno) => Err(errno),
            Target::Kernel | Target::KernelSynced => {
                self.sync_by_kernel(|| self.client.hearing_all(|| self.backing.fsync(Asked::Whole)))
            }
        }
    }

    /// Removes one of the file's names, relative to the directory `dirfd`, by `raw`.
    ///
    /// # Errors
    /// What `raw` said, or `EIO` when the keeper is dead.
    pub fn remove(
        &self,
        (dirfd, name): (i32, &CStr),
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some(handle) = self.managed() else {
            let result = raw();
            if let Ok(stat) = self.backing.stat() {
                self.client.note_change(stat.dev);
            }
            return result;
        };
        self.backing.section(|| {
            let removal: Removal = self.client.unlinking(handle.file, dirfd, name)?;
            let result = raw();
            self.client.unlinked(handle.file, removal, result.is_ok());
            result
        })
    }

    /// Ends its use, and gives the front end its part back. Nothing is left to do for the log.
    pub fn close(self) -> B {
        self.backing
    }
}
