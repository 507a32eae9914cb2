//! Holds the log's records and `docs/format.md` together: one record of each kind, as the document
//! prints them.
//!
//! When this fails the format has changed: that needs a new version number, not a new listing.

use holdfast_pool::{Generation, Segment, Seq, Slot};
use std::fmt::Write;

use holdfast_log::{Draft, Kind, Tail, append};
use holdfast_media::{Bytes, Mapping, Nvm, OpenMode};
use holdfast_pool::segment_seed;
use holdfast_recovery::format;
use holdfast_testkit::ScratchPool;

#[test]
fn the_document_shows_the_records_that_are_written() {
    let pool = ScratchPool::new("format");
    format(&pool, 16 << 20, true, false, &mut |_, _| ()).unwrap();
    let (nvm, _) = Mapping::open(&pool, OpenMode::ReadWrite).unwrap();
    let layout = holdfast_pool::open(&nvm).unwrap().layout;
    let mut tail = Tail {
        segment_offset: layout.segment_offset(Segment::new(0)),
        at: 64,
        generation: Generation::new(1001),
        seed: segment_seed(b"the pool's uuid!", Segment::new(0), Generation::new(1001)),
    };
    let draft = Draft {
        kind: Kind::Write,
        slot: Slot::new(0),
        slot_generation: Generation::new(1000),
        seq: Seq::new(1235),
        file_offset: 4096,
        extent: 5,
        unix_time_ns: 1_700_000_001_500_000_000,
        group_index: 0,
        group_count: 1,
        is_called: false,
    };
    let records = [
        (draft, &b"bytes"[..]),
        (Draft { kind: Kind::Truncate, seq: Seq::new(1236), file_offset: 4099, extent: 0, ..draft }, b""),
        (Draft { kind: Kind::Punch, seq: Seq::new(1237), file_offset: 16, extent: 32, ..draft }, b""),
        (Draft { kind: Kind::Cancel, seq: Seq::new(1238), file_offset: 1235, extent: 2, ..draft }, b""),
    ];
    for (draft, bytes) in records {
        tail.at += append(&nvm, &tail, &draft, &[Bytes::from_slice(bytes)], 0, bytes.len()) as u32;
    }
    let mut text = String::new();
    for at in (64..tail.at).step_by(16) {
        let offset = tail.segment_offset + u64::from(at);
        let mut line = [0u8; 16];
        nvm.read(offset, &mut line);
        if line != [0; 16] {
            write!(text, "{offset:08x} ").unwrap();
            for byte in line {
                write!(text, " {byte:02x}").unwrap();
            }
            text.push('\n');
        }
    }
    let document = include_str!("../../../docs/format.md");
    assert!(document.contains(&text), "docs/format.md does not show these records:\n{text}");
}
