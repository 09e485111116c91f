//! From the stored record to the checked value.

use extant_base::{BlockSize, FsBlock, Ino};

use super::{
    CHECKSUM_TYPE_CRC32C, MAGIC, OLD_FIRST_INO, OLD_INODE_SIZE, RawSuperblock, Superblock,
    SuperblockError, join_time, join32, join64,
};
use crate::features::{
    Compat, DefaultHash, DefaultMountOpts, Encoding, EncodingFlags, ErrorsPolicy, Features,
    Incompat, RoCompat, State, SuperFlags,
};

/// `s_log_cluster_size` of 512 MiB, the largest cluster mke2fs makes.
const LOG_CLUSTER_MAX: u32 = 19;

/// The largest `s_log_groups_per_flex`.
const FLEX_LOG_MAX: u64 = 31;
/// The last hash that can be a default: TEA of unsigned bytes. SipHash needs a key.
const HASH_VERSION_MAX: u64 = 5;

/// Sizes of blocks and clusters: S1.
fn sizes(raw: &RawSuperblock, features: &Features) -> Result<(BlockSize, u32), SuperblockError> {
    let block_log = raw.s_log_block_size.get();
    let block_size = BlockSize::from_log_kib(block_log)
        .map_err(|_| SuperblockError::BlockSize { log: block_log })?;
    let cluster_log = raw.s_log_cluster_size.get();
    let bigalloc = features.has_ro_compat(RoCompat::BIGALLOC);
    let good = if bigalloc {
        (block_log..=LOG_CLUSTER_MAX).contains(&cluster_log)
    } else {
        cluster_log == block_log
    };
    // Before bigalloc the field was `s_log_frag_size`, as large as a block on every revision.
    if good {
        Ok((block_size, cluster_log))
    } else {
        Err(SuperblockError::ClusterSize { cluster_log, block_log, bigalloc })
    }
}

/// Inode and descriptor sizes: S4.
fn record_sizes(
    raw: &RawSuperblock,
    features: &Features,
    block_size: BlockSize,
) -> Result<(u16, u16), SuperblockError> {
    let inode_size = match raw.s_rev_level.get() {
        0 => OLD_INODE_SIZE,
        _ => raw.s_inode_size.get(),
    };
    let block_bytes = block_size.bytes();
    if let Some(old) = super::size_before_change(inode_size) {
        return Err(SuperblockError::InodeSizeInChange { old });
    }
    if !inode_size.is_power_of_two()
        || inode_size < OLD_INODE_SIZE
        || u32::from(inode_size) > block_bytes
    {
        return Err(SuperblockError::InodeSize { found: inode_size, block_bytes });
    }
    let desc_size = if features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
        let found = raw.s_desc_size.get();
        if !(64..=1024).contains(&found) || !found.is_power_of_two() {
            return Err(SuperblockError::DescriptorSize { found });
        }
        found
    } else {
        32
    };
    Ok((inode_size, desc_size))
}

/// Blocks, clusters and inodes per group: S2.
fn per_group(
    raw: &RawSuperblock,
    block_size: BlockSize,
    inode_size: u16,
    cluster_bits: u32,
) -> Result<(), SuperblockError> {
    let bits = u64::from(block_size.bytes()).saturating_mul(8);
    let refuse = |field, found, rule, min, max| {
        Err(SuperblockError::PerGroup { field, found, rule, min, max })
    };
    let clusters = raw.s_clusters_per_group.get();
    if clusters == 0 || u64::from(clusters) > bits {
        return refuse("s_clusters_per_group", clusters, "a number", 1, bits);
    }
    let blocks = raw.s_blocks_per_group.get();
    let expected = u64::from(clusters).checked_shl(cluster_bits).unwrap_or(u64::MAX);
    if u64::from(blocks) != expected {
        return refuse("s_blocks_per_group", blocks, "clusters times ratio", expected, expected);
    }
    // Less than one block of inodes would leave a table that no other program makes.
    let min = u64::from(block_size.bytes().checked_div(u32::from(inode_size)).unwrap_or(1));
    let inodes = raw.s_inodes_per_group.get();
    if u64::from(inodes) < min || u64::from(inodes) > bits {
        return refuse("s_inodes_per_group", inodes, "at least a block of inodes", min, bits);
    }
    Ok(())
}

