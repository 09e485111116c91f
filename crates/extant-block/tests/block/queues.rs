//! One contract for all queues: every operation is handed back once, with its own bytes or its own error.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use extant_base::Prng;
use extant_block::{
    AlignedBuffer, BlockDevice, DeviceEngine, DeviceError, DeviceFault, Engine, FaultDevice,
    FaultPlan, FileDevice, Finished, MemoryDevice, Operation, OperationKind, Queue, QueueOptions,
    ReadRun, RecordingDevice, Wait, WindowDevice, WriteRun,
};

const SIZE: u64 = (1 << 20) + 777;
/// Operations that are under way together do not overlap: each has its own part.
const PART: u64 = 32 << 10;
const PARTS: u64 = SIZE / PART;

fn buffer(random: &mut Prng, len: u64) -> AlignedBuffer {
    let mut bytes = AlignedBuffer::zeroed(len as usize);
    random.fill(&mut bytes);
    bytes
}

/// Runs `test` on a queue of each kind over a device with `SIZE` bytes of zeros.
fn on_each(dir: &Path, test: impl Fn(&str, &dyn BlockDevice, QueueOptions)) {
    let options = QueueOptions::default().depth(16);
    let mut kinds = 0;
    for (number, transfer_max) in [1 << 30, 4096, 1000].into_iter().enumerate() {
        for (name, options, wanted) in [
            ("file, portable", options.portable(true), Some(Engine::Portable)),
            ("file", options.transfer_max(transfer_max), Some(Engine::Uring)),
            ("file, direct", options.transfer_max(transfer_max).direct(true), None),
        ] {
            let path = dir.join(format!("{number}-{name}"));
            let device = FileDevice::create_new(&path, SIZE).unwrap();
            let engine = device.queue(&options).engine();
            if wanted.is_some_and(|wanted| wanted != engine) {
                println!("skipped: {name}: there is only {engine}");
                continue;
            }
            kinds += 1;
            test(&format!("{name}, {engine}, at most {transfer_max}"), &device, options);
            std::fs::remove_file(path).unwrap();
        }
    }
    assert!(kinds > 2, "hardly anything was tested");
    test("memory", &MemoryDevice::new(SIZE), options);
    test("recording", &RecordingDevice::new(SIZE), options);
    let window = WindowDevice::new(MemoryDevice::new(SIZE + 999), 512, SIZE).unwrap();
    test("window", &window, options);
    let file = FileDevice::create_new(dir.join("window"), SIZE + 999).unwrap();
    let window = WindowDevice::new(file, 512, SIZE).unwrap();
    let (of_file, of_window) = (window.inner().queue(&options), window.queue(&options));
    assert_eq!(of_window.engine(), of_file.engine());
    drop((of_file, of_window));
    test("window of a file", &window, options);
    drop(window);
    std::fs::remove_file(dir.join("window")).unwrap();
    let plan = FaultPlan { reorder: true, ..FaultPlan::default() };
    test("reordering", &FaultDevice::new(Arc::new(MemoryDevice::new(SIZE)), plan), options);
}

fn reap_all(queue: &mut dyn Queue) -> BTreeMap<u64, Finished> {
    let mut all = BTreeMap::new();
    while let Some(finished) = queue.reap(Wait::Block) {
        let before = all.insert(finished.tag, finished);
        assert!(before.is_none(), "handed back twice: {before:?}");
    }
    assert!(queue.is_empty());
    all
}

