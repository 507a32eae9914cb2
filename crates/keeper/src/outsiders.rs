//! What happens when somebody outside opens a managed file: it is settled and left to the kernel until they
//! have gone (design 7).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::durable::{Events, locked};
use crate::fence::Outsiders;
use crate::keeper::Keeper;
use crate::lease::Lease;

/// Until an open that was let in shows up in its process's table of open files.
const LET_IN: Duration = Duration::from_millis(20);

/// The keeper as the fence sees it.
pub(crate) struct Gate(pub Arc<Keeper>);

impl Outsiders for Gate {
    fn is_ours(&self, pid: u32) -> bool {
        // A client whose hooks do not see everything opens files like anybody else.
        pid == std::process::id() || self.0.is_running_client(pid) && !self.0.is_blind(pid)
    }

    fn arrived(&self, slot: u32, generation: u64) {
        let keeper = &self.0;
        for pending in locked(&keeper.pending).values_mut() {
            if (pending.slot, pending.generation) == (slot, generation) {
                pending.tainted = Some(Instant::now());
            }
        }
        let Some(file) = keeper.durable.file(u64::from(slot), generation) else { return };
        // One that was only noticed did not wait: until the file is settled, a crash must not replay over its writes.
        let conflict = keeper.notes.fence.get().is_some_and(|fence| fence.kind().only_notices());
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

    fn lease_breaks(&self, slot: u32, generation: u64) {
        let keeper = &self.0;
        let Some(file) = keeper.durable.file(u64::from(slot), generation) else { return };
        let lease = || file.lent().map(|lent| lent.lease());
        // Several waited: the first call served all of them.
        if lease().is_none_or(|lease| lease == Lease::Whole) {
            return;
        }
        let writes = || lease() == Some(Lease::Writer);
        // A sync that fails orders a rewrite, after which the next one may succeed.
        let done = keeper.durable.lease_breaks(&file, writes);
        let written = done.or_else(|_| keeper.durable.lease_breaks(&file, writes)).unwrap_or_else(|error| {
            let path = file.meta().path.display().to_string();
            keeper.notes.trouble(format!("{path}: somebody opened it, who may not see the newest: {error}"));
            file.give_back();
            true
        });
        if written && let Some(fence) = keeper.notes.fence.get() {
            // It is let in by now, and soon where a look finds it, unless it was over with the call.
            std::thread::sleep(LET_IN);
            fence.present(slot, generation);
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
