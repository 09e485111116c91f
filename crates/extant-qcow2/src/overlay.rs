//! Images over others: made, brought into their base, moved to another base.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use extant_base::sabotage;
use extant_block::{BlockDevice, FileDevice, SharedDevice};

use crate::chain::{
    Elsewhere, Format, How, Opened, backing_of, check_version, elsewhere, is_address, is_still_at,
    locate, open, open_to_lie_below,
};
use crate::create::{beside, fill, sync_directory, write_new};
use crate::error::Qcow2Error;
use crate::header::{Header, NAME_MAX, VERSION_MAX, backing_extensions};
use crate::image::Qcow2;
use crate::map::Place;
use crate::store::FileStore;
use crate::version::version_of;

/// Most bytes that are copied at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Bytes for which room is set aside at once, and a cluster more at most.
const ROOM_BYTES: u64 = 64 << 20;

/// Returns the name of a base in an overlay at `overlay`: only the file name if both are in one
/// directory.
fn name_of_base(overlay: &Path, base: &Path) -> Result<PathBuf, Qcow2Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Qcow2Error::Io { action: "find", path, source }
    };
    let real = base.canonicalize().map_err(failed(base))?;
    let dir = overlay.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = dir.canonicalize().map_err(failed(dir))?;
    match (real.parent() == Some(&dir), real.file_name()) {
        // A colon at the front would look like a protocol.
        (true, Some(name)) if !name.as_encoded_bytes().contains(&b':') => Ok(name.into()),
        _ => Ok(real),
    }
}

/// Creates an overlay at `overlay`, which must not exist, over the image `base`, whose format is
/// given in `how` or detected by [`open`].
///
/// # Errors
///
/// [`Qcow2Error`].
pub fn make(overlay: &Path, base: &Path, how: &How) -> Result<(), Qcow2Error> {
    let how = How { write: false, snapshot: None, ..how.clone() };
    let opened = open(base, &how)?;
    let (format, device) = (opened.format(), opened.into_device());
    let named = (&*name_of_base(overlay, base)?, format);
    write_new(overlay, device.size_bytes(), Some(named), Some(&version_of(&*device)?))
}

/// Creates an overlay at `overlay`, which must not exist, over an image at an address.
///
/// # Errors
///
/// [`Qcow2Error::Unsupported`] for an address of more than 1023 bytes, a version of more than 200, or a base that is
/// no whole number of sectors long; [`Qcow2Error::Io`].
pub fn make_elsewhere(overlay: &Path, base: &Elsewhere) -> Result<(), Qcow2Error> {
    check_elsewhere(overlay, base)?;
    let named = (Path::new(&base.address), base.format);
    write_new(overlay, base.device.size_bytes(), Some(named), Some(&base.version))
}

/// Refuses what a header has no room for.
fn check_elsewhere(overlay: &Path, base: &Elsewhere) -> Result<(), Qcow2Error> {
    let unsupported =
        |what: String| Err(Qcow2Error::Unsupported { name: overlay.display().to_string(), what });
    let (address, version) = (base.address.len(), base.version.len());
    if address > NAME_MAX as usize || !is_address(base.address.as_bytes()) {
        return unsupported(format!("an address of {address} bytes cannot be stored, 1023 can"));
    }
    if version > VERSION_MAX {
        return unsupported(format!(
            "a version of {version} bytes cannot be stored, {VERSION_MAX} can"
        ));
    }
    Ok(())
}

