//! Every number and location of a geometry against what mke2fs makes of the same options.
//!
//! Goal: `geometry::compute` decides as mke2fs does. Method: run the installed mke2fs on a sparse
//! file, read the result with dumpe2fs, compare the header field by field and every group's
//! locations. The short table runs with every build, the long one with `--ignored`.
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use extant_base::BlockSize;
use extant_image::geometry::{self, EmptyFs, Geometry, GeometryError, SizeRequest};
use extant_image::options::{FastCommitSize, JournalOption, MkfsOptions};
use extant_image::profile::Profile;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// One set of options, for mke2fs and for extant.
struct Case {
    mke2fs: Vec<String>,
    options: MkfsOptions,
}

/// Reads mke2fs's spelling into [`MkfsOptions`], so that a table has each option once.
fn case(line: &str) -> Case {
    let mut words = line.split_whitespace();
    let profile: Profile = words.next().unwrap().parse().unwrap();
    let mut options = MkfsOptions::new(profile);
    let mut mke2fs: Vec<String> = Vec::new();
    let mut features = String::new();
    match profile {
        Profile::Default => {
            mke2fs.extend(["-t".into(), "ext4".into()]);
            features = "metadata_csum_seed,orphan_file".into();
        }
        Profile::Debian12 => mke2fs.extend(["-t".into(), "ext4".into()]),
        Profile::Microvm => {
            let words = "-t ext4 -b 4096 -m 0 -E packed_meta_blocks=1";
            mke2fs.extend(words.split(' ').map(str::to_owned));
            features = "metadata_csum_seed,sparse_super2,^resize_inode".into();
        }
        other => mke2fs.extend(["-t".into(), other.name().into()]),
    }
    while let Some(flag) = words.next() {
        let value = words.next().expect(line);
        match flag {
            "-O" => {
                options = options.with_features(value).unwrap();
                if value.contains("^has_journal") {
                    // Said with the rest it would be an error; extant's profile yields.
                    features = features.replace("orphan_file", "^orphan_file");
                }
                if !features.is_empty() {
                    features.push(',');
                }
                features.push_str(value);
                continue;
            }
            "-b" => options.block_size = Some(BlockSize::new(value.parse().unwrap()).unwrap()),
            "-C" => options.cluster_bytes = Some(value.parse().unwrap()),
            "-I" => options.inode_size = Some(value.parse().unwrap()),
            "-i" => options.bytes_per_inode = Some(value.parse().unwrap()),
            "-N" => options.inodes = Some(value.parse().unwrap()),
            "-m" => options.reserved_percent = Some(value.parse().unwrap()),
            "-g" => options.blocks_per_group = Some(value.parse().unwrap()),
            "-G" => options.flex_groups = Some(value.parse().unwrap()),
            "-J" => {
                for item in value.split(',') {
                    match item.split_once('=').unwrap() {
                        ("size", mib) => {
                            options.journal =
                                JournalOption::Bytes(mib.parse::<u64>().unwrap() * MIB);
                        }
                        ("fast_commit_size", kib) => {
                            let bytes = kib.parse::<u64>().unwrap() * KIB;
                            options.fast_commit = FastCommitSize::Bytes(bytes);
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            "-E" => options.apply_extended(value).unwrap(),
            other => panic!("{other} in {line}"),
        }
        mke2fs.extend([flag.into(), value.into()]);
    }
    if !features.is_empty() {
        mke2fs.extend(["-O".into(), features]);
    }
    Case { mke2fs, options }
}

/// What dumpe2fs says: header lines by name, and location lines of each group.
struct Dump {
    header: HashMap<String, String>,
    groups: Vec<String>,
}

fn dump(image: &Path) -> Dump {
    let output = Command::new("dumpe2fs").arg(image).output().expect("dumpe2fs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut header = HashMap::new();
    let mut groups: Vec<String> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Group ") {
            let (number, rest) = rest.split_once(": (Blocks ").unwrap_or(("?", ""));
            // A line before the groups also starts with "Group": the descriptor size.
            if number.parse::<u32>().is_ok() {
                let range = rest.split(')').next().unwrap_or("");
                groups.push(format!("blocks {range}"));
                continue;
            }
        }
        let Some(group) = groups.last_mut() else {
            if let Some((name, value)) = line.split_once(':') {
                header.insert(name.trim().to_owned(), value.trim().to_owned());
            }
            continue;
        };
        let numbers = |text: &str| text.split([' ', ',']).next().unwrap_or("").to_owned();
        for part in line.trim().split(", ") {
            for (prefix, name) in [
                ("Primary superblock at ", "super"),
                ("Backup superblock at ", "super"),
                ("Group descriptors at ", "gdt"),
                ("Group descriptor at ", "gdt"),
                ("Reserved GDT blocks at ", "reserved"),
                ("Block bitmap at ", "bb"),
                ("Inode bitmap at ", "ib"),
                ("Inode table at ", "it"),
            ] {
                if let Some(rest) = part.strip_prefix(prefix) {
                    write!(group, " {name} {}", numbers(rest)).unwrap();
                }
            }
        }
    }
    Dump { header, groups }
}

/// How many extents inode `ino` of `image` has, index blocks not counted.
fn extents(image: &Path, ino: &str) -> usize {
    let request = format!("dump_extents -l <{ino}>");
    let output = Command::new("debugfs").args(["-R", &request]).arg(image).output();
    let text = String::from_utf8(output.expect("debugfs").stdout).unwrap();
    // The first line names the columns.
    text.lines().skip(1).count()
}

/// The groups of `geometry` in the same words.
fn groups_text(geometry: &Geometry) -> impl Iterator<Item = String> {
    let meta_bg = geometry.has(extant_image::options::Feature::META_BG);
    geometry.groups().map(move |group| {
        let mut text = format!(
            "blocks {}-{}",
            group.first_block,
            group.first_block + u64::from(group.block_count) - 1
        );
        if let Some(block) = group.super_block {
            write!(text, " super {block}").unwrap();
        }
        if !group.gdt.is_empty() {
            match meta_bg {
                true => write!(text, " gdt {}", group.gdt.start).unwrap(),
                false => write!(text, " gdt {}-{}", group.gdt.start, group.gdt.end - 1).unwrap(),
            }
        }
        if !group.reserved_gdt.is_empty() {
            let reserved = &group.reserved_gdt;
            write!(text, " reserved {}-{}", reserved.start, reserved.end - 1).unwrap();
        }
        let table = &group.inode_table;
        let (bb, ib) = (group.block_bitmap, group.inode_bitmap);
        write!(text, " bb {bb} ib {ib} it {}-{}", table.start, table.end - 1).unwrap();
        text
    })
}

/// Differences between mke2fs's and ours for one case and size; empty when none.
fn differences(line: &str, bytes: u64, dir: &Path) -> Vec<String> {
    let Case { mke2fs, options } = case(line);
    let image = dir.join("image");
    let _ = std::fs::remove_file(&image);
    File::create(&image).unwrap().set_len(bytes).unwrap();
    let output = Command::new("mke2fs")
        .args(["-q", "-F", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"])
        .args(&mke2fs)
        .arg(&image)
        .output()
        .expect("mke2fs");
    let ours = geometry::compute(&options, SizeRequest::Device { bytes });
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
    let geometry = match (&ours, output.status.success()) {
        (Ok(geometry), true) => geometry,
        (Err(_), false) => return Vec::new(),
        (Ok(geometry), false) => return vec![format!("mke2fs refuses: {said}; ours {geometry:?}")],
        // A journal asked for is not left out in silence.
        (Err(GeometryError::JournalTooBig { free: 0..2048, .. }), true)
            if said.contains("too small for a journal") =>
        {
            return Vec::new();
        }
        (Err(error), true) => return vec![format!("we refuse: {error}; mke2fs: {said}")],
    };
    let dump = dump(&image);
    let mut found = Vec::new();
    let mut check = |name: &str, ours: String| {
        let theirs = dump.header.get(name).map_or("-", String::as_str);
        if theirs != ours {
            found.push(format!("{name}: mke2fs {theirs}, ours {ours}"));
        }
    };
    let or_dash = |value: u64, absent: u64| match value == absent {
        true => "-".to_owned(),
        false => value.to_string(),
    };
    let sorted = |text: &str| {
        let mut names: Vec<_> = text.split(' ').filter(|n| !n.starts_with("(none")).collect();
        names.sort_unstable();
        names.join(" ")
    };
    let theirs = sorted(dump.header.get("Filesystem features").map_or("", String::as_str));
    let features = geometry.features.to_string();
    let ours = sorted(if features == "none" { "" } else { &features });
    if theirs != ours {
        check("Filesystem features", ours);
    }
    check("Inode count", geometry.inodes_count.to_string());
    check("Block count", geometry.blocks_count.to_string());
    check("Reserved block count", geometry.reserved_blocks.to_string());
    check("Overhead clusters", geometry.overhead_clusters().to_string());
    // Newer mke2fs than the oracle keeps the orphan file at 2 MiB when blocks are large.
    let orphan_file = match geometry.orphan_file_blocks {
        0 => 0,
        _ => (geometry.blocks_count / 4096).clamp(32, 512),
    };
    let more_orphan_file = (orphan_file - u64::from(geometry.orphan_file_blocks))
        .next_multiple_of(geometry.cluster_blocks.into());
    let free = EmptyFs::of(geometry, &options).free_blocks(geometry) - more_orphan_file;
    // What lies in the middle of a hidden file costs more extents than its length does, and the
    // fifth takes a block (with very many, up to three): that depends on where mke2fs puts the file, not on geometry.
    let theirs = dump.header.get("Free blocks").and_then(|text| text.parse::<u64>().ok());
    let more_maps = theirs.and_then(|theirs| free.checked_sub(theirs)).unwrap_or(0);
    let allowed = 1..=3 * u64::from(geometry.cluster_blocks);
    let scattered = allowed.contains(&more_maps)
        && ["Journal inode", "Orphan file inode"]
            .into_iter()
            .filter_map(|name| dump.header.get(name))
            .any(|ino| extents(&image, ino) > 4);
    let free = if scattered { free - more_maps } else { free };
    check("Free blocks", free.to_string());
    check("First block", geometry.first_data_block.to_string());
    check("Block size", geometry.block_size.bytes().to_string());
    check("Group descriptor size", or_dash(geometry.desc_size.into(), 32));
    check("Reserved GDT blocks", or_dash(geometry.reserved_gdt_blocks.into(), 0));
    check("Blocks per group", geometry.blocks_per_group.to_string());
    check("Inodes per group", geometry.inodes_per_group.to_string());
    check("Inode blocks per group", geometry.inode_table_blocks.to_string());
    check("Flex block group size", or_dash(geometry.flex_groups.into(), 1));
    check("Inode size", geometry.inode_size.to_string());
    check("First inode", geometry.first_ino.to_string());
    let journal = geometry.journal.map_or(0, |journal| journal.total_blocks());
    check("Total journal blocks", or_dash(journal.into(), 0));
    if let Some(journal) = geometry.journal {
        check("Fast commit length", journal.fast_commit_blocks.to_string());
    }
    if geometry.cluster_blocks > 1 {
        let cluster_bytes = geometry.cluster_blocks * geometry.block_size.bytes();
        check("Cluster size", cluster_bytes.to_string());
        check("Clusters per group", geometry.clusters_per_group.to_string());
    }
    let backups: Vec<_> =
        geometry.backup_groups.iter().filter(|g| **g != 0).map(u32::to_string).collect();
    check("Backup block groups", if backups.is_empty() { "-".into() } else { backups.join(" ") });
    if geometry.group_count as usize != dump.groups.len() {
        found.push(format!("groups: mke2fs {}, ours {}", dump.groups.len(), geometry.group_count));
    }
    for (number, (ours, theirs)) in groups_text(geometry).zip(&dump.groups).enumerate() {
        if ours != *theirs {
            found.push(format!("group {number}: mke2fs {theirs}, ours {ours}"));
            if found.len() > 12 {
                break;
            }
        }
    }
    found.extend(own_rules(geometry));
    found
}

/// What must hold whatever mke2fs does: the walks and the totals agree with each other.
fn own_rules(geometry: &Geometry) -> Option<String> {
    let mut end = 0;
    let mut total = 0;
    for run in geometry.fixed_runs() {
        if run.start < end || run.end <= run.start || run.end > geometry.blocks_count {
            return Some(format!("fixed run {run:?} after block {end}"));
        }
        (end, total) = (run.end, total + run.end - run.start);
    }
    if total != geometry.fixed_metadata_blocks() {
        let counted = geometry.fixed_metadata_blocks();
        return Some(format!("fixed runs have {total} blocks, counted {counted}"));
    }
    if geometry.group_count <= 512 {
        let last = geometry.group_count - 1;
        let groups = (0..=last).map(extant_base::GroupIndex);
        let by_group: u64 = groups
            .clone()
            .flat_map(|group| geometry.fixed_runs_in(group))
            .map(|run| run.end - run.start)
            .sum();
        if by_group != total {
            return Some(format!("runs of all groups have {by_group} blocks, fixed runs {total}"));
        }
        if !groups.clone().map(|group| geometry.group(group)).eq(geometry.groups()) {
            return Some("group() and groups() disagree".to_owned());
        }
        // Whoever writes a part of them goes there at once.
        let skipping = |group: extant_base::GroupIndex| {
            let mut rest = geometry.groups().skip(group.0 as usize);
            rest.len() == (last - group.0 + 1) as usize
                && rest.next() == Some(geometry.group(group))
                && rest.next().map(|layout| layout.group.0) == (group.0 + 1..=last).next()
        };
        if !groups.clone().all(skipping) || geometry.groups().nth(last as usize + 1).is_some() {
            return Some("groups() passes over others than asked".to_owned());
        }
    }
    None
}

/// Runs the product of `cases` and `sizes`, and fails with all differences.
fn run(cases: &[&str], sizes: &[u64]) {
    if Command::new("mke2fs").arg("-V").output().is_err() {
        eprintln!("skipped: mke2fs is not installed (Debian package e2fsprogs)");
        return;
    }
    let dir =
        tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" })
            .unwrap();
    let mut report = String::new();
    let (mut same, mut different) = (0, 0);
    for line in cases {
        for &bytes in sizes {
            let found = differences(line, bytes, dir.path());
            if found.is_empty() {
                same += 1;
                continue;
            }
            different += 1;
            if different <= 40 {
                writeln!(report, "{line} of {bytes} bytes ({} KiB):", bytes / KIB).unwrap();
                found.iter().for_each(|one| writeln!(report, "    {one}").unwrap());
            }
        }
    }
    assert_eq!(different, 0, "{same} cases the same, different:\n{report}");
}

const PROFILES: [&str; 5] = ["default", "debian12", "ext3", "ext2", "microvm"];

#[test]
fn profiles_match_mke2fs_from_small_to_a_gigabyte() {
    let sizes = [1, 2, 3, 5, 8, 16, 31, 64, 100, 127, 128, 129, 256, 511, 512, 513, 1024];
    run(&PROFILES, &sizes.map(|mib| mib * MIB));
}

#[test]
fn odd_sizes_match_mke2fs() {
    let sizes = [0, 4, 60, 100, 200, 999, 8193, 8200, 8452, 8500, 8700, 8760, 9000, 33_333, 65_540];
    run(&["default", "ext3", "debian12 -b 4096"], &sizes.map(|kib| kib * KIB));
}

#[test]
fn variants_match_mke2fs() {
    let cases = [
        "default -b 2048",
        "default -b 65536",
        "debian12 -O bigalloc",
        "default -O ^flex_bg",
        "default -O ^flex_bg -E stride=64",
        "default -O meta_bg,^resize_inode",
        "default -O ^sparse_super,^resize_inode",
        "default -O sparse_super2",
        "default -O ^64bit",
        "default -O fast_commit,quota,project,mmp",
        "default -I 1024 -i 4096 -m 0.5 -G 4",
        "default -N 12345 -g 4096",
        "default -E resize=20000000",
        "default -E packed_meta_blocks=1",
        "ext2 -I 128 -i 1024",
    ];
    run(&cases, &[5 * MIB, 77 * MIB + 4096, 700 * MIB]);
}

#[test]
fn a_few_gigabytes_match_mke2fs() {
    run(&["default", "ext3"], &[3 * GIB + 12 * KIB, 10 * GIB, 31 * GIB]);
}

/// Every option over every size, for one block size.
fn run_everything(block: &str) {
    let mib = [1, 2, 3, 5, 8, 16, 31, 64, 100, 127, 128, 129, 256, 511, 512, 513];
    let mut sizes: Vec<u64> = mib.iter().map(|n| n * MIB).collect();
    sizes.extend([1, 3, 4, 10, 16, 31, 64].map(|n| n * GIB));
    sizes.extend([1_234_567, 4_321_000, 262_148, 1_048_700].map(|kib| kib * KIB));
    let mut cases: Vec<String> = Vec::new();
    cases.extend(PROFILES.map(|profile| format!("{profile} {block}")));
    for variant in [
        "-O bigalloc",
        "-O bigalloc,^resize_inode -C 131072",
        "-O ^flex_bg",
        "-O ^flex_bg -E stride=64",
        "-O meta_bg,^resize_inode",
        "-O meta_bg,^resize_inode,^flex_bg",
        "-O ^sparse_super,^resize_inode",
        "-O ^sparse_super,^resize_inode -E packed_meta_blocks=1",
        "-O sparse_super2",
        "-O sparse_super2 -E num_backup_sb=1",
        "-O sparse_super2 -E num_backup_sb=0",
        "-O ^64bit",
        "-O ^has_journal",
        "-O fast_commit,quota,project,mmp",
        "-O inline_data,ea_inode,large_dir,casefold,encrypt,verity,stable_inodes",
        "-O ^metadata_csum_seed,^metadata_csum,uninit_bg",
        "-E packed_meta_blocks=1",
        "-E resize=60000000",
        "-E desc_size=128",
        "-E stride=16,stripe_width=64",
        "-I 128",
        "-I 512",
        "-I 1024 -i 2048",
        "-i 1024",
        "-i 67108864",
        "-N 12",
        "-N 7777",
        "-N 150000",
        "-m 0",
        "-m 0.5",
        "-m 50",
        "-m 12.345",
        "-g 256",
        "-g 1024",
        "-g 8184",
        "-G 1",
        "-G 2",
        "-G 64",
        "-G 65536",
        "-G 128 -N 1000000",
        "-J size=4",
        "-J size=64",
    ] {
        cases.push(format!("default {variant} {block}"));
    }
    let cases: Vec<&str> = cases.iter().map(String::as_str).collect();
    run(&cases, &sizes);
}

#[test]
#[ignore = "minutes: every option over every size"]
fn everything_matches_mke2fs_with_automatic_blocks() {
    run_everything("");
}

#[test]
#[ignore = "minutes: every option over every size"]
fn everything_matches_mke2fs_with_1k_blocks() {
    run_everything("-b 1024");
}

#[test]
#[ignore = "minutes: every option over every size"]
fn everything_matches_mke2fs_with_2k_blocks() {
    run_everything("-b 2048");
}

#[test]
#[ignore = "minutes: every option over every size"]
fn everything_matches_mke2fs_with_4k_blocks() {
    run_everything("-b 4096");
}

#[test]
#[ignore = "minutes: every option over every size"]
fn everything_matches_mke2fs_with_64k_blocks() {
    run_everything("-b 65536");
}

#[test]
#[ignore = "minutes: file systems of terabytes"]
fn terabytes_match_mke2fs() {
    let sizes = [100 * GIB, TIB, 4 * TIB, 159 * TIB / 10, 16 * TIB - 64 * KIB, 16 * TIB, 20 * TIB];
    run(&["default", "debian12", "default -O bigalloc", "default -b 65536"], &sizes);
    run(&["default -b 1024", "default -b 2048", "ext3"], &sizes[..2]);
    run(&["default -O meta_bg,^resize_inode", "default -E packed_meta_blocks=1"], &sizes[..3]);
}

/// A builder gets the blocks and inodes it computed, down to a last group of one block; and every
/// size in a stretch that crosses a group's end obeys the rules of `own_rules`.
#[test]
fn exact_sizes_keep_their_blocks_and_inodes() {
    let options = MkfsOptions::new(Profile::Microvm);
    for blocks in (32_768..33_400).chain(98_300..98_320) {
        for inodes in [12, 5000, 30_000] {
            let size = SizeRequest::Exact { blocks, inodes: Some(inodes) };
            let geometry = geometry::compute(&options, size).unwrap();
            assert!(u64::from(geometry.inodes_count) >= inodes, "{blocks} {inodes}");
            let kept = geometry.blocks_count;
            // `sparse_super2` puts a backup in the last group: two blocks and one to spare.
            let fits = blocks % 32_768 == 0 || blocks % 32_768 >= 3;
            assert_eq!(kept == blocks, fits, "{blocks} asked for, {kept} kept");
            assert_eq!(own_rules(&geometry), None, "{blocks} {inodes}");
        }
    }
    let size = SizeRequest::Exact { blocks: 1000, inodes: Some(100_000) };
    let error = geometry::compute(&options, size).unwrap_err().to_string();
    assert!(error.contains("100000 inodes") && error.contains("-N"), "{error}");
}
