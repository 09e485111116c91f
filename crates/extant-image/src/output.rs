//! The target of an image: a new file, an existing file, a block device, or standard output.
//!
//! # Invariants
//!
//! - O1. A file appears under its name complete or not at all: it is written without a name in the
//!   same directory, made durable, and then given the name. A run that ends early, even by SIGKILL
//!   or a power failure, leaves nothing. Where the file system has no files without names, the file
//!   has a temporary name, and is removed unless the run is killed.
//! - O2. A target that seems to hold data is not overwritten unless the caller asks for it.
//! - O3. A file that another process has open for writing, such as the image of a mount, is neither
//!   overwritten nor replaced: what is still written to it would be lost with its name. Nor can a process
//!   begin to write to it before the new file has the name.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use extant_base::sabotage;
use extant_block::{BlockDevice, FileDevice, OpenError};
use extant_sync::os_random;
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use crate::signature::{PROBE_BYTES, recognise};

/// Why an output cannot be used, or not be finished.
#[derive(Debug)]
pub enum OutputError {
    /// The target seems to hold data (O2).
    InUse {
        /// Path of the output.
        path: PathBuf,
        /// Kind of the data.
        what: &'static str,
    },
    /// Neither a regular file nor a block device.
    NotAFile {
        /// Path of the output.
        path: PathBuf,
    },
    /// A block device smaller than the image.
    TooSmall {
        /// Path of the device.
        path: PathBuf,
        /// Size of the device in bytes.
        device_bytes: u64,
        /// Size of the image in bytes.
        image_bytes: u64,
    },
    /// The target cannot be opened.
    Open(OpenError),
    /// The system refused a call.
    Io {
        /// The action that failed.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutputError::InUse { path, what } => {
                write!(f, "\"{}\" holds {what}", path.display())
            }
            OutputError::NotAFile { path } => {
                write!(f, "\"{}\" is neither a regular file nor a block device", path.display())
            }
            OutputError::TooSmall { path, device_bytes, image_bytes } => write!(
                f,
                "\"{}\" has {device_bytes} bytes and the image needs {image_bytes}",
                path.display()
            ),
            OutputError::Open(e) => e.fmt(f),
            OutputError::Io { doing, path, .. } => {
                write!(f, "cannot {doing} \"{}\"", path.display())
            }
        }
    }
}

impl std::error::Error for OutputError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OutputError::Open(e) => e.source(),
            OutputError::Io { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

impl From<OpenError> for OutputError {
    fn from(e: OpenError) -> OutputError {
        OutputError::Open(e)
    }
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OutputError {
    let path = path.to_owned();
    move |cause| OutputError::Io { doing, path, cause }
}

/// The existing file at an output path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// Nothing.
    Nothing,
    /// A regular file of that many bytes.
    File(u64),
    /// A block device.
    Device,
}

/// Looks at an output path, following symbolic links.
///
/// # Errors
///
/// [`OutputError::NotAFile`] for a directory, a pipe and the like; [`OutputError::Io`].
pub fn existing(path: &Path) -> Result<Existing, OutputError> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(Existing::File(found.len())),
        Ok(found) if found.file_type().is_block_device() => Ok(Existing::Device),
        Ok(_) => Err(OutputError::NotAFile { path: path.to_owned() }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Existing::Nothing),
        Err(e) => Err(io_error("look at", path)(e)),
    }
}

/// Fails for an output that seems to hold data (O2).
///
/// # Errors
///
/// [`OutputError::InUse`], or [`OutputError::Io`] when it cannot be read.
pub fn refuse_if_in_use(path: &Path) -> Result<(), OutputError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io_error("look at", path)(e)),
    };
    let mut head = Vec::with_capacity(PROBE_BYTES);
    file.take(PROBE_BYTES as u64).read_to_end(&mut head).map_err(io_error("read", path))?;
    match recognise(&head) {
        Some(found) => Err(OutputError::InUse { path: path.to_owned(), what: found.name }),
        None => Ok(()),
    }
}

/// An image being written. Dropping it without [`Output::commit`] leaves no trace of a new file.
pub struct Output {
    device: FileDevice,
    place: Place,
    /// The file that is replaced, without writers (O3).
    _replaced: Option<FileDevice>,
}

