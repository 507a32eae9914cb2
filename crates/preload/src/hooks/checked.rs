//! The checked forms of `open`, which take no mode.
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_char, c_int};

use super::open;

type Name = *const c_char;

macro_rules! without_mode {
    ($($alias:ident($($dirfd:ident)?) = $hook:ident;)*) => {$(
        #[doc = concat!("`", stringify!($alias), "`: `", stringify!($hook), "` without a mode.")]
        pub unsafe extern "C-unwind" fn $alias($($dirfd: c_int,)? path: Name, flags: c_int) -> c_int {
            // SAFETY: the program's own call.
            unsafe { open::$hook($($dirfd,)? path, flags, 0) }
        }
    )*};
}

without_mode! {
    __open_2() = open;
    __open64_2() = open;
    __openat_2(dirfd) = openat;
    __openat64_2(dirfd) = openat;
}
