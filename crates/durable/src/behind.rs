//! Entering state Behind, and leaving it. Must never let a file be there that somebody can see past
//! the library, or whose disk may not take what the log holds of it (invariant 6).

use std::io;

use holdfast_board::{NO_SIZE, ROW_MEDIA_BYTES_MAX, Way};
use holdfast_canary::{Canary, on};
use holdfast_disk::{Disk, DiskFile};
use holdfast_media::Nvm;
use holdfast_pool::{Seq, Slot};

use super::file::ManagedFile;
use super::state::Durable;
use super::sync::{Pace, Synced};
use super::upkeep::Upkeeps;

/// Value of the board's `write_behind` with which new files do not wait.
pub const BEHIND_AT_ONCE: u32 = 2;
/// Space that must be left on a file system beyond what the log can hold.
const FREE_MARGIN_BYTES: u64 = 64 << 20;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Brings what lies in frames to the page cache once half of them are in use, so that there are
    /// always some for what is written next: without, a write that joins others goes to the page
    /// cache itself. Their records stay.
    pub fn drain_frames(&self) {
        let frames = self.board.frames();
        if frames.is_empty() || frames.rows().count() * 2 < frames.len() {
            return;
        }
        let table = self.board.pages();
        let is_behind =
            |slot: Slot| self.board.files().get(slot.index()).is_some_and(|row| row.state().lags());
        let pages = frames.rows().filter_map(|row| table.page_of(row)).filter(|page| is_behind(page.slot));
        self.drain_of_files(pages.collect(), Pace::Full, |file| {
            if on(Canary::FramesTakenForSync) {
                self.expire(file, Synced::of(self.board.settled_seq(file.slot)));
            }
        });
    }

    /// Back to state Through. The caller keeps the file's writers out.
    pub fn leave_behind(&self, file: &ManagedFile<D::File>, for_good: bool) -> io::Result<()> {
        if for_good {
            file.meta().may_be_behind = false;
        }
        if let Some(way) = self.way_back(file)
            && self.is_current(file)
        {
            self.drain_all(file).inspect_err(|error| self.drain_failed(file, error))?;
            self.drop_loaded(file);
            self.board.go(file.slot, way);
            self.forget_left(file);
            let mut meta = file.meta();
            let must_rewrite = meta.rewrite;
            self.set_ahead(file, &mut meta, must_rewrite);
        }
        if for_good && file.lent().is_some() { self.end_lease(file) } else { Ok(()) }
    }

    /// As `leave_behind`, when a sync follows: the disk is at work meanwhile.
    pub(super) fn leave_behind_for_disk(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        if self.board.row(file.slot).state().lags() {
            self.drain(file, Seq::MAX, Pace::Full).inspect_err(|error| self.drain_failed(file, error))?;
        }
        self.leave_behind(file, false)
    }

    /// Behind -> Through for good: somebody reads the file where we do not see it. Who reads a file
    /// may also sync it, and be told in our place that pages were lost: from here on we have a
    /// description of our own that is told as well (invariant 4).
    pub fn show(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        if !on(Canary::ReaderUnheard) {
            let row = self.board.row(file.slot);
            file.description(row).map(drop).inspect_err(|_| file.meta().rewrite = true)?;
        }
        if self.never_behind(file) && file.lent().is_none() {
            return Ok(());
        }
        if !self.hold(file)? {
            return Ok(());
        }
        let left = self.leave_behind(file, true);
        self.let_go(file);
        left
    }

    /// Whether [`Durable::show`] was called before, or has nothing to do: whoever reads the file
    /// sees everything. Waits for nobody.
    pub fn is_shown(&self, file: &ManagedFile<D::File>) -> bool {
        file.is_described() && self.never_behind(file) && file.lent().is_none()
    }

    /// Nobody but clients can see what a file holds from now on, and nobody had it open but who
    /// registered it: it may be in state Behind. A file that was just created waits for the next
    /// round of expiry, unless all shall go there `at_once`: most of those that live shorter are
    /// journals, which would only come back.
    pub fn allow_behind(&self, file: &ManagedFile<D::File>, created: bool) {
        file.meta().may_be_behind = true;
        if !created || self.board.header().write_behind.level() == BEHIND_AT_ONCE {
            self.enter_behind(file);
        }
    }

    /// Through -> Behind, if the file may be (invariant 6) and write-behind is on.
    pub fn enter_behind(&self, file: &ManagedFile<D::File>) {
        let row = self.board.row(file.slot);
        if row.state().keeps_up() && self.may_be_behind(file) {
            self.enter(file, Way::EnterBehind);
        }
    }

    /// Takes a file from state Through to one in which the page cache may lag, if that can be now:
    /// nobody else can see what it lacks, and whoever asks may take it there. Whether it is there.
    pub fn enter(&self, file: &ManagedFile<D::File>, way: Way) -> bool {
        let row = self.board.row(file.slot);
        if self.open_for_writing(file).is_err() {
            // Its mode may keep us from draining it, though its writer has it open.
            file.meta().may_be_behind = false;
            return false;
        }
        // Never waiting: a client that has the file may wait for the thread we are on.
        if !matches!(self.try_hold(file), Ok(true)) {
            return false;
        }
        let stat = file.held().stat();
        // Held until the state is set: a removal that is announced afterwards sees it.
        let mut meta = file.meta();
        if let Ok(stat) = stat
            && row.state().keeps_up()
            && self.is_current(file)
            && stat.size < NO_SIZE
            // The kernel and the dynamic linker read programs and libraries without any hook, and a
            // write takes set-user-ID away.
            && stat.ownership.mode & 0o6111 == 0
            && meta.may_be_behind
        {
            // Before the state: readers and writers take the size from here.
            row.set_end(stat.size);
            // As before: who finds it in the state finds what is kept.
            self.keep_times(file);
            // Before the first write that only the log has.
            self.set_ahead(file, &mut meta, true);
            meta.seen.begin_behind(stat.size, self.board.header().resizes());
            self.board.go(file.slot, way);
            let header = self.board.header();
            meta.may_be_behind = !header.shown.has(stat.dev, stat.ino);
            if !header.write_behind.is_on() || !meta.may_be_behind {
                // A client forbade it, before or meanwhile. Nobody could enter yet.
                if let Some(way) = self.way_back(file) {
                    self.board.go(file.slot, way);
                }
                let must_rewrite = meta.rewrite;
                self.set_ahead(file, &mut meta, must_rewrite);
            }
        }
        drop(meta);
        let is_there = row.state().lags();
        self.let_go(file);
        is_there
    }

    /// Whether a file may be in state Behind now.
    pub fn may_be_behind(&self, file: &ManagedFile<D::File>) -> bool {
        let pool_bytes = self.superblock.layout.pool_bytes;
        let meta = file.meta();
        let named = meta.may_be_behind && meta.unlinking.is_none() && meta.bypass.is_none() && !meta.rewrite;
        drop(meta);
        named
            && self.board.header().write_behind.is_on()
            && pool_bytes <= ROW_MEDIA_BYTES_MAX
            && file.held().free_bytes().is_ok_and(|free| free >= pool_bytes + FREE_MARGIN_BYTES)
    }

    /// Takes files into state Behind and out of it, as the space on their disks allows (invariant
    /// 6).
    pub fn review_behind(&self) {
        if !self.board.header().write_behind.is_on() {
            return;
        }
        for file in self.managed() {
            let row = self.board.row(file.slot);
            let state = row.state();
            if state.keeps_up() {
                self.enter_behind(&file);
            } else if state.lags() && !self.may_be_behind(&file) && matches!(self.try_hold(&file), Ok(true)) {
                // What fails is reported, and tried again in the next round, as is a file that
                // somebody has now.
                let _ = self.leave_behind(&file, false);
                self.let_go(&file);
            }
        }
    }
}
