//! Where things lie in fio's memory.
//!
//! Interface version 31 is that of fio 3.30 to 3.33, here on x86-64; that Debian's fio 3.33 runs these jobs and verifies what
//! it reads is the check (`tests/fio.rs`). Other versions have other positions, and are refused before anything is touched.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::options::Options;

/// fio's number of this layout.
pub(crate) const INTERFACE: c_int = 31;

/// The versions of fio that have it.
const KNOWN: [&str; 4] = ["fio-3.30", "fio-3.31", "fio-3.32", "fio-3.33"];

/// Checks that this version's layout is known. A version may be followed by `-` and what a distribution adds.
pub(crate) fn known(version: &str) -> Result<(), String> {
    let plain = version.splitn(3, '-').take(2).collect::<Vec<_>>().join("-");
    if cfg!(not(target_arch = "x86_64")) {
        return Err("extant: this engine knows fio on x86-64 only".into());
    }
    if KNOWN.contains(&plain.as_str()) {
        return Ok(());
    }
    let (first, last) = (KNOWN[0], KNOWN[KNOWN.len() - 1]);
    Err(format!("extant: {version} is not known to this engine, which knows {first} to {last}"))
}

/// The version of the fio that has loaded this.
pub(crate) fn version() -> Option<String> {
    // SAFETY: a name that ends with a zero byte; fio's is an array of bytes that ends with one.
    unsafe {
        let at = libc::dlsym(libc::RTLD_DEFAULT, c"fio_version_string".as_ptr());
        if at.is_null() {
            return None;
        }
        Some(CStr::from_ptr(at.cast::<c_char>()).to_string_lossy().into_owned())
    }
}

/// A hook that this engine does not have.
pub(crate) type Hook = *const c_void;

/// The table of an engine, 264 bytes.
#[repr(C)]
pub(crate) struct Engine {
    pub(crate) list: [*mut c_void; 2],
    pub(crate) name: *const c_char,
    pub(crate) version: c_int,
    pub(crate) flags: c_int,
    pub(crate) handle: *mut c_void,
    pub(crate) setup: Hook,
    pub(crate) init: Hook,
    pub(crate) post_init: Hook,
    pub(crate) prep: Hook,
    pub(crate) queue: Hook,
    pub(crate) commit: Hook,
    pub(crate) getevents: Hook,
    pub(crate) event: Hook,
    pub(crate) errdetails: Hook,
    pub(crate) cancel: Hook,
    pub(crate) cleanup: Hook,
    pub(crate) open_file: Hook,
    pub(crate) close_file: Hook,
    pub(crate) invalidate: Hook,
    pub(crate) unlink_file: Hook,
    pub(crate) get_file_size: Hook,
    pub(crate) prepopulate_file: Hook,
    pub(crate) terminate: Hook,
    pub(crate) iomem_alloc: Hook,
    pub(crate) iomem_free: Hook,
    pub(crate) io_u_init: Hook,
    pub(crate) io_u_free: Hook,
    pub(crate) zoned: [Hook; 4],
    pub(crate) option_bytes: c_int,
    pub(crate) options: *mut Description,
}

const _: () = assert!(size_of::<Engine>() == 264);

/// Flags of an engine: it has no files of the host, which fio would extend, watch the disk of, or hand to other threads.
pub(crate) const FLAGS: c_int = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 15;

/// Kind of an option that is a string.
pub(crate) const STRING: u32 = 6;
/// Kind of an option that is a number of 32 bits.
pub(crate) const NUMBER: u32 = 8;
/// Category of options that belong to engines.
pub(crate) const OF_ENGINE: u64 = 1 << 6;

/// Description of an option, 1512 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Description {
    pub(crate) name: *const c_char,
    pub(crate) long_name: *const c_char,
    pub(crate) alias: *const c_char,
    pub(crate) kind: u32,
    /// Where its value lies in the options of a job.
    pub(crate) at: u32,
    pub(crate) more_places: [u32; 5],
    pub(crate) most: u64,
    pub(crate) least: c_int,
    pub(crate) most_and_least: [f64; 2],
    pub(crate) numbers: [u32; 4],
    /// Called with the options of a job, when the value was stored.
    pub(crate) stored: Hook,
    pub(crate) help: *const c_char,
    pub(crate) default: *const c_char,
    pub(crate) values: [u64; 160],
    pub(crate) parent: [u64; 7],
    pub(crate) category: u64,
    pub(crate) group: [u64; 2],
    pub(crate) more: [u32; 6],
}

const _: () = assert!(size_of::<Description>() == 1512);
const _: () = assert!(std::mem::offset_of!(Description, most) == 56);
const _: () = assert!(std::mem::offset_of!(Description, stored) == 104);
const _: () = assert!(std::mem::offset_of!(Description, category) == 1464);

