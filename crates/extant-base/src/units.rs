//! Numbers with a unit.

use core::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

unit! {
    /// A block of the file system, counted in file-system blocks from its start.
    FsBlock(u64)
}
unit! {
    /// A block of one file, counted in file-system blocks from the start of that file.
    FileBlock(u32)
}
unit! {
    /// A number of blocks. Never an index: the last block of a run of `n` has index `n - 1`.
    BlockCount(u32)
}
unit! {
    /// An inode number. Inode 0 does not exist on disk; the root directory is inode 2.
    Ino(u32)
}
unit! {
    /// A block group, counted from 0.
    GroupIndex(u32)
}

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(2);
    /// User quota file, when the `quota` feature is on.
    pub const USER_QUOTA: Ino = Ino(3);
    /// Group quota file, when the `quota` feature is on.
    pub const GROUP_QUOTA: Ino = Ino(4);
    /// Holds the group-descriptor blocks reserved for growth (`resize_inode`).
    pub const RESIZE: Ino = Ino(7);
    /// The internal journal.
    pub const JOURNAL: Ino = Ino(8);
    /// First inode that is not reserved on a file system of revision 0.
    pub const FIRST_ORDINARY: Ino = Ino(11);
}

impl FsBlock {
    /// The block `count` blocks later; `None` past 2^64 - 1.
    pub fn checked_add(self, count: u64) -> Option<FsBlock> {
        self.0.checked_add(count).map(FsBlock)
    }
}

impl FileBlock {
    /// The block just after `len` blocks that start here; `None` past the format's last block.
    pub fn checked_add(self, len: BlockCount) -> Option<FileBlock> {
        self.0.checked_add(len.0).map(FileBlock)
    }
}

/// A block size of ext4: a power of two, 1 KiB to 64 KiB.
///
/// Holding one means the value is in range, so shifts and divisions by it cannot fail.
///
/// ```
/// use extant_base::BlockSize;
/// let size = BlockSize::new(4096).unwrap();
/// assert_eq!((size.bytes(), size.log2()), (4096, 12));
/// assert!(BlockSize::new(3000).is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockSize {
    log2: u8,
}

/// A block size that ext4 does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSizeError {
    /// The size asked for, in bytes.
    pub bytes: u64,
}

impl fmt::Display for BlockSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "block size {} is not one of 1024, 2048, 4096, 8192, 16384, 32768, 65536",
            self.bytes
        )
    }
}

impl core::error::Error for BlockSizeError {}

impl BlockSize {
    /// Smallest block size, in bytes.
    pub const MIN_BYTES: u32 = 1024;
    /// Largest block size, in bytes.
    pub const MAX_BYTES: u32 = 65536;

    /// Accepts powers of two from 1024 to 65536.
    pub fn new(bytes: u64) -> Result<BlockSize, BlockSizeError> {
        let in_range = bytes >= u64::from(Self::MIN_BYTES) && bytes <= u64::from(Self::MAX_BYTES);
        if in_range && bytes.is_power_of_two() {
            // A power of two up to 2^16 has at most 16 trailing zeros.
            Ok(BlockSize { log2: bytes.trailing_zeros() as u8 })
        } else {
            Err(BlockSizeError { bytes })
        }
    }

    /// From the superblock's `s_log_block_size`: 1024 shifted left by that many bits.
    pub fn from_log_kib(log: u32) -> Result<BlockSize, BlockSizeError> {
        match log {
            0..=6 => Ok(BlockSize { log2: 10 + log as u8 }),
            _ => Err(BlockSizeError { bytes: 1024u64.checked_shl(log).unwrap_or(u64::MAX) }),
        }
    }

    /// The size in bytes, 1024..=65536.
    pub fn bytes(self) -> u32 {
        1 << self.log2
    }

    /// The size in bytes as `usize`, for buffer lengths.
    pub fn len(self) -> usize {
        1 << self.log2
    }

    /// Always false; here because `len` is.
    pub fn is_empty(self) -> bool {
        false
    }

    /// Base-2 logarithm of the size in bytes, 10..=16.
    pub fn log2(self) -> u32 {
        u32::from(self.log2)
    }

    /// Returns how many blocks hold `bytes` bytes, rounded up.
    pub fn blocks_for(self, bytes: u64) -> u64 {
        (bytes >> self.log2) + u64::from(bytes & u64::from(self.bytes() - 1) != 0)
    }

    /// Byte offset of `block`; `None` past 2^64 - 1.
    pub fn offset_of(self, block: FsBlock) -> Option<u64> {
        block.0.checked_mul(u64::from(self.bytes()))
    }
}

/// `value` rounded up to a multiple of `step`; `None` when `step` is 0 or the result overflows.
///
/// ```
/// assert_eq!(extant_base::align_up(5, 4), Some(8));
/// assert_eq!(extant_base::align_up(8, 4), Some(8));
/// assert_eq!(extant_base::align_up(u64::MAX, 4), None);
/// ```
pub fn align_up(value: u64, step: u64) -> Option<u64> {
    value.checked_next_multiple_of(step)
}

/// `value / by`, rounded up. `by` must not be 0 (it never comes from a device).
pub fn div_ceil_u64(value: u64, by: u64) -> u64 {
    value.div_ceil(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_seven_block_sizes_are_accepted() {
        let good: [u64; 7] = [1024, 2048, 4096, 8192, 16384, 32768, 65536];
        for bytes in 0..=200_000u64 {
            assert_eq!(BlockSize::new(bytes).is_ok(), good.contains(&bytes), "{bytes}");
        }
        for (log, bytes) in good.iter().enumerate() {
            assert_eq!(u64::from(BlockSize::from_log_kib(log as u32).unwrap().bytes()), *bytes);
        }
        for log in [7, 31, 63, 64, u32::MAX] {
            assert!(BlockSize::from_log_kib(log).is_err(), "{log}");
        }
    }

    #[test]
    fn blocks_for_rounds_up_and_never_overflows() {
        let size = BlockSize::new(4096).unwrap();
        assert_eq!(size.blocks_for(0), 0);
        assert_eq!(size.blocks_for(1), 1);
        assert_eq!(size.blocks_for(4096), 1);
        assert_eq!(size.blocks_for(4097), 2);
        assert_eq!(size.blocks_for(u64::MAX), 1 << 52);
        assert_eq!(size.offset_of(FsBlock(u64::MAX)), None);
    }
}
