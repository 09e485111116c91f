//! Images: building, making empty ones, checking.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant::{BlockSize, Family, FsError, MountOptions, SharedDevice};
use extant_block::FileDevice;
use extant_check::{CheckOptions, check};
use extant_image::options::MkfsOptions;
use extant_image::write::Progress;
use extant_image::{Build, BuildError, Built};
use extant_sync::{Condvar, Mutex, Rank, threads};

use super::int;
use super::mount::window;
use crate::caller::{Caller, call_back, enter};
use crate::error::errno::EUCLEAN;
use crate::error::{EXTANT_E_BUILD_OPTIONS, EXTANT_E_BUILD_SOURCE, EXTANT_E_CHECK, Error, Result};
use crate::types::{
    EXTANT_BUILD_IGNORE_UNREADABLE, EXTANT_BUILD_ONE_FILE_SYSTEM, EXTANT_BUILD_OVERWRITE,
    EXTANT_BUILD_OWNER, EXTANT_BUILD_REPRODUCIBLE, EXTANT_BUILD_TAR, EXTANT_CHECK_NO_REPLAY,
    extant_build_options, extant_build_result, extant_check_options, extant_check_report,
};

const BUILD_FLAGS: u64 = EXTANT_BUILD_OVERWRITE
    | EXTANT_BUILD_TAR
    | EXTANT_BUILD_IGNORE_UNREADABLE
    | EXTANT_BUILD_ONE_FILE_SYSTEM
    | EXTANT_BUILD_OWNER
    | EXTANT_BUILD_REPRODUCIBLE;

/// Period of progress reports.
const TOLD_EVERY: Duration = Duration::from_millis(50);

/// How far a build is, and whether it has ended.
struct Watched {
    done: AtomicU64,
    total: AtomicU64,
    ended: Mutex<bool>,
    end: Condvar,
}

impl Progress for Watched {
    fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    fn expect(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }
}

impl Watched {
    fn new() -> Watched {
        let (done, total) = (AtomicU64::new(0), AtomicU64::new(0));
        Watched { done, total, ended: Mutex::new(Rank::Leaf, false), end: Condvar::new() }
    }

    /// Waits a while, or until the build has ended.
    fn has_ended(&self) -> bool {
        let mut ended = self.ended.lock();
        if !*ended {
            self.end.wait_for(&mut ended, TOLD_EVERY);
        }
        *ended
    }
}

/// Reports the end of a build, also after a panic.
struct Ending<'w>(&'w Watched);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        *self.0.ended.lock() = true;
        self.0.end.notify_all();
    }
}

fn mkfs_options(caller: &Caller, options: &extant_build_options) -> Result<MkfsOptions> {
    let wrong = |message: String| Error::new(EXTANT_E_BUILD_OPTIONS, message);
    let mut mkfs = MkfsOptions::default();
    if let Some(features) = caller.text_or_none(options.features, "features")? {
        let features = String::from_utf8_lossy(features);
        mkfs = mkfs.with_features(&features).map_err(|error| wrong(error.to_string()))?;
    }
    if options.block_bytes > 0 {
        let size = BlockSize::new(options.block_bytes.into());
        let size = size.map_err(|_| wrong(format!("blocks of {} bytes", options.block_bytes)))?;
        mkfs = mkfs.with_block_size(size);
    }
    Ok(mkfs)
}

