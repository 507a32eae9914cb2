//! A keeper and a client in one process: the write path from the client's call to the expired record, and the
//! property that matters most: what the log would replay is what the page cache holds.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use holdfast_cache::wire::{HELLO, Hello, WIRE_VERSION, Welcome};
use holdfast_cache::{Client, Errno, FileRef, Origin, Outcome, Place};
use holdfast_media::{Bytes, Mapping, OpenMode};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::config::{FenceChoice, KeeperConfig};

mod behind;
mod durable;

struct House {
    client: Client,
    pool: PathBuf,
    directory: tempfile::TempDir,
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.pool);
    }
}

fn house(name: &str, age_ms_max: u64) -> House {
    house_with(name, |config| config.age_ms_max = age_ms_max)
}

fn house_with(name: &str, configure: impl FnOnce(&mut KeeperConfig)) -> House {
    let pool = PathBuf::from(format!("/dev/shm/holdfast-test-{name}-{}.pool", std::process::id()));
    let _ = std::fs::remove_file(&pool);
    crate::recovery::format(&pool, 64 << 20, true, true, &mut |_, _| {}).unwrap();
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut config = KeeperConfig::new(pool.clone());
    config.volatile = true;
    config.exclusive = vec![directory.path().canonicalize().unwrap()];
    config.fence = FenceChoice::None;
    configure(&mut config);
    let (started, starts) = mpsc::channel();
    std::thread::spawn(move || {
        crate::serve(config, |socket, _| started.send(socket.to_owned()).unwrap()).unwrap();
    });
    let socket = starts.recv_timeout(Duration::from_secs(10)).unwrap();
    House { client: attach(&socket), pool, directory }
}

fn attach(socket: &Path) -> Client {
    let connection =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::connect(&connection, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    let hello = Hello { kind: HELLO, forked: 0, reserved: [0; 2], version: WIRE_VERSION.into() };
    rustix::net::send(&connection, hello.as_bytes(), SendFlags::empty()).unwrap();
    let mut answer = [0u8; size_of::<Welcome>()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut answer)];
    rustix::net::recvmsg(&connection, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let welcome = Welcome::read_from_bytes(&answer).unwrap();
    Client::attach(&welcome, descriptors[0].as_fd(), descriptors[1].as_fd()).unwrap()
}

fn errno(error: std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(5))
}

fn write_at(client: &Client, place: FileRef, file: &File, offset: u64, bytes: &[u8]) -> usize {
    let parts = [Bytes::from_slice(bytes)];
    let raw = || file.write_at(bytes, offset).map_err(errno);
    match client.write(place, Place::At(offset), &parts, raw, || Err(Errno(29))).unwrap() {
        Outcome::Absorbed { bytes, .. } => bytes,
        other => panic!("{other:?}"),
    }
}

impl House {
    fn create(&self, name: &str) -> (File, FileRef) {
        let path = self.directory.path().join(name);
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        let place = self.client.register(file.as_raw_fd(), Origin::Created, || true).unwrap().unwrap();
        (file, place)
    }

