//! The account of one watched file: which outsiders were let in, and what is known of them since.
//! Plain data and rules; it locks nothing and tells nobody.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::holders::Scan;
use crate::opener::{self, Progress};
use crate::sys;

/// First pause between two looks at a file that an outsider opened; it doubles up to the longest.
const LOOK_MS_FIRST: u64 = 1;
const LOOK_MS_MAX: u64 = 30_000;
/// Looks at one file take at most one part in so many of one processor's time.
const LOOK_SHARE: u32 = 4;
/// An unexplained open (inotify) may still be explained by a client's announcement for this long.
const EXPLAIN_MS: u64 = 5;
/// Until an open that was noticed afterwards shows up in its process's table of open files.
pub(crate) const INSTALL_MS: u64 = 20;
/// An open of which nothing was ever seen, by a process that is gone, has failed after this long.
const VANISHED_MS: u64 = 2_000;
/// Until an open whose notice was lost is over, for all we can know.
const LOST_MS: u64 = 1_000;
/// How long client opens announced but not seen stay good for explaining an open.
const CREDIT_MS: u64 = 1_000;

/// An open that waits for permission. Dropping it gives the permission.
pub(crate) struct Gate {
    pub group: Arc<OwnedFd>,
    pub file: OwnedFd,
}

impl Gate {
    /// Has closes of the file told from now on.
    pub(crate) fn ask_closes(&self) -> io::Result<()> {
        sys::fanotify_mark_open(self.group.as_fd(), sys::Mark::Closes, self.file.as_fd())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        sys::allow(self.group.as_fd(), self.file.as_fd());
    }
}

/// Who opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// A thread and its process (the same, if that could not be told); with `hidden` only a close
    /// event can tell that the description is gone.
    Thread { tid: u32, pid: u32, hidden: bool },
    /// Somebody, perhaps a client (inotify does not say who).
    Somebody,
    /// Somebody who is no client: no announcement explains the open.
    Stranger,
    /// Perhaps somebody: notices were lost.
    Lost,
}

/// An outsider's open that was let in and not yet accounted for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub who: Who,
    pub since: Instant,
    /// It is over: if it succeeded, the description is where it will be.
    pub past: bool,
    /// Its description was seen in a table of open files or was closed.
    pub seen: bool,
}

pub(crate) struct File {
    /// Distinguishes this watch from earlier and later ones of the same inode.
    pub id: u64,
    pub slot: u32,
    pub generation: u64,
    /// The sink was told `arrived` and not yet `left`.
    pub arrived: bool,
    /// An outsider was reported to be there already: `arrived` is due.
    pub present: bool,
    pub queued: bool,
    pub running: bool,
    /// Its closes are told.
    pub tells_closes: bool,
    /// Opens that wait until `arrived` has returned.
    pub waiting: Vec<(Who, Option<Gate>)>,
    pub opens: Vec<Open>,
    /// Grows with each open and each close: a look that began before is stale.
    pub epoch: u64,
    /// Outsiders' closes of writing descriptions so far.
    pub write_closes: u64,
    /// A writer was seen in a table of open files, and no such close came since.
    pub writer_owed: bool,
    pub wrote: bool,
    /// Somebody is among them of whom it is not known which process it was.
    pub unnamed: bool,
    pub look_at: Option<Instant>,
    pub look_not_before: Option<Instant>,
    pub look_ms: u64,
    pub tally: Tally,
    /// An open was explained by a client's announcement, but may hide another one: look when it is
    /// cheap.
    pub suspect: bool,
}

/// What one look at a file came to.
pub(crate) enum Verdict {
    /// Outsiders may still write, or it cannot be told: look again when `look_at` says.
    Stay,
    /// None is left.
    Left {
        /// Their bytes may be unsynced.
        wrote: bool,
        /// There never was one: all opens were clients' (inotify).
        all_ours: bool,
    },
}

impl File {
    pub(crate) fn new(id: u64, slot: u32, generation: u64, announced: u64) -> File {
        File {
            id,
            slot,
            generation,
            arrived: false,
            present: false,
            queued: false,
            running: false,
            tells_closes: false,
            waiting: Vec::new(),
            opens: Vec::new(),
            epoch: 0,
            write_closes: 0,
            writer_owed: false,
            wrote: false,
            unnamed: false,
            look_at: None,
            look_not_before: None,
            look_ms: LOOK_MS_FIRST,
            tally: Tally { announced_base: announced, ..Tally::default() },
            suspect: false,
        }
    }

    /// Queues an opener behind `arrived`.
    pub(crate) fn wait(&mut self, who: Who, gate: Option<Gate>) {
        self.waiting.push((who, gate));
        self.epoch += 1;
    }

