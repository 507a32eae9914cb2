//! A log that goes on in a file, on real files: what comes back from there, and what is said when
//! the file does not.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_board::{LaneIndex, Page, SegmentState, Source};
use holdfast_cache::Place;
use holdfast_media::Bytes;
use holdfast_pool::{Frames, Mount, Segment, Stamp, set_segment_generation};

use super::durable::{Bench, bench};
use super::{contents, errno};
use crate::spill_file::{Wanted, prepare};
use holdfast_disk::DiskFile;
use holdfast_durable::{Order, Writers};
use holdfast_recovery::{FileOutcome, RecoverOptions, Report, recover};

const PAGES: u64 = 3000;

fn page_of(page: u64, round: u64) -> Vec<u8> {
    let mut bytes = vec![(page * 7 + round) as u8; 4096];
    bytes[..8].copy_from_slice(&(round * PAGES + page).to_le_bytes());
    bytes
}

fn all(rounds: u64) -> Vec<u8> {
    (0..PAGES).flat_map(|page| page_of(page, rounds)).collect()
}

fn wanted<'a>(path: &'a Path, pool: &'a Path) -> Wanted<'a> {
    Wanted { path, size_bytes: 128 << 20, volatile: true, pinned: &[], pool }
}

fn with_spill_file(name: &str) -> (Bench, PathBuf) {
    let bench = bench(name);
    let path = bench.directory.path().join("spill");
    prepare(&bench.durable.nvm, &bench.durable.superblock, &wanted(&path, &bench.pool)).unwrap();
    assert_eq!(bench.durable.use_spill(&[]).unwrap(), 64);
    (bench, path)
}

/// A file that was written several times over, the older rounds of which lie in frames, and their
/// segments in other use.
fn spilling(name: &str, rounds: u64) -> (Bench, PathBuf) {
    let (bench, path) = with_spill_file(name);
    for round in 0..=rounds {
        // Backwards and by steps, so that no neighbours are written one after the other.
        for page in (0..PAGES).map(|at| at * 1009 % PAGES) {
            bench.write(page * 4096, &page_of(page, round));
        }
        let spilled =
            bench.durable.spill(4, Order::Any).segments + bench.durable.spill(4, Order::Any).segments;
        assert!(spilled >= 5, "{spilled} segments");
        assert_eq!(bench.segments(SegmentState::Sealed), 0);
    }
    (bench, path)
}

fn recovered(bench: &Bench) -> Result<Report, String> {
    recover(&bench.pool, &RecoverOptions::default(), &mut |_, _, _| ()).map_err(|error| error.to_string())
}

/// What a power cut leaves that takes all that was not synced: an empty file, as its stamp says, on
/// a file system that was mounted anew.
fn lose_page_cache(bench: &Bench) {
    bench.file.set_len(0).unwrap();
    let file = bench.managed();
    let stamp = bench.durable.stamp_of(&file.held().stat().unwrap(), true);
    let mount = Mount { id: stamp.mount.id + 1, ..stamp.mount };
    bench.durable.slots().push_stamp(file.slot, &Stamp { mount, ..stamp });
}

#[test]
fn what_was_spilled_is_replayed_and_its_frames_are_given_back() {
    let (bench, _) = spilling("spill-replayed", 2);
    let in_use = bench.durable.frames_in_use();
    assert!(in_use >= 15, "{in_use} frames");
    // All that was spilled from rows was nowhere else.
    lose_page_cache(&bench);
    let report = recovered(&bench).unwrap();
    assert!(report.damaged.is_empty(), "{:?}", report.damaged);
    assert_eq!(report.files.iter().map(|row| row.outcome).collect::<Vec<_>>(), [FileOutcome::Replayed]);
    assert!(contents(&bench.file) == all(2));
    let (nvm, layout) = (&bench.durable.nvm, &bench.durable.superblock.layout);
    assert!(Frames { nvm, layout }.in_use().is_empty());
}

