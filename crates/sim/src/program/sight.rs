//! What programs see in files, held to what was written to them.

use holdfast_board::{PAGE_BYTES, pieces};
use holdfast_cache::behind::fetch;

use super::files::with_handle;
use crate::model::{FileIndex, difference};
use crate::op::Name;
use crate::parts::{client, durable};
use crate::recorder::{complain, model};

/// What a file holds for programs: the page cache, and over it what only the log has. Takes no
/// lock.
pub(super) fn visible(index: FileIndex) -> Vec<u8> {
    let (mut bytes, key) = with_handle(index, |handle| (handle.file.bytes(), handle.file.key()));
    let client = client(0);
    let Some(seen) = client.find(key.0, key.1).filter(|seen| client.hides_bytes(seen.file)) else {
        return bytes;
    };
    let board = client.board();
    let size = board.row(seen.file.slot).end();
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
pub(super) fn look_at(name: Name, index: Option<FileIndex>, seen: impl Fn(FileIndex) -> Vec<u8>) {
    let Some(index) = index else { return };
    let (contents, exempt) = model(|model| (model.contents(index).to_vec(), model.is_exempt(index)));
    if exempt {
        return;
    }
    let tell = |contents: &[u8], found: &[u8], how: &str| {
        let wrong = difference(contents, found);
        complain(format!("in {} programs see{how}: {wrong}", char::from(name)));
    };
    let found = seen(index);
    if found != contents {
        return tell(&contents, &found, "");
    }
    let (client, key) = (client(0), with_handle(index, |handle| handle.file.key()));
    let Some(seen) = client.find(key.0, key.1) else { return };
    for (part, at) in contents.chunks(PAGE_BYTES as usize).zip((0..).step_by(PAGE_BYTES as usize)) {
        let mut found = vec![0xee; part.len()];
        if client.read_optimistically(seen.file, at, &mut found).is_some() && found != part {
            return tell(part, &found, &format!(" in an optimistic read at {at}"));
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
