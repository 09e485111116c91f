//! The targets in one place: disks over memory, or files of a disk.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use extant::{DirectFile, Fs, MountOptions, NewInode};
use extant_block::FileDevice;

use super::side::{BLOCK, Side};
use crate::io::kernel::{self, Kernel, tool};

/// What lies below the file systems.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Below {
    /// A loop device over a file, used as a disk.
    Loop,
    /// A file.
    File,
}

/// A loop device over a file; gone when it is dropped.
pub(super) struct Loop(PathBuf);

impl Loop {
    pub(super) fn over(path: &Path) -> Result<Loop> {
        let name = path.to_string_lossy();
        let device = tool("losetup", &["--find", "--show", "--direct-io=on", &name])
            .or_else(|_| tool("losetup", &["--find", "--show", &name]))?;
        Ok(Loop(device.into()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = tool("losetup", &["--detach", &self.0.to_string_lossy()]) {
            eprintln!("{error:#}");
        }
    }
}

/// One place with its targets, all of them full of blocks.
pub(super) struct Place {
    /// extant, its own ring without a file system, and, for fio, the raw target.
    pub(super) extant: Side,
    pub(super) ring: Side,
    pub(super) raw: PathBuf,
    /// The file on the kernel's ext4, if that can be mounted.
    pub(super) on_ext4: Option<PathBuf>,
    mounted: Option<Kernel>,
    loops: Vec<Loop>,
    images: [PathBuf; 2],
}

impl Place {
    pub(super) fn make(below: Below, dir: &Path, bytes: u64) -> Result<Place> {
        let at = |name: &str| dir.join(name);
        let room = bytes + bytes / 8 + (64 << 20);
        let (own, others, raw) = (at("extant.img"), at("ext4.img"), at("raw"));
        for (path, bytes) in [(&own, room), (&others, room), (&raw, bytes)] {
            kernel::zeros(path, bytes)?;
        }
        kernel::make_ext4(&own)?;
        kernel::make_ext4(&others)?;
        let mut loops = Vec::new();
        let mut device = |path: &Path| -> Result<PathBuf> {
            if below == Below::File {
                return Ok(path.to_owned());
            }
            loops.push(Loop::over(path)?);
            Ok(loops[loops.len() - 1].0.clone())
        };
        let (own_device, raw_device) = (device(&own)?, device(&raw)?);
        let (fs, file) = file_of(&own_device)?;
        let ring = Side::Device(FileDevice::open_read_write(&raw_device)?);
        let extant = Side::Extant(fs, file);
        let mounted = match extant_testkit::oracle::root("mounts an image through a loop device")
            .map_err(anyhow::Error::msg)
            .and_then(|()| Kernel::mount(&others, "ext4"))
        {
            Ok(mounted) => Some(mounted),
            Err(why) => {
                println!("ext4 is left out in {}: {why:#}", dir.display());
                None
            }
        };
        let mut on_ext4 = None;
        if let Some(mounted) = &mounted {
            let path = mounted.path()?.join("file");
            Side::Device(FileDevice::create_new(&path, bytes)?).fill(bytes)?;
            on_ext4 = Some(path);
        }
        extant.fill(bytes)?;
        ring.fill(bytes)?;
        let images = [own, others];
        Ok(Place { extant, ring, raw: raw_device, on_ext4, mounted, loops, images })
    }

    /// Unmounts all, and has e2fsck look at the images.
    pub(super) fn end(self) -> Result<()> {
        let Place { extant, ring, mounted, loops, images: [own, others], .. } = self;
        drop(ring);
        if let Side::Extant(fs, file) = extant {
            drop(file);
            fs.unmount()?;
        }
        let was_mounted = mounted.is_some();
        drop((mounted, loops));
        kernel::check_ext4(&own)?;
        if was_mounted { kernel::check_ext4(&others) } else { Ok(()) }
    }
}

/// A file on a fresh file system.
fn file_of(device: &Path) -> Result<(Fs, DirectFile)> {
    let fs = MountOptions::new().read_only(false).open_path(device)?;
    // mke2fs takes 1 KiB below 512 MiB, and blocks that are not aligned to pages go through the host's cache.
    let block_bytes = fs.block_size().bytes() as usize;
    anyhow::ensure!(
        block_bytes == BLOCK,
        "blocks of {block_bytes} bytes: SIZE has to be 512M or more"
    );
    let file = fs.root()?.create("file", &NewInode::root(0o644))?.direct();
    Ok((fs, file.context("cannot use a file past the cache")?))
}
