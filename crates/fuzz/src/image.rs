//! Building hostile images, byte by byte as `docs/format.md` says, with checksums that hold
//! wherever the input does not ask for others: what the writers of the product refuse to write must
//! reach the readers too.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use holdfast_disk::{Disk, OsDisk};
use holdfast_media::Nvm;
use holdfast_pool::{
    CHECKED_MAX, Frames, Generation, Home, Identity, Layout, PATH_BYTES_MAX, POOL_BYTES_MIN, SEGMENT_BYTES,
    SEGMENT_HEADER_BYTES, SPILL_HEADER_BYTES, SUPERBLOCK_COPY_OFFSET, Segment, Slot, SpillHeader, VERSION,
    encode, segment_seed,
};

use crate::choices::Choices;
use crate::ram::Ram;
use crate::yard::Yard;

pub const UUID: [u8; 16] = [0x5a; 16];

/// Slots and segments that an image uses: few, so that records meet slots.
const SLOTS_MAX: u64 = 4;
const SEGMENTS_MAX: u64 = 3;
const RECORDS_MAX: u64 = 12;
const DAMAGES_MAX: u64 = 3;
const FRAMES_MAX: u64 = 2;

/// A pool of the smallest size, nothing in it.
pub fn empty() -> (Ram, Layout) {
    let layout = Layout::new(POOL_BYTES_MIN).expect("the smallest size is one");
    let ram = Ram::new(layout.pool_bytes);
    holdfast_pool::format(&ram, &layout, UUID, 0);
    (ram, layout)
}

/// Any image of a whole pool.
pub fn pool(choices: &mut Choices<'_>, yard: &Yard) -> (Ram, Layout) {
    let (ram, layout) = empty();
    let words = layout.offset(holdfast_pool::Zone::Words);
    let heartbeat =
        if choices.once_in(4) { checked(choices.number(), words) } else { encode(now() * 1_000_000, words) };
    ram.put(words, &heartbeat.to_le_bytes());
    // Seldom «closed cleanly»: then nothing is looked at.
    let clean = if choices.once_in(16) { checked(choices.number(), words + 64) } else { 0 };
    ram.put(words + 64, &clean.to_le_bytes());
    let mut generations = Vec::new();
    for slot in 0..choices.upto(SLOTS_MAX) + 1 {
        generations.push(put_slot(choices, yard, &ram, layout.slot_offset(Slot::new(slot as u32))));
    }
    for segment in 0..choices.upto(SEGMENTS_MAX) + 1 {
        put_segment(choices, &ram, &layout, Segment::new(segment as u32), &generations);
    }
    damage(choices, &ram, layout.offset(holdfast_pool::Zone::Words), 8192 + SLOTS_MAX * 4096);
    (ram, layout)
}

/// Any spill file of a pool whose account of it says anything: the bytes to be put at `path`, if
/// there is to be one.
pub fn spill(choices: &mut Choices<'_>, ram: &Ram, layout: &Layout, path: &Path) -> Option<Vec<u8>> {
    if !choices.once_in(3) {
        return None;
    }
    let frame_count = 1 + choices.upto(FRAMES_MAX) as u32;
    let home = Home { path: path.as_os_str().as_bytes().to_vec(), id: [7; 16], frame_count };
    let frames = Frames { nvm: ram, layout };
    if frames.set_home(&home).is_err() {
        return None;
    }
    let header = SpillHeader { pool: UUID, id: home.id, segment_bytes: SEGMENT_BYTES, frame_count };
    let mut bytes = vec![0; header.file_bytes() as usize];
    bytes[..SPILL_HEADER_BYTES as usize].copy_from_slice(&header.encode());
    let slots: Vec<u64> = (0..SLOTS_MAX as u32)
        .map(|slot| {
            holdfast_pool::Slots { nvm: ram, layout }.generation(Slot::new(slot)).map_or(10, Generation::get)
        })
        .collect();
    let (other, _) = empty();
    for frame in 0..frame_count + 1 {
        let segment = choices.upto(SEGMENTS_MAX) as u32;
        put_segment(choices, &other, layout, Segment::new(segment), &slots);
        let from = layout.segment_offset(Segment::new(segment));
        let image = other.get(from, SEGMENT_BYTES as usize);
        if let Some(place) =
            bytes.get_mut(frames.file_offset(frame) as usize..).filter(|_| frame < frame_count)
        {
            place[..SEGMENT_BYTES as usize].copy_from_slice(&image);
        }
        // As the segment's word has it, at another place.
        let (at, generation) = (layout.frame_offset(frame), ram_word(&image) >> 12);
        let end = if choices.once_in(3) { choices.number() } else { choices.upto(10) };
        let named = if choices.once_in(8) { choices.number() >> 16 } else { segment.into() };
        let place =
            if choices.once_in(24) { choices.number() } else { checked(named << 16 | end & 0xffff, at + 8) };
        let word = match choices.upto(11) {
            0 => 0,
            1 => choices.number(),
            2 => checked(choices.number(), at),
            _ => checked(generation, at),
        };
        ram.put(layout.frame_offset(frame) + 8, &place.to_le_bytes());
        ram.put(layout.frame_offset(frame), &word.to_le_bytes());
    }
    damage(choices, ram, layout.frame_offset(0) - 4096, 4096 + 64);
    if choices.once_in(12) {
        bytes.truncate(choices.upto(bytes.len() as u64) as usize);
    }
    (!choices.once_in(16)).then_some(bytes)
}

