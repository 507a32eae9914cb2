//! Who asks, and what is done with the caller's identity and not with ours: names are made, moved
//! and taken away, and disks are filled.
//!
//! Beneath the mount another process may move names between any two calls, so nothing may be given
//! to the caller by its name afterwards: it would be whatever has that name by then. The file
//! system below makes what is made the caller's own, in one call, and looks itself whether the
//! caller may take a name out of a sticky directory. Nor does it give others the blocks that it
//! keeps for root, or more than their quota.
//!
//! Nothing but the identity that files are looked at with may change, on this thread and for this
//! call alone.

use std::sync::OnceLock;

use fuser::Request;
use holdfast_canary::{Canary, on};
use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, getegid, geteuid};
use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::nodes::Node;
use crate::raw::{self, Result};

/// What is read of a default ACL: whether there is one.
const DEFAULT_ACL: &std::ffi::CStr = c"system.posix_acl_default";

/// Who asks.
#[derive(Clone, Copy)]
pub struct Caller {
    uid: Uid,
    gid: Gid,
    umask: u32,
}

impl Caller {
    /// The caller of a request, and its mask if the request makes something.
    pub fn new(request: &Request, umask: u32) -> Self {
        Self { uid: Uid::from_raw(request.uid()), gid: Gid::from_raw(request.gid()), umask }
    }

    /// Whether a file is the caller's.
    pub fn owns(self, uid: u32) -> bool {
        self.uid.as_raw() == uid
    }

    /// The mode of what is made below `parent`.
    pub fn mode(self, parent: &Node, mode: u32) -> Mode {
        let inherits = self.umask != 0 && raw::attribute(&raw::path_of(parent), DEFAULT_ACL, &mut []).is_ok();
        let masked = if inherits { mode } else { mode & !self.umask };
        Mode::from_bits_truncate(masked & 0o7777)
    }

    /// Makes a call on a file's content or ACL as the caller, as [`Caller::act`] does. What
    /// a file loses by that natively (its right to be executed as its user or its group), it loses.
    pub fn act_on_content<T>(self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.act_without(CapabilitySet::FSETID, call)
    }

    /// Makes a call as the caller. That it may be made the kernel has looked at above the mount, of
    /// which it knows the caller's groups: here it is not asked again, but who owns what counts.
    pub fn act<T>(self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.act_without(CapabilitySet::empty(), call)
    }

    fn act_without<T>(self, kept_back: CapabilitySet, call: impl FnOnce() -> Result<T>) -> Result<T> {
        // Of pages of a mapping newer kernels say that nobody writes them.
        let is_us = self.uid == geteuid() && self.gid == getegid() || self.uid.as_raw() == raw::NOBODY;
        // Only root can be somebody else; who is not root serves nobody else.
        if is_us || !geteuid().is_root() || on(Canary::MountOwnerKept) {
            return call();
        }
        let _acting = Acting::begin(self, kept_back)?;
        call()
    }
}

/// This thread is somebody else to file systems until it is dropped.
struct Acting {
    group_before: u32,
    rights_before: CapabilitySets,
}

/// Whether others of this user may look at this process, before the first change of an identity.
static IS_OPEN: OnceLock<bool> = OnceLock::new();

impl Acting {
    fn begin(caller: Caller, kept_back: CapabilitySet) -> Result<Self> {
        IS_OPEN.get_or_init(|| dumpable_behavior().is_ok_and(|how| how == DumpableBehavior::Dumpable));
        let ours = capabilities(None).map_err(errno)?;
        // The group first: who is not root may not change it.
        let group_before = raw::set_files_group(caller.gid.as_raw());
        let acting = Self { group_before, rights_before: ours };
        raw::set_files_user(caller.uid.as_raw());
        // These two calls tell of no failure: what they left is what the next one of them returns.
        let (uid, gid) = (raw::set_files_user(raw::NOBODY), raw::set_files_group(raw::NOBODY));
        if (uid, gid) != (caller.uid.as_raw(), caller.gid.as_raw()) {
            return Err(Errno::EPERM);
        }
        // Root's rights went with root's identity. All of them come back but the one to do what
        // only a file's owner may, and the one to go on where a disk is full for others.
        let kept_back = kept_back | CapabilitySet::FOWNER | CapabilitySet::SYS_RESOURCE;
        let effective = ours.effective.difference(kept_back);
        set_capabilities(None, CapabilitySets { effective, ..ours }).map_err(errno)?;
        Self::stay_open();
        Ok(acting)
    }
}

impl Acting {
    /// The keeper looks at this process's descriptors, which the kernel keeps from all but those
    /// with rights of their own once an identity has changed. Its user is who it was, though.
    fn stay_open() {
        if IS_OPEN.get() == Some(&true) {
            // Nothing can be wrong with asking for what was so before.
            let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
        }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        // Who is root still, as this process is, may always do that.
        raw::set_files_user(geteuid().as_raw());
        raw::set_files_group(self.group_before);
        // What was permitted before is so still: there is no reason to refuse it.
        let _ = set_capabilities(None, self.rights_before);
        Self::stay_open();
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn effective() -> CapabilitySet {
        capabilities(None).unwrap().effective
    }

    #[test]
    fn what_a_caller_makes_is_its_own_and_the_thread_is_root_again() {
        assert!(geteuid().is_root(), "run as root: this is about what root does for others");
        let directory = tempfile::tempdir().unwrap();
        let (path, before) = (directory.path().join("made"), effective());
        let caller = Caller { uid: Uid::from_raw(61_001), gid: Gid::from_raw(61_002), umask: 0 };
        let made = caller.act(|| {
            assert!(!effective().contains(CapabilitySet::FOWNER));
            assert!(effective().contains(CapabilitySet::DAC_OVERRIDE));
            std::fs::write(&path, b"").map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
        });
        assert_eq!(made, Ok(()));
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (61_001, 61_002));
        assert_eq!(effective(), before);
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::Dumpable);
        std::fs::write(directory.path().join("ours"), b"").unwrap();
        assert_eq!(std::fs::metadata(directory.path().join("ours")).unwrap().uid(), 0);
    }
}
