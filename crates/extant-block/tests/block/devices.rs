//! One contract for all back-ends, and what is special to each.

use std::io::{ErrorKind, IoSlice};

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use extant_base::Prng;
use extant_block::{
    AlignedBuffer, BlockDevice, DeviceFault, FileDevice, MemoryDevice, OpenError, Operation,
    Record, RecordingDevice, SharedDevice, Survival, WindowDevice, read_fresh_at,
};
use extant_sync::{Clock, SystemClock};

const SIZE: u64 = 300_001;

/// Goal: whatever the sequence of operations, a device reads back like a plain `Vec<u8>`.
fn behaves_like_a_vec(device: &dyn BlockDevice, fill: u8, seed: u64) {
    let mut model = vec![fill; SIZE as usize];
    let mut prng = Prng::new(seed);
    for step in 0..400 {
        // Around page limits, where the cuts are.
        let at = (prng.below(74) * 4096 + prng.below(7)).saturating_sub(3).min(SIZE);
        let len = [0, 1, 511, 4096, 4099, 70_000][prng.below(6) as usize].min(SIZE - at);
        let range = at as usize..(at + len) as usize;
        match prng.below(5) {
            0 | 1 => {
                let mut bytes = AlignedBuffer::zeroed(len as usize);
                prng.fill(&mut bytes);
                model[range].copy_from_slice(&bytes);
                if prng.one_in(2) {
                    device.write_at(at, &bytes).unwrap();
                } else {
                    let write = Operation::Write { offset: at, buffer: bytes, fua: prng.one_in(2) };
                    device.submit(vec![write, Operation::Flush]).wait_all().unwrap();
                }
            }
            2 => {
                device.write_zeroes(at, len).unwrap();
                model[range].fill(0);
            }
            3 => match device.discard(at, len) {
                // What is there afterwards is the device's choice: ask it.
                Ok(()) => device.read_at(at, &mut model[range]).unwrap(),
                Err(error) => assert!(error.is_unsupported(), "{error}"),
            },
            _ => {
                let read =
                    Operation::Read { offset: at, buffer: AlignedBuffer::zeroed(len as usize) };
                let buffers = device.submit(vec![read]).wait_all().unwrap();
                assert!(*buffers[0] == model[range], "step {step}: {len} bytes at {at}");
            }
        }
    }
    let mut all = vec![0; SIZE as usize];
    device.read_at(0, &mut all).unwrap();
    assert!(all == model, "seed {seed}");
}

/// Ranges past the end fail as a whole and name the sizes; empty ones at the end succeed.
fn refuses_ranges_past_the_end(device: &dyn BlockDevice) {
    let size = device.size_bytes();
    let name = device.describe();
    for (offset, len) in [(size, 1), (size - 1, 2), (0, size + 1), (u64::MAX, 1), (u64::MAX, 0)] {
        let mut buffer = vec![0; len as usize];
        let ends = format!("the device ends at byte {size}");
        let check = |what: &str, result: Result<(), extant_block::DeviceError>| {
            let wanted = format!("{name}: {what} of {len} bytes at byte {offset} failed: {ends}");
            assert_eq!(result.unwrap_err().to_string(), wanted);
        };
        check("read", device.read_at(offset, &mut buffer));
        check("write", device.write_at(offset, &buffer));
        check("discard", device.discard(offset, len));
        check("write of zeros", device.write_zeroes(offset, len));
    }
    device.read_at(size, &mut []).unwrap();
    device.write_at(size, &[]).unwrap();
    device.write_zeroes(size, 0).unwrap();
}

#[test]
fn parts_are_stored_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let file = FileDevice::create_new(dir.path().join("disk"), SIZE).unwrap();
    let memory = MemoryDevice::new(SIZE);
    let window = WindowDevice::new(MemoryDevice::new(SIZE + 999), 777, SIZE).unwrap();
    let devices: [&dyn BlockDevice; 3] = [&file, &memory, &window];
    for device in devices {
        // More parts than one system call takes, and empty ones among them.
        let parts: Vec<Vec<u8>> =
            (0..3000).map(|part| vec![part as u8; part as usize % 7]).collect();
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        device.write_vectored_at(11, &slices).unwrap();
        let whole = parts.concat();
        let mut read = vec![0; whole.len()];
        device.read_at(11, &mut read).unwrap();
        assert!(read == whole, "{}", device.describe());
        assert!(device.write_vectored_at(SIZE - 1, &slices).is_err());
    }
}

