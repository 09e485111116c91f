//! The superblock: size, layout, features and history of a file system, 1024 bytes at byte 1024.
//!
//! # Shape
//!
//! [`RawSuperblock`] is the record as stored, every field of e2fsprogs 1.47.4 by its kernel name.
//! [`Superblock`] is the decoded value: plain fields for everything a program computes with, and the
//! raw record for the rest. [`Superblock::encode`] writes the plain fields over the raw ones and
//! computes the checksum, so changing a plain field is enough.
//!
//! # Invariants of a decoded [`Superblock`]
//!
//! - S1. Block size 1 KiB to 64 KiB; cluster size is the block size, or with `bigalloc` a power of
//!   two from the block size to 512 MiB.
//! - S2. A group has at most `8 * block size` clusters and inodes, so its bitmaps fit a block each.
//! - S3. `inodes_count == inodes_per_group * group_count`, and `group_count` is the number of
//!   groups that the blocks from `first_data_block` fill, the last one perhaps in part.
//! - S4. `inode_size` is a power of two, 128 up to the block size; `desc_size` is 32 without
//!   `64bit`, else a power of two of 64 to 1024.
//!
//! S1 to S4 are what every computation of an address relies on. Free counts are not checked: they
//! are advice, and wrong after a crash.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/super.rst`; fields after `s_orphan_file_inum`:
//! `struct ext4_super_block` of Linux 6.18. Checks: what `e2fsck` and the kernel refuse.

mod raw;
mod verify;

pub use raw::RawSuperblock;

use extant_base::{BlockSize, FsBlock, GroupIndex, Ino};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::{CRC32C_INIT, crc32c, fs_seed_from_uuid};
use crate::error::{ChecksumError, LengthError};
use crate::features::{
    DefaultHash, DefaultMountOpts, Encoding, EncodingFlags, ErrorsPolicy, Features, Incompat,
    RoCompat, State, SuperFlags,
};

/// Where the primary superblock starts, in bytes from the start of the device, whatever the block
/// size.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// Length of the record in bytes.
pub const SUPERBLOCK_BYTES: usize = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xef53;
/// `s_checksum_type` of crc32c, the only one in use.
pub const CHECKSUM_TYPE_CRC32C: u8 = 1;
/// Inode size of revision 0.
pub const OLD_INODE_SIZE: u16 = 128;
/// Value of `s_creator_os` for the Hurd, which keeps other things in some fields of inodes.
pub const OS_HURD: u32 = 1;
/// First ordinary inode of revision 0.
pub const OLD_FIRST_INO: u32 = 11;

