//! The request server: answers what clients ask through the board's cells.
//!
//! Quick requests are answered here, one after the other, so that a client's intents keep their
//! order. What waits for the disk, or for somebody else's request, goes to the settlers
//! ([`crate::settlers`]). Nothing here may wait for a file that a client has: they may be waiting
//! for this very thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_board::Bell;
use holdfast_cache::{Answer, FileRef, FileRequest, Origin, Refusal, Request};
use holdfast_media::Mapping;

use crate::keeper::Keeper;
use crate::register::Haste;
use crate::requests::{Taken, answer, finish, put_answer};
use crate::settlers::Queue;
use crate::watches::Scope;
use holdfast_disk::OsDisk;
use holdfast_durable::Durable;

/// An idle server only wakes when it is rung; the limit is there for the stop.
const IDLE: Duration = Duration::from_secs(3600);

/// How long the server watches the doorbell before it sleeps, at most: what two wake-ups cost.
/// Watching pays while requests follow one another closely, as in a database that makes and removes
/// a journal for each transaction.
const WATCH_MAX: Duration = Duration::from_micros(120);
/// Below this it does not watch at all, until requests come closely again.
const WATCH_MIN: Duration = Duration::from_micros(8);
/// Looks at the doorbell between two looks at the clock.
const LOOKS: u32 = 64;

/// Serves until the keeper stops. `settlers` takes what cannot be answered at once.
pub(crate) fn serve(keeper: &Arc<Keeper>, settlers: &Queue) {
    let doorbell = &keeper.durable.board.header().request_wake;
    let mut watch = WATCH_MAX;
    loop {
        // Before the look at whether we stop: a stop after it rings, and then we do not sleep.
        let seen = doorbell.rung();
        if keeper.is_stopping() {
            break;
        }
        // Who asks for that has the kernel sync meanwhile: it need not be watched for.
        let heard = keeper.durable.board.header().hearings.answer(|| keeper.hear(Scope::All));
        let mut served = false;
        for (index, cell) in keeper.durable.board.requests().iter().enumerate() {
            if cell.take() {
                served = true;
                let client = cell.client();
                match Request::decode(cell.asked()) {
                    Some(request) => begin(keeper, settlers, Taken { cell: index, client, request }),
                    None => put_answer(keeper, cell, client, Err(Refusal::Malformed)),
                }
            }
        }
        if !served {
            if !heard {
                doorbell.sleep(seen, IDLE);
            }
            continue;
        }
        // A client that has its answer often has the next request soon. Where it does not, or has
        // no processor because of us, we watch for half as long the next time.
        let begun = Instant::now();
        let rung = watch >= WATCH_MIN && rings(doorbell, seen, begun, watch);
        if rung {
            watch = (watch * 2).min(WATCH_MAX);
            continue;
        }
        watch /= 2;
        doorbell.sleep(seen, IDLE);
        if begun.elapsed() < WATCH_MAX {
            watch = WATCH_MAX;
        }
    }
}

/// Answers at once what can be, and leaves the rest to the settlers.
fn begin(keeper: &Keeper, settlers: &Queue, taken: Taken) {
    if let Some(scope) = follows_others(&taken.request) {
        keeper.hear(scope);
    }
    if absorbs(keeper, &taken) {
        finish(keeper, &taken, Ok(Answer::Done));
    } else if waits_for_disk(&keeper.durable, &taken.request) || !answer(keeper, &taken, Haste::Quick) {
        settlers.put(taken);
    }
}

/// Whether the doorbell is rung within `watch`.
fn rings(doorbell: &Bell, seen: u32, begun: Instant, watch: Duration) -> bool {
    loop {
        for _ in 0..LOOKS {
            if doorbell.is_rung_since(seen) {
                return true;
            }
            std::hint::spin_loop();
        }
        if begun.elapsed() > watch {
            return false;
        }
    }
}

/// What of what outsiders did comes before what is asked, because that is to become durable at
/// once, or to count as that.
fn follows_others(request: &Request) -> Option<Scope> {
    match request {
        Request::File(_, FileRequest::Unlinking { .. } | FileRequest::Naming { .. } | FileRequest::Log) => {
            Some(Scope::Told)
        }
        Request::SyncDirectory { .. } => Some(Scope::New),
        Request::File(_, FileRequest::Commit { .. } | FileRequest::Hear) => Some(Scope::All),
        _ => None,
    }
}

/// A directory sync that the slots answer: nothing is pending, what was just heard of others
/// included.
fn absorbs(keeper: &Keeper, taken: &Taken) -> bool {
    let Request::SyncDirectory { fd, really: false } = taken.request else { return false };
    keeper
        .directory_of(taken.client, fd)
        .filter(|(_, device)| keeper.durable.is_clean(*device))
        .and_then(|(directory, _)| keeper.durable.absorb_directory_sync(&directory))
        .is_some()
}

fn waits_for_disk(durable: &Durable<Mapping, OsDisk>, request: &Request) -> bool {
    match *request {
        Request::SyncDirectory { .. }
        | Request::Moved
        | Request::LetGo
        | Request::Room { .. }
        | Request::LogAgain { .. }
        | Request::Follow { .. } => true,
        // Not the only description: all processes are looked through.
        Request::Register { sole: Some(false), .. } => true,
        // A slot is to hold something, for which pending changes must be committed first.
        Request::Register { origin, noted, .. } => origin == Origin::Created && durable.has_pending(noted),
        Request::Unseen { .. } => false,
        Request::File(place, request) => file_waits_for_disk(durable, place, &request),
    }
}

fn file_waits_for_disk(durable: &Durable<Mapping, OsDisk>, place: FileRef, request: &FileRequest) -> bool {
    let file = || durable.file(place);
    match request {
        FileRequest::Settle { .. }
        | FileRequest::Bypass { .. }
        | FileRequest::Drain { .. }
        | FileRequest::Left
        | FileRequest::Through { .. }
        | FileRequest::Commit { .. } => true,
        FileRequest::Hear => file().is_some_and(|file| durable.seems_changed(&file)),
        FileRequest::Log => {
            let noted = file().and_then(|file| durable.board.row(file.slot).noted());
            durable.has_pending(noted)
        }
        FileRequest::Unlinking { .. } | FileRequest::Naming { .. } => durable.has_pending(None),
        FileRequest::Withdraw | FileRequest::Replaced => false,
    }
}
