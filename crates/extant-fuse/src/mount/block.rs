//! Mounts of block devices that the kernel claims for the mount (`fuseblk`).
//!
//! With these the kernel sends `sync(2)`, `syncfs(2)` and the unmount to the server, and waits for
//! the answers. In turn it claims the device: no program can open it exclusively, so the server
//! must not either.
//!
//! # Invariants
//!
//! - B1. The device is claimed before it is read, and until the mount is gone: no other program can
//!   take it in between.
//! - B2. The mount is not visible before [`BlockMount::attach`].

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create,
    fsconfig_create_exclusive, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use rustix::process::{getegid, geteuid};

use super::{AtimeFlag, KernelOptions, MountError, SUBTYPE};

/// A mount that holds its block device and is not in any directory yet. Dropped, it is gone.
#[derive(Debug)]
pub struct BlockMount {
    /// The connection, first, so that it is closed before the mount: then the kernel sends no last
    /// request.
    connection: Option<OwnedFd>,
    mount: OwnedFd,
}

impl BlockMount {
    /// Makes a mount of the device that `options.source` names, as root.
    ///
    /// # Errors
    ///
    /// [`MountError::System`]: `EBUSY` when another program holds the device; other numbers where the kernel has no such mounts or takes no such device.
    pub fn claim(options: &KernelOptions) -> Result<BlockMount, MountError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let connection = rustix::fs::open("/dev/fuse", flags, Mode::empty())
            .map_err(|errno| MountError::Device(errno.into()))?;
        let mount = configured(options, &connection)
            .map_err(|errno| super::system("claim", Path::new(&options.source), errno))?;
        Ok(BlockMount { connection: Some(connection), mount })
    }

    /// The connection for the server, once. The kernel's first request waits there.
    pub fn take_connection(&mut self) -> Option<OwnedFd> {
        self.connection.take()
    }

    /// Shows the mount at `dir`.
    ///
    /// # Errors
    ///
    /// [`MountError::System`]. The mount is gone then.
    pub fn attach(self, dir: &Path) -> Result<(), MountError> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&self.mount, "", rustix::fs::CWD, dir, flags)
            .map_err(|errno| super::system("mount on", dir, errno))
    }
}

fn configured(options: &KernelOptions, connection: &OwnedFd) -> Result<OwnedFd, Errno> {
    let fs = fsopen("fuseblk", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: String| fsconfig_set_string(&fs, key, value);
    fsconfig_set_string(&fs, "source", options.source.as_os_str())?;
    fsconfig_set_string(&fs, "subtype", SUBTYPE)?;
    set("fd", connection.as_raw_fd().to_string())?;
    set("rootmode", "40000".to_owned())?;
    set("user_id", geteuid().as_raw().to_string())?;
    set("group_id", getegid().as_raw().to_string())?;
    // Less than a page, some kernels lose parts of pages that were not written back.
    set("blksize", rustix::param::page_size().to_string())?;
    fsconfig_set_flag(&fs, "default_permissions")?;
    if let Some(bytes) = options.max_read {
        set("max_read", bytes.to_string())?;
    }
    for (on, word) in
        [(options.allow_other, "allow_other"), (options.sync, "sync"), (options.dirsync, "dirsync")]
    {
        if on {
            fsconfig_set_flag(&fs, word)?;
        }
    }
    match fsconfig_create_exclusive(&fs) {
        // Linux before 6.6 has no such order, and shares a mount of the device that it has.
        Err(Errno::OPNOTSUPP) => fsconfig_create(&fs)?,
        other => other?,
    }
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes(options))
}

/// Returns what holds for the mount, and not for the file system.
fn attributes(options: &KernelOptions) -> MountAttrFlags {
    let mut flags = match options.atime {
        AtimeFlag::Relative => MountAttrFlags::MOUNT_ATTR_RELATIME,
        AtimeFlag::Never => MountAttrFlags::MOUNT_ATTR_NOATIME,
        AtimeFlag::Strict => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
    };
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, options.nosuid);
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, options.nodev);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, options.noexec);
    flags.set(MountAttrFlags::MOUNT_ATTR_NODIRATIME, options.nodiratime);
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_holds_for_the_mount() {
        type Ask = fn(&mut KernelOptions);
        let rows: [(Ask, MountAttrFlags); 7] = [
            (|asked| asked.read_only = true, MountAttrFlags::MOUNT_ATTR_RDONLY),
            (|asked| asked.nosuid = true, MountAttrFlags::MOUNT_ATTR_NOSUID),
            (|asked| asked.nodev = true, MountAttrFlags::MOUNT_ATTR_NODEV),
            (|asked| asked.noexec = true, MountAttrFlags::MOUNT_ATTR_NOEXEC),
            (|asked| asked.nodiratime = true, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
            (|asked| asked.atime = AtimeFlag::Never, MountAttrFlags::MOUNT_ATTR_NOATIME),
            (|asked| asked.atime = AtimeFlag::Strict, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
        ];
        let plain = KernelOptions::new("/dev/sda1");
        assert_eq!(attributes(&plain), MountAttrFlags::MOUNT_ATTR_RELATIME);
        for (ask, flag) in rows {
            let mut asked = plain.clone();
            ask(&mut asked);
            assert_eq!(attributes(&asked), flag);
        }
    }
}
