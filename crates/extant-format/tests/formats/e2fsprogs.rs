//! Images made by mke2fs, decoded: every checksum verifies, encoding gives the same bytes back, and
//! the values are those that dumpe2fs and debugfs print.
//!
//! Needs `mke2fs`, `dumpe2fs`, `debugfs` and `e2fsck`; says so and passes when they are missing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::bitmap::{Bitmap, BitmapRef};
use extant_format::checksum::inode_seed;
use extant_format::features::{Compat, Incompat, RoCompat};
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupFlags};
use extant_format::inode::{DeviceNumber, FileKind, Inode, InodeFlags, InodeLayout};
use extant_format::mmp::{Mmp, MmpState};
use extant_format::orphan::OrphanBlock;
use extant_format::quota::{QuotaEntry, QuotaFile, QuotaKind};
use extant_format::superblock::{Superblock, SuperblockError};
use extant_layout::Heads;

/// The program's standard output; `None` when it is not installed. Panics when it fails.
fn run(program: &str, args: &[&str]) -> Option<Vec<u8>> {
    let found = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"]
        .iter()
        .map(|dir| Path::new(dir).join(program))
        .find(|path| path.exists());
    let Some(path) = found else {
        eprintln!("skipped: {program} is not installed");
        return None;
    };
    let out = Command::new("timeout")
        .args(["-s", "KILL", "60"])
        .arg(path)
        .args(args)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .env("MKE2FS_CONFIG", config())
        .output()
        .expect("timeout of coreutils runs");
    assert!(
        out.status.success(),
        "{program} {args:?}: {}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    Some(out.stdout)
}

/// A configuration of our own, so that the machine's does not matter. The default features are
/// those of e2fsprogs 1.47.
const CONFIG: &str = "[defaults]
    base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
    default_mntopts = acl,user_xattr
    enable_periodic_fsck = 0
    blocksize = 4096
    inode_size = 256
    inode_ratio = 16384
[fs_types]
    ext3 = {
        features = has_journal
    }
    ext4 = {
        features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
    }
";

fn config() -> &'static Path {
    static FILE: std::sync::OnceLock<tempfile::NamedTempFile> = std::sync::OnceLock::new();
    FILE.get_or_init(|| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), CONFIG).unwrap();
        file
    })
    .path()
}

struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Image {
    /// An image of `size` (as mke2fs takes it) made with `args`.
    fn make(args: &str, size: &str) -> Option<Image> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut all: Vec<&str> = vec!["-q", "-F"];
        all.extend(args.split_whitespace());
        all.extend([path.to_str().unwrap(), size]);
        run("mke2fs", &all)?;
        let bytes = std::fs::read(&path).unwrap();
        Some(Image { _dir: dir, path, bytes })
    }

    fn block(&self, superblock: &Superblock, block: FsBlock) -> &[u8] {
        let start = superblock.block_size.offset_of(block).unwrap() as usize;
        &self.bytes[start..start + superblock.block_size.len()]
    }

    fn superblock(&self) -> Superblock {
        Superblock::decode(&self.bytes[1024..]).unwrap()
    }

    fn descriptor_bytes(&self, superblock: &Superblock, group: u32) -> &[u8] {
        let per_block = superblock.descriptors_per_block();
        let block = Heads::of(superblock).descriptor_block(group / per_block).unwrap();
        let size = usize::from(superblock.desc_size);
        let at = (group % per_block) as usize * size;
        &self.block(superblock, block)[at..at + size]
    }

    /// The bytes of an inode record.
    fn inode_bytes(&self, superblock: &Superblock, ino: Ino) -> &[u8] {
        let (group, within) = superblock.group_of_inode(ino).unwrap();
        let descriptor =
            GroupDescriptor::decode(self.descriptor_bytes(superblock, group.0)).unwrap();
        let size = usize::from(superblock.inode_size);
        let start = superblock.block_size.offset_of(descriptor.inode_table).unwrap() as usize
            + within as usize * size;
        &self.bytes[start..start + size]
    }

    fn dumpe2fs(&self, option: &str) -> String {
        let args: Vec<&str> =
            option.split_whitespace().chain([self.path.to_str().unwrap()]).collect();
        String::from_utf8(run("dumpe2fs", &args).unwrap()).unwrap()
    }

    fn debugfs(&self, command: &str) -> String {
        let out = run("debugfs", &["-R", command, self.path.to_str().unwrap()]).unwrap();
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// Options and sizes: every feature that changes the layout, every block and inode size.
const IMAGES: &[(&str, &str)] = &[
    ("-t ext4", "64M"),
    ("-t ext4 -b 1024", "20M"),
    ("-t ext4 -b 2048", "40M"),
    ("-t ext4 -b 4096 -I 128 -O ^extra_isize", "40M"),
    ("-t ext4 -b 4096 -I 512", "40M"),
    ("-t ext4 -b 4096 -I 4096", "40M"),
    ("-t ext4 -b 65536 -m 0 -O ^has_journal", "100M"),
    ("-t ext4 -b 65536 -I 65536 -N 64 -J size=64", "150M"),
    ("-t ext4 -O ^64bit", "40M"),
    ("-t ext4 -O ^metadata_csum,uninit_bg", "150M"),
    ("-t ext4 -O ^metadata_csum,uninit_bg,^64bit -b 1024", "40M"),
    ("-t ext4 -O ^metadata_csum", "40M"),
    ("-t ext4 -O ^metadata_csum,^uninit_bg,^flex_bg,^has_journal", "40M"),
    ("-t ext4 -O metadata_csum_seed,orphan_file", "40M"),
    ("-t ext4 -O bigalloc -C 65536", "100M"),
    ("-t ext4 -O bigalloc,^resize_inode -b 1024 -C 16384", "100M"),
    ("-t ext4 -O meta_bg,^resize_inode -b 1024", "150M"),
    ("-t ext4 -O meta_bg,^resize_inode,^flex_bg -b 1024 -g 1024", "80M"),
    ("-t ext4 -O sparse_super2,^resize_inode -b 1024", "100M"),
    ("-t ext4 -O sparse_super2,^resize_inode -b 1024 -E num_backup_sb=1", "100M"),
    ("-t ext4 -O ^sparse_super,^resize_inode,^flex_bg -b 1024 -g 2048", "30M"),
    ("-t ext4 -O quota,project -I 256", "40M"),
    ("-t ext4 -O mmp", "40M"),
    ("-t ext4 -O inline_data,ea_inode,large_dir,encrypt,verity,stable_inodes", "40M"),
    ("-t ext4 -O casefold -E encoding=utf8,encoding_flags=strict", "40M"),
    ("-t ext4 -O fast_commit -E stride=16,stripe_width=64", "64M"),
    ("-t ext4 -E root_owner=70000:80000,lazy_itable_init=0", "40M"),
    ("-t ext4 -L label-of-sixteen -M /mnt/last -e panic -m 10 -c 7", "40M"),
    ("-t ext4 -E desc_size=128", "40M"),
    ("-t ext4 -E packed_meta_blocks=1 -G 64", "150M"),
    ("-t ext3", "40M"),
    ("-t ext2", "40M"),
    ("-t ext2 -b 1024", "3M"),
    ("-t ext2 -r 0 -O none -b 1024", "10M"),
    ("-t ext2 -I 128 -O none", "10M"),
    ("-t ext4 -b 1024 -O ^has_journal", "8193K"),
    ("-t ext4 -b 1024 -O ^has_journal", "8500K"),
];

/// `-c 7` of the table is no option of mke2fs: it stands for tune2fs.
fn make(args: &str, size: &str) -> Option<Image> {
    let Some((args, count)) = args.split_once(" -c ") else { return Image::make(args, size) };
    let mut image = Image::make(args, size)?;
    run("tune2fs", &["-c", count, image.path.to_str().unwrap()])?;
    image.bytes = std::fs::read(&image.path).unwrap();
    Some(image)
}

#[test]
fn superblocks_agree_with_dumpe2fs_and_encode_to_themselves() {
    for (args, size) in IMAGES {
        let Some(image) = make(args, size) else { return };
        let sb = Superblock::decode(&image.bytes[1024..])
            .unwrap_or_else(|error| panic!("mke2fs {args} {size}: {error}"));
        assert!(sb.encode() == image.bytes[1024..2048], "mke2fs {args}: not the same bytes");

        let text = image.dumpe2fs("-h");
        let lines: HashMap<&str, &str> =
            text.lines().filter_map(|l| l.split_once(':')).map(|(k, v)| (k, v.trim())).collect();
        let same = |key: &str, value: String| {
            assert_eq!(lines.get(key).copied(), Some(value.as_str()), "mke2fs {args}: {key}");
        };
        let number = |key: &str, value: u64| same(key, value.to_string());
        let names = sb.features.to_string();
        same("Filesystem features", if names == "none" { "(none)".into() } else { names });
        number("Inode count", u64::from(sb.inodes_count));
        number("Block count", sb.blocks_count);
        number("Reserved block count", sb.reserved_blocks_count);
        number("Free blocks", sb.free_blocks_count);
        number("Free inodes", u64::from(sb.free_inodes_count));
        number("First block", u64::from(sb.first_data_block));
        number("Block size", u64::from(sb.block_size.bytes()));
        let unit = if sb.bigalloc() { "Cluster size" } else { "Fragment size" };
        number(unit, sb.cluster_bytes());
        number("Blocks per group", u64::from(sb.blocks_per_group));
        number("Inodes per group", u64::from(sb.inodes_per_group));
        number("Inode blocks per group", u64::from(sb.inode_table_blocks()));
        if sb.revision > 0 {
            number("Inode size", u64::from(sb.inode_size));
            number("First inode", u64::from(sb.first_inode.0));
        }
        same("Errors behavior", sb.errors.to_string());
        let label = String::from_utf8_lossy(sb.label()).into_owned();
        same("Filesystem volume name", if label.is_empty() { "<none>".into() } else { label });
        if sb.features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
            number("Group descriptor size", u64::from(sb.desc_size));
        }
        if sb.reserved_gdt_blocks > 0 {
            number("Reserved GDT blocks", u64::from(sb.reserved_gdt_blocks));
        }
        if sb.features.has_incompat(Incompat::FLEX_BG) {
            number("Flex block group size", u64::from(sb.groups_per_flex()));
        }
        if sb.features.has_compat(Compat::HAS_JOURNAL) {
            number("Journal inode", u64::from(sb.journal_inode.0));
        }
        if sb.features.metadata_csum() {
            let stored = format!("0x{:08x}", sb.raw.s_checksum.get());
            same("Checksum", stored);
        }
        if sb.features.has_incompat(Incompat::CSUM_SEED) {
            same("Checksum seed", format!("0x{:08x}", sb.checksum_seed()));
        }
        if sb.features.has_compat(Compat::DIR_INDEX) {
            same("Default directory hash", sb.default_hash.to_string());
        }
        if !sb.default_mount_opts.names().is_empty() {
            same("Default mount options", sb.default_mount_opts.names().join(" "));
        }
        if sb.features.has_compat(Compat::ORPHAN_FILE) {
            number("Orphan file inode", u64::from(sb.orphan_file_inode.0));
        }
        if sb.features.has_ro_compat(RoCompat::QUOTA) {
            number("User quota inode", u64::from(sb.user_quota_inode.0));
            number("Group quota inode", u64::from(sb.group_quota_inode.0));
        }
        if sb.features.has_incompat(Incompat::MMP) {
            number("MMP block number", sb.mmp_block.0);
        }
    }
}