/// The reason why 1024 bytes are not the superblock of a file system that can be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// Fewer than 1024 bytes.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// The bytes are no superblock of ext2, ext3 or ext4.
    #[error("superblock: magic is {found:#06x}, not 0xef53: no ext2, ext3 or ext4 here")]
    Magic {
        /// The value found.
        found: u16,
    },
    /// The device holds an external journal. It has a superblock but no files.
    #[error(
        "this is an external journal of {blocks} blocks of {block_bytes} bytes, not a file system"
    )]
    JournalDevice {
        /// Length of the journal device in blocks.
        blocks: u64,
        /// The block size of the journal, in bytes.
        block_bytes: u32,
        /// UUID by which file systems name this journal.
        uuid: [u8; 16],
    },
    /// A revision above 1.
    #[error("superblock: revision {found} is newer than 1, the last one known")]
    Revision {
        /// The value found.
        found: u32,
    },
    /// `s_log_block_size` outside 0..=6.
    #[error("superblock: block size is 1024 << {log}, largest is 65536")]
    BlockSize {
        /// The value found.
        log: u32,
    },
    /// `s_log_cluster_size` disagrees with the block size or the `bigalloc` feature.
    #[error(
        "superblock: cluster size is 1024 << {cluster_log} with blocks of 1024 << {block_log} and bigalloc {bigalloc}"
    )]
    ClusterSize {
        /// The value found.
        cluster_log: u32,
        /// `s_log_block_size`.
        block_log: u32,
        /// Whether the feature is on.
        bigalloc: bool,
    },
    /// An inode size that is no power of two between 128 and the block size.
    #[error("superblock: inode size {found} is not a power of two from 128 to {block_bytes}")]
    InodeSize {
        /// The value found.
        found: u16,
        /// The block size.
        block_bytes: u32,
    },
    /// The mark that [`Superblock::encode_in_change`] leaves while inode tables change their places.
    #[error(
        "superblock: a change of the size of its inodes was cut off; `extant repair` (or `e2fsck -fy`) puts back inodes of {old} bytes"
    )]
    InodeSizeInChange {
        /// The inode size before the change.
        old: u16,
    },
    /// A descriptor size that is no power of two between 64 and 1024, with `64bit`.
    #[error("superblock: descriptor size {found} is not a power of two from 64 to 1024")]
    DescriptorSize {
        /// The value found.
        found: u16,
    },
    /// Blocks, clusters or inodes per group are 0 or more than the bitmap of a group holds.
    #[error("superblock: {field} is {found}, must be {rule} and {min}..={max}")]
    PerGroup {
        /// `s_blocks_per_group`, `s_clusters_per_group` or `s_inodes_per_group`.
        field: &'static str,
        /// The value found.
        found: u32,
        /// What it must be besides in range.
        rule: &'static str,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// `s_first_data_block` does not fit the block size.
    #[error("superblock: first data block is {found}, must be {expected}")]
    FirstDataBlock {
        /// The value found.
        found: u32,
        /// 1 for clusters of 1 KiB, else 0.
        expected: u32,
    },
    /// No blocks, or more than the format can number.
    #[error("superblock: {found} blocks, must be more than {first} and at most {max}")]
    BlockCount {
        /// The value found.
        found: u64,
        /// `s_first_data_block`.
        first: u32,
        /// Largest count.
        max: u64,
    },
    /// The inode count is not groups times inodes per group.
    #[error(
        "superblock: {found} inodes, but {groups} groups of {per_group} inodes make {expected}"
    )]
    InodeCount {
        /// `s_inodes_count`.
        found: u32,
        /// Number of groups, from the block count.
        groups: u64,
        /// `s_inodes_per_group`.
        per_group: u32,
        /// The product.
        expected: u64,
    },
    /// A count of a part is larger than the whole.
    #[error("superblock: {field} is {found}, more than {limit}")]
    TooLarge {
        /// The kernel name of the field.
        field: &'static str,
        /// The value found.
        found: u64,
        /// Largest value.
        limit: u64,
    },
    /// `metadata_csum` is on and the checksum type is not crc32c.
    #[error("superblock: checksum type {found} is unknown, only 1 (crc32c) is")]
    ChecksumType {
        /// The value found.
        found: u8,
    },
    /// Two features that exclude each other.
    #[error("superblock: features {one} and {other} exclude each other")]
    FeatureConflict {
        /// One of them.
        one: &'static str,
        /// The other.
        other: &'static str,
    },
    /// The checksum does not match.
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
}

