//! Who stands still: a client that is stopped, frozen or in the hands of a debugger while others
//! wait for what it has. After a quarter of a second in all its file is taken from it
//! (`durable/src/stalls.rs`).
//!
//! Nothing is looked at before somebody who waits rings. Who is not stopped, but takes very long
//! (a call that hangs in the kernel), is treated as one that is after five seconds, unless it waits
//! for this keeper. Nor does anybody wait for longer for a word of the board that names nobody: a
//! stray store left it. Must never wait for a client here.

use holdfast_cache::FileRef;
use holdfast_pool::Slot;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use holdfast_board::{RequestState, Stray};
use holdfast_canary::{Canary, on};
use holdfast_disk::{OsFile, locked};
use holdfast_durable::ManagedFile;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::keeper::Keeper;

/// Who is stopped keeps a file for so long after somebody rang, who has waited for a while by then.
const STOPPED_MAX: Duration = Duration::from_millis(100);
/// Who runs, and asks nothing of the keeper meanwhile.
const BUSY_MAX: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Nobody waits any more who has not rung for so long.
const FORGOTTEN: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_secs(3600);
/// How often words are looked at that seem to name nobody, and how often at least before they are
/// opened: of one whose owner comes and goes, not all looks fall between.
const STRAY_LOOK: Duration = Duration::from_millis(100);
/// For so long they must have said the same: less than [`BUSY_MAX`], so that no file is taken from
/// who waits for them.
const STRAY_MAX: Duration = Duration::from_secs(4);
const STRAY_LOOKS_MIN: u32 = 20;

/// What is said of such words.
const STRAY_OPENED: &str = "a program stored something into the memory that it shares with its keeper: somebody waited for \
     what nobody has, and goes on now; look for a stray pointer in it";

/// What is said of a table that was mended.
const TABLE_MENDED: &str = "a program stored something into the memory that it shares with its keeper: what tells \
     which files are in the log was damaged, and is right again; a file of which nobody can say how it was \
     treated has failed (its writes get EIO), and its log is kept; look for a stray pointer in it";

/// A file and a client that has it.
type Hold = (FileRef, u32);

/// What somebody waits for, by when that was seen first and last.
type Holds = HashMap<Hold, (Instant, Instant)>;

/// Runs until the keeper stops.
pub(crate) fn run(keeper: &Arc<Keeper>) {
    let bell = &keeper.durable.board.header().stalled;
    let mut holds = Holds::new();
    let mut strays = Strays::default();
    // Slots that are being taken.
    let taking: Arc<Mutex<Vec<Slot>>> = Arc::default();
    loop {
        // Before the look at whether we stop: a stop after it rings, and then we do not sleep.
        let seen = bell.rung();
        if keeper.is_stopping() {
            return;
        }
        for file in keeper.waited_for() {
            for client in keeper.durable.clients_in(&file) {
                let now = Instant::now();
                holds.entry((file.place(), client)).or_insert((now, now)).1 = now;
            }
            if locked(&taking).contains(&file.slot) || on(Canary::StoppedNamesWaitedFor) {
                continue;
            }
            let is_long = |client: u32, least: Duration| {
                let hold = holds.get(&(file.place(), client));
                hold.is_some_and(|(first, _)| first.elapsed() >= least)
            };
            // A stray store may name anybody.
            let is_given = |client| (1..=keeper.last_client.load(Ordering::SeqCst)).contains(&client);
            let stands = |client: u32| {
                is_given(client) && is_long(client, STOPPED_MAX) && keeper.is_stopped(client)
                    || is_given(client) && is_long(client, BUSY_MAX) && !keeper.is_asking(client)
            };
            let still: Vec<u32> =
                keeper.durable.clients_in(&file).into_iter().filter(|&it| stands(it)).collect();
            if !still.is_empty() {
                locked(&taking).push(file.slot);
                keeper.take_beside(&file, still, &taking);
            }
        }
        holds.retain(|_, (_, last)| last.elapsed() < FORGOTTEN);
        strays.look(keeper);
        bell.sleep(seen, if holds.is_empty() && strays.0.is_empty() { IDLE } else { LOOK_AGAIN });
    }
}

/// Words that seem to name nobody, by when that was seen first and last, and how often.
#[derive(Default)]
struct Strays(HashMap<Stray, (Instant, Instant, u32)>);

