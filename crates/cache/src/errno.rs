//! Error numbers, as programs see them.

/// An error number, as the program will see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Input/output error: nothing is acknowledged any more.
    pub const EIO: Self = Self(5);
    /// No space left: not for want of disk space, but of log space that expiry could give.
    pub const ENOSPC: Self = Self(28);
    /// The file must leave state Behind first.
    pub const EBUSY: Self = Self(16);
    /// A file stands at the name.
    pub const EEXIST: Self = Self(17);
    /// Not a pool or board this library knows, or nothing that this kernel can be asked for.
    pub const EINVAL: Self = Self(22);
    /// Path longer than a request can carry.
    pub const ENAMETOOLONG: Self = Self(36);
    /// Left to the kernel.
    pub const EOPNOTSUPP: Self = Self(95);
}