enum Place {
    /// A file without a name, and the name it is to get.
    Nameless { name: PathBuf },
    /// A temporary file and the name it is to get.
    Rename { temporary: PathBuf, name: PathBuf },
    /// A block device, or a file that is written in place.
    Direct,
    /// An unnamed file that is copied to standard output at the end.
    Stdout,
}

impl Output {
    /// A new file at `path` of `bytes` zeros, without a name until the commit, or under a temporary
    /// one where that cannot be had. Takes over owner's permissions of a file that is there already; a
    /// symbolic link stays and its target is replaced.
    ///
    /// # Errors
    ///
    /// [`OutputError::Open`] with [`OpenError::Locked`] while another process has the file that is there
    /// open for writing, or the kernel has it as a loop device; [`OutputError`].
    pub fn create(path: &Path, bytes: u64) -> Result<Output, OutputError> {
        // A link to a file that does not exist yet is followed too.
        let name = match fs::canonicalize(path) {
            Ok(name) => name,
            Err(_) => match fs::read_link(path) {
                Ok(target) => path.parent().unwrap_or(Path::new("")).join(target),
                Err(_) => path.to_owned(),
            },
        };
        let mode = fs::metadata(&name).ok().map(|m| m.mode() & 0o7777);
        let _replaced = without_writers(&name)?;
        if let Some(file) = nameless(directory_of(&name))
            .map_err(io_error("create a file in", directory_of(&name)))?
        {
            file.set_len(bytes).map_err(io_error("set the size of", &name))?;
            if let Some(mode) = mode {
                let permissions = fs::Permissions::from_mode(mode);
                file.set_permissions(permissions)
                    .map_err(io_error("set the permissions of", &name))?;
            }
            let device = FileDevice::with_file(file, &name, false)?;
            return Ok(Output { device, place: Place::Nameless { name }, _replaced });
        }
        let mut last = None;
        // A name that is taken is another run's or an attack; a few draws are plenty.
        for _ in 0..16 {
            let temporary = temporary_name(&name)?;
            match FileDevice::create_new(&temporary, bytes) {
                Ok(device) => {
                    if let Some(mode) = mode {
                        let permissions = fs::Permissions::from_mode(mode);
                        fs::set_permissions(&temporary, permissions)
                            .map_err(io_error("set the permissions of", &temporary))?;
                    }
                    let place = Place::Rename { temporary, name };
                    return Ok(Output { device, place, _replaced });
                }
                Err(OpenError::Io { source, .. })
                    if source.kind() == io::ErrorKind::AlreadyExists =>
                {
                    last = Some(source);
                }
                Err(e) => return Err(e.into()),
            }
        }
        let cause = last.unwrap_or_else(|| io::ErrorKind::AlreadyExists.into());
        Err(io_error("create a temporary file beside", &name)(cause))
    }

    /// A block device or an existing file, written in place. A regular file is emptied first and
    /// then has `bytes` bytes, or its old size when that is larger.
    ///
    /// # Errors
    ///
    /// [`OutputError::TooSmall`] for a device; [`OutputError`].
    pub fn in_place(path: &Path, bytes: u64) -> Result<Output, OutputError> {
        if let Existing::File(old) = existing(path)? {
            let open = FileDevice::open_read_write(path)?;
            open.file().set_len(0).map_err(io_error("empty", path))?;
            open.file().set_len(bytes.max(old)).map_err(io_error("resize", path))?;
            drop(open);
        }
        let device = FileDevice::open_read_write(path)?;
        if device.size_bytes() < bytes {
            return Err(OutputError::TooSmall {
                path: path.to_owned(),
                device_bytes: device.size_bytes(),
                image_bytes: bytes,
            });
        }
        Ok(Output { device, place: Place::Direct, _replaced: None })
    }

    /// Standard output: the image is made in an unnamed file in `directory` and copied at the
    /// commit, because an image is not written from front to back.
    ///
    /// # Errors
    ///
    /// [`OutputError`].
    pub fn stdout(directory: &Path, bytes: u64) -> Result<Output, OutputError> {
        let file = unnamed(directory).map_err(io_error("create a temporary file in", directory))?;
        file.set_len(bytes).map_err(io_error("resize a temporary file in", directory))?;
        let device = FileDevice::with_file(file, Path::new("standard output"), false)?;
        Ok(Output { device, place: Place::Stdout, _replaced: None })
    }

