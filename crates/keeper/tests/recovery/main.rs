//! Recovery against pools made with the real writers: what a crash may leave, and what must come of
//! it.
//!
//! A "crash" here is a pool that nobody closed; files that the crash took back are removed by hand.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use holdfast_log::Kind;
use holdfast_pool::{
    HintKind, MARK_CONFLICT, MARK_CREATED, MARK_SET_ASIDE, MARK_VOID, Mount, Slots, Stamp, Taken,
};
use holdfast_recovery::{RecoverOptions, Report, recover};

mod lost;
mod pools;
mod support;
use support::{Rig, pass, stamp};

fn none() -> RecoverOptions {
    RecoverOptions::default()
}

fn force(path: &Path) -> RecoverOptions {
    RecoverOptions { force: vec![path.to_owned()], ..none() }
}

fn outcomes(report: &Report) -> Vec<&str> {
    report.files.iter().map(|file| file.outcome.as_str()).collect()
}

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
        pool.slots().release(0);
        let file = pool.take(0, &path, 0);
        let old = pool.write(1, file, 1, b"2");
        pool.slots().set_expired_seq(0, old);
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
        pool.slots().set_expired_seq(0, seq);
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
    assert_eq!(fs::read(&path).unwrap(), b"1...");
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
fn a_renamed_file_is_found_under_each_of_its_names() {
    for (stands, name) in [(0, "old"), (1, "new")] {
        let rig = Rig::new("renamed");
        let (old, new) = (rig.file("old", b"...."), rig.dir.join("new"));
        rig.crash(|pool| {
            let file = pool.take(0, &old, 0);
            pool.write(1, file, 0, b"1");
            pool.slots().push_hint(0, HintKind::Name, new.as_os_str().as_encoded_bytes(), None);
            if stands == 1 {
                fs::rename(&old, &new).unwrap();
            }
        });
        assert_eq!(outcomes(&rig.recover(&none())), ["replayed"]);
        assert_eq!(fs::read(rig.dir.join(name)).unwrap(), b"1...");
        assert_eq!(rig.names(), [name]);
    }
}

#[test]
fn a_file_under_an_unknown_name_is_found_by_its_handle_or_set_aside() {
    let rig = Rig::new("by-handle");
    let (path, elsewhere) = (rig.file("a", b"...."), rig.dir.join("elsewhere"));
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.write(1, file, 0, b"1");
        fs::rename(&path, &elsewhere).unwrap();
    });
    let report = rig.recover(&none());
    match outcomes(&report)[..] {
        ["replayed"] => assert_eq!(fs::read(&elsewhere).unwrap(), b"1..."),
        ["set aside"] => assert_ne!(fs::metadata(&rig.pool).unwrap().uid(), 0, "root may open by handle"),
        _ => panic!("{report:?}"),
    }
}

/// xfs gives the handle of a file that a crash took to the next new one. Who was born at another
/// moment is somebody else, at the file's own path and elsewhere, and whatever the clock says.
#[test]
fn a_file_that_was_given_a_lost_ones_handle_is_left_alone() {
    for (marks, at, outcome) in [
        (MARK_CREATED, "a", "set aside"),
        (MARK_CREATED, "elsewhere", "rebuilt"),
        (MARK_VOID, "a", "unlinked"),
        (MARK_VOID, "elsewhere", "unlinked"),
    ] {
        for apart_ns in [-1, 1] {
            let rig = Rig::new("handle-twice");
            let (path, stranger) = (rig.file("a", b"theirs"), rig.dir.join(at));
            rig.crash(|pool| {
                let known = stamp(&path, true);
                let mount = Mount { id: 1, ..known.mount };
                let born_ns = known.born_ns.map(|born_ns| born_ns + apart_ns);
                let file = pool.take_with(0, &path, marks, Stamp { born_ns, mount, ..known });
                pool.write(1, file, 0, b"1");
                fs::rename(&path, &stranger).unwrap();
            });
            let report = rig.recover(&none());
            assert_eq!(outcomes(&report), [outcome], "{at}: {report:?}");
            assert_eq!(fs::read(&stranger).unwrap(), b"theirs", "{at}: {report:?}");
        }
    }
}