#[test]
fn every_back_end_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 0..8 {
        let path = dir.path().join(format!("disk-{seed}"));
        let file = FileDevice::create_new(path, SIZE).unwrap();
        let memory = MemoryDevice::new(SIZE);
        let filled = MemoryDevice::filled_with(0xa5, SIZE);
        let recording = RecordingDevice::new(SIZE);
        let window = WindowDevice::new(MemoryDevice::new(SIZE + 999), 777, SIZE).unwrap();
        let devices: [(&dyn BlockDevice, u8); 5] =
            [(&file, 0), (&memory, 0), (&filled, 0xa5), (&recording, 0), (&window, 0)];
        for (device, fill) in devices {
            behaves_like_a_vec(device, fill, seed);
            refuses_ranges_past_the_end(device);
        }
        let rebuilt = recording.image_with_all(recording.len());
        let (mut a, mut b) = (vec![0; SIZE as usize], vec![0; SIZE as usize]);
        rebuilt.read_at(0, &mut a).unwrap();
        recording.read_at(0, &mut b).unwrap();
        assert!(a == b, "R2: all records give the present contents");
    }
}

#[test]
fn a_batch_answers_each_operation_in_its_place_with_its_buffer() {
    let inner = MemoryDevice::new(10_000);
    inner.write_at(5_000, b"inside").unwrap();
    let window = WindowDevice::new(&inner, 4_096, 1_000).unwrap();
    let read = |offset, len| Operation::Read { offset, buffer: AlignedBuffer::zeroed(len) };
    let batch = vec![read(904, 6), read(999, 2), Operation::Flush, read(u64::MAX, 3)];
    let done = window.submit(batch).wait();
    let oks: Vec<_> = done.iter().map(|c| c.result.is_ok()).collect();
    assert_eq!(oks, [true, false, true, false]);
    let offsets: Vec<_> =
        done.iter().map(|c| (c.operation.offset(), c.operation.length())).collect();
    assert_eq!(offsets, [(904, 6), (999, 2), (0, 0), (u64::MAX, 3)]);
    assert_eq!(&*done.into_iter().next().unwrap().into_buffer().unwrap(), b"inside");
}

#[test]
fn windows_must_lie_on_their_device() {
    let device = MemoryDevice::new(100);
    for (offset, len) in [(101, 0), (100, 1), (0, 101), (u64::MAX, 2), (2, u64::MAX)] {
        let error = WindowDevice::new(&device, offset, len).unwrap_err();
        assert_eq!((error.offset, error.len, error.device_bytes), (offset, len, 100));
    }
    assert_eq!(WindowDevice::from_offset(&device, 60).unwrap().size_bytes(), 40);
    assert!(WindowDevice::from_offset(&device, 101).is_err());
}

#[test]
fn a_memory_device_of_16_tib_costs_what_was_written() {
    let device = MemoryDevice::new(1 << 44);
    for at in [0, 1 << 30, (1 << 44) - 1] {
        device.write_at(at, &[1]).unwrap();
    }
    device.write_at(1 << 20, &[0; 100_000]).unwrap();
    assert_eq!(device.stored_bytes(), 3 * 4096);
    device.discard(1, (1 << 44) - 2).unwrap();
    assert_eq!(device.stored_bytes(), 2 * 4096);
    let mut byte = [9];
    device.read_at(1 << 30, &mut byte).unwrap();
    assert_eq!(byte, [0]);
}

#[test]
fn threads_that_write_apart_all_arrive() {
    let device = MemoryDevice::new(1 << 22);
    extant_sync::threads::workers("writer", 4, |index| {
        for page in 0..256u64 {
            let at = (page * 4 + index as u64) * 4096 - if page > 0 { 1 } else { 0 };
            device.write_at(at, &[index as u8 + 1; 4095]).unwrap();
        }
    })
    .unwrap();
    let mut all = vec![0; 1 << 22];
    device.read_at(0, &mut all).unwrap();
    for page in 1..256usize {
        for index in 0..4usize {
            let at = (page * 4 + index) * 4096 - 1;
            assert!(all[at..at + 4095].iter().all(|b| *b == index as u8 + 1), "{page} {index}");
        }
    }
}

