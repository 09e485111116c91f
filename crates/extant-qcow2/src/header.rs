//! The first cluster of an image: header, extensions, name of the backing image.

use std::io;

use crate::error::Qcow2Error;
use crate::store::Store;

/// `QFI\xfb`.
pub(crate) const MAGIC: u32 = 0x5146_49fb;

/// Bytes of the header that are looked at: version 3 with its type of compression.
const HEADER_BYTES: usize = 112;
const VERSION_3_BYTES: u32 = 104;

/// Largest tables: as in qemu.
const L1_MAX_BYTES: u64 = 32 << 20;
const REFTABLE_MAX_BYTES: u64 = 8 << 20;
/// Highest size of the disk: what an entry of a table can address.
const SIZE_MAX: u64 = 1 << 56;
/// Longest name of a backing image: as in the specification.
pub(crate) const NAME_MAX: u32 = 1023;
/// Extensions that are looked at.
const EXTENSIONS_MAX: usize = 64;

const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;
/// Of extant: the version of a backing image at an address. Others keep what they do not know.
const EXTENSION_VERSION: u32 = 0x4558_5456;
/// Longest version of a backing image, in bytes: the extensions end before the first half sector does.
pub(crate) const VERSION_MAX: usize = 200;

pub(crate) const DIRTY: u64 = 1;
pub(crate) const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const SUBCLUSTERS: u64 = 1 << 4;

/// How compressed clusters are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compression {
    Deflate,
    Zstd,
}

/// The fields of the header, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) cluster_bits: u32,
    /// Of the disk, in bytes.
    pub(crate) size: u64,
    pub(crate) l1_offset: u64,
    pub(crate) l1_entries: u32,
    pub(crate) reftable_offset: u64,
    pub(crate) reftable_clusters: u32,
    pub(crate) snapshots: u32,
    pub(crate) snapshots_offset: u64,
    pub(crate) incompatible: u64,
    pub(crate) autoclear: u64,
    /// Bits of a reference count, as power of two.
    pub(crate) refcount_order: u32,
    pub(crate) compression: Compression,
    pub(crate) backing: Option<Vec<u8>>,
    pub(crate) backing_format: Option<String>,
    /// Version of a backing image at an address, as it was when the overlay was made.
    pub(crate) backing_version: Option<String>,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}

impl Header {
    /// Reads and checks the header.
    pub(crate) fn read(store: &dyn Store, name: &str) -> Result<Header, Qcow2Error> {
        let io = |source| Qcow2Error::Io { action: "read", path: name.into(), source };
        let damaged = |what: String| Qcow2Error::Damaged { name: name.to_owned(), what };
        let unsupported = |what: String| Qcow2Error::Unsupported { name: name.to_owned(), what };
        let mut start = [0; HEADER_BYTES];
        store.read_at(0, &mut start).map_err(io)?;
        if u32_at(&start, 0) != MAGIC {
            return Err(Qcow2Error::NotQcow2 { name: name.to_owned(), found: u32_at(&start, 0) });
        }
        let version = u32_at(&start, 4);
        if !(2..=3).contains(&version) {
            return Err(unsupported(format!(
                "version {version} of qcow2 is not known, 2 and 3 are"
            )));
        }
        let cluster_bits = u32_at(&start, 20);
        if !(9..=21).contains(&cluster_bits) {
            return Err(damaged(format!("clusters of 2^{cluster_bits} bytes, not 2^9 to 2^21")));
        }
        let cluster = 1u64 << cluster_bits;
        let size = u64_at(&start, 24);
        if size > SIZE_MAX {
            return Err(damaged(format!("a disk of {size} bytes, more than {SIZE_MAX}")));
        }
        match u32_at(&start, 32) {
            0 => {}
            method => {
                return Err(unsupported(format!(
                    "it is encrypted (method {method}), which is not supported"
                )));
            }
        }
        let (incompatible, autoclear, refcount_order, header_bytes) = match version {
            2 => (0, 0, 4, 72),
            _ => (u64_at(&start, 72), u64_at(&start, 88), u32_at(&start, 96), u32_at(&start, 100)),
        };
        if version == 3
            && !(u64::from(VERSION_3_BYTES)..=cluster).contains(&u64::from(header_bytes))
        {
            return Err(damaged(format!(
                "a header of {header_bytes} bytes in clusters of {cluster}"
            )));
        }
        if refcount_order > 6 {
            return Err(damaged(format!(
                "reference counts of 2^{refcount_order} bits, more than 64"
            )));
        }
        if incompatible & DATA_FILE != 0 {
            return Err(unsupported(
                "its data is in another file (external data file), which is not supported".into(),
            ));
        }
        if incompatible & SUBCLUSTERS != 0 {
            return Err(unsupported(
                "it has subclusters (extended_l2), which are not supported".into(),
            ));
        }
        let unknown = incompatible & !(DIRTY | CORRUPT | COMPRESSION);
        if unknown != 0 {
            return Err(unsupported(format!(
                "it needs features that are not known here (incompatible bits {unknown:#x})"
            )));
        }
        // The header is at least that long if the bit is set.
        let method = if incompatible & COMPRESSION != 0 { start[104] } else { 0 };
        let compression = match method {
            0 => Compression::Deflate,
            1 => Compression::Zstd,
            other => {
                return Err(unsupported(format!("its compression (type {other}) is not known")));
            }
        };
        let header = Header {
            version,
            cluster_bits,
            size,
            l1_entries: u32_at(&start, 36),
            l1_offset: u64_at(&start, 40),
            reftable_offset: u64_at(&start, 48),
            reftable_clusters: u32_at(&start, 56),
            snapshots: u32_at(&start, 60),
            snapshots_offset: u64_at(&start, 64),
            incompatible,
            autoclear,
            refcount_order,
            compression,
            backing: None,
            backing_format: None,
            backing_version: None,
        };
        let there = store.len().map_err(io)?;
        header.check_tables(there).map_err(damaged)?;
        let (offset, len) = (u64_at(&start, 8), u32_at(&start, 16));
        header.with_backing(store, name, (offset, len), header_bytes)
    }

