//! The bytes of a simulated file, in blocks that copies share.

use std::sync::Arc;

/// Unit in which file contents reach the disk, in bytes.
pub const BLOCK_BYTES: usize = 256;

pub(super) type Block = Option<Arc<[u8; BLOCK_BYTES]>>;

/// Contents of a file; beyond the size everything is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub size: u64,
    pub blocks: Vec<Block>,
}

impl Content {
    pub fn block(&self, index: usize) -> &Block {
        self.blocks.get(index).unwrap_or(&None)
    }

    pub fn set_block(&mut self, index: usize, block: Block) {
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, None);
        }
        self.blocks[index] = block;
    }

    /// Cuts off what lies beyond the size.
    pub fn trim(&mut self) {
        let whole = (self.size as usize).div_ceil(BLOCK_BYTES);
        self.blocks.truncate(whole);
        let rest = self.size as usize % BLOCK_BYTES;
        if rest > 0
            && let Some(Some(last)) = self.blocks.get_mut(whole - 1)
            && last[rest..].iter().any(|&byte| byte != 0)
        {
            Arc::make_mut(last)[rest..].fill(0);
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        for (part, block) in bytes.chunks_mut(BLOCK_BYTES).zip(&self.blocks) {
            if let Some(block) = block {
                part.copy_from_slice(&block[..part.len()]);
            }
        }
        bytes
    }
}