    /// What recovery would make of the file: its live records over an empty one.
    fn replayed(&self, place: FileRef) -> Vec<u8> {
        let (nvm, _) = Mapping::open(&self.pool, OpenMode::ReadOnly).unwrap();
        let superblock = holdfast_pool::open(&nvm).unwrap();
        let mut copy = tempfile::tempfile().unwrap();
        let handle = copy.try_clone().unwrap();
        let mut handle = Some(handle);
        crate::durable::replay_live(&nvm, &superblock, (place.slot, place.generation), &mut || {
            Ok(crate::disk::OsFile::from(handle.take().unwrap()))
        })
        .unwrap();
        let mut bytes = Vec::new();
        std::io::Seek::rewind(&mut copy).unwrap();
        copy.read_to_end(&mut bytes).unwrap();
        bytes
    }
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Never expires by itself within a test.
const NEVER_MS: u64 = 1_000_000;

#[test]
fn writes_reach_page_cache_and_log_alike() {
    let house = house("alike", NEVER_MS);
    let (file, place) = house.create("a");
    assert_eq!(write_at(&house.client, place, &file, 0, b"hello"), 5);
    assert_eq!(write_at(&house.client, place, &file, 100, &[7; 5000]), 5000);
    assert_eq!(write_at(&house.client, place, &file, 50, &vec![9; 3 << 20]), 3 << 20);
    assert_eq!(house.replayed(place), contents(&file));
    let seen = AtomicU32::new(0);
    house.client.sync(place, &seen, || panic!("a created file needs no real sync")).unwrap();
    house.client.truncate(place, 10, || file.set_len(10).map_err(errno)).unwrap();
    house.client.truncate(place, 90, || file.set_len(90).map_err(errno)).unwrap();
    assert_eq!(house.replayed(place), contents(&file));
}

#[test]
fn refused_and_short_writes_leave_no_trace_in_the_log() {
    let house = house("cancel", NEVER_MS);
    let (file, place) = house.create("a");
    write_at(&house.client, place, &file, 0, &[1; 8192]);
    let bytes = [2u8; 8192];
    let parts = [Bytes::from_slice(&bytes)];
    let refused = house.client.write(place, Place::At(0), &parts, || Err(Errno(28)), || Ok(0));
    assert_eq!(refused, Err(Errno(28)));
    let short = house.client.write(
        place,
        Place::At(0),
        &parts,
        || file.write_at(&bytes[..100], 0).map_err(errno),
        || Ok(0),
    );
    assert_eq!(short, Ok(Outcome::Absorbed { bytes: 100, offset: 0 }));
    assert_eq!(house.client.truncate(place, 0, || Err(Errno(27))), Err(Errno(27)));
    assert_eq!(house.replayed(place), contents(&file));
}

#[test]
fn racing_writers_leave_the_same_bytes_in_log_and_page_cache() {
    let house = house("racing", NEVER_MS);
    let (file, place) = house.create("a");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (client, file) = (&house.client, &file);
            scope.spawn(move || {
                let mut state = thread + 1;
                for round in 0..300u64 {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let offset = (state >> 33) % 60_000;
                    let length = 1 + (state >> 50) as usize % 12_000;
                    write_at(client, place, file, offset, &vec![(thread * 60 + round % 60) as u8; length]);
                }
            });
        }
    });
    assert!(house.replayed(place) == contents(&file), "log and page cache differ");
}