/// Number of groups, and whether blocks and inodes agree with it: S3.
fn groups(
    raw: &RawSuperblock,
    features: &Features,
    block_size: BlockSize,
) -> Result<(u64, u32), SuperblockError> {
    let wide = features.has_incompat(Incompat::SIXTY_FOUR_BIT);
    let first = raw.s_first_data_block.get();
    // A block of 1 KiB holds the boot sector alone, so the superblock is in block 1; a larger
    // cluster holds both and counting starts at 0.
    let expected = u32::from(block_size.bytes() == 1024 && raw.s_log_cluster_size.get() == 0);
    if first != expected {
        return Err(SuperblockError::FirstDataBlock { found: first, expected });
    }
    // 48 bits are what extents can address; 2^32 without `64bit`.
    let max = if wide { (1u64 << 48).saturating_sub(1) } else { u64::from(u32::MAX) };
    let found = if wide {
        join64(raw.s_blocks_count_lo, raw.s_blocks_count_hi)
    } else {
        u64::from(raw.s_blocks_count_lo.get())
    };
    let in_groups = found.saturating_sub(u64::from(first));
    if in_groups == 0 || found > max {
        return Err(SuperblockError::BlockCount { found, first, max });
    }
    let groups = in_groups.div_ceil(u64::from(raw.s_blocks_per_group.get()).max(1));
    let per_group = raw.s_inodes_per_group.get();
    let inodes = raw.s_inodes_count.get();
    let expected = groups.saturating_mul(u64::from(per_group));
    if u64::from(inodes) != expected {
        return Err(SuperblockError::InodeCount { found: inodes, groups, per_group, expected });
    }
    // The product fits 32 bits and `per_group` is at least 1, so the quotient does too.
    let group_count =
        u32::try_from(groups).map_err(|_| SuperblockError::BlockCount { found, first, max })?;
    Ok((found, group_count))
}

/// Everything about features that makes other fields meaningless.
fn feature_rules(raw: &RawSuperblock, features: &Features) -> Result<(), SuperblockError> {
    if features.metadata_csum() {
        // `uninit_bg` besides is redundant; the kernel warns and uses crc32c, and so do we.
        if raw.s_checksum_type != CHECKSUM_TYPE_CRC32C {
            return Err(SuperblockError::ChecksumType { found: raw.s_checksum_type });
        }
    }
    if features.has_incompat(Incompat::META_BG) && features.has_compat(Compat::RESIZE_INODE) {
        return Err(SuperblockError::FeatureConflict { one: "meta_bg", other: "resize_inode" });
    }
    Ok(())
}

