//! The keeper's side of managed files: its own description, the marks and names on media, and bringing a file
//! to disk. Slots are taken in `register`, given back in `retire`; everything durable goes through `Slots`.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use holdfast_board::FileState;
use holdfast_cache::Reason;
use holdfast_pool::{HintKind, MARK_CREATED, MARK_VOID};

use crate::durable;
use crate::expire::{IDLE_FILE, REMOVED_FILES_MAX};
use crate::keeper::{KEEPER_ID, Keeper, locked};

/// Tries of a failing sync before a file counts as failed and its writers get errors.
const FAILURES_MAX: u32 = 5;
/// A slot holds two names; a third may be written only once the directory holds what the oldest said.
const NAMES_PER_SLOT: u32 = 2;

/// A file with a slot of its own.
pub(crate) struct ManagedFile {
    pub slot: u32,
    pub generation: u64,
    pub dev: u64,
    /// Our own description, read-only: holds the inode, takes our syncs and sees every write-back error once.
    pub description: OwnedFd,
    /// The fence watches it (it is not below an `--exclusive` directory).
    pub fenced: bool,
    /// Held while `expired_seq` is persisted, so that it never goes back.
    expiring: Mutex<()>,
    pub meta: Mutex<Meta>,
}

/// What a successful sync of a file covered.
pub(crate) struct Synced {
    settled: u64,
    unlogged: u64,
}

/// What changes about a managed file.
pub(crate) struct Meta {
    pub path: PathBuf,
    pub marks: u64,
    /// Names written to the slot that their directories may not hold yet.
    pub names_unsynced: u32,
    pub directories: HashSet<PathBuf>,
    /// The name whose removal was announced last: the link count tells when the last one is gone.
    pub unlinking: Option<PathBuf>,
    /// The client that announced it.
    pub removing: Option<u32>,
    pub bypass: Option<Reason>,
    pub rewrite: bool,
    pub failures: u32,
    pub used: Instant,
    /// When to see whether the slot is still needed.
    pub look_at: Instant,
}

/// After this long every file system we manage has committed a new directory by itself (the slowest, btrfs and
/// xfs, do so every 30 seconds).
const DIRECTORY_COMMITTED: Duration = Duration::from_secs(120);

impl ManagedFile {
    pub fn new(
        (slot, generation): (u32, u64),
        dev: u64,
        description: OwnedFd,
        fenced: bool,
        path: &Path,
        marks: u64,
    ) -> Self {
        let meta = Meta {
            path: path.to_owned(),
            marks,
            names_unsynced: 1,
            directories: path.parent().map(Path::to_owned).into_iter().collect(),
            unlinking: None,
            removing: None,
            bypass: None,
            rewrite: false,
            failures: 0,
            used: Instant::now(),
            look_at: Instant::now() + IDLE_FILE,
        };
        Self { slot, generation, dev, description, fenced, expiring: Mutex::new(()), meta: Mutex::new(meta) }
    }

    pub fn meta(&self) -> MutexGuard<'_, Meta> {
        locked(&self.meta)
    }

    /// The path by which the kernel finds our description.
    pub fn magic_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.description.as_raw_fd()))
    }

    fn links(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.description)?.st_nlink as u64)
    }

    /// Whether the name whose removal was announced, the last one, is gone. A file system that was shut down tells nothing of
    /// its files any more; then the kernel's own table of names does.
    fn is_removed(&self) -> bool {
        match self.links() {
            Ok(links) => links == 0,
            Err(_) => std::fs::read_link(self.magic_path())
                .is_ok_and(|path| path.as_os_str().as_bytes().ends_with(b" (deleted)")),
        }
    }
}

impl Keeper {
    /// A description of a managed file that can be written to, for repair; the fence is told that it is ours.
    pub(crate) fn open_for_writing(&self, file: &ManagedFile) -> io::Result<File> {
        self.board.files()[file.slot as usize].client_opens.fetch_add(1, Ordering::SeqCst);
        File::options().write(true).open(file.magic_path())
    }

