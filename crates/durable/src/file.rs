//! A file with a slot of its own, as the keeper knows it.

use holdfast_pool::{Generation, Slot};
use std::collections::HashSet;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use holdfast_board::{AtomicU32, FileRow};
use holdfast_cache::{FileRef, Reason};
use holdfast_pool::{MARK_REMOVED, MARK_VOID};

use super::turn::Turn;
use holdfast_disk::{Access, DiskFile, locked};

/// A clean file that was not written for this long loses its slot, if nobody has it open for
/// writing.
pub const IDLE_FILE: Duration = Duration::from_secs(3);
/// A file that was left to the kernel is looked at this often: once nobody has it open for writing,
/// its slot is given back, and who opens it next finds it as any other file.
pub const BYPASSED_FILE: Duration = Duration::from_secs(2);
/// What has become of a removed file's slot: nothing of it is live, or will be.
pub(super) const GONE: u64 = MARK_VOID | MARK_REMOVED;

/// A file with a slot of its own.
pub struct ManagedFile<F> {
    /// Its slot.
    pub slot: Slot,
    /// Generation of the slot's use.
    pub generation: Generation,
    /// Its device.
    pub dev: u64,
    /// Its inode number, which no other file gets while we hold it.
    pub ino: u64,
    held: Held<F>,
    /// The program's description, while it is leased.
    lent: Mutex<Option<Arc<F>>>,
    /// Our own description, once we have one.
    opened: OnceLock<F>,
    /// The fence watches it (it is not below an `--exclusive` directory).
    pub fenced: bool,
    /// Taken for a sync and what must be known before the next one.
    pub(super) syncing: Turn,
    /// Drains under way.
    draining: AtomicU32,
    /// Clients find it by its inode.
    listed: AtomicBool,
    /// Held while we change the file and tell the board's row of its times.
    pub(super) times: Mutex<()>,
    /// Held while `expired_seq` is persisted, so that it never goes back.
    pub(super) expiring: Mutex<()>,
    meta: Mutex<Meta>,
    /// Goes last, when everything above is closed.
    whole: Arc<()>,
}

/// What keeps a file's inode from being used for another file.
pub enum Held<F> {
    /// A description, read-only, that takes our syncs and sees every write-back error once.
    Open(F),
    /// A hold that no fence sees ([`holdfast_disk::Disk::hold`]): a description follows when the
    /// file is first brought to disk, which the journals of databases never are.
    Path(F),
    /// As `Path`, and the program's own description, the only one there is: as long as it is leased
    /// nobody opens another one, ourselves included.
    Lent(F, Arc<F>),
}

/// The description that syncs are made on.
pub(super) enum Description<'a, F> {
    Own(&'a F),
    Lent(Arc<F>),
}

impl<F> Description<'_, F> {
    /// Whether it is a program's, whose syncs share its memory of errors.
    pub fn is_lent(&self) -> bool {
        matches!(self, Self::Lent(_))
    }
}

impl<F> Deref for Description<'_, F> {
    type Target = F;

    fn deref(&self) -> &F {
        match self {
            Self::Own(file) => file,
            Self::Lent(file) => file,
        }
    }
}

/// What changes about a managed file.
pub struct Meta {
    /// The path that its slot says.
    pub path: PathBuf,
    /// Marks of its slot.
    pub marks: u64,
    /// Names written to the slot that their directories may not hold yet.
    pub names_unsynced: u32,
    /// Directories of those names.
    pub directories: HashSet<PathBuf>,
    /// Names written to the slot so far: a sync of directories covers those before it.
    pub names_pushed: u64,
    /// The name whose removal was announced last: the link count tells when the last one is gone.
    pub unlinking: Option<PathBuf>,
    /// Looks since it was seen to be made, without the notice of it.
    pub looks_for_notice: u32,
    /// The client that announced it.
    pub removing: Option<u32>,
    /// The client that announced a new name last.
    pub naming: Option<u32>,
    /// Why it is left to the kernel, if it is.
    pub bypass: Option<Reason>,
    /// Nothing but the free space of its disk speaks against state Behind.
    pub may_be_behind: bool,
    /// A sync failed: the log is written to it anew before the next one.
    pub rewrite: bool,
    /// Failed syncs of clients that are known here.
    pub client_failures: u32,
    /// Syncs of ours that failed, one after the other.
    pub failures: u32,
    /// Syncs of clients that were begun and will never be over: their clients died in them.
    pub syncs_abandoned: u32,
    /// Who had the mark for a conflict put.
    pub conflicts: u32,
    /// What was looked at last.
    pub(crate) seen: Seen,
    /// When it was last used.
    pub used: Instant,
    /// When to see whether the slot is still needed.
    pub look_at: Instant,
    /// Its slot is given back although clients have it open for writing, who leave it to the
    /// kernel.
    pub written_natively: bool,
    /// When it may be judged anew whether it can be managed.
    pub judge_at: Instant,
}

