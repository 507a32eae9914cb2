//! What programs do to the bytes of files.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use holdfast_cache::{Content, Errno, FileRef, OPTIMISTIC_BYTES_MAX, Outcome, Place, Reading};
use holdfast_disk::DiskFile;
use holdfast_media::Bytes;

use super::files::{ENOSPC, STALE_MAX, begin, file_at, known, managed, payload, thread_key, with_handle};
use crate::disk::DEVICE;
use crate::model::{Effect, FileIndex, difference};
use crate::op::{Leave, Name};
use crate::parts::{Handle, client, parts, path};
use crate::recorder::{complain, model};
use crate::stage::{self, Kind};

pub(super) fn create(thread: u8, name: Name) {
    let disk = parts(|parts| parts.disk.clone());
    let make = || {
        let Ok(file) = disk.create(&path(name)) else { return (None, None) };
        let index = model(|model| model.create(&[name]));
        // Others see it by now.
        stage::point(Kind::Raw);
        (Some((file, index)), Some(DEVICE))
    };
    let (Some((file, index)), noted) = client(thread).making(thread_key(thread), make) else { return };
    parts(|parts| {
        let handle = Handle { file, reference: None, is_as_born: true, noted, seen_error: AtomicU32::new(0) };
        parts.handles.insert(index, handle);
    });
    stage::point(Kind::Raw);
}

/// Has the file registered with its program's own description, where it has no place in the board
/// yet.
pub(super) fn lend(thread: u8, name: Name) {
    if file_at(name).is_none() {
        create(thread, name);
    }
    let Some(index) = file_at(name) else { return };
    let inode = with_handle(index, |handle| handle.file.id);
    parts(|parts| parts.lends.push(inode));
    let _ = managed(thread, index);
}

pub(super) fn write(thread: u8, name: Name, at: Option<u32>, bytes: u32, kept: u32) {
    let Some(index) = file_at(name) else { return };
    let data = payload(bytes);
    let whole = match at {
        Some(at) => Effect::Write { offset: at.into(), bytes: data.clone() },
        None => Effect::Append(data.clone()),
    };
    let id = begin(thread, index, whole);
    for _ in 0..STALE_MAX {
        let (data, kept) = (&data[..], kept as usize);
        let (cursor, called) = (Cell::new(0), Cell::new(false));
        let writing = Writing { thread, index, id, at, data, kept, cursor, called };
        if writing.is_over() {
            break;
        }
    }
    model(|model| model.returned(index, id));
}

/// A write under way, as the library makes it.
struct Writing<'a> {
    thread: u8,
    index: FileIndex,
    /// What the model calls it.
    id: u64,
    /// Where, or at the end.
    at: Option<u32>,
    data: &'a [u8],
    /// How many bytes the kernel takes.
    kept: usize,
    /// Where the description stands.
    cursor: Cell<u64>,
    /// The kernel was asked.
    called: Cell<bool>,
}

impl Writing<'_> {
    /// The program's own call; `durable` says that a record holds it by now.
    fn raw(&self, durable: bool) -> Result<usize, Errno> {
        stage::point(Kind::Raw);
        self.called.set(true);
        let part = &self.data[..self.kept];
        with_handle(self.index, |handle| {
            let offset = self.at.map_or_else(|| handle.file.size(), u64::from);
            self.cursor.set(offset + part.len() as u64);
            if !part.is_empty() {
                handle.file.pwrite(part, offset);
            }
            let done = Effect::Write { offset, bytes: part.to_vec() };
            let done = (!part.is_empty()).then_some(&done);
            let is_partial = part.len() < self.data.len();
            model(|model| model.took_effect(self.index, self.id, done, durable, is_partial));
        });
        stage::point(Kind::Raw);
        if part.is_empty() { Err(ENOSPC) } else { Ok(part.len()) }
    }

    /// Makes it once. It is not over when the file's place went to another one meanwhile.
    fn is_over(&self) -> bool {
        if passes(self.thread, self.index, || self.raw(false)) {
            return true;
        }
        match managed(self.thread, self.index) {
            Ok(Some(reference)) => self.is_logged(reference),
            Ok(None) => {
                let _ = self.raw(false);
                true
            }
            Err(_) => true,
        }
    }

    /// Makes it of a file that has a place, unless the place is another one's.
    fn is_logged(&self, reference: FileRef) -> bool {
        let (index, client) = (self.index, client(self.thread));
        let place = self.at.map_or(Place::Append, |at| Place::At(at.into()));
        let row = client.board().row(reference.slot);
        // Who keeps the writers out and logs nothing goes around the log: durable when it returns,
        // not before.
        let around = Cell::new(false);
        let raw_write = || {
            let is_logging =
                client.board().lanes().iter().any(|lane| lane.announces(reference.slot).is_some());
            around.set(row.is_exclusive() && !is_logging);
            self.raw(!around.get() && !row.state().is_unsynced())
        };
        let seek = |to| {
            self.cursor.set(to);
            Ok(())
        };
        let bytes = [Bytes::from_slice(self.data)];
        match client.write_seeking(reference, place, &bytes, raw_write, || Ok(self.cursor.get()), seek) {
            Ok(Outcome::Stale) => {
                with_handle(index, |handle| handle.reference = None);
                return false;
            }
            Ok(Outcome::Passed { .. }) => {}
            Ok(Outcome::Kernel) => _ = self.raw(false),
            Ok(Outcome::Absorbed { offset, .. }) => {
                if !self.called.get() {
                    // State Behind: the kernel was not asked, so nothing of it can be short.
                    let done = Effect::Write { offset, bytes: self.data.to_vec() };
                    model(|model| model.took_effect(index, self.id, Some(&done), true, false));
                    parts(|parts| parts.writes_behind += 1);
                }
                if around.get() {
                    model(|model| {
                        let states = model.states(index);
                        model.synced(index, states);
                    });
                }
            }
            Err(errno) => {
                assert!(errno != ENOSPC || self.called.get(), "a write is refused that the kernel never saw");
            }
        }
        true
    }
}

