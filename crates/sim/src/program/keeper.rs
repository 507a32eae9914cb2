//! What the keeper and outsiders do.

use std::sync::Arc;

use holdfast_cache::Reason;
use holdfast_disk::DiskFile;
use holdfast_durable::{Effort, ManagedFile, Order, Pace};

use super::bytes::raw_sync;
use super::files::{file_at, managed, payload, with_handle};
use super::sight::look_at;
use crate::disk::SimFile;
use crate::model::{Effect, FileIndex};
use crate::op::Name;
use crate::parts::{Handle, UnderWay, client, durable, parts};
use crate::recorder::model;
use crate::stage::{self, Kind};

pub(super) fn bypass(thread: u8, name: Name) {
    let Some(index) = file_at(name) else { return };
    let Ok(Some(reference)) = managed(thread, index) else { return };
    let _ = client(thread).bypass(reference, Reason::MappedShared);
}

/// Closes a file, unless a thread is at it.
fn close(index: FileIndex) -> Option<Handle> {
    let in_use = |under_way: &UnderWay| matches!(under_way, UnderWay::Change(file, _) if *file == index);
    parts(|parts| {
        let busy = parts.under_way.iter().flatten().any(in_use);
        if busy { None } else { parts.handles.remove(&index) }
    })
}

pub(super) fn retire(name: Name) {
    let Some(index) = file_at(name) else { return };
    let reference = close(index).and_then(|handle| handle.reference);
    if let Some(reference) = reference
        && let Some(file) = durable().file(reference)
    {
        durable().retire(&file);
    }
}

pub(super) fn fail(name: Name) {
    let Some(index) = file_at(name) else { return };
    let inode = with_handle(index, |handle| handle.file.id);
    model(|model| model.will_fail(index));
    parts(|parts| parts.disk.state().fail_next_sync(inode));
}

/// The kernel writes back as it sees fit, and fails.
pub(super) fn lose(name: Name) {
    let Some(index) = file_at(name) else { return };
    let inode = with_handle(index, |handle| handle.file.id);
    model(|model| model.will_fail(index));
    parts(|parts| parts.disk.state().lose_dirty(inode));
}

pub(super) fn outsider(name: Name, late: bool) {
    let Some(index) = file_at(name) else { return };
    let durable = durable();
    let file = managed_file(index);
    // Only a fence that has outsiders wait lets files into state Behind.
    let late = late && !durable.board.header().write_behind.is_on();
    if let Some(file) = &file {
        if late {
            model(|model| model.set_conflict(index, true));
        }
        let arrived = durable.outsider_arrived(file, late);
        model(|model| model.set_conflict(index, false));
        if arrived.is_err() {
            return;
        }
    }
    write_from_outside(index);
    if let Some(file) = &file {
        durable.outsider_left(file);
    }
}

/// An outsider writes to a file and syncs it.
fn write_from_outside(index: FileIndex) {
    let bytes = payload(20);
    let effect = Effect::Write { offset: 5, bytes: bytes.clone() };
    let id = model(|model| model.begin(index, effect.clone()));
    with_handle(index, |handle| handle.file.pwrite(&bytes, 5));
    model(|model| model.took_effect(index, id, Some(&effect), false, false));
    stage::point(Kind::Raw);
    let states = model(|model| model.states(index));
    if raw_sync(index).is_ok() {
        model(|model| model.synced(index, states));
    }
    stage::point(Kind::Raw);
}

/// Whether the log stands for a file, so that the keeper would hear of who cuts it.
pub(super) fn is_logged(index: FileIndex) -> bool {
    let key = with_handle(index, |handle| handle.file.key());
    client(0).find(key.0, key.1).is_some_and(|seen| seen.state.is_absorbed())
}

