//! Inodes: everything about a file but its name and its contents.
//!
//! # Shape
//!
//! ```text
//! 0                        128            128 + i_extra_isize            inode_size
//! +------------------------+--------------+------------------------------+
//! | fields of ext2         | extra fields | attributes inside the inode  |
//! +------------------------+--------------+------------------------------+
//! ```
//!
//! [`RawInode`] is the first 128 bytes, [`RawInodeExtra`] the extra fields known today, 32 bytes.
//! An inode may have fewer of them: a field exists when it ends at or before `128 +
//! i_extra_isize`. [`Inode`] is the decoded value; absent fields have their neutral value and are
//! not written back. The attributes after the extra fields belong to [`crate::xattr`].
//!
//! # Invariants of a decoded [`Inode`]
//!
//! - I1. `extra_isize` is 0 or a multiple of 4 that fits the record.
//! - I2. `size` is below 2^63.
//!
//! The mode is not checked: an unused inode is all zeroes, and a reader of directories sees the
//! type anyway. [`Inode::kind`] is `None` for a type that does not exist.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/inodes.rst`, table `struct ext4_inode`; `checksums.rst`.

mod block;
mod device;
mod raw;

pub use block::InodesVerifier;
pub use device::{DeviceNumber, DeviceNumberError};
pub use raw::{FileKind, InodeFlags, RawInode, RawInodeExtra};

use core::mem::offset_of;

use extant_base::{BlockSize, FsBlock, Ino};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::{crc32c, inode_seed};
use crate::error::{ChecksumError, LengthError};
use crate::features::{Incompat, RoCompat};
use crate::le::{put, u16_at};
use crate::superblock::{OLD_INODE_SIZE, Superblock, join32, split32};
use crate::time::Timestamp;

/// Bytes of the part every inode has.
pub const BASE_BYTES: usize = 128;
/// Bytes of the extra fields known today.
pub const EXTRA_BYTES: u16 = 32;
/// Bytes of `i_block`.
pub const BLOCK_AREA_BYTES: usize = 60;
/// Most links of a file, and of a directory whose file system lacks `dir_nlink`; with it, a
/// directory that has so many says 1 (`EXT4_LINK_MAX`).
pub const LINKS_MAX: u32 = 65_000;

const CHECKSUM_LO: usize = offset_of!(RawInode, i_checksum_lo);
const CHECKSUM_HI: usize = BASE_BYTES + offset_of!(RawInodeExtra, i_checksum_hi);

/// The reason why a record is no inode, or an inode no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InodeError {
    /// Fewer bytes than an inode of this file system has.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// I1.
    #[error("inode: i_extra_isize is {found}, must be a multiple of 4 up to {max}")]
    ExtraSize {
        /// The value found.
        found: u16,
        /// What the record has room for.
        max: u16,
    },
    /// I2.
    #[error("inode: size {found:#x} is negative")]
    Size {
        /// The value found.
        found: u64,
    },
    /// A value has more bits than its field in this file system.
    #[error("inode: {field} is {value}, largest is {max}")]
    TooLarge {
        /// Which value.
        field: &'static str,
        /// The value.
        value: u64,
        /// Largest that can be stored.
        max: u64,
    },
    /// The checksum does not match.
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
}

/// The things that the meaning of an inode's bytes depends on. Taken from the superblock once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeLayout {
    /// Bytes per inode.
    pub inode_size: u16,
    /// Block size, the unit of `i_blocks` of huge files.
    pub block_size: BlockSize,
    /// `huge_file`: block counts have 48 bits.
    pub huge_file: bool,
    /// `large_dir`: directories have 64-bit sizes.
    pub large_dir: bool,
    /// `64bit`: attribute block numbers have 48 bits.
    pub wide: bool,
    /// The file system's checksum seed; `None` without `metadata_csum`.
    pub checksum_seed: Option<u32>,
}

impl InodeLayout {
    /// The layout in this file system.
    pub fn of(superblock: &Superblock) -> InodeLayout {
        let features = &superblock.features;
        InodeLayout {
            inode_size: superblock.inode_size,
            block_size: superblock.block_size,
            huge_file: features.has_ro_compat(RoCompat::HUGE_FILE),
            large_dir: features.has_incompat(Incompat::LARGEDIR),
            wide: features.has_incompat(Incompat::SIXTY_FOUR_BIT),
            checksum_seed: features.metadata_csum().then(|| superblock.checksum_seed()),
        }
    }

