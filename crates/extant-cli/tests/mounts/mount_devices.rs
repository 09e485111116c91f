//! Mounts and what is below them: when everything is stored, and what block devices are told.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{OFlags, XattrFlags};

use crate::support;
use support::kernel::{self, Loop};
use support::mounts::{Mounts, is_alive, mounts, until};
use support::{text, tool};

/// A loop device over the image of `mounts`, and a mount of it.
fn mounted_device(mounts: &Mounts, options: &[&str]) -> Option<Loop> {
    let device = Loop::over(&mounts.path("a.img"))?;
    let args = [&["mount"], options, &["--log", "log", &device.0, "m"]].concat();
    mounts.place.run(&args).succeeds();
    Some(device)
}

fn noise(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed).wrapping_mul(at ^ seed) >> 5) as u8).collect()
}

/// The image as it is at this moment, which is what a power cut would leave, and what it says of `name`.
#[track_caller]
fn after_a_cut(mounts: &Mounts, name: &str) -> Vec<u8> {
    fs::copy(mounts.path("a.img"), mounts.path("cut.img")).unwrap();
    let read = mounts.place.run(&["cat", &format!("cut.img:/{name}")]).succeeds();
    read.output.stdout
}

fn set_control(mounts: &Mounts, order: &str) {
    let none = XattrFlags::empty();
    rustix::fs::setxattr(mounts.path("m"), "extant.control", order.as_bytes(), none).unwrap();
}

/// Writes pieces here and there into a file that stays open, has everything stored by `store`, and cuts
/// the power.
#[track_caller]
fn nothing_is_lost(mounts: &Mounts, rounds: usize, store: impl Fn()) {
    let (mut wanted, name) = (noise(3 << 20, 1), "open");
    let file = File::create(mounts.inside(name)).unwrap();
    file.write_all_at(&wanted, 0).unwrap();
    for round in 0..rounds {
        for piece in 0..60 {
            let at = (piece * 7919 + round * 104_729) * 512 % (3 << 20) / 512 * 512;
            let bytes = noise(512, piece + round);
            wanted[at..at + 512].copy_from_slice(&bytes);
            file.write_all_at(&bytes, at as u64).unwrap();
        }
        let closed = noise(20_000 + round, round);
        fs::write(mounts.inside("closed"), &closed).unwrap();
        store();
        let stored = after_a_cut(mounts, name);
        assert!(stored == wanted, "round {round}: {} bytes", stored.len());
        assert!(after_a_cut(mounts, "closed") == closed, "round {round}");
    }
    kernel_replays(mounts);
}

/// The kernel's tools find nothing wrong with what the cut left.
#[track_caller]
fn kernel_replays(mounts: &Mounts) {
    let Some(check) = tool("e2fsck", &["-fy", "cut.img"], mounts.place.0.path()) else { return };
    assert!(matches!(check.status.code(), Some(0 | 1)), "{}", text(&check));
    kernel::clean(&mounts.place, "cut.img");
}

#[test]
fn the_order_to_sync_does_not_overtake_what_programs_have_written() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    nothing_is_lost(&mounts, 8, || set_control(&mounts, "sync"));
    // As documented since it exists.
    nothing_is_lost(&mounts, 4, || {
        rustix::fs::syncfs(File::open(mounts.path("m")).unwrap()).unwrap();
        set_control(&mounts, "sync");
    });
    mounts.umount();
    // Without the process that keeps the mount, and with little to spare.
    mounts.mount(&["--threads", "2"]).succeeds();
    support::mounts::signal(mounts.processes().0, rustix::process::Signal::KILL);
    nothing_is_lost(&mounts, 3, || set_control(&mounts, "sync"));
    mounts.umount();
}

#[test]
fn a_freeze_has_everything_that_was_written_before() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let wanted = noise(2 << 20, 9);
    let file = File::create(mounts.inside("open")).unwrap();
    file.write_all_at(&wanted, 0).unwrap();
    assert_eq!(mounts.asked("extant.order.freeze"), b"done");
    assert!(after_a_cut(&mounts, "open") == wanted);
    assert_eq!(mounts.asked("extant.order.thaw"), b"done");
    drop(file);
    mounts.umount();
}

#[test]
fn syncfs_makes_everything_durable_on_a_block_device() {
    let Some(mounts) = mounts() else { return };
    let Some(device) = mounted_device(&mounts, &[]) else { return };
    let line = mounts.listed().unwrap();
    assert!(line.contains(" - fuseblk.extant ") && line.contains(&device.0), "{line}");
    nothing_is_lost(&mounts, 8, || {
        rustix::fs::syncfs(File::open(mounts.path("m")).unwrap()).unwrap();
    });
    let stats = mounts.place.run(&["stats", "--json", "m"]).succeeds().json();
    assert!(stats["requests"]["ops"]["syncfs"]["count"].as_u64() >= Some(8), "{stats}");
    mounts.place.run(&["umount", "m"]).succeeds();
    kernel::clean(&mounts.place, "a.img");
    drop(device);
}