#[test]
fn read_only_really_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, [7; 8192]).unwrap();
    let before = fs::metadata(&path).unwrap();
    let device = FileDevice::open_read_only(&path).unwrap();
    assert!(device.is_read_only());
    let flags = rustix::fs::fcntl_getfl(device.file()).unwrap();
    assert_eq!(flags & rustix::fs::OFlags::RWMODE, rustix::fs::OFlags::RDONLY);
    for result in [device.write_at(0, &[1]), device.discard(0, 4096), device.write_zeroes(0, 1)] {
        assert!(matches!(result.unwrap_err().fault(), DeviceFault::ReadOnly));
    }
    device.flush().unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));
    assert_eq!(fs::read(&path).unwrap(), [7; 8192]);
}

#[test]
fn a_second_writer_is_refused_with_the_name_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let first = FileDevice::create_new(&path, 4096).unwrap();
    let error = FileDevice::open_read_write(&path).unwrap_err();
    let OpenError::Locked { holder, .. } = &error else { panic!("{error}") };
    // Some file systems show other numbers in /proc/locks than in stat; then there is no name.
    if let Some(holder) = holder {
        assert!(holder.ends_with(&format!("(process {})", std::process::id())), "{holder}");
    }
    assert!(error.to_string().contains("is in use by"), "{error}");
    FileDevice::open_read_only(&path).unwrap();
    drop(first);
    FileDevice::open_read_write(&path).unwrap();
}

/// Opens a disk of 8 KiB for writing while another program has its lock and does something to it.
fn opened_after(script: &str) -> (tempfile::TempDir, FileDevice) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, [7; 8192]).unwrap();
    let mut child = std::process::Command::new("flock");
    let words = ["disk", "sh", "-c", script];
    let mut child = child.current_dir(dir.path()).args(words).spawn().unwrap();
    let own = fs::File::open(&path).unwrap();
    let until = SystemClock.monotonic() + Duration::from_secs(20);
    while own.try_lock().is_ok() {
        own.unlock().unwrap();
        assert!(SystemClock.monotonic() < until, "it is never locked");
        SystemClock.sleep(Duration::from_millis(1));
    }
    let device = FileDevice::open_read_write(&path).unwrap();
    assert!(child.wait().unwrap().success());
    (dir, device)
}

/// Such as that of a child which another thread has just made, until it runs its own program.
#[test]
fn a_lock_of_a_moment_is_waited_for() {
    let (_dir, device) = opened_after("sleep 0.05");
    assert_eq!(device.size_bytes(), 8192);
}

#[test]
fn what_who_had_the_lock_made_of_a_file_is_what_is_opened() {
    let (_dir, device) = opened_after("sleep 0.05; truncate -s 4096 disk");
    assert_eq!(device.size_bytes(), 4096);
    device.write_at(0, &[8; 512]).unwrap();
    device.flush().unwrap();
    let (dir, device) = opened_after("cp disk new; truncate -s 12288 new; sleep 0.05; mv new disk");
    assert_eq!(device.size_bytes(), 12288);
    device.write_at(0, &[9; 512]).unwrap();
    device.flush().unwrap();
    assert_eq!(fs::read(dir.path().join("disk")).unwrap()[..513], [&[9; 512][..], &[7]].concat());
}

#[test]
fn what_is_not_a_device_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let message = |result: Result<FileDevice, OpenError>| result.unwrap_err().to_string();
    assert!(
        message(FileDevice::open_read_only(dir.path()))
            .ends_with("is a directory, not a regular file or a block device")
    );
    assert!(message(FileDevice::open_read_only("/dev/null")).contains("is a character device"));
    let missing = dir.path().join("missing");
    for result in [FileDevice::open_read_only(&missing), FileDevice::open_read_write(&missing)] {
        assert_eq!(message(result), format!("cannot open {}", missing.display()));
    }
    let fifo = dir.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR;
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
    assert!(message(FileDevice::open_read_only(&fifo)).contains("is a fifo"));
    let error = FileDevice::create_new(&fifo, 1).unwrap_err();
    let OpenError::Io { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::AlreadyExists);
}

