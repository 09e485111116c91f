//! The memory of all cached files: one range of addresses, and the only unsafe code.
//!
//! # Place
//!
//! Below the allocator of its pages (`buddy`) and all code that reads cached bytes. This module
//! knows offsets and lengths, not folios.
//!
//! # Shape
//!
//! A memfd as large as the cache may become, mapped once, in chunks of 2 MiB. Nothing is touched
//! until a chunk is used, and a free chunk can be given back. Without a memfd it is anonymous
//! memory, from which files cannot be mapped ([`Arena::is_shared`]).
//!
//! # Contract
//!
//! Bounds are checked here. Not checked is that no thread writes bytes while another reads or
//! writes them. The callers in this crate ensure that by their locks:
//!
//! - A1. Bytes of a unit are written by a thread that holds its folio's lock and the content lock
//!   of the file exclusively, while the unit is neither under writeback nor being filled; or by the
//!   one thread that fills the unit, which is not uptodate and which it has marked (`fill`).
//! - A2. They are read under the content lock when they are uptodate, or while the unit is under
//!   writeback.
//! - A3. Pages belong to the code that allocated them. A chunk is released by the code that
//!   allocated all of it.
//! - A4. References handed to a closure ([`fill`](Arena::fill), [`fill_many`](Arena::fill_many),
//!   [`view`](Arena::view), [`slices`](Arena::slices)) end with it; meanwhile A1 and A2 hold. So the
//!   memory that a device gets for a call is lent: the folios stay pinned, and the units being
//!   filled or under writeback, until the device has let go of it.
//!
//! A [`SharedMap`] is the exception caused by `mmap`: its holder may write at any time, as any
//! process may write to a file that others read. Such bytes reach the arena through another
//! address, and only whole bytes are ever copied from there: they may be torn, and no address,
//! length or branch depends on them.
#![expect(unsafe_code)]

mod copy;

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_sync::{Clock, SystemClock};
#[cfg(test)]
use rustix::fs::FallocateFlags;
use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::first_touch::FirstTouch;
use copy::copy;

/// Bytes of a chunk: what one entry of the page tables can map.
pub(crate) const CHUNK: u64 = 2 << 20;

/// The memory of the cache. The module's documentation defines which thread may access which bytes.
pub(crate) struct Arena {
    region: Region,
    /// The file behind the region; `None` for anonymous memory.
    memfd: Option<OwnedFd>,
    /// For each chunk, whether [`Arena::prepare`] was called since it was last empty.
    prepared: Box<[AtomicBool]>,
    first_touch: FirstTouch,
    collapsed: AtomicU64,
    failures: AtomicU64,
}

/// Counts of what the system did with [`Arena::prepare`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Prepared {
    /// Chunks that became one huge page.
    pub(crate) collapsed: u64,
    /// Chunks that did not.
    pub(crate) failures: u64,
}

impl Arena {
    /// Reserves addresses for `bytes`, rounded up to chunks; uses no memory yet.
    ///
    /// # Errors
    ///
    /// The address space or the limits of this process do not suffice.
    pub(crate) fn new(bytes: u64) -> io::Result<Arena> {
        Arena::over(bytes, memfd)
    }

    /// Anonymous memory, as where no memfd is to be had.
    #[cfg(test)]
    pub(crate) fn anonymous(bytes: u64) -> io::Result<Arena> {
        Arena::over(bytes, |_| None)
    }

