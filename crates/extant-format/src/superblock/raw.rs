//! The superblock as stored.

use core::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The superblock as stored: 1024 bytes, little-endian.
///
/// | offset | bytes | field | meaning |
/// |-------:|------:|-------|---------|
/// | `0x000` | 4 | `s_inodes_count` | all inodes |
/// | `0x004` | 4 | `s_blocks_count_lo` | all blocks, low half |
/// | `0x008` | 4 | `s_r_blocks_count_lo` | blocks for root only, low half |
/// | `0x00c` | 4 | `s_free_blocks_count_lo` | free blocks, low half |
/// | `0x010` | 4 | `s_free_inodes_count` | free inodes |
/// | `0x014` | 4 | `s_first_data_block` | block of the superblock |
/// | `0x018` | 4 | `s_log_block_size` | block size: 1024 shifted left |
/// | `0x01c` | 4 | `s_log_cluster_size` | cluster size: 1024 shifted left |
/// | `0x020` | 4 | `s_blocks_per_group` | blocks per group |
/// | `0x024` | 4 | `s_clusters_per_group` | clusters per group |
/// | `0x028` | 4 | `s_inodes_per_group` | inodes per group |
/// | `0x02c` | 4 | `s_mtime` | last mount |
/// | `0x030` | 4 | `s_wtime` | last write |
/// | `0x034` | 2 | `s_mnt_count` | mounts since the last check |
/// | `0x036` | 2 | `s_max_mnt_count` | mounts before a check |
/// | `0x038` | 2 | `s_magic` | 0xef53 |
/// | `0x03a` | 2 | `s_state` | clean or not |
/// | `0x03c` | 2 | `s_errors` | what to do on errors |
/// | `0x03e` | 2 | `s_minor_rev_level` | minor revision |
/// | `0x040` | 4 | `s_lastcheck` | last check |
/// | `0x044` | 4 | `s_checkinterval` | seconds between checks |
/// | `0x048` | 4 | `s_creator_os` | 0: Linux |
/// | `0x04c` | 4 | `s_rev_level` | 0 or 1 |
/// | `0x050` | 2 | `s_def_resuid` | owner for reserved blocks, low half |
/// | `0x052` | 2 | `s_def_resgid` | group for reserved blocks, low half |
/// | `0x054` | 4 | `s_first_ino` | first ordinary inode |
/// | `0x058` | 2 | `s_inode_size` | bytes per inode |
/// | `0x05a` | 2 | `s_block_group_nr` | group of this copy |
/// | `0x05c` | 4 | `s_feature_compat` | compatible features |
/// | `0x060` | 4 | `s_feature_incompat` | incompatible features |
/// | `0x064` | 4 | `s_feature_ro_compat` | read-only compatible features |
/// | `0x068` | 16 | `s_uuid` | UUID |
/// | `0x078` | 16 | `s_volume_name` | label |
/// | `0x088` | 64 | `s_last_mounted` | where last mounted |
/// | `0x0c8` | 4 | `s_algorithm_usage_bitmap` | compression, unused |
/// | `0x0cc` | 1 | `s_prealloc_blocks` | unused hint |
/// | `0x0cd` | 1 | `s_prealloc_dir_blocks` | unused hint |
/// | `0x0ce` | 2 | `s_reserved_gdt_blocks` | descriptor blocks kept for growth |
/// | `0x0d0` | 16 | `s_journal_uuid` | UUID of an external journal |
/// | `0x0e0` | 4 | `s_journal_inum` | inode of the journal |
/// | `0x0e4` | 4 | `s_journal_dev` | device of an external journal |
/// | `0x0e8` | 4 | `s_last_orphan` | head of the orphan list |
/// | `0x0ec` | 16 | `s_hash_seed` | seed of directory hashes |
/// | `0x0fc` | 1 | `s_def_hash_version` | default directory hash |
/// | `0x0fd` | 1 | `s_jnl_backup_type` | 1: `s_jnl_blocks` is valid |
/// | `0x0fe` | 2 | `s_desc_size` | bytes per group descriptor |
/// | `0x100` | 4 | `s_default_mount_opts` | default mount options |
/// | `0x104` | 4 | `s_first_meta_bg` | first meta block group |
/// | `0x108` | 4 | `s_mkfs_time` | when made |
/// | `0x10c` | 68 | `s_jnl_blocks` | copy of the journal's map and size |
/// | `0x150` | 4 | `s_blocks_count_hi` | all blocks, high half |
/// | `0x154` | 4 | `s_r_blocks_count_hi` | blocks for root only, high half |
/// | `0x158` | 4 | `s_free_blocks_count_hi` | free blocks, high half |
/// | `0x15c` | 2 | `s_min_extra_isize` | least extra bytes of inodes |
/// | `0x15e` | 2 | `s_want_extra_isize` | extra bytes of new inodes |
/// | `0x160` | 4 | `s_flags` | signed or unsigned hash, test |
/// | `0x164` | 2 | `s_raid_stride` | RAID chunk in blocks |
/// | `0x166` | 2 | `s_mmp_interval` | seconds between multi-mount updates |
/// | `0x168` | 8 | `s_mmp_block` | multi-mount block |
/// | `0x170` | 4 | `s_raid_stripe_width` | RAID stripe in blocks |
/// | `0x174` | 1 | `s_log_groups_per_flex` | flex group size, power of two |
/// | `0x175` | 1 | `s_checksum_type` | 1: crc32c |
/// | `0x176` | 1 | `s_encryption_level` | version of the encryption scheme |
/// | `0x177` | 1 | `s_reserved_pad` | zero |
/// | `0x178` | 8 | `s_kbytes_written` | KiB written in total |
/// | `0x180` | 4 | `s_snapshot_inum` | snapshots, unused |
/// | `0x184` | 4 | `s_snapshot_id` | snapshots, unused |
/// | `0x188` | 8 | `s_snapshot_r_blocks_count` | snapshots, unused |
/// | `0x190` | 4 | `s_snapshot_list` | snapshots, unused |
/// | `0x194` | 4 | `s_error_count` | errors seen |
/// | `0x198` | 4 | `s_first_error_time` | first error: when |
/// | `0x19c` | 4 | `s_first_error_ino` | first error: inode |
/// | `0x1a0` | 8 | `s_first_error_block` | first error: block |
/// | `0x1a8` | 32 | `s_first_error_func` | first error: function |
/// | `0x1c8` | 4 | `s_first_error_line` | first error: line |
/// | `0x1cc` | 4 | `s_last_error_time` | last error: when |
/// | `0x1d0` | 4 | `s_last_error_ino` | last error: inode |
/// | `0x1d4` | 4 | `s_last_error_line` | last error: line |
/// | `0x1d8` | 8 | `s_last_error_block` | last error: block |
/// | `0x1e0` | 32 | `s_last_error_func` | last error: function |
/// | `0x200` | 64 | `s_mount_opts` | mount options as text |
/// | `0x240` | 4 | `s_usr_quota_inum` | user quota inode |
/// | `0x244` | 4 | `s_grp_quota_inum` | group quota inode |
/// | `0x248` | 4 | `s_overhead_clusters` | clusters of metadata |
/// | `0x24c` | 8 | `s_backup_bgs` | groups with backups (`sparse_super2`) |
/// | `0x254` | 4 | `s_encrypt_algos` | encryption algorithms |
/// | `0x258` | 16 | `s_encrypt_pw_salt` | salt for passphrases |
/// | `0x268` | 4 | `s_lpf_ino` | inode of lost+found |
/// | `0x26c` | 4 | `s_prj_quota_inum` | project quota inode |
/// | `0x270` | 4 | `s_checksum_seed` | seed of checksums |
/// | `0x274` | 1 | `s_wtime_hi` | bits 32..40 of `s_wtime` |
/// | `0x275` | 1 | `s_mtime_hi` | bits 32..40 of `s_mtime` |
/// | `0x276` | 1 | `s_mkfs_time_hi` | bits 32..40 of `s_mkfs_time` |
/// | `0x277` | 1 | `s_lastcheck_hi` | bits 32..40 of `s_lastcheck` |
/// | `0x278` | 1 | `s_first_error_time_hi` | bits 32..40 |
/// | `0x279` | 1 | `s_last_error_time_hi` | bits 32..40 |
/// | `0x27a` | 1 | `s_first_error_errcode` | first error: code |
/// | `0x27b` | 1 | `s_last_error_errcode` | last error: code |
/// | `0x27c` | 2 | `s_encoding` | character set of names |
/// | `0x27e` | 2 | `s_encoding_flags` | 1: strict |
/// | `0x280` | 4 | `s_orphan_file_inum` | inode of the orphan file |
/// | `0x284` | 2 | `s_def_resuid_hi` | owner for reserved blocks, high half |
/// | `0x286` | 2 | `s_def_resgid_hi` | group for reserved blocks, high half |
/// | `0x288` | 372 | `s_reserved` | zero |
/// | `0x3fc` | 4 | `s_checksum` | crc32c of all the above |
///
/// Source: Linux `Documentation/filesystems/ext4/super.rst`, table `struct ext4_super_block`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct RawSuperblock {
    /// All inodes.
    pub s_inodes_count: U32,
    /// All blocks, low half.
    pub s_blocks_count_lo: U32,
    /// Blocks for root only, low half.
    pub s_r_blocks_count_lo: U32,
    /// Free blocks, low half.
    pub s_free_blocks_count_lo: U32,
    /// Free inodes.
    pub s_free_inodes_count: U32,
    /// Block of the superblock.
    pub s_first_data_block: U32,
    /// Block size: 1024 shifted left.
    pub s_log_block_size: U32,
    /// Cluster size: 1024 shifted left.
    pub s_log_cluster_size: U32,
    /// Blocks per group.
    pub s_blocks_per_group: U32,
    /// Clusters per group.
    pub s_clusters_per_group: U32,
    /// Inodes per group.
    pub s_inodes_per_group: U32,
    /// Last mount.
    pub s_mtime: U32,
    /// Last write.
    pub s_wtime: U32,
    /// Mounts since the last check.
    pub s_mnt_count: U16,
    /// Mounts before a check.
    pub s_max_mnt_count: U16,
    /// 0xef53.
    pub s_magic: U16,
    /// Clean or not.
    pub s_state: U16,
    /// What to do on errors.
    pub s_errors: U16,
    /// Minor revision.
    pub s_minor_rev_level: U16,
    /// Last check.
    pub s_lastcheck: U32,
    /// Seconds between checks.
    pub s_checkinterval: U32,
    /// 0: Linux.
    pub s_creator_os: U32,
    /// 0 or 1.
    pub s_rev_level: U32,
    /// Owner for reserved blocks, low half.
    pub s_def_resuid: U16,
    /// Group for reserved blocks, low half.
    pub s_def_resgid: U16,
    /// First ordinary inode.
    pub s_first_ino: U32,
    /// Bytes per inode.
    pub s_inode_size: U16,
    /// Group of this copy.
    pub s_block_group_nr: U16,
    /// Compatible features.
    pub s_feature_compat: U32,
    /// Incompatible features.
    pub s_feature_incompat: U32,
    /// Read-only compatible features.
    pub s_feature_ro_compat: U32,
    /// UUID.
    pub s_uuid: [u8; 16],
    /// Label.
    pub s_volume_name: [u8; 16],
    /// Where last mounted.
    pub s_last_mounted: [u8; 64],
    /// Compression, unused.
    pub s_algorithm_usage_bitmap: U32,
    /// Unused hint.
    pub s_prealloc_blocks: u8,
    /// Unused hint.
    pub s_prealloc_dir_blocks: u8,
    /// Descriptor blocks kept for growth.
    pub s_reserved_gdt_blocks: U16,
    /// UUID of an external journal.
    pub s_journal_uuid: [u8; 16],
    /// Inode of the journal.
    pub s_journal_inum: U32,
    /// Device of an external journal.
    pub s_journal_dev: U32,
    /// Head of the orphan list.
    pub s_last_orphan: U32,
    /// Seed of directory hashes.
    pub s_hash_seed: [U32; 4],
    /// Default directory hash.
    pub s_def_hash_version: u8,
    /// 1: `s_jnl_blocks` is valid.
    pub s_jnl_backup_type: u8,
    /// Bytes per group descriptor.
    pub s_desc_size: U16,
    /// Default mount options.
    pub s_default_mount_opts: U32,
    /// First meta block group.
    pub s_first_meta_bg: U32,
    /// When made.
    pub s_mkfs_time: U32,
    /// Copy of the journal's map and size.
    pub s_jnl_blocks: [U32; 17],
    /// All blocks, high half.
    pub s_blocks_count_hi: U32,
    /// Blocks for root only, high half.
    pub s_r_blocks_count_hi: U32,
    /// Free blocks, high half.
    pub s_free_blocks_count_hi: U32,
    /// Least extra bytes of inodes.
    pub s_min_extra_isize: U16,
    /// Extra bytes of new inodes.
    pub s_want_extra_isize: U16,
    /// Signed or unsigned hash, test.
    pub s_flags: U32,
    /// RAID chunk in blocks.
    pub s_raid_stride: U16,
    /// Seconds between multi-mount updates.
    pub s_mmp_interval: U16,
    /// Multi-mount block.
    pub s_mmp_block: U64,
    /// RAID stripe in blocks.
    pub s_raid_stripe_width: U32,
    /// Flex group size, power of two.
    pub s_log_groups_per_flex: u8,
    /// 1: crc32c.
    pub s_checksum_type: u8,
    /// Version of the encryption scheme.
    pub s_encryption_level: u8,
    /// Zero.
    pub s_reserved_pad: u8,
    /// KiB written in total.
    pub s_kbytes_written: U64,
    /// Snapshots, unused.
    pub s_snapshot_inum: U32,
    /// Snapshots, unused.
    pub s_snapshot_id: U32,
    /// Snapshots, unused.
    pub s_snapshot_r_blocks_count: U64,
    /// Snapshots, unused.
    pub s_snapshot_list: U32,
    /// Errors seen.
    pub s_error_count: U32,
    /// First error: when.
    pub s_first_error_time: U32,
    /// First error: inode.
    pub s_first_error_ino: U32,
    /// First error: block.
    pub s_first_error_block: U64,
    /// First error: function.
    pub s_first_error_func: [u8; 32],
    /// First error: line.
    pub s_first_error_line: U32,
    /// Last error: when.
    pub s_last_error_time: U32,
    /// Last error: inode.
    pub s_last_error_ino: U32,
    /// Last error: line.
    pub s_last_error_line: U32,
    /// Last error: block.
    pub s_last_error_block: U64,
    /// Last error: function.
    pub s_last_error_func: [u8; 32],
    /// Mount options as text.
    pub s_mount_opts: [u8; 64],
    /// User quota inode.
    pub s_usr_quota_inum: U32,
    /// Group quota inode.
    pub s_grp_quota_inum: U32,
    /// Clusters of metadata.
    pub s_overhead_clusters: U32,
    /// Groups with backups (`sparse_super2`).
    pub s_backup_bgs: [U32; 2],
    /// Encryption algorithms.
    pub s_encrypt_algos: [u8; 4],
    /// Salt for passphrases.
    pub s_encrypt_pw_salt: [u8; 16],
    /// Inode of lost+found.
    pub s_lpf_ino: U32,
    /// Project quota inode.
    pub s_prj_quota_inum: U32,
    /// Seed of checksums.
    pub s_checksum_seed: U32,
    /// Bits 32..40 of `s_wtime`.
    pub s_wtime_hi: u8,
    /// Bits 32..40 of `s_mtime`.
    pub s_mtime_hi: u8,
    /// Bits 32..40 of `s_mkfs_time`.
    pub s_mkfs_time_hi: u8,
    /// Bits 32..40 of `s_lastcheck`.
    pub s_lastcheck_hi: u8,
    /// Bits 32..40.
    pub s_first_error_time_hi: u8,
    /// Bits 32..40.
    pub s_last_error_time_hi: u8,
    /// First error: code.
    pub s_first_error_errcode: u8,
    /// Last error: code.
    pub s_last_error_errcode: u8,
    /// Character set of names.
    pub s_encoding: U16,
    /// 1: strict.
    pub s_encoding_flags: U16,
    /// Inode of the orphan file.
    pub s_orphan_file_inum: U32,
    /// Owner for reserved blocks, high half.
    pub s_def_resuid_hi: U16,
    /// Group for reserved blocks, high half.
    pub s_def_resgid_hi: U16,
    /// Zero.
    pub s_reserved: [U32; 93],
    /// Crc32c of all the above.
    pub s_checksum: U32,
}

