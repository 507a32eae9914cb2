//! A keeper and a client in one process: the write path from the client's call to the expired
//! record, and the property that matters most: what the log would replay is what the page cache
//! holds.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use holdfast_board::{Commits, SegmentState};
use holdfast_cache::wire::{HELLO, Hello, WIRE_VERSION, Welcome};
use holdfast_cache::{Client, Errno, FileRef, Named, Origin, Outcome, Place, Renaming, Replace};
use holdfast_media::{Bytes, Mapping, OpenMode};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::KeeperError;
use crate::audience::{Audience, Level, Stage};
use crate::config::{FenceChoice, KeeperConfig};
use holdfast_disk::locked;
use holdfast_testkit::ScratchPool;

mod behind;
mod cut;
mod directories;
mod durable;
mod left;
mod lent;
mod loaded;
mod looks;
mod replaced;
mod reused;
mod spill;
mod stalls;
mod trust;
mod unsynced;

struct House {
    client: Client,
    socket: PathBuf,
    pool: ScratchPool,
    directory: tempfile::TempDir,
}

fn house(name: &str, age_ms_max: u64) -> House {
    house_with(name, |config| config.age_ms_max = age_ms_max)
}

fn house_with(name: &str, configure: impl FnOnce(&mut KeeperConfig)) -> House {
    house_looked_at(name, configure, |_| {})
}

/// As `house_with`; `before` is done with the pool before there is a client.
fn house_looked_at(
    name: &str,
    configure: impl FnOnce(&mut KeeperConfig),
    before: impl FnOnce(&Path),
) -> House {
    let pool = ScratchPool::new(name);
    holdfast_recovery::format(&pool, 64 << 20, true, true, &mut |_, _| {}).unwrap();
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut config = KeeperConfig::new(pool.to_path_buf());
    config.volatile = true;
    config.durability = crate::config::Durability::Write;
    config.exclusive = vec![directory.path().canonicalize().unwrap()];
    config.fence = FenceChoice::None;
    configure(&mut config);
    let (started, starts) = mpsc::channel();
    std::thread::spawn(move || {
        // Another test's child has everything of ours mapped until it executes its program.
        let is_busy = |ended: &Result<(), KeeperError>| matches!(ended, Err(KeeperError::Pool(error)) if error.is_busy());
        let audience = Arc::new(Starter(Mutex::new(started)));
        let serve = || crate::serve(config.clone(), Arc::clone(&audience) as Arc<dyn Audience>);
        let mut ended = serve();
        while is_busy(&ended) {
            std::thread::sleep(Duration::from_millis(10));
            ended = serve();
        }
        ended.unwrap();
    });
    let socket = starts.recv_timeout(Duration::from_secs(10)).unwrap();
    before(&pool);
    House { client: attach(&socket), socket, pool, directory }
}

/// Waits for the socket.
struct Starter(Mutex<mpsc::Sender<PathBuf>>);

impl Audience for Starter {
    fn stage(&self, stage: Stage<'_>) {
        if let Stage::Ready { socket, .. } = stage {
            locked(&self.0).send(socket.to_owned()).unwrap();
        }
    }

    fn say(&self, _: Level, _: &str) {}
}

