//! What programs, keeper and outsiders do: each operation as the preloaded library would make it,
//! with the system calls on the simulated disk, and what the model is told of it.

use crate::model::Effect;
use crate::op::Op;
use crate::parts::{UnderWay, durable, parts};
use crate::recorder::{complain, model};
use crate::stage::{self, Kind};

mod bytes;
mod files;
mod keeper;
mod naming;
mod sight;

use bytes::{around, create, haunt, leave, lend, read, resize, sync, write};
use files::file_at;
use keeper::{
    break_lease, bypass, clean, cut, drain, fail, lose, outsider, part, peek, refuse, retire, show,
    spill_fails, tell,
};
use naming::{rename, sync_directory, unlink};
pub(crate) use sight::look_at_everything;
use sight::visible;

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

/// The keeper has repaired what a killed thread left, as far as the disk let it.
pub(crate) fn died(thread: u8, refused: bool) {
    let under_way = parts(|parts| parts.under_way[usize::from(thread)].take());
    match under_way {
        Some(UnderWay::Change(index, id)) => {
            let visible = visible(index);
            if let Some(wrong) = model(|model| model.partial(index, id, &visible)) {
                complain(format!("part of a dead program's write is seen: {wrong}"));
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
