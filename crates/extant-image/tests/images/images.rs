//! Goal: the properties that hold for every image: same input, same bytes; exact headroom; nothing
//! left of what was on the target; clear refusals.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common;
use common::{AUTO, build, free_wanted, options};
use extant_block::{BlockDevice, MemoryDevice};
use extant_image::options::MkfsOptions;
use extant_image::plan::{BuildOptions, Headroom, PlanError, SizeSpec, plan};
use extant_image::profile::Profile;
use extant_image::source::NoContents;
use extant_image::tree::{Kind, Node, NodeId, Tree, TreeBuilder};
use extant_image::write::{NoProgress, Progress, WriteError, WriteOptions, write_image};
use extant_testkit::image::save;
use extant_testkit::oracle::{LoopMount, Tool, dumpe2fs, e2fsck, is_root};
use extant_testkit::tree::{TreeOptions, make};
use extant_testkit::{require, skip};

fn default_options() -> MkfsOptions {
    options(Profile::Default, "", 0, 0, "")
}

fn root() -> Node {
    Node { mode: 0o755, ..Node::new(Kind::Dir) }
}

/// A directory of `count` empty files.
fn flat_tree(count: u32) -> Tree {
    let mut builder = TreeBuilder::new(root());
    let dir = builder.add(root()).unwrap();
    builder.link(NodeId::ROOT, b"big", dir).unwrap();
    for index in 0..count {
        let file = builder.add(Node { mode: 0o644, ..Node::new(Kind::File) }).unwrap();
        builder.link(dir, format!("file-{index:08}").as_bytes(), file).unwrap();
    }
    builder.finish().unwrap()
}

/// Plans and writes a tree without contents to a device that holds 0xA5 everywhere.
fn onto_dirty_device(tree: &mut Tree, mkfs: MkfsOptions, size: SizeSpec, image: &Path) {
    let plan = plan(tree, &BuildOptions { mkfs, size, reproducible: true }).unwrap();
    let device = MemoryDevice::filled_with(0xa5, plan.image_bytes());
    let options = WriteOptions {
        threads: 2,
        target_is_zeroed: false,
        progress: &NoProgress,
        cancel: &AtomicBool::new(false),
    };
    write_image(&plan, tree, &NoContents, &device, &options).unwrap();
    save(&device, image);
}

#[test]
fn the_number_of_threads_does_not_show() {
    let source = tempfile::tempdir().unwrap();
    make(source.path(), &TreeOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let mut seen = HashSet::new();
    for (run, threads) in [1, 2, 3, 8, 2].into_iter().enumerate() {
        let image = dir.path().join(run.to_string());
        let mut mkfs = default_options();
        mkfs = mkfs.with_features("inline_data,quota").unwrap();
        let built = build(source.path(), &image, mkfs, AUTO, threads, true);
        if !is_root() {
            // The tree has a file that only root can read; nothing else may go wrong.
            if built.is_err() {
                skip!("needs root to read every file of the tree");
            }
        }
        built.unwrap();
        seen.insert(fs::read(&image).unwrap());
    }
    assert_eq!(seen.len(), 1, "images differ");
}

#[test]
fn headroom_is_exact_at_any_size() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let fsck = Tool::find("e2fsck").is_ok();
    // Around the first group limits with their backups (128 MiB each), and tiny ones.
    let steps = (0..40).map(|i| i * 7_919).chain((32_000..33_200).step_by(61));
    let steps = steps.chain((64_500..65_700).step_by(83)).chain((97_000..98_600).step_by(131));
    for (at, blocks) in steps.enumerate() {
        for features in ["", "^has_journal"] {
            let mut tree = flat_tree(10);
            let mkfs = default_options().with_features(features).unwrap();
            let size = SizeSpec::Auto(Headroom::Bytes(blocks * 4096));
            let build = BuildOptions { mkfs, size, reproducible: true };
            let planned = plan(&mut tree, &build).unwrap();
            let summary = planned.summary();
            let surplus = summary.free_blocks - free_wanted(&summary, blocks);
            let allowed = if features.is_empty() { 0 } else { 160 };
            assert!(surplus <= allowed, "{blocks} blocks {features}: {surplus} too many free");
            if fsck && at % 8 == 0 {
                onto_dirty_device(&mut flat_tree(10), build.mkfs, size, &image);
                let report = e2fsck(&image).unwrap();
                assert!(report.is_clean(), "{blocks} {features}: {}", report.text);
                let free = dumpe2fs(&image).unwrap()["Free blocks"].clone();
                assert_eq!(free, summary.free_blocks.to_string());
                fs::remove_file(&image).unwrap();
            }
        }
    }
}

