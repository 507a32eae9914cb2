//! Slots that are given back while others know their files, and changes of size that change
//! nothing.

use std::fs::File;

use holdfast_board::FileState;
use holdfast_cache::{FileRef, Place, Reason};
use holdfast_media::Bytes;
use holdfast_pool::{Generation, HintKind};

use super::durable::{CLIENT, bench, newcomer};
use super::{contents, errno};
use holdfast_disk::{Disk, DiskFile};
use holdfast_durable::{Held, REMOVED_FILES_MAX, Writers};

#[test]
fn who_knows_a_file_from_before_its_slot_was_given_back_leaves_the_next_one_alone() {
    // A round of expiry takes the dirty files down and then waits for the disk. One of them was
    // settled and renamed over meanwhile, another file got its slot, and its bytes went to the
    // first file and its records were expired.
    let bench = bench("slot-reused");
    let before = bench.managed();
    let row = bench.durable.board.row(bench.place.slot);
    assert!(bench.durable.board.lock_file(bench.place.slot, CLIENT));
    bench.durable.release(&before);
    row.unlock_exclusive(CLIENT);
    let path = bench.directory.path().join("next");
    let next = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let description = bench.durable.disk.open(&path).unwrap();
    let identity = description.identity().unwrap();
    let newcomer = newcomer(&identity, &path);
    let generation = bench.durable.board.draw_generation();
    let place = FileRef { generation, ..bench.place };
    assert!(bench.durable.take_slot(place, Held::Open(description), &newcomer).is_ok());
    let managed = bench.durable.file(place).unwrap();
    // Its size is its own.
    bench.file.set_len(77).unwrap();
    before.meta().may_be_behind = true;
    bench.durable.enter_behind(&before);
    assert_eq!(bench.state(), FileState::Through);
    bench.durable.allow_behind(&managed, false);
    assert_eq!((bench.state(), row.end()), (FileState::Behind, 0));
    let parts = [Bytes::from_slice(b"the next file's")];
    let raw = || -> Result<usize, holdfast_cache::Errno> { panic!("no system call is needed") };
    bench.client.write(place, Place::At(0), &parts, raw, || Err(errno(std::io::Error::other("")))).unwrap();
    let expired = row.expired_seq();
    bench.durable.settle(&before, Writers::MayBeIn).unwrap();
    bench.durable.tell(&before).unwrap();
    bench.durable.bypass(&before, Reason::MappedShared).unwrap();
    assert_eq!((row.expired_seq(), row.page_rows().get()), (expired, 1));
    assert_eq!((bench.state(), contents(&bench.file)), (FileState::Behind, vec![0; 77]));
    // Nor do they change what the slot says.
    let slots = bench.durable.slots();
    let before_all = (slots.marks(place.slot), slots.hints(place.slot), slots.ownership(place.slot));
    bench.durable.mark_conflict(&before);
    bench.durable.outsider_left(&before);
    before.meta().unlinking = Some(path.clone());
    std::fs::remove_file(bench.directory.path().join("file")).unwrap();
    bench.durable.void_if_unlinked(&before);
    bench.durable.push_name(&before, HintKind::Name, &bench.directory.path().join("other")).unwrap();
    bench.durable.note_ownership(&before);
    bench.durable.look(&before, true).unwrap();
    let after_all = (slots.marks(place.slot), slots.hints(place.slot), slots.ownership(place.slot));
    assert_eq!(before_all, after_all);
    assert_eq!(bench.state(), FileState::Behind);
    bench.durable.settle(&managed, Writers::MayBeIn).unwrap();
    assert_eq!(contents(&next), b"the next file's");
}

