//! An open file system: a volume, its writing side if it is writable, and the references to both.
//!
//! # Place
//!
//! Below: `volume` and `writer`, neither of which knows the type that owns it. Above: `inode` and
//! the modules for files reach both through [`Fs::volume`]. Opening, recovering and ending is in
//! `mount`.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock, Weak};

use extant_base::{BlockSize, GroupIndex, Ino};
use extant_block::{BlockDevice, SharedDevice};
use extant_format::features::Features;
use extant_format::group::{GroupDescriptor, GroupFlags};
use extant_format::superblock::Superblock;
use extant_jbd2::{AbortReason, Client, Description, EncodeError, EncodeSink, FastSink, Tid};

use crate::alloc;
use crate::attempt::AttemptCounters;
use crate::error::{Family, Fault, FsError, Result};
use crate::node::{FileState, Node};
use crate::shared_cache::Sharer;
use crate::volume::{ReplaySummary, Volume};
use crate::writer::Writer;

/// A volume, and the writing side if it is writable.
pub(crate) struct Mount {
    volume: Volume,
    /// The writing side, set once, before the mount is shared.
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
    /// Creates a mount without a writer.
    pub(crate) fn new(volume: Volume) -> Arc<Mount> {
        Arc::new_cyclic(|me| Mount {
            volume,
            writer: OnceLock::new(),
            me: Weak::clone(me),
            attempts: AttemptCounters::default(),
        })
    }

