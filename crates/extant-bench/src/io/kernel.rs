//! The kernel's ext4 and XFS on loop devices over tmpfs.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::side::{Dir, Handle, Volume};
use crate::run::find;

/// Runs a tool of the administrator and returns what it printed.
///
/// In a process group of its own: a ^C must not end it between making something and telling what.
pub(crate) fn tool(name: &str, args: &[&str]) -> Result<String> {
    let path = find(name).with_context(|| format!("{name} is not installed"))?;
    let output = Command::new(path)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} {}: {}\n{said}", args.join(" "), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A file of zeros, every page of it there: no contender is the first to touch the device.
///
/// # Errors
///
/// When it cannot be written.
pub fn zeros(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let chunk = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(chunk.len() as u64);
        file.write_all(&chunk[..usize::try_from(now)?])?;
        left -= now;
    }
    Ok(())
}

/// Makes an ext4 file system on a file that exists, keeping its pages.
///
/// # Errors
///
/// What mke2fs said.
pub fn make_ext4(image: &Path) -> Result<()> {
    make_ext4_with(image, "")
}

/// Makes an ext4 file system like [`make_ext4`], with further features.
///
/// # Errors
///
/// What mke2fs said.
pub fn make_ext4_with(image: &Path, features: &str) -> Result<()> {
    let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    let name = image.to_string_lossy();
    let mut args = vec!["-q", "-F", "-t", "ext4", "-E", options];
    if !features.is_empty() {
        args.extend(["-O", features]);
    }
    args.push(&name);
    tool("mke2fs", &args)?;
    Ok(())
}

/// Makes an XFS file system on a file that exists, keeping its pages.
///
/// # Errors
///
/// What `mkfs.xfs` said.
pub fn make_xfs(image: &Path) -> Result<()> {
    tool("mkfs.xfs", &["-q", "-f", "-K", &image.to_string_lossy()])?;
    Ok(())
}

/// Asks e2fsck whether an image is clean.
///
/// # Errors
///
/// What it found.
pub fn check_ext4(image: &Path) -> Result<()> {
    let report = extant_testkit::oracle::e2fsck(image).map_err(anyhow::Error::msg)?;
    ensure!(report.is_clean(), "e2fsck finds faults in {}:\n{}", image.display(), report.text);
    Ok(())
}

/// An image mounted through a loop device; both are gone when it is dropped.
pub struct Kernel {
    device: String,
    /// Where it is mounted; `None` when it is not. The directory outlives the mount.
    at: Option<tempfile::TempDir>,
    root: Option<OwnedFd>,
}

impl Kernel {
    /// Mounts `image`, which has a file system of the type `kind`.
    ///
    /// # Errors
    ///
    /// Why it cannot: no root, no loop device, no such file system in this kernel.
    pub fn mount(image: &Path, kind: &str) -> Result<Kernel> {
        let name = image.to_string_lossy();
        // Direct I/O keeps the device's pages from being cached twice; not every tmpfs has it.
        let device = tool("losetup", &["--find", "--show", "--direct-io=on", &name])
            .or_else(|_| tool("losetup", &["--find", "--show", &name]))?;
        let mut kernel = Kernel { device, at: None, root: None };
        let at = tempfile::Builder::new().prefix("extant-bench-").tempdir()?;
        rustix::mount::mount(kernel.device.as_str(), at.path(), kind, MountFlags::empty(), None)
            .with_context(|| format!("cannot mount {kind}"))?;
        let path = at.path().to_owned();
        kernel.at = Some(at);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        kernel.root = Some(rustix::fs::open(&path, flags, Mode::empty())?);
        Ok(kernel)
    }

    /// Returns where it is mounted.
    ///
    /// # Errors
    ///
    /// It is not mounted any more.
    pub fn path(&self) -> Result<&Path> {
        self.at.as_ref().map(tempfile::TempDir::path).context("not mounted")
    }

    fn end(&mut self) -> Result<()> {
        self.root = None;
        let mut failed = None;
        if let Some(at) = self.at.take()
            && let Err(error) = rustix::mount::unmount(at.path(), UnmountFlags::empty())
        {
            // Something else may look at it; the device goes when the mount does.
            let _ = rustix::mount::unmount(at.path(), UnmountFlags::DETACH);
            failed = Some(anyhow::anyhow!("cannot unmount {}: {error}", at.path().display()));
        }
        if !self.device.is_empty() {
            let device = std::mem::take(&mut self.device);
            tool("losetup", &["--detach", &device])?;
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{error:#}");
        }
    }
}

impl Volume for Kernel {
    type Dir = KernelDir;

    fn dir(&self, name: &str) -> Result<KernelDir> {
        let root = self.root.as_ref().context("not mounted")?;
        match rustix::fs::mkdirat(root, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(KernelDir { fd: rustix::fs::openat(root, name, flags, Mode::empty())? })
    }

    fn zeroing_flushes(&self) -> Option<u64> {
        None
    }

    fn close(mut self) -> Result<()> {
        self.end()
    }
}

/// A directory that is mounted already, as a volume.
#[cfg(test)]
pub(crate) struct Plain(pub(crate) tempfile::TempDir);

#[cfg(test)]
impl Volume for Plain {
    type Dir = KernelDir;

