//! An overlay over an image that fails, goes away, or comes back: each is an error of what needs it, once, and no
//! damage in the overlay.

use std::path::Path;
use std::sync::Arc;

use extant_block::{
    BlockDevice, DeviceError, FaultDevice, FaultPlan, MemoryDevice, OperationKind, SharedDevice,
};
use extant_qcow2::{Elsewhere, Format, How, Qcow2Error, overlay};

const SIZE: u64 = 3 << 20;
const CLUSTER: u64 = 64 << 10;

fn base_bytes() -> Vec<u8> {
    (0..SIZE).map(|at| (at / 512 % 251) as u8).collect()
}

/// Opens the overlay over a base whose reads fail by `plan`.
fn over(file: &Path, plan: FaultPlan) -> (Arc<FaultDevice<MemoryDevice>>, SharedDevice) {
    let memory = Arc::new(MemoryDevice::new(SIZE));
    memory.write_at(0, &base_bytes()).unwrap();
    let base = Arc::new(FaultDevice::new(memory, plan));
    base.set_enabled(false);
    let elsewhere = Elsewhere {
        address: "nbd://disks.example/root".into(),
        device: Arc::clone(&base) as SharedDevice,
        format: Format::Raw,
        version: format!("{SIZE} bytes"),
    };
    let how = How { write: true, elsewhere: Some(elsewhere), ..How::default() };
    let image = overlay::open_over_elsewhere(file, &how).unwrap().into_device();
    (base, image)
}

fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0xaa; len];
    device.read_at(offset, &mut bytes).map(|()| bytes)
}

/// The error with its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

/// `qemu-img check`, where it is there.
fn is_sound(file: &Path) {
    // The base is at an address that nobody serves; the check does not need it.
    let options = format!("driver=qcow2,backing=,file.filename={}", file.display());
    let check =
        std::process::Command::new("qemu-img").args(["check", "--image-opts", &options]).output();
    let Ok(checked) = check else { return println!("skipped: qemu-img is missing") };
    let said = String::from_utf8_lossy(&checked.stderr);
    // 3: clusters that are counted and not used.
    assert!(matches!(checked.status.code(), Some(0 | 3)), "{}: {said}", checked.status);
}

#[test]
fn a_base_that_fails_is_an_error_of_what_needs_it_and_passes() {
    for (errno, name) in [(5, "os error 5"), (110, "os error 110"), (104, "os error 104")] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("o.qcow2");
        let plan = FaultPlan { read_one_in: 1, errno, ..FaultPlan::default() };
        let (base, image) = over(&file, plan);
        let mut wanted = base_bytes();
        image.write_at(5 * CLUSTER, &[0x11; CLUSTER as usize]).unwrap();
        wanted[5 * CLUSTER as usize..6 * CLUSTER as usize].fill(0x11);
        image.flush().unwrap();
        base.set_enabled(true);
        // What is in the overlay is read and changed as before.
        assert!(read(&*image, 5 * CLUSTER, 4096).unwrap() == vec![0x11; 4096]);
        image.write_at(5 * CLUSTER + 512, &[0x22; 512]).unwrap();
        wanted[5 * CLUSTER as usize + 512..][..512].fill(0x22);
        // A whole cluster needs nothing from below.
        image.write_at(7 * CLUSTER, &[0x33; CLUSTER as usize]).unwrap();
        wanted[7 * CLUSTER as usize..8 * CLUSTER as usize].fill(0x33);
        // What needs the base is an error each time, with the error of the base; nothing is made up.
        for _ in 0..2 {
            let failed = base.failed();
            let error = chain(&read(&*image, 9 * CLUSTER, 4096).unwrap_err());
            assert!(error.contains(name), "{error}");
            assert!(base.failed() > failed, "the base was not asked");
            // A part of a cluster needs the rest of it.
            let error = chain(&image.write_at(9 * CLUSTER + 100, &[0x44; 512]).unwrap_err());
            assert!(error.contains(name), "{error}");
        }
        image.flush().unwrap();
        base.set_enabled(false);
        assert!(read(&*image, 0, SIZE as usize).unwrap() == wanted);
        image.write_at(9 * CLUSTER + 100, &[0x44; 512]).unwrap();
        wanted[9 * CLUSTER as usize + 100..][..512].fill(0x44);
        image.flush().unwrap();
        drop(image);
        is_sound(&file);
        let (_, image) = over(&file, FaultPlan::default());
        assert!(read(&*image, 0, SIZE as usize).unwrap() == wanted);
    }
}

