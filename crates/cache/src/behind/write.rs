//! The write path of state Behind: that of state Through up to the fence, then page rows
//! (`publish.rs`) and size. It makes no system call, but an `lseek` for a write at the cursor.

use core::sync::atomic::Ordering;

use holdfast_board::{Page, pieces};
use holdfast_log::Kind;
use holdfast_media::{Bytes, Nvm};

use super::publish::{Payload, Places, Spare, Verdict, judge, publish};
use crate::calls::WriteCall;
use crate::client::Client;
use crate::design::{Write, Written};
use crate::errno::Errno;
use crate::file::{FileRef, Place};
use crate::lane::{Lane, is_split};
use crate::stop::Stop;

/// Writes up to this size are gathered before they are logged when bytes of them go into a frame:
/// it then gets the very bytes that the log has, even if the program changes them meanwhile. Those
/// of longer ones are read back from the media, where they were streamed past the processor's
/// caches.
const GATHER_BYTES_MAX: usize = 4096;
/// Most of them are short.
const GATHER_FEW_BYTES_MAX: usize = 512;

/// [`Design::write`](crate::Design::write) of state Behind.
pub(super) fn write<N: Nvm>(
    lane: &mut Lane<'_, N>,
    write: &Write<'_>,
    call: &mut impl WriteCall,
) -> Result<Written, Stop> {
    let client = lane.client();
    let Write { file, place, parts, total } = *write;
    // Larger ones are split over segments, and their pages with them.
    if is_split(&client.layout, total) || !(matches!(place, Place::At(_)) || call.sets_cursor()) {
        return Ok(Written::Alone);
    }
    if !lane.has_room(total) {
        return Err(Errno::EIO.into());
    }
    let row = client.row(file);
    let offset = match place {
        Place::At(offset) => {
            // Not while an append is under way that ends the file elsewhere.
            if offset.saturating_add(total) > row.end() {
                lane.lock_cursor(file)?;
            }
            offset
        }
        Place::Cursor { known } => {
            lane.lock_cursor(file)?;
            known.map_or_else(|| call.landed(), Ok)?
        }
        Place::Append => {
            lane.lock_cursor(file)?;
            row.end()
        }
    };
    let end = match offset.checked_add(total) {
        Some(end) if end <= client.size_limit.load(Ordering::Relaxed) => end,
        // The kernel knows the right error, or how much fits.
        _ => return Ok(Written::Alone),
    };
    lane.lock_pages(file, offset, total)?;
    let (mut spare, mut merges) = (Spare::default(), false);
    // The next one will most likely go on in the same page.
    let appends = end > row.end();
    if place != Place::Append && client.may_pass_by(file, offset, total) {
        return client.log_and_call(lane, write, offset, call);
    }
    let range = (offset, total, appends);
    match judge(&client.places(), lane.index(), file, range, &mut spare, &mut merges) {
        Verdict::Fits => {}
        // The page locks of the range are held, and no row covers it. An append of the kernel's
        // would go to the end of the file as the kernel knows it.
        Verdict::Apart if place != Place::Append => {
            return client.log_and_call(lane, write, offset, call);
        }
        Verdict::Apart | Verdict::Covered => return Ok(Written::Alone),
    }
    let (entry, bytes) = ((file, (offset, total)), total as usize);
    if !merges && !spare.is_used() || bytes > GATHER_BYTES_MAX {
        client.log_and_enter(lane, entry, parts, None, &mut spare);
    } else if bytes <= GATHER_FEW_BYTES_MAX {
        // A buffer of zeros costs as much as the copy.
        client.log_gathered::<GATHER_FEW_BYTES_MAX>(lane, entry, parts, &mut spare);
    } else {
        client.log_gathered::<GATHER_BYTES_MAX>(lane, entry, parts, &mut spare);
    }
    // After the rows: whoever sees the size finds the bytes below it. Nobody else makes the file
    // longer: we hold its cursor lock.
    row.extend_end(end);
    if let Place::Cursor { .. } | Place::Append = place {
        call.set_cursor(end)?;
    }
    lane.count_write(total);
    Ok(Written::Done { bytes, offset })
}

impl<N: Nvm> Client<N> {
    /// Whether a write goes to the page cache at once, though page rows would take it: while the
    /// log goes on in a file, what is in rows is brought there before its segment is given back, by
    /// one thread of the keeper's, for which writers would wait.
    fn may_pass_by(&self, file: FileRef, offset: u64, bytes: u64) -> bool {
        self.board.header().log_goes_on.seems_on()
            && pieces(offset, bytes).all(|(page, ..)| self.board.pages().find(file.slot, page).is_none())
    }

    fn places(&self) -> Places<'_, N> {
        let Self { board, nvm, layout, uuid, .. } = self;
        Places { board, nvm, layout, uuid }
    }

    /// Logs and enters the program's bytes as they are at one moment.
    #[inline(never)]
    fn log_gathered<const BYTES_MAX: usize>(
        &self,
        lane: &mut Lane<'_, N>,
        entry: (FileRef, (u64, u64)),
        parts: &[Bytes<'_>],
        spare: &mut Spare,
    ) {
        let mut gathered = [0u8; BYTES_MAX];
        let copy = &mut gathered[..entry.1.1 as usize];
        gather(parts, copy);
        let parts = [Bytes::from_slice(copy)];
        self.log_and_enter(lane, entry, &parts, Some(copy), spare);
    }

    fn log_and_enter(
        &self,
        lane: &mut Lane<'_, N>,
        (file, (offset, bytes)): (FileRef, (u64, u64)),
        parts: &[Bytes<'_>],
        copy: Option<&[u8]>,
        spare: &mut Spare,
    ) {
        let seq = lane.append(file, Kind::Write, offset, bytes, parts);
        let row = self.row(file);
        self.note_recorded(row);
        row.note_written(lane.written_ns());
        row.note_written_page(Page::of((offset + bytes).saturating_sub(1)));
        let payload = Payload { offset, bytes, media_offset: lane.payload_offset(), copy, seq };
        publish(&self.places(), (file, row), &payload, spare);
        self.refresh_loaded(lane, file, &payload);
    }
}

fn gather(parts: &[Bytes<'_>], to: &mut [u8]) {
    let mut at = 0;
    for part in parts {
        part.copy_to(&mut to[at..at + part.len()]);
        at += part.len();
    }
}
