//! Damage of the pool that recovery is the first to find: it costs no file anything without a word.

use std::fs;
use std::path::PathBuf;

use super::support::{Rig, Taken, Writer};
use super::{RecoverOptions, none, outcomes};
use holdfast_pool::{SEGMENT_BYTES, SLOT_BYTES, Segment, Seq, Slot};
use holdfast_recovery::{FileOutcome, Report};

/// Three files, each with two records: `a` and `b` in segment 1 in turn, `c` in segment 2.
fn three(name: &str, spoil: impl FnOnce(&mut Writer, &[u64])) -> (Rig, [PathBuf; 3]) {
    let rig = Rig::new(name);
    let paths = ["a", "b", "c"].map(|name| rig.file(name, b"...."));
    rig.crash(|pool| {
        let files: Vec<Taken> = (0..).zip(&paths).map(|(slot, path)| pool.take(slot, path, 0)).collect();
        let mut ends = Vec::new();
        for (offset, bytes) in [(0, b"1"), (1, b"2")] {
            for (file, segment) in files.iter().zip([1, 1, 2]) {
                pool.write(segment, *file, offset, bytes);
                ends.push(pool.end(segment));
            }
        }
        spoil(pool, &ends);
    });
    (rig, paths)
}

fn said(report: &Report) -> Vec<(&str, &str)> {
    let name = |path: &'_ str| path.rsplit('/').next().map_or(0, |name| path.len() - name.len());
    let mut said: Vec<(&str, &str)> =
        report.files.iter().map(|file| (&file.path[name(&file.path)..], file.outcome.words())).collect();
    said.sort_unstable();
    said
}

fn contents(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| String::from_utf8(fs::read(path).unwrap()).unwrap()).collect()
}

/// Each record takes 128 bytes.
const RECORD: u64 = 128;

#[test]
fn a_file_that_lost_a_record_is_set_aside_and_the_rest_replays() {
    let (rig, paths) = three("lost", |pool, _| pool.spoil(1, 64 + 64));
    for _ in 0..2 {
        let report = rig.recover(&none());
        assert_eq!(said(&report)[0], ("a", "set aside"), "{report:?}");
        let row = report.files.iter().find(|row| row.outcome == FileOutcome::SetAside).unwrap();
        assert!(row.reason.contains("a record of it in the log"), "{report:?}");
        // What stands behind the damage is whole, and is used.
        assert_eq!(contents(&paths), ["....", "12..", "12.."]);
    }
    let report = rig.recover(&RecoverOptions { discard: vec![paths[0].clone()], ..none() });
    assert_eq!(said(&report), [("a", "discarded")]);
    let report = rig.recover(&none());
    assert!(report.clean && report.damaged.is_empty(), "told once too often: {report:?}");
}

#[test]
fn a_file_of_which_nothing_is_left_is_set_aside_too() {
    let rig = Rig::new("nothing-left");
    let paths = ["a", "b"].map(|name| rig.file(name, b"...."));
    rig.crash(|pool| {
        let [a, b] = [0, 1].map(|slot| pool.take(slot, &paths[slot as usize], 0));
        pool.write(1, a, 0, b"1");
        pool.write(1, b, 0, b"1");
        pool.spoil(1, 64 + 64);
    });
    // The log is free again by the second time, and the file still has older bytes than it had.
    for _ in 0..2 {
        let report = rig.recover(&none());
        assert_eq!(said(&report)[0], ("a", "set aside"), "{report:?}");
        assert_eq!(contents(&paths), ["....", "1..."]);
    }
    let report = rig.recover(&RecoverOptions { force: vec![paths[0].clone()], ..none() });
    assert_eq!(said(&report), [("a", "already on disk")]);
    assert!(rig.recover(&none()).clean);
}

#[test]
fn where_no_header_tells_every_file_counts_that_may_have_been_there() {
    let (rig, paths) = three("header", |pool, _| {
        pool.seal(1);
        // Everything of it had expired.
        pool.slots().set_expired_seq(Slot::new(2), Seq::new(1 << 40));
        // The slot's generation, in the record's header.
        pool.blank(1, 64 + 16, 8);
    });
    let report = rig.recover(&none());
    assert_eq!(said(&report), [("a", "set aside"), ("b", "set aside")], "{report:?}");
    assert_eq!(contents(&paths), ["....", "....", "...."]);
}

#[test]
fn what_is_missing_before_a_seal_was_not_torn() {
    let spoil = |pool: &mut Writer, _: &[u64]| pool.spoil(1, 64 + 3 * RECORD + 64);
    let (rig, paths) = three("unsealed", spoil);
    assert!(rig.recover(&none()).damaged.is_empty());
    assert_eq!(contents(&paths), ["12..", "1...", "12.."], "a torn record");
    let (rig, paths) = three("sealed", |pool, ends| {
        pool.seal(1);
        spoil(pool, ends);
    });
    let report = rig.recover(&none());
    assert_eq!(said(&report), [("a", "replayed"), ("b", "set aside"), ("c", "replayed")], "{report:?}");
    assert_eq!(contents(&paths), ["12..", "....", "12.."]);
    // All of its records gone at once.
    let (rig, paths) = three("sealed-gone", |pool, ends| {
        pool.seal(1);
        pool.blank(1, 64, ends[3] as usize - 64);
    });
    let report = rig.recover(&none());
    assert!(said(&report).contains(&("a", "set aside")), "{report:?}");
    assert_eq!(contents(&paths)[..2], ["....", "...."]);
}

