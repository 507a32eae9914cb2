//! The log: record format, append and scan. It knows bytes and numbers, never files.
//!
//! One fence makes a record durable and its checksum commits it (NVCache, DSN'21, II.B needs two
//! fences and a commit flag). Reading never writes.
#![forbid(unsafe_code)]

mod append;
mod around;
mod range;
mod record;
mod scan;

pub use append::{Draft, Tail, append};
pub use around::{Around, record_around};
pub use record::{Header, Kind, RECORD_HEADER_BYTES, TICK_NS, record_bytes};
pub use scan::{
    Gap, Record, SegmentScan, Stop, generation_of_records, headers_in_gap, read_record, scan_bytes,
    scan_headers, scan_segment, sum_segment, survey, whole_write,
};