    /// Enters those who are let in now.
    pub(crate) fn let_in(&mut self, waiting: &[(Who, Option<Gate>)], now: Instant) {
        self.opens.extend(waiting.iter().map(|(who, _)| Open {
            who: *who,
            since: now,
            past: matches!(who, Who::Thread { hidden: true, .. }),
            seen: false,
        }));
        for (who, _) in waiting {
            // Who is known to come from outside with more than reading in mind may have truncated
            // at once.
            let named = matches!(who, Who::Thread { .. });
            self.wrote |= named;
            self.unnamed |= !named;
        }
        self.epoch += 1;
        self.look_soon(now);
    }

    /// Whether closes of the file matter now.
    pub(crate) fn wants_closes(&self) -> bool {
        self.arrived || self.present || !self.waiting.is_empty()
    }

    /// A description was closed for good; `mark` enters that into the opens it may concern and says
    /// whether it did. Whether a look is due.
    pub(crate) fn closed(
        &mut self,
        wrote: bool,
        mut mark: impl FnMut(&mut Open) -> bool,
        now: Instant,
    ) -> bool {
        let marked = self.opens.iter_mut().fold(false, |any, open| mark(open) | any);
        if !wrote && !marked {
            return false;
        }
        self.epoch += 1;
        if wrote {
            self.wrote = true;
            self.write_closes += 1;
            self.writer_owed = false;
        }
        self.look_soon(now);
        true
    }

    /// Notices were lost. What the account was waiting for may be among them: only looks count from
    /// here on.
    pub(crate) fn lost_events(&mut self) {
        self.opens.clear();
        self.writer_owed = false;
        self.wrote = true;
        self.wait(Who::Lost, None);
    }

    /// Draws the conclusion from a look that was begun at `before`. `opens` are those of that time,
    /// with what has been found out about them; `scan` is missing if some were not over yet.
    pub(crate) fn conclude(
        &mut self,
        before: &Before,
        mut opens: Vec<Open>,
        scan: Option<&Scan>,
        announced: u64,
        now: Instant,
    ) -> Verdict {
        let pause = (now - before.at) * LOOK_SHARE;
        self.look_not_before = Some(now + pause);
        let writer = scan.is_some_and(|scan| scan.holders.iter().any(|holder| holder.writes));
        if writer {
            self.wrote = true;
            // If one closed meanwhile, the one seen may be the one that is gone.
            self.writer_owed |= self.write_closes == before.write_closes;
        }
        if self.epoch != before.epoch || !self.waiting.is_empty() {
            self.look_soon(now);
            return Verdict::Stay;
        }
        let all_ours = self.explain(&mut opens, announced, now);
        if let Some(scan) = scan {
            opens.iter_mut().for_each(|open| open.seen |= open.is_among(scan));
            opens.retain(|open| !open.is_accounted_for(now));
        }
        self.opens = opens;
        // A process that cannot be looked into was seen opening, if it did, and must be seen
        // closing; unless it is not known who opened: then it may have been any of these.
        let clear = scan.is_some_and(|scan| scan.unreadable == 0 || !self.unnamed) && !writer;
        if !(clear || all_ours) || self.writer_owed || !self.opens.is_empty() {
            // A writer that was seen ends with a close: until then there is nothing to look for.
            let ends_with_close = self.writer_owed && scan.is_some();
            self.look_at = (!ends_with_close).then(|| now + pause.max(Duration::from_millis(self.look_ms)));
            self.look_ms = (self.look_ms * 2).min(LOOK_MS_MAX);
            return Verdict::Stay;
        }
        self.arrived = false;
        self.unnamed = false;
        self.look_at = None;
        Verdict::Left { wrote: std::mem::take(&mut self.wrote), all_ours }
    }

    /// Something changed: look soon.
    fn look_soon(&mut self, now: Instant) {
        self.look_ms = LOOK_MS_FIRST;
        self.look_at = Some(self.look_not_before.map_or(now, |not_before| not_before.max(now)));
    }

    /// inotify: settles whose the opens are that nothing explained when they were noticed. Whether
    /// all were the clients' own after all.
    fn explain(&mut self, opens: &mut Vec<Open>, announced: u64, now: Instant) -> bool {
        let waited = Duration::from_millis(EXPLAIN_MS);
        let open_question = |open: &&mut Open| open.who == Who::Somebody;
        if opens.iter().any(|open| open.who == Who::Lost) {
            opens.iter_mut().filter(open_question).for_each(|open| open.who = Who::Stranger);
            self.tally.rebase(announced);
        } else if !opens.iter().any(|open| open.who == Who::Somebody) {
            return false;
        } else if self.tally.explained(announced) {
            opens.retain(|open| open.who != Who::Somebody);
            return opens.is_empty();
        } else if opens.iter().all(|open| now - open.since > waited) {
            opens.iter_mut().filter(open_question).for_each(|open| open.who = Who::Stranger);
            self.tally.rebase(announced);
        } else {
            return false;
        }
        self.wrote = true;
        false
    }
}

/// inotify: opens noticed against opens announced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    noticed: u64,
    announced_base: u64,
    /// How many were announced at a moment that is at least [`CREDIT_MS`] past when it is used.
    earlier: Option<(Instant, u64)>,
}

