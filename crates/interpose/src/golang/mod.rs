//! Go programs. Into those that have a loader this library is preloaded, and leads their calls to
//! the hooks ([`loaded`]). In the place of a static one `holdfast-enter` is executed ([`agent`]),
//! and this library maps the program beside itself, has its calls come to the hooks, and begins it
//! ([`asked`]).
//!
//! Once Go runs, it has the thread pointer and all signal handlers: the hooks run on threads' areas
//! ([`thread`]) that Go does not know of.

mod agent;
mod asked;
mod calls;
mod hooks;
mod image;
mod loaded;
mod map;
mod name;
mod plain;
mod start;
mod thread;
mod ways;

pub use agent::Agent;
pub use asked::{enter, is_mapped, is_plain, is_refused, prepare};
pub use hooks::{Arguments, Hooks};
pub use loaded::{Threads, lead, led, release};