    /// Most extra bytes an inode has room for: 0 for inodes of 128 bytes.
    pub fn extra_max(&self) -> u16 {
        self.inode_size.saturating_sub(128)
    }

    /// The record: the first `inode_size` bytes.
    fn record<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], LengthError> {
        let wanted = usize::from(self.inode_size).max(BASE_BYTES);
        LengthError::prefix("inode", bytes, wanted)
    }
}

/// One inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Type (4 bits) and permissions (12 bits), as `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes. Directories without `large_dir` and other non-regular files: below 2^32.
    pub size: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Creation; `None` when the inode has no room for it.
    pub crtime: Option<Timestamp>,
    /// When deleted, or while on the orphan list the next orphan's number.
    pub dtime: u32,
    /// Hard links; 1 means "many" for directories with `dir_nlink`.
    pub links: u16,
    /// Space taken, in units of 512 bytes whatever the stored unit. Includes indirect, extent and
    /// attribute blocks.
    pub sectors: u64,
    /// Flags.
    pub flags: InodeFlags,
    /// NFS change counter; 32 bits when the inode has no room for the high half.
    pub version: u64,
    /// Map of the contents, symlink target, inline data or device number: see [`Inode::flags`].
    pub block: [u8; BLOCK_AREA_BYTES],
    /// NFS generation, part of the checksum seed of everything that belongs to the inode.
    pub generation: u32,
    /// The block with extended attributes; 0: none.
    pub file_acl: FsBlock,
    /// Project; 0 when the inode has no room for it.
    pub project: u32,
    /// Bytes of extra fields, 0..=`inode_size - 128`, a multiple of 4.
    pub extra_isize: u16,
}

impl Superblock {
    /// Extra bytes that new inodes get: those that are known, and more where the superblock asks for
    /// it (`s_want_extra_isize`, `s_min_extra_isize`, with the feature `extra_isize`) and that can be.
    pub fn new_extra_isize(&self) -> u16 {
        let room = self.inode_size.saturating_sub(OLD_INODE_SIZE);
        let known = EXTRA_BYTES.min(room);
        let asked = self.min_extra_isize.max(self.want_extra_isize);
        let can = self.features.has_ro_compat(RoCompat::EXTRA_ISIZE)
            && asked <= room
            && asked.is_multiple_of(4);
        if can { known.max(asked) } else { known }
    }
}

impl Inode {
    /// An inode that uses nothing: all zero, with as many extra fields as are known and fit.
    pub fn empty(layout: &InodeLayout) -> Inode {
        let extra_isize = layout.extra_max().min(EXTRA_BYTES);
        let room = extra_isize >= EXTRA_BYTES;
        Inode {
            mode: 0,
            uid: 0,
            gid: 0,
            size: 0,
            atime: Timestamp::default(),
            ctime: Timestamp::default(),
            mtime: Timestamp::default(),
            crtime: room.then(Timestamp::default),
            dtime: 0,
            links: 0,
            sectors: 0,
            flags: InodeFlags::empty(),
            version: 0,
            block: [0; BLOCK_AREA_BYTES],
            generation: 0,
            file_acl: FsBlock(0),
            project: 0,
            extra_isize,
        }
    }

