//! An image by its name, with the images that it lies over.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_base::sabotage;
use extant_block::{BlockDevice, FileDevice, OpenError, SharedDevice};

use crate::error::Qcow2Error;
use crate::header::{Header, is_qcow2};
use crate::image::{CHAIN_MAX, Qcow2};
use crate::snapshot::Snapshot;
use crate::store::{DeviceStore, FileStore, Store};
use crate::version::version_of;

/// How the bytes of a disk lie in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One after the other.
    Raw,
    /// As qcow2 has it.
    Qcow2,
}

impl Format {
    /// The word for it, as qemu has it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
        }
    }

    /// The format that a word means.
    pub fn of_name(name: &str) -> Option<Format> {
        [Format::Raw, Format::Qcow2].into_iter().find(|format| format.name() == name)
    }
}

/// An image that is no file of this host, opened by the caller.
#[derive(Clone)]
pub struct Elsewhere {
    /// Its address, without passwords: the name that overlays over it store.
    pub address: String,
    /// The disk.
    pub device: SharedDevice,
    /// Format of what is at the address; `device` has the disk either way.
    pub format: Format,
    /// What tells one version from another, in at most 200 bytes; compared as a whole.
    pub version: String,
}

impl std::fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Elsewhere")
            .field("address", &self.address)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// How an image is opened.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// Whether the image will be written to. It is locked then, and so are the images below it.
    pub write: bool,
    /// Format of the image; detected where possible when not given.
    pub format: Option<Format>,
    /// Number or name of the snapshot that is meant.
    pub snapshot: Option<String>,
    /// Directories in which backing images may lie, besides that of the image and those below it.
    pub backing_dirs: Vec<PathBuf>,
    /// The image at an address that overlays may lie over. No other address is followed, because files say what
    /// their authors like.
    pub elsewhere: Option<Elsewhere>,
}

/// An image that is open.
#[derive(Debug)]
pub enum Opened {
    /// A raw one: the file itself.
    Raw(FileDevice),
    /// A qcow2 image.
    Qcow2(Arc<Qcow2>),
}

impl Opened {
    /// Returns the format of the image.
    pub fn format(&self) -> Format {
        match self {
            Opened::Raw(_) => Format::Raw,
            Opened::Qcow2(_) => Format::Qcow2,
        }
    }

    /// Returns the image as a device.
    pub fn into_device(self) -> SharedDevice {
        match self {
            Opened::Raw(device) => Arc::new(device),
            Opened::Qcow2(image) => image,
        }
    }
}

/// Detects the format by the first bytes of a device. A raw image can contain any bytes that its
/// user wrote.
///
/// # Errors
///
/// Those of the read.
pub fn probe(device: &(impl BlockDevice + ?Sized)) -> Result<Format, Qcow2Error> {
    let mut start = [0; 8];
    if device.size_bytes() < start.len() as u64 {
        return Ok(Format::Raw);
    }
    device.read_at(0, &mut start)?;
    Ok(if is_qcow2(&start) { Format::Qcow2 } else { Format::Raw })
}

/// Returns whether a file is named like a qcow2 image.
pub fn is_named_so(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "qcow2" || end == "qcow" || end == "qcow2c")
}

/// Opens the image at `path`.
///
/// An image is opened as qcow2 if both its contents and its name say so, or if `how` does. By its
/// contents alone it is opened so only for reading, and only without a backing image: the user of a
/// raw image controls its first bytes.
///
/// # Errors
///
/// [`Qcow2Error`].
pub fn open(path: &Path, how: &How) -> Result<Opened, Qcow2Error> {
    let device = match how.write {
        true => FileDevice::open_read_write(path)?,
        false => FileDevice::open_read_only(path)?,
    };
    open_device(path, device, how, how.write, Vec::new())
}

/// Opens the image at `path` for reading, to lie below the image at `above`: as long as it is open nobody
/// writes it or what it lies over.
///
/// # Errors
///
/// As [`open`]; also [`Qcow2Error::Backing`] if it is the image at `above`, or lies over it.
pub(crate) fn open_to_lie_below(
    above: &Path,
    path: &Path,
    how: &How,
) -> Result<Opened, Qcow2Error> {
    let mut seen = vec![identity(above)?];
    if sabotage("qcow2.chain.circles-are-made") {
        seen.clear();
    }
    if seen.contains(&identity(path)?) {
        return Err(Qcow2Error::Backing {
            name: above.display().to_string(),
            backing: path.display().to_string(),
            what: "an image cannot lie over itself".into(),
        });
    }
    let device = FileDevice::open_read_only(path)?;
    device.exclude_writers()?;
    open_device(path, device, &How { write: true, ..how.clone() }, false, seen)
}

