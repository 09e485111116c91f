//! The contract between a file system and the I/O code: what is behind a range of a file.
//!
//! # Rules
//!
//! - M1. An answer contains the first byte asked for, and at least that byte.
//! - M2. Offsets and lengths are in bytes and, for kinds with a device address, whole blocks.
//! - M3. The cookie is sampled under the lock of the lookup. It changes whenever the kind or the
//!   address of any block of the file changes; cookies are compared for equality only.
//! - M4. [`Mapper::end`] follows every [`Mapper::map`] that answered, also after an error. There a
//!   file system takes back what a [`MapFlags::NEW`] answer reserved and nobody used.
//! - M5. Writeback of a file is one thread at a time: [`Mapper::place`], the data, then
//!   [`Mapper::publish`] or [`Mapper::give_back`], for each placement exactly one of the two.

use std::ops::Range;
use std::sync::Arc;

use extant_block::{BlockDevice, DeviceError};

/// What somebody wants to do with the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Read it.
    Read,
    /// Write it through the cache: holes become delayed, space is promised.
    Write,
    /// Zero it: nothing is reserved, holes stay.
    Zero,
    /// Show how it is stored.
    Report,
}

/// How a range is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nothing is there; reads as zeros.
    Hole,
    /// Space is promised, no address yet; what is not in the cache reads as zeros.
    Delayed,
    /// At this byte of the device.
    Mapped(u64),
    /// At this byte of the device, which holds nothing of this file yet; reads as zeros.
    Unwritten(u64),
    /// These bytes, in the inode; beyond them zeros.
    Inline(Arc<[u8]>),
}

/// The value of a file's counter of mapping changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cookie(pub u64);

/// Why an attempt would have to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// Somebody has the folio locked.
    Folio,
    /// A block that is to be changed is on its way to the device.
    Writeback,
    /// The bytes, or those around them in their block, are not in memory.
    Device,
    /// No memory of the cache is free or can be freed at once.
    Memory,
    /// What is behind the range is not in memory, or somebody changes it.
    Map,
    /// There is no space to promise, unless a commit brings some back.
    Space,
}

/// What else is to be known about a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapFlags {
    /// This call reserved it: what of it is not used goes back by [`Mapper::end`].
    pub is_new: bool,
}

/// One answer of a [`Mapper`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First byte of the file.
    pub offset: u64,
    /// Bytes, at least 1.
    pub len: u64,
    /// How the bytes are stored.
    pub kind: Kind,
    /// Further properties of the range.
    pub flags: MapFlags,
    /// The state of the file's map in which the answer was true.
    pub cookie: Cookie,
}

impl Mapping {
    /// First byte of the file after it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Whether it says something about byte `at`.
    pub fn covers(&self, at: u64) -> bool {
        self.offset <= at && at < self.end()
    }

    /// The device address of byte `at` of the file, if it has one.
    pub fn address_of(&self, at: u64) -> Option<u64> {
        match self.kind {
            Kind::Mapped(start) | Kind::Unwritten(start) if self.covers(at) => {
                start.checked_add(at - self.offset)
            }
            _ => None,
        }
    }
}

/// Where writeback puts a run of dirty bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placed {
    /// Over blocks that hold data of the file already: nothing is to be published.
    Over,
    /// Into unwritten blocks: they become written.
    Convert,
    /// Into blocks that were taken in memory for it: they go into the map.
    Pinned,
    /// Nowhere: the range is a hole, so its dirty state is worth nothing.
    Nowhere,
}

/// An answer of [`Mapper::place`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// First byte of the file, the first byte of a block.
    pub offset: u64,
    /// Bytes: whole blocks.
    pub len: u64,
    /// Byte of the device where they go; 0 for [`Placed::Nowhere`].
    pub address: u64,
    /// What kind of place that is.
    pub placed: Placed,
}

/// What a pass of writeback has brought to the device.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Every placement whose data is there, in ascending order, apart.
    pub placements: Vec<Placement>,
    /// The stored size may be raised to the smaller of this and the size in memory.
    pub size_to: u64,
}

/// A file system's side of one file.
pub trait Mapper {
    /// What its operations fail with.
    type Error: From<DeviceError>;

    /// The device that addresses are on.
    fn device(&self) -> &dyn BlockDevice;

    /// The size of a block, as a power of two: 10 to 16.
    fn block_log2(&self) -> u32;

    /// The size in memory: what reads see.
    fn size(&self) -> u64;

    /// The size that a crash would leave; at most [`size`](Self::size) while the content lock is held.
    fn stored_size(&self) -> u64;

    /// There is no room in the cache: writes back something of any file. Whether there was anything.
    ///
    /// # Errors
    ///
    /// Those of that writeback.
    fn relieve(&self) -> Result<bool, Self::Error>;

    /// A reader will want more than is cached: if there is a thread to spare, let it call
    /// [`FileCache::fetch_next`](crate::FileCache::fetch_next) until that is false. Called with the
    /// content lock and pins held; waits for nothing.
    fn read_ahead(&self) {}

    /// Raises the size in memory, after the bytes are in the cache. The caller holds the content
    /// lock exclusively and the lock of the folio that has the new end.
    fn set_size(&self, size: u64);

    /// What is behind the first bytes of `range`, which is not empty.
    ///
    /// # Errors
    ///
    /// Damage, device errors; no space for [`Intent::Write`].
    fn map(&self, range: Range<u64>, intent: Intent) -> Result<Mapping, Self::Error>;

    /// [`map`](Self::map) for who may not wait: from memory, or not at all. Called with the lock of a folio. What
    /// it reserves is used whole, so [`end`](Self::end) does not follow. One that always refuses is correct.
    ///
    /// # Errors
    ///
    /// Why not, and nothing has changed then. Whatever error [`map`](Self::map) would answer is such a reason too:
    /// who may wait asks again, and meets it.
    fn try_map(&self, range: Range<u64>, intent: Intent) -> Result<Mapping, Obstacle> {
        let _ = (range, intent);
        Err(Obstacle::Map)
    }

    /// Whether mappings with this cookie are still true.
    fn is_current(&self, cookie: Cookie) -> bool;

    /// The first `used` bytes of the mapping were used.
    fn end(&self, mapping: &Mapping, used: u64, intent: Intent);

    /// A place for the first blocks of `range`: whole blocks, all dirty in the cache.
    ///
    /// # Errors
    ///
    /// Damage, device errors, no space.
    fn place(&self, range: Range<u64>) -> Result<Placement, Self::Error>;

    /// The data of these placements is on the device, though not yet durable: the map and the
    /// stored size follow, together.
    ///
    /// # Errors
    ///
    /// Those of the journal. Pins have been given back then.
    fn publish(&self, done: &Done) -> Result<(), Self::Error>;

    /// Blocks that hold data of the file are about to be written over outside of writeback, by any
    /// number of threads. The caller holds the content lock, shared.
    ///
    /// # Errors
    ///
    /// Nothing may be written any more; those of the journal, if it has to go first.
    fn begin_overwrite(&self) -> Result<(), Self::Error>;

    /// What [`begin_overwrite`](Self::begin_overwrite) was called for is on the device, or has failed; all of
    /// it on stable storage when it is `durable`.
    fn end_overwrite(&self, durable: bool);

    /// The data of these placements did not get to the device, or was not published.
    fn give_back(&self, placements: &[Placement]);
}
