//! Keepers, as people and monitoring see them: states, files, metrics, a keeper at work, the
//! verdict on a run; and how sizes, names and reports are written.
//!
//! It asks and tells. Must change no pool, and know no command line, no configuration and no user.

pub mod files;
pub mod keepers;
pub mod metrics;
pub mod progress;
pub mod report;
pub mod sizes;
pub mod status;
pub mod summary_file;
pub mod top;
pub mod verdict;
pub mod words;
