use super::*;
use zerocopy::FromZeros;

/// 4 KiB blocks, one group of 8192 blocks and 2048 inodes, all modern features off.
fn sample() -> RawSuperblock {
    let mut raw = RawSuperblock::new_zeroed();
    raw.s_magic = U16::new(MAGIC);
    raw.s_rev_level = U32::new(1);
    raw.s_log_block_size = U32::new(2);
    raw.s_log_cluster_size = U32::new(2);
    raw.s_blocks_per_group = U32::new(32768);
    raw.s_clusters_per_group = U32::new(32768);
    raw.s_inodes_per_group = U32::new(2048);
    raw.s_inodes_count = U32::new(2048);
    raw.s_blocks_count_lo = U32::new(8192);
    raw.s_first_ino = U32::new(11);
    raw.s_inode_size = U16::new(256);
    raw.s_errors = U16::new(1);
    raw
}

fn with(change: impl Fn(&mut RawSuperblock)) -> Result<Superblock, SuperblockError> {
    let mut raw = sample();
    change(&mut raw);
    Superblock::decode(raw.as_bytes())
}

#[test]
fn the_sample_is_good_and_encodes_to_itself() {
    let sb = with(|_| {}).unwrap();
    assert_eq!(sb.encode()[..], *sample().as_bytes());
    assert_eq!((sb.group_count, sb.group_blocks(GroupIndex(0))), (1, 8192));
    assert_eq!(sb.group_blocks(GroupIndex(1)), 0);
    assert!(matches!(
        Superblock::decode(&sample().as_bytes()[..1023]),
        Err(SuperblockError::Length(_))
    ));
}

#[test]
fn every_inode_and_descriptor_size_is_accepted_or_refused() {
    for size in 0..=u16::MAX {
        let good = [128, 256, 512, 1024, 2048, 4096].contains(&size);
        let result = with(|raw| raw.s_inode_size = U16::new(size));
        assert_eq!(result.is_ok(), good, "inode size {size}");
        assert!(with(|raw| raw.s_desc_size = U16::new(size)).is_ok(), "ignored without 64bit");
        let result = with(|raw| {
            raw.s_feature_incompat = U32::new(0x80);
            raw.s_desc_size = U16::new(size);
        });
        let good = [64, 128, 256, 512, 1024].contains(&size);
        assert_eq!(result.is_ok(), good, "descriptor size {size}");
    }
}

