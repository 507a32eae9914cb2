//! Waits that take too long: whoever waits for another client says so, and the keeper sees who
//! stands still (`keeper/src/stalls.rs`).

use crate::header::Header;
use crate::sync::now_ns;

/// What any client does to another one's file takes less, nearly always.
const PATIENCE_NS: u64 = 150_000_000;
/// How often it is said again.
const AGAIN_NS: u64 = 50_000_000;

/// What others wait for, and somebody has.
pub trait Held {
    /// Somebody waits too long for who has it.
    fn note_stalled(&self);
    /// Whether it is being taken from who has it, so that nobody waits for them any more.
    fn is_being_taken(&self) -> bool;
}

/// One wait.
#[derive(Default)]
pub struct Stall {
    begun_ns: u64,
    said_ns: u64,
}

impl Stall {
    /// It goes on. Rings the keeper for the file of `row` once it has taken too long. Returns how
    /// long it has taken; 0 where threads are simulated, of which none ever stands still.
    #[cold]
    pub fn goes_on(&mut self, header: &Header, row: Option<&impl Held>) -> u64 {
        let Some(now_ns) = now_ns() else { return 0 };
        if self.begun_ns == 0 {
            (self.begun_ns, self.said_ns) = (now_ns, now_ns.saturating_add(PATIENCE_NS - AGAIN_NS));
        }
        if now_ns.saturating_sub(self.said_ns) >= AGAIN_NS && now_ns > self.said_ns {
            self.said_ns = now_ns;
            if let Some(row) = row {
                header.ring_stalled(row);
            }
        }
        now_ns - self.begun_ns
    }
}

impl Header {
    /// Somebody waits for a word that should say something else long since.
    pub fn ring_strange(&self) {
        self.stalled.ring_all();
    }

    /// Somebody waits for who has the file of `row`, for longer than it should take.
    pub fn ring_stalled(&self, row: &impl Held) {
        row.note_stalled();
        self.ring_strange();
    }
}
