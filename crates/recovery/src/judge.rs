//! What a file's times say of who changed it last: the program whose records the log holds, or
//! somebody else.
//!
//! No clock is compared with another one: a time counts only where both it and what it is compared
//! with were given by a clock that is known not to have been set in between. What that leaves open
//! is said to be open. The one allowance is for the time between a record and its own call. It
//! compares numbers and does nothing else; docs/crash/recovery.md argues why.

use holdfast_canary::{Canary, on};
use holdfast_pool::{Left, Life, Mount, Stamp};

use holdfast_disk::{Clock, Stat};

/// What recovery knows of times, for all files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    /// This boot of the machine.
    pub(super) boot: [u8; 16],
    /// The clock now.
    pub(super) now: Clock,
    /// The last sign of life of the pool's keeper and its clients, by their clock.
    pub(super) last_ns: i64,
    /// When the keeper's machine was booted, by its clock at its last heartbeat.
    pub(super) booted_us: Option<u64>,
}

/// How long after its record a call may be made, by the time that the kernel gives the file: a
/// record has the time of the clock's last tick (10 ms at most), the file that of the call, to the
/// nanosecond since Linux 6.13, and the caller may have lost its processor in between. A crash and
/// a mount with its journal lie between that and anybody else.
const CALL_NS_MAX: i64 = 20_000_000;

/// By how much the clock that stamps files lags, in microseconds.
const TICK_US_MAX: u64 = 10_000;

/// How long after the keeper said that it writes to a file the kernel may stamp it, in
/// microseconds: it does so before it copies a byte.
const BEGIN_US_MAX: u64 = 4_000;

impl Clocks {
    /// Whether the call that belongs to a record may have given a file this time of change.
    pub(super) fn is_of_call(record_ns: u64, changed_ns: i64) -> bool {
        let since_ns = changed_ns.saturating_sub(record_ns as i64);
        (-(TICK_US_MAX as i64 * 1000)..=CALL_NS_MAX).contains(&since_ns)
    }

    /// The same for a file that earlier recoveries were kept from.
    pub(super) fn of(&self, life: Option<Life>) -> Self {
        life.map_or(*self, |life| Self {
            last_ns: i64::try_from(life.last_us.saturating_mul(1000)).unwrap_or(i64::MAX),
            booted_us: life.booted_us,
            ..*self
        })
    }

    /// What such a file keeps of it.
    pub(super) fn life(&self) -> Life {
        Life { last_us: (self.last_ns.max(0) as u64).div_ceil(1000), booted_us: self.booted_us }
    }

    /// The latest time that a call can have given a file of which the last sign of life tells.
    fn ours_to_ns(&self) -> i64 {
        self.last_ns.saturating_add(CALL_NS_MAX)
    }

    /// The earliest time that somebody else can have given a file after the last sign of life: if
    /// the machine was booted since then, the time of that; else the last sign of life, by the
    /// clock as it is set now.
    fn others_from_ns(&self, stamp: Option<&Stamp>) -> i64 {
        let is_same_boot = stamp.is_some_and(|stamp| stamp.mount.boot == self.boot);
        let (min_ns, max_ns) = (self.now.booted_ns_min as i64, self.now.booted_ns_max as i64);
        match self.booted_us {
            Some(known_us) if is_same_boot => {
                let known_ns = known_us as i64 * 1000;
                // The word is cut to microseconds, and so is what it may differ from what is seen
                // now.
                let is_unset = min_ns <= known_ns + 2000 && max_ns >= known_ns - 1000;
                let moved_ns = if is_unset { 0 } else { min_ns - known_ns };
                self.ours_to_ns().saturating_add(moved_ns)
            }
            _ if is_same_boot => self.ours_to_ns(),
            _ => min_ns,
        }
    }

    /// Whether somebody else has given something this time.
    fn by_time(&self, stamp: Option<&Stamp>, ns: i64) -> Changed {
        match ns {
            ns if ns > self.ours_to_ns() => Changed::Yes,
            ns if ns > self.others_from_ns(stamp) && !on(Canary::ClockBelieved) => Changed::Unclear,
            _ => Changed::No,
        }
    }
}

/// Where the page cache of the keeper's time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Witness {
    /// It is still there, and has every byte: only processes died.
    Running,
    /// It is still there, and may lack bytes that the log has.
    Ahead,
    /// It may be gone: the machine or the mount is another one, or that cannot be told.
    Cut,
    /// It is gone, and the disk is older than it was known to be: another state of it was put in
    /// its place.
    Older,
}

/// Whether somebody else changed a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// Nobody: what it is like, the log and the stamp explain.
    No,
    /// Somebody: nothing that is known explains its times.
    Yes,
    /// The clock was set, and its times could be ours or theirs.
    Unclear,
}

