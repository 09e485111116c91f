//! Direct I/O by the rules of Linux: alignment, who waits for whom, what the cache has of it, and what is
//! there after a cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant::{
    AlignedBuffer, CacheStats, DirectAlignment, DirectFile, Fallocate, Fs, FsError, Inode,
    MountOptions, NewInode,
};
use extant_base::Prng;
use extant_block::{
    BlockDevice, FaultDevice, FaultPlan, MemoryDevice, Operation, OperationKind, RecordingDevice,
    SharedDevice, Survival,
};
use extant_sync::{FixedClock, threads};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{Ends, Hooked, image, require, tempdir};

const BLOCK: u64 = 4096;
const EXT4: &[&str] = &["-t", "ext4", "-b", "4096"];

fn fresh(options: &[&str]) -> Result<MemoryDevice, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "32M", options)?;
    Ok(image::load(&path))
}

fn mount(device: SharedDevice) -> Fs {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    options.open_shared(device).unwrap()
}

/// What `e2fsck` says of the image, and what is in `/file` after the journal was replayed.
fn after_a_cut(device: &MemoryDevice) -> Result<Option<Vec<u8>>, String> {
    let device = Arc::new(device.snapshot());
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let contents = fs.read("/file").ok();
    fs.unmount().unwrap();
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    image::save(&device, &path);
    let report = e2fsck(&path)?;
    assert!(report.is_clean(), "{}", report.text);
    Ok(contents)
}

fn check_clean(device: &MemoryDevice) -> Result<(), String> {
    after_a_cut(device).map(drop)
}

fn create(fs: &Fs) -> DirectFile {
    fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap().direct().unwrap()
}

/// A file of so many blocks that hold 1, durable.
fn with_blocks(fs: &Fs, blocks: u64) -> DirectFile {
    let file = create(fs);
    let bytes = filled(1, blocks * BLOCK);
    assert_eq!(file.write_at(&bytes, 0).unwrap(), bytes.len());
    file.inode().sync().unwrap();
    file
}

fn filled(value: u8, len: u64) -> AlignedBuffer {
    let mut bytes = AlignedBuffer::zeroed(len as usize);
    bytes.fill(value);
    bytes
}

fn preallocate(inode: &Inode, range: std::ops::Range<u64>) {
    inode.fallocate(Fallocate::Allocate { keep_size: false }, range).unwrap();
}

fn handles(fs: &Fs) -> u64 {
    fs.writer_stats().unwrap().journal.handles
}

/// Writes that had the content lock for themselves.
fn alone(stats: &CacheStats) -> u64 {
    stats.named().iter().filter(|(name, _)| name.starts_with("direct_alone_")).map(|it| it.1).sum()
}

#[test]
fn p44_what_is_misaligned_is_refused_before_anything_is_done() {
    let run = || {
        let device = Arc::new(fresh(EXT4)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 4);
        assert_eq!(file.alignment(), DirectAlignment { memory: 512, offset: 512 });
        assert_eq!(file.inode().direct_alignment(), Some(file.alignment()));
        let before = (fs.io_stats().unwrap(), handles(&fs));
        let mut bytes = filled(2, 3 * BLOCK);
        for (offset, from, to, what) in [
            (1, 0, 512, "offset"),
            (BLOCK + 511, 0, 512, "offset"),
            (1 << 40 | 256, 0, 512, "offset"),
            (512, 0, 511, "length"),
            (0, 0, 4097, "length"),
            (0, 8, 8 + 512, "address of the memory"),
            (512, 511, 511 + 4096, "address of the memory"),
        ] {
            let errors = [
                file.read_at(&mut bytes[from..to], offset).unwrap_err(),
                file.write_at(&bytes[from..to], offset).unwrap_err(),
                file.write_synced_at(&bytes[from..to], offset).unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.errno(), 22);
                let FsError::Misaligned { what: got, unit, .. } = error else { panic!("{error}") };
                assert_eq!((got, unit), (what, 512));
            }
        }
        assert_eq!((fs.io_stats().unwrap(), handles(&fs)), before, "nothing was read or written");
        // What is aligned to sectors, though not to blocks, is not refused.
        assert_eq!(file.write_at(&bytes[1024..2048], 512).unwrap(), 1024);
        assert_eq!(file.read_at(&mut bytes[..512], BLOCK).unwrap(), 512);
        // Nothing to do is done anywhere.
        assert_eq!(file.write_at(&[], 512).unwrap(), 0);
        drop(file);
        fs.unmount().unwrap();
        check_clean(&device)
    };
    require!(run());
}