#[test]
fn another_file_at_the_path_is_not_written() {
    let rig = Rig::new("replaced");
    let path = rig.file("a", b"mine");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.write(1, file, 0, b"1");
        // The new file must not get the old one's inode and generation: it is made first.
        let new = rig.file("b", b"other");
        fs::rename(new, &path).unwrap();
    });
    let (recovered, report) = rig.open().recover(&none(), &mut |_, _, _| ()).unwrap();
    assert_eq!(outcomes(&report), ["set aside"]);
    assert!(report.files[0].reason.contains("another file stands"), "{report:?}");
    assert_eq!(recovered.set_aside_slots, [0]);
    assert_eq!(recovered.pinned_segments, [1]);
    drop(recovered);
    assert_eq!(fs::read(&path).unwrap(), b"other");
    assert_eq!(outcomes(&rig.recover(&force(&path))), ["replayed"]);
    assert_eq!(fs::read(&path).unwrap(), b"1ther");
    assert!(rig.recover(&none()).clean);
}

#[test]
fn a_file_changed_after_the_crash_waits_for_a_word() {
    let rig = Rig::new("changed");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.write(1, file, 0, b"1");
    });
    pass();
    fs::write(&path, "..!.").unwrap();
    let report = rig.recover(&none());
    assert_eq!(outcomes(&report), ["set aside"]);
    assert!(report.files[0].reason.contains("changed after the crash"));
    assert_eq!(fs::read(&path).unwrap(), b"..!.");
    // The decision stays, even though recovery has moved the heartbeat since.
    assert_eq!(outcomes(&rig.recover(&none())), ["set aside"]);
    let report = rig.recover(&force(&path));
    assert_eq!(outcomes(&report), ["replayed"]);
    assert_eq!(fs::read(&path).unwrap(), b"1.!.");
    assert!(rig.recover(&none()).clean);
}

/// A record of the test: a write of text, a cut, or a hole.
enum Had {
    Write(u64, &'static [u8]),
    Cut(u64),
    Hole(u64, u64),
}

/// After a sync by its program a file's times are later than anything that is known, and it holds
/// all that its records say: sizes and holes included.
#[test]
fn a_file_that_has_all_of_its_records_is_nobody_elses() {
    use Had::{Cut, Hole, Write};
    let ours: &[(&[Had], &[u8])] = &[
        (&[Cut(0), Write(0, b"new")], b"new"),
        (&[Write(6, b"far"), Cut(4)], b"....\0"),
        (&[Write(6, b"far"), Cut(4)], b"...."),
        (&[Cut(4), Cut(2), Cut(6), Write(5, b"z")], b"..\0\0\0z"),
        (&[Cut(2), Write(4, b"ab")], b"..\0\0ab"),
        (&[Cut(2), Write(4, b"ab")], b"....ab"),
        (&[Cut(2), Write(4, b"ab")], b"..\0\0abc"),
        (&[Write(0, b"abcd"), Hole(1, 2)], b"a\0\0d.."),
        (&[Write(0, b"abcd"), Hole(1, 2)], b"abcd.."),
        (&[Hole(1, 2), Write(0, b"abcd")], b"abcd.."),
        (&[Write(0, b"ab"), Write(1, b"cd")], b"acd"),
        (&[Write(0, b"ab"), Write(1, b"cd")], b"abd"),
    ];
    for (index, (had, holds)) in ours.iter().enumerate() {
        let rig = Rig::new("compared");
        let path = rig.file("a", b"......");
        rig.crash(|pool| {
            let file = pool.take(0, &path, 0);
            for had in *had {
                match *had {
                    Write(at, bytes) => pool.write(1, file, at, bytes),
                    Cut(size) => pool.record(1, file, Kind::Truncate, size, 0, b""),
                    Hole(at, bytes) => pool.record(1, file, Kind::Punch, at, bytes, b""),
                };
            }
        });
        pass();
        fs::write(&path, holds).unwrap();
        let report = rig.recover(&none());
        let is_ours = ![1, 5, 6, 8, 11].contains(&index);
        let outcome = if is_ours { "replayed" } else { "set aside" };
        assert_eq!(outcomes(&report), [outcome], "{index}: {report:?}");
        assert_eq!(fs::read(&path).unwrap(), *holds, "{index}");
    }
}

#[test]
fn a_conflict_is_set_aside_exported_and_discarded() {
    let rig = Rig::new("conflict");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(3, &path, MARK_CONFLICT);
        pool.write(1, file, 2, b"1");
    });
    let to = rig.dir.join("out");
    let report = rig.recover(&RecoverOptions { export: Some(to.clone()), ..none() });
    assert_eq!(outcomes(&report), ["set aside"]);
    assert_eq!(fs::read(to.join("3-a/data")).unwrap(), b"\0\x001");
    let rows: serde_json::Value =
        serde_json::from_slice(&fs::read(to.join("3-a/records.json")).unwrap()).unwrap();
    assert_eq!((&rows[0]["kind"], &rows[0]["offset"]), (&"write".into(), &2.into()));
    let info: serde_json::Value =
        serde_json::from_slice(&fs::read(to.join("3-a/info.json")).unwrap()).unwrap();
    assert_eq!(info["path"], path.to_str().unwrap());
    let report = rig.recover(&RecoverOptions { discard: vec![path.clone()], ..none() });
    assert_eq!(outcomes(&report), ["discarded"]);
    assert_eq!(fs::read(&path).unwrap(), b"....");
    assert!(rig.recover(&none()).clean);
}

