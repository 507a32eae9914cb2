//! Writing the live records of one file again, while its keeper runs.
//!
//! After a failed sync the kernel may have dropped the pages it could not write (invariant 4); the
//! log still has them. The caller keeps the file's writers out. Must never take a file for whole of
//! which a record is damaged.

use std::io;

use super::file::ManagedFile;
use super::state::Durable;
use super::upkeep::Upkeeps;
use holdfast_cache::FileRef;
use holdfast_canary::{Canary, on};
use holdfast_disk::{Disk, DiskFile};
use holdfast_log::{Header, Kind, Record, headers_in_gap, record_bytes, survey, whole_write};
use holdfast_media::Nvm;
use holdfast_pool::{Segment, SegmentUse, Seq, Slots, Superblock, segment_generation};

/// How often a segment is read again in which something seems to be missing: a client may just be
/// writing there.
const LOOKS_MAX: u32 = 4;

/// A record of the file, with its place in the log.
struct Found {
    header: Header,
    payload: Vec<u8>,
}

/// The records of one use of a slot that have not expired, and the cancels among them.
pub struct LiveRecords {
    place: FileRef,
    expired_seq: Seq,
    found: Vec<Found>,
    /// Cancelled seqs, and the bytes that stay valid.
    cancels: Vec<(Seq, u64)>,
}

