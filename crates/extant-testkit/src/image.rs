//! From a device in memory to a file that other tools can open.

use std::path::Path;

use crate::oracle;
use extant_block::{BlockDevice, DeviceError, FileDevice, MemoryDevice};

/// A layout of an image: what mke2fs is told, and its size.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Arguments of mke2fs.
    pub words: &'static [&'static str],
    /// The size, such as `12M`.
    pub size: &'static str,
}

impl Layout {
    /// A layout.
    pub const fn new(words: &'static [&'static str], size: &'static str) -> Layout {
        Layout { words, size }
    }
}

/// What `e2fsck -fn` finds wrong with `device`, by way of a file in `dir`; empty: nothing.
///
/// # Errors
///
/// The program is not there.
pub fn e2fsck(device: &MemoryDevice, dir: &Path) -> Result<String, String> {
    let path = dir.join("fsck.img");
    let _removed = std::fs::remove_file(&path);
    save(device, &path);
    let report = oracle::e2fsck(&path)?;
    Ok(if report.is_clean() { String::new() } else { report.text })
}

/// Writes a memory device to a new sparse file. Panics if it cannot.
pub fn save(device: &MemoryDevice, path: &Path) {
    let file = FileDevice::create_new(path, device.size_bytes()).unwrap_or_else(|e| panic!("{e}"));
    let zeros = [0; 4096];
    device
        .for_each_page(|offset, bytes| {
            if zeros.starts_with(bytes) {
                return Ok::<(), DeviceError>(());
            }
            file.write_at(offset, bytes)
        })
        .unwrap_or_else(|e| panic!("{e}"));
}

/// Reads a file into a memory device; holes stay holes. Panics if it cannot.
pub fn load(path: &Path) -> MemoryDevice {
    let file = FileDevice::open_read_only(path).unwrap_or_else(|e| panic!("{e}"));
    let device = MemoryDevice::new(file.size_bytes());
    let mut buffer = vec![0; 1 << 20];
    for extent in crate::compare::data_ranges(file.file(), file.size_bytes()) {
        let mut at = extent.start;
        while at < extent.end {
            let len = (extent.end - at).min(buffer.len() as u64) as usize;
            file.read_at(at, &mut buffer[..len]).unwrap_or_else(|e| panic!("{e}"));
            device.write_at(at, &buffer[..len]).unwrap_or_else(|e| panic!("{e}"));
            at += len as u64;
        }
    }
    device
}
