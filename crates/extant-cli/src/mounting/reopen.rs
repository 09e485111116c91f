//! A mount for reading becomes one for writing: the keeper, which may open files, opens the image once more,
//! and the server, which has it open for reading, goes on with that.
//!
//! # Invariants
//!
//! - R1. What is opened for writing is the file that was opened for reading, whatever its name leads to
//!   by now.
//! - R2. Whoever reads keeps writers away. That is let go for the moment in which we become one, and taken
//!   again when we do not; if somebody else was faster, that is said.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant::Fs;
use extant_block::{FileDevice, OpenError};
use extant_fuse::NotWritable;
use rustix::fs::{Access, Mode, OFlags};

use crate::exit::{Exit, Failure, Result};
use crate::in_use::loop_device_of;
use crate::mounting::opening::{is_protected_device, unsealed};
use crate::mounting::options::MountChoices;

/// Returns whether what is mounted for reading as `choices` say could be mounted for writing later.
pub(crate) fn may_become_writable(path: &Path, choices: &MountChoices) -> bool {
    let is_whole = !choices.no_replay && choices.superblock_kib.is_none() && !choices.no_checksums;
    let is_open = |path: &Path| {
        !is_protected_device(path) && rustix::fs::access(path, Access::WRITE_OK).is_ok()
    };
    choices.read_only
        && is_whole
        && !choices.source.is_special(path)
        && is_open(path)
        && choices.journal_device.as_deref().is_none_or(is_open)
}

/// The keeper's part: files that it can open again.
#[derive(Debug)]
pub(crate) struct Kept {
    files: Vec<(PathBuf, OwnedFd)>,
}

impl Kept {
    /// Of the image and its journal, if it has one elsewhere. What cannot be had now cannot be opened
    /// later.
    pub(crate) fn of(image: &Path, journal: Option<&Path>) -> Kept {
        let keep = |path: &Path| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
            Some((path.canonicalize().unwrap_or_else(|_| path.to_owned()), file))
        };
        Kept { files: std::iter::once(image).chain(journal).map_while(keep).collect() }
    }

    /// Opens file `index` for reading and writing, and locks it.
    pub(crate) fn open(&self, index: usize) -> Result<OwnedFd> {
        let Some((path, file)) = self.files.get(index) else {
            return Err(Failure::new(Exit::Io, "it cannot be opened again"));
        };
        if let Some(holder) = loop_device_of(path) {
            let name = path.display();
            let message = format!("{name} is in use: the kernel has it as {holder}");
            return Err(Failure::new(Exit::Refused, message));
        }
        let again = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let failed = |source| match source {
            error if io::Error::kind(&error) == io::ErrorKind::ResourceBusy => {
                OpenError::Busy { path: path.clone() }
            }
            source => OpenError::Io { action: "write to", path: path.clone(), source },
        };
        if is_protected_device(&again) {
            return Err(failed(io::ErrorKind::ReadOnlyFilesystem.into()).into());
        }
        let is_device =
            std::fs::metadata(&again).is_ok_and(|file| file.file_type().is_block_device());
        let mut flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
        flags.set(OFlags::EXCL, is_device);
        let flags = flags.bits().cast_signed();
        let opened = File::options().read(true).write(true).custom_flags(flags).open(&again);
        let device = FileDevice::with_file(opened.map_err(failed)?, path, false)?;
        // The lock is that of the opening, and goes along.
        let file = device.file().try_clone();
        file.map(OwnedFd::from).map_err(|error| Failure::caused(Exit::Io, "", &error))
    }
}

/// The server's part: what it has open for reading.
pub(crate) struct Reopen {
    files: Vec<(PathBuf, File)>,
    choices: MountChoices,
}

impl Reopen {
    /// Of files that are open for reading, as `choices` say: the image, and its journal.
    pub(crate) fn of(files: Vec<(PathBuf, File)>, choices: &MountChoices) -> Reopen {
        Reopen { files, choices: choices.clone() }
    }

