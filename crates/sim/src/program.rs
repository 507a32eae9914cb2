//! What programs, keeper and outsiders do: each operation as the preloaded library would make it, with the system calls
//! on the simulated disk, and what the model is told of it.

use std::cell::Cell;
use std::ffi::CString;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use holdfast_cache::{Errno, FileRef, Origin, Outcome, Place, Reason, Removal};
use holdfast_keeper::disk::DiskFile;
use holdfast_media::Bytes;

use crate::disk::DEVICE;
use crate::machine::{Handle, client, durable, parts, path};
use crate::model::{Effect, FileIndex, Naming};
use crate::op::{Name, Op};
use crate::stage::{self, Kind, model};

const ENOSPC: Errno = Errno(28);
/// How often an operation begins anew when its slot went to another file meanwhile.
const STALE_MAX: usize = 8;

fn file_at(name: Name) -> Option<FileIndex> {
    model(|model| model.current().get(&[name][..]).copied())
}

/// Whether there is something to do it to.
pub(crate) fn is_possible(op: Op) -> bool {
    match op {
        Op::Create(name) => file_at(name).is_none(),
        Op::Write(name, ..)
        | Op::Append(name, _)
        | Op::Short(name, ..)
        | Op::Truncate(name, _)
        | Op::TruncateRefused(name, _)
        | Op::Punch(name, ..)
        | Op::Around(name, ..)
        | Op::Fill(name, ..)
        | Op::Sync(name)
        | Op::Rename(name, _)
        | Op::RenameRefused(name, _)
        | Op::Unlink(name)
        | Op::UnlinkRefused(name)
        | Op::Bypass(name)
        | Op::Retire(name)
        | Op::Fail(name)
        | Op::Outsider(name, _) => file_at(name).is_some(),
        Op::Put(..) | Op::SyncDirectory | Op::Expire => true,
    }
}

/// Does it.
pub(crate) fn perform(thread: u8, op: Op) {
    match op {
        Op::Create(name) => create(name),
        Op::Put(name, at, bytes) => {
            if file_at(name).is_none() {
                create(name);
            }
            write(thread, name, Some(at), bytes, bytes);
        }
        Op::Write(name, at, bytes) => write(thread, name, Some(at), bytes, bytes),
        Op::Append(name, bytes) => write(thread, name, None, bytes, bytes),
        Op::Short(name, at, bytes, kept) => write(thread, name, Some(at), bytes, kept),
        Op::Truncate(name, size) => resize(thread, name, &Effect::Truncate(size.into()), true),
        Op::TruncateRefused(name, size) => resize(thread, name, &Effect::Truncate(size.into()), false),
        Op::Punch(name, at, bytes) => {
            resize(thread, name, &Effect::Punch { offset: at.into(), bytes: bytes.into() }, true);
        }
        Op::Around(name, at, bytes) => around(thread, name, at, bytes, true),
        Op::Fill(name, at, bytes) => around(thread, name, at, bytes, false),
        Op::Sync(name) => sync(thread, name),
        Op::SyncDirectory => sync_directory(thread),
        Op::Rename(from, to) => rename(thread, from, to, true),
        Op::RenameRefused(from, to) => rename(thread, from, to, false),
        Op::Unlink(name) => unlink(thread, name, true),
        Op::UnlinkRefused(name) => unlink(thread, name, false),
        Op::Bypass(name) => bypass(thread, name),
        Op::Expire => {
            durable().expire_all();
        }
        Op::Retire(name) => retire(name),
        Op::Fail(name) => fail(name),
        Op::Outsider(name, late) => outsider(name, late),
    }
    parts(|parts| parts.under_way[usize::from(thread)] = None);
    stage::point(Kind::Acknowledged);
}

/// What a thread has under way.
#[derive(Clone, Copy)]
pub(crate) enum UnderWay {
    /// A change of a file.
    Change(FileIndex, u64),
    /// A removal that was announced.
    Removal(u64),
}

/// Begins a change of a file, so that its end is told even if the thread does not live to see it.
fn begin(thread: u8, index: FileIndex, effect: Effect) -> u64 {
    with_handle(index, |_| ());
    let id = model(|model| model.begin(index, effect));
    parts(|parts| parts.under_way[usize::from(thread)] = Some(UnderWay::Change(index, id)));
    id
}

