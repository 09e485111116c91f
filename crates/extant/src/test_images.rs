//! Images for unit tests.

use std::sync::Arc;

use extant_base::BlockSize;
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::superblock::Superblock;
use extant_sync::FixedClock;
use extant_testkit::oracle;

use crate::fs::Fs;
use crate::mount::MountOptions;

/// A superblock of revision 1 without features: one group of `blocks` blocks, 64 inodes of 256
/// bytes.
pub(crate) fn superblock(block_size: BlockSize, blocks: u32) -> Superblock {
    let mut bytes = [0; 1024];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let log = block_size.log2() - 10;
    put(0x00, &64u32.to_le_bytes());
    put(0x04, &blocks.to_le_bytes());
    put(0x14, &u32::from(block_size.bytes() == 1024).to_le_bytes());
    put(0x18, &log.to_le_bytes());
    put(0x1c, &log.to_le_bytes());
    put(0x20, &(block_size.bytes() * 8).to_le_bytes());
    put(0x24, &(block_size.bytes() * 8).to_le_bytes());
    put(0x28, &64u32.to_le_bytes());
    put(0x38, &0xef53u16.to_le_bytes());
    put(0x3a, &1u16.to_le_bytes());
    put(0x4c, &1u32.to_le_bytes());
    put(0x54, &11u32.to_le_bytes());
    put(0x58, &256u16.to_le_bytes());
    Superblock::decode_unverified(&bytes).expect("a sound superblock")
}

/// A file system in memory, made by mke2fs.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) device: Arc<MemoryDevice>,
    pub(crate) clock: Arc<FixedClock>,
}

impl Image {
    /// The error is the reason to skip the test. `script` is for debugfs, unless empty.
    pub(crate) fn make(size: &str, options: &[&str], script: &str) -> Result<Image, String> {
        let dir = extant_testkit::tempdir().map_err(|error| error.to_string())?;
        let path = dir.path().join("image");
        oracle::mke2fs(&path, size, options)?;
        if !script.is_empty() {
            oracle::debugfs(&path, true, script)?;
        }
        let device = Arc::new(extant_testkit::image::load(&path));
        Ok(Image { device, clock: Arc::new(FixedClock::at(1_700_000_000, 0)) })
    }

    pub(crate) fn options(&self) -> MountOptions {
        let clock = Arc::clone(&self.clock);
        MountOptions::new().read_only(false).clock(clock).seed(1).background(false)
    }

    /// Opened for writing.
    pub(crate) fn open(&self) -> Fs {
        self.options().open_shared(Arc::clone(&self.device) as _).expect("a writable mount")
    }

    /// The superblock as a mount would find it: the log's, if it has one.
    pub(crate) fn superblock(&self) -> Superblock {
        let options = self.options().read_only(true);
        let fs = options.open_shared(Arc::clone(&self.device) as _).expect("a mount");
        fs.superblock().clone()
    }

    /// The superblock in its place.
    pub(crate) fn superblock_at_home(&self) -> Superblock {
        let mut bytes = [0; 1024];
        self.device.read_at(1024, &mut bytes).expect("memory");
        Superblock::decode(&bytes).expect("a sound superblock")
    }

    /// Returns what e2fsck says.
    pub(crate) fn check(&self) -> oracle::FsckReport {
        let dir = extant_testkit::tempdir().expect("a temporary directory");
        let path = dir.path().join("image");
        extant_testkit::image::save(&self.device, &path);
        oracle::e2fsck(&path).expect("e2fsck")
    }

    /// A copy of the device as it is.
    pub(crate) fn copy(&self) -> Image {
        let device = MemoryDevice::new(self.device.size_bytes());
        self.device.for_each_page(|offset, bytes| device.write_at(offset, bytes)).expect("memory");
        Image { device: Arc::new(device), clock: Arc::clone(&self.clock) }
    }
}