    /// Decodes the first `layout.inode_size` bytes. The checksum is [`Inode::verify_checksum`]'s.
    ///
    /// # Errors
    ///
    /// [`InodeError::Length`], [`InodeError::ExtraSize`], [`InodeError::Size`].
    pub fn decode(layout: &InodeLayout, bytes: &[u8]) -> Result<Inode, InodeError> {
        let record = layout.record(bytes)?;
        let short = LengthError { structure: "inode", wanted: BASE_BYTES, found: bytes.len() };
        let (raw, rest) = RawInode::read_from_prefix(record).map_err(|_| short)?;
        let (extra, extra_isize) = decode_extra(layout, rest)?;
        let has = |end: usize| usize::from(extra_isize) >= end;
        let time =
            |low: U32, high: U32, end| Timestamp::decode(low.get(), has(end).then(|| high.get()));

        let flags = InodeFlags::from_bits_retain(raw.i_flags.get());
        let mode = raw.i_mode.get();
        let low_size = u64::from(raw.i_size_lo.get());
        let size = if wide_size(layout, mode) {
            low_size | (u64::from(raw.i_size_high.get()) << 32)
        } else {
            low_size
        };
        if size >> 63 != 0 {
            return Err(InodeError::Size { found: size });
        }
        let mut sectors = u64::from(raw.i_blocks_lo.get());
        if layout.huge_file {
            sectors |= u64::from(raw.i_blocks_high.get()) << 32;
            if flags.contains(InodeFlags::HUGE_FILE) {
                // At most 48 + 7 bits.
                sectors = sectors.checked_shl(sector_bits(layout)).unwrap_or(u64::MAX);
            }
        }
        let acl_high = if layout.wide { u64::from(raw.i_file_acl_high.get()) << 32 } else { 0 };
        let version_high = if has(VERSION_HI_END) { extra.i_version_hi.get() } else { 0 };
        Ok(Inode {
            mode,
            uid: join32(raw.i_uid, raw.i_uid_high),
            gid: join32(raw.i_gid, raw.i_gid_high),
            size,
            atime: time(raw.i_atime, extra.i_atime_extra, ATIME_END),
            ctime: time(raw.i_ctime, extra.i_ctime_extra, CTIME_END),
            mtime: time(raw.i_mtime, extra.i_mtime_extra, MTIME_END),
            crtime: has(CRTIME_END)
                .then(|| time(extra.i_crtime, extra.i_crtime_extra, CRTIME_EXTRA_END)),
            dtime: raw.i_dtime.get(),
            links: raw.i_links_count.get(),
            sectors,
            flags,
            version: u64::from(raw.i_version.get()) | (u64::from(version_high) << 32),
            block: raw.i_block,
            generation: raw.i_generation.get(),
            file_acl: FsBlock(u64::from(raw.i_file_acl_lo.get()) | acl_high),
            project: if has(PROJECT_END) { extra.i_projid.get() } else { 0 },
            extra_isize,
        })
    }

    /// Writes the inode and its checksum over the first `layout.inode_size` bytes of `bytes`.
    ///
    /// What the inode does not own keeps what `bytes` holds: attributes after the extra fields
    /// (covered by the checksum, so put them in before), obsolete fields, and high halves that this
    /// file system does not use. Start from zeroes for a new inode. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`InodeError::Length`]; [`InodeError::ExtraSize`] when `extra_isize` breaks I1;
    /// [`InodeError::TooLarge`] when a value does not fit its field: then `bytes` is unchanged.
    pub fn encode(
        &self,
        layout: &InodeLayout,
        ino: Ino,
        bytes: &mut [u8],
    ) -> Result<(), InodeError> {
        let wanted = usize::from(layout.inode_size).max(BASE_BYTES);
        let record = LengthError::prefix_mut("inode", bytes, wanted)?;
        check_extra(layout, self.extra_isize)?;
        let short = LengthError { structure: "inode", wanted, found: record.len() };
        let (mut raw, _) = RawInode::read_from_prefix(record).map_err(|_| short)?;
        self.encode_base(layout, &mut raw)?;
        put(record, 0, raw.as_bytes()).ok_or(short)?;
        if usize::from(layout.inode_size) > BASE_BYTES {
            let extra = self.encode_extra();
            // Only the fields this inode has; the length word itself always exists.
            let len = usize::from(self.extra_isize.min(EXTRA_BYTES)).max(2);
            let fields = extra.as_bytes().get(..len).unwrap_or(&[]);
            put(record, BASE_BYTES, fields).ok_or(short)?;
        }
        if let Some(seed) = layout.checksum_seed {
            let sum = checksum(layout, inode_seed(seed, ino, self.generation), record);
            let (low, high) = split32(sum);
            put(record, CHECKSUM_LO, low.as_bytes()).ok_or(short)?;
            if has_checksum_hi(layout, self.extra_isize) {
                put(record, CHECKSUM_HI, high.as_bytes()).ok_or(short)?;
            }
        }
        Ok(())
    }

