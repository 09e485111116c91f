//! How mounts begin and end.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::support;
use support::mounts::{is_alive, mounts, signal, until};
use support::{kernel, text, tool};

#[test]
fn a_mount_can_be_used_when_the_command_ends_and_the_image_when_umount_does() {
    let Some(mounts) = mounts() else { return };
    for round in 0..5 {
        mounts.mount(&[]).succeeds();
        fs::write(mounts.inside(&format!("file{round}")), vec![round; 300_000]).unwrap();
        mounts.umount();
        let read = mounts.place.run(&["cat", &format!("a.img:/file{round}")]).succeeds();
        assert!(read.output.stdout == vec![round; 300_000]);
    }
    assert!(mounts.log().contains("mounted for reading and writing"), "{}", mounts.log());
}

#[test]
fn the_list_of_mounts_shows_image_and_kind() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&["-o", "noatime,nosuid,noexec,allow_other"]).succeeds();
    let line = mounts.listed().unwrap();
    let image = mounts.path("a.img").canonicalize().unwrap();
    for word in ["noatime", "nosuid", "noexec", " - fuse.extant ", image.to_str().unwrap()] {
        assert!(line.contains(word), "{word}: {line}");
    }
    assert!(!line.contains("nodev"), "{line}");
    if let Some(found) = tool("findmnt", &["-n", "-o", "FSTYPE,SOURCE", "m"], mounts.place.0.path())
    {
        assert!(text(&found).starts_with("fuse.extant "), "{}", text(&found));
    }
    mounts.umount();
}

/// Nobody is told of success when the first call after it would fail.
#[test]
fn a_root_that_cannot_be_used_is_no_mount() {
    let Some(mounts) = mounts() else { return };
    let change = ["-w", "-R", "set_inode_field <2> mode 0100644", "a.img"];
    if tool("debugfs", &change, mounts.place.0.path()).is_none() {
        return;
    }
    for options in [&[][..], &["-r"]] {
        mounts.mount(options).ends_with(4).complains(&["root"]);
        assert_eq!(mounts.listed(), None, "{options:?}");
    }
}

#[test]
fn an_image_in_use_is_refused_with_who_and_where() {
    let Some(mounts) = mounts() else { return };
    fs::create_dir(mounts.path("n")).unwrap();
    mounts.mount(&[]).succeeds();
    let (_, server) = mounts.processes();
    for options in [&["-f", "a.img", "n"][..], &["-f", "-r", "a.img", "n"]] {
        let again = mounts.place.run(&[&["mount"], options].concat()).ends_with(7);
        again.complains(&["in use", &format!("process {server}")]).hints("extant umount");
    }
    mounts.place.run(&["touch", "a.img:/x"]).ends_with(7).complains(&["in use"]);
    mounts.umount();
    // Readers together, and no writer beside them.
    mounts.mount(&["-r"]).succeeds();
    mounts.place.run(&["mount", "-r", "a.img", "n"]).succeeds();
    mounts.place.run(&["touch", "a.img:/x"]).ends_with(7);
    fs::create_dir(mounts.path("o")).unwrap();
    mounts.place.run(&["mount", "a.img", "o"]).ends_with(7).complains(&["for reading"]);
    mounts.place.run(&["umount", "n", "m"]).succeeds();
    mounts.place.run(&["touch", "a.img:/x"]).succeeds();
}

#[test]
fn a_second_mount_of_an_image_shows_the_first() {
    let Some(mounts) = mounts() else { return };
    fs::create_dir(mounts.path("n")).unwrap();
    fs::create_dir(mounts.path("o")).unwrap();
    mounts.mount(&[]).succeeds();
    let (keeper, server) = mounts.processes();
    let second = mounts.place.run(&["mount", "a.img", "n"]).succeeds();
    second.complains(&["note", "mounted on", "already"]);
    mounts.place.run(&["mount", "-o", "ro,noexec", "a.img", "o"]).succeeds();
    fs::write(mounts.inside("x"), "one").unwrap();
    fs::write(mounts.path("n/x"), "two").unwrap();
    assert_eq!(fs::read(mounts.path("o/x")).unwrap(), b"two");
    let refused = fs::write(mounts.path("o/x"), "three").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    mounts.place.run(&["umount", "m"]).succeeds();
    mounts.place.run(&["umount", "o"]).succeeds();
    assert!(is_alive(server));
    mounts.place.run(&["umount", "n"]).succeeds();
    assert!(!is_alive(server));
    until("the keeper ends", || !is_alive(keeper));
    mounts.clean();
}

