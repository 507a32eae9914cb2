//! Leaving files to the kernel, for a front end that cannot follow what is done to them.

use holdfast_cache::{Client, Errno, FileRef, Origin, Reason};
use holdfast_media::Nvm;

use crate::backing::Backing;
use crate::description::{Description, State};

/// Leaves a managed file to the kernel.
pub fn drop_file<N: Nvm>(client: &Client<N>, file: FileRef, reason: Reason) {
    // Fails only when the keeper is dead or the disk refuses the data; then every write to the file
    // fails too.
    let _ = client.bypass(file, reason);
}

/// Leaves the file of a pending description to the kernel.
pub fn give_up<N: Nvm, B: Backing>(
    client: &Client<N>,
    description: &Description,
    backing: &B,
    reason: Reason,
) {
    match leave_unknown(client, backing, reason) {
        Ok(Some(file)) => description.set_state(State::Managed(file)),
        Ok(None) => description.set_state(State::Plain),
        Err(_) => {}
    }
}

/// Leaves a file to the kernel of which it is not known whether it has a place. Returns that.
///
/// # Errors
/// `EIO` when the keeper is dead, or what it says.
pub fn leave_unknown<N: Nvm, B: Backing>(
    client: &Client<N>,
    backing: &B,
    reason: Reason,
) -> Result<Option<FileRef>, Errno> {
    let stat = backing.stat().ok();
    let file = match stat.and_then(|stat| client.find(stat.dev, stat.ino)) {
        Some(seen) => Some(seen.file),
        // The keeper must hear of it, or another open of the file could be managed beside this one.
        None => {
            let origin = match reason {
                Reason::Libc => Origin::Libc,
                Reason::AsyncIo => Origin::AsyncIo,
                Reason::MappedShared => Origin::Mapped,
                _ => Origin::Unknown,
            };
            // A place, if somebody else's registration came in between.
            client.register(backing.fd(), origin, None, || false)?
        }
    };
    if let Some(file) = file {
        drop_file(client, file, reason);
    }
    Ok(file)
}
