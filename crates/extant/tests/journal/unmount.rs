//! The end of a mount: what handles that outlive it can do, and what it stores of changes under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant::{ErrorCode, Fs, FsError, MountOptions, NewInode, XattrMode};
use extant_block::{BlockDevice as _, MemoryDevice, SharedDevice};
use extant_sync::threads;
use extant_testkit::oracle::{dumpe2fs, e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

fn fresh(options: &[&str]) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "32M", &[&["-t", "ext4"], options].concat())?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: &Arc<MemoryDevice>) -> Fs {
    let device = Arc::clone(device) as SharedDevice;
    MountOptions::new().read_only(false).open_shared(device).unwrap()
}

/// Free blocks and inodes of an image that e2fsck finds clean.
fn free(device: &MemoryDevice) -> Result<(String, String), String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    image::save(device, &path);
    let report = e2fsck(&path)?;
    assert!(report.is_clean(), "{}", report.text);
    let says = dumpe2fs(&path)?;
    assert!(!says["Filesystem features"].contains("orphan_present"), "{says:?}");
    Ok((says["Free blocks"].clone(), says["Free inodes"].clone()))
}

#[test]
fn an_image_has_no_orphans_after_a_mount_that_ends_with_files_in_use() {
    let run = || {
        for options in
            [&["-O", "^orphan_file"][..], &["-O", "orphan_file"], &["-O", "^has_journal"]]
        {
            let device = fresh(options)?;
            mount(&device).unmount().unwrap();
            let before = free(&device)?;
            let fs = mount(&device);
            let root = fs.root().unwrap();
            let new = NewInode::root(0o644);
            // In the page cache alone; on the device, in several pieces; a directory; never named.
            let written = root.create("written", &new).unwrap();
            written.write_at(&[1; 300_000], 0).unwrap();
            let stored = root.create("stored", &new).unwrap();
            for piece in 0..50 {
                stored.write_at(&[2; 5000], piece * 100_000).unwrap();
            }
            stored.set_xattr("user.large", [3; 900], XattrMode::Any).unwrap();
            stored.sync().unwrap();
            let directory = root.mkdir("directory", &new).unwrap();
            let nameless = root.tmpfile(&new).unwrap();
            nameless.write_at(b"nameless", 0).unwrap();
            root.unlink("written").unwrap();
            root.unlink("stored").unwrap();
            root.rmdir("directory").unwrap();
            fs.unmount().unwrap();
            assert_eq!(free(&device)?, before, "{options:?}");
            // The handles are there, and of no use.
            for file in [&written, &stored, &nameless] {
                let wrote = file.write_at(b"more", 0);
                assert!(matches!(wrote, Err(FsError::ReadOnly)), "{wrote:?}");
                let _ = file.read_at(&mut [0; 5000], 100_000);
                let _ = file.sync();
            }
            assert!(directory.create("below", &new).is_err());
            drop((written, stored, nameless, directory, root));
            assert_eq!(free(&device)?, before, "{options:?}");
        }
        Ok::<(), String>(())
    };
    require!(run());
}

#[test]
fn no_change_is_taken_by_a_mount_that_has_ended() {
    let run = || {
        let device = fresh(&[])?;
        let fs = mount(&device);
        let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
        file.write_at(&[1; 8192], 0).unwrap();
        fs.clone().unmount().unwrap();
        let refused = |result: Result<(), FsError>| {
            assert_eq!(result.map_err(|error| error.code()), Err(ErrorCode::ReadOnly));
        };
        // Over what is cached, behind it, in a hole: none of them needs the journal at once.
        refused(file.write_at(&[2; 100], 0).map(drop));
        refused(file.write_at(&[2; 100], 1 << 20).map(drop));
        refused(file.append(b"2").map(drop));
        refused(file.truncate(1));
        let attempt = file.try_write_at(&[2; 100], 0);
        assert!(matches!(attempt, Ok(Err(_)) | Err(_)), "{attempt:?}");
        refused(fs.write("/other", "2"));
        refused(fs.root().unwrap().unlink("file"));
        let mut bytes = vec![0; 8192];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [1; 8192]);
        let again = mount(&device);
        assert_eq!(again.read("/file").unwrap(), [1; 8192]);
        again.unmount().unwrap();
        Ok::<(), String>(())
    };
    require!(run());
}

