//! Many direct reads and writes of one thread at once: what goes to the device together, what has to be done
//! apart, and who waits for whom.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant::{
    AlignedBuffer, CacheStats, DirectDone, DirectFile, DirectKind, DirectRequest, Engine,
    Fallocate, Fs, FsError, MountOptions, NewInode, QueueOptions,
};
use extant_base::Prng;
use extant_block::{
    FaultDevice, FaultPlan, FileDevice, MemoryDevice, OperationKind, RecordingDevice, SharedDevice,
    Survival,
};
use extant_sync::{Mutex, Rank, threads};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{Hooked, image, require, tempdir};

const BLOCK: u64 = 4096;

type Hook = Box<dyn FnOnce() + Send>;

/// How much memory was given at once, and who is let in when a batch of writes comes.
struct Watch {
    longest: AtomicUsize,
    hook: Mutex<Option<Hook>>,
}

fn fresh() -> Result<MemoryDevice, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "32M", &["-t", "ext4", "-b", "4096"])?;
    Ok(image::load(&path))
}

fn watched() -> Result<Arc<Hooked<MemoryDevice, Watch>>, String> {
    let watch = Watch { longest: AtomicUsize::new(0), hook: Mutex::new(Rank::Leaf, None) };
    Ok(Hooked::over(fresh()?, watch, |watch, batch| {
        let hook = if batch.len() > 1 { watch.hook.lock().take() } else { None };
        if let Some(hook) = hook {
            hook();
        }
        watch.longest.fetch_max(batch.len(), Ordering::Relaxed);
    }))
}

