//! Compressed clusters.

use std::io::{self, Read};
use std::sync::Arc;

use extant_sync::{Mutex, Rank};

use crate::error::damage;
use crate::header::Compression;
use crate::store::Store;

/// Memory for clusters that were decompressed, in bytes; at least [`KEPT_MIN`] of them.
const KEPT_BYTES: u64 = 4 << 20;
const KEPT_MIN: u64 = 2;

/// Returns the place of a cluster's compressed bytes from its entry: offset and largest length.
pub(crate) fn place(entry: u64, cluster_bits: u32) -> (u64, u64) {
    let shift = 62 - (cluster_bits - 8);
    let offset = entry & ((1 << shift) - 1);
    let sectors = ((entry >> shift) & ((1 << (cluster_bits - 8)) - 1)) + 1;
    (offset, sectors * 512 - (offset & 511))
}

/// The last clusters that were decompressed, by their entries.
pub(crate) struct Unpacked {
    kept: Mutex<Vec<(u64, Arc<Vec<u8>>)>>,
    max: usize,
}

impl Unpacked {
    pub(crate) fn new(cluster_bytes: u64) -> Unpacked {
        let max = (KEPT_BYTES / cluster_bytes).clamp(KEPT_MIN, 64) as usize;
        Unpacked { kept: Mutex::new(Rank::Leaf, Vec::new()), max }
    }

    /// Returns the bytes of a compressed cluster. Compressed bytes are never written in place, and
    /// the reader keeps them from being reused.
    pub(crate) fn get(
        &self,
        store: &dyn Store,
        entry: u64,
        cluster_bits: u32,
        compression: Compression,
    ) -> io::Result<Arc<Vec<u8>>> {
        {
            let mut kept = self.kept.lock();
            if let Some(at) = kept.iter().position(|(of, _)| *of == entry) {
                let found = kept.remove(at);
                kept.push(found.clone());
                return Ok(found.1);
            }
        }
        let (offset, len) = place(entry, cluster_bits);
        let mut packed = vec![0; len as usize];
        store.read_at(offset, &mut packed)?;
        let bytes = Arc::new(unpack(&packed, 1 << cluster_bits, compression).map_err(|error| {
            damage(format!(
                "the compressed cluster at byte {offset} cannot be decompressed: {error}"
            ))
        })?);
        let mut kept = self.kept.lock();
        if kept.len() >= self.max {
            kept.remove(0);
        }
        kept.push((entry, Arc::clone(&bytes)));
        Ok(bytes)
    }
}

/// Exactly `len` bytes; what follows them, and what follows the packed bytes, is of no interest.
fn unpack(packed: &[u8], len: usize, compression: Compression) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    match compression {
        Compression::Deflate => flate2::read::DeflateDecoder::new(packed).read_exact(&mut bytes)?,
        Compression::Zstd => {
            // A window no larger than what a cluster can need.
            let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?.single_frame();
            decoder.window_log_max(27)?;
            decoder.read_exact(&mut bytes)?;
        }
    }
    Ok(bytes)
}