    /// Checks the places of the tables in a file of `there` bytes.
    pub(crate) fn check_tables(&self, there: u64) -> Result<(), String> {
        let cluster = self.cluster_bytes();
        if !self.l1_offset.is_multiple_of(cluster) || self.l1_offset >= SIZE_MAX {
            return Err(format!("its first table at byte {} is not at a cluster", self.l1_offset));
        }
        if u64::from(self.l1_entries) * 8 > L1_MAX_BYTES {
            return Err(format!(
                "{} entries of its first table, more than {}",
                self.l1_entries,
                L1_MAX_BYTES / 8
            ));
        }
        if self.l1_needed() > u64::from(self.l1_entries) {
            return Err(format!(
                "{} entries in its first table, and {} are needed for {} bytes",
                self.l1_entries,
                self.l1_needed(),
                self.size
            ));
        }
        if !self.reftable_offset.is_multiple_of(cluster) || self.reftable_offset >= SIZE_MAX {
            return Err(format!(
                "its reference counts at byte {} are not at a cluster",
                self.reftable_offset
            ));
        }
        if u64::from(self.reftable_clusters) * cluster > REFTABLE_MAX_BYTES {
            return Err(format!(
                "a table of reference counts of {} clusters",
                self.reftable_clusters
            ));
        }
        // A field alone must not decide how much memory is used. Files made by qemu end inside the
        // last cluster.
        let there = there.next_multiple_of(cluster);
        let l1_end = self.l1_offset.saturating_add(self.l1_needed() * 8);
        let counts_end = self
            .reftable_offset
            .saturating_add(u64::from(self.reftable_clusters) << self.cluster_bits);
        if l1_end > there || counts_end > there || self.snapshots_offset > there {
            return Err(format!(
                "its tables end at byte {}, and the file at {there}",
                l1_end.max(counts_end).max(self.snapshots_offset)
            ));
        }
        Ok(())
    }