/// Where the page cache is, as far as the mount tells through which a file or its directory is
/// reached now.
pub(super) fn witness(clocks: &Clocks, stamp: Option<&Stamp>, mount_now: u64, is_ahead: bool) -> Witness {
    let now = Mount { boot: clocks.boot, id: mount_now };
    match stamp {
        Some(stamp) if mount_now != 0 && stamp.mount == now => {
            if is_ahead {
                Witness::Ahead
            } else {
                Witness::Running
            }
        }
        _ => Witness::Cut,
    }
}

/// Whether a file of whose page cache nothing is left is older than its stamp says the disk is.
pub(super) fn is_older(stamp: Option<&Stamp>, stat: &Stat) -> bool {
    stamp.is_some_and(|stamp| stamp.is_on_disk && stat.changed_ns < stamp.changed_ns)
}

/// Whether somebody else changed the names in a directory from which a file is missing.
/// `modified_ns` is its time of modification, which each such change moves.
pub(super) fn names_changed(clocks: &Clocks, stamp: Option<&Stamp>, modified_ns: i64) -> Changed {
    clocks.by_time(stamp, modified_ns)
}

/// Whether somebody else changed a file that is not known to be in the page cache as its programs
/// left it. `first_ns` is the time of its first live record.
pub(super) fn changed(
    clocks: &Clocks,
    witness: Witness,
    stamp: Option<&Stamp>,
    left: Left,
    first_ns: i64,
    stat: &Stat,
) -> Changed {
    let (changed_ns, modified_ns) = (stat.changed_ns, stat.modified_ns);
    if witness == Witness::Ahead
        && let Some(changed) = changed_since_left(clocks, left, stamp, stat)
    {
        return changed;
    }
    // Not one nanosecond later: nothing reached the disk since, or only what was written in the
    // same tick of the clock.
    if stamp.is_some_and(|stamp| stamp.is_on_disk && stamp.changed_ns == changed_ns) {
        return Changed::No;
    }
    let earliest_ns = stamp.map_or(first_ns, |stamp| stamp.modified_ns.min(first_ns));
    let by_time = |ns: i64| clocks.by_time(stamp, ns);
    match by_time(changed_ns) {
        // Whoever writes moves the time of modification, too: what only attributes moved has the
        // bytes that it had. Between stamp and records lies what came to the disk by the program's
        // own syncs or by others' commits.
        Changed::Yes if on(Canary::AttributesAreBytes) => Changed::Yes,
        // That time anybody can set, and no crash has moved the time of change since.
        Changed::Yes if witness == Witness::Ahead && !on(Canary::PutBackBelieved) => Changed::Yes,
        Changed::Yes if stamp.is_some_and(|stamp| stamp.modified_ns == modified_ns) => Changed::No,
        Changed::Yes if is_as_made(stamp, stat) => Changed::No,
        Changed::Yes if modified_ns >= earliest_ns && by_time(modified_ns) == Changed::No => Changed::No,
        changed => changed,
    }
}

/// Whether a file is empty as it was made, and the disk was never known to have a byte of it: its
/// name or attributes alone have changed since, as by a rename that came to the disk ahead of its
/// bytes. Whoever writes or cuts moves the time of modification.
fn is_as_made(stamp: Option<&Stamp>, stat: &Stat) -> bool {
    stat.size == 0 && stat.born_ns == Some(stat.modified_ns) && stamp.is_none_or(|stamp| !stamp.is_on_disk)
}