#[test]
fn a_removed_file_that_came_back_is_removed_again() {
    let rig = Rig::new("void");
    let (path, linked) = (rig.file("a", b"old"), rig.file("b", b"old"));
    rig.crash(|pool| {
        let file = pool.take(0, &path, MARK_VOID);
        pool.write(1, file, 0, b"1");
        let file = pool.take(1, &linked, MARK_VOID);
        pool.write(1, file, 0, b"1");
        fs::hard_link(&linked, rig.dir.join("c")).unwrap();
    });
    let report = rig.recover(&none());
    assert_eq!(outcomes(&report), ["unlinked", "discarded"], "{report:?}");
    assert_eq!(rig.names(), ["b", "c"]);
    assert_eq!(fs::read(&linked).unwrap(), b"old");
    assert!(rig.recover(&none()).clean);
}

#[test]
fn an_announced_removal_is_made() {
    let rig = Rig::new("unlink");
    let (done, not_done) = (rig.file("done", b"...."), rig.file("not", b"...."));
    rig.crash(|pool| {
        for (slot, path) in [(0, &done), (1, &not_done)] {
            let file = pool.take(slot, path, MARK_CREATED);
            pool.write(1, file, 0, b"1");
            pool.slots().push_hint(slot, HintKind::Unlink, path.as_os_str().as_encoded_bytes(), None);
        }
        fs::remove_file(&done).unwrap();
    });
    let report = rig.recover(&none());
    assert_eq!(outcomes(&report), ["unlinked", "unlinked"], "{report:?}");
    assert!(rig.names().is_empty());
}

#[test]
fn a_name_that_was_removed_and_made_again_goes_to_the_newer_file() {
    let rig = Rig::new("reuse");
    let path = rig.file("a", b"old");
    rig.crash(|pool| {
        // Removed, and the crash brings it back; what was created under the name since is lost with
        // it.
        let old = pool.take(0, &path, 0);
        pool.write(1, old, 0, b"OLD");
        pool.slots().push_hint(0, HintKind::Unlink, path.as_os_str().as_encoded_bytes(), None);
        let other = rig.file("b", b"");
        let new = pool.take(1, &other, MARK_CREATED);
        pool.slots().push_hint(1, HintKind::Name, path.as_os_str().as_encoded_bytes(), None);
        pool.write(1, new, 0, b"new");
        fs::remove_file(&other).unwrap();
    });
    let report = rig.recover(&none());
    assert_eq!(outcomes(&report), ["unlinked", "rebuilt"], "{report:?}");
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn a_name_removed_from_a_file_with_another_one_loses_nothing() {
    let rig = Rig::new("links");
    let (a, b) = (rig.file("a", b"...."), rig.dir.join("b"));
    rig.crash(|pool| {
        let file = pool.take(0, &a, 0);
        fs::hard_link(&a, &b).unwrap();
        pool.slots().push_hint(0, HintKind::Name, b.as_os_str().as_encoded_bytes(), None);
        pool.write(1, file, 0, b"1");
        pool.slots().push_hint(0, HintKind::Unlink, a.as_os_str().as_encoded_bytes(), None);
        fs::remove_file(&a).unwrap();
    });
    assert_eq!(outcomes(&rig.recover(&none())), ["replayed"]);
    assert_eq!(fs::read(&b).unwrap(), b"1...");
}

/// Found by the fuzzer: the name that a hard link had left in the slot made a file whose last name
/// was removed one that a person had to decide about.
#[test]
fn a_removed_file_is_gone_though_its_slot_knows_a_link_that_was_removed_before() {
    let rig = Rig::new("links-gone");
    let (a, b) = (rig.file("a", b"...."), rig.dir.join("b"));
    rig.crash(|pool| {
        let file = pool.take(0, &a, 0);
        pool.slots().push_hint(0, HintKind::Name, b.as_os_str().as_encoded_bytes(), None);
        pool.write(1, file, 0, b"1");
        pool.slots().push_hint(0, HintKind::Unlink, a.as_os_str().as_encoded_bytes(), None);
        fs::remove_file(&a).unwrap();
    });
    assert_eq!(outcomes(&rig.recover(&none())), ["unlinked"]);
    assert!(rig.names().is_empty());
}

#[test]
fn a_directory_behind_a_link_is_not_entered() {
    let rig = Rig::new("linked");
    fs::create_dir(rig.dir.join("mount")).unwrap();
    let path = rig.file("mount/a", b"....");
    rig.crash(|pool| {
        let file = pool.take(0, &path, MARK_CREATED);
        pool.write(1, file, 0, b"1");
        fs::remove_file(&path).unwrap();
        fs::rename(rig.dir.join("mount"), rig.dir.join("real")).unwrap();
        symlink(rig.dir.join("real"), rig.dir.join("mount")).unwrap();
    });
    let report = rig.recover(&none());
    assert_eq!(outcomes(&report), ["put off"], "{report:?}");
    assert!(report.files[0].reason.contains("symbolic link"), "{report:?}");
    assert!(!rig.recover(&none()).clean);
    assert!(fs::read_dir(rig.dir.join("real")).unwrap().next().is_none());
}

#[test]
fn a_file_of_another_file_system_waits_for_it() {
    let rig = Rig::new("unmounted");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(0, &path, MARK_CREATED);
        pool.write(1, file, 0, b"1");
        let elsewhere = "/dev/shm/none/a";
        pool.slots().push_hint(0, HintKind::Name, elsewhere.as_bytes(), None);
        pool.slots().push_hint(0, HintKind::Name, elsewhere.as_bytes(), None);
        fs::remove_file(&path).unwrap();
    });
    assert_eq!(outcomes(&rig.recover(&none())), ["put off"]);
}