#[test]
fn without_its_spill_file_a_pool_is_not_recovered_and_loses_nothing() {
    let (bench, path) = spilling("spill-missing", 1);
    lose_page_cache(&bench);
    let away = path.with_extension("away");
    let says = |bench: &Bench, what: &str| {
        let error = recovered(bench).unwrap_err();
        assert!(error.contains(what) && error.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(contents(&bench.file).len(), 0, "nothing is replayed");
    };
    fs::rename(&path, &away).unwrap();
    says(&bench, "No such file");
    fs::write(&path, vec![0; 8192]).unwrap();
    says(&bench, "it is no spill file");
    let mut bytes = fs::read(&away).unwrap();
    bytes.truncate(bytes.len() - 4096);
    fs::write(&path, &bytes).unwrap();
    says(&bench, "a part of it is gone");
    fs::rename(&away, &path).unwrap();
    recovered(&bench).unwrap();
    assert!(contents(&bench.file) == all(1));
}

#[test]
fn a_frame_that_lost_its_bytes_is_reported() {
    let (bench, path) = spilling("spill-torn", 1);
    bench.file.set_len(0).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 4096], 4096 + (1 << 20)).unwrap();
    let report = recovered(&bench).unwrap();
    assert!(report.damaged.iter().any(|text| text.starts_with("spill frame 0")), "{:?}", report.damaged);
}

#[test]
fn a_failed_sync_is_made_good_from_the_frames() {
    let (bench, _) = spilling("spill-rewrite", 2);
    // The sync that failed dropped all pages.
    bench.file.set_len(0).unwrap();
    bench.managed().meta().rewrite = true;
    bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
    assert!(contents(&bench.file) == all(2));
    bench.durable.free_segments();
    assert_eq!(bench.durable.frames_in_use(), 0, "all of it has expired");
}

#[test]
fn while_the_log_goes_on_writers_bring_pages_to_the_page_cache() {
    let bench = bench("spill-writers");
    let row = bench.durable.board.row(bench.place.slot);
    bench.write(0, &page_of(0, 0));
    bench.durable.board.header().log_goes_on.set(true);
    // The page has a row, which is newer than the page cache: there it stays.
    bench.write(0, &page_of(0, 1));
    assert_eq!(contents(&bench.file).len(), 0);
    let bytes = page_of(1, 1);
    let parts = [Bytes::from_slice(&bytes)];
    let raw = || bench.file.write_at(&bytes, 4096).map_err(errno);
    bench
        .client
        .write(bench.place, Place::At(4096), &parts, raw, || unreachable!("it has an offset"))
        .unwrap();
    assert_eq!((contents(&bench.file).len(), row.page_rows().get()), (8192, 1));
    bench.durable.board.header().log_goes_on.set(false);
    bench.write(4096, &page_of(1, 2));
    assert_eq!(row.page_rows().get(), 2);
    lose_page_cache(&bench);
    recovered(&bench).unwrap();
    assert!(contents(&bench.file) == [page_of(0, 1), page_of(1, 2)].concat());
}

