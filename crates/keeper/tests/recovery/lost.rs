//! New files that the crash took back, and crashes of the recovery that builds them again.

use std::fs;

use holdfast_pool::{HintKind, MARK_CREATED, MARK_VOID, Slot};

use crate::support::{Rig, parent};
use crate::{force, none, outcomes};

#[test]
fn a_new_file_that_the_crash_took_is_built_again() {
    let rig = Rig::new("rebuild");
    let path = rig.file("sub", b"");
    rig.crash(|pool| {
        let file = pool.take(7, &path, MARK_CREATED);
        pool.write(1, file, 0, b"journal");
        fs::remove_file(&path).unwrap();
    });
    let report = rig.recover(&none());
    assert_eq!(outcomes(&report), ["rebuilt"], "{report:?}");
    assert_eq!(fs::read(&path).unwrap(), b"journal");
    assert_eq!(rig.names(), ["sub"]);
    assert!(rig.recover(&none()).clean);
}

/// History 19, at each point at which recovery itself may crash.
#[test]
fn building_a_lost_file_survives_crashes_of_recovery() {
    for stage in 0..3 {
        let rig = Rig::new("rebuild-crash");
        let path = rig.file("a", b"");
        rig.crash(|pool| {
            let file = pool.take(7, &path, MARK_CREATED);
            pool.write(1, file, 0, b"journal");
            fs::remove_file(&path).unwrap();
            let uuid: String = pool.uuid()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            let temporary = rig.dir.join(format!(".holdfast-{uuid}-7"));
            match stage {
                // Before the mark: half a copy.
                0 => fs::write(&temporary, b"jou-garbage-of-an-earlier-try").unwrap(),
                // Marked, not named.
                1 => {
                    fs::write(&temporary, b"journal").unwrap();
                    pool.slots().mark_rebuilt(Slot::new(7));
                }
                // Named, not released; the file has another identity than the slot says.
                _ => {
                    fs::write(&path, b"journal").unwrap();
                    pool.slots().mark_rebuilt(Slot::new(7));
                }
            }
        });
        let report = rig.recover(&none());
        assert_eq!(outcomes(&report), ["rebuilt"], "stage {stage}: {report:?}");
        assert_eq!(fs::read(&path).unwrap(), b"journal", "stage {stage}");
        assert_eq!(rig.names(), ["a"], "stage {stage}");
        assert!(rig.recover(&none()).clean);
    }
}

#[test]
fn a_name_taken_while_a_file_is_rebuilt_is_left_alone() {
    let rig = Rig::new("rebuild-taken");
    let path = rig.file("a", b"");
    rig.crash(|pool| {
        let file = pool.take(7, &path, MARK_CREATED);
        pool.write(1, file, 0, b"journal");
        fs::remove_file(&path).unwrap();
        let uuid: String = pool.uuid()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(rig.dir.join(format!(".holdfast-{uuid}-7")), b"journal").unwrap();
        pool.slots().mark_rebuilt(Slot::new(7));
        fs::write(&path, b"somebody's").unwrap();
    });
    assert_eq!(outcomes(&rig.recover(&none())), ["set aside"]);
    assert_eq!(fs::read(&path).unwrap(), b"somebody's");
    assert_eq!(rig.names(), ["a"]);
    assert_eq!(outcomes(&rig.recover(&none())), ["set aside"]);
    assert_eq!(outcomes(&rig.recover(&force(&path))), ["replayed"]);
    assert_eq!(fs::read(&path).unwrap(), b"journaly's");
}

#[test]
fn a_lost_file_with_an_expired_part_is_not_half_rebuilt() {
    let rig = Rig::new("half");
    let path = rig.file("a", b"");
    rig.crash(|pool| {
        let file = pool.take(0, &path, MARK_CREATED);
        let first = pool.write(1, file, 0, b"first");
        pool.slots().set_expired_seq(Slot::new(0), first);
        pool.write(1, file, 5, b"second");
        fs::remove_file(&path).unwrap();
    });
    assert_eq!(outcomes(&rig.recover(&none())), ["set aside"]);
    assert!(rig.names().is_empty());
}

#[test]
fn a_lost_file_whose_new_name_is_taken_is_built_under_its_old_one() {
    let rig = Rig::new("atomic-replace");
    let (new, target) = (rig.file("config.tmp", b""), rig.file("config", b"old"));
    rig.crash(|pool| {
        let file = pool.take(0, &new, MARK_CREATED);
        pool.write(1, file, 0, b"new");
        pool.slots().push_hint(Slot::new(0), HintKind::Name, target.as_os_str().as_encoded_bytes(), None);
        fs::remove_file(&new).unwrap();
    });
    assert_eq!(outcomes(&rig.recover(&none())), ["rebuilt"]);
    assert_eq!(fs::read(&new).unwrap(), b"new");
    assert_eq!(fs::read(&target).unwrap(), b"old");
}

/// btrfs: the sync of a directory brings a renamed file's new name to disk, and its old one is
/// still there after a power cut. Found by power cuts of mail delivery: a message was in `tmp/` and
/// in `new/`.
#[test]
fn a_renamed_file_that_stands_at_both_names_keeps_the_new_one() {
    let rig = Rig::new("both-names");
    let (old, new) = (rig.file("tmp", b""), rig.dir.join("new"));
    let other = rig.file("other", b"");
    rig.crash(|pool| {
        let file = pool.take(0, &old, MARK_CREATED);
        pool.write(1, file, 0, b"mail");
        pool.slots().push_hint(Slot::new(0), HintKind::Rename, new.as_os_str().as_encoded_bytes(), None);
        fs::hard_link(&old, &new).unwrap();
        // Another file was created where it had been, and the crash took that.
        let later = pool.take(1, &other, MARK_CREATED);
        pool.slots().push_hint(Slot::new(1), HintKind::Name, old.as_os_str().as_encoded_bytes(), None);
        pool.write(1, later, 0, b"later");
        fs::remove_file(&other).unwrap();
    });
    assert_eq!(outcomes(&rig.recover(&none())), ["replayed", "rebuilt"]);
    assert_eq!(fs::read(&new).unwrap(), b"mail");
    assert_eq!(fs::read(&old).unwrap(), b"later");
}

