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
//! # Floors
//!
//! Each module uses only those on lines below its own; `cargo run -p xtask -- tidy` computes it.
//!
//! ```text
//! ring                                    operations that are submitted: done at once, or by a worker
//! mount path                              opening, recovering, ending; paths as in std::fs, File, Walk
//! front freeze fc_apply                   what a mount needs beyond that; standing still; what fast commits say
//! namei admin upkeep                      names; settings, limits, totals; syncs and what is due
//! file                                    contents of files: written, synced, allocated, mapped
//! read                                    contents as they are, targets of links
//! dir change trim                         directories; what surrounds every change; free space told to the device
//! delete size access                      what has no name; sizes, data inside inodes; who may do what
//! xattr                                   attributes, access control lists
//! map                                     which blocks hold which part of a file
//! inode                                   handles
//! txn                                     one change, whole or not at all: allocated, charged, counted
//! fs                                      an open file system: a volume, and its writer if it has one
//! writer                                  what a writable mount has besides: all that the next lines keep
//! orphan                                  what a crash must not leave behind
//! alloc quota supers shared_blocks        free blocks and inodes, promises; who pays; superblock; attribute blocks
//! editor                                  an open handle of the journal: blocks and inodes are changed through it
//! volume log dentry                       device, geometry, caches; journal and clock; names found lately
//! node slot mmp attempt                   an inode, a metadata block in memory; other hosts; what would have waited
//! shared_cache freeze_gate                one page cache for several mounts; the way in for changes
//! error                                   what can go wrong, and its errno
//! extent_node zones cache sparse          decoded nodes; blocks of no file; least recently used; long arrays
//! limits run casefold image_path          numbers; blocks in a row; names whatever their case; paths of all kinds
//! ```
//!
//! [`Fs`] and [`Inode`] have their methods where their subjects are: `impl` blocks stand in many modules. The tool does not
//! see that a call of such a method is a use of its module. Three go up, and are meant: a value of an attribute may be the
//! contents of an inode of its own, which are read (`xattr` to `read`) and which ends like other inodes (`xattr` to
//! `delete`); and a quota file grows by its map (`quota::Grow`).
//!
//! # Log
//!
//! What nobody may be there to be told goes to the facade of the crate [`log`](https://docs.rs/log), with the target
//! `extant` and the name of the device in front: mounts and what they replayed or deleted (info), writeback that failed
//! (warn), damage and a journal that stopped (error). Of what may come any number of times every first, second, fourth,
//! eighth … is logged. A logger may be called with locks of the mount held, so it must not use the file system.
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
mod attempt;
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
mod freeze;
mod freeze_gate;
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
pub mod ring;
mod run;
mod shared_blocks;
mod shared_cache;
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
pub use alloc::AllocatorStats;
pub use alloc::SpaceFor;
pub use attempt::{Attempt, AttemptStats, WaitReason, WouldWait};
pub use casefold::fold_name;
pub use dir::{DirEntry, ReadDir};
pub use error::{ErrorCode, Family, Fault, FsError, PathPart, Result};
pub use file::{
    DirectAlignment, DirectDone, DirectFile, DirectKind, DirectQueue, DirectRequest, Fallocate,
    FiemapExtent, MappedFile, WriteBy,
};
pub use freeze::Frozen;
pub use front::{AccessRule, Shutdown};
pub use fs::Fs;
pub use image_path::ImagePath;
pub use inode::Inode;
pub use limits::{NAME_MAX, SYMLINKS_MAX};
pub use map::{MapIter, Mapping, MappingKind};
pub use mount::{MountOptions, Probe};
pub use namei::{NewInode, RenameFlags, SetAttributes, Special, TimeChange};
pub use node::{Metadata, NodeStats};
pub use orphan::OrphanSummary;
pub use path::{DEPTH_MAX, File, OpenOptions, SyncMode, Walk, WalkEntry, WalkError};
pub use quota::QuotaLimits;
pub use shared_cache::SharedCache;
pub use supers::{MountErrors, Reserve, Tune};
pub use volume::ReplaySummary;
pub use writer::WriterStats;
pub use xattr::{AclKind, XATTRS_BYTES_MAX, Xattr, XattrMode};
pub use zones::Zone;

pub use extant_block::{
    AlignedBuffer, BlockDevice, DeviceError, DeviceFault, Engine, FileDevice, MemoryDevice,
    OpenError, OperationKind, QueueOptions, SharedDevice, WindowDevice, partition,
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
