//! The settlers: threads that answer requests which wait for the disk, and the queue of requests
//! before them.
//!
//! A request that needs what somebody else has (a file kept by a client, a registration under way)
//! is put back and tried again a little later: no thread is ever held up by what only another
//! request can give, so a handful of them serve any number of clients.
//!
//! Beside them, with what time is left, they settle files ahead of their requests
//! ([`crate::ahead`]): never more than a part of the threads, and nothing that a request would have
//! to wait for and did not need itself.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use holdfast_cache::{Answer, FileRef, Refusal, Request};

use crate::ahead::{self, Ahead};
use crate::keeper::Keeper;
use crate::register::Haste;
use crate::requests::{self, Taken};
use holdfast_disk::locked;

/// First pause before a request is tried again; it doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// A request that was put back for so long waits for somebody who perhaps stands still.
const WAITS_LONG: Duration = Duration::from_millis(150);

struct Job {
    taken: Taken,
    since: Instant,
    not_before: Instant,
    pause: Duration,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    ahead: Ahead,
    closed: bool,
}

/// What a settler does next.
enum Work {
    Asked(Job),
    Ahead(FileRef),
}

/// Requests that wait for a settler.
#[derive(Default)]
pub(crate) struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
    /// A file was settled ahead.
    settled: Condvar,
}

impl Queue {
    /// Queues a request that was taken from its cell.
    pub(crate) fn put(&self, taken: Taken) {
        let now = Instant::now();
        self.put_back(Job { taken, since: now, not_before: now, pause: PAUSE_MIN });
    }

    fn put_back(&self, job: Job) {
        locked(&self.jobs).waiting.push_back(job);
        self.changed.notify_one();
    }

    /// Ends the settlers, once what is queued is answered. For when nobody queues any more.
    pub(crate) fn close(&self) {
        locked(&self.jobs).closed = true;
        self.changed.notify_all();
    }

    /// The next request that is due, or else what may be done ahead; `None` when there will be
    /// none.
    fn take(&self) -> Option<Work> {
        let mut jobs = locked(&self.jobs);
        loop {
            let now = Instant::now();
            if let Some(at) = jobs.waiting.iter().position(|job| job.not_before <= now) {
                return jobs.waiting.remove(at).map(Work::Asked);
            }
            if let Some(place) = jobs.ahead.begin().filter(|_| !jobs.closed) {
                return Some(Work::Ahead(place));
            }
            let due = jobs.waiting.iter().map(|job| job.not_before).min();
            jobs = match due {
                Some(due) => {
                    let waited = self.changed.wait_timeout(jobs, due.saturating_duration_since(now));
                    waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
                }
                None if jobs.closed => return None,
                None => self.changed.wait(jobs).unwrap_or_else(|poisoned| poisoned.into_inner()),
            };
        }
    }

    /// A file that was to be settled ahead is asked for: waits if that is under way, and takes it
    /// off if it is not. Whether it was settled.
    fn overtaken(&self, place: FileRef) -> bool {
        let mut jobs = locked(&self.jobs);
        let mut waited = false;
        while jobs.ahead.overtaken(place) {
            waited = true;
            jobs = self.settled.wait(jobs).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        waited
    }

    /// Whether it is time to look for files to settle ahead.
    fn may_look_ahead(&self) -> bool {
        locked(&self.jobs).ahead.may_look(Instant::now())
    }

    /// Files that may be settled ahead, in this order.
    fn put_ahead(&self, places: Vec<FileRef>) {
        locked(&self.jobs).ahead.put(places);
        self.changed.notify_all();
    }

    /// One was settled ahead, or could not be.
    fn done_ahead(&self, place: FileRef, well: bool) {
        locked(&self.jobs).ahead.end(place, well);
        self.settled.notify_all();
    }
}

/// Answers queued requests until the queue is closed.
pub(crate) fn run(keeper: &Arc<Keeper>, queue: &Queue) {
    while let Some(work) = queue.take() {
        let job = match work {
            Work::Asked(job) => job,
            Work::Ahead(place) => {
                queue.done_ahead(place, ahead::settle(&keeper.durable, place));
                continue;
            }
        };
        let board = &keeper.durable.board;
        let taken = &job.taken;
        if let Some(place) = ahead::place_asked_for(&taken.request) {
            if queue.may_look_ahead() {
                queue.put_ahead(ahead::siblings(&keeper.durable, place));
            }
            if queue.overtaken(place) && ahead::is_settled(&keeper.durable, place) {
                board.header().settles.add(1);
                requests::finish(keeper, taken, Ok(Answer::Done));
                continue;
            }
        }
        if requests::answer(keeper, taken, Haste::Patient) {
            continue;
        }
        let asker = taken.client;
        // A dead asker's files are let go only when nothing is left to do that it asked.
        let waits_for_itself = keeper.pid_of(asker).is_none() && !board.files_held_by(asker).is_empty();
        if waits_for_itself || keeper.is_stopping() {
            requests::finish(keeper, taken, Err(Refusal::Failed));
        } else {
            if job.since.elapsed() > WAITS_LONG {
                say_stalled(keeper, taken);
            }
            let not_before = Instant::now() + job.pause;
            queue.put_back(Job { not_before, pause: (job.pause * 2).min(PAUSE_MAX), ..job });
        }
    }
}

/// Somebody has the file of a request for longer than that should take.
fn say_stalled(keeper: &Keeper, taken: &Taken) {
    if let Request::File(place, _) = taken.request
        && let Some(file) = keeper.durable.file(place)
    {
        let board = &keeper.durable.board;
        board.header().ring_stalled(board.row(file.slot));
    }
}
