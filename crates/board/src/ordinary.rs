//! The tables of a board in ordinary memory, for the model checker alone: shared by the model's
//! threads instead of by processes.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::files::FileRow;
use crate::frames::Frames;
use crate::header::Header;
use crate::lanes::LaneRow;
use crate::loaded::{LOADED_WAYS, Loaded};
use crate::page::PAGE_BYTES;
use crate::pages::{PageRow, Pages, WAYS};
use crate::plan::Plan;
use crate::requests::RequestCell;
use crate::segments::SegmentRow;
use crate::sync::{AtomicU32, AtomicU64};
use crate::times::TimesRow;

struct Rows {
    header: Header,
    lanes: Vec<LaneRow>,
    files: Vec<FileRow>,
    times: Vec<TimesRow>,
    segments: Vec<SegmentRow>,
    locks: Vec<AtomicU32>,
    buckets: Vec<AtomicU64>,
    requests: Vec<RequestCell>,
    keys: Vec<AtomicU64>,
    pages: Vec<PageRow>,
    changes: Vec<AtomicU64>,
    owners: Vec<AtomicU32>,
    sums: Vec<std::sync::atomic::AtomicU64>,
    tags: Vec<AtomicU64>,
    hands: Vec<AtomicU32>,
    /// As `frames`; readers without the lock copy, too, by means that no compiler looks into.
    loaded: Vec<std::sync::atomic::AtomicU8>,
    /// Plain bytes that may be changed through a shared reference: only ever copied under a page
    /// lock.
    frames: Vec<std::sync::atomic::AtomicU8>,
}

#[derive(Clone)]
pub(crate) struct Tables(Arc<Rows>);

fn rows<T: Default>(count: u32) -> Vec<T> {
    (0..count).map(|_| T::default()).collect()
}

impl Plan {
    /// Small tables: a model has few of everything.
    pub fn small(slot_count: u32, segment_count: u32, lane_count: u32, lock_count: u32) -> Self {
        Self {
            slot_count,
            segment_count,
            lane_count,
            frame_count: 0,
            loaded_count: 0,
            lock_count,
            bucket_count: 1,
            request_count: 0,
        }
    }

    /// With this many request cells.
    pub fn with_requests(self, request_count: u32) -> Self {
        Self { request_count, ..self }
    }
}

impl Tables {
    /// Empty ones; clones share them.
    pub(crate) fn ordinary(plan: Plan) -> Self {
        let rows = Rows {
            header: Header::default(),
            lanes: rows(plan.lane_count),
            files: rows(plan.slot_count),
            times: rows(plan.slot_count),
            segments: rows(plan.segment_count),
            locks: rows(plan.lock_count),
            buckets: rows(plan.bucket_count),
            requests: rows(plan.request_count),
            keys: rows(plan.lock_count * WAYS as u32),
            pages: rows(plan.lock_count * WAYS as u32),
            owners: rows(plan.frame_count),
            sums: rows(plan.frame_count),
            frames: rows(plan.frame_count * PAGE_BYTES as u32),
            changes: rows(plan.lock_count),
            tags: rows(plan.loaded_count),
            hands: rows(plan.loaded_count / LOADED_WAYS as u32),
            loaded: rows(plan.loaded_count * PAGE_BYTES as u32),
        };
        Self(Arc::new(rows))
    }
}

impl Tables {
    pub(crate) fn header(&self) -> &Header {
        &self.0.header
    }

    pub(crate) fn lanes(&self) -> &[LaneRow] {
        &self.0.lanes
    }

    pub(crate) fn files(&self) -> &[FileRow] {
        &self.0.files
    }

    pub(crate) fn times(&self) -> &[TimesRow] {
        &self.0.times
    }

    pub(crate) fn segments(&self) -> &[SegmentRow] {
        &self.0.segments
    }

    pub(crate) fn requests(&self) -> &[RequestCell] {
        &self.0.requests
    }

    pub(crate) fn pages(&self) -> Pages<'_> {
        Pages { keys: &self.0.keys, rows: &self.0.pages, changes: &self.0.changes }
    }

    pub(crate) fn changes(&self) -> &[AtomicU64] {
        &self.0.changes
    }

    pub(crate) fn loaded(&self) -> Loaded<'_> {
        Loaded {
            tags: &self.0.tags,
            hands: &self.0.hands,
            base: NonNull::from(self.0.loaded.as_slice()).cast(),
            life: PhantomData,
        }
    }

    pub(crate) fn frames(&self) -> Frames<'_> {
        Frames {
            owners: &self.0.owners,
            sums: &self.0.sums,
            hand: &self.0.header.frame_hand,
            base: NonNull::from(self.0.frames.as_slice()).cast(),
            life: PhantomData,
        }
    }

    pub(crate) fn locks(&self) -> &[AtomicU32] {
        &self.0.locks
    }

    pub(crate) fn buckets(&self) -> &[AtomicU64] {
        &self.0.buckets
    }
}