    fn encode_base(&self, layout: &InodeLayout, raw: &mut RawInode) -> Result<(), InodeError> {
        let too_large = |field, value, max| Err(InodeError::TooLarge { field, value, max });
        let halves = |value: u64| {
            let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
            (U32::from_bytes([a, b, c, d]), U32::from_bytes([e, f, g, h]))
        };
        let wide = wide_size(layout, self.mode);
        let size_max = if wide { u64::MAX >> 1 } else { u64::from(u32::MAX) };
        if self.size > size_max {
            return too_large("size", self.size, size_max);
        }
        let unit_bits = match layout.huge_file && self.flags.contains(InodeFlags::HUGE_FILE) {
            true => sector_bits(layout),
            false => 0,
        };
        let blocks = self.sectors.checked_shr(unit_bits).unwrap_or(0);
        let blocks_max =
            if layout.huge_file { (1u64 << 48).saturating_sub(1) } else { size_max32() };
        if blocks > blocks_max || blocks.checked_shl(unit_bits) != Some(self.sectors) {
            let max = blocks_max.checked_shl(unit_bits).unwrap_or(u64::MAX);
            return too_large("sector count in its unit", self.sectors, max);
        }
        let acl_max = if layout.wide { (1u64 << 48).saturating_sub(1) } else { size_max32() };
        if self.file_acl.0 > acl_max {
            return too_large("attribute block", self.file_acl.0, acl_max);
        }

        raw.i_mode = U16::new(self.mode);
        (raw.i_uid, raw.i_uid_high) = split32(self.uid);
        (raw.i_gid, raw.i_gid_high) = split32(self.gid);
        let (size_low, size_high) = halves(self.size);
        raw.i_size_lo = size_low;
        if wide {
            raw.i_size_high = size_high;
        }
        let small = usize::from(self.extra_isize);
        let low = |time: Timestamp, end: usize| {
            U32::new(if small >= end { time.encode().0 } else { time.encode_small() })
        };
        raw.i_atime = low(self.atime, ATIME_END);
        raw.i_ctime = low(self.ctime, CTIME_END);
        raw.i_mtime = low(self.mtime, MTIME_END);
        raw.i_dtime = U32::new(self.dtime);
        raw.i_links_count = U16::new(self.links);
        let (blocks_low, blocks_high) = halves(blocks);
        raw.i_blocks_lo = blocks_low;
        if layout.huge_file {
            raw.i_blocks_high = split32(blocks_high.get()).0;
        }
        raw.i_flags = U32::new(self.flags.bits());
        raw.i_version = halves(self.version).0;
        raw.i_block = self.block;
        raw.i_generation = U32::new(self.generation);
        let (acl_low, acl_high) = halves(self.file_acl.0);
        raw.i_file_acl_lo = acl_low;
        if layout.wide {
            raw.i_file_acl_high = split32(acl_high.get()).0;
        }
        Ok(())
    }

    fn encode_extra(&self) -> RawInodeExtra {
        let extra = |time: Timestamp| U32::new(time.encode().1);
        let crtime = self.crtime.unwrap_or_default();
        let crtime_low = match usize::from(self.extra_isize) >= CRTIME_EXTRA_END {
            true => crtime.encode().0,
            false => crtime.encode_small(),
        };
        let [_, _, _, _, a, b, c, d] = self.version.to_le_bytes();
        RawInodeExtra {
            i_extra_isize: U16::new(self.extra_isize),
            i_checksum_hi: U16::ZERO,
            i_ctime_extra: extra(self.ctime),
            i_mtime_extra: extra(self.mtime),
            i_atime_extra: extra(self.atime),
            i_crtime: U32::new(crtime_low),
            i_crtime_extra: extra(crtime),
            i_version_hi: U32::from_bytes([a, b, c, d]),
            i_projid: U32::new(self.project),
        }
    }

    /// Puts the right checksum into a record whose other bytes stay as they are; does nothing without
    /// `metadata_csum`.
    ///
    /// # Errors
    ///
    /// [`InodeError::Length`] when `bytes` is shorter than a record.
    pub fn seal(layout: &InodeLayout, ino: Ino, bytes: &mut [u8]) -> Result<(), InodeError> {
        let Some(seed) = layout.checksum_seed else { return Ok(()) };
        let wanted = usize::from(layout.inode_size).max(BASE_BYTES);
        let record = LengthError::prefix_mut("inode", bytes, wanted)?;
        let short = LengthError { structure: "inode", wanted, found: record.len() };
        let generation = crate::le::u32_at(record, offset_of!(RawInode, i_generation)).unwrap_or(0);
        let extra = u16_at(record, BASE_BYTES).unwrap_or(0);
        let sum = checksum(layout, inode_seed(seed, ino, generation), record);
        let (low, high) = split32(sum);
        put(record, CHECKSUM_LO, low.as_bytes()).ok_or(short)?;
        if has_checksum_hi(layout, extra) {
            put(record, CHECKSUM_HI, high.as_bytes()).ok_or(short)?;
        }
        Ok(())
    }