/// The same of a file that the keeper changed by itself, as far as the times tell with which it
/// left it. The kernel lives, so these are exact: whoever wrote to the file after the keeper's
/// death is known, but for the moment that a write of the keeper's own took.
fn changed_since_left(clocks: &Clocks, left: Left, stamp: Option<&Stamp>, stat: &Stat) -> Option<Changed> {
    let us = |ns: i64| ns.max(0) as u64 / 1000;
    let (changed_us, modified_us) = (us(stat.changed_ns), us(stat.modified_ns));
    let known = match left {
        Left::InHand => return Some(Changed::No),
        Left::InHandSince(_, before) => before,
        Left::At(left_at) => Some(left_at),
        Left::Unknown => return None,
    };
    if let Left::InHandSince(since_us, _) = left
        && (since_us.saturating_sub(TICK_US_MAX)..=since_us + BEGIN_US_MAX).contains(&changed_us)
    {
        return Some(Changed::No);
    }
    match known {
        Some(known) if known.changed_us == changed_us => Some(Changed::No),
        Some(known) if known.modified_us == modified_us && on(Canary::PutBackBelieved) => Some(Changed::No),
        // A write moves both times, to the same moment.
        _ if stat.changed_ns == stat.modified_ns => Some(Changed::Yes),
        // Attributes alone were changed, or the time of modification was set behind a write. The
        // program and others did the one while the keeper lived, which made a heartbeat of it; what
        // was done after that cannot be told from the other.
        Some(_) => Some(clocks.by_time(stamp, stat.changed_ns)),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_pool::{LeftAt, Ownership};

    use super::*;

    const BOOT: [u8; 16] = [1; 16];
    const S: i64 = 1_000_000_000;

    fn clocks(booted_s: i64) -> Clocks {
        let booted = (booted_s * S) as u64;
        let now = Clock { now_ns: booted + 999, booted_ns_min: booted, booted_ns_max: booted + 90 };
        Clocks { boot: BOOT, now, last_ns: 1000 * S, booted_us: Some(100_000_000) }
    }

    fn stamp(boot: u8, is_on_disk: bool) -> Stamp {
        Stamp {
            is_on_disk,
            size: 10,
            modified_ns: 900 * S,
            changed_ns: 900 * S,
            born_ns: None,
            mount: Mount { boot: [boot; 16], id: 7 },
            ownership: Ownership { mode: 0o644, owner: 0, group: 0 },
        }
    }

    fn stat(modified_ns: i64, changed_ns: i64) -> Stat {
        Stat {
            dev: 1,
            ino: 1,
            is_file: true,
            links: 1,
            size: 10,
            ownership: Ownership { mode: 0o644, owner: 0, group: 0 },
            modified_ns,
            changed_ns,
            mount: 9,
            is_fixed: false,
            born_ns: None,
        }
    }

    fn judged(clocks: &Clocks, stamp: Stamp, modified_ns: i64, changed_ns: i64) -> Changed {
        let (first_ns, stat) = (950 * S, stat(modified_ns, changed_ns));
        changed(clocks, Witness::Cut, Some(&stamp), Left::Unknown, first_ns, &stat)
    }

    #[test]
    fn the_page_cache_is_there_while_boot_and_mount_are() {
        let (clocks, known) = (clocks(100), stamp(1, true));
        assert_eq!(witness(&clocks, Some(&known), 7, false), Witness::Running);
        assert_eq!(witness(&clocks, Some(&known), 7, true), Witness::Ahead);
        assert_eq!(witness(&clocks, Some(&known), 8, false), Witness::Cut, "another mount");
        assert_eq!(witness(&clocks, Some(&stamp(2, true)), 7, false), Witness::Cut, "another boot");
        assert_eq!(witness(&clocks, None, 7, false), Witness::Cut);
        let nameless = Stamp { mount: Mount { id: 0, ..known.mount }, ..known };
        assert_eq!(witness(&clocks, Some(&nameless), 0, false), Witness::Cut, "a kernel that does not tell");
    }

    #[test]
    fn an_untouched_file_is_known_to_the_nanosecond() {
        // By whatever clock: this machine was booted long before, by its own.
        for booted_s in [0, 100, 5000] {
            for boot in [1, 2] {
                let known = stamp(boot, true);
                assert_eq!(judged(&clocks(booted_s), known, 900 * S, 900 * S), Changed::No);
                assert!(is_older(Some(&known), &stat(900 * S, 900 * S - 1)));
                assert!(!is_older(Some(&stamp(boot, false)), &stat(0, 0)), "the disk was not known");
            }
        }
    }

    #[test]
    fn in_the_same_boot_the_last_sign_of_life_parts_ours_from_theirs() {
        let (clocks, known) = (clocks(100), stamp(1, true));
        assert_eq!(judged(&clocks, known, 1000 * S, 1000 * S), Changed::No);
        let late = 1000 * S + CALL_NS_MAX;
        assert_eq!(judged(&clocks, known, late, late), Changed::No, "the last call came after its record");
        assert_eq!(judged(&clocks, known, late + 1, late + 1), Changed::Yes);
    }

    #[test]
    fn a_clock_that_was_set_back_leaves_open_what_is_open() {
        let (clocks, known) = (clocks(60), stamp(1, true));
        // Forty seconds back: from second 960 on, times may be theirs.
        assert_eq!(judged(&clocks, known, 950 * S, 950 * S), Changed::No);
        assert_eq!(judged(&clocks, known, 990 * S, 990 * S), Changed::Unclear);
        assert_eq!(judged(&clocks, known, 1001 * S, 1001 * S), Changed::Yes);
    }

    #[test]
    fn in_another_boot_its_own_beginning_does() {
        let (ahead, behind) = (clocks(2000), clocks(970));
        assert_eq!(judged(&ahead, stamp(2, true), 1000 * S, 1000 * S), Changed::No);
        assert_eq!(judged(&ahead, stamp(2, true), 2500 * S, 2500 * S), Changed::Yes);
        assert_eq!(judged(&behind, stamp(2, true), 960 * S, 960 * S), Changed::No);
        assert_eq!(judged(&behind, stamp(2, true), 980 * S, 980 * S), Changed::Unclear);
    }

    #[test]
    fn a_file_that_is_empty_as_it_was_made_was_changed_by_nobody() {
        let judged = |is_on_disk, size, born_s: i64| {
            let found = Stat { size, born_ns: Some(born_s * S), ..stat(890 * S, 2500 * S) };
            let known = stamp(2, is_on_disk);
            changed(&clocks(2000), Witness::Cut, Some(&known), Left::Unknown, 950 * S, &found)
        };
        assert_eq!(judged(false, 0, 890), Changed::No);
        assert_eq!(judged(false, 0, 800), Changed::Yes, "written or cut since");
        assert_eq!(judged(false, 10, 890), Changed::Yes, "it has bytes");
        assert_eq!(judged(true, 0, 890), Changed::Yes, "it had bytes");
    }

    #[test]
    fn attributes_alone_are_no_change_of_bytes() {
        let clocks = clocks(2000);
        assert_eq!(judged(&clocks, stamp(2, true), 900 * S, 2500 * S), Changed::No, "as the stamp says");
        assert_eq!(judged(&clocks, stamp(2, false), 900 * S, 2500 * S), Changed::No);
        assert_eq!(judged(&clocks, stamp(2, true), 960 * S, 2500 * S), Changed::No, "as a record says");
        assert_eq!(judged(&clocks, stamp(2, true), 910 * S, 2500 * S), Changed::No, "synced in between");
        assert_eq!(judged(&clocks, stamp(2, true), 890 * S, 2500 * S), Changed::Yes, "cp -p");
    }

    #[test]
    fn what_the_keeper_left_counts_while_the_mount_stands() {
        let (clocks, known) = (clocks(100), stamp(1, true));
        let later = stat(1003 * S, 1003 * S);
        let judged = |witness, left| changed(&clocks, witness, Some(&known), left, 950 * S, &later);
        let left = |changed_us, modified_us| Left::At(LeftAt { changed_us, modified_us });
        assert_eq!(judged(Witness::Ahead, left(1_003_000_000, 1)), Changed::No);
        assert_eq!(judged(Witness::Ahead, left(1_002_000_000, 1)), Changed::Yes);
        assert_eq!(judged(Witness::Ahead, Left::InHand), Changed::No);
        assert_eq!(judged(Witness::Cut, Left::InHand), Changed::Yes);
        assert_eq!(judged(Witness::Cut, left(1_003_000_000, 1_003_000_000)), Changed::Yes);
    }

    #[test]
    fn a_time_that_was_put_back_hides_no_change() {
        let clocks = clocks(100);
        // Its attributes moved the time of change while the keeper lived, or somebody set the time
        // of modification back after that: to what the stamp, the keeper or a record says.
        for (modified_ns, left_us) in [(900 * S, 900_000_000), (960 * S, 960_000_000), (960 * S, 930_000_000)]
        {
            let left_at = Left::At(LeftAt { changed_us: 960_000_000, modified_us: left_us });
            for left in [left_at, Left::Unknown] {
                let judged = |witness, changed_ns| {
                    let (known, found) = (stamp(1, true), stat(modified_ns, changed_ns));
                    changed(&clocks, witness, Some(&known), left, 950 * S, &found)
                };
                assert_eq!(judged(Witness::Ahead, 1000 * S), Changed::No, "{left:?}");
                assert_eq!(judged(Witness::Ahead, 1003 * S), Changed::Yes, "{left:?}");
                assert_eq!(judged(Witness::Cut, 1003 * S), Changed::No, "{left:?}: by its attributes");
            }
        }
    }

    #[test]
    fn who_writes_right_after_a_death_is_known() {
        let (clocks, known) = (clocks(100), stamp(1, true));
        // Ten milliseconds after the last sign of life.
        let ns = 1000 * S + 10_000_000;
        let judged = |left, changed_ns| {
            let later = stat(ns, changed_ns);
            changed(&clocks, Witness::Ahead, Some(&known), left, 950 * S, &later)
        };
        let left_at = LeftAt { changed_us: 1_000_000_001, modified_us: 999_000_000 };
        assert_eq!(judged(Left::At(left_at), ns), Changed::Yes);
        let in_hand = |since_us| Left::InHandSince(since_us, Some(left_at));
        assert_eq!(judged(in_hand(1_000_000_002), ns), Changed::Yes);
        assert_eq!(judged(in_hand(1_000_009_000), ns), Changed::No, "the keeper's own write");
        assert_eq!(judged(in_hand(1_000_019_000), ns), Changed::No, "by a clock that lags");
        assert_eq!(judged(Left::At(left_at), ns + 5000), Changed::No, "a time that was set");
    }
}
