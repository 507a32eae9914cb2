//! What a file row says of one use of it: which file it is, and what was done to it.
//!
//! Must never show the numbers of one file under the generation of another: they are stored before
//! [`FileRow::begin_use`] or the table's word, and whoever reads them looks at the generation, too.

use crate::files::FileRow;
use crate::numbers::Inode;
use crate::page::Page;
use crate::sync::Ordering;
use holdfast_pool::{Generation, Seq};

impl FileRow {
    /// What a program's stray store leaves in the word of the state.
    #[cfg(feature = "testing")]
    pub fn scribble_state(&self, word: u32) {
        self.state.store(word, Ordering::SeqCst);
    }

    /// Makes the row ready for a file that ends at `end`, whose slot begins a use.
    ///
    /// Relaxed: nobody looks at them before [`FileRow::begin_use`] hands them over.
    pub fn prepare(&self, generation: Generation, end: u64) {
        self.newest_seq.store(generation.seq(), Ordering::Relaxed);
        self.expired_seq.store(generation.seq(), Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
    }

    /// The row's file is this one; by [`crate::Board::insert`]. Relaxed: the table's word, stored
    /// after this, hands them over.
    pub fn set_inode(&self, inode: Inode) {
        self.dev.store(inode.device, Ordering::Relaxed);
        self.ino.store(inode.ino, Ordering::Relaxed);
    }

    /// Which file it is, by device and inode. Relaxed: they stay for one use. Who found the row by
    /// the table has them by its word, and anybody else looks at the generation afterwards, and at
    /// the file.
    #[inline]
    pub fn inode(&self) -> Inode {
        Inode { device: self.dev.load(Ordering::Relaxed), ino: self.ino.load(Ordering::Relaxed) }
    }

    /// The device alone.
    #[inline]
    pub fn device(&self) -> u64 {
        self.dev.load(Ordering::Relaxed)
    }

    /// The highest seq that was drawn for the file.
    ///
    /// `SeqCst`, with [`FileRow::raise_newest`]: the expirer sets its idle word and looks here, a
    /// writer raises this and looks at the idle word, and one of the two has to see the other.
    #[inline]
    pub fn newest_seq(&self) -> Seq {
        self.newest_seq.load(Ordering::SeqCst)
    }

    /// A seq was drawn for the file, and its record is about to be written. A maximum, as lanes
    /// that drew come here in any order.
    #[inline]
    pub fn raise_newest(&self, seq: Seq) {
        self.newest_seq.fetch_max(seq, Ordering::SeqCst);
    }

    /// The row's copy of the slot's `expired_seq`. `SeqCst`: whoever compares it with the newest
    /// seq looked at that one before. Both rise, so who finds nothing live has an answer for all
    /// records that were drawn before the question.
    #[inline]
    pub fn expired_seq(&self) -> Seq {
        self.expired_seq.load(Ordering::SeqCst)
    }

    /// The slot's `expired_seq` was persisted. After that, never before: segments are freed by this
    /// copy. `SeqCst`, so that whoever sees it finds the slot so.
    pub fn set_expired_seq(&self, seq: Seq) {
        self.expired_seq.store(seq, Ordering::SeqCst);
    }

    /// A write by its record alone has this time. Relaxed: the page locks of the range are held,
    /// and page rows that are entered after it hand it over.
    #[inline]
    pub fn note_written(&self, unix_time_ns: u64) {
        self.written_ns.store(unix_time_ns, Ordering::Relaxed);
    }

    /// As [`FileRow::note_written`], of a dead client's write, which others have perhaps followed.
    pub fn raise_written(&self, unix_time_ns: u64) {
        self.written_ns.fetch_max(unix_time_ns, Ordering::SeqCst);
    }

    /// A program set the file's times, so that no write is younger. `SeqCst`: what
    /// [`FileRow::changes`] tells next is what the times are told from.
    pub fn forget_written(&self) {
        self.written_ns.store(0, Ordering::SeqCst);
    }

    /// When the file was written last in state Behind, in nanoseconds since 1970; 0: not since a
    /// program set its times. `SeqCst`, as [`FileRow::changes`], of which it is part.
    pub fn written_ns(&self) -> u64 {
        self.written_ns.load(Ordering::SeqCst)
    }

    /// A page of the file was written. A hint (relaxed): what is wrong there is not told sooner.
    #[inline]
    pub fn note_written_page(&self, page: Page) {
        self.written_page.store(page.number(), Ordering::Relaxed);
    }

    /// The page that was written last, as some client says: no further out than pages can be.
    pub fn written_page(&self) -> Page {
        Page::new(self.written_page.load(Ordering::Relaxed).min(Page::of(u64::MAX).number()))
    }

    /// How often bringing the file to the disk has failed. `SeqCst`: a sync looks here after its
    /// state, and the keeper counts before it takes the file to another.
    #[inline]
    pub fn error_epoch(&self) -> u32 {
        self.error_epoch.load(Ordering::SeqCst)
    }

    /// It failed once more.
    pub fn note_error(&self) {
        self.error_epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// How many opens clients announced. `SeqCst`, with [`FileRow::note_open`]: a notice of the
    /// kernel's follows the open, which follows its count.
    pub fn client_opens(&self) -> u64 {
        self.client_opens.load(Ordering::SeqCst)
    }

    /// A client is about to open the file.
    pub fn note_open(&self) {
        self.client_opens.fetch_add(1, Ordering::SeqCst);
    }
}