/// As [`open`], over what is open already. `how.write` says that nobody may write what the image lies
/// over, `write` that the image itself will be written; it may not lie over any of `seen`.
fn open_device(
    path: &Path,
    device: FileDevice,
    how: &How,
    write: bool,
    mut seen: Vec<(u64, u64)>,
) -> Result<Opened, Qcow2Error> {
    let is_doubtful = how.format.is_none() && !is_named_so(path);
    let format = match how.format {
        Some(format) => format,
        None => probe(&device)?,
    };
    let name = path.display().to_string();
    if write && format == Format::Qcow2 {
        is_still_at(path, &device)?;
    }
    if format == Format::Raw {
        if let Some(wanted) = &how.snapshot {
            let (wanted, known) = (wanted.clone(), String::new());
            return Err(Qcow2Error::NoSnapshot { name, wanted, known });
        }
        return Ok(Opened::Raw(device));
    }
    if is_doubtful && write && !sabotage("qcow2.chain.guest-chooses-the-format") {
        return Err(Qcow2Error::Doubtful { name, format: format.name() });
    }
    let store = FileStore::new(device);
    let header = Header::read(&store, &name)?;
    if is_doubtful && header.backing.is_some() {
        return Err(Qcow2Error::Doubtful { name, format: format.name() });
    }
    seen.push(identity(path)?);
    let (image, _) =
        open_chain(path, store, header, how, write, how.snapshot.as_deref(), &mut seen)?;
    Ok(Opened::Qcow2(image))
}

/// Opens the qcow2 image at `path` for reading without what it lies over, which reads as zeros: for its
/// facts.
///
/// # Errors
///
/// [`Qcow2Error`].
pub fn open_alone(path: &Path) -> Result<Qcow2, Qcow2Error> {
    let store = FileStore::new(FileDevice::open_read_only(path)?);
    Qcow2::open(Box::new(store), &path.display().to_string(), None, 0, true)
}

/// Opens for reading the image that `device` holds, which is no file of this host: the device itself
/// if that is raw. `is_named_so` says that its name is one of a qcow2 image, as for [`open`].
///
/// # Errors
///
/// As [`open`]; also for images over others, which could lie anywhere.
pub fn open_on_device(
    device: SharedDevice,
    is_named_so: bool,
    how: &How,
) -> Result<SharedDevice, Qcow2Error> {
    let name = device.describe().to_string();
    let unsupported =
        |what: &str| Err(Qcow2Error::Unsupported { name: name.clone(), what: what.to_owned() });
    let format = match how.format {
        Some(format) => format,
        None => probe(&device)?,
    };
    if how.write && format == Format::Qcow2 {
        return unsupported("a qcow2 image is written in files of this host only");
    }
    if format == Format::Raw {
        return match &how.snapshot {
            Some(wanted) => {
                let (wanted, known) = (wanted.clone(), String::new());
                Err(Qcow2Error::NoSnapshot { name, wanted, known })
            }
            None => Ok(device),
        };
    }
    let store = DeviceStore::new(device);
    let header = Header::read(&store, &name)?;
    if header.backing.is_some() {
        if how.format.is_none() && !is_named_so {
            return Err(Qcow2Error::Doubtful { name, format: format.name() });
        }
        return unsupported("it lies over another image, which is looked for on this host only");
    }
    let image = Qcow2::with_header(Box::new(store), &name, header, None, 0, true)?;
    match how.snapshot.as_deref() {
        None => Ok(Arc::new(image)),
        Some(wanted) => {
            let found = find_snapshot(&image, &name, wanted)?;
            Ok(Arc::new(image.at_snapshot(&found, None)?))
        }
    }
}

/// Returns the snapshot inside an image with this number or name.
fn find_snapshot(image: &Qcow2, name: &str, wanted: &str) -> Result<Snapshot, Qcow2Error> {
    let all = image.snapshots();
    all.iter().find(|one| one.id == wanted || one.name == wanted).cloned().ok_or_else(|| {
        let known = all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
        Qcow2Error::NoSnapshot { name: name.to_owned(), wanted: wanted.to_owned(), known }
    })
}

