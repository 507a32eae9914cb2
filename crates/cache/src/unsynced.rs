//! State Unsynced (durability = sync): nobody has asked for a file's durability yet, so nothing of
//! it is logged.
//!
//! Its writes are the kernel's, at the kernel's speed; they announce themselves, so that none is
//! under way when the first sync takes the file out of the state, for good. A new file that is
//! short then goes into the log as a whole, which answers that sync; any other is brought to the
//! disk by it, as natively. In order: registration -> writers that found no row have ended -> the
//! file's exclusive word -> the keeper has the slot name the file as it is called now -> state
//! Through -> the content is logged, or the sync is made. Source: NVLog (FAST'25, section 4)
//! absorbs what is synced and nothing else; a file of which one sync was asked for is logged with
//! every write from then on.
//!
//! Must never let a write be under way unlogged while a sync is absorbed (invariant 9).
use core::time::Duration;

use holdfast_board::{Commits, Epoch, FileRow, Inode, LedgerRow, NO_SIZE, Stall, Way, pause};
use holdfast_canary::{Canary, on};
use holdfast_log::Kind;
use holdfast_media::{Bytes, Nvm};

use crate::calls::WriteCall;
use crate::client::Client;
use crate::errno::Errno;
use crate::file::{FileRef, Outcome};
use crate::lane::{Entry, Lane, atomic_write_bytes_max, lane_hint};
use crate::request::{Answer, FileRequest, Refusal};
use crate::stop::NoRoom;

/// New files of up to this many bytes are logged as a whole at their first sync.
const CONTENT_BYTES_MAX: u64 = 1 << 20;
/// How often it is seen whether calls that were begun without the log are over.
const PASSING_PAUSE: Duration = Duration::from_micros(20);

/// How long a sync waits for these.
const PASSING_NS_MAX: u64 = 250_000_000;

/// A file as its page cache has it.
pub trait Content {
    /// Its size, in bytes.
    ///
    /// # Errors
    /// What the kernel says.
    fn size(&self) -> Result<u64, Errno>;