#[test]
fn one_files_failure_does_not_stop_the_others() {
    let rig = Rig::new("failure");
    let (bad, good) = (rig.file("bad", b"...."), rig.file("good", b"...."));
    rig.crash(|pool| {
        let file = pool.take(0, &bad, 0);
        pool.record(1, file, Kind::Truncate, u64::MAX, 0, b"");
        let file = pool.take(1, &good, 0);
        pool.write(2, file, 0, b"1");
    });
    let (recovered, report) = rig.open().recover(&none(), &mut |_, _, _| ()).unwrap();
    assert_eq!(outcomes(&report), ["put off", "replayed"]);
    assert_eq!((&recovered.set_aside_slots[..], &recovered.pinned_segments[..]), (&[0][..], &[1][..]));
    drop(recovered);
    assert_eq!(fs::read(&good).unwrap(), b"1...");
    let open = rig.open();
    let slots = Slots { nvm: open.mapping(), layout: &open.superblock().layout };
    assert!(slots.marks(0) & MARK_SET_ASIDE == 0 && slots.life(0).is_some() && slots.generation(1).is_none());
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
    assert_eq!((recovered.set_aside_slots, recovered.pinned_segments), (vec![5], vec![1]));
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
        assert_eq!((recovered.set_aside_slots, recovered.pinned_segments), (vec![5], vec![1]));
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
        pool.slots().release(0);
        pool.jump(700);
        pool.write(1, file, 0, b"a record that is not live");
    });
    let counter = |rig: &Rig| rig.open().recover(&none(), &mut |_, _, _| ()).unwrap().0.counter_start;
    assert_eq!(counter(&rig), 702, "the segment took 700, the record 701");
    rig.crash(|pool| {
        pool.take(1, &path, 0);
        pool.slots().set_expired_seq(1, 5000);
    });
    assert_eq!(counter(&rig), 5001);
    rig.crash(|pool| pool.jump(9000).renew(3));
    assert_eq!(counter(&rig), 9001);
    rig.crash(|pool| {
        pool.jump(9500).take(2, &path, 0);
        pool.slots().set_expired_seq(2, 1);
    });
    assert_eq!(counter(&rig), 9501);
}

#[test]
fn impossible_numbers_are_damage_not_a_panic() {
    let rig = Rig::new("hostile");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.member(1, file, u64::MAX, 0, b"1", 0, 1);
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
    rig.crash(|pool| pool.jump(1 << 51).renew(1));
    let error = recover(&rig.pool, &none(), &mut |_, _, _| ()).unwrap_err();
    assert!(error.message.contains("its counter cannot have reached"), "{error}");
}

