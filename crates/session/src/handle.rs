//! What a call on a file is about: a managed file, or the kernel's business.
//!
//! Asks the keeper at the first change of a file, not when it is opened, unless the open created
//! it. It never turns a file away because of an error of ours: then the change fails with EIO.

use core::sync::atomic::{AtomicU32, Ordering};

use holdfast_cache::{Asked, Client, Designs, Errno, FileRef, Origin};
use holdfast_media::{Mapping, Nvm};

use crate::adopt;
use crate::backing::Backing;
use crate::description::{DSYNC, Description, KERNEL_FLAGS, SHARED, State};
use crate::first_sync;

/// How often a call is tried again when the file's slot was given back under it.
pub const TRIES: u32 = 64;

/// For files without a description: they share this one memory of reported errors.
static SEEN_ERROR: AtomicU32 = AtomicU32::new(0);

/// A managed file, for one call.
pub struct Handle<'a, N: Nvm = Mapping> {
    /// The cache.
    pub client: &'a Client<N>,
    /// The file.
    pub file: FileRef,
    /// What is remembered of the description, if anything is.
    pub description: Option<&'a Description>,
    /// The description's flags.
    pub flags: u32,
}

impl<N: Nvm> Clone for Handle<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N: Nvm> Copy for Handle<'_, N> {}

/// What a call is about.
pub enum Target<'a, N: Nvm = Mapping> {
    /// The kernel alone.
    Kernel,
    /// The kernel, and the program asked for synchronous writes, which the kernel does not know.
    KernelSynced,
    /// The cache.
    Managed(Handle<'a, N>),
    /// Nothing may be done: fail with this.
    Refused(Errno),
}

impl<N: Nvm> Clone for Target<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N: Nvm> Copy for Target<'_, N> {}

/// What a call through a description is about. With `register` it changes content, and the file is
/// the log's from now on if it can be; without, one is not registered that nobody has changed.
#[inline]
pub fn target<'a, N: Nvm, B: Backing>(
    client: &'a Client<N>,
    description: &'a Description,
    backing: &B,
    register: bool,
) -> Target<'a, N> {
    let mut flags = description.flags();
    if flags & SHARED != 0 {
        // Another process may have changed it meanwhile.
        flags = flags & !KERNEL_FLAGS | backing.kernel_flags().unwrap_or(flags);
    }
    let file = match description.state() {
        State::Managed(file) => Ok(Some(file)),
        State::Plain => Ok(None),
        State::Pending(origin) => {
            // Of a new file every change counts, the first one above all.
            let counts = origin == Origin::Created && !client.logs_on_sync();
            let settled = adopt::settle(client, description, backing, origin, register || counts);
            return found(client, settled, Some(description), description.flags());
        }
    };
    found(client, file, Some(description), flags)
}

/// As [`target`], where nothing is remembered of the description, and the keeper was asked.
pub fn without_description<N: Nvm>(
    client: &Client<N>,
    file: Result<Option<FileRef>, Errno>,
    flags: u32,
) -> Target<'_, N> {
    found(client, file, None, flags)
}

#[inline]
fn found<'a, N: Nvm>(
    client: &'a Client<N>,
    file: Result<Option<FileRef>, Errno>,
    description: Option<&'a Description>,
    flags: u32,
) -> Target<'a, N> {
    match file {
        Ok(Some(file)) => Target::Managed(Handle { client, file, description, flags }),
        Ok(None) if flags & DSYNC != 0 => Target::KernelSynced,
        Ok(None) => Target::Kernel,
        Err(errno) => Target::Refused(errno),
    }
}