    fn over(bytes: u64, memfd: impl FnOnce(u64) -> Option<OwnedFd>) -> io::Result<Arena> {
        let too_large =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("{bytes} bytes of cache"));
        let len = bytes.max(1).checked_next_multiple_of(CHUNK).ok_or_else(too_large)?;
        let size = usize::try_from(len).map_err(|_| too_large())?;
        let region = Region::reserve(size)?;
        let memfd = memfd(len);
        match &memfd {
            Some(file) => region.show(0, size, file, 0)?,
            None => region.fill_anonymous()?,
        }
        // Where the administrator allows it, the first touch gets a huge page at once.
        region.advise(0, size, Advice::LinuxHugepage);
        let chunks = size / CHUNK as usize;
        Ok(Arena {
            region,
            memfd,
            prepared: (0..chunks).map(|_| AtomicBool::new(false)).collect(),
            first_touch: FirstTouch::default(),
            collapsed: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        })
    }

    /// Returns the size of the address range in bytes: whole chunks.
    pub(crate) fn len(&self) -> u64 {
        self.region.len as u64
    }

    #[cfg(test)]
    /// Returns whether files can be mapped from it.
    pub(crate) fn is_shared(&self) -> bool {
        self.memfd.is_some()
    }

    /// Makes the first use of a whole chunk cheap. No bytes change, so it may run concurrently with
    /// any use of the chunk; the second call for a chunk returns at once. A refusal by the system
    /// does no harm.
    ///
    /// Filling 2 MiB by copying into pages that fault one by one takes 1000 to 1300 us here (2
    /// cores at 2.9 GHz, kernel 6.18, huge pages on advice and none for shared memory), 800 to 1050
    /// when all pages are made by one call (630 to 860 of them for that), 420 to 490 when one page
    /// is made and the chunk is then collapsed (270 for that), and 235 when it is there already.
    /// Made and then collapsed is the slowest, 1440 to 3190: all pages are copied. Where the system
    /// has to move pages of others to find a huge one, a collapse costs about as much as it saves,
    /// once. Where a host has to provide the huge page anew it takes 4000, and `first_touch` turns
    /// to small ones. Giving the memory back takes 5 us instead of 120 to 330.
    pub(crate) fn prepare(&self, chunk: u32) {
        let Some(prepared) = self.prepared.get(chunk as usize) else { return };
        // Relaxed: the flag guards no bytes.
        if prepared.load(Ordering::Relaxed) || prepared.swap(true, Ordering::Relaxed) {
            return;
        }
        let at = chunk as usize * CHUNK as usize;
        if self.first_touch.wants_huge() {
            let start = SystemClock.monotonic();
            // A chunk without any page is refused.
            self.region.advise(at, PAGE, Advice::LinuxPopulateWrite);
            if self.region.collapse(at, CHUNK as usize) {
                self.first_touch.note_huge(SystemClock.monotonic().saturating_sub(start));
                self.collapsed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            self.first_touch.note_refused();
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        let start = SystemClock.monotonic();
        self.region.advise(at, CHUNK as usize, Advice::LinuxPopulateWrite);
        self.first_touch.note_small(SystemClock.monotonic().saturating_sub(start));
    }

    /// Returns what became of [`prepare`](Arena::prepare), since the start.
    pub(crate) fn prepared(&self) -> Prepared {
        Prepared {
            collapsed: self.collapsed.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }

    #[cfg(test)]
    /// Returns the memory of a chunk to the system: it reads as zeros until it is used again. The
    /// caller owns the whole chunk (A3).
    ///
    /// # Errors
    ///
    /// The system's error; the chunk may then have kept its bytes.
    pub(crate) fn release(&self, chunk: u32) -> io::Result<()> {
        let at = u64::from(chunk) * CHUNK;
        self.check(at, CHUNK);
        match &self.memfd {
            Some(file) => rustix::fs::fallocate(
                file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                at,
                CHUNK,
            )?,
            None => self.region.forget(at as usize, CHUNK as usize)?,
        }
        self.prepared[chunk as usize].store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Writes `bytes` at `at` (A1).
    #[inline]
    pub(crate) fn copy_in(&self, at: u64, bytes: &[u8]) {
        let to = self.check(at, bytes.len() as u64);
        // SAFETY: `check` found room for all of `bytes` in the mapping, which lives as long as
        // `self`; no reference to these bytes of the arena exists and nobody else touches them
        // (A1, A4). `bytes` is not of the arena, or A4 would be broken.
        unsafe { copy(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
    }

    /// Prefetches the cache lines of bytes that will be written soon. A copy into memory that is
    /// not in the processor's caches waits for each line otherwise, and the next locked instruction
    /// waits for all of them.
    pub(crate) fn expect_write(&self, at: u64, len: u64) {
        #[cfg(target_arch = "x86_64")]
        self.prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(at, len);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (at, len);
    }

    /// Prefetches the cache lines of bytes that will be read soon. Between two small reads there
    /// are locked instructions, which keep the processor from looking ahead by itself: reading on
    /// in 4 KiB runs at 72 % of a plain copy without this, and as fast with it.
    pub(crate) fn expect_read(&self, at: u64, len: u64) {
        // Not into the first level, which the copy needs.
        #[cfg(target_arch = "x86_64")]
        self.prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at, len);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (at, len);
    }

    #[cfg(target_arch = "x86_64")]
    fn prefetch<const HINT: i32>(&self, at: u64, len: u64) {
        let from = self.check(at, len);
        for line in (0..len as usize).step_by(64) {
            // SAFETY: a prefetch accesses nothing and cannot fault; the address is inside the
            // mapping, which `check` saw to.
            unsafe { std::arch::x86_64::_mm_prefetch::<HINT>(from.as_ptr().add(line).cast()) };
        }
    }

    /// Reads the bytes at `at` into `out` (A2).
    #[inline]
    pub(crate) fn copy_out(&self, at: u64, out: &mut [u8]) {
        let from = self.check(at, out.len() as u64);
        // SAFETY: `check` found all of it in the mapping; nobody writes there (A2); `out` is
        // exclusive, so it overlaps nothing.
        unsafe { copy(from.as_ptr(), out.as_mut_ptr(), out.len()) }
    }

    /// Writes zeros (A1).
    #[inline]
    pub(crate) fn zero(&self, at: u64, len: u64) {
        let to = self.check(at, len);
        // SAFETY: as in `copy_in`; `check` made `len` fit the mapping, so it is a `usize`.
        unsafe { ptr::write_bytes(to.as_ptr(), 0, len as usize) }
    }

    #[cfg(test)]
    /// Copies `len` bytes inside the arena; the two places may overlap (A2 there, A1 here).
    pub(crate) fn copy_within(&self, from: u64, to: u64, len: u64) {
        let (from, to) = (self.check(from, len), self.check(to, len));
        // SAFETY: both ranges are in the mapping; nobody writes the first (A2) nor touches the
        // second (A1); `copy` allows overlap.
        unsafe { ptr::copy(from.as_ptr(), to.as_ptr(), len as usize) }
    }

    /// Calls `f` to write the range, as for a read from a device (A1). The earlier bytes are old
    /// data of any file: `f` must not expose them.
    pub(crate) fn fill<R>(&self, at: u64, len: u64, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let to = self.check(at, len);
        // SAFETY: in the mapping, initialized (memory of the system is zeroed), exclusive to
        // this thread while `f` runs (A1, A4).
        f(unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), len as usize) })
    }

    /// Calls `f` to write several ranges, each an offset and a length, in ascending order and
    /// disjoint, as [`fill`](Self::fill) does with one.
    ///
    /// # Panics
    ///
    /// When ranges overlap: a bug of this crate, which must not make two references to one byte.
    pub(crate) fn fill_many<R>(
        &self,
        ranges: &[(u64, u64)],
        f: impl FnOnce(Vec<&mut [u8]>) -> R,
    ) -> R {
        let mut free = 0;
        let memory = ranges.iter().map(|&(at, len)| {
            let to = self.check(at, len);
            assert!(at >= free, "ranges of the arena overlap at {at}");
            free = at + len;
            // SAFETY: as in `fill`, for each range; they are disjoint, which was checked just now.
            unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), len as usize) }
        });
        f(memory.collect())
    }

    #[cfg(test)]
    /// Calls `f` to read the range in place (A2).
    pub(crate) fn view<R>(&self, at: u64, len: u64, f: impl FnOnce(&[u8]) -> R) -> R {
        let from = self.check(at, len);
        // SAFETY: in the mapping, initialized, and not written while `f` runs (A2, A4).
        f(unsafe { std::slice::from_raw_parts(from.as_ptr(), len as usize) })
    }

    /// Calls `f` to read several ranges, each an offset and a length, as one request to a device
    /// (A2).
    pub(crate) fn slices<R>(&self, parts: &[(u64, u64)], f: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        let slices: Vec<IoSlice<'_>> = parts
            .iter()
            .map(|&(at, len)| {
                let from = self.check(at, len);
                // SAFETY: as in `view`, for each part; the slices end before this function does.
                IoSlice::new(unsafe { std::slice::from_raw_parts(from.as_ptr(), len as usize) })
            })
            .collect();
        f(&slices)
    }

    /// Maps pieces of the arena, each an offset and a length in whole pages, one after the other to
    /// an address range of their own. They stay mapped until the map is dropped, also after the
    /// arena; reuse of the pages meanwhile changes the mapped bytes.
    ///
    /// # Errors
    ///
    /// Anonymous memory ([`io::ErrorKind::Unsupported`]), nothing to map or parts of pages
    /// ([`io::ErrorKind::InvalidInput`]), or the system's error, such as too many mappings.
    pub(crate) fn map_range(&self, pieces: &[(u64, u64)]) -> io::Result<SharedMap> {
        let file = self.memfd.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let page = page_size() as u64;
        let mut total = 0;
        for &(at, len) in pieces {
            self.check(at, len);
            if len == 0 || !at.is_multiple_of(page) || !len.is_multiple_of(page) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            // Pieces may repeat, so the sum may be larger than the arena, but not than addresses.
            total = usize::try_from(len)
                .ok()
                .and_then(|len| len.checked_add(total))
                .ok_or(io::ErrorKind::InvalidInput)?;
        }
        if total == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let region = Region::reserve(total)?;
        let mut done = 0;
        for &(at, len) in pieces {
            region.show(done, len as usize, file, at)?;
            done += len as usize;
        }
        Ok(SharedMap { region })
    }

    /// Returns the address of a range of the arena.
    ///
    /// # Panics
    ///
    /// When the range is not inside: a bug of this crate, which must not reach foreign memory.
    #[inline]
    #[track_caller]
    fn check(&self, at: u64, len: u64) -> NonNull<u8> {
        self.region.check(at, len)
    }
}

