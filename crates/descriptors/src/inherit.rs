//! What a new program is told about the descriptors it inherits: those that its predecessor opened
//! with `O_SYNC` or `O_DSYNC`, which the kernel does not know.
//!
//! They are named in one environment variable, which the library takes out again before the program
//! runs. An entry is a number, the kind of synchrony, device and inode: one that went astray by way
//! of a program without the library fits no file. Must never allocate: the caller may be a child
//! that runs in its parent's memory.
#![allow(unsafe_code)] // Arrays of C strings.

use core::ffi::{c_char, c_int};

use holdfast_cache::Origin;

use crate::descriptions::{self, DSYNC, SHARED, SYNC};
use crate::environment::find;
use crate::{fds, open_flags, raw};

const VARIABLE: &[u8] = b"HOLDFAST_SYNC=";
const SOCKET_VARIABLE: &[u8] = b"HOLDFAST_SOCKET=";
const LIBRARY: &[u8] = b"/libholdfast.so";
const SANITIZER: &[u8] = b"libasan.so.";
/// Room for a handful of descriptors; what does not fit is forgotten.
const TEXT_BYTES: usize = 512;
/// An environment with more variables is passed on as it is.
const VARIABLES_MAX: usize = 500;
const STRIPPED_MAX: usize = 1500;

/// An environment with one variable more.
pub struct Environment {
    text: [u8; TEXT_BYTES],
    used: usize,
    variables: [*const c_char; VARIABLES_MAX],
}

impl Default for Environment {
    fn default() -> Self {
        Self::new()
    }
}

impl Environment {
    /// Nothing to tell yet.
    pub fn new() -> Self {
        let mut text = [0; TEXT_BYTES];
        text[..VARIABLE.len()].copy_from_slice(VARIABLE);
        Self { text, used: VARIABLE.len(), variables: [core::ptr::null(); VARIABLES_MAX] }
    }

    /// Tells of a descriptor with these flags of its description.
    pub fn tell(&mut self, fd: c_int, flags: u32) {
        let Ok(stat) = raw::fstat(fd) else { return };
        let before = self.used;
        let kind = if flags & SYNC != 0 { b's' } else { b'd' };
        let whole = self.number(fd as u64)
            && self.byte(kind)
            && self.number(stat.dev)
            && self.byte(b':')
            && self.number(stat.ino)
            && self.byte(b',');
        if !whole {
            self.text[before..].fill(0);
            self.used = before;
        }
    }

    fn byte(&mut self, byte: u8) -> bool {
        // The last byte stays zero.
        if self.used + 1 >= TEXT_BYTES {
            return false;
        }
        self.text[self.used] = byte;
        self.used += 1;
        true
    }

    fn number(&mut self, number: u64) -> bool {
        let digits = number.checked_ilog10().unwrap_or(0);
        (0..=digits).rev().all(|at| self.byte(b'0' + (number / 10u64.pow(at) % 10) as u8))
    }

    /// The environment to be passed on; `None` when there is nothing to tell or no room to do it.
    ///
    /// # Safety
    /// `environment` is null or a null-terminated array of C strings.
    pub unsafe fn extend(&mut self, environment: *const *const c_char) -> Option<*const *const c_char> {
        if self.used == VARIABLE.len() || environment.is_null() {
            return None;
        }
        let mut count = 0;
        loop {
            // SAFETY: the null end has not been passed.
            let entry = unsafe { *environment.add(count) };
            // One place for the new variable and one for the end.
            let place = self.variables.get_mut(count).filter(|_| count + 2 < VARIABLES_MAX)?;
            if entry.is_null() {
                *place = self.text.as_ptr().cast();
                *self.variables.get_mut(count + 1)? = core::ptr::null();
                return Some(self.variables.as_ptr());
            }
            *place = entry;
            count += 1;
        }
    }
}

/// Whether a program with this environment will have the library.
///
/// # Safety
/// `environment` is null or a null-terminated array of C strings.
pub unsafe fn will_be_client(environment: *const *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !environment.is_null() && unsafe { find(environment, SOCKET_VARIABLE) }.is_some()
}