    fn dir(&self, name: &str) -> Result<KernelDir> {
        let path = self.0.path().join(name);
        if !path.exists() {
            std::fs::create_dir(&path)?;
        }
        Ok(KernelDir { fd: File::open(path)?.into() })
    }

    fn zeroing_flushes(&self) -> Option<u64> {
        None
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

/// A directory, by its descriptor: names are looked up in it alone.
pub struct KernelDir {
    fd: OwnedFd,
}

impl KernelDir {
    fn file(&self, name: &str, flags: OFlags) -> Result<KernelFile> {
        let mode = Mode::from_raw_mode(0o644);
        let fd = rustix::fs::openat(self.fd.as_fd(), name, flags | OFlags::CLOEXEC, mode)?;
        Ok(KernelFile { fd })
    }
}

impl Dir for KernelDir {
    type File = KernelFile;

    fn create(&self, name: &str) -> Result<KernelFile> {
        self.file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    fn open(&self, name: &str) -> Result<KernelFile> {
        self.file(name, OFlags::RDWR)
    }

    fn open_direct(&self, name: &str) -> Result<KernelFile> {
        self.file(name, OFlags::RDWR | OFlags::DIRECT)
    }

    fn open_to_read(&self, name: &str) -> Result<KernelFile> {
        self.file(name, OFlags::RDONLY)
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(u64::try_from(stat.st_size)?)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn unlink(&self, name: &str) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }
}

/// A file, by its descriptor.
pub struct KernelFile {
    fd: OwnedFd,
}

impl Handle for KernelFile {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize> {
        Ok(rustix::io::pread(&self.fd, out, at)?)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<usize> {
        Ok(rustix::io::pwrite(&self.fd, bytes, at)?)
    }

    fn write_direct(&mut self, at: u64, bytes: &[u8]) -> Result<usize> {
        self.write(at, bytes)
    }

    fn set_len(&mut self, len: u64) -> Result<()> {
        Ok(rustix::fs::ftruncate(&self.fd, len)?)
    }

    fn allocate(&mut self, at: u64, len: u64) -> Result<()> {
        Ok(rustix::fs::fallocate(&self.fd, rustix::fs::FallocateFlags::empty(), at, len)?)
    }

    fn forget(&mut self) -> Result<()> {
        Ok(rustix::fs::fadvise(&self.fd, 0, None, rustix::fs::Advice::DontNeed)?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    fn sync_data(&mut self) -> Result<()> {
        Ok(rustix::fs::fdatasync(&self.fd)?)
    }
}

/// When the kernel begins to write back, changed for the whole machine until it is dropped.
pub struct Dirty {
    before: Vec<(PathBuf, String)>,
}

const VM: &str = "/proc/sys/vm";

impl Dirty {
    /// Writeback in the background begins once `bytes` are dirty.
    ///
    /// # Errors
    ///
    /// When the limit cannot be read or set: it takes root.
    pub fn background(bytes: u64) -> Result<Dirty> {
        let ratio = Path::new(VM).join("dirty_background_ratio");
        let limit = Path::new(VM).join("dirty_background_bytes");
        let mut before = Vec::new();
        // Setting one of the two clears the other: the one that was set is the one to restore.
        for path in [&ratio, &limit] {
            let value = std::fs::read_to_string(path)?.trim().to_owned();
            if value != "0" {
                before.push((path.clone(), value));
            }
        }
        std::fs::write(&limit, bytes.to_string())
            .with_context(|| format!("cannot set {}", limit.display()))?;
        Ok(Dirty { before })
    }
}

impl Drop for Dirty {
    fn drop(&mut self) {
        for (path, value) in &self.before {
            if let Err(error) = std::fs::write(path, value) {
                eprintln!("cannot set {} back to {value}: {error}", path.display());
            }
        }
    }
}

/// Fails unless `bytes` may be dirty without the kernel beginning to write them back: then a
/// measurement of less than `dirty_expire_centisecs` is free of writeback.
///
/// # Errors
///
/// Then, naming the limit.
pub fn ensure_no_writeback(bytes: u64) -> Result<()> {
    let number = |name: &str| -> Result<u64> {
        let text = std::fs::read_to_string(Path::new(VM).join(name))?;
        text.trim().parse().with_context(|| format!("{name} is {text}"))
    };
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let kib = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .context("/proc/meminfo does not tell what is available")?;
    let limit = match number("dirty_background_bytes")? {
        0 => kib * 1024 / 100 * number("dirty_background_ratio")?,
        limit => limit,
    };
    if bytes > limit {
        bail!(
            "the kernel begins to write back at {} MiB, before {} MiB are written: \
             set SIZE lower or vm.dirty_background_ratio higher",
            limit >> 20,
            bytes >> 20
        );
    }
    Ok(())
}
