//! Requests and answers as bytes, for transports that carry them whole and know another machine at their
//! other end: virtiofs.
//!
//! # Shape
//!
//! ```text
//! exchange(fs, …, |exchange| …)      from the first request to the last
//! exchange.answer(lane, bytes, out)  one request: any thread, any number at once
//! exchange.rest()                    the other side is gone: what it wrote becomes durable
//! ```
//!
//! # Invariants
//!
//! - X1. The kernel at the other side cannot be told anything besides answers. So it never collects writes
//!   (`WRITEBACK_CACHE`), and keeps attributes for a second only, those of files with set-id bits not at all.
//! - X2. Its numbers of threads mean nothing here, and no user of it is the operator of this server: orders,
//!   statistics, and what reaches beyond the image are not for it.
//! - X3. A first request begins anew: whatever was known to the one before (a guest that was reset) is forgotten.
//!   Without one nothing is answered. A transport that comes back without it goes on where it was.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use extant::Fs;
use extant_sync::{Clock, SystemClock};
use zerocopy::IntoBytes;

use crate::abi::{self, OutHeader, op};
use crate::connection::{Request, code};
use crate::dispatch::{Contents, Desk, Outcome, init_in};
use crate::events::{Events, Level, ServeError};
use crate::ext4::{Ext4, Served, Terms};
use crate::kernel::Kernel;
use crate::operations::{Errno, NodeId, Operations, ReadAnswer};
use crate::session::{WRITE_HEAD, agree, attempt};
use crate::settings::{RingUse, Settings};
use crate::stats::RequestStats;

/// Of answers that did not fit, and of requests that make no sense, one in this many is logged.
const LOG_STEP: u64 = 1000;
const EPROTO: Errno = Errno(71);

/// The place for one answer.
pub trait Answer {
    /// Takes the whole answer, its parts one after the other. Called once, or again after it failed.
    ///
    /// # Errors
    ///
    /// The answer does not fit; nothing was taken.
    fn put(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()>;
}

/// A kernel that hears nothing but answers.
struct Deaf;

impl Kernel for Deaf {
    fn drop_cached(&self, _: NodeId, _: i64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn drop_attributes(&self, _: NodeId) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn may_wait_here(&self) -> bool {
        false
    }
}

/// A file system that answers requests given as bytes.
pub struct Exchange<'a> {
    operations: Ext4<'a>,
    settings: &'a Settings,
    events: &'a dyn Events,
    stats: Arc<RequestStats>,
    clock: Arc<dyn Clock>,
    time_gran: u32,
    /// Most bytes of a write that were agreed on; 0 before the first request.
    write_max: AtomicU32,
    complaints: AtomicU64,
}

/// Serves `fs` for as long as `work` runs, then ends it: everything is written and the image is clean.
///
/// Of `settings`, what needs a kernel of this host (`writeback_cache`, `ring`, `idmapped`,
/// `may_become_writable`) has no effect.
///
/// # Errors
///
/// [`ServeError::End`]: not everything could be written.
pub fn exchange<R>(
    fs: Fs,
    settings: &Settings,
    events: &dyn Events,
    work: impl FnOnce(&Exchange<'_>) -> R,
) -> Result<R, ServeError> {
    let settings = Settings {
        writeback_cache: false,
        ring: RingUse::Never,
        idmapped: false,
        may_become_writable: false,
        ..settings.clone()
    };
    let time_gran = if fs.superblock().inode_size > 128 { 1 } else { 1_000_000_000 };
    let served = Served::new(fs, &settings);
    let stats = Arc::new(RequestStats::new(settings.threads.clamp(1, 64), 0));
    let terms = Terms { holds_writes_back: false, may_wait: 0, over_rings: false, is_far: true };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let done = {
        let (requests, clock) = (Arc::clone(&stats), Arc::clone(&clock));
        let operations =
            served.operations(Arc::new(Deaf), &terms, requests, clock, &settings, events);
        let exchange = Exchange {
            operations,
            settings: &settings,
            events,
            stats,
            clock: Arc::new(SystemClock),
            time_gran,
            write_max: AtomicU32::new(0),
            complaints: AtomicU64::new(0),
        };
        events.ready();
        work(&exchange)
    };
    served.end()?;
    Ok(done)
}

impl Exchange<'_> {
    /// Returns how many bytes the largest request has.
    pub fn request_bytes_max(&self) -> usize {
        self.settings.write_bytes_max.clamp(4096, 1 << 20) as usize + WRITE_HEAD
    }

    /// Threads that should answer.
    pub fn threads(&self) -> usize {
        self.stats.threads()
    }

    /// Answers one request. `lane` is the number of the calling thread, for statistics. Requests without
    /// an answer put nothing.
    pub fn answer(&self, lane: usize, request: &[u8], answer: &mut dyn Answer) {
        let Some(mut request) = Request::parse(request) else {
            self.complain("a malformed request was refused");
            if let Some(unique) = request.get(8..16).and_then(|bytes| bytes.try_into().ok()) {
                let _ = put_error(answer, u64::from_ne_bytes(unique), Errno::EIO);
            }
            return;
        };
        // X2
        request.header.pid = 0;
        let (opcode, unique) = (request.header.opcode, request.header.unique);
        let began = self.clock.monotonic();
        let lane = self.stats.lane(lane % self.stats.threads().max(1));
        let mut contents = Once { answer, unique, sent: None, refused: false };
        let outcome = match opcode {
            op::INIT => self.begin(&mut request),
            // The guest has unmounted, and may mount again.
            op::DESTROY => self.rest().map_or_else(Outcome::Failed, |()| Outcome::Nothing),
            op::FORGET | op::BATCH_FORGET if !self.has_begun() => Outcome::Silent,
            _ if !self.has_begun() => Outcome::Failed(Errno::EIO),
            _ => {
                let operations = &self.operations;
                // The kernel loses times of parallel direct writes, and cannot be told of them.
                let desk = Desk { operations, lane, direct_in_parallel: false };
                attempt(&desk, request, &mut contents, self.events)
            }
        };
        let refused = contents.refused;
        let failed = matches!(outcome, Outcome::Failed(_));
        let head = OutHeader { unique, ..OutHeader::default() };
        let put = match outcome {
            Outcome::Silent => Ok(()),
            Outcome::Sent if refused => Err(io::ErrorKind::InvalidInput.into()),
            Outcome::Sent => Ok(()),
            Outcome::Nothing => put(answer, head, &[]),
            Outcome::Bytes(bytes) => put(answer, head, &[IoSlice::new(&bytes)]),
            Outcome::Failed(Errno::LATER) => put_error(answer, unique, Errno::EAGAIN),
            Outcome::Failed(error) => put_error(answer, unique, error),
        };
        if put.is_err() {
            self.complain(&format!("the answer to request {opcode} did not fit"));
            let _ = put_error(answer, unique, Errno::EIO);
        }
        lane.count(opcode, self.clock.monotonic().saturating_sub(began), failed);
    }

    /// Makes everything durable that the other side wrote: it is gone, or has unmounted.
    ///
    /// # Errors
    ///
    /// As `syncfs`; it was logged.
    pub fn rest(&self) -> Result<(), Errno> {
        self.operations.sync_all()
    }

    fn has_begun(&self) -> bool {
        self.write_max.load(Ordering::Acquire) != 0
    }

    fn begin(&self, request: &mut Request<'_>) -> Outcome {
        let Ok((init, offered)) = init_in(request) else {
            return Outcome::Failed(Errno::EINVAL);
        };
        if init.major > abi::MAJOR {
            // The kernel asks again in the version of this answer.
            let out = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() };
            return Outcome::Bytes(crate::dispatch::Body::of(&[out.as_bytes()]));
        }
        if init.major < abi::MAJOR || init.minor < abi::OLDEST_MINOR {
            let (major, minor) = (init.major, init.minor);
            let text = format!("a guest was refused: {}", ServeError::Protocol { major, minor });
            self.events.log(Level::Error, &text);
            return Outcome::Failed(EPROTO);
        }
        self.operations.begin_anew(); // X3
        let (agreed, out) = agree(self.settings, self.time_gran, &init, offered, false);
        self.write_max.store(agreed.write_max, Ordering::Release);
        Outcome::Bytes(crate::dispatch::Body::of(&[out.as_bytes()]))
    }

