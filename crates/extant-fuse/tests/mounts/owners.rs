//! What users other than root make belongs to them, has the mode that they asked for, and flags are set where they
//! mean something.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common;
use common::{Heard, obstacle, with_mount, with_mount_for_all};
use extant::MountOptions;
use extant_fuse::Settings;
use extant_testkit::oracle::mke2fs;
use extant_testkit::{require, skip};

/// Renames with `RENAME_WHITEOUT` as user 1000 of group 1001, then removes what stayed.
const RENAMES: &str = "
import ctypes, os, sys
os.chdir(sys.argv[1])
os.setgroups([])
os.setresgid(1001, 1001, 1001)
os.setresuid(1000, 1000, 1000)
libc = ctypes.CDLL(None, use_errno=True)
for directory in 'plain', 'sticky', 'group':
    old, new = directory + '/old', directory + '/new'
    open(old, 'w').close()
    if libc.renameat2(-100, old.encode(), -100, new.encode(), 4) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    print(*(getattr(os.lstat(old), field) for field in ('st_uid', 'st_gid', 'st_rdev')))
    os.unlink(old)
";

/// `FS_IOC_FSSETXATTR` with `FS_XFLAG_PROJINHERIT` on what is named.
const INHERITS: &str = "
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
try:
    fcntl.ioctl(fd, 0x401c5820, struct.pack('IIIII8x', 0x200, 0, 0, 0, 0))
    print('set')
except OSError as error:
    print(error.errno)
";

fn python(script: &str, at: &Path) -> String {
    let run = Command::new("python3").arg("-c").arg(script).arg(at).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn a_whiteout_belongs_to_who_renames_and_only_directories_hand_a_project_on() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        skip!("needs python3");
    }
    let dir = extant_testkit::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    require!(mke2fs(&image, "16M", &["-t", "ext4"]));
    std::fs::create_dir(&at).unwrap();
    let device = Arc::new(extant_testkit::image::load(&image));
    let fs = MountOptions::new().read_only(false).open_shared(device).unwrap();
    let heard = Heard::new();
    let (served, ()) = with_mount_for_all(fs, &at, &Settings::default(), &heard, |at| {
        for (name, mode) in [("plain", 0o777), ("sticky", 0o1777), ("group", 0o2777)] {
            std::fs::create_dir(at.join(name)).unwrap();
            let mode = PermissionsExt::from_mode(mode);
            std::fs::set_permissions(at.join(name), mode).unwrap();
        }
        assert_eq!(std::fs::metadata(at.join("group")).unwrap().gid(), 0);
        // In a directory with the sticky bit nobody else could remove it but root.
        assert_eq!(python(RENAMES, at), "1000 1001 0\n1000 1001 0\n1000 0 0\n");
        assert_eq!(python(INHERITS, &at.join("plain/new")), "95\n", "EOPNOTSUPP");
        assert_eq!(python(INHERITS, &at.join("plain")), "set\n");
    });
    served.unwrap();
}

/// A default ACL, as `setxattr` takes it: everything for owner and group, not writing for others.
fn default_acl() -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions) in [(0x01u16, 7u16), (0x04, 7), (0x20, 5)] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(u32::MAX.to_le_bytes());
    }
    bytes
}

#[test]
fn the_umask_counts_where_no_default_acl_takes_its_place() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let dir = extant_testkit::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    require!(mke2fs(&image, "16M", &["-t", "ext4"]));
    std::fs::create_dir(&at).unwrap();
    let device = Arc::new(extant_testkit::image::load(&image));
    let fs = MountOptions::new().read_only(false).open_shared(device).unwrap();
    let (served, ()) = with_mount(fs, &at, &Settings::default(), &Heard::new(), |at| {
        let modes = |name: &str| {
            let dir = at.join(name);
            std::fs::create_dir(&dir).unwrap();
            if name == "listed" {
                let flags = rustix::fs::XattrFlags::empty();
                let acl = default_acl();
                rustix::fs::setxattr(&dir, "system.posix_acl_default", &acl, flags).unwrap();
            }
            let script = "cd \"$1\" && umask 027 && : > file && mkdir dir && mkfifo pipe";
            let made = Command::new("sh").args(["-c", script, "sh"]).arg(&dir).status().unwrap();
            assert!(made.success());
            let mode = |name: &str| std::fs::metadata(dir.join(name)).unwrap().mode() & 0o7777;
            ["file", "dir", "pipe"].map(mode)
        };
        assert_eq!(modes("plain"), [0o640, 0o750, 0o640]);
        assert_eq!(modes("listed"), [0o664, 0o775, 0o664]);
    });
    served.unwrap();
}