fn mount(device: SharedDevice) -> Fs {
    let options = MountOptions::new().read_only(false).background(false).seed(1);
    options.open_shared(device).unwrap()
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

/// A file of so many blocks that hold 1, durable.
fn with_blocks(fs: &Fs, blocks: u64) -> DirectFile {
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap().direct().unwrap();
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

fn read(offset: u64, len: u64) -> DirectRequest {
    DirectRequest { kind: DirectKind::Read, offset, buffer: AlignedBuffer::zeroed(len as usize) }
}

fn write(offset: u64, len: u64, value: u8) -> DirectRequest {
    let kind = DirectKind::Write { synced: false };
    DirectRequest { kind, offset, buffer: filled(value, len) }
}

fn contents(file: &DirectFile) -> Vec<u8> {
    file.inode().read_all().unwrap()
}

fn alone(stats: &CacheStats) -> u64 {
    stats.named().iter().filter(|(name, _)| name.starts_with("direct_alone_")).map(|it| it.1).sum()
}

#[test]
fn a_batch_goes_to_the_device_together_without_handle_or_exclusive_lock() {
    let run = || {
        let device = watched()?;
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 512);
        let (before, handles) =
            (fs.io_stats().unwrap(), fs.writer_stats().unwrap().journal.handles);
        device.state.longest.store(0, Ordering::Relaxed);
        let mut queue = file.queue(&QueueOptions::default().depth(64));
        assert_eq!((queue.depth(), queue.engine()), (64, Engine::Portable));
        let batch = (0..512).map(|block| match block % 2 {
            0 => read(block * BLOCK, BLOCK),
            _ => write(block * BLOCK, BLOCK, (block / 2) as u8),
        });
        let done = queue.run(batch.collect());
        assert_eq!(done.len(), 512);
        for (block, DirectDone { request, result }) in done.into_iter().enumerate() {
            assert_eq!(result.unwrap(), BLOCK as usize);
            assert_eq!(request.offset, block as u64 * BLOCK, "in their order");
            let value = if block % 2 == 0 { 1 } else { (block / 2) as u8 };
            assert!(request.buffer.iter().all(|byte| *byte == value), "{block}");
        }
        let stats = fs.io_stats().unwrap();
        assert_eq!(device.state.longest.load(Ordering::Relaxed), 64);
        assert_eq!(stats.direct_queued - before.direct_queued, 512);
        assert_eq!(stats.direct_overwrites - before.direct_overwrites, 256);
        assert_eq!(alone(&stats), alone(&before));
        assert_eq!(fs.writer_stats().unwrap().journal.handles, handles);
        assert_eq!(stats.folios_made, 0);
        drop(queue);
        for (block, bytes) in contents(&file).chunks(BLOCK as usize).enumerate() {
            let value = if block % 2 == 0 { 1 } else { (block / 2) as u8 };
            assert!(bytes.iter().all(|byte| *byte == value), "{block}");
        }
        drop(file);
        end(&device.below, fs)
    };
    require!(run());
}

#[test]
fn a_stream_keeps_the_queue_full_and_hands_each_request_back_once() {
    let run = || {
        let device = watched()?;
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 512);
        let inode = file.inode();
        let space = 512 * BLOCK..520 * BLOCK;
        inode.fallocate(Fallocate::Allocate { keep_size: false }, space).unwrap();
        let mut queue = file.queue(&QueueOptions::default().depth(16));
        // More than one hold of the lock: 2056 requests, reads first, with blocks without data, a
        // hole behind the end, and synchronous writes among the writes.
        let request = |tag: u64, mut buffer: AlignedBuffer| {
            let (kind, value) = match tag {
                0..1000 => (DirectKind::Read, 0),
                _ => (DirectKind::Write { synced: tag.is_multiple_of(500) }, tag as u8),
            };
            buffer.fill(value);
            let block = if tag < 2048 { tag % 512 } else { 512 + tag - 2048 };
            DirectRequest { kind, offset: block * BLOCK, buffer }
        };
        let before = fs.io_stats().unwrap();
        device.state.longest.store(0, Ordering::Relaxed);
        let spare = RefCell::new(vec![AlignedBuffer::zeroed(BLOCK as usize); 16]);
        let (mut next, mut seen) = (0, vec![false; 2056]);
        queue.stream(
            || {
                let tag = (next < 2056).then_some(next)?;
                next += 1;
                // What finishes late keeps its memory.
                let buffer = spare.borrow_mut().pop();
                let buffer = buffer.unwrap_or_else(|| AlignedBuffer::zeroed(BLOCK as usize));
                Some((tag, request(tag, buffer)))
            },
            |tag, done| {
                assert_eq!(done.result.unwrap(), BLOCK as usize);
                assert!(!std::mem::replace(&mut seen[tag as usize], true), "{tag} came twice");
                let value = if tag < 1000 { 1 } else { tag as u8 };
                assert!(done.request.buffer.iter().all(|byte| *byte == value), "{tag}");
                spare.borrow_mut().push(done.request.buffer);
            },
        );
        assert!(seen.iter().all(|seen| *seen));
        assert!(spare.borrow().len() < 64, "memory is used again: {}", spare.borrow().len());
        let stats = fs.io_stats().unwrap();
        assert_eq!(device.state.longest.load(Ordering::Relaxed), 16);
        assert_eq!(stats.direct_queued - before.direct_queued, 2056);
        assert_eq!(stats.direct_conversions - before.direct_conversions, 8);
        assert_eq!(alone(&stats), alone(&before));
        drop(queue);
        let contents = contents(&file);
        for tag in 1536..2056u64 {
            let block = if tag < 2048 { tag % 512 } else { 512 + tag - 2048 };
            let at = (block * BLOCK) as usize;
            assert!(contents[at..at + BLOCK as usize].iter().all(|byte| *byte == tag as u8));
        }
        drop(file);
        end(&device.below, fs)
    };
    require!(run());
}

#[test]
fn a_panic_in_a_stream_leaves_nothing_under_way() {
    let run = || {
        let dir = tempdir().map_err(|error| error.to_string())?;
        let path = dir.path().join("image");
        mke2fs(&path, "32M", &["-t", "ext4", "-b", "4096"])?;
        let fs = mount(Arc::new(FileDevice::open_read_write(&path).unwrap()));
        let file = with_blocks(&fs, 512);
        let mut queue = file.queue(&QueueOptions::default().depth(32).direct(true));
        for round in 0..10 {
            let (mut next, mut count) = (0, 0);
            let stopped = catch_unwind(AssertUnwindSafe(|| {
                queue.stream(
                    || {
                        next += 1;
                        Some((next, write(next % 256 * BLOCK, BLOCK, 2)))
                    },
                    |_, _| {
                        count += 1;
                        assert!(count < 40 + round, "enough");
                    },
                );
            }));
            assert!(stopped.is_err());
            // Nothing of it is under way or comes back: each request has its own answer, and blocks
            // can be taken from the file.
            let done = queue.run((256..320).map(|block| read(block * BLOCK, BLOCK)).collect());
            assert_eq!(done.len(), 64);
            for (block, DirectDone { request, result }) in (256..).zip(done) {
                assert_eq!((request.offset, result.unwrap()), (block * BLOCK, BLOCK as usize));
                assert!(request.buffer.iter().all(|byte| *byte == 1), "{block}");
            }
            file.inode().truncate((512 - round as u64) * BLOCK).unwrap();
        }
        drop(queue);
        drop(file);
        fs.unmount().unwrap();
        let report = e2fsck(&path)?;
        assert!(report.is_clean(), "{}", report.text);
        Ok::<(), String>(())
    };
    require!(run());
}

