//! What programs, keeper and outsiders do: each operation as the preloaded library would make it,
//! with the system calls on the simulated disk, and what the model is told of it.

use std::sync::atomic::{AtomicU32, Ordering};

use holdfast_board::{PAGE_BYTES, pieces};
use holdfast_cache::behind::fetch;
use holdfast_cache::{Errno, FileRef, Origin};

use crate::model::{Effect, FileIndex};
use crate::op::{Name, Op};
use crate::parts::{Handle, UnderWay, client, durable, parts, path};
use crate::stage::{self, Kind, model};

mod bytes;
mod keeper;
mod naming;

use bytes::{around, create, haunt, leave, lend, read, resize, sync, write};
use keeper::{
    break_lease, bypass, clean, cut, drain, fail, lose, outsider, part, peek, refuse, retire, show,
    spill_fails, tell,
};
use naming::{rename, sync_directory, unlink};

/// As which a client knows its thread.
fn thread_key(thread: u8) -> u64 {
    u64::from(thread) + 1
}

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
        Op::Put(..) | Op::Lend(_) => true,
        Op::Cut(name, _) => file_at(name).is_some_and(|index| !keeper::is_logged(index)),
        Op::Spill(_) | Op::SpillFails(_) => durable().count_frames().is_some(),
        _ => op.name().is_none_or(|name| file_at(name).is_some()),
    }
}

/// Does it.
pub(crate) fn perform(thread: u8, op: Op) {
    match op {
        Op::Create(name) => create(thread, name),
        Op::Put(name, at, bytes) => {
            if file_at(name).is_none() {
                create(thread, name);
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
        Op::Clean(copy_bytes_max) => clean(copy_bytes_max),
        Op::Spill(segments_max) => keeper::spill(segments_max),
        Op::SpillFails(sync) => spill_fails(sync),
        Op::Haunt(at, bytes) => haunt(thread, at, bytes),
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
        Op::Lose(name) => lose(name),
        Op::Outsider(name, late) => outsider(name, late),
        Op::Cut(name, size) => cut(name, size),
        Op::Read(name, at, bytes) => read(thread, name, at, bytes),
        Op::Leave(name, how) => leave(thread, name, how),
        Op::Show(name) => show(name),
        Op::Peek(name) => peek(name),
        Op::Drain(name) => drain(name),
        Op::Frames => durable().drain_frames(),
        Op::Tell(name) => tell(name),
        Op::Part => part(),
        Op::Release => durable().release_removed(),
        Op::LetGo => {
            durable().let_go_removed();
        }
        Op::Lend(name) => lend(thread, name),
        Op::Break(name, writes) => break_lease(name, writes),
        Op::Refuse(name) => refuse(name),
        Op::Space(fits) => {
            parts(|parts| parts.disk.state().free_bytes = if fits { u64::MAX } else { 0 });
        }
    }
    parts(|parts| parts.under_way[usize::from(thread)] = None);
    stage::point(Kind::Acknowledged);
}

/// Begins a change of a file, so that its end is told even if the thread does not live to see it.
fn begin(thread: u8, index: FileIndex, effect: Effect) -> u64 {
    with_handle(index, |_| ());
    let id = model(|model| model.begin(index, effect));
    parts(|parts| parts.under_way[usize::from(thread)] = Some(UnderWay::Change(index, id)));
    id
}

/// The keeper has repaired what a killed thread left, as far as the disk let it.
pub(crate) fn died(thread: u8, refused: bool) {
    let under_way = parts(|parts| parts.under_way[usize::from(thread)].take());
    match under_way {
        Some(UnderWay::Change(index, id)) => {
            let visible = visible(index);
            if let Some(wrong) = model(|model| model.partial(index, id, &visible)) {
                stage::complain(format!("part of a dead program's write is seen: {wrong}"));
            }
            model(|model| model.resolve(index, id, &visible, refused));
        }
        Some(UnderWay::Naming(id)) => model(|model| model.not_named(id)),
        None => {}
    }
    // Its files are opened anew by whoever comes next.
    parts(|parts| {
        parts.handles.values_mut().for_each(|handle| {
            handle.is_as_born = false;
            handle.noted = None;
        })
    });
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
            let handle = Handle {
                file,
                reference: None,
                is_as_born: false,
                noted: None,
                seen_error: AtomicU32::new(0),
            };
            parts.handles.insert(index, handle);
        });
    }
    parts(|parts| with(parts.handles.get_mut(&index).expect("a handle")))
}

