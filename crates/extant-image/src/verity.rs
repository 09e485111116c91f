//! The hash tree of dm-verity: what makes a device read-only for good, and every change of it visible.
//!
//! # Shape
//!
//! Blocks of 4096 bytes, SHA-256, format 1: a block with the superblock, then the levels of the tree, the topmost (one block)
//! first. Each hash is that of a salt and one block of the level below, the data at the bottom; a block has 128 of them and is
//! filled up with zeros.
//!
//! # Source
//!
//! Linux `Documentation/admin-guide/device-mapper/verity.rst`, "Hash Tree"; the cryptsetup wiki, "DMVerity", "On-disk format".

use extant_block::{BlockDevice, DeviceError};
use extant_sync::threads;
use sha2::{Digest, Sha256};

use crate::write::WriteError;

pub mod seal;

/// Bytes of a block, of data and of hashes.
pub const BLOCK: u64 = 4096;

const HASH: usize = 32;
const HASHES: u64 = BLOCK / HASH as u64;

/// Bytes of salt.
pub const SALT: usize = 32;

/// Most bytes of salt that a superblock has room for.
const SALT_MAX: usize = 256;

/// Hash blocks that one worker makes from one read: 4 MiB of data.
const BATCH: u64 = 8;

/// Places of the parts of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Blocks of data.
    pub data_blocks: u64,
    /// Blocks of each level from the bottom up, and where each begins, counted from the superblock.
    levels: Vec<(u64, u64)>,
}

impl Layout {
    /// The tree over `bytes` of data; a part of a block counts as one.
    pub fn of(bytes: u64) -> Layout {
        let data_blocks = bytes.div_ceil(BLOCK);
        let mut counts = Vec::new();
        let mut blocks = data_blocks;
        while blocks > 1 {
            blocks = blocks.div_ceil(HASHES);
            counts.push(blocks);
        }
        let mut start = 1;
        let mut levels = vec![(0, 0); counts.len()];
        for (level, count) in levels.iter_mut().zip(&counts).rev() {
            *level = (*count, start);
            start += count;
        }
        Layout { data_blocks, levels }
    }

    /// Bytes of superblock and tree.
    pub fn bytes(&self) -> u64 {
        (1 + self.levels.iter().map(|(count, _)| count).sum::<u64>()) * BLOCK
    }

    /// Bytes of data, up to whole blocks.
    pub fn data_bytes(&self) -> u64 {
        self.data_blocks * BLOCK
    }
}

/// Parameters of a tree, and its root hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// Places of its parts.
    pub layout: Layout,
    /// The salt.
    pub salt: [u8; SALT],
    /// The UUID in its superblock.
    pub uuid: [u8; 16],
    /// The hash that the whole hangs from.
    pub root: [u8; HASH],
}

/// Salt and UUID for the tree of a file system: other ones for each, and the same for the same.
fn identity(fs_uuid: &[u8; 16]) -> ([u8; SALT], [u8; 16]) {
    let salt: [u8; SALT] =
        Sha256::new().chain_update(b"dm-verity salt").chain_update(fs_uuid).finalize().into();
    let bytes: [u8; 32] =
        Sha256::new().chain_update(b"dm-verity uuid").chain_update(fs_uuid).finalize().into();
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&bytes[..16]);
    (salt, uuid::Builder::from_custom_bytes(uuid).into_uuid().into_bytes())
}

/// Reads `bytes` of `data` and writes their tree to `out`, from byte `at` on. The last block is filled up with zeros, which
/// `data` has behind its end or nowhere.
///
/// # Errors
///
/// Those of the devices, and of threads that could not be had.
///
/// # Cost
///
/// One read of the data, and one of each level; some megabytes of memory for each of `workers`.
pub fn write_tree(
    data: &dyn BlockDevice,
    bytes: u64,
    out: &dyn BlockDevice,
    at: u64,
    fs_uuid: &[u8; 16],
    workers: usize,
) -> Result<Tree, WriteError> {
    let layout = Layout::of(bytes);
    let (salt, uuid) = identity(fs_uuid);
    let (mut from, mut start, mut len) = (data, 0, bytes);
    let mut blocks = layout.data_blocks;
    for &(count, level_start) in &layout.levels {
        let to = at + level_start * BLOCK;
        level(Level { from, start, len, blocks, out, to, count }, &salt, workers)?;
        (from, start, len) = (out, to, count * BLOCK);
        blocks = count;
    }
    let mut top = vec![0; BLOCK as usize];
    read_padded(from, start, len, 0, &mut top)?;
    let root = hash(&salt, &top);
    let tree = Tree { layout, salt, uuid, root };
    out.write_at(at, &superblock(&tree))?;
    Ok(tree)
}