/// The keeper stores one form of a path. Another one could lead out of where it seems to lead.
#[test]
fn a_path_with_dots_is_followed_nowhere() {
    let rig = Rig::new("dots");
    let path = rig.file("a", b"....");
    fs::create_dir(rig.dir.join("d")).unwrap();
    rig.crash(|pool| {
        let file = pool.take(0, &path, MARK_CREATED);
        pool.write(1, file, 0, b"1");
        for form in ["d/../new", "./new", "d//new", "new/"] {
            let mut hint = rig.dir.as_os_str().as_encoded_bytes().to_vec();
            hint.extend_from_slice(b"/");
            hint.extend_from_slice(form.as_bytes());
            pool.slots().push_hint(0, HintKind::Name, &hint, None);
        }
        fs::remove_file(&path).unwrap();
    });
    assert_eq!(outcomes(&rig.recover(&none())), ["put off"]);
    assert_eq!(rig.names(), ["d"]);
}

/// ext4 opens a handle whose generation is zero whatever the file's is; such a handle is no
/// identity.
#[test]
fn a_handle_of_any_generation_names_no_file() {
    let rig = Rig::new("handle");
    let (path, other) = (rig.file("a", b"...."), rig.file("b", b"...."));
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        let mut identity = pool.slots().identity(0).unwrap();
        identity.handle[4..8].fill(0);
        let ownership = pool.slots().ownership(0).unwrap();
        let path = other.as_os_str().as_encoded_bytes();
        let taken = Taken { identity: &identity, ownership, marks: 0, path, parent: None, stamp: None };
        pool.slots().take(0, file.generation, &taken);
        pool.write(1, file, 0, b"1");
    });
    assert_eq!(outcomes(&rig.recover(&none())), ["set aside"]);
    assert_eq!((fs::read(path).unwrap(), fs::read(other).unwrap()), (b"....".to_vec(), b"....".to_vec()));
}

/// A path that two files had meant both of them.
#[test]
fn a_file_whose_path_others_had_is_named_by_its_number() {
    let rig = Rig::new("named");
    let (old, new) = (rig.file("old", b"...."), rig.file("new", b"...."));
    let path = rig.dir.join("a");
    rig.crash(|pool| {
        for (slot, file) in [(3, &old), (4, &new)] {
            let taken = pool.take(slot, file, MARK_CONFLICT);
            let bytes = slot.to_string();
            pool.write(1, taken, 0, bytes.as_bytes());
            for _ in 0..2 {
                pool.slots().push_hint(slot, HintKind::Name, path.as_os_str().as_encoded_bytes(), None);
            }
        }
    });
    let report = rig.recover(&none());
    assert_eq!(outcomes(&report), ["set aside", "set aside"]);
    let named: Vec<&str> = report.files.iter().map(|file| &*file.named).collect();
    assert_eq!(named, ["#3", "#4"]);
    for options in [force(&path), RecoverOptions { discard: vec![path.clone()], ..none() }] {
        let error = recover(&rig.pool, &options, &mut |_, _, _| ()).unwrap_err();
        for words in ["a is the name of several files", "'#3' (1 records)", "'#4'", "nothing was changed"] {
            assert!(error.message.contains(words), "{error}");
        }
    }
    let report = rig.recover(&force(Path::new("#3")));
    assert_eq!(outcomes(&report), ["replayed", "set aside"], "{report:?}");
    assert_eq!((fs::read(&old).unwrap(), fs::read(&new).unwrap()), (b"3...".to_vec(), b"....".to_vec()));
    // It is the only one now.
    assert_eq!(rig.recover(&none()).files[0].named, path.to_str().unwrap());
    assert_eq!(outcomes(&rig.recover(&force(&path))), ["replayed"]);
    assert_eq!(fs::read(&new).unwrap(), b"4...");
    assert!(rig.recover(&none()).clean);
}

/// Where it is now is no name that its slot has: `--force` did not know it.
#[test]
fn a_file_that_was_moved_is_named_as_its_slot_knows_it() {
    let rig = Rig::new("moved-name");
    let (path, moved) = (rig.file("a", b"...."), rig.dir.join("moved"));
    rig.crash(|pool| {
        let file = pool.take(0, &path, MARK_CONFLICT);
        pool.write(1, file, 0, b"1");
        fs::rename(&path, &moved).unwrap();
    });
    let report = rig.recover(&none());
    assert_eq!((outcomes(&report), &*report.files[0].named), (vec!["set aside"], path.to_str().unwrap()));
    assert_eq!(outcomes(&rig.recover(&force(Path::new(&report.files[0].named)))), ["replayed"]);
    assert_eq!(fs::read(&moved).unwrap(), b"1...");
}