/// The file's place in the board, as the library finds it before every change; `None` leaves it to
/// the kernel.
fn managed(thread: u8, index: FileIndex) -> Result<Option<FileRef>, Errno> {
    let logs = client(thread).logs_on_sync();
    let (inode, key, known, is_as_born) = with_handle(index, |handle| {
        // As the library tells: nobody else has written to it.
        let is_as_born = handle.is_as_born && (logs || handle.file.size() == 0);
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
            let noted = with_handle(index, |handle| handle.noted.take()).filter(|_| is_as_born);
            client(thread).register(inode as i32, origin, noted, || true)?
        }
    };
    with_handle(index, |handle| {
        handle.reference = reference;
        handle.is_as_born = false;
    });
    Ok(reference)
}

/// As the library: a name whose file the board knows is asked for by device and inode.
fn known(thread: u8, name: Name) -> Option<FileRef> {
    let index = file_at(name)?;
    let key = with_handle(index, |handle| handle.file.key());
    client(thread).find(key.0, key.1).map(|seen| seen.file)
}

/// What a file holds for programs: the page cache, and over it what only the log has. Takes no
/// lock.
fn visible(index: FileIndex) -> Vec<u8> {
    let (mut bytes, key) = with_handle(index, |handle| (handle.file.bytes(), handle.file.key()));
    let client = client(0);
    let Some(seen) = client.find(key.0, key.1).filter(|seen| client.hides_bytes(seen.file)) else {
        return bytes;
    };
    let board = client.board();
    let size = board.row(seen.file.slot).size_hint.load(Ordering::SeqCst);
    bytes.resize(size as usize, 0);
    for (page, lo, hi) in pieces(0, size) {
        let Some(row) = board.pages().find(seen.file.slot, page) else { continue };
        let (from, to) = (row.content.lo.max(lo), row.content.hi.min(hi));
        if from < to {
            let at = page.offset() as usize;
            let part = &mut bytes[at + from as usize..at + to as usize];
            fetch(board, &durable().nvm, &row.content, from, part);
        }
    }
    bytes
}

/// Complains when `seen` of a file is not what was written to it.
fn look_at(name: Name, index: Option<FileIndex>, seen: impl Fn(FileIndex) -> Vec<u8>) {
    let Some(index) = index else { return };
    let (contents, exempt) = model(|model| (model.contents(index).to_vec(), model.is_exempt(index)));
    if exempt {
        return;
    }
    let complain = |contents: &[u8], found: &[u8], how: &str| {
        let wrong = crate::model::difference(contents, found);
        stage::complain(format!("in {} programs see{how}: {wrong}", char::from(name)));
    };
    let found = seen(index);
    if found != contents {
        return complain(&contents, &found, "");
    }
    let (client, key) = (client(0), with_handle(index, |handle| handle.file.key()));
    let Some(seen) = client.find(key.0, key.1) else { return };
    for (part, at) in contents.chunks(PAGE_BYTES as usize).zip((0..).step_by(PAGE_BYTES as usize)) {
        let mut found = vec![0xee; part.len()];
        if client.glance(seen.file, at, &mut found).is_some() && found != part {
            return complain(part, &found, &format!(" in a glance at {at}"));
        }
    }
}

/// With nobody at work: programs see in every file what they wrote.
pub(crate) fn look_at_everything() {
    let names = model(|model| model.current());
    for (name, index) in names {
        look_at(name[0], Some(index), visible);
    }
}
