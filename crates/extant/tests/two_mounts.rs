//! Handles of one mount given to another: a number stands for another file there, so they are refused.

use std::sync::Arc;

use extant::ring::Op;
use extant::{ErrorCode, Fs, FsError, MountOptions, NewInode, RenameFlags};
use extant_block::MemoryDevice;
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

const EXDEV: i32 = 18;

fn mount() -> Result<(Arc<MemoryDevice>, Fs), String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "16M", &["-t", "ext4"])?;
    let device = Arc::new(image::load(&path));
    let fs = MountOptions::new().read_only(false).open_shared(device.clone()).unwrap();
    Ok((device, fs))
}

fn is_other(error: &FsError) -> bool {
    error.code() == ErrorCode::OtherFileSystem && error.errno() == EXDEV
}

#[test]
fn names_and_rings_stay_within_one_mount() {
    let run = || {
        let ((here_device, here), (there_device, there)) = (mount()?, mount()?);
        for (fs, text) in [(&here, "here"), (&there, "there")] {
            fs.root().unwrap().mkdir("dir", &NewInode::root(0o755)).unwrap();
            fs.write("/dir/file", text).unwrap();
        }
        let dir = |fs: &Fs| fs.resolve("/dir").unwrap();
        let file = |fs: &Fs| fs.resolve("/dir/file").unwrap();
        let error = dir(&here).link("link", &file(&there)).unwrap_err();
        assert!(is_other(&error), "{error}");
        let flags = RenameFlags::empty();
        let error = dir(&here).rename("file", &dir(&there), "moved", flags).unwrap_err();
        assert!(is_other(&error), "{error}");
        let ring = here.ring(4).unwrap();
        let append = || Op::Append { bytes: b" and more".to_vec() };
        let done = ring.submit(7, &file(&there), append()).unwrap().expect("at once");
        assert!(is_other(&done.result.unwrap_err()));
        assert_eq!((done.tag, &done.buffer[..]), (7, &b" and more"[..]), "the buffer comes back");
        drop(ring.submit(8, &file(&here), append()).unwrap());
        drop(ring);
        // A copy goes across.
        let copied = file(&here).copy_range(0, &file(&there), 5, 4).unwrap();
        assert_eq!(copied, 4);
        for (device, fs, text) in
            [(here_device, here, "here and more"), (there_device, there, "therehere")]
        {
            let names: Vec<_> =
                fs.read_dir("/dir").unwrap().map(|entry| entry.unwrap().name().to_vec()).collect();
            assert_eq!(names, [b"file"]);
            assert_eq!(fs.read_to_string("/dir/file").unwrap(), text);
            fs.unmount().unwrap();
            let dir = tempdir().map_err(|error| error.to_string())?;
            let path = dir.path().join("image");
            image::save(&device, &path);
            let report = e2fsck(&path)?;
            assert!(report.is_clean(), "{}", report.text);
        }
        Ok::<(), String>(())
    };
    require!(run());
}
