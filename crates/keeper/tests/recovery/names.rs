//! Which file is meant: by its names, its handle and its number.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use holdfast_pool::{HintKind, MARK_CONFLICT, MARK_CREATED, MARK_VOID, Mount, Segment, Slot, Stamp, Taken};
use holdfast_recovery::{RecoverOptions, recover};

use super::support::{Rig, stamp};
use super::{force, none, outcomes};

#[test]
fn a_renamed_file_is_found_under_each_of_its_names() {
    for (stands, name) in [(0, "old"), (1, "new")] {
        let rig = Rig::new("renamed");
        let (old, new) = (rig.file("old", b"...."), rig.dir.join("new"));
        rig.crash(|pool| {
            let file = pool.take(0, &old, 0);
            pool.write(1, file, 0, b"1");
            pool.slots().push_hint(Slot::new(0), HintKind::Name, new.as_os_str().as_encoded_bytes(), None);
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
    assert_eq!(recovered.set_aside_slots, [Slot::new(0)]);
    assert_eq!(recovered.pinned_segments, [Segment::new(1)]);
    drop(recovered);
    assert_eq!(fs::read(&path).unwrap(), b"other");
    assert_eq!(outcomes(&rig.recover(&force(&path))), ["replayed"]);
    assert_eq!(fs::read(&path).unwrap(), b"1ther");
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
            pool.slots().push_hint(
                Slot::new(slot),
                HintKind::Unlink,
                path.as_os_str().as_encoded_bytes(),
                None,
            );
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
        pool.slots().push_hint(Slot::new(0), HintKind::Unlink, path.as_os_str().as_encoded_bytes(), None);
        let other = rig.file("b", b"");
        let new = pool.take(1, &other, MARK_CREATED);
        pool.slots().push_hint(Slot::new(1), HintKind::Name, path.as_os_str().as_encoded_bytes(), None);
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
        pool.slots().push_hint(Slot::new(0), HintKind::Name, b.as_os_str().as_encoded_bytes(), None);
        pool.write(1, file, 0, b"1");
        pool.slots().push_hint(Slot::new(0), HintKind::Unlink, a.as_os_str().as_encoded_bytes(), None);
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
        pool.slots().push_hint(Slot::new(0), HintKind::Name, b.as_os_str().as_encoded_bytes(), None);
        pool.write(1, file, 0, b"1");
        pool.slots().push_hint(Slot::new(0), HintKind::Unlink, a.as_os_str().as_encoded_bytes(), None);
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
            pool.slots().push_hint(Slot::new(0), HintKind::Name, &hint, None);
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
        let mut identity = pool.slots().identity(Slot::new(0)).unwrap();
        identity.handle[4..8].fill(0);
        let ownership = pool.slots().ownership(Slot::new(0)).unwrap();
        let path = other.as_os_str().as_encoded_bytes();
        let taken = Taken { identity: &identity, ownership, marks: 0, path, parent: None, stamp: None };
        pool.slots().take(Slot::new(0), file.generation, &taken);
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
                pool.slots().push_hint(
                    Slot::new(slot),
                    HintKind::Name,
                    path.as_os_str().as_encoded_bytes(),
                    None,
                );
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
            assert!(error.to_string().contains(words), "{error}");
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