fn ram_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// Any image of one segment.
pub fn segment(choices: &mut Choices<'_>) -> (Ram, Layout) {
    let (ram, layout) = empty();
    let generations = [10, choices.number()];
    put_segment(choices, &ram, &layout, Segment::new(0), &generations);
    damage(choices, &ram, layout.segment_offset(Segment::new(0)), 16 << 10);
    ram.take_stores();
    (ram, layout)
}

/// Any superblock and copy, on media of any size.
pub fn superblock(choices: &mut Choices<'_>) -> Ram {
    let pool_bytes = match choices.upto(2) {
        0 => POOL_BYTES_MIN + choices.upto(64 << 20),
        1 => choices.number(),
        _ => 1 << choices.upto(63),
    };
    let media_bytes = if choices.once_in(3) { choices.number() } else { pool_bytes };
    let layout = Layout::new(pool_bytes).or(Layout::new(POOL_BYTES_MIN)).expect("the smallest size is one");
    let mut raw = [0u8; 128];
    raw[..8].copy_from_slice(b"HOLDFAST");
    put32(&mut raw, 8, VERSION);
    put32(&mut raw, 12, SEGMENT_BYTES as u32);
    raw[16..32].copy_from_slice(&UUID);
    put64(&mut raw, 32, pool_bytes);
    put32(&mut raw, 40, layout.slot_count);
    put32(&mut raw, 44, layout.segment_count);
    put64(&mut raw, 48, layout.offset(holdfast_pool::Zone::Slots));
    put64(&mut raw, 56, layout.offset(holdfast_pool::Zone::Segments));
    for _ in 0..choices.upto(2) {
        let (at, value) = (choices.upto(15) as usize * 8, choices.number());
        put64(&mut raw, at, value);
    }
    let crc = crc32c::crc32c(&raw[..124]);
    put32(&mut raw, 124, if choices.once_in(8) { crc ^ 1 } else { crc });
    let ram = Ram::new(media_bytes);
    ram.put(0, &raw);
    if choices.once_in(2) && media_bytes >= SUPERBLOCK_COPY_OFFSET + 128 {
        ram.put(SUPERBLOCK_COPY_OFFSET, &raw);
        let (place, at) = (choices.upto(1) * SUPERBLOCK_COPY_OFFSET, choices.upto(127));
        ram.put(place + at, &[choices.number() as u8]);
    }
    ram.take_stores();
    ram
}

fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

fn checked(value: u64, at: u64) -> u64 {
    encode(value.min(CHECKED_MAX), at)
}