#[test]
fn directories_links_and_data_in_the_inode_say_so() {
    let run = || {
        let device = Arc::new(fresh(&["-t", "ext4", "-b", "1024", "-O", "inline_data"])?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let root = fs.root().unwrap();
        assert_eq!(root.direct_alignment(), None);
        assert_eq!(root.direct().unwrap_err().errno(), 21);
        let link = root.symlink(b"link", b"target", &NewInode::root(0o777)).unwrap();
        assert_eq!((link.direct_alignment(), link.direct().unwrap_err().errno()), (None, 22));
        let file = create(&fs);
        file.inode().write_at(b"short", 0).unwrap();
        assert_eq!(file.inode().direct_alignment(), None, "it is in the inode");
        let mut bytes = filled(9, 1024);
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 5);
        assert_eq!(&bytes[..5], b"short");
        // The decision is made when the lock is held: the data has moved out by then.
        assert_eq!(file.write_at(&filled(3, 512), 512).unwrap(), 512);
        assert_eq!(fs.io_stats().unwrap().direct_alone_inline, 1);
        assert!(file.inode().direct_alignment().is_some());
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 1024);
        let mut wanted = vec![0; 512];
        wanted[..5].copy_from_slice(b"short");
        wanted.extend([3; 512]);
        assert_eq!(&bytes[..], &wanted);
        file.inode().sync().unwrap();
        drop((root, link, file));
        fs.unmount().unwrap();
        assert_eq!(after_a_cut(&device)?, Some(wanted));
        Ok::<(), String>(())
    };
    require!(run());
}

/// Nothing is asked of the journal, nobody is kept waiting, nothing stays in memory.
#[test]
fn p38_p46_overwrites_take_no_handle_and_no_exclusive_lock() {
    let run = || {
        let device = Arc::new(fresh(EXT4)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 64);
        let (before, handles_before) = (fs.io_stats().unwrap(), handles(&fs));
        let mut wanted = vec![1; 64 * BLOCK as usize];
        let mut random = Prng::new(1);
        for round in 0..200 {
            // Sectors and blocks, one or several.
            let sector = random.below(64 * 8 - 32) * 512;
            let len = (1 + random.below(32)) * 512;
            let bytes = filled(round, len);
            assert_eq!(file.write_at(&bytes, sector).unwrap() as u64, len);
            wanted[sector as usize..(sector + len) as usize].fill(round);
        }
        let stats = fs.io_stats().unwrap();
        assert_eq!(stats.direct_overwrites - before.direct_overwrites, 200);
        assert_eq!(handles(&fs), handles_before);
        assert_eq!(alone(&stats), alone(&before));
        assert_eq!((stats.folios_made, stats.bytes_copied), (0, 0));
        let mut read = AlignedBuffer::zeroed(wanted.len());
        assert_eq!(file.read_at(&mut read, 0).unwrap(), wanted.len());
        assert!(read[..] == wanted);
        assert_eq!(fs.io_stats().unwrap().folios_made, 0);
        file.inode().sync_data().unwrap();
        assert_eq!(after_a_cut(&device)?, Some(wanted));
        Ok::<(), String>(())
    };
    require!(run());
}

/// Whoever holds the content lock shared, as a long read does, keeps no overwrite waiting.
#[test]
fn overwrites_run_beside_a_reader_that_stays() {
    let run = || {
        let device = Arc::new(fresh(EXT4)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 8);
        preallocate(file.inode(), 8 * BLOCK..16 * BLOCK);
        file.inode().sync().unwrap();
        let other = file.clone();
        file.inode()
            // The last block, so that nothing behind it is fetched as well.
            .with_cached(15 * BLOCK..15 * BLOCK + 1, |_| {
                threads::scope(|scope| {
                    let write = move || {
                        other.write_at(&filled(2, BLOCK), BLOCK).unwrap();
                        other.write_at(&filled(3, BLOCK), 9 * BLOCK).unwrap();
                    };
                    scope.spawn("writer", write).unwrap().join().unwrap();
                })
                .unwrap();
            })
            .unwrap();
        let stats = fs.io_stats().unwrap();
        assert_eq!((stats.direct_overwrites, stats.direct_conversions), (1, 1));
        drop(file);
        fs.unmount().unwrap();
        check_clean(&device)
    };
    require!(run());
}