/// What was looked at last.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    /// The times of change and of modification, and the number of names, of a file whose attributes
    /// are not watched yet, as seen last; else none.
    pub(super) unwatched: Option<(i64, i64, u64)>,
    /// The names it had been given by clients then: to be renamed moves the time of change, too.
    pub(super) names_pushed: u64,
    /// State Behind: the size that the kernel had, and the count of truncations by clients then.
    pub(super) size: u64,
    pub(super) resizes: u64,
    /// It was changed, and is not on the disk yet: the mark that says so stays.
    pub(super) is_unsettled: bool,
}

impl Seen {
    /// A file enters state Behind, of which the kernel has `size` bytes.
    pub(super) fn begin_behind(&mut self, size: u64, resizes: u64) {
        (self.size, self.resizes) = (size, resizes);
    }
}

impl Meta {
    /// A name of the file was written to its slot.
    pub fn note_pushed(&mut self, path: &Path) {
        self.names_unsynced += 1;
        self.names_pushed += 1;
        self.directories.extend(path.parent().map(Path::to_owned));
    }
}

/// A drain under way.
pub(super) struct Draining<'a>(&'a AtomicU32);

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<F> ManagedFile<F> {
    /// Whether clients are to find it by its inode.
    pub(super) fn is_listed(&self) -> bool {
        self.listed.load(Ordering::SeqCst)
    }

    /// Notes whether they are.
    pub(super) fn set_listed(&self, is_listed: bool) {
        self.listed.store(is_listed, Ordering::SeqCst);
    }

    /// Where it is found.
    pub fn place(&self) -> FileRef {
        FileRef { slot: self.slot, generation: self.generation }
    }

    pub(super) fn new(
        FileRef { slot, generation }: FileRef,
        (dev, ino): (u64, u64),
        held: Held<F>,
        fenced: bool,
        path: &Path,
        marks: u64,
    ) -> Self {
        let meta = Meta {
            path: path.to_owned(),
            marks,
            names_unsynced: 1,
            directories: path.parent().map(Path::to_owned).into_iter().collect(),
            names_pushed: 0,
            unlinking: None,
            looks_for_notice: 0,
            removing: None,
            naming: None,
            bypass: None,
            may_be_behind: false,
            rewrite: false,
            client_failures: 0,
            failures: 0,
            syncs_abandoned: 0,
            conflicts: 0,
            seen: Seen::default(),
            used: Instant::now(),
            look_at: Instant::now() + IDLE_FILE,
            written_natively: false,
            judge_at: Instant::now(),
        };
        let (held, lent) = match held {
            Held::Lent(held, lent) => (Held::Path(held), Some(lent)),
            held => (held, None),
        };
        Self {
            slot,
            generation,
            dev,
            ino,
            held,
            lent: Mutex::new(lent),
            opened: OnceLock::new(),
            fenced,
            syncing: Turn::default(),
            draining: AtomicU32::default(),
            listed: AtomicBool::default(),
            times: Mutex::new(()),
            expiring: Mutex::new(()),
            meta: Mutex::new(meta),
            whole: Arc::default(),
        }
    }

    /// What is gone when nothing of the file is open here any more.
    pub(super) fn whole(&self) -> Weak<()> {
        Arc::downgrade(&self.whole)
    }

    /// A drain is under way until the result is dropped.
    pub(super) fn note_draining(&self) -> Draining<'_> {
        self.draining.fetch_add(1, Ordering::SeqCst);
        Draining(&self.draining)
    }

    /// Whether a drain is under way.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst) != 0
    }

    /// What changes about it, locked.
    pub fn meta(&self) -> MutexGuard<'_, Meta> {
        locked(&self.meta)
    }
}

impl<F: DiskFile> ManagedFile<F> {
    pub(super) fn links(&self) -> io::Result<u64> {
        Ok(self.held().stat()?.links)
    }

    /// What can be looked at and reopened.
    pub fn held(&self) -> &F {
        match &self.held {
            Held::Open(file) | Held::Path(file) | Held::Lent(file, _) => file,
        }
    }

    /// Whether we have a description of our own, which is told of every error since it was opened.
    pub(super) fn is_described(&self) -> bool {
        matches!(self.held, Held::Open(_)) || self.opened.get().is_some() || self.lent().is_some()
    }

    /// The program's description, while it is leased.
    pub fn lent(&self) -> Option<Arc<F>> {
        locked(&self.lent).clone()
    }

    /// Gives the program's description back, and the lease with it: who waits to open the file goes
    /// on.
    pub fn give_back(&self) {
        let lent = locked(&self.lent).take();
        // A drain that finds nothing any more may have it for a moment longer.
        lent.inspect(|lent| lent.give_back());
    }

    /// The program's description, if it is lent, else our own, opened now if need be; the
    /// file's row tells the fence that an open is ours.
    pub(super) fn description(&self, row: &FileRow) -> io::Result<Description<'_, F>> {
        if let Held::Open(file) = &self.held {
            return Ok(Description::Own(file));
        }
        if let Some(lent) = self.lent() {
            return Ok(Description::Lent(lent));
        }
        if self.opened.get().is_none() {
            row.note_open();
            // Two at once: one description is enough, and each shows the errors that happened
            // before it.
            let _ = self.opened.set(self.held().reopen(Access::Read)?);
        }
        self.opened.get().map(Description::Own).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}