/// As with the kernel's own file systems: whoever said it twice does not have to unmount twice.
#[test]
fn a_second_mount_at_the_same_directory_is_refused() {
    let Some(mounts) = mounts() else { return };
    fs::create_dir(mounts.path("n")).unwrap();
    for first in [&[][..], &["-r"]] {
        mounts.mount(first).succeeds();
        fs::create_dir_all(mounts.inside("dir")).ok();
        for again in [&["a.img", "m"][..], &["-r", "a.img", "./m/"], &["-f", "a.img", "m"]] {
            let refused = mounts.place.run(&[&["mount"], again].concat()).ends_with(7);
            refused.complains(&["a.img is mounted on", "already"]).hints("extant umount");
        }
        mounts.place.run(&["umount", "m"]).succeeds();
        mounts.clean();
    }
    // Below itself, and where something else lies over it, is another place.
    mounts.mount(&[]).succeeds();
    mounts.place.run(&["mount", "a.img", "m/dir"]).succeeds().complains(&["note"]);
    mounts.place.run(&["umount", "m/dir"]).succeeds();
    mounts.place.run(&["umount", "m"]).succeeds();
    mounts.clean();
}

/// A name may lead to another file than when it was mounted: what is shown is what it leads to now.
#[test]
fn a_new_image_under_the_name_of_a_mounted_one_is_another() {
    let Some(mounts) = mounts() else { return };
    fs::create_dir(mounts.path("n")).unwrap();
    fs::create_dir(mounts.path("o")).unwrap();
    mounts.mount(&[]).succeeds();
    fs::write(mounts.inside("old"), "old").unwrap();
    fs::rename(mounts.path("a.img"), mounts.path("b.img")).unwrap();
    mounts.place.run(&["mkfs", "a.img", "16M"]).succeeds();
    mounts.place.run(&["mount", "a.img", "n"]).succeeds();
    fs::write(mounts.path("n/new"), "new").unwrap();
    mounts.place.run(&["mount", "a.img", "o"]).succeeds().complains(&["already"]);
    assert!(fs::metadata(mounts.path("o/new")).is_ok());
    assert!(fs::metadata(mounts.path("o/old")).is_err());
    mounts.place.run(&["umount", "o", "n", "m"]).succeeds();
    for (image, name) in [("a.img:/new", "new"), ("b.img:/old", "old")] {
        assert_eq!(mounts.place.run(&["cat", image]).succeeds().out(), name);
    }
}

/// What is mounted would lose its name, and with it all that is still written to it.
#[test]
fn what_is_mounted_is_not_replaced_also_if_told_to() {
    let Some(mounts) = mounts() else { return };
    fs::create_dir(mounts.path("tree")).unwrap();
    let build = &["build", "--force", "a.img", "--from", "tree"][..];
    let mkfs = &["mkfs", "--force", "a.img"][..];
    mounts.place.run(&["mkfs", "-q", "other.img", "16M"]).succeeds();
    let metadata = &["metadata", "-f", "other.img", "a.img"][..];
    let tar = &["tar", "-o", "a.img", "a.img"][..];
    mounts.mount(&[]).succeeds();
    for order in [build, mkfs, metadata] {
        mounts.place.run(order).ends_with(7).complains(&["in use", "process"]);
    }
    // An archive takes no image's place, mounted or not.
    mounts.place.run(tar).ends_with(7).complains(&["a.img is an ext4 file system"]);
    fs::write(mounts.inside("kept"), "kept").unwrap();
    mounts.umount();
    assert_eq!(mounts.place.run(&["cat", "a.img:/kept"]).succeeds().out(), "kept");
    mounts.place.run(&["overlay", "create", "over.qcow2", "--base", "a.img"]).succeeds();
    let commit = &["overlay", "commit", "over.qcow2"][..];
    mounts.place.run(commit).succeeds();
    let loops = tool("losetup", &["-f", "--show", "a.img"], mounts.place.0.path());
    let Some(made) = loops.filter(|ran| ran.status.success()) else { return };
    let device = text(&made).trim().to_owned();
    for order in [build, mkfs, commit] {
        mounts.place.run(order).ends_with(7).complains(&["in use", &device]);
    }
    tool("losetup", &["-d", &device], mounts.place.0.path());
    mounts.clean();
}