#[test]
fn idle_data_is_on_disk_and_expired_within_about_a_second() {
    let house = house("idle", 200);
    let (file, place) = house.create("a");
    write_at(&house.client, place, &file, 0, &[5; 100_000]);
    let row = &house.client.board().files()[place.slot as usize];
    let begun = Instant::now();
    while row.expired_seq.load(std::sync::atomic::Ordering::SeqCst)
        < row.newest_seq.load(std::sync::atomic::Ordering::SeqCst)
    {
        assert!(begun.elapsed() < Duration::from_secs(5), "never expired");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(house.replayed(place), b"");
}

#[test]
fn a_log_that_wraps_many_times_keeps_up() {
    let house = house("wrap", NEVER_MS);
    let (file, place) = house.create("a");
    let block = vec![3u8; 65_536];
    for round in 0..4096u64 {
        write_at(&house.client, place, &file, round % 64 * 65_536, &block);
    }
    assert_eq!(contents(&file).len(), 64 * 65_536);
}

/// How a directory sync was answered.
fn sync_directory(house: &House, directory: &File) -> &'static str {
    let header = house.client.board().header();
    let (absorbed, real) = (header.syncs_absorbed.get(), header.syncs_real.get());
    let device = rustix::fs::fstat(directory).unwrap().st_dev;
    house
        .client
        .sync_directory(directory.as_raw_fd(), device, || panic!("the keeper knows this directory"))
        .unwrap();
    match (header.syncs_absorbed.get() - absorbed, header.syncs_real.get() - real) {
        (1, 0) => "absorbed",
        (0, 1) => "real",
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_sync_is_absorbed_only_if_the_slots_hold_every_change() {
    let house = house("directory", NEVER_MS);
    let directory = File::open(house.directory.path()).unwrap();
    let path = |name: &str| house.directory.path().join(name);
    let (file, place) = house.create("a");
    write_at(&house.client, place, &file, 0, b"a");
    assert_eq!(sync_directory(&house, &directory), "real", "what was before us is not known");
    assert_eq!(sync_directory(&house, &directory), "absorbed", "nothing happened since");

    let (file, place) = house.create("b");
    assert_eq!(sync_directory(&house, &directory), "real", "a file without records cannot be built anew");
    write_at(&house.client, place, &file, 0, b"b");
    let (file, place) = house.create("c");
    write_at(&house.client, place, &file, 0, b"c");
    assert_eq!(sync_directory(&house, &directory), "absorbed", "recovery would build it anew");

    let name = std::ffi::CString::new(path("c").into_os_string().into_encoded_bytes()).unwrap();
    let removal = house.client.unlinking(place, -100, &name).unwrap();
    assert_eq!(removal, holdfast_cache::Removal::Held);
    std::fs::remove_file(path("c")).unwrap();
    house.client.unlinked(place, removal, true);
    assert_eq!(sync_directory(&house, &directory), "absorbed", "recovery would remove it again");

    for (what, change) in [
        ("a file of somebody else", Box::new(|| std::fs::write(path("d"), "d").unwrap()) as Box<dyn Fn()>),
        ("a directory", Box::new(|| std::fs::create_dir(path("e")).unwrap())),
        ("a rename", Box::new(|| std::fs::rename(path("d"), path("f")).unwrap())),
        ("a link", Box::new(|| std::fs::hard_link(path("f"), path("g")).unwrap())),
        ("a removal by somebody else", Box::new(|| std::fs::remove_file(path("f")).unwrap())),
        ("a removal without intent", Box::new(|| std::fs::remove_file(path("b")).unwrap())),
    ] {
        change();
        assert_eq!(sync_directory(&house, &directory), "real", "{what}");
        assert_eq!(sync_directory(&house, &directory), "absorbed", "after {what}");
    }
}

#[test]
fn after_a_change_of_names_that_no_slot_holds_the_next_sync_is_real() {
    let house = house("names", NEVER_MS);
    let (file, place) = house.create("a");
    write_at(&house.client, place, &file, 0, b"a");
    let device = file.metadata().unwrap().dev();
    let seen = AtomicU32::new(0);
    let real = std::cell::Cell::new(0);
    let sync = || {
        let raw = || {
            real.set(real.get() + 1);
            Ok(())
        };
        house.client.sync(place, &seen, raw).unwrap();
        real.take()
    };
    assert_eq!((sync(), sync()), (0, 0));
    house.client.note_names(device);
    assert_eq!((sync(), sync()), (1, 0));
    house.client.note_names(device);
    let failed = house.client.sync(place, &seen, || Err(Errno(5)));
    assert_eq!((failed, sync(), sync()), (Err(Errno(5)), 1, 0), "a failed sync covers nothing");
}

#[test]
fn a_renamed_file_is_settled_and_its_target_forgotten() {
    let house = house("rename", NEVER_MS);
    let path = |name: &str| house.directory.path().join(name);
    let (file, place) = house.create("new");
    write_at(&house.client, place, &file, 0, b"new");
    let (old, target) = house.create("old");
    write_at(&house.client, target, &old, 0, b"old");
    let name = std::ffi::CString::new(path("old").into_os_string().into_encoded_bytes()).unwrap();
    let renamed = house.client.renaming(Some(place), Some(target), -100, &name, || {
        assert_eq!(
            (house.replayed(place), house.replayed(target)),
            (vec![], vec![]),
            "nothing is live meanwhile"
        );
        std::fs::rename(path("new"), path("old")).map_err(errno)
    });
    assert_eq!(renamed, Ok(Ok(())));
    let bytes = [b'x'];
    let gone = house.client.write(target, Place::At(0), &[Bytes::from_slice(&bytes)], || Ok(1), || Ok(0));
    assert_eq!(gone, Ok(Outcome::Stale), "the replaced file has no slot any more");
    write_at(&house.client, place, &file, 3, b"er");
    assert_eq!(house.replayed(place), b"\0\0\0er");
    assert_eq!(std::fs::read(path("old")).unwrap(), b"newer");
}
