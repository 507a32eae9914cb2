//! Recovery against pools made with the real writers: what a crash may leave, and what must come of
//! it.
//!
//! A "crash" here is a pool that nobody closed; files that the crash took back are removed by hand.

use std::fs;
use std::path::Path;
use std::process::Command;

use holdfast_log::Kind;
use holdfast_pool::{HintKind, MARK_CONFLICT, MARK_CREATED, MARK_SET_ASIDE, MARK_VOID, Segment, Slot, Slots};
use holdfast_recovery::{RecoverOptions, Report, recover};

mod damage;
mod lost;
mod names;
mod pools;
mod records;
mod support;

use support::{Rig, pass};

fn none() -> RecoverOptions {
    RecoverOptions::default()
}

fn force(path: &Path) -> RecoverOptions {
    RecoverOptions { force: vec![path.to_owned()], ..none() }
}

fn outcomes(report: &Report) -> Vec<&'static str> {
    report.files.iter().map(|file| file.outcome.words()).collect()
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
fn a_file_of_another_file_system_waits_for_it() {
    let rig = Rig::new("unmounted");
    let path = rig.file("a", b"....");
    rig.crash(|pool| {
        let file = pool.take(0, &path, MARK_CREATED);
        pool.write(1, file, 0, b"1");
        let elsewhere = "/dev/shm/none/a";
        pool.slots().push_hint(Slot::new(0), HintKind::Name, elsewhere.as_bytes(), None);
        pool.slots().push_hint(Slot::new(0), HintKind::Name, elsewhere.as_bytes(), None);
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
    assert_eq!(
        (&recovered.set_aside_slots[..], &recovered.pinned_segments[..]),
        (&[Slot::new(0)][..], &[Segment::new(1)][..])
    );
    drop(recovered);
    assert_eq!(fs::read(&good).unwrap(), b"1...");
    let open = rig.open();
    let slots = Slots { nvm: open.mapping(), layout: &open.superblock().layout };
    assert!(
        slots.marks(Slot::new(0)) & MARK_SET_ASIDE == 0
            && slots.life(Slot::new(0)).is_some()
            && slots.generation(Slot::new(1)).is_none()
    );
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
