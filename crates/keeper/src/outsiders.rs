//! What happens when somebody outside opens a managed file: it is settled and left to the kernel
//! until they have gone (docs/crash/others.md).

use holdfast_pool::{Generation, Slot};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_cache::{FileRef, Unseen};
use holdfast_canary::{Canary, on};

use crate::fence::Outsiders;
use crate::keeper::Keeper;
use crate::late::{self, Change, Late};
use holdfast_disk::lease::Lease;
use holdfast_disk::locked;
use holdfast_disk::{DiskFile, OsFile};
use holdfast_durable::{Events, ManagedFile};

/// Until an open that was let in shows up in its process's table of open files.
const LET_IN: Duration = Duration::from_millis(20);

/// A file that the fence names.
fn told(slot: u32, generation: u64) -> FileRef {
    FileRef { slot: Slot::new(slot), generation: Generation::new(generation) }
}

/// The keeper as the fence sees it.
pub(crate) struct Gate {
    keeper: Arc<Keeper>,
    late: Arc<Late>,
}

impl Gate {
    pub(crate) fn new(keeper: Arc<Keeper>) -> Self {
        Self { keeper, late: Arc::default() }
    }
}

impl Outsiders for Gate {
    fn is_ours(&self, pid: u32) -> bool {
        // A client whose hooks do not see everything opens files like anybody else.
        pid == std::process::id() || self.keeper.is_running_client(pid) && !self.keeper.is_blind(pid)
    }

    fn is_announced(&self, tid: u32) -> bool {
        let openers = &self.keeper.durable.board.header().openers;
        on(Canary::OpensUnasked)
            || openers.is_in(tid)
            || number_in_its_namespace(tid).is_some_and(|tid| openers.is_in(tid))
    }

    fn goes_past(&self, pid: u32) {
        self.keeper.note_past(pid);
    }

    fn arrived(&self, slot: u32, generation: u64) {
        let (keeper, place) = (&self.keeper, told(slot, generation));
        for pending in locked(&keeper.pending).values_mut() {
            if pending.place == place {
                pending.tainted = Some(Instant::now());
            }
        }
        let Some(file) = keeper.durable.file(place) else { return };
        // One that was only noticed did not wait: until the file is settled, a crash must not
        // replay over its writes.
        let noticed = keeper.notes.fence.get().is_some_and(|fence| fence.kind().only_notices());
        if noticed {
            keeper.durable.mark_conflict(&file);
        }
        // The same for one that waited in vain, because a process is stopped in a write to it.
        let in_time = self.late.change(place, Change::Arrived, self.changes_of(&file));
        if !in_time && !noticed {
            keeper.durable.mark_conflict(&file);
            let path = file.meta().path.display().to_string();
            keeper.notes.once(format!(
                "{path}: an outsider waited for {} s and opened it while a process stands still in a write to it",
                late::PATIENCE.as_secs()
            ));
        }
    }

    fn reads(&self, slot: u32, generation: u64) {
        let place = told(slot, generation);
        let Some(file) = self.keeper.durable.file(place) else { return };
        if self.keeper.durable.is_shown(&file) {
            return;
        }
        let path = file.meta().path.display().to_string();
        let keeper = Arc::clone(&self.keeper);
        let shown = self.late.show(place, move || {
            if let Err(error) = keeper.durable.show(&file) {
                let path = file.meta().path.display().to_string();
                keeper
                    .notes
                    .trouble(format!("{path}: an outsider reads it, perhaps not the newest: {error}"));
            }
        });
        if !shown {
            self.keeper.notes.once(format!(
                "{path}: an outsider reads it, perhaps not the newest, while a process stands still in a write to it"
            ));
        }
    }

