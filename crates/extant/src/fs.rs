//! An open file system: a volume, what writes to it if it is writable, and who has it.
//!
//! # Place
//!
//! Below: `volume` and `writer`, neither of which knows the other's owner. Above: `inode` and everything that
//! has to do with files gets at both through [`Fs::volume`]. Opening, recovering and ending is `mount`.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock, Weak};

use extant_base::{BlockSize, GroupIndex, Ino};
use extant_block::{BlockDevice, SharedDevice};
use extant_format::features::Features;
use extant_format::group::{GroupDescriptor, GroupFlags};
use extant_format::superblock::Superblock;
use extant_jbd2::{AbortReason, Client, EncodeError, EncodeSink, Tid};

use crate::alloc;
use crate::attempt::AttemptCounters;
use crate::error::{Family, Fault, FsError, Result};
use crate::node::{FileState, Node};
use crate::shared_cache::Sharer;
use crate::volume::{ReplaySummary, Volume};
use crate::writer::Writer;

/// A volume, and the writing side of one that is writable.
pub(crate) struct Mount {
    volume: Volume,
    /// Set once, before anybody else has the mount.
    writer: OnceLock<Writer>,
    me: Weak<Mount>,
    attempts: AttemptCounters,
}

impl Deref for Mount {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}

impl Mount {
    /// Without a writer.
    pub(crate) fn new(volume: Volume) -> Arc<Mount> {
        Arc::new_cyclic(|me| Mount {
            volume,
            writer: OnceLock::new(),
            me: Weak::clone(me),
            attempts: AttemptCounters::default(),
        })
    }

    /// The writing side.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] on a mount for reading only.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.writer.get().ok_or(FsError::ReadOnly)
    }

    /// Makes the mount a writable one.
    pub(crate) fn set_writer(&self, writer: Writer) {
        let _ = self.writer.set(writer);
    }

    /// What became of those who may not wait.
    pub(crate) fn attempts(&self) -> &AttemptCounters {
        &self.attempts
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writer.get().is_some()
    }

    /// Makes room for others from now on, if it shares a cache.
    pub(crate) fn join_cache(&self) {
        if let Some(shared) = self.shared_cache() {
            shared.join(Weak::<Mount>::clone(&self.me));
        }
    }

    /// Has another mount with the same cache make room in it. `false` when none could.
    pub(crate) fn relieve_sharers(&self) -> bool {
        let me: Weak<dyn Sharer> = Weak::<Mount>::clone(&self.me);
        self.shared_cache().is_some_and(|shared| shared.relieve(&me))
    }

    /// The file system whose mount this is; `None` while it ends.
    pub(crate) fn fs(&self) -> Option<Fs> {
        self.me.upgrade().map(Fs::of)
    }

    /// Makes the writes in place up to number `upto` durable: see [`Writer::flush_in_place`].
    pub(crate) fn flush_in_place(&self, upto: u64) -> Result<()> {
        self.writer()?.flush_in_place(self.device(), upto)
    }

    /// The descriptor of `group` as it is now.
    pub(crate) fn group(&self, group: GroupIndex) -> Result<GroupDescriptor> {
        match self.writer.get() {
            Some(writer) => writer.alloc().group(self, group),
            None => self.stored_group(group),
        }
    }

    /// The raw bytes of an inode, from its table and as fast commits changed it, and whether they
    /// did. `None` when the inode was never used: nothing was ever written in its place.
    pub(crate) fn raw_inode(&self, ino: Ino) -> Result<Option<(Vec<u8>, bool)>> {
        const NAME: &str = "inode";
        let (superblock, block_size) = (self.superblock(), self.block_size());
        let Some((group, index)) = superblock.group_of_inode(ino) else { return Ok(None) };
        let recorded = self.fast_commit().and_then(|overlay| overlay.inode(ino));
        let recorded = recorded.filter(|inode| inode.image().is_some());
        let descriptor = match self.group(group) {
            // Nothing is allocated there any more, and what is in its table can be read.
            Err(error) if error.family() == Family::Damage => self.stored_group(group)?,
            other => other?,
        };
        let never_used = self.has_uninit_groups()
            && (descriptor.flags.contains(GroupFlags::INODE_UNINIT)
                || index >= superblock.inodes_per_group.saturating_sub(descriptor.itable_unused));
        if never_used && recorded.is_none() {
            return Ok(None);
        }
        let inode_bytes = usize::from(superblock.inode_size);
        // The index is below 2^19 (8 inodes per byte of a 64 KiB bitmap), a record at most 64 KiB.
        let offset = u64::from(index) * inode_bytes as u64;
        let table = descriptor.inode_table;
        let at = table.checked_add(offset >> block_size.log2()).unwrap_or(table);
        self.check_blocks("inode table", None, at, 1)?;
        let start = (offset & u64::from(block_size.bytes() - 1)) as usize;
        let home = if never_used {
            vec![0; inode_bytes]
        } else {
            let block = self.read_block(at)?;
            let bytes = block.bytes().get(start..start + inode_bytes).ok_or_else(|| {
                FsError::corrupt(NAME, ino, at, Fault::Rule("the record ends after its block"))
            })?;
            bytes.to_vec()
        };
        Ok(Some(match recorded {
            Some(recorded) => (recorded.merge(&home), true),
            None => (home, false),
        }))
    }
}

