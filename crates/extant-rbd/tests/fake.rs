//! The device over stand-ins for Ceph's libraries, which fail, stall, lie, forget, and lose the image.

use std::error::Error;
use std::fs;
use std::io::ErrorKind;
use std::process::Command;
use std::time::Duration;

use extant_base::Prng;
use extant_block::{
    AlignedBuffer, BlockDevice, DeviceFault, Operation, OperationKind, QueueOptions, Wait,
};
use extant_rbd::{Address, FLIGHT_BYTES_MAX, FLIGHTS_MAX, RbdDevice, RbdError, Settings};
use extant_sync::{Clock, SystemClock, threads};
use extant_testkit::rbd::Cluster;
use extant_testkit::require;

const SIZE: u64 = 1 << 20;

fn cluster() -> Result<Cluster, String> {
    let cluster = Cluster::new(&[])?;
    cluster.make("image", SIZE);
    Ok(cluster)
}

fn settings(cluster: &Cluster) -> Settings {
    let mut settings = Settings::default();
    settings.libraries = Some(cluster.dir().to_owned());
    settings.limit = Some(Duration::from_secs(20));
    settings
}

fn open_at(cluster: &Cluster, address: &str, read_only: bool) -> Result<RbdDevice, RbdError> {
    RbdDevice::open(&Address::parse(address)?, read_only, &settings(cluster))
}

fn open(cluster: &Cluster) -> RbdDevice {
    open_at(cluster, &cluster.address("image"), false).unwrap()
}

fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

