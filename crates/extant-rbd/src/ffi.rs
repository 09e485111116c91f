//! The functions of `librados` and `librbd` that are used, with the handles they give.
//!
//! What is relied on: the two libraries do what their headers say (`rados/librados.h`,
//! `rbd/librbd.h`), with these signatures, which have been the same since Ceph 15. All else is
//! arranged here: strings are ended by a zero, lengths are those of the memory that is handed over,
//! handles are closed once, children before their parents, and memory of a request belongs to the
//! request until its callback (R1).
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

#[cfg(not(target_feature = "crt-static"))]
use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use extant_block::AlignedBuffer;
use extant_sync::{Mutex, Rank};

use crate::error::RbdError;

/// The feature by which one client at a time writes.
pub(crate) const EXCLUSIVE_LOCK: u64 = 1 << 2;
/// The only mode of locks that there is.
const LOCK_MODE_EXCLUSIVE: c_int = 0;
/// Linux's `ERANGE`: memory for an answer was too small.
const ERANGE: i32 = 34;
/// Most memory for a part of an answer, in bytes.
const ANSWER_MAX: usize = 256 << 10;
/// Most clients that are listed.
const WATCHERS_MAX: usize = 1 << 16;
/// Linux's `EIO`, for what is no errno.
const EIO: i32 = 5;

type Rados = *mut c_void;
type IoCtx = *mut c_void;
type Rbd = *mut c_void;
type Completed = *mut c_void;
/// `rbd_image_watcher_t`: the place of a client, which the library owns, its number, and the number of its watch.
#[derive(Clone, Copy)]
#[repr(C)]
struct Watcher {
    place: *mut c_char,
    id: i64,
    cookie: u64,
}

type Callback = unsafe extern "C" fn(Completed, *mut c_void);

macro_rules! functions {
    ($(#[$doc:meta])* $table:ident {
        required { $($field:ident: fn($($arg:ty),*) $(-> $out:ty)?;)* }
        optional { $($other:ident: fn($($other_arg:ty),*) $(-> $other_out:ty)?;)* }
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $table {
            $($field: unsafe extern "C" fn($($arg),*) $(-> $out)?,)*
            $($other: Option<unsafe extern "C" fn($($other_arg),*) $(-> $other_out)?>,)*
        }

        #[cfg(not(target_feature = "crt-static"))]
        impl $table {
            /// # Safety
            ///
            /// The library is what its name says, and stays.
            unsafe fn of(library: &libloading::Library) -> Result<$table, &'static str> {
                Ok($table {
                    // SAFETY: the signature is that of the header, by the promise of the caller.
                    $($field: match unsafe { library.get(stringify!($field).as_bytes()) } {
                        Ok(symbol) => *symbol,
                        Err(_) => return Err(stringify!($field)),
                    },)*
                    // SAFETY: as above.
                    $($other: unsafe { library.get(stringify!($other).as_bytes()) }
                        .ok().map(|symbol| *symbol),)*
                })
            }
        }
    };
}

functions! {
    /// Of `rados/librados.h`.
    RadosTable {
        required {
            rados_create: fn(*mut Rados, *const c_char) -> c_int;
            rados_conf_read_file: fn(Rados, *const c_char) -> c_int;
            rados_conf_parse_env: fn(Rados, *const c_char) -> c_int;
            rados_conf_set: fn(Rados, *const c_char, *const c_char) -> c_int;
            rados_conf_get: fn(Rados, *const c_char, *mut c_char, usize) -> c_int;
            rados_connect: fn(Rados) -> c_int;
            rados_shutdown: fn(Rados);
            rados_cluster_fsid: fn(Rados, *mut c_char, usize) -> c_int;
            rados_ioctx_create: fn(Rados, *const c_char, *mut IoCtx) -> c_int;
            rados_ioctx_set_namespace: fn(IoCtx, *const c_char);
            rados_ioctx_destroy: fn(IoCtx);
        }
        optional {}
    }
}