/// Pages of the arena at an address range of their own, for a program that mapped a file.
///
/// The pages are shared: other threads change them, and see changes, at any moment.
pub(crate) struct SharedMap {
    region: Region,
}

impl SharedMap {
    #[cfg(test)]
    /// Returns the length of the map in bytes: a multiple of the page size.
    pub(crate) fn len(&self) -> u64 {
        self.region.len as u64
    }

    /// Returns the address of the first byte, valid until the map is dropped.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.region.base.as_ptr()
    }

    /// Copies bytes out; a concurrent write may show in part.
    ///
    /// # Panics
    ///
    /// When the range is not inside.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) {
        let from = self.region.check(at, out.len() as u64);
        // SAFETY: `check` found the range in the mapping, which `self` keeps. Bytes of shared
        // memory may change under the copy (see the head of this module): the result is a mix of
        // old and new bytes, and every byte is a valid `u8`.
        unsafe { copy(from.as_ptr(), out.as_mut_ptr(), out.len()) }
    }

    /// Copies bytes in; a concurrent reader may see part of them.
    ///
    /// # Panics
    ///
    /// When the range is not inside.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        let to = self.region.check(at, bytes.len() as u64);
        // SAFETY: as in `read`; `bytes` is ordinary memory of the caller, not this mapping, to
        // which no reference exists.
        unsafe { copy(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
    }
}