    /// Hands all of its first `bytes` bytes to `log`, once; false when they could not be read, or
    /// were fewer.
    fn read(&self, bytes: u64, log: &mut dyn FnMut(&[Bytes<'_>])) -> bool;

    /// Has the kernel tell, as a sync by the program would and once, that it could not write what
    /// it had: what is read may be older.
    ///
    /// # Errors
    /// What the program's own sync would have said.
    fn check(&self) -> Result<(), Errno>;
}

impl<N: Nvm> Client<N> {
    /// Whether files are logged from their first sync on.
    #[inline]
    pub fn logs_on_sync(&self) -> bool {
        self.board.header().logs_on_sync.seems_on()
    }

    /// Makes a call that changes a file which has no row, or is left to the kernel. `None`, and the
    /// call is not made, when the file has a row by which it must be made, or too many such calls
    /// are under way.
    pub fn pass<R>(&self, dev: u64, ino: u64, raw: impl FnOnce() -> R) -> Option<R> {
        let call = self.board.header().begin_passing(self.id, ino, lane_hint())?;
        let is_passed = self.find(dev, ino).is_none_or(|seen| seen.state.is_kernels());
        if on(Canary::UnsyncedUnannounced) {
            call.end();
            return is_passed.then(raw);
        }
        let result = is_passed.then(raw);
        call.end();
        result
    }

    /// As [`Client::pass`], for a file that had a row when it was looked at last.
    pub fn pass_by<R>(&self, file: FileRef, raw: impl FnOnce() -> R) -> Option<R> {
        let row = self.row(file);
        let Inode { device, ino } = row.inode();
        if self.is_current(file) { self.pass(device, ino, raw) } else { None }
    }

    /// Whether a file that has no row, of which only the creation may be noted (`noted`), had
    /// better not be logged from a sync of it on: something else is pending on its file system,
    /// which would have to be committed for that file alone, and once more for the next one.
    pub fn is_crowded(&self, device: u64, noted: Option<Epoch>) -> bool {
        let header = self.board.header();
        let Some(ledger) = header.ledger(device) else { return false };
        if !ledger.is_in_use() {
            // It begins with what nobody counted, which only a commit takes away.
            return ledger.commits() == Commits::ByFile && ledger.commits_quickly();
        }
        if ledger.is_clean_but(noted) {
            return false;
        }
        if ledger.commits() == Commits::ByFile {
            // Behind such a sync everything is committed once a second.
            header.want_commit(ledger);
            return true;
        }
        ledger.rests()
    }

    /// Whether a file that is logged had better not be, for now: something of others is pending on
    /// its file system, where names are made durable in order, so that its next record would take a
    /// commit, and such commits were made in vain ([`LedgerRow::rests`]).
    #[inline]
    pub fn is_among_others(&self, file: FileRef) -> bool {
        let row = self.row(file);
        let Some(ledger) = self.ledger(row) else { return false };
        // Nearly always.
        if ledger.is_clean() || !self.logs_on_sync() {
            return false;
        }
        ledger.commits() == Commits::InOrder
            && !ledger.is_clean_but(row.noted())
            && ledger.rests()
            // In state Behind the page cache lags.
            && (row.state().keeps_up() || row.state().is_unsynced())
            && self.is_current(file)
    }

    /// Whether the sync of a directory on `device` had better be the kernel's alone: something of
    /// others is pending there, and such commits were made in vain. The keeper would have it commit
    /// and sync the directory behind that, two where natively there is one, and each in its turn.
    /// Who syncs directories alone is served better by that: nothing is pending then.
    pub fn leaves_directory(&self, device: u64) -> bool {
        let ledger = self.board.header().ledger(device);
        ledger.is_some_and(|ledger| {
            let shares = ledger.shares_directories(self.id);
            ledger.commits() == Commits::InOrder && !ledger.is_clean() && ledger.rests() && shares
        })
    }

    /// Has a file in state Through not logged any more, until a sync of it when there is no such
    /// crowd. Nothing of it is live then, and its syncs are the kernel's (invariants 5 and 9). Not
    /// with a lock held.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed.
    pub fn unlog(&self, file: FileRef) -> Result<(), Errno> {
        if !self.row(file).state().keeps_up() {
            return Ok(());
        }
        if !self.board.lock_file(file.slot, self.id) {
            return Err(Errno::EIO);
        }
        let result = self.unlog_locked(file);
        self.unlock_file(file);
        result
    }

    fn unlog_locked(&self, file: FileRef) -> Result<(), Errno> {
        let row = self.row(file);
        if !self.is_current(file) || !row.state().keeps_up() {
            return Ok(());
        }
        self.settle_if_live(file, true)?;
        // Left to the kernel, or failed, while it was settled.
        if self.is_current(file) && row.state().keeps_up() {
            row.note_unlogged();
            self.board.go(file.slot, Way::Unlog);
        }
        Ok(())
    }

    /// Whether the file is left to the kernel now.
    pub fn is_bypassed(&self, file: FileRef) -> bool {
        self.row(file).state().is_kernels() && self.is_current(file)
    }

    /// Whether nobody has asked for the file's durability yet.
    #[inline]
    pub fn is_unsynced(&self, file: FileRef) -> bool {
        self.row(file).state().is_unsynced() && self.is_current(file)
    }

    /// Has the kernel make a write, if the file is in state Unsynced.
    pub(crate) fn write_unsynced(
        &self,
        file: FileRef,
        call: &mut impl WriteCall,
    ) -> Result<Option<Outcome>, Errno> {
        if !self.row(file).state().is_unsynced() {
            return Ok(None);
        }
        let mut lane = self.take_lane()?;
        if on(Canary::UnsyncedUnannounced) {
            drop(lane);
            return call.write().map(|bytes| Some(Outcome::Passed { bytes }));
        }
        match lane.enter(file, false)? {
            Entry::Unsynced => {
                let written = call.write();
                lane.finish(file);
                drop(lane);
                if !self.keeper_alive() {
                    return Err(Errno::EIO);
                }
                written.map(|bytes| Some(Outcome::Passed { bytes }))
            }
            Entry::Absorbed(_) => {
                lane.finish(file);
                Ok(None)
            }
            Entry::Kernel => Ok(Some(Outcome::Kernel)),
            Entry::Stale => Ok(Some(Outcome::Stale)),
        }
    }

    /// Takes a file out of state Unsynced, before a sync or a synchronous write of it: what is
    /// written from now on is logged, and what it holds is, too, or a sync has to be real. True
    /// when there was one, which answers the program's. Nothing happens in any other state.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed.
    pub fn log_from_now(&self, file: FileRef, content: &impl Content) -> Result<bool, Errno> {
        if !self.is_unsynced(file) {
            return Ok(false);
        }
        // Writers who had not found its row.
        let mut stall = Stall::default();
        while self.board.header().is_passed(self.row(file).inode().ino) {
            if !self.keeper_alive() {
                return Err(Errno::EIO);
            }
            if stall.goes_on(self.board.header(), None::<&FileRow>) > PASSING_NS_MAX
                && !on(Canary::StoppedNamesWaitedFor)
            {
                // It may stand still. The sync is the program's own.
                return Ok(false);
            }
            pause(PASSING_PAUSE);
        }
        let bytes_max = CONTENT_BYTES_MAX.min(atomic_write_bytes_max(&self.layout));
        let bytes = content.size().ok().filter(|bytes| *bytes <= bytes_max);
        // Space before any lock.
        let lane = match bytes.map(|bytes| self.reserve(bytes)) {
            Some(Err(NoRoom::Full)) | None => None,
            Some(lane) => Some(lane?),
        };
        if !self.board.lock_file(file.slot, self.id) {
            return Err(Errno::EIO);
        }
        let result = if self.is_unsynced(file) {
            self.log_from_now_locked(file, lane.zip(bytes), content)
        } else {
            Ok(false)
        };
        self.unlock_file(file);
        result
    }

    fn log_from_now_locked(
        &self,
        file: FileRef,
        room: Option<(Lane<'_, N>, u64)>,
        content: &impl Content,
    ) -> Result<bool, Errno> {
        let row = self.row(file);
        let (is_held, was_created) = match self.ask_about(file, FileRequest::Log) {
            Ok(Answer::Logged { is_held, was_created }) => (is_held, was_created),
            Ok(_) => return Err(Errno::EIO),
            // Somebody took the slot away, or the file has no name: the kernel's, until it is asked
            // for anew.
            Err(Refusal::Kernels) => return Ok(false),
            Err(refusal) => return Err(refusal.into()),
        };
        let unlogged = row.unlogged();
        let is_whole = is_held && row.is_synced(unlogged);
        row.set_end(content.size().unwrap_or(NO_SIZE));
        // Before the state, and until the content is logged: should we die in between, the next
        // sync is real.
        let changed = if on(Canary::UnsyncedForgotten) { row.unlogged() } else { row.note_unlogged() };
        if !self.board.try_go(file.slot, Way::Log) {
            // It was taken from us, who stood still, and is the kernel's.
            return Ok(false);
        }
        if let Some((mut lane, bytes)) = room.filter(|_| is_whole && changed == unlogged)
            && self.log_content(&mut lane, file, bytes, content)?
        {
            // After it was read. Who is told of lost pages has the next sync be real, as natively.
            self.heard(content)?;
            if !self.is_taken(file) {
                row.note_synced(changed + 1);
            }
            return Ok(false);
        }
        if !was_created || on(Canary::UnsyncedForgotten) {
            // The program's own sync.
            return Ok(false);
        }
        // Its slot does not hold its creation, and must not say so any more.
        self.settle(file, true)?;
        // The keeper tries twice, and what its first try lost is in no log.
        self.heard(content)?;
        self.hold_creation(row, row.take_noted());
        // What else is pending the program's sync has to cover, too.
        Ok(self.ledger(row).is_some_and(LedgerRow::is_clean))
    }

    /// A file's creation is in its slot, with a record of the file, or on the disk.
    pub(crate) fn hold_creation(&self, row: &FileRow, noted: Option<Epoch>) {
        if let Some((ledger, noted)) = noted.and_then(|noted| Some((self.ledger(row)?, noted))) {
            ledger.hold(noted);
        }
    }

    /// A record of the file stays.
    #[inline]
    pub fn note_recorded(&self, row: &FileRow) {
        self.hold_creation(row, row.note_recorded());
    }

    /// What a program's sync tells it of is not hidden by one that the log answers.
    fn heard(&self, content: &impl Content) -> Result<(), Errno> {
        if on(Canary::LostPagesHidden) { Ok(()) } else { content.check() }
    }

    /// Logs all of a file, whose writers are kept out.
    fn log_content(
        &self,
        lane: &mut Lane<'_, N>,
        file: FileRef,
        bytes: u64,
        content: &impl Content,
    ) -> Result<bool, Errno> {
        let row = self.row(file);
        if row.end() != bytes
            || !matches!(lane.enter(file, true)?, Entry::Absorbed(state) if state.keeps_up())
        {
            return Ok(false);
        }
        let mut is_logged = false;
        let is_read = if bytes == 0 {
            // Its size is all that there is to say.
            if !on(Canary::EmptyUnlogged) {
                lane.append(file, Kind::Truncate, 0, 0, &[]);
            }
            is_logged = true;
            true
        } else {
            content.read(bytes, &mut |parts| {
                lane.append(file, Kind::Write, 0, bytes, parts);
                // The disk may have it longer; there is room for this one in the place of a cancel
                // record.
                if !on(Canary::UnsyncedSizeForgotten) {
                    lane.append_size(file, bytes);
                }
                is_logged = true;
            })
        };
        lane.finish(file);
        if is_logged {
            self.note_recorded(row);
        }
        Ok(is_read && is_logged)
    }
}
