//! Mounts in use: their options, their users, and the system's tools.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Signal;

use crate::support;
use support::mounts::{Mounts, is_alive, let_others_go, mounts, signal, until};
use support::{EXTANT, text, tool};

/// An ordinary user that every system has: fusermount3 wants one with a name.
const USER: u32 = 1;

/// What is left of an image whose server is killed after these changes; `name` is read from it.
fn after_a_kill(options: &str, change: impl Fn(&Mounts)) -> Option<Mounts> {
    let mounts = mounts()?;
    mounts.mount(&["-o", options]).succeeds();
    let (keeper, server) = mounts.processes();
    change(&mounts);
    signal(server, Signal::KILL);
    until("the keeper ends", || !is_alive(keeper));
    // Replays the journal.
    mounts.mount(&[]).succeeds();
    mounts.umount();
    Some(mounts)
}

fn make_and_move(mounts: &Mounts) {
    fs::create_dir(mounts.inside("dir")).unwrap();
    fs::write(mounts.inside("dir/old"), "contents").unwrap();
    symlink("dir", mounts.inside("link")).unwrap();
    fs::hard_link(mounts.inside("dir/old"), mounts.inside("second")).unwrap();
    fs::rename(mounts.inside("dir/old"), mounts.inside("dir/new")).unwrap();
    fs::write(mounts.inside("gone"), "x").unwrap();
    fs::remove_file(mounts.inside("gone")).unwrap();
}

#[test]
fn with_sync_everything_is_durable_when_its_call_returns() {
    let made = after_a_kill("sync", |mounts| {
        let line = mounts.listed().unwrap();
        assert!(line.contains("sync"), "{line}");
        make_and_move(mounts);
        let file = fs::File::options().write(true).open(mounts.inside("second")).unwrap();
        let at = |bytes: &[u8], at| {
            std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).unwrap();
        };
        at(b"CON", 0);
        at(&[9; 70_000], 8);
        rustix::fs::setxattr(mounts.inside("dir"), "user.a", b"b", rustix::fs::XattrFlags::empty())
            .unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o751);
        fs::set_permissions(mounts.inside("dir"), mode).unwrap();
        fs::write(mounts.inside("short"), "longer").unwrap();
        fs::File::options().write(true).open(mounts.inside("short")).unwrap().set_len(4).unwrap();
    });
    let Some(mounts) = made else { return };
    let run = |args: &[&str]| mounts.place.run(args).succeeds().output.stdout.clone();
    let contents = [b"CONtents".as_slice(), &[9; 70_000]].concat();
    assert!(run(&["cat", "a.img:/dir/new"]) == contents);
    assert!(run(&["cat", "a.img:/second"]) == contents);
    assert_eq!(run(&["cat", "a.img:/short"]), b"long");
    let listed = String::from_utf8(run(&["ls", "a.img:/"])).unwrap();
    assert!(listed.contains("link") && !listed.contains("gone"), "{listed}");
    let dir = String::from_utf8(run(&["stat", "--json", "a.img:/dir"])).unwrap();
    assert!(dir.contains("751"), "{dir}");
    assert!(String::from_utf8(run(&["getfattr", "a.img:/dir"])).unwrap().contains("user.a"));
}

#[test]
fn with_dirsync_names_are_durable_when_their_call_returns_and_else_they_are_not() {
    for (options, kept) in [("dirsync", true), ("rw", false)] {
        let Some(mounts) = after_a_kill(options, make_and_move) else { return };
        let listed = mounts.place.run(&["ls", "-R", "a.img:/"]).succeeds().out();
        for name in ["dir", "new", "link", "second"] {
            let is_there = listed.lines().any(|line| line.contains(name));
            assert_eq!(is_there, kept, "{options}, {name}: {listed}");
        }
        assert!(!listed.contains("old") && !listed.contains("gone"), "{listed}");
    }
}