/// Decodes and checks everything but the checksum.
pub(super) fn decode(raw: &RawSuperblock) -> Result<Superblock, SuperblockError> {
    let magic = raw.s_magic.get();
    if magic != MAGIC {
        return Err(SuperblockError::Magic { found: magic });
    }
    let revision = raw.s_rev_level.get();
    if revision > 1 {
        return Err(SuperblockError::Revision { found: revision });
    }
    // Revision 0 has no feature words; what lies there means nothing.
    let features = match revision {
        0 => Features::NONE,
        _ => Features::from_words(
            raw.s_feature_compat.get(),
            raw.s_feature_incompat.get(),
            raw.s_feature_ro_compat.get(),
        ),
    };
    if features.has_incompat(Incompat::JOURNAL_DEV) {
        let log = raw.s_log_block_size.get();
        let block = BlockSize::from_log_kib(log).map_err(|_| SuperblockError::BlockSize { log })?;
        return Err(SuperblockError::JournalDevice {
            blocks: join64(raw.s_blocks_count_lo, raw.s_blocks_count_hi),
            block_bytes: block.bytes(),
            uuid: raw.s_uuid,
        });
    }
    let (block_size, log_cluster_size) = sizes(raw, &features)?;
    let cluster_bits = log_cluster_size.saturating_sub(raw.s_log_block_size.get());
    let (inode_size, desc_size) = record_sizes(raw, &features, block_size)?;
    per_group(raw, block_size, inode_size, cluster_bits)?;
    feature_rules(raw, &features)?;
    let (blocks_count, group_count) = groups(raw, &features, block_size)?;

    let first_inode = match revision {
        0 => OLD_FIRST_INO,
        _ => raw.s_first_ino.get(),
    };
    let limit = |field, found: u64, limit: u64| {
        if found > limit { Err(SuperblockError::TooLarge { field, found, limit }) } else { Ok(()) }
    };
    if first_inode < OLD_FIRST_INO {
        return Err(SuperblockError::PerGroup {
            field: "s_first_ino",
            found: first_inode,
            rule: "an inode after the reserved ones",
            min: u64::from(OLD_FIRST_INO),
            max: u64::from(raw.s_inodes_count.get()),
        });
    }
    limit("s_first_ino", u64::from(first_inode), u64::from(raw.s_inodes_count.get()))?;
    let gdt_max = u64::from(block_size.bytes()).checked_div(4).unwrap_or(0);
    limit("s_reserved_gdt_blocks", u64::from(raw.s_reserved_gdt_blocks.get()), gdt_max)?;

    // As the kernel: what it would compute with these makes no sense.
    if features.has_incompat(Incompat::FLEX_BG) {
        limit("s_log_groups_per_flex", u64::from(raw.s_log_groups_per_flex), FLEX_LOG_MAX)?;
    }
    if features.has_compat(Compat::DIR_INDEX) {
        limit("s_def_hash_version", u64::from(raw.s_def_hash_version), HASH_VERSION_MAX)?;
    }
    if inode_size > OLD_INODE_SIZE {
        let room = u64::from(inode_size.saturating_sub(OLD_INODE_SIZE));
        limit("s_want_extra_isize", u64::from(raw.s_want_extra_isize.get()), room)?;
        limit("s_min_extra_isize", u64::from(raw.s_min_extra_isize.get()), room)?;
    }
    // The descriptors of the groups before it are in one piece: at most all of them are.
    if features.has_incompat(Incompat::META_BG) {
        let per_block = block_size.bytes().checked_div(u32::from(desc_size)).unwrap_or(1).max(1);
        let table_blocks = u64::from(group_count.div_ceil(per_block));
        limit("s_first_meta_bg", u64::from(raw.s_first_meta_bg.get()), table_blocks)?;
    }

    let wide = features.has_incompat(Incompat::SIXTY_FOUR_BIT);
    let count = |low, high| if wide { join64(low, high) } else { join64(low, 0.into()) };
    let reserved_blocks_count = count(raw.s_r_blocks_count_lo, raw.s_r_blocks_count_hi);
    limit("s_r_blocks_count", reserved_blocks_count, blocks_count)?;

    Ok(Superblock {
        inodes_count: raw.s_inodes_count.get(),
        blocks_count,
        reserved_blocks_count,
        free_blocks_count: count(raw.s_free_blocks_count_lo, raw.s_free_blocks_count_hi),
        free_inodes_count: raw.s_free_inodes_count.get(),
        first_data_block: raw.s_first_data_block.get(),
        block_size,
        log_cluster_size,
        blocks_per_group: raw.s_blocks_per_group.get(),
        clusters_per_group: raw.s_clusters_per_group.get(),
        inodes_per_group: raw.s_inodes_per_group.get(),
        group_count,
        mount_time: join_time(raw.s_mtime, raw.s_mtime_hi),
        write_time: join_time(raw.s_wtime, raw.s_wtime_hi),
        mkfs_time: join_time(raw.s_mkfs_time, raw.s_mkfs_time_hi),
        last_check: join_time(raw.s_lastcheck, raw.s_lastcheck_hi),
        check_interval: raw.s_checkinterval.get(),
        mount_count: raw.s_mnt_count.get(),
        max_mount_count: raw.s_max_mnt_count.get(),
        state: State::from_bits_retain(raw.s_state.get()),
        errors: ErrorsPolicy::from_raw(raw.s_errors.get()),
        creator_os: raw.s_creator_os.get(),
        revision,
        reserved_uid: join32(raw.s_def_resuid, raw.s_def_resuid_hi),
        reserved_gid: join32(raw.s_def_resgid, raw.s_def_resgid_hi),
        first_inode: Ino(first_inode),
        inode_size,
        block_group: raw.s_block_group_nr.get(),
        features,
        uuid: raw.s_uuid,
        volume_name: raw.s_volume_name,
        last_mounted: raw.s_last_mounted,
        reserved_gdt_blocks: raw.s_reserved_gdt_blocks.get(),
        journal_inode: Ino(raw.s_journal_inum.get()),
        journal_uuid: raw.s_journal_uuid,
        journal_device: raw.s_journal_dev.get(),
        last_orphan: raw.s_last_orphan.get(),
        hash_seed: raw.s_hash_seed.map(|word| word.get()),
        encrypt_pw_salt: raw.s_encrypt_pw_salt,
        default_hash: DefaultHash::from_raw(raw.s_def_hash_version),
        desc_size,
        default_mount_opts: DefaultMountOpts::from_bits_retain(raw.s_default_mount_opts.get()),
        first_meta_bg: raw.s_first_meta_bg.get(),
        journal_backup: raw.s_jnl_blocks.map(|word| word.get()),
        min_extra_isize: raw.s_min_extra_isize.get(),
        want_extra_isize: raw.s_want_extra_isize.get(),
        flags: SuperFlags::from_bits_retain(raw.s_flags.get()),
        raid_stride: raw.s_raid_stride.get(),
        raid_stripe_width: raw.s_raid_stripe_width.get(),
        mmp_interval: raw.s_mmp_interval.get(),
        mmp_block: FsBlock(raw.s_mmp_block.get()),
        log_groups_per_flex: raw.s_log_groups_per_flex,
        checksum_type: raw.s_checksum_type,
        kbytes_written: raw.s_kbytes_written.get(),
        user_quota_inode: Ino(raw.s_usr_quota_inum.get()),
        group_quota_inode: Ino(raw.s_grp_quota_inum.get()),
        project_quota_inode: Ino(raw.s_prj_quota_inum.get()),
        overhead_clusters: raw.s_overhead_clusters.get(),
        backup_groups: raw.s_backup_bgs.map(|word| word.get()),
        lost_found_inode: Ino(raw.s_lpf_ino.get()),
        stored_checksum_seed: raw.s_checksum_seed.get(),
        encoding: Encoding::from_raw(raw.s_encoding.get()),
        encoding_flags: EncodingFlags::from_bits_retain(raw.s_encoding_flags.get()),
        orphan_file_inode: Ino(raw.s_orphan_file_inum.get()),
        error_count: raw.s_error_count.get(),
        first_error_time: join_time(raw.s_first_error_time, raw.s_first_error_time_hi),
        last_error_time: join_time(raw.s_last_error_time, raw.s_last_error_time_hi),
        raw: raw.clone(),
    })
}
