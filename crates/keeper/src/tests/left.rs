//! What a slot says of how a file in state Behind was left: recovery tells by it who wrote to the
//! file behind the death of its program and keeper.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use holdfast_board::FileState;
use holdfast_cache::{FileRef, Place};
use holdfast_media::{Mapping, OpenMode};
use holdfast_pool::{Left, LeftAt, Slots};

use super::behind::{Program, behind_house, state};
use super::{House, NEVER_MS, errno};

fn said(house: &House, place: FileRef) -> Left {
    let file = File::open(&*house.pool).unwrap();
    let (nvm, _) =
        Mapping::open_fd(std::os::fd::AsFd::as_fd(&file), &house.pool, OpenMode::ReadOnly).unwrap();
    let layout = &holdfast_pool::open(&nvm).unwrap().layout;
    Slots { nvm: &nvm, layout }.left(place.slot)
}

fn is(file: &File) -> Left {
    let meta = file.metadata().unwrap();
    let us = |seconds: i64, ns: i64| (seconds * 1_000_000 + ns / 1000) as u64;
    Left::At(LeftAt {
        changed_us: us(meta.ctime(), meta.ctime_nsec()),
        modified_us: us(meta.mtime(), meta.mtime_nsec()),
    })
}

#[test]
fn the_slot_says_how_a_call_of_the_programs_own_left_a_file() {
    let house = behind_house("left", NEVER_MS, 64);
    let (file, place) = house.create("a");
    let (program, client) = (Program::new(&house.client, place, &file), &house.client);
    let cut = || assert!(client.truncate(place, 5000, || file.set_len(5000).map_err(errno)).is_ok());
    let punch = || {
        let raw = || file.write_all_at(&[0; 4096], 0).map_err(errno);
        assert!(client.punch(place, 0, 4096, raw).is_ok());
    };
    let write = || assert_eq!(program.write(Place::At(0), &vec![b'l'; 3 << 20]), 0);
    // Nothing of it changes the file, so nothing is forgotten.
    let look = || client.bring_to_kernel(place).unwrap();
    let calls: [(&str, &dyn Fn()); 4] =
        [("cut", &cut), ("punch", &punch), ("write", &write), ("look", &look)];
    for (name, call) in calls {
        program.write(Place::At(0), &[b'a'; 9000]);
        assert!(client.board().files()[place.slot.index()].page_rows().get() > 0, "{name}");
        call();
        assert_eq!(state(client, place), FileState::Behind, "{name}");
        assert_eq!(said(&house, place), is(&file), "{name}");
    }
}
