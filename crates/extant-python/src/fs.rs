//! A mounted file system. Paths come as bytes, which the package made of what it was given.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use extant::{
    EncryptionPolicy, Frozen, Fs, FsError, Inode, KeySpec, MasterKey, Metadata, MountOptions,
    MountProgress, MountStage, NewInode, RenameFlags, SetAttributes, SharedDevice, TimeChange,
    Timestamp, XattrMode,
};
use extant_block::{BlockDevice as _, FileDevice, WindowDevice, partition};
use extant_sync::{Clock as _, Mutex, Rank, SystemClock};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyTuple};

use crate::device::PythonDevice;
use crate::error::{failed, refused};
use crate::file::NativeFile;
use crate::home::Home;

const EBADF: i32 = 9;

/// The attributes of an inode, on their way to `os.stat_result`.
struct Stat {
    found: Metadata,
    block_bytes: u32,
}

impl Stat {
    fn of(fs: &Fs, found: Metadata) -> Stat {
        Stat { found, block_bytes: fs.block_size().bytes() }
    }

    /// The fields of `os.stat_result`, in its order: ten whole numbers, the times with fractions, the times in
    /// nanoseconds, and what Linux has besides.
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let found = &self.found;
        let times = [found.atime, found.mtime, found.ctime];
        let [atime, mtime, ctime] = times.map(|time| whole(py, nanoseconds(time)));
        let fraction = |time| PyFloat::new(py, nanoseconds(time) as f64 / 1e9).into_any();
        let [atime_float, mtime_float, ctime_float] = times.map(fraction);
        let (major, minor) = found.rdev.unwrap_or_default();
        let fields = [
            whole(py, i128::from(u32::from(found.mode()))),
            whole(py, i128::from(u64::from(found.ino.0))),
            whole(py, 0),
            whole(py, i128::from(found.links)),
            whole(py, i128::from(found.uid)),
            whole(py, i128::from(found.gid)),
            whole(py, i128::from(found.size)),
            whole(py, i128::from(found.atime.seconds)),
            whole(py, i128::from(found.mtime.seconds)),
            whole(py, i128::from(found.ctime.seconds)),
            Ok(atime_float),
            Ok(mtime_float),
            Ok(ctime_float),
            atime,
            mtime,
            ctime,
            whole(py, i128::from(self.block_bytes)),
            whole(py, i128::from(found.blocks)),
            whole(py, i128::from(device_number(major, minor))),
        ];
        PyTuple::new(py, fields.into_iter().collect::<PyResult<Vec<_>>>()?)
    }
}

/// A number; nearly all are small, which is much cheaper.
fn whole(py: Python<'_>, number: i128) -> PyResult<Bound<'_, PyAny>> {
    Ok(match i64::try_from(number) {
        Ok(small) => small.into_pyobject(py)?.into_any(),
        Err(_) => number.into_pyobject(py)?.into_any(),
    })
}

/// A device number as `os.makedev` has it on Linux.
fn device_number(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    ((major & 0xffff_f000) << 32)
        | ((major & 0xfff) << 8)
        | ((minor & 0xffff_ff00) << 12)
        | (minor & 0xff)
}

/// A mounted file system.
#[pyclass(frozen, module = "extant._extant")]
pub(crate) struct NativeFs {
    /// None when it was unmounted.
    fs: Mutex<Option<Fs>>,
    /// Held while it is frozen.
    frozen: Mutex<Option<Frozen>>,
    #[pyo3(get)]
    writable: bool,
    home: Home,
}

/// Reads the name of a key.
fn key_name(name: &str) -> PyResult<KeySpec> {
    name.parse().map_err(|error: extant::KeyFault| PyValueError::new_err(error.to_string()))
}

fn nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos.min(999_999_999))
}

fn timestamp(nanoseconds: i128) -> PyResult<Timestamp> {
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000));
    let seconds = seconds.map_err(|_| PyValueError::new_err("a time too far away"))?;
    // Below 10^9.
    Ok(Timestamp { seconds, nanos: nanoseconds.rem_euclid(1_000_000_000) as u32 })
}

fn permissions(mode: u32) -> PyResult<u16> {
    u16::try_from(mode & 0o7777).map_err(|_| PyValueError::new_err("permissions"))
}

impl NativeFs {
    fn fs(&self) -> PyResult<Fs> {
        self.home.check()?;
        self.fs.lock().clone().ok_or_else(|| refused(EBADF, "the file system is closed"))
    }