#[test]
fn what_is_not_simple_is_done_as_well_and_what_is_wrong_is_said() {
    let run = || {
        let device = watched()?;
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 8);
        let inode = file.inode();
        inode.fallocate(Fallocate::Allocate { keep_size: false }, 8 * BLOCK..16 * BLOCK).unwrap();
        inode.truncate(24 * BLOCK).unwrap();
        inode.write_at(&[2; BLOCK as usize], 7 * BLOCK).unwrap();
        let mut queue = file.queue(&QueueOptions::default());
        let mut done = queue.run(vec![
            read(7 * BLOCK, BLOCK),      // Cached, and newer there.
            read(8 * BLOCK, 16 * BLOCK), // Nothing but zeros.
            read(23 * BLOCK, 4 * BLOCK), // Over the end.
            read(100 * BLOCK, BLOCK),    // Behind it.
            read(0, BLOCK),              // Simple.
            read(100, 512),              // Misaligned.
            DirectRequest { offset: u64::MAX - 511, ..read(0, 512) },
        ]);
        let mut results: Vec<_> = done
            .iter_mut()
            .map(|done| done.result.as_ref().map_err(|error| error.errno()).copied())
            .collect();
        let far = results.pop().unwrap();
        assert!(far.is_ok_and(|len| len == 0) || far == Err(22), "{far:?}");
        let b = BLOCK as usize;
        assert_eq!(results, [Ok(b), Ok(16 * b), Ok(b), Ok(0), Ok(b), Err(22)]);
        assert!(done[0].request.buffer.iter().all(|byte| *byte == 2));
        assert!(done[1].request.buffer.iter().all(|byte| *byte == 0));
        assert!(done[4].request.buffer.iter().all(|byte| *byte == 1));
        assert_eq!(fs.io_stats().unwrap().direct_queued, 1);
        let before = fs.io_stats().unwrap();
        let done = queue.run(vec![
            write(0, BLOCK, 10),
            write(BLOCK, 512, 11),
            write(7 * BLOCK, BLOCK, 12),      // Cached.
            write(9 * BLOCK, BLOCK, 13),      // First data.
            write(20 * BLOCK + 512, 512, 14), // A hole.
            write(30 * BLOCK, BLOCK, 15),     // Growth.
            write(BLOCK + 1, 512, 16),
            write(2 * BLOCK, 0, 17),
            DirectRequest {
                kind: DirectKind::Write { synced: true },
                ..write(3 * BLOCK, BLOCK, 18)
            },
        ]);
        let results: Vec<_> =
            done.into_iter().map(|done| done.result.map_err(|error| error.errno())).collect();
        assert_eq!(results, [Ok(b), Ok(512), Ok(b), Ok(b), Ok(512), Ok(b), Err(22), Ok(0), Ok(b)]);
        let stats = fs.io_stats().unwrap();
        assert_eq!(stats.direct_queued - before.direct_queued, 5);
        assert_eq!(stats.direct_fills - before.direct_fills, 2);
        assert_eq!(stats.direct_conversions - before.direct_conversions, 1);
        drop(queue);
        let mut wanted = vec![1; 8 * b];
        wanted.resize(31 * b, 0);
        for (at, len, value) in [
            (0, b, 10),
            (b, 512, 11),
            (3 * b, b, 18),
            (7 * b, b, 12),
            (9 * b, b, 13),
            (20 * b + 512, 512, 14),
            (30 * b, b, 15),
        ] {
            wanted[at..at + len].fill(value);
        }
        assert!(contents(&file) == wanted);
        drop(file);
        end(&device.below, fs)
    };
    require!(run());
}

