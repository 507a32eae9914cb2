//! Taking a file under management: who it is, whether it may be, and a slot for it.
//!
//! Two halves when a fence is needed: the fence is put up, the client then asks the kernel whether its
//! description is the only one (a write lease), and only then the keeper opens its own. So an outsider who
//! came before is found, and one who comes after is seen.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_cache::{Errno, Origin, Reason};
use holdfast_canary::{Canary, on};
use holdfast_pool::{Identity, PATH_BYTES_MAX};

use crate::config::WriteBehind;
use crate::disk::{Disk, DiskFile, OsFile};
use crate::durable::{Events, Held, Newcomer, locked};
use crate::fence::FenceKind;
use crate::keeper::{Keeper, Pending};

/// Slot and generation, as a request answers them.
pub(crate) type Place = [u64; 2];

/// A registration whose second half does not come within this time is taken back.
const PENDING_MAX: Duration = Duration::from_secs(5);

/// What is known of a file before it is opened.
struct Candidate {
    via: PathBuf,
    path: PathBuf,
    dev: u64,
    ino: u64,
}

impl Candidate {
    fn is(&self, file: &OsFile) -> bool {
        file.stat().is_ok_and(|stat| (stat.dev, stat.ino) == (self.dev, self.ino))
    }
}

impl Keeper {
    /// Request `Register`, and `Sole` when `sole` is given.
    pub(crate) fn register(
        &self,
        client: u32,
        fd: u64,
        origin: u64,
        sole: Option<bool>,
    ) -> Result<Place, Errno> {
        let pid = self.pid_of(client).ok_or(Errno::EIO)?;
        let via = PathBuf::from(format!("/proc/{pid}/fd/{}", fd as i32));
        let meta = std::fs::metadata(&via).map_err(|_| Errno::EOPNOTSUPP)?;
        if !meta.file_type().is_file() || meta.nlink() == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let (dev, ino) = (meta.dev(), meta.ino());
        if sole.is_none()
            && let Some(slot) = self.durable.board.find(dev, ino)
        {
            let row = &self.durable.board.files()[slot as usize];
            return Ok([u64::from(slot), row.generation.load(Ordering::SeqCst)]);
        }
        let Ok(path) = std::fs::read_link(&via) else { return Err(Errno::EOPNOTSUPP) };
        let candidate = Candidate { via, path, dev, ino };
        if origin == Origin::Unknown as u64 {
            return self.decline(&candidate, Reason::UnknownOrigin);
        }
        let fenced = match self.judge(&candidate) {
            Ok(fenced) => fenced,
            Err(reason) => return self.decline(&candidate, reason),
        };
        let created = origin == Origin::Created as u64;
        if !fenced && sole.is_none() {
            let (slot, generation) = self.reserve_slot(client, &candidate)?;
            if self.config.write_behind != WriteBehind::Off {
                // Who has it open already may read it where we do not see it.
                return Err(Errno::EAGAIN);
            }
            return self.adopt(&candidate, slot, generation, created, false);
        }
        match sole {
            None => self.put_up_fence(client, &candidate),
            Some(sole) => self.admit(client, pid, &candidate, created, (fenced, sole)),
        }
    }

    /// Whether the file may be managed, and whether it needs the fence.
    fn judge(&self, candidate: &Candidate) -> Result<bool, Reason> {
        let path = candidate.path.as_os_str().as_bytes();
        if path.len() > PATH_BYTES_MAX {
            return Err(Reason::Unreachable);
        }
        if !is_managed_file_system(&candidate.via) {
            return Err(Reason::FileSystem);
        }
        match std::fs::symlink_metadata(&candidate.path) {
            Ok(meta) if (meta.dev(), meta.ino()) == (candidate.dev, candidate.ino) => {}
            _ => return Err(Reason::Unreachable),
        }
        if !self.patterns.admit(&candidate.path) {
            return Err(Reason::Pattern);
        }
        if self.config.exclusive.iter().any(|directory| candidate.path.starts_with(directory)) {
            return Ok(false);
        }
        match self.notes.fence.get().map(|fence| fence.kind()) {
            None | Some(FenceKind::None) => Err(Reason::NoFence),
            Some(_) => Ok(true),
        }
    }

