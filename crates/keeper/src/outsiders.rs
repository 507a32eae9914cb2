//! What happens when somebody outside opens a managed file: it is settled and left to the kernel until they
//! have gone (design 7).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::durable::{Events, locked};
use crate::fence::{FenceKind, Outsiders};
use crate::keeper::Keeper;

/// The keeper as the fence sees it.
pub(crate) struct Gate(pub Arc<Keeper>);

impl Outsiders for Gate {
    fn is_ours(&self, pid: u32) -> bool {
        pid == std::process::id() || self.0.is_running_client(pid)
    }

    fn arrived(&self, slot: u32, generation: u64) {
        let keeper = &self.0;
        for pending in locked(&keeper.pending).values_mut() {
            if (pending.slot, pending.generation) == (slot, generation) {
                pending.tainted = Some(Instant::now());
            }
        }
        let Some(file) = keeper.durable.file(u64::from(slot), generation) else { return };
        // Under inotify the outsider did not wait: until the file is settled, a crash must not replay over its writes.
        let conflict = keeper.notes.fence.get().map(|fence| fence.kind()) == Some(FenceKind::Inotify);
        if let Err(error) = keeper.durable.outsider_arrived(&file, conflict) {
            let path = file.meta().path.display().to_string();
            keeper.notes.trouble(format!("{path}: an outsider opened it: {error}"));
        }
    }

    fn reads(&self, slot: u32, generation: u64) {
        let Some(file) = self.0.durable.file(u64::from(slot), generation) else { return };
        if let Err(error) = self.0.durable.show(&file) {
            let path = file.meta().path.display().to_string();
            self.0.notes.trouble(format!("{path}: an outsider reads it, perhaps not the newest: {error}"));
        }
    }

    fn left(&self, slot: u32, generation: u64, _wrote: bool) {
        let durable = &self.0.durable;
        let Some(file) = durable.file(u64::from(slot), generation) else { return };
        durable.outsider_left(&file);
    }

    fn client_opens(&self, slot: u32, ino: u64) -> u64 {
        self.opens_of_row(slot) + self.0.durable.board.header().opens(ino).begun()
    }

    fn client_opens_over(&self, slot: u32, ino: u64) -> u64 {
        self.opens_of_row(slot) + self.0.durable.board.header().opens(ino).ended()
    }
}

impl Gate {
    fn opens_of_row(&self, slot: u32) -> u64 {
        let rows = self.0.durable.board.files();
        rows.get(slot as usize).map_or(0, |row| row.client_opens.load(Ordering::SeqCst))
    }
}
