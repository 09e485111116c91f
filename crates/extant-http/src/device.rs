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
use crate::pages::Pages;
use crate::remote::{Remote, Version};
use crate::settings::Settings;
use crate::source::Source;
#[cfg(feature = "s3")]
use crate::store::{Account, ObjectAddress, Signer};

/// Bytes of a page: what is fetched at least.
const PAGE_BYTES: u64 = 64 << 10;

/// Bytes that one request asks for at most.
const REQUEST_MOST: u64 = 4 << 20;

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
        let (start, version) = remote.fetch(0..PAGE_BYTES, None)?;
        let disk = match (&settings.disk_cache, remote.identity(&version)) {
            (Some(cache), Some(identity)) => Some(DiskPages::open(cache, &identity)?),
            _ => None,
        };
        let most = usize::try_from(settings.cache_bytes / PAGE_BYTES).unwrap_or(usize::MAX);
        let mut pages = Pages::new(most);
        let bytes = start.len() as u64;
        pages.keep(0, start.into());
        pages.note_stream(0..1);
        Ok(HttpDevice {
            remote,
            version,
            name: name.into(),
            pages: Mutex::new(Rank::Leaf, pages),
            arrived: Condvar::new(),
            disk,
            connections: settings.connections.max(1),
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
    fn claim(&self, at: u64, wanted: u64) -> Result<Arc<[u8]>, Claim<'_>> {
        let mut pages: MutexGuard<'_, Pages> = self.pages.lock();
        loop {
            if let Some(page) = pages.get(at) {
                return Ok(page);
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

    /// Fetches what was claimed, and returns it.
    fn fetch(&self, claim: Claim<'_>) -> Result<Vec<u8>, HttpError> {
        let range = claim.range.clone();
        let bytes = match &self.disk {
            Some(disk) => self.fetch_missing(disk, range.clone())?,
            None => self.fetch_pages(range.clone())?,
        };
        let parts: Vec<Arc<[u8]>> =
            bytes.chunks(PAGE_BYTES as usize).map(|part| part.into()).collect();
        let mut pages = self.pages.lock();
        range.clone().zip(parts).for_each(|(number, part)| pages.keep(number, part));
        pages.note_stream(range);
        drop(pages);
        drop(claim);
        Ok(bytes)
    }

    /// Fetches pages from the server.
    fn fetch_pages(&self, pages: Range<u64>) -> Result<Vec<u8>, HttpError> {
        let end = (pages.end * PAGE_BYTES).min(self.version.len);
        let (bytes, _) = self.remote.fetch(pages.start * PAGE_BYTES..end, Some(&self.version))?;
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
            let (start, bytes): (u64, Vec<u8>);
            let part: &[u8];
            let page;
            match self.claim(at, pages.end - at) {
                Ok(found) => {
                    page = found;
                    (start, part) = (at * PAGE_BYTES, &page);
                    at += 1;
                }
                Err(claim) => {
                    let next = claim.range.end;
                    start = at * PAGE_BYTES;
                    bytes = self.fetch(claim)?;
                    part = &bytes;
                    at = next;
                }
            }
            copy_part(start, part, offset, out);
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
        let count = self.connections.min(runs.len());
        if count < 2 {
            return;
        }
        // Threads that cannot be started leave their part to the reads.
        let _ = threads::workers("http", count, |index| {
            for (start, len) in runs.iter().skip(index).step_by(count) {
                if let Err(claim) = self.claim(*start, *len)
                    && self.fetch(claim).is_err()
                {
                    return;
                }
            }
        });
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
