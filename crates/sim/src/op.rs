//! What can happen in a history.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A file's name: a letter.
pub type Name = u8;

/// One thing that a program, the keeper or somebody else does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Op {
    /// A program creates a file.
    Create(Name),
    /// A program writes bytes at an offset, into a new file if there is none.
    Put(Name, u32, u32),
    /// A program writes bytes at an offset.
    Write(Name, u32, u32),
    /// A program appends bytes.
    Append(Name, u32),
    /// A write of which the kernel takes only the first bytes (none: it refuses it).
    Short(Name, u32, u32, u32),
    /// A program sets the size.
    Truncate(Name, u32),
    /// The kernel refuses to set the size.
    TruncateRefused(Name, u32),
    /// A program punches a hole.
    Punch(Name, u32, u32),
    /// A program changes a file in a way that no record can hold.
    Around(Name, u32, u32),
    /// A program has the kernel fill in bytes from elsewhere (`copy_file_range`): durable at the
    /// next sync.
    Fill(Name, u32, u32),
    /// A program syncs a file.
    Sync(Name),
    /// A program syncs the directory.
    SyncDirectory,
    /// A program renames a file, perhaps over another.
    Rename(Name, Name),
    /// The kernel refuses to rename.
    RenameRefused(Name, Name),
    /// A program removes a file.
    Unlink(Name),
    /// The kernel refuses to remove a file.
    UnlinkRefused(Name),
    /// A program has the file mapped: it is left to the kernel.
    Bypass(Name),
    /// The keeper's round: syncs, expires, frees.
    Expire,
    /// The program closes a file, and the keeper takes its slot back.
    Retire(Name),
    /// The next sync of the file fails.
    Fail(Name),
    /// The kernel fails to write back what is dirty of the file; nobody has heard of it yet.
    Lose(Name),
    /// An outsider opens the file, writes and syncs it, and leaves. With the flag it did not wait
    /// for the keeper.
    Outsider(Name, bool),
    /// An outsider cuts a file by its path for which the log does not stand yet: nobody hears of
    /// that.
    Cut(Name, u32),
    /// A program reads bytes at an offset.
    Read(Name, u32, u32),
    /// A program makes a call that needs all of the file in the page cache.
    Leave(Name, Leave),
    /// An outsider opens the file to read it.
    Show(Name),
    /// An outsider opens the file to read it, and syncs it.
    Peek(Name),
    /// The keeper brings bytes of the file to the page cache, and does not sync it.
    Drain(Name),
    /// The keeper empties the frames of page rows, if half of them are in use.
    Frames,
    /// The keeper tells the kernel of the file's size and that it was written, by a drain of a page
    /// or two.
    Tell(Name),
    /// The keeper's round at the gentle pace, of all records but the newest one.
    Part,
    /// The keeper gives back what removed files hold, and syncs no file.
    Release,
    /// The keeper lets go of removed files, whose slots stay.
    LetGo,
    /// A program creates a file, if there is none, and lends the keeper its description, the only
    /// one.
    Lend(Name),
    /// Somebody waits to open a file whose description is lent, with the flag to write.
    Break(Name, bool),
    /// The next write of the keeper to the file fails.
    Refuse(Name),
    /// The keeper gives back segments whose records are covered by newer ones, and copies live
    /// records of up to so many bytes out of others.
    Clean(u32),
    /// The keeper copies up to so many of the oldest full segments to the spill file and gives them
    /// back.
    Spill(u32),
    /// The next write to the spill file fails, or with the flag the next sync of it.
    SpillFails(bool),
    /// A program writes to the file that lost its last name last, and that it still has open.
    Haunt(u32, u32),
    /// The disk has room for what is written, or becomes full.
    Space(bool),
}

/// How a file leaves state Behind for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Leave {
    /// It is drained.
    Bring,
    /// It is in state Through, until the next round.
    Once,
    /// It is in state Through for good.
    ForGood,
}

