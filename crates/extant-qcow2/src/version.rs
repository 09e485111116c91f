//! Which version of its base an overlay was made over, where that is a file of this host.

use std::fmt::Write as _;

use crc_fast::{CrcAlgorithm, Digest};
use extant_block::{BlockDevice, partition};

use crate::error::Qcow2Error;

/// Bytes at the beginning of a disk, and of each of its partitions, that are compared: the superblocks of file systems and
/// the tables of partitions are in them, and whoever changes a file system changes its superblock.
const COMPARED_BYTES: u64 = 4096;

/// Returns the version of a disk: its size, and a sum of what is compared. Nothing but a write changes it.
pub(crate) fn version_of(device: &dyn BlockDevice) -> Result<String, Qcow2Error> {
    let size = device.size_bytes();
    // A disk without a table of partitions, or with a damaged one, is looked at as a whole.
    let partitions = partition::list(device).unwrap_or_default();
    let starts = partitions.iter().map(|one| one.offset);
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    for start in [0].into_iter().chain(starts) {
        let mut bytes = vec![0; size.saturating_sub(start).min(COMPARED_BYTES) as usize];
        device.read_at(start, &mut bytes)?;
        digest.update(&bytes);
    }
    let mut text = format!("{size} bytes");
    let _ = write!(text, ", beginning with sum {:016x}", digest.finalize());
    Ok(text)
}