#[test]
fn every_pair_of_block_and_cluster_size_is_accepted_or_refused() {
    for block in (0..40).chain([u32::MAX]) {
        for cluster in (0..40).chain([u32::MAX]) {
            for bigalloc in [false, true] {
                let result = with(|raw| {
                    raw.s_log_block_size = U32::new(block);
                    raw.s_log_cluster_size = U32::new(cluster);
                    raw.s_feature_ro_compat = U32::new(if bigalloc { 0x200 } else { 0 });
                    raw.s_inode_size = U16::new(128);
                    raw.s_first_data_block = U32::new(u32::from(cluster == 0));
                    raw.s_blocks_count_lo = U32::new(4000);
                    raw.s_clusters_per_group = U32::new(4096);
                    let bits = cluster.saturating_sub(block).min(19);
                    raw.s_blocks_per_group = U32::new(4096 << bits);
                });
                let good = if bigalloc {
                    block <= 6 && block <= cluster && cluster <= 19
                } else {
                    block <= 6 && block == cluster
                };
                assert_eq!(result.is_ok(), good, "block {block} cluster {cluster} {result:?}");
                if let Ok(sb) = result {
                    assert_eq!(sb.cluster_bytes(), 1024 << cluster);
                    assert_eq!(sb.cluster_ratio(), 1 << (cluster - block));
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    use SuperblockError as E;
    type Change = fn(&mut RawSuperblock);
    type Check = fn(&E) -> bool;
    let cases: &[(Change, Check)] = &[
        (|r| r.s_magic = U16::new(0), |e| matches!(e, E::Magic { found: 0 })),
        (|r| r.s_rev_level = U32::new(2), |e| matches!(e, E::Revision { found: 2 })),
        (
            |r| r.s_clusters_per_group = U32::new(32769),
            |e| matches!(e, E::PerGroup { field: "s_clusters_per_group", max: 32768, .. }),
        ),
        (
            |r| r.s_clusters_per_group = U32::new(0),
            |e| matches!(e, E::PerGroup { field: "s_clusters_per_group", .. }),
        ),
        (
            |r| r.s_blocks_per_group = U32::new(32767),
            |e| matches!(e, E::PerGroup { field: "s_blocks_per_group", min: 32768, .. }),
        ),
        (
            |r| r.s_inodes_per_group = U32::new(15),
            |e| matches!(e, E::PerGroup { field: "s_inodes_per_group", min: 16, .. }),
        ),
        (
            |r| r.s_inodes_per_group = U32::new(32769),
            |e| matches!(e, E::PerGroup { field: "s_inodes_per_group", .. }),
        ),
        (
            |r| r.s_first_data_block = U32::new(1),
            |e| matches!(e, E::FirstDataBlock { found: 1, expected: 0 }),
        ),
        (|r| r.s_blocks_count_lo = U32::new(0), |e| matches!(e, E::BlockCount { found: 0, .. })),
        (
            |r| r.s_blocks_count_lo = U32::new(u32::MAX),
            |e| matches!(e, E::InodeCount { groups: 131_072, expected: 268_435_456, .. }),
        ),
        (
            |r| {
                r.s_feature_incompat = U32::new(0x80);
                r.s_desc_size = U16::new(64);
                r.s_blocks_count_hi = U32::new(1 << 16);
            },
            |e| matches!(e, E::BlockCount { .. }),
        ),
        (|r| r.s_inodes_count = U32::new(2047), |e| matches!(e, E::InodeCount { found: 2047, .. })),
        (
            |r| r.s_first_ino = U32::new(10),
            |e| matches!(e, E::PerGroup { field: "s_first_ino", .. }),
        ),
        (
            |r| r.s_first_ino = U32::new(2049),
            |e| matches!(e, E::TooLarge { field: "s_first_ino", .. }),
        ),
        (
            |r| r.s_r_blocks_count_lo = U32::new(8193),
            |e| matches!(e, E::TooLarge { field: "s_r_blocks_count", .. }),
        ),
        (
            |r| r.s_reserved_gdt_blocks = U16::new(1025),
            |e| matches!(e, E::TooLarge { field: "s_reserved_gdt_blocks", limit: 1024, .. }),
        ),
        (
            |r| r.s_feature_ro_compat = U32::new(0x400),
            |e| matches!(e, E::ChecksumType { found: 0 }),
        ),
        (
            |r| {
                r.s_feature_ro_compat = U32::new(0x400);
                r.s_checksum_type = 1;
            },
            |e| matches!(e, E::Checksum(_)),
        ),
        (
            |r| {
                r.s_feature_incompat = U32::new(0x10);
                r.s_feature_compat = U32::new(0x10);
            },
            |e| matches!(e, E::FeatureConflict { .. }),
        ),
        (|r| r.s_feature_incompat = U32::new(8), |e| matches!(e, E::JournalDevice { .. })),
    ];
    for (at, (change, check)) in cases.iter().enumerate() {
        let error = with(change).expect_err("must be refused");
        assert!(check(&error), "case {at}: {error}");
    }
}

#[test]
fn revision_zero_has_no_features_and_small_inodes() {
    let sb = with(|raw| {
        raw.s_rev_level = U32::ZERO;
        raw.s_feature_incompat = U32::new(u32::MAX);
        raw.s_inode_size = U16::new(9999);
        raw.s_first_ino = U32::ZERO;
    })
    .unwrap();
    assert!(sb.features.is_empty());
    assert_eq!((sb.inode_size, sb.first_inode), (128, Ino(11)));
}

#[test]
fn times_have_forty_bits() {
    for seconds in [0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 40) - 1] {
        let mut sb = with(|_| {}).unwrap();
        sb.write_time = seconds;
        assert_eq!(Superblock::decode(&sb.encode()).unwrap().write_time, seconds);
    }
    let clamp = |seconds| {
        let (low, high) = split_time(seconds);
        join_time(low, high)
    };
    assert_eq!((clamp(-1), clamp(1 << 40)), (0, (1 << 40) - 1));
}

#[test]
fn blocks_and_inodes_find_their_group() {
    let mut sb = with(|raw| {
        raw.s_blocks_count_lo = U32::new(32768 * 2 + 5);
        raw.s_inodes_count = U32::new(3 * 2048);
    })
    .unwrap();
    assert_eq!((sb.group_count, sb.group_blocks(GroupIndex(2))), (3, 5));
    assert_eq!(sb.group_of_block(FsBlock(32768)), Some((GroupIndex(1), 0)));
    assert_eq!(sb.group_of_block(FsBlock(65540)), Some((GroupIndex(2), 4)));
    assert_eq!(sb.group_of_block(FsBlock(65541)), None);
    assert_eq!(sb.group_of_inode(Ino(0)), None);
    assert_eq!(sb.group_of_inode(Ino(2048)), Some((GroupIndex(0), 2047)));
    assert_eq!(sb.group_of_inode(Ino(2049)), Some((GroupIndex(1), 0)));
    assert_eq!(sb.group_of_inode(Ino(6145)), None);
    sb.volume_name[..3].copy_from_slice(b"abc");
    assert_eq!(sb.label(), b"abc");
    assert_eq!(until_zero(&[1; 16]), [1; 16]);
}

#[test]
fn a_superblock_in_change_is_refused_with_the_size_before_and_comes_back() {
    for (size, csum) in [(128, false), (256, true), (1024, true), (4096, false)] {
        let sb = with(|raw| {
            raw.s_inode_size = U16::new(size);
            if csum {
                raw.s_feature_ro_compat = U32::new(0x400);
                raw.s_checksum_type = 1;
                raw.s_checksum = U32::new(raw.checksum());
            }
        })
        .unwrap();
        let bytes = sb.encode_in_change();
        let wanted = SuperblockError::InodeSizeInChange { old: size };
        assert_eq!(Superblock::decode(&bytes), Err(wanted));
        assert_eq!(Superblock::decode_in_change(&bytes).unwrap().encode(), sb.encode());
        assert_eq!(Superblock::decode_in_change(&sb.encode()), None);
        assert_eq!(Superblock::decode_in_change(&bytes[..1000]), None);
        let mut wrong = bytes;
        wrong[0x78] ^= 1;
        assert_eq!(Superblock::decode_in_change(&wrong).is_some(), !csum);
        // Sizes that there are not.
        for stored in [0x8000u16, 0x8006, 0x8010, 0x80ff, 0xffff] {
            let mut other = sb.encode();
            other[0x58..0x5a].copy_from_slice(&stored.to_le_bytes());
            assert_eq!(Superblock::decode_in_change(&other), None, "{stored:#x}");
        }
    }
}

#[test]
fn new_inodes_get_the_extra_bytes_that_are_asked_for_where_that_can_be() {
    let extra = |inode_size, ro_compat, min, want| {
        let made = with(|raw| {
            raw.s_inode_size = U16::new(inode_size);
            raw.s_feature_ro_compat = U32::new(ro_compat);
            raw.s_min_extra_isize = U16::new(min);
            raw.s_want_extra_isize = U16::new(want);
        });
        made.unwrap().new_extra_isize()
    };
    const EXTRA_ISIZE: u32 = 0x40;
    assert_eq!(extra(128, EXTRA_ISIZE, 0, 0), 0);
    assert_eq!(extra(256, EXTRA_ISIZE, 0, 0), 32);
    assert_eq!(extra(256, EXTRA_ISIZE, 28, 28), 32, "less than is known");
    assert_eq!(extra(256, EXTRA_ISIZE, 0, 64), 64);
    assert_eq!(extra(256, EXTRA_ISIZE, 64, 32), 64);
    assert_eq!(extra(256, EXTRA_ISIZE, 0, 128), 128, "all there is");
    assert_eq!(extra(256, EXTRA_ISIZE, 0, 66), 32, "no multiple of 4");
    assert_eq!(extra(256, 0, 64, 64), 32, "without the feature");
}