impl LiveRecords {
    /// Those that the segments hold, of a file. [`io::ErrorKind::InvalidData`]: one
    /// of them is damaged, or may be.
    pub fn of_segments(nvm: &impl Nvm, superblock: &Superblock, place: FileRef) -> io::Result<Self> {
        let layout = &superblock.layout;
        let expired_seq = Slots { nvm, layout }.expired_seq(place.slot).unwrap_or_default();
        let mut live = Self { place, expired_seq, found: Vec::new(), cancels: Vec::new() };
        let mut buffer = Vec::new();
        for segment in layout.segments() {
            let whole = (0..LOOKS_MAX).any(|_| live.look(nvm, superblock, segment, &mut buffer));
            if !whole && !on(Canary::SumsUnread) {
                let message = format!("a record of it in segment {segment} of the log is damaged, or may be");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
        }
        Ok(live)
    }

    /// Takes what a segment holds; false, and nothing is taken, when some of it may be missing.
    fn look(
        &mut self,
        nvm: &impl Nvm,
        superblock: &Superblock,
        segment: Segment,
        buffer: &mut Vec<u8>,
    ) -> bool {
        let layout = &superblock.layout;
        let Some(generation) = segment_generation(nvm, layout, segment) else { return true };
        buffer.resize(layout.segment_bytes as usize, 0);
        nvm.read(layout.segment_offset(segment), buffer);
        let (place, expired_seq) = (self.place, self.expired_seq);
        let is_ours = |header: &Header| place_of(header) == place && header.seq > expired_seq;
        let (found, cancels, mut is_whole) = (self.found.len(), self.cancels.len(), true);
        let visit = |record: Record<'_>| self.visit(&record);
        survey(buffer, &superblock.uuid, SegmentUse { segment, generation }, None, visit, |gap| {
            is_whole &=
                headers_in_gap(buffer, generation, gap).is_some_and(|headers| !headers.iter().any(is_ours));
        });
        if !is_whole && !on(Canary::SumsUnread) {
            self.found.truncate(found);
            self.cancels.truncate(cancels);
        }
        is_whole
    }

    fn visit(&mut self, record: &Record<'_>) {
        let header = record.header;
        if place_of(&header) == self.place && header.seq > self.expired_seq {
            match header.cancels() {
                Some(seq) => self.cancels.push((seq, header.extent)),
                None => self.found.push(Found { header, payload: record.payload.to_vec() }),
            }
        }
    }

    /// Applies them in the order of their seqs. `open` opens the file for writing.
    pub fn apply<F: DiskFile>(mut self, open: &mut dyn FnMut() -> io::Result<F>) -> io::Result<()> {
        let found = &mut self.found;
        found.sort_by_key(|record| (record.header.seq, record.header.group_index));
        // Between its copy and the end of the segment that it was copied from a record is there
        // twice.
        found.dedup_by_key(|record| (record.header.seq, record.header.group_index));
        if on(Canary::RewriteBackwards) {
            found.reverse();
        }
        if found.is_empty() {
            return Ok(());
        }
        let file = open()?;
        let mut written = 0;
        for (index, record) in found.iter().enumerate() {
            let seq = record.header.seq;
            if index > 0 && found[index - 1].header.seq != seq {
                written = 0;
            }
            let members = found.iter().filter(|other| other.header.seq == seq).count();
            if members < usize::from(record.header.group_count) {
                continue;
            }
            let kept = self.cancels.iter().filter(|cancel| cancel.0 == seq).map(|cancel| cancel.1).min();
            apply(&file, &record.header, &record.payload, kept, &mut written)?;
        }
        Ok(())
    }
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// The live records of a file, in segments and frames, none of which is given back meanwhile.
    pub(super) fn live_records(&self, file: &ManagedFile<D::File>) -> io::Result<LiveRecords> {
        let _alone = self.reclaiming.take();
        let mut live = LiveRecords::of_segments(&self.nvm, &self.superblock, file.place())?;
        self.scan_frames(file.slot, &mut |record| live.visit(record))?;
        Ok(live)
    }
}

/// Which file a record is of.
pub(super) fn place_of(header: &Header) -> FileRef {
    FileRef { slot: header.slot, generation: header.slot_generation }
}

/// Applies one record; `written` counts the bytes of its group so far, `kept` limits them (a cancel
/// record).
fn apply(
    file: &impl DiskFile,
    header: &Header,
    payload: &[u8],
    kept: Option<u64>,
    written: &mut u64,
) -> io::Result<()> {
    match header.kind {
        Kind::Write => {
            let room = kept.unwrap_or(u64::MAX).saturating_sub(*written);
            let bytes = (payload.len() as u64).min(room) as usize;
            file.write_all_at(&payload[..bytes], header.file_offset)?;
            *written += bytes as u64;
        }
        Kind::Truncate if kept.is_none() => file.set_len(header.file_offset)?,
        Kind::Punch if kept.is_none() => file.punch(header.file_offset, header.extent)?,
        Kind::Truncate | Kind::Punch | Kind::Cancel => {}
    }
    Ok(())
}

/// Rolls forward the operation with `seq` of a dead client on the file of `place`, if its record or
/// group is complete in `segments`. Returns the header of its first record if it was. `open` may do
/// what must come before it.
pub(super) fn roll_forward<F: DiskFile>(
    nvm: &impl Nvm,
    superblock: &Superblock,
    segments: &[Segment],
    seq: Seq,
    place: FileRef,
    open: &mut dyn FnMut() -> io::Result<F>,
) -> io::Result<Option<Header>> {
    let mut members = whole_write(nvm, &superblock.layout, &superblock.uuid, segments, seq, |record| {
        persist(nvm, superblock, record);
    });
    // Whatever its lane says, it was written for this file or not at all.
    members.retain(|(header, _)| place_of(header) == place || on(Canary::LaneBelieved));
    let Some((first, _)) = members.first() else { return Ok(None) };
    let file = open()?;
    // In one call: who reads the file meanwhile sees all members of a group or none.
    let whole: Vec<u8> = members.iter().flat_map(|(_, payload)| payload).copied().collect();
    apply(&file, first, &whole, None, &mut 0)?;
    Ok(Some(*first))
}

/// Makes a record of a dead writer durable, which may have died before its fence: what follows from
/// a record must not outlive it (invariant 1).
pub(super) fn persist(nvm: &impl Nvm, superblock: &Superblock, record: &Record<'_>) {
    let offset = superblock.layout.segment_offset(record.segment) + u64::from(record.at);
    if !on(Canary::RollForwardUnflushed) {
        nvm.flush(offset, record_bytes(record.payload.len() as u64));
    }
    nvm.fence();
}
