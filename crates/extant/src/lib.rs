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
//! `extant-iomap` caches file contents, `extant-block` is devices. Above: the command, the image
//! builder and front ends, which translate requests; the semantics of ext4 are implemented here.
//!
//! # Floors
//!
//! Each module uses only modules on lines below its own; `cargo run -p xtask -- tidy` checks this.
//!
//! ```text
//! ring                                    asynchronous operations, done at once or by a worker
//! mount path                              opening, recovering, ending; paths as in std::fs, File, Walk
//! front freeze fc_apply                   calls for FUSE and similar front ends; freezing; applying fast commits
//! namei admin upkeep grow                 names; settings, limits, totals; syncs and periodic work; more room
//! near                                    images that are far away: what is fetched before it is read
//! file                                    contents of files: written, synced, allocated, mapped
//! read                                    uncached contents, targets of links
//! dir change trim                         directories; the frame of every change; discarding free space
//! delete inline access                    deleting inodes; data inside inodes; permissions
//! crypt verify                            encrypted inodes: the cipher of each; sealed files: checks of what is read
//! xattr                                   attributes, access control lists
//! map                                     the map from file blocks to device blocks
//! inode                                   handles
//! view                                    one version of an inode
//! txn                                     transactions: allocation, quotas and counters of one change
//! fs                                      an open file system: a volume, and its writer if it has one
//! writer                                  the writing side of a mount: the state of the next lines
//! orphan                                  inodes to be deleted or truncated after a crash
//! quota                                   usage and limits of owners
//! alloc supers shared_blocks              free blocks and inodes, promises; superblock; attribute blocks
//! editor                                  an open handle of the journal: blocks and inodes are changed through it
//! volume log dentry                       device, geometry, caches; journal and clock; cache of names
//! fast                                    what changed since the last commit
//! logged                                  contents of files in the journal
//! node slot mmp attempt                   inodes and metadata blocks in memory; multi-mount protection; refused attempts
//! shared_cache freeze_gate keyring seal   one page cache for several mounts; the gate for changes; master keys; seals
//! progress                                progress of opening an image
//! error                                   errors and their errno
//! extent_node zones cache                 decoded nodes; blocks of metadata; LRU cache
//! limits run casefold image_path sparse   limits; runs of blocks; case folding; types of paths; sparse arrays
//! times device                            rules of access times and of times kept in memory; what a device needs
//! ```
//!
//! The methods of [`Fs`] and [`Inode`] are in the modules of their subjects, so both types have
//! many `impl` blocks. The tool does not see that a call of such a method uses its module. Three
//! such uses go up on purpose: an attribute's value may be in an inode of its own, which is read
//! (`xattr` to `read`) and deleted like other inodes (`xattr` to `delete`); and a quota file grows
//! by its map (`quota::Grow`).
//!
//! # Log
//!
//! Events that no caller may learn of are logged with the crate [`log`](https://docs.rs/log), with
//! the target `extant` and the name of the device in front: mounts and what they replayed or
//! deleted (info), failed writeback (warn), damage and an aborted journal (error). Of events that
//! may repeat, the first, second, fourth, eighth … are logged. A logger may be called with locks of
//! the mount held, so it must not use the file system.
//!
//! # Features
//!
//! Both Cargo features are on by default.
//!
//! - `casefold`: case-insensitive directories, which need the tables of Unicode. Without it, an
//!   image with the feature `casefold` is refused with an error that names the feature.
//! - `partition`: the module `partition`, which finds the file systems of a disk in its GPT or MBR.
//!
//! # Promises
//!
//! - A read-only mount writes nothing. An image that was not unmounted is shown as it would be
//!   after a replay of its journal, fast commits included.
//! - On a writable mount each change of names, attributes and sizes survives a crash as a whole or
//!   not at all, synced data is there, and no file ever shows bytes of other files.
//! - Images are hostile: nothing in one makes this crate panic, loop without bound, or take memory
//!   beyond its cache and a small multiple of what the caller asked for.
//! - Damage is local: intact structures stay readable, and every error names the damaged structure,
//!   the inode and the block.
//! - [`Fs`] is `Send + Sync`, cheap to clone, and every method takes `&self`.
#![forbid(unsafe_code)]

