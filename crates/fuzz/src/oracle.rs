//! What recovery may have done, judged from the image alone: a file may change only if a valid slot
//! with a valid record or mark names it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_log::{generation_of_records, survey};
use holdfast_pool::{
    Frames, HintKind, Identity, Layout, MARK_CREATED, MARK_VOID, SegmentUse, Slots, segment_generation,
};

use crate::image::UUID;
use crate::ram::Ram;
use crate::yard::Seen;

/// What valid slots and records name.
#[derive(Default)]
pub struct Named {
    /// Files that may be written.
    written: Vec<Identity>,
    /// Files that may be removed.
    removed: Vec<Identity>,
    /// Paths that may be made.
    made: BTreeSet<Vec<u8>>,
}

impl Named {
    pub fn read(ram: &Ram, layout: &Layout, spill: Option<&[u8]>) -> Self {
        let mut records = Vec::new();
        let mut look = |bytes: &[u8], place: SegmentUse| {
            survey(
                bytes,
                &UUID,
                place,
                None,
                |record| {
                    let header = record.header;
                    records.push((header.slot, header.slot_generation, header.seq));
                },
                |_| (),
            );
        };
        for segment in layout.segments() {
            let bytes = ram.get(layout.segment_offset(segment), layout.segment_bytes as usize);
            let generation = segment_generation(ram, layout, segment);
            let generation = generation.or_else(|| generation_of_records(&bytes, &UUID, segment));
            if let Some(generation) = generation {
                look(&bytes, SegmentUse { segment, generation });
            }
        }
        let frames = Frames { nvm: ram, layout };
        for frame in frames.in_use() {
            let Ok(Some(held)) = frames.get(frame) else { continue };
            let from = frames.file_offset(frame) as usize;
            let image = spill.and_then(|bytes| bytes.get(from..from + layout.segment_bytes as usize));
            let Some(image) = image else { continue };
            look(image, held.place());
        }
        let slots = Slots { nvm: ram, layout };
        let mut named = Self::default();
        for slot in layout.slots() {
            let (Some(generation), Some(expired)) = (slots.generation(slot), slots.expired_seq(slot)) else {
                continue;
            };
            let live =
                records.iter().any(|record| (record.0, record.1) == (slot, generation) && record.2 > expired);
            let (hints, marks) = (slots.hints(slot), slots.marks(slot));
            let Ok(identity) = slots.identity(slot) else { continue };
            let unlinking = hints.first().is_some_and(|hint| hint.kind == HintKind::Unlink);
            if live {
                named.written.push(identity.clone());
            }
            if marks & MARK_VOID != 0 || unlinking {
                named.removed.push(identity);
            }
            if live && marks & MARK_CREATED != 0 || slots.is_rebuilt(slot) {
                named.made.extend(hints.into_iter().map(|hint| hint.path));
            }
        }
        named
    }

    /// The first thing that changed although nothing names it.
    pub fn trespass(
        &self,
        before: &BTreeMap<Vec<u8>, Seen>,
        after: &BTreeMap<Vec<u8>, Seen>,
    ) -> Option<String> {
        let show = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        for (path, was) in before {
            match after.get(path) {
                Some(is) if is == was => {}
                Some(is) => {
                    let same_file = (is.inode, is.mode, is.owner) == (was.inode, was.mode, was.owner);
                    let named = was.identity.as_ref().is_some_and(|identity| {
                        // Another name of the file may have been removed.
                        let relinked =
                            is.links != was.links && is.bytes == was.bytes && is.content == was.content;
                        self.written.contains(identity) || relinked && self.removed.contains(identity)
                    });
                    if !same_file || !named {
                        return Some(format!("{} changed from {was:?} to {is:?}", show(path)));
                    }
                }
                None => {
                    let named = was.identity.as_ref().is_some_and(|identity| self.removed.contains(identity));
                    if !named {
                        return Some(format!("{} was removed", show(path)));
                    }
                }
            }
        }
        for path in after.keys().filter(|path| !before.contains_key(*path)) {
            let above = [path.as_slice(), b"/"].concat();
            if !self.made.iter().any(|made| made == path || made.starts_with(&above)) {
                return Some(format!("{} was made", show(path)));
            }
        }
        None
    }
}
