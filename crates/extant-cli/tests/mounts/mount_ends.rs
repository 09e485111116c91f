//! Mounts that somebody else holds, that are full, or that have failed: how they end, and who hears of it.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use extant_sync::{Clock as _, SystemClock};
use rustix::process::Signal;

use crate::support;
use support::kernel::{self, Loop};
use support::mounts::{Mounts, is_alive, mounts, signal, until};
use support::tool;

/// A process in a mount name space of its own, which has a copy of the mount.
struct Elsewhere(Child);

impl Elsewhere {
    fn with(mounts: &Mounts) -> Option<Elsewhere> {
        let mut unshare = Command::new("unshare");
        // Not a copy of the mounts of others, whose end would wait for it.
        let line = format!("{}; exec sleep 300", support::mounts::let_others_go(&mounts.path("m")));
        unshare.args(["-m", "--propagation", "private", "sh", "-c", &line]).stdin(Stdio::null());
        let Ok(child) = unshare.spawn() else {
            println!("skipped: unshare is not installed");
            return None;
        };
        let comm = format!("/proc/{}/comm", child.id());
        until("it has its own mounts", || {
            fs::read_to_string(&comm).is_ok_and(|name| name.starts_with("sleep"))
        });
        Some(Elsewhere(child))
    }

    /// What a program there finds in the mount.
    fn error_there(&self, mounts: &Mounts) -> String {
        let pid = self.0.id().to_string();
        let mut enter = Command::new("nsenter");
        enter.args(["-t", &pid, "-m", "timeout", "-s", "KILL", "20", "ls"]).arg(mounts.path("m"));
        let output = enter.env("LC_ALL", "C").output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn umount_says_who_else_has_it_and_a_signal_ends_it_for_them() {
    let Some(mounts) = mounts() else { return };
    for by_umount in [true, false] {
        mounts.mount(&[]).succeeds();
        let Some(elsewhere) = Elsewhere::with(&mounts) else { return mounts.umount() };
        let (keeper, server) = mounts.processes();
        fs::write(mounts.inside("kept"), vec![7; 300_000]).unwrap();
        if by_umount {
            let umount = mounts.place.run(&["umount", "m"]).ends_with(7);
            let who = format!("(process {})", elsewhere.0.id());
            umount
                .complains(&["everything is stored", "another mount name space", &who])
                .hints(&format!("kill -TERM {server}"));
            // It is as said.
            fs::copy(mounts.path("a.img"), mounts.path("cut.img")).unwrap();
            kernel::clean(&mounts.place, "cut.img");
            let read = mounts.place.run(&["cat", "cut.img:/kept"]).succeeds();
            assert!(read.output.stdout == vec![7; 300_000]);
            signal(server, Signal::TERM);
        } else {
            signal(keeper, Signal::TERM);
        }
        until("it ends", || !is_alive(keeper) && !is_alive(server));
        mounts.clean();
        let read = mounts.place.run(&["cat", "a.img:/kept"]).succeeds();
        assert!(read.output.stdout == vec![7; 300_000]);
        let said = elsewhere.error_there(&mounts);
        assert!(said.contains("not connected"), "{said}");
        assert!(
            mounts.listed().is_none() && mounts.log().contains("name space"),
            "{}",
            mounts.log()
        );
    }
}

fn bind(mounts: &Mounts) -> bool {
    fs::create_dir_all(mounts.path("b")).unwrap();
    let mut bind = Command::new("mount");
    let bound = bind.arg("--bind").arg(mounts.path("m")).arg(mounts.path("b")).status();
    bound.is_ok_and(|status| status.success())
}

#[test]
fn only_the_last_of_several_mounts_is_waited_for() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let (keeper, server) = mounts.processes();
    if !bind(&mounts) {
        return println!("skipped: cannot bind");
    }
    fs::write(mounts.inside("x"), "one").unwrap();
    mounts.place.run(&["umount", "b"]).succeeds().complains(&["note", "still mounted on"]);
    assert!(is_alive(server) && mounts.listed().is_some());
    assert!(bind(&mounts));
    mounts.place.run(&["umount", "m"]).succeeds().complains(&["note", "still mounted on"]);
    assert_eq!(fs::read(mounts.path("b/x")).unwrap(), b"one");
    mounts.place.run(&["umount", "b"]).succeeds();
    assert!(!is_alive(server), "the last one waits");
    until("the keeper ends", || !is_alive(keeper));
    mounts.clean();
}

#[test]
fn a_signal_ends_a_mount_that_is_also_bound_elsewhere() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let (keeper, _) = mounts.processes();
    if !bind(&mounts) {
        return println!("skipped: cannot bind");
    }
    // Open, and still in the kernel; and one that is gone but for that.
    let mut file = File::create(mounts.path("b/open")).unwrap();
    file.write_all(&[5; 100_000]).unwrap();
    let gone = File::create(mounts.path("b/gone")).unwrap();
    fs::remove_file(mounts.path("b/gone")).unwrap();
    signal(keeper, Signal::TERM);
    until("the keeper ends", || !is_alive(keeper));
    mounts.clean();
    let read = mounts.place.run(&["cat", "a.img:/open"]).succeeds();
    assert!(read.output.stdout == [5; 100_000]);
    let error = fs::symlink_metadata(mounts.path("b/none")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    assert!(mounts.log().contains("mounted on"), "{}", mounts.log());
    drop((file, gone));
}

/// Writes until there is no room, and hears of it.
fn fill(mounts: &Mounts) {
    let mut file = File::create(mounts.inside("full")).unwrap();
    let piece = vec![1; 1 << 20];
    let written = (0..80).try_for_each(|_| file.write_all(&piece));
    let told = written.and_then(|()| file.sync_all()).unwrap_err();
    assert_eq!(told.kind(), std::io::ErrorKind::StorageFull);
}

#[test]
fn what_a_program_was_told_of_does_not_keep_a_mount_from_ending() {
    let Some(mounts) = mounts() else { return };
    for _ in 0..3 {
        mounts.mount(&[]).succeeds();
        fill(&mounts);
        mounts.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
        mounts.clean();
    }
}

#[test]
fn a_stopped_journal_is_told_to_who_unmounts() {
    let Some(mounts) = mounts() else { return };
    let full = mounts.path("full");
    fs::create_dir(&full).unwrap();
    let mut tmpfs = Command::new("mount");
    tmpfs.args(["-t", "tmpfs", "-o", "size=3M", "none"]).arg(&full);
    if !tmpfs.status().is_ok_and(|status| status.success()) {
        return println!("skipped: no tmpfs");
    }
    let image = mounts.path("a.img");
    let copy = ["--sparse=always", image.to_str().unwrap(), "full/a.img"];
    assert!(tool("cp", &copy, mounts.place.0.path()).unwrap().status.success());
    let Some(device) = Loop::over(&full.join("a.img")) else { return };
    for how in ["fuseblk", "nofuseblk"] {
        mounts.place.run(&["mount", "-o", how, "--log", "log", &device.0, "m"]).succeeds();
        let noise: Vec<u8> = (0..6 << 20).map(|at: u32| (at.wrapping_mul(at) >> 7) as u8).collect();
        for name in 0..6 {
            // What becomes of it is not the question.
            let _ = fs::write(mounts.inside(&format!("big{name}")), &noise);
            let _ = File::open(mounts.path("m")).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?));
        }
        let (keeper, _) = mounts.processes();
        let umount = mounts.place.run(&["umount", "--timeout", "60", "m"]).ends_with(8);
        umount.complains(&["m is unmounted"]).hints("the next mount");
        until("the keeper ends", || !is_alive(keeper));
        assert!(mounts.listed().is_none());
    }
    drop(device);
    let _ = Command::new("umount").arg(&full).status();
}

