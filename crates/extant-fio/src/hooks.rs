//! The functions that fio calls.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::abi::{
    Description, Engine, FLAGS, FioFile, INTERFACE, NUMBER, OF_ENGINE, Request, STRING, Stored,
    find_options, known, options, version,
};
use crate::job::{Finished, Job, OpenFile, Outcome, What};
use crate::mounted;

const EIO: i32 = 5;
const EINVAL: i32 = 22;
/// Answers of `queue`.
const COMPLETED: c_int = 0;
const QUEUED: c_int = 1;
const BUSY: c_int = 2;
/// Told as the size of a file that is not there yet: what fio writes is decided by its `size=`.
const ANY_SIZE: u64 = 1 << 40;

thread_local! {
    static JOB: RefCell<Option<Job>> = const { RefCell::new(None) };
    /// Requests of this thread's job: its depth.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A file as it is kept for fio, or why it could not be opened.
type Opened = Result<OpenFile, i32>;

/// Runs the body of a hook; a panic is the answer `failed`.
fn guard<R>(failed: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}

/// Runs `body` with this thread's job.
fn with_job<R>(failed: R, body: impl FnOnce(&mut Job) -> R) -> R {
    let run = || JOB.with(|job| job.borrow_mut().as_mut().map(body));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Some(answer)) => answer,
        _ => failed,
    }
}

fn complain(error: &str) -> c_int {
    eprintln!("extant: {error}");
    1
}

unsafe extern "C" fn image_stored(stored: *mut c_void, _text: *const c_char) -> c_int {
    // SAFETY: fio calls it with the options of a job while it parses them.
    unsafe { find_options(stored.cast()) };
    0
}

unsafe extern "C" fn init(job: *mut c_void) -> c_int {
    guard(1, || {
        // SAFETY: fio calls it with a job whose options were parsed.
        let options = match unsafe { options(job) } {
            Ok(options) => options,
            Err(error) => return complain(&error),
        };
        match Job::begin(options) {
            Ok(job) => {
                JOB.set(Some(job));
                0
            }
            Err(error) => complain(&error),
        }
    })
}

unsafe extern "C" fn cleanup(_job: *mut c_void) {
    guard((), || {
        DEPTH.set(0);
        if let Some(job) = JOB.take()
            && let Err(error) = job.end()
        {
            complain(&error);
        }
    });
}

unsafe extern "C" fn io_u_init(_job: *mut c_void, _request: *mut c_void) -> c_int {
    DEPTH.set(DEPTH.get() + 1);
    0
}

/// The name of a file.
///
/// # Safety
///
/// `file` is fio's.
unsafe fn name_of<'f>(file: FioFile) -> &'f [u8] {
    // SAFETY: a string of fio's that lives as long as the file.
    unsafe { CStr::from_ptr(file.name()) }.to_bytes()
}

unsafe extern "C" fn get_file_size(job: *mut c_void, file: *mut c_void) -> c_int {
    guard(1, || {
        let file = FioFile(file);
        // SAFETY: fio's job, whose options were parsed, and a file of it.
        let size =
            unsafe { options(job).and_then(|found| mounted::size_of(&found, name_of(file))) };
        match size {
            Ok(size) => {
                let size = size.filter(|size| *size > 0).unwrap_or(ANY_SIZE);
                // SAFETY: fio's file.
                unsafe { file.set_size(size) };
                0
            }
            Err(error) => complain(&error),
        }
    })
}

unsafe extern "C" fn open_file(_job: *mut c_void, file: *mut c_void) -> c_int {
    let file = FioFile(file);
    // SAFETY: fio's file.
    let name = unsafe { name_of(file) };
    // fio ends a job whose file cannot be opened, and calls that a success. So it is opened, and its first request fails.
    let open = with_job(Err(EIO), |job| job.open(name));
    // SAFETY: fio's file; what is kept is taken back by `close_file`.
    unsafe { file.set_kept(Box::into_raw(Box::new(open)).cast()) };
    0
}