/// The keeper has repaired what a killed thread left.
pub(crate) fn died(thread: u8) {
    let under_way = parts(|parts| parts.under_way[usize::from(thread)].take());
    match under_way {
        Some(UnderWay::Change(index, id)) => {
            let cached = with_handle(index, |handle| handle.file.bytes());
            model(|model| model.resolve(index, id, &cached));
        }
        Some(UnderWay::Removal(id)) => model(|model| model.not_named(id)),
        None => {}
    }
    // Its files are opened anew by whoever comes next.
    parts(|parts| parts.handles.values_mut().for_each(|handle| handle.is_as_born = false));
}

fn payload(bytes: u32) -> Vec<u8> {
    let number = parts(|parts| {
        parts.next_payload = parts.next_payload.wrapping_add(1);
        parts.next_payload
    });
    // Never zero, and different at every offset from what other payloads have there.
    (0..bytes).map(|at| ((at as u8).wrapping_mul(3) ^ number.wrapping_mul(0x35)) | 1).collect()
}

/// Opens a file that another life of the machine made.
fn with_handle<T>(index: FileIndex, with: impl FnOnce(&mut Handle) -> T) -> T {
    if !parts(|parts| parts.handles.contains_key(&index)) {
        let name = model(|model| {
            let current = model.current();
            current.iter().find(|(_, file)| **file == index).map(|(name, _)| name[0])
        });
        let name = name.expect("a file that has a name");
        parts(|parts| {
            let id = parts.disk.state().lookup(&path(name)).expect("the model's file");
            let file = parts.disk.open_inode(id, true);
            let handle = Handle { file, reference: None, is_as_born: false, seen_error: AtomicU32::new(0) };
            parts.handles.insert(index, handle);
        });
    }
    parts(|parts| with(parts.handles.get_mut(&index).expect("a handle")))
}

/// The file's place in the board, as the library finds it before every change; `None` leaves it to the kernel.
fn managed(thread: u8, index: FileIndex) -> Result<Option<FileRef>, Errno> {
    let (inode, key, known, is_as_born) = with_handle(index, |handle| {
        // As the library tells: nobody else has written to it.
        let is_as_born = handle.is_as_born && handle.file.size() == 0;
        (handle.file.id, handle.file.key(), handle.reference, is_as_born)
    });
    if let Some(known) = known {
        return Ok(Some(known));
    }
    let found = client(thread).find(key.0, key.1).map(|seen| seen.file);
    let reference = match found {
        Some(found) => Some(found),
        None => {
            let origin = if is_as_born { Origin::Created } else { Origin::Opened };
            client(thread).register(inode as i32, origin, || true)?
        }
    };
    with_handle(index, |handle| {
        handle.reference = reference;
        handle.is_as_born = false;
    });
    Ok(reference)
}

fn create(name: Name) {
    let disk = parts(|parts| parts.disk.clone());
    let Ok(file) = disk.create(&path(name)) else { return };
    let index = model(|model| model.create(&[name]));
    parts(|parts| {
        let handle = Handle { file, reference: None, is_as_born: true, seen_error: AtomicU32::new(0) };
        parts.handles.insert(index, handle);
    });
    stage::point(Kind::Raw);
}

fn write(thread: u8, name: Name, at: Option<u32>, bytes: u32, kept: u32) {
    let Some(index) = file_at(name) else { return };
    let data = payload(bytes);
    let whole = match at {
        Some(at) => Effect::Write { offset: at.into(), bytes: data.clone() },
        None => Effect::Append(data.clone()),
    };
    let client = client(thread);
    let id = begin(thread, index, whole);
    for _ in 0..STALE_MAX {
        let Ok(reference) = managed(thread, index) else { break };
        let cursor = Cell::new(0u64);
        let raw = |durable: bool| {
            stage::point(Kind::Raw);
            let part = &data[..kept as usize];
            with_handle(index, |handle| {
                let offset = at.map_or_else(|| handle.file.size(), u64::from);
                cursor.set(offset + part.len() as u64);
                if !part.is_empty() {
                    handle.file.pwrite(part, offset);
                }
                let done = Effect::Write { offset, bytes: part.to_vec() };
                let done = (!part.is_empty()).then_some(&done);
                model(|model| model.took_effect(index, id, done, durable, kept < bytes));
            });
            stage::point(Kind::Raw);
            if kept == 0 { Err(ENOSPC) } else { Ok(part.len()) }
        };
        let Some(reference) = reference else {
            let _ = raw(false);
            break;
        };
        let place = at.map_or(Place::Append, |at| Place::At(at.into()));
        let parts = [Bytes::from_slice(&data)];
        let row = &client.board().files()[reference.slot as usize];
        // Who keeps the writers out goes around the log: durable when it returns, not before.
        let around = Cell::new(false);
        let raw_write = || {
            around.set(row.is_exclusive());
            raw(!around.get())
        };
        match client.write(reference, place, &parts, raw_write, || Ok(cursor.get())) {
            Ok(Outcome::Stale) => with_handle(index, |handle| handle.reference = None),
            Ok(Outcome::Kernel) => {
                let _ = raw(false);
                break;
            }
            Ok(Outcome::Absorbed { .. }) => {
                if around.get() {
                    model(|model| {
                        let states = model.states(index);
                        model.synced(index, states);
                    });
                }
                break;
            }
            Err(_) => break,
        }
    }
    model(|model| model.returned(index, id));
}