/// Blocks that a file takes on the host, in bytes.
fn stored(mounts: &Mounts) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(mounts.path("a.img")).unwrap().blocks() * 512
}

#[test]
fn what_is_freed_is_given_back_by_a_block_device() {
    let Some(mounts) = mounts() else { return };
    let noise: Vec<u8> = (0..12 << 20).map(|at: u32| (at.wrapping_mul(at) >> 7) as u8).collect();
    for (words, by_itself) in
        [("discard", true), ("nodiscard", false), ("nofuseblk,discard", true), ("nofuseblk", false)]
    {
        let Some(device) = Loop::over(&mounts.path("a.img")) else { return };
        mounts.place.run(&["mount", "-o", words, "--log", "log", &device.0, "m"]).succeeds();
        let sync = || {
            rustix::fs::syncfs(File::open(mounts.path("m")).unwrap()).unwrap();
            let none = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(mounts.path("m"), "extant.control", b"sync", none).unwrap();
        };
        fs::write(mounts.inside("big"), &noise).unwrap();
        sync();
        let before = stored(&mounts);
        fs::remove_file(mounts.inside("big")).unwrap();
        sync();
        let freed = |now: u64| before.saturating_sub(now) >= 11 << 20;
        // Without fuseblk, the kernel tells of the last close when it likes, and the blocks are the file's until then.
        match by_itself {
            true => until(words, || {
                sync();
                freed(stored(&mounts))
            }),
            false => assert!(!freed(stored(&mounts)), "{words}"),
        }
        until(words, || {
            let Some(trim) = tool("fstrim", &["-v", "m"], mounts.place.0.path()) else {
                return true;
            };
            assert!(trim.status.success(), "{}", String::from_utf8_lossy(&trim.stderr));
            sync();
            freed(stored(&mounts))
        });
        mounts.place.run(&["umount", "m"]).succeeds();
        kernel::clean(&mounts.place, "a.img");
        drop(device);
        extant_sync::Clock::sleep(&extant_sync::SystemClock, Duration::from_millis(10));
    }
}