impl Strays {
    /// Somebody rang, or there were some at the last look. Those that have said the same for longer
    /// than nearly all do who run are opened: whoever had them has ended.
    fn look(&mut self, keeper: &Keeper) {
        // Who rang may have met a word that is nobody's for certain.
        if keeper.durable.mend_table() {
            keeper.notes.once(TABLE_MENDED.to_owned());
        }
        if self.0.values().any(|(_, last, _)| last.elapsed() < STRAY_LOOK) {
            return;
        }
        // Those who died are reaped without them.
        let last = keeper.last_client.load(Ordering::SeqCst);
        let now = Instant::now();
        let found = keeper.durable.strays(&|id| (1..=last).contains(&id));
        self.0.retain(|stray, _| found.contains(stray));
        for stray in found {
            let seen = self.0.entry(stray).or_insert((now, now, 0));
            (seen.1, seen.2) = (now, seen.2 + 1);
            if seen.0.elapsed() < STRAY_MAX || seen.2 < STRAY_LOOKS_MIN {
                continue;
            }
            keeper.durable.open_stray(stray);
            keeper.notes.once(STRAY_OPENED.to_owned());
        }
    }
}

impl Keeper {
    /// The files that somebody waits for, and those in which somebody is stopped: their pages have
    /// locks in common with pages of others.
    fn waited_for(&self) -> Vec<Arc<ManagedFile<OsFile>>> {
        let rows = self.durable.board.files();
        let files = self.durable.managed();
        let mut is_any = false;
        let mut found = Vec::new();
        for file in &files {
            if rows[file.slot.index()].take_stalled() {
                is_any = true;
                found.push(Arc::clone(file));
            }
        }
        let lanes = self.durable.board.lanes().iter().filter(|_| is_any);
        for lane in lanes.filter(|lane| lane.is_announced()) {
            let (slot, client) = (lane.slot(), lane.owner());
            let known = found.iter().any(|file| file.slot == slot);
            if let Some(file) =
                files.iter().find(|file| file.slot == slot && !known && self.is_stopped(client))
            {
                found.push(Arc::clone(file));
            }
        }
        found
    }

    /// Takes a file from clients that stand still, on a thread of its own: it waits for the disk.
    fn take_beside(
        self: &Arc<Self>,
        file: &Arc<ManagedFile<OsFile>>,
        still: Vec<u32>,
        taking: &Arc<Mutex<Vec<Slot>>>,
    ) {
        let (keeper, file, done) = (Arc::clone(self), Arc::clone(file), Arc::clone(taking));
        let slot = file.slot;
        let started = std::thread::Builder::new().name("taker".to_owned()).spawn(move || {
            let stands = |client| still.contains(&client) || keeper.is_stopped(client);
            let path = file.meta().path.display().to_string();
            if keeper.durable.take_from(&file, &stands) {
                let programs: Vec<String> =
                    still.iter().filter_map(|&it| keeper.pid_of(it)).map(|pid| pid.to_string()).collect();
                keeper.notes.once(format!(
                    "{path}: left to the kernel: process {} stood still in a change of it, and others waited",
                    programs.join(", ")
                ));
            }
            locked(&done).retain(|&other| other != slot);
        });
        if started.is_err() {
            // There is no thread to be had; who waits rings again.
            locked(taking).retain(|&other| other != slot);
        }
    }

    /// Whether a client waits for an answer.
    fn is_asking(&self, client: u32) -> bool {
        self.durable.board.requests().iter().any(|cell| {
            cell.client() == client && matches!(cell.state(), RequestState::Posted | RequestState::Taken)
        })
    }

    /// Whether a client is stopped: a thread of it, or the group of processes that it is in.
    fn is_stopped(&self, client: u32) -> bool {
        let known = locked(&self.clients).get(&client).map(|it| (it.pid, Arc::clone(&it.pidfd)));
        let Some((pid, pidfd)) = known else { return false };
        let is_still = has_stopped_thread(pid) || is_frozen(pid);
        // It was this process that was looked at, if it has not ended since.
        let mut ended = [PollFd::new(&*pidfd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        is_still && matches!(poll(&mut ended, Some(&at_once)), Ok(0))
    }
}

fn has_stopped_thread(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The command's name may hold anything; the state follows its last parenthesis.
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
        matches!(state, Some("T" | "t"))
    })
}

/// Whether the process is in a control group that is frozen. Its state does not tell that.
fn is_frozen(pid: u32) -> bool {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return false };
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().any(|root| {
        let events = Path::new(root).join(group).join("cgroup.events");
        std::fs::read_to_string(events).is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_stopped_process_is_seen_and_one_that_sleeps_is_none() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        assert!(!has_stopped_thread(pid) && !is_frozen(pid));
        let process = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
        let begun = Instant::now();
        while !has_stopped_thread(pid) && begun.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        let was_seen = has_stopped_thread(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(was_seen && !has_stopped_thread(pid));
    }
}