const _: () = assert!(size_of::<RawSuperblock>() == 1024);

/// Each field with the offset that the kernel's documentation gives it.
const OFFSETS: &[(usize, usize)] = &[
    (offset_of!(RawSuperblock, s_inodes_count), 0x0),
    (offset_of!(RawSuperblock, s_blocks_count_lo), 0x4),
    (offset_of!(RawSuperblock, s_r_blocks_count_lo), 0x8),
    (offset_of!(RawSuperblock, s_free_blocks_count_lo), 0xc),
    (offset_of!(RawSuperblock, s_free_inodes_count), 0x10),
    (offset_of!(RawSuperblock, s_first_data_block), 0x14),
    (offset_of!(RawSuperblock, s_log_block_size), 0x18),
    (offset_of!(RawSuperblock, s_log_cluster_size), 0x1c),
    (offset_of!(RawSuperblock, s_blocks_per_group), 0x20),
    (offset_of!(RawSuperblock, s_clusters_per_group), 0x24),
    (offset_of!(RawSuperblock, s_inodes_per_group), 0x28),
    (offset_of!(RawSuperblock, s_mtime), 0x2c),
    (offset_of!(RawSuperblock, s_wtime), 0x30),
    (offset_of!(RawSuperblock, s_mnt_count), 0x34),
    (offset_of!(RawSuperblock, s_max_mnt_count), 0x36),
    (offset_of!(RawSuperblock, s_magic), 0x38),
    (offset_of!(RawSuperblock, s_state), 0x3a),
    (offset_of!(RawSuperblock, s_errors), 0x3c),
    (offset_of!(RawSuperblock, s_minor_rev_level), 0x3e),
    (offset_of!(RawSuperblock, s_lastcheck), 0x40),
    (offset_of!(RawSuperblock, s_checkinterval), 0x44),
    (offset_of!(RawSuperblock, s_creator_os), 0x48),
    (offset_of!(RawSuperblock, s_rev_level), 0x4c),
    (offset_of!(RawSuperblock, s_def_resuid), 0x50),
    (offset_of!(RawSuperblock, s_def_resgid), 0x52),
    (offset_of!(RawSuperblock, s_first_ino), 0x54),
    (offset_of!(RawSuperblock, s_inode_size), 0x58),
    (offset_of!(RawSuperblock, s_block_group_nr), 0x5a),
    (offset_of!(RawSuperblock, s_feature_compat), 0x5c),
    (offset_of!(RawSuperblock, s_feature_incompat), 0x60),
    (offset_of!(RawSuperblock, s_feature_ro_compat), 0x64),
    (offset_of!(RawSuperblock, s_uuid), 0x68),
    (offset_of!(RawSuperblock, s_volume_name), 0x78),
    (offset_of!(RawSuperblock, s_last_mounted), 0x88),
    (offset_of!(RawSuperblock, s_algorithm_usage_bitmap), 0xc8),
    (offset_of!(RawSuperblock, s_prealloc_blocks), 0xcc),
    (offset_of!(RawSuperblock, s_prealloc_dir_blocks), 0xcd),
    (offset_of!(RawSuperblock, s_reserved_gdt_blocks), 0xce),
    (offset_of!(RawSuperblock, s_journal_uuid), 0xd0),
    (offset_of!(RawSuperblock, s_journal_inum), 0xe0),
    (offset_of!(RawSuperblock, s_journal_dev), 0xe4),
    (offset_of!(RawSuperblock, s_last_orphan), 0xe8),
    (offset_of!(RawSuperblock, s_hash_seed), 0xec),
    (offset_of!(RawSuperblock, s_def_hash_version), 0xfc),
    (offset_of!(RawSuperblock, s_jnl_backup_type), 0xfd),
    (offset_of!(RawSuperblock, s_desc_size), 0xfe),
    (offset_of!(RawSuperblock, s_default_mount_opts), 0x100),
    (offset_of!(RawSuperblock, s_first_meta_bg), 0x104),
    (offset_of!(RawSuperblock, s_mkfs_time), 0x108),
    (offset_of!(RawSuperblock, s_jnl_blocks), 0x10c),
    (offset_of!(RawSuperblock, s_blocks_count_hi), 0x150),
    (offset_of!(RawSuperblock, s_r_blocks_count_hi), 0x154),
    (offset_of!(RawSuperblock, s_free_blocks_count_hi), 0x158),
    (offset_of!(RawSuperblock, s_min_extra_isize), 0x15c),
    (offset_of!(RawSuperblock, s_want_extra_isize), 0x15e),
    (offset_of!(RawSuperblock, s_flags), 0x160),
    (offset_of!(RawSuperblock, s_raid_stride), 0x164),
    (offset_of!(RawSuperblock, s_mmp_interval), 0x166),
    (offset_of!(RawSuperblock, s_mmp_block), 0x168),
    (offset_of!(RawSuperblock, s_raid_stripe_width), 0x170),
    (offset_of!(RawSuperblock, s_log_groups_per_flex), 0x174),
    (offset_of!(RawSuperblock, s_checksum_type), 0x175),
    (offset_of!(RawSuperblock, s_encryption_level), 0x176),
    (offset_of!(RawSuperblock, s_reserved_pad), 0x177),
    (offset_of!(RawSuperblock, s_kbytes_written), 0x178),
    (offset_of!(RawSuperblock, s_snapshot_inum), 0x180),
    (offset_of!(RawSuperblock, s_snapshot_id), 0x184),
    (offset_of!(RawSuperblock, s_snapshot_r_blocks_count), 0x188),
    (offset_of!(RawSuperblock, s_snapshot_list), 0x190),
    (offset_of!(RawSuperblock, s_error_count), 0x194),
    (offset_of!(RawSuperblock, s_first_error_time), 0x198),
    (offset_of!(RawSuperblock, s_first_error_ino), 0x19c),
    (offset_of!(RawSuperblock, s_first_error_block), 0x1a0),
    (offset_of!(RawSuperblock, s_first_error_func), 0x1a8),
    (offset_of!(RawSuperblock, s_first_error_line), 0x1c8),
    (offset_of!(RawSuperblock, s_last_error_time), 0x1cc),
    (offset_of!(RawSuperblock, s_last_error_ino), 0x1d0),
    (offset_of!(RawSuperblock, s_last_error_line), 0x1d4),
    (offset_of!(RawSuperblock, s_last_error_block), 0x1d8),
    (offset_of!(RawSuperblock, s_last_error_func), 0x1e0),
    (offset_of!(RawSuperblock, s_mount_opts), 0x200),
    (offset_of!(RawSuperblock, s_usr_quota_inum), 0x240),
    (offset_of!(RawSuperblock, s_grp_quota_inum), 0x244),
    (offset_of!(RawSuperblock, s_overhead_clusters), 0x248),
    (offset_of!(RawSuperblock, s_backup_bgs), 0x24c),
    (offset_of!(RawSuperblock, s_encrypt_algos), 0x254),
    (offset_of!(RawSuperblock, s_encrypt_pw_salt), 0x258),
    (offset_of!(RawSuperblock, s_lpf_ino), 0x268),
    (offset_of!(RawSuperblock, s_prj_quota_inum), 0x26c),
    (offset_of!(RawSuperblock, s_checksum_seed), 0x270),
    (offset_of!(RawSuperblock, s_wtime_hi), 0x274),
    (offset_of!(RawSuperblock, s_mtime_hi), 0x275),
    (offset_of!(RawSuperblock, s_mkfs_time_hi), 0x276),
    (offset_of!(RawSuperblock, s_lastcheck_hi), 0x277),
    (offset_of!(RawSuperblock, s_first_error_time_hi), 0x278),
    (offset_of!(RawSuperblock, s_last_error_time_hi), 0x279),
    (offset_of!(RawSuperblock, s_first_error_errcode), 0x27a),
    (offset_of!(RawSuperblock, s_last_error_errcode), 0x27b),
    (offset_of!(RawSuperblock, s_encoding), 0x27c),
    (offset_of!(RawSuperblock, s_encoding_flags), 0x27e),
    (offset_of!(RawSuperblock, s_orphan_file_inum), 0x280),
    (offset_of!(RawSuperblock, s_def_resuid_hi), 0x284),
    (offset_of!(RawSuperblock, s_def_resgid_hi), 0x286),
    (offset_of!(RawSuperblock, s_reserved), 0x288),
    (offset_of!(RawSuperblock, s_checksum), 0x3fc),
];

const _: () = {
    let mut rest = OFFSETS;
    while let [(is, must_be), tail @ ..] = rest {
        assert!(*is == *must_be);
        rest = tail;
    }
};
