//! Calls that run a child in our memory (vfork, posix_spawn), from their beginning to their end:
//! what the child leaves behind in its parent's block and row is set right.

use crate::{gate, tls};

/// Says that a call which may run a child in our memory begins.
pub extern "C" fn spawning_begins() {
    tls::with(|thread| {
        if thread.spawning.replace(thread.spawning.get().wrapping_add(1)) == 0 {
            thread.depth_before.set(gate::depth());
        }
    });
}

/// Says that it is over.
pub extern "C" fn spawning_ends() {
    tls::with(|thread| {
        thread.spawning.set(thread.spawning.get().wrapping_sub(1));
        if thread.spawning.get() == 0 {
            thread.quiet.set(0);
            thread.of_go.set(0);
            // The child may have ended inside of a hook.
            gate::restore_depth(thread.depth_before.get());
        }
    });
}
