//! The workloads, as data: what each does, how much of it has to be durable, and for whom it
//! stands.

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// 4 KiB at random places of a file, each synced.
    Random,
    /// Small appends to a log, each synced.
    Append,
    /// One-row transactions of SQLite's.
    Transactions,
    /// New files, each synced with its name.
    Create,
    /// A file replaced by a new version of itself.
    Replace,
    /// Writes that nobody syncs.
    Plain,
}

/// A page, the unit of databases.
pub const PAGE_BYTES: usize = 4096;
/// An entry of a log.
pub const ENTRY_BYTES: usize = 256;
/// A page in SQLite's write-ahead log, with its header.
pub const FRAME_BYTES: usize = PAGE_BYTES + 24;

impl Workload {
    /// All, in the order of the report.
    pub const ALL: [Self; 6] =
        [Self::Random, Self::Append, Self::Transactions, Self::Create, Self::Replace, Self::Plain];

    /// Its name in a report and on the worker's command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Append => "append",
            Self::Transactions => "transactions",
            Self::Create => "create",
            Self::Replace => "replace",
            Self::Plain => "plain",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Random => "write 4 KiB at a random place + fsync",
            Self::Append => "append 256 bytes + fdatasync",
            Self::Transactions => "SQLite, one row per transaction (WAL, synchronous=FULL)",
            Self::Create => "make a file of 4 KiB + fsync of it and its directory",
            Self::Replace => "replace a file: write 4 KiB + fsync + rename",
            Self::Plain => "write 4 KiB at a random place, never synced",
        }
    }

    /// Who does such a thing.
    pub fn stands_for(self) -> &'static str {
        match self {
            Self::Random => "databases that write pages in place",
            Self::Append => "write-ahead logs, message queues, redis with appendfsync always",
            Self::Transactions => "applications on SQLite",
            Self::Create => "mail delivery, object stores",
            Self::Replace => "editors, configuration, snapshots of state",
            Self::Plain => "programs that sync nothing: no gain is possible, only a price",
        }
    }

    /// What is counted.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Random | Self::Plain => "writes/s",
            Self::Append => "appends/s",
            Self::Transactions => "transactions/s",
            Self::Create | Self::Replace => "files/s",
        }
    }

    /// Bytes that each has to make durable at least; none where nothing has to be.
    pub fn durable_bytes(self) -> Option<usize> {
        match self {
            Self::Random | Self::Create | Self::Replace => Some(PAGE_BYTES),
            Self::Append => Some(ENTRY_BYTES),
            Self::Transactions => Some(FRAME_BYTES),
            Self::Plain => None,
        }
    }
}