#[test]
fn who_unmounts_is_told_that_the_image_has_no_name_any_more() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    fs::write(mounts.inside("kept"), "kept").unwrap();
    let said = |ran: support::Ran| ran.succeeds().err();
    assert_eq!(said(mounts.place.run(&["umount", "m"])), "");
    mounts.mount(&[]).succeeds();
    fs::write(mounts.inside("lost"), "lost").unwrap();
    fs::copy(mounts.path("a.img"), mounts.path("new.img")).unwrap();
    fs::rename(mounts.path("new.img"), mounts.path("a.img")).unwrap();
    assert!(mounts.place.run(&["stats", "m"]).succeeds().out().contains(", image removed"));
    let note = said(mounts.place.run(&["umount", "m"]));
    assert!(note.contains("a.img was removed or replaced while it was mounted"), "{note}");
}

#[test]
fn what_is_write_protected_is_mounted_for_reading() {
    let Some(mounts) = mounts() else { return };
    fs::copy(mounts.path("a.img"), mounts.path("b.img")).unwrap();
    let protect = |flag: &str| {
        tool("chattr", &[flag, "b.img"], mounts.place.0.path())
            .is_some_and(|ran| ran.status.success())
    };
    let mut sources = Vec::new();
    let image = mounts.path("a.img");
    let args = ["-r", "-f", "--show", image.to_str().unwrap()];
    if let Some(made) = tool("losetup", &args, mounts.place.0.path()) {
        sources.push(text(&made).trim().to_owned());
    }
    if protect("+i") {
        sources.push("b.img".to_owned());
    }
    for source in &sources {
        let ran = mounts.place.run(&["mount", "--log", "log", source, "m"]).succeeds();
        ran.complains(&[source.as_str(), "write-protected", "read-only"]);
        let error = fs::write(mounts.inside("x"), "x").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert!(mounts.listed().unwrap().contains(" ro,"), "{:?}", mounts.listed());
        fs::metadata(mounts.inside("lost+found")).unwrap();
        mounts.place.run(&["umount", "m"]).succeeds();
        mounts.place.run(&["mount", "-o", "rw", source, "m"]).ends_with(7);
    }
    protect("-i");
    if let Some(device) = sources.first().filter(|source| source.starts_with("/dev/")) {
        let _ = Command::new("losetup").args(["-d", device]).status();
    }
}

#[test]
fn an_image_that_the_kernel_has_is_refused() {
    let Some(mounts) = mounts() else { return };
    let kernel = kernel::Mounted::of(&mounts.place, "a.img");
    mounts.mount(&[]).ends_with(7).complains(&["in use", "/dev/loop"]);
    mounts.mount(&["-r"]).ends_with(7).complains(&["in use", "/dev/loop"]);
    drop(kernel);
}