#[test]
fn with_discard_the_image_shrinks_as_files_go() {
    for (options, shrinks) in [("discard", true), ("nodiscard", false)] {
        let Some(mounts) = mounts() else { return };
        mounts.mount(&["-o", options]).succeeds();
        let noise: Vec<u8> = (0..3_000_000u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
        for name in ["kept", "big"] {
            fs::write(mounts.inside(name), &noise).unwrap();
        }
        let order = || {
            let control = "extant.control";
            rustix::fs::setxattr(
                mounts.path("m"),
                control,
                b"sync",
                rustix::fs::XattrFlags::empty(),
            )
        };
        let stored = || fs::metadata(mounts.path("a.img")).unwrap().blocks() * 512;
        rustix::fs::syncfs(fs::File::open(mounts.path("m")).unwrap()).unwrap();
        order().unwrap();
        let before = stored();
        let free =
            || rustix::fs::statvfs(mounts.path("m")).map(|of| of.f_bfree * of.f_frsize).unwrap();
        let free_before = free();
        fs::remove_file(mounts.inside("big")).unwrap();
        // The kernel lets go of a node in its own time, maybe after the next request.
        until("the file's blocks are free", || {
            order().unwrap();
            free() >= free_before + 2_900_000
        });
        order().unwrap();
        let less = before.saturating_sub(stored());
        assert_eq!(less >= 2_900_000, shrinks, "{options}: {before}, {less} less");
        let stats: serde_json::Value =
            serde_json::from_slice(&mounts.asked("extant.stats")).unwrap();
        let discarded = stats["writer"]["blocks_discarded"].as_u64().unwrap();
        assert_eq!(discarded > 0, shrinks, "{stats}");
        assert_eq!(stats["writer"]["discards_failed"], 0);
        mounts.umount();
        let read = mounts.place.run(&["cat", "a.img:/kept"]).succeeds();
        assert!(read.output.stdout == noise, "the other file");
    }
}

#[test]
fn remounting_switches_between_reading_and_writing() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&["-o", "nosuid"]).succeeds();
    fs::write(mounts.inside("before"), "kept by the kernel").unwrap();
    let open = fs::File::create(mounts.inside("open")).unwrap();
    mounts.place.run(&["mount", "-o", "remount,ro", "m"]).ends_with(7).complains(&["busy"]);
    drop(open);
    mounts.place.run(&["mount", "-o", "remount,ro", "m"]).succeeds();
    assert!(mounts.listed().unwrap().contains(" ro,nosuid"), "{:?}", mounts.listed());
    let error = fs::write(mounts.inside("after"), "x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read(mounts.inside("before")).unwrap(), b"kept by the kernel");
    let info: serde_json::Value = serde_json::from_slice(&mounts.asked("extant.info")).unwrap();
    assert_eq!(info["read_only"], true);
    mounts.place.run(&["mount", "-o", "remount,rw", "m"]).succeeds();
    fs::write(mounts.inside("after"), "x").unwrap();
    mounts.place.run(&["mount", "-o", "remount,noatime", "m"]).ends_with(5).complains(&["remount"]);
    mounts.umount();
}

#[test]
fn a_remount_may_repeat_the_words_of_the_mount_as_mount_does_with_those_of_fstab() {
    let Some(mounts) = mounts() else { return };
    let words = "sync,discard,commit=9,errors=continue,idmap=b:0:0:100,noatime,nodev";
    mounts.mount(&["-o", words]).succeeds();
    let run = |list: &str| mounts.place.run(&["mount", "-o", list, "m"]);
    run(&format!("remount,ro,{words}")).succeeds();
    let line = mounts.listed().unwrap();
    assert!(line.contains(" ro,nodev,noatime") && line.contains("sync"), "{line}");
    run(&format!("remount,rw,{words}")).succeeds();
    fs::write(mounts.inside("new"), "x").unwrap();
    run("remount,commit=8").ends_with(5).complains(&["remount"]);
    run("remount,async").ends_with(5).complains(&["remount"]);
    mounts.umount();
}