/// Refuses a device, which is locked by now, if another file was put in its place before it was.
pub(crate) fn is_still_at(path: &Path, device: &FileDevice) -> Result<(), Qcow2Error> {
    let open = device.file().metadata().map(|file| (file.dev(), file.ino()));
    match open.ok() == identity(path).ok() {
        true => Ok(()),
        false => Err(OpenError::Locked { path: path.to_owned(), holder: None }.into()),
    }
}

/// Which file it is.
fn identity(path: &Path) -> Result<(u64, u64), Qcow2Error> {
    let metadata = std::fs::metadata(path);
    let failed = |source| Qcow2Error::Io { action: "examine", path: path.to_owned(), source };
    metadata.map(|file| (file.dev(), file.ino())).map_err(failed)
}

fn open_chain(
    path: &Path,
    store: FileStore,
    header: Header,
    how: &How,
    write: bool,
    snapshot: Option<&str>,
    seen: &mut Vec<(u64, u64)>,
) -> Result<(Arc<Qcow2>, u64), Qcow2Error> {
    let name = path.display().to_string();
    let (backing, depth) = match &header.backing {
        None => (None, 0),
        Some(stored) => {
            let (device, depth) = open_backing(path, stored, &header, how, seen)?;
            (Some(device), depth + 1)
        }
    };
    let store: Box<dyn Store> = Box::new(store);
    let Some(wanted) = snapshot else {
        return Ok((
            Arc::new(Qcow2::with_header(store, &name, header, backing, depth, !write)?),
            depth,
        ));
    };
    if write {
        let what = "a snapshot inside an image is not written: an overlay over the image can be"
            .to_owned();
        return Err(Qcow2Error::Unsupported { name, what });
    }
    let image = Qcow2::with_header(store, &name, header, None, depth, true)?;
    let found = find_snapshot(&image, &name, wanted)?;
    Ok((Arc::new(image.at_snapshot(&found, backing)?), depth))
}

/// Returns whether the stored name of a backing image is an address.
pub(crate) fn is_address(stored: &[u8]) -> bool {
    // qemu has images in a Ceph cluster without slashes.
    stored.starts_with(b"rbd:")
        || stored.windows(3).any(|three| three == b"://") && !stored.starts_with(b"/")
}

/// Returns the image at the address that an image lies over, if the caller has opened that one and it
/// is of the version that the image was made over.
pub(crate) fn elsewhere(
    path: &Path,
    stored: &[u8],
    header: &Header,
    how: &How,
) -> Result<SharedDevice, Qcow2Error> {
    let overlay = path.display().to_string();
    let base = String::from_utf8_lossy(stored).into_owned();
    let Some(found) = how.elsewhere.as_ref().filter(|found| found.address.as_bytes() == stored)
    else {
        return Err(match &how.elsewhere {
            None => Qcow2Error::Elsewhere { overlay, base },
            Some(other) => {
                let wanted = other.address.clone();
                Qcow2Error::OtherBase { overlay, found: base, wanted }
            }
        });
    };
    match &header.backing_version {
        Some(was) if *was != found.version && !sabotage("qcow2.chain.version-not-compared") => {
            let (was, is) = (was.clone(), found.version.clone());
            Err(Qcow2Error::BaseChanged { overlay, base, was, is })
        }
        _ => Ok(Arc::clone(&found.device)),
    }
}

/// Returns the path of a backing image by its stored name, relative to the image at `path`.
fn resolve(path: &Path, stored: &[u8]) -> Result<PathBuf, Qcow2Error> {
    let refuse = |what: &str| refusal(path, stored, what.to_owned());
    let stored_path = stored.strip_prefix(b"file:").unwrap_or(stored);
    let scheme = stored_path.split(|byte| *byte == b'/').next().unwrap_or(&[]);
    if scheme.contains(&b':') {
        return Err(refuse("only files of this host can be backing images here"));
    }
    if stored_path.is_empty() || stored_path.contains(&0) {
        return Err(refuse("this is no name of a file"));
    }
    let parent = path.parent().unwrap_or(Path::new(""));
    Ok(parent.join(OsStr::from_bytes(stored_path)))
}

