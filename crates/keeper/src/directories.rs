//! Directory syncs answered from the slots (design 6): absorbed when every change of the directory since its last
//! real sync is one that recovery would bring back or repeat.
//!
//! Such changes are a managed file that was created and has records (recovery builds it anew) and one whose last
//! name was removed (its slot is void: recovery removes it again). An inotify watch counts all changes by name,
//! whoever makes them; the kernel queues the notice before the call returns. Whatever is not one of ours, or does
//! not add up, makes the sync real. Nothing here may call a change durable that no slot holds.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use holdfast_board::FileState;
use holdfast_cache::Errno;
use holdfast_pool::MARK_CREATED;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::durable;
use crate::files::ManagedFile;
use crate::keeper::{Keeper, locked};

/// Directories watched at a time; syncs of others are the kernel's.
const WATCHED_MAX: usize = 512;
/// Names told apart between two real syncs of a directory.
const NAMES_MAX: usize = 65_536;

/// What happened to one name since the directory's last real sync: notices less our own changes.
#[derive(Default, PartialEq, Eq)]
struct Balance {
    created: i64,
    removed: i64,
}

/// One watched directory.
struct Watched {
    watch: i32,
    names: HashMap<OsString, Balance>,
    /// Something happened that no slot can hold.
    foreign: bool,
}

/// All watched directories, by path.
pub(crate) struct Directories {
    queue: Option<OwnedFd>,
    by_path: HashMap<PathBuf, Watched>,
    by_watch: HashMap<i32, PathBuf>,
}

impl Directories {
    /// Without inotify every directory sync is real.
    pub(crate) fn new() -> Self {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        Self { queue, by_path: HashMap::new(), by_watch: HashMap::new() }
    }

    fn watch(&mut self, directory: &Path) -> bool {
        let Some(queue) = &self.queue else { return false };
        if self.by_path.contains_key(directory) {
            return true;
        }
        if self.by_path.len() >= WATCHED_MAX {
            return false;
        }
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let Ok(watch) = inotify::add_watch(queue, directory, flags) else { return false };
        // The same directory under another path would share the watch.
        if self.by_watch.insert(watch, directory.to_owned()).is_some() {
            self.forget(watch);
            return false;
        }
        // Foreign until its first real sync.
        self.by_path.insert(directory.to_owned(), Watched { watch, names: HashMap::new(), foreign: true });
        true
    }

    fn forget(&mut self, watch: i32) {
        if let Some(queue) = &self.queue {
            let _ = inotify::remove_watch(queue, watch);
        }
        self.by_watch.remove(&watch);
        self.by_path.retain(|_, watched| watched.watch != watch);
    }

    /// Takes in all notices that are queued by now.
    fn take_notices(&mut self) {
        let Some(queue) = &self.queue else { return };
        let mut buffer = [MaybeUninit::<u8>::uninit(); 16_384];
        let mut reader = Reader::new(queue, &mut buffer);
        let mut gone = Vec::new();
        while let Ok(event) = reader.next() {
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.by_path.values_mut().for_each(|watched| watched.foreign = true);
                continue;
            }
            let Some(path) = self.by_watch.get(&event.wd()) else { continue };
            let Some(watched) = self.by_path.get_mut(path) else { continue };
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
            let plain = !flags.contains(ReadFlags::ISDIR) && watched.names.len() < NAMES_MAX;
            match name {
                Some(name) if plain && flags.contains(ReadFlags::CREATE) => {
                    watched.names.entry(name).or_default().created += 1;
                }
                Some(name) if plain && flags.contains(ReadFlags::DELETE) => {
                    watched.names.entry(name).or_default().removed += 1;
                }
                // Mode or times of a file in it are the file's own.
                Some(_) if flags.contains(ReadFlags::ATTRIB) => {}
                _ => watched.foreign = true,
            }
            if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED) {
                gone.push(event.wd());
            }
        }
        for watch in gone {
            self.forget(watch);
        }
    }

    fn note(&mut self, path: &Path, change: impl FnOnce(&mut Balance)) {
        if let (Some(directory), Some(name)) = (path.parent(), path.file_name())
            && let Some(watched) = self.by_path.get_mut(directory)
        {
            change(watched.names.entry(name.to_owned()).or_default());
        }
    }
}