#[test]
fn partitions_and_offsets_are_mounted_in_place() {
    let Some(mounts) = mounts() else { return };
    let disk = fs::File::create(mounts.path("disk")).unwrap();
    disk.set_len(96 << 20).unwrap();
    let image = fs::read(mounts.path("a.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&disk, &image, 4 << 20).unwrap();
    let run = |args: &[&str]| mounts.place.run(args);
    run(&["mount", "disk", "m"]).ends_with(4);
    for how in [&["--offset", "4M"][..], &["-o", "offset=4194304"]] {
        run(&[&["mount"], how, &["disk", "m"]].concat()).succeeds();
        assert!(mounts.listed().unwrap().contains("disk@4194304"));
        fs::write(mounts.inside("there"), "x").unwrap();
        run(&["umount", "m"]).succeeds();
        run(&["cat", "--offset", "4M", "disk:/there"]).succeeds();
    }
}

#[test]
fn the_sandbox_can_be_required_and_left_out() {
    let Some(mounts) = mounts() else { return };
    let status = |pid: i32, key: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
        line.split_ascii_whitespace().nth(1).unwrap().to_owned()
    };
    let required = mounts.mount(&["--sandbox=require"]);
    if required.output.status.code() == Some(5) {
        println!("skipped: {}", required.err());
    } else {
        required.succeeds();
        let (keeper, server) = mounts.processes();
        assert_eq!(status(server, "Seccomp:"), "2");
        assert_eq!(status(server, "NoNewPrivs:"), "1");
        assert_eq!(status(server, "CapEff:"), "0000000000000000");
        assert_eq!(status(keeper, "Seccomp:"), "0", "it must run fusermount3");
        let limits = fs::read_to_string(format!("/proc/{server}/limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert!(core.split_whitespace().nth(4) == Some("0"), "{core}");
        everything_works(&mounts.path("m"));
        mounts.umount();
    }
    mounts.mount(&["--sandbox=off"]).succeeds();
    assert_eq!(status(mounts.processes().1, "Seccomp:"), "0");
    mounts.umount();
}

/// The control operation whose argument a sandboxed server cannot see.
#[test]
fn programs_shut_a_mount_down_in_three_ways() {
    let Some(mounts) = mounts() else { return };
    let shut_down = |kind: u32| {
        let program = "import ctypes, os, sys\n\
                       kind = ctypes.c_uint32(int(sys.argv[2]))\n\
                       root = os.open(sys.argv[1], os.O_RDONLY)\n\
                       libc = ctypes.CDLL(None, use_errno=True)\n\
                       code = libc.ioctl(root, ctypes.c_ulong(0x8004587d), ctypes.byref(kind))\n\
                       sys.exit(ctypes.get_errno() if code else 0)";
        let mut command = std::process::Command::new("python3");
        command.args(["-c", program]).arg(mounts.path("m")).arg(kind.to_string()).status().ok()
    };
    for (kind, keeps) in [(0, true), (1, true), (2, false)] {
        mounts.mount(&[]).succeeds();
        fs::create_dir(mounts.inside(&format!("made{kind}"))).unwrap();
        let Some(status) = shut_down(kind) else {
            println!("skipped: needs python3");
            return mounts.umount();
        };
        assert_eq!(status.code(), Some(0), "kind {kind}: {}", mounts.log());
        let refused = fs::create_dir(mounts.inside("later")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(5), "EIO");
        mounts.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
        mounts.mount(&[]).succeeds();
        assert_eq!(mounts.inside(&format!("made{kind}")).exists(), keeps, "kind {kind}");
        mounts.umount();
    }
    mounts.mount(&[]).succeeds();
    assert_eq!(shut_down(9).unwrap().code(), Some(22), "EINVAL");
    mounts.umount();
}

/// A bit of each kind of request.
fn everything_works(dir: &Path) {
    let run = |line: &str| {
        let output = Command::new("sh").args(["-ec", line]).current_dir(dir).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(
        "mkdir -p d/e; echo x > d/f; ln d/f d/g; ln -s f d/h; mkfifo d/p; mknod d/n c 1 3; mv d/e d/i",
    );
    run(
        "dd if=/dev/urandom of=big bs=1M count=10 status=none; cp big copy; cmp big copy; sync big",
    );
    run("fallocate -l 1M room; fallocate -p -o 4096 -l 8192 room; truncate -s 123 room; rm room");
    run(
        "cp /bin/true prog; ./prog; chmod 4755 prog; chown 1:2 d/f; touch -d 2001-01-01 d/f; df . >/dev/null",
    );
    run(
        "ls -lR . >/dev/null; rm -r d copy; dd if=big bs=64k iflag=direct status=none | md5sum >/dev/null",
    );
    run("flock big true; stat -f . >/dev/null; find . -xdev >/dev/null");
}

/// Whether the kernel offers its rings to mounts; says so when it does not.
fn has_rings() -> bool {
    let switch = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let is_on = switch.is_ok_and(|text| text.starts_with('Y'));
    if !is_on {
        println!("skipped: needs FUSE over io_uring, which root can switch on");
    }
    is_on
}

#[test]
fn requests_over_rings_are_answered_in_the_sandbox_until_each_kind_of_end() {
    let Some(mounts) = mounts() else { return };
    if !has_rings() {
        let refused = mounts.mount(&["-o", "io_uring"]);
        refused.ends_with(5).complains(&["-o io_uring", "io_uring"]);
        assert!(mounts.listed().is_none());
        return;
    }
    mounts.mount(&["-o", "io_uring"]).succeeds();
    everything_works(&mounts.path("m"));
    let said = mounts.place.run(&["stats", "m"]).succeeds().out();
    assert!(said.contains(" over io_uring"), "{said}");
    mounts.umount();
    mounts.mount(&["-o", "noio_uring"]).succeeds();
    let said = mounts.place.run(&["stats", "m"]).succeeds().out();
    assert!(said.contains(" over /dev/fuse"), "{said}");
    mounts.umount();
    // Asked to end, while it is frozen too.
    for is_frozen in [false, true] {
        mounts.mount(&["-o", "io_uring"]).succeeds();
        let (keeper, _) = mounts.processes();
        fs::write(mounts.inside("kept"), vec![7; 100_000]).unwrap();
        if is_frozen {
            assert_eq!(mounts.asked("extant.order.freeze"), b"done");
        }
        signal(keeper, Signal::TERM);
        until("the keeper ends", || !is_alive(keeper));
        assert!(mounts.listed().is_none());
        mounts.clean();
        let read = mounts.place.run(&["cat", "a.img:/kept"]).succeeds();
        assert!(read.output.stdout == vec![7; 100_000]);
    }
    // Killed.
    mounts.mount(&["-o", "io_uring"]).succeeds();
    let (keeper, server) = mounts.processes();
    signal(server, Signal::KILL);
    until("the keeper ends", || !is_alive(keeper));
    until("the dead mount is gone", || mounts.listed().is_none());
    mounts.mount(&["-o", "io_uring"]).succeeds();
    mounts.umount();
}

#[test]
fn an_ordinary_user_has_rings_too() {
    let Some(mounts) = mounts() else { return };
    if !has_rings() {
        return;
    }
    let lines = "./extant mount -o io_uring --map-root --log log a.img m; mkdir m/dir; echo x > m/dir/f; \
                 dd if=/dev/zero of=m/big bs=1M count=5 status=none; rm m/big; \
                 ./extant stats m | grep over; ./extant umount m";
    let Some(output) = as_user(&mounts, lines, ":") else { return };
    assert!(succeeded(&output).contains("over io_uring"), "{}", text(&output));
}

#[test]
fn statistics_come_as_text_json_and_for_prometheus() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    everything_works(&mounts.path("m"));
    let stats = mounts.place.run(&["stats", "--json", "m"]).succeeds().json();
    assert!(stats["requests"]["ops"]["mkdir"]["count"].as_u64() >= Some(2), "{stats}");
    assert_eq!(stats["mount"]["pid"], mounts.processes().1);
    let said = mounts.place.run(&["stats", "m/big"]).succeeds().out();
    for word in ["Requests:", "mkdir", "p99", "Cache:", "Journal:", "Space:", "Locks:", "free"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let said = mounts.place.run(&["stats", "--prometheus", "m"]).succeeds().out();
    let mount = mounts.path("m");
    let row = format!("duration_seconds_count{{mount=\"{}\",op=\"mkdir\"}}", mount.display());
    assert!(said.contains(&row), "{said}");
    let mut watch = mounts.place.command(&["stats", "--watch", "1", "m"]);
    let child = watch.stdout(Stdio::piped()).spawn().unwrap();
    let clock = extant_sync::SystemClock;
    extant_sync::Clock::sleep(&clock, Duration::from_millis(1500));
    signal(i32::try_from(child.id()).unwrap(), Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && text(&output).contains("per second"), "{}", text(&output));
    mounts.place.run(&["stats", "."]).ends_with(7).complains(&["not mounted by extant"]);
    mounts.umount();
}

/// Runs `line` in a shell that sees helpers of mount(8) in its search path for them: `/sbin` holds
/// links to this program, and nothing of the host changes.
fn with_helpers(mounts: &Mounts, line: &str) -> Option<Output> {
    let dir = mounts.path("sbin");
    fs::create_dir_all(dir.join("upper")).unwrap();
    fs::create_dir_all(dir.join("scratch")).unwrap();
    for name in ["mount.fuse.extant", "umount.fuse.extant"] {
        let _ = symlink(EXTANT, dir.join("upper").join(name));
    }
    let real = fs::canonicalize("/sbin").unwrap();
    let (real, dir) = (real.display(), dir.display());
    let prepare = format!(
        "mount -t tmpfs none {dir}/scratch && mkdir {dir}/scratch/u {dir}/scratch/w && \
         cp -P {dir}/upper/* {dir}/scratch/u && mount -t overlay none {real} \
         -o lowerdir={real},upperdir={dir}/scratch/u,workdir={dir}/scratch/w"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "slave", "sh", "-c"]);
    let others = let_others_go(mounts.place.0.path());
    command.arg(format!("{others}; {prepare} || exit 77; set -ex; {line}"));
    command.current_dir(mounts.place.0.path()).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.code() != Some(77));
    if output.is_none() {
        println!("skipped: no private /sbin can be made");
    }
    output
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}", text(output));
    text(output)
}

#[test]
fn mount_and_umount_of_the_system_use_it_as_their_helper() {
    let Some(mounts) = mounts() else { return };
    let lines = "mount -t fuse.extant -o noatime,nodev,x-systemd.automount,nofail a.img m; \
                 echo hello > m/file; findmnt -n -o FSTYPE,OPTIONS m; umount m; \
                 e2fsck -fn a.img >/dev/null 2>&1 || test $? = 127; \
                 mount -o ro -t fuse.extant a.img m; cat m/file; umount m; \
                 mount -t fuse.extant a.img m; mount -o remount,ro m; ! touch m/x; \
                 mount -o remount,rw m; touch m/x; umount m; \
                 echo \"$PWD/a.img $PWD/m fuse.extant rw,noauto,nofail,_netdev,noatime 0 0\" > fstab; \
                 mount -T fstab m; umount m";
    let Some(output) = with_helpers(&mounts, lines) else { return };
    let said = succeeded(&output);
    assert!(
        said.contains("fuse.extant") && said.contains("noatime") && said.contains("nodev"),
        "{said}"
    );
    assert!(said.contains("hello"), "{said}");
    mounts.clean();
    let Some(output) = with_helpers(&mounts, "mount -t fuse.extant -o noatim a.img m") else {
        return;
    };
    assert_eq!(output.status.code(), Some(1), "the code of mount(8) for wrong options");
    assert!(String::from_utf8_lossy(&output.stderr).contains("noatim: no such mount option"));
    let Some(output) = with_helpers(&mounts, "mount -t fuse.extant none.img m") else { return };
    assert_eq!(output.status.code(), Some(32));
}

#[test]
fn umount_of_the_system_waits_for_the_server_however_it_was_mounted() {
    let Some(mounts) = mounts() else { return };
    if !Path::new("/run/mount/utab").exists() {
        return println!("skipped: umount(8) keeps no list of its own here");
    }
    // Free at once: whoever has the lock is the server.
    let round = "head -c 8000000 /dev/urandom > m/data; umount m; flock -n a.img true";
    for how in [format!("{EXTANT} mount a.img m"), "mount -t fuse.extant a.img m".to_owned()] {
        let lines = vec![format!("{how}; {round}"); 4].join("; ");
        let Some(output) = with_helpers(&mounts, &lines) else { return };
        succeeded(&output);
        mounts.clean();
    }
    let lines =
        format!("{EXTANT} mount a.img m; {EXTANT} umount m; ! grep \"$PWD/m \" /run/mount/utab");
    let Some(output) = with_helpers(&mounts, &lines) else { return };
    succeeded(&output);
}

/// Runs `line` as an ordinary user in a directory of his own with the image, where `/dev/fuse` is for
/// everybody, as distributions have it; then `after` as root.
fn as_user(mounts: &Mounts, line: &str, after: &str) -> Option<Output> {
    let own = mounts.path("own");
    fs::create_dir_all(own.join("m")).unwrap();
    fs::set_permissions(mounts.place.0.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    if !own.join("a.img").exists() {
        fs::copy(mounts.path("a.img"), own.join("a.img")).unwrap();
    }
    fs::copy(EXTANT, own.join("extant")).unwrap();
    for name in ["", "m", "a.img", "extant"] {
        std::os::unix::fs::chown(own.join(name), Some(USER), Some(USER)).unwrap();
    }
    let device = mounts.path("fuse");
    let prepare = format!(
        "[ -e {0} ] || mknod {0} c 10 229; chmod 666 {0}; mount --bind {0} /dev/fuse || exit 77; \
         command -v setpriv fusermount3 >/dev/null || exit 77; \
         setpriv --reuid {USER} --regid {USER} --clear-groups sh -exc \"$LINE\" && \
         sh -exc \"$AFTER\"",
        device.display()
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &prepare]).env("LINE", line);
    command.env("AFTER", after);
    command.env("HOME", &own).env("LC_ALL", "C").current_dir(&own).stdin(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.code() != Some(77));
    if output.is_none() {
        println!("skipped: needs unshare, setpriv, fusermount3");
    }
    output
}

#[test]
fn an_ordinary_user_mounts_and_edits_what_is_roots() {
    let Some(mounts) = mounts() else { return };
    let lines = "./extant mount --map-root --log log a.img m; stat -c %u m; mkdir m/dir; echo x > m/dir/f; \
                 stat -c %u:%g m/dir/f; grep \"$PWD/m \" /proc/self/mountinfo; \
                 ./extant stats m >/dev/null; ./extant umount m; \
                 ./extant stat --json a.img:/dir/f; \
                 ./extant mount --log log a.img m; stat -c %u m; ! mkdir m/other; fusermount3 -u m; \
                 ./extant mount --log log -r a.img m; ! touch m/x; ./extant umount m; \
                 ./extant mount -f --log log a.img m & P=$!; \
                 until grep -q \"$PWD/m \" /proc/self/mountinfo; do sleep 0.05; done; \
                 kill $P; wait $P";
    let Some(output) = as_user(&mounts, lines, ":") else { return };
    let said = succeeded(&output);
    let rows: Vec<&str> = said.lines().collect();
    assert_eq!(rows[0], USER.to_string(), "root of the image is the user");
    assert_eq!(rows[1], format!("{USER}:{USER}"));
    assert!(rows[2].contains("nosuid,nodev"), "{said}");
    assert!(said.contains("\"uid\": 0"), "stored as root's: {said}");
    assert!(said.lines().any(|line| line == "0"), "without the map it is root's: {said}");
    let image = mounts.path("own/a.img");
    assert_eq!(fs::metadata(&image).unwrap().uid(), USER);
    if let Some(check) = tool("e2fsck", &["-fn", image.to_str().unwrap()], Path::new("/")) {
        assert!(check.status.success(), "{}", text(&check));
    }
}

/// A directory of a mount that is open for nobody who can be named: it is on its way through a socket.
fn open_unseen(dir: &Path) -> (UnixStream, UnixStream) {
    let (from, to) = UnixStream::pair().unwrap();
    let dir = fs::File::open(dir).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [dir.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let bytes = [std::io::IoSlice::new(b".")];
    rustix::net::sendmsg(&from, &bytes, &mut control, SendFlags::empty()).unwrap();
    (from, to)
}

#[test]
fn who_looks_for_a_moment_does_not_keep_it_mounted_and_who_stays_does() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let way = open_unseen(&mounts.path("m"));
    let refused = mounts.place.run(&["umount", "m"]);
    refused.ends_with(7).complains(&["m is in use by a process that you may not see"]);
    let mut unmounts = mounts.place.command(&["umount", "m"]).spawn().unwrap();
    Command::new("sleep").arg("0.3").status().unwrap();
    drop(way);
    assert!(unmounts.wait().unwrap().success());
    mounts.clean();
}

#[test]
fn a_mount_inside_is_named() {
    let Some(mounts) = mounts() else { return };
    mounts.mount(&[]).succeeds();
    let inner = mounts.inside("inner");
    fs::create_dir(&inner).unwrap();
    let here = mounts.path(".");
    tool("mount", &["-t", "tmpfs", "none", "m/inner"], &here).unwrap();
    let refused = mounts.place.run(&["umount", "m"]);
    tool("umount", &["m/inner"], &here).unwrap();
    refused.ends_with(7).complains(&["m is in use by a mount inside it, ", "/m/inner"]);
    mounts.umount();
}

#[test]
fn a_mount_keeps_nothing_that_its_caller_had_open() {
    let Some(mounts) = mounts() else { return };
    // A lock of a script, and a pipe that somebody reads to its end. An image by its descriptor stays.
    let script = "exec 8>lock 9<>a.img; flock 8; $0 mount /dev/fd/9 m 7>&1; echo $?";
    let here = |program: &str| {
        let mut command = Command::new(program);
        command.current_dir(mounts.path(".")).stdin(Stdio::null());
        command
    };
    let said = here("bash").args(["-c", script, EXTANT]).output().unwrap();
    let is_free = here("flock").args(["-n", "lock", "true"]).status().unwrap();
    mounts.umount();
    assert!(succeeded(&said).ends_with("0\n"), "{said:?}");
    assert!(is_free.success(), "the mount has the lock");
}

#[test]
fn root_unmounts_what_keeps_root_out_and_waits_for_it_too() {
    let Some(mounts) = mounts() else { return };
    let lines =
        "./extant mount --map-root --log log a.img m; head -c 3000000 /dev/urandom > m/data";
    let after = "! ls m; ./extant umount m; flock -n a.img true; ./extant ls a.img";
    let Some(output) = as_user(&mounts, lines, after) else { return };
    assert!(succeeded(&output).contains("data"));
}

#[test]
fn what_an_ordinary_user_may_not_is_explained() {
    let Some(mounts) = mounts() else { return };
    let lines = "set +e; ./extant mount a.img /usr; echo $?; \
                 ./extant mount --allow-other a.img m; echo $?; \
                 ./extant mount /dev/null m; echo $?; PATH=/nowhere ./extant umount m; echo $?";
    let Some(output) = as_user(&mounts, lines, ":") else { return };
    let said = succeeded(&output);
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("7\n"), "{said}{complaints}");
    assert!(complaints.contains("directory of his own"), "{complaints}");
    if !fs::read_to_string("/etc/fuse.conf")
        .unwrap_or_default()
        .lines()
        .any(|l| l == "user_allow_other")
    {
        assert!(complaints.contains("user_allow_other"), "{complaints}");
    }
}