functions! {
    /// Of `rbd/librbd.h`.
    RbdTable {
        required {
            rbd_open: fn(IoCtx, *const c_char, *mut Rbd, *const c_char) -> c_int;
            rbd_open_read_only: fn(IoCtx, *const c_char, *mut Rbd, *const c_char) -> c_int;
            rbd_close: fn(Rbd) -> c_int;
            rbd_get_size: fn(Rbd, *mut u64) -> c_int;
            rbd_get_features: fn(Rbd, *mut u64) -> c_int;
            rbd_get_id: fn(Rbd, *mut c_char, usize) -> c_int;
            rbd_snap_get_id: fn(Rbd, *const c_char, *mut u64) -> c_int;
            rbd_lock_acquire: fn(Rbd, c_int) -> c_int;
            rbd_is_exclusive_lock_owner: fn(Rbd, *mut c_int) -> c_int;
            rbd_list_lockers: fn(
                Rbd, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char,
                *mut usize, *mut c_char, *mut usize
            ) -> isize;
            rbd_watchers_list: fn(Rbd, *mut Watcher, *mut usize) -> c_int;
            rbd_watchers_list_cleanup: fn(*mut Watcher, usize);
            rbd_aio_create_completion: fn(*mut c_void, Callback, *mut Completed) -> c_int;
            rbd_aio_get_return_value: fn(Completed) -> isize;
            rbd_aio_release: fn(Completed);
            rbd_aio_read: fn(Rbd, u64, usize, *mut c_char, Completed) -> c_int;
            rbd_aio_write: fn(Rbd, u64, usize, *const c_char, Completed) -> c_int;
            rbd_aio_discard: fn(Rbd, u64, u64, Completed) -> c_int;
            rbd_aio_flush: fn(Rbd, Completed) -> c_int;
        }
        optional {
            rbd_aio_write_zeroes: fn(Rbd, u64, usize, Completed, c_int, c_int) -> c_int;
        }
    }
}

/// Both libraries, loaded for the rest of the process: their threads may run at any time.
pub(crate) struct Libraries {
    rados: RadosTable,
    rbd: RbdTable,
}

/// What was loaded from where; `None` is where the system looks.
static LOADED: Mutex<Vec<(Option<PathBuf>, &'static Libraries)>> =
    Mutex::new(Rank::Leaf, Vec::new());

impl Libraries {
    /// Loads the libraries that lie in `dir`, or where the system looks for them.
    pub(crate) fn load(dir: Option<&Path>, address: &str) -> Result<&'static Libraries, RbdError> {
        let mut loaded = LOADED.lock();
        if let Some((_, found)) = loaded.iter().find(|(from, _)| from.as_deref() == dir) {
            return Ok(found);
        }
        let libraries: &'static Libraries = Box::leak(Box::new(Libraries::fresh(dir, address)?));
        loaded.push((dir.map(Path::to_owned), libraries));
        Ok(libraries)
    }

    #[cfg(target_feature = "crt-static")]
    fn fresh(_: Option<&Path>, address: &str) -> Result<Libraries, RbdError> {
        Err(RbdError::Static { address: address.to_owned() })
    }

    #[cfg(not(target_feature = "crt-static"))]
    fn fresh(dir: Option<&Path>, _: &str) -> Result<Libraries, RbdError> {
        let open = |library: &'static str, package: &'static str| {
            let path = dir.map_or_else(|| PathBuf::from(library), |dir| dir.join(library));
            // SAFETY: what the library does when it is loaded is its own; it is the one that the administrator of this
            // system has installed under this name.
            let opened = unsafe { libloading::Library::new(&path) };
            opened.map(ManuallyDrop::new).map_err(|error| {
                // What the system says, which names the file.
                let what = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                RbdError::Library { library, what, package }
            })
        };
        let missing = |library, package| {
            move |function: &'static str| {
                let what = format!("it has no function {function} (Ceph 15 and later do)");
                RbdError::Library { library, what, package }
            }
        };
        let (rados_name, rados_package) = ("librados.so.2", "librados2");
        let (rbd_name, rbd_package) = ("librbd.so.1", "librbd1");
        // The one that most systems lack comes first, and brings the other.
        let rbd = open(rbd_name, rbd_package)?;
        let rados = open(rados_name, rados_package)?;
        // SAFETY: the libraries are those of these names, and `ManuallyDrop` never unloads them.
        let tables = unsafe {
            let rbd = RbdTable::of(&rbd).map_err(missing(rbd_name, rbd_package))?;
            (RadosTable::of(&rados).map_err(missing(rados_name, rados_package))?, rbd)
        };
        Ok(Libraries { rados: tables.0, rbd: tables.1 })
    }

    /// A connection that is yet to be configured and made, for `client.ID`.
    pub(crate) fn cluster(&'static self, id: &CStr) -> Result<Cluster, i32> {
        let mut handle = ptr::null_mut();
        // SAFETY: the handle is written before success is returned.
        check(unsafe { (self.rados.rados_create)(&mut handle, id.as_ptr()) })?;
        Ok(Cluster { libraries: self, handle })
    }
}

