//! Clocks that are read without a system call, and when the kernel stamps a file no older than the
//! records of it.
use core::time::Duration;

use holdfast_canary::{Canary, on};
use holdfast_log::TICK_NS;
use holdfast_media::Nvm;
use rustix::time::ClockId;

use crate::client::Client;
use crate::file::FileRef;

/// The kernel's coarse clock ticks every 10 ms at the latest; no more than this does it lag.
const COARSE_NS_MAX: u64 = 20_000_000;

/// How often the clock's tick is looked for, and how often at most: for 50 ms, a tick being 10 at
/// the longest.
const TICK_PAUSE: Duration = Duration::from_micros(250);
const TICK_LOOKS: u32 = 200;
/// The first Linux that gives a file a time finer than its last tick, if somebody looked at the one
/// before and that tick is no later.
const STAMPS_FINELY: (u32, u32) = (6, 13);

/// The clocks that stamp files, in nanoseconds since 1970: the kernel uses the coarse one, and the
/// other where somebody looked at the file since its last change. No system call.
pub(crate) fn clock_ns(id: ClockId) -> u64 {
    let now = rustix::time::clock_gettime(id);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The monotonic clock, in nanoseconds. No system call.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whether this kernel does so. One system call.
fn stamps_finely() -> bool {
    let name = rustix::system::uname();
    let mut numbers = name.release().to_bytes().split(|byte| !byte.is_ascii_digit()).map(number);
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= STAMPS_FINELY
}

fn number(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |sum: u32, digit| sum.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
}

impl<N: Nvm> Client<N> {
    /// The time of a record made now. Recovery gives a file the time of its last record, unless the
    /// file was changed after it, as by a program that sets its times: a record made after that in
    /// the same tick is not to look older.
    #[inline]
    pub(crate) fn record_ns(&self) -> u64 {
        let now_ns = clock_ns(ClockId::RealtimeCoarse);
        let changed_ns = self.board.header().changed_ns.get();
        // Further ahead only if somebody set the clock back.
        if changed_ns > now_ns && changed_ns - now_ns <= COARSE_NS_MAX && !on(Canary::RecordsCoarse) {
            changed_ns
        } else {
            now_ns
        }
    }

    /// Something was changed, or is going to be, that no record holds.
    pub(crate) fn note_time(&self) {
        if !self.board.header().has_times.seems_on() {
            return;
        }
        // The file has a time from within the call; what a record has is cut to its own ticks.
        let (known, now_ns) = (&self.board.header().changed_ns, clock_ns(ClockId::Realtime) + 2 * TICK_NS);
        let before_ns = known.get();
        // Further ahead only if somebody set the clock back.
        if now_ns > before_ns || before_ns - now_ns > COARSE_NS_MAX {
            known.set(now_ns);
        }
    }

    /// What records are made with now, if the clock that stamps files has not come there yet.
    #[inline]
    pub fn record_ahead_ns(&self) -> Option<u64> {
        let record_ns = self.record_ns();
        let is_ahead = record_ns > clock_ns(ClockId::RealtimeCoarse);
        (is_ahead && !on(Canary::TimesOvertaken)).then_some(record_ns)
    }

    /// Before a program sets the times of a file, of which a record may be as young as `ahead_ns`
    /// ([`Client::record_ahead_ns`]): from here on the kernel stamps the file no older. Recovery
    /// keeps times that were set behind the last record, and knows that by the file's time of
    /// change alone. That one was looked at just now, and was `changed_ns`: behind each record came
    /// a call that stamped the file, so if it bears the clock's last tick, the next stamp is finer.
    /// Else waits for the next tick.
    pub fn follow_records(&self, file: FileRef, ahead_ns: u64, changed_ns: u64) {
        let row = self.row(file);
        if !row.has_live_records() {
            return;
        }
        let is_stamped = changed_ns >= clock_ns(ClockId::RealtimeCoarse) && row.state().keeps_up();
        if is_stamped && stamps_finely() {
            return;
        }
        for _ in 0..TICK_LOOKS {
            if clock_ns(ClockId::RealtimeCoarse) >= ahead_ns {
                return;
            }
            holdfast_board::pause(TICK_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_release_are_read() {
        let release = b"6.18.44-fc";
        let mut parts = release.split(|byte| !byte.is_ascii_digit()).map(number);
        assert_eq!((parts.next(), parts.next(), parts.next()), (Some(6), Some(18), Some(44)));
        assert_eq!(number(b""), 0);
        assert_eq!(number(b"99999999999"), u32::MAX);
    }
}
