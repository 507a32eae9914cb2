//! Taking a file under management: who it is, whether it may be, and a slot for it.
//!
//! Two halves when a fence is needed: the fence is put up, the client then asks the kernel whether
//! its description is the only one (a write lease), and only then the keeper opens its own. So an
//! outsider who came before is found, and one who comes after is seen.
//!
//! Where it is not the only one, the processes that have the file open are looked at. Other clients
//! are no strangers: they look for the file's row before they change it, unless they were told once
//! that there is none ([`crate::unmanaged`]). A file that is left to the kernel is judged anew when
//! a client opens it again.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_board::Epoch;
use holdfast_cache::{FileRef, Origin, Reason, Refusal};
use holdfast_canary::{Canary, on};
use holdfast_pool::{Identity, PATH_BYTES_MAX, Slot};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::config::{Durability, WriteBehind};
use crate::fence::FenceKind;
use crate::keeper::{Keeper, Pending};
use crate::via::{Candidate, file_behind, identity_of, may_write};
use holdfast_disk::lease;
use holdfast_disk::locked;
use holdfast_disk::{Disk, DiskFile, OsFile};
use holdfast_durable::{Held, ManagedFile, Newcomer, Unanswered};
use holdfast_socket::is_short_of_descriptors;

/// How long nobody looks again for slots to free, once none could be freed: to look at every file
/// takes longer than what most calls take natively.
const SLOTS_PAUSE: Duration = Duration::from_secs(1);
/// A registration whose second half does not come within this time is taken back.
const PENDING_MAX: Duration = Duration::from_secs(5);

/// An open that was noticed shows up in its process's table of open files within this time.
const INSTALL_MAX: Duration = Duration::from_millis(20);
/// A file that is left to the kernel is judged anew at most this often.
const JUDGE_AGAIN: Duration = Duration::from_millis(200);

/// How long the thread may take that answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// All clients wait for it: no disk, no look at other processes.
    Quick,
    /// Only this request does.
    Patient,
}

/// A request to manage a file.
pub(crate) struct Asked {
    pub client: u32,
    pub fd: i32,
    pub origin: Origin,
    /// In the second half: whether the asker's description is the only one.
    pub sole: Option<bool>,
    /// When the file's creation was noted in the ledger, if the asker did that.
    pub noted: Option<Epoch>,
    pub haste: Haste,
}

impl Keeper {
    /// Both halves of request `Register`. [`Unanswered::Later`]: another registration of the file
    /// is under way, or it takes more than the asker's haste allows.
    pub(crate) fn register(&self, asked: &Asked) -> Result<FileRef, Unanswered> {
        let pid = self.pid_of(asked.client).ok_or(Refusal::Failed)?;
        let answer = self.judge_and_take(asked, pid);
        // Also where there is no file to judge any more: its inode number may be another one's, and
        // whoever registers that would wait for this one to be over.
        if !matches!(answer, Err(Unanswered::Refused(Refusal::AskSole) | Unanswered::Later)) {
            self.end_pending(asked);
        }
        if answer == Err(Refusal::Kernels.into())
            && let Some(file) = file_behind(pid, asked.fd)
        {
            // It will not ask again for this description.
            self.notes.unmanaged.note(file, asked.client);
        }
        answer
    }

    /// A client leaves the file of a slot to the kernel, for what it does with it cannot be seen.
    pub(crate) fn note_native_slot(&self, client: u32, place: FileRef) {
        if let Some(file) = self.durable.file(place)
            && let Ok(meta) = std::fs::metadata(file.held().magic_path())
        {
            self.notes.unmanaged.note(identity_of(&meta), client);
        }
    }

