//! What a directory's real sync leaves of the changes before it: nothing that could hide a later
//! one.

use super::*;

/// The slot of a removed file was looked at only after a real sync of its directory had covered the
/// removal. That was then taken off once more, and hid the next removal of the name, which no slot
/// held.
#[test]
fn a_removal_that_a_real_sync_covered_hides_no_other() {
    let house = house("hides-no-other", NEVER_MS);
    let directory = File::open(house.directory.path()).unwrap();
    let path = house.directory.path().join("a");
    let (file, place) = house.create("a");
    write_at(&house.client, place, &file, 0, b"a");
    assert_eq!(sync_directory(&house, &directory), "real");
    let name = std::ffi::CString::new(path.clone().into_os_string().into_encoded_bytes()).unwrap();
    let removal = house.client.unlinking(place, -100, &name).unwrap();
    std::fs::remove_file(&path).unwrap();
    house.client.unlinked(place, removal, true);
    house.client.note_change(directory.metadata().unwrap().dev());
    assert_eq!(sync_directory(&house, &directory), "real");
    house.commit();
    let (again, fresh) = house.create("a");
    write_at(&house.client, fresh, &again, 0, b"again");
    assert_eq!(sync_directory(&house, &directory), "absorbed");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(sync_directory(&house, &directory), "real", "somebody else removed it");
}

/// A removal that no slot holds, because something else was pending, left the slot to a file
/// without a name. What its program wrote to it afterwards was logged, and a crash later recovery
/// missed the file, or found another one at its name.
#[test]
fn a_file_without_a_name_is_logged_no_more() {
    for is_written in [false, true] {
        let house = house("nameless", NEVER_MS);
        let path = house.directory.path().join("a");
        let (file, place) = house.create("a");
        write_at(&house.client, place, &file, 0, b"a");
        house.commit();
        house.client.note_change(file.metadata().unwrap().dev());
        let name = std::ffi::CString::new(path.clone().into_os_string().into_encoded_bytes()).unwrap();
        let removal = house.client.unlinking(place, -100, &name).unwrap();
        assert_eq!(removal, holdfast_cache::Removal::Counted);
        std::fs::remove_file(&path).unwrap();
        if is_written {
            // By another thread, which is not done with it.
            write_at(&house.client, place, &file, 0, b"b");
        }
        house.client.unlinked(place, removal, true);
        assert!(!house.client.is_current(place), "its slot is free");
    }
}

/// A round gave the slot the name that the file has now, before anybody had heard who gave it that
/// name: then it was nobody's, and the next sync was absorbed though a crash took the move back.
#[test]
fn a_move_that_a_round_comes_upon_is_pending() {
    let house = house("come-upon", NEVER_MS);
    let directory = File::open(house.directory.path()).unwrap();
    let (file, place) = house.create("a");
    write_at(&house.client, place, &file, 0, b"a");
    house.commit();
    let board = house.client.board();
    let ledger = board.header().ledger(directory.metadata().unwrap().dev()).unwrap();
    assert!(ledger.is_clean());
    // As an outsider would of whom nobody has heard.
    std::fs::rename(house.directory.path().join("a"), house.directory.path().join("b")).unwrap();
    house.client.directory_renamed();
    assert!(!ledger.is_clean());
}