#[test]
fn what_cannot_be_mounted_is_said_by_the_command_that_was_called() {
    let Some(mounts) = mounts() else { return };
    let run = |args: &[&str]| mounts.place.run(args);
    fs::write(mounts.path("zeros"), vec![0; 1 << 20]).unwrap();
    run(&["mount", "zeros", "m"]).ends_with(4).complains(&["zeros", "magic"]);
    run(&["mount", "none", "m"]).ends_with(8).complains(&["none"]);
    run(&["mount", "a.img", "none"]).ends_with(8).complains(&["none"]).hints("mkdir");
    run(&["mount", "a.img", "zeros"])
        .ends_with(8)
        .complains(&["not a directory"])
        .hints("first the image");
    run(&["mount", "m", "m"])
        .ends_with(2)
        .complains(&["m is a directory"])
        .hints("first the image");
    fs::write(mounts.path("empty"), "").unwrap();
    run(&["mount", "empty", "m"]).ends_with(4).complains(&["empty"]).hints("extant mkfs empty");
    fs::write(mounts.path("other"), [b"XFSB".as_slice(), &[0; 100_000]].concat()).unwrap();
    run(&["mount", "other", "m"]).ends_with(4).complains(&["other", "XFS"]);
    run(&["mount", "--offset", "4096", "a.img", "m"]).ends_with(4).complains(&["from byte 4096"]);
    run(&["mount", "a.img"]).ends_with(2).complains(&["directory"]);
    run(&["mount", "-o", "noatim", "a.img", "m"])
        .ends_with(2)
        .complains(&["noatim"])
        .hints("noatime");
    run(&["mount", "-o", "data=later", "a.img", "m"]).ends_with(2).complains(&["data=later"]);
    run(&["mount", "-o", "usrquota", "a.img", "m"]).ends_with(5).complains(&["quota"]);
    run(&["mount", "-o", "sb=8193", "a.img", "m"]).ends_with(2).complains(&["ro"]);
    run(&["mount", "--log", "/proc/no/log", "a.img", "m"])
        .ends_with(8)
        .complains(&["/proc/no/log"]);
    // A pipe has no other end that would be waited for; `tool` ends what does not end.
    let fifo = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, mounts.path("pipe"), fifo, mode, 0).unwrap();
    let output = tool(support::EXTANT, &["mount", "pipe", "m"], mounts.place.0.path()).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("pipe is a fifo"), "{said}");
    assert!(mounts.listed().is_none());
    // Nothing of it is left that would be in the way.
    mounts.mount(&[]).succeeds();
    mounts.umount();
}

#[test]
fn contents_go_through_the_journal_where_that_is_asked_for() {
    let Some(mounts) = mounts() else { return };
    let bytes = vec![7; 300_000];
    mounts.mount(&["-o", "data=journal"]).succeeds();
    let mut file = fs::File::create(mounts.path("m/logged")).unwrap();
    file.write_all(&bytes).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let stats = mounts.place.run(&["stats", "--json", "m"]).succeeds().json();
    let logged = stats["writer"]["data_blocks_logged"].as_u64();
    assert!(logged.is_some_and(|blocks| blocks > 70), "{stats}");
    mounts.umount();
    // Seen by one that does not, after the log was brought home.
    mounts.mount(&[]).succeeds();
    assert!(fs::read(mounts.path("m/logged")).unwrap() == bytes);
    mounts.umount();
}

#[test]
fn a_signal_ends_a_mount_like_unmounting() {
    let Some(mounts) = mounts() else { return };
    for (round, which) in
        [Signal::TERM, Signal::INT, Signal::HUP, Signal::TERM].into_iter().enumerate()
    {
        mounts.mount(&[]).succeeds();
        // Still in the kernel: nothing synced.
        fs::write(mounts.inside("fresh"), format!("round {round}")).unwrap();
        let (keeper, server) = mounts.processes();
        // The last time the server is asked, as when the machine goes down.
        signal(if round == 3 { server } else { keeper }, which);
        until("the keeper ends", || !is_alive(keeper));
        assert!(!is_alive(server) && mounts.listed().is_none());
        mounts.clean();
        let read = mounts.place.run(&["cat", "a.img:/fresh"]).succeeds();
        assert_eq!(read.out(), format!("round {round}"));
    }
}

#[test]
fn a_signal_while_files_are_open_lets_their_users_finish() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let (keeper, server) = mounts.processes();
    let mut file = fs::File::create(mounts.inside("open")).unwrap();
    signal(keeper, Signal::TERM);
    until("it is taken out of the list", || mounts.listed().is_none());
    signal(keeper, Signal::TERM);
    until("the second is answered", || mounts.log().contains("still ending"));
    std::io::Write::write_all(&mut file, b"after the signals").unwrap();
    assert!(is_alive(server), "it has a user");
    let users = format!("process {}", std::process::id());
    assert!(mounts.log().contains(&users), "{}", mounts.log());
    drop(file);
    until("the keeper ends", || !is_alive(keeper));
    mounts.clean();
    let read = mounts.place.run(&["cat", "a.img:/open"]).succeeds();
    assert_eq!(read.out(), "after the signals");
}

