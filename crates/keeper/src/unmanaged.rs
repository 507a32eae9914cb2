//! Which clients write a file where no log sees it: they were told to leave it to the kernel, or
//! said so themselves.
//!
//! A client follows the state of every file that has a row in the board, and looks for one before
//! the first change. So another client that has a file open is no stranger when the file gets its
//! row, unless it was told before that there will be none. It must never forget such a client while
//! it lives: log records would be replayed over what it wrote.

use std::collections::HashMap;
use std::sync::Mutex;

use holdfast_disk::locked;

/// A file: device, inode, and when it was made, in nanoseconds since 1970, because inode numbers
/// are used again.
pub(crate) type File = (u64, u64, i128);

/// When a file with that inode number was made, and who writes it without the log.
type Clients = Vec<(i128, u32)>;

/// Clients that write a file without the log, by file.
#[derive(Default)]
pub(crate) struct UnmanagedClients {
    by_file: Mutex<HashMap<(u64, u64), Clients>>,
}

impl UnmanagedClients {
    /// From now on `client` writes the file where we do not see it.
    pub(crate) fn note(&self, (dev, ino, born): File, client: u32) {
        let mut files = locked(&self.by_file);
        let clients = files.entry((dev, ino)).or_default();
        clients.retain(|(then, _)| *then == born);
        if !clients.contains(&(born, client)) {
            clients.push((born, client));
        }
    }

    /// Who does.
    pub(crate) fn of(&self, (dev, ino, born): File) -> Vec<u32> {
        let files = locked(&self.by_file);
        let clients = files.get(&(dev, ino)).map(Vec::as_slice).unwrap_or_default();
        clients.iter().filter(|(then, _)| *then == born).map(|(_, client)| *client).collect()
    }

    /// Nobody has the file open for writing any more.
    pub(crate) fn forget_file(&self, dev: u64, ino: u64) {
        locked(&self.by_file).remove(&(dev, ino));
    }

    /// A client ended.
    pub(crate) fn forget_client(&self, client: u32) {
        locked(&self.by_file).retain(|_, clients| {
            clients.retain(|(_, known)| *known != client);
            !clients.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_native_writer_is_known_until_it_ends_and_only_of_its_file() {
        let unmanaged = UnmanagedClients::default();
        unmanaged.note((1, 7, 100), 3);
        unmanaged.note((1, 7, 100), 3);
        unmanaged.note((1, 7, 100), 4);
        assert_eq!(unmanaged.of((1, 7, 100)), [3, 4]);
        assert!(unmanaged.of((1, 7, 200)).is_empty(), "the number is another file's");
        unmanaged.forget_client(3);
        assert_eq!(unmanaged.of((1, 7, 100)), [4]);
        unmanaged.forget_file(1, 7);
        assert!(unmanaged.of((1, 7, 100)).is_empty());
    }
}