impl Op {
    /// Whether a program's thread does it.
    pub fn is_clients(self) -> bool {
        !matches!(
            self,
            Self::Expire
                | Self::Retire(_)
                | Self::Fail(_)
                | Self::Lose(_)
                | Self::Outsider(..)
                | Self::Cut(..)
                | Self::Show(_)
                | Self::Peek(_)
                | Self::Drain(_)
                | Self::Frames
                | Self::Tell(_)
                | Self::Part
                | Self::Release
                | Self::LetGo
                | Self::Break(..)
                | Self::Refuse(_)
                | Self::Space(_)
                | Self::Clean(_)
                | Self::Spill(_)
                | Self::SpillFails(_)
        )
    }

    /// The file it is about, or the first of two.
    pub fn name(self) -> Option<Name> {
        match self {
            Self::Create(name)
            | Self::Put(name, ..)
            | Self::Write(name, ..)
            | Self::Append(name, _)
            | Self::Short(name, ..)
            | Self::Truncate(name, _)
            | Self::TruncateRefused(name, _)
            | Self::Punch(name, ..)
            | Self::Around(name, ..)
            | Self::Fill(name, ..)
            | Self::Sync(name)
            | Self::Rename(name, _)
            | Self::RenameRefused(name, _)
            | Self::Unlink(name)
            | Self::UnlinkRefused(name)
            | Self::Bypass(name)
            | Self::Retire(name)
            | Self::Fail(name)
            | Self::Lose(name)
            | Self::Outsider(name, _)
            | Self::Cut(name, _)
            | Self::Read(name, ..)
            | Self::Leave(name, _)
            | Self::Show(name)
            | Self::Peek(name)
            | Self::Drain(name)
            | Self::Tell(name)
            | Self::Lend(name)
            | Self::Break(name, _)
            | Self::Refuse(name) => Some(name),
            Self::Frames
            | Self::Part
            | Self::Release
            | Self::LetGo
            | Self::Expire
            | Self::SyncDirectory
            | Self::Space(_)
            | Self::Haunt(..)
            | Self::Spill(_)
            | Self::SpillFails(_)
            | Self::Clean(_) => None,
        }
    }
}

/// What else happens while an operation is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Amid {
    /// Nothing.
    Nothing,
    /// At a point (from 1 on) thread or keeper is interrupted by this.
    Other(usize, u8, Op),
    /// The same, and it goes on when that is done or waits for it.
    Within(usize, u8, Op),
    /// At a point its process is killed.
    Killed(usize),
    /// At a point its process is killed, and this begins before the keeper hears of it.
    KilledAmid(usize, u8, Op),
}

/// A step of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Step {
    /// The thread, for what programs do.
    pub thread: u8,
    /// What happens.
    pub op: Op,
    /// And what amid it.
    pub amid: Amid,
}