/// Calls `managed` for the file of a call until its slot is not given back under it.
#[inline]
pub fn retry<'a, N: Nvm + 'a, R>(
    mut target: impl FnMut() -> Target<'a, N>,
    mut kernel: impl FnMut(bool) -> R,
    refused: impl Fn(Errno) -> R,
    mut managed: impl FnMut(Handle<'a, N>) -> Option<R>,
) -> R {
    for _ in 0..TRIES {
        match target() {
            Target::Kernel => return kernel(false),
            Target::KernelSynced => return kernel(true),
            Target::Refused(errno) => return refused(errno),
            Target::Managed(handle) => match managed(handle) {
                Some(result) => return result,
                None => handle.forget(),
            },
        }
    }
    refused(Errno::EIO)
}

impl<N: Nvm> Handle<'_, N> {
    /// Where the errors that this description has reported are counted.
    pub fn seen_error(&self) -> &AtomicU32 {
        self.description.map_or(&SEEN_ERROR, |description| &description.seen_error)
    }

    /// Forgets the file's place, which was given back: the next look asks the keeper again.
    pub fn forget(&self) {
        if let Some(description) = self.description
            && description.state() == State::Managed(self.file)
        {
            description.set_state(State::Pending(Origin::Opened));
        }
    }

    /// As [`Description::moving_cursor`], of whatever description the call is made by.
    pub fn moving_cursor<R>(&self, call: impl FnOnce() -> R) -> R {
        match self.description {
            Some(description) => description.moving_cursor(call),
            None => call(),
        }
    }

    /// Forgets the cursor: the kernel moved it in a way that is not followed.
    pub fn forget_cursor(&self) {
        if let Some(description) = self.description {
            description.set_cursor(None);
        }
    }

    /// Before a sync of the file is absorbed: whether somebody outside cut the file by its path,
    /// removed it or gave it away, which no fence sees. It is durable when this returns, or the
    /// sync is real.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed.
    pub fn look_at<B: Backing>(&self, backing: &B) -> Result<(), Errno> {
        if !self.client.is_watched(self.file) {
            return Ok(());
        }
        let Ok(look) = backing.look() else { return Ok(()) };
        backing.section(|| self.client.look_at(self.file, look))
    }

    /// Before a sync of the file: as [`Handle::look_at`], and what others did is heard of if it may
    /// be what the sync is for, because nothing was written since the last one.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed.
    pub fn look_before_sync<B: Backing>(&self, backing: &B) -> Result<(), Errno> {
        self.look_at(backing)?;
        let newest = self.client.newest_seq(self.file);
        let is_new = self.description.is_some_and(|description| {
            description.synced_seq.load(Ordering::Relaxed) != newest
                && description.synced_seq.swap(newest, Ordering::Relaxed) != newest
        });
        if is_new { Ok(()) } else { backing.section(|| self.client.hear_all(self.file)) }
    }

    /// Has the file logged from now on, if it is not yet. True when a sync of it is answered by
    /// that.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed.
    #[inline]
    pub fn log_from_now<B: Backing>(&self, backing: &B) -> Result<bool, Errno> {
        if !self.client.is_unsynced(self.file) {
            return Ok(false);
        }
        if self.client.is_among_others(self.file) {
            self.client.note_crowded_sync();
            return Ok(false);
        }
        backing.section(|| self.client.log_from_now(self.file, &first_sync::Whole(backing)))
    }

    /// Answers a program's sync: the first one has the file logged, and what others did is looked
    /// at. `writes`: the description may write, so it remembers what was reported to it.
    ///
    /// # Errors
    /// What the sync reported, or `EIO` when the keeper is dead.
    pub fn sync<D: Designs, B: Backing>(&self, backing: &B, writes: bool, asked: Asked) -> Result<(), Errno> {
        match self.log_from_now(backing) {
            Ok(true) => {
                // The disk was waited for all the same.
                self.client.note_settled_sync(self.file);
                return Ok(());
            }
            logged => {
                self.look_before_sync(backing)?;
                logged?;
            }
        }
        let whole = || backing.fsync(asked);
        if writes {
            self.client.sync_by::<D>(self.file, self.seen_error(), whole)
        } else {
            self.client.sync_by::<D>(self.file, &self.client.errors_until_now(self.file), whole)
        }
    }
}
