//! Mounts and fs-verity, by the usual tool: `fsverity enable`, `fsverity measure`.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use crate::support;
use support::mounts::{Mounts, mounts};
use support::{kernel, tool};

/// A mount of a file system with the feature, if the tool and the kernel can do this.
fn made() -> Option<Mounts> {
    let mut mounts = mounts()?;
    mounts.place = kernel::made(&["-t", "ext4", "-O", "verity", "-b", "4096"])?;
    fs::create_dir(mounts.path("m")).unwrap();
    fsverity(&mounts, &["--version"])?;
    // From this version on the kernel copies what the arguments point to.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < (6, 10) {
        println!("skipped: Linux {release} does not pass the arguments of fs-verity to FUSE");
        return None;
    }
    mounts.mount(&[]).succeeds();
    Some(mounts)
}

fn fsverity(mounts: &Mounts, args: &[&str]) -> Option<Output> {
    tool("fsverity", args, mounts.place.0.path())
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn error(output: Option<Output>) -> String {
    let output = output.unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_usual_tool_enables_and_measures() {
    let Some(mounts) = made() else { return };
    let bytes: Vec<u8> =
        (0..700_001u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 | 1).collect();
    let salted = ["--salt=00ff11", "--hash-alg=sha512"];
    for (name, options) in [("plain", &[][..]), ("salted", &salted[..])] {
        fs::write(mounts.inside(name), &bytes).unwrap();
        let file = format!("m/{name}");
        let measured = || out(&fsverity(&mounts, &["measure", &file]).unwrap());
        let unsealed = error(fsverity(&mounts, &["measure", &file]));
        assert!(unsealed.contains("No data available"), "{unsealed}");
        let enabled = fsverity(&mounts, &[&["enable"], options, &[&file]].concat()).unwrap();
        assert!(enabled.status.success(), "{enabled:?}");
        let expected = fsverity(&mounts, &[&["digest"], options, &[&file]].concat()).unwrap();
        assert_eq!(measured(), out(&expected));
        assert!(measured().starts_with("sha"), "{}", measured());
        // Again, and for writing: no.
        let again = error(fsverity(&mounts, &["enable", &file]));
        assert!(again.contains("File exists"), "{again}");
        let refused = fs::File::options().write(true).open(mounts.inside(name)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(1), "EPERM");
        assert!(fs::read(mounts.inside(name)).unwrap() == bytes);
        if let Some(shown) = tool("lsattr", &[&file], mounts.place.0.path()) {
            assert!(out(&shown).contains('V'), "{shown:?}");
        }
        fs::set_permissions(mounts.inside(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::rename(mounts.inside("plain"), mounts.inside("renamed")).unwrap();
    mounts.umount();
    // As the image has it: digests, contents, and a bit that is wrong.
    let shown = mounts.place.run(&["stat", "a.img:/renamed"]).succeeds().out();
    assert!(shown.contains("Verity: sha256:"), "{shown}");
    assert!(mounts.place.run(&["cat", "a.img:/salted"]).succeeds().output.stdout == bytes);
    let image = fs::read(mounts.path("a.img")).unwrap();
    let block = &bytes[20 * 4096..21 * 4096];
    let places = image.chunks(4096).enumerate().filter(|(_, found)| *found == block);
    let file = fs::File::options().write(true).open(mounts.path("a.img")).unwrap();
    for (at, _) in places {
        file.write_all_at(&[block[5] ^ 4], at as u64 * 4096 + 5).unwrap();
    }
    for options in [&[][..], &["-o", "ro"]] {
        mounts.mount(options).succeeds();
        for name in ["renamed", "salted"] {
            let file = fs::File::open(mounts.inside(name)).unwrap();
            let read = |at: u64| file.read_at(&mut [0; 10], at);
            assert_eq!(read(20 * 4096 + 100).unwrap_err().raw_os_error(), Some(5), "EIO");
            assert_eq!(read(600_000).unwrap(), 10);
            assert!(fs::read(mounts.inside(name)).is_err());
        }
        mounts.umount();
    }
}

#[test]
fn who_may_not_is_refused() {
    let Some(mounts) = made() else { return };
    fs::write(mounts.inside("file"), "contents").unwrap();
    let writer = fs::File::options().write(true).open(mounts.inside("file")).unwrap();
    let busy = error(fsverity(&mounts, &["enable", "m/file"]));
    assert!(busy.contains("Text file busy"), "{busy}");
    writer.write_all_at(b"CON", 0).unwrap();
    drop(writer);
    let long = "00".repeat(33);
    let refused = error(fsverity(&mounts, &["enable", &format!("--salt={long}"), "m/file"]));
    assert!(refused.contains("Message too long"), "{refused}");
    let refused = error(fsverity(&mounts, &["enable", "--block-size=8192", "m/file"]));
    assert!(refused.contains("Invalid argument"), "{refused}");
    let directory = error(fsverity(&mounts, &["enable", "m"]));
    assert!(directory.contains("Is a directory"), "{directory}");
    // The owner may; another user may read, and not seal.
    chown(mounts.inside("file"), Some(1), Some(1)).unwrap();
    fs::set_permissions(mounts.inside("file"), fs::Permissions::from_mode(0o644)).unwrap();
    let as_user = |user: u32| {
        let mut command = Command::new("fsverity");
        std::os::unix::process::CommandExt::uid(&mut command, user);
        command.arg("enable").arg(Path::new("file")).current_dir(mounts.path("m")).output()
    };
    fs::set_permissions(mounts.place.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let denied = as_user(2).unwrap();
    assert!(!denied.status.success());
    let denied = String::from_utf8_lossy(&denied.stderr).into_owned();
    assert!(denied.contains("Permission denied"), "{denied}");
    mounts.umount();
    mounts.mount(&["-o", "ro"]).succeeds();
    let read_only = error(fsverity(&mounts, &["enable", "m/file"]));
    assert!(read_only.contains("Read-only file system"), "{read_only}");
    mounts.umount();
    // Without the feature.
    let Some(mut plain) = support::mounts::mounts() else { return };
    plain.place = kernel::made(&["-t", "ext4"]).unwrap();
    fs::create_dir(plain.path("m")).unwrap();
    plain.mount(&[]).succeeds();
    fs::write(plain.inside("file"), "contents").unwrap();
    let refused = error(fsverity(&plain, &["enable", "m/file"]));
    assert!(refused.contains("Operation not supported"), "{refused}");
    let refused = error(fsverity(&plain, &["measure", "m/file"]));
    assert!(refused.contains("Operation not supported"), "{refused}");
    plain.umount();
}