fn contains(error: &dyn Error, words: &[&str]) {
    let text = in_full(error);
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

fn kinds(cluster: &Cluster) -> Vec<String> {
    cluster.requests().into_iter().map(|(kind, ..)| kind).collect()
}

#[test]
fn what_is_written_is_read_and_durable_after_a_flush() {
    let cluster = require!(cluster());
    let device = open(&cluster);
    assert_eq!(device.size_bytes(), SIZE);
    assert!(device.is_locked());
    let stored = || fs::read(cluster.image("image")).unwrap();
    device.write_at(1000, &[7; 5000]).unwrap();
    device.write_zeroes(2000, 100).unwrap();
    device.discard(4096, 512).unwrap();
    let mut bytes = vec![1; 6000];
    device.read_at(500, &mut bytes).unwrap();
    let mut wanted = vec![0; 6000];
    wanted[500..5500].fill(7);
    wanted[1500..1600].fill(0);
    wanted[3596..4108].fill(0);
    assert!(bytes == wanted);
    // Whoever forgot the flush would find it here.
    assert!(stored().iter().all(|byte| *byte == 0));
    device.flush().unwrap();
    assert!(stored()[500..6500] == wanted);
    cluster.requests();
    device.write_fua_at(SIZE - 512, &[9; 512]).unwrap();
    assert!(stored()[SIZE as usize - 512..] == [9; 512]);
    assert_eq!(kinds(&cluster), ["write", "flush"]);
    // Nothing is asked for nothing.
    device.read_at(SIZE, &mut []).unwrap();
    device.write_at(0, &[]).unwrap();
    assert!(kinds(&cluster).is_empty());
    drop(device);
    assert!(!cluster.dir().join("pool/image.lock").exists());
}

#[test]
fn histories_of_batches_and_a_queue_are_those_of_a_plain_vector() {
    let cluster = require!(cluster());
    for seed in 0..6 {
        let device = open(&cluster);
        let mut random = Prng::new(seed);
        let mut model = vec![0; SIZE as usize];
        device.write_zeroes(0, SIZE).unwrap();
        let mut queue = device.queue(&QueueOptions::default().depth(16));
        for step in 0..40u64 {
            // Parts that do not overlap: in any order they are the same.
            let batch = (0..8u64).map(|number| {
                let offset = number * (SIZE / 8) + random.below(SIZE / 16);
                let len = random.below(9000) as usize;
                let range = offset as usize..offset as usize + len;
                match random.below(4) {
                    0 => {
                        model[range].fill(0);
                        Operation::WriteZeroes { offset, len: len as u64 }
                    }
                    1 => Operation::Flush,
                    kind => {
                        let byte = (step * 8 + number) as u8;
                        model[range].fill(byte);
                        let buffer = AlignedBuffer::copy_of(&vec![byte; len]);
                        Operation::Write { offset, buffer, fua: kind == 2 }
                    }
                }
            });
            let batch: Vec<Operation> = batch.collect();
            if step % 2 == 0 {
                let lens: Vec<u64> = batch.iter().map(Operation::length).collect();
                let done = device.submit(batch).wait();
                let back: Vec<u64> = done.iter().map(|done| done.operation.length()).collect();
                assert_eq!(lens, back, "seed {seed}, step {step}");
                assert!(done.iter().all(|done| done.result.is_ok()));
            } else {
                for (tag, operation) in batch.into_iter().enumerate() {
                    queue.push(100 + tag as u64, operation).unwrap();
                }
                queue.submit();
                let mut tags = Vec::new();
                while let Some(finished) = queue.reap(Wait::Block) {
                    finished.completion.result.unwrap();
                    tags.push(finished.tag);
                }
                tags.sort_unstable();
                assert_eq!(tags, (100..108).collect::<Vec<_>>());
            }
            let mut bytes = vec![0; SIZE as usize];
            device.read_at(0, &mut bytes).unwrap();
            assert!(bytes == model, "seed {seed}, step {step}");
        }
        device.flush().unwrap();
        assert!(fs::read(cluster.image("image")).unwrap() == model, "seed {seed}");
    }
}

#[test]
fn long_operations_are_cut_and_put_together() {
    let cluster = require!(Cluster::new(&[]));
    cluster.make("image", 80 << 20);
    let device = open(&cluster);
    let mut bytes = vec![0; 40 << 20];
    Prng::new(1).fill(&mut bytes);
    device.write_at(1 << 20, &bytes).unwrap();
    let mut back = vec![0; 40 << 20];
    device.read_at(1 << 20, &mut back).unwrap();
    assert!(back == bytes);
    let requests = cluster.requests();
    assert_eq!(requests.len(), 6);
    assert!(requests.iter().all(|(_, _, len, _)| *len <= 16 << 20));
    // One that fails in a part fails as a whole, also if its other parts succeed later.
    let offset = 1 << 20;
    for operation in [
        Operation::Read { offset, buffer: AlignedBuffer::zeroed(bytes.len()) },
        Operation::Write { offset, buffer: AlignedBuffer::copy_of(&bytes), fua: false },
    ] {
        cluster.tell("stall=1");
        let pending = device.submit(vec![operation]);
        cluster.tell("size=30000000 late_before=2000000");
        let error = pending.wait_all().unwrap_err();
        contains(&error, &["ends at byte 30000000"]);
    }
}

#[test]
fn requests_under_way_are_bounded_and_many() {
    let cluster = require!(Cluster::new(&[]));
    cluster.make("image", 80 << 20);
    let device = open(&cluster);
    let most = |cluster: &Cluster| cluster.requests().iter().map(|line| line.3).max().unwrap();
    let reads = |count: u64, len: usize| {
        let read =
            |number| Operation::Read { offset: number * 4096, buffer: AlignedBuffer::zeroed(len) };
        (0..count).map(read).collect::<Vec<_>>()
    };
    cluster.tell("delay=30");
    let done = device.submit(reads(FLIGHTS_MAX as u64 + 100, 512)).wait();
    assert_eq!(done.len(), FLIGHTS_MAX + 100);
    assert!(done.iter().all(|done| done.result.is_ok()));
    let seen = most(&cluster);
    assert!((100..=FLIGHTS_MAX as u64).contains(&seen), "{seen}");
    cluster.tell("delay=300");
    device.submit(reads(12, 16 << 20)).wait_all().unwrap();
    assert_eq!(most(&cluster), FLIGHT_BYTES_MAX / (16 << 20));
    // Several threads, of which none keeps the others from theirs.
    cluster.tell("delay=1");
    let done = threads::workers("reader", 4, |_| {
        for _ in 0..20 {
            device.submit(reads(FLIGHTS_MAX as u64 / 2, 512)).wait_all().unwrap();
        }
    });
    done.unwrap();
    assert_eq!(device.under_way(), 0);
    // Nobody asks for the result of the last one, and it is done.
    cluster.requests();
    drop(device.submit(vec![Operation::Write {
        offset: 0,
        buffer: AlignedBuffer::copy_of(&[3; 512]),
        fua: false,
    }]));
    drop(device);
    assert_eq!(kinds(&cluster), ["write"]);
    assert_eq!(fs::read(cluster.image("image")).unwrap()[0], 3);
}

#[test]
fn a_queue_gives_back_what_came_first_and_waits_at_its_end() {
    let cluster = require!(cluster());
    let device = open(&cluster);
    let read = |offset| Operation::Read { offset, buffer: AlignedBuffer::zeroed(512) };
    let mut queue = device.queue(&QueueOptions::default().depth(2));
    assert_eq!(queue.depth(), 2);
    cluster.tell("delay=200");
    queue.push(1, read(0)).unwrap();
    queue.push(2, read(SIZE)).unwrap();
    queue.push(3, read(0)).unwrap_err();
    queue.submit();
    let first = queue.reap(Wait::Poll).unwrap();
    assert_eq!(first.tag, 2);
    first.completion.result.unwrap_err();
    assert!(queue.reap(Wait::Poll).is_none());
    assert_eq!(queue.len(), 1);
    assert_eq!(queue.reap(Wait::Block).unwrap().tag, 1);
    assert!(queue.reap(Wait::Block).is_none());
    queue.push(4, read(512)).unwrap();
    queue.submit();
    queue.push(5, read(1024)).unwrap();
    cluster.requests();
    drop(queue);
    assert_eq!(device.under_way(), 0);
    assert!(kinds(&cluster).is_empty(), "what was not submitted was done");
}

#[test]
fn libraries_that_are_missing_or_lack_a_function_are_named_with_their_package() {
    let cluster = require!(cluster());
    let address = Address::parse(&cluster.address("image")).unwrap();
    let mut settings = settings(&cluster);
    settings.libraries = Some(cluster.dir().join("pool"));
    let error = RbdDevice::open(&address, true, &settings).unwrap_err();
    contains(&error, &["librbd.so.1 cannot be used", "No such file", "package librbd1"]);
    fs::copy(cluster.dir().join("librbd.so.1"), cluster.dir().join("pool/librbd.so.1")).unwrap();
    let error = RbdDevice::open(&address, true, &settings).unwrap_err();
    contains(&error, &["librados.so.2 cannot be used", "package librados2"]);
    let old = require!(Cluster::new(&["WITHOUT_FLUSH"]));
    old.make("image", SIZE);
    let error = open_at(&old, &old.address("image"), true).unwrap_err();
    contains(&error, &["librbd.so.1", "no function rbd_aio_flush", "librbd1"]);
    // One that it does without.
    let plain = require!(Cluster::new(&["WITHOUT_ZEROES"]));
    plain.make("image", 8 << 20);
    let device = open_at(&plain, &plain.address("image"), false).unwrap();
    device.write_at(0, &[1; 4096]).unwrap();
    device.write_zeroes(512, (8 << 20) - 512).unwrap();
    let mut bytes = [9; 1024];
    device.read_at(0, &mut bytes).unwrap();
    assert!(bytes[..512] == [1; 512] && bytes[512..] == [0; 512]);
}

#[test]
fn what_is_not_there_is_named() {
    let cluster = require!(cluster());
    fs::write(cluster.image("image@old"), vec![5; 4096]).unwrap();
    let at = |from: &str, to: &str| {
        let address = cluster.address("image").replace(from, to);
        open_at(&cluster, &address, true)
    };
    let refused = |from: &str, to: &str, words: &[&str]| {
        contains(&at(from, to).unwrap_err(), words);
    };
    refused("pool/image", "other/image", &["there is no pool \"other\""]);
    refused("pool/image", "pool/none", &["there is no image \"none\""]);
    refused("pool/image", "pool/none@old", &["there is no image \"none\""]);
    refused("pool/image", "pool/image@new", &["there is no snapshot \"new\""]);
    refused("pool/image", "pool/space/image", &["there is no image \"image\""]);
    refused("mon_host=none", "unknown_word=1", &["refuses the option unknown_word"]);
    refused("mon_host=none", "conf=/none/at/all", &["configuration /none/at/all", "No such file"]);
    refused("mon_host=none:", "", &["no configuration of Ceph", "conf=FILE"]);
    refused(
        "mon_host=none",
        "mon_host=a:fake_connect=110:id=guest",
        &["cannot connect", "as client.guest", "timed out"],
    );
    refused("mon_host=none", "mon_host=a:fake_connect=13:key=AQB", &["ermission denied"]);
    let told = in_full(&at("mon_host=none", "mon_host=a:fake_connect=13:key=AQB").unwrap_err());
    assert!(!told.contains("AQB"), "{told}");
    cluster.tell("fail_open=108");
    refused("", "", &["opening the image failed"]);
    cluster.tell("");
    let snapshot = at("pool/image", "pool/image@old").unwrap();
    assert_eq!(snapshot.size_bytes(), 4096);
    let error = open_at(&cluster, &cluster.address("image@old"), false).unwrap_err();
    assert!(matches!(error, RbdError::Snapshot { .. }));
    fs::create_dir(cluster.image("space")).unwrap();
    fs::write(cluster.image("space/image"), vec![6; 8192]).unwrap();
    assert_eq!(at("pool/image", "pool/space/image").unwrap().size_bytes(), 8192);
}

#[test]
fn the_version_tells_images_snapshots_and_sizes_apart() {
    let cluster = require!(cluster());
    let version = |name: &str| {
        let device = open_at(&cluster, &cluster.address(name), true).unwrap();
        device.version()
    };
    let was = version("image");
    assert!(was.starts_with("11111111-2222-3333-4444-555555555555/"), "{was}");
    assert!(was.ends_with(", 1048576 bytes"), "{was}");
    assert_eq!(was, version("image"));
    fs::write(cluster.image("image@old"), vec![5; SIZE as usize]).unwrap();
    assert!(version("image@old").contains("@43, "));
    cluster.make("other", SIZE);
    assert_ne!(was, version("other"));
    cluster.make("image", SIZE + 512);
    assert_ne!(was, version("image"));
}

#[test]
fn a_reader_takes_no_lock_and_changes_nothing() {
    let cluster = require!(cluster());
    let writer = open(&cluster);
    let reader = open_at(&cluster, &cluster.address("image"), true).unwrap();
    assert!(!reader.is_locked());
    let error = reader.write_at(0, &[1; 512]).unwrap_err();
    assert!(matches!(error.fault(), DeviceFault::ReadOnly));
    reader.discard(0, 512).unwrap_err();
    reader.write_zeroes(0, 512).unwrap_err();
    reader.extend(0).unwrap_err();
    cluster.requests();
    reader.flush().unwrap();
    assert!(kinds(&cluster).is_empty());
    reader.read_at(0, &mut [0; 512]).unwrap();
    writer.write_at(0, &[1; 512]).unwrap();
}

#[test]
fn the_lock_of_one_who_lives_is_respected_and_that_of_a_dead_one_is_not() {
    let cluster = require!(cluster());
    let first = open(&cluster);
    let error = open_at(&cluster, &cluster.address("image"), false).unwrap_err();
    let owner = format!("client.{} at 127.0.0.1:0/", std::process::id());
    contains(&error, &["is in use", &owner, "exclusive lock"]);
    assert!(matches!(error, RbdError::Locked { .. }));
    first.write_at(0, &[1; 512]).unwrap();
    drop(first);
    let second = open(&cluster);
    drop(second);
    // A process that has ended.
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let lock = cluster.image("image.lock");
    fs::write(&lock, format!("client.{} 10.0.0.1:0/7", gone.id())).unwrap();
    let third = open(&cluster);
    assert!(third.is_locked());
    drop(third);
    // One that a hand has put there, and nobody watches.
    fs::write(&lock, format!("client.{} hand", std::process::id())).unwrap();
    let error = open_at(&cluster, &cluster.address("image"), false).unwrap_err();
    contains(&error, &["is in use", &format!("client.{} at hand", std::process::id())]);
    fs::remove_file(&lock).unwrap();
    // Trouble of another kind.
    cluster.tell("fail_lock=1");
    let error = open_at(&cluster, &cluster.address("image"), false).unwrap_err();
    contains(&error, &["taking the exclusive lock failed", "not permitted"]);
    cluster.tell("fail_lock=30");
    let error = open_at(&cluster, &cluster.address("image"), false).unwrap_err();
    contains(&error, &["taking the exclusive lock failed", "busy"]);
    cluster.tell("");
    // Without the feature there is nothing to take.
    let plain = cluster.address("image") + ":fake_features=1";
    let device = open_at(&cluster, &plain, false).unwrap();
    assert!(!device.is_locked());
    assert!(!lock.exists());
}

#[test]
fn an_error_is_one_operations_alone() {
    let cluster = require!(cluster());
    let device = open(&cluster);
    device.write_at(0, &[4; 4096]).unwrap();
    let mut bytes = [0; 512];
    cluster.tell("fail_read=5");
    let error = device.read_at(512, &mut bytes).unwrap_err();
    assert_eq!((error.kind(), error.offset(), error.length()), (OperationKind::Read, 512, 512));
    contains(&error, &["rbd:pool/image", "read of 512 bytes at byte 512 failed", "os error 5"]);
    cluster.tell("fail_write=5 fail_discard=5 fail_zero=28");
    device.read_at(512, &mut bytes).unwrap();
    assert_eq!(bytes, [4; 512]);
    device.write_at(0, &[5; 512]).unwrap_err();
    device.discard(0, 512).unwrap_err();
    assert!(device.write_zeroes(0, 512).unwrap_err().is_full());
    // No flush comes after a write that failed.
    cluster.requests();
    device.write_fua_at(0, &[5; 512]).unwrap_err();
    assert_eq!(kinds(&cluster), ["write"]);
    cluster.tell("start=12");
    device.read_at(0, &mut bytes).unwrap_err();
    device.write_at(0, &[5; 512]).unwrap_err();
    cluster.tell("");
    assert_eq!(device.under_way(), 0);
    device.write_at(0, &[6; 512]).unwrap();
    device.flush().unwrap();
}

#[test]
fn answers_that_cannot_be_are_errors() {
    let cluster = require!(cluster());
    let device = open(&cluster);
    cluster.tell("less=100");
    let error = device.read_at(0, &mut [0; 512]).unwrap_err();
    assert!(matches!(error.fault(), DeviceFault::ShortRead { got_bytes: 412 }));
    contains(&device.write_at(0, &[1; 512]).unwrap_err(), &["moved 412 bytes"]);
    cluster.tell("more=7");
    contains(&device.read_at(0, &mut [0; 512]).unwrap_err(), &["moved 519 bytes"]);
    contains(&device.write_at(0, &[1; 512]).unwrap_err(), &["moved 519 bytes"]);
    cluster.tell("fail_read=99999999999");
    device.read_at(0, &mut [0; 512]).unwrap_err();
}

#[test]
fn after_a_flush_that_failed_nothing_more_is_changed() {
    let cluster = require!(cluster());
    let device = open(&cluster);
    device.write_at(0, &[1; 512]).unwrap();
    cluster.tell("fail_flush=5");
    contains(&device.flush().unwrap_err(), &["flush failed", "os error 5"]);
    // The library has told it, and would succeed from now on, without what was lost.
    cluster.tell("");
    let words = ["could not make everything durable", "Input/output error", "opened again"];
    contains(&device.flush().unwrap_err(), &words);
    contains(&device.write_at(0, &[2; 512]).unwrap_err(), &words);
    contains(&device.write_fua_at(0, &[2; 512]).unwrap_err(), &words);
    contains(&device.discard(0, 512).unwrap_err(), &words);
    device.read_at(0, &mut [0; 512]).unwrap();
    drop(device);
    open(&cluster).flush().unwrap();
}

#[test]
fn one_who_is_shut_out_or_lost_the_lock_says_so_and_changes_nothing_more() {
    let cluster = require!(cluster());
    let device = open(&cluster);
    cluster.tell("fail_write=30");
    contains(&device.write_at(0, &[1; 512]).unwrap_err(), &["another client's now"]);
    cluster.tell("");
    contains(&device.flush().unwrap_err(), &["another client's now"]);
    device.read_at(0, &mut [0; 512]).unwrap();
    drop(device);
    let device = open(&cluster);
    cluster.tell("fail_read=108");
    contains(
        &device.read_at(0, &mut [0; 512]).unwrap_err(),
        &["blocklisted", "open the image again"],
    );
    cluster.tell("");
    contains(&device.write_at(0, &[1; 512]).unwrap_err(), &["blocklisted"]);
    contains(&device.flush().unwrap_err(), &["blocklisted"]);
}

#[test]
fn a_cluster_that_does_not_answer_is_not_waited_for_without_end() {
    let cluster = require!(cluster());
    let mut settings = settings(&cluster);
    settings.limit = Some(Duration::from_millis(300));
    let address = Address::parse(&cluster.address("image")).unwrap();
    let clock = SystemClock;
    // The libraries give up by themselves.
    let device = open(&cluster);
    cluster.tell("fail_read=110 fail_write=110");
    contains(&device.read_at(0, &mut [0; 512]).unwrap_err(), &["did not answer in time"]);
    device.flush().unwrap();
    contains(&device.write_at(0, &[1; 512]).unwrap_err(), &["may still make the change"]);
    contains(&device.flush().unwrap_err(), &["may still make the change"]);
    drop(device);
    // They do not.
    cluster.tell("");
    let device = RbdDevice::open(&address, false, &settings).unwrap();
    cluster.tell("stall=1");
    let started = clock.monotonic();
    let error = device.read_at(0, &mut [0; 4096]).unwrap_err();
    contains(&error, &["did not answer in time"]);
    let DeviceFault::Io(cause) = error.fault() else { panic!("{error:?}") };
    assert_eq!(cause.kind(), ErrorKind::TimedOut);
    assert_eq!(device.under_way(), 1);
    let batch = (0..10).map(|number| Operation::Write {
        offset: number * 512,
        buffer: AlignedBuffer::copy_of(&[8; 512]),
        fua: number == 3,
    });
    for done in device.submit(batch.collect()).wait() {
        assert_eq!(done.operation.length(), 512);
        contains(&done.result.unwrap_err(), &["may still make the change"]);
    }
    assert_eq!(device.under_way(), 11);
    let mut queue = device.queue(&QueueOptions::default());
    queue.push(1, Operation::Read { offset: 0, buffer: AlignedBuffer::zeroed(512) }).unwrap();
    queue.submit();
    assert!(queue.reap(Wait::Poll).is_none());
    queue.reap(Wait::Block).unwrap().completion.result.unwrap_err();
    drop(queue);
    assert!(clock.monotonic() - started < Duration::from_secs(10));
    // What comes late comes to nobody, and nothing more is changed.
    cluster.tell("");
    while device.under_way() > 0 {
        threads::give_way();
    }
    let mut bytes = [0; 512];
    device.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [8; 512], "the change was made after all");
    contains(&device.write_at(0, &[1; 512]).unwrap_err(), &["may still make the change"]);
    drop(device);
    // The end does not wait either.
    let device = RbdDevice::open(&address, false, &settings).unwrap();
    cluster.tell("stall=1");
    device.read_at(0, &mut [0; 512]).unwrap_err();
    let started = clock.monotonic();
    drop(device);
    assert!(clock.monotonic() - started < Duration::from_secs(10));
    cluster.tell("");
}

