//! The kernel has a cache in front of ours: what it reads, and what it hands over in large pieces, makes no
//! folios here.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use extant::MountOptions;
use extant_block::{MemoryDevice, SharedDevice};
use extant_fuse::Settings;
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{TempDir, image, require, tempdir};

use crate::common;
use common::{Heard, obstacle, with_mount};

const LEN: usize = 8 << 20;

fn open(device: &Arc<MemoryDevice>) -> extant::Fs {
    MountOptions::new().read_only(false).open_shared(Arc::clone(device) as SharedDevice).unwrap()
}

/// An image in memory, and a directory to mount it at.
fn prepared() -> Result<(TempDir, Arc<MemoryDevice>), String> {
    if let Some(why) = obstacle() {
        return Err(why.to_owned());
    }
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "64M", &["-t", "ext4"])?;
    std::fs::create_dir(dir.path().join("mnt")).map_err(|error| error.to_string())?;
    Ok((dir, Arc::new(image::load(&path))))
}

fn check(dir: &Path, device: &MemoryDevice) -> Result<(), String> {
    let path = dir.join("after");
    image::save(device, &path);
    let report = e2fsck(&path)?;
    assert!(report.is_clean(), "{}", report.text);
    Ok(())
}

fn bytes() -> Vec<u8> {
    (0..LEN).map(|at| (at >> 8) as u8 ^ (at >> 16) as u8).collect()
}

#[test]
fn large_files_are_written_and_read_without_our_cache() {
    let run = || {
        let (dir, device) = prepared()?;
        let at = dir.path().join("mnt");
        let heard = Heard::new();
        let bytes = bytes();
        let fs = open(&device);
        let looker = fs.clone();
        let (served, ()) = with_mount(fs, &at, &Settings::default(), &heard, |at| {
            let file = File::create(at.join("large")).unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            file.sync_all().unwrap();
            let stats = looker.io_stats().unwrap();
            assert_eq!((stats.folios_made, stats.bytes_copied), (0, 0));
            assert_eq!(stats.bytes_written_direct, LEN as u64);
            // A small one stays with us, and is read from where it is.
            std::fs::write(at.join("small"), b"small").unwrap();
            assert_eq!(looker.io_stats().unwrap().folios_made, 1);
        });
        served.unwrap();
        let fs = open(&device);
        let looker = fs.clone();
        let (served, ()) = with_mount(fs, &at, &Settings::default(), &heard, |at| {
            let mut read = Vec::new();
            File::open(at.join("large")).unwrap().read_to_end(&mut read).unwrap();
            assert!(read == bytes);
            assert_eq!(std::fs::read(at.join("small")).unwrap(), b"small");
            let stats = looker.io_stats().unwrap();
            assert_eq!((stats.folios_made, stats.bytes_filled), (0, 0));
            assert!(stats.bytes_read_direct >= LEN as u64);
        });
        served.unwrap();
        check(dir.path(), &device)
    };
    require!(run());
}

#[test]
fn what_programs_write_past_the_kernels_cache_passes_ours() {
    let run = || {
        let (dir, device) = prepared()?;
        let at = dir.path().join("mnt");
        let heard = Heard::new();
        let mut bytes = bytes();
        let fs = open(&device);
        let looker = fs.clone();
        let (served, ()) = with_mount(fs, &at, &Settings::default(), &heard, |at| {
            std::fs::write(at.join("file"), &bytes).unwrap();
            let mut options = File::options();
            options.read(true).write(true);
            let direct = options
                .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
                .open(at.join("file"))
                .unwrap();
            let plain = File::open(at.join("file")).unwrap();
            // What the kernel takes for direct I/O is in whole pages of memory.
            let mut memory = vec![0u8; 3 * 4096];
            let skip = memory.as_ptr().align_offset(4096);
            let before = looker.io_stats().unwrap();
            for round in 1..=64usize {
                let place = round * 37 % (LEN / 4096) * 4096;
                let block = &mut memory[skip..skip + 4096];
                block.fill(round as u8);
                direct.write_all_at(block, place as u64).unwrap();
                bytes[place..place + 4096].fill(round as u8);
                // Both ways of looking see it.
                block.fill(0);
                direct.read_exact_at(block, place as u64).unwrap();
                assert!(block.iter().all(|byte| *byte == round as u8));
                let mut seen = [0; 4096];
                plain.read_exact_at(&mut seen, place as u64).unwrap();
                assert_eq!(seen, [round as u8; 4096]);
            }
            let after = looker.io_stats().unwrap();
            assert_eq!(after.direct_writes - before.direct_writes, 64);
            assert_eq!(after.folios_made, before.folios_made);
            direct.sync_data().unwrap();
            assert!(std::fs::read(at.join("file")).unwrap() == bytes);
        });
        served.unwrap();
        let fs = open(&device);
        assert!(fs.resolve("/file").unwrap().read_all().unwrap() == bytes);
        fs.unmount().unwrap();
        check(dir.path(), &device)
    };
    require!(run());
}