    /// Checks the stored checksum of a record; `Ok` without `metadata_csum`.
    ///
    /// # Errors
    ///
    /// [`InodeError::Checksum`] with both values, [`InodeError::Length`].
    pub fn verify_checksum(layout: &InodeLayout, ino: Ino, bytes: &[u8]) -> Result<(), InodeError> {
        let Some(seed) = layout.checksum_seed else { return Ok(()) };
        let record = layout.record(bytes)?;
        let generation = crate::le::u32_at(record, offset_of!(RawInode, i_generation)).unwrap_or(0);
        let computed = checksum(layout, inode_seed(seed, ino, generation), record);
        let low = u32::from(u16_at(record, CHECKSUM_LO).unwrap_or(0));
        let extra = u16_at(record, BASE_BYTES).unwrap_or(0);
        if has_checksum_hi(layout, extra) {
            let high = u32::from(u16_at(record, CHECKSUM_HI).unwrap_or(0));
            ChecksumError::check("inode", low | (high << 16), computed)?;
        } else {
            ChecksumError::check("inode", low, computed & 0xffff)?;
        }
        Ok(())
    }

    /// The type of file; `None` for types that do not exist, among them 0 of unused inodes.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// Cuts the times to what this record can hold, so that they are now what they will be when
    /// they are read again.
    pub fn round_times(&mut self) {
        let room = usize::from(self.extra_isize);
        let round = |time: &mut Timestamp, end: usize| {
            *time = if room >= end {
                let (low, extra) = time.encode();
                Timestamp::decode(low, Some(extra))
            } else {
                Timestamp::decode(time.encode_small(), None)
            };
        };
        round(&mut self.atime, ATIME_END);
        round(&mut self.ctime, CTIME_END);
        round(&mut self.mtime, MTIME_END);
        if let Some(crtime) = &mut self.crtime {
            round(crtime, CRTIME_EXTRA_END);
        }
    }

    /// Permission bits with set-id and sticky bits: `0o7777`.
    pub fn permissions(&self) -> u16 {
        self.mode & 0o7777
    }

    /// The next orphan on the old list, which is threaded through `i_dtime`; `None` at its end.
    pub fn next_orphan(&self) -> Option<Ino> {
        (self.dtime != 0).then_some(Ino(self.dtime))
    }

    /// The device a character or block special file stands for; `None` for other files.
    pub fn device(&self) -> Option<DeviceNumber> {
        match self.kind()? {
            FileKind::CharDevice | FileKind::BlockDevice => Some(DeviceNumber::decode(&self.block)),
            _ => None,
        }
    }

    /// Sets the space taken and chooses the stored unit as the kernel does: 512 bytes as long as
    /// that fits, else blocks, marked by [`InodeFlags::HUGE_FILE`].
    ///
    /// # Errors
    ///
    /// [`InodeError::TooLarge`] when neither fits; the inode is unchanged.
    pub fn set_sectors(&mut self, layout: &InodeLayout, sectors: u64) -> Result<(), InodeError> {
        let max48 = (1u64 << 48).saturating_sub(1);
        let in_sectors = if layout.huge_file { max48 } else { size_max32() };
        let in_blocks = if layout.huge_file {
            max48.checked_shl(sector_bits(layout)).unwrap_or(u64::MAX)
        } else {
            in_sectors
        };
        if sectors > in_blocks {
            return Err(InodeError::TooLarge {
                field: "sector count",
                value: sectors,
                max: in_blocks,
            });
        }
        self.flags.set(InodeFlags::HUGE_FILE, sectors > in_sectors);
        self.sectors = sectors;
        Ok(())
    }

