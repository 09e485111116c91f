//! Serving a file system: the transport, the answers, and the end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use extant::Fs;
use extant_sync::SystemClock;

use crate::abi::InitFlags;
use crate::connection::Connection;
use crate::events::{Events, ServeError};
use crate::ext4::{Served, Terms};
use crate::kernel::Kernel;
use crate::operations::NodeId;
use crate::relief::SPARES;
use crate::rings::{self, Rings};
use crate::session::Session;
use crate::settings::{RingUse, Settings};
use crate::stats::RequestStats;

/// The kernel behind `/dev/fuse`, whether requests come over it or over rings.
struct Transport(Arc<Connection>);

impl Kernel for Transport {
    fn drop_cached(&self, node: NodeId, offset: i64) -> io::Result<()> {
        self.0.drop_cached(node, offset)
    }

    fn drop_attributes(&self, node: NodeId) -> io::Result<()> {
        self.0.drop_attributes(node)
    }

    fn may_wait_here(&self) -> bool {
        rings::may_wait_here()
    }
}

/// Serves a mount until it is unmounted, then ends `fs`: everything is written and the image is clean.
///
/// `device` is an open `/dev/fuse` that the mount belongs to. `events` hears when the mount is usable,
/// and of damage and failures.
///
/// # Errors
///
/// [`ServeError`]; in every case the file system was ended as well as it can be.
pub fn serve(
    device: OwnedFd,
    fs: Fs,
    settings: &Settings,
    events: &dyn Events,
) -> Result<(), ServeError> {
    let rings = match settings.ring {
        RingUse::Never => None,
        RingUse::WhenOffered => Rings::prepare(settings).ok(),
        RingUse::Always => {
            let rings = Rings::prepare(settings);
            Some(rings.map_err(|obstacle| ServeError::NoRing(obstacle.to_string()))?)
        }
    };
    serve_over(device, rings, fs, settings, events)
}

/// As [`serve`], with rings that were prepared before: in a sandbox they cannot be made. Without rings
/// requests are read from `device`, whatever the settings say.
///
/// # Errors
///
/// As [`serve`].
pub fn serve_over(
    device: OwnedFd,
    rings: Option<Rings>,
    fs: Fs,
    settings: &Settings,
    events: &dyn Events,
) -> Result<(), ServeError> {
    let session = Session::new(device, Arc::new(SystemClock));
    serve_session(&session, rings, fs, settings, events)
}

/// As [`serve_over`].
pub(crate) fn serve_session(
    session: &Session,
    rings: Option<Rings>,
    fs: Fs,
    settings: &Settings,
    events: &dyn Events,
) -> Result<(), ServeError> {
    // Inodes of 128 bytes have no room for more than seconds; the kernel is to round as ext4 does.
    let time_gran = if fs.superblock().inode_size > 128 { 1 } else { 1_000_000_000 };
    let file_system = Served::new(fs, settings);
    let served = session.greet(settings, time_gran, rings.is_some()).and_then(|agreed| {
        // The mount was unmounted before its first request.
        let Some(agreed) = agreed else { return Ok(()) };
        let rings = rings.filter(|_| agreed.flags.contains(InitFlags::OVER_IO_URING));
        let plain = settings.threads.clamp(1, 64);
        let threads = rings.as_ref().map_or(plain, Rings::threads);
        let spares = if rings.is_some() { 0 } else { SPARES };
        let stats = Arc::new(RequestStats::new(threads, spares));
        let terms = Terms {
            holds_writes_back: agreed.flags.contains(InitFlags::WRITEBACK_CACHE),
            may_wait: rings.as_ref().map_or(plain, Rings::per_queue) as u32 - 1,
            over_rings: rings.is_some(),
            is_far: false,
        };
        let kernel = Arc::new(Transport(Arc::clone(&session.connection)));
        let clock = Arc::clone(&session.clock);
        let requests = Arc::clone(&stats);
        let server = file_system.operations(kernel, &terms, requests, clock, settings, events);
        events.ready();
        match rings {
            Some(rings) => rings.run(session, &server, agreed, &stats, events),
            None => session.run(&server, agreed, &stats, settings, events),
        }
    });
    let ended = file_system.end();
    served?;
    Ok(ended?)
}