mod access;
mod admin;
mod alloc;
mod attempt;
mod cache;
mod casefold;
mod change;
mod crypt;
mod delete;
mod dentry;
pub mod device;
mod dir;
mod editor;
mod error;
mod extent_node;
mod fast;
mod fc_apply;
mod file;
mod freeze;
mod freeze_gate;
mod front;
mod fs;
mod grow;
mod image_path;
mod inline;
mod inode;
mod keyring;
mod limits;
mod log;
mod logged;
mod map;
mod mmp;
mod mount;
mod namei;
mod near;
mod node;
mod orphan;
mod path;
mod progress;
mod quota;
mod read;
pub mod ring;
mod run;
mod seal;
mod shared_blocks;
mod shared_cache;
mod slot;
mod sparse;
mod supers;
#[cfg(test)]
mod test_images;
mod times;
mod trim;
mod txn;
mod upkeep;
mod verify;
mod view;
mod volume;
mod writer;
mod xattr;
mod zones;

pub use access::{Access, Credentials};
pub use admin::Statfs;
pub use alloc::AllocatorStats;
pub use alloc::SpaceFor;
pub use attempt::{Attempt, AttemptStats, WaitReason, WouldWait};
pub use crypt::KeyUse;
pub use dir::{DirEntry, ReadDir};
pub use error::{
    ErrorCode, Family, Fault, FsError, GrowRefused, MountError, MountErrorKind, PathPart, Result,
};
#[cfg(feature = "casefold")]
pub use extant_format::fold::fold_name;
pub use file::{
    AtomicUnits, Defragmented, DirectAlignment, DirectDone, DirectFile, DirectKind, DirectQueue,
    DirectRequest, Fallocate, FiemapExtent, MappedFile, Pieces, VerityOptions, WriteBy,
};
pub use freeze::Frozen;
pub use front::Shutdown;
pub use fs::Fs;
pub use grow::{GrowTo, Grown, GrownSize};
pub use image_path::ImagePath;
pub use inode::Inode;
pub use keyring::KeyStatus;
pub use limits::{NAME_MAX, SYMLINKS_MAX};
pub use map::{MapIter, Mapping, MappingKind};
pub use mount::{MountOptions, Probe, Recovered};
pub use namei::{NewInode, RenameFlags, SetAttributes, Special, TimeChange};
pub use node::{Metadata, NodeStats};
pub use orphan::OrphanSummary;
pub use path::{DEPTH_MAX, File, OpenOptions, SyncMode, Walk, WalkEntry, WalkError};
pub use progress::{MountProgress, MountStage};
pub use quota::QuotaLimits;
pub use shared_cache::SharedCache;
pub use supers::{MountErrors, Reserve, Tune};
pub use times::AccessRule;
pub use volume::ReplaySummary;
pub use writer::WriterStats;
pub use xattr::{AclKind, XATTRS_BYTES_MAX, Xattr, XattrMode};
pub use zones::Zone;

#[cfg(feature = "partition")]
pub use extant_block::partition;
pub use extant_block::{
    AlignedBuffer, BlockDevice, DeviceEngine, DeviceError, DeviceFault, Engine, EngineInfo,
    FileDevice, MemoryDevice, OpenError, OperationKind, QueueOptions, ReadRun, SharedDevice,
    WindowDevice, WriteRun,
};
pub use extant_crypt::{
    ContentsMode, IvKind, KeyFault, KeySpec, MasterKey, NamesMode, Policy as EncryptionPolicy,
};
pub use extant_iomap::{CacheError, CacheStats};
#[doc(hidden)]
pub use extant_jbd2::Mutations;
pub use extant_jbd2::{ExternalJournalError, JournalReadError, JournalStats, RecoveryError};
pub use extant_sync::{Clock, FixedClock, SystemClock};
pub use extant_verity::{
    Algorithm as VerityAlgorithm, Descriptor as VerityDescriptor, Hash as VerityHash,
};

pub use extant_base::{BlockSize, FileBlock, FsBlock, GroupIndex, Ino};
pub use extant_format::acl::Acl;
pub use extant_format::features::{DefaultMountOpts, ErrorsPolicy, Features};
pub use extant_format::group::GroupDescriptor;
pub use extant_format::inode::{FileKind, Inode as InodeRecord, InodeFlags};
pub use extant_format::quota::{QuotaEntry, QuotaKind};
pub use extant_format::superblock::Superblock;
pub use extant_format::time::Timestamp;
