//! Batches of direct writes into holes and behind the end: they go to the device together, the map follows in a few
//! handles, and what does not succeed leaves nothing behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant::{AlignedBuffer, DirectDone, DirectKind, DirectRequest, QueueOptions};
use extant_block::{
    FaultDevice, FaultPlan, MemoryDevice, OperationKind, RecordingDevice, SharedDevice, Survival,
};
use extant_testkit::{Hooked, require};

use crate::beside::{after_a_cut, create, make, mount};

const BLOCK: u64 = 4096;

fn fresh() -> Result<MemoryDevice, String> {
    make("32M", &["-t", "ext4", "-b", "4096"])
}

fn write(offset: u64, len: u64, value: u8, synced: bool) -> DirectRequest {
    let mut buffer = AlignedBuffer::zeroed(len as usize);
    buffer.fill(value);
    DirectRequest { kind: DirectKind::Write { synced }, offset, buffer }
}

fn value(block: u64) -> u8 {
    block as u8 | 1
}

#[test]
fn a_batch_into_a_hole_and_behind_the_end_goes_together_and_takes_a_few_handles() {
    let run = || {
        let device = Hooked::over(fresh()?, AtomicUsize::new(0), |longest, batch| {
            longest.fetch_max(batch.len(), Ordering::Relaxed);
        });
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = create(&fs);
        file.inode().truncate(64 * BLOCK).unwrap();
        file.inode().sync().unwrap();
        let handles = || fs.writer_stats().unwrap().journal.handles;
        let before = handles();
        device.state.store(0, Ordering::Relaxed);
        let mut queue = file.queue(&QueueOptions::default().depth(128));
        // Half of them behind the end, in any order.
        let batch = (0..128).map(|at| at * 37 % 128);
        let batch = batch.map(|block| write(block * BLOCK, BLOCK, value(block), false));
        for DirectDone { request, result } in queue.run(batch.collect()) {
            assert_eq!(result.unwrap() as u64, BLOCK, "at {}", request.offset);
        }
        drop(queue);
        let stats = fs.io_stats().unwrap();
        assert_eq!((stats.direct_fills, stats.direct_queued), (128, 128));
        assert_eq!(device.state.load(Ordering::Relaxed), 128, "all at once");
        assert!(handles() - before <= 10, "{} handles", handles() - before);
        assert_eq!(file.inode().size(), 128 * BLOCK);
        let pieces = file.inode().fiemap(0..128 * BLOCK, 100, false).unwrap().len();
        assert_eq!(pieces, 1, "in whatever order they come");
        let wanted: Vec<u8> = (0..128 * BLOCK).map(|at| value(at / BLOCK)).collect();
        assert!(file.inode().read_all().unwrap() == wanted);
        file.inode().sync().unwrap();
        assert!(after_a_cut(&device.below)? == wanted);
        drop(file);
        fs.unmount().unwrap();
        after_a_cut(&device.below).map(drop)
    };
    require!(run());
}

#[test]
fn a_request_that_the_device_refuses_has_no_block_and_the_others_have_theirs() {
    let run = || {
        let below = fresh()?;
        let start = |plan: FaultPlan| {
            let device = Arc::new(FaultDevice::new(Arc::new(below.snapshot()), plan));
            let fs = mount(Arc::clone(&device) as SharedDevice);
            let file = create(&fs);
            fs.sync().unwrap();
            let nth = device.seen()[1];
            (device, fs, file, nth)
        };
        let (_, fs, file, nth) = start(FaultPlan::default());
        drop(file);
        fs.unmount().unwrap();
        // One in the middle and the one that would be the end.
        let exactly = vec![(OperationKind::Write, nth + 3, 1), (OperationKind::Write, nth + 15, 1)];
        let (device, fs, file, _) = start(FaultPlan { exactly, ..FaultPlan::default() });
        let free = fs.statfs().unwrap().blocks_free;
        let mut queue = file.queue(&QueueOptions::default());
        let batch = (0..16).map(|block| write(block * BLOCK, BLOCK, 2, false)).collect();
        let done = queue.run(batch);
        let failed: Vec<usize> = (0..16).filter(|number| done[*number].result.is_err()).collect();
        assert_eq!(failed, [3, 15]);
        assert_eq!(file.inode().size(), 15 * BLOCK);
        assert_eq!(free - fs.statfs().unwrap().blocks_free, 14, "blocks and promises went back");
        for done in queue.run(vec![write(15 * BLOCK, BLOCK, 3, false)]) {
            assert!(done.result.is_ok(), "the device has recovered");
        }
        drop(queue);
        fs.sync().unwrap();
        for (block, bytes) in after_a_cut(device.inner())?.chunks(BLOCK as usize).enumerate() {
            let wanted = [2, 0, 3][usize::from(block == 3) + 2 * usize::from(block == 15)];
            assert!(bytes.iter().all(|byte| *byte == wanted), "{block}");
        }
        drop(file);
        fs.unmount().unwrap();
        after_a_cut(device.inner()).map(drop)
    };
    require!(run());
}

