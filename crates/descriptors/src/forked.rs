//! What a forked child sets right: the tables are its parent's, whose other threads are not here.

use crate::process::Forked;
use crate::{descriptions, fds, gate, holds, streams};

/// For [`crate::process`].
pub const FORKED: Forked = Forked { begins: reset, is_client: streams::tell_again };

fn reset() {
    gate::reset_for_child();
    descriptions::reset_for_child();
    holds::reset_for_child();
    fds::reset_changes();
    descriptions::share_all();
}
