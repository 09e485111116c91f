//! Reading and writing past the page cache, beside everything else that can happen to a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant::{Fallocate, Fs, Inode, MountOptions, NewInode};
use extant_base::Prng;
use extant_block::{MemoryDevice, SharedDevice};
use extant_sync::{Clock, FixedClock, SystemClock, threads};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{Ends, image, require, tempdir};

const BLOCK: usize = 4096;

fn fresh(options: &[&str]) -> Result<(Arc<MemoryDevice>, Fs), String> {
    fresh_at(options, Arc::new(SystemClock))
}

fn fresh_at(options: &[&str], clock: Arc<dyn Clock>) -> Result<(Arc<MemoryDevice>, Fs), String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "64M", options)?;
    let device = Arc::new(image::load(&path));
    let fs = MountOptions::new().read_only(false).background(false).clock(clock);
    let fs = fs.open_shared(Arc::clone(&device) as SharedDevice).unwrap();
    Ok((device, fs))
}

fn end(device: &MemoryDevice, fs: Fs) -> Result<(), String> {
    fs.unmount().unwrap();
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    image::save(device, &path);
    let report = e2fsck(&path)?;
    assert!(report.is_clean(), "{}", report.text);
    Ok(())
}

fn write(inode: &Inode, offset: u64, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        done += inode.write_direct_at(&bytes[done..], offset + done as u64).unwrap();
    }
}

#[test]
fn a_large_file_costs_no_cache_and_is_one_extent_whatever_the_order_of_its_parts() {
    let run = || {
        let (device, fs) = fresh(&["-t", "ext4", "-b", "4096"])?;
        let inode = fs.root().unwrap().create("large", &NewInode::root(0o644)).unwrap();
        let part = 64 * BLOCK;
        let mut bytes = vec![0; 32 * part];
        Prng::new(1).fill(&mut bytes);
        // As a cache in front sends its pieces: several under way, none before its time.
        for group in 0..8 {
            for which in [1, 0, 3, 2] {
                let at = (4 * group + which) * part;
                write(&inode, at as u64, &bytes[at..at + part]);
            }
        }
        let mut read = vec![0; bytes.len()];
        assert_eq!(inode.read_direct_at(&mut read, 0).unwrap(), bytes.len());
        assert!(read == bytes);
        let stats = fs.io_stats().unwrap();
        assert_eq!((stats.folios_made, stats.bytes_copied, stats.used_bytes), (0, 0, 0));
        assert_eq!(stats.bytes_written_direct, bytes.len() as u64);
        let extents = inode.fiemap(0..bytes.len() as u64, 100, false).unwrap();
        assert!(extents.len() <= 2, "{extents:?}");
        drop(inode);
        end(&device, fs)
    };
    require!(run());
}

#[test]
fn programs_times_and_set_id_bits_are_those_of_any_write() {
    let run = || {
        let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
        let time = Arc::clone(&clock) as Arc<dyn Clock>;
        let (device, fs) = fresh_at(&["-t", "ext4", "-b", "1024"], time)?;
        let new = NewInode::root(0o644);
        let inode = fs.root().unwrap().create("program", &new).unwrap();
        write(&inode, 0, &[1; 4 * BLOCK]);
        inode.set_attributes(&extant::SetAttributes::new().permissions(0o4755)).unwrap();
        let before = inode.metadata();
        clock.advance(Duration::from_secs(1));
        write(&inode, 0, &[2; BLOCK]);
        let after = inode.metadata();
        assert_eq!(after.mode() & 0o7777, 0o755, "who writes a program takes its rights");
        assert!(after.mtime > before.mtime && after.ctime > before.ctime);
        let before = inode.metadata();
        clock.advance(Duration::from_secs(1));
        inode.write_direct_by(extant::WriteBy::Cache, &[3; BLOCK], 0).unwrap();
        assert_eq!(inode.metadata().mtime, before.mtime, "a cache in front keeps times");
        drop(inode);
        end(&device, fs)
    };
    require!(run());
}

