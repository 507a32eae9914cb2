//! Which bytes of overlapping writes count. It looks only at places and order, never at the bytes
//! themselves.

use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use super::entry::Entry;

/// Covers the union of `writes` (oldest first) with pieces that do not overlap: `emit` hears, in
/// ascending order of file offsets, the newest write of each piece, the bytes of it before the
/// piece, and the piece's bytes.
pub(super) fn newest_pieces<E>(
    writes: &[Entry],
    mut emit: impl FnMut(&Entry, u64, u64) -> Result<(), E>,
) -> Result<(), E> {
    let end_of = |index: usize| writes[index].file_offset.saturating_add(u64::from(writes[index].bytes));
    let mut starts: Vec<(u64, usize)> =
        writes.iter().enumerate().map(|(index, write)| (write.file_offset, index)).collect();
    starts.sort_unstable();
    let mut starts = starts.into_iter().peekable();
    // Writes that begin at or before `at`, the newest on top; those that ended lie in it until they
    // come up.
    let mut begun = BinaryHeap::new();
    let mut at = 0;
    loop {
        while let Some((_, index)) = starts.next_if(|&(start, _)| start <= at) {
            begun.push(index);
        }
        let next = starts.peek().map(|&(start, _)| start);
        match (begun.peek(), next) {
            (Some(&newest), _) if end_of(newest) <= at => {
                begun.pop();
            }
            (Some(&newest), _) => {
                let end = next.map_or(end_of(newest), |next| next.min(end_of(newest)));
                emit(&writes[newest], at - writes[newest].file_offset, end - at)?;
                at = end;
            }
            (None, Some(next)) => at = next,
            (None, None) => return Ok(()),
        }
    }
}

/// Parts of a file that were touched already.
#[derive(Default)]
pub(super) struct Touched {
    /// Start and end of each; none overlaps or meets another.
    parts: BTreeMap<u64, u64>,
}

impl Touched {
    /// Touches a range; the parts of it that were not touched before, in order.
    pub(super) fn take(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut new = Vec::new();
        if range.start >= range.end {
            return new;
        }
        let (mut joined, mut at) = (range.clone(), range.start);
        let first = self.parts.range(..range.start).next_back().filter(|&(_, &end)| end >= range.start);
        let first = first.map_or(range.start, |(&start, _)| start);
        let met: Vec<(u64, u64)> =
            self.parts.range(first..=range.end).map(|(&start, &end)| (start, end)).collect();
        for (start, end) in met {
            self.parts.remove(&start);
            joined = joined.start.min(start)..joined.end.max(end);
            if at < start {
                new.push(at..start);
            }
            at = at.max(end);
        }
        if at < range.end {
            new.push(at..range.end);
        }
        self.parts.insert(joined.start, joined.end);
        new
    }
}

#[cfg(test)]
mod tests {
    use holdfast_pool::{Segment, Seq, Slot};
    use std::convert::Infallible;

    use holdfast_log::Kind;

    use super::*;

    fn pieces(writes: &[(u64, u32)]) -> Vec<(u64, u64, u64)> {
        let writes: Vec<Entry> = (0..)
            .zip(writes)
            .map(|(seq, &(file_offset, bytes))| Entry {
                seq: Seq::new(seq),
                file_offset,
                extent: u64::from(bytes),
                segment: Segment::new(0),
                bytes,
                slot: Slot::new(0),
                unix_time_ns: 0,
                is_called: false,
                is_last: false,
                line: 0,
                group_index: 0,
                group_count: 1,
                kind: Kind::Write,
            })
            .collect();
        let mut found = Vec::new();
        newest_pieces(&writes, |write, skip, bytes| {
            found.push((write.seq.get(), write.file_offset + skip, bytes));
            Ok::<_, Infallible>(())
        })
        .unwrap();
        found
    }

    #[test]
    fn the_newest_wins_byte_by_byte() {
        assert_eq!(pieces(&[]), []);
        assert_eq!(pieces(&[(8, 4), (0, 4)]), [(1, 0, 4), (0, 8, 4)]);
        assert_eq!(pieces(&[(0, 10), (3, 2)]), [(0, 0, 3), (1, 3, 2), (0, 5, 5)]);
        assert_eq!(pieces(&[(3, 2), (0, 10)]), [(1, 0, 3), (1, 3, 7)]);
        assert_eq!(pieces(&[(0, 4), (0, 4), (2, 4)]), [(1, 0, 2), (2, 2, 4)]);
    }

    #[test]
    fn empty_and_farthest_writes_end() {
        assert_eq!(pieces(&[(5, 0), (4, 2), (5, 0)]), [(1, 4, 1), (1, 5, 1)]);
        assert_eq!(pieces(&[(u64::MAX - 1, 100)]), [(0, u64::MAX - 1, 1)]);
    }

    #[test]
    fn each_byte_is_touched_once() {
        let mut random: u32 = 1;
        for _ in 0..200 {
            let (mut touched, mut known) = (Touched::default(), [false; 64]);
            for _ in 0..20 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let start = u64::from(random >> 8 & 63);
                let range = start..(start + u64::from(random >> 16 & 15)).min(64);
                let expected: Vec<u64> = range.clone().filter(|&at| !known[at as usize]).collect();
                let parts = touched.take(range.clone());
                assert_eq!(parts.into_iter().flatten().collect::<Vec<_>>(), expected);
                range.for_each(|at| known[at as usize] = true);
            }
            let parts: Vec<_> = touched.parts.into_iter().collect();
            assert!(parts.windows(2).all(|two| two[0].1 < two[1].0), "{parts:?}");
        }
    }
}
