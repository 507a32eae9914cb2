//! Who is told what a keeper does while it does it: whoever runs it in their process. It decides
//! nothing, and nothing that is told may wait.

use std::path::Path;

use holdfast_recovery::Report;

/// Where a keeper is in its life.
#[derive(Debug)]
pub enum Stage<'a> {
    /// It brings back what a crash left.
    Recovering {
        /// What it does, in a word.
        what: &'a str,
        /// How far it is, in bytes.
        done_bytes: u64,
        /// How far it goes, in bytes.
        total_bytes: u64,
    },
    /// Clients may connect.
    Ready {
        /// Where.
        socket: &'a Path,
        /// What recovery did before, if there was something to recover.
        recovered: Option<&'a Report>,
    },
    /// It was told to stop, and takes no new programs.
    Stopping {
        /// How many programs it waits for.
        clients: usize,
    },
    /// Nobody is served any more; the last of it goes to the disk.
    Closing,
}

/// How much what is said matters: the numbers of syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something is lost to whoever relied on it until somebody acts.
    Error = 3,
    /// Something is not as it was asked for.
    Warning = 4,
    /// Seldom, and worth knowing afterwards.
    Notice = 5,
    /// The usual course of things.
    Info = 6,
}

/// Who is told.
pub trait Audience: Send + Sync {
    /// The keeper's life goes on.
    fn stage(&self, stage: Stage<'_>);
    /// Something is said. The text may hold names of files as they are.
    fn say(&self, level: Level, text: &str);
    /// What a person must hear who started the keeper for a program, and hears nothing else: it
    /// waits for its programs, or absorbs nothing more. Others hear of it by `stage` or `say`.
    fn announce(&self, _text: &str) {}
}