    /// The managed file of a slot, if its use has this generation.
    pub(crate) fn file(&self, slot: u64, generation: u64) -> Option<Arc<ManagedFile>> {
        let files = locked(&self.files);
        let file = files.get(usize::try_from(slot).ok()?)?.as_ref()?;
        (file.generation == generation).then(|| Arc::clone(file))
    }

    /// All managed files.
    pub(crate) fn managed(&self) -> Vec<Arc<ManagedFile>> {
        locked(&self.files).iter().flatten().cloned().collect()
    }

    /// Whether records of the file may be live, or something of it must still reach the disk.
    pub(crate) fn is_dirty(&self, file: &ManagedFile) -> bool {
        let row = &self.board.files()[file.slot as usize];
        row.newest_seq.load(Ordering::SeqCst) > row.expired_seq.load(Ordering::SeqCst)
            || file.meta().marks & MARK_CREATED != 0
    }

    /// Brings a file, and a name that the disk may not have yet, to the disk and expires its records.
    pub(crate) fn settle(&self, file: &ManagedFile) -> io::Result<()> {
        let synced = self.sync_file(file)?;
        if file.meta().marks & MARK_CREATED != 0 {
            let directories = file.meta().directories.clone();
            self.sync_directories(&directories)?;
        }
        self.expire(file, synced);
        Ok(())
    }

    /// Brings the bytes of a file to the disk. A failure expires nothing and orders a rewrite (invariant 4).
    pub(crate) fn sync_file(&self, file: &ManagedFile) -> io::Result<Synced> {
        let row = &self.board.files()[file.slot as usize];
        if file.meta().rewrite {
            self.rewrite(file).inspect_err(|error| self.sync_failed(file, error))?;
        }
        // S, and what the sync will cover besides, are known before it begins (invariant 2).
        let unlogged = row.unlogged.load(Ordering::SeqCst);
        let settled = self.board.settled_seq(file.slot);
        self.counters.keeper_fsyncs.fetch_add(1, Ordering::Relaxed);
        durable::fsync(&file.description).inspect_err(|error| self.sync_failed(file, error))?;
        file.meta().failures = 0;
        Ok(Synced { settled, unlogged })
    }

    /// Voids the records of a file that a successful sync covered. The names of a created file must be on disk by
    /// now: one that the crash takes back is built anew from all of its records or not at all.
    pub(crate) fn expire(&self, file: &ManagedFile, synced: Synced) {
        let _expiring = locked(&file.expiring);
        let row = &self.board.files()[file.slot as usize];
        {
            let mut meta = file.meta();
            if meta.marks & MARK_CREATED != 0 {
                meta.marks &= !MARK_CREATED;
                self.slots().set_marks(file.slot, meta.marks);
            }
        }
        let expired = row.expired_seq.load(Ordering::SeqCst);
        if row.newest_seq.load(Ordering::SeqCst) > expired && synced.settled > expired {
            self.slots().set_expired_seq(file.slot, synced.settled);
            row.expired_seq.store(synced.settled, Ordering::SeqCst);
        }
        row.unlogged_synced.fetch_max(synced.unlogged, Ordering::SeqCst);
    }

    fn sync_failed(&self, file: &ManagedFile, error: &io::Error) {
        let row = &self.board.files()[file.slot as usize];
        row.error_epoch.fetch_add(1, Ordering::SeqCst);
        let mut meta = file.meta();
        meta.rewrite = true;
        meta.failures += 1;
        self.report(format!("{}: cannot bring it to disk: {error}", meta.path.display()));
        if meta.failures == FAILURES_MAX {
            row.set_state(FileState::Failed);
            self.report(format!(
                "{}: given up after {FAILURES_MAX} tries; its writers get errors, the log keeps what was acknowledged",
                meta.path.display()
            ));
        }
    }

    /// Writes the live records of a file to it again: a failed sync may have dropped the pages (history 18).
    fn rewrite(&self, file: &ManagedFile) -> io::Result<()> {
        if !self.board.lock_file(file.slot, KEEPER_ID) {
            return Err(io::Error::other("the keeper is stopping"));
        }
        let result = crate::rewrite::replay_live(
            &self.nvm,
            &self.superblock,
            (file.slot, file.generation),
            &mut || self.open_for_writing(file),
        );
        self.board.files()[file.slot as usize].unlock_exclusive(KEEPER_ID);
        result?;
        file.meta().rewrite = false;
        Ok(())
    }

