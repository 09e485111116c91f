//! Images that the builder makes have no problems, quota included.

mod common;

use std::fs;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use common::{assert_clean, grow_all};
use extant_base::BlockSize;
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