#[test]
fn a_device_behind_a_queue_is_as_a_vec() {
    let dir = tempfile::tempdir().unwrap();
    on_each(dir.path(), |name, device, options| {
        let mut random = Prng::new(1);
        let mut model = vec![0; SIZE as usize];
        let mut queue = device.queue(&options);
        for round in 0..40 {
            let mut wanted: BTreeMap<u64, Option<Vec<u8>>> = BTreeMap::new();
            let first = random.below(PARTS);
            for tag in 0..1 + random.below(16) {
                let part = (first + tag) % PARTS * PART;
                // Aligned to blocks, to sectors, or not at all.
                let unit = [4096, 512, 1][random.below(3) as usize];
                let at = part + random.below(PART / 2) / unit * unit;
                let len = (1 + random.below(PART / 2)).div_ceil(unit) * unit;
                let range = at as usize..(at + len) as usize;
                let operation = match random.below(8) {
                    0 => Operation::Flush,
                    1 => {
                        model[range].fill(0);
                        Operation::WriteZeroes { offset: at, len }
                    }
                    2..=4 => {
                        let bytes = buffer(&mut random, len);
                        model[range].copy_from_slice(&bytes);
                        let fua = random.one_in(4);
                        Operation::Write { offset: at, buffer: bytes, fua }
                    }
                    _ => {
                        wanted.insert(tag, Some(model[range].to_vec()));
                        Operation::Read { offset: at, buffer: AlignedBuffer::zeroed(len as usize) }
                    }
                };
                wanted.entry(tag).or_insert(None);
                queue.push(tag, operation).unwrap();
            }
            assert_eq!(queue.len(), wanted.len(), "{name}");
            queue.submit();
            let mut done = reap_all(&mut *queue);
            assert_eq!(done.len(), wanted.len(), "{name}, round {round}");
            for (tag, bytes) in wanted {
                let completion = done.remove(&tag).unwrap().completion;
                let got = completion.into_buffer().unwrap();
                assert!(bytes.is_none_or(|bytes| *got == *bytes), "{name}, round {round}: {tag}");
            }
        }
        drop(queue);
        let mut all = vec![0; SIZE as usize];
        device.read_at(0, &mut all).unwrap();
        assert!(all == model, "{name}");
    });
}

#[test]
fn what_is_too_much_comes_back_untouched_and_errors_are_their_own() {
    let dir = tempfile::tempdir().unwrap();
    on_each(dir.path(), |name, device, options| {
        let options = options.depth(4);
        let mut queue = device.queue(&options);
        assert_eq!((queue.depth(), queue.len()), (4, 0));
        assert!(queue.reap(Wait::Block).is_none(), "{name}: nothing is under way");
        let write = |offset, value| {
            let buffer = AlignedBuffer::copy_of(&[value; 4096]);
            Operation::Write { offset, buffer, fua: false }
        };
        queue.push(10, write(4096, 1)).unwrap();
        queue.push(11, write(SIZE - 4095, 2)).unwrap();
        queue
            .push(12, Operation::Read { offset: u64::MAX, buffer: AlignedBuffer::zeroed(1) })
            .unwrap();
        queue.push(13, Operation::Read { offset: SIZE, buffer: AlignedBuffer::default() }).unwrap();
        let back = queue.push(14, write(0, 3)).unwrap_err();
        assert!(matches!(back, Operation::Write { offset: 0, buffer, .. } if *buffer == [3; 4096]));
        assert!(queue.reap(Wait::Block).is_none(), "{name}: nothing was submitted");
        queue.submit();
        let first = queue.reap(Wait::Block).unwrap();
        // Room for one more.
        queue.push(14, write(0, 3)).unwrap();
        assert!(queue.push(15, Operation::Flush).is_err());
        queue.submit();
        let mut done = reap_all(&mut *queue);
        done.insert(first.tag, first);
        assert_eq!(done.keys().copied().collect::<Vec<_>>(), [10, 11, 12, 13, 14], "{name}");
        for (tag, finished) in done {
            let result = finished.completion.result;
            let is_bad = tag == 11 || tag == 12;
            assert_eq!(result.is_err(), is_bad, "{name}: {tag}: {result:?}");
            if let Err(error) = result {
                assert!(matches!(error.fault(), DeviceFault::PastEnd { .. }), "{name}: {error}");
            }
        }
        let mut read = [9; 3];
        for (offset, value) in [(0, 3), (4096, 1), (SIZE - 3, 0)] {
            device.read_at(offset, &mut read).unwrap();
            assert_eq!(read, [value; 3], "{name}");
        }
    });
}