/// Turns the result of a call into an errno.
fn check(result: c_int) -> Result<(), i32> {
    if result >= 0 { Ok(()) } else { Err(errno(result as i64)) }
}

/// The errno in a negative result.
pub(crate) fn errno(result: i64) -> i32 {
    result.checked_neg().and_then(|n| i32::try_from(n).ok()).filter(|n| *n < 4096).unwrap_or(EIO)
}

/// Text up to the first zero.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// A connection to a cluster.
pub(crate) struct Cluster {
    libraries: &'static Libraries,
    handle: Rados,
}

// SAFETY: the header lets all threads use a handle; it is ended once, by the last owner.
unsafe impl Send for Cluster {}
// SAFETY: as for `Send`; what configures takes `&mut self` or comes before the handle is shared.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Reads a file of options, or the one that the environment or the system names.
    pub(crate) fn read_conf(&mut self, file: Option<&CStr>) -> Result<(), i32> {
        let file = file.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the handle is open; a null pointer means the usual places.
        check(unsafe { (self.libraries.rados.rados_conf_read_file)(self.handle, file) })
    }

    /// Reads `CEPH_ARGS`.
    pub(crate) fn parse_env(&mut self) -> Result<(), i32> {
        // SAFETY: the handle is open; a null pointer means `CEPH_ARGS`.
        check(unsafe { (self.libraries.rados.rados_conf_parse_env)(self.handle, ptr::null()) })
    }

    pub(crate) fn set(&mut self, option: &CStr, value: &CStr) -> Result<(), i32> {
        let set = self.libraries.rados.rados_conf_set;
        // SAFETY: the handle is open, and both are strings, which are copied.
        check(unsafe { set(self.handle, option.as_ptr(), value.as_ptr()) })
    }

    pub(crate) fn get(&self, option: &CStr) -> Option<String> {
        let mut value = [0u8; 256];
        let get = self.libraries.rados.rados_conf_get;
        // SAFETY: the handle is open, and the length is that of the memory.
        let got =
            unsafe { get(self.handle, option.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        (got >= 0).then(|| text(&value))
    }

    pub(crate) fn connect(&mut self) -> Result<(), i32> {
        // SAFETY: the handle is open.
        check(unsafe { (self.libraries.rados.rados_connect)(self.handle) })
    }

    /// The name of the cluster that is like no other.
    pub(crate) fn fsid(&self) -> Result<String, i32> {
        let mut value = [0u8; 64];
        let get = self.libraries.rados.rados_cluster_fsid;
        // SAFETY: the handle is connected, and the length is that of the memory.
        check(unsafe { get(self.handle, value.as_mut_ptr().cast(), value.len()) })?;
        Ok(text(&value))
    }

    /// Opens a pool.
    pub(crate) fn pool(self: &Arc<Self>, name: &CStr, space: Option<&CStr>) -> Result<Pool, i32> {
        let rados = &self.libraries.rados;
        let mut handle = ptr::null_mut();
        // SAFETY: the handle of the cluster is connected; that of the pool is written before success is returned.
        check(unsafe { (rados.rados_ioctx_create)(self.handle, name.as_ptr(), &mut handle) })?;
        if let Some(space) = space {
            // SAFETY: the handle is open, and nobody else has it yet; the string is copied.
            unsafe { (rados.rados_ioctx_set_namespace)(handle, space.as_ptr()) };
        }
        Ok(Pool { cluster: Arc::clone(self), handle })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: pools hold the cluster, so there are none any more, and this is done once.
        unsafe { (self.libraries.rados.rados_shutdown)(self.handle) };
    }
}

/// A pool, or a namespace of it.
pub(crate) struct Pool {
    cluster: Arc<Cluster>,
    handle: IoCtx,
}

// SAFETY: as for `Cluster`.
unsafe impl Send for Pool {}
// SAFETY: as for `Cluster`.
unsafe impl Sync for Pool {}

impl Pool {
    /// Opens an image, or a snapshot of it.
    pub(crate) fn image(
        self,
        name: &CStr,
        snapshot: Option<&CStr>,
        is_read_only: bool,
    ) -> Result<Image, (i32, Pool)> {
        let rbd = &self.cluster.libraries.rbd;
        let open = if is_read_only { rbd.rbd_open_read_only } else { rbd.rbd_open };
        let snapshot = snapshot.map_or(ptr::null(), CStr::as_ptr);
        let mut handle = ptr::null_mut();
        // SAFETY: the handle of the pool is open; that of the image is written before success is returned. A null pointer
        // for the snapshot means the image itself.
        let opened = unsafe { open(self.handle, name.as_ptr(), &mut handle, snapshot) };
        match check(opened) {
            Ok(()) => Ok(Image { pool: ManuallyDrop::new(self), handle, is_abandoned: false }),
            Err(errno) => Err((errno, self)),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: an image owns its pool, so there is none any more, and this is done once.
        unsafe { (self.cluster.libraries.rados.rados_ioctx_destroy)(self.handle) };
    }
}

/// An open image.
pub(crate) struct Image {
    pool: ManuallyDrop<Pool>,
    handle: Rbd,
    /// Whether requests are under way that nobody waits for.
    is_abandoned: bool,
}

// SAFETY: the header lets all threads use a handle; it is closed once, by the owner.
unsafe impl Send for Image {}
// SAFETY: as for `Send`.
unsafe impl Sync for Image {}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// Fills the memory.
    Read,
    /// Stores the memory.
    Write,
    Flush,
    Discard(u64),
    Zero(u64),
}

/// Where requests arrive.
pub(crate) trait Landing: Send + Sync {
    /// A request was completed by the library, which has let go of its memory. Called once for each request, from a
    /// thread of the library: it must neither panic nor wait for another request.
    fn landed(&self, cookie: u64, memory: AlignedBuffer, result: i64);
}

/// A request under way. Nobody has a way to it but the library, until its callback.
struct Flight {
    cookie: u64,
    memory: AlignedBuffer,
    landing: Arc<dyn Landing>,
    libraries: &'static Libraries,
}

/// The library has completed a request.
///
/// # Safety
///
/// `flight` is from `Box::into_raw` in [`Image::start`], and `completed` was made with it; both are handed over, once.
unsafe extern "C" fn completed(completed: Completed, flight: *mut c_void) {
    // SAFETY: by the promise of the caller; the library calls back once.
    let flight = unsafe { Box::from_raw(flight.cast::<Flight>()) };
    let Flight { cookie, memory, landing, libraries } = *flight;
    // SAFETY: the completion is done, and is not used after its release; the library keeps what it needs itself.
    let result = unsafe {
        let result = (libraries.rbd.rbd_aio_get_return_value)(completed);
        (libraries.rbd.rbd_aio_release)(completed);
        result
    };
    landing.landed(cookie, memory, result as i64);
}

impl Image {
    fn rbd(&self) -> &'static RbdTable {
        &self.pool.cluster.libraries.rbd
    }

    /// The size of the image as it is known now, in bytes. Asks nobody, unless the cluster has told of a change.
    pub(crate) fn size(&self) -> Result<u64, i32> {
        let mut size = 0;
        // SAFETY: the handle is open.
        check(unsafe { (self.rbd().rbd_get_size)(self.handle, &mut size) })?;
        Ok(size)
    }

    pub(crate) fn features(&self) -> Result<u64, i32> {
        let mut features = 0;
        // SAFETY: the handle is open.
        check(unsafe { (self.rbd().rbd_get_features)(self.handle, &mut features) })?;
        Ok(features)
    }

    /// What tells the image from any other of its pool, also when that gets its name.
    pub(crate) fn id(&self) -> Result<String, i32> {
        let mut id = [0u8; 128];
        // SAFETY: the handle is open, and the length is that of the memory.
        let got = unsafe { (self.rbd().rbd_get_id)(self.handle, id.as_mut_ptr().cast(), id.len()) };
        check(got)?;
        Ok(text(&id))
    }

    pub(crate) fn snapshot_id(&self, name: &CStr) -> Result<u64, i32> {
        let mut id = 0;
        // SAFETY: the handle is open.
        check(unsafe { (self.rbd().rbd_snap_get_id)(self.handle, name.as_ptr(), &mut id) })?;
        Ok(id)
    }

    /// Takes the exclusive lock, and keeps it from those who ask for it. One who is alive is asked for it; of one who is
    /// dead, as the cluster says, it is taken, and he is shut out.
    pub(crate) fn lock(&self) -> Result<(), i32> {
        // SAFETY: the handle is open.
        check(unsafe { (self.rbd().rbd_lock_acquire)(self.handle, LOCK_MODE_EXCLUSIVE) })
    }

    pub(crate) fn has_lock(&self) -> Result<bool, i32> {
        let mut is_owner = 0;
        // SAFETY: the handle is open.
        check(unsafe { (self.rbd().rbd_is_exclusive_lock_owner)(self.handle, &mut is_owner) })?;
        Ok(is_owner != 0)
    }

    /// Who has the lock, and where he is.
    pub(crate) fn lock_owners(&self) -> Result<Vec<(String, String)>, i32> {
        let mut room = 512;
        loop {
            let (mut tag, mut clients, mut cookies, mut places) =
                (vec![0u8; room], vec![0u8; room], vec![0u8; room], vec![0u8; room]);
            let mut lens = [room; 4];
            let [tag_len, clients_len, cookies_len, places_len] = &mut lens;
            let mut is_exclusive = 0;
            // SAFETY: the handle is open, and each length is that of the memory before it.
            let count = unsafe {
                (self.rbd().rbd_list_lockers)(
                    self.handle,
                    &mut is_exclusive,
                    tag.as_mut_ptr().cast(),
                    tag_len,
                    clients.as_mut_ptr().cast(),
                    clients_len,
                    cookies.as_mut_ptr().cast(),
                    cookies_len,
                    places.as_mut_ptr().cast(),
                    places_len,
                )
            };
            if count < 0 && errno(count as i64) == ERANGE && room * 8 <= ANSWER_MAX {
                room *= 8;
                continue;
            }
            if count < 0 {
                return Err(errno(count as i64));
            }
            // Strings one after the other, each ended by a zero.
            let strings = |bytes: &[u8]| -> Vec<String> {
                bytes.split(|byte| *byte == 0).map(text).collect()
            };
            let pairs = strings(&clients).into_iter().zip(strings(&places));
            return Ok(pairs.take(count as usize).collect());
        }
    }

    /// The numbers of the clients that have the image open for writing and are alive, as far as the cluster knows.
    pub(crate) fn clients(&self) -> Result<Vec<i64>, i32> {
        let mut room = 8;
        loop {
            let nobody = Watcher { place: ptr::null_mut(), id: 0, cookie: 0 };
            let mut watchers = vec![nobody; room];
            let mut count = watchers.len();
            // SAFETY: the handle is open, and `count` is the number of records that there is memory for.
            let listed = unsafe {
                (self.rbd().rbd_watchers_list)(self.handle, watchers.as_mut_ptr(), &mut count)
            };
            match check(listed) {
                // How many there are now, and some that may come.
                Err(ERANGE) if room < WATCHERS_MAX => {
                    room = count.clamp(room, WATCHERS_MAX / 2) * 2
                }
                Err(errno) => return Err(errno),
                Ok(()) => {
                    watchers.truncate(count);
                    let ids = watchers.iter().map(|watcher| watcher.id).collect();
                    // SAFETY: these are the records that were filled, whose texts the library frees, once.
                    unsafe {
                        (self.rbd().rbd_watchers_list_cleanup)(
                            watchers.as_mut_ptr(),
                            watchers.len(),
                        );
                    }
                    return Ok(ids);
                }
            }
        }
    }

    pub(crate) fn can_zero(&self) -> bool {
        self.rbd().rbd_aio_write_zeroes.is_some()
    }

    /// Starts a request. When that fails the library may still have the memory, which is lost then, and may still
    /// complete the request.
    ///
    /// `offset` is in bytes; memory of a request for less than 2 GiB.
    pub(crate) fn start(
        &self,
        call: Call,
        offset: u64,
        cookie: u64,
        memory: AlignedBuffer,
        landing: Arc<dyn Landing>,
    ) -> Result<(), i32> {
        let rbd = self.rbd();
        let flight = Flight { cookie, memory, landing, libraries: self.pool.cluster.libraries };
        let flight = Box::into_raw(Box::new(flight));
        let mut completion = ptr::null_mut();
        // SAFETY: the callback has the type that the header asks for.
        let made =
            unsafe { (rbd.rbd_aio_create_completion)(flight.cast(), completed, &mut completion) };
        if let Err(errno) = check(made) {
            // SAFETY: without a completion nobody else has the flight.
            drop(unsafe { Box::from_raw(flight) });
            return Err(errno);
        }
        // SAFETY: the flight is alive: the callback, which ends it, comes after the request was started below. A reference
        // to its memory ends with these two lines, and the memory does not move: it is on the heap.
        let (bytes, len) = unsafe {
            let memory = &mut (*flight).memory;
            (memory.as_mut_ptr().cast::<c_char>(), memory.len())
        };
        // SAFETY: the image and the completion are open. `bytes` are `len` bytes that belong to the flight, which is freed
        // by the callback alone: the library has let go of them then.
        let started = unsafe {
            match call {
                Call::Read => (rbd.rbd_aio_read)(self.handle, offset, len, bytes, completion),
                Call::Write => (rbd.rbd_aio_write)(self.handle, offset, len, bytes, completion),
                Call::Flush => (rbd.rbd_aio_flush)(self.handle, completion),
                Call::Discard(len) => (rbd.rbd_aio_discard)(self.handle, offset, len, completion),
                Call::Zero(len) => match rbd.rbd_aio_write_zeroes {
                    Some(zero) => zero(self.handle, offset, len as usize, completion, 0, 0),
                    None => -95, // EOPNOTSUPP; not reached: see `can_zero`.
                },
            }
        };
        // Neither the flight nor the completion is freed here: whether the callback comes is not said.
        check(started)
    }

    /// The image is not closed, because requests are under way that may never end: it stays until the process ends.
    pub(crate) fn abandon(&mut self) {
        self.is_abandoned = true;
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.is_abandoned {
            return;
        }
        // SAFETY: nobody else has the handle, and this is done once; requests under way are waited for inside. The pool is
        // dropped after the image, once.
        unsafe {
            (self.rbd().rbd_close)(self.handle);
            ManuallyDrop::drop(&mut self.pool);
        }
    }
}
