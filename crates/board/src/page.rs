//! Pages of files, by number: no page is taken for an offset, a seq or a slot.

use core::fmt;
use holdfast_pool::Slot;

/// Bytes of a page: what one lock covers.
pub const PAGE_BYTES: u64 = 4096;

/// Number of a page in its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Page(u64);

impl Page {
    /// The first one of a file.
    pub const FIRST: Self = Self(0);

    /// The page with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The page that a byte of a file is in.
    #[inline]
    pub const fn of(offset: u64) -> Self {
        Self(offset / PAGE_BYTES)
    }

    /// The pages that bytes of a file are in, up to the last one that there can be.
    pub fn range(offset: u64, bytes: u64) -> impl Iterator<Item = Self> {
        (offset / PAGE_BYTES..offset.saturating_add(bytes).div_ceil(PAGE_BYTES)).map(Self)
    }

    /// Its number.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Where it begins in its file, in bytes.
    #[inline]
    pub const fn offset(self) -> u64 {
        self.0 * PAGE_BYTES
    }

    /// The page behind it, unless it is the last one that there can be.
    #[inline]
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_add(1) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A page of the file that has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePage {
    /// The slot.
    pub slot: Slot,
    /// The page.
    pub page: Page,
}

/// Place of a page in a table of `count`. A large odd stride keeps files apart while pages of one
/// file stay neighbours.
#[inline]
pub(crate) fn home(slot: Slot, page: Page, count: u64) -> u64 {
    (u64::from(slot).wrapping_mul(0x9e37_79b1).wrapping_add(page.number())) % count
}