#[test]
fn a_queue_that_is_dropped_has_done_what_was_submitted_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    on_each(dir.path(), |name, device, options| {
        for round in 1..20u8 {
            let mut queue = device.queue(&options);
            for tag in 0..8 {
                let buffer = AlignedBuffer::copy_of(&vec![round; PART as usize]);
                queue
                    .push(tag, Operation::Write { offset: tag * PART, buffer, fua: false })
                    .unwrap();
            }
            queue.submit();
            let buffer = AlignedBuffer::copy_of(&[round; 512]);
            queue.push(8, Operation::Write { offset: 8 * PART, buffer, fua: false }).unwrap();
            drop(queue);
            let mut all = vec![0; 8 * PART as usize];
            device.read_at(0, &mut all).unwrap();
            assert!(all.iter().all(|byte| *byte == round), "{name}");
            let mut never = [9; 512];
            device.read_at(8 * PART, &mut never).unwrap();
            assert_eq!(never, [0; 512], "{name}: it was not submitted");
        }
    });
}

#[test]
fn polling_finds_each_operation_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let device = FileDevice::create_new(&path, SIZE).unwrap();
    for options in [QueueOptions::default(), QueueOptions::default().portable(true)] {
        let mut queue = device.queue(&options);
        for tag in 0..64 {
            let buffer = AlignedBuffer::zeroed(4096);
            queue.push(tag, Operation::Read { offset: tag * 4096, buffer }).unwrap();
        }
        queue.submit();
        let mut done = 0;
        while !queue.is_empty() {
            match queue.reap(Wait::Poll) {
                Some(finished) => {
                    finished.completion.result.unwrap();
                    done += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        assert_eq!(done, 64);
    }
}

#[test]
fn a_ring_never_answers_that_it_would_have_to_wait() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    drop(FileDevice::create_new(&path, SIZE).unwrap());
    let device = FileDevice::open_read_write(&path).unwrap();
    let queue = device.queue(&QueueOptions::default());
    if queue.engine() == Engine::Portable {
        println!("skipped: there is no io_uring here");
        return;
    }
    let flags = rustix::fs::fcntl_getfl(device.file()).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "{flags:?}");
}

#[test]
fn each_error_of_a_device_is_that_of_one_operation() {
    let plan = FaultPlan { seed: 3, write_one_in: 3, read_one_in: 4, ..FaultPlan::default() };
    let device = FaultDevice::new(Arc::new(MemoryDevice::new(SIZE)), plan);
    let mut queue = device.queue(&QueueOptions::default());
    let mut failed = 0;
    for round in 0..20u8 {
        for tag in 0..PARTS {
            let operation = match tag % 2 {
                0 => Operation::Read { offset: tag * PART, buffer: AlignedBuffer::zeroed(512) },
                _ => {
                    let buffer = AlignedBuffer::copy_of(&[round; 512]);
                    Operation::Write { offset: tag * PART, buffer, fua: false }
                }
            };
            queue.push(tag, operation).unwrap();
        }
        queue.submit();
        for (tag, finished) in reap_all(&mut *queue) {
            let Finished { completion, .. } = finished;
            assert_eq!(completion.operation.offset(), tag * PART);
            assert_eq!(completion.operation.length(), 512, "the buffer comes back");
            if let Err(error) = completion.result {
                assert_eq!((error.offset(), error.length()), (tag * PART, 512));
                failed += 1;
            }
        }
    }
    assert!(failed > 50);
    assert_eq!(failed, device.failed());
}