    /// Leaves a file to the kernel, before it ever had a slot.
    fn decline(&self, candidate: &Candidate, reason: Reason) -> Result<Place, Errno> {
        self.notes.bypassed(&candidate.path, reason);
        Err(Errno::EOPNOTSUPP)
    }

    /// First half: watch the file, then let the client ask whether it is alone.
    fn put_up_fence(&self, client: u32, candidate: &Candidate) -> Result<Place, Errno> {
        let (slot, generation) = self.reserve_slot(client, candidate)?;
        let watched = self.notes.fence.get().map(|fence| fence.watch(slot, generation, &candidate.via));
        match watched {
            Some(Ok(())) => Err(Errno::EAGAIN),
            _ => {
                self.cancel_pending(candidate.dev, candidate.ino);
                self.decline(candidate, Reason::CannotTell)
            }
        }
    }

    /// Second half: nobody else may have the file open for writing.
    fn admit(
        &self,
        client: u32,
        pid: u32,
        candidate: &Candidate,
        created: bool,
        (fenced, sole): (bool, bool),
    ) -> Result<Place, Errno> {
        let key = (candidate.dev, candidate.ino);
        let found = locked(&self.pending)
            .get(&key)
            .map(|pending| (pending.client == client, pending.slot, pending.generation, pending.tainted));
        let Some((true, slot, generation, tainted)) = found else {
            return self.decline(candidate, Reason::CannotTell);
        };
        let mut reason = tainted.then_some(Reason::Outsider);
        if fenced && !sole && reason.is_none() {
            reason = self.strangers(pid, candidate);
        }
        let place = self.adopt(candidate, slot, generation, created, fenced)?;
        let file = self.durable.file(place[0], place[1]);
        if let (None, true, Some(file)) = (reason, sole && self.hides_content(fenced), &file) {
            self.durable.allow_behind(file, created);
        }
        if let (Some(reason), Some(file)) = (reason, file) {
            self.durable.bypass(&file, reason).map_err(|_| Errno::EIO)?;
            if reason == Reason::Outsider
                && let Some(fence) = self.notes.fence.get()
            {
                fence.present(slot, generation);
            }
        }
        Ok(place)
    }

    /// Whether outsiders cannot see what a file holds before we know of them.
    fn hides_content(&self, fenced: bool) -> bool {
        !fenced || self.notes.fence.get().map(|fence| fence.kind()) == Some(FenceKind::Fanotify)
    }

    /// Why a file that others have open cannot be managed now, if so. Nobody's writes to it were followed before
    /// it had a row, so a client with a writable descriptor is a stranger too, and one that is never missed.
    fn strangers(&self, pid: u32, candidate: &Candidate) -> Option<Reason> {
        let keeper = std::process::id();
        let ours = |other: u32| other == pid || other == keeper;
        match crate::fence::writers_outside(candidate.dev, candidate.ino, &ours) {
            None => Some(Reason::CannotTell),
            Some(writers) if writers.is_empty() => None,
            Some(writers) if writers.iter().any(|&writer| self.is_client(writer)) => {
                Some(Reason::UnknownOrigin)
            }
            Some(_) => Some(Reason::Outsider),
        }
    }

