//! The designs of the product, on the keeper's side.
//!
//! What a design does here decides nothing on durability: it brings bytes to the page cache, and
//! whoever asked for that syncs and expires.

use holdfast_pool::Seq;
use std::io;

use holdfast_board::{DeadLane, FileRow, Way};
use holdfast_disk::Disk;
use holdfast_log::Header;
use holdfast_media::Nvm;

use super::file::ManagedFile;
use super::state::Durable;
use super::sync::Pace;
use super::upkeep::{Upkeep, Upkeeps, upkeeps};

upkeeps! {
    /// The designs of the product.
    pub Stock { Through => Through, Behind => Behind ; Behind }
}

/// The design of state Through: the page cache has everything.
pub struct Through;

impl Upkeep for Through {
    const LEAVES: Option<Way> = None;

    fn drain<N: Nvm, D: Disk, U: Upkeeps>(
        _: &Durable<N, D, U>,
        _: &ManagedFile<D::File>,
        _: Seq,
        _: Pace,
    ) -> io::Result<Option<D::File>> {
        Ok(None)
    }

    fn drain_held<N: Nvm, D: Disk, U: Upkeeps>(
        _: &Durable<N, D, U>,
        _: &D::File,
        _: &ManagedFile<D::File>,
        _: (u64, u64),
    ) -> io::Result<()> {
        Ok(())
    }
}

/// The design of state Behind: page rows tell what the page cache lacks.
pub struct Behind;

impl Upkeep for Behind {
    const LEAVES: Option<Way> = Some(Way::LeaveBehind);

    fn drain<N: Nvm, D: Disk, U: Upkeeps>(
        durable: &Durable<N, D, U>,
        file: &ManagedFile<D::File>,
        seq: Seq,
        pace: Pace,
    ) -> io::Result<Option<D::File>> {
        durable.drain_rows(file, seq, pace)
    }

    fn drain_held<N: Nvm, D: Disk, U: Upkeeps>(
        durable: &Durable<N, D, U>,
        target: &D::File,
        file: &ManagedFile<D::File>,
        range: (u64, u64),
    ) -> io::Result<()> {
        durable.drain_held(target, file, range)
    }

    fn finish<N: Nvm, D: Disk, U: Upkeeps>(
        durable: &Durable<N, D, U>,
        dead: &DeadLane,
        seq: Seq,
        row: &FileRow,
    ) -> bool {
        row.state().lags() && durable.finish_in_rows(dead, seq, row)
    }

    fn is_covered<N: Nvm, D: Disk, U: Upkeeps>(durable: &Durable<N, D, U>, header: &Header) -> bool {
        durable.is_covered_by_rows(header)
    }

    fn tell<N: Nvm, D: Disk, U: Upkeeps>(
        durable: &Durable<N, D, U>,
        file: &ManagedFile<D::File>,
    ) -> io::Result<()> {
        if durable.board.row(file.slot).state().lags() { durable.tell_by_rows(file) } else { Ok(()) }
    }
}