/// A superblock that obeys S1 to S4 (see the module).
///
/// All counts are of what the name says; times are seconds since 1970 with 40 bits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// `s_inodes_count`.
    pub inodes_count: u32,
    /// Blocks of the file system, including those before `first_data_block`.
    pub blocks_count: u64,
    /// Blocks only root may use.
    pub reserved_blocks_count: u64,
    /// Free blocks, also with `bigalloc`, as last written; advice.
    pub free_blocks_count: u64,
    /// Free inodes, as last written; advice.
    pub free_inodes_count: u32,
    /// The block that holds the superblock: 1 with blocks of 1 KiB, else 0.
    pub first_data_block: u32,
    /// Block size.
    pub block_size: BlockSize,
    /// Cluster size as `s_log_cluster_size`: 1024 shifted left.
    pub log_cluster_size: u32,
    /// Blocks of each group but perhaps the last.
    pub blocks_per_group: u32,
    /// Clusters of each group but perhaps the last.
    pub clusters_per_group: u32,
    /// Inodes of each group.
    pub inodes_per_group: u32,
    /// Number of groups: derived, not stored.
    pub group_count: u32,
    /// When last mounted.
    pub mount_time: i64,
    /// When last written.
    pub write_time: i64,
    /// When made.
    pub mkfs_time: i64,
    /// When last checked.
    pub last_check: i64,
    /// Seconds between checks by time; 0: never.
    pub check_interval: u32,
    /// Mounts since the last check.
    pub mount_count: u16,
    /// Mounts after which to check; -1 (65535) or 0: never.
    pub max_mount_count: u16,
    /// Clean, with errors, and so on.
    pub state: State,
    /// What to do on damage.
    pub errors: ErrorsPolicy,
    /// 0: Linux.
    pub creator_os: u32,
    /// 0 or 1. Revision 0 has no feature words and inodes of 128 bytes.
    pub revision: u32,
    /// Owner who may use reserved blocks.
    pub reserved_uid: u32,
    /// Group that may use reserved blocks.
    pub reserved_gid: u32,
    /// First inode that is not reserved.
    pub first_inode: Ino,
    /// Bytes per inode record.
    pub inode_size: u16,
    /// The group that holds this copy.
    pub block_group: u16,
    /// All feature bits.
    pub features: Features,
    /// The file system's UUID.
    pub uuid: [u8; 16],
    /// Label, padded with zeroes; see [`Superblock::label`].
    pub volume_name: [u8; 16],
    /// Where it was mounted, padded with zeroes.
    pub last_mounted: [u8; 64],
    /// Descriptor blocks reserved in each group for growth.
    pub reserved_gdt_blocks: u16,
    /// Inode of the journal; 0: none.
    pub journal_inode: Ino,
    /// UUID of an external journal; zeroes: none.
    pub journal_uuid: [u8; 16],
    /// Device number of an external journal, as last seen.
    pub journal_device: u32,
    /// Head of the list of orphans; 0: none.
    pub last_orphan: u32,
    /// Seed of directory hashes, four numbers.
    pub hash_seed: [u32; 4],
    /// The salt for keys of encrypted files that are made of passphrases; zero before it is first
    /// asked for.
    pub encrypt_pw_salt: [u8; 16],
    /// Hash of new indexed directories.
    pub default_hash: DefaultHash,
    /// Bytes per group descriptor: 32, or with `64bit` 64 or more.
    pub desc_size: u16,
    /// Default mount options.
    pub default_mount_opts: DefaultMountOpts,
    /// First meta block group, with `meta_bg`.
    pub first_meta_bg: u32,
    /// Copy of the journal's block map (15 words), then high and low half of its size.
    pub journal_backup: [u32; 17],
    /// Every inode has at least so many bytes past byte 128.
    pub min_extra_isize: u16,
    /// New inodes get so many bytes past byte 128.
    pub want_extra_isize: u16,
    /// `s_flags`.
    pub flags: SuperFlags,
    /// RAID chunk in blocks; 0: unknown.
    pub raid_stride: u16,
    /// RAID stripe in blocks; 0: unknown.
    pub raid_stripe_width: u32,
    /// Seconds between updates of the multi-mount block.
    pub mmp_interval: u16,
    /// The multi-mount block.
    pub mmp_block: FsBlock,
    /// Groups per flex group as a power of two, with `flex_bg`.
    pub log_groups_per_flex: u8,
    /// 1 (crc32c) with `metadata_csum`.
    pub checksum_type: u8,
    /// KiB written over the file system's life.
    pub kbytes_written: u64,
    /// Inode of the user quota file; 0: none.
    pub user_quota_inode: Ino,
    /// Inode of the group quota file; 0: none.
    pub group_quota_inode: Ino,
    /// Inode of the project quota file; 0: none.
    pub project_quota_inode: Ino,
    /// Clusters used by metadata; 0: to be computed.
    pub overhead_clusters: u32,
    /// Groups with superblock backups, with `sparse_super2`; 0: none.
    pub backup_groups: [u32; 2],
    /// Inode of `lost+found`, when known; e2fsprogs writes 0.
    pub lost_found_inode: Ino,
    /// Seed of all crc32c, with `metadata_csum_seed`; see [`Superblock::checksum_seed`].
    pub stored_checksum_seed: u32,
    /// Character set of names, with `casefold`.
    pub encoding: Encoding,
    /// How strictly names follow it.
    pub encoding_flags: EncodingFlags,
    /// Inode of the orphan file, with `orphan_file`; 0: none.
    pub orphan_file_inode: Ino,
    /// Number of errors seen since the last check.
    pub error_count: u32,
    /// When the first of them was seen.
    pub first_error_time: i64,
    /// When the last of them was seen.
    pub last_error_time: i64,
    /// Every stored byte, for fields without a plain twin and for encoding.
    pub raw: RawSuperblock,
}