#[test]
fn a_dead_server_leaves_no_dead_mount() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let kept = fs::File::create(mounts.inside("synced")).unwrap();
    std::io::Write::write_all(&mut &kept, b"durable").unwrap();
    kept.sync_all().unwrap();
    let (keeper, server) = mounts.processes();
    signal(server, Signal::KILL);
    until("the keeper ends", || !is_alive(keeper));
    drop(kept);
    assert!(mounts.listed().is_none());
    assert_eq!(fs::read_dir(mounts.path("m")).unwrap().count(), 0);
    assert!(mounts.log().contains("signal 9"), "{}", mounts.log());
    mounts.mount(&[]).succeeds();
    assert_eq!(fs::read(mounts.inside("synced")).unwrap(), b"durable");
    mounts.umount();
}

#[test]
fn a_mount_without_keeper_goes_on_until_it_is_unmounted() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let (keeper, server) = mounts.processes();
    signal(keeper, Signal::KILL);
    until("the server notices", || mounts.log().contains("is gone"));
    fs::write(mounts.inside("orphaned"), "still served").unwrap();
    // Still in the kernel, of a file that stays open.
    let mut open = fs::File::create(mounts.inside("open")).unwrap();
    std::io::Write::write_all(&mut open, &[7; 100_000]).unwrap();
    signal(server, Signal::TERM);
    until("the server ends", || !is_alive(server));
    assert!(mounts.log().contains("extant umount"), "{}", mounts.log());
    // Nothing hangs: it says that nobody is there, or that the server went away as it was asked.
    let error = fs::read(mounts.inside("orphaned")).unwrap_err();
    let gone = [rustix::io::Errno::NOTCONN, rustix::io::Errno::CONNABORTED];
    assert!(gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())), "{error}");
    mounts.clean();
    let read = |name: &str| mounts.place.run(&["cat", name]).succeeds().output.stdout.clone();
    assert!(read("a.img:/orphaned") == b"still served" && read("a.img:/open") == [7; 100_000]);
    mounts.mount(&[]).ends_with(8).hints("extant umount");
    drop(open);
    mounts.umount();
    assert!(mounts.listed().is_none());
    // Without a sandbox it can unmount by itself.
    mounts.mount(&["--sandbox=off"]).succeeds();
    let (keeper, server) = mounts.processes();
    fs::write(mounts.inside("alone"), "x").unwrap();
    signal(keeper, Signal::KILL);
    until("the keeper ends", || !is_alive(keeper));
    signal(server, Signal::TERM);
    until("the server ends", || !is_alive(server));
    assert!(mounts.listed().is_none());
    mounts.clean();
    mounts.place.run(&["cat", "a.img:/alone"]).succeeds();
}

#[test]
fn a_mount_that_is_taken_away_before_its_first_use_ended_well() {
    let Some(mounts) = mounts() else { return };
    for _ in 0..20 {
        extant_sync::threads::scope(|scope| {
            let taken = scope.spawn("umount", || {
                until("it is mounted", || {
                    let point = mounts.path("m");
                    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::empty()).is_ok()
                });
            });
            mounts.mount(&[]).succeeds();
            taken.unwrap().join().unwrap();
        })
        .unwrap();
        let free = || fs::File::open(mounts.path("a.img")).unwrap().try_lock().is_ok();
        until("the image is free", free);
        assert!(mounts.listed().is_none());
        mounts.clean();
    }
}

#[test]
fn in_the_foreground_the_command_is_the_mount() {
    let Some(mounts) = mounts() else { return };
    let mut command = mounts.place.command(&["mount", "--foreground", "a.img", "m"]);
    let manager = std::os::unix::net::UnixDatagram::bind(mounts.path("notify")).unwrap();
    command.env("NOTIFY_SOCKET", mounts.path("notify")).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let mut heard = [0; 32];
    let count = manager.recv(&mut heard).unwrap();
    assert_eq!(&heard[..count], b"READY=1");
    fs::write(mounts.inside("x"), "y").unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    assert_eq!(mounts.processes().0, pid);
    signal(pid, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("mounted for reading and writing") && said.contains("unmounted"),
        "{said}"
    );
    mounts.clean();
    // A server that dies is a failure, and is said.
    let mut command = mounts.place.command(&["mount", "-f", "a.img", "m"]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    until("it is mounted", || mounts.listed().is_some() && fs::read_dir(mounts.path("m")).is_ok());
    signal(mounts.processes().1, Signal::KILL);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(70));
    assert!(String::from_utf8_lossy(&output.stderr).contains("replays the journal"));
    assert!(mounts.listed().is_none());
}