/// P48 beside a batch: who reads through the cache while writes are under way has the old bytes in it.
#[test]
fn p48_what_a_reader_caches_under_a_batch_is_not_kept() {
    let run = || {
        let device = watched()?;
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 8);
        let reader = file.clone();
        *device.state.hook.lock() = Some(Box::new(move || {
            threads::scope(|scope| {
                let look = move || {
                    let mut out = [0; BLOCK as usize];
                    reader.inode().read_at(&mut out, 2 * BLOCK).unwrap();
                    assert_eq!(out, [1; BLOCK as usize]);
                };
                scope.spawn("reader", look).unwrap().join().unwrap();
            })
            .unwrap();
        }));
        let mut queue = file.queue(&QueueOptions::default());
        for done in queue.run((0..8).map(|block| write(block * BLOCK, BLOCK, 2)).collect()) {
            assert_eq!(done.result.unwrap(), BLOCK as usize);
        }
        assert!(device.state.hook.lock().is_none());
        drop(queue);
        assert!(fs.io_stats().unwrap().direct_alone_cached > 0);
        assert!(contents(&file).iter().all(|byte| *byte == 2), "through the cache");
        fs.sync().unwrap();
        fs.drop_cached();
        assert!(contents(&file).iter().all(|byte| *byte == 2), "on the device");
        drop(file);
        end(&device.below, fs)
    };
    require!(run());
}

/// P40, and the blocks of a file: whoever takes them waits for the batch, and the batch for nobody.
#[test]
fn p40_truncation_waits_for_a_batch_that_waits_for_nobody() {
    let run = || {
        let device = watched()?;
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 8);
        let (started, is_started) = threads::channel(1);
        let (go, may_go) = threads::channel(1);
        *device.state.hook.lock() = Some(Box::new(move || {
            started.send(()).unwrap();
            may_go.recv().unwrap();
        }));
        let cut = AtomicUsize::new(0);
        threads::scope(|scope| {
            let writer = file.clone();
            let batch = scope.spawn("batch", move || {
                let mut queue = writer.queue(&QueueOptions::default());
                let done = queue.run((0..8).map(|block| write(block * BLOCK, BLOCK, 2)).collect());
                assert!(done.iter().all(|done| done.result.is_ok()));
            });
            is_started.recv().unwrap();
            let (other, cut) = (file.clone(), &cut);
            let truncation = scope.spawn("truncate", move || {
                other.inode().truncate(0).unwrap();
                cut.store(1, Ordering::SeqCst);
            });
            // As long as the device takes: nothing that is under way loses its blocks.
            for _ in 0..200 {
                threads::give_way();
            }
            assert_eq!(cut.load(Ordering::SeqCst), 0);
            assert_eq!(file.inode().metadata().size, 8 * BLOCK);
            go.send(()).unwrap();
            batch.unwrap().join().unwrap();
            truncation.unwrap().join().unwrap();
        })
        .unwrap();
        assert_eq!(file.inode().metadata().size, 0);
        drop(file);
        end(&device.below, fs)
    };
    require!(run());
}

#[test]
fn an_error_of_the_device_is_that_of_one_request() {
    let run = || {
        let memory = Arc::new(fresh()?);
        let device = Arc::new(FaultDevice::new(Arc::clone(&memory), FaultPlan::default()));
        let fs = mount(Arc::clone(&device) as SharedDevice);
        drop(with_blocks(&fs, 16));
        let nth = device.seen()[1];
        fs.unmount().unwrap();
        // The fifth write from here on.
        let memory = Arc::new(fresh()?);
        let exactly = vec![(OperationKind::Write, nth + 5, 1)];
        let plan = FaultPlan { exactly, ..FaultPlan::default() };
        let device = Arc::new(FaultDevice::new(Arc::clone(&memory), plan));
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 16);
        assert_eq!(device.seen()[1], nth);
        let mut queue = file.queue(&QueueOptions::default());
        let done = queue.run((0..16).map(|block| write(block * BLOCK, BLOCK, 2)).collect());
        for (number, done) in done.iter().enumerate() {
            assert_eq!(done.result.is_err(), number == 5, "{number}: {:?}", done.result);
            assert_eq!(done.request.buffer.len() as u64, BLOCK, "the memory comes back");
        }
        drop(queue);
        let bytes = contents(&file);
        for (block, bytes) in bytes.chunks(BLOCK as usize).enumerate() {
            let is_new = bytes.iter().all(|byte| *byte == 2);
            assert!(is_new || block == 5, "{block}");
        }
        drop(file);
        end(&memory, fs)
    };
    require!(run());
}

