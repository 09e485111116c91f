//! Why an image cannot be planned.

use std::fmt;

use crate::geometry::GeometryError;
use crate::tree::TreeError;

/// Why an image cannot be planned. Nothing has been written when this is returned.
#[derive(Debug)]
pub enum PlanError {
    /// The options contradict each other or the size.
    Geometry(GeometryError),
    /// The names do not make a tree.
    Tree(TreeError),
    /// The contents do not fit the size that was asked for.
    DoesNotFit {
        /// The size asked for, in bytes.
        size_bytes: u64,
        /// Bytes that are missing.
        missing_bytes: u64,
        /// The smallest size that would do, in bytes; `None` when it could not be found.
        needed_bytes: Option<u64>,
    },
    /// The inode count that was asked for is too small.
    TooFewInodes {
        /// Inodes there would be.
        available: u64,
        /// Inodes the tree needs, reserved ones included.
        needed: u64,
    },
    /// One file cannot be stored.
    File {
        /// Path in the image.
        path: String,
        /// Why, with numbers and what to change.
        why: String,
    },
    /// The target of a symbolic link is longer than a block holds.
    TargetTooLong {
        /// Path of the link in the image.
        path: String,
        /// Length of the target in bytes.
        len: u64,
        /// Length of the longest target of such a link, in bytes.
        most: usize,
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// The source has something called `lost+found` in its root that is not a directory.
    LostFoundTaken,
    /// No size was found that leaves the headroom.
    NoSize {
        /// The last size tried, in bytes.
        tried_bytes: u64,
    },
    /// The base has blocks of another size, so none of them could stay.
    BaseBlockSize {
        /// Bytes of a block of the base.
        base_bytes: u32,
        /// Bytes of a block of the image.
        image_bytes: u32,
    },
    /// The system gave no random bytes for the UUID.
    Random(String),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Geometry(e) => e.fmt(f),
            PlanError::Tree(e) => e.fmt(f),
            PlanError::DoesNotFit { size_bytes, missing_bytes, needed_bytes } => {
                write!(
                    f,
                    "the contents do not fit into {size_bytes} bytes: {missing_bytes} bytes are \
                     missing"
                )?;
                match needed_bytes {
                    Some(needed) => write!(f, "; a size of {needed} would do"),
                    None => Ok(()),
                }
            }
            PlanError::TooFewInodes { available, needed } => {
                write!(f, "the files need {needed} inodes and there would be only {available}")
            }
            PlanError::File { path, why } => write!(f, "\"{path}\" cannot be stored: {why}"),
            PlanError::TargetTooLong { path, len, most, block_bytes } => write!(
                f,
                "\"{path}\" cannot be stored: the symbolic link's target has {len} bytes; with blocks of \
                 {block_bytes} bytes at most {most} fit"
            ),
            PlanError::LostFoundTaken => {
                f.write_str("the source's \"lost+found\" is not a directory")
            }
            PlanError::NoSize { tried_bytes } => write!(
                f,
                "no size leaves the headroom that was asked for (tried up to {tried_bytes} bytes)"
            ),
            PlanError::BaseBlockSize { base_bytes, image_bytes } => write!(
                f,
                "the base has blocks of {base_bytes} bytes and the image would have blocks of \
                 {image_bytes}: nothing could stay where it is"
            ),
            PlanError::Random(why) => write!(f, "no random bytes for the UUID: {why}"),
        }
    }
}

impl std::error::Error for PlanError {}

impl From<GeometryError> for PlanError {
    fn from(e: GeometryError) -> PlanError {
        PlanError::Geometry(e)
    }
}

impl From<TreeError> for PlanError {
    fn from(e: TreeError) -> PlanError {
        PlanError::Tree(e)
    }
}
