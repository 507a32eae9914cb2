//! The states of a file, and what is true of each.
//!
//! Everybody asks for a state's properties; which design goes on with one is matched elsewhere
//! (`cache/src/design.rs`, `durable/src/upkeep.rs`). Nothing here may decide when a file changes
//! its state, or how (`board/src/ways.rs`).

/// How a file's writes are treated. Any two of these words differ in eight bits or more, so that a
/// stray store makes no other state of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FileState {
    /// The row is free.
    Free = 0,
    /// Logged, then written to the page cache.
    Through = 0x1111_1111,
    /// Logged; the page cache follows later, and page rows tell what it lacks.
    Behind = 0x2222_2222,
    /// Left to the kernel, for a reason the keeper knows.
    Bypassed = 0x3333_3333,
    /// Its last name is gone: nothing of it can be found after a crash, so nothing needs to be
    /// logged.
    Orphan = 0x4444_4444,
    /// The disk refuses it for good: writes fail, the log keeps what was acknowledged.
    Failed = 0x5555_5555,
    /// Nobody has asked for its durability yet (durability = sync): the kernel's until the first
    /// sync, and its writers announce themselves, so that none is under way when that comes.
    Unsynced = 0x6666_6666,
    /// Absorbed by a design that is not of the product: the tests have one. Its page cache may lag.
    Other = 0x7777_7777,
}

impl FileState {
    /// Whether its writes are absorbed, by the design of this state.
    #[inline]
    pub fn is_absorbed(self) -> bool {
        matches!(self, Self::Through | Self::Behind | Self::Other)
    }

    /// Whether its writes are absorbed, and the page cache may lack some of them.
    #[inline]
    pub fn lags(self) -> bool {
        matches!(self, Self::Behind | Self::Other)
    }

    /// Whether its writes are absorbed, and the page cache has all of them.
    #[inline]
    pub fn keeps_up(self) -> bool {
        self == Self::Through
    }

    /// Whether nobody has asked for its durability yet.
    #[inline]
    pub fn is_unsynced(self) -> bool {
        self == Self::Unsynced
    }

    /// Whether its changes are logged, or are going to be from its next sync on.
    #[inline]
    pub fn is_managed(self) -> bool {
        self.is_absorbed() || self.is_unsynced()
    }

    /// Whether the disk refuses it for good.
    #[inline]
    pub fn is_failed(self) -> bool {
        self == Self::Failed
    }

    /// Whether the log has something that stands for it, or is going to.
    #[inline]
    pub fn has_log(self) -> bool {
        self.is_managed() || self.is_failed()
    }

    /// Whether it is left to the kernel for a reason that may end.
    #[inline]
    pub fn is_bypassed(self) -> bool {
        self == Self::Bypassed
    }

    /// Whether its last name is gone.
    #[inline]
    pub fn is_orphan(self) -> bool {
        self == Self::Orphan
    }

    /// Whether the row is in use.
    #[inline]
    pub fn is_in_use(self) -> bool {
        self != Self::Free
    }

    /// Whether nobody but the kernel has to do with its changes.
    #[inline]
    pub fn is_kernels(self) -> bool {
        matches!(self, Self::Free | Self::Bypassed | Self::Orphan)
    }

    /// The state of a file of which nobody can say how it was treated.
    pub(crate) fn damaged() -> Self {
        Self::Failed
    }

    /// As [`FileState::from_u32`], of a row that may be some file's (`has_use`): none of these is
    /// free, whatever is stored there, and zeros are what stray stores most often leave.
    #[inline]
    pub(crate) fn of_row(word: u32, has_use: impl FnOnce() -> bool) -> Self {
        match Self::from_u32(word) {
            Self::Free if has_use() => Self::damaged(),
            state => state,
        }
    }

    /// Decodes a stored state; unknown values read as Failed: what the page cache lacks nobody may
    /// read past, and what is acknowledged stays in the log.
    pub fn from_u32(value: u32) -> Self {
        const ALL: [FileState; 8] = [
            FileState::Free,
            FileState::Through,
            FileState::Behind,
            FileState::Bypassed,
            FileState::Orphan,
            FileState::Failed,
            FileState::Unsynced,
            FileState::Other,
        ];
        let known = ALL[(value & 7) as usize];
        if known as u32 == value { known } else { Self::damaged() }
    }
}