#[test]
fn large_headroom_is_no_larger_than_asked_for() {
    for gib in [512, 1024, 3000] {
        let blocks = gib << 18;
        let size = SizeSpec::Auto(Headroom::Bytes(blocks * 4096));
        let build = BuildOptions { mkfs: default_options(), size, reproducible: true };
        let summary = plan(&mut flat_tree(10), &build).unwrap().summary();
        let surplus = summary.free_blocks - free_wanted(&summary, blocks);
        assert!(surplus <= 1024, "{gib} GiB: {surplus} blocks too many are free");
    }
}

#[test]
fn nothing_of_what_was_on_the_target_shows() {
    require!(Tool::find("e2fsck"));
    let dir = tempfile::tempdir().unwrap();
    for (at, features) in
        ["", "^has_journal,^orphan_file", "bigalloc", "quota,mmp", "^resize_inode,meta_bg"]
            .into_iter()
            .enumerate()
    {
        for profile in [Profile::Default, Profile::Ext2, Profile::Microvm] {
            if profile != Profile::Default && !features.is_empty() {
                continue;
            }
            let image = dir.path().join(format!("{at}{profile:?}"));
            let mkfs = options(profile, features, 0, 0, "");
            onto_dirty_device(&mut flat_tree(3000), mkfs, SizeSpec::Bytes(600 << 20), &image);
            e2fsck(&image).unwrap().assert_clean();
            if !is_root() || features.contains("quota") {
                continue;
            }
            // The kernel uses what was left free, and e2fsck still finds nothing.
            let mount = LoopMount::read_write(&image).unwrap();
            for index in 0..300 {
                fs::write(mount.path().join(format!("new-{index}")), vec![7; 50_000]).unwrap();
            }
            fs::create_dir(mount.path().join("dir")).unwrap();
            for index in 0..2000 {
                fs::write(mount.path().join(format!("big/more-{index}")), b"x").unwrap();
            }
            for index in 0..3000 {
                fs::remove_file(mount.path().join(format!("big/file-{index:08}"))).unwrap();
            }
            drop(mount);
            e2fsck(&image).unwrap().assert_clean();
        }
    }
}