#[test]
fn a_file_that_shrank_or_cannot_be_written_says_so_for_each_operation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    drop(FileDevice::create_new(&path, SIZE).unwrap());
    for options in [QueueOptions::default(), QueueOptions::default().portable(true)] {
        let shrunk = FileDevice::open_read_only(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
        let mut queue = shrunk.queue(&options);
        for (tag, offset) in [(0, 0), (1, 8192), (2, 16_384)] {
            let buffer = AlignedBuffer::zeroed(4096);
            queue.push(tag, Operation::Read { offset, buffer }).unwrap();
        }
        queue.submit();
        let results = reap_all(&mut *queue).into_values().map(|it| it.completion.result);
        let got: Vec<Option<u64>> = results
            .map(|result| match result.as_ref().map_err(|error| error.fault()) {
                Ok(()) => None,
                Err(DeviceFault::ShortRead { got_bytes }) => Some(*got_bytes),
                Err(other) => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(got, [None, Some(1808), Some(0)]);
        drop(queue);
        File::options().write(true).open(&path).unwrap().set_len(SIZE).unwrap();
        // Opened for reading by somebody who says it is for writing.
        let liar = FileDevice::with_file(File::open(&path).unwrap(), &path, false).unwrap();
        let mut queue = liar.queue(&options);
        for tag in 0..3 {
            let buffer = AlignedBuffer::zeroed(512);
            queue.push(tag, Operation::Write { offset: tag * 512, buffer, fua: false }).unwrap();
        }
        queue.submit();
        for finished in reap_all(&mut *queue).into_values() {
            let error = finished.completion.result.unwrap_err();
            assert_eq!(error.kind(), OperationKind::Write);
            assert!(matches!(error.fault(), DeviceFault::Io(_)), "{error}");
        }
    }
}

/// A queue that lasts is used by several threads in turn, goes on without any, tells of what has ended, and keeps no lock.
#[test]
fn a_queue_that_lasts_is_for_any_thread_and_keeps_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    drop(FileDevice::create_new(&path, SIZE).unwrap());
    for round in 0..20u8 {
        let device = FileDevice::open_read_write(&path).expect("a former queue has the lock");
        let options = QueueOptions::default().depth(16);
        let Some(mut queue) = device.lasting_queue(&options) else {
            println!("skipped: the system has no io_uring");
            return;
        };
        assert!(device.lasting_queue(&options.portable(true)).is_none());
        let signal = extant_sync::Signal::new().unwrap();
        queue.signals(signal.lend()).unwrap();
        for tag in 0..16 {
            let buffer = AlignedBuffer::copy_of(&[round + tag as u8; 4096]);
            assert_eq!(queue.unstarted(), tag as usize);
            queue.push(tag, Operation::Write { offset: tag * PART, buffer, fua: false }).unwrap();
        }
        assert_eq!(queue.push(16, Operation::Flush).unwrap_err().kind(), OperationKind::Flush);
        queue.submit();
        assert_eq!(queue.unstarted(), 0);
        let mut queue = extant_sync::threads::scope(|s| {
            let reaps = s.spawn("reaps", move || {
                assert_eq!(reap_all(&mut *queue).len(), 16);
                queue
            });
            reaps.unwrap().join().unwrap()
        })
        .unwrap();
        // Sixteen have ended, so somebody was told.
        signal.wait(None);
        signal.clear();
        for tag in 0..16 {
            let buffer = AlignedBuffer::zeroed(4096);
            queue.push(tag, Operation::Read { offset: tag * PART, buffer }).unwrap();
        }
        let read = std::iter::from_fn(|| queue.advance()).inspect(|read| {
            let Operation::Read { buffer, .. } = &read.completion.operation else { panic!() };
            assert!(buffer.iter().all(|byte| *byte == round + read.tag as u8));
        });
        assert_eq!(read.count(), 16);
        let past = Operation::Read { offset: SIZE, buffer: AlignedBuffer::zeroed(1) };
        queue.push(1, past).unwrap();
        assert!(queue.advance().unwrap().completion.result.is_err());
        // With something under way, and in the other order in turns.
        let buffer = AlignedBuffer::zeroed(PART as usize);
        queue.push(2, Operation::Read { offset: 0, buffer }).unwrap();
        queue.submit();
        if round % 2 == 0 {
            drop(device);
        }
        drop(queue);
    }
}

/// Runs `test` on devices whose runs go through every engine.
fn on_each_engine(dir: &Path, test: impl Fn(&str, &dyn BlockDevice)) {
    for (name, engine) in DeviceEngine::NAMES {
        let path = dir.join(format!("runs-{name}"));
        let file = FileDevice::create_new(&path, SIZE).unwrap();
        match file.with_engine(engine) {
            Ok(device) => {
                let info = device.engine();
                let is_ring = info.engine == Engine::Uring;
                let wanted = [engine == DeviceEngine::IoUring, engine != DeviceEngine::Portable];
                assert!(wanted[0] <= is_ring && is_ring <= wanted[1], "{name}: {info:?}");
                assert_eq!(info.refused.is_some(), wanted[1] && !is_ring, "{name}: {info:?}");
                let window = WindowDevice::new(device, 0, SIZE).unwrap();
                test(name, &window);
            }
            Err(error) => println!("skipped: {error}"),
        }
        std::fs::remove_file(path).unwrap();
    }
    test("memory", &MemoryDevice::new(SIZE));
    test("recording", &RecordingDevice::new(SIZE));
    let plan = FaultPlan { reorder: true, ..FaultPlan::default() };
    test("reordering", &FaultDevice::new(Arc::new(MemoryDevice::new(SIZE)), plan));
}

/// Cuts `bytes` into parts, some of them empty.
fn parts<'a>(random: &mut Prng, mut bytes: &'a [u8], most: usize) -> Vec<IoSlice<'a>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let len = (random.next_u64() as usize % (most + 1)).min(bytes.len());
        let (now, later) = bytes.split_at(len);
        parts.push(IoSlice::new(now));
        bytes = later;
    }
    parts
}