/// The smallest page of any system: advice about one is taken for the one it is in.
const PAGE: usize = 4096;

/// An address range of this process with one owner, which unmaps it.
///
/// # Invariants
///
/// - R1. `base..base + len` is mapped by this region only, from its creation to its drop.
/// - R2. `base` is a multiple of [`CHUNK`], `len` at most `isize::MAX`.
/// - R3. Once it is constructed, all of it may be read and written, and is initialized.
struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a region is plain memory, tied to no thread; who touches which byte when is the
// contract at the head of this module.
unsafe impl Send for Region {}
// SAFETY: as above; all methods that change what is mapped where run while the owner is made.
unsafe impl Sync for Region {}

#[cfg(not(miri))]
impl Region {
    /// `len` bytes of addresses, none of which may be touched yet.
    fn reserve(len: usize) -> io::Result<Region> {
        let align = CHUNK as usize;
        let len = len.next_multiple_of(page_size());
        let wide = len
            .checked_add(align)
            .filter(|wide| isize::try_from(*wide).is_ok())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address that the system chooses touches no other.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                wide,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?
        .cast::<u8>();
        let head = start.addr().next_multiple_of(align) - start.addr();
        // What is over on both sides goes back; a refusal costs addresses only.
        if head > 0 {
            // SAFETY: the first `head` bytes of what was just mapped, which nobody else knows.
            let _ = unsafe { rustix::mm::munmap(start.cast(), head) };
        }
        // SAFETY: `head < align`, so this stays inside the `len + align` bytes.
        let base = unsafe { start.add(head) };
        let tail = align - head;
        // SAFETY: the last `tail` bytes of what was just mapped: `head + len + tail == wide`.
        let _ = unsafe { rustix::mm::munmap(base.add(len).cast(), tail) };
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { base, len })
    }

    /// Shows `len` bytes of the file from `offset` at `at`.
    fn show(&self, at: usize, len: usize, file: &OwnedFd, offset: u64) -> io::Result<()> {
        let to = self.check(at as u64, len as u64);
        // SAFETY: replaces addresses of this region only (R1), which nobody has touched (R3).
        unsafe {
            rustix::mm::mmap(
                to.as_ptr().cast(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED,
                file,
                offset,
            )
        }?;
        Ok(())
    }

    /// Puts private memory behind all of it.
    fn fill_anonymous(&self) -> io::Result<()> {
        // SAFETY: as in `show`.
        unsafe {
            rustix::mm::mmap_anonymous(
                self.base.as_ptr().cast(),
                self.len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        }?;
        Ok(())
    }

    /// Advice that changes no bytes; whether it is taken does not matter.
    fn advise(&self, at: usize, len: usize, advice: Advice) {
        debug_assert!(matches!(advice, Advice::LinuxHugepage | Advice::LinuxPopulateWrite));
        let to = self.check(at as u64, len as u64);
        // SAFETY: inside this region (R1); neither piece of advice changes what can be read there.
        let _ = unsafe { rustix::mm::madvise(to.as_ptr().cast(), len, advice) };
    }

    /// Asks for one huge page behind these addresses; the bytes stay.
    fn collapse(&self, at: usize, len: usize) -> bool {
        let to = self.check(at as u64, len as u64);
        // SAFETY: inside this region (R1); the system replaces the pages by a copy, unseen even by
        // threads that write them.
        unsafe { libc::madvise(to.as_ptr().cast(), len, libc::MADV_COLLAPSE) == 0 }
    }

    #[cfg(test)]
    /// Drops the pages of private memory: reads as zeros afterwards.
    fn forget(&self, at: usize, len: usize) -> io::Result<()> {
        let to = self.check(at as u64, len as u64);
        // SAFETY: inside this region (R1); the caller of `release` has these bytes alone (A3).
        unsafe { rustix::mm::madvise(to.as_ptr().cast(), len, Advice::LinuxDontNeed) }?;
        Ok(())
    }
}

impl Region {
    #[inline]
    #[track_caller]
    fn check(&self, at: u64, len: u64) -> NonNull<u8> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len as u64);
        assert!(inside, "bytes {at}+{len} of an arena of {}", self.len);
        // SAFETY: `at <= len`, so the result is inside the region or at its end (R1, R2).
        unsafe { self.base.add(at as usize) }
    }
}

