//! A front end of its own, over plain system calls: it opens a pool with a keeper in another
//! process, works through [`holdfast_session::File`], kills the keeper, recovers and compares. It
//! knows neither the preloaded library nor any design.

mod cursor;
mod house;
mod plain;

use std::os::unix::ffi::OsStrExt;

use holdfast_cache::{Client, Errno, Reason};
use holdfast_keeper::config::{Durability, KeeperConfig, WriteBehind};
use holdfast_media::Bytes;
use holdfast_session::{Backing, File};
use holdfast_testkit::Random;

use house::House;
use plain::Plain;

type Opened<'a> = File<'a, Plain>;

/// What a file must hold, beside the file.
struct Twin<'a> {
    file: Opened<'a>,
    name: String,
    holds: Vec<u8>,
}

fn create<'a>(client: &'a Client, house: &House, name: &str) -> Opened<'a> {
    let path = house.path(name);
    let (opened, noted) = client.making(1, || {
        let opened = Plain::create(&path);
        let device = opened.as_ref().ok().and_then(|plain| plain.stat().ok()).map(|stat| stat.dev);
        (opened, device)
    });
    File::open(client, opened.unwrap(), 0, Some(noted)).unwrap()
}

impl Twin<'_> {
    fn write(&mut self, offset: Option<u64>, bytes: &[u8]) {
        // In two parts, where there are two bytes.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let parts = [Bytes::from_slice(first), Bytes::from_slice(second)];
        let written = match offset {
            Some(offset) => self.file.write_at(&parts, offset),
            None => self.file.append(&parts),
        };
        assert_eq!(written, Ok(bytes.len()));
        let at = offset.map_or(self.holds.len(), |offset| offset as usize);
        self.holds.resize(self.holds.len().max(at + bytes.len()), 0);
        self.holds[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn step(&mut self, random: &mut Random) {
        let (offset, bytes) = (random.number_below(40_000), 1 + random.number_below(9_000));
        let content: Vec<u8> = (0..bytes).map(|_| random.number_below(256) as u8).collect();
        match random.number_below(12) {
            0..=4 => self.write(Some(offset), &content),
            5 | 6 => self.write(None, &content),
            7 => {
                self.file.truncate(offset).unwrap();
                self.holds.resize(offset as usize, 0);
            }
            8 => {
                self.file.punch(offset, bytes).unwrap();
                let size = self.holds.len();
                let range = size.min(offset as usize)..size.min((offset + bytes) as usize);
                self.holds[range].fill(0);
            }
            9 => self.file.sync().unwrap(),
            _ => self.compare(offset, bytes as usize),
        }
    }

    fn compare(&self, offset: u64, bytes: usize) {
        let mut found = vec![0xee; bytes];
        let count = self.file.read_at(&mut found, offset).unwrap();
        let from = self.holds.len().min(offset as usize);
        let expected = &self.holds[from..self.holds.len().min(from + bytes)];
        assert!(found[..count] == *expected, "{}: {bytes} bytes at {offset}", self.name);
    }
}

/// Works for a while, kills the keeper, and looks at what recovery made of it.
fn works_and_comes_back(name: &str, seed: u64, configure: impl FnOnce(&mut KeeperConfig)) {
    let mut house = House::new(name, configure);
    let client = house.attach();
    let mut random = Random::new(seed);
    let mut twins: Vec<Twin<'_>> = ["a", "b"]
        .map(|name| Twin { file: create(&client, &house, name), name: name.to_owned(), holds: vec![] })
        .into();
    for _ in 0..400 {
        let which = random.number_below(2) as usize;
        twins[which].step(&mut random);
    }
    for twin in &mut twins {
        twin.write(None, b"the end");
        twin.file.sync().unwrap();
        let seen = twin.file.managed().map(|handle| client.is_managed(handle.file));
        assert_eq!(seen, Some(true), "{} is the kernel's", twin.name);
        twin.compare(0, 1 << 20);
    }
    let gone = create(&client, &house, "gone");
    gone.append(&[Bytes::from_slice(b"gone")]).unwrap();
    gone.sync().unwrap();
    let path = std::ffi::CString::new(house.path("gone").as_os_str().as_bytes()).unwrap();
    let remove = || std::fs::remove_file(house.path("gone")).map_err(plain::errno);
    gone.remove((-100, &path), remove).unwrap();
    let absorbed = client.board().header().syncs_absorbed();
    assert!(absorbed > 0, "no sync was answered from the log");

    house.kill_keeper();
    let refused = twins[0].file.append(&[Bytes::from_slice(b"too late")]);
    assert_eq!(refused, Err(Errno::EIO), "acknowledged without a keeper");
    assert_eq!(twins[1].file.sync(), Err(Errno::EIO), "acknowledged without a keeper");
    let held: Vec<(String, Vec<u8>)> =
        twins.into_iter().map(|twin| (twin.name, (twin.file.close(), twin.holds).1)).collect();
    drop(gone);
    drop(client);
    house.recover();
    for (name, holds) in held {
        assert!(std::fs::read(house.path(&name)).unwrap() == holds, "{name} is not what was acknowledged");
    }
    assert!(!house.path("gone").exists());
}

#[test]
fn what_a_front_end_of_its_own_was_acknowledged_comes_back() {
    works_and_comes_back("toy-through", 1, |config| config.durability = Durability::Write);
}

#[test]
fn so_does_what_was_synced_first() {
    works_and_comes_back("toy-sync", 2, |config| config.durability = Durability::Sync);
}

#[test]
fn so_does_what_the_page_cache_lacked() {
    works_and_comes_back("toy-behind", 3, |config| {
        config.durability = Durability::Write;
        config.write_behind = WriteBehind::AtOnce;
    });
}

/// A slot that was given back is asked for again.
#[test]
fn a_file_whose_place_is_gone_is_managed_anew() {
    let house = House::new("toy-stale", |config| config.durability = Durability::Write);
    let client = house.attach();
    let file = create(&client, &house, "a");
    let write = |bytes: &[u8]| assert_eq!(file.append(&[Bytes::from_slice(bytes)]), Ok(bytes.len()));
    write(b"first");
    let before = file.managed().unwrap().file;
    client.let_go(before, Reason::Outsider).unwrap();
    assert!(!client.is_current(before), "its slot was not given back");
    write(b" second");
    assert!(file.managed().is_some_and(|handle| client.is_managed(handle.file)));
    assert_eq!(std::fs::read(house.path("a")).unwrap(), b"first second");
}

/// The keeper of these tests, in a process of its own, so that it can be killed.
#[test]
fn keeper() {
    house::keep();
}