    /// Adds the name and the format of the backing image.
    fn with_backing(
        self,
        store: &dyn Store,
        name: &str,
        (offset, len): (u64, u32),
        header_bytes: u32,
    ) -> Result<Header, Qcow2Error> {
        let io = |source| Qcow2Error::Io { action: "read", path: name.into(), source };
        let damaged = |what: String| Qcow2Error::Damaged { name: name.to_owned(), what };
        if offset == 0 {
            return Ok(self);
        }
        let cluster = self.cluster_bytes();
        if len > NAME_MAX || offset.saturating_add(u64::from(len)) > cluster {
            return Err(damaged(format!(
                "the name of its backing image, {len} bytes at byte {offset}"
            )));
        }
        let mut first = vec![0; cluster as usize];
        store.read_at(0, &mut first).map_err(io)?;
        let backing = first[offset as usize..][..len as usize].to_vec();
        let (mut format, mut version) = (None, None);
        let mut at = header_bytes as usize;
        for _ in 0..EXTENSIONS_MAX {
            if at + 8 > offset as usize {
                break;
            }
            let (kind, len) = (u32_at(&first, at), u32_at(&first, at + 4) as usize);
            if kind == 0 {
                break;
            }
            let Some(data) = first.get(at + 8..).and_then(|rest| rest.get(..len)) else {
                return Err(damaged(format!(
                    "an extension of its header of {len} bytes at byte {at}"
                )));
            };
            if kind == EXTENSION_BACKING_FORMAT {
                format = Some(String::from_utf8_lossy(data).into_owned());
            }
            if kind == EXTENSION_VERSION {
                version = Some(String::from_utf8_lossy(data).into_owned());
            }
            at += 8 + len.next_multiple_of(8);
        }
        Ok(Header {
            backing: Some(backing),
            backing_format: format,
            backing_version: version,
            ..self
        })
    }

    pub(crate) fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Entries of a second table, as power of two: 8 bytes each, one cluster.
    pub(crate) fn l2_bits(&self) -> u32 {
        self.cluster_bits - 3
    }

    /// Bytes of the disk that one second table is for, as power of two.
    pub(crate) fn l2_reach_bits(&self) -> u32 {
        self.cluster_bits + self.l2_bits()
    }

    /// Entries of the first table that the disk needs.
    pub(crate) fn l1_needed(&self) -> u64 {
        self.size.div_ceil(1 << self.l2_reach_bits())
    }

    /// The first cluster: the name of the backing image lies in its second half sector and behind.
    ///
    /// Version 3 always, and 16 bits for a count.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(2048);
        let name = self.backing.clone().unwrap_or_default();
        let name_at = if name.is_empty() { 0 } else { 512u64 };
        bytes.extend_from_slice(&MAGIC.to_be_bytes());
        bytes.extend_from_slice(&3u32.to_be_bytes());
        bytes.extend_from_slice(&name_at.to_be_bytes());
        bytes.extend_from_slice(&(name.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&self.cluster_bits.to_be_bytes());
        bytes.extend_from_slice(&self.size.to_be_bytes());
        bytes.extend_from_slice(&0u32.to_be_bytes());
        bytes.extend_from_slice(&self.l1_entries.to_be_bytes());
        bytes.extend_from_slice(&self.l1_offset.to_be_bytes());
        bytes.extend_from_slice(&self.reftable_offset.to_be_bytes());
        bytes.extend_from_slice(&self.reftable_clusters.to_be_bytes());
        bytes.extend_from_slice(&[0; 12]);
        bytes.extend_from_slice(&[0; 24]);
        bytes.extend_from_slice(&self.refcount_order.to_be_bytes());
        bytes.extend_from_slice(&(HEADER_BYTES as u32).to_be_bytes());
        bytes.extend_from_slice(&[0; 8]);
        let format = self.backing_format.as_deref();
        bytes.extend_from_slice(&backing_extensions(format, self.backing_version.as_deref()));
        if !name.is_empty() {
            bytes.resize(512, 0);
            bytes.extend_from_slice(&name);
        }
        bytes
    }
}

/// The extensions of a header that tell more of its backing image, and their end.
pub(crate) fn backing_extensions(format: Option<&str>, version: Option<&str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, text) in [(EXTENSION_BACKING_FORMAT, format), (EXTENSION_VERSION, version)] {
        let Some(text) = text else { continue };
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&(text.len() as u32).to_be_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes.extend_from_slice(&[0; 8]);
    bytes
}

/// Returns whether the first 8 bytes are those of an image. Version 1 is another format with the
/// same name.
pub(crate) fn is_qcow2(start: &[u8]) -> bool {
    u32_at(start, 0) == MAGIC && u32_at(start, 4) != 1
}

/// Entries of big-endian numbers that lie at `offset`.
pub(crate) fn read_entries(store: &dyn Store, offset: u64, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    store.read_at(offset, &mut bytes)?;
    Ok(bytes.chunks_exact(8).map(|entry| u64_at(entry, 0)).collect())
}