impl Tally {
    /// Counts one open; whether clients' announcements explain it.
    pub(crate) fn notice(&mut self, announced_in_all: u64, now: Instant) -> bool {
        let announced = announced_in_all.saturating_sub(self.announced_base);
        // The kernel merges equal notices, and announced opens fail: what was announced long ago
        // must not hide an outsider. What was announced since may still be on its way, however many
        // notices came meanwhile.
        match self.earlier {
            Some((since, _)) if now - since <= Duration::from_millis(CREDIT_MS) => {}
            earlier => {
                self.noticed = self.noticed.max(earlier.map_or(0, |(_, announced)| announced));
                self.earlier = Some((now, announced));
            }
        }
        self.noticed += 1;
        self.explained(announced_in_all)
    }

    fn explained(&self, announced_in_all: u64) -> bool {
        announced_in_all.saturating_sub(self.announced_base) >= self.noticed
    }

    /// Takes every unexplained open for an outsider's, so that clients' later ones are counted
    /// anew.
    fn rebase(&mut self, announced_in_all: u64) {
        *self = Tally { announced_base: announced_in_all, ..Tally::default() };
    }
}

/// What the account was when a look began.
pub(crate) struct Before {
    pub epoch: u64,
    pub write_closes: u64,
    pub at: Instant,
}

impl Open {
    /// Whether it is over, so that a scan meets its description.
    pub(crate) fn is_past(&self, now: Instant) -> bool {
        match self.who {
            _ if self.past => true,
            Who::Thread { tid, .. } => opener::progress(tid) != Progress::Opening,
            Who::Somebody | Who::Stranger => now - self.since > Duration::from_millis(INSTALL_MS),
            Who::Lost => now - self.since > Duration::from_millis(LOST_MS),
        }
    }

    /// Whether a scan shows a description that may have come of it.
    fn is_among(&self, scan: &Scan) -> bool {
        match self.who {
            Who::Thread { hidden: true, .. } => false,
            Who::Thread { pid, .. } => scan.holders.iter().any(|holder| holder.pid == pid),
            Who::Somebody | Who::Stranger | Who::Lost => !scan.holders.is_empty(),
        }
    }

    /// Whether its description is either visible to scans or closed, or never came to be.
    fn is_accounted_for(&self, now: Instant) -> bool {
        let vanished = now - self.since > Duration::from_millis(VANISHED_MS);
        match self.who {
            _ if self.seen => true,
            Who::Thread { hidden: true, .. } => false,
            Who::Thread { pid, .. } => vanished && !opener::alive(pid),
            Who::Somebody | Who::Stranger => vanished,
            Who::Lost => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::Holder;

    #[test]
    fn clients_opens_are_explained_and_others_are_not() {
        let now = Instant::now();
        let mut tally = Tally { announced_base: 7, ..Tally::default() };
        assert!(tally.notice(8, now));
        assert!(!tally.notice(8, now));
        assert!(tally.explained(9));
        assert!(!tally.notice(9, now));
        tally.rebase(9);
        assert!(tally.notice(10, now));
    }

    #[test]
    fn old_credit_hides_nobody() {
        let now = Instant::now();
        let mut tally = Tally::default();
        // Two clients opened, but the kernel merged the notices.
        assert!(tally.notice(2, now));
        assert!(!tally.notice(2, now + Duration::from_millis(CREDIT_MS + 1)));
    }

    #[test]
    fn clients_that_open_all_the_time_are_never_taken_for_outsiders() {
        // One merged notice, and an open on its way whenever the credit of old was taken back: its
        // notice was then one too many.
        let mut now = Instant::now();
        let mut tally = Tally::default();
        let mut announced = 2;
        assert!(tally.notice(announced, now));
        for _ in 0..200 {
            now += Duration::from_millis(CREDIT_MS / 3);
            announced += 1;
            assert!(tally.notice(announced, now), "after {announced} opens");
        }
    }

    #[test]
    fn a_writer_that_was_seen_must_be_seen_to_close() {
        let now = Instant::now();
        let mut file = File::new(1, 1, 1, 0);
        let who = Who::Thread { tid: 1, pid: 1, hidden: false };
        file.arrived = true;
        file.let_in(&[(who, None)], now);
        let look = |file: &mut File, writes: Option<bool>| {
            let before = Before { epoch: file.epoch, write_closes: file.write_closes, at: now };
            let holders = writes
                .map(|writes| Holder { dev: 1, ino: 1, pid: 1, writes, maps: false })
                .into_iter()
                .collect();
            let opens = file.opens.clone();
            let verdict = file.conclude(&before, opens, Some(&Scan { holders, unreadable: 0 }), 0, now);
            matches!(verdict, Verdict::Left { wrote: true, .. })
        };
        assert!(!look(&mut file, Some(true)));
        // On its way to another process: no table shows it.
        assert!(!look(&mut file, None));
        assert!(file.closed(true, |_| false, now));
        assert!(!look(&mut file, Some(true)));
        assert!(file.closed(true, |_| false, now));
        assert!(look(&mut file, None));
    }
}