/// Has the kernel change a file that has no place in the board yet, where files are logged from
/// their first sync on; as the library. The second thread has its files registered first, as other
/// changes do.
fn passes<R>(thread: u8, index: FileIndex, raw: impl FnOnce() -> R) -> bool {
    let client = client(thread);
    let key = with_handle(index, |handle| handle.file.key());
    thread == 0 && client.logs_on_sync() && client.pass(key.0, key.1, raw).is_some()
}

/// What a file holds, for its first sync.
struct Whole(FileIndex);

impl Content for Whole {
    fn size(&self) -> Result<u64, Errno> {
        Ok(with_handle(self.0, |handle| handle.file.size()))
    }

    fn read(&self, bytes: u64, log: &mut dyn FnMut(&[Bytes<'_>])) -> bool {
        let mut content = vec![0; bytes as usize];
        stage::point(Kind::Raw);
        let count = with_handle(self.0, |handle| handle.file.pread(&mut content, 0));
        if count as u64 == bytes {
            log(&[Bytes::from_slice(&content)]);
        }
        count as u64 == bytes
    }

    fn check(&self) -> Result<(), Errno> {
        with_handle(self.0, |handle| handle.file.tell_error()).map_err(|_| Errno::EIO)
    }
}

/// Writes to a file that has lost its name. A crash that takes the removal back may leave the
/// bytes, but no other file may show them.
pub(super) fn haunt(thread: u8, at: u32, bytes: u32) {
    let Some((index, ghost)) = parts(|parts| parts.ghost.take()) else { return };
    let data = payload(bytes);
    let effect = Effect::Write { offset: at.into(), bytes: data.clone() };
    let id = model(|model| model.begin(index, effect.clone()));
    let raw = || {
        stage::point(Kind::Raw);
        ghost.file.pwrite(&data, at.into());
        model(|model| model.took_effect(index, id, Some(&effect), false, false));
        Ok(data.len())
    };
    let logged = ghost.reference.is_some_and(|reference| {
        let place = Place::At(at.into());
        let written = client(thread).write(reference, place, &[Bytes::from_slice(&data)], raw, || Ok(0));
        matches!(written, Ok(Outcome::Absorbed { .. } | Outcome::Passed { .. }))
    });
    if !logged {
        let _ = raw();
    }
    model(|model| model.returned(index, id));
    parts(|parts| parts.ghost = Some((index, ghost)));
}

pub(super) fn resize(thread: u8, name: Name, effect: &Effect, works: bool) {
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
        let logged = || raw(!client.is_unsynced(reference));
        let result = match effect {
            Effect::Punch { offset, bytes } => client.punch(reference, *offset, *bytes, logged),
            Effect::Truncate(size) => client.truncate(reference, *size, logged),
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

/// Has the kernel change bytes; `durable`: before the call returns, else at the next sync.
pub(super) fn around(thread: u8, name: Name, at: u32, bytes: u32, durable: bool) {
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
            let is_absorbed = || {
                let seen = client(thread).find(DEVICE, with_handle(index, |handle| handle.file.key().1));
                seen.is_some_and(|seen| seen.file == reference && seen.state.is_absorbed())
            };
            let absorbed = is_absorbed();
            if !durable {
                let _ = client(thread).around_content(reference, raw);
            } else if client(thread).around(reference, raw).is_ok() && absorbed && is_absorbed() {
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
pub(super) fn raw_sync(index: FileIndex) -> Result<(), Errno> {
    let file = with_handle(index, |handle| handle.file.try_clone());
    let file = file.map_err(|_| Errno::EIO)?;
    file.sync().map_err(|error| Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)))
}

pub(super) fn sync(thread: u8, name: Name) {
    let Some(index) = file_at(name) else { return };
    // The library syncs a file natively that nobody has registered yet; it looks for its place,
    // whatever the descriptor is for.
    let (states, changes) = model(|model| (model.states(index), model.name_changes()));
    let logs = client(thread).logs_on_sync();
    let reference = if logs {
        managed(thread, index).ok().flatten()
    } else {
        with_handle(index, |handle| handle.reference).or_else(|| known(thread, name))
    };
    let seen = with_handle(index, |handle| handle.seen_error.load(Ordering::Relaxed));
    let seen_error = AtomicU32::new(seen);
    let is_first = reference.is_some_and(|reference| client(thread).is_unsynced(reference));
    let is_real = Cell::new(false);
    let inode = with_handle(index, |handle| handle.file.id);
    let commits = parts(|parts| parts.disk.state().commits_with(inode));
    let raw = || {
        is_real.set(true);
        raw_sync(index)
    };
    let result = match reference {
        Some(reference) => match client(thread).log_from_now(reference, &Whole(index)) {
            Ok(true) => Ok(()),
            Ok(false) => client(thread).sync(reference, &seen_error, raw),
            Err(errno) => Err(errno),
        },
        None => raw(),
    };
    let seen = seen_error.load(Ordering::Relaxed);
    with_handle(index, |handle| handle.seen_error.store(seen, Ordering::Relaxed));
    if result.is_ok() {
        if is_first && with_handle(index, |handle| handle.file.owes_error()) {
            complain(format!("a first sync of {} hides that pages were lost", char::from(name)));
        }
        let ordered = parts(|parts| parts.disk.is_ordered());
        // Natively only a file that the journal has something of has it commit.
        let commits = commits || reference.is_some_and(|reference| client(thread).is_managed(reference));
        // Else it was the kernel's sync alone, which says nothing of names.
        let is_logged = (is_first || !is_real.get())
            && reference.is_some_and(|reference| client(thread).is_managed(reference));
        model(|model| {
            model.synced(index, states);
            if logs && is_logged {
                model.first_synced(index);
            }
            if ordered && commits {
                model.names_synced(changes, false);
            }
        });
    }
}

/// Reads, and compares with what was written.
pub(super) fn read(thread: u8, name: Name, at: u32, bytes: u32) {
    let Some(index) = file_at(name) else { return };
    let key = with_handle(index, |handle| handle.file.key());
    let before = model(|model| model.contents(index).to_vec());
    let mut buffer = vec![0xee; bytes as usize];
    let pread = |buffer: &mut [u8], at: u64| {
        stage::point(Kind::Raw);
        let count = with_handle(index, |handle| handle.file.pread(buffer, at));
        stage::point(Kind::Raw);
        count
    };
    let (client, mut done) = (client(thread), None);
    // As the library: without a lock, else by the kernel, else under the page locks.
    for turn in 0..STALE_MAX {
        let Some(seen) = client.find(key.0, key.1) else { break };
        if bytes as usize <= OPTIMISTIC_BYTES_MAX {
            done = client.read_optimistically(seen.file, at.into(), &mut buffer);
        }
        if done.is_none() && turn == 0 && client.leaves_to_kernel(seen.file, bytes as usize) {
            done = client.read_by_kernel(seen.file, || pread(&mut buffer, at.into()));
        }
        if done.is_some() {
            break;
        }
        let raw = |part: &mut [u8], offset: u64| Ok(pread(part, offset));
        match client.read(seen.file, Place::At(at.into()), &mut buffer, raw, || Ok(0), |_| Ok(())) {
            Ok(Reading::Done(count)) => done = Some(count),
            Ok(Reading::Stale) => continue,
            Ok(Reading::Kernel) => {
                done = client.read_by_kernel(seen.file, || pread(&mut buffer, at.into()));
            }
            Err(errno) => return complain(format!("a read fails with errno {}", errno.0)),
        }
        if done.is_some() {
            break;
        }
    }
    let count = done.unwrap_or_else(|| pread(&mut buffer, at.into()));
    let part = |bytes: &[u8]| {
        let from = bytes.len().min(at as usize);
        bytes[from..bytes.len().min(from + buffer.len())].to_vec()
    };
    let (after, exempt) = model(|model| (model.contents(index).to_vec(), model.is_exempt(index)));
    let found = &buffer[..count];
    if !exempt && found != part(&before) && found != part(&after) {
        let wrong = difference(&part(&after), found);
        complain(format!("a read of {} at {at}: {wrong}", char::from(name)));
    }
}

/// A program asks for the size, or maps the file, or the like: the kernel must know all of it.
pub(super) fn leave(thread: u8, name: Name, how: Leave) {
    let Some(file) = known(thread, name) else { return };
    let _ = match how {
        Leave::Bring => client(thread).bring_to_kernel(file),
        Leave::Once => client(thread).leave_behind(file, false),
        Leave::ForGood => client(thread).leave_behind(file, true),
    };
}
