//! The pool's one counter, and what keeps a stray store into it from doing harm: every process
//! remembers the newest number that it drew, and takes none that is not newer.
//!
//! A record whose number is not above those of the file's records before it is expired when it is
//! written (invariant 2), or replayed in the wrong order (history 3), so none may ever be written.
//! Must never give out a number that somebody drew before, whatever a program stored into the
//! counter.

use holdfast_pool::{Generation, Seq};

use crate::board::Board;
use crate::files::FileRow;
use crate::own::{NUMBER_MAX, follows};
use crate::sync::Ordering;

/// How far the counter is put above what is known: nobody is amid so many draws.
const LEAP: u64 = 1 << 32;

/// The newest number that a file's row knows of.
#[inline]
fn known_of(row: &FileRow) -> u64 {
    sound(row.newest_seq.load(Ordering::SeqCst)).max(sound(row.expired_seq.load(Ordering::SeqCst)))
}

/// A number, unless a stray store left it there.
fn sound(seq: Seq) -> u64 {
    if seq.get() < NUMBER_MAX { seq.get() } else { 0 }
}

impl Board {
    /// The counter begins with this number; only while nobody draws.
    pub fn begin_counter(&self, next: Seq) {
        self.header().counter.begin(next);
    }

    /// No number below this one is given out any more.
    pub fn raise_counter(&self, next: Seq) {
        self.header().counter.raise(next);
    }

    /// How often the counter was put right, since a program had stored something into it.
    pub fn counter_mended(&self) -> u64 {
        self.header().counter_mended.get()
    }

    /// Draws a number that is above all that this process drew, and above `floor`.
    #[inline]
    fn draw(&self, floor: u64) -> Seq {
        let counter = &self.header().counter;
        loop {
            // Before the draw: whoever drew these drew earlier.
            let before = self.own.get().max(floor);
            let number = counter.add();
            if follows(number, before) {
                self.own.note(number);
                return Seq::new(number);
            }
            self.mend_counter(before);
        }
    }

    /// Draws the number of a record of a file, above those of its records before, live or dead.
    #[inline]
    pub fn draw_seq(&self, row: &FileRow) -> Seq {
        self.draw(known_of(row))
    }

    /// Draws the generation of a use that begins.
    #[inline]
    pub fn draw_generation(&self) -> Generation {
        Generation::drawn_at(self.draw(0))
    }

    /// The number that is drawn next.
    #[inline]
    pub fn next_seq(&self) -> Seq {
        loop {
            let (before, number) = (self.own.get(), self.header().counter.get());
            if follows(number, before) {
                return Seq::new(number);
            }
            self.mend_counter(before);
        }
    }

    /// Puts the counter above `before`, which somebody drew, and above all that the files' rows
    /// know of, unless others did so meanwhile: this process may have drawn nothing for long.
    #[cold]
    fn mend_counter(&self, before: u64) {
        let header = self.header();
        header.counter_mended.add(1);
        let known = self.files().iter().map(known_of).fold(before, u64::max);
        let above = known.saturating_add(LEAP);
        let next = if above < NUMBER_MAX { above } else { known.saturating_add(2) };
        while let now = header.counter.get()
            && !follows(now, before)
            && !header.counter.replace(now, next)
        {}
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use holdfast_pool::Slot;

    use crate::plan::Plan;

    /// What a stray store may leave there.
    const STRAYS: [u64; 6] = [0, 1, 282, 1 << 60, u64::MAX, NUMBER_MAX];

    #[test]
    fn numbers_rise_whatever_is_stored_into_the_counter() {
        let (keeper, fd) = Board::create(Plan::new(256, 16)).unwrap();
        let client = Board::open(rustix::fd::AsFd::as_fd(&fd), 256, 16).unwrap();
        keeper.header().counter.begin(Seq::new(1000));
        let row = client.row(Slot::new(3));
        let mut newest = Seq::new(999);
        for (turn, stray) in STRAYS.into_iter().cycle().take(60).enumerate() {
            for board in [&client, &keeper, &client] {
                let seq = board.draw_seq(row);
                assert!(seq > newest && seq.get() < NUMBER_MAX, "{turn}: {stray}: {seq:?} after {newest:?}");
                newest = seq;
                row.newest_seq.store(seq, Ordering::SeqCst);
            }
            keeper.header().counter.begin(Seq::new(stray));
            // Who looks first puts it right; the others must not need that.
            if (turn / STRAYS.len()).is_multiple_of(2) {
                let next = keeper.next_seq();
                assert!(next > newest && next.get() < NUMBER_MAX, "{turn}: {next:?}");
            }
        }
        assert!(keeper.counter_mended() > 0);
    }

    #[test]
    fn no_record_is_dead_on_arrival() {
        let (board, _fd) = Board::create(Plan::new(256, 16)).unwrap();
        board.header().counter.begin(Seq::new(10));
        let row = board.row(Slot::new(5));
        // What another process knows of the file.
        row.expired_seq.store(Seq::new(5000), Ordering::SeqCst);
        assert!(board.draw_seq(row) > Seq::new(5000));
        assert_eq!(board.counter_mended(), 1);
    }
}
