//! What the pool of a comparison lies on.

use std::path::Path;

use holdfast_media::{Mapping, MediaKind, OpenMode};
use serde::{Deserialize, Serialize};

/// The pool, as a report tells of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    /// Where it was.
    pub path: String,
    /// How large it was.
    pub bytes: u64,
    /// What it lies on.
    pub media: String,
    /// Whether that is memory that stands for NVM.
    pub is_emulated: bool,
}

impl Pool {
    /// A pool that has been made.
    pub fn at(path: &Path) -> anyhow::Result<Self> {
        let (_, info) = Mapping::open(path, OpenMode::ReadOnly)?;
        let is_emulated = info.kind == MediaKind::Volatile;
        Ok(Self {
            path: path.display().to_string(),
            bytes: info.len,
            media: info.kind.to_string(),
            is_emulated,
        })
    }

    /// What the numbers are worth.
    pub fn in_words(&self) -> &'static str {
        if self.is_emulated {
            "EMULATED NVM: memory, which survives a kill but not a power cut, and is as fast as DRAM"
        } else {
            "NVM: what was synced survives a power cut"
        }
    }
}