#[test]
fn inline_data_and_mapped_files_take_the_way_through_the_cache() {
    let run = || {
        let (device, fs) = fresh(&["-t", "ext4", "-b", "1024", "-O", "inline_data"])?;
        let small = fs.root().unwrap().create("small", &NewInode::root(0o644)).unwrap();
        write(&small, 0, b"hello");
        let mut out = [0; 9];
        assert_eq!(small.read_direct_at(&mut out, 1).unwrap(), 4);
        assert_eq!(&out[..4], b"ello");
        // Moves out of the inode.
        write(&small, 0, &[4; 2 * BLOCK]);
        let map = small.map_shared(0..2 * BLOCK as u64, true).unwrap();
        write(&small, 1024, &[5; 1024]);
        let mut seen = [0; 2048];
        map.read(0, &mut seen).unwrap();
        assert!(seen[..1024] == [4; 1024] && seen[1024..] == [5; 1024], "a map shows every write");
        drop(map);
        drop(small);
        end(&device, fs)
    };
    require!(run());
}

/// Each block holds its number and a version. Versions only rise, whoever writes them which way; a reader
/// never sees less than was there when it began, nor half a block of what the cache gave it.
#[test]
fn readers_and_writers_of_both_ways_see_one_file() {
    const BLOCKS: u64 = 24;
    let run = || {
        let (device, fs) = fresh(&["-t", "ext4", "-b", "4096"])?;
        let inode = fs.root().unwrap().create("shared", &NewInode::root(0o644)).unwrap();
        write(&inode, 0, &vec![0; BLOCKS as usize * BLOCK]);
        let written: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
        let stop = AtomicBool::new(false);
        let (written, stop) = (&written, &stop);
        let version = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        threads::scope(|scope| {
            for writer in 0..3u64 {
                let inode = inode.clone();
                let work = move || {
                    let _ends = (writer == 2).then(|| Ends(stop));
                    let mut random = Prng::new(writer);
                    for round in 1..400u64 {
                        // Blocks of its own, so that each has one order of versions.
                        let block = random.below(BLOCKS / 3) * 3 + writer;
                        let bytes = round.to_le_bytes().repeat(BLOCK / 8);
                        match random.below(4) {
                            0 => drop(inode.write_at(&bytes, block * BLOCK as u64).unwrap()),
                            _ => write(&inode, block * BLOCK as u64, &bytes),
                        }
                        written[block as usize].store(round, Ordering::SeqCst);
                    }
                };
                scope.spawn("writer", work).unwrap();
            }
            for reader in 0..2u64 {
                let inode = inode.clone();
                let work = move || {
                    let mut random = Prng::new(100 + reader);
                    let mut out = vec![0; BLOCK];
                    while !stop.load(Ordering::SeqCst) {
                        let block = random.below(BLOCKS);
                        let least = written[block as usize].load(Ordering::SeqCst);
                        let at = block * BLOCK as u64;
                        let read = match reader {
                            0 => inode.read_at(&mut out, at),
                            _ => inode.read_direct_at(&mut out, at),
                        };
                        assert_eq!(read.unwrap(), BLOCK);
                        assert!(version(&out) >= least, "block {block}: older than {least}");
                    }
                };
                scope.spawn("reader", work).unwrap();
            }
            let (other, fs) = (inode.clone(), fs.clone());
            let disturb = move || {
                let mut random = Prng::new(7);
                while !stop.load(Ordering::SeqCst) {
                    match random.below(4) {
                        0 => other.sync_data().unwrap(),
                        1 => drop(fs.drop_cached()),
                        2 => {
                            let end = (BLOCKS + 8) * BLOCK as u64;
                            let range = BLOCKS * BLOCK as u64..end;
                            other
                                .fallocate(Fallocate::Allocate { keep_size: true }, range)
                                .unwrap();
                        }
                        _ => other.truncate(BLOCKS * BLOCK as u64).unwrap(),
                    }
                }
            };
            scope.spawn("disturb", disturb).unwrap();
        })
        .unwrap_or_else(|panic| panic!("{panic}"));
        let check = |inode: &Inode, when: &str| {
            let mut out = vec![0; BLOCK];
            for (block, last) in written.iter().enumerate() {
                for direct in [false, true] {
                    let at = (block * BLOCK) as u64;
                    match direct {
                        true => inode.read_direct_at(&mut out, at).unwrap(),
                        false => inode.read_at(&mut out, at).unwrap(),
                    };
                    let wanted = last.load(Ordering::SeqCst).to_le_bytes().repeat(BLOCK / 8);
                    assert!(out == wanted, "{when}: block {block}, direct: {direct}");
                }
            }
        };
        check(&inode, "in the end");
        inode.sync().unwrap();
        fs.drop_cached();
        check(&inode, "from the device");
        drop(inode);
        end(&device, fs)
    };
    require!(run());
}