/// `holdfast run` puts the runtime of a program built with a sanitizer in front of the library,
/// where alone it works. The program's children shall not have it.
///
/// # Safety
/// As for [`take`].
pub unsafe fn forget_sanitizer(environment: *mut *const c_char) {
    if environment.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let Some((at, value)) = (unsafe { find(environment.cast_const(), PRELOAD) }) else { return };
    let Some(end) = value.iter().position(|byte| *byte == b':') else { return };
    let is_ours =
        value[end + 1..].split(|byte| *byte == b':').next().is_some_and(|second| second.ends_with(LIBRARY));
    if value.starts_with(SANITIZER) && !value[..end].contains(&b'/') && is_ours {
        // SAFETY: the variable is the program's own writable memory, as the loader left it, and
        // becomes shorter.
        unsafe {
            let first = (*environment.add(at)).cast_mut().cast::<u8>().add(PRELOAD.len());
            core::ptr::copy(first.add(end + 1), first, value.len() - end);
        }
    }
}

/// Takes the variable out of this program's environment and remembers what it says.
///
/// # Safety
/// `environment` is null or this program's environment, before it has threads.
pub unsafe fn take(environment: *mut *const c_char) {
    if environment.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let Some((mut at, value)) = (unsafe { find(environment.cast_const(), VARIABLE) }) else { return };
    value.split(|byte| *byte == b',').for_each(|entry| {
        let _ = adopt(entry);
    });
    loop {
        // SAFETY: the entry at `at` is not the null end, so there is one behind it.
        unsafe {
            *environment.add(at) = *environment.add(at + 1);
            if (*environment.add(at)).is_null() {
                return;
            }
        }
        at += 1;
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

fn adopt(entry: &[u8]) -> Option<()> {
    let kind = entry.iter().position(|byte| matches!(byte, b's' | b'd'))?;
    let (fd, identity) = (number(entry.get(..kind)?)? as c_int, entry.get(kind + 1..)?);
    let colon = identity.iter().position(|byte| *byte == b':')?;
    let stat = raw::fstat(fd).ok()?;
    let is_same =
        number(identity.get(..colon)?)? == stat.dev && number(identity.get(colon + 1..)?)? == stat.ino;
    let flags = raw::check(raw::fcntl(fd, libc::F_GETFL, 0)).ok()? as c_int;
    if !is_same || !stat.regular || !open_flags::may_write(flags) {
        return None;
    }
    let synced = if entry.get(kind) == Some(&b's') { DSYNC | SYNC } else { DSYNC };
    let (index, description) =
        descriptions::allocate(SHARED | synced | open_flags::kernel_flags(flags), Origin::Unknown)?;
    if !fds::describe(fd, index, description) {
        description.release();
    }
    Some(())
}

/// The variables by which a program becomes a client.
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const OURS: [&[u8]; 3] = [SOCKET_VARIABLE, VARIABLE, PRELOAD];

/// An environment without the library.
pub struct Stripped {
    preload: [u8; TEXT_BYTES],
    variables: [*const c_char; STRIPPED_MAX],
}

impl Default for Stripped {
    fn default() -> Self {
        Self::new()
    }
}

impl Stripped {
    /// Room for one.
    pub fn new() -> Self {
        Self { preload: [0; TEXT_BYTES], variables: [core::ptr::null(); STRIPPED_MAX] }
    }

    /// The environment without the library; `None` when it is too large.
    ///
    /// # Safety
    /// `environment` is a null-terminated array of C strings.
    pub unsafe fn strip(&mut self, environment: *const *const c_char) -> Option<*const *const c_char> {
        let mut count = 0;
        for at in 0.. {
            // SAFETY: the null end has not been passed.
            let entry = unsafe { *environment.add(at) };
            if entry.is_null() {
                break;
            }
            // SAFETY: a C string.
            let text = unsafe { raw::path(entry) }.to_bytes();
            let entry = match OURS.iter().find(|name| text.starts_with(name)) {
                None => entry,
                Some(name) if *name == PRELOAD => match without_library(text, &mut self.preload)? {
                    0 => continue,
                    _ => self.preload.as_ptr().cast(),
                },
                Some(_) => continue,
            };
            // One place for the end.
            *self.variables.get_mut(..STRIPPED_MAX - 1)?.get_mut(count)? = entry;
            count += 1;
        }
        *self.variables.get_mut(count)? = core::ptr::null();
        Some(self.variables.as_ptr())
    }
}

/// Writes what is left of a variable that names libraries when ours is taken out, with a zero at
/// its end: so many bytes before that. 0: nothing; `None`: there is no room.
fn without_library(text: &[u8], into: &mut [u8]) -> Option<usize> {
    let mut used = PRELOAD.len();
    into.get_mut(..used)?.copy_from_slice(PRELOAD);
    let names = text.get(PRELOAD.len()..)?.split(|byte| matches!(byte, b' ' | b':'));
    for name in names.filter(|name| !name.is_empty() && !name.ends_with(LIBRARY)) {
        if used > PRELOAD.len() {
            *into.get_mut(used)? = b':';
            used += 1;
        }
        into.get_mut(used..used + name.len())?.copy_from_slice(name);
        used += name.len();
    }
    *into.get_mut(used)? = 0;
    Some(if used > PRELOAD.len() { used } else { 0 })
}

unsafe extern "C" {
    static mut environ: *mut *const c_char;
}

/// Takes the library out of this program's own environment. Others may look at it meanwhile: each
/// change is one store.
pub fn strip_own() {
    // SAFETY: libc's own array, if there is one; see above.
    unsafe {
        let environment = environ;
        if environment.is_null() {
            return;
        }
        for name in OURS {
            while let Some((mut at, value)) = find(environment.cast_const(), name) {
                if name == PRELOAD {
                    let mut kept = [0u8; TEXT_BYTES];
                    let entry = *environment.add(at);
                    let left = without_library(raw::path(entry).to_bytes(), &mut kept);
                    if left != Some(0) {
                        if let Some(left) = left.filter(|left| *left < PRELOAD.len() + value.len()) {
                            // It becomes shorter.
                            let entry = entry.cast_mut().cast();
                            core::ptr::copy_nonoverlapping(kept.as_ptr(), entry, left + 1);
                        }
                        break;
                    }
                }
                while !(*environment.add(at)).is_null() {
                    environment.add(at).write_volatile(*environment.add(at + 1));
                    at += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(environment: &Environment) -> &str {
        core::str::from_utf8(&environment.text[..environment.used]).unwrap()
    }

    #[test]
    fn an_entry_names_number_kind_and_file() {
        let mut environment = Environment::new();
        let stat = raw::fstat(1).unwrap();
        environment.tell(1, SYNC | DSYNC);
        environment.tell(1, DSYNC);
        let (dev, ino) = (stat.dev, stat.ino);
        assert_eq!(text(&environment), format!("HOLDFAST_SYNC=1s{dev}:{ino},1d{dev}:{ino},"));
    }

    #[test]
    fn what_does_not_fit_is_left_out_whole() {
        let mut environment = Environment::new();
        for _ in 0..500 {
            environment.tell(1, DSYNC);
        }
        assert!(environment.used < TEXT_BYTES && text(&environment).ends_with(','));
        assert_eq!(environment.text[environment.used..], [0; TEXT_BYTES][environment.used..]);
    }

    #[test]
    fn an_environment_is_extended_unless_it_is_too_large() {
        let entry = c"A=1".as_ptr();
        for (count, fits) in [(0, true), (3, true), (VARIABLES_MAX - 3, true), (VARIABLES_MAX - 2, false)] {
            let mut variables = vec![entry; count];
            variables.push(core::ptr::null());
            let mut environment = Environment::new();
            environment.tell(1, DSYNC);
            // SAFETY: a null-terminated array of C strings.
            let extended = unsafe { environment.extend(variables.as_ptr()) };
            assert_eq!(extended.is_some(), fits, "{count}");
            if let Some(extended) = extended {
                // SAFETY: as above, by construction.
                assert_eq!(unsafe { find(extended, VARIABLE) }.map(|(at, _)| at), Some(count));
            }
        }
    }
}