unsafe extern "C" fn close_file(_job: *mut c_void, file: *mut c_void) -> c_int {
    guard(EIO, || {
        let file = FioFile(file);
        // SAFETY: fio's file; what is kept was made by `open_file`, and is taken once.
        unsafe {
            let kept = file.kept().cast::<Opened>();
            file.set_kept(std::ptr::null_mut());
            if !kept.is_null() {
                drop(Box::from_raw(kept));
            }
        }
        0
    })
}

unsafe extern "C" fn unlink_file(_job: *mut c_void, file: *mut c_void) -> c_int {
    // SAFETY: fio's file.
    let name = unsafe { name_of(FioFile(file)) };
    with_job(EIO, |job| job.unlink(name).err().unwrap_or(0))
}

/// Tells fio how far a request came.
///
/// # Safety
///
/// The request is fio's, and not given back yet.
unsafe fn settle(request: Request, result: Result<u64, i32>) {
    // SAFETY: see above.
    unsafe {
        match result {
            Ok(done) => {
                let len = request.len();
                request.set_rest(len.saturating_sub(done));
                request.set_error(0);
            }
            Err(errno) => request.set_error(errno.unsigned_abs()),
        }
    }
}

unsafe extern "C" fn queue(_job: *mut c_void, request: *mut c_void) -> c_int {
    let request = Request(request);
    // SAFETY: fio's request, with its memory, which is this engine's until it gives the request back; what is kept for
    // its file was made by `open_file`.
    let (what, file, offset, memory, len) = unsafe {
        let kept = FioFile(request.file()).kept().cast::<Opened>();
        let len = usize::try_from(request.len()).unwrap_or(0);
        (request.direction(), kept.as_ref(), request.offset(), request.memory(), len)
    };
    let what = match what {
        0 => Some(What::Read),
        1 => Some(What::Write),
        2 => Some(What::Trim),
        3 => Some(What::Sync),
        4 => Some(What::DataSync),
        _ => None,
    };
    let outcome = match (what, file) {
        (Some(_), Some(Err(errno))) => Outcome::Failed(*errno),
        (Some(what), Some(Ok(file))) => {
            let moves = matches!(what, What::Read | What::Write);
            let mut none = Vec::new();
            let memory = match moves && !memory.is_null() {
                // SAFETY: see above; for writes fio does not change it meanwhile.
                true => unsafe { std::slice::from_raw_parts_mut(memory, len) },
                false => &mut none[..],
            };
            let tag = request.0.expose_provenance() as u64;
            let depth = DEPTH.get();
            let started =
                |job: &mut Job| job.start(file, what, offset, len as u64, memory, tag, depth);
            with_job(Outcome::Failed(EIO), started)
        }
        _ => Outcome::Failed(EINVAL),
    };
    // A sync has no bytes.
    let is_sync = matches!(what, Some(What::Sync | What::DataSync));
    let result = match outcome {
        Outcome::Done(_) if is_sync => Ok(len as u64),
        Outcome::Done(done) => Ok(done),
        Outcome::Failed(errno) => Err(errno),
        Outcome::UnderWay => return QUEUED,
        Outcome::Full => return BUSY,
    };
    // SAFETY: fio's request, which goes back to it now.
    unsafe { settle(request, result) };
    COMPLETED
}

unsafe extern "C" fn commit(_job: *mut c_void) -> c_int {
    // What was queued is with the workers already.
    0
}

unsafe extern "C" fn getevents(
    _job: *mut c_void,
    least: c_uint,
    most: c_uint,
    _time: *const c_void,
) -> c_int {
    with_job(-EIO, |job| {
        job.events.clear();
        while (job.events.len() as u64) < u64::from(most) {
            let waits = (job.events.len() as u64) < u64::from(least);
            let Some(Finished { tag, result, buffer }) = job.take(waits) else { break };
            let request = Request(std::ptr::with_exposed_provenance_mut(tag as usize));
            // SAFETY: the tag is the address of a request that fio queued and that goes back to it with this event; a read
            // brings at most as many bytes as its memory has.
            unsafe {
                if let Ok(read) = result
                    && request.direction() == 0
                {
                    let len =
                        usize::try_from(read.min(request.len())).unwrap_or(0).min(buffer.len());
                    std::ptr::copy_nonoverlapping(buffer.as_ptr(), request.memory(), len);
                }
                let moves = request.direction() <= 1;
                settle(request, result.map(|done| if moves { done } else { request.len() }));
            }
            job.events.push(tag);
        }
        c_int::try_from(job.events.len()).unwrap_or(c_int::MAX)
    })
}

