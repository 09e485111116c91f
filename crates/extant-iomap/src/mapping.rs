//! The contract between a file system and the I/O code: mappings of file ranges.
//!
//! # Rules
//!
//! - M1. A mapping contains at least the first byte asked for.
//! - M2. Offsets and lengths are in bytes and, for kinds with a device address, whole blocks.
//! - M3. The cookie is sampled under the lock of the lookup. It changes whenever the kind or the
//!   address of any block of the file changes; cookies are compared for equality only.
//! - M4. [`Mapper::end`] follows every [`Mapper::map`] that answered, also after an error. There a
//!   file system takes back the unused part of a reservation ([`MapFlags::is_new`]).
//! - M5. Writeback of a file is one thread at a time: [`Mapper::place`], the data, then
//!   [`Mapper::publish`] or [`Mapper::give_back`], for each placement exactly one of the two. A
//!   placement can be moved and not copied, and the file system's own data about it is its ticket.

use std::ops::Range;
use std::sync::Arc;

use extant_block::DeviceError;

use crate::contents::Contents;

/// Purpose of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Reading.
    Read,
    /// Writing through the cache: holes become delayed, space is promised.
    Write,
    /// Zeroing: nothing is reserved, holes stay.
    Zero,
    /// Reporting how the range is stored.
    Report,
}

/// How a range is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// No blocks: the range reads as zeros.
    Hole,
    /// Promised space without an address; bytes that are not cached read as zeros.
    Delayed,
    /// Blocks from this byte of the device on.
    Mapped(u64),
    /// Unwritten blocks from this byte of the device on; they read as zeros.
    Unwritten(u64),
    /// Inline data: the bytes themselves, with zeros beyond them.
    Inline(Arc<[u8]>),
}

/// The value of a file's counter of mapping changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cookie(pub u64);

/// Reason why an attempt would have to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// Another thread has locked the folio.
    Folio,
    /// A block to be changed is being written to the device.
    Writeback,
    /// The bytes, or their neighbours in the same block, are not in memory.
    Device,
    /// The cache has no free memory and cannot free any at once.
    Memory,
    /// The mapping is not in memory, or another thread is changing it.
    Map,
    /// There is no space to promise without a commit.
    Space,
}

/// Properties of a mapping besides its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapFlags {
    /// Whether this call reserved the range: the unused part returns by [`Mapper::end`].
    pub is_new: bool,
}

/// A mapping: how a range of a file is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// How the bytes are stored.
    pub kind: Kind,
    /// Further properties of the range.
    pub flags: MapFlags,
    /// The version of the file's map for which the mapping is valid.
    pub cookie: Cookie,
}

impl Mapping {
    /// Returns the first byte of the file after the mapping.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Returns whether the mapping covers byte `at`.
    pub fn covers(&self, at: u64) -> bool {
        self.offset <= at && at < self.end()
    }

    /// Returns the device address of byte `at` of the file, if it has one.
    pub fn address_of(&self, at: u64) -> Option<u64> {
        match self.kind {
            Kind::Mapped(start) | Kind::Unwritten(start) if self.covers(at) => {
                start.checked_add(at - self.offset)
            }
            _ => None,
        }
    }
}

/// Kind of place for a run of dirty bytes in writeback, with the file system's ticket `T` for
/// blocks taken for it.
#[derive(PartialEq, Eq, Debug)]
pub enum Placed<T> {
    /// Blocks that hold data of the file already: nothing is to be published.
    Over,
    /// Unwritten blocks, which become written.
    Convert,
    /// Blocks taken in memory, which are inserted into the map.
    Pinned(T),
    /// No place: the range is a hole, so its dirty state is void.
    Nowhere,
}

/// A place from [`Mapper::place`], to be passed to [`Mapper::publish`] or [`Mapper::give_back`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "what was taken for it is published or given back"]
pub struct Placement<T> {
    /// Offset of the first byte in the file, a multiple of the block size.
    pub offset: u64,
    /// Length in bytes: whole blocks.
    pub len: u64,
    /// Address of the first byte on the device; 0 for [`Placed::Nowhere`].
    pub address: u64,
    /// Kind of the place.
    pub placed: Placed<T>,
}

impl<T> Placement<T> {
    /// Returns the first byte of the file after the placement.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    pub(crate) fn ticket(&self) -> Option<&T> {
        match &self.placed {
            Placed::Pinned(ticket) => Some(ticket),
            Placed::Over | Placed::Convert | Placed::Nowhere => None,
        }
    }
}

/// The data that a pass of writeback has written to the device.
#[derive(Debug)]
pub struct Done<T> {
    /// Every placement whose data was written, in ascending order, disjoint.
    pub placements: Vec<Placement<T>>,
    /// The size to which the stored size may be raised, but not beyond the size in memory.
    pub size_to: u64,
    /// Whether `size_to` is a new end of the file: it becomes the size in memory once all placements
    /// are in the map, so that nobody sees the bytes before it as zeros. The caller keeps all others
    /// from moving the end.
    pub grows: bool,
}

/// The file system's side of one file.
pub trait Mapper {
    /// The error of the mapper's operations.
    type Error: From<DeviceError>;

    /// The file system's own data about blocks taken for a placement, until it is published or
    /// given back.
    type Ticket;

    /// Returns the way to the file's contents on the device of the addresses.
    ///
    /// # Errors
    ///
    /// The contents are encrypted, and their key is not there.
    fn contents(&self) -> Result<Contents<'_>, Self::Error>;

