//! Calls of libc's own functions, by the addresses that were found at the start.
#![allow(unsafe_code)] // Calls by address.

/// Calls libc's own function, if it has it.
macro_rules! original {
    ($original:ident($($argument:expr => $kind:ty),*) -> $result:ty, else $missing:expr) => {
        match crate::patch::$original.address() {
            0 => $missing,
            address => {
                // SAFETY: libc's function of this name has this shape; the program's own call.
                unsafe {
                    let original: unsafe extern "C" fn($($kind),*) -> $result = core::mem::transmute(address);
                    original($($argument),*)
                }
            }
        }
    };
}
pub(super) use original;
