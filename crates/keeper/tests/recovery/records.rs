//! Which records count: groups, cancels, truncations, expired and foreign ones, damage.

use holdfast_pool::{Segment, Seq, Slot};
use std::fs;

use holdfast_log::Kind;
use holdfast_recovery::{RecoverOptions, recover};

use super::support::Rig;
use super::{none, outcomes};

#[test]
fn acknowledged_writes_come_back_in_order() {
    let rig = Rig::new("replay");
    let path = rig.file("a", b"0123456789");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.write(1, file, 2, b"AAAA");
        pool.write(2, file, 4, b"BB");
        pool.write(1, file, 12, b"C");
    });
    let report = rig.recover(&none());
    assert_eq!(outcomes(&report), ["replayed"], "{report:?}");
    assert_eq!((report.records, report.bytes), (3, 7));
    assert_eq!(fs::read(&path).unwrap(), b"01AABB6789\0\0C");
    let again = rig.recover(&none());
    assert!(again.clean && again.files.is_empty(), "{again:?}");
}

#[test]
fn many_neighbouring_and_large_records_come_back() {
    let rig = Rig::new("large");
    let path = rig.file("a", b"");
    let block: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        for index in 0..6 {
            pool.write(1, file, index * 300_000, &block);
        }
    });
    rig.recover(&none());
    let found = fs::read(&path).unwrap();
    assert_eq!(found.len(), 1_800_000);
    assert!(found.chunks(300_000).all(|chunk| chunk == block));
}

#[test]
fn a_group_is_whole_or_void() {
    let rig = Rig::new("group");
    let (whole, torn) = (rig.file("whole", b""), rig.file("torn", b"old"));
    rig.crash(|pool| {
        let (a, b) = (pool.take(0, &whole, 0), pool.take(1, &torn, 0));
        let seq = pool.number();
        pool.member(1, a, seq, 0, b"abc", 0, 2);
        pool.member(2, a, seq, 3, b"def", 1, 2);
        let seq = pool.number();
        pool.member(1, b, seq, 0, b"abc", 0, 2);
    });
    let report = rig.recover(&none());
    assert_eq!(outcomes(&report), ["replayed"]);
    assert_eq!(fs::read(&whole).unwrap(), b"abcdef");
    assert_eq!(fs::read(&torn).unwrap(), b"old");
}

#[test]
fn cancelled_writes_count_as_far_as_they_got() {
    let rig = Rig::new("cancel");
    let path = rig.file("a", b"..........");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        let refused = pool.write(1, file, 0, b"XXXX");
        pool.cancel(2, file, refused, 0);
        let short = pool.write(1, file, 4, b"YYYY");
        pool.cancel(1, file, short, 2);
        let cut = pool.record(2, file, Kind::Truncate, 1, 0, b"");
        pool.cancel(2, file, cut, 0);
    });
    rig.recover(&none());
    assert_eq!(fs::read(&path).unwrap(), b"....YY....");
}

/// History 17: "ranges, then sizes" would leave the bytes that the cut removed.
#[test]
fn truncation_keeps_its_place_in_the_order() {
    let rig = Rig::new("truncate");
    let path = rig.file("a", b"");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.write(1, file, 0, b"abcdefgh");
        pool.record(1, file, Kind::Truncate, 3, 0, b"");
        pool.record(2, file, Kind::Truncate, 6, 0, b"");
        pool.write(1, file, 5, b"z");
        pool.record(1, file, Kind::Punch, 0, 1, b"");
    });
    rig.recover(&none());
    assert_eq!(fs::read(&path).unwrap(), b"\0bc\0\0z");
}

#[test]
fn expired_and_foreign_records_are_void() {
    let rig = Rig::new("expired");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let before = pool.take(0, &path, 0);
        pool.write(1, before, 0, b"1");
        pool.slots().release(Slot::new(0));
        let file = pool.take(0, &path, 0);
        let old = pool.write(1, file, 1, b"2");
        pool.slots().set_expired_seq(Slot::new(0), old);
        pool.write(1, file, 2, b"3");
    });
    rig.recover(&none());
    assert_eq!(fs::read(&path).unwrap(), b"..3.");
}

#[test]
fn a_group_that_expired_in_part_of_its_segments_stays_void() {
    let rig = Rig::new("expired-group");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        let seq = pool.number();
        pool.member(1, file, seq, 0, b"a", 0, 2);
        pool.member(2, file, seq, 1, b"b", 1, 2);
        pool.slots().set_expired_seq(Slot::new(0), seq);
        pool.renew(2);
    });
    let report = rig.recover(&none());
    assert!(report.files.is_empty() && report.damaged.is_empty());
    assert_eq!(fs::read(&path).unwrap(), b"....");
}

#[test]
fn a_reused_segment_holds_nothing_old() {
    let rig = Rig::new("reuse");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.write(1, file, 0, b"1");
        pool.write(1, file, 1, b"2");
        pool.renew(1);
        pool.write(1, file, 2, b"3");
    });
    let report = rig.recover(&none());
    assert!(report.damaged.is_empty(), "{report:?}");
    assert_eq!(fs::read(&path).unwrap(), b"..3.");
}