/// Binds `m` to `b` with owners moved by 10,000, makes a file there as user 10,007, and looks at it from both sides.
const IDMAPPED: &str = "
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
m, b = sys.argv[1].encode(), sys.argv[2].encode()
holder = subprocess.Popen(['unshare', '-U', 'sh', '-c', 'echo x; exec sleep 60'], stdout=subprocess.PIPE)
holder.stdout.readline()
for name in ('uid_map', 'gid_map'):
    with open('/proc/%d/%s' % (holder.pid, name), 'w') as ids:
        ids.write('0 10000 1000')
user_ns = os.open('/proc/%d/ns/user' % holder.pid, os.O_RDONLY)
attr = (ctypes.c_uint64 * 4)(0x100000, 0, 0, user_ns)
tree = libc.syscall(428, -100, m, 1 | 0o2000000)
failed = libc.syscall(442, tree, b'', 0x1000, attr, 32)
holder.kill()
holder.wait()
if failed:
    sys.exit(ctypes.get_errno())
assert libc.syscall(429, tree, b'', -100, b, 4) == 0
assert os.stat(b).st_uid == 10000 and os.stat(m).st_uid == 0
os.chmod(m, 0o777)
made = os.path.join(b, b'made')
if os.fork() == 0:
    os.setgid(10007)
    os.setuid(10007)
    with open(made, 'w') as file:
        file.write('x')
    os._exit(0)
