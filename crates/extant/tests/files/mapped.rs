//! Files as memory: coherence, stores behind the end, changes under a map.

use std::sync::Arc;

use extant::{Fallocate, Fs, Inode, MappedFile, MountOptions, NewInode};
use extant_base::Prng;
use extant_block::{MemoryDevice, SharedDevice};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

/// Name, bytes of a block or cluster, options of mke2fs.
type Layout = (&'static str, u64, &'static [&'static str]);

const LAYOUTS: &[Layout] = &[
    ("1K", 1024, &["-t", "ext4", "-b", "1024"]),
    ("4K", 4096, &["-t", "ext4", "-b", "4096"]),
    ("64K", 65536, &["-t", "ext4", "-b", "65536"]),
    ("bigalloc", 8192, &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"]),
    ("inline", 1024, &["-t", "ext4", "-b", "1024", "-O", "inline_data"]),
    ("ext3", 1024, &["-t", "ext3", "-b", "1024"]),
];

fn make(layout: &Layout) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    std::fs::write(&path, vec![0xa5; 32 << 20]).map_err(|error| error.to_string())?;
    mke2fs(&path, "32M", layout.2)?;
    Ok(Arc::new(image::load(&path)))
}

fn mount_with(device: &Arc<MemoryDevice>, cache: u64, folio: u64) -> Fs {
    let device: SharedDevice = Arc::clone(device) as SharedDevice;
    let options = MountOptions::new().read_only(false).seed(3);
    options.data_cache_bytes(cache).folio_bytes_max(folio).open_shared(device).unwrap()
}

fn mount(device: &Arc<MemoryDevice>) -> Fs {
    mount_with(device, 16 << 20, 2 << 20)
}

fn create(fs: &Fs, name: &str) -> Inode {
    fs.root().unwrap().create(name, &NewInode::root(0o644)).unwrap()
}

#[track_caller]
fn check(device: &MemoryDevice, what: &str) {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    let report = e2fsck(&path).unwrap();
    assert!(report.is_clean(), "{what}: {}", report.text);
}

fn shown(map: &MappedFile, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    map.read(at, &mut out).unwrap();
    out
}

#[track_caller]
fn same(read: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(read.len(), wanted.len(), "{what}: size");
    if let Some(bad) = (0..read.len()).find(|at| read[*at] != wanted[*at]) {
        panic!("{what}: byte {bad} is {:#x}, not {:#x}", read[bad], wanted[bad]);
    }
}

/// The files that a crash now would leave, replayed.
fn crashed(device: &MemoryDevice, name: &str) -> Vec<u8> {
    let image = Arc::new(device.snapshot());
    let fs = mount(&image);
    let bytes = fs.resolve(format!("/{name}")).unwrap().read_all().unwrap();
    fs.unmount().unwrap();
    check(&image, name);
    bytes
}

#[test]
fn stores_and_writes_see_each_other_and_last() {
    for layout in LAYOUTS {
        let device = require!(make(layout));
        let fs = mount(&device);
        let inode = create(&fs, "file");
        inode.write_at(&vec![1; 50_000], 0).unwrap();
        inode.truncate(200_000).unwrap();
        let map = inode.map_shared(0..200_000, true).unwrap();
        assert_eq!(map.len(), 200_000_u64.next_multiple_of(4096));
        let mut wanted = vec![0; 200_000];
        wanted[..50_000].fill(1);
        same(&shown(&map, 0, 200_000), &wanted, layout.0);
        for (at, byte) in [(0usize, 2u8), (49_990, 3), (120_000, 4), (199_990, 5)] {
            map.write(at as u64, &[byte; 10]).unwrap();
            wanted[at..at + 10].fill(byte);
            inode.write_at(&[byte + 100; 7], at as u64 / 2).unwrap();
            wanted[at / 2..at / 2 + 7].fill(byte + 100);
        }
        same(&inode.read_all().unwrap(), &wanted, layout.0);
        same(&shown(&map, 0, 200_000), &wanted, layout.0);
        map.sync(0..map.len()).unwrap();
        same(&crashed(&device, "file"), &wanted, layout.0);
        // Found by a sync of the file, by one of everything, and by the end of the map.
        map.write(7, b"file").unwrap();
        wanted[7..11].copy_from_slice(b"file");
        inode.sync_data().unwrap();
        same(&crashed(&device, "file"), &wanted, layout.0);
        map.write(100_001, b"all").unwrap();
        wanted[100_001..100_004].copy_from_slice(b"all");
        fs.sync().unwrap();
        same(&crashed(&device, "file"), &wanted, layout.0);
        map.write(150_000, b"end").unwrap();
        wanted[150_000..150_003].copy_from_slice(b"end");
        drop(map);
        same(&inode.read_all().unwrap(), &wanted, layout.0);
        drop(inode);
        fs.unmount().unwrap();
        check(&device, layout.0);
        let fs = mount(&device);
        same(&fs.resolve("/file").unwrap().read_all().unwrap(), &wanted, layout.0);
    }
}

/// Makes the file of generic/363: 2 KiB, mapped, stored to behind its end.
fn stored_behind(fs: &Fs) -> (Inode, MappedFile) {
    let inode = create(fs, "file");
    inode.write_at(&[1; 2048], 0).unwrap();
    let map = inode.map_shared(0..64 << 10, true).unwrap();
    map.write(2048, &vec![9; (64 << 10) - 2048]).unwrap();
    (inode, map)
}

#[test]
fn p13_stores_behind_the_end_never_become_contents() {
    let grow: [fn(&Inode); 5] = [
        |inode| inode.truncate(8192).unwrap(),
        |inode| assert_eq!(inode.write_at(&[0], 8191).unwrap(), 1),
        |inode| inode.fallocate(Fallocate::Allocate { keep_size: false }, 0..8192).unwrap(),
        |inode| {
            inode.fallocate(Fallocate::ZeroRange { keep_size: false }, 3000..8192).unwrap();
        },
        |inode| {
            let other = create(inode.fs(), "holes");
            other.truncate(8192).unwrap();
            assert_eq!(other.copy_range(2048, inode, 2048, 6144).unwrap(), 6144);
        },
    ];
    for layout in LAYOUTS {
        for (turn, grow) in grow.iter().enumerate() {
            if layout.0 == "ext3" && (turn == 2 || turn == 3) {
                continue;
            }
            for synced in [false, true] {
                let what = format!("{}, turn {turn}, synced {synced}", layout.0);
                let device = require!(make(layout));
                let fs = mount(&device);
                let (inode, map) = stored_behind(&fs);
                if synced {
                    fs.sync().unwrap();
                    map.write(2048, &vec![9; 4096]).unwrap();
                }
                grow(&inode);
                let mut wanted = vec![1; 2048];
                wanted.resize(8192, 0);
                same(&inode.read_all().unwrap(), &wanted, &what);
                same(&shown(&map, 0, 8192), &wanted, &what);
                map.sync(0..8192).unwrap();
                same(&crashed(&device, "file"), &wanted, &what);
                drop((map, inode));
                fs.unmount().unwrap();
                check(&device, &what);
            }
        }
    }
}

#[test]
fn p14_nor_after_a_crash() {
    for layout in LAYOUTS {
        let device = require!(make(layout));
        let fs = mount(&device);
        let (inode, map) = stored_behind(&fs);
        inode.sync().unwrap();
        // Whatever writeback brought there is zeros when the file grows over it, here or later.
        for size in [3000, 5000, 12_000] {
            map.write(size, &vec![8; 8192]).unwrap();
            map.sync(0..map.len()).unwrap();
            let image = Arc::new(device.snapshot());
            let later = mount(&image);
            let file = later.resolve("/file").unwrap();
            file.truncate(60_000).unwrap();
            let read = file.read_all().unwrap();
            assert!(read[..2048].iter().all(|byte| *byte == 1), "{}", layout.0);
            assert!(read[2048..].iter().all(|byte| *byte == 0), "{}: {size}", layout.0);
            drop(file);
            later.unmount().unwrap();
            check(&image, layout.0);
            inode.truncate(size).unwrap();
            fs.sync().unwrap();
            let read = crashed(&device, "file");
            assert_eq!(read.len() as u64, size);
            assert!(read[2048..].iter().all(|byte| *byte == 0), "{}: {size}", layout.0);
        }
    }
}

#[test]
fn p23_a_large_folio_at_the_end_hides_no_store() {
    for layout in LAYOUTS {
        let device = require!(make(layout));
        let fs = mount_with(&device, 16 << 20, 2 << 20);
        let inode = create(&fs, "file");
        // One folio, most of it behind the end.
        inode.write_at(&vec![1; 1 << 20], 0).unwrap();
        inode.truncate(5000).unwrap();
        let map = inode.map_shared(0..1 << 20, true).unwrap();
        inode.truncate(700_000).unwrap();
        // Stores to what was behind the old end count from now on.
        map.write(600_000, b"counts").unwrap();
        map.write(699_998, b"half").unwrap();
        map.sync(0..1 << 20).unwrap();
        let mut wanted = vec![1; 5000];
        wanted.resize(700_000, 0);
        wanted[600_000..600_006].copy_from_slice(b"counts");
        wanted[699_998..].copy_from_slice(b"ha");
        same(&inode.read_all().unwrap(), &wanted, layout.0);
        same(&crashed(&device, "file"), &wanted, layout.0);
    }
}

#[test]
fn a_map_shows_the_file_whatever_happens_to_it() {
    for layout in LAYOUTS {
        for (cache, folio) in [(16 << 20, 2 << 20), (4 << 20, 4096), (4 << 20, 65536)] {
            for seed in 0..3 {
                require!(history(layout, (cache, folio), seed));
            }
        }
    }
}

fn history(layout: &Layout, (cache, folio): (u64, u64), seed: u64) -> Result<(), String> {
    const MAX: u64 = 600_000;
    let what = format!("{}, folio {folio}, seed {seed}", layout.0);
    let device = make(layout)?;
    let fs = mount_with(&device, cache, folio);
    let inode = create(&fs, "file");
    let (noise, unit) = (create(&fs, "noise"), layout.1);
    let mut random = Prng::new(seed);
    let mut bytes: Vec<u8> = Vec::new();
    let mut map = inode.map_shared(65536..MAX, true).unwrap();
    for step in 0..120 {
        let size = bytes.len() as u64;
        let at = random.below(MAX - 1);
        let len = (1 + random.below(80_000)).min(MAX - at);
        let end = (at + len) as usize;
        let byte = 1 + (step % 250) as u8;
        let aligned = at / unit * unit..(at / unit + 1 + len / unit) * unit;
        match random.below(12) {
            0 | 1 => {
                inode.write_at(&vec![byte; len as usize], at).unwrap();
                bytes.resize(bytes.len().max(end), 0);
                bytes[at as usize..end].fill(byte);
            }
            2..=4 => {
                // Stores, within the map; what is behind the end is lost.
                let range = map.range();
                let start = at.clamp(range.start, range.end - 1);
                let end = (start + len).min(range.end);
                let data = vec![byte; (end - start) as usize];
                map.write(start - range.start, &data).unwrap();
                let (start, end) = (start.min(size) as usize, end.min(size) as usize);
                bytes[start..end].fill(byte);
            }
            5 => {
                inode.truncate(at).unwrap();
                bytes.resize(at as usize, 0);
            }
            6 => {
                inode.fallocate(Fallocate::PunchHole, at..at + len).unwrap();
                let start = bytes.len().min(at as usize);
                let end = bytes.len().min(end);
                bytes[start..end].fill(0);
            }
            7 if layout.0 != "ext3" && aligned.end < size => {
                inode.fallocate(Fallocate::CollapseRange, aligned.clone()).unwrap();
                bytes.drain(aligned.start as usize..aligned.end as usize);
            }
            8 if layout.0 != "ext3" && aligned.start < size && size + len < MAX => {
                inode.fallocate(Fallocate::InsertRange, aligned.clone()).unwrap();
                let zeros = std::iter::repeat_n(0, (aligned.end - aligned.start) as usize);
                let start = aligned.start as usize;
                bytes.splice(start..start, zeros);
            }
            9 => {
                // Pressure: what is mapped stays where it is.
                noise.write_at(&vec![7; 3 << 20], 0).unwrap();
                noise.read_all().unwrap();
            }
            10 => match random.below(3) {
                0 => map.sync(0..map.len()).unwrap(),
                1 => inode.sync().unwrap(),
                _ => fs.sync().unwrap(),
            },
            11 => {
                drop(map);
                let start = random.below(60) * 4096;
                map = inode.map_shared(start..start + 400_000, true).unwrap();
            }
            _ => {}
        }
        let range = map.range();
        let read = inode.read_all().unwrap();
        same(&read, &bytes, &format!("{what}, step {step}"));
        let (start, end) = (range.start as usize, (range.end as usize).min(bytes.len()));
        if start < end {
            let part = shown(&map, 0, end - start);
            same(&part, &bytes[start..end], &format!("{what}, step {step}: the map"));
        }
    }
    drop((map, inode, noise));
    fs.unmount().unwrap();
    check(&device, &what);
    let fs = mount(&device);
    same(&fs.resolve("/file").unwrap().read_all().unwrap(), &bytes, &what);
    Ok(())
}

#[test]
fn maps_for_reading_and_refusals() {
    let device = require!(make(&LAYOUTS[1]));
    let fs = mount_with(&device, 4 << 20, 2 << 20);
    let inode = create(&fs, "file");
    inode.write_at(b"some bytes", 0).unwrap();
    let map = inode.map_shared(0..10, false).unwrap();
    assert_eq!(shown(&map, 0, 12), b"some bytes\0\0");
    assert_eq!(map.write(0, b"x").unwrap_err().errno(), 30);
    assert_eq!(map.read(4090, &mut [0; 7]).unwrap_err().errno(), 22);
    inode.write_at(b"blocks", 5).unwrap();
    assert_eq!(shown(&map, 0, 12), b"some blocks\0");
    assert_eq!(inode.map_shared(100..200, false).unwrap_err().errno(), 22);
    assert_eq!(inode.map_shared(4096..4096, false).unwrap_err().errno(), 22);
    let dir = fs.root().unwrap();
    assert_eq!(dir.map_shared(0..10, false).unwrap_err().errno(), 21);
    // Half of the cache, and no more; what was let go can be had again.
    let half = inode.map_shared(0..1 << 20, true).unwrap();
    assert_eq!(inode.map_shared(0..3 << 20, true).unwrap_err().errno(), 12);
    drop((half, map));
    drop(inode.map_shared(0..2 << 20, true).unwrap());
    drop((inode, dir));
    fs.unmount().unwrap();
    check(&device, "4K");
    let device = Arc::clone(&device) as SharedDevice;
    let fs = MountOptions::new().open_shared(device).unwrap();
    let inode = fs.resolve("/file").unwrap();
    assert_eq!(inode.map_shared(0..10, false).unwrap_err().errno(), 30);
}
