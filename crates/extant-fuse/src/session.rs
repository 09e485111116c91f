//! One mount from its first request to its last.

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant_base::sabotage;
use extant_sync::threads::{self, ThreadError};
use extant_sync::{Clock, Mutex, Rank};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, InitFlags, op};
use crate::connection::{Connection, Request};
use crate::dispatch::{Contents, Desk, Outcome, init_in};
use crate::events::{Events, Level, ServeError};
use crate::operations::{Errno, Operations, ReadAnswer};
use crate::orders::CONTROL;
use crate::patience::{Experience, Patience};
use crate::relief::Relief;
use crate::settings::{RingUse, Settings};
use crate::stats::RequestStats;

/// Bytes in front of the contents in a write.
pub(crate) const WRITE_HEAD: usize = size_of::<abi::InHeader>() + size_of::<abi::WriteIn>();
/// The smallest buffer that the kernel accepts.
const BUFFER_MIN: usize = 8192;
/// Page size of the protocol's counts.
const PAGE: u32 = 4096;

/// How often reading a request is tried when the system says what it should not, and how long apart.
const RECEIVE_TRIES: u32 = 100;
const RECEIVE_PAUSE: Duration = Duration::from_millis(20);
/// Of answers that the kernel refuses, one in this many is logged.
const REFUSED_STEP: u64 = 1000;

/// The terms that both sides agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub(crate) flags: InitFlags,
    pub(crate) write_max: u32,
}

impl Agreed {
    /// While the kernel keeps times of files, it forgets to change them in writes of this kind.
    pub(crate) fn direct_in_parallel(self) -> bool {
        self.flags.contains(InitFlags::DIRECT_IO_ALLOW_MMAP)
            && !self.flags.contains(InitFlags::WRITEBACK_CACHE)
    }
}

/// A connected mount.
pub(crate) struct Session {
    pub(crate) connection: Arc<Connection>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) patience: Patience,
    /// Answers that the kernel did not take.
    refused: AtomicU64,
}

impl Session {
    pub(crate) fn new(device: OwnedFd, clock: Arc<dyn Clock>) -> Session {
        Session {
            connection: Arc::new(Connection::new(device)),
            clock,
            patience: Patience::new(threads::available()),
            refused: AtomicU64::new(0),
        }
    }

    /// Answers the first request, which describes the kernel. `None`: unmounted before it came.
    pub(crate) fn greet(
        &self,
        settings: &Settings,
        time_gran: u32,
        has_rings: bool,
    ) -> Result<Option<Agreed>, ServeError> {
        let mut buffer = vec![0; BUFFER_MIN + WRITE_HEAD + PAGE as usize];
        loop {
            let Some(len) = self.connection.receive(&mut buffer)? else {
                return Ok(None);
            };
            let broken = || io::Error::new(io::ErrorKind::InvalidData, "a malformed first request");
            let mut request = Request::parse(&buffer[..len]).ok_or_else(broken)?;
            let unique = request.header.unique;
            if request.header.opcode != op::INIT {
                self.connection.fail(unique, Errno::EIO)?;
                continue;
            }
            let (init, offered) = init_in(&mut request).map_err(|_| broken())?;
            if init.major > abi::MAJOR {
                // The kernel will ask again in the version of this answer.
                let out = abi::InitOut {
                    major: abi::MAJOR,
                    minor: abi::MINOR,
                    ..abi::InitOut::default()
                };
                self.connection.reply(unique, &[IoSlice::new(out.as_bytes())])?;
                continue;
            }
            if init.major < abi::MAJOR || init.minor < abi::OLDEST_MINOR {
                self.connection.fail(unique, Errno(71))?; // EPROTO
                return Err(ServeError::Protocol { major: init.major, minor: init.minor });
            }
            let (agreed, out) = agree(settings, time_gran, &init, offered, has_rings);
            if settings.ring == RingUse::Always && !agreed.flags.contains(InitFlags::OVER_IO_URING)
            {
                self.connection.fail(unique, Errno(71))?;
                return Err(ServeError::NoRing("the kernel does not offer it".to_owned()));
            }
            if settings.idmapped && !agreed.flags.contains(InitFlags::ALLOW_IDMAP) {
                self.connection.fail(unique, Errno(71))?;
                return Err(ServeError::NoIdmappedMounts);
            }
            self.connection.reply(unique, &[IoSlice::new(out.as_bytes())])?;
            return Ok(Some(agreed));
        }
    }

