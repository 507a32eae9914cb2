//! Every way from a file's state to another one.
//!
//! All transitions pass [`Board::go`], so what they start from and what they count is said once,
//! here; docs/states.md draws the same table, and a test holds the two together. Whoever makes one
//! keeps the file's writers out, or is the only one who knows the row. Nothing here may decide when
//! a file changes its state.

use crate::board::Board;
use crate::files::FileRow;
use crate::states::FileState;
use crate::sync::Ordering;
use holdfast_pool::{Generation, Slot};

/// A way from a file's state to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A program's file becomes managed, and is logged.
    Register,
    /// It becomes managed, and is logged from its first sync on.
    RegisterUnsynced,
    /// It becomes known, and is left to the kernel.
    RegisterBypassed,
    /// Its first sync: logged from now on.
    Log,
    /// Settled, and the kernel's again until the next sync that asks for more.
    Unlog,
    /// Settled, drained, and left to the kernel.
    Bypass,
    /// The reason to leave it to the kernel is gone.
    TakeBack,
    /// As `TakeBack`, where files are logged from their next sync on.
    TakeBackUnsynced,
    /// The page cache may lag from now on.
    EnterBehind,
    /// The page cache has everything.
    LeaveBehind,
    /// A design that is not of the product takes it.
    EnterOther,
    /// It has left that design.
    LeaveOther,
    /// The disk refused it too often.
    Fail,
    /// Its last name is gone.
    Orphan,
    /// Its row is given back.
    Release,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Register,
        Self::RegisterUnsynced,
        Self::RegisterBypassed,
        Self::Log,
        Self::Unlog,
        Self::Bypass,
        Self::TakeBack,
        Self::TakeBackUnsynced,
        Self::EnterBehind,
        Self::LeaveBehind,
        Self::EnterOther,
        Self::LeaveOther,
        Self::Fail,
        Self::Orphan,
        Self::Release,
    ];

    /// Where it begins.
    pub fn from(self) -> &'static [FileState] {
        use FileState::*;
        match self {
            Self::Register | Self::RegisterUnsynced | Self::RegisterBypassed => &[Free],
            Self::Log => &[Unsynced],
            Self::Unlog => &[Through],
            Self::Bypass => &[Through, Unsynced],
            Self::TakeBack | Self::TakeBackUnsynced => &[Bypassed],
            Self::EnterBehind | Self::EnterOther => &[Through],
            Self::LeaveBehind => &[Behind],
            Self::LeaveOther => &[Other],
            Self::Fail => &[Through, Behind, Other, Unsynced, Bypassed, Orphan, Failed],
            Self::Orphan => &[Through, Unsynced, Bypassed, Orphan, Failed],
            Self::Release => &[Through, Behind, Other, Unsynced, Bypassed, Orphan, Failed],
        }
    }

    /// Where it ends.
    pub fn to(self) -> FileState {
        match self {
            Self::Register | Self::Log | Self::TakeBack | Self::LeaveBehind | Self::LeaveOther => {
                FileState::Through
            }
            Self::RegisterUnsynced | Self::TakeBackUnsynced | Self::Unlog => FileState::Unsynced,
            Self::RegisterBypassed | Self::Bypass => FileState::Bypassed,
            Self::EnterBehind => FileState::Behind,
            Self::EnterOther => FileState::Other,
            Self::Fail => FileState::Failed,
            Self::Orphan => FileState::Orphan,
            Self::Release => FileState::Free,
        }
    }
}

impl FileRow {
    /// The state now.
    #[inline]
    pub fn state(&self) -> FileState {
        FileState::of_row(self.state.load(Ordering::SeqCst), || self.has_use())
    }

    fn has_use(&self) -> bool {
        self.generation() != Generation::NONE
    }

    /// Whether it says no state that there is, of a file that has the row: a stray store left that.
    pub fn has_no_state(&self) -> bool {
        let word = self.state.load(Ordering::SeqCst);
        FileState::of_row(word, || self.has_use()) as u32 != word
    }

    /// Has such a row say that its file failed. What the page cache lacks of it stays counted, as
    /// of every file that fails (`Board::go`).
    pub fn fail_without_state(&self) {
        self.state.store(FileState::damaged() as u32, Ordering::SeqCst);
    }
}

impl Board {
    /// As [`Board::go`] of who may have stood still since it looked: nothing happens, and false is
    /// returned, if the file is in another state by now than the way begins in.
    pub fn try_go(&self, slot: Slot, way: Way) -> bool {
        debug_assert!(!way.from().iter().any(|state| state.lags()) && !way.to().lags());
        let state = &self.files()[slot.index()].state;
        way.from().iter().any(|&from| {
            state.compare_exchange(from as u32, way.to() as u32, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        })
    }

    /// Takes a file to another state, and counts the files of which the page cache may lag. That
    /// count rises before the state says so, and falls behind it: while it is 0, every read is the
    /// kernel's. A file that fails in such a state stays counted, because its page rows stay where
    /// readers find them.
    pub fn go(&self, slot: Slot, way: Way) {
        let row = &self.files()[slot.index()];
        // A row that begins its use has a generation already.
        let before = FileState::from_u32(row.state.load(Ordering::SeqCst));
        debug_assert!(way.from().contains(&before), "{way:?} of a file in state {before:?}");
        let census = self.header().behind_files();
        if way.to().lags() {
            census.enter();
        }
        row.state.store(way.to() as u32, Ordering::SeqCst);
        if before.lags() && way != Way::Fail {
            census.leave();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// The rows of the table in docs/states.md: way, states that it begins in, state that it ends
    /// in.
    fn drawn() -> Vec<(String, Vec<String>, String)> {
        let text = include_str!("../../../docs/states.md");
        let cells = |line: &str| -> Vec<String> {
            line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
        };
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        rows.map(|line| {
            let cells = cells(line);
            let from = cells[2].split(", ").map(str::to_owned).collect();
            (cells[1].clone(), from, cells[3].clone())
        })
        .collect()
    }

    #[test]
    fn the_document_draws_every_way_and_no_other() {
        let ways = Way::ALL.iter().map(|way| {
            let from = way.from().iter().map(|state| format!("{state:?}")).collect::<Vec<_>>();
            (format!("{way:?}"), from, format!("{:?}", way.to()))
        });
        assert_eq!(drawn(), ways.collect::<Vec<_>>());
    }

    #[test]
    fn every_state_is_reached_and_left() {
        use FileState::*;
        for state in [Free, Through, Behind, Other, Bypassed, Orphan, Failed, Unsynced] {
            assert_eq!(FileState::from_u32(state as u32), state);
            assert!(Way::ALL.iter().any(|way| way.to() == state), "{state:?} is never reached");
            assert!(Way::ALL.iter().any(|way| way.from().contains(&state)), "{state:?} is never left");
        }
    }
}
