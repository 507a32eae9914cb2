//! The files that have slots, for `files` and `top`: told in parts, since one answer is one
//! message. Asks neither files nor the disk: the event loop waits for it.

use holdfast_pool::Slot;
use std::time::Instant;

use holdfast_board::{FileState, NO_SIZE};

use crate::keeper::Keeper;
use crate::status::{FileLine, FilePart};
use holdfast_disk::{OsFile, locked};
use holdfast_durable::ManagedFile;

/// The kernel takes messages of twice that at least.
const PART_BYTES_MAX: usize = 96 << 10;
/// What a line takes without its texts.
const LINE_BYTES: usize = 256;
/// What a byte of a name may become in JSON.
const ESCAPED_BYTES: usize = 6;

/// How a state is called.
pub(crate) fn name_of(state: FileState) -> Option<&'static str> {
    match state {
        FileState::Through => Some("through"),
        FileState::Behind => Some("behind"),
        FileState::Bypassed => Some("bypassed"),
        FileState::Unsynced => Some("unsynced"),
        FileState::Orphan => Some("removed"),
        FileState::Failed => Some("failed"),
        FileState::Other => Some("other"),
        FileState::Free => None,
    }
}

impl Keeper {
    /// The files from a slot on, as many as fit into an answer.
    pub(crate) fn files(&self, from: u32) -> FilePart {
        let mut managed = self.durable.managed();
        managed.retain(|file| file.slot >= Slot::new(from));
        managed.sort_by_key(|file| file.slot);
        let mut part = FilePart::default();
        let mut room_bytes = PART_BYTES_MAX;
        for file in managed {
            let Some(line) = self.line_of(&file) else { continue };
            let bytes = LINE_BYTES + ESCAPED_BYTES * line.path.len();
            if bytes > room_bytes && !part.files.is_empty() {
                part.next = Some(file.slot.number());
                break;
            }
            room_bytes = room_bytes.saturating_sub(bytes);
            part.files.push(line);
        }
        part
    }

    fn line_of(&self, file: &ManagedFile<OsFile>) -> Option<FileLine> {
        let row = self.durable.board.row(file.slot);
        let dirty = self.durable.is_dirty(file);
        let meta = file.meta();
        Some(FileLine {
            slot: file.slot.number(),
            path: meta.path.to_string_lossy().into_owned(),
            state: name_of(row.state())?.to_owned(),
            dirty,
            oldest_ns: dirty.then(|| self.age_ns_of(file)).flatten(),
            size_bytes: Some(row.end_hint()).filter(|bytes| *bytes != NO_SIZE),
            reason: meta.bypass.map(|reason| reason.to_string()),
        })
    }

    /// How long a dirty file has had what is not on disk, in nanoseconds.
    pub(crate) fn age_ns_of(&self, file: &ManagedFile<OsFile>) -> Option<u64> {
        let since = locked(&self.ages).since(file.slot, file.generation)?;
        Some(Instant::now().saturating_duration_since(since).as_nanos() as u64)
    }
}
