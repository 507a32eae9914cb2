//! Why a pool cannot be used: one kind for each thing that a caller or a reader tells apart. Every
//! message names the pool and what to do.

use std::io;
use std::path::PathBuf;

use holdfast_media::{MediaError, MediaKind};
use holdfast_pool::{FormatError, LayoutError};
use rustix::io::Errno;

use super::words::quoted;

/// Why a pool cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Nothing stands at its path.
    #[error(
        "there is no pool at {shown}: check the path, or make one with `holdfast format --pool {named}`",
        shown = .0.display(),
        named = quoted(.0)
    )]
    Absent(PathBuf),
    /// Its file may not be opened by us.
    #[error("no permission to open pool {} for reading and writing: run as its owner", .0.display())]
    NotPermitted(PathBuf),
    /// A directory stands at its path.
    #[error("{} is a directory: name a pool file or a DAX device", .0.display())]
    Directory(PathBuf),
    /// Its file cannot be opened for another reason.
    #[error("pool {} cannot be opened: {error}", .pool.display())]
    Open {
        /// The pool.
        pool: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// Nothing can be learnt of its file.
    #[error("pool {}: {error}", .pool.display())]
    Look {
        /// The pool.
        pool: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// It is another user's.
    #[error(
        "pool {} belongs to another user (uid {owner}, you are uid {me}): run as its owner or use a pool of \
         your own",
        .pool.display()
    )]
    NotOurs {
        /// The pool.
        pool: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        me: u32,
    },
    /// Others may write to it.
    #[error(
        "others may write to pool {} (mode {mode:o}), and so to every file that it names: use another one, or \
         chmod go-w it if nobody has",
        .pool.display()
    )]
    OpenToOthers {
        /// The pool.
        pool: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It cannot be locked, and nobody has it.
    #[error("pool {} cannot be locked: {error}", .pool.display())]
    Lock {
        /// The pool.
        pool: PathBuf,
        /// What the kernel said.
        error: Errno,
    },
    /// Another process owns it.
    #[error(
        "pool {} is in use by {owner}{waited}: wait for it, stop it, or use another pool (--pool)",
        .pool.display()
    )]
    InUse {
        /// The pool.
        pool: PathBuf,
        /// Who has it.
        owner: String,
        /// What is to be said of how long we waited.
        waited: &'static str,
    },
    /// Its owner removed it while we waited for it.
    #[error("pool {} was removed or replaced while it was opened: try again", .0.display())]
    Gone(PathBuf),
    /// Clients of an earlier keeper can still write to it.
    #[error(
        "pool {} is still mapped by clients of an earlier keeper (processes {processes:?}); everything they \
         were acknowledged is in their files, but the pool can be used only when they have ended",
        .pool.display()
    )]
    StillMapped {
        /// The pool.
        pool: PathBuf,
        /// These.
        processes: Vec<u32>,
    },
    /// Somebody else has it open.
    #[error(
        "pool {} is open {who}: whoever has it open could write to it while it is in use, and so to the files \
         that it is for. End that, or use another pool (--pool)",
        .pool.display()
    )]
    OthersHaveIt {
        /// The pool.
        pool: PathBuf,
        /// Who and where.
        who: String,
    },
    /// Its media cannot be used.
    #[error("the pool cannot be used: {0}")]
    Media(MediaError),
    /// Its media cannot be looked at.
    #[error("pool {} cannot be used: {error}", .pool.display())]
    Unmapped {
        /// The pool.
        pool: PathBuf,
        /// Why.
        error: MediaError,
    },
    /// What stands there cannot be read as a pool.
    #[error("pool {} cannot be used: {error}", .pool.display())]
    Unread {
        /// The pool.
        pool: PathBuf,
        /// Why.
        error: FormatError,
    },
    /// What stands there is no pool that we can use.
    #[error("pool {} cannot be used: {error}; {todo}", .pool.display())]
    Unusable {
        /// The pool.
        pool: PathBuf,
        /// Why.
        error: FormatError,
        /// What is to be done.
        todo: &'static str,
    },
    /// A power cut would empty it.
    #[error(
        "pool {} lies on {kind}: a power cut would lose what it acknowledged. Name persistent media, or say \
         --volatile if surviving crashes of programs is enough",
        .pool.display()
    )]
    Volatile {
        /// The pool.
        pool: PathBuf,
        /// What it lies on.
        kind: MediaKind,
    },
    /// A power cut would empty it, once it is made.
    #[error(
        "{} is {kind}: a power cut would lose what it acknowledged. Name persistent media, or say --volatile if \
         surviving crashes of programs is enough",
        .path.display()
    )]
    VolatileTarget {
        /// Where it is to be made.
        path: PathBuf,
        /// What that lies on.
        kind: MediaKind,
    },
    /// It cannot be made of that size.
    #[error("{0}")]
    Size(LayoutError),
    /// It cannot be made.
    #[error("the pool cannot be made: {0}")]
    Unmade(MediaError),
    /// It may be needed, and would be overwritten.
    #[error(
        "pool {shown} may hold records that are not in the files yet: run `holdfast recover --pool {named}` \
         first, or give them up with --force",
        shown = .0.display(),
        named = quoted(.0)
    )]
    Unrecovered(PathBuf),
    /// What is left of it may be needed, and would be overwritten.
    #[error(
        "both superblocks of {} read as zeros, and what stands behind them is a pool's, which may hold what is in \
         no file: restore it from a backup, or give it up with --force",
        .0.display()
    )]
    Remains(PathBuf),
    /// Something that is no pool would be overwritten.
    #[error(
        "{} exists and would be overwritten ({error}): name another file, or overwrite it with --force",
        .path.display()
    )]
    Overwrites {
        /// What.
        path: PathBuf,
        /// Why it is no pool.
        error: FormatError,
    },
    /// There are no random numbers for it.
    #[error("no random numbers for the pool {}: /dev/urandom: {error}", .pool.display())]
    NoRandom {
        /// The pool.
        pool: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// Its numbers are beyond what its counter can have reached.
    #[error(
        "pool {} holds numbers that its counter cannot have reached: it is damaged; rescue what can be read with \
         --dry-run --export DIR, then make it anew with `holdfast format --force`",
        .0.display()
    )]
    Counter(PathBuf),
    /// What a person named means several files.
    #[error(
        "{} is the name of several files in the pool: {meant}. Look at each with --dry-run --export DIR, and name the one \
         you mean by its number; nothing was changed",
        .named.display()
    )]
    Unclear {
        /// The name.
        named: PathBuf,
        /// These.
        meant: String,
    },
    /// It goes on in a file that it does not name any more.
    #[error(
        "pool {} goes on in a spill file, and where that is cannot be read: it is damaged; nothing was changed. Give \
         up what is in it with `holdfast format --force` if there is no copy of the pool",
        .0.display()
    )]
    SpillUnknown(PathBuf),
    /// It goes on in a file that cannot be used.
    #[error(
        "pool {} goes on in the spill file {}, which cannot be used: {error}; {frames} of its frames hold records \
         that may not be in the files yet. Nothing was changed: put it back (or mount its file system) and recover again",
        .pool.display(),
        .spill.display()
    )]
    Spill {
        /// The pool.
        pool: PathBuf,
        /// The file.
        spill: PathBuf,
        /// Why.
        error: io::Error,
        /// Frames of it that hold something.
        frames: usize,
    },
    /// It goes on in a file that cannot be read.
    #[error(
        "pool {} goes on in a spill file that cannot be read: {error}; nothing was changed. Put its disk right and recover \
         again",
        .pool.display()
    )]
    SpillUnread {
        /// The pool.
        pool: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// It goes on in a file other than the one that is wanted, and that one is needed.
    #[error(
        "recovery set records of pool {} aside that lie in its spill file {}: give --spill with that file, or decide \
         on them first with `holdfast recover --pool {}`",
        .pool.display(),
        .spill.display(),
        quoted(.pool)
    )]
    SpillNeeded {
        /// The pool.
        pool: PathBuf,
        /// The file.
        spill: PathBuf,
    },
    /// The file in which it is to go on cannot be made.
    #[error(
        "the spill file {} of pool {} cannot be made: {error}; name another one, or run without --spill",
        .spill.display(),
        .pool.display()
    )]
    SpillUnmade {
        /// The pool.
        pool: PathBuf,
        /// The file.
        spill: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// What it holds of a file cannot be exported.
    #[error("{file} cannot be exported to {}: {error}; nothing was changed", .directory.display())]
    Export {
        /// The file.
        file: String,
        /// Where to.
        directory: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
}

impl PoolError {
    /// Whether what the pool holds cannot be had as it is now.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Absent(_)
                | Self::Media(_)
                | Self::Unmapped { .. }
                | Self::Unread { .. }
                | Self::Unusable { .. }
                | Self::Counter(_)
                | Self::SpillUnknown(_)
        )
    }

    /// Whether somebody has the pool who will let go of it: it is worth another try.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::InUse { .. } | Self::Gone(_) | Self::StillMapped { .. })
    }
}