fn put16(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Sets the checksum at the start of a structure that begins at byte `at` of the pool; seldom that
/// of one that was moved there.
fn seal(bytes: &mut [u8], choices: &mut Choices<'_>, at: u64) {
    let at = if choices.once_in(24) { at + 4096 } else { at };
    let crc = crc32c::crc32c_append(crc32c::crc32c(&at.to_le_bytes()), &bytes[4..]);
    put32(bytes, 0, if choices.once_in(16) { crc ^ 1 } else { crc });
}

fn put_slot(choices: &mut Choices<'_>, yard: &Yard, ram: &Ram, base: u64) -> u64 {
    let generation = if choices.once_in(6) { choices.number().min(CHECKED_MAX) } else { 10 };
    let identity = &yard.identities[choices.upto(yard.identities.len() as u64 - 1) as usize];
    ram.put(base, &raw_identity(choices, identity, generation, base));
    let in_use = if choices.once_in(8) { 0 } else { generation };
    let expired = if choices.once_in(4) { choices.number() } else { generation };
    // Most often created and unconflicted, so that something is done.
    let marks = match choices.upto(3) {
        0 => 0,
        1 => 8,
        _ => choices.upto(511),
    };
    for (at, value) in [(256, in_use), (320, expired), (384, marks)] {
        let at = base + at;
        let moved = if choices.once_in(24) { 4096 } else { 0 };
        let word = if choices.once_in(24) { choices.number() } else { checked(value, at + moved) };
        ram.put(at, &word.to_le_bytes());
    }
    for at in [512, 640] {
        if !choices.once_in(4) {
            ram.put(base + at, &raw_stamp(choices, generation, base + at));
        }
    }
    for at in [768, 768 + 1664] {
        if !choices.once_in(4) {
            ram.put(base + at, &raw_hint(choices, yard, generation, base + at));
        }
    }
    generation
}

fn raw_identity(choices: &mut Choices<'_>, identity: &Identity, generation: u64, place: u64) -> [u8; 184] {
    let mut raw = [0; 184];
    put32(&mut raw, 4, identity.handle_type as u32);
    put64(&mut raw, 8, generation);
    raw[16..32].copy_from_slice(&identity.fs_uuid);
    put64(&mut raw, 32, identity.inode);
    let bytes =
        if choices.once_in(12) { choices.upto(u64::from(u16::MAX)) } else { identity.handle.len() as u64 };
    put16(&mut raw, 40, bytes);
    put32(&mut raw, 44, if choices.once_in(4) { choices.number() as u32 } else { 0o600 });
    raw[48..48 + identity.handle.len()].copy_from_slice(&identity.handle);
    if choices.once_in(4) {
        put32(&mut raw, 176, choices.number() as u32);
        put32(&mut raw, 180, choices.number() as u32);
    }
    seal(&mut raw, choices, place);
    raw
}

/// Most often of this boot and another mount, so that something is done.
fn raw_stamp(choices: &mut Choices<'_>, generation: u64, place: u64) -> [u8; 128] {
    let mut raw = [0; 128];
    put32(&mut raw, 4, if choices.once_in(4) { choices.number() as u32 } else { 0 });
    let version = choices.number();
    put64(&mut raw, 8, version);
    put64(&mut raw, 16, generation);
    for at in [24, 32, 40] {
        let number = choices.number();
        put64(&mut raw, at, number);
    }
    if !choices.once_in(8) {
        raw[48..64].copy_from_slice(&OsDisk::new().boot());
    }
    put64(&mut raw, 64, if choices.once_in(4) { choices.number() } else { 1 });
    put32(&mut raw, 72, if choices.once_in(4) { choices.number() as u32 } else { 0o600 });
    seal(&mut raw, choices, place);
    raw
}

fn raw_hint(choices: &mut Choices<'_>, yard: &Yard, generation: u64, place: u64) -> [u8; 1664] {
    let mut raw = [0; 1664];
    let mut path = yard.paths[choices.upto(yard.paths.len() as u64 - 1) as usize].clone();
    if choices.once_in(12) {
        // A name of any bytes, below the yard.
        path = yard.paths[3].clone();
        path.extend(choices.bytes(PATH_BYTES_MAX as u64).into_iter().filter(|&byte| byte != b'.'));
    }
    path.truncate(PATH_BYTES_MAX);
    put16(&mut raw, 4, if choices.once_in(8) { choices.upto(3) } else { 1 });
    let bytes = if choices.once_in(16) { choices.upto(u64::from(u16::MAX)) } else { path.len() as u64 };
    // A shorter path must not become one above the yard.
    let bytes = if bytes < path.len() as u64 { path.len() as u64 } else { bytes };
    put16(&mut raw, 6, bytes);
    let version = choices.number();
    put64(&mut raw, 8, version);
    put64(&mut raw, 16, generation);
    if choices.once_in(8) {
        // A directory that nobody knows.
        put32(&mut raw, 24, 1);
        put16(&mut raw, 28, choices.upto(200));
        put64(&mut raw, 32, choices.number());
    }
    raw[160..160 + path.len()].copy_from_slice(&path);
    seal(&mut raw, choices, place);
    raw
}

fn put_segment(choices: &mut Choices<'_>, ram: &Ram, layout: &Layout, segment: Segment, slots: &[u64]) {
    let base = layout.segment_offset(segment);
    let generation =
        if choices.once_in(6) { choices.number().min(CHECKED_MAX) } else { 20 + u64::from(segment) };
    let word = if choices.once_in(24) { choices.number() } else { encode(generation, base) };
    ram.put(base, &word.to_le_bytes());
    let seed = segment_seed(&UUID, segment, Generation::new(generation));
    let mut at = SEGMENT_HEADER_BYTES;
    for _ in 0..choices.upto(RECORDS_MAX) {
        let payload_max = if choices.once_in(12) { SEGMENT_BYTES } else { 500 };
        let payload = choices.bytes(payload_max.min(SEGMENT_BYTES - at - 64));
        let record = record(choices, slots, generation, seed, at as u32, &payload);
        ram.put(base + at, &record);
        at += 64 + (payload.len() as u64).next_multiple_of(64);
        if choices.once_in(16) {
            at += 64;
        }
        if at + 128 > SEGMENT_BYTES {
            break;
        }
    }
    // A seal where the records end, somewhere else, or none.
    match choices.upto(3) {
        0 => {}
        seal => {
            let end = if seal == 1 { choices.upto(SEGMENT_BYTES + 64) as u32 } else { at as u32 };
            let crc = crc32c::crc32c_append(seed, &end.to_le_bytes());
            let below = if choices.once_in(4) { choices.number() } else { 60 };
            ram.put(base + 8, &checked(below, base + 8).to_le_bytes());
            ram.put(base + 16, &(u64::from(crc) << 32 | u64::from(end)).to_le_bytes());
        }
    }
    if choices.once_in(60) {
        // Headers that claim all the rest of the segment: checking each byte by byte would take for
        // ever.
        let mut liars = choices.upto(SEGMENT_BYTES / 64);
        let mut liar = record(choices, slots, generation, seed, at as u32, &[]);
        liar[0] ^= 1;
        while liars > 0 && at + 128 < SEGMENT_BYTES {
            put32(&mut liar, 8, (SEGMENT_BYTES - at - 64) as u32);
            ram.put(base + at, &liar);
            (at, liars) = (at + 64, liars - 1);
        }
    }
}

fn record(
    choices: &mut Choices<'_>,
    slots: &[u64],
    generation: u64,
    seed: u32,
    at: u32,
    payload: &[u8],
) -> Vec<u8> {
    let mut raw = vec![0; 64];
    raw[4] = if choices.once_in(4) { choices.upto(6) as u8 } else { 1 };
    raw[5] = u8::from(choices.once_in(40));
    let claimed = if choices.once_in(24) { choices.number() as u32 } else { payload.len() as u32 };
    put32(&mut raw, 8, claimed);
    let slot = if choices.once_in(16) { choices.number() } else { choices.upto(slots.len() as u64 - 1) };
    put32(&mut raw, 12, slot as u32);
    let slot_generation = slots.get(slot as usize).copied().unwrap_or(10);
    put64(&mut raw, 16, if choices.once_in(16) { choices.number() } else { slot_generation });
    let seq = if choices.once_in(6) { choices.number() } else { 30 + choices.upto(20) };
    put64(&mut raw, 24, seq);
    let offset = if choices.once_in(3) { choices.number() } else { choices.upto(20_000) };
    put64(&mut raw, 32, offset);
    put64(&mut raw, 40, if choices.once_in(24) { choices.number() } else { generation });
    put64(&mut raw, 48, if choices.once_in(3) { choices.number() } else { payload.len() as u64 });
    put32(&mut raw, 56, if choices.once_in(4) { choices.number() as u32 } else { now() as u32 });
    let (index, count) = if choices.once_in(4) {
        (choices.upto(3), choices.upto(4))
    } else if choices.once_in(16) {
        (choices.number(), choices.number())
    } else {
        (0, 1)
    };
    put16(&mut raw, 60, index);
    put16(&mut raw, 62, count);
    let crc = crc32c::crc32c_append(seed, payload);
    let crc = crc32c::crc32c_append(crc, &raw[4..]);
    let crc = crc32c::crc32c_append(crc, &at.to_le_bytes());
    put32(&mut raw, 0, if choices.once_in(32) { crc ^ 1 } else { crc });
    raw.extend_from_slice(payload);
    raw
}

/// Changes bytes without mending a checksum.
fn damage(choices: &mut Choices<'_>, ram: &Ram, from: u64, bytes: u64) {
    if !choices.once_in(3) {
        return;
    }
    for _ in 0..choices.upto(DAMAGES_MAX) {
        let at = from + choices.upto(bytes - 1);
        if at < ram.len() {
            let byte = ram.get(at, 1)[0] ^ (choices.upto(254) as u8 + 1);
            ram.put(at, &[byte]);
        }
    }
}