#[test]
fn first_data_of_preallocated_blocks_takes_one_handle_and_no_exclusive_lock() {
    let run = || {
        let device = Arc::new(fresh(EXT4)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = create(&fs);
        preallocate(file.inode(), 0..64 * BLOCK);
        file.inode().sync().unwrap();
        let before = handles(&fs);
        let mut wanted = vec![0; 64 * BLOCK as usize];
        for block in (0..64).step_by(3) {
            file.write_at(&filled(block as u8 + 1, BLOCK), block * BLOCK).unwrap();
            let at = (block * BLOCK) as usize;
            wanted[at..at + BLOCK as usize].fill(block as u8 + 1);
        }
        let stats = fs.io_stats().unwrap();
        assert_eq!((stats.direct_conversions, alone(&stats)), (22, 0));
        assert_eq!(handles(&fs) - before, 22);
        // They have data now.
        file.write_at(&filled(7, BLOCK), 0).unwrap();
        wanted[..BLOCK as usize].fill(7);
        assert_eq!(fs.io_stats().unwrap().direct_overwrites, 1);
        assert_eq!(handles(&fs) - before, 22);
        // A part of a block that has none: its other part has to become zeros.
        file.write_at(&filled(8, 512), BLOCK + 512).unwrap();
        wanted[BLOCK as usize + 512..BLOCK as usize + 1024].fill(8);
        let stats = fs.io_stats().unwrap();
        assert_eq!((stats.direct_conversions, alone(&stats)), (23, 0));
        let mut read = AlignedBuffer::zeroed(wanted.len());
        file.read_at(&mut read, 0).unwrap();
        assert!(read[..] == wanted);
        file.inode().sync().unwrap();
        assert_eq!(after_a_cut(&device)?, Some(wanted));
        Ok::<(), String>(())
    };
    require!(run());
}

/// Each reason to be alone is counted as what it is, and leaves nothing of the range in the cache.
#[test]
fn what_has_to_be_alone_is_counted_by_its_reason() {
    let run = || {
        let device = Arc::new(fresh(EXT4)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 8);
        let inode = file.inode();
        let reasons = |fs: &Fs| {
            let stats = fs.io_stats().unwrap();
            [
                stats.direct_fills,
                stats.direct_alone_extends,
                stats.direct_alone_cached,
                stats.direct_alone_mapped,
                stats.direct_alone_rights,
            ]
        };
        assert_eq!(reasons(&fs), [1, 0, 0, 0, 0]);
        inode.truncate(15 * BLOCK + 512).unwrap();
        file.write_at(&filled(2, BLOCK), 12 * BLOCK + 512).unwrap();
        assert_eq!(reasons(&fs), [2, 0, 0, 0, 0]);
        // Parts of two blocks were written, which have data now: nobody else is in the way.
        file.write_at(&filled(3, 512), 12 * BLOCK).unwrap();
        assert_eq!(reasons(&fs), [2, 0, 0, 0, 0]);
        // What lies between the end and this in the last block has to become zeros.
        file.write_at(&filled(2, BLOCK), 17 * BLOCK).unwrap();
        assert_eq!(reasons(&fs), [2, 1, 0, 0, 0]);
        inode.read_at(&mut [0; 100], 0).unwrap();
        file.write_at(&filled(4, BLOCK), 0).unwrap();
        assert_eq!(reasons(&fs), [2, 1, 1, 0, 0]);
        file.write_at(&filled(5, BLOCK), 0).unwrap();
        assert_eq!(reasons(&fs), [2, 1, 1, 0, 0], "what was cached is dropped");
        let map = inode.map_shared(0..BLOCK, false).unwrap();
        file.write_at(&filled(6, BLOCK), 4 * BLOCK).unwrap();
        assert_eq!(reasons(&fs), [2, 1, 1, 1, 0]);
        drop(map);
        inode.set_attributes(&extant::SetAttributes::new().permissions(0o4755)).unwrap();
        file.write_at(&filled(6, BLOCK), 4 * BLOCK).unwrap();
        assert_eq!(reasons(&fs), [2, 1, 1, 1, 1]);
        assert_eq!(inode.metadata().mode() & 0o7777, 0o755);
        drop(file);
        fs.unmount().unwrap();
        check_clean(&device)
    };
    require!(run());
}

/// Two writers, each of a half of blocks that have no data yet.
#[test]
fn p42_two_unaligned_writers_of_one_new_block_keep_each_others_half() {
    let run = || {
        const BLOCKS: u64 = 48;
        for preallocated in [false, true] {
            let device = Arc::new(fresh(EXT4)?);
            let fs = mount(Arc::clone(&device) as SharedDevice);
            let file = create(&fs);
            match preallocated {
                true => preallocate(file.inode(), 0..BLOCKS * BLOCK),
                false => file.inode().truncate(BLOCKS * BLOCK).unwrap(),
            }
            threads::scope(|scope| {
                for half in 0..2 {
                    let file = file.clone();
                    let work = move || {
                        let bytes = filled(half as u8 + 1, BLOCK / 2);
                        for block in 0..BLOCKS {
                            file.write_at(&bytes, block * BLOCK + half * BLOCK / 2).unwrap();
                        }
                    };
                    scope.spawn("writer", work).unwrap();
                }
            })
            .unwrap();
            let mut wanted = vec![1; BLOCK as usize / 2];
            wanted.extend([2; BLOCK as usize / 2]);
            let wanted = wanted.repeat(BLOCKS as usize);
            let mut read = AlignedBuffer::zeroed(wanted.len());
            file.read_at(&mut read, 0).unwrap();
            assert!(read[..] == wanted, "preallocated: {preallocated}");
            file.inode().sync().unwrap();
            assert_eq!(after_a_cut(&device)?, Some(wanted));
        }
        Ok::<(), String>(())
    };
    require!(run());
}

#[test]
fn what_is_dirty_around_a_direct_write_stays_and_what_is_under_it_goes() {
    let run = || {
        let device = Arc::new(fresh(&["-t", "ext4", "-b", "1024"])?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 4);
        let inode = file.inode();
        inode.write_at(&[2; 9000], 100).unwrap();
        let mut wanted = vec![1; 4 * BLOCK as usize];
        wanted[100..9100].fill(2);
        let mut read = AlignedBuffer::zeroed(wanted.len());
        file.read_at(&mut read, 0).unwrap();
        assert!(read[..] == wanted, "a direct read sees what is dirty");
        file.write_at(&filled(3, 1536), 2048).unwrap();
        wanted[2048..2048 + 1536].fill(3);
        assert_eq!(inode.read_all().unwrap(), wanted);
        file.read_at(&mut read, 0).unwrap();
        assert!(read[..] == wanted);
        fs.sync().unwrap();
        fs.drop_cached();
        assert_eq!(inode.read_all().unwrap(), wanted);
        assert_eq!(after_a_cut(&device)?, Some(wanted));
        Ok::<(), String>(())
    };
    require!(run());
}

/// A map and direct I/O beside it.
#[test]
fn p48_a_mapped_page_and_direct_io_show_each_other() {
    let run = || {
        let device = Arc::new(fresh(EXT4)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 4);
        let map = file.inode().map_shared(0..2 * BLOCK, true).unwrap();
        map.write(100, &[2; 10]).unwrap();
        let mut read = AlignedBuffer::zeroed(2 * BLOCK as usize);
        file.read_at(&mut read, 0).unwrap();
        assert_eq!(&read[99..111], [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
        file.write_at(&filled(3, 512), 512).unwrap();
        let mut seen = vec![0; 1024];
        map.read(0, &mut seen).unwrap();
        let mut wanted = vec![1; 4 * BLOCK as usize];
        wanted[100..110].fill(2);
        wanted[512..1024].fill(3);
        assert_eq!(seen, wanted[..1024]);
        map.write(600, &[4; 5]).unwrap();
        wanted[600..605].fill(4);
        // It is on the device, with what the map had by then.
        file.write_at(&filled(5, BLOCK), BLOCK).unwrap();
        wanted[BLOCK as usize..2 * BLOCK as usize].fill(5);
        drop(map);
        fs.drop_cached();
        file.inode().sync().unwrap();
        assert_eq!(file.inode().read_all().unwrap(), wanted);
        assert_eq!(after_a_cut(&device)?, Some(wanted));
        Ok::<(), String>(())
    };
    require!(run());
}

/// What the size includes is never zeros, whichever way it is read.
#[test]
fn p41_readers_of_a_growing_file_never_see_zeros() {
    let run = || {
        const BLOCKS: u64 = 300;
        let device = Arc::new(fresh(EXT4)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = create(&fs);
        let stop = AtomicBool::new(false);
        let stop = &stop;
        threads::scope(|scope| {
            let _ends = Ends(stop);
            for direct in [false, true] {
                let file = file.clone();
                let work = move || {
                    let mut out = AlignedBuffer::zeroed(BLOCK as usize);
                    while !stop.load(Ordering::Acquire) {
                        let size = file.inode().metadata().size;
                        let Some(at) = size.checked_sub(BLOCK) else { continue };
                        let read = match direct {
                            true => file.read_at(&mut out, at).unwrap(),
                            false => file.inode().read_at(&mut out, at).unwrap(),
                        };
                        assert_eq!(read, BLOCK as usize);
                        assert!(out.iter().all(|byte| *byte == 7), "zeros at {at}");
                    }
                };
                scope.spawn("reader", work).unwrap();
            }
            for block in 0..BLOCKS {
                file.write_at(&filled(7, BLOCK), block * BLOCK).unwrap();
            }
        })
        .unwrap();
        drop(file);
        fs.unmount().unwrap();
        check_clean(&device)
    };
    require!(run());
}

/// What makes bytes durable.
#[derive(Default)]
struct Counts {
    flushes: AtomicU64,
    through: AtomicU64,
}

fn count(counts: &Counts, batch: &[Operation]) {
    for operation in batch {
        let is_flush = operation.kind() == OperationKind::Flush;
        counts.flushes.fetch_add(u64::from(is_flush), Ordering::Relaxed);
        let through = matches!(operation, Operation::Write { fua: true, .. });
        counts.through.fetch_add(u64::from(through), Ordering::Relaxed);
    }
}

#[test]
fn synced_overwrites_go_through_the_devices_cache_and_flush_nothing() {
    let run = || {
        let device = Hooked::over(fresh(EXT4)?, Counts::default(), count);
        let Counts { flushes, through } = &device.state;
        let counts = || (flushes.load(Ordering::Relaxed), through.load(Ordering::Relaxed));
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 16);
        let (before, commits) = (counts(), fs.writer_stats().unwrap().journal.commits);
        let handles_before = handles(&fs);
        for block in 0..16 {
            file.write_synced_at(&filled(2, 512), block * BLOCK).unwrap();
        }
        let after = counts();
        assert_eq!((after.0 - before.0, after.1 - before.1), (0, 16));
        assert_eq!(fs.writer_stats().unwrap().journal.commits, commits);
        assert_eq!(handles(&fs), handles_before);
        // Nothing else was written before the next sync of it, so there is nothing to flush for.
        let mut wanted = vec![1; 16 * BLOCK as usize];
        for block in 0..16 {
            wanted[block * BLOCK as usize..][..512].fill(2);
        }
        // What is not durable yet of the map goes first: a cut right after the write finds the bytes.
        preallocate(file.inode(), 16 * BLOCK..32 * BLOCK);
        file.write_at(&filled(3, BLOCK), 16 * BLOCK).unwrap();
        file.write_synced_at(&filled(4, BLOCK), 16 * BLOCK).unwrap();
        wanted.extend([4; BLOCK as usize]);
        wanted.resize(32 * BLOCK as usize, 0);
        assert!(fs.writer_stats().unwrap().journal.commits > commits);
        assert_eq!(after_a_cut(&device.below)?, Some(wanted));
        Ok::<(), String>(())
    };
    require!(run());
}

/// What is left when everything is lost that no flush and no FUA made durable.
fn durable_only(recording: &RecordingDevice) -> MemoryDevice {
    recording.image_at(recording.len(), |_, _| Survival::Lost)
}

/// The size is durable with the bytes. And O_DSYNC in general: what a write said is durable is there when
/// the device loses everything else.
#[test]
fn p43_synced_writes_are_there_when_the_device_loses_its_cache() {
    let run = || {
        let recording = Arc::new(RecordingDevice::over(fresh(EXT4)?));
        let fs = mount(Arc::clone(&recording) as SharedDevice);
        let file = create(&fs);
        let mut wanted: Vec<u8> = Vec::new();
        let mut random = Prng::new(3);
        for round in 1..60u8 {
            let end = wanted.len() as u64;
            let offset = match random.below(4) {
                0 => end.next_multiple_of(512),
                1 => end.next_multiple_of(512) + 512 * random.below(20),
                _ => random.below(end / 512 + 1) * 512,
            };
            let len = (1 + random.below(20)) * 512;
            file.write_synced_at(&filled(round, len), offset).unwrap();
            wanted.resize(wanted.len().max((offset + len) as usize), 0);
            wanted[offset as usize..(offset + len) as usize].fill(round);
            if round % 6 == 0 {
                let got = after_a_cut(&durable_only(&recording))?;
                assert!(got.as_ref() == Some(&wanted), "round {round}");
            }
        }
        assert!(fs.io_stats().unwrap().direct_overwrites > 5);
        Ok::<(), String>(())
    };
    require!(run());
}

/// The old tail, dirty and not stored yet, is in front of the size that a direct append stores.
#[test]
fn p15_a_direct_append_past_a_dirty_tail_leaves_no_zeros_in_front_of_it() {
    let run = || {
        let recording = Arc::new(RecordingDevice::over(fresh(EXT4)?));
        let fs = mount(Arc::clone(&recording) as SharedDevice);
        let file = create(&fs);
        file.inode().write_at(&[1; 700], 0).unwrap();
        file.write_synced_at(&filled(2, 512), BLOCK).unwrap();
        let mut wanted = vec![0; BLOCK as usize + 512];
        wanted[..700].fill(1);
        wanted[BLOCK as usize..].fill(2);
        let got = after_a_cut(&durable_only(&recording))?;
        assert!(got == Some(wanted));
        Ok::<(), String>(())
    };
    require!(run());
}

/// Whatever of an extending write the device took before a cut, the file ends where it says, and nothing
/// is left over.
#[test]
fn p47_an_extending_write_is_whole_or_absent_after_a_cut_at_any_write() {
    let run = || {
        let recording = Arc::new(RecordingDevice::over(fresh(EXT4)?));
        let fs = mount(Arc::clone(&recording) as SharedDevice);
        let file = with_blocks(&fs, 1);
        let begin = recording.len();
        file.write_synced_at(&filled(2, 2 * BLOCK + 512), 3 * BLOCK).unwrap();
        let end = recording.len();
        let old = vec![1; BLOCK as usize];
        let mut new = old.clone();
        new.resize(3 * BLOCK as usize, 0);
        new.resize(5 * BLOCK as usize + 512, 2);
        let mut news = 0;
        for position in begin..=end {
            let got = after_a_cut(&recording.image_with_all(position))?.expect("the file");
            // The size may have been stored for a part that was complete.
            assert!(new.starts_with(&got) && got.len() >= old.len(), "{position}: {}", got.len());
            news += u32::from(got == new);
        }
        assert!(news > 0, "the last is durable");
        Ok::<(), String>(())
    };
    require!(run());
}

/// An error of the device in the middle.
#[test]
fn p47_an_extending_write_that_fails_leaves_the_file_as_it_was() {
    let run = || {
        let memory = fresh(EXT4)?;
        let run = |plan: FaultPlan| {
            let device = Arc::new(FaultDevice::new(Arc::new(memory.snapshot()), plan));
            let fs = mount(Arc::clone(&device) as SharedDevice);
            let file = with_blocks(&fs, 1);
            let before = device.seen()[1];
            let written = file.write_at(&filled(2, 2 * BLOCK), BLOCK);
            let size = file.inode().metadata().size;
            drop(file);
            fs.unmount().unwrap();
            let contents = after_a_cut(device.inner())?.expect("the file");
            assert_eq!(contents.len() as u64, size);
            Ok::<_, String>((before, written.is_ok(), size))
        };
        let (nth, ..) = run(FaultPlan::default())?;
        let exactly = vec![(OperationKind::Write, nth, 1)];
        let failed = run(FaultPlan { exactly, ..FaultPlan::default() })?;
        assert_eq!(failed, (nth, false, BLOCK));
        Ok::<(), String>(())
    };
    require!(run());
}

/// The contents of `/file` after a cut, without asking e2fsck.
fn contents_after(device: &MemoryDevice) -> Option<Vec<u8>> {
    let fs = mount(Arc::new(device.snapshot()) as SharedDevice);
    let contents = fs.read("/file").ok();
    fs.unmount().unwrap();
    contents
}

/// What of the records that no flush protects is left: each kept, lost or torn.
pub(crate) fn any_of(
    recording: &RecordingDevice,
    position: usize,
    random: &mut Prng,
) -> MemoryDevice {
    let style = random.below(4);
    recording.image_at(position, |_, record| match (style, random.below(3)) {
        (0, _) | (1, 0) => Survival::Lost,
        (1, 1) => Survival::Torn { bytes: random.below(record.range().1 + 1) },
        (2, choice) if choice > 0 => Survival::Lost,
        _ => Survival::Kept,
    })
}

/// Atomic writes of all lengths, over data, holes, unwritten blocks and the end, cut so often.
fn atomic_writes_cut(options: &[&str], points: u64, seed: u64) -> Result<(), String> {
    let recording = Arc::new(RecordingDevice::over(fresh(options)?));
    let fs = mount(Arc::clone(&recording) as SharedDevice);
    let file = create(&fs);
    let units = file.atomic_units().expect("an extent tree");
    let (min, max) = (u64::from(units.min), u64::from(units.max));
    let mut random = Prng::new(seed);
    // Data, a hole, data, unwritten blocks.
    file.write_at(&filled(1, 3 * max), 0).unwrap();
    file.write_at(&filled(1, 2 * max), 4 * max).unwrap();
    preallocate(file.inode(), 6 * max..7 * max + min);
    file.inode().sync().unwrap();
    let mut now = file.inode().read_all().unwrap();
    let mut states = vec![now.clone()];
    let begin = recording.len();
    // For each record, the states that a cut before it may show.
    let mut marks: Vec<(usize, usize)> = vec![(begin, 0)];
    for value in 2..34u8 {
        let len = min << random.below(u64::from((max / min).ilog2()) + 1);
        let offset = random.below(8 * max / len) * len;
        file.write_atomic_at(&filled(value, len), offset).unwrap();
        now.resize(now.len().max((offset + len) as usize), 0);
        now[offset as usize..(offset + len) as usize].fill(value);
        states.push(now.clone());
        assert!(file.inode().read_all().unwrap() == now, "{options:?} {value}");
        if random.below(4) == 0 {
            file.inode().sync_data().unwrap();
            marks.push((recording.len(), states.len() - 1));
        }
        // Something ordinary in between, beside it.
        if random.below(6) == 0 {
            file.inode().write_at(&[value; 100], 20 * max).unwrap();
            now.resize(now.len().max(20 * max as usize + 100), 0);
            now[20 * max as usize..][..100].fill(value);
            file.inode().sync_data().unwrap();
            states.push(now.clone());
            marks.push((recording.len(), states.len() - 1));
        }
    }
    file.inode().sync().unwrap();
    let end = recording.len() as u64;
    for point in 0..points {
        let position = begin + random.below(end - begin as u64 + 1) as usize;
        let image = any_of(&recording, position, &mut random);
        let got = if point % 500 == 0 { after_a_cut(&image)? } else { contents_after(&image) };
        let got = got.expect("the file");
        let least = marks.iter().filter(|(at, _)| *at <= position).map(|(_, state)| *state).max();
        let least = least.unwrap_or(0);
        // An ordinary write over data is on the device before its sync, and what a file ends with is
        // zeros: both are left out.
        let part = |bytes: &[u8]| {
            let mut part = bytes[..bytes.len().min(8 * max as usize)].to_vec();
            part.resize(8 * max as usize, 0);
            part
        };
        let got = part(&got);
        if !states[least..].iter().any(|state| part(state) == got) {
            for (number, state) in states.iter().enumerate().skip(least) {
                let state = part(state);
                let differ =
                    (0..got.len()).step_by(min as usize).filter(|at| got[*at] != state[*at]);
                let differ: Vec<_> =
                    differ.map(|at| (at / min as usize, got[at], state[at])).take(6).collect();
                println!("{number}: {differ:?}");
            }
            panic!("{options:?} seed {seed}: cut at {position}, none of {least}.. is there");
        }
    }
    drop(file);
    fs.unmount().unwrap();
    check_clean(&recording.contents())
}

const ATOMIC_LAYOUTS: [&[&str]; 3] = [
    EXT4,
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"],
];

#[test]
fn atomic_writes_are_whole_or_absent_after_a_cut() {
    for (seed, options) in (1..).zip(ATOMIC_LAYOUTS) {
        require!(atomic_writes_cut(options, 60, seed));
    }
}

#[test]
#[ignore = "20,000 cuts take minutes"]
fn atomic_writes_are_whole_or_absent_after_very_many_cuts() {
    for seed in 10..30 {
        for options in ATOMIC_LAYOUTS {
            require!(atomic_writes_cut(options, 340, seed));
        }
    }
}

#[test]
fn atomic_writes_take_what_linux_takes_and_leave_the_rest_alone() {
    let run = || {
        let device = Arc::new(fresh(EXT4)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 4);
        let units = file.atomic_units().expect("an extent tree");
        assert_eq!((units.min, units.max), (4096, 65_536));
        let bytes = filled(2, 32 * BLOCK);
        for (len, offset) in [(3, 0), (1, 512), (2, BLOCK), (32, 0), (0, 0)] {
            let error = file.write_atomic_at(&bytes[..len * BLOCK as usize], offset).unwrap_err();
            assert_eq!(error.errno(), 22, "{len} at {offset}: {error}");
        }
        // Memory is as good as that of every direct write.
        let odd = filled(2, 2 * BLOCK);
        let error = file.write_atomic_at(&odd[1..=BLOCK as usize], 0).unwrap_err();
        assert_eq!(error.errno(), 22, "{error}");
        assert_eq!(file.inode().read_all().unwrap(), [1; 4 * BLOCK as usize]);
        // What is dirty beside it stays, what is dirty below it is older.
        let inode = file.inode();
        inode.write_at(&[3; 3 * BLOCK as usize], 100).unwrap();
        file.write_atomic_at(&bytes[..BLOCK as usize], BLOCK).unwrap();
        let mut wanted = vec![1; 4 * BLOCK as usize];
        wanted[100..100 + 3 * BLOCK as usize].fill(3);
        wanted[BLOCK as usize..2 * BLOCK as usize].fill(2);
        assert_eq!(inode.read_all().unwrap(), wanted);
        let free = fs.statfs().unwrap().blocks_free;
        for _ in 0..40 {
            file.write_atomic_at(&bytes[..4 * BLOCK as usize], 0).unwrap();
            inode.sync_data().unwrap();
        }
        assert_eq!(fs.statfs().unwrap().blocks_free, free, "old blocks are free again");
        // A map would show what is not there yet.
        let map = inode.map_shared(0..BLOCK, false).unwrap();
        assert_eq!(file.write_atomic_at(&bytes[..BLOCK as usize], 0).unwrap_err().errno(), 95);
        drop((map, file));
        fs.unmount().unwrap();
        check_clean(&device)
    };
    require!(run());
}

/// A device that fails, or has no room, leaves the old contents.
#[test]
fn an_atomic_write_that_fails_leaves_the_old_contents_and_takes_no_space() {
    let run = || {
        let memory = fresh(EXT4)?;
        for nth in 0..2 {
            let plan = FaultPlan::default();
            let device = Arc::new(FaultDevice::new(Arc::new(memory.snapshot()), plan));
            let fs = mount(Arc::clone(&device) as SharedDevice);
            let file = with_blocks(&fs, 16);
            let free = fs.statfs().unwrap().blocks_free;
            let seen = device.seen()[1];
            drop(file);
            fs.unmount().unwrap();
            let exactly = vec![(OperationKind::Write, seen + nth, 1)];
            let plan = FaultPlan { exactly, ..FaultPlan::default() };
            let device = Arc::new(FaultDevice::new(Arc::new(memory.snapshot()), plan));
            let fs = mount(Arc::clone(&device) as SharedDevice);
            let file = with_blocks(&fs, 16);
            let written = file.write_atomic_at(&filled(9, 16 * BLOCK), 0);
            assert_eq!(written.is_err(), device.failed() > 0);
            let value = if written.is_ok() { 9 } else { 1 };
            assert!(file.inode().read_all().unwrap() == [value; 16 * BLOCK as usize]);
            file.inode().sync().unwrap();
            assert_eq!(fs.statfs().unwrap().blocks_free, free);
            drop(file);
            fs.unmount().unwrap();
            check_clean(device.inner())?;
        }
        Ok::<(), String>(())
    };
    require!(run());
}

/// Batches of writeback, many writes under way at once, cut in the middle: each byte is what was
/// written or what was there before, and never what lay on the device by chance.
fn batches_cut(points: u64, seed: u64) -> Result<(), String> {
    let device = fresh(EXT4)?;
    let fs = mount(Arc::new(device) as SharedDevice);
    // Free space is full of old data.
    let old = fs.root().unwrap().create("old", &NewInode::root(0o644)).unwrap();
    old.write_at(&[0xa5; 20 << 20], 0).unwrap();
    old.sync().unwrap();
    drop(old);
    fs.root().unwrap().unlink("old").unwrap();
    let base = Arc::clone(fs.device());
    fs.unmount().unwrap();
    let mut image = vec![0; base.size_bytes() as usize];
    base.read_at(0, &mut image).unwrap();
    let memory = MemoryDevice::new(image.len() as u64);
    memory.write_at(0, &image).unwrap();
    let recording = Arc::new(RecordingDevice::over(memory));
    let fs = mount(Arc::clone(&recording) as SharedDevice);
    let inode = create(&fs).inode().clone();
    let mut random = Prng::new(seed);
    // Blocks that hold 1, unwritten ones and holes, so that one batch has many places of all kinds.
    for block in 0..96 {
        match random.below(3) {
            0 => drop(inode.write_at(&[1; BLOCK as usize], block * BLOCK).unwrap()),
            1 => preallocate(&inode, block * BLOCK..(block + 1) * BLOCK),
            _ => inode.truncate((block + 1) * BLOCK).unwrap(),
        }
    }
    inode.sync().unwrap();
    let before = inode.read_all().unwrap();
    let begin = recording.len();
    let mut written = [false; 128];
    for _ in 0..3 {
        for block in 0..128 {
            if random.below(3) > 0 {
                inode.write_at(&[2; BLOCK as usize], block * BLOCK).unwrap();
                written[block as usize] = true;
            }
        }
        inode.sync_data().unwrap();
    }
    let end = recording.len() as u64;
    for point in 0..points {
        let position = begin + random.below(end - begin as u64 + 1) as usize;
        let image = any_of(&recording, position, &mut random);
        let got = if point % 500 == 0 { after_a_cut(&image)? } else { contents_after(&image) };
        let got = got.expect("the file");
        assert!(got.len() >= before.len());
        for (at, byte) in got.iter().enumerate() {
            let old = before.get(at).copied().unwrap_or(0);
            let is_right = *byte == old || (*byte == 2 && written[at / BLOCK as usize]);
            assert!(is_right, "seed {seed}: cut at {position} shows {byte:#x} at {at}");
        }
    }
    Ok(())
}

#[test]
fn a_batch_of_writeback_that_is_cut_shows_old_or_new_bytes_only() {
    require!(batches_cut(150, 1));
}

#[test]
#[ignore = "20,000 cuts take minutes"]
fn batches_of_writeback_that_are_cut_very_often_show_old_or_new_bytes_only() {
    for seed in 10..30 {
        require!(batches_cut(1000, seed));
    }
}

/// What is read and written once leaves the cache, and what others have there stays.
#[test]
fn what_is_used_once_leaves_the_cache_and_nothing_else_does() {
    let run = || {
        let device = Arc::new(fresh(EXT4)?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let inode = create(&fs).inode().clone();
        const LEN: usize = 12 << 20;
        let bytes: Vec<u8> = (0..LEN / 4).flat_map(|word| (word as u32).to_le_bytes()).collect();
        inode.write_at(&bytes, 0).unwrap();
        inode.sync().unwrap();
        fs.drop_cached();
        let used = || fs.io_stats().unwrap().used_bytes;
        let base = used();
        // Somebody has the third MiB in the cache.
        let mut kept = vec![0; 1 << 20];
        inode.read_at(&mut kept, 2 << 20).unwrap();
        let with_kept = used();
        assert!(with_kept > base);
        for step in [100 << 10, 1 << 20] {
            let mut read = vec![0; LEN];
            for at in (0..LEN).step_by(step) {
                let end = LEN.min(at + step);
                assert_eq!(inode.read_once_at(&mut read[at..end], at as u64).unwrap(), end - at);
                assert!(used() <= with_kept + (8 << 20), "{} at {at}", used());
            }
            assert!(read == bytes);
            assert!(fs.io_stats().unwrap().dropped_behind > 0);
            assert!(used() <= with_kept + (64 << 10), "{} of {with_kept}", used());
            let before = fs.io_stats().unwrap().bytes_filled;
            inode.read_at(&mut kept, 2 << 20).unwrap();
            assert_eq!(fs.io_stats().unwrap().bytes_filled, before, "it was not there any more");
        }
        // Who uses something meanwhile keeps it.
        fs.drop_cached();
        let mut part = vec![0; 4096];
        inode.read_once_at(&mut part, 6 << 20).unwrap();
        inode.read_at(&mut part, 6 << 20).unwrap();
        inode.read_once_at(&mut kept, 6 << 20).unwrap();
        let before = fs.io_stats().unwrap().bytes_filled;
        inode.read_at(&mut part, 6 << 20).unwrap();
        assert_eq!(fs.io_stats().unwrap().bytes_filled, before);
        // Writes, a new file and over an old one.
        fs.drop_cached();
        inode.read_at(&mut kept, 0).unwrap();
        let with_kept = used();
        let options = fs.open_options().write(true).create(true).drop_behind(true);
        let file = options.open("/new").unwrap();
        for at in (0..LEN).step_by(300_000) {
            let end = LEN.min(at + 300_000);
            assert_eq!(file.write_at(&bytes[at..end], at as u64).unwrap(), end - at);
            assert!(used() <= with_kept + (9 << 20), "{} at {at}", used());
        }
        inode.write_once_at(&bytes[..3 << 20], 1 << 19).unwrap();
        file.sync().unwrap();
        inode.sync().unwrap();
        assert!(used() <= with_kept + (1 << 20), "{} of {with_kept}", used());
        let before = fs.io_stats().unwrap().bytes_filled;
        inode.read_at(&mut part, 0).unwrap();
        assert_eq!(fs.io_stats().unwrap().bytes_filled, before, "what was there stays");
        assert!(fs.read("/new").unwrap() == bytes);
        drop((file, inode));
        fs.unmount().unwrap();
        check_clean(&device)
    };
    require!(run());
}