/// Nothing changes there, and nothing is cached: the map is asked without either.
#[test]
fn on_a_mount_for_reading_a_batch_goes_together_too() {
    let run = || {
        let device = watched()?;
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = with_blocks(&fs, 32);
        file.write_at(&filled(2, BLOCK), 40 * BLOCK).unwrap();
        drop(file);
        fs.unmount().unwrap();
        let fs = MountOptions::new().open_shared(Arc::clone(&device) as SharedDevice).unwrap();
        let file = fs.resolve("/file").unwrap().direct().unwrap();
        let mut queue = file.queue(&QueueOptions::default());
        device.state.longest.store(0, Ordering::Relaxed);
        let mut batch: Vec<_> = (0..32).map(|block| read(block * BLOCK, BLOCK)).collect();
        // A hole, its end with the data behind it, past the end, misaligned, and a write.
        batch.extend([
            read(33 * BLOCK, BLOCK),
            read(39 * BLOCK, 4 * BLOCK),
            read(50 * BLOCK, BLOCK),
        ]);
        batch.extend([read(1, BLOCK), write(0, BLOCK, 3)]);
        let done = queue.run(batch);
        assert_eq!(device.state.longest.load(Ordering::Relaxed), 32);
        for done in &done[..32] {
            assert_eq!(*done.result.as_ref().unwrap() as u64, BLOCK);
            assert!(done.request.buffer.iter().all(|byte| *byte == 1));
        }
        let lens: Vec<_> = done[32..35].iter().map(|done| *done.result.as_ref().unwrap()).collect();
        assert_eq!(lens, [4096, 2 * 4096, 0]);
        assert!(done[32].request.buffer.iter().all(|byte| *byte == 0));
        let (hole, data) = done[33].request.buffer[..2 * BLOCK as usize].split_at(BLOCK as usize);
        assert!(hole.iter().all(|byte| *byte == 0) && data.iter().all(|byte| *byte == 2));
        assert!(matches!(done[35].result, Err(FsError::Misaligned { .. })));
        assert!(matches!(done[36].result, Err(FsError::ReadOnly)), "{:?}", done[36].result);
        assert_eq!(done[36].request.buffer.len() as u64, BLOCK, "the memory comes back");
        drop(queue);
        drop(file);
        drop(fs);
        Ok::<(), String>(())
    };
    require!(run());
}

/// Over a file, by whatever engine there is: equal to a vector of bytes, and to itself by every other way.
#[test]
fn over_an_image_file_batches_are_what_was_written() {
    let run = || {
        const BLOCKS: u64 = 256;
        let dir = tempdir().map_err(|error| error.to_string())?;
        let path = dir.path().join("image");
        mke2fs(&path, "32M", &["-t", "ext4", "-b", "4096"])?;
        let fs = mount(Arc::new(FileDevice::open_read_write(&path).unwrap()));
        let file = with_blocks(&fs, BLOCKS);
        let mut model = vec![1; (BLOCKS * BLOCK) as usize];
        let mut random = Prng::new(5);
        for options in [
            QueueOptions::default().depth(64),
            QueueOptions::default().depth(7).direct(true),
            QueueOptions::default().depth(64).portable(true),
        ] {
            let mut queue = file.queue(&options);
            println!("{queue:?}");
            for _ in 0..20 {
                // Reads are of the even blocks and writes of the odd ones, each once: no order matters.
                let first = random.below(BLOCKS / 2);
                let batch: Vec<_> = (0..100)
                    .map(|number| {
                        let at = (first + number) % (BLOCKS / 2) * 2 * BLOCK;
                        match random.below(2) {
                            0 => read(at, BLOCK),
                            _ => {
                                let value = random.below(256) as u8;
                                let at = at + BLOCK;
                                model[at as usize..(at + BLOCK) as usize].fill(value);
                                write(at, BLOCK, value)
                            }
                        }
                    })
                    .collect();
                for DirectDone { request, result } in queue.run(batch) {
                    assert_eq!(result.unwrap() as u64, BLOCK);
                    let at = request.offset as usize;
                    assert!(*request.buffer == model[at..at + BLOCK as usize], "byte {at}");
                }
            }
        }
        assert_eq!(fs.io_stats().unwrap().direct_queued, 3 * 20 * 100);
        assert!(contents(&file) == model);
        drop(file);
        fs.unmount().unwrap();
        let report = e2fsck(&path)?;
        assert!(report.is_clean(), "{}", report.text);
        Ok::<(), String>(())
    };
    require!(run());
}

