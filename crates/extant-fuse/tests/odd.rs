//! What images may hold that programs see rarely: long targets of links, directories that are damaged in part.

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Heard, obstacle, with_mount};
use extant::MountOptions;
use extant_fuse::Settings;
use extant_testkit::oracle::{LoopMount, debugfs, mke2fs};
use extant_testkit::{require, skip};

/// Lengths of targets as they are in the image, on blocks of 4096 bytes.
const TARGETS: [usize; 6] = [1, 59, 60, 4000, 4095, 4096];

fn long_targets(settings: &Settings) {
    let dir = extant_testkit::tempdir().unwrap();
    let image = dir.path().join("image");
    require!(mke2fs(&image, "16M", &["-t", "ext4", "-O", "^metadata_csum", "-b", "4096"]));
    let mut commands = String::new();
    for len in TARGETS {
        let target = dir.path().join(format!("target{len}"));
        fs::write(&target, vec![b'x'; len]).unwrap();
        if len < 60 {
            commands += &format!("symlink l{len} {}\n", "x".repeat(len));
        } else {
            commands += &format!("write {} l{len}\nsif l{len} mode 0120777\n", target.display());
        }
    }
    // Without a key a target is shown encoded, and takes less room than it has.
    commands += &format!("write {} encrypted\n", dir.path().join("target4096").display());
    commands += "sif encrypted mode 0120777\nsif encrypted flags 0x80800\n";
    require!(debugfs(&image, true, &commands));
    // What the kernel shows of them.
    let kernel: Vec<_> = match LoopMount::new(&image, rustix::mount::MountFlags::RDONLY, "noload") {
        Ok(mount) => TARGETS
            .iter()
            .map(|len| fs::read_link(mount.path().join(format!("l{len}"))).unwrap())
            .collect(),
        Err(reason) => {
            println!("not compared with the kernel's ext4: {reason}");
            TARGETS.iter().map(|len| "x".repeat((*len).min(4095)).into()).collect()
        }
    };
    let device = Arc::new(extant_testkit::image::load(&image));
    let fs = MountOptions::new().read_only(false).open_shared(device).unwrap();
    let (heard, at) = (Heard::new(), dir.path().join("mount"));
    fs::create_dir(&at).unwrap();
    let (served, ()) = with_mount(fs, &at, settings, &heard, |at| {
        // More often than there are threads.
        for _ in 0..20 {
            for (len, kernel) in TARGETS.iter().zip(&kernel) {
                let shown = fs::read_link(at.join(format!("l{len}"))).unwrap();
                assert_eq!(shown.as_os_str().len(), kernel.as_os_str().len(), "{len}");
                assert_eq!(&shown, kernel);
            }
            let encrypted = fs::read_link(at.join("encrypted"));
            assert!(encrypted.is_err() || encrypted.unwrap().as_os_str().as_bytes().len() < 4096);
        }
        let through = fs::metadata(at.join("l4096")).unwrap_err();
        assert_eq!(through.raw_os_error(), Some(36), "ENAMETOOLONG");
        fs::write(at.join("new"), "goes on").unwrap();
    });
    served.unwrap();
    assert_eq!(heard.bugs.load(Ordering::SeqCst), 0);
    assert!(!heard.says("did not take the answer"), "{:?}", heard.lines.lock());
}

#[test]
fn a_target_of_any_length_is_shown_as_the_kernel_shows_it() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    long_targets(&Settings::default());
    match common::over_rings() {
        Ok(settings) => long_targets(&settings),
        Err(obstacle) => println!("not over rings: {obstacle}"),
    }
}