#[test]
fn runs_are_stored_and_filled_each_at_its_place() {
    let dir = tempfile::tempdir().unwrap();
    on_each_engine(dir.path(), |name, device| {
        let mut random = Prng::new(3);
        let mut model = vec![0; SIZE as usize];
        for round in 0..6 {
            // More runs than any engine has under way, and more parts than one call takes.
            let bytes: Vec<Vec<u8>> = (0..PARTS)
                .map(|_| {
                    let mut bytes = vec![0; (random.next_u64() % PART) as usize];
                    random.fill(&mut bytes);
                    bytes
                })
                .collect();
            let most = if round == 0 { 20 } else { 20_000 };
            let parts: Vec<_> = bytes.iter().map(|bytes| parts(&mut random, bytes, most)).collect();
            let runs: Vec<_> = (0..PARTS)
                .zip(&parts)
                .map(|(part, parts)| WriteRun { offset: part * PART + 5, parts })
                .take(if round == 5 { 1 } else { PARTS as usize })
                .collect();
            for (run, bytes) in runs.iter().zip(&bytes) {
                assert_eq!(run.length(), bytes.len() as u64);
                model[run.offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            let results = device.write_runs(&runs);
            assert_eq!(results.len(), runs.len(), "{name}");
            assert!(results.iter().all(Result::is_ok), "{name}: {results:?}");
            if let Some((file, _)) = device.as_file() {
                // From the disk, where there is one: a ring must wait for it.
                rustix::fs::fdatasync(file).unwrap();
                let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
            }
            let mut read = vec![0; SIZE as usize];
            let out = read.chunks_mut(30_011).enumerate();
            let mut runs: Vec<_> =
                out.map(|(number, out)| ReadRun { offset: number as u64 * 30_011, out }).collect();
            let results = device.read_runs(&mut runs);
            assert!(results.iter().all(Result::is_ok), "{name}: {results:?}");
            assert!(read == model, "{name}, round {round}");
        }
        assert!(device.write_runs(&[]).is_empty() && device.read_runs(&mut []).is_empty());
    });
}

#[test]
fn a_run_that_fails_fails_alone() {
    let dir = tempfile::tempdir().unwrap();
    on_each_engine(dir.path(), |name, device| {
        let bytes = [7; 600];
        let parts = [IoSlice::new(&bytes[..100]), IoSlice::new(&bytes[100..])];
        let run = |offset| WriteRun { offset, parts: &parts };
        let results = device.write_runs(&[run(0), run(SIZE - 599), run(u64::MAX - 10), run(4096)]);
        let failed: Vec<_> = results.iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, true, true, false], "{name}");
        let past = results[1].as_ref().unwrap_err();
        assert!(matches!(past.fault(), DeviceFault::PastEnd { .. }), "{name}: {past}");
        let (mut one, mut two, mut three) = ([0; 600], [0; 600], [0; 600]);
        let results = device.read_runs(&mut [
            ReadRun { offset: 0, out: &mut one },
            ReadRun { offset: SIZE - 599, out: &mut two },
            ReadRun { offset: 4096, out: &mut three },
        ]);
        let failed: Vec<_> = results.iter().map(Result::is_err).collect();
        assert_eq!((failed, one, three), (vec![false, true, false], bytes, bytes), "{name}");
    });
}