    /// Answers requests until the mount is gone.
    pub(crate) fn run(
        &self,
        operations: &dyn Operations,
        agreed: Agreed,
        stats: &RequestStats,
        settings: &Settings,
        events: &dyn Events,
    ) -> Result<(), ServeError> {
        let count = settings.threads.clamp(1, 64);
        let (first_error, relief) = (Mutex::new(Rank::Leaf, None), Relief::new(count));
        let work = |index: usize, may_go: bool| {
            let _ended = Ending { relief: &relief, spare: may_go.then_some(index) };
            let relief = Some((&relief, may_go));
            if let Err(error) = self.work(index, operations, agreed, stats, relief, events) {
                first_error.lock().get_or_insert(error);
            }
        };
        let work = &work;
        threads::scope(|s| {
            let begin = |index, may_go| {
                let name = format!("fuse-{index}");
                s.spawn(&name, move || work(index, may_go)).map(drop)
            };
            let begun: Result<(), ThreadError> = (0..count).try_for_each(|index| {
                begin(index, false).inspect_err(|_| {
                    // Those that are missing have ended.
                    (index..count).for_each(|_| relief.ended(None));
                })
            });
            relief.watch(|number| begin(number, true).is_ok());
            begun
        })??;
        first_error.into_inner().map_or(Ok(()), |error| Err(error.into()))
    }

    /// One thread's share. `relief` is what the threads share that may take over for each other,
    /// and whether this one goes when others are free.
    pub(crate) fn work(
        &self,
        index: usize,
        operations: &dyn Operations,
        agreed: Agreed,
        stats: &RequestStats,
        relief: Option<(&Relief, bool)>,
        events: &dyn Events,
    ) -> io::Result<()> {
        let len = (agreed.write_max as usize + WRITE_HEAD).max(BUFFER_MIN);
        let mut buffer = vec![0; len.next_multiple_of(PAGE as usize)];
        let lane = stats.lane(index);
        let desk = Desk { operations, lane, direct_in_parallel: agreed.direct_in_parallel() };
        let gate = operations.gate();
        let mut experience = Experience::default();
        loop {
            if let Some((relief, may_go)) = relief {
                if may_go && relief.has_enough() {
                    break;
                }
                relief.waits();
            }
            let received = self.receive(&mut buffer, events);
            if let Some((relief, _)) = relief {
                relief.took();
            }
            let Some(len) = received? else { break };
            let Some(request) = Request::parse(&buffer[..len]) else {
                events.log(Level::Error, "a malformed request was refused");
                if let Ok((header, _)) = abi::InHeader::read_from_prefix(&buffer[..len]) {
                    let _ = self.connection.fail(header.unique, Errno::EIO);
                }
                continue;
            };
            let entered = changes(&request).then(|| gate.enter(&buffer[..len]));
            if let Some(None) = entered {
                continue; // Held back until the file system is thawed.
            }
            let is_answered = self.serve(&desk, request, events);
            if let Some(Some(lane)) = entered {
                gate.leave(lane);
            }
            if !is_answered {
                put_off(operations, &buffer[..len]);
            }
            while let Some(held) = gate.take_released() {
                let Some(request) = Request::parse(&held) else { continue };
                // Through the gate as any other: it may be frozen again by now.
                let entered = changes(&request).then(|| gate.enter(&held));
                if let Some(None) = entered {
                    continue;
                }
                let is_answered = self.serve(&desk, request, events);
                if let Some(Some(lane)) = entered {
                    gate.leave(lane);
                }
                if !is_answered {
                    put_off(operations, &held);
                }
            }
            let has_come = || self.connection.has_request();
            self.patience.look(&mut experience, &*self.clock, has_come);
        }
        Ok(())
    }

    /// The next request; `None` when the mount is gone. Nothing else ends a mount: what the system says
    /// instead once is tried again, for a while.
    fn receive(&self, buffer: &mut [u8], events: &dyn Events) -> io::Result<Option<usize>> {
        for _ in 0..RECEIVE_TRIES {
            match self.connection.receive(buffer) {
                Err(error) => {
                    let text = format!("no request could be read ({error}); it is tried again");
                    events.log(Level::Warning, &text);
                    self.clock.sleep(RECEIVE_PAUSE);
                }
                received => return received,
            }
        }
        self.connection.receive(buffer)
    }

