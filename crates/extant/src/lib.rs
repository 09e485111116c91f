//! ext4 in user space: open an image or a disk, walk it, read it, change it.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fs = extant::Fs::open_path("disk.img")?;
//! println!("{}", fs.read_to_string("/etc/os-release")?);
//! for entry in fs.read_dir("/var/log")? {
//!     let entry = entry?;
//!     let inode = entry.inode()?;
//!     println!("{:>12} {}", inode.size(), String::from_utf8_lossy(entry.name()));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Place
//!
//! Below: `extant-format` turns bytes into checked values, `extant-jbd2` is the journal,
//! `extant-iomap` caches contents of files, `extant-block` is devices. Above: the command, the image builder, front
//! ends. They translate requests; what ext4 means is decided here.
//!
//! # Shape
//!
//! ```text
//! path    std::fs-like: resolve, read, read_dir, metadata, walk, File
//! inode   handles: attributes, link targets     dir    list, look up
//! read    contents of files                     xattr  attributes, access control lists
//! file    writing contents, sizes, allocation   namei  create, link, rename, attributes, remove
//! access  who may do what                       front  what a mount needs beyond that
//! txn     one change, whole or not at all       alloc  free blocks and inodes, promises, pins
//! map     which blocks hold which part of a file
//! volume  blocks, group descriptors, caches     mount  superblock, features, journal
//! error   what can go wrong, and its errno
//! ```
//!
//! # Promises
//!
//! - A mount for reading writes nothing. An image that was not unmounted is shown as it would be
//!   after its journal is replayed, fast commits included.
//! - On a writable mount each change of names, attributes and sizes survives a crash whole or not at
//!   all, what was synced is there, and no file ever shows bytes that it does not own.
//! - Images are hostile: nothing in one makes this crate panic, loop without bound, or take memory
//!   beyond its cache and a small multiple of what the caller asked for.
//! - Damage is local. What is intact stays readable beside it, and every error names the
//!   structure, the inode and the block.
//! - [`Fs`] is `Send + Sync`, cheap to clone, and every method takes `&self`.
#![forbid(unsafe_code)]

mod access;
mod admin;
mod alloc;
mod cache;
mod casefold;
mod change;
mod delete;
mod dentry;
mod dir;
mod editor;
mod error;
mod extent_node;
mod fc_apply;
mod file;
mod front;
mod fs;
mod image_path;
mod inode;
mod limits;
mod log;
mod map;
mod mmp;
mod mount;
mod namei;
mod node;
mod orphan;
mod path;
mod quota;
mod read;
mod run;
mod shared_blocks;
mod size;
mod slot;
mod sparse;
mod supers;
#[cfg(test)]
mod test_images;
mod trim;
mod txn;
mod upkeep;
mod volume;
mod writer;
mod xattr;
mod zones;

pub use access::{Access, Credentials};
pub use admin::Statfs;
pub use alloc::SpaceFor;
pub use casefold::fold_name;
pub use dir::{DirEntry, ReadDir};
pub use error::{ErrorCode, Family, Fault, FsError, PathPart, Result};
pub use file::{Fallocate, FiemapExtent, MappedFile, WriteBy};
pub use front::{AccessRule, Shutdown};
pub use fs::Fs;
pub use image_path::ImagePath;
pub use inode::Inode;
pub use limits::{NAME_MAX, SYMLINKS_MAX};
pub use map::{MapIter, Mapping, MappingKind};
pub use mount::MountOptions;
pub use namei::{NewInode, RenameFlags, SetAttributes, Special, TimeChange};
pub use node::{Metadata, NodeStats};
pub use orphan::OrphanSummary;
pub use path::{DEPTH_MAX, File, OpenOptions, SyncMode, Walk, WalkEntry, WalkError};
pub use quota::QuotaLimits;
pub use supers::{MountErrors, Reserve, Tune};
pub use volume::ReplaySummary;
pub use writer::WriterStats;
pub use xattr::{AclKind, XATTRS_BYTES_MAX, Xattr, XattrMode};
pub use zones::Zone;

pub use extant_block::{
    BlockDevice, DeviceError, DeviceFault, FileDevice, MemoryDevice, OpenError, OperationKind,
    SharedDevice, WindowDevice, partition,
};
pub use extant_iomap::{CacheError, CacheStats};
#[doc(hidden)]
pub use extant_jbd2::Mutations;
pub use extant_jbd2::{ExternalJournalError, JournalReadError, JournalStats, RecoveryError};
pub use extant_sync::{Clock, FixedClock, SystemClock};

pub use extant_base::{BlockSize, FileBlock, FsBlock, GroupIndex, Ino};
pub use extant_format::acl::Acl;
pub use extant_format::features::{DefaultMountOpts, ErrorsPolicy, Features};
pub use extant_format::group::GroupDescriptor;
pub use extant_format::inode::{FileKind, Inode as InodeRecord, InodeFlags};
pub use extant_format::quota::{QuotaEntry, QuotaKind};
pub use extant_format::superblock::Superblock;
pub use extant_format::time::Timestamp;