    /// Opens the file system for writing, from files that `ask` opens by their numbers.
    pub(crate) fn write(
        &self,
        ask: impl Fn(usize) -> Result<OwnedFd>,
    ) -> Result<Fs, Box<NotWritable>> {
        self.files.iter().for_each(|(_, file)| drop(file.unlock()));
        let mut opened = Vec::new();
        let devices: Result<Vec<FileDevice>> = self
            .files
            .iter()
            .enumerate()
            .map(|(index, (path, old))| {
                let new = File::from(ask(index)?);
                opened.extend(new.try_clone());
                match is_same(old, &new) {
                    Ok(true) => Ok(FileDevice::with_file(new, path, false)?),
                    Ok(false) => Err(Failure::new(Exit::Io, "another file has its name by now")),
                    Err(error) => Err(Failure::caused(Exit::Io, "", &error)),
                }
            })
            .collect();
        // The keeper may have them open for a moment yet, and their locks would be in the way of ours.
        let give_back = || opened.iter().for_each(|file| drop(file.unlock()));
        let devices = match devices {
            Ok(devices) => devices,
            Err(failure) => {
                give_back();
                let why = self.lock_again(failure.message);
                return Err(Box::new(NotWritable { why, instead: None }));
            }
        };
        let mut choices = self.choices.clone();
        choices.read_only = false;
        file_system(devices, &choices).map_err(|failure| {
            give_back();
            let why = self.lock_again(failure.message);
            // The journal may be replayed by now, and what was read over it would be wrong.
            let again = |(path, file): &(PathBuf, File)| -> Result<FileDevice> {
                let file =
                    file.try_clone().map_err(|error| Failure::caused(Exit::Io, "", &error))?;
                Ok(FileDevice::with_file(file, path, true)?)
            };
            let devices = self.files.iter().map(again).collect::<Result<Vec<_>>>();
            let instead = devices.and_then(|devices| file_system(devices, &self.choices)).ok();
            Box::new(NotWritable { why, instead })
        })
    }

    /// Keeps writers away again; `why`, and more if that cannot be.
    fn lock_again(&self, why: String) -> String {
        match self.files.iter().all(|(_, file)| file.try_lock_shared().is_ok()) {
            true => why,
            false => format!(
                "{why}; somebody else writes to it now, so what this mount shows may be wrong: unmount it"
            ),
        }
    }
}

fn file_system(devices: Vec<FileDevice>, choices: &MountChoices) -> Result<Fs> {
    let mut devices = devices.into_iter();
    let missing = || Failure::new(Exit::Io, "there is no image");
    let image = Arc::new(devices.next().ok_or_else(missing)?);
    let image = unsealed(image, choices, "the image")?;
    let mut options = choices.file_system();
    if let Some(journal) = devices.next() {
        options = options.journal_device(journal);
    }
    let fs = options.open_shared(image).map_err(extant::FsError::from)?;
    fs.check_root()?;
    Ok(fs)
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok(match one.file_type().is_block_device() {
        true => one.rdev() == other.rdev() && other.file_type().is_block_device(),
        false => (one.dev(), one.ino()) == (other.dev(), other.ino()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_opened_again_is_the_same_file_whatever_its_name_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("image"), dir.path().join("other"));
        std::fs::write(&path, "one").unwrap();
        std::fs::write(&other, "two").unwrap();
        let kept = Kept::of(&path, None);
        let old = File::open(&path).unwrap();
        std::fs::rename(&other, &path).unwrap();
        let new = File::from(kept.open(0).unwrap());
        assert!(is_same(&old, &new).unwrap());
        assert!(!is_same(&File::open(&path).unwrap(), &new).unwrap());
        // It came with its lock.
        assert!(old.try_lock_shared().is_err());
        drop(new);
        old.try_lock_shared().unwrap();
        let refused = kept.open(0).unwrap_err();
        assert_eq!(refused.exit, Exit::Refused, "{}", refused.message);
        assert!(kept.open(1).is_err());
    }
}
