//! What a look at an image says before it is opened, and what opening it says then.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant::{
    ErrorCode, Fs, FsError, MountErrorKind, MountOptions, MountProgress, MountStage, NewInode,
    Probe,
};
use extant_block::{MemoryDevice, RecordingDevice, SharedDevice};
use extant_check::{CheckOptions, Problem, check};
use extant_sync::{FixedClock, Mutex, Rank};
use extant_testkit::oracle::{debugfs, e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

fn made(options: &[&str], commands: &str) -> Result<MemoryDevice, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "16M", options)?;
    if !commands.is_empty() {
        debugfs(&path, true, commands)?;
    }
    Ok(image::load(&path))
}

fn probe(device: MemoryDevice) -> Probe {
    MountOptions::new().read_only(false).probe(device).unwrap()
}

#[test]
fn a_look_says_what_opening_says() {
    let run = || {
        // Clean; after a crash; damaged; with a feature of the future; with its journal elsewhere; cut short.
        let clean = made(&["-t", "ext4", "-L", "root"], "")?;
        let looked = probe(clean.snapshot());
        assert_eq!(looked.superblock().label(), b"root");
        assert!(!looked.needs_recovery() && !looked.is_marked_damaged());
        looked.check_read().unwrap();
        looked.check_write().unwrap();
        looked.open().unwrap().unmount().unwrap();

        let device = Arc::new(clean.snapshot());
        let fs = MountOptions::new().read_only(false).open_shared(device.clone()).unwrap();
        fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
        fs.sync().unwrap();
        let crashed = device.snapshot();
        drop(fs);
        let looked = probe(crashed);
        assert!(looked.needs_recovery() && !looked.is_marked_damaged());
        looked.check_write().unwrap();
        let fs = looked.open().unwrap();
        assert!(fs.replayed().is_some());
        fs.unmount().unwrap();
        assert!(looked.needs_recovery(), "what it has seen");

        let looked = probe(made(&["-t", "ext4"], "ssv state 3\n")?);
        assert!(looked.is_marked_damaged());
        looked.check_read().unwrap();
        looked.check_write().unwrap();

        let looked = probe(made(&["-t", "ext4"], "feature FEATURE_I31\n")?);
        for says in [looked.check_read(), looked.check_write(), looked.open().map(drop)] {
            let error = says.unwrap_err();
            assert!(error.to_string().contains("FEATURE_I31"), "{error}");
        }

        let outside = "ssv journal_inum 0\nssv journal_dev 0x700\n";
        let looked = probe(made(&["-t", "ext4"], outside)?);
        looked.check_read().unwrap();
        for says in [looked.check_write(), looked.open().map(drop)] {
            assert!(matches!(*says.unwrap_err(), FsError::JournalDeviceMissing { .. }));
        }

        let mut half = vec![0; 8 << 20];
        extant_block::BlockDevice::read_at(&clean, 0, &mut half).unwrap();
        let looked = probe(MemoryDevice::from_bytes(&half));
        looked.check_read().unwrap();
        for says in [looked.check_write(), looked.open().map(drop)] {
            assert!(matches!(*says.unwrap_err(), FsError::CutShort { .. }));
        }
        Ok::<(), String>(())
    };
    require!(run());
}

#[test]
fn a_look_writes_nothing_and_refuses_what_is_no_file_system() {
    let run = || {
        let recording = Arc::new(RecordingDevice::over(made(&["-t", "ext4"], "")?));
        let shared: SharedDevice = recording.clone();
        let looked = MountOptions::new().read_only(false).probe_shared(shared).unwrap();
        looked.check_write().unwrap();
        drop(looked);
        assert_eq!(recording.number(), 0);
        let nothing = MountOptions::new().probe(MemoryDevice::new(1 << 20)).unwrap_err();
        assert!(matches!(*nothing, FsError::NotExt { magic: Some(0), .. }), "{nothing}");
        let short = MountOptions::new().probe(MemoryDevice::new(1024)).unwrap_err();
        assert!(matches!(*short, FsError::NotExt { magic: None, .. }), "{short}");
        Ok::<(), String>(())
    };
    require!(run());
}

