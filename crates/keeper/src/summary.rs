//! Adding up what the keeper and the board counted, for `--summary` and `status`.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use holdfast_board::{Inode, LaneRow, PAGE_BYTES, SegmentState};

use crate::keeper::{Attached, Keeper};
use crate::listing::name_of;
use crate::status::{BypassedFile, Process, Status, Summary, SyncedFile, TookCount};
use holdfast_disk::{OsFile, locked};
use holdfast_durable::ManagedFile;

/// What is said of a keeper whose counts cannot be true.
const BOARD_DAMAGED: &str = "the board is damaged: a program has written over what it shares with its keeper, whose counts \
                             cannot be true";

impl Keeper {
    /// More than one of anything in a nanosecond no processor has ever counted.
    fn counted_max(&self) -> u64 {
        let processors = std::thread::available_parallelism().map_or(u64::MAX, |count| count.get() as u64);
        let ns = self.since.elapsed().as_nanos().try_into().unwrap_or(u64::MAX);
        processors.saturating_mul(ns)
    }

    fn bypassed_files(&self) -> Vec<BypassedFile> {
        let synced = &self.durable.board.header().synced_by_kernel;
        let with_syncs = |(file, inode): &(BypassedFile, Option<Inode>)| BypassedFile {
            syncs: inode.and_then(|inode| synced.of(inode)),
            ..file.clone()
        };
        locked(&self.notes.bypassed).iter().map(with_syncs).collect()
    }

    fn files_synced_by_kernel(&self) -> Vec<SyncedFile> {
        let synced = &self.durable.board.header().synced_by_kernel;
        let of = |(inode, path): &(Inode, PathBuf)| SyncedFile {
            path: path.to_string_lossy().into_owned(),
            syncs: synced.of(*inode).unwrap_or(0),
        };
        let files = locked(&self.notes.managed_first);
        files.iter().map(of).filter(|file| file.syncs > 0).collect()
    }

    pub(crate) fn summary(&self, drained: bool) -> Summary {
        let header = self.durable.board.header();
        let counters = self.durable.counters();
        let mut summary = Summary {
            syncs_absorbed: header.syncs_absorbed(),
            syncs_real: header.syncs_real.get(),
            syncs_crowded: header.syncs_crowded.get(),
            truncates_absorbed: header.truncates_absorbed.get(),
            drained_bytes: counters.drained_bytes,
            keeper_fsyncs: counters.syncs,
            settles: header.settles.get(),
            no_room: header.no_room.get(),
            segments_spilled: counters.segments_spilled,
            segments_set_aside: self.segments_pinned,
            drained,
            pool: self.config.pool.display().to_string(),
            volatile: !self.media.kind.is_persistent(),
            fence: self.notes.fence.get().map_or_else(|| "none".to_owned(), |fence| fence.kind().to_string()),
            bypassed: self.bypassed_files(),
            synced_by_kernel: self.files_synced_by_kernel(),
            programs_unseen: locked(&self.notes.programs).clone(),
            front_ends: locked(&self.notes.front_ends).clone(),
            recovered: self.recovered.clone(),
            ..Summary::default()
        };
        // Clients may have written anything there.
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
        for lane in self.durable.board.lanes() {
            let counts = lane.counts();
            add(&mut summary.writes_absorbed, counts.writes);
            add(&mut summary.bytes_absorbed, counts.bytes);
            add(&mut summary.nvm_bytes, counts.nvm_bytes);
            add(&mut summary.cancels, counts.cancels);
            add(&mut summary.stalls, counts.stalls);
            add(&mut summary.stall_ns, counts.stall_ns);
        }
        summary.is_board_damaged = summary.is_above(self.counted_max());
        if summary.is_board_damaged {
            self.notes.once(BOARD_DAMAGED.to_owned());
        }
        for file in self.durable.managed() {
            let state = self.durable.board.row(file.slot).state();
            let Some(name) = name_of(state) else { continue };
            *summary.files.entry(name.to_owned()).or_default() += 1;
        }
        let removed = self.durable.graves_count() as u64;
        if removed > 0 {
            *summary.files.entry("removed".to_owned()).or_default() += removed;
        }
        // Files that were left to the kernel before they had a slot count, too.
        let known: HashSet<String> = self
            .durable
            .managed()
            .iter()
            .map(|file| file.meta().path.to_string_lossy().into_owned())
            .collect();
        let declined = summary.bypassed.iter().filter(|file| !known.contains(&file.path)).count() as u64;
        if declined > 0 {
            summary.files.insert("declined".to_owned(), declined);
        }
        summary
    }

    pub(crate) fn status(&self) -> Status {
        let managed = self.durable.managed();
        let count = |wanted: fn(SegmentState) -> bool| {
            self.durable.board.segments().iter().filter(|row| wanted(row.state())).count() as u64
        };
        let is_dirty = |file: &&Arc<ManagedFile<OsFile>>| self.durable.is_dirty(file);
        let oldest_ns = managed.iter().filter(is_dirty).filter_map(|file| self.age_ns_of(file)).max();
        let dirty = managed.iter().filter(is_dirty).count() as u64;
        // Before the errors are looked at, to which it may add one.
        let summary = self.summary(dirty == 0);
        let in_lanes: u64 =
            self.durable.board.lanes().iter().filter_map(LaneRow::filled_bytes).map(u64::from).sum();
        let sealed = count(|state| state == SegmentState::Sealed);
        let plan = self.durable.board.plan();
        let took = &self.durable.board.header().syncs_took;
        let process =
            |attached: &Attached| Process { pid: attached.pid, front_end: attached.front_end.to_string() };
        let processes: Vec<Process> = locked(&self.clients).values().map(process).collect();
        Status {
            keeper_pid: std::process::id(),
            stopping: self.told_to_stop.load(Ordering::SeqCst),
            clients: processes.iter().map(|process| process.pid).collect(),
            processes,
            media: self.media.kind.to_string(),
            flush_path: self.media.flush.to_string(),
            pool_bytes: self.durable.superblock.layout.pool_bytes,
            board_bytes: plan.with_read_cache(0).bytes() as u64,
            read_cache_bytes: (u64::from(plan.frame_count) + u64::from(plan.loaded_count)) * PAGE_BYTES,
            segments: u64::from(self.durable.superblock.layout.segment_count),
            segments_free: count(|state| state == SegmentState::Free),
            frames: self.durable.count_frames().map_or(0, |(all, _)| all.into()),
            frames_used: self.durable.frames_in_use().into(),
            slots: u64::from(self.durable.superblock.layout.slot_count),
            slots_used: managed.len() as u64 + self.durable.set_aside_count() as u64,
            files_dirty: dirty,
            backlog_bytes: if dirty == 0 {
                0
            } else {
                sealed * self.durable.superblock.layout.segment_bytes + in_lanes
            },
            oldest_ns,
            syncs_real_took: took.counts().map(|(below_ns, count)| TookCount { below_ns, count }).collect(),
            syncs_real_ns: took.sum_ns(),
            errors: locked(&self.notes.errors).iter().cloned().collect(),
            options: self.config.clone(),
            summary,
        }
    }
}
