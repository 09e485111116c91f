//! What crashes and faults the testing devices make.

use std::sync::Arc;

use extant_block::{
    AlignedBuffer, BlockDevice, FaultDevice, FaultPlan, MemoryDevice, Operation, OperationKind,
    RecordingDevice, Survival, ThinDevice, protected_from,
};

fn write(offset: u64, byte: u8, fua: bool) -> Operation {
    Operation::Write { offset, buffer: AlignedBuffer::copy_of(&[byte; 512]), fua }
}

/// Which of the records so far may be lost now.
fn unprotected(device: &RecordingDevice) -> Vec<usize> {
    let events = device.events();
    let moments = protected_from(&events);
    (0..events.len()).filter(|place| moments[*place] == u64::MAX).collect()
}

#[test]
fn a_flush_protects_only_what_was_waited_for_before_it_was_submitted() {
    let device = RecordingDevice::new(8192);
    // In one batch with the flush: any order.
    device.submit(vec![write(0, 1, false), Operation::Flush]).wait_all().unwrap();
    assert_eq!(unprotected(&device), [0]);
    // Submitted before, but nobody waited.
    let pending = device.submit(vec![write(512, 1, false)]);
    device.flush().unwrap();
    assert_eq!(unprotected(&device), [2], "the first one is protected by now");
    pending.wait_all().unwrap();
    assert_eq!(unprotected(&device), [2], "waiting after the flush comes too late");
    // A flush that nobody waited for protects nothing yet.
    let pending = device.submit(vec![Operation::Flush]);
    assert_eq!(unprotected(&device), [2]);
    pending.wait_all().unwrap();
    assert!(unprotected(&device).is_empty());
    // A FUA write counts when its completion arrived.
    let pending = device.submit(vec![write(1024, 1, true)]);
    assert_eq!(unprotected(&device), [5]);
    pending.wait_all().unwrap();
    assert!(unprotected(&device).is_empty());
}

#[test]
fn a_failed_flush_leaves_earlier_writes_in_doubt_for_ever() {
    let device = RecordingDevice::new(8192);
    device.write_at(0, &[1; 512]).unwrap();
    device.flush().unwrap();
    device.write_at(512, &[1; 512]).unwrap();
    device.note_failed_flush();
    device.flush().unwrap();
    device.write_at(1024, &[1; 512]).unwrap();
    device.flush().unwrap();
    assert_eq!(unprotected(&device), [2]);
}

#[test]
fn a_flush_of_one_device_says_nothing_about_another_of_its_history() {
    let first = RecordingDevice::new(8192);
    let second = RecordingDevice::beside(MemoryDevice::new(8192), &first);
    second.write_at(0, &[7; 512]).unwrap();
    first.flush().unwrap();
    assert_eq!(unprotected(&first), [0]);
    second.flush().unwrap();
    assert!(unprotected(&second).is_empty());
    let mut bytes = [0; 1];
    first.image_at(3, |_, _| Survival::Kept).read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0], "the other device's records are not its own");
}

#[test]
fn overlapping_writes_in_flight_together_are_found() {
    let device = RecordingDevice::new(8192);
    let first = device.submit(vec![write(0, 1, false), write(512, 1, false)]);
    let second = device.submit(vec![write(512, 2, false)]);
    first.wait_all().unwrap();
    second.wait_all().unwrap();
    device.write_at(0, &[3; 512]).unwrap();
    assert_eq!(device.races(), [(1, 2)]);
}

#[test]
fn snapshots_of_memory_share_pages_until_one_side_writes() {
    let device = MemoryDevice::from_bytes(&[1; 8192]);
    let copy = device.snapshot();
    device.write_at(0, &[2; 100]).unwrap();
    copy.write_zeroes(4096, 4096).unwrap();
    copy.write_at(5000, &[3]).unwrap();
    let bytes = |device: &MemoryDevice| {
        let mut bytes = [0; 8192];
        device.read_at(0, &mut bytes).unwrap();
        [bytes[0], bytes[100], bytes[4096], bytes[5000]]
    };
    assert_eq!(bytes(&device), [2, 1, 1, 1]);
    assert_eq!(bytes(&copy), [1, 1, 0, 3]);
}

