//! Holds the code and `docs/format.md` together: the bytes of a small pool, as the document prints
//! them.
//!
//! When this fails the format has changed: that needs a new version number, not a new listing.

use std::cell::RefCell;
use std::fmt::Write;

use holdfast_media::{Bytes, Nvm};
use holdfast_pool::{
    Base, FormatError, Frame, Frames, Generation, HintKind, Home, Identity, Layout, Left, LeftAt, Life,
    MARK_CREATED, Mount, Ownership, POOL_BYTES_MIN, Parent, Remains, Replaced, SLOT_BYTES,
    SUPERBLOCK_COPY_OFFSET, Seal, Segment, SegmentUse, Seq, Slot, Slots, SpillHeader, Stamp, Taken, Words,
    Zone, format, mend, open, remains, seal_of, seal_segment, set_segment_generation,
};

/// Media in ordinary memory.
struct Memory(RefCell<Vec<u8>>);

/// Media that opens the pool after every write, as a machine would find it that stops there and has
/// lost what was not fenced but for this write.
struct Watched {
    memory: Memory,
    /// The pages that say whether it is a pool, as they were fenced last.
    fenced: Memory,
    /// Where was written, and which pool that left.
    opened: RefCell<Vec<(u64, Found)>>,
}

/// The pool's uuid, or why it is none.
type Found = Result<[u8; 16], FormatError>;

/// The superblock's page and that of the words.
const HEAD_BYTES: usize = 8192;

impl Nvm for Watched {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) {
        self.memory.read(offset, buf);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(offset, bytes);
        let found = Memory(RefCell::new(self.fenced.0.borrow().clone()));
        if offset < HEAD_BYTES as u64 {
            found.write(offset, bytes);
        }
        self.opened.borrow_mut().push((offset, open(&found).map(|superblock| superblock.uuid)));
    }

    fn write_streaming(&self, offset: u64, src: Bytes<'_>, crc: u32) -> u32 {
        self.memory.write_streaming(offset, src, crc)
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.memory.load_u64(offset)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.memory.store_u64(offset, value);
    }

    fn flush(&self, _offset: u64, _len: u64) {}

    fn fence(&self) {
        self.fenced.write(0, &self.memory.0.borrow()[..HEAD_BYTES]);
    }
}

