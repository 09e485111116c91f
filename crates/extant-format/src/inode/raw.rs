//! The inode as stored.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The part every inode has, as stored: 128 bytes, little-endian.
///
/// | offset | bytes | field | meaning |
/// |-------:|------:|-------|---------|
/// | `0x00` | 2 | `i_mode` | type and permissions |
/// | `0x02` | 2 | `i_uid` | owner, low half |
/// | `0x04` | 4 | `i_size_lo` | size, low half |
/// | `0x08` | 4 | `i_atime` | last read |
/// | `0x0c` | 4 | `i_ctime` | last change of the inode |
/// | `0x10` | 4 | `i_mtime` | last change of the contents |
/// | `0x14` | 4 | `i_dtime` | deletion, or next orphan |
/// | `0x18` | 2 | `i_gid` | group, low half |
/// | `0x1a` | 2 | `i_links_count` | hard links |
/// | `0x1c` | 4 | `i_blocks_lo` | space taken, low half |
/// | `0x20` | 4 | `i_flags` | [`InodeFlags`] |
/// | `0x24` | 4 | `i_version` | change counter, low half (`osd1`) |
/// | `0x28` | 60 | `i_block` | map, link target, inline data or device |
/// | `0x64` | 4 | `i_generation` | NFS generation |
/// | `0x68` | 4 | `i_file_acl_lo` | attribute block, low half |
/// | `0x6c` | 4 | `i_size_high` | size, high half |
/// | `0x70` | 4 | `i_obso_faddr` | obsolete |
/// | `0x74` | 2 | `i_blocks_high` | space taken, high half (`osd2` from here) |
/// | `0x76` | 2 | `i_file_acl_high` | attribute block, high half |
/// | `0x78` | 2 | `i_uid_high` | owner, high half |
/// | `0x7a` | 2 | `i_gid_high` | group, high half |
/// | `0x7c` | 2 | `i_checksum_lo` | crc32c, low half |
/// | `0x7e` | 2 | `i_reserved` | zero |
///
/// Source: Linux `Documentation/filesystems/ext4/inodes.rst`, `struct ext4_inode`.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Debug,
)]
#[repr(C)]
#[expect(missing_docs, reason = "the table above describes the fields")]
pub struct RawInode {
    pub i_mode: U16,
    pub i_uid: U16,
    pub i_size_lo: U32,
    pub i_atime: U32,
    pub i_ctime: U32,
    pub i_mtime: U32,
    pub i_dtime: U32,
    pub i_gid: U16,
    pub i_links_count: U16,
    pub i_blocks_lo: U32,
    pub i_flags: U32,
    pub i_version: U32,
    pub i_block: [u8; 60],
    pub i_generation: U32,
    pub i_file_acl_lo: U32,
    pub i_size_high: U32,
    pub i_obso_faddr: U32,
    pub i_blocks_high: U16,
    pub i_file_acl_high: U16,
    pub i_uid_high: U16,
    pub i_gid_high: U16,
    pub i_checksum_lo: U16,
    pub i_reserved: U16,
}

const _: () = assert!(size_of::<RawInode>() == 128);
const _: () = assert!(offset_of!(RawInode, i_links_count) == 0x1a);
const _: () = assert!(offset_of!(RawInode, i_block) == 0x28);
const _: () = assert!(offset_of!(RawInode, i_generation) == 0x64);
const _: () = assert!(offset_of!(RawInode, i_blocks_high) == 0x74);
const _: () = assert!(offset_of!(RawInode, i_checksum_lo) == 0x7c);

/// The extra fields known today, as stored from byte 128: 32 bytes.
///
/// | offset | bytes | field | meaning |
/// |-------:|------:|-------|---------|
/// | `0x80` | 2 | `i_extra_isize` | bytes of extra fields |
/// | `0x82` | 2 | `i_checksum_hi` | crc32c, high half |
/// | `0x84` | 4 | `i_ctime_extra` | epoch and nanoseconds |
/// | `0x88` | 4 | `i_mtime_extra` | epoch and nanoseconds |
/// | `0x8c` | 4 | `i_atime_extra` | epoch and nanoseconds |
/// | `0x90` | 4 | `i_crtime` | creation |
/// | `0x94` | 4 | `i_crtime_extra` | epoch and nanoseconds |
/// | `0x98` | 4 | `i_version_hi` | change counter, high half |
/// | `0x9c` | 4 | `i_projid` | project |
///
/// Source: Linux `Documentation/filesystems/ext4/inodes.rst`, `struct ext4_inode`.
#[derive(
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
)]
#[repr(C)]
#[expect(missing_docs, reason = "the table above describes the fields")]
pub struct RawInodeExtra {
    pub i_extra_isize: U16,
    pub i_checksum_hi: U16,
    pub i_ctime_extra: U32,
    pub i_mtime_extra: U32,
    pub i_atime_extra: U32,
    pub i_crtime: U32,
    pub i_crtime_extra: U32,
    pub i_version_hi: U32,
    pub i_projid: U32,
}