    fn judge_and_take(&self, asked: &Asked, pid: u32) -> Result<FileRef, Unanswered> {
        let &Asked { client, fd, origin, sole, haste, .. } = asked;
        let mut candidate = self.candidate(client, pid, fd).ok_or(Refusal::Kernels)?;
        if self.is_nameless() {
            return self.decline(&candidate, Reason::NoPool);
        }
        if sole.is_none()
            && let Some(slot) = self.durable.board.find(candidate.dev, candidate.ino)
        {
            let generation = self.durable.board.row(slot).generation();
            let place = FileRef { slot, generation };
            if never_managed(origin).is_none() {
                self.judge_again(&candidate, place, pid, haste)?;
            }
            return Ok(place);
        }
        if self.durable.is_stood_in(candidate.dev, candidate.ino) {
            return self.decline(&candidate, Reason::StoodStill);
        }
        if let Some(reason) = never_managed(origin).or(self.is_past(client).then_some(Reason::OwnCalls)) {
            return self.decline(&candidate, reason);
        }
        let fenced = match self.judge(&mut candidate) {
            Ok(fenced) => fenced,
            Err(reason) => return self.decline(&candidate, reason),
        };
        let created = origin == Origin::Created;
        if sole.is_none() {
            let place = self.reserve_slot((client, fd), &candidate, haste)?;
            if fenced {
                let answer = self.put_up_fence(place, &candidate);
                if answer == Err(Refusal::AskSole.into()) && self.finds_sole(&candidate) {
                    // The client has no need to look, unless this takes more than its haste allows.
                    let asked = Asked { sole: Some(true), ..*asked };
                    let admitted = self.admit(&asked, pid, &mut candidate, created, fenced);
                    return if admitted == Err(Unanswered::Later) { answer } else { admitted };
                }
                return answer;
            }
            if self.config.write_behind != WriteBehind::Off
                || !self.notes.unmanaged.of(candidate.identity()).is_empty()
            {
                // Who has it open already may read it, or write it, where we do not see it.
                return Err(Refusal::AskSole.into());
            }
            return self.adopt(&mut candidate, place, ((created, asked.noted), false, None), (false, None));
        }
        self.admit(asked, pid, &mut candidate, created, fenced)
    }

    /// Takes a file back that was left to the kernel, if the reason is gone.
    fn judge_again(
        &self,
        candidate: &Candidate,
        place: FileRef,
        pid: u32,
        haste: Haste,
    ) -> Result<(), Unanswered> {
        let row = self.durable.board.row(place.slot);
        let Some(file) = self.durable.file(place) else { return Ok(()) };
        // Of an outsider the fence knows when it has gone. What was handed away may be on its way
        // between two processes, and io_uring holds files without descriptors, where no look finds
        // them: for that the slot is given back once the kernel knows of no writer.
        let may_be_over = matches!(
            file.meta().bypass,
            Some(Reason::MappedShared | Reason::UnknownOrigin | Reason::CannotTell | Reason::Uncovered)
        );
        if !row.state().is_bypassed() || !may_be_over {
            return Ok(());
        }
        let due = file.meta().judge_at <= Instant::now();
        match (due, haste) {
            (false, _) => return Ok(()),
            (true, Haste::Quick) => return Err(Unanswered::Later),
            (true, Haste::Patient) => {}
        }
        let identity = candidate.identity();
        let unmanaged = self.notes.unmanaged.of(identity);
        if self.strangers(pid, candidate).is_none() {
            // Who leaves it to the kernel from now on does so under the file's lock, and says it
            // before.
            self.durable.take_back(&file, || self.notes.unmanaged.of(identity) != unmanaged);
        }
        file.meta().judge_at = Instant::now() + JUDGE_AGAIN;
        Ok(())
    }

    /// Whether the file may be managed, and whether it needs the fence.
    fn judge(&self, candidate: &mut Candidate) -> Result<bool, Reason> {
        let path = candidate.path.as_os_str().as_bytes();
        if path.len() > PATH_BYTES_MAX {
            return Err(Reason::Unreachable);
        }
        if !candidate.is_on_managed_file_system() {
            return Err(Reason::FileSystem);
        }
        let found = self.durable.disk.find(path).and_then(|found| Ok((found.stat()?, found)));
        match found {
            Ok((stat, found)) if (stat.dev, stat.ino) == candidate.key() => {
                if stat.is_fixed && !on(Canary::FixedManaged) {
                    return Err(Reason::Fixed);
                }
                candidate.held = Some(found);
            }
            _ => return Err(Reason::Unreachable),
        }
        if !self.patterns.admit(&candidate.path) {
            return Err(Reason::Pattern);
        }
        if self.config.exclusive.iter().any(|directory| candidate.path.starts_with(directory)) {
            return Ok(false);
        }
        match self.kind_of_fence() {
            None | Some(FenceKind::None) => Err(Reason::NoFence),
            Some(FenceKind::Lost) => Err(Reason::NoWatch),
            Some(_) => Ok(true),
        }
    }