#[test]
fn a_file_that_shrinks_is_a_short_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, [7; 8192]).unwrap();
    let device = FileDevice::open_read_only(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
    let error = device.read_at(4096, &mut [0; 4096]).unwrap_err();
    assert!(error.to_string().ends_with("the device gave only 904 bytes"), "{error}");
}

#[test]
fn zeros_and_discards_leave_holes_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let device = FileDevice::create_new(&path, 1 << 22).unwrap();
    device.write_at(0, &vec![1; 1 << 22]).unwrap();
    device.flush().unwrap();
    let full = fs::metadata(&path).unwrap().blocks();
    device.write_zeroes(1000, 1 << 20).unwrap();
    match device.discard(2 << 20, 1 << 20) {
        Err(error) if error.is_unsupported() => {
            println!("skipped: the file system of {} makes no holes", path.display());
        }
        result => {
            result.unwrap();
            let now = fs::metadata(&path).unwrap().blocks();
            assert!(now + 3900 <= full, "{now} of {full} blocks of 512 bytes");
        }
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 22);
}

/// A loop device over a file; detached when dropped.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("/usr/sbin/losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn a_block_device_has_its_size_sector_and_exclusive_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    drop(FileDevice::create_new(&path, 1 << 22).unwrap());
    let losetup = Command::new("/usr/sbin/losetup")
        .args(["--find", "--show", "--sector-size", "4096"])
        .arg(&path)
        .output();
    let Some(output) = losetup.ok().filter(|output| output.status.success()) else {
        println!("skipped: needs root and a loop device");
        return;
    };
    let name = Loop(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    let device = FileDevice::open_read_write(&name.0).unwrap();
    assert_eq!((device.size_bytes(), device.logical_sector_bytes()), (1 << 22, 4096));
    // The kernel's exclusive open comes before our lock.
    let error = FileDevice::open_read_write(&name.0).unwrap_err();
    assert!(matches!(error, OpenError::Busy { .. }), "{error}");

    device.write_at(0, &vec![5; 1 << 20]).unwrap();
    device.write_zeroes(100, 20_000).unwrap();
    device.discard(65_536 + 1, 65_536).unwrap();
    device.flush().unwrap();
    let mut bytes = vec![0; 1 << 20];
    device.read_at(0, &mut bytes).unwrap();
    assert!(bytes[..100].iter().chain(&bytes[20_100..65_537]).all(|b| *b == 5));
    assert!(bytes[100..20_100].iter().all(|b| *b == 0));
    assert!(bytes[65_537 + 65_536..].iter().all(|b| *b == 5), "nothing past a discard changes");
}

#[test]
fn a_write_protected_disk_is_refused_before_the_first_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    drop(FileDevice::create_new(&path, 1 << 20).unwrap());
    let losetup =
        Command::new("/usr/sbin/losetup").args(["--find", "--show", "-r"]).arg(&path).output();
    let Some(output) = losetup.ok().filter(|output| output.status.success()) else {
        println!("skipped: needs root and a loop device");
        return;
    };
    let name = Loop(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    let error = FileDevice::open_read_write(&name.0).unwrap_err();
    let is_told = |source: &std::io::Error| source.kind() == ErrorKind::ReadOnlyFilesystem;
    assert!(matches!(&error, OpenError::Io { source, .. } if is_told(source)), "{error:?}");
    FileDevice::open_read_only(&name.0).unwrap();
}

/// Another host writes where this one has read: what this one keeps is let go for who asks.
#[test]
fn a_fresh_read_is_not_of_what_the_host_keeps() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    drop(FileDevice::create_new(&path, 1 << 20).unwrap());
    let losetup = Command::new("/usr/sbin/losetup").args(["--find", "--show"]).arg(&path).output();
    let Some(output) = losetup.ok().filter(|output| output.status.success()) else {
        println!("skipped: needs root and a loop device");
        return;
    };
    let name = Loop(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    let device: SharedDevice = Arc::new(FileDevice::open_read_write(&name.0).unwrap());
    let window = WindowDevice::new(device, 4096, 512 << 10).unwrap();
    let (mut kept, mut fresh) = ([0; 1024], [0; 1024]);
    let other = FileDevice::open_read_write(&path).unwrap();
    // In the first 64 KiB, over the border of two such pieces, and behind them.
    for at in [9000, (192 << 10) - 4096 - 500, 400_000] {
        window.read_at(at, &mut kept).unwrap();
        window.write_at(at + 500, &[1; 10]).unwrap();
        window.flush().unwrap();
        other.write_at(4096 + at, &[7; 100]).unwrap();
        other.write_at(4096 + at + 1000, &[9; 24]).unwrap();
        window.read_at(at, &mut kept).unwrap();
        assert_eq!(kept[0], 0, "this system does not keep what was read");
        read_fresh_at(&window, at, &mut fresh).unwrap();
        let seen = [fresh[0], fresh[99], fresh[100], fresh[500], fresh[1000], fresh[1023]];
        assert_eq!(seen, [7, 7, 0, 1, 9, 9], "byte {at}");
    }
}