#[test]
fn a_panic_of_the_caller_gives_back_what_a_stream_has_taken() {
    let run = || {
        let device = Arc::new(fresh()?);
        let fs = mount(Arc::clone(&device) as SharedDevice);
        let file = create(&fs);
        file.inode().truncate(1024 * BLOCK).unwrap();
        fs.sync().unwrap();
        let free = fs.statfs().unwrap().blocks_free;
        let mut queue = file.queue(&QueueOptions::default().depth(16));
        let mut next = 0;
        let stopped = catch_unwind(AssertUnwindSafe(|| {
            queue.stream(
                || {
                    assert!(next < 40, "enough");
                    next += 1;
                    Some((next, write(next * BLOCK, BLOCK, 2, false)))
                },
                |_, _| {},
            );
        }));
        assert!(stopped.is_err());
        assert_eq!(fs.statfs().unwrap().blocks_free, free);
        assert_eq!(file.inode().metadata().blocks, 0);
        // They can be written now, by the same queue and by others.
        assert!(queue.run(vec![write(BLOCK, BLOCK, 3, false)])[0].result.is_ok());
        file.write_at(&write(2 * BLOCK, BLOCK, 4, false).buffer, 2 * BLOCK).unwrap();
        drop(queue);
        let bytes = file.inode().read_all().unwrap();
        let first: Vec<u8> = (0..4).map(|block| bytes[block * BLOCK as usize]).collect();
        assert_eq!(first, [0, 3, 4, 0]);
        drop(file);
        fs.unmount().unwrap();
        after_a_cut(&device).map(drop)
    };
    require!(run());
}

#[test]
fn synced_writes_of_a_batch_behind_the_end_are_there_and_no_cut_shows_old_bytes() {
    let run = || {
        let recording = Arc::new(RecordingDevice::over(fresh()?));
        let fs = mount(Arc::clone(&recording) as SharedDevice);
        // Bytes of a file that goes, in the blocks that the next one gets.
        fs.write("/old", vec![1; 8 << 20]).unwrap();
        fs.sync().unwrap();
        fs.remove_file("/old").unwrap();
        fs.sync().unwrap();
        let file = create(&fs);
        fs.sync().unwrap();
        let begin = recording.len();
        let mut queue = file.queue(&QueueOptions::default());
        let batch = (0..32).step_by(2).map(|block| write(block * BLOCK, BLOCK, 2, true));
        for done in queue.run(batch.collect()) {
            assert!(done.result.is_ok());
        }
        let end = recording.len();
        let check = |bytes: &[u8], is_last: bool| {
            assert!(!is_last || bytes.len() as u64 == 31 * BLOCK);
            for (block, bytes) in bytes.chunks(BLOCK as usize).enumerate() {
                let is_new = bytes.iter().all(|byte| *byte == 2);
                let is_zero = bytes.iter().all(|byte| *byte == 0);
                let is_right = match block % 2 {
                    0 => is_new || (is_zero && !is_last),
                    _ => is_zero,
                };
                assert!(is_right, "{block}: {}", bytes[0]);
            }
        };
        for position in begin..=end {
            check(&after_a_cut(&recording.image_with_all(position))?, position == end);
        }
        check(&after_a_cut(&recording.image_at(end, |_, _| Survival::Lost))?, true);
        drop(queue);
        drop(file);
        fs.unmount().map_err(|error| error.to_string())
    };
    require!(run());
}