/// A file of so many blocks without data, durable.
fn preallocated(fs: &Fs, blocks: u64) -> DirectFile {
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap().direct().unwrap();
    let how = Fallocate::Allocate { keep_size: false };
    file.inode().fallocate(how, 0..blocks * BLOCK).unwrap();
    file.inode().sync().unwrap();
    file
}

/// The file as the next mount finds it.
fn after_a_cut(device: &MemoryDevice) -> Result<Vec<u8>, String> {
    let left = Arc::new(device.snapshot());
    let fs = mount(Arc::clone(&left) as SharedDevice);
    let bytes = fs.resolve("/file").unwrap().read_all().unwrap();
    end(&left, fs)?;
    Ok(bytes)
}

/// What is preallocated gets its first data in one go, and the map follows it in one handle for neighbours and
/// for what overlaps, however many requests there are.
#[test]
fn first_data_goes_to_the_device_together_and_takes_one_handle() {
    let run = || {
        let device = watched()?;
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = preallocated(&fs, 128);
        let handles = || fs.writer_stats().unwrap().journal.handles;
        let before = handles();
        device.state.longest.store(0, Ordering::Relaxed);
        let mut queue = file.queue(&QueueOptions::default().depth(128));
        // Backwards, some of them over two blocks, and the last two twice.
        let mut batch: Vec<_> = (0..64)
            .rev()
            .map(|block| write(block * BLOCK, (1 + block % 2) * BLOCK, block as u8 + 1))
            .collect();
        batch.extend([write(63 * BLOCK, BLOCK, 64), write(65 * BLOCK, BLOCK, 66)]);
        for done in queue.run(batch) {
            assert_eq!(done.result.unwrap() as u64, done.request.buffer.len() as u64);
        }
        assert_eq!(device.state.longest.load(Ordering::Relaxed), 66);
        assert_eq!(handles() - before, 1);
        let stats = fs.io_stats().unwrap();
        assert_eq!((stats.direct_conversions, stats.direct_queued, alone(&stats)), (66, 66, 0));
        // Now they are written over, without any.
        let after = handles();
        for done in queue.run((0..64).map(|block| write(block * BLOCK, BLOCK, 99)).collect()) {
            assert!(done.result.is_ok());
        }
        assert_eq!(handles() - after, 0);
        drop(queue);
        let bytes = contents(&file);
        assert!(bytes[..64 * BLOCK as usize].iter().all(|byte| *byte == 99));
        assert_eq!(bytes[64 * BLOCK as usize], 64, "the second block of a request");
        assert_eq!(bytes[65 * BLOCK as usize], 66);
        assert!(bytes[66 * BLOCK as usize..].iter().all(|byte| *byte == 0), "still without data");
        fs.sync().unwrap();
        assert!(after_a_cut(&device.below)? == bytes);
        drop(file);
        end(&device.below, fs)
    };
    require!(run());
}

/// An error in the middle: those blocks are as they were, zeros, and not what was on the device before.
#[test]
fn first_data_that_the_device_refuses_in_a_batch_stays_unwritten() {
    let run = || {
        let below = fresh()?;
        let start = |plan: FaultPlan| {
            let device = Arc::new(FaultDevice::new(Arc::new(below.snapshot()), plan));
            let fs = mount(Arc::clone(&device) as SharedDevice);
            let file = preallocated(&fs, 16);
            let nth = device.seen()[1];
            (device, fs, file, nth)
        };
        let (_, fs, file, nth) = start(FaultPlan::default());
        drop(file);
        fs.unmount().unwrap();
        let exactly = vec![(OperationKind::Write, nth + 3, 1), (OperationKind::Write, nth + 15, 1)];
        let (device, fs, file, again) = start(FaultPlan { exactly, ..FaultPlan::default() });
        assert_eq!(again, nth);
        let mut queue = file.queue(&QueueOptions::default());
        let done = queue.run((0..16).map(|block| write(block * BLOCK, BLOCK, 2)).collect());
        let failed: Vec<usize> = (0..16).filter(|number| done[*number].result.is_err()).collect();
        assert_eq!(failed, [3, 15]);
        assert_eq!(fs.io_stats().unwrap().direct_conversions, 14);
        let runs = file.inode().fiemap(0..16 * BLOCK, 16, false).unwrap();
        let unwritten: Vec<_> =
            runs.iter().filter(|run| run.is_unwritten).map(|run| (run.logical, run.len)).collect();
        assert_eq!(unwritten, [(3 * BLOCK, BLOCK), (15 * BLOCK, BLOCK)]);
        for done in queue.run(vec![write(3 * BLOCK, BLOCK, 3)]) {
            assert!(done.result.is_ok(), "the device has recovered");
        }
        drop(queue);
        fs.sync().unwrap();
        let bytes = after_a_cut(device.inner())?;
        for (block, bytes) in bytes.chunks(BLOCK as usize).enumerate() {
            let value = [2, 3, 0][usize::from(block == 3) + 2 * usize::from(block == 15)];
            assert!(bytes.iter().all(|byte| *byte == value), "{block}");
        }
        drop(file);
        end(device.inner(), fs)
    };
    require!(run());
}

