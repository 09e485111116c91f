//! The device, and how it is opened.

use std::ffi::CString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use extant_base::sabotage;
use extant_block::{
    BlockDevice, DeviceError, DeviceFault, Operation, OperationKind, Pending, Queue, QueueOptions,
    ReadRun, Wait, WriteRun, read_runs_as_batch, write_runs_as_batch,
};
use extant_sync::check_may_wait;

use crate::address::Address;
use crate::error::RbdError;
use crate::ffi::{Cluster, EXCLUSIVE_LOCK, Image, Libraries};
use crate::queue::RbdQueue;
use crate::runner::Runner;
use crate::shared::Shared;

// Numbers of Linux.
const ENOENT: i32 = 2;
const EAGAIN: i32 = 11;
const EBUSY: i32 = 16;
const EROFS: i32 = 30;

/// Runs of one call under way at once.
const RUNS: usize = 32;

/// Options of Ceph without which a cluster that does not answer is waited for without end or for minutes: the name, what
/// Ceph has where nobody said anything, and what is set then, in seconds.
const PATIENCE: [(&str, f64, &str); 3] = [
    (OP_TIMEOUT, 0.0, "30"),
    ("rados_mon_op_timeout", 0.0, "30"),
    ("client_mount_timeout", 300.0, "30"),
];
/// How long a request may take.
const OP_TIMEOUT: &str = "rados_osd_op_timeout";
/// Options of Ceph that would have it write to standard error.
const TALK: [&str; 2] = ["log_to_stderr", "err_to_stderr"];

/// How an image is opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// How long nobody may wait for any answer. Without it: 10 seconds and twice `rados_osd_op_timeout`, by which the
    /// libraries themselves give up; without end where that is 0 by the address.
    pub limit: Option<Duration>,
    /// The directory of `librados.so.2` and `librbd.so.1`, where the system does not look for them.
    pub libraries: Option<PathBuf>,
}

/// An image in a cluster.
///
/// Any number of requests of any threads are under way at once (R2). What the library acknowledges may be in its memory:
/// a flush makes it durable.
///
/// An image that is opened for writing and has the feature `exclusive-lock` is locked for as long as it is open.
pub struct RbdDevice {
    shared: Arc<Shared>,
    version: String,
}