assert os.wait()[1] == 0
assert os.stat(made).st_uid == 10007 and os.stat(os.path.join(m, b'made')).st_uid == 7
assert os.getxattr(m, 'extant.info')
";

#[test]
fn idmapped_mounts_are_made_of_a_mount_that_allows_them() {
    let Some(mounts) = mounts() else { return };
    fs::create_dir(mounts.path("b")).unwrap();
    let idmap = || {
        let mut python = Command::new("python3");
        python.args(["-c", IDMAPPED]).arg(mounts.path("m")).arg(mounts.path("b")).output()
    };
    let asked = mounts.mount(&["-o", "idmapped"]);
    if asked.err().contains("Linux 6.12") {
        return println!("skipped: {}", asked.err());
    }
    asked.succeeds();
    let Ok(ran) = idmap() else {
        println!("skipped: needs python3");
        return mounts.umount();
    };
    succeeded(&ran);
    mounts.place.run(&["umount", "b"]).succeeds();
    // Who gives orders is known all the same.
    mounts.place.run(&["stats", "m"]).succeeds();
    mounts.umount();
    let stat = mounts.place.run(&["stat", "--json", "a.img:/made"]).succeeds().out();
    assert!(stat.contains("\"uid\": 7"), "{stat}");
    mounts.mount(&[]).succeeds();
    assert_eq!(idmap().unwrap().status.code(), Some(22), "EINVAL");
    mounts.umount();
}

