//! What tests of several crates share: numbers of a seed, pools that go away, loop devices. It
//! depends on no other crate of Holdfast, so that each of them can use it.

pub mod loopback;
mod random;
mod scratch;

pub use random::{Random, rounds};
pub use scratch::ScratchPool;
