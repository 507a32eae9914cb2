//! Files in state Behind that get shorter: by an outsider, which is to be noticed, and by clients,
//! which is not to be taken for that.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_board::{FileState, NO_SIZE};
use holdfast_cache::{Errno, FileRef};

use super::durable::{Bench, CLIENT, bench};
use super::{contents, errno};
use holdfast_disk::OsFile;
use holdfast_durable::{ManagedFile, Pace, Tale};
use holdfast_pool::{MARK_CONFLICT, Seq};

struct Cut {
    bench: Bench,
    file: File,
    place: FileRef,
    managed: Arc<ManagedFile<OsFile>>,
}

/// A file in state Behind of which the page cache and the keeper's last look have 10,000 bytes.
fn drained(name: &str) -> Cut {
    let bench = bench(name);
    let (file, place) = bench.manage_fenced("fenced");
    bench.write_to(place, 0, &[b'a'; 10_000]);
    let managed = bench.durable.file(place).unwrap();
    bench.durable.drain(&managed, Seq::MAX, Pace::Full).unwrap();
    let cut = Cut { bench, file, place, managed };
    cut.look();
    assert_eq!((cut.state(), contents(&cut.file).len()), (FileState::Behind, 10_000));
    cut
}

impl Cut {
    fn look(&self) {
        self.bench.durable.look(&self.managed, false).unwrap();
    }

    /// Drains what was written up to now, when it is called.
    fn drain_later(&self) -> impl FnOnce() {
        let row = self.bench.durable.board.row(self.place.slot);
        let newest = row.newest_seq();
        move || drop(self.bench.durable.drain(&self.managed, newest, Pace::Full).unwrap())
    }

    fn leave_behind(&self) {
        let (board, slot) = (&self.bench.durable.board, self.place.slot);
        assert!(board.lock_file(slot, CLIENT));
        self.bench.durable.leave_behind(&self.managed, false).unwrap();
        board.row(slot).unlock_exclusive(CLIENT);
    }

    fn state(&self) -> FileState {
        self.bench.durable.board.row(self.place.slot).state()
    }

    fn size(&self) -> u64 {
        self.bench.durable.board.row(self.place.slot).end()
    }
}

/// Longer than a call may take, so that the order of two times is known.
fn later() {
    std::thread::sleep(Duration::from_millis(40));
}

#[test]
fn what_an_outsider_cut_in_state_behind_is_gone() {
    let cut = drained("cut-outside");
    cut.bench.write_to(cut.place, 10_000, &[b'b'; 500]);
    later();
    cut.file.set_len(100).unwrap();
    cut.look();
    assert_eq!((cut.state(), cut.size()), (FileState::Through, 100));
    assert!(contents(&cut.file) == [b'a'; 100]);
}

#[test]
fn what_was_written_after_an_outsiders_cut_is_kept() {
    let cut = drained("cut-then-written");
    cut.file.set_len(100).unwrap();
    later();
    cut.bench.write_to(cut.place, 10_000, &[b'b'; 500]);
    cut.look();
    let expected = [[b'a'; 100].as_slice(), &[0; 9_900], &[b'b'; 500]].concat();
    assert_eq!((cut.state(), cut.size()), (FileState::Through, 10_500));
    assert!(contents(&cut.file) == expected);
}

/// The keeper's own writes change the file's times after the cut: then they say nothing of what
/// came first.
#[test]
fn what_is_drained_after_an_outsiders_cut_and_a_write_is_kept() {
    let cut = drained("cut-then-drained");
    cut.file.set_len(100).unwrap();
    later();
    cut.bench.write_to(cut.place, 5_000, &[b'b'; 500]);
    let drain_first = cut.drain_later();
    cut.bench.write_to(cut.place, 9_000, &[b'c'; 500]);
    later();
    // The kernel's size stays below what it was.
    drain_first();
    assert_eq!(contents(&cut.file).len(), 5_500);
    cut.look();
    let expected = [[b'a'; 100].as_slice(), &[0; 4_900], &[b'b'; 500], &[0; 3_500], &[b'c'; 500]].concat();
    assert_eq!(cut.state(), FileState::Through);
    assert!(contents(&cut.file) == expected);
}