#[test]
fn an_error_of_opening_names_the_image_and_what_to_do() {
    use std::io::{Error, ErrorKind};
    let run = || {
        let dir = tempdir().map_err(|error| error.to_string())?;
        let image = dir.path().join("disk.img");
        let path = image.to_str().unwrap();
        let writing = MountOptions::new().read_only(false);
        // One line each: what is there, what it is called, what std calls it, what the message says.
        let missing = writing.open_path(&image).unwrap_err();
        assert_eq!((missing.kind(), missing.code()), (MountErrorKind::CannotOpen, ErrorCode::Open));
        assert_eq!(Error::from(missing).kind(), ErrorKind::NotFound);

        std::fs::write(&image, vec![0; 1 << 20]).unwrap();
        let empty = writing.open_path(&image).unwrap_err();
        assert_eq!((empty.kind(), empty.kind() as u16), (MountErrorKind::NotExt, 4));
        assert_eq!(empty.image(), path);
        let text = empty.to_string();
        assert_eq!(text.matches(path).count(), 1, "{text}");
        assert!(text.contains("partition"), "what to do next: {text}");
        assert_eq!(Error::from(empty).kind(), ErrorKind::InvalidData);

        mke2fs(&image, "16M", &["-t", "ext4"])?;
        let held = writing.open_path(&image).unwrap();
        let busy = writing.open_path(&image).unwrap_err();
        assert_eq!(busy.kind(), MountErrorKind::InUse);
        assert_eq!(busy.to_string().matches(path).count(), 1, "{busy}");
        assert_eq!(Error::from(busy).kind(), ErrorKind::ResourceBusy);
        held.unmount().unwrap();

        let directory = writing.open_path(dir.path()).unwrap_err();
        assert!(
            matches!(directory.kind(), MountErrorKind::NotADevice | MountErrorKind::CannotOpen),
            "{directory}"
        );
        let device = extant_block::FileDevice::open_read_only(&image).unwrap();
        let fixed = writing.open(device).unwrap_err();
        assert_eq!(fixed.kind(), MountErrorKind::ReadOnlyDevice);
        assert!(fixed.to_string().contains("read_only"), "{fixed}");
        assert_eq!(Error::from(fixed).kind(), ErrorKind::ReadOnlyFilesystem);

        debugfs(&image, true, "feature FEATURE_I31\n")?;
        let future = writing.open_path(&image).unwrap_err();
        assert_eq!(future.kind(), MountErrorKind::Unsupported);
        assert!(future.hint().is_some_and(|hint| hint.contains("newer")), "{future}");
        // What takes the whole for one of its parts still can.
        let inner = FsError::from(future);
        assert!(matches!(inner, FsError::Unsupported { wanted: "read", .. }), "{inner}");
        Ok::<(), String>(())
    };
    require!(run());
}

/// Files that [`crashed`] makes; every fourth is removed while it is open.
const FILES: u8 = 20;

/// An image as a crash leaves it: with transactions in its journal, files removed while open, and one half shortened.
fn crashed(options: &[&str]) -> Result<MemoryDevice, String> {
    let device = Arc::new(made(options, "")?);
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let mount = MountOptions::new().read_only(false).background(false).seed(3).clock(clock);
    let fs = mount.open_shared(device.clone()).unwrap();
    fs.create_dir("/kept", &NewInode::root(0o755)).unwrap();
    let mut open = Vec::new();
    for number in 0..FILES {
        let name = format!("/kept/{number}");
        fs.write(&name, vec![number; 20_000]).unwrap();
        if number % 4 == 0 {
            open.push(fs.resolve(&name).unwrap());
            fs.remove_file(&name).unwrap();
        }
    }
    fs.sync().unwrap();
    Ok(device.snapshot())
}

