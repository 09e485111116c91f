//! Programs that look for holes find data that the kernel has not written back yet: by `SEEK_DATA`, and by the
//! number of blocks, by which GNU tar takes a whole file for a hole.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common;
use common::{Heard, obstacle, with_mount};
use extant::MountOptions;
use extant_fuse::Settings;
use extant_sync::{Clock, SystemClock};
use extant_testkit::oracle::mke2fs;
use extant_testkit::{require, skip};

/// Has a file of holes mapped, stores in the middle of it, and says where data begins, and how many blocks are
/// shown by then. Nothing is closed in between, because a close has everything written.
const MAPPED: &str = "
import mmap, os, sys
path = sys.argv[1]
file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(file, 1 << 20)
map = mmap.mmap(file, 1 << 20)
map[1 << 19] = 65
blocks = os.stat(path).st_blocks
print(blocks > 0, os.lseek(file, 0, os.SEEK_DATA))
";

/// On a file system with more room than the machine has memory, the kernel keeps attributes for ever.
fn mapped_data_is_data(settings: &Settings) {
    let dir = extant_testkit::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    require!(mke2fs(&image, "4T", &["-t", "ext4", "-N", "65536", "-J", "size=8"]));
    std::fs::create_dir(&at).unwrap();
    let device = Arc::new(extant_testkit::image::load(&image));
    let fs = MountOptions::new().read_only(false).open_shared(device).unwrap();
    let (served, ()) = with_mount(fs, &at, settings, &Heard::new(), |at| {
        let mapped = at.join("mapped");
        let run = Command::new("python3").arg("-c").arg(MAPPED).arg(&mapped).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&run.stdout), "True 524288\n", "{run:?}");
        written_data_has_blocks(at);
    });
    served.unwrap();
}

fn written_data_has_blocks(at: &Path) {
    let path = at.join("written");
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let file = File::create(&path).unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    assert_ne!(blocks(), 0, "a new file");
    file.set_len(0).unwrap();
    file.write_all_at(&[2; 100_000], 0).unwrap();
    assert_ne!(blocks(), 0, "an emptied file");
    file.set_len(0).unwrap();
    drop(file);
    // The server hears of the last close later.
    let start = SystemClock.monotonic();
    while blocks() != 0 {
        let waited = SystemClock.monotonic() - start;
        assert!(waited.as_secs() < 60, "an empty file that nobody has open has no blocks");
        std::thread::yield_now();
    }
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[3; 100_000], 0).unwrap();
    assert_ne!(blocks(), 0, "a file that was known to be empty");
}

#[test]
fn what_the_kernel_has_not_written_back_is_no_hole() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        skip!("needs python3");
    }
    let mut settings = Settings::default();
    mapped_data_is_data(&settings);
    settings.writeback_cache = false;
    mapped_data_is_data(&settings);
}