impl Keeper {
    /// A managed file was created here; its slot says so durably.
    pub(crate) fn note_created(&self, path: &Path) {
        locked(&self.directories_watched).note(path, |balance| balance.created -= 1);
    }

    /// The last name of a managed file was removed here; its slot is void.
    pub(crate) fn note_removed(&self, path: &Path) {
        locked(&self.directories_watched).note(path, |balance| balance.removed -= 1);
    }

    /// Answers a directory sync from the slots. `None`: it has to be real (see [`Keeper::sync_directory`]).
    pub(crate) fn absorb_directory_sync(&self, client: u32, fd: u64) -> Option<()> {
        let directory = self.directory_of(client, fd)?;
        // Before the lock below: who holds a file's meta may want it.
        locked(&self.removing).retain(|file| !self.void_if_unlinked(file) && file.meta().unlinking.is_some());
        let is_blank = |file: &ManagedFile| {
            let row = &self.board.files()[file.slot as usize];
            row.state() == FileState::Through
                && row.generation.load(Ordering::SeqCst) == file.generation
                && row.newest_seq.load(Ordering::SeqCst) == file.generation
                && file.meta().marks & MARK_CREATED != 0
        };
        let rebuildable = {
            let mut fresh = locked(&self.fresh);
            fresh.retain(|file| is_blank(file));
            !fresh.iter().any(|file| file.meta().directories.contains(&directory))
        };
        let mut watched_directories = locked(&self.directories_watched);
        watched_directories.take_notices();
        let watched = watched_directories.by_path.get_mut(&directory)?;
        let adds_up =
            !watched.foreign && watched.names.values().all(|balance| *balance == Balance::default());
        if !adds_up || !rebuildable {
            return None;
        }
        watched.names.clear();
        self.board.header().syncs_absorbed.add(1);
        Some(())
    }

    /// A real directory sync, after which later ones may be absorbed. `EOPNOTSUPP` leaves it to the client.
    pub(crate) fn sync_directory(&self, client: u32, fd: u64) -> Result<(), Errno> {
        let directory = self.directory_of(client, fd).ok_or(Errno::EOPNOTSUPP)?;
        let has_files = self.managed().iter().any(|file| file.meta().directories.contains(&directory));
        if !has_files || !locked(&self.directories_watched).watch(&directory) {
            return Err(Errno::EOPNOTSUPP);
        }
        let open = File::open(&directory).map_err(|_| Errno::EOPNOTSUPP)?;
        {
            let mut watched_directories = locked(&self.directories_watched);
            // What is known by now happened before the sync begins; what comes later is counted anew.
            watched_directories.take_notices();
            if let Some(watched) = watched_directories.by_path.get_mut(&directory) {
                watched.names.clear();
                watched.foreign = false;
            }
        }
        self.board.header().syncs_real.add(1);
        let synced: io::Result<()> = durable::fsync(&open);
        if synced.is_err()
            && let Some(watched) = locked(&self.directories_watched).by_path.get_mut(&directory)
        {
            watched.foreign = true;
        }
        synced.map_err(|error| Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)))
    }

    /// The path of a client's open directory, if it is reachable under it from here.
    fn directory_of(&self, client: u32, fd: u64) -> Option<PathBuf> {
        use std::os::unix::fs::MetadataExt;
        let via = format!("/proc/{}/fd/{}", self.pid_of(client)?, fd as i32);
        let path = std::fs::read_link(&via).ok()?;
        let (theirs, ours) = (std::fs::metadata(&via).ok()?, std::fs::symlink_metadata(&path).ok()?);
        (ours.is_dir() && (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino())).then_some(path)
    }
}
