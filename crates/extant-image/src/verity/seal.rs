//! Finding out whether a dm-verity tree seals a file system that somebody is about to change.
//!
//! # Places
//!
//! A tree is looked for behind the file system, at the next whole 4 KiB, and where each other partition of its
//! disk begins: that is where [`write_tree`](super::write_tree) and systemd-repart put it.
//!
//! # What counts
//!
//! A tree seals a file system if it covers it and has the hash of the block that the superblock is in. Who changes
//! anything changes that block, so a seal that was broken is none, nor is the tree of another slot of equal size.
//!
//! # Hostile input
//!
//! Everything read may have any value: sums are checked, and at most one block of data and one hash are read for
//! each place.

use extant_block::{BlockDevice, partition};
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use sha2::{Digest, Sha256};

use super::{BLOCK, HASH, SALT_MAX};

/// Bytes of the superblock of a tree.
const HEADER: u64 = 512;

/// Where the tree of a sealed file system is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seal {
    /// Behind the file system, from this byte of it on.
    Behind(u64),
    /// In the partition with this number.
    Partition(u32),
}

/// Returns where the tree is that seals the file system on `part`, if one does. `disk` is what `part` is a partition of.
///
/// What cannot be read seals nothing.
pub fn find(part: &dyn BlockDevice, disk: Option<&dyn BlockDevice>) -> Option<Seal> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    part.read_at(SUPERBLOCK_OFFSET, &mut bytes).ok()?;
    let superblock = Superblock::decode_unverified(&bytes).ok()?;
    let fs_bytes = superblock.blocks_count.checked_mul(superblock.block_size.len() as u64)?;
    let behind = fs_bytes.checked_next_multiple_of(BLOCK)?;
    if Header::read(part, behind).is_some_and(|header| header.seals(part, fs_bytes, part)) {
        return Some(Seal::Behind(behind));
    }
    let disk = disk?;
    let partitions = partition::list(disk).ok()?;
    let sealing = partitions.iter().find(|other| {
        Header::read(disk, other.offset).is_some_and(|header| header.seals(part, fs_bytes, disk))
    });
    sealing.map(|found| Seal::Partition(found.number))
}

/// The superblock of a tree.
struct Header {
    /// Where it begins.
    at: u64,
    data_block: u64,
    hash_block: u64,
    data_blocks: u64,
    salt: Vec<u8>,
    /// Hashes are SHA-256, salt first: the kind that can be compared here.
    is_known: bool,
}

impl Header {
    /// Reads the superblock at byte `at`, if there is one.
    fn read(device: &dyn BlockDevice, at: u64) -> Option<Header> {
        let end = at.checked_add(HEADER)?;
        if end > device.size_bytes() {
            return None;
        }
        let mut bytes = [0; HEADER as usize];
        device.read_at(at, &mut bytes).ok()?;
        let word = |at: usize| {
            let field = bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
            field.map(u32::from_le_bytes)
        };
        let block = |at: usize| {
            let bytes = word(at)?;
            (bytes.is_power_of_two() && (512..=1 << 19).contains(&bytes))
                .then_some(u64::from(bytes))
        };
        if !bytes.starts_with(b"verity\0\0") || word(8)? != 1 {
            return None;
        }
        let salt = usize::from(u16::from_le_bytes([*bytes.get(80)?, *bytes.get(81)?]));
        let salt = bytes.get(88..88 + salt.min(SALT_MAX))?.to_vec();
        let algorithm = bytes.get(32..64)?;
        let name = algorithm.split(|byte| *byte == 0).next();
        let is_known = word(12)? == 1 && name == Some(b"sha256");
        Some(Header {
            at,
            data_block: block(64)?,
            hash_block: block(68)?,
            data_blocks: u64::from(word(72)?) | u64::from(word(76)?) << 32,
            salt,
            is_known,
        })
    }

    /// Returns whether this tree, which is on `tree`, is that of the file system of `fs_bytes` on `part`.
    fn seals(&self, part: &dyn BlockDevice, fs_bytes: u64, tree: &dyn BlockDevice) -> bool {
        let Some(data_bytes) = self.data_blocks.checked_mul(self.data_block) else { return false };
        let longest = part.size_bytes().checked_next_multiple_of(self.data_block);
        if data_bytes < fs_bytes || longest.is_none_or(|longest| data_bytes > longest) {
            return false;
        }
        !self.is_known || self.has_hash(part, tree) == Some(true)
    }

    /// Returns whether the tree has the hash of the block in which the superblock begins.
    fn has_hash(&self, part: &dyn BlockDevice, tree: &dyn BlockDevice) -> Option<bool> {
        let index = SUPERBLOCK_OFFSET / self.data_block;
        let mut data = vec![0; usize::try_from(self.data_block).ok()?];
        part.read_at(index * self.data_block, &mut data).ok()?;
        let made = Sha256::new().chain_update(&self.salt).chain_update(&data).finalize();
        let per_block = self.hash_block / HASH as u64;
        // The levels above the lowest one lie before it.
        let (mut above, mut blocks) = (0u64, self.data_blocks.div_ceil(per_block));
        while blocks > 1 {
            blocks = blocks.div_ceil(per_block);
            above += blocks;
        }
        let first = (self.at + HEADER).div_ceil(self.hash_block);
        let lowest = first.checked_add(above)?.checked_mul(self.hash_block)?;
        let mut kept = [0; HASH];
        tree.read_at(lowest.checked_add(index * HASH as u64)?, &mut kept).ok()?;
        Some(made.as_slice() == kept)
    }
}

#[cfg(test)]
mod tests {
    use extant_block::MemoryDevice;
    use proptest::prelude::*;

    use super::*;

    fn device(bytes: &[u8]) -> MemoryDevice {
        let device = MemoryDevice::new(64 << 10);
        device.write_at(0, bytes).unwrap();
        device
    }

    proptest! {
        #[test]
        fn a_tree_of_any_bytes_is_survived(
            mut bytes in proptest::collection::vec(any::<u8>(), HEADER as usize),
            sizes in (8u32..20, 8u32..20),
            data_blocks in prop_oneof![any::<u64>(), 0..1000u64],
        ) {
            bytes[..64].fill(0);
            bytes[..8].copy_from_slice(b"verity\0\0");
            bytes[8] = 1;
            bytes[12] = 1;
            bytes[32..38].copy_from_slice(b"sha256");
            bytes[64..68].copy_from_slice(&(1u32 << sizes.0).to_le_bytes());
            bytes[68..72].copy_from_slice(&(1u32 << sizes.1).to_le_bytes());
            bytes[72..80].copy_from_slice(&data_blocks.to_le_bytes());
            let device = device(&bytes);
            if let Some(header) = Header::read(&device, 0) {
                prop_assert!(!header.seals(&device, 32 << 10, &device));
                let _ = header.has_hash(&device, &device);
            }
        }
    }
}
