//! The superblock of a file system that holds nothing yet.
//!
//! Everything that options and geometry decide is filled in, as mke2fs writes it. The writer adds
//! what it knows at the end: free counts, the inodes of the quota and orphan files, the block of
//! multiple-mount protection, the copy of the journal's map, and bytes written.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/super.rst`; values compared with superblocks that mke2fs
//! wrote, see the tests.

use extant_base::{FsBlock, Ino};
use extant_format::checksum::fs_seed_from_uuid;
use extant_format::features::{DefaultHash, Encoding, EncodingFlags, State, SuperFlags};
use extant_format::inode::EXTRA_BYTES;
use extant_format::superblock::{
    CHECKSUM_TYPE_CRC32C, MAGIC, OLD_INODE_SIZE, RawSuperblock, Superblock,
};
use zerocopy::FromZeros;

use crate::geometry::Geometry;
use crate::options::{Feature, MkfsOptions};

/// Identity of a file system: drawn at random, or derived for reproducible images.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    /// UUID of the file system.
    pub(crate) uuid: [u8; 16],
    /// Seed of the hashes of indexed directories, as a UUID is written.
    pub(crate) hash_seed: [u8; 16],
    /// Creation time, seconds since 1970.
    pub(crate) created: i64,
}

/// Never check because of a count of mounts.
const MOUNT_COUNT_NEVER: u16 = u16::MAX;
/// `s_jnl_blocks` holds the journal's block map.
const JOURNAL_BACKUP_BLOCKS: u8 = 1;
/// AES-256-XTS for contents, AES-256-CBC-CTS for names.
const ENCRYPT_ALGORITHMS: [u8; 4] = [1, 4, 0, 0];
/// Seconds between heartbeats of multiple-mount protection, unless given.
const MMP_INTERVAL_DEFAULT: u16 = 5;

/// The superblock of an empty file system. Free counts, hidden inodes beside the journal's and
/// `s_mmp_block` are zero.
///
/// `identity` prevails over the options' UUID, hash seed and time, so that a caller resolves those
/// once for all copies and for the journal.
pub(crate) fn superblock(
    options: &MkfsOptions,
    geometry: &Geometry,
    identity: &Identity,
) -> Superblock {
    let has = |feature| geometry.has(feature);
    let wide_inodes = geometry.inode_size > OLD_INODE_SIZE;
    let extra_isize = if wide_inodes { EXTRA_BYTES } else { 0 };
    let cluster_log = geometry.block_size.log2() - 10 + geometry.cluster_blocks.trailing_zeros();

    let mut flags = match options.hash.is_unsigned() {
        true => SuperFlags::UNSIGNED_HASH,
        false => SuperFlags::SIGNED_HASH,
    };
    flags.set(SuperFlags::TEST_FILESYS, options.test_fs);
    let mut encoding_flags = EncodingFlags::empty();
    encoding_flags.set(EncodingFlags::STRICT, options.encoding_strict);

    let mut superblock = Superblock {
        inodes_count: geometry.inodes_count,
        blocks_count: geometry.blocks_count,
        reserved_blocks_count: geometry.reserved_blocks,
        free_blocks_count: 0,
        free_inodes_count: 0,
        first_data_block: geometry.first_data_block,
        block_size: geometry.block_size,
        log_cluster_size: cluster_log,
        blocks_per_group: geometry.blocks_per_group,
        clusters_per_group: geometry.clusters_per_group,
        inodes_per_group: geometry.inodes_per_group,
        group_count: geometry.group_count,
        mount_time: 0,
        write_time: identity.created,
        mkfs_time: identity.created,
        last_check: identity.created,
        check_interval: 0,
        mount_count: 0,
        max_mount_count: MOUNT_COUNT_NEVER,
        state: State::VALID,
        errors: options.errors,
        creator_os: 0,
        revision: 1,
        reserved_uid: 0,
        reserved_gid: 0,
        first_inode: Ino(geometry.first_ino),
        inode_size: geometry.inode_size,
        block_group: 0,
        features: geometry.features,
        uuid: identity.uuid,
        volume_name: padded(&options.label),
        last_mounted: padded(&options.last_mounted),
        reserved_gdt_blocks: geometry.reserved_gdt_blocks,
        journal_inode: if geometry.journal.is_some() { Ino::JOURNAL } else { Ino(0) },
        journal_uuid: [0; 16],
        journal_device: 0,
        last_orphan: 0,
        hash_seed: seed_words(&identity.hash_seed),
        encrypt_pw_salt: [0; 16],
        default_hash: DefaultHash::from_raw(options.hash.on_disk()),
        desc_size: geometry.desc_size,
        default_mount_opts: options.default_mount_opts,
        first_meta_bg: 0,
        journal_backup: [0; 17],
        min_extra_isize: extra_isize,
        want_extra_isize: extra_isize,
        flags,
        // Validation keeps it within the field.
        raid_stride: u16::try_from(options.stride).unwrap_or(u16::MAX),
        raid_stripe_width: options.stripe_width,
        mmp_interval: 0,
        mmp_block: FsBlock(0),
        log_groups_per_flex: geometry.flex_groups.trailing_zeros() as u8,
        checksum_type: if has(Feature::METADATA_CSUM) { CHECKSUM_TYPE_CRC32C } else { 0 },
        kbytes_written: 0,
        user_quota_inode: Ino(0),
        group_quota_inode: Ino(0),
        project_quota_inode: Ino(0),
        // A hint: above 2^32 clusters of overhead, 0 lets the kernel count.
        overhead_clusters: u32::try_from(geometry.overhead_clusters()).unwrap_or(0),
        backup_groups: geometry.backup_groups,
        lost_found_inode: Ino(0),
        stored_checksum_seed: 0,
        encoding: Encoding::Unknown(0),
        encoding_flags: EncodingFlags::empty(),
        orphan_file_inode: Ino(0),
        error_count: 0,
        first_error_time: 0,
        last_error_time: 0,
        raw: RawSuperblock::new_zeroed(),
    };
    if has(Feature::CASEFOLD) {
        superblock.encoding = options.encoding.unwrap_or(Encoding::Utf8V12_1);
        superblock.encoding_flags = encoding_flags;
    }
    if has(Feature::MMP) {
        superblock.mmp_interval = match options.mmp_update_interval {
            0 => MMP_INTERVAL_DEFAULT,
            seconds => seconds,
        };
    }
    if has(Feature::CSUM_SEED) {
        superblock.stored_checksum_seed = fs_seed_from_uuid(&identity.uuid);
    }
    // Fields that no decoded name stands for.
    let raw = &mut superblock.raw;
    raw.s_magic = MAGIC.into();
    if geometry.journal.is_some() {
        raw.s_jnl_backup_type = JOURNAL_BACKUP_BLOCKS;
    }
    if has(Feature::ENCRYPT) {
        raw.s_encrypt_algos = ENCRYPT_ALGORITHMS;
    }
    superblock
}