#[test]
fn a_dry_run_tells_and_changes_nothing() {
    let rig = Rig::new("dry");
    let (path, void, lost) = (rig.file("a", b"...."), rig.file("b", b"...."), rig.file("c", b""));
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.write(1, file, 0, b"1");
        pool.take(1, &void, MARK_VOID);
        let file = pool.take(2, &lost, MARK_CREATED);
        pool.write(1, file, 0, b"1");
        fs::remove_file(&lost).unwrap();
    });
    let before = fs::read(&rig.pool).unwrap();
    let to = rig.dir.join("out");
    let options = RecoverOptions { dry_run: true, export: Some(to.clone()), ..none() };
    let report = rig.recover(&options);
    assert_eq!(outcomes(&report), ["replayed", "unlinked", "rebuilt"]);
    assert!(fs::read(&rig.pool).unwrap() == before, "the pool was changed");
    assert_eq!(rig.names(), ["a", "b", "out"]);
    assert_eq!(fs::read(&path).unwrap(), b"....");
    assert_eq!(fs::read(to.join("0-a/data")).unwrap(), b"1");
}

#[test]
fn recovering_the_same_log_twice_gives_the_same_files() {
    let rig = Rig::new("twice");
    let path = rig.file("a", b"0123456789");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.write(1, file, 8, b"abcdef");
        pool.record(1, file, Kind::Truncate, 4, 0, b"");
        pool.write(1, file, 6, b"x");
    });
    let before = fs::read(&rig.pool).unwrap();
    rig.recover(&none());
    let once = fs::read(&path).unwrap();
    assert_eq!(once, b"0123\0\0x");
    fs::write(&rig.pool, &before).unwrap();
    assert_eq!(outcomes(&rig.recover(&none())), ["replayed"]);
    assert_eq!(fs::read(&path).unwrap(), once);
}

/// Not a test of its own: [`recovery_killed_at_every_write_is_taken_up_again`] runs it in a process
/// that dies.
#[test]
fn child_that_dies_in_recovery() {
    let Ok(pool) = std::env::var("HOLDFAST_TEST_POOL") else { return };
    let mut left: u32 = std::env::var("HOLDFAST_TEST_WRITES").unwrap().parse().unwrap();
    recover(Path::new(&pool), &none(), &mut |stage, _, _| {
        if stage == "replaying" {
            if left == 0 {
                std::process::abort();
            }
            left -= 1;
        }
    })
    .unwrap();
}

/// Invariant 8. The first crash lies more than the slack in the past, so that recovery's own
/// changes of the files look late to the second run; one more file was changed by somebody else and
/// must not slip in with them.
#[test]
fn recovery_killed_at_every_write_is_taken_up_again() {
    let rig = Rig::new("killed");
    let paths: Vec<_> = (0..4).map(|index| rig.file(&format!("f{index}"), b"")).collect();
    let foreign = rig.file("foreign", b"");
    rig.crash(|pool| {
        for (slot, path) in (0..).zip(&paths) {
            let file = pool.take(slot, path, 0);
            pool.write(1, file, 0, b"first");
            pool.write(2, file, 100, b"second");
            pool.record(1, file, Kind::Truncate, 102, 0, b"");
        }
        let file = pool.take(9, &foreign, 0);
        pool.write(3, file, 0, b"first");
    });
    std::thread::sleep(std::time::Duration::from_millis(3300));
    fs::write(&foreign, b"theirs").unwrap();
    for writes in 0..20 {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_dies_in_recovery"])
            .env("HOLDFAST_TEST_POOL", &rig.pool)
            .env("HOLDFAST_TEST_WRITES", writes.to_string())
            .output()
            .unwrap();
        if child.status.success() {
            assert!(writes > 1, "no crash was tried");
            break;
        }
    }
    for path in &paths {
        let found = fs::read(path).unwrap();
        assert_eq!((found.len(), &found[..5], &found[100..]), (102, &b"first"[..], &b"se"[..]));
    }
    assert_eq!(fs::read(&foreign).unwrap(), b"theirs");
    assert_eq!(outcomes(&rig.recover(&none())), ["set aside"]);
}
