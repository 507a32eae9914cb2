//! The environment that a program has, or gives to another one: an array of C strings.
#![allow(unsafe_code)] // Arrays of C strings.

use core::ffi::c_char;

use crate::raw;

/// Where a variable stands, and its value.
///
/// # Safety
/// `environment` is a null-terminated array of C strings.
pub unsafe fn find<'a>(environment: *const *const c_char, name: &[u8]) -> Option<(usize, &'a [u8])> {
    let mut at = 0;
    loop {
        // SAFETY: the null end has not been passed.
        let entry = unsafe { *environment.add(at) };
        if entry.is_null() {
            return None;
        }
        // SAFETY: a C string.
        if let Some(value) = unsafe { raw::path(entry) }.to_bytes().strip_prefix(name) {
            return Some((at, value));
        }
        at += 1;
    }
}