/// Runs a build on a thread of its own, so that progress is reported on this one.
fn run(
    caller: &Caller,
    build: Build<'_>,
    options: &extant_build_options,
    target: &Path,
) -> Result<Built> {
    let has = |flag| options.flags & flag != 0;
    if options.flags & !BUILD_FLAGS != 0 {
        let unknown = options.flags & !BUILD_FLAGS;
        return Err(Error::argument(format!("build: unknown flags {unknown:#x}")));
    }
    Error::check_reserved("build options", options.reserved)?;
    let sizes = [options.image_bytes > 0, options.free_bytes > 0, options.free_percent > 0];
    if sizes.iter().filter(|given| **given).count() > 1 {
        let message = "build: image_bytes, free_bytes and free_percent exclude each other";
        return Err(Error::argument(message));
    }
    let watched = Watched::new();
    let cancel = AtomicBool::new(false);
    let mut build = build
        .mkfs(mkfs_options(caller, options)?)
        .overwrite(has(EXTANT_BUILD_OVERWRITE))
        .ignore_unreadable(has(EXTANT_BUILD_IGNORE_UNREADABLE))
        .one_file_system(has(EXTANT_BUILD_ONE_FILE_SYSTEM))
        .progress(&watched)
        .cancel(&cancel);
    if let Some(label) = caller.text_or_none(options.label, "label")? {
        build = build.label(label);
    }
    match sizes {
        [true, ..] => build = build.size(options.image_bytes),
        [_, true, _] => build = build.free_bytes(options.free_bytes),
        [.., true] => build = build.free_percent(options.free_percent),
        _ => {}
    }
    if options.threads > 0 {
        build = build.threads(options.threads as usize);
    }
    if has(EXTANT_BUILD_OWNER) {
        build = build.owner(options.uid, options.gid);
    }
    if has(EXTANT_BUILD_REPRODUCIBLE) {
        build = build.reproducible(options.epoch);
    }
    let told = || {
        let Some(progress) = options.progress else { return };
        let done = watched.done.load(Ordering::Relaxed);
        let total = watched.total.load(Ordering::Relaxed).max(done);
        // SAFETY: the header asks that it can be called with the context until the call returns.
        if call_back(|| unsafe { progress(options.context, done, total) }) != 0 {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let thread =
        |error: &dyn std::fmt::Display| Error::new(crate::error::EXTANT_E_PANIC, error.to_string());
    told();
    let built = threads::scope(|scope| {
        let work = || {
            let _ending = Ending(&watched);
            build.write_to(target)
        };
        let worker = scope.spawn("extant-build", work)?;
        while !watched.has_ended() {
            told();
        }
        told();
        worker.join().map_err(threads::ThreadError::from)
    });
    let built: std::result::Result<Built, BuildError> =
        built.map_err(|error| thread(&error))?.map_err(|error| thread(&error))?;
    Ok(built?)
}

fn told(built: &Built) -> extant_build_result {
    let summary = &built.summary;
    extant_build_result {
        size: 0,
        image_bytes: summary.size_bytes,
        files: summary.files,
        data_bytes: summary.data_bytes,
        blocks_free: summary.free_blocks,
        skipped: built.skipped.count,
        block_bytes: summary.block_bytes,
        reserved: 0,
        uuid: built.uuid,
    }
}

/// Builds an image in the file or on the disk `target` of the host, from the directory or archive
/// `source`. `options` and `result` may be NULL. A file appears under its name when it is complete
/// and durable; after an error, an earlier file is unchanged. Returns 0, or a negative errno:
/// -ECANCELED when `progress` cancelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_build(
    source: *const c_char,
    target: *const c_char,
    options: *const extant_build_options,
    result: *mut extant_build_result,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let answer = match result.is_null() {
                true => None,
                false => Some(caller.answer(result, "result")?),
            };
            let options = caller.options_or_none(options, "build options")?;
            let target = caller.host_path(target, "target")?;
            let source = caller.text(source, "source")?;
            let source = Path::new(std::ffi::OsStr::from_bytes(source));
            let build = match options.flags & EXTANT_BUILD_TAR != 0 {
                true => Build::from_tar(source),
                false => Build::from_dir(source),
            };
            let built = run(caller, build, &options, target).inspect_err(|error| {
                if error.code == EXTANT_E_BUILD_SOURCE {
                    caller.is_about(source);
                }
            })?;
            if let Some(answer) = answer {
                answer.put(told(&built));
            }
            Ok(0)
        })
    })
}