/// How the journal reaches the mount: it is built before the writer is, and must not keep the
/// mount in memory.
#[derive(Default)]
pub(crate) struct MountClient {
    mount: OnceLock<Weak<Mount>>,
}

impl MountClient {
    /// Connects the journal to its mount; once, before the first handle.
    pub(crate) fn connect(&self, mount: &Arc<Mount>) {
        let _ = self.mount.set(Arc::downgrade(mount));
    }

    fn mount(&self) -> Option<Arc<Mount>> {
        self.mount.get()?.upgrade()
    }
}

impl Client for MountClient {
    fn encode(&self, _: Tid, sink: &mut EncodeSink<'_>) -> Result<(), EncodeError> {
        let Some(mount) = self.mount() else { return Ok(()) };
        let Ok(writer) = mount.writer() else { return Ok(()) };
        let encoded = writer.encode(&mount, sink);
        encoded.map_err(|error| EncodeError::new(error.errno(), error.with_causes()))
    }

    fn committed(&self, tid: Tid) {
        if let Some(mount) = self.mount()
            && let Ok(writer) = mount.writer()
        {
            writer.alloc().committed(&mount, tid);
        }
    }

    fn aborted(&self, reason: &AbortReason) {
        if let Some(mount) = self.mount()
            && let Ok(writer) = mount.writer()
        {
            let AbortReason { errno, why } = reason;
            log::error!("{}: the journal stopped, errno {errno}: {why}", mount.device().describe());
            // There is nobody left to tell when even this fails.
            let _ = writer.supers().stopped(writer.now().seconds);
        }
    }
}

/// An open file system. Cheap to clone; all clones share caches. `Send + Sync`, and every method
/// takes `&self`.
///
/// Two layers: paths, as in `std::fs` ([`read`](Fs::read), [`read_dir`](Fs::read_dir),
/// [`walk`](Fs::walk) and so on), and inodes ([`root`](Fs::root), [`inode`](Fs::inode),
/// [`Inode`](crate::Inode)).
#[derive(Clone)]
pub struct Fs {
    anchor: Arc<Anchor>,
    /// Keeps every anchor in existence while a caller holds an `Fs`; handles do without.
    _all: Option<Arc<[Arc<Anchor>]>>,
}

/// Number of anchors.
const ANCHORS: usize = 16;

/// One of several owners of a mount. Each handle and each look at an inode counts a reference; were
/// it always the same counter, threads in different directories would wait for its cache line.
#[repr(align(128))]
struct Anchor {
    mount: Arc<Mount>,
    /// All of them, this one too.
    all: OnceLock<Box<[Weak<Anchor>]>>,
}

