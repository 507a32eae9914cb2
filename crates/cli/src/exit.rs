//! Exit codes that tell who failed: Holdfast, or what it ran.

/// Holdfast refused or failed before the program started.
pub(crate) const EXIT_REFUSED: u8 = 120;
/// Nothing was mounted, and nothing changed.
pub(crate) const EXIT_NOT_MOUNTED: u8 = 2;
/// The keeper failed or died while the program ran.
pub(crate) const EXIT_KEEPER: u8 = 121;
