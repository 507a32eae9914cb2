//! The round trip of a request through a cell, and what clients give as reasons.
//!
//! No descriptor and no allocation: the cell lies in the board and the client sleeps on its word.

use core::ffi::CStr;
use core::time::Duration;

use holdfast_board::{Board, REQUEST_PATH_BYTES, RequestCell, RequestState, pause, spin_loop, spins};

use crate::request::{Answer, Refusal, Request};

/// How long a client sleeps before it looks whether the keeper still lives.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Rounds through all cells after which it has the keeper look at them: some twenty milliseconds.
const LOOK_ROUNDS: u32 = 128;

/// Looks at the answer before going to sleep: longer than a quick request takes, about as long as a
/// wake-up does.
const SPINS: u32 = 4000;

fn claim(board: &Board, client: u32) -> Option<&RequestCell> {
    let cells = board.requests();
    for round in 1_u32.. {
        for index in 0..cells.len() {
            let cell = &cells[(client as usize + index) % cells.len()];
            if cell.claim(client) {
                return Some(cell);
            }
        }
        if !board.header().keeper_alive() {
            return None;
        }
        // All cells are taken: as many clients wait for answers, one of which is due soon. Else the
        // keeper is to look: of some it may never have heard, and some may be nobody's.
        if round % LOOK_ROUNDS == 0 {
            board.header().request_wake.ring();
            board.header().stalled.ring();
        }
        pause(Duration::from_micros(100));
    }
    None
}

fn post<'a>(board: &'a Board, client: u32, request: Request, path: Option<&CStr>) -> Option<&'a RequestCell> {
    let cell = claim(board, client)?;
    cell.post(request.encode(), path.map_or(b"", CStr::to_bytes));
    board.header().request_wake.ring();
    Some(cell)
}

/// Asks and waits for the answer; a path goes with what is asked about a name.
pub(crate) fn ask(
    board: &Board,
    client: u32,
    request: Request,
    path: Option<&CStr>,
) -> Result<Answer, Refusal> {
    if path.is_some_and(|path| path.to_bytes().len() > REQUEST_PATH_BYTES) {
        return Err(Refusal::NoName);
    }
    let cell = post(board, client, request, path).ok_or(Refusal::Failed)?;
    for _ in 0..spins(SPINS) {
        if cell.state() == RequestState::Done {
            break;
        }
        spin_loop();
    }
    loop {
        let seen = cell.state();
        if seen == RequestState::Done {
            break;
        }
        // The keeper frees the cell of a client that it knows no more: a child may ask in the name
        // of a parent that ended.
        let is_lost = seen == RequestState::Free || cell.client() != client;
        if is_lost || !board.header().keeper_alive() {
            return Err(Refusal::Failed);
        }
        cell.sleep(seen, LOOK_AGAIN);
    }
    let answer = Answer::decode(cell.answer());
    cell.set_state(RequestState::Free);
    answer
}
