//! Holds documents and comments to what their readers need: lines that fit, links that lead
//! somewhere, and names that the code has; and code to a size that they take in, without cycles,
//! with few places that know the states of a file, and with messages of whole sentences.
//!
//! Development only. It reads the checkout and nothing else, must never write to it, and says of
//! each fault where it is and what to do about it.

mod canaries;
mod comments;
mod cycles;
mod examples;
mod links;
mod map;
mod modules;
mod names;
mod paths;
mod references;
mod sizes;
mod states;
mod strings;
mod tables;
mod text;
mod tokens;
mod tree;
mod widths;
mod words;

use std::fmt;
use std::path::PathBuf;

pub use canaries::canaries;
pub use cycles::cycles;
pub use examples::examples;
pub use links::links;
pub use map::map;
pub use names::names;
pub use paths::paths;
pub use references::references;
pub use sizes::sizes;
pub use states::states;
pub use strings::strings;
pub use tables::tables;
pub use tree::Tree;
pub use widths::widths;
pub use words::{glossary, words};

/// One thing that is wrong.
#[derive(Debug)]
pub struct Fault {
    /// The file, from the root of the checkout.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.what)
    }
}