fn text(text: &str) -> CString {
    // Addresses have no zeros, and neither do the constants.
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl RbdDevice {
    /// Opens the image at `address`. Takes up to half a minute for each step if the cluster does not answer.
    ///
    /// # Errors
    ///
    /// [`RbdError`]. [`RbdError::Locked`], [`RbdError::Snapshot`] and [`RbdError::MayNotWrite`] only for writing.
    pub fn open(
        address: &Address,
        is_read_only: bool,
        settings: &Settings,
    ) -> Result<RbdDevice, RbdError> {
        check_may_wait("a device");
        if !is_read_only && address.snapshot.is_some() {
            return Err(RbdError::Snapshot { address: address.to_string() });
        }
        let libraries = Libraries::load(settings.libraries.as_deref(), &address.to_string())?;
        let (cluster, timeout) = connect(libraries, address)?;
        let limit = settings.limit.or(timeout);
        let failed = |action| {
            move |errno| RbdError::Ceph { address: address.to_string(), action, source: os(errno) }
        };
        let fsid = cluster.fsid().map_err(failed("asking the cluster for its name"))?;
        let may_not = |error| if is_read_only { error } else { may_not_write(error, address) };
        let image = open_image(&cluster, address, is_read_only).map_err(may_not)?;
        let features = image.features().map_err(failed("asking for the features"))?;
        let is_locked = !is_read_only && features & EXCLUSIVE_LOCK != 0;
        if is_locked && !sabotage("rbd.device.not-locked") {
            lock(&image, address).map_err(may_not)?;
        }
        // Images of the first format have none.
        let id = image.id().unwrap_or_default();
        let snapshot = match &address.snapshot {
            Some(name) => {
                let id = image.snapshot_id(&text(name));
                format!("@{}", id.map_err(failed("looking at the snapshot"))?)
            }
            None => String::new(),
        };
        let name = address.to_string().into();
        let shared = Shared::new(image, name, is_read_only, is_locked, limit);
        let shared = shared.map_err(failed("asking for the size"))?;
        let version = format!("{fsid}/{id}{snapshot}, {} bytes", shared.size());
        Ok(RbdDevice { shared: Arc::new(shared), version })
    }

    /// Returns what tells this image from others, and from itself when it had another size: cluster, image, snapshot, size.
    /// What is written to it does not change that.
    pub fn version(&self) -> String {
        self.version.clone()
    }

    /// Returns whether others are kept from writing meanwhile.
    pub fn is_locked(&self) -> bool {
        self.shared.is_locked()
    }

    /// Returns how many requests the library has.
    pub fn under_way(&self) -> usize {
        self.shared.flights.count()
    }
}

/// Configures a connection and makes it. Returns also how long nobody may wait for an answer.
fn connect(
    libraries: &'static Libraries,
    address: &Address,
) -> Result<(Arc<Cluster>, Option<Duration>), RbdError> {
    let refuse = |what: String, errno| RbdError::Option {
        address: address.to_string(),
        what,
        source: os(errno),
    };
    let id = address.id.as_deref().unwrap_or("admin");
    let mut cluster = libraries.cluster(&text(id)).map_err(|errno| RbdError::Ceph {
        address: address.to_string(),
        action: "making a client",
        source: os(errno),
    })?;
    let mut has_conf = true;
    match (&address.conf, cluster.read_conf(address.conf.as_deref().map(text).as_deref())) {
        (_, Ok(())) => {}
        (None, Err(ENOENT)) => has_conf = false,
        (Some(file), Err(errno)) => {
            return Err(refuse(format!("the configuration {file} cannot be used"), errno));
        }
        (None, Err(errno)) => {
            return Err(refuse("the configuration of Ceph cannot be used".to_owned(), errno));
        }
    }
    cluster
        .parse_env()
        .map_err(|errno| refuse("CEPH_ARGS in the environment cannot be used".to_owned(), errno))?;
    let is_told = |name: &str| address.options.iter().any(|(option, _)| option == name);
    for name in TALK.into_iter().filter(|name| !is_told(name)) {
        // Whoever wants to hear it says so in the address.
        let _ = cluster.set(&text(name), &text("false"));
    }
    for (option, value) in &address.options {
        cluster
            .set(&text(option), &text(value))
            .map_err(|errno| refuse(format!("Ceph refuses the option {option}"), errno))?;
    }
    let seconds = |cluster: &Cluster, name: &str| {
        cluster.get(&text(name)).and_then(|value| value.parse::<f64>().ok())
    };
    for (name, default, value) in PATIENCE {
        let is_default = seconds(&cluster, name).is_none_or(|has| has == default);
        if is_default && !is_told(name) {
            cluster
                .set(&text(name), &text(value))
                .map_err(|errno| refuse(format!("Ceph refuses the option {name}"), errno))?;
        }
    }
    let has_hosts = cluster.get(&text("mon_host")).is_some_and(|hosts| !hosts.is_empty());
    if !has_conf && !has_hosts {
        return Err(RbdError::Address {
            address: address.to_string(),
            what: "there is no configuration of Ceph (CEPH_CONF, /etc/ceph/ceph.conf, ~/.ceph/config): give conf=FILE or mon_host=HOST in the address".to_owned(),
        });
    }
    let timeout = seconds(&cluster, OP_TIMEOUT).filter(|seconds| *seconds > 0.0);
    let limit = timeout.map(|seconds| Duration::from_secs_f64(10.0 + 2.0 * seconds.min(1e6)));
    cluster.connect().map_err(|errno| RbdError::Connect {
        address: address.to_string(),
        id: id.to_owned(),
        source: os(errno),
    })?;
    Ok((Arc::new(cluster), limit))
}

/// What an error of opening for writing means.
fn may_not_write(error: RbdError, address: &Address) -> RbdError {
    match error {
        RbdError::Ceph { address: name, action, source }
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            let id = address.id.as_deref().unwrap_or("admin").to_owned();
            RbdError::MayNotWrite { address: name, id, action, source }
        }
        other => other,
    }
}

