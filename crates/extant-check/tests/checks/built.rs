//! Images that the builder makes have no problems, quota included.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use crate::common;
use common::{assert_clean, grow_all};
use extant_base::BlockSize;
use extant_block::{BlockDevice, MemoryDevice};
use extant_check::{CheckOptions, check};
use extant_image::options::MkfsOptions;
use extant_image::output::Output;
use extant_image::plan::{BuildOptions, Headroom, SizeSpec, plan};
use extant_image::profile::Profile;
use extant_image::source::dir::{ScanOptions, scan_dir};
use extant_image::write::{NoProgress, WriteOptions, write_image};
use extant_testkit::tempdir;

const IMAGES: &[(Profile, &str, u64)] = &[
    (Profile::Default, "", 4096),
    (Profile::Default, "quota,project", 4096),
    (Profile::Default, "inline_data,ea_inode,quota", 4096),
    (Profile::Default, "bigalloc,ea_inode,^resize_inode", 4096),
    (Profile::Ext3, "", 1024),
];

#[test]
fn built_images_have_no_problems() {
    let dir = tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    grow_all(&source);
    for (profile, features, block) in IMAGES {
        let what = format!("{profile:?} {features} {block}");
        let mut mkfs = MkfsOptions::new(*profile).with_features(features).unwrap();
        mkfs.block_size = Some(BlockSize::new(*block).unwrap());
        if *block == 1024 {
            // It has a target that a block of 1 KiB does not hold.
            let _removed = fs::remove_dir_all(source.join("all"));
        }
        let threads = NonZeroUsize::new(2).unwrap();
        let mut scanned =
            scan_dir(&source, &ScanOptions { threads, ..ScanOptions::default() }).unwrap();
        let size = SizeSpec::Auto(Headroom::Percent(1000));
        let options = BuildOptions { mkfs, size, reproducible: false };
        let plan = plan(&mut scanned.tree, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        let image = dir.path().join("built.img");
        let output = Output::create(&image, plan.image_bytes()).unwrap();
        let options = WriteOptions {
            threads: 2,
            target_is_zeroed: output.is_zeroed(),
            progress: &NoProgress,
            cancel: &AtomicBool::new(false),
        };
        write_image(&plan, &scanned.tree, &*scanned.contents, output.device(), &options).unwrap();
        output.commit().unwrap();
        assert_clean(&image, &what);
        fs::remove_file(image).unwrap();
    }
}

/// Sixteen TiB of nothing, of which a directory says that a lot is its own.
#[test]
fn a_large_sparse_image_costs_what_is_in_it() {
    let dir = tempdir().unwrap();
    let mkfs = MkfsOptions::new(Profile::Default)
        .with_features("large_dir,sparse_super2,^has_journal,^resize_inode")
        .unwrap();
    let mut scanned = scan_dir(dir.path(), &ScanOptions::default()).unwrap();
    let options = BuildOptions { mkfs, size: SizeSpec::Bytes(16 << 40), reproducible: false };
    let plan = plan(&mut scanned.tree, &options).unwrap();
    let image = MemoryDevice::new(plan.image_bytes());
    let options = WriteOptions {
        threads: 2,
        target_is_zeroed: true,
        progress: &NoProgress,
        cancel: &AtomicBool::new(false),
    };
    write_image(&plan, &scanned.tree, &*scanned.contents, &image, &options).unwrap();
    let report = check(&image, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    // `lost+found` gets an index and four extents, which together reach over 2^32 blocks.
    let mut bytes = [0; 4];
    image.read_at(4096 + 8, &mut bytes).unwrap();
    let at = u64::from(u32::from_le_bytes(bytes)) * 4096 + 10 * 256;
    image.write_at(at + 0x20, &0x8_1000u32.to_le_bytes()).unwrap();
    let far =
        [(0u32, 1u32), (20_000, 2_000_000), (1 << 31, 4_000_000), (u32::MAX - 9000, 9_000_000)];
    let mut map = vec![0x0004_f30a, 4, 0];
    for (from, start) in far {
        map.extend([from, 9000, start << 4]);
    }
    let map: Vec<u8> = map.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    image.write_at(at + 0x28, &map).unwrap();
    let report = check(&image, &CheckOptions::default()).unwrap();
    // Each of its blocks is wrong.
    assert!(report.dropped > 4 * 9000, "{}", report.dropped);
}