impl Step {
    /// A step that nothing disturbs.
    pub fn alone(thread: u8, op: Op) -> Self {
        Self { thread, op, amid: Amid::Nothing }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = |name: &Name| char::from(*name);
        match self {
            Self::Create(a) => write!(f, "create({})", c(a)),
            Self::Put(a, at, bytes) => write!(f, "put({}, at {at}, {bytes})", c(a)),
            Self::Write(a, at, bytes) => write!(f, "write({}, at {at}, {bytes})", c(a)),
            Self::Append(a, bytes) => write!(f, "append({}, {bytes})", c(a)),
            Self::Short(a, at, bytes, kept) => write!(f, "write({}, at {at}, {bytes}) of {kept}", c(a)),
            Self::Truncate(a, size) => write!(f, "truncate({}, {size})", c(a)),
            Self::TruncateRefused(a, size) => write!(f, "refused truncate({}, {size})", c(a)),
            Self::Punch(a, at, bytes) => write!(f, "punch({}, at {at}, {bytes})", c(a)),
            Self::Around(a, at, bytes) => write!(f, "around({}, at {at}, {bytes})", c(a)),
            Self::Fill(a, at, bytes) => write!(f, "fill({}, at {at}, {bytes})", c(a)),
            Self::Sync(a) => write!(f, "sync({})", c(a)),
            Self::SyncDirectory => write!(f, "sync directory"),
            Self::Rename(a, b) => write!(f, "rename({}, {})", c(a), c(b)),
            Self::RenameRefused(a, b) => write!(f, "refused rename({}, {})", c(a), c(b)),
            Self::Unlink(a) => write!(f, "unlink({})", c(a)),
            Self::UnlinkRefused(a) => write!(f, "refused unlink({})", c(a)),
            Self::Bypass(a) => write!(f, "bypass({})", c(a)),
            Self::Expire => write!(f, "expire"),
            Self::Retire(a) => write!(f, "retire({})", c(a)),
            Self::Fail(a) => write!(f, "next sync of {} fails", c(a)),
            Self::Outsider(a, waits) => {
                write!(f, "outsider({}, {})", c(a), if *waits { "seen late" } else { "waits" })
            }
            Self::Cut(a, size) => write!(f, "outsider cuts({}, {size})", c(a)),
            Self::Read(a, at, bytes) => write!(f, "read({}, at {at}, {bytes})", c(a)),
            Self::Leave(a, Leave::Bring) => write!(f, "bring({}) to the page cache", c(a)),
            Self::Leave(a, Leave::Once) => write!(f, "leave({}) to the page cache", c(a)),
            Self::Leave(a, Leave::ForGood) => write!(f, "leave({}) to the page cache for good", c(a)),
            Self::Lose(a) => write!(f, "writing back {} fails", c(a)),
            Self::Peek(a) => write!(f, "outsider reads and syncs({})", c(a)),
            Self::Show(a) => write!(f, "outsider reads({})", c(a)),
            Self::Drain(a) => write!(f, "drain({})", c(a)),
            Self::Frames => write!(f, "drain frames"),
            Self::Tell(a) => write!(f, "tell of {}", c(a)),
            Self::Part => write!(f, "expire all but the newest record, gently"),
            Self::Release => write!(f, "release what was removed"),
            Self::LetGo => write!(f, "let go of what was removed"),
            Self::Lend(a) => write!(f, "lend({})", c(a)),
            Self::Break(a, false) => write!(f, "outsider breaks the lease of {} to read", c(a)),
            Self::Break(a, true) => write!(f, "outsider breaks the lease of {} to write", c(a)),
            Self::Refuse(a) => write!(f, "next write of the keeper to {} fails", c(a)),
            Self::Clean(bytes) => write!(f, "clean, copying up to {bytes} bytes"),
            Self::Spill(segments) => write!(f, "spill up to {segments} segments"),
            Self::SpillFails(false) => write!(f, "next write to the spill file fails"),
            Self::SpillFails(true) => write!(f, "next sync of the spill file fails"),
            Self::Haunt(at, bytes) => write!(f, "write(a file without a name, at {at}, {bytes})"),
            Self::Space(true) => write!(f, "disk has room"),
            Self::Space(false) => write!(f, "disk is full"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who =
            |thread: u8, op: &Op| if op.is_clients() { format!("thread {thread}: ") } else { String::new() };
        write!(f, "{}{}", who(self.thread, &self.op), self.op)?;
        match &self.amid {
            Amid::Nothing => Ok(()),
            Amid::Other(at, thread, op) => write!(f, ", at its point {at} {}{op}", who(*thread, op)),
            Amid::Within(at, thread, op) => {
                write!(f, ", at its point {at} all of {}{op}", who(*thread, op))
            }
            Amid::Killed(at) => write!(f, ", killed at its point {at}"),
            Amid::KilledAmid(at, thread, op) => {
                write!(f, ", killed at its point {at}, then {}{op} before the repair", who(*thread, op))
            }
        }
    }
}
