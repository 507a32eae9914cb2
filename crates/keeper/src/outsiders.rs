//! What happens when somebody outside opens a managed file: it is settled and left to the kernel until they
//! have gone (design 7).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use holdfast_board::{FileState, NO_SIZE};
use holdfast_cache::Reason;
use holdfast_pool::MARK_CONFLICT;

use crate::fence::{FenceKind, Outsiders};
use crate::keeper::{KEEPER_ID, Keeper, locked};

/// The keeper as the fence sees it.
pub(crate) struct Gate(pub Arc<Keeper>);

impl Outsiders for Gate {
    fn is_ours(&self, pid: u32) -> bool {
        pid == std::process::id() || self.0.is_client(pid)
    }

    fn arrived(&self, slot: u32, generation: u64) {
        let keeper = &self.0;
        for pending in locked(&keeper.pending).values_mut() {
            if (pending.slot, pending.generation) == (slot, generation) {
                pending.tainted = true;
            }
        }
        let Some(file) = keeper.file(u64::from(slot), generation) else { return };
        if keeper.fence.get().map(|fence| fence.kind()) == Some(FenceKind::Inotify) {
            // The outsider did not wait: until the file is settled, a crash must not replay over its writes.
            let mut meta = file.meta();
            meta.marks |= MARK_CONFLICT;
            keeper.slots().set_marks(slot, meta.marks);
        }
        if let Err(error) = keeper.bypass(&file, Reason::Outsider) {
            keeper.report(format!("{}: an outsider opened it: {error}", file.meta().path.display()));
            return;
        }
        self.clear_conflict(&file);
    }

    fn left(&self, slot: u32, generation: u64, _wrote: bool) {
        let keeper = &self.0;
        let Some(file) = keeper.file(u64::from(slot), generation) else { return };
        if file.meta().bypass != Some(Reason::Outsider) || !keeper.board.lock_file(slot, KEEPER_ID) {
            return;
        }
        let row = &keeper.board.files()[slot as usize];
        if row.state() == FileState::Bypassed {
            // Its bytes, and ours written meanwhile, may be unsynced: the next sync is real (invariant 9).
            row.note_unlogged();
            row.size_hint.store(NO_SIZE, Ordering::SeqCst);
            if let Ok(stat) = rustix::fs::fstat(&file.description) {
                row.size_hint.store(stat.st_size as u64, Ordering::SeqCst);
            }
            file.meta().bypass = None;
            row.set_state(FileState::Through);
        }
        row.unlock_exclusive(KEEPER_ID);
    }

    fn client_opens(&self, slot: u32) -> u64 {
        self.0.board.files().get(slot as usize).map_or(0, |row| row.client_opens.load(Ordering::SeqCst))
    }
}

impl Gate {
    fn clear_conflict(&self, file: &crate::files::ManagedFile) {
        let mut meta = file.meta();
        if meta.marks & MARK_CONFLICT != 0 {
            meta.marks &= !MARK_CONFLICT;
            self.0.slots().set_marks(file.slot, meta.marks);
        }
    }
}