    /// Leaves a file to the kernel. Nothing of it is live when this returns.
    pub(crate) fn bypass(&self, file: &ManagedFile, reason: Reason) -> io::Result<()> {
        if !self.board.lock_file(file.slot, KEEPER_ID) {
            return Err(io::Error::other("the keeper is stopping"));
        }
        let row = &self.board.files()[file.slot as usize];
        let result = if row.state() == FileState::Through { self.settle(file) } else { Ok(()) };
        if result.is_ok() {
            if row.state() == FileState::Through {
                row.set_state(FileState::Bypassed);
                row.note_unlogged();
            }
            let mut meta = file.meta();
            // What ends with an outsider's departure must not end a stronger reason.
            if meta.bypass.is_none_or(|old| old == Reason::Outsider) {
                meta.bypass = Some(reason);
            }
            self.note_bypassed(&meta.path, reason);
        }
        row.unlock_exclusive(KEEPER_ID);
        result
    }

    /// Persists a name intent before the program's call (history 16). With two names not yet in their
    /// directories, those are synced first, or no name might find the file after a crash.
    pub(crate) fn push_name(&self, file: &ManagedFile, kind: HintKind, path: &Path) -> io::Result<()> {
        let mut meta = file.meta();
        if meta.names_unsynced >= NAMES_PER_SLOT {
            self.sync_directories(&meta.directories)?;
            meta.names_unsynced = 1;
            meta.directories = meta.path.parent().map(Path::to_owned).into_iter().collect();
        }
        if let (HintKind::Name, Some(directory)) = (kind, path.parent()) {
            self.secure_directory(directory)?;
        }
        self.slots().push_hint(file.slot, kind, path.as_os_str().as_bytes());
        meta.names_unsynced += 1;
        meta.directories.extend(path.parent().map(Path::to_owned));
        match kind {
            HintKind::Name => meta.path = path.to_owned(),
            HintKind::Unlink => meta.unlinking = Some(path.to_owned()),
        }
        Ok(())
    }

    /// Whether the file would stay when one of its names is removed.
    pub(crate) fn has_other_names(&self, file: &ManagedFile) -> bool {
        file.links().is_ok_and(|links| links > 1)
    }

    /// Persists that `client` is about to remove the last name of the file.
    pub(crate) fn push_removal(&self, file: &Arc<ManagedFile>, path: &Path, client: u32) -> io::Result<()> {
        self.push_name(file, HintKind::Unlink, path)?;
        file.meta().removing = Some(client);
        locked(&self.removing).push(Arc::clone(file));
        Ok(())
    }

    /// A client died: a removal that it announced and did not make is not made any more.
    pub(crate) fn withdraw_removals(&self, client: u32) {
        for file in self.managed() {
            let announced = file.meta().removing == Some(client);
            if announced && !file.is_removed() {
                self.withdraw_name(&file);
            }
        }
    }

    /// A settled file was renamed over; its writers are kept out. Without a name left it needs no slot: nothing of it
    /// is live, and whether the crash brings it back is the file system's matter.
    pub(crate) fn drop_replaced(&self, file: &ManagedFile) {
        if matches!(file.links(), Ok(0)) && !self.is_dirty(file) {
            self.release(file);
        }
    }

    /// The call announced by `push_name` failed: the name before it stands.
    pub(crate) fn withdraw_name(&self, file: &ManagedFile) {
        let hints = self.slots().hints(file.slot);
        if let [newest, older, ..] = hints.as_slice() {
            let stands = if newest.kind == HintKind::Unlink { &newest.path } else { &older.path };
            self.slots().push_hint(file.slot, HintKind::Name, stands);
            let mut meta = file.meta();
            meta.path = PathBuf::from(std::ffi::OsStr::from_bytes(stands));
            (meta.unlinking, meta.removing) = (None, None);
        }
    }

