//! Records written to a real mapping and read back: whole ones are found, torn, moved, old and
//! damaged ones are not.

use holdfast_log::{Draft, Kind, Stop, Tail, append, record_bytes, scan_segment, sum_segment};
use holdfast_media::{Bytes, Mapping, Nvm, OpenMode, allocate};
use holdfast_pool::{
    Generation, Layout, POOL_BYTES_MIN, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, Segment, Seq, Slot,
    segment_seed, set_segment_generation,
};
use holdfast_testkit::ScratchPool;

const UUID: [u8; 16] = *b"a pool of tests.";

struct Pool {
    nvm: Mapping,
    layout: Layout,
    _path: ScratchPool,
}

fn pool(name: &str) -> Pool {
    let path = ScratchPool::new(name);
    allocate(&path, POOL_BYTES_MIN, |_, _| {}).unwrap();
    let (nvm, _) = Mapping::open(&path, OpenMode::ReadWrite).unwrap();
    let layout = Layout::new(nvm.len()).unwrap();
    holdfast_pool::format(&nvm, &layout, UUID, 1);
    Pool { nvm, layout, _path: path }
}

impl Pool {
    fn tail(&self, segment: Segment, generation: Generation) -> Tail {
        set_segment_generation(&self.nvm, &self.layout, segment, generation);
        Tail {
            segment_offset: self.layout.segment_offset(segment),
            at: SEGMENT_HEADER_BYTES as u32,
            generation,
            seed: segment_seed(&UUID, segment, generation),
        }
    }

    fn push(&self, tail: &mut Tail, seq: Seq, parts: &[&[u8]], from: usize, bytes: usize) -> u32 {
        let draft = Draft {
            kind: Kind::Write,
            slot: Slot::new(3),
            slot_generation: Generation::new(9),
            seq,
            file_offset: seq.get() * 10,
            extent: bytes as u64,
            unix_time_ns: 77_000_000_064,
            group_index: 0,
            group_count: 1,
            is_called: false,
        };
        let parts: Vec<Bytes<'_>> = parts.iter().map(|part| Bytes::from_slice(part)).collect();
        let at = tail.at;
        tail.at += append(&self.nvm, tail, &draft, &parts, from, bytes) as u32;
        self.nvm.fence();
        at
    }

    fn scan(&self, segment: Segment) -> (Vec<(Seq, Vec<u8>)>, Stop) {
        let mut found = Vec::new();
        let mut buffer = Vec::new();
        let scan = scan_segment(&self.nvm, &self.layout, &UUID, segment, &mut buffer, |record| {
            assert_eq!(
                (record.header.slot, record.header.slot_generation),
                (Slot::new(3), Generation::new(9))
            );
            assert_eq!(record.header.file_offset, record.header.seq.get() * 10);
            found.push((record.header.seq, record.payload.to_vec()));
        });
        let mut summed = Vec::new();
        let sums = sum_segment(&self.nvm, &self.layout, &UUID, segment, |header| summed.push(header.seq));
        assert_eq!((sums.generation, sums.end, sums.stop), (scan.generation, scan.end, scan.stop));
        assert!(summed.iter().eq(found.iter().map(|(seq, _)| seq)), "{summed:?}");
        (found, scan.stop)
    }

    fn flip(&self, segment: Segment, at: u32) {
        let offset = self.layout.segment_offset(segment) + u64::from(at);
        let mut byte = [0];
        self.nvm.read(offset, &mut byte);
        self.nvm.write(offset, &[byte[0] ^ 0x10]);
    }
}

#[test]
fn records_of_all_lengths_come_back_in_order() {
    let pool = pool("order");
    let mut tail = pool.tail(Segment::new(0), Generation::new(5));
    let bytes: Vec<u8> = (0..9000u32).map(|i| (i * 7 % 251) as u8).collect();
    let lengths = [0usize, 1, 63, 64, 65, 127, 4096, 4097, 8999];
    for (seq, length) in lengths.iter().enumerate() {
        let before = tail.at;
        pool.push(&mut tail, Seq::new(seq as u64 + 1), &[&bytes[..*length]], 0, *length);
        assert_eq!(u64::from(tail.at - before), record_bytes(*length as u64));
    }
    let (found, stop) = pool.scan(Segment::new(0));
    assert_eq!(stop, Stop::Tail);
    assert_eq!(found.len(), lengths.len());
    for (index, (seq, payload)) in found.iter().enumerate() {
        assert_eq!((*seq, payload.as_slice()), (Seq::new(index as u64 + 1), &bytes[..lengths[index]]));
    }
}

#[test]
fn gathered_parts_equal_their_concatenation_from_any_byte_on() {
    let pool = pool("gather");
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i % 249) as u8).collect();
    let parts: Vec<&[u8]> =
        vec![&bytes[..1], &bytes[1..1], &bytes[1..5000], &bytes[5000..5003], &bytes[5003..]];
    let mut tail = pool.tail(Segment::new(1), Generation::new(6));
    let cuts = [(0, 20_000), (1, 10), (4998, 9), (4999, 4096), (5003, 14_997), (0, 0)];
    for (seq, (from, length)) in cuts.iter().enumerate() {
        pool.push(&mut tail, Seq::new(seq as u64 + 1), &parts, *from, *length);
    }
    for ((_, payload), (from, length)) in pool.scan(Segment::new(1)).0.iter().zip(cuts) {
        assert!(payload == &bytes[from..from + length]);
    }
}

