//! Opening an image to be mounted: what is write-protected, in use, or no plain file.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use extant_block::{FileDevice, OpenError, SharedDevice, lock_holder};
use extant_sync::{Clock, SystemClock};

use crate::bounds;
use crate::exit::{Exit, Failure, Result};
use crate::mounting::options::{MountChoices, SandboxMode, source_name};
use crate::mounting::table;
use crate::output::complain;
use crate::place::{is_web_address, needs_connections};
use crate::seal::Part;
use crate::source::SourceError;
use crate::text::escape;

/// Said when image and directory may have been mixed up.
pub(crate) const FIRST_THE_IMAGE: &str =
    "first the image, then the directory: extant mount IMG DIR";
/// Longest wait for the server before us, whose mount has gone and who still writes.
const HANDOVER: Duration = Duration::from_secs(10);
const HANDOVER_STEP: Duration = Duration::from_millis(50);

/// Returns whether a file is a block device that takes no writes.
pub(crate) fn is_protected_device(path: &Path) -> bool {
    let number = std::fs::metadata(path).ok().filter(|file| file.file_type().is_block_device());
    number.map(|file| file.rdev()).is_some_and(|number| {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let told = std::fs::read(format!("/sys/dev/block/{major}:{minor}/ro"));
        told.is_ok_and(|text| text.starts_with(b"1"))
    })
}

/// Opens and locks the image. If the one who holds it is a server of ours whose mount is gone, it is
/// about to end: `umount` returns before everything is written.
pub(super) fn open_patiently(path: &Path, how: Opening, choices: &MountChoices) -> Result<Opened> {
    let source = source_name(path, choices);
    let clock = SystemClock;
    let until = clock.monotonic() + HANDOVER;
    loop {
        let error = match open_locked(path, how) {
            Ok(device) => return Ok(Opened::Device(device)),
            Err(error) => error,
        };
        let holder = match &error {
            OpenError::Locked { holder, .. } => holder.clone(),
            // Whoever has a block device exclusively is not named, but one of us has its lock as well.
            OpenError::Busy { .. } => match lock_holder(path) {
                Some(holder) => Some(holder),
                None => return Err(opening(error, path)),
            },
            OpenError::Io { source, .. }
                if how != Opening::ToRead
                    && !choices.insists_on_writing
                    && is_write_protection(source)
                    && File::open(path).is_ok() =>
            {
                return Ok(Opened::WriteProtected);
            }
            _ => return Err(opening(error, path)),
        };
        let mounts = table::mounts_of(&source);
        if let Some(dir) = mounts.first() {
            let dir = escape(dir.as_os_str().as_bytes());
            let failure = Failure::from(error);
            return Err(failure.hint(format!("it is mounted on {dir}: extant umount {dir}")));
        }
        // Without a name it was about to end when it was looked up.
        let is_ours = holder.is_none_or(|holder| holder.starts_with("extant"));
        if !is_ours || clock.monotonic() >= until {
            return Err(error.into());
        }
        clock.sleep(HANDOVER_STEP);
    }
}

pub(super) fn open(path: &Path, how: Opening) -> Result<FileDevice> {
    open_locked(path, how).map_err(|error| opening(error, path))
}

/// An image that was opened, or was not because nobody may write to it.
pub(super) enum Opened {
    Device(FileDevice),
    WriteProtected,
}

/// A device or file system that is read-only, or a file that this user may only read.
fn is_write_protection(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

/// Opens what is no plain file or disk. What is write-protected is opened for reading, unless writing
/// was insisted on.
pub(super) fn open_special(
    path: &Path,
    choices: &mut MountChoices,
) -> Result<Option<SharedDevice>> {
    let name = escape(path.as_os_str().as_bytes());
    if needs_connections(path) && choices.sandbox != SandboxMode::Off {
        // Its connections are made when they are needed, and the other side ends them when it likes.
        let message = format!("{name}: from its sandbox, a mount makes no connections");
        return Err(Failure::new(Exit::Refused, message).hint(
            "mount it with --sandbox=off, or read it without a mount: extant ls, cat, extract",
        ));
    }
    if is_web_address(path) {
        let is_overlaid = choices.source.overlay.is_some();
        if !choices.read_only && !choices.insists_on_writing && !is_overlaid {
            complain(&format!("{name} is behind a server that is only read, mounting read-only"));
            choices.read_only = true;
        }
    }
    let opened = choices.source.open_special(path, !choices.read_only);
    let opened = match opened {
        Err(SourceError::Open(OpenError::Io { source, .. }))
            if !choices.read_only
                && !choices.insists_on_writing
                && choices.source.overlay.is_none()
                && is_write_protection(&source) =>
        {
            complain(&format!("{name} is write-protected, mounting read-only"));
            choices.read_only = true;
            choices.source.open_special(path, false)
        }
        other => other,
    };
    opened.map_err(|error| match error {
        SourceError::Open(error) => opening(error, path),
        SourceError::Other(failure) => failure,
    })
}

/// What a file is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Opening {
    ToRead,
    ToWrite,
    /// For writing; the kernel holds it for our mount.
    Claimed,
}

fn open_locked(path: &Path, how: Opening) -> Result<FileDevice, OpenError> {
    if how != Opening::ToRead && is_protected_device(path) {
        // The kernel lets one open it, and refuses the first write.
        let source = io::ErrorKind::ReadOnlyFilesystem.into();
        return Err(OpenError::Io { action: "write to", path: path.to_owned(), source });
    }
    match how {
        Opening::ToWrite => FileDevice::open_read_write(path),
        Opening::Claimed => FileDevice::open_claimed(path),
        Opening::ToRead => {
            let device = FileDevice::open_read_only(path)?;
            device.exclude_writers()?;
            Ok(device)
        }
    }
}

fn opening(error: OpenError, path: &Path) -> Failure {
    if path.is_dir() {
        let name = escape(path.as_os_str().as_bytes());
        let message = format!("{name} is a directory, not an image");
        return Failure::new(Exit::Usage, message).hint(FIRST_THE_IMAGE);
    }
    let failure = Failure::from(error);
    // As an image is opened: of a pipe, a plain open would wait for its other end.
    match failure.exit == Exit::Io && FileDevice::open_read_only(path).is_ok() {
        true => failure.hint("-o ro mounts it for reading"),
        false => failure,
    }
}

/// The part of an image that is mounted. For writing, what dm-verity seals is refused.
pub(super) fn unsealed(
    image: SharedDevice,
    choices: &MountChoices,
    name: &str,
) -> Result<SharedDevice> {
    let looks = !choices.read_only && !choices.break_seal;
    let part = Part::of(Arc::clone(&image), choices.offset, choices.partition, looks)?;
    let part = part.unsealed(name).map_err(|failure| match failure.exit {
        Exit::Refused => failure.hint(
            "-o ro mounts it for reading, --overlay FILE keeps changes elsewhere, -o break_seal changes it all the same",
        ),
        _ => failure,
    })?;
    // A mount can grow.
    match choices.read_only {
        true => Ok(part),
        false => bounds::within(part, &*image, choices.offset),
    }
}