fn assert_whole(fs: &Fs) {
    for number in 0..FILES {
        let found = fs.read(format!("/kept/{number}"));
        match number % 4 {
            0 => assert_eq!(found.unwrap_err().errno(), 2),
            _ => assert_eq!(found.unwrap(), vec![number; 20_000]),
        }
    }
}

#[test]
fn an_image_is_recovered_before_it_is_mounted() {
    let run = || {
        let image = crashed(&["-t", "ext4"])?;
        // For reading, the device stays as it is, and shows what the journal has.
        let recording = Arc::new(RecordingDevice::over(image.snapshot()));
        let recovered = MountOptions::new().probe_shared(recording.clone()).unwrap().recover();
        let recovered = recovered.unwrap();
        assert!(recovered.replayed().unwrap().transactions > 0);
        assert!(
            recovered.superblock().last_orphan != 0
                || recovered.superblock().orphan_file_inode.0 != 0
        );
        let shown = check(&**recovered.device(), &CheckOptions::default()).unwrap();
        // The flag is the superblock's, and the orphans are for a mount to delete.
        let expected =
            |problem: &Problem| matches!(problem, Problem::NeedsRecovery | Problem::Orphans { .. });
        assert!(shown.problems.iter().all(expected), "{shown:?}");
        assert_whole(&recovered.mount().unwrap());
        assert!(recording.records().is_empty(), "nothing is written for reading");
        // For writing, the journal is replayed; whoever stops here leaves an image that needs no replay.
        let device = Arc::new(image.snapshot());
        let writing = MountOptions::new().read_only(false);
        let recovered = writing.probe_shared(device.clone()).unwrap().recover().unwrap();
        assert!(recovered.replayed().unwrap().transactions > 0);
        drop(recovered);
        let recovered = writing.probe_shared(device.clone()).unwrap().recover().unwrap();
        assert!(recovered.replayed().is_none());
        let fs = recovered.mount().unwrap();
        assert_eq!(fs.recovered_orphans().unwrap().deleted, u64::from(FILES / 4));
        assert_whole(&fs);
        fs.unmount().unwrap();
        assert_clean(&device)
    };
    require!(run());
}

#[test]
fn opening_that_is_stopped_anywhere_loses_nothing() {
    let run = || {
        for options in [&["-t", "ext4", "-O", "^orphan_file"][..], &["-t", "ext4", "-O", "mmp"]] {
            let image = crashed(options)?;
            let mut told = 0;
            for limit in 0.. {
                let device = Arc::new(image.snapshot());
                let seen = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
                let list = Arc::clone(&seen);
                let clock = Arc::new(FixedClock::at(1_700_000_100, 0));
                let options = MountOptions::new().read_only(false).background(false).clock(clock);
                let watched = options.clone().progress(move |at: MountProgress| {
                    assert!(at.done <= at.total, "{at:?}");
                    list.lock().push(at);
                    match list.lock().len() > limit {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                });
                let opened = watched.open_shared(device.clone());
                told = seen.lock().len();
                match opened {
                    Ok(fs) => {
                        let seen: Vec<_> = seen.lock().iter().map(|at| at.stage).collect();
                        assert!(seen.contains(&MountStage::Replaying), "{seen:?}");
                        assert!(seen.contains(&MountStage::Orphans), "{seen:?}");
                        let has_mmp = fs.features().names().iter().any(|name| name == "mmp");
                        assert_eq!(seen.contains(&MountStage::Waiting), has_mmp);
                        fs.unmount().unwrap();
                        break;
                    }
                    Err(error) => {
                        assert_eq!(error.code(), ErrorCode::OperationCancelled, "{error}")
                    }
                }
                let fs = options.open_shared(device.clone()).unwrap();
                assert_whole(&fs);
                fs.unmount().unwrap();
                if limit % 4 == 0 {
                    assert_clean(&device)?;
                }
            }
            assert!(told > 5, "{options:?}: told {told} times");
        }
        Ok::<(), String>(())
    };
    require!(run());
}

fn assert_clean(device: &MemoryDevice) -> Result<(), String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    image::save(device, &path);
    e2fsck(&path)?.assert_clean();
    Ok(())
}
