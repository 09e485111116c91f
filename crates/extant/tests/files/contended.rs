//! The last blocks of a file system, wanted by 32 threads at once: nobody is refused what a single
//! thread would have got, what fits in part is taken in part, and everything taken is stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant::{AlignedBuffer, Fallocate, Fs, FsError, Inode, MountOptions, NewInode};
use extant_base::Prng;
use extant_block::{MemoryDevice, SharedDevice};
use extant_check::CheckOptions;
use extant_sync::FixedClock;
use extant_sync::threads::workers;
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

const THREADS: usize = 32;

/// Size, options, and bytes of a cluster.
const LAYOUTS: &[(&str, &[&str], u64)] = &[
    ("96M", &["-t", "ext4", "-b", "4096", "-g", "2048", "-m", "0"], 4096),
    ("64M", &["-t", "ext4", "-b", "1024", "-m", "0"], 1024),
    ("256M", &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384", "-m", "0"], 16384),
    ("32M", &["-t", "ext3", "-b", "1024", "-m", "0"], 1024),
];

/// How a file gets its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Delayed,
    Fallocate,
    Direct,
}

const WAYS: [Way; 3] = [Way::Delayed, Way::Fallocate, Way::Direct];

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

/// Both checkers find nothing.
fn check(device: &Arc<MemoryDevice>) {
    let report = extant_check::check(&**device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    e2fsck(&path).unwrap().assert_clean();
}

fn create(fs: &Fs, path: &str) -> Inode {
    fs.create(path, &NewInode::root(0o644)).unwrap()
}

/// Takes all room but `bytes`, into one file.
fn leave(fs: &Fs, bytes: u64, cluster: u64) {
    let filler = create(fs, "/filler");
    let mut end = 0;
    loop {
        fs.sync().unwrap();
        let over = fs.room(true).saturating_sub(bytes) / cluster * cluster;
        if over == 0 {
            break;
        }
        // In steps, because the map of the file takes room, too.
        let step = (over / 2).div_ceil(cluster).max(1) * cluster;
        match filler.fallocate(Fallocate::Allocate { keep_size: false }, end..end + step) {
            // Without trees of extents, there is no space without contents.
            Err(FsError::NotSupported { .. }) => {
                assert_eq!(filler.write_at(&vec![0; step as usize], end).unwrap() as u64, step);
            }
            other => other.unwrap(),
        }
        end += step;
    }
}

/// What thread `of` writes at an offset, in a round.
fn pattern(of: usize, round: u64, offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| ((at / 512) ^ (at % 251) ^ (of as u64 * 7) ^ (round * 31)) as u8;
    (offset..offset + len as u64).map(byte).collect()
}

/// Puts `len` more bytes at the end of a file, or as many as there is room for; returns how many.
fn grow(way: Way, inode: &Inode, of: usize, round: u64, len: u64) -> Result<u64, FsError> {
    let end = inode.metadata().size;
    let bytes = pattern(of, round, end, len as usize);
    match way {
        Way::Delayed => inode.write_at(&bytes, end).map(|written| written as u64),
        Way::Direct => {
            let written = inode.write_direct_at(&AlignedBuffer::copy_of(&bytes), end);
            written.map(|written| written as u64)
        }
        Way::Fallocate => {
            let space = Fallocate::Allocate { keep_size: false };
            let result = inode.fallocate(space, end..end + len);
            // What was had before an error stays, and the size says how much.
            let got = inode.metadata().size - end;
            if got == 0 {
                result?;
            }
            // It has room by now.
            assert_eq!(inode.write_at(&bytes[..got as usize], end).unwrap() as u64, got);
            Ok(got)
        }
    }
}

fn verify(fs: &Fs, of: usize, round: u64, len: u64) {
    let bytes = fs.read(format!("/f{of}")).unwrap();
    assert_eq!(bytes.len() as u64, len, "f{of}");
    assert!(bytes == pattern(of, round, 0, bytes.len()), "contents of f{of} in round {round}");
}

/// Each thread has its share, takes it in pieces, gives it back, and takes it again: there is always
/// room for all of them, free or waiting for a commit.
#[test]
fn whoever_has_a_share_gets_it_however_many_want_theirs() {
    const SHARE: u64 = 6;
    const ROUNDS: u64 = 4;
    for (size, layout, cluster) in LAYOUTS {
        for way in WAYS {
            if way == Way::Fallocate && layout.contains(&"ext3") {
                continue; // There is no space without contents there.
            }
            let device = require!(make(size, layout));
            let fs = mount(&device);
            let files: Vec<Inode> =
                (0..THREADS).map(|at| create(&fs, &format!("/f{at}"))).collect();
            // Contents that are promised may take what is kept for trees; others bring a block of a
            // tree each.
            let trees = if way == Way::Delayed { 0 } else { THREADS as u64 };
            leave(&fs, (THREADS as u64 * SHARE + trees) * cluster, *cluster);
            let what = format!("{layout:?} {way:?}");
            workers("sharer", THREADS, |at| {
                let mut random = Prng::new(at as u64);
                for round in 0..ROUNDS {
                    let mut left = SHARE;
                    while left > 0 {
                        let wanted = (random.below(left) + 1) * cluster;
                        let got = grow(way, &files[at], at, round, wanted)
                            .unwrap_or_else(|error| panic!("{what}: {left} of {at}: {error}"));
                        assert!(got > 0 && got.is_multiple_of(*cluster), "{what}: {got}");
                        left -= got / cluster;
                    }
                    if round + 1 < ROUNDS {
                        files[at].truncate(0).unwrap();
                    }
                }
            })
            .unwrap();
            drop(files);
            fs.unmount().unwrap();
            check(&device);
            let fs = mount(&device);
            (0..THREADS).for_each(|at| verify(&fs, at, ROUNDS - 1, SHARE * cluster));
            fs.unmount().unwrap();
        }
    }
}

/// More is wanted than there is: all of it is had by somebody, and nobody is refused before.
#[test]
fn what_fits_in_part_is_taken_to_the_last_block() {
    const ROOM: u64 = 500;
    const EACH: u64 = 40;
    for (size, layout, cluster) in LAYOUTS {
        for way in WAYS {
            if way == Way::Fallocate && layout.contains(&"ext3") {
                continue; // There is no space without contents there.
            }
            let device = require!(make(size, layout));
            let fs = mount(&device);
            let files: Vec<Inode> =
                (0..THREADS).map(|at| create(&fs, &format!("/f{at}"))).collect();
            leave(&fs, ROOM * cluster, *cluster);
            let what = format!("{layout:?} {way:?}");
            let there = fs.room(true) / cluster;
            assert!(there > ROOM / 2 && there <= ROOM, "{what}: {there}");
            let taken = AtomicU64::new(0);
            let sizes = workers("taker", THREADS, |at| {
                let mut left = EACH;
                while left > 0 {
                    match grow(way, &files[at], at, 0, left * cluster) {
                        Ok(got) => {
                            assert!(got > 0 && got.is_multiple_of(*cluster), "{what}: {got}");
                            left -= got / cluster;
                            taken.fetch_add(got / cluster, Ordering::Relaxed);
                        }
                        Err(error) => {
                            assert!(matches!(error, FsError::NoSpace { .. }), "{what}: {error}");
                            // Nobody gives anything back, so who is refused is refused for good.
                            return ((EACH - left) * cluster, fs.room(true) / cluster);
                        }
                    }
                }
                (EACH * cluster, 0)
            })
            .unwrap();
            let taken = taken.into_inner();
            match way {
                Way::Delayed => {
                    assert_eq!(taken, there, "{what}");
                    assert!(sizes.iter().all(|(_, left)| *left == 0), "{what}: {sizes:?}");
                }
                // Blocks of trees take some: one for each file, and for their neighbours.
                _ => assert!(
                    taken <= there && taken + 2 * THREADS as u64 >= there,
                    "{what}: {taken}"
                ),
            }
            // And a single thread finds no more.
            for (at, file) in files.iter().enumerate() {
                assert!(grow(way, file, at, 0, *cluster).is_err(), "{what}: {at} finds more");
            }
            drop(files);
            fs.unmount().unwrap();
            check(&device);
            let fs = mount(&device);
            sizes.iter().enumerate().for_each(|(at, (len, _))| verify(&fs, at, 0, *len));
            fs.unmount().unwrap();
        }
    }
}