#[test]
fn all_room_taken_by_requests_that_nobody_answers_is_an_error_too() {
    let cluster = require!(cluster());
    let mut settings = settings(&cluster);
    settings.limit = Some(Duration::from_millis(300));
    let address = Address::parse(&cluster.address("image")).unwrap();
    let device = RbdDevice::open(&address, true, &settings).unwrap();
    cluster.tell("stall=1");
    let read = |_| Operation::Read { offset: 0, buffer: AlignedBuffer::zeroed(512) };
    let done = device.submit((0..FLIGHTS_MAX + 10).map(read).collect()).wait();
    assert!(done.iter().all(|done| done.result.is_err()));
    assert_eq!(device.under_way(), FLIGHTS_MAX);
    contains(&device.read_at(0, &mut [0; 512]).unwrap_err(), &["did not answer in time"]);
    cluster.tell("");
    while device.under_way() > 0 {
        threads::give_way();
    }
    device.read_at(0, &mut [0; 512]).unwrap();
}

#[test]
fn an_image_of_another_size_is_an_error_with_the_numbers() {
    let cluster = require!(cluster());
    let device = open(&cluster);
    contains(&device.read_at(SIZE - 511, &mut [0; 512]).unwrap_err(), &["ends at byte 1048576"]);
    contains(&device.write_at(u64::MAX, &[0; 512]).unwrap_err(), &["ends at byte 1048576"]);
    // Shorter, and it is never believed to be: a write is not cut in silence.
    cluster.tell("size=500000");
    for at in [499_900, 500_000, 800_000] {
        contains(&device.read_at(at, &mut [0; 512]).unwrap_err(), &["ends at byte 500000"]);
        contains(&device.write_at(at, &[0; 512]).unwrap_err(), &["ends at byte 500000"]);
        contains(&device.discard(at, 512).unwrap_err(), &["ends at byte 500000"]);
        contains(&device.write_zeroes(at, 512).unwrap_err(), &["ends at byte 500000"]);
    }
    device.write_at(499_000, &[1; 512]).unwrap();
    assert_eq!(device.size_bytes(), SIZE);
    contains(&device.extend(SIZE).unwrap_err(), &["ends at byte 500000"]);
    // While a request was under way: the library cuts it at the end, and calls it done.
    let buffer = || AlignedBuffer::zeroed(512);
    for offset in [499_900, 600_000] {
        for change in [
            Operation::Write { offset, buffer: buffer(), fua: false },
            Operation::WriteZeroes { offset, len: 512 },
            Operation::Discard { offset, len: 512 },
        ] {
            cluster.tell("stall=1");
            let pending = device.submit(vec![change]);
            cluster.tell("size=500000");
            contains(&pending.wait_all().unwrap_err(), &["ends at byte 500000"]);
        }
    }
    // Longer: whoever wants to know asks.
    cluster.tell("size=2000000");
    assert_eq!(device.size_bytes(), SIZE);
    device.read_at(SIZE, &mut [0; 512]).unwrap_err();
    assert_eq!(device.extend(0).unwrap(), 2_000_000);
    assert_eq!(device.size_bytes(), 2_000_000);
}

