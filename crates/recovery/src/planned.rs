//! A file of the pool, and what is to become of it.

use super::file::SlotFile;
use super::plan::{Facts, Outcome};

/// A slot and what is going to happen to it.
pub(super) struct Planned {
    pub(super) file: SlotFile,
    pub(super) facts: Facts,
    pub(super) outcome: Outcome,
    /// Where a file is written or built that is not the slot's own.
    pub(super) target: Vec<u8>,
    /// Where the slot's own stands.
    pub(super) stands: Option<Vec<u8>>,
    pub(super) reason: String,
    pub(super) shown: String,
    /// What means it, and nothing else, on a command line.
    pub(super) named: String,
}
