//! Renames over other files, as slots hold them.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

use holdfast_cache::{Errno, FileRef, Named, Renaming};

use super::{House, NEVER_MS, errno, house, sync_directory, write_at};

/// Renames a file over another one, which the cache has or not; `amid` happens before the call.
fn rename_over(
    house: &House,
    (named, target): (FileRef, Option<FileRef>),
    names: [&str; 2],
    amid: impl Fn(),
) -> Result<Named, Errno> {
    let [from, to] = names.map(|name| house.directory.path().join(name));
    let name = std::ffi::CString::new(to.clone().into_os_string().into_encoded_bytes()).unwrap();
    let (device, to_name) = (house.directory.path().metadata().unwrap().dev(), (-100, name.as_c_str()));
    let renaming = Renaming {
        named: Some(named),
        target,
        device,
        to: to_name,
        to_free: false,
        to_taken: true,
        back: None,
    };
    let calls = Cell::new(0);
    let done = house.client.renaming(renaming, |_| {
        amid();
        calls.set(calls.get() + 1);
        std::fs::rename(&from, &to).map_err(errno)
    });
    assert_eq!(calls.get(), 1);
    done.unwrap()
}

#[test]
fn a_slot_holds_the_rename_of_a_new_file_over_another() {
    let house = house("over", NEVER_MS);
    let directory = File::open(house.directory.path()).unwrap();
    std::fs::write(house.directory.path().join("a"), "old").unwrap();
    let (first, place) = house.create("b");
    write_at(&house.client, place, &first, 0, b"first");
    assert_eq!(sync_directory(&house, &directory), "real");
    assert_eq!(rename_over(&house, (place, None), ["b", "a"], || ()), Ok(Named::Held));
    assert_eq!(sync_directory(&house, &directory), "absorbed", "recovery would rename it again");
    assert_eq!(house.replayed(place), b"first");
    // Over the one that was renamed there just now.
    let (second, next) = house.create("b");
    write_at(&house.client, next, &second, 0, b"second");
    assert_eq!(rename_over(&house, (next, Some(place)), ["b", "a"], || ()), Ok(Named::Held));
    assert_eq!(sync_directory(&house, &directory), "absorbed");
    assert_eq!(house.replayed(next), b"second");
    assert_eq!(std::fs::read(house.directory.path().join("a")).unwrap(), b"second");
    let again = rename_over(&house, (next, None), ["a", "c"], || ());
    assert_eq!(again, Ok(Named::Settled), "a slot has two names");
}

#[test]
fn a_rename_beside_a_call_that_takes_names_is_settled() {
    let house = house("takings", NEVER_MS);
    let device = house.directory.path().metadata().unwrap().dev();
    let directory = File::open(house.directory.path()).unwrap();
    let ledger = || house.client.board().header().ledger(device).expect("it has files");
    ["a", "c", "e", "g"].iter().for_each(|name| {
        std::fs::write(house.directory.path().join(name), "old").unwrap();
    });
    let over = |names: [&str; 2], amid: &dyn Fn()| {
        let (file, place) = house.create(names[0]);
        write_at(&house.client, place, &file, 0, b"new");
        let named = rename_over(&house, (place, None), names, amid).unwrap();
        let replayed = house.replayed(place);
        // What is pending of it is none of the next one's.
        sync_directory(&house, &directory);
        (named, replayed)
    };
    assert_eq!(over(["b", "a"], &|| ()), (Named::Held, b"new".to_vec()));
    ledger().begin_taking();
    ledger().end_taking();
    assert_eq!(over(["d", "c"], &|| ()), (Named::Held, b"new".to_vec()), "it is over");
    // It began amid the call: the slot may say the wrong file.
    let begin = || ledger().begin_taking();
    assert_eq!(over(["f", "e"], &begin), (Named::Held, Vec::new()), "it is on the disk");
    // Last: without a journal nothing is held while this one is pending.
    assert_eq!(over(["h", "g"], &|| ()), (Named::Settled, Vec::new()), "one is under way");
}

/// Who asks for a settle has made the rename, wherever the file stands by then.
#[test]
fn a_file_that_others_move_on_at_once_is_settled() {
    let house = house("moved-on", NEVER_MS);
    let path = |name: &str| house.directory.path().join(name);
    let device = house.directory.path().metadata().unwrap().dev();
    std::fs::write(path("a"), "old").unwrap();
    let (file, place) = house.create("b");
    write_at(&house.client, place, &file, 0, b"new");
    sync_directory(&house, &File::open(house.directory.path()).unwrap());
    let name = std::ffi::CString::new(path("a").into_os_string().into_encoded_bytes()).unwrap();
    let to = (-100, name.as_c_str());
    let renaming =
        Renaming { named: Some(place), target: None, device, to, to_free: false, to_taken: true, back: None };
    let named = house.client.renaming(renaming, |_| {
        // A call that takes a name is under way, so the client has the file settled behind this.
        house.client.board().header().ledger(device).expect("it has files").begin_taking();
        std::fs::rename(path("b"), path("a"))
            .and_then(|()| std::fs::rename(path("a"), path("c")))
            .map_err(errno)
    });
    assert_eq!(named, Ok(Ok(Named::Held)));
    assert_eq!(house.replayed(place), b"", "it is on the disk");
}