    /// Leaves a file to the kernel, before it ever had a slot.
    fn decline(&self, candidate: &Candidate, reason: Reason) -> Result<FileRef, Unanswered> {
        self.notes.left_to_kernel(&candidate.path, Some(candidate.inode()), reason);
        Err(Refusal::Kernels.into())
    }

    /// First half: watch the file, then let the client ask whether it is alone.
    fn put_up_fence(&self, place: FileRef, candidate: &Candidate) -> Result<FileRef, Unanswered> {
        let watched = self.notes.fence.get().map(|fence| match candidate.description() {
            Some(description) => fence.watch_open(place, description),
            None => fence.watch(place, &candidate.via),
        });
        match watched {
            Some(Ok(())) => Err(Refusal::AskSole.into()),
            _ => {
                self.cancel_pending(candidate.dev, candidate.ino);
                self.decline(candidate, Reason::CannotTell)
            }
        }
    }

    /// Between the halves, in the client's place: whether its description is the file's only one. A
    /// round trip less, where the kernel lets us have a look at it.
    fn finds_sole(&self, candidate: &Candidate) -> bool {
        // A fence that only has notices of opens may hear later of one by another client that is
        // going on now, and would take it for an outsider's once the file has its row.
        self.kind_of_fence() == Some(FenceKind::Fanotify)
            && candidate.description().is_some_and(lease::is_only)
    }

    /// Second half: nobody else may have the file open for writing, but clients that will find its
    /// row.
    fn admit(
        &self,
        asked: &Asked,
        pid: u32,
        candidate: &mut Candidate,
        created: bool,
        fenced: bool,
    ) -> Result<FileRef, Unanswered> {
        let key = candidate.key();
        let found = locked(&self.pending)
            .get(&key)
            .map(|pending| (pending.client == asked.client, pending.place, pending.tainted));
        let Some((true, place, tainted)) = found else {
            return self.decline(candidate, Reason::CannotTell);
        };
        let sole = asked.sole == Some(true);
        let wary = !self.notes.unmanaged.of(candidate.identity()).is_empty();
        let mut reason = None;
        if let Some(since) = tainted {
            let may_be_ours = self.kind_of_fence().is_some_and(FenceKind::only_notices);
            if asked.haste == Haste::Quick || (may_be_ours && since.elapsed() < INSTALL_MAX) {
                return Err(Unanswered::Later);
            }
            // A notice does not say whose open it was; what an outsider did that is gone again is
            // older than our records. One that asked for permission has not opened the file yet,
            // and no look would find it.
            reason = if may_be_ours { self.strangers(pid, candidate) } else { Some(Reason::Outsider) };
        } else if (fenced && !sole) || wary {
            if asked.haste == Haste::Quick {
                return Err(Unanswered::Later);
            }
            reason = self.strangers(pid, candidate);
        }
        if !fenced {
            // The user vouches for everybody else.
            reason = reason.filter(|reason| matches!(reason, Reason::UnknownOrigin | Reason::MappedShared));
        }
        let lent = if reason.is_none() && tainted.is_none() && sole && fenced {
            self.lend(asked, candidate)
        } else {
            None
        };
        let newcomer = ((created && tainted.is_none(), asked.noted), fenced, reason);
        let place = self.adopt(candidate, place, newcomer, (sole, lent))?;
        match (reason, self.notes.fence.get(), self.durable.file(place)) {
            (None, fence, Some(file)) if tainted.is_none() && sole && self.hides_content(fenced, &file) => {
                self.durable.allow_behind(&file, created);
                if let (Some(fence), Some(lent)) = (fence, file.lent()) {
                    fence.follow(place, &lent);
                }
            }
            (Some(Reason::Outsider), Some(fence), Some(file)) => {
                fence.present(place, &file.held().magic_path());
            }
            _ => {}
        }
        Ok(place)
    }

    fn kind_of_fence(&self) -> Option<FenceKind> {
        self.notes.fence.get().map(|fence| fence.kind())
    }

    /// Whether outsiders cannot see what a file holds before we know of them.
    fn hides_content(&self, fenced: bool, file: &ManagedFile<OsFile>) -> bool {
        !fenced || self.kind_of_fence() == Some(FenceKind::Fanotify) || file.lent().is_some()
    }