#[test]
fn groups_lie_where_dumpe2fs_says_and_encode_to_themselves() {
    for (args, size) in IMAGES {
        let Some(image) = make(args, size) else { return };
        let sb = image.superblock();
        let checksum = GroupChecksum::of(&sb);
        let seed = sb.checksum_seed();
        let text = image.dumpe2fs("");
        let (backups, groups) = backup_groups(&text);
        assert_eq!(groups, sb.group_count, "mke2fs {args}: number of groups");
        let heads = Heads::of(&sb);
        let ours: Vec<u32> = heads.superblock_groups().map(|group| group.0).collect();
        assert_eq!(ours, backups, "mke2fs {args}: groups with a superblock");

        for g in 0..sb.group_count {
            let group = GroupIndex(g);
            let what = || format!("mke2fs {args}, group {g}");
            let bytes = image.descriptor_bytes(&sb, g);
            GroupDescriptor::verify_checksum(group, &checksum, bytes)
                .unwrap_or_else(|error| panic!("{}: {error}", what()));
            let descriptor = GroupDescriptor::decode(bytes).unwrap();
            descriptor.check(group, &sb).unwrap_or_else(|error| panic!("{}: {error}", what()));
            let mut again = bytes.to_vec();
            descriptor.encode(group, &checksum, &mut again).unwrap();
            assert_eq!(again, bytes, "{}", what());
            let listed = format!("Inode table at {}-", descriptor.inode_table);
            assert!(text.contains(&listed), "{}: {listed}", what());

            if g > 0 && heads.has_superblock(group) {
                let start = sb.group_first_block(group).unwrap();
                let copy = Superblock::decode(image.block(&sb, start))
                    .unwrap_or_else(|error| panic!("{}: {error}", what()));
                assert_eq!(copy.encode()[..], image.block(&sb, start)[..1024], "{}", what());
                assert_eq!(u32::from(copy.block_group), g, "{}", what());
            }
            bitmaps(&image, &sb, group, &descriptor, seed, &what());
        }
    }
}