impl Nvm for Memory {
    fn len(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    fn read(&self, offset: u64, buf: &mut [u8]) {
        buf.copy_from_slice(&self.0.borrow()[offset as usize..][..buf.len()]);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.0.borrow_mut()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn write_streaming(&self, offset: u64, src: Bytes<'_>, crc: u32) -> u32 {
        let mut bytes = vec![0; src.len()];
        src.copy_to(&mut bytes);
        self.write(offset, &bytes);
        crc32c::crc32c_append(crc, &bytes)
    }

    fn load_u64(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    fn flush(&self, _offset: u64, _len: u64) {}

    fn fence(&self) {}
}

/// Lines of 16 bytes at their offset in the pool; lines of zeros are left out.
fn listing(bytes: &[u8], base: u64) -> String {
    let mut text = String::new();
    for (index, line) in bytes.chunks(16).enumerate().filter(|(_, line)| line.iter().any(|&byte| byte != 0)) {
        write!(text, "{:08x} ", base + index as u64 * 16).unwrap();
        for byte in line {
            write!(text, " {byte:02x}").unwrap();
        }
        text.push('\n');
    }
    text
}

fn assert_documented(what: &str, listing: &str) {
    let document = include_str!("../../../docs/format.md");
    assert!(document.contains(listing), "docs/format.md does not show this as {what}:\n{listing}");
}

#[test]
fn the_document_shows_the_bytes_that_are_written() {
    let layout = Layout::new(POOL_BYTES_MIN).unwrap();
    let memory = Memory(RefCell::new(vec![0xff; POOL_BYTES_MIN as usize]));
    let uuid = *b"the pool's uuid!";
    format(&memory, &layout, uuid, 1_700_000_000);
    let words = Words { nvm: &memory, layout: &layout };
    words.set_heartbeat_unix_us(1_700_000_001_000_000);
    words.set_booted_unix_us(1_699_000_000_000_000);
    words.set_owner_pid(4242);
    let slots = Slots { nvm: &memory, layout: &layout };
    let identity = Identity {
        fs_uuid: *b"file system uuid",
        handle_type: 1,
        handle: vec![0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
        inode: 77,
    };
    let ownership = Ownership { mode: 0o640, owner: 1000, group: 100 };
    let parent = Parent { handle_type: 1, handle: vec![0x21, 0x22, 0x23, 0x24] };
    let stamp = Stamp {
        is_on_disk: false,
        size: 4096,
        modified_ns: 1_700_000_000_123_456_789,
        changed_ns: 1_700_000_000_987_654_321,
        born_ns: Some(1_600_000_000_000_000_001),
        mount: Mount { boot: *b"id of this boot!", id: 5001 },
        ownership,
    };
    let taken = Taken {
        identity: &identity,
        ownership,
        marks: MARK_CREATED,
        path: b"/srv/a",
        parent: Some(&parent),
        stamp: Some(stamp),
    };
    slots.take(Slot::new(0), Generation::new(1000), &taken);
    assert_eq!(slots.stamp(Slot::new(0)), Some(stamp));
    let later = Stamp { is_on_disk: true, ..stamp };
    slots.push_stamp(Slot::new(0), &later);
    assert_eq!(slots.stamp(Slot::new(0)), Some(later));
    let left_at = LeftAt { changed_us: 1_700_000_000_987_654, modified_us: 1_700_000_000_123_456 };
    for left in [
        Left::InHand,
        Left::Unknown,
        Left::At(left_at),
        Left::InHandSince(1_700_000_000_999_999, Some(left_at)),
    ] {
        slots.set_left(Slot::new(0), left);
        assert_eq!(slots.left(Slot::new(0)), left);
    }
    let life = Life { last_us: 1_700_000_000_999_999, booted_us: Some(1_600_000_000_000_000) };
    slots.set_life(Slot::new(0), &life);
    assert_eq!(slots.life(Slot::new(0)), Some(life));
    slots.push_hint(Slot::new(0), HintKind::Unlink, b"/srv/a", None);
    let hints = slots.hints(Slot::new(0));
    assert_eq!((hints[0].parent.as_ref(), hints[1].parent.as_ref()), (None, Some(&parent)));
    slots.set_expired_seq(Slot::new(0), Seq::new(1234));
    set_segment_generation(&memory, &layout, Segment::new(0), Generation::new(1001));
    seal_segment(
        &memory,
        &layout,
        &uuid,
        SegmentUse { segment: Segment::new(0), generation: Generation::new(1001) },
        384,
        Seq::new(1239),
    );
    let seal = |(segment, generation)| {
        let place = SegmentUse { segment, generation: Generation::new(generation) };
        seal_of(&memory.0.borrow()[layout.segment_offset(Segment::new(0)) as usize..], &layout, &uuid, place)
    };
    assert_eq!(seal((Segment::new(0), 1001)), Seal { end: Some(384), below: Some(Seq::new(1239)) });
    // Of another use or place it says nothing.
    assert_eq!(seal((Segment::new(0), 1240)), Seal::default());
    assert_eq!(seal((Segment::new(1), 1001)), Seal::default());
    let frames = Frames { nvm: &memory, layout: &layout };
    let home = Home { path: b"/srv/spill".to_vec(), id: *b"the file's name!", frame_count: 512 };
    frames.set_home(&home).unwrap();
    let held = Frame { segment: Segment::new(3), generation: Generation::new(1002), end: 2_097_088 };
    frames.put(&[(1, held)]);
    assert_eq!((frames.home(), frames.get(1), frames.get(0)), (Some(home), Ok(Some(held)), Ok(None)));

    let bytes = memory.0.borrow();
    let zone = |from: u64, len: u64| listing(&bytes[from as usize..(from + len) as usize], from);
    assert_documented("the superblock", &zone(layout.offset(Zone::Superblock), 128));
    assert_documented("the words", &zone(layout.offset(Zone::Words), 4096));
    assert_documented("a slot", &zone(layout.slot_offset(Slot::new(0)), SLOT_BYTES));
    assert_documented("the frames", &zone(layout.offset(Zone::Frames), 4096 + 4096 * 16));
    let header =
        SpillHeader { pool: uuid, id: *b"the file's name!", segment_bytes: 2_097_152, frame_count: 512 };
    assert_documented("a spill file's header", &listing(&header.encode(), 0));
    assert_eq!(SpillHeader::decode(&header.encode()), Some(header));
    assert_documented("a segment header", &zone(layout.segment_offset(Segment::new(0)), 64));
    // A free slot and an unused segment are blank where it counts.
    assert_eq!(zone(layout.slot_offset(Slot::new(1)), SLOT_BYTES), "");
    assert_eq!(zone(layout.segment_offset(Segment::new(1)), 64), "");
    drop(bytes);
    // Over the older of the two copies.
    slots.push_hint(Slot::new(0), HintKind::Rename, b"/srv/b", Some(&parent));
    let bytes = memory.0.borrow();
    let hint = layout.slot_offset(Slot::new(0)) + 768;
    assert_documented("a path hint of a rename", &listing(&bytes[hint as usize..hint as usize + 176], hint));
    drop(bytes);
    // And once more, over a file.
    let base = Base { handle_type: 1, handle: vec![0x31, 0x32, 0x33, 0x34], born_ns: Some(1_700_000_000) };
    let replaced = Replaced { slot: Some((Slot::new(7), Generation::new(999))), base: Some(base) };
    slots.push_hint(Slot::new(0), HintKind::Name, b"/srv/a", Some(&parent));
    slots.push_replacing(Slot::new(0), b"/srv/b", Some(&parent), &replaced);
    assert_eq!(slots.hints(Slot::new(0))[0].replaced, Some(replaced));
    let bytes = memory.0.borrow();
    assert_documented(
        "a path hint of a rename over a file",
        &listing(&bytes[hint as usize..hint as usize + 1664], hint),
    );
}

/// A small pool and the bytes of it.
fn formatted(uuid: [u8; 16]) -> Memory {
    let memory = Memory(RefCell::new(vec![0xff; POOL_BYTES_MIN as usize]));
    format(&memory, &Layout::new(POOL_BYTES_MIN).unwrap(), uuid, 1_700_000_000);
    memory
}

#[test]
fn superblock_and_copy_stand_for_each_other() {
    let memory = formatted(*b"the pool's uuid!");
    let whole = open(&memory).unwrap();
    for damaged in [0, 4096] {
        for (at, bytes) in [(0, &[0; 128][..]), (33, b"\xff\x07"), (8, b"\x09"), (124, b"sums")] {
            // The copy is in the page's other half.
            let at = damaged + at + if damaged == 0 { 0 } else { 2048 };
            let good = memory.0.borrow().clone();
            memory.write(at, bytes);
            assert_eq!(open(&memory), Ok(whole));
            let was_blank = damaged != 0 && bytes.len() == 128;
            assert_eq!(mend(&memory, &whole), !was_blank, "damage at {at}");
            assert!(*memory.0.borrow() == good, "damage at {at}");
            assert!(!mend(&memory, &whole), "mended twice");
            *memory.0.borrow_mut() = good;
        }
    }
    memory.write(40, b"xx");
    assert_eq!(remains(&memory), Remains::Other);
    memory.write(SUPERBLOCK_COPY_OFFSET + 40, b"xx");
    assert!(matches!(open(&memory), Err(FormatError::Damaged(_))));
}

#[test]
fn a_pool_without_superblocks_is_told_from_no_pool() {
    let memory = formatted(*b"the pool's uuid!");
    for at in [0, 4096] {
        memory.write(at, &[0; 4096]);
    }
    assert_eq!(open(&memory), Err(FormatError::NotAPool));
    assert_eq!(remains(&memory), Remains::Blank);
    let layout = Layout::new(POOL_BYTES_MIN).unwrap();
    let identity = Identity { fs_uuid: [1; 16], handle_type: 1, handle: vec![2; 8], inode: 3 };
    let ownership = Ownership { mode: 0o600, owner: 0, group: 0 };
    let taken =
        Taken { identity: &identity, ownership, marks: 0, path: b"/srv/a", parent: None, stamp: None };
    Slots { nvm: &memory, layout: &layout }.take(Slot::new(7), Generation::new(1000), &taken);
    assert_eq!(remains(&memory), Remains::Pool);
}

#[test]
fn a_formatting_that_stops_leaves_one_pool_or_none() {
    let (old, new) = (*b"the old one's id", *b"the new one's id");
    let (memory, fenced) = (formatted(old), formatted(old));
    let watched = Watched { memory, fenced, opened: RefCell::new(Vec::new()) };
    format(&watched, &Layout::new(POOL_BYTES_MIN).unwrap(), new, 1_700_000_001);
    let opened = watched.opened.into_inner();
    let mut pools: Vec<_> = opened.iter().map(|(_, pool)| pool.clone()).collect();
    pools.dedup();
    assert_eq!(pools, [Ok(old), Err(FormatError::NotAPool), Ok(new)]);
    let harmed = opened.iter().find(|(at, pool)| *at >= HEAD_BYTES as u64 && pool.is_ok());
    assert_eq!(harmed, None, "written beside a pool that opens");
}