#[test]
fn exactly_the_operations_asked_for_fail() {
    let inner = Arc::new(RecordingDevice::new(8192));
    let plan = FaultPlan {
        exactly: vec![(OperationKind::Write, 1, 2), (OperationKind::Flush, 0, 1)],
        ..FaultPlan::default()
    };
    let hooked = Arc::clone(&inner);
    let device = FaultDevice::new(Arc::clone(&inner), plan)
        .on_failed_flush(move || hooked.note_failed_flush());
    let results: Vec<bool> = (0..4).map(|n| device.write_at(n * 512, &[1; 512]).is_ok()).collect();
    assert_eq!(results, [true, false, false, true]);
    device.flush().unwrap_err();
    device.flush().unwrap();
    assert_eq!(device.failed(), 3);
    assert!(unprotected(&inner).contains(&0), "the failed flush was noted");
}

#[test]
fn reordered_batches_all_happen_and_answer_in_their_order() {
    for seed in 0..50 {
        let inner = Arc::new(MemoryDevice::new(1 << 20));
        let plan = FaultPlan { seed, reorder: true, ..FaultPlan::default() };
        let device = FaultDevice::new(Arc::clone(&inner), plan);
        let pending: Vec<_> = (0..100u64)
            .map(|n| {
                device.submit(vec![write(n * 1024, 1, false), write(n * 1024 + 512, 2, false)])
            })
            .collect();
        for (n, pending) in pending.into_iter().enumerate().rev() {
            let done = pending.wait();
            assert_eq!(done.len(), 2);
            assert_eq!(done[0].operation.offset(), n as u64 * 1024);
        }
        let mut bytes = [0; 1024];
        for n in 0..100 {
            inner.read_at(n * 1024, &mut bytes).unwrap();
            assert_eq!((bytes[0], bytes[512]), (1, 2));
        }
    }
}

#[test]
fn equal_seeds_give_equal_faults() {
    let run = |seed| {
        let plan = FaultPlan { seed, write_one_in: 5, streak_max: 3, ..FaultPlan::default() };
        let device = FaultDevice::new(Arc::new(MemoryDevice::new(1 << 16)), plan);
        (0..100).map(|n| device.write_at(n * 512, &[1; 512]).is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
    assert!(run(3).contains(&false));
}

#[test]
fn a_disk_that_is_full_takes_writes_only_where_it_has_room_already() {
    let bytes = [[1; 4096], [0; 4096], [2; 4096]].concat();
    let device = ThinDevice::new(MemoryDevice::from_bytes(&bytes), 0);
    device.write_at(0, &[3; 4096]).unwrap();
    // Zeros are a hole; so is what nobody wrote. Nothing of the write is stored.
    let error = device.write_at(4000, &[4; 200]).unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(device.allocate(4096, 1).unwrap_err().is_full());
    let mut found = [0; 96];
    device.read_at(4000, &mut found).unwrap();
    assert_eq!(found, [3; 96]);
    device.add_spare(4096);
    device.allocate(4096, 1).unwrap();
    assert_eq!(device.spare(), 0);
    device.write_at(4000, &[4; 200]).unwrap();
    device.discard(8192, 4096).unwrap();
    assert_eq!(device.spare(), 4096);
    device.leave_spare(0);
    device.write_at(8192, &[5]).unwrap_err();
}

#[test]
fn faults_have_the_errno_that_was_asked_for() {
    for (errno, is_full) in [(0, false), (5, false), (28, true), (122, true)] {
        let exactly = vec![(OperationKind::Allocate, 0, 1), (OperationKind::Write, 0, 1)];
        let plan = FaultPlan { errno, exactly, ..FaultPlan::default() };
        let device = FaultDevice::new(Arc::new(MemoryDevice::new(8192)), plan);
        assert_eq!(device.allocate(0, 512).unwrap_err().is_full(), is_full);
        assert_eq!(device.write_at(0, &[1; 512]).unwrap_err().is_full(), is_full);
        device.allocate(0, 512).unwrap();
        assert_eq!(device.seen(), [0, 1, 0, 2]);
    }
}