#[test]
fn a_file_that_is_not_the_pools_own_is_left_alone() {
    let bench = bench("spill-strange");
    let path = bench.directory.path().join("somebody's");
    fs::write(&path, "precious").unwrap();
    let wanted = wanted(&path, &bench.pool);
    let error = prepare(&bench.durable.nvm, &bench.durable.superblock, &wanted).unwrap_err();
    assert!(error.to_string().contains("it exists and is no spill file"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

/// A pass that gave its segments back beside somebody else who did could free one that was in other
/// use by then: what was written there was overwritten (invariant 3).
#[test]
fn a_pass_begins_and_ends_in_the_turn_of_whoever_gives_segments_back() {
    let (bench, _) = spilling("spill-turn", 1);
    for page in (0..PAGES).map(|at| at * 1009 % PAGES) {
        bench.write(page * 4096, &page_of(page, 2));
    }
    let (durable, slot) = (&bench.durable, bench.place.slot);
    let sealed = bench.segments(SegmentState::Sealed);
    let pause = || std::thread::sleep(Duration::from_millis(100));
    let (mut early, mut waits, mut sealed_then) = (true, false, 0);
    let spilled = std::thread::scope(|scope| {
        let locks = durable.board.page_locks();
        assert!(locks.lock(LaneIndex::new(1), slot, 0, 4096));
        let pass = durable.instead_of_reclaiming(|| {
            let pass = scope.spawn(|| durable.spill(4, Order::Any).segments);
            pause();
            early = durable.is_spilling();
            pass
        });
        // It waits for the page, whose row it has to drain.
        pause();
        waits = durable.is_spilling();
        durable.instead_of_reclaiming(|| {
            locks.unlock(LaneIndex::new(1), slot, 0, 4096);
            pause();
            sealed_then = bench.segments(SegmentState::Sealed);
        });
        pass.join().unwrap()
    });
    assert!(!early, "chosen beside somebody who gives segments back");
    assert!(waits && spilled > 0);
    assert_eq!(sealed_then, sealed, "given back beside somebody else");
}

/// A segment may be given back and taken again while a pass waits for a page or the disk. What is
/// in it by then is in no frame.
#[test]
fn a_pass_leaves_segments_alone_that_are_in_other_use_by_then() {
    let (bench, _) = spilling("spill-other-use", 1);
    for page in (0..PAGES).map(|at| at * 1009 % PAGES) {
        bench.write(page * 4096, &page_of(page, 2));
    }
    let (durable, slot) = (&bench.durable, bench.place.slot);
    let rows = durable.board.segments();
    let mut sealed: Vec<u32> =
        (0..).zip(rows).filter(|(_, row)| row.state() == SegmentState::Sealed).map(|(at, _)| at).collect();
    sealed.sort_by_key(|&segment| rows[segment as usize].max_seq());
    let [_, taken, sealed_again, whole, ..] = sealed[..] else { panic!("{sealed:?}") };
    let spilled = std::thread::scope(|scope| {
        let locks = durable.board.page_locks();
        assert!(locks.lock(LaneIndex::new(1), slot, 0, 4096));
        let pass = scope.spawn(|| durable.spill(4, Order::Any).segments);
        // Not for a time: a panic here would leave the pass waiting for the page for ever.
        while !durable.is_spilling() {
            std::thread::sleep(Duration::from_millis(1));
        }
        durable.instead_of_reclaiming(|| {
            rows[taken as usize].set_state(SegmentState::Free);
            assert!(rows[taken as usize].try_take(LaneIndex::new(1)));
            // Nothing pointed there any more when it was given back.
            let (pages, layout) = (durable.board.pages(), &durable.superblock.layout);
            let start = layout.segment_offset(Segment::new(sealed_again));
            for row in (0..PAGES).filter_map(|page| pages.find(slot, Page::new(page))) {
                if matches!(row.content.source, Source::Log(at) if (start..start + layout.segment_bytes).contains(&at)) {
                    pages.remove(row.index, durable.board.row(slot).page_rows());
                }
            }
            let generation = durable.board.draw_generation();
            set_segment_generation(&durable.nvm, layout, Segment::new(sealed_again), generation);
        });
        locks.unlock(LaneIndex::new(1), slot, 0, 4096);
        pass.join().unwrap()
    });
    assert_eq!(spilled, 2);
    assert_eq!(rows[whole as usize].state(), SegmentState::Free);
    assert_eq!(
        rows[sealed_again as usize].state(),
        SegmentState::Sealed,
        "given back with what no frame has"
    );
    assert!(
        !matches!(rows[taken as usize].state(), SegmentState::Free | SegmentState::Sealed),
        "taken from its lane"
    );
}

/// A file that its disk refused had the oldest segments, so that pass after pass looked at those
/// alone.
#[test]
fn what_a_disk_refuses_keeps_nothing_else_from_being_spilled() {
    let bench = with_spill_file("spill-refused").0;
    let (_other, place) = bench.manage("other");
    for page in (0..PAGES).map(|at| at * 1009 % PAGES) {
        bench.write(page * 4096, &page_of(page, 0));
    }
    // And the one that both write to.
    let refused = bench.segments(SegmentState::Sealed) + 1;
    for page in (0..PAGES).map(|at| at * 1009 % PAGES) {
        bench.write_to(place, page * 4096, &page_of(page, 1));
    }
    // As if the slot were another file's by now: nobody drains its rows.
    let row = bench.durable.board.row(bench.place.slot);
    row.begin_use(bench.place.generation.next());
    assert!(refused > 4);
    let spilled: Vec<u32> = (0..4).map(|_| bench.durable.spill(4, Order::Any).segments).collect();
    row.begin_use(bench.place.generation);
    assert!(spilled[0] == 0 && spilled.iter().sum::<u32>() >= 4, "{spilled:?}");
    assert_eq!(bench.segments(SegmentState::Sealed), refused);
}