/// Opens the overlay at `overlay` over the image at an address that `how` names, and makes it first if
/// there is none, as [`open_over`] does.
///
/// # Errors
///
/// [`Qcow2Error::OtherBase`] if it lies over another image, [`Qcow2Error::BaseChanged`] if the image is not the one
/// any more that it was made over; [`Qcow2Error`].
pub fn open_over_elsewhere(overlay: &Path, how: &How) -> Result<Opened, Qcow2Error> {
    let name = || overlay.display().to_string();
    let Some(base) = &how.elsewhere else {
        let what = "no image at an address was opened".to_owned();
        return Err(Qcow2Error::Unsupported { name: name(), what });
    };
    if how.write && !overlay.exists() {
        match make_elsewhere(overlay, base) {
            Err(Qcow2Error::Io { source, .. })
                if source.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
    }
    let opened = open(overlay, &How { format: Some(Format::Qcow2), ..how.clone() })?;
    match &opened {
        Opened::Qcow2(image)
            if image.header.backing.as_deref() == Some(base.address.as_bytes()) =>
        {
            Ok(opened)
        }
        Opened::Qcow2(image) => {
            let found = image.header.backing.as_deref();
            let found = found.map_or("no image".into(), String::from_utf8_lossy).into_owned();
            Err(Qcow2Error::OtherBase { overlay: name(), found, wanted: base.address.clone() })
        }
        Opened::Raw(_) => Err(Qcow2Error::NotQcow2 { name: name(), found: 0 }),
    }
}

/// Opens the overlay at `overlay` over `base`, and makes it first if there is none. Any number of
/// processes may do so at once: one of them makes it, and one of them gets it to write.
///
/// # Errors
///
/// [`Qcow2Error::OtherBase`] if it lies over another image; [`Qcow2Error`].
pub fn open_over(overlay: &Path, base: &Path, how: &How) -> Result<Opened, Qcow2Error> {
    if how.write && !overlay.exists() {
        match make(overlay, base, how) {
            Err(Qcow2Error::Io { source, .. })
                if source.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
    }
    check_base(overlay, base)?;
    let mut how = How { format: Some(Format::Qcow2), ..how.clone() };
    // Whoever named it allowed it.
    how.backing_dirs.extend(base.canonicalize().ok());
    how.backing_dirs.extend(directory_of(base));
    open(overlay, &how)
}

fn directory_of(path: &Path) -> Option<PathBuf> {
    Some(path.canonicalize().ok()?.parent()?.to_owned())
}

fn check_base(overlay: &Path, base: &Path) -> Result<(), Qcow2Error> {
    let found = match backing_of(overlay) {
        Err(Qcow2Error::Elsewhere { overlay, base: found }) => {
            return Err(Qcow2Error::OtherBase {
                overlay,
                found,
                wanted: base.display().to_string(),
            });
        }
        other => other?,
    };
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    match &found {
        Some(found) if identity(found).is_some() && identity(found) == identity(base) => Ok(()),
        _ => Err(Qcow2Error::OtherBase {
            overlay: overlay.display().to_string(),
            found: found.map_or_else(|| "no image".to_owned(), |path| path.display().to_string()),
            wanted: base.display().to_string(),
        }),
    }
}

/// Result of [`commit`] or [`rebase`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Bytes that were copied.
    pub bytes: u64,
}

/// Writes the contents of the overlay into the image below it, and empties the overlay. Other
/// overlays over the same base become unusable.
///
/// The base is found and opened as for any use of the overlay: a file that the overlay names is written only
/// where `how` allows it, and only with the format that the overlay records. A base at an address is written if `how` has it, opened for writing. A commit that was interrupted can be
/// repeated: the overlay is emptied when all is durable below. Until then the base alone is neither what it was nor
/// what it will be, so room for all of it is set aside in the base before the first write.
///
/// # Errors
///
/// [`Qcow2Error`]; of kind `Locked` if another program uses the base or the overlay;
/// [`Qcow2Error::ReadOnlyBase`] if the base can only be read. After [`Qcow2Error::Device`] with
/// [`OperationKind::Allocate`](extant_block::OperationKind::Allocate) the base reads as before.
pub fn commit(overlay: &Path, how: &How) -> Result<Moved, Qcow2Error> {
    let name = || overlay.display().to_string();
    // Nobody may write the overlay meanwhile; what it lies over is read through it no more.
    let device = FileDevice::open_read_write(overlay)?;
    is_still_at(overlay, &device)?;
    let store = FileStore::new(device);
    let header = Header::read(&store, &name())?;
    let (target, format) = match &header.backing {
        None => {
            let what = "it lies over no image".into();
            return Err(Qcow2Error::Unsupported { name: name(), what });
        }
        Some(stored) if is_address(stored) => {
            let target = elsewhere(overlay, stored, &header, how)?;
            let base = String::from_utf8_lossy(stored).into_owned();
            if target.is_read_only() {
                return Err(Qcow2Error::ReadOnlyBase { overlay: name(), base });
            }
            let format = header.backing_format.as_deref().and_then(Format::of_name);
            (target, format.unwrap_or(Format::Raw))
        }
        Some(stored) => {
            let (base, format) = locate(overlay, stored, &header, how)?;
            let how = How { write: true, format: Some(format), snapshot: None, ..how.clone() };
            let target = open(&base, &how)?.into_device();
            check_version(overlay, stored, &header, &*target)?;
            (target, format)
        }
    };
    let image = Qcow2::open(Box::new(store), &name(), None, 0, true)?;
    if !image.snapshots().is_empty() {
        let what = "it holds snapshots, which would be lost: qemu-img commit keeps them".to_owned();
        return Err(Qcow2Error::Unsupported { name: name(), what });
    }
    if image.size_bytes() > target.size_bytes() {
        let what = format!(
            "its disk has {} bytes, and the image below it {}: qemu-img resize makes that larger first",
            image.size_bytes(),
            target.size_bytes()
        );
        return Err(Qcow2Error::Unsupported { name: name(), what });
    }
    // The base reads as before.
    if !sabotage("qcow2.commit.no-room-first") {
        image.set_room_aside_in(&*target)?;
    }
    let base_name = PathBuf::from(OsString::from_vec(header.backing.clone().unwrap_or_default()));
    let is_here = header.backing.as_deref().is_some_and(|stored| !is_address(stored));
    if is_here && header.backing_version.is_some() && !sabotage("qcow2.commit.once-only") {
        // Cut off from here on, the base is another one, and the overlay shows the same all the time.
        image.refer_to(&base_name, format, None)?;
    }
    let mut moved = Moved::default();
    image.each_own(|offset, len, is_zeros| {
        if is_zeros {
            return Ok(target.write_zeroes(offset, len)?);
        }
        let mut bytes = vec![0; len as usize];
        image.read_at(offset, &mut bytes)?;
        moved.bytes += len;
        Ok(target.write_at(offset, &bytes)?)
    })?;
    target.flush()?;
    // The lock on the old overlay holds until the new one has its name.
    let version = match is_here {
        true => Some(version_of(&*target)?),
        false => header.backing_version.clone(),
    };
    replace(overlay, header.size, (&*base_name, format), version.as_deref())?;
    drop(image);
    Ok(moved)
}

/// Puts an empty overlay in the place of the one at `overlay`.
fn replace(
    overlay: &Path,
    size: u64,
    base: (&Path, Format),
    version: Option<&str>,
) -> Result<(), Qcow2Error> {
    let failed = |source| Qcow2Error::Io { action: "replace", path: overlay.to_owned(), source };
    let (temporary, file) = beside(overlay).map_err(failed)?;
    let done = fill(&file, size, Some(base), version)
        .and_then(|()| file.set_permissions(std::fs::metadata(overlay)?.permissions()))
        .and_then(|()| std::fs::rename(&temporary, overlay));
    if done.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    done.map_err(failed)?;
    sync_directory(overlay).map_err(failed)
}

/// Lets the overlay lie over `base` instead, and shows the same disk: what differs below is copied into
/// the overlay first. The image at an address that `how` may have is the one that it lay over before.
///
/// # Errors
///
/// [`Qcow2Error::Backing`] if `base` is the overlay itself or lies over it; [`Qcow2Error::Unsupported`] for an overlay
/// with snapshots in it, whose contents would change; [`Qcow2Error`].
pub fn rebase(overlay: &Path, base: &Path, how: &How) -> Result<Moved, Qcow2Error> {
    let mut allowed = how.clone();
    allowed.backing_dirs.extend(directory_of(base));
    let read = How { snapshot: None, ..allowed.clone() };
    let opened = open_to_lie_below(overlay, base, &read)?;
    let (format, below) = (opened.format(), opened.into_device());
    let named = (&*name_of_base(overlay, base)?, format);
    let version = version_of(&*below)?;
    move_over(overlay, &below, named, Some(&version), &allowed)
}

/// Lets the overlay lie over `base` as that is now, without a look at what it lay over: for a base that was moved, or
/// was changed in a way that does the overlay no harm, which the caller knows.
///
/// # Errors
///
/// [`Qcow2Error::Backing`] if `base` is the overlay itself or lies over it; [`Qcow2Error`].
pub fn rebase_as_is(overlay: &Path, base: &Path, how: &How) -> Result<(), Qcow2Error> {
    let mut allowed = How { snapshot: None, ..how.clone() };
    allowed.backing_dirs.extend(directory_of(base));
    let opened = open_to_lie_below(overlay, base, &allowed)?;
    let (format, below) = (opened.format(), opened.into_device());
    let named = &*name_of_base(overlay, base)?;
    let device = FileDevice::open_read_write(overlay)?;
    is_still_at(overlay, &device)?;
    let (store, name) = (Box::new(FileStore::new(device)), overlay.display().to_string());
    let image = Qcow2::open(store, &name, None, 0, false)?;
    image.refer_to(named, format, Some(&version_of(&*below)?))
}

/// [`rebase`] onto an image at an address.
///
/// # Errors
///
/// [`Qcow2Error`]; as [`make_elsewhere`].
pub fn rebase_elsewhere(overlay: &Path, base: &Elsewhere, how: &How) -> Result<Moved, Qcow2Error> {
    check_elsewhere(overlay, base)?;
    let named = (Path::new(&base.address), base.format);
    move_over(overlay, &base.device, named, Some(&base.version), how)
}

fn move_over(
    overlay: &Path,
    below: &SharedDevice,
    (base, format): (&Path, Format),
    version: Option<&str>,
    how: &How,
) -> Result<Moved, Qcow2Error> {
    let name = overlay.display().to_string();
    let write = How { write: true, format: Some(Format::Qcow2), snapshot: None, ..how.clone() };
    let mut moved = Moved::default();
    let Opened::Qcow2(image) = open(overlay, &write)? else {
        return Err(Qcow2Error::Unsupported { name, what: "it is no qcow2 image".into() });
    };
    if !image.snapshots().is_empty() && !sabotage("qcow2.rebase.snapshots-change") {
        let what = "it holds snapshots, which would show another disk over another base: qemu-img snapshot -d removes them";
        return Err(Qcow2Error::Unsupported { name, what: what.into() });
    }
    let cluster = image.header.cluster_bytes();
    let (mut old, mut new) = (vec![0; cluster as usize], vec![0; cluster as usize]);
    image.each_below(|offset, len| {
        let (old, new) = (&mut old[..len as usize], &mut new[..len as usize]);
        image.read_at(offset, old)?;
        let there = below.size_bytes().saturating_sub(offset).min(len) as usize;
        new[there..].fill(0);
        below.read_at(offset.min(below.size_bytes()), &mut new[..there])?;
        if old != new {
            moved.bytes += len;
            image.write_at(offset, old)?;
        }
        Ok(())
    })?;
    image.flush()?;
    image.refer_to(base, format, version)?;
    Ok(moved)
}

impl Qcow2 {
    /// Calls `each` for what the image has itself: byte, length, and whether it reads as zeros.
    fn each_own(
        &self,
        mut each: impl FnMut(u64, u64, bool) -> Result<(), Qcow2Error>,
    ) -> Result<(), Qcow2Error> {
        self.each_cluster(|offset, len, place| match place {
            Place::Below => Ok(()),
            Place::Zeros => each(offset, len, true),
            Place::Data(_) | Place::Packed(_) => each(offset, len, false),
        })
    }

    /// Makes sure that `below` has room for what the image has itself.
    fn set_room_aside_in(&self, below: &dyn BlockDevice) -> Result<(), Qcow2Error> {
        let mut run = 0..0;
        self.each_own(|offset, len, is_zeros| {
            if is_zeros {
                return Ok(());
            }
            if run.end == offset && offset - run.start < ROOM_BYTES {
                run.end += len;
                return Ok(());
            }
            let whole = std::mem::replace(&mut run, offset..offset + len);
            Ok(below.allocate(whole.start, whole.end - whole.start)?)
        })?;
        Ok(below.allocate(run.start, run.end - run.start)?)
    }

    /// Calls `each` for the clusters that the image does not have itself: byte and length.
    fn each_below(
        &self,
        mut each: impl FnMut(u64, u64) -> Result<(), Qcow2Error>,
    ) -> Result<(), Qcow2Error> {
        self.each_cluster(|offset, len, place| match place {
            Place::Below => each(offset, len),
            _ => Ok(()),
        })
    }

    fn each_cluster(
        &self,
        mut each: impl FnMut(u64, u64, Place) -> Result<(), Qcow2Error>,
    ) -> Result<(), Qcow2Error> {
        let failed = |source| Qcow2Error::Io { action: "read", path: (&*self.name).into(), source };
        let cluster = self.header.cluster_bytes();
        debug_assert!(cluster <= 2 * PIECE_BYTES);
        for at in 0..self.l1.len() {
            let table = self.table(at).map_err(failed)?;
            let first = (at as u64) << self.header.l2_reach_bits();
            for index in 0..1usize << self.header.l2_bits() {
                let offset = first + index as u64 * cluster;
                if offset >= self.header.size {
                    break;
                }
                let entry = table.as_ref().map_or(0, |table| table.get(index));
                let place = self.place_of(entry).map_err(failed)?;
                each(offset, cluster.min(self.header.size - offset), place)?;
            }
        }
        Ok(())
    }

    /// Writes another name of a backing image into the header: first the name, at a place of its own,
    /// then the sector that says where it is.
    fn refer_to(
        &self,
        base: &Path,
        format: Format,
        version: Option<&str>,
    ) -> Result<(), Qcow2Error> {
        let name = self.name.to_string();
        let failed = |source| Qcow2Error::Io { action: "write", path: (&name).into(), source };
        let cluster = self.header.cluster_bytes();
        let unsupported =
            |what: &str| Qcow2Error::Unsupported { name: name.clone(), what: what.into() };
        if cluster < 4096 || self.header.version < 3 {
            return Err(unsupported(
                "clusters of less than 4096 bytes and version 2 are not rebased: qemu-img rebase does",
            ));
        }
        let mut start = [0; 512];
        self.store.read_at(0, &mut start).map_err(failed)?;
        let old = u64::from_be_bytes(start[8..16].try_into().unwrap_or_default());
        let old_len = self.header.backing.as_ref().map_or(0, |name| name.len() as u64);
        let bytes = base.as_os_str().as_encoded_bytes();
        let is_apart = |place: &u64| *place >= old + old_len || old >= place + bytes.len() as u64;
        let place = [2048u64, 512].into_iter().find(is_apart).filter(|_| bytes.len() <= 1023);
        let Some(place) = place else {
            return Err(unsupported(
                "its header leaves no room for the name: qemu-img rebase -u does it",
            ));
        };
        let length = u32::from_be_bytes(start[100..104].try_into().unwrap_or_default()) as usize;
        let Some(kept) = start.get(..length).filter(|kept| kept.len() <= 480) else {
            return Err(unsupported("its header is too long to be written at once"));
        };
        let mut first = kept.to_vec();
        first[8..16].copy_from_slice(&place.to_be_bytes());
        first[16..20].copy_from_slice(&(bytes.len() as u32).to_be_bytes());
        first.extend_from_slice(&backing_extensions(Some(format.name()), version));
        if first.len() > 512 {
            return Err(unsupported("its header leaves no room for the version of its base"));
        }
        first.resize(512, 0);
        self.store.write_at(place, bytes).and_then(|()| self.store.sync()).map_err(failed)?;
        self.store.write_at(0, &first).and_then(|()| self.store.sync()).map_err(failed)
    }
}