/// Opens a block device as mkfs and mount(2) do: nobody else may have it.
fn is_free(device: &str) -> bool {
    let flags = OFlags::EXCL.bits().cast_signed();
    File::options().read(true).write(true).custom_flags(flags).open(device).is_ok()
}

#[test]
fn umount_of_a_block_device_ends_when_it_is_free_and_clean() {
    let Some(mounts) = mounts() else { return };
    let Some(device) = mounted_device(&mounts, &[]) else { return };
    for round in 0..6 {
        assert!(!is_free(&device.0), "it is mounted");
        let (keeper, _) = mounts.processes();
        let wanted = noise(5 << 20, round);
        fs::write(mounts.inside("big"), &wanted).unwrap();
        // Removed: nothing of it is to be left.
        let gone = File::create(mounts.inside("gone")).unwrap();
        gone.write_all_at(&wanted, 0).unwrap();
        fs::remove_file(mounts.inside("gone")).unwrap();
        drop(gone);
        // Busy while another test's new process still has our descriptors.
        let none = rustix::mount::UnmountFlags::empty();
        until("it is unmounted", || rustix::mount::unmount(mounts.path("m"), none).is_ok());
        // Not after some time: now.
        assert!(is_free(&device.0), "round {round}");
        std::io::copy(
            &mut File::open(&device.0).unwrap(),
            &mut File::create(mounts.path("copy.img")).unwrap(),
        )
        .unwrap();
        kernel::clean(&mounts.place, "copy.img");
        let read = mounts.place.run(&["cat", "copy.img:/big"]).succeeds();
        assert!(read.output.stdout == wanted, "round {round}");
        until("the keeper ends", || !is_alive(keeper));
        mounts.place.run(&["mount", "--log", "log", &device.0, "m"]).succeeds();
    }
    mounts.place.run(&["umount", "m"]).succeeds();
    assert!(mounts.log().contains("everything is written"), "{}", mounts.log());
    kernel::clean(&mounts.place, "a.img");
}

#[test]
fn a_block_device_that_somebody_has_is_refused_and_can_be_mounted_in_the_other_way() {
    let Some(mounts) = mounts() else { return };
    let Some(device) = mounted_device(&mounts, &["-o", "nofuseblk"]) else { return };
    assert!(mounts.listed().unwrap().contains(" - fuse.extant "));
    fs::create_dir(mounts.path("n")).unwrap();
    let again = mounts.place.run(&["mount", "-f", "-o", "fuseblk", &device.0, "n"]);
    again.ends_with(7).complains(&["in use"]);
    mounts.place.run(&["umount", "m"]).succeeds();
    mounts.place.run(&["mount", &device.0, "m"]).succeeds();
    for how in ["nofuseblk", "fuseblk"] {
        let again = mounts.place.run(&["mount", "-f", "-o", how, &device.0, "n"]);
        again.ends_with(7).complains(&["use"]).hints("extant umount");
    }
    mounts.place.run(&["umount", "m"]).succeeds();
    let asked = mounts.place.run(&["mount", "-o", "fuseblk", "a.img", "m"]);
    asked.ends_with(5).complains(&["fuseblk", "a.img", "losetup"]);
    // What is no file system is said as ever, and the device is free again.
    fs::write(&device.0, vec![0; 1 << 16]).unwrap();
    mounts.place.run(&["mount", &device.0, "m"]).ends_with(4).complains(&[&device.0, "magic"]);
    assert!(is_free(&device.0) && mounts.listed().is_none());
}

#[test]
fn a_label_is_on_the_device_when_the_call_returns_and_flags_change_times() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let program = "import fcntl, os, sys, time\n\
                   root = os.open(sys.argv[1], os.O_RDONLY)\n\
                   fcntl.ioctl(root, 0x41009432, b'fresh' + bytes(251))\n\
                   with open(sys.argv[2], 'rb') as image:\n\
                   \timage.seek(1024 + 120)\n\
                   \tassert image.read(6) == b'fresh\\0'\n\
                   before = os.fstat(root).st_ctime_ns\n\
                   time.sleep(0.02)\n\
                   fcntl.ioctl(root, 0x40086602, (0x80080).to_bytes(8, 'little'))\n\
                   assert os.fstat(root).st_ctime_ns > before";
    let mut command = std::process::Command::new("python3");
    let ran =
        command.args(["-c", program]).arg(mounts.path("m")).arg(mounts.path("a.img")).output();
    match ran {
        Ok(ran) => assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr)),
        Err(_) => println!("skipped: needs python3"),
    }
    mounts.umount();
}