    /// Answers one request and counts it. `false`: it is to be put off.
    fn serve(&self, desk: &Desk<'_>, request: Request<'_>, events: &dyn Events) -> bool {
        let (opcode, unique) = (request.header.opcode, request.header.unique);
        let began = self.clock.monotonic();
        let mut contents = Sent { connection: &self.connection, unique, sent: None, refused: None };
        let outcome = attempt(desk, request, &mut contents, events);
        let failed = matches!(outcome, Outcome::Failed(_));
        if matches!(outcome, Outcome::Failed(Errno::LATER)) {
            return false;
        }
        let taken = match outcome {
            Outcome::Silent => Ok(()),
            Outcome::Sent => contents.refused.map_or(Ok(()), Err),
            Outcome::Nothing => self.connection.reply(unique, &[]),
            Outcome::Bytes(bytes) => self.connection.reply(unique, &[IoSlice::new(&bytes)]),
            Outcome::Failed(error) => self.connection.fail(unique, error),
        };
        if let Err(error) = taken {
            self.tell_refused(opcode, &error.to_string(), events);
        }
        desk.lane.count(opcode, self.clock.monotonic().saturating_sub(began), failed);
        true
    }

    /// Logs that the kernel refused an answer, which is a bug of this server: its caller got an
    /// error, and the mount continues.
    pub(crate) fn tell_refused(&self, opcode: u32, why: &str, events: &dyn Events) {
        let before = self.refused.fetch_add(1, Ordering::Relaxed);
        if before.is_multiple_of(REFUSED_STEP) {
            let text = format!(
                "the kernel did not take the answer to request {opcode}: {why}; its caller got EIO, others go \
                 on. Please report it (answers refused before: {before})"
            );
            events.log(Level::Error, &text);
        }
    }
}

/// The end of a thread, also by a panic.
struct Ending<'r> {
    relief: &'r Relief,
    spare: Option<usize>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.relief.ended(self.spare);
    }
}

/// Keeps a request that is to be tried again when a thread has done what it waits for.
fn put_off(operations: &dyn Operations, request: &[u8]) {
    operations.gate().put_off(request);
    // The request may have become possible before it was kept.
    if operations.may_try_again() {
        operations.gate().try_again();
    }
}

/// Does what a request asks for. A panic must not leave a caller waiting, nor end the other
/// threads.
pub(crate) fn attempt(
    desk: &Desk<'_>,
    request: Request<'_>,
    contents: &mut dyn Contents,
    events: &dyn Events,
) -> Outcome {
    let opcode = request.header.opcode;
    let _same = waits_for_turn(opcode).then(|| desk.operations.stays()).flatten();
    let answered = catch_unwind(AssertUnwindSafe(|| desk.answer(request, contents)));
    answered.unwrap_or_else(|_| {
        let text = format!(
            "a bug in extant ended request {opcode}; its caller got EIO, others go on. \
             Please report it with the lines before this one"
        );
        events.log(Level::Error, &text);
        Outcome::Failed(Errno::EIO)
    })
}

/// Returns whether a request is about the file system as it is, and waits while that becomes another one. Orders to the
/// server are among attributes, which see to it themselves; what ends something never waits.
fn waits_for_turn(opcode: u32) -> bool {
    !matches!(
        opcode,
        op::GETXATTR
            | op::SETXATTR
            | op::FORGET
            | op::BATCH_FORGET
            | op::INTERRUPT
            | op::INIT
            | op::DESTROY
    )
}

/// The reply to a read: sent where the bytes lie.
struct Sent<'a> {
    connection: &'a Connection,
    unique: u64,
    sent: Option<u64>,
    /// The kernel did not take it.
    refused: Option<io::Error>,
}

impl ReadAnswer for Sent<'_> {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        debug_assert!(self.sent.is_none(), "one answer");
        self.sent = Some(len as u64);
        self.refused = self.connection.reply(self.unique, parts).err();
        Ok(())
    }

    fn send_parts_of(&mut self, file: BorrowedFd<'_>, parts: &[(u64, u64)]) -> bool {
        let sent = self.connection.reply_with_parts_of(self.unique, file, parts);
        if sent {
            self.sent = Some(parts.iter().map(|(_, len)| len).sum());
        }
        sent
    }
}

impl Contents for Sent<'_> {
    fn sent(&self) -> Option<u64> {
        self.sent
    }
}