/// `text` with zeroes after it; what does not fit is cut off (validation refuses it earlier).
fn padded<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    field.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    field
}

/// The 16 bytes of a seed as the four words they are stored as.
fn seed_words(seed: &[u8; 16]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(seed.chunks_exact(4)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    words
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, SeekFrom};
    use std::process::Command;

    use super::*;
    use crate::geometry::SizeRequest;
    use crate::profile::Profile;

    /// Byte for byte the superblock that mke2fs writes, when told the same identity and given the
    /// fields that the writer fills in.
    #[test]
    fn equals_mke2fs_but_for_what_the_writer_adds() {
        if Command::new("mke2fs").arg("-V").output().is_err() {
            eprintln!("skipped: mke2fs is not installed (Debian package e2fsprogs)");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let all = "encrypt,casefold,mmp,quota,project,fast_commit,ea_inode,large_dir,verity,stable_inodes";
        for (profile, features, extended, mib) in [
            (Profile::Default, "", "", 100),
            (Profile::Default, all, "stride=4,stripe_width=12,test_fs", 600),
            (Profile::Debian12, "", "resize=5000000", 3000),
            (Profile::Debian12, "bigalloc,sparse_super2,mmp", "mmp_update_interval=9", 700),
            (Profile::Debian12, "casefold", "encoding=utf8,encoding_flags=strict", 1),
            (Profile::Debian12, "^resize_inode,meta_bg", "desc_size=128", 40),
            (Profile::Ext3, "", "", 77),
            (Profile::Ext2, "none", "", 5),
        ] {
            let bytes = mib << 20;
            File::create(&path).unwrap().set_len(bytes).unwrap();
            let upstream = match profile {
                Profile::Default => "metadata_csum_seed,orphan_file,",
                _ => "",
            };
            let kind = match profile {
                Profile::Ext3 => "ext3",
                Profile::Ext2 => "ext2",
                _ => "ext4",
            };
            let output = Command::new("mke2fs")
                .args(["-q", "-F", "-L", "a label", "-M", "/some/where", "-t", kind])
                .args(["-O", &format!("{upstream}{features}")])
                .args(["-E", &format!("nodiscard,{extended}")])
                .arg(&path)
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let mut theirs = [0; 1024];
            let mut file = File::open(&path).unwrap();
            file.seek(SeekFrom::Start(1024)).unwrap();
            file.read_exact(&mut theirs).unwrap();
            let theirs = Superblock::decode(&theirs).unwrap();

            let mut options = MkfsOptions::new(profile).with_features(features).unwrap();
            options.apply_extended(extended).unwrap();
            options.label = b"a label".to_vec();
            options.last_mounted = b"/some/where".to_vec();
            let geometry =
                crate::geometry::compute(&options, SizeRequest::Device { bytes }).unwrap();
            let mut hash_seed = [0; 16];
            for (bytes, word) in hash_seed.chunks_exact_mut(4).zip(theirs.hash_seed) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            let created = theirs.mkfs_time;
            let identity = Identity { uuid: theirs.uuid, hash_seed, created };
            let mut ours = superblock(&options, &geometry, &identity);
            ours.free_blocks_count = theirs.free_blocks_count;
            ours.free_inodes_count = theirs.free_inodes_count;
            ours.journal_backup = theirs.journal_backup;
            ours.kbytes_written = theirs.kbytes_written;
            ours.mmp_block = theirs.mmp_block;
            ours.user_quota_inode = theirs.user_quota_inode;
            ours.group_quota_inode = theirs.group_quota_inode;
            ours.project_quota_inode = theirs.project_quota_inode;
            ours.orphan_file_inode = theirs.orphan_file_inode;
            // The clock may tick while mke2fs runs.
            (ours.write_time, ours.last_check) = (theirs.write_time, theirs.last_check);
            assert_eq!(ours.to_raw(), theirs.to_raw(), "{profile} {features} {extended}");
            assert_eq!(Superblock::decode(&ours.encode()).unwrap(), theirs);
        }
    }

    #[test]
    fn short_texts_are_padded_and_seeds_keep_their_bytes() {
        assert_eq!(padded::<4>(b"ab"), *b"ab\0\0");
        assert_eq!(padded::<2>(b"abc"), *b"ab");
        let seed: [u8; 16] = std::array::from_fn(|i| i as u8);
        assert_eq!(seed_words(&seed), [0x0302_0100, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c]);
    }
}