    /// Makes sure that the directory in which a name is about to matter is itself on disk: recovery can make a
    /// file again, but not the directories above it. Once per directory; old ones were committed long ago.
    pub(crate) fn secure_directory(&self, directory: &Path) -> io::Result<()> {
        let open = match File::open(directory) {
            Ok(open) => open,
            // One that cannot be read was not made by this user just now.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            Err(error) => return Err(error),
        };
        let meta = open.metadata()?;
        if !locked(&self.directories).contains(&(meta.dev(), meta.ino())) {
            let age = meta.created().ok().and_then(|created| created.elapsed().ok());
            if age.is_none_or(|age| age < DIRECTORY_COMMITTED) {
                self.counters.keeper_fsyncs.fetch_add(1, Ordering::Relaxed);
                durable::fsync(&open)?;
            }
            locked(&self.directories).insert((meta.dev(), meta.ino()));
        }
        Ok(())
    }

    /// Before a slot says that a file was created here: earlier changes of names in the directory that no slot holds
    /// reach the disk, or recovery could find what they removed where the new file belongs.
    pub(crate) fn cover_names(&self, directory: &Path, device: u64) -> io::Result<()> {
        let Some(changed) = self.board.header().names(device).and_then(|names| names.pending()) else {
            return Ok(());
        };
        if locked(&self.names_covered).get(directory) == Some(&changed) {
            return Ok(());
        }
        self.sync_directories([&directory.to_owned()])?;
        locked(&self.names_covered).insert(directory.to_owned(), changed);
        Ok(())
    }

    /// Syncs directories, so that creations, renames and removals in them are durable.
    pub(crate) fn sync_directories<'a>(
        &self,
        directories: impl IntoIterator<Item = &'a PathBuf>,
    ) -> io::Result<()> {
        for directory in directories {
            self.counters.keeper_fsyncs.fetch_add(1, Ordering::Relaxed);
            match File::open(directory) {
                Ok(open) => durable::fsync(&open)?,
                // A directory that is gone holds no names.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// If the last name of a file is gone, voids its records: nothing of it can be found after a crash, and
    /// a name that comes back is removed again by recovery (history 16). Returns whether it is so.
    pub(crate) fn void_if_unlinked(&self, file: &ManagedFile) -> bool {
        let mut meta = file.meta();
        if meta.marks & MARK_VOID != 0 {
            return true;
        }
        if meta.unlinking.is_none() || !file.is_removed() {
            return false;
        }
        meta.marks |= MARK_VOID;
        self.slots().set_marks(file.slot, meta.marks);
        self.board.files()[file.slot as usize].set_state(FileState::Orphan);
        if let Some(removed) = meta.unlinking.take() {
            self.note_removed(&removed);
        }
        if self.removed_files.fetch_add(1, Ordering::SeqCst) + 1 == REMOVED_FILES_MAX {
            self.ring_expirer();
        }
        true
    }

    /// Gives the slot of a file back. The caller made sure that no record of it is live or that all are void,
    /// and that no client uses it any more.
    pub(crate) fn release(&self, file: &ManagedFile) {
        let mut files = locked(&self.files);
        self.board.remove(file.slot);
        let row = &self.board.files()[file.slot as usize];
        row.generation.store(0, Ordering::SeqCst);
        row.set_state(FileState::Free);
        self.slots().release(file.slot);
        if file.fenced
            && let Some(fence) = self.fence.get()
        {
            fence.unwatch(file.slot, file.generation, &file.magic_path());
        }
        files[file.slot as usize] = None;
    }

    /// Gives back the slot of a clean file that nobody has open for writing. Returns whether it did.
    pub(crate) fn retire(&self, file: &ManagedFile) -> bool {
        if !self.board.lock_file(file.slot, KEEPER_ID) {
            return false;
        }
        let row = &self.board.files()[file.slot as usize];
        let unused = row.state() == FileState::Through
            && !self.is_dirty(file)
            && !row.needs_real_sync()
            && !is_open_for_writing(file.description.as_fd());
        if unused {
            self.release(file);
        }
        row.unlock_exclusive(KEEPER_ID);
        unused
    }
}

/// Whether anybody has the file open for writing: a read lease is granted only when nobody has. When it cannot
/// be asked (not our file), the answer is yes.
fn is_open_for_writing(description: BorrowedFd<'_>) -> bool {
    crate::lease::try_read_lease(description).is_err()
}