    /// Returns the writing side.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] on a read-only mount.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.writer.get().ok_or(FsError::ReadOnly)
    }

    /// Makes the mount writable.
    pub(crate) fn set_writer(&self, writer: Writer) {
        let _ = self.writer.set(writer);
    }

    /// Returns the counters of attempts.
    pub(crate) fn attempts(&self) -> &AttemptCounters {
        &self.attempts
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writer.get().is_some()
    }

    /// Registers the mount with its shared cache, if it has one, so that it makes room for other
    /// mounts.
    pub(crate) fn join_cache(&self) {
        if let Some(shared) = self.shared_cache() {
            shared.join(Weak::<Mount>::clone(&self.me));
        }
    }

    /// Makes another mount with the same cache make room in it. Returns false when none could.
    pub(crate) fn relieve_sharers(&self) -> bool {
        let me: Weak<dyn Sharer> = Weak::<Mount>::clone(&self.me);
        self.shared_cache().is_some_and(|shared| shared.relieve(&me))
    }

    /// Returns the file system of this mount; `None` while it ends.
    pub(crate) fn fs(&self) -> Option<Fs> {
        self.me.upgrade().map(Fs::of)
    }

    /// Makes the writes in place up to number `upto` durable; see [`Writer::flush_in_place`].
    pub(crate) fn flush_in_place(&self, upto: u64) -> Result<()> {
        self.writer()?.flush_in_place(self.device(), upto)
    }

    /// Returns the current descriptor of `group`.
    pub(crate) fn group(&self, group: GroupIndex) -> Result<GroupDescriptor> {
        match self.writer.get() {
            Some(writer) => writer.alloc().group(self, group),
            None => self.stored_group(group),
        }
    }

    /// Returns the raw bytes of an inode, from its table or as fast commits changed it, and whether
    /// fast commits did. `None` when the inode was never used: its place in the table is
    /// uninitialised.
    pub(crate) fn raw_inode(&self, ino: Ino) -> Result<Option<(Vec<u8>, bool)>> {
        const NAME: &str = "inode";
        let (superblock, block_size) = (self.superblock(), self.block_size());
        let Some((group, index)) = superblock.group_of_inode(ino) else { return Ok(None) };
        let recorded = self.fast_commit().and_then(|overlay| overlay.inode(ino));
        let recorded = recorded.filter(|inode| inode.image().is_some());
        let descriptor = match self.group(group) {
            // The group is not allocated from any more, but inodes in its table can be read.
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
        // The index is below 2^19 (8 inodes per byte of a 64 KiB bitmap), and a record has at most
        // 64 KiB.
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

/// The journal's reference to the mount: the journal is built before the writer, and must not keep
/// the mount in memory.
#[derive(Default)]
pub(crate) struct MountClient {
    mount: OnceLock<Weak<Mount>>,
}

impl MountClient {
    /// Connects the journal to its mount, once, before the first handle.
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

    fn is_describable(&self) -> bool {
        let Some(mount) = self.mount() else { return false };
        let Ok(writer) = mount.writer() else { return false };
        let describes = writer.fast().describes();
        if !describes {
            writer.fast().count_refusal();
        }
        describes
    }

    fn describe(&self, _: Tid, sink: &mut FastSink) -> Description {
        let Some(mount) = self.mount() else { return Description::Full };
        match mount.writer() {
            Ok(writer) => writer.describe(&mount, sink),
            Err(_) => Description::Full,
        }
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
            // An error here has no caller to report to.
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
    /// Keeps all anchors alive while a caller holds an `Fs`; handles do without.
    _all: Option<Arc<[Arc<Anchor>]>>,
}

/// Number of anchors of a mount.
const ANCHORS: usize = 16;

/// One of several owners of a mount. Each handle and each lookup of an inode counts a reference;
/// with a single counter, threads in different directories would contend for its cache line.
#[repr(align(128))]
struct Anchor {
    mount: Arc<Mount>,
    /// All anchors of the mount, this one included.
    all: OnceLock<Box<[Weak<Anchor>]>>,
}

impl Fs {
    /// Creates the file system of a mount.
    pub(crate) fn of(mount: Arc<Mount>) -> Fs {
        let anchor = |_| Arc::new(Anchor { mount: Arc::clone(&mount), all: OnceLock::new() });
        let all: Arc<[Arc<Anchor>]> = (0..ANCHORS).map(anchor).collect();
        for anchor in all.iter() {
            let _ = anchor.all.set(all.iter().map(Arc::downgrade).collect());
        }
        Fs { anchor: Arc::clone(&all[0]), _all: Some(all) }
    }

    /// Returns the same file system, by the anchor that belongs to an inode.
    pub(crate) fn near(&self, ino: Ino) -> Fs {
        let all = self.anchor.all.get();
        let chosen = all.and_then(|all| all.get(ino.0 as usize % ANCHORS)).and_then(Weak::upgrade);
        // When no caller holds an `Fs`, the other anchors may be gone; this one will do then.
        Fs { anchor: chosen.unwrap_or_else(|| Arc::clone(&self.anchor)), _all: None }
    }

    /// Returns the mount: the volume, with its writer if it is writable.
    pub(crate) fn volume(&self) -> &Arc<Mount> {
        &self.anchor.mount
    }

    /// Returns the superblock, as it was when the file system was mounted, after the replay of the
    /// journal, with the numbers of its current size.
    pub fn superblock(&self) -> &Superblock {
        self.volume().superblock()
    }

    /// Returns the features of the file system.
    pub fn features(&self) -> &Features {
        &self.volume().superblock().features
    }

    /// Returns the size of a block.
    pub fn block_size(&self) -> BlockSize {
        self.volume().block_size()
    }

    /// Returns the device from which everything is read: the one given, or that device with the
    /// journal's blocks over it.
    pub fn device(&self) -> &SharedDevice {
        self.volume().device()
    }

    /// Returns what was replayed from the journal; `None` when the image was clean, has no journal,
    /// or the journal was ignored.
    pub fn replayed(&self) -> Option<&ReplaySummary> {
        self.volume().replay()
    }

    /// Returns the descriptor of a block group.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] past the last group; damage, its checksum included; device
    /// errors.
    pub fn group(&self, group: GroupIndex) -> Result<GroupDescriptor> {
        self.volume().group(group)
    }

    /// Returns the free blocks of a block group as runs of block numbers of the file system, in
    /// ascending order. A run that continues in the next group is two. With `bigalloc`, runs
    /// consist of whole clusters. On a writable mount, the result is as after a commit of
    /// everything done so far.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] past the last group; damage of the descriptor or the bitmap,
    /// checksums and counts included; device errors.
    ///
    /// # Cost
    ///
    /// At most two block reads, and none for a group that was never written to.
    pub fn free_runs(&self, group: GroupIndex) -> Result<Vec<Range<u64>>> {
        let volume = self.volume();
        match volume.writer() {
            Ok(writer) => writer.alloc().free_runs(volume, group),
            Err(_) => alloc::free_runs(volume, group),
        }
    }

    /// Returns the state of a regular file in use.
    pub(crate) fn file<'a>(&self, node: &'a Arc<Node>) -> Result<&'a FileState> {
        Ok(node.file(self.superblock(), self.volume().page_cache()?))
    }

    /// Returns the [`file`](Self::file) state of a regular file; `None` for other kinds. Code that
    /// reads the map of an inode holds the lock in this state, or the content lock if there is
    /// none.
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
