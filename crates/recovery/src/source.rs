//! An unrecovered pool, as far as recovery reads and changes it.

use std::path::Path;

use holdfast_media::Nvm;
use holdfast_pool::{Frames, Layout, Slots, Superblock, Words};

use super::payloads::{Payloads, ReadSpill};

/// An unrecovered pool, as far as recovery reads and changes it.
pub(super) struct Source<'a, N> {
    pub(super) nvm: &'a N,
    pub(super) superblock: &'a Superblock,
    /// For messages.
    pub(super) name: &'a Path,
    /// Where the log goes on, if it does.
    pub(super) spill: Option<&'a dyn ReadSpill>,
}

impl<'a, N> Source<'a, N> {
    /// A pool whose spill file is not open yet.
    pub(super) fn new(nvm: &'a N, superblock: &'a Superblock, name: &'a Path) -> Self {
        Self { nvm, superblock, name, spill: None }
    }
}

impl<N: Nvm> Source<'_, N> {
    pub(super) fn frames(&self) -> Frames<'_, N> {
        Frames { nvm: self.nvm, layout: self.layout() }
    }

    pub(super) fn payloads(&self) -> Payloads<'_, N> {
        Payloads { nvm: self.nvm, layout: self.layout(), spill: self.spill }
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.superblock.layout
    }

    pub(super) fn slots(&self) -> Slots<'_, N> {
        Slots { nvm: self.nvm, layout: self.layout() }
    }

    pub(super) fn words(&self) -> Words<'_, N> {
        Words { nvm: self.nvm, layout: self.layout() }
    }
}