/// Returns whether a request changes the file system, so that it waits while that is frozen. Orders
/// to the server itself never wait: one of them ends the freeze.
pub(crate) fn changes(request: &Request<'_>) -> bool {
    match request.header.opcode {
        op::SETXATTR => !request.is_for_attribute(CONTROL),
        op::SETATTR
        | op::SYMLINK
        | op::MKNOD
        | op::MKDIR
        | op::UNLINK
        | op::RMDIR
        | op::RENAME
        | op::RENAME2
        | op::LINK
        | op::WRITE
        | op::CREATE
        | op::TMPFILE
        | op::REMOVEXATTR
        | op::FALLOCATE
        | op::COPY_FILE_RANGE
        | op::COPY_FILE_RANGE_64
        | op::IOCTL => true,
        _ => false,
    }
}

/// Returns the features of the kernel that this server uses.
///
/// Not `ASYNC_DIO`: the kernel drops what it has cached of a range before an asynchronous direct
/// write, and not when that has ended. A read in between would fill the cache with old contents for
/// all later readers. Without the flag such calls return when they are done, after which the kernel
/// drops the range again.
pub(crate) fn agree(
    settings: &Settings,
    time_gran: u32,
    init: &abi::InitIn,
    offered: InitFlags,
    has_rings: bool,
) -> (Agreed, abi::InitOut) {
    let mut wanted = InitFlags::ASYNC_READ
        | InitFlags::BIG_WRITES
        | InitFlags::EXPORT_SUPPORT
        | InitFlags::DONT_MASK
        | InitFlags::HAS_IOCTL_DIR
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::POSIX_ACL
        | InitFlags::MAX_PAGES
        | InitFlags::CACHE_SYMLINKS
        | InitFlags::EXPLICIT_INVAL_DATA
        | InitFlags::NO_OPEN_SUPPORT
        | InitFlags::NO_OPENDIR_SUPPORT
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::SETXATTR_EXT
        | InitFlags::INIT_EXT;
    // Past the cache are opened, if it collects writes, only files that can just be appended to: a map
    // would get around that.
    wanted |= match settings.writeback_cache {
        true => InitFlags::WRITEBACK_CACHE,
        false => InitFlags::DIRECT_IO_ALLOW_MMAP,
    };
    if has_rings {
        wanted |= InitFlags::OVER_IO_URING;
    }
    if settings.idmapped {
        wanted |= InitFlags::ALLOW_IDMAP;
    }
    let flags = if sabotage("fuse.session.more-than-offered") { wanted } else { wanted & offered };
    let write_max = settings.write_bytes_max.clamp(PAGE, 1 << 20) / PAGE * PAGE;
    // Without MAX_PAGES the kernel sends at most 32 pages, regardless of other values.
    let out = abi::InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR,
        max_readahead: init.max_readahead,
        flags: flags.bits() as u32,
        flags2: (flags.bits() >> 32) as u32,
        max_background: 64,
        congestion_threshold: 48,
        max_write: write_max,
        time_gran,
        max_pages: (write_max / PAGE) as u16,
        ..abi::InitOut::default()
    };
    (Agreed { flags, write_max }, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_agreed_on_that_was_not_offered() {
        let init = abi::InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: 0 };
        let offered = InitFlags::ASYNC_READ | InitFlags::WRITEBACK_CACHE | InitFlags::INIT_EXT;
        let (agreed, out) = agree(&Settings::default(), 1, &init, offered, true);
        assert_eq!(agreed.flags, offered);
        assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, offered.bits());
        let plain = Settings { writeback_cache: false, ..Settings::default() };
        let (agreed, _) = agree(&plain, 1, &init, offered, false);
        assert!(!agreed.flags.contains(InitFlags::WRITEBACK_CACHE));
        // Leaves old contents in the cache: see `agree`.
        let (agreed, _) = agree(&Settings::default(), 1, &init, InitFlags::all(), true);
        assert!(!agreed.flags.contains(InitFlags::ASYNC_DIO));
    }

    #[test]
    fn sizes_stay_in_what_the_protocol_can_say() {
        let init = abi::InitIn::default();
        for (asked, got) in [(0, 4096), (5000, 4096), (1 << 20, 1 << 20), (u32::MAX, 1 << 20)] {
            let settings = Settings { write_bytes_max: asked, ..Settings::default() };
            let (agreed, out) = agree(&settings, 1, &init, InitFlags::all(), false);
            assert_eq!((agreed.write_max, u32::from(out.max_pages) * PAGE), (got, got));
        }
    }
}
