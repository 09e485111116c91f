//! Why nothing can be salvaged.

use extant_block::DeviceError;

/// The reason why an image cannot be read at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SalvageError {
    /// Superblock, backups and descriptors are gone.
    #[error(
        "no superblock of ext2, ext3 or ext4 and no backup of one, and no group descriptors from which its numbers \
         would follow{}",
        match .block_size {
            Some(bytes) => format!(" with blocks of {bytes} bytes"),
            None => String::new(),
        }
    )]
    NoSuperblock {
        /// The block size that was asked for, in bytes.
        block_size: Option<u32>,
    },
    /// Features that change structures in ways unknown here.
    #[error("unknown features: {names}")]
    Features {
        /// Their names.
        names: String,
    },
    /// The device is shorter than a superblock, or its first error when nothing of it could be read.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