const _: () = assert!(size_of::<RawInodeExtra>() == 32);

/// The type of a file: the upper four bits of the mode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileKind {
    /// `S_IFIFO`, 0x1000.
    Fifo,
    /// `S_IFCHR`, 0x2000.
    CharDevice,
    /// `S_IFDIR`, 0x4000.
    Directory,
    /// `S_IFBLK`, 0x6000.
    BlockDevice,
    /// `S_IFREG`, 0x8000.
    Regular,
    /// `S_IFLNK`, 0xa000.
    Symlink,
    /// `S_IFSOCK`, 0xc000.
    Socket,
}

impl FileKind {
    /// From a mode; `None` for the nine values that mean nothing.
    pub fn from_mode(mode: u16) -> Option<FileKind> {
        match mode & 0xf000 {
            0x1000 => Some(FileKind::Fifo),
            0x2000 => Some(FileKind::CharDevice),
            0x4000 => Some(FileKind::Directory),
            0x6000 => Some(FileKind::BlockDevice),
            0x8000 => Some(FileKind::Regular),
            0xa000 => Some(FileKind::Symlink),
            0xc000 => Some(FileKind::Socket),
            _ => None,
        }
    }

    /// The bits of the mode.
    pub fn mode_bits(self) -> u16 {
        match self {
            FileKind::Fifo => 0x1000,
            FileKind::CharDevice => 0x2000,
            FileKind::Directory => 0x4000,
            FileKind::BlockDevice => 0x6000,
            FileKind::Regular => 0x8000,
            FileKind::Symlink => 0xa000,
            FileKind::Socket => 0xc000,
        }
    }
}

bitflags::bitflags! {
    /// `i_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct InodeFlags: u32 {
        /// Wipe on deletion (`s`); never implemented.
        const SECRM = 0x1;
        /// Keep for undeletion (`u`); never implemented.
        const UNRM = 0x2;
        /// Compressed (`c`); never merged.
        const COMPR = 0x4;
        /// Synchronous writes (`S`).
        const SYNC = 0x8;
        /// May not be changed (`i`).
        const IMMUTABLE = 0x10;
        /// May only grow (`a`).
        const APPEND = 0x20;
        /// Not backed up by dump (`d`).
        const NODUMP = 0x40;
        /// Reads do not change the access time (`A`).
        const NOATIME = 0x80;
        /// Compression: dirty.
        const DIRTY = 0x100;
        /// Compression: has compressed clusters.
        const COMPRBLK = 0x200;
        /// Compression: read raw.
        const NOCOMPR = 0x400;
        /// Encrypted (`E`).
        const ENCRYPT = 0x800;
        /// A directory with a hash index (`I`).
        const INDEX = 0x1000;
        /// AFS magic.
        const IMAGIC = 0x2000;
        /// Data goes through the journal (`j`).
        const JOURNAL_DATA = 0x4000;
        /// No tail merging (`t`).
        const NOTAIL = 0x8000;
        /// Synchronous directory changes (`D`).
        const DIRSYNC = 0x1_0000;
        /// Subdirectories are spread over groups (`T`).
        const TOPDIR = 0x2_0000;
        /// `i_blocks` counts blocks and not 512 bytes.
        const HUGE_FILE = 0x4_0000;
        /// Mapped by extents (`e`).
        const EXTENTS = 0x8_0000;
        /// Protected by fs-verity (`V`).
        const VERITY = 0x10_0000;
        /// Holds the value of a large attribute.
        const EA_INODE = 0x20_0000;
        /// Has blocks past its end; obsolete.
        const EOFBLOCKS = 0x40_0000;
        /// Snapshot.
        const SNAPFILE = 0x100_0000;
        /// Direct access to persistent memory (`x`).
        const DAX = 0x200_0000;
        /// Snapshot being deleted.
        const SNAPFILE_DELETED = 0x400_0000;
        /// Snapshot that was shrunk.
        const SNAPFILE_SHRUNK = 0x800_0000;
        /// Contents live in the inode (`N`).
        const INLINE_DATA = 0x1000_0000;
        /// New files take this directory's project (`P`).
        const PROJINHERIT = 0x2000_0000;
        /// Names ignore case (`F`).
        const CASEFOLD = 0x4000_0000;
        /// Reserved for the library of e2fsprogs.
        const RESERVED = 0x8000_0000;
        const _ = !0;
    }
}
