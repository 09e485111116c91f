//! Contents that the system copies from file to file, as it does in memory and on XFS and btrfs: the image is the one
//! that reads and writes make, and a file that changed is told.

use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use extant_block::{BlockDevice, FileDevice, MemoryDevice, WindowDevice};
use extant_image::plan::{BuildOptions, Plan, plan};
use extant_image::profile::Profile;
use extant_image::source::dir::{ScanOptions, scan_dir};
use extant_image::source::{Scanned, SourceError};
use extant_image::write::{NoProgress, WriteError, WriteOptions, WriteReport, write_image};
use extant_testkit::skip;

use crate::common::{AUTO, options};

const MIB: usize = 1 << 20;

/// Where the system copies from file to file.
fn in_memory() -> Option<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").ok()
}

fn fill(path: &Path) {
    for (number, len) in
        [0, 1, 65_535, 65_536, 65_537, 200_000, MIB, 3 * MIB + 1, 5 * MIB].into_iter().enumerate()
    {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251 + number) as u8).collect();
        fs::write(path.join(format!("file-{number}")), bytes).unwrap();
    }
    fs::hard_link(path.join("file-7"), path.join("again")).unwrap();
    let holes = fs::File::create(path.join("holes")).unwrap();
    holes.write_all_at(&[7; 300_000], 1 << 20).unwrap();
    holes.write_all_at(&[8; 100_000], 3 << 20).unwrap();
}

fn planned(source: &Path, block_bytes: u64) -> (Scanned, Plan) {
    let threads = NonZeroUsize::new(2).unwrap();
    let mut scanned = scan_dir(source, &ScanOptions { threads, ..ScanOptions::default() }).unwrap();
    let mkfs = options(Profile::Default, "", block_bytes, 0, "");
    let build = BuildOptions { mkfs, size: AUTO, reproducible: true };
    let plan = plan(&mut scanned.tree, &build).unwrap();
    (scanned, plan)
}

fn written(
    (scanned, plan): &(Scanned, Plan),
    device: &dyn BlockDevice,
) -> Result<WriteReport, WriteError> {
    let options = WriteOptions {
        threads: 2,
        target_is_zeroed: true,
        progress: &NoProgress,
        cancel: &AtomicBool::new(false),
    };
    write_image(plan, &scanned.tree, &*scanned.contents, device, &options)
}

fn all_of(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn the_image_is_the_same_at_any_place_of_the_file() {
    let Some(dir) = in_memory() else { skip!("there is no /dev/shm") };
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fill(&source);
    for block_bytes in [1024, 4096] {
        let build = planned(&source, block_bytes);
        let len = build.1.image_bytes();
        let memory = MemoryDevice::new(len);
        let wanted = written(&build, &memory).unwrap();
        let wanted = (all_of(&memory), wanted.bytes_written);
        for start in [0, 3 * 4096] {
            let path = dir.path().join("image");
            let _removed = fs::remove_file(&path);
            fs::File::create(&path).unwrap().set_len(start + len + 4096).unwrap();
            let file = FileDevice::open_read_write(&path).unwrap();
            let window = WindowDevice::new(file, start, len).unwrap();
            let report = written(&build, &window).unwrap();
            assert!(
                (all_of(&window), report.bytes_written) == wanted,
                "{block_bytes} {start}: {report:?}"
            );
            let whole = fs::read(&path).unwrap();
            let (before, behind) = (&whole[..start as usize], &whole[(start + len) as usize..]);
            assert!(before.iter().chain(behind).all(|byte| *byte == 0), "beside the image");
        }
    }
}

#[test]
fn a_file_that_changed_since_the_scan_is_named() {
    let Some(dir) = in_memory() else { skip!("there is no /dev/shm") };
    for (what, len) in [("shorter", MIB as u64), ("longer", 6 * MIB as u64), ("gone", 0)] {
        let source = dir.path().join(what);
        fs::create_dir(&source).unwrap();
        fill(&source);
        let build = planned(&source, 4096);
        let path = source.join("file-8");
        match what {
            "gone" => fs::remove_file(&path).unwrap(),
            _ => fs::File::options().write(true).open(&path).unwrap().set_len(len).unwrap(),
        }
        let image = dir.path().join("image");
        fs::File::create(&image).unwrap().set_len(build.1.image_bytes()).unwrap();
        let file = FileDevice::open_read_write(&image).unwrap();
        match written(&build, &file) {
            Err(WriteError::Source(error @ SourceError::Changed { .. })) => {
                assert!(error.to_string().contains("file-8"), "{what}: {error}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}