#[test]
fn what_was_written_beside_the_end_of_a_mount_is_stored_or_was_refused() {
    let run = || {
        for _ in 0..20 {
            let device = fresh(&[])?;
            let fs = mount(&device);
            let acknowledged: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
            let files: Vec<_> = (0..3)
                .map(|n| {
                    fs.root().unwrap().create(format!("f{n}"), &NewInode::root(0o644)).unwrap()
                })
                .collect();
            threads::scope(|scope| {
                for (file, acknowledged) in files.iter().zip(&acknowledged) {
                    let write = move || {
                        while file.append(b"12345678").is_ok() {
                            acknowledged.fetch_add(8, Ordering::Relaxed);
                        }
                    };
                    scope.spawn("writer", write).unwrap();
                }
                while acknowledged.iter().any(|count| count.load(Ordering::Relaxed) < 800) {
                    std::hint::spin_loop();
                }
                fs.clone().unmount().unwrap();
            })
            .unwrap();
            drop(files);
            free(&device)?;
            let again = mount(&device);
            for (n, acknowledged) in acknowledged.iter().enumerate() {
                let stored = again.metadata(format!("/f{n}")).unwrap().size;
                assert_eq!(stored, acknowledged.load(Ordering::Relaxed), "f{n}");
            }
            again.unmount().unwrap();
        }
        Ok::<(), String>(())
    };
    require!(run());
}

#[test]
fn a_mount_that_has_ended_is_not_ended_again_below_another_mount() {
    let run = || {
        let device = fresh(&[])?;
        let fs = mount(&device);
        fs.clone().unmount().unwrap();
        let again = mount(&device);
        again.write("/kept", "kept").unwrap();
        again.sync().unwrap();
        let bytes = || {
            let mut bytes = vec![0; 32 << 20];
            device.read_at(0, &mut bytes).unwrap();
            bytes
        };
        let before = bytes();
        fs.unmount().unwrap();
        let untouched = bytes() == before;
        // A power cut. Of an image that is marked clean Linux wipes the journal, which `again` needs.
        let cut = Arc::new(device.snapshot());
        let after = mount(&cut);
        assert_eq!(after.read("/kept").unwrap(), b"kept");
        after.unmount().unwrap();
        free(&cut)?;
        assert!(untouched, "the second end wrote to the device");
        drop(again);
        Ok::<(), String>(())
    };
    require!(run());
}

#[test]
fn who_ends_a_mount_beside_another_waits_until_it_has_ended() {
    let run = || {
        for _ in 0..20 {
            let device = fresh(&[])?;
            let fs = mount(&device);
            fs.write("/file", [1; 300_000]).unwrap();
            threads::scope(|scope| {
                for _ in 0..4 {
                    let fs = fs.clone();
                    let end = || {
                        fs.unmount().unwrap();
                        free(&device)
                    };
                    scope.spawn("unmount", end).unwrap();
                }
            })
            .unwrap();
            drop(fs);
            let again = mount(&device);
            assert_eq!(again.read("/file").unwrap(), [1; 300_000]);
            again.unmount().unwrap();
        }
        Ok::<(), String>(())
    };
    require!(run());
}

#[test]
fn beside_a_freeze_a_mount_ends_whole_or_goes_on() {
    let run = || {
        let (mut ended, mut refused) = (0, 0);
        for _ in 0..30 {
            let device = fresh(&[])?;
            let fs = mount(&device);
            fs.write("/file", "1").unwrap();
            threads::scope(|scope| {
                let other = fs.clone();
                let freezes = move || {
                    loop {
                        match other.freeze() {
                            Ok(frozen) => frozen.thaw(),
                            Err(error) => return error.code(),
                        }
                        // Leaves the others a moment.
                        for _ in 0..20 {
                            other.read("/file").unwrap();
                        }
                    }
                };
                let freezes = scope.spawn("freeze", freezes).unwrap();
                loop {
                    match fs.clone().unmount() {
                        Ok(()) => break,
                        Err(error) => assert_eq!(error.code(), ErrorCode::Frozen),
                    }
                    refused += 1;
                    // With nothing done: it goes on.
                    fs.write("/file", "2").unwrap();
                }
                ended += 1;
                // The freezes end by the end, and by nothing else.
                assert_eq!(freezes.join().unwrap(), ErrorCode::ReadOnly);
            })
            .unwrap();
        }
        println!("{ended} ends, {refused} refusals");
        Ok::<(), String>(())
    };
    require!(run());
}
