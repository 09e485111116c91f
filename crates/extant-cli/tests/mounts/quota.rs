//! Limits of quotas on a mount: they bind users, and not root, as in Linux.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::process::Command;

use extant::{MountOptions, QuotaKind, QuotaLimits};

use crate::support::mounts::mounts;

const USER: u32 = 1000;

#[test]
fn limits_bind_users_and_not_root() {
    let Some(mounts) = mounts() else { return };
    let options = ["-O", "quota", "-E", "quotatype=usrquota:grpquota", "--force", "-q"];
    mounts.place.run(&[&["mkfs", "a.img", "64M"], &options[..]].concat()).succeeds();
    let fs = MountOptions::new().read_only(false).open_path(mounts.path("a.img")).unwrap();
    let limits = QuotaLimits { space_hard_kib: 1024, inodes_hard: 3, ..QuotaLimits::default() };
    for kind in [QuotaKind::User, QuotaKind::Group] {
        fs.set_quota_limits(kind, USER, &limits).unwrap();
    }
    fs.unmount().unwrap();
    mounts.mount(&[]).succeeds();
    fs::create_dir(mounts.inside("theirs")).unwrap();
    chown(mounts.inside("theirs"), Some(USER), Some(USER)).unwrap();
    let as_user = |line: &str| {
        let user = USER.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "sh", "-c", line]);
        let output = command.current_dir(mounts.inside("theirs")).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // The user: a write and a file too many.
    let write = "dd if=/dev/zero of=w bs=64k count=40 oflag=direct";
    let (went, said) = as_user(write);
    assert!(!went && said.contains("quota exceeded"), "{said}");
    let (went, said) = as_user("rm w; : > a; : > b; : > c");
    assert!(!went && said.contains("quota exceeded"), "{said}");
    let (went, said) = as_user("rm -f a b");
    assert!(went, "{said}");
    // Root: gives away what the user has no room for, makes and writes files that are his.
    fs::write(mounts.inside("large"), vec![7; 2 << 20]).unwrap();
    chown(mounts.inside("large"), Some(USER), Some(USER)).unwrap();
    for name in ["one", "two", "three"] {
        fs::write(mounts.inside(name), name).unwrap();
        chown(mounts.inside(name), Some(USER), None).unwrap();
    }
    let more = fs::File::options().append(true).open(mounts.inside("large")).unwrap();
    std::io::Write::write_all(&mut &more, &vec![8; 1 << 20]).unwrap();
    more.sync_all().unwrap();
    drop(more);
    let large = fs::metadata(mounts.inside("large")).unwrap();
    assert_eq!((large.uid(), large.len()), (USER, 3 << 20));
    // It counts: the user has no room for anything.
    let (went, said) = as_user("echo 1 > more");
    assert!(!went && said.contains("quota exceeded"), "{said}");
    mounts.umount();
    let fs = MountOptions::new().read_only(false).open_path(mounts.path("a.img")).unwrap();
    let used = fs.quota(QuotaKind::User, USER).unwrap().unwrap();
    assert!(used.space_bytes >= 3 << 20 && used.inodes == 5, "{used:?}");
}
