//! The files of a history as its threads work on them: by the model's names, by the descriptors
//! that programs hold, and by their places in the board. It does nothing to their bytes or names.

use std::sync::atomic::AtomicU32;

use holdfast_cache::{Errno, FileRef, Origin};

use crate::model::{Effect, FileIndex};
use crate::op::Name;
use crate::parts::{Handle, UnderWay, client, parts, path};
use crate::recorder::model;

/// The disk is full, as programs hear it.
pub(super) const ENOSPC: Errno = Errno(28);
/// How often an operation begins anew when its slot went to another file meanwhile.
pub(super) const STALE_MAX: usize = 8;

/// As which a client knows its thread.
pub(super) fn thread_key(thread: u8) -> u64 {
    u64::from(thread) + 1
}

/// The file that has a name now.
pub(super) fn file_at(name: Name) -> Option<FileIndex> {
    model(|model| model.current().get(&[name][..]).copied())
}

/// Begins a change of a file, so that its end is told even if the thread does not live to see it.
pub(super) fn begin(thread: u8, index: FileIndex, effect: Effect) -> u64 {
    with_handle(index, |_| ());
    let id = model(|model| model.begin(index, effect));
    parts(|parts| parts.under_way[usize::from(thread)] = Some(UnderWay::Change(index, id)));
    id
}

/// Bytes that no other write has.
pub(super) fn payload(bytes: u32) -> Vec<u8> {
    let number = parts(|parts| {
        parts.next_payload = parts.next_payload.wrapping_add(1);
        parts.next_payload
    });
    // Never zero, and different at every offset from what other payloads have there.
    (0..bytes).map(|at| ((at as u8).wrapping_mul(3) ^ number.wrapping_mul(0x35)) | 1).collect()
}

/// Opens a file that another life of the machine made.
pub(super) fn with_handle<T>(index: FileIndex, with: impl FnOnce(&mut Handle) -> T) -> T {
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
pub(super) fn managed(thread: u8, index: FileIndex) -> Result<Option<FileRef>, Errno> {
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
pub(super) fn known(thread: u8, name: Name) -> Option<FileRef> {
    let index = file_at(name)?;
    let key = with_handle(index, |handle| handle.file.key());
    client(thread).find(key.0, key.1).map(|seen| seen.file)
}