/// One level to be made of the one below.
struct Level<'a> {
    from: &'a dyn BlockDevice,
    start: u64,
    /// Bytes that are there to be read.
    len: u64,
    blocks: u64,
    out: &'a dyn BlockDevice,
    to: u64,
    count: u64,
}

fn level(level: Level<'_>, salt: &[u8; SALT], workers: usize) -> Result<(), WriteError> {
    let batches = level.count.div_ceil(BATCH);
    let next = std::sync::atomic::AtomicU64::new(0);
    let workers = workers.clamp(1, usize::try_from(batches).unwrap_or(1).max(1));
    let done = threads::workers("verity", workers, |_| -> Result<(), DeviceError> {
        let (mut data, mut hashes) = (Vec::new(), Vec::new());
        loop {
            let batch = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let first = batch * BATCH;
            if first >= level.count {
                return Ok(());
            }
            let count = BATCH.min(level.count - first);
            let below = first * HASHES;
            let blocks = (count * HASHES).min(level.blocks - below);
            data.clear();
            data.resize((blocks * BLOCK) as usize, 0);
            read_padded(level.from, level.start, level.len, below * BLOCK, &mut data)?;
            hashes.clear();
            for block in data.chunks(BLOCK as usize) {
                hashes.extend_from_slice(&hash(salt, block));
            }
            hashes.resize((count * BLOCK) as usize, 0);
            level.out.write_at(level.to + first * BLOCK, &hashes)?;
        }
    });
    for result in done.map_err(WriteError::from)? {
        result?;
    }
    Ok(())
}

/// Reads from byte `offset` of `len` bytes that begin at `start`; what is behind them stays as it is in `buffer`.
fn read_padded(
    from: &dyn BlockDevice,
    start: u64,
    len: u64,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), DeviceError> {
    let there = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX);
    let there = there.min(buffer.len());
    from.read_at(start + offset, buffer.get_mut(..there).unwrap_or_default())
}

fn hash(salt: &[u8; SALT], block: &[u8]) -> [u8; HASH] {
    Sha256::new().chain_update(salt).chain_update(block).finalize().into()
}

fn superblock(tree: &Tree) -> Vec<u8> {
    let mut block = vec![0; BLOCK as usize];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(field) = block.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    };
    put(0, b"verity\0\0");
    // Version, and the kind of hash: salt first.
    put(8, &1u32.to_le_bytes());
    put(12, &1u32.to_le_bytes());
    put(16, &tree.uuid);
    put(32, b"sha256");
    put(64, &(BLOCK as u32).to_le_bytes());
    put(68, &(BLOCK as u32).to_le_bytes());
    put(72, &tree.layout.data_blocks.to_le_bytes());
    put(80, &(SALT as u16).to_le_bytes());
    put(88, &tree.salt);
    block
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_lie_from_the_top_down() {
        assert_eq!(Layout::of(4096).levels, []);
        assert_eq!(Layout::of(4097).levels, [(1, 1)]);
        assert_eq!(Layout::of(128 << 12).levels, [(1, 1)]);
        assert_eq!(Layout::of(129 << 12).levels, [(2, 2), (1, 1)]);
        assert_eq!(Layout::of((128 * 128 + 1) << 12).levels, [(129, 4), (2, 2), (1, 1)]);
        assert_eq!(Layout::of((128 * 128 + 1) << 12).bytes(), 133 << 12);
    }
}
