//! What a program is told of a call that the log absorbed.

use holdfast_cache::{Errno, Outcome};

/// The outcome of a call without a length, as an errno result; `None`: the slot was given back, try
/// again.
pub(super) fn plain_outcome(
    outcome: Result<Outcome, Errno>,
    kernel: impl FnOnce() -> isize,
) -> Option<isize> {
    match outcome {
        Ok(Outcome::Absorbed { .. } | Outcome::Passed { .. }) => Some(0),
        Ok(Outcome::Kernel) => Some(kernel()),
        Ok(Outcome::Stale) => None,
        Err(errno) => Some(-(errno.0 as isize)),
    }
}