    /// Returns where to write.
    pub fn device(&self) -> &FileDevice {
        &self.device
    }

    /// Returns whether every byte reads as zero before the first write.
    pub fn is_zeroed(&self) -> bool {
        !self.device.is_block_device()
    }

    /// Device and inode number of the file, so that a source tree that contains it can leave it
    /// out.
    ///
    /// # Errors
    ///
    /// [`OutputError::Io`].
    pub fn identity(&self) -> Result<(u64, u64), OutputError> {
        let found = self.device.file().metadata();
        let found = found.map_err(io_error("look at", Path::new(&*self.device.describe())))?;
        Ok((found.dev(), found.ino()))
    }

    /// Puts the finished image in its place, durable.
    ///
    /// # Errors
    ///
    /// [`OutputError::Io`]; then a new file is not there.
    pub fn commit(mut self) -> Result<(), OutputError> {
        match std::mem::replace(&mut self.place, Place::Direct) {
            Place::Nameless { name } => {
                let file = self.device.file();
                if sabotage("image.output.never-named") {
                    return Ok(());
                }
                match link(file, &name) {
                    // A name cannot be taken over by a link.
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                        let temporary = temporary_name(&name)?;
                        link(file, &temporary).map_err(io_error("name", &temporary))?;
                        rename(&temporary, &name)
                    }
                    result => {
                        result.map_err(io_error("name", &name))?;
                        sync_directory(&name)
                    }
                }
            }
            Place::Rename { temporary, name } => rename(&temporary, &name),
            Place::Direct => Ok(()),
            Place::Stdout => {
                let path = Path::new("standard output");
                copy_out(self.device.file()).map_err(io_error("write to", path))
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Place::Rename { temporary, .. } = &self.place {
            // Nobody is left to tell; the file has a name that shows what it is.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Keeps writers from a file that is to be replaced (O3). One that cannot be read is nobody's image.
fn without_writers(name: &Path) -> Result<Option<FileDevice>, OutputError> {
    let Ok(old) = FileDevice::open_read_only(name) else { return Ok(None) };
    old.refuse_loop_device()?;
    if !sabotage("image.output.writers-not-asked") {
        old.exclude_writers()?;
    }
    Ok(Some(old))
}

/// Puts a temporary file in its place, durable; a failure removes it.
fn rename(temporary: &Path, name: &Path) -> Result<(), OutputError> {
    let guard = Remove(temporary);
    fs::rename(temporary, name).map_err(io_error("rename to", name))?;
    std::mem::forget(guard);
    sync_directory(name)
}

fn sync_directory(name: &Path) -> Result<(), OutputError> {
    match File::open(directory_of(name)) {
        Ok(directory) => directory.sync_all().map_err(io_error("sync the directory of", name)),
        // One that cannot be listed cannot be synced.
        Err(_) => Ok(()),
    }
}

struct Remove<'a>(&'a Path);

impl Drop for Remove<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

fn directory_of(name: &Path) -> &Path {
    match name.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns where the system shows an open file as a name.
fn open_name(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A file in `directory` that has no name and can get one; `None` where the file system, or a
/// system without /proc, does not allow that.
fn nameless(directory: &Path) -> io::Result<Option<File>> {
    let flags = rustix::fs::OFlags::TMPFILE.bits().cast_signed();
    let open = OpenOptions::new().read(true).write(true).custom_flags(flags).open(directory);
    match open {
        Ok(file) => Ok(open_name(&file).symlink_metadata().is_ok().then_some(file)),
        Err(e) => match Errno::from_io_error(&e) {
            // A kernel before 3.11 sees a directory to be written.
            Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
            _ => Err(e),
        },
    }
}

/// Gives a file without a name one that is not taken.
fn link(file: &File, name: &Path) -> io::Result<()> {
    let follow = AtFlags::SYMLINK_FOLLOW;
    Ok(rustix::fs::linkat(CWD, open_name(file), CWD, name, follow)?)
}

/// `.NAME.extant-0123456789abcdef` beside `name`.
fn temporary_name(name: &Path) -> Result<PathBuf, OutputError> {
    let mut random = [0u8; 8];
    os_random(&mut random).map_err(|e| {
        io_error("name a temporary file for", name)(io::Error::other(e.to_string()))
    })?;
    let base = name.file_name().map(|n| n.as_encoded_bytes()).unwrap_or(b"image");
    // Names have 255 bytes at most, and the suffix needs 26.
    let base = String::from_utf8_lossy(&base[..base.len().min(200)]).into_owned();
    let file = format!(".{base}.extant-{:016x}", u64::from_le_bytes(random));
    Ok(name.with_file_name(file))
}

/// Creates a file without a name in `directory`, or where that is not possible one whose name is
/// removed at once.
fn unnamed(directory: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::TMPFILE.bits().cast_signed();
    let open = |path: &Path, flags: i32, new: bool| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(new)
            .mode(0o600)
            .custom_flags(flags)
            .open(path)
    };
    match open(directory, flags, false) {
        Ok(file) => Ok(file),
        Err(_) => {
            let path = temporary_name(&directory.join("image"))
                .map_err(|e| io::Error::other(e.to_string()))?;
            let file = open(&path, 0, true)?;
            fs::remove_file(&path)?;
            Ok(file)
        }
    }
}

/// Copies a whole file to standard output, holes as zeros.
fn copy_out(mut file: &File) -> io::Result<()> {
    io::Seek::seek(&mut file, io::SeekFrom::Start(0))?;
    let mut out = io::stdout().lock();
    io::copy(&mut file, &mut out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::recognise_device;

    #[test]
    fn a_file_appears_complete_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let output = Output::create(&path, 8192).unwrap();
        output.device().write_at(0, b"abc").unwrap();
        // Nothing is there that a killed run could leave.
        let names = fs::read_dir(dir.path()).unwrap().count();
        let can_be_nameless = nameless(dir.path()).unwrap().is_some();
        assert_eq!(names, usize::from(!can_be_nameless));
        drop(output);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        let output = Output::create(&path, 8192).unwrap();
        output.device().write_at(0, b"abc").unwrap();
        output.commit().unwrap();
        assert_eq!(&fs::read(&path).unwrap()[..4], b"abc\0");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_name_that_is_taken_meanwhile_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let output = Output::create(&path, 4096).unwrap();
        fs::write(&path, b"somebody was quicker").unwrap();
        output.commit().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 4096);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_old_file_keeps_its_mode_and_a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("image"), dir.path().join("link"));
        fs::write(&path, b"old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("image", &link).unwrap();
        let output = Output::create(&link, 4096).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        output.commit().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 4096);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_file_that_somebody_writes_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        fs::write(&path, vec![1; 4096]).unwrap();
        let writer = FileDevice::open_read_write(&path).unwrap();
        let refused = Output::create(&path, 8192).err().unwrap();
        assert!(matches!(refused, OutputError::Open(OpenError::Locked { .. })), "{refused}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        drop(writer);
        let output = Output::create(&path, 8192).unwrap();
        let late = FileDevice::open_read_write(&path).err().unwrap();
        assert!(matches!(late, OpenError::Locked { .. }), "{late}");
        output.commit().unwrap();
        assert_eq!(FileDevice::open_read_write(&path).unwrap().size_bytes(), 8192);
    }

    #[test]
    fn what_looks_like_data_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        assert!(refuse_if_in_use(&path).is_ok());
        fs::write(&path, vec![0; 1 << 20]).unwrap();
        assert!(refuse_if_in_use(&path).is_ok());
        fs::write(&path, b"XFSB and so on").unwrap();
        let error = refuse_if_in_use(&path).unwrap_err().to_string();
        assert!(error.contains("an XFS file system"), "{error}");
        assert!(matches!(existing(dir.path()), Err(OutputError::NotAFile { .. })));
        let device = FileDevice::open_read_only(&path).unwrap();
        let found = recognise_device(&device).unwrap();
        assert_eq!(found.map(|found| found.name), Some("an XFS file system"));
        let short = extant_block::MemoryDevice::new(100);
        assert_eq!(recognise_device(&short).unwrap(), None);
    }

    #[test]
    fn an_existing_file_is_emptied_before_it_is_written_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        fs::write(&path, vec![0xa5; 10_000]).unwrap();
        let output = Output::in_place(&path, 4096).unwrap();
        assert!(output.is_zeroed());
        output.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), vec![0; 10_000]);
    }
}