    /// The asker's description with a lease on it, under the fence that is about those.
    fn lend(&self, asked: &Asked, candidate: &Candidate) -> Option<OsFile> {
        let fence = self.notes.fence.get().filter(|fence| fence.kind() == FenceKind::Lease)?;
        // It may have been forbidden since.
        if !self.durable.board.header().write_behind.is_on() {
            return None;
        }
        let description = self
            .borrow(asked.client, asked.fd)
            .inspect_err(|error| {
                if error.kind() == io::ErrorKind::PermissionDenied {
                    self.notes.once(format!(
                        "--fence lease: a program's descriptors cannot be shared ({error}): its files are only watched; \
                         allow it by kernel.yama.ptrace_scope=0, or run as root"
                    ));
                }
            })
            .ok()?;
        // Another thread may have put something else in its place.
        let meta = description.metadata().ok().filter(|meta| (meta.dev(), meta.ino()) == candidate.key())?;
        // What is written by it must be plain writes; what may be executed never enters the state
        // that this is for.
        let flags = fcntl_getfl(&description).ok()?;
        let is_plain = may_write(flags) && !flags.contains(OFlags::DIRECT) && meta.mode() & 0o6111 == 0;
        if is_plain { fence.lease(description).ok() } else { None }
    }

    /// Why a file that others have open cannot be managed now, if so. Clients find its row before
    /// their next change, and so does what they forked; not those that were told to leave it to the
    /// kernel, not those whose hooks do not see everything, and not through a mapping.
    fn strangers(&self, pid: u32, candidate: &Candidate) -> Option<Reason> {
        let keeper = std::process::id();
        let unmanaged = self.notes.unmanaged.of(candidate.identity());
        let unmanaged: Vec<u32> = unmanaged.into_iter().filter_map(|client| self.pid_of(client)).collect();
        let scan = crate::fence::scan_holders(&[candidate.key()], &|other| other == keeper);
        // What such a client has open need not be in a table of open files.
        let blind = unmanaged.iter().any(|&native| native != pid && self.is_blind(native));
        let mut reason = blind.then_some(Reason::UnknownOrigin);
        for holder in scan.holders.iter().filter(|holder| holder.writes) {
            let follows =
                holder.pid == pid || self.is_running_client(holder.pid) || self.is_fork_of_client(holder.pid);
            if !follows {
                return Some(Reason::Outsider);
            }
            if holder.maps {
                reason = Some(Reason::MappedShared);
            } else if holder.pid != pid && (unmanaged.contains(&holder.pid) || self.is_blind(holder.pid)) {
                reason = reason.or(Some(Reason::UnknownOrigin));
            }
        }
        reason.or((scan.unreadable > 0).then_some(Reason::CannotTell))
    }

    /// A free slot, set apart for this registration. Waits once for the expirer when all are in
    /// use.
    fn reserve_slot(
        &self,
        (client, fd): (u32, i32),
        candidate: &Candidate,
        haste: Haste,
    ) -> Result<FileRef, Unanswered> {
        let key = candidate.key();
        for attempt in 0..2 {
            {
                let mut pending = locked(&self.pending);
                pending.retain(|_, pending| pending.since.elapsed() < PENDING_MAX);
                if pending.contains_key(&key) {
                    // Two processes register the same file at the same moment: the second one's
                    // turn comes.
                    return Err(Unanswered::Later);
                }
                let reserved = |slot: Slot| pending.values().any(|pending| pending.place.slot == slot);
                if let Some(place) = self.durable.free_slot(reserved) {
                    let since = Instant::now();
                    pending.insert(key, Pending { place, client, fd, tainted: None, since });
                    return Ok(place);
                }
            }
            if haste == Haste::Quick {
                return Err(Unanswered::Later);
            }
            let full_since = {
                let mut full_since = locked(&self.slots_full_since);
                if attempt == 1 {
                    *full_since = Some(Instant::now());
                }
                *full_since
            };
            if full_since.is_some_and(|since| since.elapsed() < SLOTS_PAUSE) {
                break;
            }
            self.durable.free_slots();
        }
        self.decline(candidate, Reason::NoSlot)
    }

    /// A registration is over, whatever came of it.
    fn end_pending(&self, asked: &Asked) {
        let is_it = |pending: &Pending| (pending.client, pending.fd) == (asked.client, asked.fd);
        let ended: Vec<Pending> = locked(&self.pending)
            .extract_if(|_, pending| is_it(pending))
            .map(|(_, pending)| pending)
            .collect();
        if let Some(fence) = self.notes.fence.get() {
            ended.iter().for_each(|pending| fence.unwatch(pending.place, None));
        }
    }