fn attach(socket: &Path) -> Client {
    let connection =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::connect(&connection, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    let hello = Hello { kind: HELLO, forked: 0, blind: 0, front_end: 0, version: WIRE_VERSION.into() };
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
    /// Has the keeper commit what is pending, as it does when it has time.
    fn commit(&self) {
        let header = self.client.board().header();
        let is_clean = || header.ledgers_in_use().all(|(_, ledger)| ledger.is_clean());
        let asked = Instant::now();
        while !is_clean() {
            assert!(asked.elapsed() < Duration::from_secs(10), "nothing is committed");
            header.ledgers_in_use().for_each(|(_, ledger)| header.want_commit(ledger));
            header.ring_expirer();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn create(&self, name: &str) -> (File, FileRef) {
        let path = self.directory.path().join(name);
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        let place = self.client.register(file.as_raw_fd(), Origin::Created, None, || true).unwrap().unwrap();
        (file, place)
    }

    /// What recovery would make of the file: its live records over an empty one.
    fn replayed(&self, place: FileRef) -> Vec<u8> {
        let (nvm, _) = Mapping::open(&self.pool, OpenMode::ReadOnly).unwrap();
        let superblock = holdfast_pool::open(&nvm).unwrap();
        let mut copy = tempfile::tempfile().unwrap();
        let handle = copy.try_clone().unwrap();
        let mut handle = Some(handle);
        holdfast_durable::LiveRecords::of_segments(&nvm, &superblock, place)
            .unwrap()
            .apply(&mut || Ok(holdfast_disk::OsFile::from(handle.take().unwrap())))
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
    let row = house.client.board().row(place.slot);
    let begun = Instant::now();
    while row.has_live_records() {
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
    let (absorbed, real) = (header.syncs_absorbed(), header.syncs_real.get());
    let device = rustix::fs::fstat(directory).unwrap().st_dev;
    house
        .client
        .sync_directory(directory.as_raw_fd(), device, || panic!("the keeper knows this directory"))
        .unwrap();
    match (header.syncs_absorbed() - absorbed, header.syncs_real.get() - real) {
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
    house.client.note_change(device);
    // A journal commits all of it with the first sync; else each sync is the file's own until the
    // keeper has had everything committed, which no sync of a file does.
    let ledger = house.client.board().header().ledger(device).unwrap();
    let by_file = usize::from(ledger.commits() == Commits::ByFile);
    assert_eq!((sync(), sync()), (by_file, by_file));
    house.commit();
    assert!(ledger.is_clean());
    assert_eq!(sync(), 0);
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
    let (device, to) = (house.directory.path().metadata().unwrap().dev(), (-100, name.as_c_str()));
    let renaming = Renaming {
        named: Some(place),
        target: Some(target),
        device,
        to,
        to_free: false,
        to_taken: false,
        back: None,
    };
    let renamed = house.client.renaming(renaming, |_| {
        assert_eq!(
            (house.replayed(place), house.replayed(target)),
            (vec![], vec![]),
            "nothing is live meanwhile"
        );
        std::fs::rename(path("new"), path("old")).map_err(errno)
    });
    assert_eq!(renamed, Ok(Ok(Named::Settled)));
    let bytes = [b'x'];
    let gone = house.client.write(target, Place::At(0), &[Bytes::from_slice(&bytes)], || Ok(1), || Ok(0));
    assert_eq!(gone, Ok(Outcome::Stale), "the replaced file has no slot any more");
    write_at(&house.client, place, &file, 3, b"er");
    assert_eq!(house.replayed(place), b"\0\0\0er");
    assert_eq!(std::fs::read(path("old")).unwrap(), b"newer");
}

/// Renames a file to a name at which nothing stands, as the library does; `made` says what the
/// kernel is to answer.
fn rename_to_free(house: &House, place: FileRef, names: [&str; 2], made: Result<(), Errno>) -> &'static str {
    let [from, to] = names.map(|name| house.directory.path().join(name));
    let name = std::ffi::CString::new(to.clone().into_os_string().into_encoded_bytes()).unwrap();
    let (device, to_name) = (house.directory.path().metadata().unwrap().dev(), (-100, name.as_c_str()));
    let renaming = Renaming {
        named: Some(place),
        target: None,
        device,
        to: to_name,
        to_free: true,
        to_taken: false,
        back: None,
    };
    let how = std::cell::Cell::new("never called");
    let done = house.client.renaming(renaming, |replace| {
        how.set(match (replace, house.replayed(place).is_empty()) {
            (Replace::Never, false) => "held",
            (Replace::AsAsked, true) => "settled",
            other => panic!("{other:?}"),
        });
        made.and_then(|()| std::fs::rename(&from, &to).map_err(errno))
    });
    let named = if how.get() == "held" { Named::Held } else { Named::Settled };
    assert_eq!(done, Ok(made.map(|()| named)));
    how.get()
}

#[test]
fn a_slot_holds_the_first_rename_of_a_new_file_to_a_free_name() {
    let house = house("held", NEVER_MS);
    let directory = File::open(house.directory.path()).unwrap();
    let (file, place) = house.create("a");
    write_at(&house.client, place, &file, 0, b"a");
    assert_eq!(sync_directory(&house, &directory), "real");
    assert_eq!(rename_to_free(&house, place, ["a", "b"], Ok(())), "held");
    assert_eq!(sync_directory(&house, &directory), "absorbed", "recovery would rename it again");
    assert_eq!(house.replayed(place), b"a", "its records are live");
    let (new, fresh) = house.create("a");
    write_at(&house.client, fresh, &new, 0, b"new");
    assert_eq!(sync_directory(&house, &directory), "absorbed", "the name that was given up is free");
    // One that the kernel refuses is withdrawn.
    assert_eq!(rename_to_free(&house, fresh, ["a", "d"], Err(Errno(28))), "held");
    assert_eq!(sync_directory(&house, &directory), "absorbed", "nothing was renamed");
    assert_eq!(house.replayed(fresh), b"new");
    assert_eq!(rename_to_free(&house, place, ["b", "c"], Ok(())), "settled", "a slot has two names");
    assert_eq!(sync_directory(&house, &directory), "real");
}

fn append(client: &Client, place: FileRef, file: &File, bytes: &[u8], mut seen: impl FnMut()) -> u64 {
    let raw = || {
        seen();
        std::io::Write::write(&mut &*file, bytes).map_err(errno)
    };
    let cursor = || std::io::Seek::stream_position(&mut &*file).map_err(errno);
    match client.write(place, Place::Append, &[Bytes::from_slice(bytes)], raw, cursor).unwrap() {
        Outcome::Absorbed { offset, .. } => offset,
        other => panic!("{other:?}"),
    }
}

impl House {
    fn create_for_append(&self, name: &str) -> (File, FileRef) {
        let (_, place) = self.create(name);
        (File::options().append(true).read(true).open(self.directory.path().join(name)).unwrap(), place)
    }
}

/// The record of an append stood at offset 0 when nobody knew the file's size: a crash before its
/// cancel would have written it over the beginning of the file.
#[test]
fn an_append_to_a_file_of_unknown_size_is_never_logged_at_a_guessed_place() {
    let house = house("unknown-size", NEVER_MS);
    let (file, place) = house.create_for_append("a");
    assert_eq!(append(&house.client, place, &file, &[1; 8192], || ()), 0);
    house.client.around(place, || file.set_len(10_000).unwrap()).unwrap();
    let seen = || assert_eq!(house.replayed(place), b"", "a record at a guessed place");
    assert_eq!(append(&house.client, place, &file, &[2; 100], seen), 10_000);
    let seen = || assert_eq!(house.replayed(place).len(), 10_200, "the size is known again");
    assert_eq!(append(&house.client, place, &file, &[3; 100], seen), 10_100);
}

/// A client that was killed in an append left the old size on the board. The next append was logged
/// over the dead one's bytes, and when its owner was killed as well, was rolled forward there: a
/// torn record and a double one.
#[test]
fn an_append_after_a_dead_clients_is_logged_behind_it() {
    let house = house("dead-append", NEVER_MS);
    let (file, place) = house.create_for_append("a");
    append(&house.client, place, &file, &[1; 1000], || ());
    #[allow(unsafe_code)]
    // SAFETY: the child attaches and appends by itself, and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let client = attach(&house.socket);
        let parts = [Bytes::from_slice(&[2; 500])];
        // SAFETY: ends the child between its record and the kernel's write.
        #[allow(unsafe_code)]
        let _ = client.write(place, Place::Append, &parts, || unsafe { libc::_exit(0) }, || Ok(0));
        unreachable!();
    }
    let mut status = 0;
    #[allow(unsafe_code)]
    // SAFETY: our own child, and a place for its status.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((ended, status), (child, 0));
    let begun = Instant::now();
    while file.metadata().unwrap().len() < 1500 {
        assert!(begun.elapsed() < Duration::from_secs(5), "the dead client's append is not finished");
        std::thread::sleep(Duration::from_millis(1));
    }
    let seen = || assert!(!house.replayed(place).contains(&3), "logged before its place is known");
    assert_eq!(append(&house.client, place, &file, &[3; 200], seen), 1500);
    assert_eq!(contents(&file), [vec![1; 1000], vec![2; 500], vec![3; 200]].concat());
}

/// A write behind the end that came between the record of an append and its system call moved the
/// append away from its record.
#[test]
fn a_write_that_makes_the_file_longer_waits_for_an_append() {
    let house = house("longer", NEVER_MS);
    let (file, place) = house.create_for_append("a");
    let plain = File::options().write(true).open(house.directory.path().join("a")).unwrap();
    std::thread::scope(|scope| {
        let (begun, begins) = mpsc::channel();
        let client = &house.client;
        scope.spawn(move || {
            begins.recv().unwrap();
            write_at(client, place, &plain, 100_000, &[2; 10]);
        });
        let wait = || {
            begun.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(file.metadata().unwrap().len(), 0, "the other write did not wait");
        };
        assert_eq!(append(client, place, &file, &[1; 1000], wait), 0);
    });
    assert_eq!(house.replayed(place), contents(&file));
}

/// Files that are settled one by one leave dead segments to an expirer that sees nothing dirty; a
/// writer that waits for space must wake it, or both would sleep.
#[test]
fn a_writer_out_of_space_gets_dead_segments_though_nothing_is_dirty() {
    let house = house("dead-segments", NEVER_MS);
    let (file, place) = house.create("a");
    write_at(&house.client, place, &file, 0, b"a");
    house.client.around(place, || ()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    for row in house.client.board().segments() {
        if row.state() == SegmentState::Free {
            row.set_state(SegmentState::Sealed);
        }
    }
    let begun = Instant::now();
    write_at(&house.client, place, &file, 0, &vec![1; 3 << 20]);
    assert!(begun.elapsed() < Duration::from_secs(1), "waited {:?}", begun.elapsed());
}

/// After a call that may have moved the end of a file, a record of an append would have to guess
/// its place; whoever replayed it before its cancel record was written would put it over older
/// bytes.
#[test]
fn no_record_says_where_an_append_goes_while_the_end_is_unknown() {
    let house = house("append", NEVER_MS);
    let (file, place) = house.create("a");
    write_at(&house.client, place, &file, 0, &[1; 5000]);
    house.client.around(place, || ()).unwrap();
    let bytes = [2u8; 100];
    let parts = [Bytes::from_slice(&bytes)];
    for (offset, replayed) in [(5000, 0), (5100, 5200)] {
        let raw = || {
            assert_eq!(house.replayed(place).len(), replayed, "a record stands at a guessed place");
            file.write_at(&bytes, offset).map_err(errno)
        };
        let end = || Ok(file.metadata().unwrap().len());
        let outcome = house.client.write(place, Place::Append, &parts, raw, end);
        assert_eq!(outcome, Ok(Outcome::Absorbed { bytes: 100, offset }));
    }
    assert_eq!(contents(&file)[4999..5002], [1, 2, 2]);
}