    /// Logs what the other side could make us say very often.
    fn complain(&self, text: &str) {
        let before = self.complaints.fetch_add(1, Ordering::Relaxed);
        if before.is_multiple_of(LOG_STEP) {
            let text = format!("{text} (so far: {})", before + 1);
            self.events.log(Level::Warning, &text);
        }
    }
}

fn put(answer: &mut dyn Answer, mut head: OutHeader, body: &[IoSlice<'_>]) -> io::Result<()> {
    let body_len: usize = body.iter().map(|part| part.len()).sum();
    let len = size_of::<OutHeader>().saturating_add(body_len);
    head.len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut parts = Vec::with_capacity(body.len() + 1);
    parts.push(IoSlice::new(head.as_bytes()));
    parts.extend(body.iter().map(|part| IoSlice::new(part)));
    answer.put(&parts)
}

fn put_error(answer: &mut dyn Answer, unique: u64, error: Errno) -> io::Result<()> {
    put(answer, OutHeader { unique, error: code(error), ..OutHeader::default() }, &[])
}

/// The reply to a read: put where the bytes lie.
struct Once<'a> {
    answer: &'a mut dyn Answer,
    unique: u64,
    sent: Option<u64>,
    /// It did not fit.
    refused: bool,
}

impl ReadAnswer for Once<'_> {
    fn send(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<()> {
        debug_assert!(self.sent.is_none(), "one answer");
        self.sent = Some(bytes.iter().map(|part| part.len() as u64).sum());
        let head = OutHeader { unique: self.unique, ..OutHeader::default() };
        self.refused = put(self.answer, head, bytes).is_err();
        Ok(())
    }
}

impl Contents for Once<'_> {
    fn sent(&self) -> Option<u64> {
        self.sent
    }
}
