//! Files sealed by fs-verity: what is read of them is checked.
//!
//! The images are made by mke2fs and debugfs, with trees by the usual tool (`fsverity`), so that
//! nothing here is compared with itself.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use extant::{Fs, FsError, Inode, MappingKind, MountOptions};
use extant_block::{BlockDevice, MemoryDevice, SharedDevice};
use extant_testkit::oracle::{debugfs, e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

/// How a file is sealed.
#[derive(Clone, Copy, Debug)]
struct How {
    fs_block: u64,
    block: u64,
    algorithm: &'static str,
    salt: &'static str,
    size: u64,
}

const USUAL: How =
    How { fs_block: 4096, block: 4096, algorithm: "sha256", salt: "", size: 3_000_000 };

const ALL: [How; 10] = [
    USUAL,
    How { salt: "00ff", size: 4096, ..USUAL },
    How { size: 4097, ..USUAL },
    How { size: 1, ..USUAL },
    How { size: 0, ..USUAL },
    How { algorithm: "sha512", size: 1_000_001, ..USUAL },
    How { block: 1024, salt: "5a5a5a", size: 700_000, ..USUAL },
    How { fs_block: 1024, block: 1024, size: 300_001, ..USUAL },
    How { fs_block: 1024, block: 1024, algorithm: "sha512", size: 65536, ..USUAL },
    How { fs_block: 2048, block: 1024, size: 1_200_000, ..USUAL },
];

fn contents(size: u64) -> Vec<u8> {
    (0..size as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8 | 1).collect()
}

/// An image with the sealed file `/sealed`, its digest, and the contents of the file.
struct Made {
    device: Arc<MemoryDevice>,
    digest: String,
    contents: Vec<u8>,
}

/// Makes an image. `change` may change the stored bytes of the file: contents, tree, descriptor.
fn made(how: How, change: impl FnOnce(&mut Vec<u8>)) -> Result<Made, String> {
    let text = |error: std::io::Error| error.to_string();
    let dir = tempdir().map_err(text)?;
    let path = |name: &str| dir.path().join(name);
    let bytes = contents(how.size);
    fs::write(path("file"), &bytes).map_err(text)?;
    let mut tool = Command::new("fsverity");
    tool.args(["digest", "--compact", &format!("--hash-alg={}", how.algorithm)]);
    tool.arg(format!("--block-size={}", how.block));
    tool.arg(format!("--out-merkle-tree={}", path("tree").display()));
    tool.arg(format!("--out-descriptor={}", path("descriptor").display()));
    if !how.salt.is_empty() {
        tool.arg(format!("--salt={}", how.salt));
    }
    let done = tool.arg(path("file")).output().map_err(|_| "needs fsverity".to_owned())?;
    assert!(done.status.success(), "{how:?}: {done:?}");
    let digest = String::from_utf8_lossy(&done.stdout).trim().to_owned();

    let mut stored = bytes.clone();
    stored.resize(how.size.next_multiple_of(65536) as usize, 0);
    stored.extend(fs::read(path("tree")).map_err(text)?);
    stored.resize(stored.len().next_multiple_of(how.fs_block as usize), 0);
    stored.extend(fs::read(path("descriptor")).map_err(text)?);
    stored.resize((stored.len() + 4).next_multiple_of(how.fs_block as usize) - 4, 0);
    stored.extend(256u32.to_le_bytes());
    change(&mut stored);
    fs::write(path("stored"), &stored).map_err(text)?;
    let block = how.fs_block.to_string();
    mke2fs(&path("image"), "16M", &["-t", "ext4", "-O", "verity", "-b", &block])?;
    let write = format!("write {} sealed", path("stored").display());
    debugfs(&path("image"), true, &write)?;
    debugfs(&path("image"), true, &format!("sif /sealed size {}", how.size))?;
    debugfs(&path("image"), true, "sif /sealed flags 0x180000")?;
    e2fsck(&path("image"))?.assert_clean();
    Ok(Made { device: Arc::new(image::load(&path("image"))), digest, contents: bytes })
}

fn mount(device: &Arc<MemoryDevice>, writable: bool) -> (Fs, Inode) {
    let options = MountOptions::new().read_only(!writable).background(false).seed(1);
    let fs = options.open_shared(Arc::clone(device) as SharedDevice).unwrap();
    let inode = fs.resolve("/sealed").unwrap();
    (fs, inode)
}

/// The address on the device of a block of the file.
fn address(inode: &Inode, how: How, at: u64) -> u64 {
    let block = at / how.fs_block;
    let run = inode.map(block..block + 1).next().unwrap().unwrap();
    let MappingKind::Mapped(start) = run.kind else { panic!("{run:?}") };
    start.0 * how.fs_block + at % how.fs_block
}

fn flip(device: &MemoryDevice, at: u64) {
    let mut byte = [0];
    device.read_at(at, &mut byte).unwrap();
    device.write_at(at, &[byte[0] ^ 0x10]).unwrap();
}

/// Asserts that a read of the file says that a block is wrong.
fn assert_unverified(result: Result<usize, FsError>, part: &str, block: u64) {
    match result {
        Err(error @ FsError::Unverified { what, index, .. }) => {
            assert_eq!((what, index), (part, block), "{error}");
            assert_eq!(error.errno(), 5, "EIO");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_others_sealed_is_read_by_every_way() {
    for how in ALL {
        let Made { device, digest, contents } = require!(made(how, |_| {}));
        for writable in [false, true] {
            let (fs, inode) = mount(&device, writable);
            assert_eq!(inode.verity_digest().unwrap().unwrap().to_string(), digest, "{how:?}");
            assert!(inode.read_all().unwrap() == contents, "{how:?}, writable: {writable}");
            fs.drop_cached();
            let (at, len) = (contents.len() / 3, (contents.len() / 2).min(5000));
            let mut out = vec![0xee; len];
            assert_eq!(inode.read_at(&mut out, at as u64).unwrap(), len);
            assert!(out == contents[at..at + len], "{how:?}");
            fs.drop_cached();
            assert_eq!(inode.read_direct_at(&mut out, at as u64).unwrap(), len);
            assert!(out == contents[at..at + len], "{how:?}, past the cache");
            // Nothing behind the end is to be seen.
            assert_eq!(inode.size(), how.size);
            assert_eq!(inode.read_at(&mut [0; 70000], how.size).unwrap(), 0);
            assert_eq!(inode.seek_data(how.size).unwrap(), None);
            if how.size > 0 {
                assert_eq!(inode.seek_hole(0).unwrap(), Some(how.size));
            }
            if writable && how.size > 0 {
                fs.drop_cached();
                let seen = inode.with_cached(0..100, |parts| parts[0].to_vec()).unwrap();
                assert!(seen == contents[..contents.len().min(100)], "{how:?}");
                if let Ok(map) = inode.map_shared(0..how.size, false) {
                    let mut out = vec![0xee; map.len() as usize];
                    map.read(0, &mut out).unwrap();
                    assert!(out.starts_with(&contents), "{how:?}, mapped");
                    assert!(out[contents.len()..].iter().all(|byte| *byte == 0));
                }
            }
            drop(inode);
            fs.unmount().unwrap();
        }
    }
}

#[test]
fn a_damaged_block_is_never_shown_and_the_others_are() {
    for how in ALL.into_iter().filter(|how| how.size > 4 * how.fs_block) {
        let Made { device, contents, .. } = require!(made(how, |_| {}));
        let (fs, inode) = mount(&device, false);
        let wrong = (how.size / how.block) / 2;
        let at = wrong * how.block + 7;
        flip(&device, address(&inode, how, at));
        drop(inode);
        fs.unmount().unwrap();
        for writable in [false, true] {
            let (fs, inode) = mount(&device, writable);
            let read = |at: u64, len: usize| {
                let mut out = vec![0xee; len];
                let result = inode.read_at(&mut out, at);
                (result, out)
            };
            for (at, len) in [(at, 1), (wrong * how.block, 1), (at - 100, 300), (0, contents.len())]
            {
                let (result, out) = read(at, len);
                assert_unverified(result, "contents", wrong);
                let start = (wrong * how.block).saturating_sub(at) as usize;
                let end = (start + how.block as usize).min(out.len());
                let stored = out[start..end].iter().zip(&contents[at as usize + start..]);
                let shown = stored.filter(|(out, byte)| **out == (**byte ^ 0x10)).count();
                assert_eq!(shown, 0, "{how:?}: the damaged byte, or all of it");
                assert_unverified(inode.read_direct_at(&mut vec![0; len], at), "contents", wrong);
            }
            // Blocks around it, in a cache whose folios are larger than a block.
            for block in [
                wrong.saturating_sub(2 * how.fs_block / how.block),
                wrong + 4 * how.fs_block / how.block,
            ] {
                let at = block * how.block;
                if at / how.fs_block == (wrong * how.block) / how.fs_block || at >= how.size {
                    continue;
                }
                let (result, out) = read(at, 100.min((how.size - at) as usize));
                assert_eq!(result.unwrap(), out.len(), "{how:?}");
                assert!(out == contents[at as usize..at as usize + out.len()], "{how:?}");
            }
            if writable {
                let seen = inode.with_cached(at..at + 1, |parts| parts.len());
                assert_unverified(seen, "contents", wrong);
                assert!(!inode.with_stored(at..at + 1, |_, _| true).unwrap_or(false));
                if let Err(error) = inode.map_shared(0..how.size, false) {
                    assert!(
                        matches!(error, FsError::Unverified { .. } | FsError::PageCache(_)),
                        "{error}"
                    );
                } else {
                    panic!("{how:?}: a map shows what is not verified");
                }
            }
            drop(inode);
            fs.unmount().unwrap();
        }
    }
}

#[test]
fn damage_of_the_tree_is_found_in_each_level() {
    // Three levels: 1 + 2 + 37 blocks of hashes.
    let how = How { fs_block: 1024, block: 1024, size: 1_200_000, ..USUAL };
    let start = how.size.next_multiple_of(65536);
    for (index, reads) in [(0, 0), (1, 0), (2, 1_190_000), (3, 0), (4, 40_000), (39, 1_199_999)] {
        let Made { device, contents, .. } = require!(made(how, |_| {}));
        let (_, inode) = mount(&device, false);
        flip(&device, address(&inode, how, start + index * how.block + 9));
        for writable in [false, true] {
            let (_, inode) = mount(&device, writable);
            assert_unverified(inode.read_at(&mut [0; 1], reads), "hash tree", index);
            if index > 2 {
                // Another part of the file has another block of hashes.
                let other = if reads < 300_000 { 1_100_000 } else { 0 };
                let mut byte = [0];
                assert_eq!(inode.read_at(&mut byte, other).unwrap(), 1);
                assert_eq!(byte[0], contents[other as usize]);
            }
        }
    }
}

#[test]
fn bytes_behind_the_end_are_zeros_and_holes_are_checked() {
    let how = How { size: 10_000, ..USUAL };
    let Made { device, .. } = require!(made(how, |stored| stored[10_001] = 1));
    for writable in [false, true] {
        let (_, inode) = mount(&device, writable);
        assert_unverified(inode.read_at(&mut [0; 1], 9_999), "contents", 2);
        assert_eq!(inode.read_at(&mut [0; 1], 8_191).unwrap(), 1);
    }
    // Whoever replaces a block by a hole is found out.
    let Made { device, .. } = require!(made(how, |stored| stored[4096..8192].fill(0)));
    for writable in [false, true] {
        let (_, inode) = mount(&device, writable);
        assert_eq!(inode.seek_hole(0).unwrap(), Some(4096), "debugfs makes holes");
        assert_unverified(inode.read_at(&mut [0; 1], 5_000), "contents", 1);
        assert_unverified(inode.read_direct_at(&mut [0; 1], 5_000), "contents", 1);
        if writable {
            assert!(
                inode.try_read_at(&mut [0; 1], 5_000).is_err(),
                "an attempt would have to wait"
            );
        }
    }
}

#[test]
fn broken_descriptors_are_named_and_open_nothing() {
    let how = How { size: 10_000, ..USUAL };
    type Change = fn(&mut Vec<u8>);
    // The tree is one block at 65536, and the descriptor in the next.
    const AT: usize = 65536 + 4096;
    let cases: [(&str, Change); 16] = [
        ("version 2", |bytes| bytes[AT] = 2),
        ("hash algorithm 3", |bytes| bytes[AT + 1] = 3),
        ("2^13", |bytes| bytes[AT + 2] = 13),
        ("2^9", |bytes| bytes[AT + 2] = 9),
        ("salt of 33", |bytes| bytes[AT + 3] = 33),
        ("signature of 1 ", |bytes| bytes[AT + 4] = 1),
        ("signature of 4294967295", |bytes| bytes[AT + 4..AT + 8].fill(0xff)),
        ("of 10001 bytes", |bytes| bytes[AT + 8] = 0x11),
        ("of 9223372036854785808 bytes", |bytes| bytes[AT + 15] = 0x80),
        ("reserved", |bytes| bytes[AT + 200] = 1),
        ("0 bytes", |bytes| bytes[AT + 4092..].fill(0)),
        ("255 bytes", |bytes| bytes[AT + 4092..AT + 4094].copy_from_slice(&[255, 0])),
        ("behind the end", |bytes| bytes[AT + 4092..].fill(0xff)),
        ("behind the end", |bytes| bytes[AT + 4094] = 1),
        ("behind the end", |bytes| bytes.truncate(12288)),
        ("behind the end", |bytes| bytes[AT + 4095] = 0x80),
    ];
    for (text, change) in cases {
        let Made { device, .. } = require!(made(how, change));
        for writable in [false, true] {
            let (fs, inode) = mount(&device, writable);
            let results = [
                inode.read_at(&mut [0; 1], 0).map(drop),
                inode.read_all().map(drop),
                inode.verity_digest().map(drop),
                inode.check_seal(),
                fs.open("/sealed").map(drop),
                fs.read("/sealed").map(drop),
            ];
            for (index, result) in results.into_iter().enumerate() {
                let Err(error) = result else { panic!("{text}: {index}, writable: {writable}") };
                assert!(error.to_string().contains("fs-verity descriptor"), "{text}: {error}");
                assert!(error.to_string().contains("inode 12"), "{text}: {error}");
                assert!(error.to_string().contains(text), "{text}: {error}");
                assert_eq!(error.errno(), 117, "{text}: EUCLEAN");
            }
            // What needs no contents goes on.
            assert_eq!(inode.size(), how.size);
            if writable {
                let error = inode.write_at(b"x", 0).unwrap_err();
                assert!(matches!(error, FsError::NotPermitted { .. }), "{text}: {error}");
                fs.remove_file("/sealed").unwrap();
            }
        }
    }
}

#[test]
fn any_byte_of_the_metadata_may_have_any_value() {
    let how = How { size: 10_000, ..USUAL };
    let Made { device, contents, .. } = require!(made(how, |_| {}));
    let (_, inode) = mount(&device, false);
    let descriptor = address(&inode, how, 65536 + 4096);
    let size_field = address(&inode, how, 65536 + 8192 - 4);
    for at in (descriptor..descriptor + 256).chain(size_field..size_field + 4) {
        let mut byte = [0];
        device.read_at(at, &mut byte).unwrap();
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            device.write_at(at, &[value]).unwrap();
            let (_, inode) = mount(&device, false);
            match inode.read_all() {
                Ok(read) => assert!(read == contents, "byte {} is {value}", at - descriptor),
                Err(FsError::Corrupt { .. } | FsError::Unverified { .. }) => {}
                Err(error) => panic!("byte {} is {value}: {error}", at - descriptor),
            }
        }
        device.write_at(at, &byte).unwrap();
    }
}

#[test]
fn a_file_that_is_not_mapped_by_extents_has_no_seal() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "16M", &["-t", "ext4", "-O", "verity,inline_data", "-I", "256"]));
    let host = dir.path().join("small");
    fs::write(&host, "some bytes").unwrap();
    require!(debugfs(&path, true, &format!("write {} sealed", Path::new(&host).display())));
    // INLINE_DATA and VERITY; VERITY alone: block pointers.
    for flags in ["0x10100000", "0x100000"] {
        require!(debugfs(&path, true, &format!("sif /sealed flags {flags}")));
        let device = Arc::new(image::load(&path));
        for writable in [false, true] {
            let (_, inode) = mount(&device, writable);
            inode.read_all().unwrap_err();
            let error = inode.check_seal().unwrap_err();
            assert!(error.to_string().contains("not mapped by extents"), "{error}");
        }
    }
}

#[test]
fn parallel_readers_see_checked_bytes_only() {
    let Made { device, contents, .. } = require!(made(USUAL, |_| {}));
    let (_, inode) = mount(&device, false);
    let wrong = 300;
    flip(&device, address(&inode, USUAL, wrong * 4096));
    for writable in [false, true] {
        let (fs, inode) = mount(&device, writable);
        let done = extant_sync::threads::workers("reader", 4, |worker| {
            let mut failures = 0;
            for round in 0..USUAL.size / 4096 {
                let block = (round * 7 + worker as u64 * 131) % (USUAL.size / 4096);
                let mut out = vec![0; 4096];
                match inode.read_at(&mut out, block * 4096) {
                    Ok(_) => assert!(out == contents[block as usize * 4096..][..4096], "{block}"),
                    Err(error) => {
                        assert_eq!(block, wrong, "{error}");
                        failures += 1;
                    }
                }
            }
            failures
        });
        assert_eq!(done.unwrap(), [1; 4], "each met it once");
        drop(inode);
        fs.unmount().unwrap();
    }
}