    /// A free slot, set apart for this registration. Waits once for the expirer when all are in use.
    fn reserve_slot(&self, client: u32, candidate: &Candidate) -> Result<(u32, u64), Errno> {
        let key = (candidate.dev, candidate.ino);
        for attempt in 0..2 {
            {
                let mut pending = locked(&self.pending);
                pending.retain(|_, pending| pending.since.elapsed() < PENDING_MAX);
                if pending.contains_key(&key) {
                    // Two processes register the same file at the same moment: the second asks again soon.
                    drop(pending);
                    std::thread::sleep(Duration::from_micros(200));
                    return Err(Errno::EINTR);
                }
                let reserved = |slot: u32| pending.values().any(|pending| pending.slot == slot);
                if let Some((slot, generation)) = self.durable.free_slot(reserved) {
                    let since = Instant::now();
                    pending.insert(key, Pending { slot, generation, client, tainted: false, since });
                    return Ok((slot, generation));
                }
            }
            if attempt == 0 {
                self.durable.free_slots();
            }
        }
        self.decline(candidate, Reason::NoSlot).map(|_| (0, 0))
    }

    pub(crate) fn cancel_pending(&self, dev: u64, ino: u64) {
        locked(&self.pending).remove(&(dev, ino));
    }

    /// Opens our own description, persists the slot and shows the file to the clients.
    fn adopt(
        &self,
        candidate: &Candidate,
        slot: u32,
        generation: u64,
        created: bool,
        fenced: bool,
    ) -> Result<Place, Errno> {
        let adopted = self.open_and_take(candidate, slot, generation, created, fenced);
        if adopted.is_err()
            && fenced
            && let Some(fence) = self.notes.fence.get()
        {
            fence.unwatch(slot, generation, &candidate.via);
        }
        self.cancel_pending(candidate.dev, candidate.ino);
        match adopted {
            Ok(()) => Ok([u64::from(slot), generation]),
            Err(reason) => self.decline(candidate, reason),
        }
    }

    fn open_and_take(
        &self,
        candidate: &Candidate,
        slot: u32,
        generation: u64,
        created: bool,
        fenced: bool,
    ) -> Result<(), Reason> {
        // Only of a file that is new: of others the kernel may have notices of errors that were shown to nobody yet.
        let lazily = created && self.notes.fence.get().map(|fence| fence.kind()) == Some(FenceKind::Fanotify);
        let (held, identity) = match if lazily { self.hold(candidate) } else { None } {
            Some(held) => held,
            None => self.open(candidate, slot)?,
        };
        let newcomer = Newcomer { identity: &identity, path: &candidate.path, created, fenced };
        self.durable.take_slot((slot, generation), held, &newcomer).map_err(|_| Reason::Permission)
    }

    fn open(&self, candidate: &Candidate, slot: u32) -> Result<(Held<OsFile>, Identity), Reason> {
        let row = &self.durable.board.files()[slot as usize];
        // The fence stands already and will see this open of ours.
        row.client_opens.fetch_add(1, Ordering::SeqCst);
        let description = self.durable.disk.open(&candidate.via).map_err(|_| Reason::Permission)?;
        candidate.is(&description).then_some(()).ok_or(Reason::Unreachable)?;
        let identity = description.identity().map_err(|_| Reason::FileSystem)?;
        Ok((Held::Open(description), identity))
    }

    /// Without an open, which the fanotify fence would have to answer: that costs more than all the rest. The directory
    /// tells the file system. `None` where it cannot.
    fn hold(&self, candidate: &Candidate) -> Option<(Held<OsFile>, Identity)> {
        let directory = self.durable.disk.open(candidate.path.parent()?).ok()?;
        let file = self.durable.disk.hold(&candidate.via).ok()?;
        if directory.stat().ok()?.dev != candidate.dev || !candidate.is(&file) {
            return None;
        }
        let identity = file.identity_on(directory.file_system().ok()?).ok()?;
        Some((Held::Path(file), identity))
    }
}

/// ext4, xfs or btrfs: local file systems that keep what they synced.
fn is_managed_file_system(path: &Path) -> bool {
    let kept = |kind: u32| matches!(kind, 0xef53 | 0x5846_5342 | 0x9123_683e);
    rustix::fs::statfs(path).is_ok_and(|fs| kept(fs.f_type as u32) || on(Canary::AnyFileSystem))
}
