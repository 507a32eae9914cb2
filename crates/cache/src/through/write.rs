//! The write path of state Through.
//!
//! Page locks -> seq -> record, one fence -> the program's own call -> a cancel record if that
//! failed or was short. The record is fenced before the call is made (invariant 1).

use holdfast_board::NO_SIZE;
use holdfast_media::Nvm;

use crate::calls::WriteCall;
use crate::design::{Write, Written};
use crate::file::Place;
use crate::lane::Lane;
use crate::stop::Stop;

/// [`Design::write`](crate::Design::write) of state Through.
pub(super) fn write<N: Nvm>(
    lane: &mut Lane<'_, N>,
    write: &Write<'_>,
    call: &mut impl WriteCall,
) -> Result<Written, Stop> {
    let client = lane.client();
    let Write { file, place, total, .. } = *write;
    let row = client.row(file);
    let offset = match place {
        Place::At(offset) => {
            // Not while an append is under way, whose record says already where the file ends.
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
            match row.end() {
                NO_SIZE => return Ok(Written::SizeUnknown),
                size => size,
            }
        }
    };
    if offset.checked_add(total).is_none_or(|end| end > i64::MAX as u64) {
        // The kernel knows the right error; nothing will be written.
        return Ok(Written::Misplaced { bytes: call.write()? });
    }
    lane.lock_pages(file, offset, total)?;
    client.log_and_call(lane, write, offset, call)
}
