//! Building, making and checking images.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant::{Family, FsError, MountOptions, SharedDevice};
use extant_block::FileDevice;
use extant_check::CheckOptions;
use extant_image::Build;
use extant_image::options::MkfsOptions;
use extant_image::write::Progress;
use extant_sync::{Condvar, Mutex, Rank, threads};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::error::{build_failed, check_failed, failed, told};

/// Period of progress reports and of checks for interruption by Python.
const TOLD_EVERY: Duration = Duration::from_millis(50);

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

/// Reports the end of a build, also after a panic.
struct Ending<'w>(&'w Watched);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        *self.0.ended.lock() = true;
        self.0.end.notify_all();
    }
}

impl Watched {
    /// Waits a while, or until the build has ended.
    fn has_ended(&self) -> bool {
        let mut ended = self.ended.lock();
        if !*ended {
            self.end.wait_for(&mut ended, TOLD_EVERY);
        }
        *ended
    }
}

fn host(path: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(path))
}

/// `(image bytes, files, data bytes, skipped, uuid, lost)`; what is lost as `(what, files, example)`.
type Built = (u64, u64, u64, u64, Vec<u8>, Vec<(String, u64, Vec<u8>)>);

/// Builds an image of a directory or archive; of nothing without a source.
#[pyfunction]
#[pyo3(signature = (source, target, *, tar, size, free_bytes, free_percent, owner, epoch, label, features, threads, overwrite, ignore_unreadable, one_file_system, progress))]
#[expect(clippy::too_many_arguments, reason = "they have names in Python")]
#[expect(clippy::fn_params_excessive_bools, reason = "they have names in Python")]
pub(crate) fn build(
    py: Python<'_>,
    source: Option<Vec<u8>>,
    target: Vec<u8>,
    tar: bool,
    size: Option<u64>,
    free_bytes: Option<u64>,
    free_percent: Option<u32>,
    owner: Option<(u32, u32)>,
    epoch: Option<i64>,
    label: Option<Vec<u8>>,
    features: Option<String>,
    threads: Option<usize>,
    overwrite: bool,
    ignore_unreadable: bool,
    one_file_system: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Built> {
    let given = [size.is_some(), free_bytes.is_some(), free_percent.is_some()];
    if given.into_iter().filter(|given| *given).count() > 1 {
        return Err(PyValueError::new_err("size, free_bytes and free_percent exclude each other"));
    }
    let done = (AtomicU64::new(0), AtomicU64::new(0));
    let ended = Mutex::new(Rank::Leaf, false);
    let watched = Watched { done: done.0, total: done.1, ended, end: Condvar::new() };
    let cancel = AtomicBool::new(false);
    let (about_source, about_target) = (source.clone(), target.clone());
    let mut build = match (source, tar) {
        (Some(source), false) => Build::from_dir(host(source)),
        (Some(source), true) => Build::from_tar(host(source)),
        (None, _) => Build::empty(),
    };
    if let Some(features) = features {
        let mkfs = MkfsOptions::default().with_features(&features);
        build = build.mkfs(mkfs.map_err(|error| PyValueError::new_err(error.to_string()))?);
    }
    build = build.progress(&watched).cancel(&cancel).overwrite(overwrite);
    build = build.ignore_unreadable(ignore_unreadable).one_file_system(one_file_system);
    if let Some(label) = label {
        build = build.label(label);
    }
    if let Some(size) = size {
        build = build.size(size);
    }
    if let Some(bytes) = free_bytes {
        build = build.free_bytes(bytes);
    }
    if let Some(percent) = free_percent {
        build = build.free_percent(percent);
    }
    if let Some((uid, gid)) = owner {
        build = build.owner(uid, gid);
    }
    if let Some(epoch) = epoch {
        build = build.reproducible(epoch);
    }
    if let Some(threads) = threads {
        build = build.threads(threads);
    }
    // Reported on this thread, which also handles signals. An exception of Python cancels, and is
    // raised when the build has ended.
    let tell = || -> PyResult<()> {
        Python::attach(|py| {
            py.check_signals()?;
            let Some(progress) = &progress else { return Ok(()) };
            let done = watched.done.load(Ordering::Relaxed);
            progress.call1(py, (done, watched.total.load(Ordering::Relaxed).max(done))).map(drop)
        })
    };
    let target = host(target);
    let finished = py.detach(|| {
        threads::scope(|scope| {
            let raised = tell();
            cancel.store(raised.is_err(), Ordering::Relaxed);
            let mut raised = raised.err();
            let work = || {
                let _ending = Ending(&watched);
                build.write_to(&target)
            };
            let worker = scope.spawn("extant-build", work)?;
            while !watched.has_ended() {
                if raised.is_none()
                    && let Err(error) = tell()
                {
                    cancel.store(true, Ordering::Relaxed);
                    raised = Some(error);
                }
            }
            let built = worker.join().map_err(threads::ThreadError::from)?;
            if raised.is_none() {
                raised = tell().err();
            }
            Ok::<_, threads::ThreadError>((built, raised))
        })
    });
    let panicked = |error: &dyn std::fmt::Display| PyRuntimeError::new_err(error.to_string());
    let (built, raised) =
        finished.map_err(|error| panicked(&error))?.map_err(|error| panicked(&error))?;
    if let Some(raised) = raised {
        return Err(raised);
    }
    let built =
        built.map_err(|error| build_failed(&error, about_source.as_deref(), &about_target))?;
    let summary = built.summary;
    let uuid = built.uuid.to_vec();
    let kinds = built.lost.kinds();
    let mut lost: Vec<_> =
        kinds.map(|(what, kind)| (what.to_owned(), kind.files, kind.example.clone())).collect();
    if built.lost.unnamed() > 0 {
        lost.push(("other kinds".to_owned(), built.lost.unnamed(), Vec::new()));
    }
    Ok((summary.size_bytes, summary.files, summary.data_bytes, built.skipped.count, uuid, lost))
}

/// `(problems as (code, text), how many more, inodes, directories, blocks)`.
type Checked = (Vec<(String, String)>, u64, u32, u32, u64);

/// Checks an image as `extant check` does.
#[pyfunction]
pub(crate) fn check(py: Python<'_>, path: Vec<u8>, max_problems: usize) -> PyResult<Checked> {
    let about = path.clone();
    let error = |error: &FsError| failed(error, Some(&about));
    py.detach(|| {
        let device =
            FileDevice::open_read_only(host(path)).map_err(|found| error(&found.into()))?;
        let device: SharedDevice = Arc::new(device);
        let opened = MountOptions::new().open_shared(Arc::clone(&device));
        let (shown, is_pending, unopened) = match opened.map_err(FsError::from) {
            Ok(fs) => (Arc::clone(fs.device()), fs.replayed().is_some(), None),
            // The first of its problems; a check of the image shows the others.
            Err(found) if found.family() == Family::Damage => (device, false, Some(told(&found))),
            // Nothing is known of the image as the next mount would have it.
            Err(found) => return Err(error(&found)),
        };
        let how = CheckOptions {
            require_replayed: false,
            require_no_orphans: !is_pending,
            require_clean_state: false,
            strict_totals: false,
            max_problems,
            ..CheckOptions::default()
        };
        let found =
            extant_check::check(&shown, &how).map_err(|found| check_failed(found, &about))?;
        let first = unopened.map(|text| ("not-openable".to_owned(), text));
        let problems = found.problems.iter().map(|p| (p.code().to_owned(), p.to_string()));
        let counts = found.counts;
        let problems = first.into_iter().chain(problems).collect();
        Ok((problems, found.dropped, counts.inodes, counts.directories, counts.blocks))
    })
}