/// An outsider cuts a file by its path.
pub(super) fn cut(name: Name, size: u32) {
    let Some(index) = file_at(name) else { return };
    let effect = Effect::Truncate(size.into());
    let id = model(|model| model.begin(index, effect.clone()));
    with_handle(index, |handle| handle.file.truncate(size.into()));
    model(|model| model.took_effect(index, id, Some(&effect), false, false));
    stage::point(Kind::Raw);
}

/// The file as the keeper knows it.
fn managed_file(index: FileIndex) -> Option<Arc<ManagedFile<SimFile>>> {
    let key = with_handle(index, |handle| handle.file.key());
    let durable = durable();
    durable.file_now(durable.board.find(key.0, key.1)?)
}

/// An outsider opens the file to read it, and the fence has it wait for the keeper.
pub(super) fn show(name: Name) {
    if let Some(file) = file_at(name).and_then(managed_file)
        && durable().show(&file).is_ok()
    {
        let index = file_at(name);
        look_at(name, index, |index| with_handle(index, |handle| handle.file.bytes()));
    }
}

/// An outsider opens the file to read it and syncs it, by a description of its own.
pub(super) fn peek(name: Name) {
    show(name);
    let Some(index) = file_at(name) else { return };
    let (disk, inode) = (parts(|parts| parts.disk.clone()), with_handle(index, |handle| handle.file.id));
    let states = model(|model| model.states(index));
    if disk.open_inode(inode, false).sync().is_ok() {
        model(|model| model.synced(index, states));
    }
}

/// The keeper brings bytes to the page cache that it need not bring there yet.
pub(super) fn drain(name: Name) {
    if let Some(file) = file_at(name).and_then(managed_file) {
        let durable = durable();
        let settled = durable.board.settled_seq(file.slot);
        let _ = durable.drain(&file, settled, Pace::Gentle);
    }
}

/// The keeper has the log go on in the spill file. With few segments at a time it is taken for
/// short from then on.
pub(super) fn spill(segments_max: u32) {
    let durable = durable();
    durable.spill(segments_max, Order::Any);
    durable.board.header().log_goes_on.set(segments_max < 4);
}

/// The keeper has the kernel know that a file was written.
pub(super) fn tell(name: Name) {
    if let Some(file) = file_at(name).and_then(managed_file) {
        let _ = durable().tell(&file);
    }
}

/// A round for want of space: the oldest records of each file, as fast as its writers let it.
pub(super) fn part() {
    let durable = durable();
    durable.expire_due(&|file| Some(durable.board.settled_seq(file.slot).before()), Pace::Gentle);
    durable.note_round();
}

/// Somebody opens a file whose description is lent, and is let in.
pub(super) fn break_lease(name: Name, writes: bool) {
    let Some(index) = file_at(name) else { return };
    let Some(file) = managed_file(index) else { return };
    let durable = durable();
    // As the keeper: a sync that fails orders a rewrite, after which the next one may succeed.
    let done = durable.lease_breaks(&file, || writes).or_else(|_| durable.lease_breaks(&file, || writes));
    if let Ok(left) = done {
        if !left {
            look_at(name, Some(index), |index| with_handle(index, |handle| handle.file.bytes()));
        }
        if left {
            write_from_outside(index);
            durable.outsider_left(&file);
        }
    }
}

/// The keeper makes room in the log without the disk, as thoroughly as it ever does.
pub(super) fn clean(copy_bytes_max: u32) {
    let copy_bytes_max = copy_bytes_max.into();
    durable().reclaim(Effort { free_goal: u32::MAX, copy_bytes_max, vain_looks_max: u32::MAX });
}

/// The disk of the spill file refuses once.
pub(super) fn spill_fails(sync: bool) {
    parts(|parts| parts.disk.state().fail_spill(sync));
}

/// The next write of the keeper to the file fails.
pub(super) fn refuse(name: Name) {
    let Some(index) = file_at(name) else { return };
    let inode = with_handle(index, |handle| handle.file.id);
    parts(|parts| parts.disk.state().refuse_next_write(inode));
}