    /// A symlink whose target is in [`Inode::block`] and not in a block: shorter than 60 bytes, no
    /// extents, no inline data.
    pub fn is_fast_symlink(&self) -> bool {
        self.kind() == Some(FileKind::Symlink)
            && self.size < 60
            && !self.flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA)
    }
}

// Where each extra field ends, in bytes after byte 128.
const CTIME_END: usize = 8;
const MTIME_END: usize = 12;
const ATIME_END: usize = 16;
const CRTIME_END: usize = 20;
const CRTIME_EXTRA_END: usize = 24;
const VERSION_HI_END: usize = 28;
const PROJECT_END: usize = 32;
const _: () = assert!(CTIME_END == offset_of!(RawInodeExtra, i_ctime_extra) + 4);
const _: () = assert!(MTIME_END == offset_of!(RawInodeExtra, i_mtime_extra) + 4);
const _: () = assert!(ATIME_END == offset_of!(RawInodeExtra, i_atime_extra) + 4);
const _: () = assert!(CRTIME_END == offset_of!(RawInodeExtra, i_crtime) + 4);
const _: () = assert!(CRTIME_EXTRA_END == offset_of!(RawInodeExtra, i_crtime_extra) + 4);
const _: () = assert!(VERSION_HI_END == offset_of!(RawInodeExtra, i_version_hi) + 4);
const _: () = assert!(PROJECT_END == offset_of!(RawInodeExtra, i_projid) + 4);

/// 2^32 - 1.
fn size_max32() -> u64 {
    u64::from(u32::MAX)
}

/// Base-2 logarithm of sectors per block.
fn sector_bits(layout: &InodeLayout) -> u32 {
    layout.block_size.log2().saturating_sub(9)
}

/// Returns whether `i_size_high` counts: for regular files, and with `large_dir` for all.
fn wide_size(layout: &InodeLayout, mode: u16) -> bool {
    layout.large_dir || FileKind::from_mode(mode) == Some(FileKind::Regular)
}

/// I1.
fn check_extra(layout: &InodeLayout, found: u16) -> Result<(), InodeError> {
    let max = layout.extra_max();
    if found & 3 != 0 || found > max { Err(InodeError::ExtraSize { found, max }) } else { Ok(()) }
}

/// The extra fields, those that exist, from the bytes after the first 128.
fn decode_extra(layout: &InodeLayout, rest: &[u8]) -> Result<(RawInodeExtra, u16), InodeError> {
    let Some(extra_isize) = u16_at(rest, 0).filter(|_| layout.extra_max() > 0) else {
        return Ok((RawInodeExtra::default(), 0));
    };
    check_extra(layout, extra_isize)?;
    let mut extra = RawInodeExtra::default();
    let len = usize::from(extra_isize.min(EXTRA_BYTES));
    if let (Some(to), Some(from)) = (extra.as_mut_bytes().get_mut(..len), rest.get(..len)) {
        to.copy_from_slice(from);
    }
    Ok((extra, extra_isize))
}

/// Returns whether the high half of the checksum has room.
fn has_checksum_hi(layout: &InodeLayout, extra_isize: u16) -> bool {
    layout.extra_max() > 0 && extra_isize >= 4
}

/// Bytes of a record that are copied for its checksum: all of most.
const COPIED: usize = 256;

/// crc32c of a whole record, its own checksum fields counted as zeroes. `seed` is the inode's.
///
/// One call over a copy without these fields takes a third of the time of a call for each part
/// between them.
fn checksum(layout: &InodeLayout, seed: u32, record: &[u8]) -> u32 {
    let record = record.get(..usize::from(layout.inode_size)).unwrap_or(record);
    let (head, rest) = record.split_at(record.len().min(COPIED));
    let mut copy = [0; COPIED];
    let Some(copy) = copy.get_mut(..head.len()) else { return seed };
    copy.copy_from_slice(head);
    let extra = u16_at(record, BASE_BYTES).unwrap_or(0);
    let high = has_checksum_hi(layout, extra).then_some(CHECKSUM_HI);
    for field in [Some(CHECKSUM_LO), high].into_iter().flatten() {
        if let Some(field) = copy.get_mut(field..field.saturating_add(2)) {
            field.fill(0);
        }
    }
    let crc = crc32c(seed, copy);
    if rest.is_empty() { crc } else { crc32c(crc, rest) }
}

#[cfg(test)]
mod tests;