#[test]
fn a_large_directory_is_indexed_and_every_name_is_found() {
    require!(Tool::find("e2fsck"));
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (count, features, block_bytes) in [
        (100_000, "", 4096),
        (60_000, "large_dir", 1024),
        (40_000, "^metadata_csum,^metadata_csum_seed", 2048),
    ] {
        let mut tree = flat_tree(count);
        let mkfs = options(Profile::Default, features, block_bytes, 0, "");
        onto_dirty_device(&mut tree, mkfs, AUTO, &image);
        e2fsck(&image).unwrap().assert_clean();
        if is_root() {
            let mount = LoopMount::read_only(&image).unwrap();
            for index in (0..count).step_by(7) {
                let path = mount.path().join(format!("big/file-{index:08}"));
                assert!(path.symlink_metadata().is_ok(), "{path:?}");
            }
            assert_eq!(fs::read_dir(mount.path().join("big")).unwrap().count(), count as usize);
        }
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn a_directory_too_large_for_its_index_says_what_helps() {
    // 1 KiB blocks: 123 * 126 leaves of at most 4 names of 255 bytes, less at 80 percent.
    let mut builder = TreeBuilder::new(root());
    for index in 0..60_000u32 {
        let file = builder.add(Node::new(Kind::File)).unwrap();
        builder.link(NodeId::ROOT, format!("{index:0>255}").as_bytes(), file).unwrap();
    }
    let mut tree = builder.finish().unwrap();
    let mkfs = options(Profile::Default, "", 1024, 0, "");
    let build = BuildOptions { mkfs, size: AUTO, reproducible: true };
    let error = plan(&mut tree, &build).unwrap_err().to_string();
    assert!(error.contains("large_dir"), "{error}");
    let mkfs = options(Profile::Default, "large_dir", 1024, 0, "");
    plan(&mut tree, &BuildOptions { mkfs, size: AUTO, reproducible: true }).unwrap();
}

#[test]
fn too_small_says_what_would_fit_and_that_fits() {
    let source = tempfile::tempdir().unwrap();
    for index in 0..40 {
        fs::write(source.path().join(index.to_string()), vec![index; 300_000]).unwrap();
    }
    let image = source.path().with_extension("img");
    let build_at =
        |bytes| build(source.path(), &image, default_options(), SizeSpec::Bytes(bytes), 1, true);
    let error = build_at(10 << 20).unwrap_err();
    let PlanError::DoesNotFit { needed_bytes: Some(needed), missing_bytes, .. } = error else {
        panic!("{error}");
    };
    assert!(missing_bytes > 1 << 20);
    assert!(!image.exists());
    build_at(needed).unwrap();
    fs::remove_file(&image).unwrap();

    // Too small for the metadata alone: the same kind of answer.
    let error = build_at(200 << 10).unwrap_err();
    let PlanError::DoesNotFit { needed_bytes: Some(needed), .. } = error else {
        panic!("{error}");
    };
    build_at(needed).unwrap();
    fs::remove_file(&image).unwrap();

    let mut few = default_options();
    few.inodes = Some(32);
    let error = build(source.path(), &image, few, AUTO, 1, true).unwrap_err();
    assert!(matches!(error, PlanError::TooFewInodes { available: 32, .. }), "{error}");
}

/// A tree of one file of `size` bytes, all of it a hole.
fn one_hole(size: u64) -> Tree {
    let mut builder = TreeBuilder::new(root());
    let runs = builder.store_runs(Vec::new()).unwrap();
    let file = Node { mode: 0o644, size, runs, ..Node::new(Kind::File) };
    let file = builder.add(file).unwrap();
    builder.link(NodeId::ROOT, b"hole", file).unwrap();
    builder.finish().unwrap()
}

#[test]
fn the_kernel_opens_the_longest_file_that_is_stored() {
    require!(Tool::find("e2fsck"));
    let dir = tempfile::tempdir().unwrap();
    for (at, (features, block, longest)) in [
        ("^huge_file", 4096, (1u64 << 29) - 1),
        ("^huge_file,^extent,^64bit", 4096, 536_346_110),
        ("^huge_file,^extent,^64bit", 2048, 134_480_396),
        ("^extent,^64bit", 4096, 1_074_791_436),
        ("", 1024, (1 << 32) - 1),
    ]
    .into_iter()
    .enumerate()
    {
        let mkfs = || options(Profile::Default, features, block, 0, "");
        let size = SizeSpec::Auto(Headroom::None);
        let bytes = longest * block;
        let refused = plan(
            &mut one_hole(bytes + 1),
            &BuildOptions { mkfs: mkfs(), size, reproducible: true },
        );
        let text = refused.expect_err("too long").to_string();
        assert!(text.contains("/hole") && text.contains(&longest.to_string()), "{text}");
        assert_eq!(text.contains("huge_file"), features.starts_with("^huge"), "{text}");

        let image = dir.path().join(at.to_string());
        onto_dirty_device(&mut one_hole(bytes), mkfs(), size, &image);
        e2fsck(&image).unwrap().assert_clean();
        if !is_root() {
            println!("skipped mounting {features}: needs root");
            continue;
        }
        let mount = LoopMount::read_only(&image).unwrap();
        let file = fs::File::open(mount.path().join("hole")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), bytes);
        let mut last = [1];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut last, bytes - 1).unwrap();
        assert_eq!(last, [0]);
    }
}

#[test]
fn more_files_than_the_ratio_gives_get_their_inodes() {
    require!(Tool::find("e2fsck"));
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let mut tree = flat_tree(30_000);
    onto_dirty_device(&mut tree, default_options(), SizeSpec::Bytes(64 << 20), &image);
    e2fsck(&image).unwrap().assert_clean();
}

/// Sets the flag after some bytes.
struct StopAt<'a>(&'a AtomicBool);

impl Progress for StopAt<'_> {
    fn add(&self, _bytes: u64) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_interrupted_image_has_no_superblock() {
    let cancel = AtomicBool::new(false);
    let mut tree = flat_tree(50_000);
    let build = BuildOptions {
        mkfs: default_options(),
        size: SizeSpec::Bytes(256 << 20),
        reproducible: true,
    };
    let plan = plan(&mut tree, &build).unwrap();
    let device = MemoryDevice::new(plan.image_bytes());
    let options = WriteOptions {
        threads: 2,
        target_is_zeroed: true,
        progress: &StopAt(&cancel),
        cancel: &cancel,
    };
    let result = write_image(&plan, &tree, &NoContents, &device, &options);
    assert!(matches!(result, Err(WriteError::Interrupted)), "{result:?}");
    let mut head = [0; 4096];
    device.read_at(0, &mut head).unwrap();
    assert!(head.iter().all(|&b| b == 0));
}