fn resize(thread: u8, name: Name, effect: &Effect, works: bool) {
    let Some(index) = file_at(name) else { return };
    let client = client(thread);
    let id = begin(thread, index, effect.clone());
    for _ in 0..STALE_MAX {
        let Ok(reference) = managed(thread, index) else { break };
        let raw = |durable: bool| {
            stage::point(Kind::Raw);
            if works {
                with_handle(index, |handle| match effect {
                    Effect::Truncate(size) => handle.file.truncate(*size),
                    Effect::Punch { offset, bytes } => handle.file.punch_hole(*offset, *bytes),
                    _ => {}
                });
            }
            model(|model| model.took_effect(index, id, works.then_some(effect), durable, !works));
            stage::point(Kind::Raw);
            if works { Ok(()) } else { Err(ENOSPC) }
        };
        let Some(reference) = reference else {
            let _ = raw(false);
            break;
        };
        let result = match effect {
            Effect::Punch { offset, bytes } => client.punch(reference, *offset, *bytes, || raw(true)),
            Effect::Truncate(size) => client.truncate(reference, *size, || raw(true)),
            _ => break,
        };
        match result {
            Ok(Outcome::Stale) => with_handle(index, |handle| handle.reference = None),
            Ok(Outcome::Kernel) => {
                let _ = raw(false);
                break;
            }
            _ => break,
        }
    }
    model(|model| model.returned(index, id));
}

fn around(thread: u8, name: Name, at: u32, bytes: u32, durable: bool) {
    let Some(index) = file_at(name) else { return };
    let Ok(reference) = managed(thread, index) else { return };
    let effect = Effect::Write { offset: at.into(), bytes: payload(bytes) };
    let id = begin(thread, index, effect.clone());
    let raw = || {
        stage::point(Kind::Raw);
        if let Effect::Write { offset, bytes } = &effect {
            with_handle(index, |handle| handle.file.pwrite(bytes, *offset));
        }
        model(|model| model.took_effect(index, id, Some(&effect), false, false));
        stage::point(Kind::Raw);
    };
    match reference {
        None => raw(),
        Some(reference) => {
            let row_is_through = || {
                let seen = client(thread).find(DEVICE, with_handle(index, |handle| handle.file.key().1));
                seen.is_some_and(|seen| {
                    seen.file == reference && seen.state == holdfast_board::FileState::Through
                })
            };
            let through = row_is_through();
            if !durable {
                let _ = client(thread).around_content(reference, raw);
            } else if client(thread).around(reference, raw).is_ok() && through && row_is_through() {
                model(|model| {
                    let states = model.states(index);
                    model.synced(index, states);
                });
            }
        }
    }
    model(|model| model.returned(index, id));
}

/// The program's own `fsync`.
fn raw_sync(index: FileIndex) -> Result<(), Errno> {
    let file = with_handle(index, |handle| handle.file.try_clone());
    let file = file.map_err(|_| Errno::EIO)?;
    file.sync().map_err(|error| Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)))
}

fn sync(thread: u8, name: Name) {
    let Some(index) = file_at(name) else { return };
    // The library syncs a file it does not know yet natively.
    let reference = with_handle(index, |handle| handle.reference);
    let (states, changes) = model(|model| (model.states(index), model.name_changes()));
    let seen = with_handle(index, |handle| handle.seen_error.load(Ordering::Relaxed));
    let seen_error = AtomicU32::new(seen);
    let result = match reference {
        Some(reference) => client(thread).sync(reference, &seen_error, || raw_sync(index)),
        None => raw_sync(index),
    };
    let seen = seen_error.load(Ordering::Relaxed);
    with_handle(index, |handle| handle.seen_error.store(seen, Ordering::Relaxed));
    if result.is_ok() {
        let ordered = parts(|parts| parts.disk.is_ordered());
        model(|model| {
            model.synced(index, states);
            if ordered {
                model.names_synced(changes, false);
            }
        });
    }
}

