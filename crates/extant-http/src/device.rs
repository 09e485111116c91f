//! The device.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_block::{
    BlockDevice, DeviceError, DeviceFault, Operation, OperationKind, Pending, check_range,
    run_in_place,
};
use extant_sync::{Condvar, Mutex, MutexGuard, Rank, check_may_wait, threads};

use crate::address::Address;
use crate::disk::DiskPages;
use crate::error::HttpError;
use crate::pages::{Pages, Run};
use crate::remote::{Remote, Version};
use crate::settings::Settings;
use crate::source::Source;
#[cfg(feature = "s3")]
use crate::store::{Account, ObjectAddress, Signer};

/// Bytes of a page: what is fetched at least.
const PAGE_BYTES: u64 = 64 << 10;

/// Bytes that one request asks for at most.
const REQUEST_MOST: u64 = 4 << 20;

/// Bytes that are fetched and thrown away, if that saves a request: what comes in the time of an answer that is near.
const GAP_MOST: u64 = 256 << 10;

/// Least room for what is brought near.
const NEAR_LEAST: u64 = 2 * REQUEST_MOST;

/// Counts of a device's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HttpStats {
    /// Requests for ranges that were answered.
    pub requests: u64,
    /// Bytes that came with the answers.
    pub bytes: u64,
    /// Bytes that came from the cache on the disk.
    pub bytes_from_disk: u64,
}

/// A file behind an HTTP server, for reading.
///
/// Reads come from pages of 64 KiB in memory or fetch them; who reads on gets more at once, up to
/// 4 MiB. The reads of a batch are fetched side by side.
///
/// ```no_run
/// use extant_block::BlockDevice;
/// use extant_http::{Address, HttpDevice, Settings};
/// let address = Address::parse("http://images.example/root.img")?;
/// let device = HttpDevice::open(&address, &Settings::default())?;
/// println!("{} bytes", device.size_bytes());
/// # Ok::<(), extant_http::HttpError>(())
/// ```
pub struct HttpDevice {
    remote: Remote,
    version: Version,
    name: Arc<str>,
    pages: Mutex<Pages>,
    /// Rung when pages have come, or will not.
    arrived: Condvar,
    disk: Option<DiskPages>,
    connections: usize,
    near_bytes: u64,
    requests: AtomicU64,
    bytes: AtomicU64,
    bytes_from_disk: AtomicU64,
}

/// Pages that the holder fetches; until it is dropped, others wait for them (W4).
struct Claim<'a> {
    device: &'a HttpDevice,
    range: Range<u64>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.device.pages.lock().release(self.range.clone());
        self.device.arrived.notify_all();
    }
}

impl HttpDevice {
    /// Asks the server for the start of the file, and whether it gives ranges.
    ///
    /// # Errors
    ///
    /// [`HttpError`].
    pub fn open(address: &Address, settings: &Settings) -> Result<HttpDevice, HttpError> {
        HttpDevice::open_source(Source::Web(address.clone()), settings)
    }

    /// Asks a store for the start of an object.
    ///
    /// Each request is signed with the account's keys, if it has any. Of a store that names another region for the
    /// bucket, the object is asked for there.
    ///
    /// # Errors
    ///
    /// [`HttpError`].
    #[cfg(feature = "s3")]
    pub fn open_object(
        address: &ObjectAddress,
        account: &Account,
        settings: &Settings,
    ) -> Result<HttpDevice, HttpError> {
        let signer = Signer::new(address, account)?;
        HttpDevice::open_source(Source::Object(Box::new(signer)), settings)
    }

    fn open_source(source: Source, settings: &Settings) -> Result<HttpDevice, HttpError> {
        check_may_wait("a server");
        let name = source.shown();
        let remote = Remote::new(source, settings);
        let (start, version) = remote.fetch(0..PAGE_BYTES, None, Vec::new())?;
        let disk = match (&settings.disk_cache, remote.identity(&version)) {
            (Some(cache), Some(identity)) => Some(DiskPages::open(cache, &identity)?),
            _ => None,
        };
        let most = settings.cache_bytes / PAGE_BYTES;
        let mut pages = Pages::new(most);
        let bytes = start.len() as u64;
        pages.keep(Run { first: 0, bytes: Arc::new(start) }, 1);
        pages.note_stream(0..1);
        Ok(HttpDevice {
            remote,
            version,
            name: name.into(),
            pages: Mutex::new(Rank::Leaf, pages),
            arrived: Condvar::new(),
            disk,
            connections: settings.connections.max(1),
            near_bytes: match Pages::large_most(most) * PAGE_BYTES {
                // With less, what was brought would be forgotten before it is read.
                ..NEAR_LEAST => 0,
                bytes => bytes,
            },
            requests: AtomicU64::new(1),
            bytes: AtomicU64::new(bytes),
            bytes_from_disk: AtomicU64::new(0),
        })
    }

