//! Why no file system of a size and these options exists.

use std::fmt;

use extant_layout::NoRoomForTables;

use crate::options::OptionError;

/// Why no geometry could be computed.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum GeometryError {
    /// The options contradict each other, whatever the size.
    Options(OptionError),
    /// The device has no room for the metadata of one group.
    TooSmall {
        /// Blocks there are.
        blocks: u64,
        /// Blocks of metadata in the first group.
        metadata: u64,
        /// Bytes per block.
        block_bytes: u32,
    },
    /// More blocks than the block numbers can count.
    TooManyBlocks {
        /// Blocks there are.
        blocks: u64,
        /// Most that fit.
        max: u64,
        /// Bytes per block.
        block_bytes: u32,
        /// Whether the `64bit` feature would help.
        needs_64bit: bool,
    },
    /// More inodes than bitmaps, inode numbers or the device have room for.
    TooManyInodes {
        /// Inodes asked for, by count or by ratio.
        inodes: u64,
        /// Bytes per inode.
        inode_size: u16,
        /// Blocks there are.
        blocks: u64,
    },
    /// So few inodes that root and lost+found have none.
    TooFewInodes {
        /// Inodes after rounding.
        inodes: u32,
        /// Inodes needed.
        needed: u32,
    },
    /// A journal of a length that journals do not have.
    JournalSize {
        /// Blocks asked for.
        blocks: u64,
        /// Fewest.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A journal longer than half of what is free.
    JournalTooBig {
        /// Blocks asked for.
        blocks: u64,
        /// Free blocks.
        free: u64,
    },
    /// `-E resize=` below the size.
    ResizeLimit {
        /// The limit, in blocks.
        limit: u64,
        /// The size, in blocks.
        blocks: u64,
    },
    /// An orphan file that the kernel refuses.
    OrphanFileSize {
        /// Blocks asked for.
        blocks: u64,
        /// Fewest.
        min: u64,
        /// Most.
        max: u64,
    },
    /// Bitmaps or tables of a group find no contiguous room between the backups.
    NoRoomForTables {
        /// First group of those placed together.
        group: u32,
        /// Blocks of one inode table.
        inode_table_blocks: u32,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Options(error) => error.fmt(f),
            Self::TooSmall { blocks, metadata, block_bytes } => write!(
                f,
                "{blocks} blocks of {block_bytes} bytes are too few: metadata alone takes {metadata}; \
                 make it bigger, or use smaller blocks or fewer inodes"
            ),
            Self::TooManyBlocks { blocks, max, block_bytes, needs_64bit } => {
                write!(
                    f,
                    "{blocks} blocks of {block_bytes} bytes are too many, at most {max} fit: "
                )?;
                f.write_str(match needs_64bit {
                    true => "add feature 64bit or use larger blocks",
                    false => "use larger blocks or bigalloc",
                })
            }
            Self::TooManyInodes { inodes, inode_size, blocks } => write!(
                f,
                "{inodes} inodes of {inode_size} bytes are too many for {blocks} blocks: \
                 ask for fewer inodes (-N) or more bytes per inode (-i)"
            ),
            Self::TooFewInodes { inodes, needed } => write!(
                f,
                "{inodes} inodes are too few, {needed} are needed: ask for more (-N), or make it bigger"
            ),
            Self::JournalSize { blocks, min, max } => {
                write!(f, "a journal of {blocks} blocks is out of range: {min}..={max}")
            }
            Self::JournalTooBig { blocks, free } => write!(
                f,
                "a journal of {blocks} blocks is more than half of the {free} free ones: \
                 make it smaller, or the file system bigger"
            ),
            Self::ResizeLimit { limit, blocks } => write!(
                f,
                "the resize limit of {limit} blocks must be above the size of {blocks} blocks"
            ),
            Self::OrphanFileSize { blocks, min, max } => {
                write!(
                    f,
                    "an orphan file of {blocks} blocks is out of range: {min}..={max}; Linux mounts none with a larger one"
                )
            }
            Self::NoRoomForTables { group, inode_table_blocks } => write!(
                f,
                "no contiguous room for the inode tables of {inode_table_blocks} blocks at group {group}: \
                 ask for fewer inodes or smaller flex groups (-G)"
            ),
        }
    }
}

impl std::error::Error for GeometryError {}

impl From<OptionError> for GeometryError {
    fn from(error: OptionError) -> GeometryError {
        GeometryError::Options(error)
    }
}

impl From<NoRoomForTables> for GeometryError {
    fn from(error: NoRoomForTables) -> GeometryError {
        let NoRoomForTables { group, inode_table_blocks } = error;
        GeometryError::NoRoomForTables { group, inode_table_blocks }
    }
}
