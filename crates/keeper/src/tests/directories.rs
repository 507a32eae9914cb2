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
