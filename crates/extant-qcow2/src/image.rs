//! An open image, and what its parts share.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_block::SharedDevice;
use extant_sync::{Mutex, Rank, RwLock};
use rustc_hash::FxHashSet;

use crate::compressed::Unpacked;
use crate::error::Qcow2Error;
use crate::header::{CORRUPT, DIRTY, Header, read_entries};
use crate::refcount::Refcounts;
use crate::snapshot::{self, Snapshot};
use crate::store::Store;
use crate::table::Tables;

/// Places in the order of locks that one device of a chain takes.
const ORDERS: u64 = 8;
/// Most images that lie over each other.
pub(crate) const CHAIN_MAX: u64 = 64;
/// Locks of parts of the disk in which clusters are being allocated.
const STRIPES: usize = 64;

/// A qcow2 image as a block device.
///
/// Reads and writes of clusters of this image go straight to the file. Changes of its tables stay
/// in memory until a flush, which writes counts first and references afterwards, so that a crash
/// leaves a consistent image (Q1). Many threads may use it: they wait for each other only to
/// allocate clusters in the same MiB.
pub struct Qcow2 {
    pub(crate) name: Arc<str>,
    pub(crate) header: Header,
    pub(crate) store: Box<dyn Store>,
    pub(crate) backing: Option<SharedDevice>,
    pub(crate) is_read_only: bool,
    pub(crate) l1: Vec<AtomicU64>,
    pub(crate) tables: Tables,
    pub(crate) unpacked: Unpacked,
    /// Held for reading by every operation, for writing while a flush takes what it will write.
    pub(crate) gate: RwLock<()>,
    pub(crate) stripes: Vec<Mutex<()>>,
    pub(crate) state: Mutex<State>,
    pub(crate) flushing: Mutex<()>,
    /// A sync failed: what is in the file is in doubt, and nothing is promised any more.
    pub(crate) is_failed: AtomicBool,
    snapshots: Vec<Snapshot>,
}

/// The state that allocations change.
pub(crate) struct State {
    /// `None` for what is read only.
    pub(crate) counts: Option<Refcounts>,
    /// Entries of the first table that changed.
    pub(crate) l1_changed: BTreeSet<usize>,
    /// Second tables that nothing in the file refers to yet.
    pub(crate) new_tables: FxHashSet<u64>,
    /// Clusters that lose a reference at the next flush.
    pub(crate) leaving: Vec<u64>,
    /// Clusters that have room on the disk.
    pub(crate) has_room: FxHashSet<u64>,
}

/// Facts of an image for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// Bytes of a cluster.
    pub cluster_bytes: u64,
    /// Bytes of the disk.
    pub size_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Clusters of the disk that the image itself has.
    pub own_clusters: u64,
    /// Clusters of the disk.
    pub clusters: u64,
    /// The name that it has for its backing image.
    pub backing: Option<String>,
    /// The format of that.
    pub backing_format: Option<String>,
    /// The version that a backing image at an address had.
    pub backing_version: Option<String>,
}

impl Qcow2 {
    /// Opens the image in `store`. `backing` is what it lies over, `depth` how many images that are.
    ///
    /// # Errors
    ///
    /// What [`Qcow2Error`] lists; to write, also when the image says that it is not consistent.
    pub fn open(
        store: Box<dyn Store>,
        name: &str,
        backing: Option<SharedDevice>,
        depth: u64,
        is_read_only: bool,
    ) -> Result<Qcow2, Qcow2Error> {
        let header = Header::read(&*store, name)?;
        Qcow2::with_header(store, name, header, backing, depth, is_read_only)
    }