/// The groups that `dumpe2fs` lists with a superblock, and how many groups it lists.
fn backup_groups(text: &str) -> (Vec<u32>, u32) {
    let (mut with, mut count, mut current) = (Vec::new(), 0, 0);
    for line in text.lines() {
        let number = line.strip_prefix("Group ").and_then(|rest| rest.split_once(':'));
        if let Some(number) = number.and_then(|(number, _)| number.parse().ok()) {
            current = number;
            count += 1;
        } else if line.contains("superblock at") {
            with.push(current);
        }
    }
    (with, count)
}

/// Checksums, padding and counts of both bitmaps of a group.
fn bitmaps(
    image: &Image,
    sb: &Superblock,
    group: GroupIndex,
    descriptor: &GroupDescriptor,
    seed: u32,
    what: &str,
) {
    let wide = sb.desc_size >= 64;
    let uninit_means = sb.features.group_checksums();
    let clusters = sb.group_clusters(group);
    let stored = BitmapRef::new(image.block(sb, descriptor.block_bitmap));
    if uninit_means && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
        // Never written: compute it. All of its own metadata but the superblock copy is elsewhere
        // or in the ranges of other groups.
        let first = sb.group_first_block(group).unwrap().0;
        let own = |start: FsBlock, len: u64| {
            let from = start.0.max(first);
            let to = (start.0 + len).min(first + u64::from(sb.group_blocks(group)));
            let ratio = u64::from(sb.cluster_ratio());
            if from < to {
                ((from - first) / ratio) as u32..(to - first).div_ceil(ratio) as u32
            } else {
                0..0
            }
        };
        let table = u64::from(sb.inode_table_blocks());
        let head = Heads::of(sb).head(group).blocks();
        let mut used = vec![own(FsBlock(head.start), head.end - head.start)];
        for g in 0..sb.group_count {
            let d = GroupDescriptor::decode(image.descriptor_bytes(sb, g)).unwrap();
            used.push(own(d.block_bitmap, 1));
            used.push(own(d.inode_bitmap, 1));
            used.push(own(d.inode_table, table));
        }
        let computed = Bitmap::of_uninit_group(sb.block_size.len(), clusters, used);
        let free = computed.view().count_clear(0..clusters);
        assert_eq!(free, descriptor.free_clusters, "{what}: free clusters of uninit group");
    } else {
        assert!(stored.is_padded(clusters), "{what}: padding of the block bitmap");
        let free = stored.count_clear(0..clusters);
        assert_eq!(free, descriptor.free_clusters, "{what}: free clusters");
        if sb.features.metadata_csum() {
            stored
                .verify_checksum(
                    "block bitmap",
                    seed,
                    sb.clusters_per_group,
                    descriptor.block_bitmap_checksum,
                    wide,
                )
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
    let inodes = BitmapRef::new(image.block(sb, descriptor.inode_bitmap));
    if !(uninit_means && descriptor.flags.contains(GroupFlags::INODE_UNINIT)) {
        assert!(inodes.is_padded(sb.inodes_per_group), "{what}: padding of the inode bitmap");
        let free = inodes.count_clear(0..sb.inodes_per_group);
        assert_eq!(free, descriptor.free_inodes, "{what}: free inodes");
        if sb.features.metadata_csum() {
            inodes
                .verify_checksum(
                    "inode bitmap",
                    seed,
                    sb.inodes_per_group,
                    descriptor.inode_bitmap_checksum,
                    wide,
                )
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
}

#[test]
fn inodes_verify_and_encode_to_themselves() {
    for (args, size) in IMAGES {
        let Some(image) = make(args, size) else { return };
        let sb = image.superblock();
        let layout = InodeLayout::of(&sb);
        let mut seen = 0;
        for number in 1..=sb.first_inode.0 + 3 {
            let ino = Ino(number);
            let bytes = image.inode_bytes(&sb, ino);
            if bytes.iter().all(|byte| *byte == 0) {
                continue; // Unused: mke2fs leaves it without a checksum.
            }
            let what = || format!("mke2fs {args}, inode {ino}");
            Inode::verify_checksum(&layout, ino, bytes)
                .unwrap_or_else(|error| panic!("{}: {error}", what()));
            let inode = Inode::decode(&layout, bytes).unwrap_or_else(|e| panic!("{}: {e}", what()));
            let mut again = bytes.to_vec();
            inode.encode(&layout, ino, &mut again).unwrap();
            assert_eq!(again, bytes, "{}", what());
            seen += 1;
        }
        assert!(seen >= 2, "mke2fs {args}: root and lost+found at least, {seen} seen");
        let root = Inode::decode(&layout, image.inode_bytes(&sb, Ino::ROOT)).unwrap();
        assert_eq!(root.kind(), Some(FileKind::Directory), "mke2fs {args}");
        if args.contains("root_owner") {
            assert_eq!((root.uid, root.gid), (70000, 80000));
        }
    }
}

#[test]
fn every_field_that_debugfs_can_set_is_read() {
    let Some(mut image) = Image::make("-t ext4 -O project -b 4096", "20M") else { return };
    let path = image.path.to_str().unwrap().to_owned();
    let host = image.path.with_extension("host");
    std::fs::write(&host, vec![7u8; 5000]).unwrap();
    let commands = [
        format!("write {} file", host.display()),
        "set_inode_field file mode 0107651".into(),
        "set_inode_field file uid 70001".into(),
        "set_inode_field file gid 80002".into(),
        "set_inode_field file size 0x123456789a".into(),
        "set_inode_field file atime @0x17fffffff".into(),
        "set_inode_field file mtime @0x200000000".into(),
        "set_inode_field file crtime @0x37fffffff".into(),
        "set_inode_field file links_count 7".into(),
        "set_inode_field file generation 0xdeadbeef".into(),
        "set_inode_field file flags 0x80090".into(),
        "set_inode_field file projid 4242".into(),
        "set_inode_field file blocks 0x0000345678".into(),
        "set_inode_field file version 99".into(),
        "mknod null c 1 3".into(),
        "mknod nvme b 259 300".into(),
        "mknod pipe p".into(),
        "symlink link target/of/link".into(),
        format!("symlink slow {}", "x".repeat(80)),
    ];
    let script = image.path.with_extension("script");
    std::fs::write(&script, commands.join("\n")).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), &path]);
    image.bytes = std::fs::read(&image.path).unwrap();
    let sb = image.superblock();
    let layout = InodeLayout::of(&sb);
    let read = |name: &str| {
        let stat = image.debugfs(&format!("stat {name}"));
        let ino = stat.strip_prefix("Inode: ").and_then(|s| s.split_whitespace().next()).unwrap();
        let ino = Ino(ino.parse().unwrap());
        let bytes = image.inode_bytes(&sb, ino);
        Inode::verify_checksum(&layout, ino, bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut again = bytes.to_vec();
        let inode = Inode::decode(&layout, bytes).unwrap();
        inode.encode(&layout, ino, &mut again).unwrap();
        assert_eq!(again, bytes, "{name}");
        inode
    };
    let file = read("file");
    assert_eq!((file.mode, file.kind()), (0o107651, Some(FileKind::Regular)));
    assert_eq!((file.uid, file.gid, file.project), (70001, 80002, 4242));
    assert_eq!(file.size, 0x12_3456_789a);
    assert_eq!(file.atime.seconds, 0x1_7fff_ffff);
    assert_eq!(file.mtime.seconds, 0x2_0000_0000);
    assert_eq!(file.crtime.unwrap().seconds, 0x3_7fff_ffff);
    assert_eq!((file.links, file.generation, file.version), (7, 0xdead_beef, 99));
    assert_eq!(file.flags, InodeFlags::EXTENTS | InodeFlags::IMMUTABLE | InodeFlags::NOATIME);
    assert_eq!(file.sectors, 0x345678);
    assert_eq!(read("null").device(), Some(DeviceNumber { major: 1, minor: 3 }));
    assert_eq!(read("nvme").device(), Some(DeviceNumber { major: 259, minor: 300 }));
    assert_eq!(read("pipe").kind(), Some(FileKind::Fifo));
    let link = read("link");
    assert!(link.is_fast_symlink());
    assert!(link.block.starts_with(b"target/of/link\0"));
    assert!(!read("slow").is_fast_symlink());
}

#[test]
fn orphan_file_blocks_verify_and_encode_to_themselves() {
    for args in ["-t ext4 -O orphan_file", "-t ext4 -O orphan_file,^metadata_csum -b 1024"] {
        let Some(image) = Image::make(args, "64M") else { return };
        let sb = image.superblock();
        let layout = InodeLayout::of(&sb);
        let ino = sb.orphan_file_inode;
        let inode = Inode::decode(&layout, image.inode_bytes(&sb, ino)).unwrap();
        let seed = sb
            .features
            .metadata_csum()
            .then(|| inode_seed(sb.checksum_seed(), ino, inode.generation));
        let text = image.debugfs(&format!("blocks <{ino}>"));
        let blocks: Vec<u64> = text.split_whitespace().map(|b| b.parse().unwrap()).collect();
        // What debugfs lists are the data blocks, after an extent block if there is one.
        let data = (inode.size / u64::from(sb.block_size.bytes())) as usize;
        assert!(data > 0 && blocks.len() >= data, "{args}: {text}");
        for block in &blocks[blocks.len() - data..] {
            let block = FsBlock(*block);
            let bytes = image.block(&sb, block);
            let orphans = OrphanBlock::decode(sb.block_size, block, seed, bytes)
                .unwrap_or_else(|error| panic!("{args}: {error}"));
            assert_eq!(orphans.orphans().count(), 0);
            let mut again = vec![0; sb.block_size.len()];
            orphans.encode(sb.block_size, block, seed, &mut again).unwrap();
            assert_eq!(again, bytes, "{args}");
        }
    }
}

#[test]
fn the_multi_mount_block_verifies_and_encodes_to_itself() {
    for args in ["-t ext4 -O mmp", "-t ext4 -O mmp,^metadata_csum -E mmp_update_interval=9"] {
        let Some(image) = Image::make(args, "40M") else { return };
        let sb = image.superblock();
        let seed = sb.features.metadata_csum().then(|| sb.checksum_seed());
        let bytes = image.block(&sb, sb.mmp_block);
        let mmp = Mmp::decode(seed, bytes).unwrap_or_else(|error| panic!("{args}: {error}"));
        assert_eq!(mmp.state, MmpState::Clean, "{args}");
        assert_eq!(mmp.check_interval, if args.contains("=9") { 9 } else { 5 }, "{args}");
        assert_eq!(mmp.encode(seed), bytes[..1024], "{args}");
    }
}

#[test]
fn quota_files_of_mke2fs_are_what_we_would_write() {
    let Some(image) = Image::make("-t ext4 -O quota,project", "40M") else { return };
    let sb = image.superblock();
    for (ino, kind) in [
        (sb.user_quota_inode, QuotaKind::User),
        (sb.group_quota_inode, QuotaKind::Group),
        (sb.project_quota_inode, QuotaKind::Project),
    ] {
        let out = image.path.with_extension(format!("{kind:?}"));
        image.debugfs(&format!("dump <{ino}> {}", out.display()));
        let bytes = std::fs::read(&out).unwrap();
        let file = QuotaFile::decode(&bytes).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        assert_eq!(file.kind, kind);
        assert_eq!(file.entries.len(), 1, "{kind:?}: root owns all there is");
        // Root directory and lost+found: 4 + 16 KiB.
        let root = QuotaEntry { space_bytes: 20480, inodes: 2, ..QuotaEntry::default() };
        assert_eq!(file.entries[0], root, "{kind:?}");
        let ours = file.encode().unwrap();
        assert!(ours == bytes[..ours.len()], "{kind:?}: not the same bytes");
        assert!(bytes[ours.len()..].iter().all(|byte| *byte == 0), "{kind:?}: tail");
    }
}

#[test]
fn quota_files_we_write_please_e2fsck() {
    let Some(image) = Image::make("-t ext4 -O quota -b 4096", "40M") else { return };
    let path = image.path.to_str().unwrap();
    // Forty owners, more than two leaves; e2fsck writes the quota files of what it finds.
    let mut script = String::new();
    let host = image.path.with_extension("host");
    std::fs::write(&host, vec![1u8; 9000]).unwrap();
    for n in 0..40u32 {
        let uid = n * 70_001;
        script += &format!("write {} f{n}\n", host.display());
        script += &format!("set_inode_field f{n} uid {uid}\nset_inode_field f{n} gid {n}\n");
    }
    let file = image.path.with_extension("script");
    std::fs::write(&file, script).unwrap();
    run("debugfs", &["-w", "-f", file.to_str().unwrap(), path]);
    let status = Command::new("timeout")
        .args(["-s", "KILL", "60", "/usr/sbin/e2fsck", "-fy", path])
        .output()
        .expect("timeout of coreutils runs");
    assert!(matches!(status.status.code(), Some(0 | 1)), "{status:?}");

    for (ino, kind) in [(3, QuotaKind::User), (4, QuotaKind::Group)] {
        let out = image.path.with_extension(format!("{kind:?}"));
        image.debugfs(&format!("dump <{ino}> {}", out.display()));
        let bytes = std::fs::read(&out).unwrap();
        let file = QuotaFile::decode(&bytes).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        assert_eq!(file.entries.len(), 40, "{kind:?}");
        for entry in &file.entries[1..] {
            assert_eq!((entry.space_bytes, entry.inodes), (12288, 1), "{kind:?} {}", entry.id);
        }
        // Our file, put in place of e2fsck's, must be accepted without a word.
        let ours = file.encode().unwrap();
        assert_eq!(ours, bytes, "{kind:?}: same blocks in the same order");
    }
}

#[test]
fn an_external_journal_is_named_as_one() {
    let Some(image) = Image::make("-O journal_dev -b 4096", "10M") else { return };
    let error = Superblock::decode(&image.bytes[1024..]).unwrap_err();
    assert!(
        matches!(error, SuperblockError::JournalDevice { blocks: 2560, block_bytes: 4096, .. }),
        "{error}"
    );
}

#[test]
fn flipping_any_byte_of_a_superblock_is_noticed_or_harmless() {
    let Some(image) = Image::make("-t ext4", "40M") else { return };
    let mut bytes = image.bytes[1024..2048].to_vec();
    for at in 0..1024 {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            // Turning metadata_csum itself off, or the revision to 0, takes the checksum away.
            let excused = (at == 0x65 && bit == 2) || (at == 0x4c && bit == 0);
            assert!(Superblock::decode(&bytes).is_err() || excused, "byte {at:#x} bit {bit}");
            bytes[at] ^= 1 << bit;
        }
    }
}