fn open_image(
    cluster: &Arc<Cluster>,
    address: &Address,
    is_read_only: bool,
) -> Result<Image, RbdError> {
    let missing = |what, name: &str| RbdError::NotFound {
        address: address.to_string(),
        what,
        name: name.to_owned(),
    };
    let failed =
        |action, errno| RbdError::Ceph { address: address.to_string(), action, source: os(errno) };
    let space = address.namespace.as_deref().map(text);
    let pool =
        cluster.pool(&text(&address.pool), space.as_deref()).map_err(|errno| match errno {
            ENOENT => missing("pool", &address.pool),
            errno => failed("opening the pool", errno),
        })?;
    let name = text(&address.image);
    let snapshot = address.snapshot.as_deref().map(text);
    let (errno, pool) = match pool.image(&name, snapshot.as_deref(), is_read_only) {
        Ok(image) => return Ok(image),
        Err(failed) => failed,
    };
    Err(match (errno, &address.snapshot) {
        // Which of the two is not there.
        (ENOENT, Some(snapshot)) if pool.image(&name, None, true).is_ok() => {
            missing("snapshot", snapshot)
        }
        (ENOENT, _) => missing("image", &address.image),
        (errno, _) => failed("opening the image", errno),
    })
}

/// Takes the exclusive lock, or says who has it.
fn lock(image: &Image, address: &Address) -> Result<(), RbdError> {
    let failed = |errno| RbdError::Ceph {
        address: address.to_string(),
        action: "taking the exclusive lock",
        source: os(errno),
    };
    // Once more, for one that was let go of between the two questions.
    for _ in 0..2 {
        // An owner who is alive is not even asked: most would hand it over, and fail at their next write.
        let owners = image.lock_owners().map_err(failed)?;
        let clients = image.clients().map_err(failed)?;
        let is_alive = |client: &str| clients.iter().any(|id| client == format!("client.{id}"));
        if let Some((client, place)) = owners.into_iter().find(|(client, _)| is_alive(client))
            && !sabotage("rbd.device.owner-asked")
        {
            let owner = format!("{client} at {place}");
            return Err(RbdError::Locked { address: address.to_string(), owner });
        }
        match image.lock() {
            Ok(()) if image.has_lock().map_err(failed)? => return Ok(()),
            Ok(()) | Err(EROFS | EBUSY | EAGAIN) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    // One whose owner the cluster does not watch: a lock that somebody has put there by hand.
    if let Some((client, place)) = image.lock_owners().map_err(failed)?.into_iter().next() {
        let owner = format!("{client} at {place}");
        return Err(RbdError::Locked { address: address.to_string(), owner });
    }
    Err(failed(EBUSY))
}

impl BlockDevice for RbdDevice {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        check_may_wait("a device");
        let count = batch.len();
        let mut runner = Runner::new(&self.shared);
        for (number, operation) in batch.into_iter().enumerate() {
            runner.take(number as u64, operation);
        }
        // They are all done, also if nobody asks for their results.
        runner.start(Wait::Block);
        Pending::waiting(move || runner.all(count))
    }

    fn queue(&self, options: &QueueOptions) -> Box<dyn Queue + '_> {
        Box::new(RbdQueue::new(&self.shared, options))
    }

    fn size_bytes(&self) -> u64 {
        self.shared.size()
    }

    fn extend(&self, size_bytes: u64) -> Result<u64, DeviceError> {
        let fail = |fault| self.shared.error(OperationKind::Allocate, size_bytes, 0, fault);
        if self.shared.is_read_only() {
            return Err(fail(DeviceFault::ReadOnly));
        }
        match self.shared.measure().map_err(fail)? {
            now if now >= size_bytes => Ok(now.max(self.shared.size())),
            device_bytes => Err(fail(DeviceFault::PastEnd { device_bytes })),
        }
    }

    fn is_read_only(&self) -> bool {
        self.shared.is_read_only()
    }

    fn describe(&self) -> Arc<str> {
        self.shared.name()
    }

    fn write_runs(&self, runs: &[WriteRun<'_>]) -> Vec<Result<(), DeviceError>> {
        write_runs_as_batch(self, runs)
    }

    fn read_runs(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
        read_runs_as_batch(self, runs)
    }

    fn runs_at_once(&self, _: OperationKind) -> usize {
        RUNS
    }
}

impl std::fmt::Debug for RbdDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RbdDevice")
            .field("name", &self.shared.name())
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