/// Two rounds at once found the same removed file. The first gave its slot back and a new file got
/// it; the second, back from the disk, took it from that, records and all. Programs with many files
/// beside one that removes some lost what they had synced.
#[test]
fn a_slot_is_given_back_once() {
    let bench = bench("given-back-once");
    let before = bench.managed();
    bench.durable.release(&before);
    let (_file, place) = bench
        .durable
        .superblock
        .layout
        .slots()
        .map(|number| bench.manage(&format!("next-{number}")))
        .find(|(_, place)| place.slot == bench.place.slot)
        .expect("it comes round");
    bench.write_to(place, 0, b"acknowledged");
    for retires in [false, true] {
        if retires {
            assert!(!bench.durable.retire(&before));
        } else {
            bench.durable.release(&before);
        }
        assert_eq!(bench.durable.slots().generation(place.slot), Some(place.generation));
        assert!(bench.durable.file(place).is_some());
    }
}

#[test]
fn a_truncation_to_the_size_a_file_has_drains_nothing() {
    let bench = bench("same-size");
    bench.write(5000, b"the end");
    let row = bench.durable.board.row(bench.place.slot);
    bench.client.truncate(bench.place, 5007, || bench.file.set_len(5007).map_err(errno)).unwrap();
    assert_eq!((row.page_rows().get(), bench.file.metadata().unwrap().len()), (1, 5007));
    assert_eq!(contents(&bench.file), vec![0; 5007]);
    bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
    assert_eq!(&contents(&bench.file)[4998..], b"\0\0the end");
}

#[test]
fn slots_of_removed_files_are_given_back_together() {
    let bench = bench("removed-files");
    let bell = &bench.durable.board.header().expirer_wake;
    let file = bench.managed();
    let rings = || {
        let before = bell.rung();
        bench.durable.note_orphan(&file);
        bell.rung() != before
    };
    let rung: Vec<bool> = (0..REMOVED_FILES_MAX).map(|_| rings()).collect();
    assert_eq!(rung.iter().position(|rung| *rung), Some(REMOVED_FILES_MAX as usize - 1));
    assert!(!rings(), "the expirer is at it");
    bench.durable.release_removed();
    assert!(bench.durable.file(file.place()).is_some(), "it has its name");
}

#[test]
fn a_removed_file_is_let_go_of_before_its_slot_is_given_back() {
    let bench = bench("let-go");
    bench.write(0, b"soon gone");
    let (file, slot) = (bench.managed(), bench.place.slot);
    let path = file.meta().path.clone();
    let row = bench.durable.board.row(slot);
    let key = row.inode();
    assert!(bench.durable.try_never_behind(&file).is_ok());
    assert!(bench.durable.push_removal(&file, &path, CLIENT).unwrap());
    assert!(!bench.durable.let_go_removed(), "it is not removed yet");
    std::fs::remove_file(&path).unwrap();
    // A client keeps it from others at the moment.
    assert!(bench.durable.board.lock_file(slot, CLIENT));
    assert!(!bench.durable.let_go_removed());
    row.unlock_exclusive(CLIENT);
    let known = std::sync::Arc::downgrade(&file);
    drop(file);
    assert!(bench.durable.let_go_removed());
    assert_eq!(known.strong_count(), 0, "nothing of ours is open");
    // Its slot is nobody else's, and its client finds it left to the kernel.
    assert_eq!(bench.durable.board.find(key.device, key.ino), None);
    assert!(bench.client.is_bypassed(bench.place));
    assert_ne!(bench.durable.free_slot(|_| false).unwrap().slot, slot);
    assert_eq!(bench.durable.slots().hints(slot).len(), 2);
    bench.durable.release_removed();
    assert!(!bench.client.is_current(bench.place));
    assert!(bench.durable.slots().hints(slot).is_empty() || bench.state() == FileState::Free);
}

/// A client that was about to bring a file to the disk, when its slot was given back, passed on to
/// the program that there is no such file: a write ended as "not supported".
#[test]
fn a_file_that_was_given_back_needs_no_settling() {
    let house = super::house("given-back", super::NEVER_MS);
    let (file, place) = house.create("a");
    super::write_at(&house.client, place, &file, 0, b"a");
    let gone = FileRef { generation: Generation::new(place.generation.get() + 1000), ..place };
    house.client.bypass(gone, Reason::Uncovered).unwrap();
    house.client.let_go(gone, Reason::Uncovered).unwrap();
    assert!(house.client.is_current(place), "another use of the slot");
}