#[test]
fn damage_in_the_middle_is_reported_with_its_place() {
    let rig = Rig::new("damage");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.write(1, file, 0, b"1");
        pool.write(1, file, 1, b"2");
        pool.write(1, file, 2, b"3");
        pool.spoil(1, 64 + 128 + 64);
    });
    let report = rig.recover(&none());
    assert_eq!(report.damaged.len(), 1);
    assert!(report.damaged[0].contains("segment 1, byte 192"), "{:?}", report.damaged);
    assert_eq!(outcomes(&report), ["set aside"]);
    assert_eq!(fs::read(&path).unwrap(), b"....");
}

#[test]
fn a_torn_tail_is_no_damage() {
    let rig = Rig::new("torn");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.write(1, file, 0, b"1");
        pool.write(1, file, 1, b"2");
        pool.spoil(1, 64 + 128 + 64);
    });
    let report = rig.recover(&none());
    assert!(report.damaged.is_empty(), "{:?}", report.damaged);
    assert_eq!(fs::read(&path).unwrap(), b"1...");
}

#[test]
fn a_damaged_slot_is_reported_kept_and_exported() {
    let rig = Rig::new("slot-damage");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(5, &path, 0);
        pool.write(1, file, 0, b"1");
        pool.spoil_slot(5, 20);
    });
    let report = rig.recover(&none());
    assert_eq!(outcomes(&report), ["set aside"]);
    assert!(report.damaged.iter().any(|line| line.starts_with("slot 5")), "{report:?}");
    assert_eq!(fs::read(&path).unwrap(), b"....");
    let report = rig.recover(&RecoverOptions { discard: vec!["#5".into()], ..none() });
    assert_eq!(outcomes(&report), ["discarded"]);
    assert!(rig.recover(&none()).clean);
}

#[test]
fn a_damaged_in_use_mark_keeps_its_records() {
    let rig = Rig::new("mark-damage");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(5, &path, 0);
        pool.write(1, file, 0, b"1");
        pool.spoil_slot(5, 257);
    });
    let (recovered, report) = rig.open().recover(&none(), &mut |_, _, _| ()).unwrap();
    assert_eq!(outcomes(&report), ["set aside"]);
    assert_eq!(
        (recovered.set_aside_slots, recovered.pinned_segments),
        (vec![Slot::new(5)], vec![Segment::new(1)])
    );
}

/// A cleared error of the media leaves zeros: the slot looks as if it had never been used.
#[test]
fn a_slot_that_reads_as_zeros_keeps_its_records() {
    let rig = Rig::new("slot-zeros");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(5, &path, 0);
        pool.write(1, file, 0, b"1");
        pool.blank_slot(5);
    });
    for _ in 0..2 {
        let (recovered, report) = rig.open().recover(&none(), &mut |_, _, _| ()).unwrap();
        assert_eq!(outcomes(&report), ["set aside"]);
        assert!(report.files[0].reason.contains("its slot is blank"), "{report:?}");
        assert_eq!(
            (recovered.set_aside_slots, recovered.pinned_segments),
            (vec![Slot::new(5)], vec![Segment::new(1)])
        );
    }
    let report = rig.recover(&RecoverOptions { discard: vec!["#5".into()], ..none() });
    assert_eq!(outcomes(&report), ["discarded"]);
    assert!(rig.recover(&none()).clean);
}

/// History 3: no number is ever given out twice.
#[test]
fn the_counter_starts_above_everything() {
    let rig = Rig::new("counter");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.slots().release(Slot::new(0));
        pool.jump(Seq::new(700));
        pool.write(1, file, 0, b"a record that is not live");
    });
    let counter = |rig: &Rig| rig.open().recover(&none(), &mut |_, _, _| ()).unwrap().0.counter_start;
    assert_eq!(counter(&rig), Seq::new(702), "the segment took 700, the record 701");
    rig.crash(|pool| {
        pool.take(1, &path, 0);
        pool.slots().set_expired_seq(Slot::new(1), Seq::new(5000));
    });
    assert_eq!(counter(&rig), Seq::new(5001));
    rig.crash(|pool| pool.jump(Seq::new(9000)).renew(3));
    assert_eq!(counter(&rig), Seq::new(9001));
    rig.crash(|pool| {
        pool.jump(Seq::new(9500)).take(2, &path, 0);
        pool.slots().set_expired_seq(Slot::new(2), Seq::new(1));
    });
    assert_eq!(counter(&rig), Seq::new(9501));
}

#[test]
fn impossible_numbers_are_damage_not_a_panic() {
    let rig = Rig::new("hostile");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.member(1, file, Seq::MAX, 0, b"1", 0, 1);
        let mut wild = file;
        wild.slot = u32::MAX;
        pool.write(1, wild, 0, b"1");
        pool.write(1, file, u64::MAX - 1, b"far");
    });
    let report = rig.recover(&none());
    assert_eq!(report.damaged.len(), 2, "{report:?}");
    assert_eq!(outcomes(&report), ["put off"]);
}

/// A counter that starts just below the largest number would soon give out numbers that the next
/// recovery takes for damage: acknowledged writes would be dropped.
#[test]
fn a_counter_without_room_is_refused() {
    let rig = Rig::new("room");
    rig.crash(|pool| pool.jump(Seq::new(1 << 51)).renew(1));
    let error = recover(&rig.pool, &none(), &mut |_, _, _| ()).unwrap_err();
    assert!(error.to_string().contains("its counter cannot have reached"), "{error}");
}