    pub(crate) fn with_header(
        store: Box<dyn Store>,
        name: &str,
        header: Header,
        backing: Option<SharedDevice>,
        depth: u64,
        is_read_only: bool,
    ) -> Result<Qcow2, Qcow2Error> {
        let io = |source| Qcow2Error::Io { action: "read", path: name.into(), source };
        let marks = [(DIRTY, "dirty"), (CORRUPT, "corrupt")];
        if let Some((_, what)) =
            marks.iter().find(|(bit, _)| !is_read_only && header.incompatible & bit != 0)
        {
            return Err(Qcow2Error::NotWritable { name: name.to_owned(), what });
        }
        let l1 =
            read_entries(&*store, header.l1_offset, header.l1_needed() as usize).map_err(io)?;
        let snapshots = snapshot::read_all(&*store, &header).map_err(io)?;
        let counts = match is_read_only {
            true => None,
            false => {
                let mut all = l1.clone();
                let entries = header.l1_entries as usize;
                all.extend(read_entries(&*store, header.l1_offset, entries).map_err(io)?);
                Some(Refcounts::load(&*store, &header, &all).map_err(io)?)
            }
        };
        if !is_read_only && header.autoclear != 0 {
            // They describe structures that writes do not keep up to date.
            let clear = || store.write_at(88, &[0; 8]).and_then(|()| store.sync());
            clear().map_err(|source| Qcow2Error::Io {
                action: "write",
                path: name.into(),
                source,
            })?;
        }
        let order = CHAIN_MAX.saturating_sub(depth) * ORDERS;
        let cluster_bytes = header.cluster_bytes();
        let stripe = |_| Mutex::with_order(Rank::Device, order + 2, ());
        Ok(Qcow2 {
            name: name.into(),
            tables: Tables::new(cluster_bytes, order + 4),
            unpacked: Unpacked::new(cluster_bytes),
            l1: l1.into_iter().map(AtomicU64::new).collect(),
            header,
            store,
            backing,
            is_read_only,
            flushing: Mutex::with_order(Rank::Device, order, ()),
            gate: RwLock::with_order(Rank::Device, order + 1, ()),
            stripes: (0..STRIPES).map(stripe).collect(),
            state: Mutex::with_order(
                Rank::Device,
                order + 3,
                State {
                    counts,
                    l1_changed: BTreeSet::new(),
                    new_tables: FxHashSet::default(),
                    leaving: Vec::new(),
                    has_room: FxHashSet::default(),
                },
            ),
            is_failed: AtomicBool::new(false),
            snapshots,
        })
    }

    /// Opens this image as it was when a snapshot was taken, read only, over `backing`.
    pub(crate) fn at_snapshot(
        mut self,
        snapshot: &Snapshot,
        backing: Option<SharedDevice>,
    ) -> Result<Qcow2, Qcow2Error> {
        let header = Header {
            size: snapshot.size_bytes,
            l1_offset: snapshot.l1_offset,
            l1_entries: snapshot.l1_entries,
            ..self.header.clone()
        };
        let name = self.name.to_string();
        let damaged = |what| Qcow2Error::Damaged { name: name.clone(), what };
        let there = self.store.len().map_err(|error| damaged(error.to_string()))?;
        header.check_tables(there).map_err(damaged)?;
        let l1 = read_entries(&*self.store, header.l1_offset, header.l1_needed() as usize);
        let l1 =
            l1.map_err(|source| Qcow2Error::Io { action: "read", path: (&name).into(), source })?;
        self.l1 = l1.into_iter().map(AtomicU64::new).collect();
        self.header = header;
        self.backing = backing;
        Ok(self)
    }

    /// The snapshots that it holds, oldest first.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// Returns facts about the image. Reads all of its tables.
    ///
    /// # Errors
    ///
    /// Those of the reads.
    pub fn facts(&self) -> io::Result<Facts> {
        let mut own_clusters = 0;
        for at in 0..self.l1.len() {
            if let Some(table) = self.table(at)? {
                own_clusters += (0..table.len()).filter(|at| table.get(*at) != 0).count() as u64;
            }
        }
        let header = &self.header;
        Ok(Facts {
            version: header.version,
            cluster_bytes: header.cluster_bytes(),
            size_bytes: header.size,
            file_bytes: self.store.len()?,
            own_clusters,
            clusters: header.size.div_ceil(header.cluster_bytes()),
            backing: header.backing.as_ref().map(|name| String::from_utf8_lossy(name).into_owned()),
            backing_format: header.backing_format.clone(),
            backing_version: header.backing_version.clone(),
        })
    }

    pub(crate) fn check_health(&self) -> io::Result<()> {
        match self.is_failed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(io::Error::other(
                "an earlier sync of the image failed, and what was stored before it is in doubt",
            )),
        }
    }
}

impl std::fmt::Debug for Qcow2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qcow2")
            .field("name", &self.name)
            .field("size", &self.header.size)
            .finish_non_exhaustive()
    }
}