    pub(crate) fn cancel_pending(&self, dev: u64, ino: u64) {
        locked(&self.pending).remove(&(dev, ino));
    }

    /// Opens our own description, persists the slot and shows the file to the clients.
    fn adopt(
        &self,
        candidate: &mut Candidate,
        place: FileRef,
        newcomer: ((bool, Option<Epoch>), bool, Option<Reason>),
        descriptions: (bool, Option<OsFile>),
    ) -> Result<FileRef, Unanswered> {
        let (_, fenced, _) = newcomer;
        let adopted = self.open_and_take(candidate, place, newcomer, descriptions);
        if adopted.is_err()
            && fenced
            && let Some(fence) = self.notes.fence.get()
        {
            fence.unwatch(place, Some(&candidate.via));
        }
        self.cancel_pending(candidate.dev, candidate.ino);
        match adopted {
            Ok(()) => {
                self.notes.managed(&candidate.path, candidate.inode());
                if self.config.durability == Durability::Write {
                    self.look_out_for(place);
                }
                Ok(place)
            }
            Err(reason) => self.decline(candidate, reason),
        }
    }

    fn open_and_take(
        &self,
        candidate: &mut Candidate,
        place: FileRef,
        ((created, noted), fenced, bypass): ((bool, Option<Epoch>), bool, Option<Reason>),
        (sole, lent): (bool, Option<OsFile>),
    ) -> Result<(), Reason> {
        // Only of a file that is new and that nobody else has open, even to read: of others the
        // kernel may have notices of errors that were shown to nobody yet, and somebody else's sync
        // may be told of the next one. Who opens it later is seen, and syncs of clients are
        // counted. A lent description has seen all errors since its program opened the file.
        let is_ours = created && (sole || !fenced) && self.kind_of_fence() == Some(FenceKind::Fanotify);
        let lazily = lent.is_some() || is_ours;
        let (held, identity) = match (if lazily { self.hold(candidate) } else { None }, lent) {
            (Some((file, identity)), Some(lent)) => (Held::Lent(file, Arc::new(lent)), identity),
            (Some((file, identity)), None) => (Held::Path(file), identity),
            (None, lent) => {
                // Before we open it ourselves.
                drop(lent);
                self.open(candidate, place.slot)?
            }
        };
        let newest = match &held {
            Held::Open(file) | Held::Path(file) | Held::Lent(file, _) => file.as_fd(),
        };
        if is_short_of_descriptors(newest) {
            return Err(Reason::NoDescriptor);
        }
        let unsynced = bypass.is_none() && self.config.durability == Durability::Sync;
        let newcomer =
            Newcomer { identity: &identity, path: &candidate.path, created, noted, fenced, bypass, unsynced };
        self.durable.take_slot(place, held, &newcomer).map_err(|_| Reason::Permission)
    }

    fn open(&self, candidate: &Candidate, slot: Slot) -> Result<(Held<OsFile>, Identity), Reason> {
        let row = self.durable.board.row(slot);
        // The fence stands already and will see this open of ours.
        row.note_open();
        let description = self.durable.disk.open(&candidate.via).map_err(|_| Reason::Permission)?;
        candidate.is(&description).then_some(()).ok_or(Reason::Unreachable)?;
        let identity = description.identity().map_err(|_| Reason::FileSystem)?;
        Ok((Held::Open(description), identity))
    }

    /// Without an open, which the fanotify fence would have to answer: that costs more than all the
    /// rest. `None` where it cannot.
    fn hold(&self, candidate: &mut Candidate) -> Option<(OsFile, Identity)> {
        let file = candidate.held.take()?;
        let identity = file.identity_on(candidate.file_system(&self.durable.disk).ok()?).ok()?;
        Some((file, identity))
    }
}

/// Why a description of that origin does not make its file managed.
fn never_managed(origin: Origin) -> Option<Reason> {
    match origin {
        Origin::Created | Origin::Opened => None,
        Origin::Unknown => Some(Reason::UnknownOrigin),
        Origin::Libc => Some(Reason::Libc),
        Origin::AsyncIo => Some(Reason::AsyncIo),
        Origin::Mapped => Some(Reason::MappedShared),
    }
}