#[test]
fn a_crash_loses_what_no_flush_or_fua_protects() {
    let device = RecordingDevice::over(MemoryDevice::from_bytes(&[0; 4096]));
    device.write_at(0, &[1; 1024]).unwrap();
    device.mark("before the flush");
    device.flush().unwrap();
    device.mark("one is durable");
    device.write_at(0, &[2; 1024]).unwrap();
    let fua =
        Operation::Write { offset: 2048, buffer: AlignedBuffer::copy_of(&[3; 512]), fua: true };
    device.submit(vec![fua]).wait_all().unwrap();
    device.write_at(4000, &[9; 97]).unwrap_err();
    assert_eq!(device.len(), 6, "what failed did not happen");
    assert!(matches!(device.records()[2], Record::Flush));

    let bytes = |position, survival| {
        let mut bytes = [0; 4096];
        device.image_at(position, |_, _| survival).read_at(0, &mut bytes).unwrap();
        [bytes[0], bytes[511], bytes[512], bytes[1023], bytes[2048]]
    };
    assert_eq!(bytes(0, Survival::Kept), [0, 0, 0, 0, 0]);
    assert_eq!(bytes(2, Survival::Lost), [0, 0, 0, 0, 0]);
    assert_eq!(bytes(2, Survival::Kept), [1, 1, 1, 1, 0]);
    assert_eq!(bytes(3, Survival::Lost), [1, 1, 1, 1, 0]);
    assert_eq!(bytes(6, Survival::Lost), [1, 1, 1, 1, 3]);
    assert_eq!(bytes(6, Survival::Torn { bytes: 1023 }), [2, 2, 1, 1, 3]);
    assert_eq!(bytes(6, Survival::Kept), [2, 2, 2, 2, 3]);
    assert_eq!(device.mark_before(3).as_deref(), Some("before the flush"));
    assert_eq!(device.mark_before(4).as_deref(), Some("one is durable"));
    assert_eq!(device.mark_before(1), None);
}

#[test]
fn room_is_set_aside_for_holes_of_a_file_and_no_byte_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse");
    let blocks = || fs::metadata(&path).unwrap().blocks() * 512;
    let device = FileDevice::create_new(&path, 1 << 20).unwrap();
    device.write_at(100_000, &[7; 100]).unwrap();
    let window = WindowDevice::from_offset(device, 4096).unwrap();
    let before = blocks();
    if before >= 1 << 20 {
        println!("skipped: this file system has no holes");
        return;
    }
    window.allocate(61_440, 131_072).unwrap();
    let with_room = blocks();
    assert!(with_room >= 131_072, "{before} bytes of room became {with_room}");
    let mut bytes = vec![0; 131_072];
    window.read_at(61_440, &mut bytes).unwrap();
    let at = 100_000 - 4096 - 61_440;
    assert!(bytes[at..at + 100].iter().all(|byte| *byte == 7));
    assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 100);
    window.write_at(61_440, &vec![1; 131_072]).unwrap();
    assert_eq!(blocks(), with_room, "the writes took what was set aside");
    // What is given back gets room again when it is asked for.
    window.write_zeroes(61_440, 131_072).unwrap();
    assert!(blocks() < with_room);
    window.allocate(61_440, 131_072).unwrap();
    assert_eq!(blocks(), with_room);
    let past = window.allocate(1 << 20, 1).unwrap_err();
    assert!(matches!(past.fault(), DeviceFault::PastEnd { .. }), "{past}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
    drop(window);
    let reader = FileDevice::open_read_only(&path).unwrap();
    assert!(matches!(reader.allocate(0, 1).unwrap_err().fault(), DeviceFault::ReadOnly));
}

