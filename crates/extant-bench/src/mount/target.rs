//! The contenders, and an image mounted by one of them.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use extant_sync::{Clock, SystemClock};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::io::kernel::tool;
use crate::run::find;

/// Longest wait for a server to mount, or to end.
const WAIT: Duration = Duration::from_secs(60);

/// Who mounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The kernel's ext4 on a loop device.
    Ext4,
    /// `extant mount`.
    Extant,
    /// `fuse2fs` of e2fsprogs.
    Fuse2fs,
}

impl Target {
    /// All of them, in the order of the table.
    pub const ALL: [Target; 3] = [Target::Ext4, Target::Extant, Target::Fuse2fs];

    /// Its name in the table and in `TARGETS`.
    pub fn name(self) -> &'static str {
        match self {
            Target::Ext4 => "ext4",
            Target::Extant => "extant",
            Target::Fuse2fs => "fuse2fs",
        }
    }

    /// The command that serves `image` on `place` without going into the background.
    fn server(self, image: &Path, place: &Path) -> Option<Result<Command>> {
        let (name, args) = match self {
            Target::Ext4 => return None,
            Target::Extant => {
                let own = std::env::var("EXTANT").unwrap_or("target/release/extant".into());
                (own, &["mount", "--foreground"][..])
            }
            // Without this option it refuses to write what belongs to root.
            Target::Fuse2fs => ("fuse2fs".into(), &["-f", "-o", "fakeroot"][..]),
        };
        let path = find(&name).with_context(|| format!("{name} is not there"));
        Some(path.map(|path| {
            let mut command = Command::new(path);
            command.args(args).arg(image).arg(place);
            command
        }))
    }
}

/// A mounted image; unmounted when it is dropped, with everything that belongs to it.
pub struct Mounted {
    at: Option<tempfile::TempDir>,
    device: Option<String>,
    server: Option<Child>,
}

fn pause() {
    // Cut short by a signal is fine.
    let _ = rustix::thread::nanosleep(&rustix::thread::Timespec { tv_sec: 0, tv_nsec: 5_000_000 });
}

impl Mounted {
    /// Mounts `image`.
    ///
    /// # Errors
    ///
    /// Why it cannot: no root, no loop device, a program that is missing or says no.
    pub fn new(target: Target, image: &Path) -> Result<Mounted> {
        let at = tempfile::Builder::new().prefix("extant-bench-").tempdir()?;
        let place = at.path().to_owned();
        let mut mounted = Mounted { at: None, device: None, server: None };
        let Some(command) = target.server(image, &place) else {
            let name = image.to_string_lossy();
            // Direct I/O keeps the device's pages from being cached twice; not every tmpfs has it.
            let device = tool("losetup", &["--find", "--show", "--direct-io=on", &name])
                .or_else(|_| tool("losetup", &["--find", "--show", &name]))?;
            mounted.device = Some(device.clone());
            rustix::mount::mount(device.as_str(), &place, "ext4", MountFlags::empty(), None)
                .context("cannot mount ext4")?;
            mounted.at = Some(at);
            return Ok(mounted);
        };
        let before = std::fs::metadata(at.path())?;
        // A group of its own: a ^C is this program's to pass on. What it says stays visible.
        let server = command?.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0).spawn();
        mounted.server = Some(server.with_context(|| format!("cannot run {}", target.name()))?);
        mounted.at = Some(at);
        let end = SystemClock.monotonic() + WAIT;
        loop {
            use std::os::unix::fs::MetadataExt;
            if std::fs::metadata(&place)?.dev() != before.dev() {
                return Ok(mounted);
            }
            if let Some(status) =
                mounted.server.as_mut().map(Child::try_wait).transpose()?.flatten()
            {
                mounted.server = None;
                bail!("{} ended before it was mounted: {status}", target.name());
            }
            ensure!(SystemClock.monotonic() < end, "{} did not mount", target.name());
            pause();
        }
    }

    /// A path below the root.
    ///
    /// # Panics
    ///
    /// Never: it is mounted until it is closed.
    pub fn path(&self, name: &str) -> PathBuf {
        self.at.as_ref().expect("mounted until closed").path().join(name)
    }

    /// Returns what `extant stats` says of waits for locks; nothing where it cannot be asked.
    pub fn lock_waits(&self) -> Option<String> {
        let own = std::env::var("EXTANT").unwrap_or("target/release/extant".into());
        let output = Command::new(find(&own)?).arg("stats").arg(self.path("")).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().map(str::trim).find(|line| line.starts_with("Locks:"))?;
        Some(line.to_owned())
    }

    /// Unmounts; returns when the image is closed.
    ///
    /// # Errors
    ///
    /// When it cannot be unmounted, or the server fails at it.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let mut failed = None;
        if let Some(at) = self.at.take()
            && let Err(error) = unmount(at.path())
        {
            // Something else may look at it; what serves it ends when the mount does.
            let _ = rustix::mount::unmount(at.path(), UnmountFlags::DETACH);
            failed = Some(anyhow::anyhow!("cannot unmount {}: {error}", at.path().display()));
        }
        if let Some(mut server) = self.server.take() {
            let end = SystemClock.monotonic() + WAIT;
            let status = loop {
                if let Some(status) = server.try_wait()? {
                    break status;
                }
                if SystemClock.monotonic() > end {
                    let _ = server.kill();
                    break server.wait()?;
                }
                pause();
            };
            ensure!(status.success(), "the server ended with {status} after it was unmounted");
        }
        if let Some(device) = self.device.take() {
            tool("losetup", &["--detach", &device])?;
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Unmounts, and waits a little for whoever has just ended to let go.
fn unmount(path: &Path) -> rustix::io::Result<()> {
    for _ in 0..100 {
        match rustix::mount::unmount(path, UnmountFlags::empty()) {
            Err(Errno::BUSY) => pause(),
            other => return other,
        }
    }
    rustix::mount::unmount(path, UnmountFlags::empty())
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{error:#}");
        }
    }
}

/// Forgets what the kernel has cached and could read again.
///
/// # Errors
///
/// It takes root.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop caches: it takes root")
}