/// Each engine of the device gives the same, and the mount says which it has.
#[test]
fn every_engine_of_the_device_works_and_says_so() {
    let Some(mounts) = mounts() else { return };
    let refused = mounts.mount(&["-o", "device_engine=fast"]);
    refused.ends_with(2).complains(&["device_engine", "auto, io_uring or portable"]);
    mounts.place.run(&["--device-engine", "fast", "ls", "a.img:/"]).ends_with(2);
    for engine in ["portable", "auto", "io_uring"] {
        let mounted = mounts.mount(&["-o", &format!("device_engine={engine}")]);
        if engine == "io_uring" && mounted.output.status.code() == Some(5) {
            mounted.complains(&["io_uring", "--device-engine auto"]);
            println!("skipped: there is no io_uring");
            continue;
        }
        mounted.succeeds();
        fs::write(mounts.inside(engine), vec![7; 5 << 20]).unwrap();
        assert!(fs::read(mounts.inside(engine)).unwrap() == vec![7; 5 << 20]);
        let said = mounts.place.run(&["stats", "--json", "m"]).succeeds().out();
        assert!(said.contains("\"device_engine\""), "{said}");
        if engine != "auto" {
            let said = mounts.place.run(&["stats", "m"]).succeeds().out();
            assert!(said.contains(&format!("Engine: {engine}\n")), "{said}");
        }
        mounts.umount();
        let path = format!("a.img:/{engine}");
        let read = mounts.place.run(&["--device-engine", engine, "cat", &path]).succeeds();
        assert!(read.output.stdout == vec![7; 5 << 20], "{engine}");
        mounts.clean();
    }
}
