//! Clocks that are read without a system call.

use rustix::time::ClockId;

/// The clocks that stamp files, in nanoseconds since 1970: the kernel uses the coarse one, and the
/// other where somebody looked at the file since its last change. No system call.
pub(crate) fn clock_ns(id: ClockId) -> u64 {
    let now = rustix::time::clock_gettime(id);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The monotonic clock, in nanoseconds. No system call.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