#[test]
fn a_renamed_file_with_a_link_that_somebody_made_keeps_all_its_names() {
    let rig = Rig::new("three-names");
    let (old, new, third) = (rig.file("tmp", b""), rig.dir.join("new"), rig.dir.join("third"));
    rig.crash(|pool| {
        let file = pool.take(0, &old, MARK_CREATED);
        pool.write(1, file, 0, b"mail");
        pool.slots().push_hint(Slot::new(0), HintKind::Rename, new.as_os_str().as_encoded_bytes(), None);
        fs::hard_link(&old, &new).unwrap();
        fs::hard_link(&old, &third).unwrap();
    });
    assert_eq!(outcomes(&rig.recover(&none())), ["replayed"]);
    for path in [old, new, third] {
        assert_eq!(fs::read(&path).unwrap(), b"mail");
    }
}

#[test]
fn a_missing_directory_is_made_for_nobody_who_did_not_ask() {
    for (marks, outcome) in [(MARK_CREATED, "put off"), (0, "put off"), (MARK_VOID, "unlinked")] {
        let rig = Rig::new("orphaned");
        fs::create_dir_all(rig.dir.join("ab/cd")).unwrap();
        let path = rig.file("ab/cd/object", b"....");
        rig.crash(|pool| {
            let file = pool.take(0, &path, marks);
            pool.write(1, file, 0, b"1");
            fs::remove_dir_all(rig.dir.join("ab")).unwrap();
        });
        let report = rig.recover(&none());
        assert_eq!(outcomes(&report), [outcome], "{report:?}");
        assert!(rig.names().is_empty());
        if marks == MARK_CREATED {
            assert_eq!(outcomes(&rig.recover(&force(&path))), ["rebuilt"]);
            assert_eq!(fs::read(&path).unwrap(), b"1");
        }
    }
}

/// By handle, which only root may look for.
#[test]
fn a_lost_file_is_built_where_its_directory_is_now() {
    let rig = Rig::new("moved-directory");
    fs::create_dir(rig.dir.join("old")).unwrap();
    let path = rig.file("old/object", b"");
    rig.crash(|pool| {
        let file = pool.take(0, &path, MARK_CREATED);
        pool.write(1, file, 0, b"1");
        fs::remove_file(&path).unwrap();
        fs::rename(rig.dir.join("old"), rig.dir.join("new")).unwrap();
    });
    let report = rig.recover(&none());
    assert_eq!(outcomes(&report), ["rebuilt"], "{report:?}");
    assert_eq!(rig.names(), ["new"]);
    assert_eq!(fs::read(rig.dir.join("new/object")).unwrap(), b"1");
}

/// By whoever may not look for it by its handle, or where it is gone: the file keeps its records,
/// and its old name.
#[test]
fn a_rename_is_not_made_again_in_another_directory_of_the_same_path() {
    let rig = Rig::new("other-target");
    fs::create_dir(rig.dir.join("at")).unwrap();
    let (path, to) = (rig.file("a", b""), rig.dir.join("at/b"));
    rig.crash(|pool| {
        let file = pool.take(0, &path, MARK_CREATED);
        pool.write(1, file, 0, b"1");
        let known = parent(&to);
        pool.slots().push_hint(
            Slot::new(0),
            HintKind::Rename,
            to.as_os_str().as_encoded_bytes(),
            Some(&known),
        );
    });
    fs::create_dir(rig.dir.join("other")).unwrap();
    fs::remove_dir(rig.dir.join("at")).unwrap();
    fs::rename(rig.dir.join("other"), rig.dir.join("at")).unwrap();
    for _ in 0..2 {
        let report = rig.recover(&none());
        assert_eq!(outcomes(&report), ["put off"], "{report:?}");
        assert!(report.files[0].reason.contains("is not there"), "{report:?}");
        assert_eq!(fs::read(&path).unwrap(), b"");
    }
    assert_eq!(outcomes(&rig.recover(&force(&path))), ["replayed"]);
    assert_eq!(fs::read(&path).unwrap(), b"1");
    assert!(rig.recover(&none()).clean);
}

/// What is mounted there may only be missing: family 7.
#[test]
fn a_lost_file_is_not_built_in_another_directory_of_the_same_path() {
    let rig = Rig::new("other-directory");
    fs::create_dir(rig.dir.join("at")).unwrap();
    let path = rig.file("at/object", b"");
    rig.crash(|pool| {
        let file = pool.take(0, &path, MARK_CREATED);
        pool.write(1, file, 0, b"1");
        fs::remove_file(&path).unwrap();
        fs::rename(rig.dir.join("at"), rig.dir.join("away")).unwrap();
        fs::create_dir(rig.dir.join("at")).unwrap();
    });
    for _ in 0..2 {
        let report = rig.recover(&none());
        assert_eq!(outcomes(&report), ["put off"], "{report:?}");
        assert!(fs::read_dir(rig.dir.join("at")).unwrap().next().is_none());
    }
    fs::remove_dir(rig.dir.join("at")).unwrap();
    fs::rename(rig.dir.join("away"), rig.dir.join("at")).unwrap();
    assert_eq!(outcomes(&rig.recover(&none())), ["rebuilt"]);
    assert_eq!(fs::read(&path).unwrap(), b"1");
}