/// Played by a process of its own, which is killed.
#[test]
#[ignore = "is started by the test below"]
fn writer_that_is_killed() {
    let Ok(dir) = std::env::var("EXTANT_TEST_RBD") else { return };
    let mut settings = Settings::default();
    settings.libraries = Some(dir.clone().into());
    let address = format!("rbd:pool/image:mon_host=none:fake_dir={dir}");
    let device = RbdDevice::open(&Address::parse(&address).unwrap(), false, &settings).unwrap();
    device.write_at(0, &[1; 512]).unwrap();
    device.flush().unwrap();
    device.write_fua_at(512, &[2; 512]).unwrap();
    device.write_at(1024, &[3; 512]).unwrap();
    let mut bytes = [0; 512];
    device.read_at(1024, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 512]);
    let me = std::process::id().to_string();
    let _ = Command::new("kill").args(["-9", &me]).status();
}

#[test]
fn after_a_kill_what_was_flushed_is_there_and_the_lock_can_be_had() {
    let cluster = require!(cluster());
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "writer_that_is_killed", "--ignored", "--nocapture"]);
    let ended = command.env("EXTANT_TEST_RBD", cluster.dir()).output().unwrap();
    assert!(!ended.status.success());
    assert!(cluster.image("image.lock").exists(), "{ended:?}");
    let device = open(&cluster);
    let mut bytes = [9; 1536];
    device.read_at(0, &mut bytes).unwrap();
    assert!(bytes[..512] == [1; 512] && bytes[512..1024] == [2; 512]);
    assert!(bytes[1024..] == [0; 512], "the stand-in forgets nothing: the test shows nothing");
}
