//! What programs do to names.

use std::cell::Cell;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use holdfast_board::Change;
use holdfast_cache::{Errno, Inode, Removal, Renaming, Replace};
use holdfast_disk::{Disk, DiskFile};

use super::files::{ENOSPC, file_at, known, thread_key};
use crate::disk::DEVICE;
use crate::model::Naming;
use crate::op::Name;
use crate::parts::{UnderWay, client, parts, path};
use crate::recorder::model;
use crate::stage::{self, Kind};

pub(super) fn sync_directory(thread: u8) {
    let changes = model(|model| model.name_changes());
    let raw = || {
        let disk = parts(|parts| parts.disk.clone());
        let directory = Disk::open(&disk, Path::new("/d")).map_err(|_| Errno::EIO)?;
        directory.sync().map_err(|_| Errno::EIO)
    };
    if client(thread).sync_directory(3, DEVICE, raw).is_ok() {
        model(|model| model.names_synced(changes, true));
    }
}

pub(super) fn rename(thread: u8, from: Name, to: Name, works: bool) {
    client(thread).changing(thread_key(thread), Change::Any, || rename_amid(thread, from, to, works));
}

fn rename_amid(thread: u8, from: Name, to: Name, works: bool) {
    if file_at(from).is_none() {
        return;
    }
    let target = CString::new(path(to)).expect("no zero in a path");
    let replaces = Cell::new(None);
    let announced = Cell::new(None);
    let (named, target_file) = (known(thread, from), known(thread, to));
    let moved = parts(|parts| parts.disk.look(Path::new(OsStr::from_bytes(&path(from)))));
    let moved = moved.map(|stat| Inode { device: DEVICE, ino: stat.ino }).expect("it stands there");
    let noted = client(thread).note_move(moved);
    let to_free = file_at(to).is_none();
    let to_taken = !to_free && from != to;
    if let Some(index) = file_at(from).filter(|_| to_free || to_taken) {
        // Recovery may make it in the program's place.
        let change = Naming::Rename(vec![from], vec![to], index, file_at(to));
        let naming = model(|model| model.announce(change));
        parts(|parts| parts.under_way[usize::from(thread)] = Some(UnderWay::Naming(naming)));
        announced.set(Some(naming));
    }
    let raw = |replace| {
        stage::point(Kind::Raw);
        if !works {
            return Err(ENOSPC);
        }
        // Others may have changed the names while this thread asked the keeper.
        let (Some(index), replaced) = (file_at(from), file_at(to)) else { return Err(Errno(2)) };
        if replaced.is_some() && replace == Replace::Never {
            return Err(Errno::EEXIST);
        }
        parts(|parts| parts.disk.rename(&path(from), &path(to))).map_err(|_| Errno::EIO)?;
        let change = Naming::Rename(vec![from], vec![to], index, replaced);
        parts(|parts| parts.under_way[usize::from(thread)] = None);
        model(|model| match announced.take() {
            Some(id) if model.is_announced(id, &change) => model.named(id),
            id => {
                id.into_iter().for_each(|id| model.not_named(id));
                let _ = model.name(change);
            }
        });
        replaces.set(replaced);
        stage::point(Kind::Raw);
        Ok(())
    };
    let to = (-100, target.as_c_str());
    let renaming = Renaming { named, target: target_file, device: DEVICE, to, to_free, to_taken, back: None };
    let done = client(thread).renaming(renaming, raw);
    if let Some(noted) = noted {
        client(thread).note_moved(noted, moved);
    }
    if let Some(id) = announced.take() {
        // A dead keeper cannot be told that it was not made.
        if matches!(done, Ok(Err(_))) {
            model(|model| model.not_named(id));
        }
        parts(|parts| parts.under_way[usize::from(thread)] = None);
    }
    if let Some(replaced) = replaces.get() {
        parts(|parts| parts.closing.push(replaced));
    }
}

pub(super) fn unlink(thread: u8, name: Name, works: bool) {
    client(thread).changing(thread_key(thread), Change::Any, || unlink_amid(thread, name, works));
}

fn unlink_amid(thread: u8, name: Name, works: bool) {
    let Some(index) = file_at(name) else { return };
    let reference = known(thread, name);
    let full = CString::new(path(name)).expect("no zero in a path");
    let naming = model(|model| model.announce(Naming::Unlink(vec![name], index)));
    parts(|parts| parts.under_way[usize::from(thread)] = Some(UnderWay::Naming(naming)));
    let removal = match reference.map(|file| client(thread).unlinking(file, -100, &full)) {
        Some(Ok(removal)) => Some(removal),
        None => None,
        Some(Err(_)) => return model(|model| model.not_named(naming)),
    };
    if removal != Some(Removal::Held) {
        client(thread).note_change(DEVICE);
    }
    let counted = (removal != Some(Removal::Held)).then_some(DEVICE);
    client(thread).taking(counted, || {
        stage::point(Kind::Raw);
        if works {
            let _ = parts(|parts| {
                parts.under_way[usize::from(thread)] = None;
                parts.disk.unlink(&path(name))
            });
            model(|model| model.named(naming));
            stage::point(Kind::Raw);
        }
    });
    if works && removal != Some(Removal::Held) {
        client(thread).note_change(DEVICE);
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