#[test]
fn what_a_client_cut_and_made_longer_again_is_its_own() {
    let cut = drained("cut-by-client");
    let Cut { bench, file, place, .. } = &cut;
    bench.client.truncate(*place, 0, || file.set_len(0).map_err(errno)).unwrap();
    bench.write_to(*place, 0, &[b'b'; 4096]);
    let drain_first = cut.drain_later();
    bench.write_to(*place, 4096, &[b'b'; 15_904]);
    // The page cache gets less than it had before.
    drain_first();
    assert_eq!(contents(file).len(), 4096);
    cut.look();
    assert_eq!((cut.state(), cut.size()), (FileState::Behind, 20_000));
    bench.durable.drain(&cut.managed, Seq::MAX, Pace::Full).unwrap();
    assert!(contents(file) == [b'b'; 20_000]);
}

/// Two threads of the keeper look while a third drains: what one saw before a drain is not less
/// than what another saw behind it.
#[test]
fn looks_beside_one_another_and_a_drain_find_no_cut() {
    let cut = drained("cut-looks");
    let rounds: u64 = 300;
    std::thread::scope(|scope| {
        let done = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let (cut, done) = (&cut, done.clone());
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    match cut.bench.durable.look(&cut.managed, false) {
                        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => panic!("{error}"),
                        _ => {}
                    }
                }
            });
        }
        for round in 0..rounds {
            cut.bench.write_to(cut.place, 10_000 + round * 1000, &[b'b'; 1000]);
            cut.bench.durable.drain(&cut.managed, Seq::MAX, Pace::Shown).unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!((cut.state(), cut.size()), (FileState::Behind, 10_000 + rounds * 1000));
    assert_eq!(contents(&cut.file).len() as u64, 10_000 + rounds * 1000);
}

/// A file that leaves the state and is cut meanwhile enters it anew: the size of before says
/// nothing.
#[test]
fn what_was_cut_between_two_times_in_the_state_is_no_cut_in_it() {
    let cut = drained("cut-between");
    let Cut { bench, file, place, .. } = &cut;
    cut.leave_behind();
    file.set_len(0).unwrap();
    bench.durable.enter_behind(&cut.managed);
    bench.write_to(*place, 0, &[b'b'; 4096]);
    let drain_first = cut.drain_later();
    bench.write_to(*place, 4096, &[b'b'; 15_904]);
    drain_first();
    cut.look();
    assert_eq!((cut.state(), cut.size()), (FileState::Behind, 20_000));
}

/// The file system of a dying disk may cut a file in memory and say `EIO`: that is no outsider's
/// doing, and recovery must not set the file aside for it.
#[test]
fn a_truncation_that_fails_half_way_is_no_outsiders() {
    let cut = drained("cut-refused");
    let Cut { bench, file, place, .. } = &cut;
    cut.leave_behind();
    cut.look();
    let refused = bench.client.truncate(*place, 100, || {
        file.set_len(100).unwrap();
        Err(Errno::EIO)
    });
    assert!(refused.is_err());
    cut.look();
    // Whoever takes it for an outsider's sets the size that was found.
    assert_eq!((cut.state(), cut.size()), (FileState::Through, NO_SIZE));
}

/// Ends what waits for it, whatever becomes of the test.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A client removed a file while the keeper heard what others had done to it: it counted as cut,
/// and a crash that took the removal back left the file to a person.
#[test]
fn who_removes_a_file_cuts_none() {
    let bench = bench("cut-removed");
    let (heard, is_over) = (Mutex::new(None::<Arc<ManagedFile<OsFile>>>), AtomicBool::new(false));
    // A removal that nobody announced has later writes wait for a commit.
    let files: Vec<_> = (0..40)
        .map(|round| {
            let name = format!("removed-{round}");
            let (file, place) = bench.manage_fenced(&name);
            let managed = bench.durable.file(place).unwrap();
            bench.write_to(place, 0, b"bytes");
            bench.durable.leave_behind(&managed, true).unwrap();
            (file, bench.directory.path().join(name), managed)
        })
        .collect();
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let file = heard.lock().unwrap().clone();
                    let tale = Tale { of_content: true, ..Tale::default() };
                    file.map(|file| bench.durable.hear(&file, tale));
                }
            });
        }
        for (_, path, managed) in &files {
            *heard.lock().unwrap() = Some(Arc::clone(managed));
            std::thread::sleep(Duration::from_micros(200));
            std::fs::remove_file(path).unwrap();
        }
    });
    let marks = files.iter().map(|(_, _, managed)| bench.durable.slots().marks(managed.slot));
    let cut: Vec<u64> = marks.filter(|marks| marks & MARK_CONFLICT != 0).collect();
    assert!(cut.is_empty(), "{} of {}", cut.len(), files.len());
}
