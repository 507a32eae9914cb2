//! Telling the keeper's fence whose an open is.

use holdfast_cache::{Client, Seen};
use holdfast_media::Nvm;

use crate::backing::Stat;

/// An open that was announced to a fence which hears of every open, but not whose it was.
#[derive(Clone, Copy)]
pub struct Announced {
    dev: u64,
    ino: u64,
    /// Counted in the file's row, not by inode number.
    in_row: bool,
}

/// Tells the keeper's fence that the open which has just been made was a client's. Only of files
/// that were the cache's when they were opened: of others the fence had no notice.
pub fn note_open<N: Nvm>(client: &Client<N>, stat: &Stat) -> Option<Seen> {
    let seen = if stat.regular { client.find(stat.dev, stat.ino) } else { None };
    if let Some(seen) = &seen {
        client.note_open(seen.file);
    }
    seen
}

/// Announces the open that is about to be made of what `stat` describes; `writes`: its flags allow
/// writing.
pub fn announce_open<N: Nvm>(client: &Client<N>, stat: &Stat, writes: bool) -> Option<Announced> {
    if !stat.regular {
        return None;
    }
    let seen = client.find(stat.dev, stat.ino);
    match seen {
        Some(seen) => client.note_open(seen.file),
        // The file may get its row at this very moment.
        None if writes => client.board().header().opens(stat.ino).begin(),
        None => return None,
    }
    Some(Announced { dev: stat.dev, ino: stat.ino, in_row: seen.is_some() })
}

/// The open that was announced is over; `stat` tells what was opened.
pub fn opened<N: Nvm>(client: &Client<N>, announced: Option<Announced>, stat: Option<&Stat>) -> Option<Seen> {
    if let Some(announced) = announced.filter(|announced| !announced.in_row) {
        client.board().header().opens(announced.ino).end();
    }
    let stat = stat.filter(|stat| stat.regular)?;
    if announced.is_some_and(|announced| (announced.dev, announced.ino) == (stat.dev, stat.ino)) {
        return client.find(stat.dev, stat.ino);
    }
    note_open(client, stat)
}
