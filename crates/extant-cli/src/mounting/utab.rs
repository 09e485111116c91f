//! Telling umount(8) that it is to call `umount.fuse.extant`, which waits for the server.
//!
//! umount(8) of util-linux asks the kernel for the kind of what is mounted, hears only "fuse", and looks for
//! nothing more specific, unless the mount is in its own list (`/run/mount/utab`). mount(8) has an entry
//! made there without mounting anything.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use crate::mounting::table::Entry;

/// The list, where util-linux keeps one.
const LIST: &str = "/run/mount/utab";
/// Where umount(8) looks for helpers.
const HELPERS: [&str; 2] = ["/sbin/umount.fuse.extant", "/usr/sbin/umount.fuse.extant"];

/// Makes an entry for a mount of root whose end umount(8) would not wait for, where its helper is installed.
/// Whether there is one now.
pub(crate) fn register(mount: &Entry) -> bool {
    let is_wanted = geteuid().is_root()
        && !mount.holds_device()
        && Path::new(LIST).exists()
        && HELPERS.iter().any(|helper| Path::new(helper).exists());
    is_wanted
        && runs(
            Command::new("mount")
                .args(["--no-canonicalize", "-i", "-f", "-t", &mount.kind])
                .args(["-o", "rw,uhelper=fuse.extant", "--"])
                .arg(&mount.source)
                .arg(&mount.point),
        )
}

/// Takes the entry away when the mount has gone in another way.
pub(crate) fn forget(mount: &Entry) {
    runs(
        Command::new("umount").args(["--no-canonicalize", "-i", "--fake", "--"]).arg(&mount.point),
    );
}

fn runs(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