    /// Runs `run` with the interpreter's lock released.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        path: &[u8],
        run: impl FnOnce(&Fs) -> Result<R, FsError> + Send,
    ) -> PyResult<R> {
        let fs = self.fs()?;
        let done = py.detach(move || run(&fs));
        done.map_err(|error| failed(&error, (!path.is_empty()).then_some(path)))
    }
}

fn resolve(fs: &Fs, path: &[u8], follow: bool) -> Result<Inode, FsError> {
    if follow { fs.resolve(path) } else { fs.resolve_link(path) }
}

fn window(device: SharedDevice, offset: u64, number: u32) -> PyResult<SharedDevice> {
    let wrong = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
    Ok(match (offset, number) {
        (0, 0) => device,
        (_, 0) => {
            let part = WindowDevice::from_offset(device, offset);
            Arc::new(part.map_err(|error| wrong(&error))?)
        }
        (0, _) => Arc::new(partition::open(device, number).map_err(|error| wrong(&error))?),
        _ => return Err(PyValueError::new_err("offset and partition exclude each other")),
    })
}

/// Tells `progress` of the steps of a mount. What it raises is kept in `raised`, and cancels.
fn observer(
    progress: Py<PyAny>,
    raised: Arc<Mutex<Option<PyErr>>>,
) -> impl Fn(MountProgress) -> ControlFlow<()> + Send + Sync + 'static {
    move |at| {
        let stage = match at.stage {
            MountStage::Waiting => "waiting",
            MountStage::Replaying => "replaying",
            MountStage::Orphans => "orphans",
            // A stage that this package has no name for yet.
            _ => return ControlFlow::Continue(()),
        };
        let told = Python::attach(|py| {
            py.check_signals()?;
            progress.call1(py, (stage, at.done, at.total)).map(drop)
        });
        match told {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                *raised.lock() = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

#[pymethods]
impl NativeFs {
    /// Mounts the image at a path of the host (bytes), or in a file object, which is read-only.
    #[new]
    #[pyo3(signature = (image, *, writable, offset, partition, cache_bytes, progress))]
    fn new(
        py: Python<'_>,
        image: &Bound<'_, PyAny>,
        writable: bool,
        offset: u64,
        partition: u32,
        cache_bytes: u64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<NativeFs> {
        let mut options = MountOptions::new().read_only(!writable);
        let raised = Arc::new(Mutex::new(Rank::Leaf, None));
        if let Some(progress) = progress {
            options = options.progress(observer(progress, Arc::clone(&raised)));
        }
        if cache_bytes > 0 {
            options = options.data_cache_bytes(cache_bytes);
        }
        let path = image.cast::<PyBytes>().ok().map(|path| path.as_bytes().to_vec());
        let device: SharedDevice = match &path {
            Some(path) => {
                let host = PathBuf::from(std::ffi::OsString::from_vec(path.clone()));
                let opened = py.detach(|| match writable {
                    true => {
                        let device = FileDevice::open_read_write(&host)?;
                        // The kernel would write what it has in memory over our changes.
                        device.refuse_loop_device().map(|()| device)
                    }
                    false => FileDevice::open_read_only(&host),
                });
                Arc::new(opened.map_err(|error| failed(&error.into(), Some(path)))?)
            }
            None if writable => {
                return Err(PyValueError::new_err("an image in a file object is read-only"));
            }
            None => Arc::new(PythonDevice::new(image)?),
        };
        let fs = py.detach(|| {
            let device = window(device, offset, partition)?;
            let name = device.describe();
            let opened = options.open_shared(device).map_err(extant::FsError::from);
            opened.map_err(|error| {
                let raised = raised.lock().take();
                let about = path.as_deref().unwrap_or(name.as_bytes());
                raised.unwrap_or_else(|| failed(&error, Some(about)))
            })
        })?;
        let (fs, frozen) = (Mutex::new(Rank::Leaf, Some(fs)), Mutex::new(Rank::Leaf, None));
        Ok(NativeFs { fs, frozen, writable, home: Home::of(writable) })
    }

    /// Returns false in a fork of the process that mounted it for writing.
    fn is_ours(&self) -> bool {
        self.home.is_here()
    }

    /// Ends the mount: everything is stored. A second time does nothing, and so does a fork of the process that made it.
    fn unmount(&self, py: Python<'_>) -> PyResult<()> {
        if !self.home.is_here() {
            return Ok(());
        }
        let Some(fs) = self.fs.lock().take() else { return Ok(()) };
        loop {
            self.thaw(py);
            match py.detach(|| fs.clone().unmount()) {
                // Another thread is about to freeze it: what it froze is thawed when it has.
                Err(FsError::Frozen) => py.detach(|| SystemClock.sleep(Duration::from_millis(1))),
                done => return done.map_err(|error| failed(&error, None)),
            }
        }
    }

    /// Holds changes back until `thaw`.
    fn freeze(&self, py: Python<'_>) -> PyResult<()> {
        let frozen = self.run(py, b"", Fs::freeze)?;
        let before = self.frozen.lock().replace(frozen);
        py.detach(move || drop(before));
        Ok(())
    }

    /// Ends what `freeze` began, if it did.
    fn thaw(&self, py: Python<'_>) {
        if !self.home.is_here() {
            return;
        }
        let frozen = self.frozen.lock().take();
        py.detach(move || drop(frozen));
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, b"", Fs::sync)
    }

    /// The name of the key that was added.
    fn add_key(&self, py: Python<'_>, key: &[u8]) -> PyResult<String> {
        let key = MasterKey::new(key).map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.run(py, b"", |fs| Ok(fs.add_key(key)?.to_string()))
    }

    fn remove_key(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let name = key_name(name)?;
        self.run(py, b"", |fs| fs.remove_key(&name))
    }

    fn encrypt(&self, py: Python<'_>, path: &[u8], name: &str) -> PyResult<()> {
        let policy = EncryptionPolicy::new(key_name(name)?);
        self.run(py, path, |fs| fs.resolve(path)?.set_encryption_policy(&policy))
    }

    fn stat<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        follow: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let found =
            self.run(py, path, |fs| Ok(Stat::of(fs, resolve(fs, path, follow)?.metadata())))?;
        found.fields(py)
    }

    /// `(block bytes, blocks, free, available, files, files free, name max)`.
    fn statfs(&self, py: Python<'_>) -> PyResult<(u32, u64, u64, u64, u64, u64, u32)> {
        self.run(py, b"", |fs| {
            let space = fs.statfs()?;
            let blocks =
                (space.block_bytes, space.blocks, space.blocks_free, space.blocks_available);
            Ok((
                blocks.0,
                blocks.1,
                blocks.2,
                blocks.3,
                space.files,
                space.files_free,
                space.name_max,
            ))
        })
    }

    /// `(label, uuid)`.
    fn identity<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let fs = self.fs()?;
        let superblock = fs.superblock();
        Ok((PyBytes::new(py, superblock.label()), PyBytes::new(py, &superblock.uuid)))
    }

    /// Names with the kind that their entries say (as in `st_mode`; 0 where they do not), without `.` and `..`.
    fn entries<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
    ) -> PyResult<Vec<(Bound<'py, PyAny>, u32, u64)>> {
        let found = self.run(py, path, |fs| {
            let entries = fs.read_dir(path)?.map(|entry| {
                let entry = entry?;
                let kind = entry.kind().map_or(0, |kind| u32::from(kind.mode_bits()));
                Ok((entry.name().to_vec(), kind, u64::from(entry.ino().0)))
            });
            entries.collect::<Result<Vec<_>, FsError>>()
        })?;
        let named = |(name, kind, ino): (Vec<u8>, u32, u64)| {
            Ok((OsStr::from_bytes(&name).into_pyobject(py)?.into_any(), kind, ino))
        };
        found.into_iter().map(named).collect()
    }

    /// Names with their attributes.
    fn entries_stat<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
    ) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyTuple>)>> {
        let found = self.run(py, path, |fs| {
            let entries = fs.read_dir(path)?.map(|entry| {
                let entry = entry?;
                Ok((entry.name().to_vec(), Stat::of(fs, entry.inode()?.metadata())))
            });
            entries.collect::<Result<Vec<_>, FsError>>()
        })?;
        let named = |(name, stat): (Vec<u8>, Stat)| {
            Ok((OsStr::from_bytes(&name).into_pyobject(py)?.into_any(), stat.fields(py)?))
        };
        found.into_iter().map(named).collect()
    }

    #[expect(clippy::too_many_arguments, reason = "what open(2) takes")]
    #[expect(clippy::fn_params_excessive_bools, reason = "what open(2) takes")]
    fn open(
        &self,
        py: Python<'_>,
        path: &[u8],
        read: bool,
        write: bool,
        append: bool,
        create: bool,
        exclusive: bool,
        truncate: bool,
        mode: u32,
    ) -> PyResult<NativeFile> {
        let new = NewInode::root(permissions(mode)?);
        let file = self.run(py, path, |fs| {
            fs.open_options()
                .read(read)
                .write(write)
                .append(append)
                .create(create)
                .create_new(exclusive)
                .truncate(truncate)
                .new_inode(new)
                .open(path)
        })?;
        Ok(NativeFile::new(file, path, self.home))
    }

    fn mkdir(&self, py: Python<'_>, path: &[u8], mode: u32) -> PyResult<()> {
        let new = NewInode::root(permissions(mode)?);
        self.run(py, path, |fs| fs.create_dir(path, &new).map(drop))
    }

    fn unlink(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, path, |fs| fs.remove_file(path))
    }

    fn rmdir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, path, |fs| fs.remove_dir(path))
    }

    fn rmtree(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, path, |fs| fs.remove_all(path))
    }

    fn rename(&self, py: Python<'_>, path: &[u8], to: &[u8], replace: bool) -> PyResult<()> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        self.run(py, path, |fs| fs.rename_with(path, to, flags))
    }

    fn link(&self, py: Python<'_>, path: &[u8], to: &[u8]) -> PyResult<()> {
        self.run(py, path, |fs| fs.hard_link(path, to))
    }

    fn symlink(&self, py: Python<'_>, target: &[u8], path: &[u8]) -> PyResult<()> {
        self.run(py, path, |fs| fs.symlink(target, path, &NewInode::root(0o777)).map(drop))
    }

    fn readlink<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let target = self.run(py, path, |fs| fs.read_link(path))?;
        Ok(PyBytes::new(py, &target))
    }

    fn realpath<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let found = self.run(py, path, |fs| fs.canonicalize(path))?;
        Ok(PyBytes::new(py, &found))
    }

    fn chmod(&self, py: Python<'_>, path: &[u8], mode: u32, follow: bool) -> PyResult<()> {
        let changes = SetAttributes::new().permissions(permissions(mode)?);
        self.run(py, path, |fs| resolve(fs, path, follow)?.set_attributes(&changes))
    }

    fn chown(
        &self,
        py: Python<'_>,
        path: &[u8],
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> PyResult<()> {
        let changes = SetAttributes::new().owner(uid, gid);
        self.run(py, path, |fs| resolve(fs, path, follow)?.set_attributes(&changes))
    }

    /// Times in nanoseconds; now where there is none.
    fn utime(
        &self,
        py: Python<'_>,
        path: &[u8],
        times: Option<(i128, i128)>,
        follow: bool,
    ) -> PyResult<()> {
        let (atime, mtime) = match times {
            Some((atime, mtime)) => {
                (TimeChange::To(timestamp(atime)?), TimeChange::To(timestamp(mtime)?))
            }
            None => (TimeChange::Now, TimeChange::Now),
        };
        let changes = SetAttributes::new().times(Some(atime), Some(mtime));
        self.run(py, path, |fs| resolve(fs, path, follow)?.set_attributes(&changes))
    }

    fn truncate(&self, py: Python<'_>, path: &[u8], size: u64) -> PyResult<()> {
        self.run(py, path, |fs| fs.resolve(path)?.truncate(size))
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        name: &[u8],
        follow: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.run(py, path, |fs| resolve(fs, path, follow)?.xattr(name))?;
        Ok(PyBytes::new(py, &value))
    }

    /// `flags` as os.setxattr has them: 1 creates, 2 replaces.
    fn setxattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        flags: u32,
        follow: bool,
    ) -> PyResult<()> {
        let mode = match flags {
            0 => XattrMode::Any,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return Err(PyValueError::new_err("flags are 0, XATTR_CREATE or XATTR_REPLACE")),
        };
        self.run(py, path, |fs| resolve(fs, path, follow)?.set_xattr(name, value, mode))
    }

    fn listxattr<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        follow: bool,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let names = self.run(py, path, |fs| resolve(fs, path, follow)?.xattr_names())?;
        Ok(names.iter().map(|name| PyBytes::new(py, name)).collect())
    }

    fn removexattr(&self, py: Python<'_>, path: &[u8], name: &[u8], follow: bool) -> PyResult<()> {
        self.run(py, path, |fs| resolve(fs, path, follow)?.remove_xattr(name))
    }
}

impl Drop for NativeFs {
    fn drop(&mut self) {
        let (fs, frozen) = (self.fs.get_mut().take(), self.frozen.get_mut().take());
        if !self.home.is_here() {
            // Its threads are not here, and its locks may be held by some of them.
            std::mem::forget((fs, frozen));
            return;
        }
        drop(frozen);
        // Background threads end with the last handle; they never need the interpreter.
        drop(fs);
    }
}