    fn lease_breaks(&self, slot: u32, generation: u64) {
        let keeper = &self.keeper;
        let Some(file) = keeper.durable.file(told(slot, generation)) else { return };
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
            // It is let in by now, and soon where a look finds it, unless it was over with the
            // call.
            std::thread::sleep(LET_IN);
            fence.present(file.place(), &file.held().magic_path());
        }
    }

    fn lost(&self, files: &[(u32, u64)]) {
        let durable = &self.keeper.durable;
        self.keeper.notes.trouble(
            "root's watch has ended or took this keeper for dead: nothing says any more who opens \
             files, so all of them are left to the kernel until this keeper has ended"
                .to_owned(),
        );
        // All of them first: to settle one takes as long as the disk does.
        let known = files.iter().filter_map(|&(slot, generation)| durable.file(told(slot, generation)));
        known.for_each(|file| durable.mark_unwatched(&file));
        files.iter().for_each(|&(slot, generation)| self.arrived(slot, generation));
    }

    fn left(&self, slot: u32, generation: u64, _wrote: bool) {
        let place = told(slot, generation);
        let Some(file) = self.keeper.durable.file(place) else { return };
        self.late.change(place, Change::Left, self.changes_of(&file));
    }

    fn client_opens(&self, slot: u32, ino: u64) -> u64 {
        self.opens_of_row(Slot::new(slot)) + self.keeper.durable.board.header().opens(ino).begun()
    }

    fn client_opens_over(&self, slot: u32, ino: u64) -> u64 {
        self.opens_of_row(Slot::new(slot)) + self.keeper.durable.board.header().opens(ino).ended()
    }
}

/// The number that a thread knows itself by, where that is another than ours.
fn number_in_its_namespace(tid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let innermost = numbers.split_ascii_whitespace().next_back()?.parse().ok()?;
    (innermost != tid).then_some(innermost)
}

impl Keeper {
    /// A client opens files for writing where its library does not see it: it is an outsider from
    /// now on, with whatever it has open.
    fn note_past(&self, pid: u32) {
        let ids: Vec<u32> = {
            let mut clients = locked(&self.clients);
            let of_process = clients.iter_mut().filter(|(_, attached)| attached.pid == pid && !attached.past);
            of_process
                .map(|(id, attached)| {
                    attached.blind = true;
                    attached.past = true;
                    *id
                })
                .collect()
        };
        let Some(_) = ids.first() else { return };
        if let Ok(program) = std::fs::read_link(format!("/proc/{pid}/exe")) {
            self.notes.unseen(program, Unseen::OwnCalls);
        }
        let Ok(table) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return };
        for open in table.flatten() {
            let Ok(meta) = std::fs::metadata(open.path()) else { continue };
            let found = if meta.is_file() { self.durable.board.find(meta.dev(), meta.ino()) } else { None };
            if let (Some(slot), Some(fence)) = (found, self.notes.fence.get()) {
                let generation = self.durable.board.row(slot).generation();
                fence.present(FileRef { slot, generation }, &open.path());
            }
        }
    }

    /// Whether a client makes calls where its library does not see them.
    pub(crate) fn is_past(&self, client: u32) -> bool {
        locked(&self.clients).get(&client).is_some_and(|attached| attached.past)
    }
}

impl Gate {
    /// What follows when an outsider comes to a file or leaves it.
    fn changes_of(&self, file: &Arc<ManagedFile<OsFile>>) -> impl Fn(Change) + Send + 'static {
        let (keeper, file) = (Arc::clone(&self.keeper), Arc::clone(file));
        move |change| match change {
            Change::Arrived => {
                if let Err(error) = keeper.durable.outsider_arrived(&file, false) {
                    let path = file.meta().path.display().to_string();
                    // Of a file system that is not there nobody can tell who opens what.
                    let why = match file.held().stat() {
                        Ok(_) => format!("an outsider opened it: {error}"),
                        Err(gone) => format!("its file system was shut down, or is gone: {gone}"),
                    };
                    keeper.notes.trouble(format!("{path}: {why}"));
                }
            }
            Change::Left => keeper.durable.outsider_left(&file),
        }
    }

    fn opens_of_row(&self, slot: Slot) -> u64 {
        let rows = self.keeper.durable.board.files();
        rows.get(slot.index()).map_or(0, |row| row.client_opens())
    }
}