/// Processes that write until they are killed or get an error that is not of a full disk.
struct Writers(Vec<Child>);

impl Writers {
    /// Three that write more than the image has room for, each the same places of its file again and again.
    fn in_mount(mounts: &Mounts) -> Writers {
        let writer = |number: u32| {
            let write = "dd if=/dev/zero of=\"$0\" bs=64k count=300 conv=notrunc";
            let line = format!("while test -d \"$1\"; do {write}; done");
            let mut shell = Command::new("sh");
            shell.args(["-c", &line]).arg(mounts.inside(&format!("f{number}")));
            shell.arg(mounts.path("m")).stdin(Stdio::null()).stderr(Stdio::null());
            shell.spawn().unwrap()
        };
        Writers((0..3).map(writer).collect())
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|writer| drop(writer.kill()));
    }
}

/// Returns whether a thread of a process that is stopped waits in the kernel for what others of its threads would do.
fn waits_in_the_kernel(process: i32) -> bool {
    let waits = || {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let states = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        states.filter(|stat| stat.contains(") D ")).count()
    };
    (0..5).all(|_| {
        SystemClock.sleep(Duration::from_millis(10));
        waits() > 0
    })
}

#[test]
fn a_server_that_is_killed_while_the_kernel_waits_for_it_leaves_nobody_waiting() {
    for options in [&[][..], &["-o", "io_uring"]] {
        let Some(mounts) = mounts() else { return };
        File::create(mounts.path("a.img")).unwrap().set_len(48 << 20).unwrap();
        let make = tool("mke2fs", &["-q", "-F", "-t", "ext4", "a.img"], mounts.place.0.path());
        let Some(made) = make else { return };
        assert!(made.status.success());
        if !mounts.mount(options).output.status.success() {
            println!("skipped: {options:?}: the kernel offers no rings");
            continue;
        }
        let (keeper, server) = mounts.processes();
        let mut writers = Writers::in_mount(&mounts);
        // One of its threads has the kernel hand over what it holds, which others would take.
        let is_found = (0..1000).any(|_| {
            SystemClock.sleep(Duration::from_millis(5));
            signal(server, Signal::STOP);
            let waits = waits_in_the_kernel(server);
            if !waits {
                signal(server, Signal::CONT);
            }
            waits
        });
        if !is_found {
            println!("skipped: {options:?}: the kernel was never waited for");
            mounts.umount();
            continue;
        }
        signal(server, Signal::KILL);
        until("the keeper ends", || !is_alive(keeper));
        for writer in &mut writers.0 {
            let _ = writer.kill();
            until("a writer ends", || writer.try_wait().unwrap().is_some());
        }
        assert!(mounts.listed().is_none(), "{}", mounts.log());
        let log = mounts.log();
        assert!(
            log.contains("killed while the kernel waited") && log.contains("signal 9"),
            "{log}"
        );
        // What is there is as after a cut.
        mounts.mount(&[]).succeeds();
        mounts.umount();
        mounts.clean();
    }
}
