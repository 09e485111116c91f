//! In how many pieces files lie that grow side by side. But for one test everything here is one thread, so
//! the counts are the same in every run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant::{Fs, Inode, MountOptions, NewInode};
use extant_block::{MemoryDevice, SharedDevice};
use extant_check::CheckOptions;
use extant_sync::FixedClock;
use extant_sync::threads::workers;
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

const MIB: u64 = 1 << 20;

fn make(size: &str, arguments: &[&str]) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, size, arguments)?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: &Arc<MemoryDevice>) -> Fs {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    options.open_shared(Arc::clone(device) as SharedDevice).unwrap()
}

/// Ends the mount; both checkers find nothing.
fn end(fs: Fs, device: &Arc<MemoryDevice>) {
    fs.unmount().unwrap();
    let report = extant_check::check(&**device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    e2fsck(&path).unwrap().assert_clean();
}

/// Pieces of a file on the device: neighbours in both count as one, however the map has them.
fn pieces(file: &Inode) -> usize {
    let extents = file.fiemap(0..u64::MAX, usize::MAX, true).unwrap();
    let joined = |pair: &[extant::FiemapExtent]| {
        pair[0].physical + pair[0].len == pair[1].physical
            && pair[0].logical + pair[0].len == pair[1].logical
    };
    extents.len() - extents.windows(2).filter(|pair| joined(pair)).count()
}

/// Files that grow in turns, each by `step` bytes and then an fsync, up to `size`; returns how many pieces
/// they have together.
fn grow_in_turns(fs: &Fs, files: usize, size: u64, step: u64) -> usize {
    let name = |at| format!("/grows-{at}");
    let files: Vec<Inode> =
        (0..files).map(|at| fs.create(name(at), &NewInode::root(0o644)).unwrap()).collect();
    for at in (0..size).step_by(step as usize) {
        for (index, file) in files.iter().enumerate() {
            // As a program does it: in writes of 64 KiB.
            for part in (at..at + step).step_by(64 << 10) {
                let len = step.min(64 << 10) as usize;
                let bytes = vec![(index as u64 + part / step) as u8; len];
                assert_eq!(file.write_at(&bytes, part).unwrap(), len);
            }
            file.sync().unwrap();
        }
    }
    files.iter().map(pieces).sum()
}

#[test]
fn files_that_grow_in_turns_with_an_fsync_each_time_lie_in_few_pieces() {
    // What 64 of them take is a quarter of the file system, as in the benchmark.
    let device = require!(make("1G", &["-t", "ext4", "-b", "4096"]));
    let fs = mount(&device);
    let count = grow_in_turns(&fs, 64, 4 * MIB, 256 << 10);
    println!("{count} pieces of 64 files of 4 MiB, {} per GiB", count * 4);
    assert!(count <= 64 * 3, "{count} pieces of 64 files of 4 MiB");
    end(fs, &device);
}

#[test]
#[ignore = "takes a minute: a GiB in 4096 turns"]
fn a_gib_that_grows_in_64_files_in_turns_lies_in_200_pieces_at_most() {
    for size in ["2G", "16G"] {
        let device = require!(make(size, &["-t", "ext4", "-b", "4096"]));
        let fs = mount(&device);
        let count = grow_in_turns(&fs, 64, 16 * MIB, 256 << 10);
        println!("{count} pieces of 64 files of 16 MiB, of {size}");
        assert!(count <= 200, "{count} pieces of 64 files of 16 MiB, of {size}");
        end(fs, &device);
    }
}

#[test]
fn files_of_many_threads_lie_in_few_pieces() {
    let device = require!(make("1G", &["-t", "ext4", "-b", "4096"]));
    let fs = mount(&device);
    let count = AtomicUsize::new(0);
    let grow = |at: usize| {
        let file = fs.create(format!("/thread-{at}").as_str(), &NewInode::root(0o644)).unwrap();
        for step in 0..16 {
            file.write_at(&[at as u8; 256 << 10], step * (256 << 10)).unwrap();
            file.sync().unwrap();
        }
        count.fetch_add(pieces(&file), Ordering::Relaxed);
        file
    };
    let files = workers("growers", 16, grow).unwrap();
    let count = count.into_inner();
    println!("{count} pieces of 16 files of 4 MiB, one thread each");
    assert!(count <= 16 * 4, "{count} pieces of 16 files in 16 turns");
    drop(files);
    end(fs, &device);
}

#[test]
fn a_log_that_grows_by_a_page_at_a_time_beside_others_lies_in_few_pieces() {
    let device = require!(make("512M", &["-t", "ext4", "-b", "4096"]));
    let fs = mount(&device);
    let count = grow_in_turns(&fs, 8, MIB, 4096);
    // The first sixteen blocks may lie anywhere: a small file may stay small.
    assert!(count <= 8 * 20, "{count} pieces of 8 files of 1 MiB, in 256 turns");
    end(fs, &device);
}

#[test]
fn every_mapping_grows_so_on_a_file_system_that_becomes_full() {
    let layouts: [&[&str]; 3] = [
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-O", "bigalloc", "-C", "16384"],
        &["-t", "ext3", "-b", "1024"],
    ];
    for layout in layouts {
        let device = require!(make("64M", layout));
        let fs = mount(&device);
        let count = grow_in_turns(&fs, 8, MIB, 64 << 10);
        println!("{count} pieces of 8 files of 1 MiB: {layout:?}");
        assert!(count < 8 * 8, "{layout:?}: {count} pieces of 8 files in 16 turns");
        // All that is said to be free can be had, beside files that have windows.
        let growing: Vec<Inode> =
            (0..8).map(|at| fs.resolve(format!("/grows-{at}").as_str()).unwrap()).collect();
        for file in &growing {
            file.write_at(&[7; 64 << 10], MIB).unwrap();
            file.sync().unwrap();
        }
        let said = fs.statfs().unwrap();
        let available = said.blocks_available * u64::from(said.block_bytes);
        let whole = fs.create("/whole", &NewInode::root(0o644)).unwrap();
        let mut written = 0;
        while let Ok(more) = whole.write_at(&[9; 1 << 16], written) {
            written += more as u64;
        }
        whole.sync().unwrap();
        // But for what the map of the file takes.
        assert!(written + available / 64 >= available, "{layout:?}: {written} of {available}");
        drop((growing, whole));
        end(fs, &device);
    }
}
