//! What is refused as a pool, who owns one, and what formatting spares.

use holdfast_pool::SUPERBLOCK_COPY_OFFSET;
use std::fs;
use std::path::Path;

use holdfast_recovery::{OpenPool, RecoverOptions, mapped_by, recover};

use crate::none;
use crate::support::Rig;

#[test]
fn a_pool_in_use_names_its_owner() {
    let rig = Rig::new("busy");
    let _owner = rig.open();
    for dry_run in [false, true] {
        let error = recover(&rig.pool, &RecoverOptions { dry_run, ..none() }, &mut |_, _, _| ()).unwrap_err();
        assert!(error.is_busy());
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    }
}

#[test]
fn bad_pools_are_refused_with_a_reason() {
    let rig = Rig::new("bad");
    let refused = |path: &Path| OpenPool::open(path, true).err().expect("refused").to_string();
    assert!(refused(&rig.pool.with_extension("none")).contains("holdfast format"));
    assert!(refused(Path::new("/dev/shm")).contains("directory"));
    assert!(OpenPool::open(&rig.pool, false).err().expect("volatile").to_string().contains("--volatile"));
    let whole = fs::read(&rig.pool).unwrap();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&rig.pool, bytes).unwrap();
        refused(&rig.pool)
    };
    assert!(with(&|bytes| bytes.clear()).contains("empty"));
    assert!(with(&|bytes| bytes.truncate(100)).contains("not a Holdfast pool"));
    // The copy stands for a superblock that is damaged alone.
    let both = |at: usize, value: u8| {
        with(&move |bytes| {
            [0, SUPERBLOCK_COPY_OFFSET].into_iter().for_each(|base| bytes[base as usize + at] = value)
        })
    };
    assert!(both(0, 0).contains("not a Holdfast pool"));
    assert!(both(8, 9).contains("damaged"));
    assert!(both(40, 1).contains("damaged"));
    let other_version = |bytes: &mut Vec<u8>| {
        bytes[8] = 9;
        let sum = crc32c::crc32c(&bytes[..124]);
        bytes[124..128].copy_from_slice(&sum.to_le_bytes());
    };
    assert!(with(&other_version).contains("version 9"));
    assert!(with(&|bytes| bytes.truncate(1 << 20)).contains("truncated"));
}

#[test]
fn formatting_spares_what_may_be_needed() {
    let rig = Rig::new("format");
    let path = rig.file("a", b"....");
    let format =
        |force, volatile| holdfast_recovery::format(&rig.pool, 16 << 20, volatile, force, &mut |_, _| ());
    format(false, true).expect("a clean pool may be made anew");
    rig.crash(|pool| {
        let file = pool.take(0, &path, 0);
        pool.write(1, file, 0, b"1");
    });
    assert!(format(false, true).unwrap_err().to_string().contains("holdfast recover"));
    assert!(format(true, false).unwrap_err().to_string().contains("--volatile"));
    let owner = rig.open();
    assert!(format(true, true).unwrap_err().is_busy());
    drop(owner);
    format(true, true).unwrap();
    assert!(rig.recover(&none()).clean);
    fs::write(&rig.pool, b"a letter").unwrap();
    assert!(format(false, true).unwrap_err().to_string().contains("--force"));
}

#[test]
fn who_maps_a_pool_is_known() {
    let rig = Rig::new("mapped");
    let _ours = rig.open();
    assert!(mapped_by(&rig.pool).is_empty(), "this process does not count");
    let library = fs::read_to_string("/proc/1/maps")
        .ok()
        .and_then(|maps| maps.lines().find_map(|line| line.split_whitespace().nth(5).map(str::to_owned)));
    if let Some(library) = library.filter(|path| Path::new(path).is_file()) {
        assert!(mapped_by(Path::new(&library)).contains(&1), "{library}");
    }
}