#[test]
fn the_seal_of_an_older_use_says_nothing() {
    for round in 0..20 {
        let rig = Rig::new("old-seal");
        let path = rig.file("a", b"....");
        rig.crash(|pool| {
            let file = pool.take(0, &path, 0);
            for _ in 0..20 {
                pool.write(1, file, 0, b"1");
            }
            pool.seal(1);
            for _ in 0..=round {
                pool.renew(1);
            }
            pool.write(1, file, 2, b"3");
        });
        let report = rig.recover(&none());
        assert!(report.damaged.is_empty(), "{report:?}");
        assert_eq!(outcomes(&report), ["replayed"]);
        assert_eq!(fs::read(&path).unwrap(), b"..3.");
    }
}

#[test]
fn a_segment_whose_beginning_is_gone_is_told_by_its_records() {
    let (rig, paths) = three("no-header", |pool, _| pool.blank(1, 0, 64));
    let report = rig.recover(&none());
    assert_eq!(report.damaged.len(), 1, "{report:?}");
    assert_eq!(outcomes(&report), ["replayed"; 3]);
    assert_eq!(contents(&paths), ["12.."; 3]);
    let (rig, paths) = three("no-beginning", |pool, _| pool.blank(1, 0, 64 + RECORD as usize));
    let report = rig.recover(&none());
    assert_eq!(said(&report), [("a", "set aside"), ("b", "set aside"), ("c", "set aside")], "{report:?}");
    assert_eq!(contents(&paths), ["...."; 3]);
    let (rig, _) = three("last-header", |pool, _| pool.blank(2, 0, 64));
    assert_eq!(outcomes(&rig.recover(&none())), ["replayed"; 3]);
}

#[test]
fn slots_that_were_exchanged_or_copied_are_damage() {
    for (name, exchange, expected) in [
        ("exchanged", true, [("#0", "set aside"), ("#1", "set aside"), ("c", "replayed")]),
        ("copied", false, [("#1", "set aside"), ("a", "replayed"), ("c", "replayed")]),
    ] {
        let (rig, paths) = three(name, |pool, _| {
            let layout = pool.layout();
            let places = [0, 1].map(|slot| layout.slot_offset(Slot::new(slot)));
            pool.mix(places, SLOT_BYTES as usize, exchange);
        });
        let report = rig.recover(&none());
        assert_eq!(said(&report), expected, "{report:?}");
        assert_eq!(contents(&paths)[1], "....");
    }
    // One word of it.
    let (rig, paths) = three("expired-copied", |pool, _| {
        pool.slots().set_expired_seq(Slot::new(0), Seq::new(1 << 40));
        let layout = pool.layout();
        pool.mix([0, 1].map(|slot| layout.slot_offset(Slot::new(slot)) + 320), 8, false);
    });
    let report = rig.recover(&none());
    assert!(said(&report).contains(&("b", "set aside")), "{report:?}");
    assert_eq!(contents(&paths), ["....", "....", "12.."]);
}

#[test]
fn segments_that_were_exchanged_are_damage() {
    let (rig, paths) = three("segments", |pool, _| {
        let layout = pool.layout();
        pool.mix(
            [1, 2].map(|segment| layout.segment_offset(Segment::new(segment))),
            SEGMENT_BYTES as usize,
            true,
        );
    });
    let report = rig.recover(&none());
    assert_eq!(said(&report), [("a", "set aside"), ("b", "set aside"), ("c", "set aside")], "{report:?}");
    assert_eq!(contents(&paths), ["...."; 3]);
}

#[test]
fn old_damage_costs_later_files_nothing() {
    let (rig, paths) = three("later", |pool, _| {
        // Of everybody, and what is left of it stays.
        pool.blank(1, 64 + 16, 8);
    });
    assert_eq!(outcomes(&rig.recover(&none())), ["set aside"; 3]);
    let later = rig.file("later", b"....");
    let start = rig.open().recover(&none(), &mut |_, _, _| ()).unwrap().0.counter_start;
    rig.crash(|pool| {
        let file = pool.jump(start).take(9, &later, 0);
        pool.write(5, file, 0, b"1");
    });
    let report = rig.recover(&none());
    let expected = [("a", "set aside"), ("b", "set aside"), ("c", "set aside"), ("later", "replayed")];
    assert_eq!(said(&report), expected, "{report:?}");
    assert_eq!(contents(&[later]), ["1..."]);
    drop(paths);
}
