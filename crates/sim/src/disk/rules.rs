//! Which file system is simulated, and what each kind of sync makes durable on it: a table of
//! rules, so that a wrong one can be made by changing a line. The kernels hold the rows of ext4,
//! xfs and btrfs to what they do (`holdfast-siege --calibrate`, docs/testing.md).

/// The file system that is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Journal {
    /// ext4: one journal, which commits everything before it.
    Ext4,
    /// xfs: as ext4, but names count for `fdatasync`.
    Xfs,
    /// btrfs: each sync takes along what belongs to its own file or directory.
    Btrfs,
    /// What POSIX promises: names are durable with the sync of their directory only.
    Lagging,
    /// ext4 without a journal: the same, and a commit writes out all files.
    Bare,
}

/// Which changes beside bytes a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Covers {
    /// None.
    Nothing,
    /// Those of the file's own names, or of names in the directory, and what they need.
    Own,
    /// All that were made before.
    All,
}

/// What a file system makes durable, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Changes of names, truncations and holes become durable in the order in which they were made.
    /// Else each by itself.
    pub ordered: bool,
    /// `fsync` of a file of which the journal has anything.
    pub sync: Covers,
    /// `fdatasync` of a file that is new, or whose size or space changed.
    pub data_sync: Covers,
    /// `fdatasync` of a file of which nothing but names changed.
    pub data_sync_of_names: Covers,
    /// `fsync` of a file of which nothing but bytes changed.
    pub sync_of_bytes: Covers,
    /// `fdatasync` of such a file.
    pub data_sync_of_bytes: Covers,
    /// A file that is read from the disk counts as made or cut since the last commit.
    pub reading_joins: bool,
    /// At the least, any sync of a file that got or lost names since it was made, or of a directory
    /// that lost any.
    pub sync_of_moved: Covers,
    /// At the least, any sync of a changed file while names somewhere were moved or removed.
    pub sync_beside_moves: Covers,
    /// `fsync` of a directory in which no name changed.
    pub clean_directory_sync: Covers,
    /// `fsync` of a directory in which names changed.
    pub directory_sync: Covers,
    /// Truncations and holes are the journal's; else they lag as the sizes of writes do.
    pub journals_sizes: bool,
    /// The sizes of writes are the journal's, too, with or without the bytes.
    pub journals_written_sizes: bool,
    /// An exchange of two names counts for the files as a rename does; else for `fsync` alone.
    pub exchange_moves: bool,
    /// The sync of a directory covers its own names.
    pub directory_sync_of_itself: bool,
    /// A rename to another directory leaves the old name, too, where only the new directory was
    /// synced.
    pub renames_by_halves: bool,
    /// The number of an inode that is gone is the next new one's.
    pub reuses_numbers: bool,
    /// A commit brings the bytes of all files to the disk.
    pub commit_writes_out: bool,
    /// It says that commits are quick: then the keeper has it commit behind the syncs of clients,
    /// as btrfs.
    pub commits_quickly: bool,
    /// What a sync covered stays: false is a disk that lies.
    pub keeps_bytes: bool,
}

impl Journal {
    /// What this file system does.
    pub fn rules(self) -> Rules {
        let one_journal = Rules {
            ordered: true,
            sync: Covers::All,
            data_sync: Covers::All,
            data_sync_of_names: Covers::Nothing,
            sync_of_bytes: Covers::Nothing,
            data_sync_of_bytes: Covers::Nothing,
            reading_joins: false,
            sync_of_moved: Covers::Nothing,
            sync_beside_moves: Covers::Nothing,
            clean_directory_sync: Covers::Nothing,
            directory_sync: Covers::All,
            journals_sizes: true,
            journals_written_sizes: false,
            exchange_moves: true,
            directory_sync_of_itself: false,
            renames_by_halves: false,
            reuses_numbers: true,
            commit_writes_out: false,
            commits_quickly: true,
            keeps_bytes: true,
        };
        match self {
            Self::Ext4 => one_journal,
            Self::Xfs => Rules { data_sync_of_names: Covers::All, exchange_moves: false, ..one_journal },
            Self::Btrfs => Rules {
                ordered: false,
                sync: Covers::Own,
                data_sync: Covers::Own,
                data_sync_of_names: Covers::Own,
                directory_sync: Covers::Own,
                directory_sync_of_itself: true,
                renames_by_halves: true,
                reuses_numbers: false,
                ..one_journal
            },
            Self::Lagging => Rules {
                ordered: false,
                sync: Covers::Nothing,
                data_sync: Covers::Nothing,
                directory_sync: Covers::Own,
                journals_sizes: false,
                commits_quickly: false,
                ..one_journal
            },
            Self::Bare => Rules { commit_writes_out: true, ..Self::Lagging.rules() },
        }
    }
}