/// A 40-bit time from its two fields. The low half is unsigned: superblock times never precede
/// 1970.
fn join_time(low: U32, high: u8) -> i64 {
    i64::from(low.get()) | (i64::from(high) << 32)
}

/// The two fields of a time. Seconds outside 0..2^40 are clamped: no such time can be stored.
fn split_time(seconds: i64) -> (U32, u8) {
    let [a, b, c, d, high, ..] = seconds.clamp(0, (1 << 40) - 1).to_le_bytes();
    (U32::from_bytes([a, b, c, d]), high)
}

/// A 64-bit count from its halves.
fn join64(low: U32, high: U32) -> u64 {
    u64::from(low.get()) | (u64::from(high.get()) << 32)
}

/// The low and high half of a 64-bit count.
fn split64(value: u64) -> (U32, U32) {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    (U32::from_bytes([a, b, c, d]), U32::from_bytes([e, f, g, h]))
}

/// A 32-bit number from two halves of 16 bits.
pub(crate) fn join32(low: U16, high: U16) -> u32 {
    u32::from(low.get()) | (u32::from(high.get()) << 16)
}

/// The low and high half of a 32-bit number.
pub(crate) fn split32(value: u32) -> (U16, U16) {
    let [a, b, c, d] = value.to_le_bytes();
    (U16::from_bytes([a, b]), U16::from_bytes([c, d]))
}

/// The bit of `s_inode_size` that is set while inode tables change their places; the low byte is the
/// logarithm of the size before.
const IN_CHANGE: u16 = 0x8000;

/// The inode size before a change that is under way.
fn size_before_change(stored: u16) -> Option<u16> {
    let log = stored.checked_sub(IN_CHANGE)?;
    (7..=15).contains(&log).then(|| 1 << log)
}

