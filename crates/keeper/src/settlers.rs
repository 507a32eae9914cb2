//! The settlers: threads that answer requests which wait for the disk, and the queue of requests before them.
//!
//! A request that needs what somebody else has (a file kept by a client, a registration under way) is put back and tried
//! again a little later: no thread is ever held up by what only another request can give, so a handful of them serve any
//! number of clients.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use holdfast_cache::Errno;

use crate::durable::locked;
use crate::keeper::Keeper;
use crate::requests::{self, Haste};

/// First pause before a request is tried again; it doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(10);

struct Job {
    cell: usize,
    not_before: Instant,
    pause: Duration,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
}

/// Requests that wait for a settler, by the index of their cell.
#[derive(Default)]
pub(crate) struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

impl Queue {
    /// Queues a request that was taken from its cell.
    pub(crate) fn put(&self, cell: usize) {
        self.put_back(Job { cell, not_before: Instant::now(), pause: PAUSE_MIN });
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

    /// The next request that is due; `None` when there will be none.
    fn take(&self) -> Option<Job> {
        let mut jobs = locked(&self.jobs);
        loop {
            let now = Instant::now();
            if let Some(at) = jobs.waiting.iter().position(|job| job.not_before <= now) {
                return jobs.waiting.remove(at);
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
}

/// Answers queued requests until the queue is closed.
pub(crate) fn run(keeper: &Arc<Keeper>, queue: &Queue) {
    while let Some(job) = queue.take() {
        let board = &keeper.durable.board;
        let cell = &board.requests()[job.cell];
        if requests::answer(keeper, cell, Haste::Patient) {
            continue;
        }
        let asker = cell.client.load(Ordering::Relaxed);
        // A dead asker's files are let go only when nothing is left to do that it asked.
        let waits_for_itself = keeper.pid_of(asker).is_none() && !board.files_held_by(asker).is_empty();
        if waits_for_itself || keeper.is_stopping() {
            requests::finish(keeper, cell, Err(Errno::EIO));
        } else {
            let not_before = Instant::now() + job.pause;
            queue.put_back(Job { not_before, pause: (job.pause * 2).min(PAUSE_MAX), ..job });
        }
    }
}