/// Synced first data is there, and the map with it, when the call returns: what the device has not made durable
/// may be lost. A cut at any write before leaves zeros or the data, never what the device held there.
#[test]
fn synced_first_data_of_a_batch_survives_a_cut_and_none_of_it_shows_old_bytes() {
    let run = || {
        let below = fresh()?;
        let recording = Arc::new(RecordingDevice::over(below));
        let fs = mount(Arc::clone(&recording) as SharedDevice);
        // Bytes of a file that goes, in the blocks that the next one gets.
        let old = with_blocks(&fs, 2048);
        drop(old);
        fs.root().unwrap().unlink("file").unwrap();
        fs.sync().unwrap();
        let file = preallocated(&fs, 32);
        let begin = recording.len();
        let mut queue = file.queue(&QueueOptions::default());
        let kind = DirectKind::Write { synced: true };
        let batch = (0..32).step_by(2);
        let batch = batch.map(|block| DirectRequest { kind, ..write(block * BLOCK, BLOCK, 2) });
        for done in queue.run(batch.collect()) {
            assert!(done.result.is_ok());
        }
        let end_at = recording.len();
        let check = |bytes: &[u8], is_last: bool| {
            assert_eq!(bytes.len() as u64, 32 * BLOCK);
            for (block, bytes) in bytes.chunks(BLOCK as usize).enumerate() {
                let is_new = bytes.iter().all(|byte| *byte == 2);
                let is_zero = bytes.iter().all(|byte| *byte == 0);
                let is_right =
                    if block % 2 == 0 { is_new || (is_zero && !is_last) } else { is_zero };
                assert!(is_right, "{block}: {}", bytes[0]);
            }
        };
        for position in begin..=end_at {
            check(&after_a_cut(&recording.image_with_all(position))?, position == end_at);
        }
        let durable = recording.image_at(end_at, |_, _| Survival::Lost);
        check(&after_a_cut(&durable)?, true);
        drop(queue);
        drop(file);
        fs.unmount().unwrap();
        Ok::<(), String>(())
    };
    require!(run());
}

/// P41 beside a batch: who reads while first data is under way, or before the map knows of it, has zeros.
#[test]
fn p41_zeros_that_a_reader_caches_under_a_batch_of_first_data_are_not_kept() {
    let run = || {
        let device = watched()?;
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = preallocated(&fs, 8);
        let reader = file.clone();
        *device.state.hook.lock() = Some(Box::new(move || {
            threads::scope(|scope| {
                let look = move || {
                    // Twice: a hole is not kept by who looks once.
                    let mut out = [1; 3 * BLOCK as usize];
                    reader.inode().read_at(&mut out, BLOCK).unwrap();
                    reader.inode().with_cached(BLOCK..4 * BLOCK, |_| ()).unwrap();
                    assert_eq!(out, [0; 3 * BLOCK as usize]);
                };
                scope.spawn("reader", look).unwrap().join().unwrap();
            })
            .unwrap();
        }));
        let mut queue = file.queue(&QueueOptions::default());
        for done in queue.run((0..8).map(|block| write(block * BLOCK, BLOCK, 2)).collect()) {
            assert_eq!(done.result.unwrap(), BLOCK as usize);
        }
        assert!(device.state.hook.lock().is_none());
        drop(queue);
        assert!(fs.io_stats().unwrap().direct_alone_cached > 0);
        assert!(contents(&file).iter().all(|byte| *byte == 2), "through the cache");
        fs.sync().unwrap();
        fs.drop_cached();
        assert!(contents(&file).iter().all(|byte| *byte == 2), "on the device");
        drop(file);
        end(&device.below, fs)
    };
    require!(run());
}
