//! Bounded exhaustive tests of what a power cut leaves: every short sequence of operations is
//! played under Holdfast on a real file system, cut, recovered, and compared with what native runs
//! of the same sequence left (docs/testing.md). For development only.

pub mod calibrate;
pub mod disk;
pub mod explore;
pub mod op;
pub mod oracle;
pub mod play;
pub mod sequence;
pub mod simulated;
pub mod tree;
pub mod verdict;
