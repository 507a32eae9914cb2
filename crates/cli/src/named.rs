//! What was named as a pool and is none, for commands that look at one: seen before anything is
//! opened in earnest. Must never call a pool none that is damaged: of that others tell.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use holdfast_pool::{Layout, MAGIC, SUPERBLOCK_COPY_OFFSET, Zone};
use rustix::fs::OFlags;

use crate::words::shown;

/// Read at once.
const PIECE_BYTES: usize = 64 << 10;

/// The command line is wrong.
pub const EXIT_USAGE: u8 = 2;

/// It is no pool.
#[derive(Debug, thiserror::Error)]
#[error("{} is not a Holdfast pool: it is {what}. Name one with --pool PATH or HOLDFAST_POOL", shown(&path.to_string_lossy()))]
pub struct NoPool {
    path: PathBuf,
    what: &'static str,
}

/// Refuses what cannot be a pool, nor the remains of one.
pub fn must_be_a_pool(path: &Path) -> Result<(), NoPool> {
    // What cannot be looked at, others say why.
    let what = std::fs::metadata(path).ok().and_then(|meta| what_instead(path, &meta));
    what.map_or(Ok(()), |what| Err(NoPool { path: path.to_owned(), what }))
}

fn what_instead(path: &Path, meta: &Metadata) -> Option<&'static str> {
    let kind = meta.file_type();
    if !kind.is_file() {
        let kinds = [
            (kind.is_dir(), "a directory"),
            (kind.is_fifo(), "a FIFO"),
            (kind.is_socket(), "a socket"),
            (kind.is_block_device(), "a block device"),
            (!holdfast_media::is_dax_device(meta), "a device, and no DAX one"),
        ];
        return kinds.into_iter().find_map(|(is_it, what)| is_it.then_some(what));
    }
    if meta.len() == 0 {
        return Some("an empty file");
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path).ok()?;
    let may_be = |at: u64| {
        let mut begins = [0; MAGIC.len()];
        let read = file.read_exact_at(&mut begins, at);
        // Zeros are what errors of the media leave that were cleared.
        read.is_ok() && (begins == MAGIC || begins == [0; MAGIC.len()])
    };
    if !may_be(0) && !may_be(SUPERBLOCK_COPY_OFFSET) {
        return Some("a file that does not begin as a pool does");
    }
    let of_zeros = "a file of zeros where a pool has its slots; if there ever was a pool in it, restore it from a backup";
    is_blank(&file, meta.len()).ok()?.then_some(of_zeros)
}

/// Whether nothing but zeros stands where a pool has what tells of its files: not even errors of
/// the media leave that of a pool that was used.
fn is_blank(file: &File, bytes: u64) -> io::Result<bool> {
    let end = Layout::new(bytes).map_or(bytes, |layout| layout.offset(Zone::Segments));
    let (mut piece, mut at) = (vec![0; PIECE_BYTES], 0);
    while at < end {
        let piece = &mut piece[..PIECE_BYTES.min((end - at) as usize)];
        file.read_exact_at(piece, at)?;
        if piece.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += piece.len() as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_a_pool_is_not_called_something_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a\nb");
        let judged = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            must_be_a_pool(&path).map_err(|no_pool| no_pool.to_string())
        };
        let mut bytes = vec![b'x'; 8192];
        let told = judged(&bytes).unwrap_err();
        assert!(told.contains("a\\nb is not a Holdfast pool: it is a file"), "{told}");
        assert!(judged(b"").unwrap_err().contains("an empty file"));
        assert!(judged(b"short").unwrap_err().contains("a file that"));
        bytes[..8].copy_from_slice(&MAGIC);
        assert_eq!(judged(&bytes), Ok(()));
        bytes[..8].copy_from_slice(b"damaged!");
        bytes[4096 + 2048..][..8].copy_from_slice(&MAGIC);
        assert_eq!(judged(&bytes), Ok(()));
        // Its superblocks are gone, and something tells that it was used.
        let mut bytes = vec![0; 32 << 20];
        assert!(judged(&bytes).unwrap_err().contains("a file of zeros"));
        let slots = Layout::new(32 << 20).unwrap().offset(Zone::Slots) as usize;
        bytes[slots] = 1;
        assert_eq!(judged(&bytes), Ok(()));
        assert!(judged(&[0; 8192]).unwrap_err().contains("a file of zeros"));
        assert!(must_be_a_pool(dir.path()).unwrap_err().to_string().contains("a directory"));
        assert!(must_be_a_pool(&dir.path().join("none")).is_ok());
        assert!(must_be_a_pool(Path::new("/dev/null")).unwrap_err().to_string().contains("no DAX one"));
    }
}
