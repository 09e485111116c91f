//! What a look at an image says before it is opened, and what opening it says then.

use std::sync::Arc;

use extant::{FsError, MountOptions, NewInode, Probe};
use extant_block::{MemoryDevice, RecordingDevice, SharedDevice};
use extant_testkit::oracle::{debugfs, mke2fs};
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
            assert!(matches!(says, Err(FsError::JournalDeviceMissing { .. })), "{says:?}");
        }

        let mut half = vec![0; 8 << 20];
        extant_block::BlockDevice::read_at(&clean, 0, &mut half).unwrap();
        let looked = probe(MemoryDevice::from_bytes(&half));
        looked.check_read().unwrap();
        for says in [looked.check_write(), looked.open().map(drop)] {
            assert!(matches!(says, Err(FsError::CutShort { .. })), "{says:?}");
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
        assert!(matches!(nothing, FsError::NotExt { magic: Some(0), .. }), "{nothing}");
        let short = MountOptions::new().probe(MemoryDevice::new(1024)).unwrap_err();
        assert!(matches!(short, FsError::NotExt { magic: None, .. }), "{short}");
        Ok::<(), String>(())
    };
    require!(run());
}