impl Superblock {
    /// Decodes the first 1024 bytes of `bytes` and checks S1 to S4 and the checksum.
    ///
    /// Unknown feature bits are not an error here: compare [`Superblock::features`] with what the
    /// caller supports ([`Features::unsupported_for_reading`]).
    ///
    /// # Errors
    ///
    /// One variant of [`SuperblockError`] per rule; [`SuperblockError::JournalDevice`] for the
    /// device of an external journal, [`SuperblockError::Checksum`] last, so that any other answer
    /// means the record would be unusable with a right checksum too.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        let superblock = Superblock::decode_unverified(bytes)?;
        superblock.verify_checksum()?;
        Ok(superblock)
    }

    /// Like [`Superblock::decode`] without looking at the checksum, for repair and inspection.
    ///
    /// # Errors
    ///
    /// As [`Superblock::decode`], without [`SuperblockError::Checksum`].
    pub fn decode_unverified(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        let bytes = LengthError::prefix("superblock", bytes, SUPERBLOCK_BYTES)?;
        let raw = RawSuperblock::read_from_bytes(bytes).map_err(|_| LengthError {
            structure: "superblock",
            wanted: SUPERBLOCK_BYTES,
            found: bytes.len(),
        })?;
        verify::decode(&raw)
    }

    /// The record with all plain fields and the checksum put in.
    pub fn to_raw(&self) -> RawSuperblock {
        let mut raw = self.raw.clone();
        let wide = self.features.has_incompat(Incompat::SIXTY_FOUR_BIT);
        raw.s_inodes_count = U32::new(self.inodes_count);
        // Without `64bit` the high halves mean nothing and stay as they were found.
        let put = |low: &mut U32, high: &mut U32, value: u64| {
            let halves = split64(value);
            *low = halves.0;
            if wide {
                *high = halves.1;
            }
        };
        put(&mut raw.s_blocks_count_lo, &mut raw.s_blocks_count_hi, self.blocks_count);
        put(&mut raw.s_r_blocks_count_lo, &mut raw.s_r_blocks_count_hi, self.reserved_blocks_count);
        put(
            &mut raw.s_free_blocks_count_lo,
            &mut raw.s_free_blocks_count_hi,
            self.free_blocks_count,
        );
        raw.s_free_inodes_count = U32::new(self.free_inodes_count);
        raw.s_first_data_block = U32::new(self.first_data_block);
        raw.s_log_block_size = U32::new(self.block_size.log2().saturating_sub(10));
        raw.s_log_cluster_size = U32::new(self.log_cluster_size);
        raw.s_blocks_per_group = U32::new(self.blocks_per_group);
        raw.s_clusters_per_group = U32::new(self.clusters_per_group);
        raw.s_inodes_per_group = U32::new(self.inodes_per_group);
        (raw.s_mtime, raw.s_mtime_hi) = split_time(self.mount_time);
        (raw.s_wtime, raw.s_wtime_hi) = split_time(self.write_time);
        (raw.s_mkfs_time, raw.s_mkfs_time_hi) = split_time(self.mkfs_time);
        (raw.s_lastcheck, raw.s_lastcheck_hi) = split_time(self.last_check);
        (raw.s_first_error_time, raw.s_first_error_time_hi) = split_time(self.first_error_time);
        (raw.s_last_error_time, raw.s_last_error_time_hi) = split_time(self.last_error_time);
        raw.s_checkinterval = U32::new(self.check_interval);
        raw.s_mnt_count = U16::new(self.mount_count);
        raw.s_max_mnt_count = U16::new(self.max_mount_count);
        raw.s_state = U16::new(self.state.bits());
        raw.s_errors = U16::new(self.errors.to_raw());
        raw.s_creator_os = U32::new(self.creator_os);
        raw.s_rev_level = U32::new(self.revision);
        (raw.s_def_resuid, raw.s_def_resuid_hi) = split32(self.reserved_uid);
        (raw.s_def_resgid, raw.s_def_resgid_hi) = split32(self.reserved_gid);
        if self.revision > 0 {
            raw.s_first_ino = U32::new(self.first_inode.0);
            raw.s_inode_size = U16::new(self.inode_size);
            raw.s_feature_compat = U32::new(self.features.compat.bits());
            raw.s_feature_incompat = U32::new(self.features.incompat.bits());
            raw.s_feature_ro_compat = U32::new(self.features.ro_compat.bits());
        }
        raw.s_block_group_nr = U16::new(self.block_group);
        raw.s_uuid = self.uuid;
        raw.s_volume_name = self.volume_name;
        raw.s_last_mounted = self.last_mounted;
        raw.s_reserved_gdt_blocks = U16::new(self.reserved_gdt_blocks);
        raw.s_journal_inum = U32::new(self.journal_inode.0);
        raw.s_journal_uuid = self.journal_uuid;
        raw.s_journal_dev = U32::new(self.journal_device);
        raw.s_last_orphan = U32::new(self.last_orphan);
        raw.s_hash_seed = self.hash_seed.map(U32::new);
        raw.s_encrypt_pw_salt = self.encrypt_pw_salt;
        raw.s_def_hash_version = self.default_hash.to_raw();
        if wide {
            raw.s_desc_size = U16::new(self.desc_size);
        }
        raw.s_default_mount_opts = U32::new(self.default_mount_opts.bits());
        raw.s_first_meta_bg = U32::new(self.first_meta_bg);
        raw.s_jnl_blocks = self.journal_backup.map(U32::new);
        raw.s_min_extra_isize = U16::new(self.min_extra_isize);
        raw.s_want_extra_isize = U16::new(self.want_extra_isize);
        raw.s_flags = U32::new(self.flags.bits());
        raw.s_raid_stride = U16::new(self.raid_stride);
        raw.s_raid_stripe_width = U32::new(self.raid_stripe_width);
        raw.s_mmp_interval = U16::new(self.mmp_interval);
        raw.s_mmp_block = U64::new(self.mmp_block.0);
        raw.s_log_groups_per_flex = self.log_groups_per_flex;
        raw.s_checksum_type = self.checksum_type;
        raw.s_kbytes_written = U64::new(self.kbytes_written);
        raw.s_usr_quota_inum = U32::new(self.user_quota_inode.0);
        raw.s_grp_quota_inum = U32::new(self.group_quota_inode.0);
        raw.s_prj_quota_inum = U32::new(self.project_quota_inode.0);
        raw.s_overhead_clusters = U32::new(self.overhead_clusters);
        raw.s_backup_bgs = self.backup_groups.map(U32::new);
        raw.s_lpf_ino = U32::new(self.lost_found_inode.0);
        raw.s_checksum_seed = U32::new(self.stored_checksum_seed);
        raw.s_encoding = U16::new(self.encoding.to_raw());
        raw.s_encoding_flags = U16::new(self.encoding_flags.bits());
        raw.s_orphan_file_inum = U32::new(self.orphan_file_inode.0);
        raw.s_error_count = U32::new(self.error_count);
        if self.features.metadata_csum() {
            raw.s_checksum = U32::new(raw.checksum());
        }
        raw
    }

    /// The 1024 bytes to store, with the right checksum.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes.copy_from_slice(self.to_raw().as_bytes());
        bytes
    }

    /// The 1024 bytes to store while inode tables change their places: an inode size that nobody accepts,
    /// from which [`Superblock::decode_in_change`] knows the one before.
    ///
    /// Linux refuses to mount it, and e2fsck takes a backup instead, which is to be of before the change.
    pub fn encode_in_change(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut raw = self.to_raw();
        let log = split32(self.inode_size.checked_ilog2().unwrap_or_default()).0.get();
        raw.s_rev_level = U32::new(self.revision.max(1));
        raw.s_inode_size = U16::new(IN_CHANGE | log);
        if self.features.metadata_csum() {
            raw.s_checksum = U32::new(raw.checksum());
        }
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The superblock before a change that [`Superblock::encode_in_change`] began; `None`: these bytes are
    /// of no such change, or damaged.
    pub fn decode_in_change(bytes: &[u8]) -> Option<Superblock> {
        let mut raw = RawSuperblock::read_from_bytes(bytes.get(..SUPERBLOCK_BYTES)?).ok()?;
        let old = size_before_change(raw.s_inode_size.get())?;
        let stored = raw.s_checksum.get();
        let is_right = stored == raw.checksum();
        raw.s_inode_size = U16::new(old);
        let mut sb = verify::decode(&raw).ok()?;
        if sb.features.metadata_csum() {
            if !is_right {
                return None;
            }
            sb.raw.s_checksum = U32::new(raw.checksum());
        }
        Some(sb)
    }

    /// The 1024 bytes of the backup in `group`: the same, with its own group number.
    pub fn encode_backup(&self, group: GroupIndex) -> [u8; SUPERBLOCK_BYTES] {
        let mut copy = self.clone();
        // The field has 16 bits and is advice; e2fsprogs lets it wrap as well.
        copy.block_group = split32(group.0).0.get();
        copy.encode()
    }

    /// Checks that the stored checksum fits; without `metadata_csum` it always does.
    ///
    /// # Errors
    ///
    /// [`ChecksumError`] with both values.
    pub fn verify_checksum(&self) -> Result<(), ChecksumError> {
        if !self.features.metadata_csum() {
            return Ok(());
        }
        ChecksumError::check("superblock", self.raw.s_checksum.get(), self.raw.checksum())
    }

    /// The seed of every crc32c but the superblock's own.
    pub fn checksum_seed(&self) -> u32 {
        if self.features.has_incompat(Incompat::CSUM_SEED) {
            self.stored_checksum_seed
        } else {
            fs_seed_from_uuid(&self.uuid)
        }
    }

    /// Blocks per cluster, a power of two; 1 without `bigalloc`.
    pub fn cluster_ratio(&self) -> u32 {
        1u32.checked_shl(self.cluster_bits()).unwrap_or(1)
    }

    /// Base-2 logarithm of [`Superblock::cluster_ratio`].
    pub fn cluster_bits(&self) -> u32 {
        self.log_cluster_size.saturating_add(10).saturating_sub(self.block_size.log2())
    }

    /// Bytes per cluster.
    pub fn cluster_bytes(&self) -> u64 {
        1024u64.checked_shl(self.log_cluster_size).unwrap_or(u64::MAX)
    }

    /// The first block of `group`; `None` when there is no such group.
    pub fn group_first_block(&self, group: GroupIndex) -> Option<FsBlock> {
        if group.0 >= self.group_count {
            return None;
        }
        u64::from(group.0)
            .checked_mul(u64::from(self.blocks_per_group))?
            .checked_add(u64::from(self.first_data_block))
            .map(FsBlock)
    }

    /// Returns how many blocks `group` has: all but the last have `blocks_per_group`. 0 when there
    /// is no such group.
    pub fn group_blocks(&self, group: GroupIndex) -> u32 {
        let Some(first) = self.group_first_block(group) else { return 0 };
        let left = self.blocks_count.saturating_sub(first.0);
        u32::try_from(left.min(u64::from(self.blocks_per_group))).unwrap_or(self.blocks_per_group)
    }

    /// Returns how many clusters `group` has, the last perhaps in part.
    pub fn group_clusters(&self, group: GroupIndex) -> u32 {
        self.group_blocks(group).div_ceil(self.cluster_ratio().max(1))
    }

    /// The group of a block and its number within that group; `None` before the first data block
    /// or past the end.
    pub fn group_of_block(&self, block: FsBlock) -> Option<(GroupIndex, u32)> {
        if block.0 >= self.blocks_count {
            return None;
        }
        let from_first = block.0.checked_sub(u64::from(self.first_data_block))?;
        let per_group = u64::from(self.blocks_per_group);
        let group = u32::try_from(from_first.checked_div(per_group)?).ok()?;
        let within = u32::try_from(from_first.checked_rem(per_group)?).ok()?;
        Some((GroupIndex(group), within))
    }

    /// The group of an inode and its number within that group's table; `None` for inode 0 and past
    /// the last.
    pub fn group_of_inode(&self, ino: Ino) -> Option<(GroupIndex, u32)> {
        if ino.0 > self.inodes_count {
            return None;
        }
        let from_first = ino.0.checked_sub(1)?;
        let group = from_first.checked_div(self.inodes_per_group)?;
        Some((GroupIndex(group), from_first.checked_rem(self.inodes_per_group)?))
    }

    /// Blocks of one group's inode table.
    pub fn inode_table_blocks(&self) -> u32 {
        let bytes = u64::from(self.inodes_per_group).saturating_mul(u64::from(self.inode_size));
        u32::try_from(self.block_size.blocks_for(bytes)).unwrap_or(u32::MAX)
    }

    /// Group descriptors in one block.
    pub fn descriptors_per_block(&self) -> u32 {
        self.block_size.bytes().checked_div(u32::from(self.desc_size)).unwrap_or(1).max(1)
    }

    /// Blocks that all group descriptors fill.
    pub fn descriptor_blocks(&self) -> u32 {
        self.group_count.div_ceil(self.descriptors_per_block())
    }

    /// Groups per flex group; 1 without `flex_bg` or when the logarithm makes no sense.
    pub fn groups_per_flex(&self) -> u32 {
        if !self.features.has_incompat(Incompat::FLEX_BG) {
            return 1;
        }
        1u32.checked_shl(u32::from(self.log_groups_per_flex)).unwrap_or(1)
    }

    /// The label, without the padding.
    pub fn label(&self) -> &[u8] {
        until_zero(&self.volume_name)
    }

    /// Returns where it was last mounted, without the padding.
    pub fn last_mounted_path(&self) -> &[u8] {
        until_zero(&self.last_mounted)
    }

    /// Returns whether blocks are allocated in clusters.
    pub fn bigalloc(&self) -> bool {
        self.features.has_ro_compat(RoCompat::BIGALLOC)
    }
}

/// The bytes before the first zero.
pub(crate) fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(bytes)
}

impl RawSuperblock {
    /// crc32c of everything before `s_checksum`. Seeded with all ones, whatever the features: the
    /// seed itself lies in this record.
    pub fn checksum(&self) -> u32 {
        let covered = self.as_bytes().get(..SUPERBLOCK_BYTES.saturating_sub(4)).unwrap_or(&[]);
        crc32c(CRC32C_INIT, covered)
    }
}

#[cfg(test)]
mod tests;