impl Description {
    /// The end of a list of options.
    pub(crate) const NONE: Description = Description {
        name: std::ptr::null(),
        long_name: std::ptr::null(),
        alias: std::ptr::null(),
        kind: 0,
        at: 0,
        more_places: [0; 5],
        most: 0,
        least: 0,
        most_and_least: [0.0; 2],
        numbers: [0; 4],
        stored: std::ptr::null(),
        help: std::ptr::null(),
        default: std::ptr::null(),
        values: [0; 160],
        parent: [0; 7],
        category: 0,
        group: [0; 2],
        more: [0; 6],
    };
}

/// The options of a job, as fio stores them. The first word is fio's.
#[repr(C)]
pub(crate) struct Stored {
    pub(crate) thread: *mut c_void,
    pub(crate) image: *const c_char,
    pub(crate) mode: *const c_char,
    pub(crate) durable: *const c_char,
    pub(crate) cache_mib: u32,
}

/// Where a job has the pointer to its options; depends on how fio was configured, so it is looked for once.
static OPTIONS_AT: AtomicUsize = AtomicUsize::new(0);
/// A job is larger than that, in bytes.
const SEARCHED: usize = 16 << 10;

/// Looks for the pointer to `stored` in the job that its first word points to.
///
/// # Safety
///
/// `stored` are the options of a job while fio parses them.
pub(crate) unsafe fn find_options(stored: *const Stored) {
    if OPTIONS_AT.load(Ordering::Relaxed) != 0 || stored.is_null() {
        return;
    }
    // SAFETY: while options are parsed, the first word points to their job, which is larger than what is searched.
    let found = unsafe {
        let job = (*stored).thread.cast::<usize>();
        if job.is_null() {
            return;
        }
        (0..SEARCHED / size_of::<usize>()).find(|word| job.add(*word).read() == stored.addr())
    };
    if let Some(word) = found {
        OPTIONS_AT.store(word * size_of::<usize>(), Ordering::Relaxed);
    }
}

/// The options of a job.
///
/// # Safety
///
/// `job` is a job of fio, whose options were parsed.
pub(crate) unsafe fn options(job: *const c_void) -> Result<Options, String> {
    let at = OPTIONS_AT.load(Ordering::Relaxed);
    if at == 0 {
        return Options::of(None, None, None, 0);
    }
    // SAFETY: as `find_options` has found it; strings are fio's copies, or null.
    unsafe {
        let stored = job.byte_add(at).cast::<*const Stored>().read();
        let text = |at: *const c_char| (!at.is_null()).then(|| CStr::from_ptr(at).to_bytes());
        let Stored { image, mode, durable, cache_mib, .. } = stored.read();
        Options::of(text(image), text(mode), text(durable), cache_mib)
    }
}

/// A request of fio.
#[derive(Clone, Copy)]
pub(crate) struct Request(pub(crate) *mut c_void);

/// A file of fio.
#[derive(Clone, Copy)]
pub(crate) struct FioFile(pub(crate) *mut c_void);

macro_rules! field {
    ($(#[$doc:meta])* $get:ident, $kind:ty, $at:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// It is what fio gave to the hook that runs.
        pub(crate) unsafe fn $get(self) -> $kind {
            // SAFETY: a field of fio's structure, aligned and of this type.
            unsafe { self.0.byte_add($at).cast::<$kind>().read() }
        }
    };
    ($(#[$doc:meta])* set $set:ident, $kind:ty, $at:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// It is what fio gave to the hook that runs.
        pub(crate) unsafe fn $set(self, value: $kind) {
            // SAFETY: a field of fio's structure, aligned and of this type.
            unsafe { self.0.byte_add($at).cast::<$kind>().write(value) }
        }
    };
}

impl Request {
    field!(/// Its file.
        file, *mut c_void, 32);
    field!(/// 0 reads, 1 writes, 2 trims, 3 syncs, 4 syncs data.
        direction, u32, 44);
    field!(/// First byte of the file.
        offset, u64, 72);
    field!(/// Its memory.
        memory, *mut u8, 104);
    field!(/// How much of it, in bytes.
        len, u64, 112);
    field!(/// Bytes that were not done.
        set set_rest, u64, 136);
    field!(/// An errno.
        set set_error, u32, 144);
}

impl FioFile {
    field!(/// Its name.
        name, *const c_char, 40);
    field!(/// Its size in bytes.
        set set_size, u64, 48);
    field!(/// What the engine keeps for it.
        kept, *mut c_void, 176);
    field!(/// What the engine keeps for it.
        set set_kept, *mut c_void, 176);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_known_by_name_or_refused_by_name() {
        for version in ["fio-3.30", "fio-3.33", "fio-3.33-dirty", "fio-3.31-14-gabc"] {
            known(version).unwrap();
        }
        for version in ["fio-3.29", "fio-3.34", "fio-3.42", "fio-3.3", "fio-4.30", "3.33", ""] {
            let error = known(version).unwrap_err();
            assert!(error.contains(version) && error.contains("fio-3.30 to fio-3.33"), "{error}");
        }
    }
}