#[test]
fn hard_links_and_directory_links_stop_at_the_formats_limits() {
    let mut builder = TreeBuilder::new(root());
    let file = builder.add(Node::new(Kind::File)).unwrap();
    for index in 0..65_001u32 {
        builder.link(NodeId::ROOT, index.to_string().as_bytes(), file).unwrap();
    }
    let mut tree = builder.finish().unwrap();
    let build = BuildOptions { mkfs: default_options(), size: AUTO, reproducible: true };
    let error = plan(&mut tree, &build).unwrap_err().to_string();
    assert!(error.contains("65001 hard links"), "{error}");

    let many = |features: &str, count: u32| {
        let mut builder = TreeBuilder::new(root());
        for index in 0..count {
            let dir = builder.add(root()).unwrap();
            builder.link(NodeId::ROOT, index.to_string().as_bytes(), dir).unwrap();
        }
        let mut tree = builder.finish().unwrap();
        let mkfs = options(Profile::Default, features, 1024, 0, "");
        let build = BuildOptions { mkfs, size: AUTO, reproducible: true };
        plan(&mut tree, &build).map(drop).map_err(|e| e.to_string()).map(|()| tree)
    };
    // `.` and the name that the directory has count as well, and so does lost+found.
    assert!(many("^dir_nlink", 65_000 - 2 - 1).is_ok());
    let error = many("^dir_nlink", 65_000 - 2).unwrap_err();
    assert!(error.contains("dir_nlink"), "{error}");
    let mut tree = many("", 65_010).unwrap();
    if Tool::find("e2fsck").is_ok() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let mkfs = options(Profile::Default, "", 1024, 0, "");
        // The plan above added lost+found; a second plan must find it.
        onto_dirty_device(&mut tree, mkfs, AUTO, &image);
        e2fsck(&image).unwrap().assert_clean();
    }
}

/// Growing needs the resize inode and the reserved descriptors to be what resize2fs expects.
#[test]
fn resize2fs_grows_what_was_built() {
    require!(Tool::find("e2fsck"));
    let resize = require!(Tool::find("resize2fs"));
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (profile, features, block_bytes) in [
        (Profile::Default, "", 0),
        (Profile::Default, "", 1024),
        (Profile::Default, "^resize_inode,meta_bg", 0),
        (Profile::Default, "^flex_bg", 0),
        (Profile::Default, "^has_journal", 0),
        (Profile::Ext2, "", 0),
        (Profile::Ext3, "", 0),
        (Profile::Microvm, "", 0),
    ] {
        let mkfs = options(profile, features, block_bytes, 0, "");
        let size = SizeSpec::Auto(Headroom::Bytes(5 << 20));
        onto_dirty_device(&mut flat_tree(100), mkfs, size, &image);
        fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(900 << 20).unwrap();
        resize.run([&image]);
        e2fsck(&image).unwrap().assert_clean();
        fs::remove_file(&image).unwrap();
    }
}

/// Values too large for a block lie in inodes of their own, with a map of their own.
#[test]
fn large_attribute_values_are_clean_with_extents_and_with_block_maps() {
    require!(Tool::find("e2fsck"));
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (profile, features, block_bytes) in [
        (Profile::Default, "ea_inode", 0),
        (Profile::Default, "ea_inode", 1024),
        (Profile::Ext3, "ea_inode", 0),
        (Profile::Ext3, "ea_inode", 1024),
        (Profile::Default, "ea_inode,bigalloc", 0),
        (Profile::Default, "ea_inode,quota", 0),
    ] {
        let mut builder = TreeBuilder::new(root());
        for (index, len) in [5_000, 49_153, 60_000, 65_536, 65_536, 300_000].into_iter().enumerate()
        {
            let value = vec![index as u8 + 1; len];
            let set = vec![
                (b"user.large"[..].into(), value.into()),
                (b"user.small"[..].into(), b"x"[..].into()),
            ];
            let xattrs = builder.intern_xattrs(set).unwrap();
            for copy in 0..3 {
                let file = Node { xattrs, mode: 0o644, ..Node::new(Kind::File) };
                let file = builder.add(file).unwrap();
                builder
                    .link(NodeId::ROOT, format!("{len}-{index}-{copy}").as_bytes(), file)
                    .unwrap();
            }
        }
        let mut tree = builder.finish().unwrap();
        onto_dirty_device(&mut tree, options(profile, features, block_bytes, 0, ""), AUTO, &image);
        let report = e2fsck(&image).unwrap();
        assert!(report.is_clean(), "{profile:?} {features} {block_bytes}: {}", report.text);
        if is_root() && !features.contains("quota") {
            let mount = LoopMount::read_only(&image).unwrap();
            let path = mount.path().join("60000-2-1");
            let mut value = vec![0; 70_000];
            let len = rustix::fs::getxattr(&path, "user.large", &mut value).unwrap();
            assert!(
                len == 60_000 && value[..len].iter().all(|&b| b == 3),
                "{profile:?} {features}"
            );
        }
        fs::remove_file(&image).unwrap();
    }
}