/// A small file system in memory of its own; unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(bytes: u64) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(dir.path())
            .output();
        let mounted = mounted.is_ok_and(|output| output.status.success());
        mounted.then(|| SmallDisk(dir))
    }

    fn free_blocks(&self) -> u64 {
        rustix::fs::statvfs(self.0.path()).unwrap().f_bfree
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn space_that_nobody_asked_for_does_not_keep_a_disk_from_being_filled() {
    const BLOCK: u64 = 4096;
    let Some(disk) = SmallDisk::new(1 << 20) else {
        println!("skipped: needs root to mount a small tmpfs");
        return;
    };
    let device = FileDevice::create_new(disk.0.path().join("image"), 4 << 20).unwrap();
    // Two that go on in turn get more ahead each time, until little is left.
    let mut ends = [0, 2 << 20];
    while disk.free_blocks() > 40 {
        for end in &mut ends {
            device.allocate(*end, BLOCK).unwrap();
            *end += BLOCK;
        }
    }
    // One alone gets every block of the disk.
    while disk.free_blocks() > 0 {
        device.allocate(ends[0], BLOCK).unwrap();
        ends[0] += BLOCK;
    }
    device.allocate(3 << 20, BLOCK).unwrap_err();
}

#[test]
fn a_file_that_is_extended_grows_and_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, vec![7; 64 << 10]).unwrap();
    let device = FileDevice::open_read_write(&path).unwrap();
    assert!(device.can_extend());
    assert_eq!(device.extend(60_000).unwrap(), 64 << 10, "it is longer already");
    assert_eq!(device.extend(1 << 20).unwrap(), 1 << 20);
    assert_eq!((device.size_bytes(), fs::metadata(&path).unwrap().len()), (1 << 20, 1 << 20));
    // The new part is a hole, for which room can be set aside.
    device.allocate(64 << 10, (1 << 20) - (64 << 10)).unwrap();
    assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 1 << 20);
    device.write_at((1 << 20) - 10, &[8; 10]).unwrap();
    // Another program made it longer still. Who only reads makes nothing longer.
    let reader = FileDevice::open_read_only(&path).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
    assert_eq!(device.extend(2 << 20).unwrap(), 3 << 20);
    assert_eq!((reader.size_bytes(), reader.can_extend()), (1 << 20, false));
    let refused = reader.extend(4 << 20).unwrap_err();
    assert!(matches!(refused.fault(), DeviceFault::ReadOnly), "{refused}");
    let mut all = vec![1; 3 << 20];
    device.read_at(0, &mut all).unwrap();
    let mut wanted = vec![0; 3 << 20];
    wanted[..64 << 10].fill(7);
    wanted[(1 << 20) - 10..1 << 20].fill(8);
    assert!(all == wanted);
    assert_eq!(fs::metadata(&path).unwrap().len(), 3 << 20);
    let memory = MemoryDevice::new(4096);
    assert!(memory.can_extend());
    assert_eq!((memory.extend(0).unwrap(), memory.extend(9000).unwrap()), (4096, 9000));
    memory.write_at(8999, &[1]).unwrap();
}

#[test]
fn what_is_durable_through_a_window_is_durable_below() {
    let device = Arc::new(RecordingDevice::new(8192));
    let window = WindowDevice::new(Arc::clone(&device), 4096, 4096).unwrap();
    window.write_at(0, &[1; 512]).unwrap();
    window.write_fua_at(512, &[2; 512]).unwrap();
    let write =
        Operation::Write { offset: 1024, buffer: AlignedBuffer::copy_of(&[3; 512]), fua: true };
    window.submit(vec![write]).wait_all().unwrap();
    let kept = || {
        let image = device.image_at(device.len(), |_, _| Survival::Lost);
        let mut found = [0; 1536];
        image.read_at(4096, &mut found).unwrap();
        [found[0], found[512], found[1024]]
    };
    assert_eq!(kept(), [0, 2, 3]);
    window.flush().unwrap();
    assert_eq!(kept(), [1, 2, 3]);
}