#[cfg(not(miri))]
impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the whole region and nothing else (R1); the owner is going, and with it every
        // borrow that a reference to these bytes could have come from (A4).
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Ordinary memory in place of mappings, which miri has not; all that is copied and lent is checked.
#[cfg(miri)]
impl Region {
    fn layout(len: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(len, CHUNK as usize).unwrap()
    }

    fn reserve(len: usize) -> io::Result<Region> {
        // SAFETY: `len` is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(Region::layout(len)) };
        Ok(Region { base: NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    fn show(&self, _: usize, _: usize, _: &OwnedFd, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn fill_anonymous(&self) -> io::Result<()> {
        Ok(())
    }

    fn advise(&self, _: usize, _: usize, _: Advice) {}

    fn collapse(&self, _: usize, _: usize) -> bool {
        false
    }

    fn forget(&self, at: usize, len: usize) -> io::Result<()> {
        // SAFETY: inside the region; the caller has these bytes alone (A3).
        unsafe { ptr::write_bytes(self.check(at as u64, len as u64).as_ptr(), 0, len) }
        Ok(())
    }
}

#[cfg(miri)]
impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `reserve` with this layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), Region::layout(self.len)) }
    }
}

/// Bytes of a page of this system: what can be mapped is whole pages.
fn page_size() -> usize {
    // SAFETY: reads a number of the C library; nothing is passed by address.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // Every system answers. A chunk is safe on any: it only refuses more.
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(CHUNK as usize)
}

/// Creates a file in memory of that many bytes, all holes; `None` where the system offers none.
fn memfd(len: u64) -> Option<OwnedFd> {
    if cfg!(miri) {
        return None;
    }
    // Above this limit growing a file ends the process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    if limit.current.is_some_and(|limit| limit < len) {
        return None;
    }
    // Kernels may insist on the flag about execution, and those before 6.3 do not know it.
    let name = c"extant-cache";
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC))
        .ok()?;
    rustix::fs::ftruncate(&file, len).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests;