#[test]
fn umount_names_who_is_in_the_way() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let mut sleeper =
        Command::new("sleep").arg("60").current_dir(mounts.path("m")).spawn().unwrap();
    let who = format!("(process {}: working directory)", sleeper.id());
    let umount = mounts.place.run(&["umount", "m"]).ends_with(7);
    umount.complains(&["in use", &who]).hints("-l");
    let (keeper, _) = mounts.processes();
    mounts.place.run(&["umount", "-l", "m"]).succeeds();
    assert!(mounts.listed().is_none());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    until("the keeper ends", || !is_alive(keeper));
    mounts.place.run(&["umount", "m"]).ends_with(7).complains(&["not mounted"]);
    mounts.place.run(&["umount", "/proc"]).ends_with(7).complains(&["proc", "not by extant"]);
    mounts.clean();
}

#[test]
fn other_ways_to_unmount_end_the_server_and_a_new_mount_waits_for_it() {
    let Some(mounts) = mounts() else { return };
    for round in 0..10 {
        mounts.mount(&[]).succeeds();
        fs::write(mounts.inside("many"), vec![round; 5 << 20]).unwrap();
        let (keeper, _) = mounts.processes();
        let Some(umount) = tool("umount", &["m"], mounts.place.0.path()) else { return };
        assert!(umount.status.success());
        mounts.mount(&["-r"]).succeeds();
        assert!(fs::read(mounts.inside("many")).unwrap() == vec![round; 5 << 20]);
        mounts.place.run(&["umount", "m"]).succeeds();
        until("the keeper ends", || !is_alive(keeper));
    }
    mounts.clean();
}

#[test]
fn what_a_full_disk_below_does_not_take_is_said_before_it_is_lost() {
    let Some(mounts) = mounts() else { return };
    let full = mounts.path("full");
    fs::create_dir(&full).unwrap();
    let tmpfs = |options: &str| {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(&full);
        mount.status().is_ok_and(|status| status.success())
    };
    if !tmpfs("size=8M") {
        return println!("skipped: no tmpfs");
    }
    let mut copy = Command::new("cp");
    copy.arg("--sparse=always").arg(mounts.path("a.img")).arg(full.join("a.img"));
    assert!(copy.status().unwrap().success());
    mounts.place.run(&["mount", "--log", "log", "full/a.img", "m"]).succeeds();
    let noise: Vec<u8> = (0..12_000_000u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
    let write = || {
        use std::io::Write;
        let mut file = fs::File::create(mounts.inside("big"))?;
        file.write_all(&noise)?;
        file.sync_all()
    };
    let told = write().expect_err("there is no room for it");
    assert_eq!(told.raw_os_error(), Some(28), "{told}");
    // Whoever wrote knows; the rest is stored, and who unmounts is reminded.
    let ended = mounts.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
    ended.complains(&["writes have failed", "No space left on device"]);
    assert!(mounts.listed().is_none());
    assert!(mounts.log().contains("No space left on device"), "{}", mounts.log());
    assert!(tmpfs("remount,size=64M"));
    mounts.place.run(&["mount", "full/a.img", "m"]).succeeds();
    write().unwrap();
    mounts.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
    kernel::clean(&mounts.place, "full/a.img");
    let read = mounts.place.run(&["cat", "full/a.img:/big"]).succeeds();
    assert!(read.output.stdout == noise);
}

#[test]
fn a_dead_mount_is_taken_away_by_umount() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let (keeper, server) = mounts.processes();
    signal(keeper, Signal::KILL);
    signal(server, Signal::KILL);
    until("both are gone", || !is_alive(keeper) && !is_alive(server));
    until("the mount is dead", || fs::read_dir(mounts.path("m")).is_err());
    mounts.mount(&[]).ends_with(8).complains(&["cannot mount on m"]).hints("extant umount");
    mounts.place.run(&["stats", "m"]).ends_with(8).complains(&["the server is gone"]);
    mounts.place.run(&["umount", "m"]).succeeds().complains(&["the server is gone"]);
    assert!(mounts.listed().is_none());
    mounts.mount(&[]).succeeds();
    // By the image too.
    mounts.place.run(&["umount", "a.img"]).succeeds();
    mounts.clean();
}