unsafe extern "C" fn event(_job: *mut c_void, number: c_int) -> *mut c_void {
    with_job(std::ptr::null_mut(), |job| {
        let tag = usize::try_from(number).ok().and_then(|number| job.events.get(number));
        tag.map_or(std::ptr::null_mut(), |tag| std::ptr::with_exposed_provenance_mut(*tag as usize))
    })
}

/// The table, for all jobs of the process; fio writes to it.
struct Table(*mut Engine);

// SAFETY: the pointer is handed out and never used here; fio takes care of its own threads.
unsafe impl Send for Table {}
// SAFETY: as for `Send`.
unsafe impl Sync for Table {}

fn table() -> *mut Engine {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| Table(Box::into_raw(Box::new(engine())))).0
}

/// The options, which live as long as the process.
fn descriptions() -> *mut Description {
    let option = |name: &'static CStr, help: &'static CStr, kind, at: usize| Description {
        name: name.as_ptr(),
        long_name: name.as_ptr(),
        help: help.as_ptr(),
        kind,
        at: at as u32, // Below 64.
        category: OF_ENGINE,
        ..Description::NONE
    };
    let image = Description {
        stored: image_stored as *const c_void,
        ..option(
            c"image",
            c"file or disk with an ext4 file system",
            STRING,
            std::mem::offset_of!(Stored, image),
        )
    };
    let mode =
        option(c"mode", c"buffered, direct or ring", STRING, std::mem::offset_of!(Stored, mode));
    let durable = option(
        c"durable",
        c"when writes are durable: later, data or full",
        STRING,
        std::mem::offset_of!(Stored, durable),
    );
    let cache = Description {
        most: 1 << 24,
        ..option(
            c"cache_mib",
            c"page cache in MiB; 256 unless set",
            NUMBER,
            std::mem::offset_of!(Stored, cache_mib),
        )
    };
    let all = Box::new([image, mode, durable, cache, Description::NONE]);
    Box::into_raw(all).cast()
}

fn engine() -> Engine {
    const NONE: *const c_void = std::ptr::null();
    Engine {
        list: [std::ptr::null_mut(); 2],
        name: c"extant".as_ptr(),
        version: INTERFACE,
        flags: FLAGS,
        handle: std::ptr::null_mut(),
        setup: NONE,
        init: init as *const c_void,
        post_init: NONE,
        prep: NONE,
        queue: queue as *const c_void,
        commit: commit as *const c_void,
        getevents: getevents as *const c_void,
        event: event as *const c_void,
        errdetails: NONE,
        cancel: NONE,
        cleanup: cleanup as *const c_void,
        open_file: open_file as *const c_void,
        close_file: close_file as *const c_void,
        invalidate: NONE,
        unlink_file: unlink_file as *const c_void,
        get_file_size: get_file_size as *const c_void,
        prepopulate_file: NONE,
        terminate: NONE,
        iomem_alloc: NONE,
        iomem_free: NONE,
        io_u_init: io_u_init as *const c_void,
        io_u_free: NONE,
        zoned: [NONE; 4],
        option_bytes: size_of::<Stored>() as c_int,
        options: descriptions(),
    }
}

/// Gives fio the table of this engine; nothing, and a message, to a fio that is not known.
///
/// # Safety
///
/// `out` is null or fio's place for the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_ioengine(out: *mut *mut Engine) {
    guard((), || {
        let version = version();
        let judged = match &version {
            Some(version) => known(version),
            None => Err("extant: this engine is loaded by fio, which is not here".into()),
        };
        match judged {
            // SAFETY: not null, and fio's.
            Ok(()) if !out.is_null() => unsafe { out.write(table()) },
            Ok(()) => {}
            Err(error) => eprintln!("{error}"),
        }
    });
}
