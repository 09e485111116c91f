//! What an image can hold at most: an image that claims more of itself is not believed.
//!
//! A block belongs to one file. In a damaged image some belong to two, so that everything is allowed to be read a few
//! times; an image made to be read for ever is left after that.

/// How often each block may be read as a part of some map or directory, on average.
const NODE_SHARE: u64 = 4;
/// How often each block may be read as contents, on average.
const DATA_SHARE: u64 = 2;
/// Longest value of an attribute that is read, in bytes.
pub const XATTR_BYTES_MAX: u32 = 64 << 10;
/// Levels of a map that are followed; the format has five.
pub const DEPTH_MAX: u16 = 6;
/// Directories in each other that are followed.
pub const LEVELS_MAX: usize = 2000;
/// Runs of blocks, of all files, that are compared with each other: 128 MiB.
pub const RUNS_MAX: usize = 1 << 23;
/// Bytes of contents that are read at once.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Blocks that may still be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    nodes: u64,
    data: u64,
}

impl Budget {
    /// The budget of an image of that many blocks.
    pub(crate) fn of(blocks: u64) -> Budget {
        Budget {
            nodes: blocks.saturating_mul(NODE_SHARE).saturating_add(1024),
            data: blocks.saturating_mul(DATA_SHARE).saturating_add(1024),
        }
    }

    /// Takes one block of a map or directory. False: there were too many.
    pub(crate) fn node(&mut self) -> bool {
        let left = self.nodes > 0;
        self.nodes = self.nodes.saturating_sub(1);
        left
    }

    /// Takes what another one, a copy of this, has taken of maps.
    pub(crate) fn take_nodes_of(&mut self, other: &Budget) {
        self.nodes = self.nodes.min(other.nodes);
    }

    /// Takes blocks of contents. False: there were too many.
    pub(crate) fn data(&mut self, blocks: u64) -> bool {
        let left = self.data >= blocks;
        self.data = self.data.saturating_sub(blocks);
        left
    }
}
