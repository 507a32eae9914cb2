//! Harness of the end-to-end tests: it drives the built `holdfast` on real programs, real file
//! systems on loop devices and real kills. It holds no knowledge of how Holdfast works inside,
//! never touches what it did not create, and never calls `sync`, which would save the very data
//! that a control run must lose.

pub mod canaries;
pub mod cmd;
pub mod crash;
pub mod disk;
mod job;
pub mod mounted;
pub mod musl;
pub mod need;
pub mod pool;
pub mod proc;
pub mod report;
pub mod running;
pub mod service;
pub mod site;
pub mod storm;
pub mod tally;
pub mod transcript;
pub mod workload;