/// Makes an empty file system of `options->image_bytes` in the file or on the disk `target` of the host. `result` may be NULL.
/// Returns as extant_build().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_mkfs(
    target: *const c_char,
    options: *const extant_build_options,
    result: *mut extant_build_result,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let answer = match result.is_null() {
                true => None,
                false => Some(caller.answer(result, "result")?),
            };
            let options = caller.options(options, "build options")?;
            if options.image_bytes == 0 {
                return Err(Error::argument(
                    "mkfs: image_bytes is 0: it says how large the file system is",
                ));
            }
            let target = caller.host_path(target, "target")?;
            let built = run(caller, Build::empty(), &options, target)?;
            if let Some(answer) = answer {
                answer.put(told(&built));
            }
            Ok(0)
        })
    })
}

/// The device as the next mount would have it, and how many transactions were replayed for that.
fn replayed(
    device: &SharedDevice,
    options: &extant_check_options,
) -> Result<(SharedDevice, u64, bool)> {
    let no_replay = options.flags & EXTANT_CHECK_NO_REPLAY != 0;
    let opened = MountOptions::new().ignore_journal(no_replay).open_shared(Arc::clone(device));
    match opened.map_err(FsError::from) {
        Ok(fs) => {
            let count = fs.replayed().map_or(0, |seen| u64::from(seen.transactions));
            let is_pending = no_replay || fs.replayed().is_some();
            Ok((Arc::clone(fs.device()), count, is_pending))
        }
        Err(error) if error.family() == Family::Damage => {
            let message = format!("cannot be opened: {error}");
            Err(Error::new(EXTANT_E_CHECK, message).with_errno(EUCLEAN))
        }
        // Nothing is known of the image as the next mount would have it.
        Err(error) => Err(error.into()),
    }
}

/// Checks the image in the file, or on the disk, at `path` of the host, without changing it: finds what e2fsck -fn finds, with the
/// journal replayed in memory. `options` and `report` may be NULL. Returns 0 for a clean image, 1 for one with problems, or a
/// negative errno for one that cannot be checked: -EUCLEAN when it is so damaged that it cannot be opened, the device's
/// (mostly -EIO) when that fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_check(
    path: *const c_char,
    options: *const extant_check_options,
    report: *mut extant_check_report,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let answer = match report.is_null() {
                true => None,
                false => Some(caller.answer(report, "report")?),
            };
            let options = caller.options_or_none(options, "check options")?;
            if options.flags & !EXTANT_CHECK_NO_REPLAY != 0 {
                return Err(Error::argument(format!("check: unknown flags {:#x}", options.flags)));
            }
            Error::check_reserved("check options", options.reserved)?;
            let path = caller.host_path(path, "path")?;
            let device: SharedDevice = Arc::new(FileDevice::open_read_only(path)?);
            let device = window(device, options.offset, options.partition)?;
            let (shown, replayed, is_pending) = replayed(&device, &options)?;
            let max_problems = match options.max_problems {
                0 => 100,
                most => usize::try_from(most).unwrap_or(usize::MAX),
            };
            // As `extant check` has it.
            let how = CheckOptions {
                require_replayed: false,
                require_no_orphans: !is_pending,
                require_clean_state: false,
                strict_totals: false,
                max_problems,
                ..CheckOptions::default()
            };
            let found = check(&shown, &how)?;
            for problem in &found.problems {
                let Some(tell) = options.problem else { break };
                let text =
                    |text: String| CString::new(text.replace('\0', "\\0")).unwrap_or_default();
                let (code, message) = (text(problem.code().to_owned()), text(problem.to_string()));
                call_back(|| tell(options.context, code.as_ptr(), message.as_ptr()));
            }
            if let Some(answer) = answer {
                answer.put(extant_check_report {
                    size: 0,
                    problems: (found.problems.len() as u64).saturating_add(found.dropped),
                    inodes: found.counts.inodes.into(),
                    directories: found.counts.directories.into(),
                    blocks: found.counts.blocks,
                    replayed,
                });
            }
            Ok(u64::from(!found.is_clean()))
        })
    })
}
