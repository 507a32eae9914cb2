//! Static programs that Go did not build, of glibc and musl: mapped beside this library, with every
//! call that a hook may have something to do with led here.
//!
//! A hook runs on the stack of the thread's area ([`super::thread`]), with its thread pointer and
//! storage. All of the program's handlers come
//! to [`handlers`], which puts a signal off that finds its thread in a hook.

mod calls;
mod handlers;
mod map;
mod places;
mod stubs;
mod ways;

pub use handlers::take_signals;
pub use map::map;
pub use stubs::release;