#[test]
fn reads_that_fail_now_and_then_never_give_wrong_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("o.qcow2");
    let plan = FaultPlan { seed: 3, read_one_in: 4, streak_max: 3, ..FaultPlan::default() };
    let (base, image) = over(&file, plan);
    base.set_enabled(true);
    let (mut wanted, mut failed) = (base_bytes(), 0);
    for number in 0..400u64 {
        let at = number * 7919 * 512 % (SIZE - 4096);
        let range = at as usize..at as usize + 4096;
        if number % 3 == 0 {
            match image.write_at(at, &[number as u8; 4096]) {
                Ok(()) => wanted[range].fill(number as u8),
                // Nothing of it, or all of it in a cluster that was there: what is read now is either.
                Err(_) => {
                    failed += 1;
                    base.set_enabled(false);
                    let now = read(&*image, at, 4096).unwrap();
                    for (index, byte) in now.iter().enumerate() {
                        let before = wanted[range.start + index];
                        assert!(*byte == before || *byte == number as u8, "{number} {index}");
                    }
                    wanted[range].copy_from_slice(&now);
                    base.set_enabled(true);
                }
            }
        } else {
            match read(&*image, at, 4096) {
                Ok(bytes) => assert!(bytes == wanted[range], "{number}"),
                Err(_) => failed += 1,
            }
        }
    }
    assert!(failed > 20, "{failed} failures");
    base.set_enabled(false);
    image.flush().unwrap();
    assert!(read(&*image, 0, SIZE as usize).unwrap() == wanted);
    drop(image);
    is_sound(&file);
}

#[test]
fn a_device_with_an_image_in_it_that_fails_is_named_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("i.qcow2");
    let raw = dir.path().join("raw");
    std::fs::write(&raw, base_bytes()).unwrap();
    let mut convert = std::process::Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]).args([&raw, &file]);
    let Ok(made) = convert.status() else { return println!("skipped: qemu-img is missing") };
    assert!(made.success());
    // As a file behind a server: read where it lies, and all of it is here.
    let bytes = std::fs::read(&file).unwrap();
    let memory = Arc::new(MemoryDevice::new(bytes.len() as u64));
    memory.write_at(0, &bytes).unwrap();
    for at in (0..40).step_by(3) {
        let exactly = vec![(OperationKind::Read, at, 1)];
        let device = Arc::new(FaultDevice::new(
            Arc::clone(&memory),
            FaultPlan { exactly, ..FaultPlan::default() },
        ));
        let opened = extant_qcow2::open_on_device(
            Arc::clone(&device) as SharedDevice,
            true,
            &How::default(),
        );
        let image = match opened {
            Ok(image) => image,
            Err(error) => {
                assert!(device.failed() > 0, "{error}");
                continue;
            }
        };
        let mut errors = 0;
        for offset in (0..SIZE).step_by(CLUSTER as usize) {
            match read(&*image, offset, CLUSTER as usize) {
                Ok(found) => assert!(found == base_bytes()[offset as usize..][..CLUSTER as usize]),
                Err(_) => {
                    errors += 1;
                    // The second time it succeeds: no error stays in a table that was read in part.
                    let found = read(&*image, offset, CLUSTER as usize).unwrap();
                    assert!(found == base_bytes()[offset as usize..][..CLUSTER as usize]);
                }
            }
        }
        assert_eq!(errors, device.failed(), "read {at}: each failure is told once");
    }
}

#[test]
fn a_commit_writes_nothing_to_a_base_that_has_no_room_for_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("o.qcow2");
    // The first run of clusters finds room, the second does not.
    let plan = FaultPlan {
        exactly: vec![(OperationKind::Allocate, 1, 1)],
        errno: 28,
        ..FaultPlan::default()
    };
    let (_, image) = over(&file, FaultPlan::default());
    image.write_at(2 * CLUSTER, &[0x11; 2 * CLUSTER as usize]).unwrap();
    image.write_at(9 * CLUSTER, &[0x22; CLUSTER as usize]).unwrap();
    image.write_zeroes(20 * CLUSTER, CLUSTER).unwrap();
    image.flush().unwrap();
    let mut wanted = vec![0; SIZE as usize];
    image.read_at(0, &mut wanted).unwrap();
    drop(image);
    let memory = Arc::new(MemoryDevice::new(SIZE));
    memory.write_at(0, &base_bytes()).unwrap();
    let base = Arc::new(FaultDevice::new(Arc::clone(&memory), plan));
    let elsewhere = Elsewhere {
        address: "nbd://disks.example/root".into(),
        device: Arc::clone(&base) as SharedDevice,
        format: Format::Raw,
        version: format!("{SIZE} bytes"),
    };
    let how = How { elsewhere: Some(elsewhere), ..How::default() };
    let Err(Qcow2Error::Device(error)) = overlay::commit(&file, &how) else { panic!("no error") };
    assert_eq!((error.kind(), error.is_full()), (OperationKind::Allocate, true), "{error}");
    assert!(read(&*memory, 0, SIZE as usize).unwrap() == base_bytes(), "the base was written");
    // The overlay has it all still.
    base.set_enabled(false);
    overlay::commit(&file, &how).unwrap();
    assert!(read(&*memory, 0, SIZE as usize).unwrap() == wanted);
}
