//! A file that somebody else makes shorter under a device: nobody is told that what is gone is durable.

use std::fs::{File, OpenOptions, metadata};
use std::io::IoSlice;
use std::path::Path;

use extant_block::{
    AlignedBuffer, BlockDevice, DeviceEngine, DeviceError, DeviceFault, FileDevice, Operation,
    Queue, QueueOptions, WindowDevice, WriteRun,
};

const SIZE: u64 = 1 << 20;

fn set_len(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(bytes)).unwrap();
}

fn len(path: &Path) -> u64 {
    metadata(path).unwrap().len()
}

fn is_shorter(result: Result<(), DeviceError>, found: u64) {
    let error = result.unwrap_err();
    match error.fault() {
        DeviceFault::Shorter { was_bytes: SIZE, found_bytes } => assert_eq!(*found_bytes, found),
        other => panic!("{other:?}"),
    }
    let text = error.to_string();
    assert!(text.contains(&format!("{found} bytes")) && text.contains("1048576"), "{text}");
}

fn each_engine(test: impl Fn(&Path, &FileDevice)) {
    let dir = tempfile::tempdir().unwrap();
    for (name, engine) in DeviceEngine::NAMES {
        let path = dir.path().join(name);
        match FileDevice::create_new(&path, SIZE).unwrap().with_engine(engine) {
            Ok(device) => test(&path, &device),
            Err(error) => println!("skipped: {error}"),
        }
    }
}

#[test]
fn a_flush_fails_whatever_was_written_behind_the_new_end() {
    each_engine(|path, device| {
        device.write_at(700_000, &[7; 4096]).unwrap();
        device.flush().unwrap();
        set_len(path, 500_000);
        is_shorter(device.flush(), 500_000);
        // It would be long enough again for whoever looks at nothing but the next write.
        device.write_at(800_000, &[8; 4096]).unwrap();
        is_shorter(device.flush(), 804_096);
        is_shorter(device.write_fua_at(4096, &[9; 512]), 804_096);
        // Whoever made it shorter may know what he did.
        set_len(path, SIZE);
        device.flush().unwrap();
        set_len(path, SIZE + 1);
        device.flush().unwrap();
    });
}

#[test]
fn no_write_makes_it_as_long_as_it_was() {
    each_engine(|path, device| {
        set_len(path, 500_000);
        let bytes = [1; 4096];
        let last = SIZE - 4096;
        is_shorter(device.write_at(last, &bytes), 500_000);
        is_shorter(device.write_fua_at(last, &bytes), 500_000);
        let parts = [IoSlice::new(&bytes[..100]), IoSlice::new(&bytes[100..])];
        is_shorter(device.write_vectored_at(last, &parts), 500_000);
        is_shorter(device.write_zeroes(last, 4096), 500_000);
        let runs = [last - 8192, last].map(|offset| WriteRun { offset, parts: &parts });
        let mut results = device.write_runs(&runs);
        // Looked at before the first or after it.
        let error = results.pop().unwrap().unwrap_err();
        assert!(matches!(error.fault(), DeviceFault::Shorter { .. }), "{error}");
        results.pop().unwrap().unwrap();
        assert_eq!(len(path), last - 4096);
        let window = WindowDevice::new(device, 4096, SIZE - 4096).unwrap();
        is_shorter(window.write_at(last - 4096, &bytes), last - 4096);
        is_shorter(window.flush(), last - 4096);
        assert_eq!(len(path), last - 4096);
    });
}

fn one(queue: &mut dyn Queue, operation: Operation) -> Result<(), DeviceError> {
    queue.push(1, operation).unwrap();
    queue.advance().unwrap().completion.result
}

#[test]
fn queues_look_as_well() {
    each_engine(|path, device| {
        let options = QueueOptions::default();
        let buffer = || AlignedBuffer::zeroed(4096);
        let write = |offset, fua| Operation::Write { offset, buffer: buffer(), fua };
        for is_lasting in [false, true] {
            set_len(path, SIZE);
            let mut queue: Box<dyn Queue> = match is_lasting {
                false => device.queue(&options),
                true => match device.lasting_queue(&options) {
                    Some(queue) => queue,
                    None => continue,
                },
            };
            one(&mut *queue, write(SIZE - 4096, true)).unwrap();
            one(&mut *queue, Operation::Flush).unwrap();
            set_len(path, 500_000);
            one(&mut *queue, write(4096, false)).unwrap();
            is_shorter(one(&mut *queue, Operation::Flush), 500_000);
            is_shorter(one(&mut *queue, write(8192, true)), 500_000);
            is_shorter(one(&mut *queue, write(SIZE - 4096, false)), 500_000);
            assert_eq!(len(path), 500_000);
        }
    });
}

#[test]
fn readers_and_disks_have_no_length_to_lose() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("read");
    File::create(&path).and_then(|file| file.set_len(SIZE)).unwrap();
    let device = FileDevice::open_read_only(&path).unwrap();
    set_len(&path, 500_000);
    device.flush().unwrap();
    let read = device.read_at(600_000, &mut [0; 512]).unwrap_err();
    assert!(matches!(read.fault(), DeviceFault::ShortRead { got_bytes: 0 }), "{read}");
}