#[test]
fn a_frozen_mount_can_be_ended() {
    let Some(mounts) = mounts() else { return };
    for by_signal in [true, false] {
        mounts.mount(&[]).succeeds();
        let (keeper, _) = mounts.processes();
        fs::write(mounts.inside("kept"), vec![7; 100_000]).unwrap();
        assert_eq!(mounts.asked("extant.order.freeze"), b"done");
        if by_signal {
            signal(keeper, Signal::TERM);
        } else {
            mounts.place.run(&["umount", "m"]).succeeds().complains(&["frozen"]);
        }
        until("the keeper ends", || !is_alive(keeper));
        assert!(mounts.listed().is_none());
        mounts.clean();
        let read = mounts.place.run(&["cat", "a.img:/kept"]).succeeds();
        assert!(read.output.stdout == vec![7; 100_000]);
    }
}

#[test]
fn a_launcher_that_is_killed_leaves_no_mount() {
    let Some(mounts) = mounts() else { return };
    // Somebody else's wait, in which the launcher ends: another host's protection takes seconds.
    let Some(tuned) = tool("tune2fs", &["-O", "mmp", "a.img"], mounts.place.0.path()) else {
        return;
    };
    assert!(tuned.status.success());
    let fresh = mounts.mount(&[]);
    fresh.succeeds();
    let server = mounts.processes().1;
    signal(server, Signal::KILL);
    until("it is gone", || mounts.listed().is_none());
    // Not ended cleanly: the next one waits for the other host to show itself.
    let mut command = mounts.place.command(&["mount", "--log", "log", "a.img", "m"]);
    let mut launcher: Child = command.process_group(0).spawn().unwrap();
    extant_sync::Clock::sleep(&extant_sync::SystemClock, Duration::from_millis(700));
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let lock = || fs::File::open(mounts.path("a.img")).unwrap().try_lock().is_ok();
    until("the image is free", lock);
    assert!(mounts.listed().is_none());
}

/// Runs `script` in a shell before the command, which it has as its arguments.
fn after(mounts: &support::mounts::Mounts, script: &str, args: &[&str]) -> support::Ran {
    let whole = mounts.place.command(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{script}; exec \"$0\" \"$@\"")]).arg(whole.get_program());
    shell.args(whole.get_args()).current_dir(mounts.place.0.path());
    support::Ran { args: format!("{script}; {}", args.join(" ")), output: shell.output().unwrap() }
}

#[test]
fn a_mount_that_may_not_have_as_many_open_files_says_so_and_how_many_would_do() {
    let Some(mounts) = mounts() else { return };
    // Fewer than a mount has, one more each time: the first thing that fails is another one each time.
    for limit in 5..16 {
        let ran = after(&mounts, &format!("ulimit -n {limit}"), &["mount", "a.img", "m"]);
        let ran = ran.ends_with(8).complains(&["Too many open files"]);
        let files = format!("may have {limit} files open");
        assert!(ran.err().contains(&files) && ran.err().contains("ulimit -n 256"), "{}", ran.err());
        assert_eq!(mounts.listed(), None, "{limit}");
    }
    after(&mounts, "ulimit -n 256", &["mount", "a.img", "m"]).succeeds();
    mounts.umount();
}

#[test]
fn a_mount_without_dev_null_says_what_it_needs() {
    let Some(mounts) = mounts() else { return };
    let bare = "mount -t tmpfs none /dev && mknod /dev/fuse c 10 229";
    let inside = format!("{bare}; exec \"$0\" \"$@\"");
    let whole = mounts.place.command(&["mount", "a.img", "m"]);
    let mut shell = Command::new("unshare");
    shell.args(["-m", "sh", "-c", &inside]).arg(whole.get_program()).args(whole.get_args());
    let Ok(output) = shell.current_dir(mounts.place.0.path()).output() else { return };
    let ran = support::Ran { args: "mount without /dev/null".to_owned(), output };
    ran.ends_with(8).complains(&["/dev/null"]).hints("mknod");
}