    /// Returns whether nobody may take the bytes from their addresses: the contents go through a
    /// [`Stage`](crate::Stage), are [checked](Self::checked_unit), or are [logged](Self::is_logged).
    fn is_staged(&self) -> bool {
        false
    }

    /// Returns the size of the units in which contents are checked before anybody sees them, in
    /// bytes: a power of two, at most the block size. `None` for contents that are not checked.
    fn checked_unit(&self) -> Option<u64> {
        None
    }

    /// Checks bytes at `offset` of the file, as the device has them, or zeros where it has none:
    /// whole units, the last one up to or over the end of the file. Called with the lock of a folio.
    ///
    /// # Errors
    ///
    /// They are not what they should be, or that cannot be found out.
    fn check(&self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        let _ = (offset, bytes);
        Ok(())
    }

    /// Returns the size of a block, as a power of two: 10 to 16.
    fn block_log2(&self) -> u32;

    /// Returns the size in memory, which reads see.
    fn size(&self) -> u64;

    /// Returns the size that remains after a crash; at most [`size`](Self::size) while the content
    /// lock is held.
    fn stored_size(&self) -> u64;

    /// Makes room in the cache by writing back some dirty data of any file. Returns whether there
    /// was any.
    ///
    /// # Errors
    ///
    /// Those of that writeback.
    fn relieve(&self) -> Result<bool, Self::Error>;

    /// Asks for read-ahead, because a reader will want more than is cached: a spare thread may call
    /// [`FileCache::fetch_next`](crate::FileCache::fetch_next) until that returns false. Called
    /// with the content lock and pins held; must not wait.
    fn read_ahead(&self) {}

    /// Sets the size in memory. The caller holds the content lock exclusively, and the lock of the
    /// folio that has the new end once the bytes are in the cache; or it holds the lock shared and
    /// keeps writeback out.
    fn set_size(&self, size: u64);

    /// Returns whether only a writer that holds the content lock exclusively may
    /// [map](Self::map) holes to write to them. Otherwise those that hold it shared may as well, in
    /// ranges that do not overlap.
    fn adds_alone(&self) -> bool {
        false
    }

    /// Returns the mapping of the first bytes of `range`, which is not empty.
    ///
    /// # Errors
    ///
    /// Damage, device errors; no space for [`Intent::Write`].
    fn map(&self, range: Range<u64>, intent: Intent) -> Result<Mapping, Self::Error>;

    /// Returns a mapping like [`map`](Self::map) from memory only, without waiting. Called with the
    /// lock of a folio. The whole reservation is used, so [`end`](Self::end) does not follow. An
    /// implementation that always refuses is correct.
    ///
    /// # Errors
    ///
    /// The obstacle; nothing has changed then. An error that [`map`](Self::map) would return is an
    /// obstacle too: a caller that may wait asks again, and gets it.
    fn try_map(&self, range: Range<u64>, intent: Intent) -> Result<Mapping, Obstacle> {
        let _ = (range, intent);
        Err(Obstacle::Map)
    }

    /// Returns whether mappings with this cookie are still valid.
    fn is_current(&self, cookie: Cookie) -> bool;

    /// Ends the use of a mapping, of which the first `used` bytes were used.
    fn end(&self, mapping: &Mapping, used: u64, intent: Intent);

    /// Returns a place for the first blocks of `range`: whole blocks, all dirty in the cache.
    /// `before` is the ticket of the last placement in front of it that has one and is neither
    /// published nor given back.
    ///
    /// # Errors
    ///
    /// Damage, device errors, no space.
    fn place(
        &self,
        range: Range<u64>,
        before: Option<&Self::Ticket>,
    ) -> Result<Placement<Self::Ticket>, Self::Error>;

    /// Publishes placements whose data is on the device, though not yet durable: updates the map
    /// and the stored size together.
    ///
    /// # Errors
    ///
    /// Those of the journal. Placements that were not published have been given back then.
    fn publish(&self, done: Done<Self::Ticket>) -> Result<(), Self::Error>;

    /// Returns whether the data itself goes into the transaction that publishes it: then writeback
    /// calls [`publish_logged`](Self::publish_logged), and writes nothing to the addresses. It does
    /// not change while writeback is held off.
    fn is_logged(&self) -> bool {
        false
    }

    /// Publishes placements like [`publish`](Self::publish), together with their data, of which
    /// `read` gives the bytes at an offset of the file. Called for files that are
    /// [logged](Self::is_logged) only.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish).
    fn publish_logged(
        &self,
        done: Done<Self::Ticket>,
        read: &dyn Fn(u64, &mut [u8]),
    ) -> Result<(), Self::Error> {
        let _ = read;
        self.publish(done)
    }

    /// Begins an overwrite, outside of writeback, of blocks that hold data of the file, by any
    /// number of threads. The caller holds the content lock, shared.
    ///
    /// # Errors
    ///
    /// An aborted mount; those of the journal, if a commit must come first.
    fn begin_overwrite(&self) -> Result<(), Self::Error>;

    /// Ends an overwrite that [`begin_overwrite`](Self::begin_overwrite) began, successful or not;
    /// `durable` says that all of it is on stable storage.
    fn end_overwrite(&self, durable: bool);

    /// Takes a placement back whose data was not written to the device.
    fn give_back(&self, placement: Placement<Self::Ticket>);
}