/// The file looks itself, before its ring: the results of the other runs are theirs.
#[test]
fn a_run_past_the_end_of_a_file_fails_alone() {
    let dir = tempfile::tempdir().unwrap();
    for (name, engine) in DeviceEngine::NAMES {
        let path = dir.path().join(name);
        let device = FileDevice::create_new(&path, 8192).unwrap();
        let Ok(device) = device.with_engine(engine) else { continue };
        let bytes: Vec<_> = (1..5u8).map(|fill| [fill; 600]).collect();
        let parts: Vec<_> = bytes.iter().map(|bytes| [IoSlice::new(bytes)]).collect();
        let places = [0, 7600, 4096, u64::MAX - 10];
        let runs = places.iter().zip(&parts);
        let runs: Vec<_> =
            runs.map(|(offset, parts)| WriteRun { offset: *offset, parts }).collect();
        let failed = |results: Vec<Result<(), DeviceError>>| -> Vec<bool> {
            results.iter().map(Result::is_err).collect()
        };
        assert_eq!(failed(device.write_runs(&runs)), [false, true, false, true], "{name}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192, "{name}");
        let mut out = [[9; 600]; 4];
        let runs = places.iter().zip(&mut out);
        let mut runs: Vec<_> = runs.map(|(offset, out)| ReadRun { offset: *offset, out }).collect();
        assert_eq!(failed(device.read_runs(&mut runs)), [false, true, false, true], "{name}");
        assert!(out == [[1; 600], [9; 600], [3; 600], [9; 600]], "{name}");
        assert!(device.runs_at_once(OperationKind::Write) >= 1);
    }
}

#[test]
fn a_file_that_was_cut_short_fails_the_runs_behind_its_end() {
    let dir = tempfile::tempdir().unwrap();
    for (name, engine) in DeviceEngine::NAMES {
        let path = dir.path().join(name);
        let device = FileDevice::create_new(&path, SIZE).unwrap();
        let Ok(device) = device.with_engine(engine) else { continue };
        File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
        let (mut one, mut two, mut three) = ([1; 5000], [1; 5000], [1; 5000]);
        let results = device.read_runs(&mut [
            ReadRun { offset: 0, out: &mut one },
            ReadRun { offset: 8000, out: &mut two },
            ReadRun { offset: 20_000, out: &mut three },
        ]);
        assert!(results[0].is_ok() && one == [0; 5000], "{name}");
        for (result, wanted) in results[1..].iter().zip([2000, 0]) {
            let error = result.as_ref().unwrap_err();
            let DeviceFault::ShortRead { got_bytes } = error.fault() else {
                panic!("{name}: {error}");
            };
            assert_eq!(*got_bytes, wanted, "{name}");
        }
    }
}