#[test]
fn a_new_generation_voids_everything_at_once() {
    let pool = pool("generation");
    let mut tail = pool.tail(Segment::new(2), Generation::new(7));
    for seq in 1..20 {
        pool.push(&mut tail, Seq::new(seq), &[&[1; 500]], 0, 500);
    }
    assert_eq!(pool.scan(Segment::new(2)).0.len(), 19);
    let mut tail = pool.tail(Segment::new(2), Generation::new(8));
    assert_eq!(pool.scan(Segment::new(2)), (vec![], Stop::Tail));
    pool.push(&mut tail, Seq::new(30), &[&[2; 500]], 0, 500);
    assert_eq!(pool.scan(Segment::new(2)), (vec![(Seq::new(30), vec![2; 500])], Stop::Tail));
}

#[test]
fn a_torn_last_record_is_a_tail_and_a_torn_middle_one_is_damage() {
    let pool = pool("torn");
    let mut tail = pool.tail(Segment::new(3), Generation::new(9));
    let places: Vec<u32> =
        (1..4).map(|seq| pool.push(&mut tail, Seq::new(seq), &[&[5; 1000]], 0, 1000)).collect();
    pool.flip(Segment::new(3), places[2] + 64 + 999);
    let (found, stop) = pool.scan(Segment::new(3));
    assert_eq!((found.len(), stop), (2, Stop::Tail));
    pool.flip(Segment::new(3), places[0] + 25);
    let (found, stop) = pool.scan(Segment::new(3));
    assert_eq!((found.len(), stop), (0, Stop::Damaged { valid_at: places[1] }));
}

#[test]
fn every_bit_of_a_record_counts() {
    let pool = pool("bits");
    let mut tail = pool.tail(Segment::new(4), Generation::new(10));
    let at = pool.push(&mut tail, Seq::new(1), &[&[0xa5; 100]], 0, 100);
    for byte in 0..164 {
        pool.flip(Segment::new(4), at + byte);
        assert_eq!(pool.scan(Segment::new(4)).0.len(), 0, "byte {byte}");
        pool.flip(Segment::new(4), at + byte);
    }
    assert_eq!(pool.scan(Segment::new(4)).0.len(), 1);
}

#[test]
fn a_record_copied_elsewhere_is_not_valid_there() {
    let pool = pool("moved");
    let mut tail = pool.tail(Segment::new(5), Generation::new(11));
    let at = pool.push(&mut tail, Seq::new(1), &[&[1; 64]], 0, 64);
    let mut copy = [0u8; 128];
    pool.nvm.read(pool.layout.segment_offset(Segment::new(5)) + u64::from(at), &mut copy);
    pool.nvm.write(pool.layout.segment_offset(Segment::new(5)) + u64::from(tail.at), &copy);
    assert_eq!(pool.scan(Segment::new(5)), (vec![(Seq::new(1), vec![1; 64])], Stop::Tail));
}

#[test]
fn a_full_segment_is_scanned_to_its_end() {
    let pool = pool("full");
    let mut tail = pool.tail(Segment::new(0), Generation::new(12));
    let room = SEGMENT_BYTES as usize - SEGMENT_HEADER_BYTES as usize - 64;
    let bytes = vec![3u8; room];
    pool.push(&mut tail, Seq::new(1), &[&bytes], 0, room);
    assert_eq!(u64::from(tail.at), SEGMENT_BYTES);
    let (found, stop) = pool.scan(Segment::new(0));
    assert_eq!((found.len(), stop), (1, Stop::Full));
}

/// A forged segment in which every line is a header that claims all the rest: looking for a valid
/// record behind the damage must not sum the rest once for each of them (32 GiB).
#[test]
fn a_forged_segment_is_scanned_in_linear_time() {
    let pool = pool("forged");
    let mut tail = pool.tail(Segment::new(0), Generation::new(40));
    pool.push(&mut tail, Seq::new(41), &[&[1; 64]], 0, 64);
    let first = tail.segment_offset + SEGMENT_HEADER_BYTES;
    let mut header = [0; 64];
    pool.nvm.read(first, &mut header);
    // The checksum does not hold any more.
    header[0] ^= 1;
    for at in (first..tail.segment_offset + SEGMENT_BYTES).step_by(64) {
        let rest = (tail.segment_offset + SEGMENT_BYTES - at - 64) as u32;
        header[8..12].copy_from_slice(&rest.to_le_bytes());
        pool.nvm.write(at, &header);
    }
    let begun = std::time::Instant::now();
    assert_eq!(pool.scan(Segment::new(0)), (vec![], Stop::Tail));
    assert!(begun.elapsed() < std::time::Duration::from_millis(1500), "{:?}", begun.elapsed());
}