    /// Returns what tells the version of the file that is read from others: its length, and the entity tag or the
    /// time of the last change if the server names one. In at most 160 bytes.
    pub fn version(&self) -> String {
        self.remote.version_text(&self.version)
    }

    /// Returns the counts of the requests so far.
    pub fn stats(&self) -> HttpStats {
        HttpStats {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            bytes_from_disk: self.bytes_from_disk.load(Ordering::Relaxed),
        }
    }

    /// Returns the pages that hold bytes `offset..offset + len` of the file, which lie in it.
    fn pages_of(offset: u64, len: u64) -> Range<u64> {
        offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES)
    }

    /// Claims pages from `at` on for the caller to fetch, if `at` is not here. Waits for a thread
    /// that is fetching it.
    fn claim(&self, at: u64, wanted: u64) -> Result<Run, Claim<'_>> {
        let mut pages: MutexGuard<'_, Pages> = self.pages.lock();
        loop {
            if let Some(run) = pages.get(at, at.saturating_add(wanted)) {
                return Ok(run);
            }
            if !pages.is_coming(at) {
                break;
            }
            // Whoever fetches it has a time limit.
            self.arrived.wait(&mut pages);
        }
        let end = self.version.len.div_ceil(PAGE_BYTES);
        let range = pages.claim(at, wanted, REQUEST_MOST / PAGE_BYTES, end);
        Err(Claim { device: self, range })
    }

    /// Fetches what was claimed for a reader who may go on behind it, and returns it.
    fn fetch(&self, claim: Claim<'_>) -> Result<Run, HttpError> {
        let range = claim.range.clone();
        let run = self.bring(claim)?;
        self.pages.lock().note_stream(range);
        Ok(run)
    }

    /// Fetches what was claimed, and returns it.
    fn bring(&self, claim: Claim<'_>) -> Result<Run, HttpError> {
        let range = claim.range.clone();
        let bytes = match &self.disk {
            Some(disk) => self.fetch_missing(disk, range.clone())?,
            None => self.fetch_pages(range.clone())?,
        };
        let run = Run { first: range.start, bytes: Arc::new(bytes) };
        self.pages.lock().keep(run.clone(), range.end - range.start);
        drop(claim);
        Ok(run)
    }

    /// Fetches pages from the server.
    fn fetch_pages(&self, pages: Range<u64>) -> Result<Vec<u8>, HttpError> {
        let end = (pages.end * PAGE_BYTES).min(self.version.len);
        let room = self.pages.lock().room(pages.end - pages.start);
        let range = pages.start * PAGE_BYTES..end;
        let (bytes, _) = self.remote.fetch(range, Some(&self.version), room)?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Takes pages from the disk, and those that are not there from the server.
    fn fetch_missing(&self, disk: &DiskPages, pages: Range<u64>) -> Result<Vec<u8>, HttpError> {
        let len_of =
            |number: u64| (self.version.len - number * PAGE_BYTES).min(PAGE_BYTES) as usize;
        let mut all = Vec::new();
        let mut missing = pages.start..pages.start;
        for number in pages.clone() {
            let mut page = Vec::new();
            if !disk.read(number, len_of(number), &mut page) {
                missing.end = number + 1;
                continue;
            }
            self.fetch_and_keep(disk, missing, &mut all)?;
            self.bytes_from_disk.fetch_add(page.len() as u64, Ordering::Relaxed);
            all.append(&mut page);
            missing = number + 1..number + 1;
        }
        self.fetch_and_keep(disk, missing, &mut all)?;
        Ok(all)
    }

    fn fetch_and_keep(
        &self,
        disk: &DiskPages,
        missing: Range<u64>,
        all: &mut Vec<u8>,
    ) -> Result<(), HttpError> {
        if missing.is_empty() {
            return Ok(());
        }
        let first = missing.start;
        let mut bytes = self.fetch_pages(missing)?;
        let pages: Vec<&[u8]> = bytes.chunks(PAGE_BYTES as usize).collect();
        disk.keep(first, &pages);
        all.append(&mut bytes);
        Ok(())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), HttpError> {
        let pages = HttpDevice::pages_of(offset, out.len() as u64);
        let mut at = pages.start;
        while at < pages.end {
            // What was fetched is used from here: a small cache may have lost it again.
            let run = match self.claim(at, pages.end - at) {
                Ok(found) => found,
                Err(claim) => self.fetch(claim)?,
            };
            copy_part(run.first * PAGE_BYTES, &run.bytes, offset, out);
            at = run.first + (run.bytes.len() as u64).div_ceil(PAGE_BYTES);
        }
        Ok(())
    }

    /// Fetches the pages of several reads side by side. Errors are left to the reads.
    fn fetch_ahead(&self, reads: &[(u64, u64)]) {
        let mut wanted: Vec<u64> =
            reads.iter().flat_map(|(offset, len)| HttpDevice::pages_of(*offset, *len)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let runs: Vec<(u64, u64)> = wanted
            .chunk_by(|a, b| a + 1 == *b)
            .filter_map(|run| Some((*run.first()?, run.len() as u64)))
            .collect();
        if runs.len() < 2 {
            return;
        }
        self.side_by_side(runs.len(), |index| {
            let (start, len) = runs[index];
            match self.claim(start, len) {
                Err(claim) => self.fetch(claim).is_ok(),
                Ok(_) => true,
            }
        });
    }

    /// Does `work` for each number below `count`, in as many threads as there may be requests, each until it says
    /// that it is of no use to go on.
    fn side_by_side(&self, count: usize, work: impl Fn(usize) -> bool + Sync) {
        let threads = self.connections.min(count);
        if threads < 2 {
            (0..count).find(|index| !work(*index));
            return;
        }
        // Threads that cannot be started leave their part to the reads.
        let _ = threads::workers("http", threads, |thread| {
            (thread..count).step_by(threads).find(|index| !work(*index));
        });
    }

    /// Returns what of `ranges`, in bytes, is not here, as few runs of pages: what lies between two that are close to
    /// each other comes along.
    fn missing_of(&self, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        let len = self.version.len;
        let mut wanted: Vec<Range<u64>> = ranges
            .iter()
            .map(|range| range.start.min(len)..range.end.min(len))
            .filter(|range| !range.is_empty())
            .map(|range| HttpDevice::pages_of(range.start, range.end - range.start))
            .collect();
        wanted.sort_unstable_by_key(|range| range.start);
        let most = REQUEST_MOST / PAGE_BYTES;
        let mut room = self.near_bytes / PAGE_BYTES;
        let mut runs: Vec<Range<u64>> = Vec::new();
        let pages = self.pages.lock();
        for range in wanted {
            let mut at = range.start.max(runs.last().map_or(0, |run| run.end));
            while at < range.end && room > 0 {
                if pages.has(at) || pages.is_coming(at) {
                    at += 1;
                    continue;
                }
                match runs.last_mut() {
                    Some(run)
                        if at - run.end <= GAP_MOST / PAGE_BYTES && at + 1 - run.start <= most =>
                    {
                        room = room.saturating_sub(at + 1 - run.end);
                        run.end = at + 1;
                    }
                    _ => {
                        runs.push(at..at + 1);
                        room -= 1;
                    }
                }
                at += 1;
            }
        }
        runs
    }
}

/// Copies what `part`, which begins at byte `start`, has of the bytes from `offset` on.
fn copy_part(start: u64, part: &[u8], offset: u64, out: &mut [u8]) {
    let from = start.max(offset);
    let to = (start + part.len() as u64).min(offset + out.len() as u64);
    if from < to {
        // Both lie in a slice in memory.
        let within = |of: u64| (from - of) as usize..(to - of) as usize;
        out[within(offset)].copy_from_slice(&part[within(start)]);
    }
}

impl BlockDevice for HttpDevice {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let reads: Vec<(u64, u64)> = batch
            .iter()
            .filter_map(|operation| match operation {
                Operation::Read { offset, buffer } => Some((*offset, buffer.len() as u64)),
                _ => None,
            })
            .filter(|(offset, len)| {
                check_range(self, OperationKind::Read, *offset, *len).is_ok() && *len > 0
            })
            .collect();
        check_may_wait("a server");
        self.fetch_ahead(&reads);
        run_in_place(self, batch)
    }

    fn size_bytes(&self) -> u64 {
        self.version.len
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn describe(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        check_may_wait("a server");
        let (kind, len) = (OperationKind::Read, out.len() as u64);
        check_range(self, kind, offset, len)?;
        self.read(offset, out).map_err(|error| {
            let fault = DeviceFault::Io(error.into_io());
            DeviceError::new(self.describe(), kind, offset, len, fault)
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // Always an error: the device is read-only.
        check_range(self, OperationKind::Write, offset, bytes.len() as u64)
    }

    fn near_bytes(&self) -> u64 {
        self.near_bytes
    }

    fn bring_near(&self, ranges: &[Range<u64>]) {
        if self.near_bytes == 0 {
            return;
        }
        check_may_wait("a server");
        let runs = self.missing_of(ranges);
        let end = self.version.len.div_ceil(PAGE_BYTES);
        self.side_by_side(runs.len(), |index| {
            let run = &runs[index];
            let mut at = run.start;
            while at < run.end {
                // What others have begun meanwhile, or what lies between and is here, is passed over.
                let range = self.pages.lock().claim_exactly(at, run.end - at, end);
                at = range.end.max(at + 1);
                if !range.is_empty() && self.bring(Claim { device: self, range }).is_err() {
                    return false;
                }
            }
            true
        });
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(self, OperationKind::Discard, offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(self, OperationKind::WriteZeroes, offset, len)
    }
}

impl fmt::Debug for HttpDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpDevice({}, {} bytes)", self.name, self.version.len)
    }
}
