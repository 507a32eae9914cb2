//! What calls do to bytes.

/// What a call does to a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Bytes at an offset.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// A new size.
    Truncate(u64),
    /// Bytes at the end, wherever it is by then.
    Append(Vec<u8>),
    /// Zeros within the size.
    Punch {
        /// Where.
        offset: u64,
        /// How many.
        bytes: u64,
    },
}

impl Effect {
    pub(super) fn apply(&self, file: &[u8]) -> Vec<u8> {
        let mut file = file.to_vec();
        match self {
            Self::Write { offset, bytes } => {
                let (from, to) = (*offset as usize, *offset as usize + bytes.len());
                file.resize(file.len().max(to), 0);
                file[from..to].copy_from_slice(bytes);
            }
            Self::Append(bytes) => file.extend_from_slice(bytes),
            Self::Truncate(size) => file.resize(*size as usize, 0),
            Self::Punch { offset, bytes } => {
                let end = file.len().min((offset + bytes) as usize);
                let from = end.min(*offset as usize);
                file[from..end].fill(0);
            }
        }
        file
    }
}