fn sync_directory(thread: u8) {
    let changes = model(|model| model.name_changes());
    let raw = || {
        let disk = parts(|parts| parts.disk.clone());
        let directory = holdfast_keeper::disk::Disk::open(&disk, Path::new("/d")).map_err(|_| Errno::EIO)?;
        directory.sync().map_err(|_| Errno::EIO)
    };
    if client(thread).sync_directory(3, DEVICE, raw).is_ok() {
        model(|model| model.names_synced(changes, true));
    }
}

/// As the library: a name whose file the board knows is asked for by device and inode.
fn known(thread: u8, name: Name) -> Option<FileRef> {
    let index = file_at(name)?;
    let key = with_handle(index, |handle| handle.file.key());
    client(thread).find(key.0, key.1).map(|seen| seen.file)
}

fn rename(thread: u8, from: Name, to: Name, works: bool) {
    if file_at(from).is_none() {
        return;
    }
    let target = CString::new(path(to)).expect("no zero in a path");
    let replaces = Cell::new(None);
    let raw = || {
        stage::point(Kind::Raw);
        if !works {
            return Err(ENOSPC);
        }
        // Others may have changed the names while this thread asked the keeper.
        let (Some(index), replaced) = (file_at(from), file_at(to)) else { return Err(Errno(2)) };
        parts(|parts| parts.disk.rename(&path(from), &path(to))).map_err(|_| Errno::EIO)?;
        let change = Naming::Rename(vec![from], vec![to], index, replaced);
        model(|model| model.name(change));
        replaces.set(replaced);
        stage::point(Kind::Raw);
        Ok(())
    };
    let (named, target_file) = (known(thread, from), known(thread, to));
    client(thread).note_names(DEVICE);
    let done = client(thread).renaming(named, target_file, -100, &target, raw);
    if done == Ok(Ok(())) {
        client(thread).note_names(DEVICE);
    }
    if let Some(replaced) = replaces.get() {
        parts(|parts| parts.closing.push(replaced));
    }
}

fn unlink(thread: u8, name: Name, works: bool) {
    let Some(index) = file_at(name) else { return };
    let reference = known(thread, name);
    let full = CString::new(path(name)).expect("no zero in a path");
    let naming = model(|model| model.announce(Naming::Unlink(vec![name], index)));
    parts(|parts| parts.under_way[usize::from(thread)] = Some(UnderWay::Removal(naming)));
    let removal = match reference.map(|file| client(thread).unlinking(file, -100, &full)) {
        Some(Ok(removal)) => Some(removal),
        None => None,
        Some(Err(_)) => return model(|model| model.not_named(naming)),
    };
    if removal != Some(Removal::Held) {
        client(thread).note_names(DEVICE);
    }
    stage::point(Kind::Raw);
    if works {
        let _ = parts(|parts| {
            parts.under_way[usize::from(thread)] = None;
            parts.disk.unlink(&path(name))
        });
        model(|model| model.named(naming));
        stage::point(Kind::Raw);
    }
    if works && removal != Some(Removal::Held) {
        client(thread).note_names(DEVICE);
    }
    if let (Some(file), Some(removal)) = (reference, removal) {
        client(thread).unlinked(file, removal, works);
    }
    if works {
        parts(|parts| parts.closing.push(index));
    } else {
        model(|model| model.not_named(naming));
    }
}

fn bypass(thread: u8, name: Name) {
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

fn retire(name: Name) {
    let Some(index) = file_at(name) else { return };
    let reference = close(index).and_then(|handle| handle.reference);
    if let Some(reference) = reference
        && let Some(file) = durable().file(reference.slot.into(), reference.generation)
    {
        durable().retire(&file);
    }
}

fn fail(name: Name) {
    let Some(index) = file_at(name) else { return };
    let inode = with_handle(index, |handle| handle.file.id);
    model(|model| model.will_fail(index));
    parts(|parts| parts.disk.state().fail_next_sync(inode));
}

fn outsider(name: Name, late: bool) {
    let Some(index) = file_at(name) else { return };
    let key = with_handle(index, |handle| handle.file.key());
    let durable = durable();
    let file = durable.board.find(key.0, key.1).and_then(|slot| {
        let generation = durable.board.files()[slot as usize].generation.load(Ordering::SeqCst);
        durable.file(slot.into(), generation)
    });
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
    if let Some(file) = &file {
        durable.outsider_left(file);
    }
}