/// Returns which file the image at `path` lies over by its header, and its format: what a file says is
/// followed within the directories that `how` allows, and a format is not guessed.
pub(crate) fn locate(
    path: &Path,
    stored: &[u8],
    header: &Header,
    how: &How,
) -> Result<(PathBuf, Format), Qcow2Error> {
    let refuse = |what: String| refusal(path, stored, what);
    let below = resolve(path, stored)?;
    let Some(format) = header.backing_format.as_deref() else {
        return Err(refuse(
            "its format is not recorded, and guessing it would let a guest choose: qemu-img rebase -u -F raw (or qcow2) records it".into(),
        ));
    };
    let Some(format) = Format::of_name(format) else {
        return Err(refuse(format!("its format is {format}; raw and qcow2 are supported here")));
    };
    let real =
        below.canonicalize().map_err(|error| refuse(format!("it cannot be opened: {error}")))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let home = parent.unwrap_or(Path::new(".")).to_owned();
    let is_allowed = how
        .backing_dirs
        .iter()
        .chain([&home])
        .filter_map(|dir| dir.canonicalize().ok())
        .any(|dir| real.starts_with(dir));
    match is_allowed || sabotage("qcow2.chain.header-leads-anywhere") {
        true => Ok((real, format)),
        false => Err(refuse(format!(
            "it lies outside of {}: --backing-dir DIR allows those in DIR",
            home.display()
        ))),
    }
}

/// Why the image that the one at `path` names is not opened.
fn refusal(path: &Path, stored: &[u8], what: String) -> Qcow2Error {
    Qcow2Error::Backing {
        name: path.display().to_string(),
        backing: String::from_utf8_lossy(stored).into_owned(),
        what,
    }
}

fn open_backing(
    path: &Path,
    stored: &[u8],
    header: &Header,
    how: &How,
    seen: &mut Vec<(u64, u64)>,
) -> Result<(SharedDevice, u64), Qcow2Error> {
    if is_address(stored) {
        return Ok((elsewhere(path, stored, header, how)?, 0));
    }
    let (real, format) = locate(path, stored, header, how)?;
    let which = identity(&real)?;
    if seen.contains(&which) || seen.len() as u64 >= CHAIN_MAX - 1 {
        let what = format!("images lie over each other in a circle, or more than {CHAIN_MAX} deep");
        return Err(refusal(path, stored, what));
    }
    seen.push(which);
    let device = FileDevice::open_read_only(&real)?;
    if how.write {
        // Every change of a backing image would change the contents of the images above it.
        device.exclude_writers()?;
    }
    let (device, depth): (SharedDevice, u64) = match format {
        Format::Raw => (Arc::new(device), 0),
        Format::Qcow2 => {
            let store = FileStore::new(device);
            let header = Header::read(&store, &real.display().to_string())?;
            let (image, depth) = open_chain(&real, store, header, how, false, None, seen)?;
            (image, depth)
        }
    };
    check_version(path, stored, header, &*device)?;
    Ok((device, depth))
}

/// Refuses a base among the files of this host that is not what it was when the image at `path` was made over it, if that
/// is known.
pub(crate) fn check_version(
    path: &Path,
    stored: &[u8],
    header: &Header,
    base: &dyn BlockDevice,
) -> Result<(), Qcow2Error> {
    let Some(was) = &header.backing_version else { return Ok(()) };
    let is = version_of(base)?;
    if *was == is || sabotage("qcow2.chain.file-version-not-compared") {
        return Ok(());
    }
    let base = String::from_utf8_lossy(stored).into_owned();
    let (overlay, was) = (path.display().to_string(), was.clone());
    Err(Qcow2Error::BaseChanged { overlay, base, was, is })
}

/// Returns the path of the backing image of the image at `path`, if that is a qcow2 image with one, as its
/// header has it: it may be anywhere, or nowhere.
///
/// # Errors
///
/// [`Qcow2Error`]; [`Qcow2Error::Elsewhere`] if it is at an address.
pub fn backing_of(path: &Path) -> Result<Option<PathBuf>, Qcow2Error> {
    let store = FileStore::new(FileDevice::open_read_only(path)?);
    let header = Header::read(&store, &path.display().to_string())?;
    let Some(stored) = header.backing else { return Ok(None) };
    if is_address(&stored) {
        let (overlay, base) = (path.display().to_string(), String::from_utf8_lossy(&stored));
        return Err(Qcow2Error::Elsewhere { overlay, base: base.into_owned() });
    }
    Ok(Some(resolve(path, &stored)?))
}