impl Fs {
    /// The file system of a mount.
    pub(crate) fn of(mount: Arc<Mount>) -> Fs {
        let anchor = |_| Arc::new(Anchor { mount: Arc::clone(&mount), all: OnceLock::new() });
        let all: Arc<[Arc<Anchor>]> = (0..ANCHORS).map(anchor).collect();
        for anchor in all.iter() {
            let _ = anchor.all.set(all.iter().map(Arc::downgrade).collect());
        }
        Fs { anchor: Arc::clone(&all[0]), _all: Some(all) }
    }

    /// The same file system, by the anchor that belongs to an inode.
    pub(crate) fn near(&self, ino: Ino) -> Fs {
        let all = self.anchor.all.get();
        let chosen = all.and_then(|all| all.get(ino.0 as usize % ANCHORS)).and_then(Weak::upgrade);
        // Without callers' `Fs` the others may be gone; any one will do then.
        Fs { anchor: chosen.unwrap_or_else(|| Arc::clone(&self.anchor)), _all: None }
    }

    /// The volume, with its writer if it is writable.
    pub(crate) fn volume(&self) -> &Arc<Mount> {
        &self.anchor.mount
    }

    /// The superblock, as it is after the journal was looked through.
    pub fn superblock(&self) -> &Superblock {
        self.volume().superblock()
    }

    /// The features that are on.
    pub fn features(&self) -> &Features {
        self.volume().features()
    }

    /// Size of a block.
    pub fn block_size(&self) -> BlockSize {
        self.volume().block_size()
    }

    /// The device that everything is read from: the one given, or that device with the journal's
    /// blocks over it.
    pub fn device(&self) -> &SharedDevice {
        self.volume().device()
    }

    /// What the journal added; `None` when the image was clean, has no journal, or the journal was
    /// ignored.
    pub fn replayed(&self) -> Option<&ReplaySummary> {
        self.volume().replay()
    }

    /// The descriptor of a block group.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] past the last group; damage, its checksum included; device
    /// errors.
    pub fn group(&self, group: GroupIndex) -> Result<GroupDescriptor> {
        self.volume().group(group)
    }

    /// The free blocks of a block group: runs of numbers of blocks of the file system, in ascending order. A run
    /// that goes on in the next group is two. With clusters, whole ones. On a writable mount, what a commit
    /// of everything done so far would leave free.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] past the last group; damage of the descriptor or the bitmap, checksums
    /// and counts included; device errors.
    ///
    /// # Cost
    ///
    /// At most two blocks are read, and nothing of a group that was never written to.
    pub fn free_runs(&self, group: GroupIndex) -> Result<Vec<Range<u64>>> {
        let volume = self.volume();
        match volume.writer() {
            Ok(writer) => writer.alloc().free_runs(volume, group),
            Err(_) => alloc::free_runs(volume, group),
        }
    }

    /// The state of a regular file in use.
    pub(crate) fn file<'a>(&self, node: &'a Arc<Node>) -> Result<&'a FileState> {
        Ok(node.file(self.superblock(), self.volume().page_cache()?))
    }

    /// [`file`](Self::file) of a regular file; `None` of anything else. Whoever looks at the map of either
    /// holds the lock of this, or the content lock where there is none.
    pub(crate) fn file_of<'a>(&self, node: &'a Arc<Node>) -> Result<Option<&'a FileState>> {
        node.is_regular().then(|| self.file(node)).transpose()
    }
}

impl fmt::Debug for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fs")
            .field("device", &self.device().describe())
            .field("block_bytes", &self.block_size().bytes())
            .field("blocks", &self.superblock().blocks_count)
            .field("replayed", &self.replayed())
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn assert_send_sync<T: Send + Sync>() {}
    assert_send_sync::<Fs>();
};
