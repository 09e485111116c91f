//! The files of an image that is being mounted: opened and locked first, looked at behind the sandbox.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use extant::{BlockSize, Fs, FsError, MountOptions};
use extant_block::{FileDevice, SharedDevice};
use extant_format::features::RoCompat;

use crate::exit::{Exit, Failure, Result};
use crate::image::{mount_failure, note_journal_error};
use crate::in_use::loop_device_of;
use crate::mounting::launcher::Request;
use crate::mounting::opening::{Opened, Opening, open, open_patiently, open_special, unsealed};
use crate::mounting::options::MountChoices;
use crate::mounting::reopen::Reopen;
use crate::output::complain;
use crate::text::escape;

/// The files of an image, open and locked, and not yet looked at.
pub(super) struct Devices {
    name: String,
    image: SharedDevice,
    /// The image once more, where it is a plain file or disk.
    pub(super) plain: Option<Arc<FileDevice>>,
    journal: Option<FileDevice>,
}

impl Devices {
    /// Opens and locks them. What is write-protected is opened for reading, unless writing was insisted on.
    pub(super) fn open(
        request: &Request,
        choices: &mut MountChoices,
        is_claimed: bool,
    ) -> Result<Devices> {
        let path = request.image.as_path();
        let name = escape(path.as_os_str().as_bytes());
        if let Some(holder) = loop_device_of(choices.source.written(path))
            && !(choices.read_only && is_read_only_device(&holder))
        {
            let message = format!("{name} is in use: the kernel has it as {holder}");
            return Err(Failure::new(Exit::Refused, message).hint(format!(
                "unmount it and detach it (losetup -d {holder}), or mount {holder} itself"
            )));
        }
        let how = match (choices.read_only, is_claimed) {
            (true, _) => Opening::ToRead,
            (false, true) => Opening::Claimed,
            (false, false) => Opening::ToWrite,
        };
        let special = open_special(path, choices)?;
        let plain = match special {
            Some(_) => None,
            None => Some(Arc::new(Devices::open_plain(path, how, &name, choices)?)),
        };
        let image = match (special, &plain) {
            (Some(image), _) => image,
            (None, Some(plain)) => Arc::clone(plain) as SharedDevice,
            (None, None) => return Err(Failure::new(Exit::Internal, name)),
        };
        let how = if choices.read_only { Opening::ToRead } else { Opening::ToWrite };
        let journal = choices.journal_device.as_deref().map(|path| open(path, how));
        let journal = journal.transpose()?;
        Ok(Devices { name, image, plain, journal })
    }

    /// A plain file or disk, open and locked.
    fn open_plain(
        path: &Path,
        how: Opening,
        name: &str,
        choices: &mut MountChoices,
    ) -> Result<FileDevice> {
        Ok(match open_patiently(path, how, choices)? {
            Opened::Device(image) => image,
            Opened::WriteProtected => {
                complain(&format!("{name} is write-protected, mounting read-only"));
                choices.read_only = true;
                match open_patiently(path, Opening::ToRead, choices)? {
                    Opened::Device(image) => image,
                    Opened::WriteProtected => return Err(Failure::new(Exit::Io, name)),
                }
            }
        })
    }

    /// What becoming writable later needs of them.
    pub(super) fn reopen(&self, request: &Request, choices: &MountChoices) -> Result<Reopen> {
        let image = self.plain.as_deref().map(|image| (&request.image, image));
        let journal = choices.journal_device.as_ref().zip(self.journal.as_ref());
        let files = [image, journal].into_iter().flatten();
        let files = files.map(|(path, device)| Ok((path.clone(), device.file().try_clone()?)));
        let files = files.collect::<io::Result<_>>();
        let not_kept =
            |error: io::Error| Failure::caused(Exit::Internal, "cannot keep the image", &error);
        Ok(Reopen::of(files.map_err(not_kept)?, choices))
    }

    /// Opens the file system. From here on, bytes of the image are looked at.
    pub(super) fn mount(self, choices: &MountChoices) -> Result<Fs> {
        let Devices { name, image, journal, .. } = self;
        let device = unsealed(image, choices, &name)?;
        let mut options = choices.file_system();
        if let Some(journal) = journal {
            options = options.journal_device(journal);
        }
        let at_start = !choices.is_windowed();
        let part = match (choices.partition, choices.offset) {
            (Some(number), _) => format!("{name}, partition {number}"),
            (None, Some(offset)) => format!("{name}, from byte {offset} on"),
            (None, None) => name.clone(),
        };
        let fs = open_at(&options, choices.superblock_kib, &device)
            .map_err(|error| opening_failed(error, &part, &device, at_start))?;
        // Before anybody hears of success: without its root there is nothing to see.
        if let Err(error) = fs.check_root() {
            let _ = fs.unmount();
            return Err(opening_failed(error, &part, &device, at_start));
        }
        note_journal_error(&fs, &name);
        if fs.recovered_orphans().is_some_and(|orphans| orphans.list_ignored || orphans.damaged > 0)
        {
            complain(&format!(
                "{name}: note: what a crash left without a name could not all be removed; \
                 after unmounting, extant repair does that"
            ));
        }
        let wanted = [
            (choices.needs_quota, fs.features().has_ro_compat(RoCompat::QUOTA), "quota", "quota"),
            (
                choices.needs_journal_checksums,
                fs.features().has_ro_compat(RoCompat::METADATA_CSUM),
                "journal_checksum",
                "metadata_csum",
            ),
        ];
        for (asked, there, word, feature) in wanted {
            if asked && !there {
                let message = format!("-o {word}: {name} has not the feature {feature}");
                fs.unmount()?;
                return Err(Failure::new(Exit::Unsupported, message));
            }
        }
        Ok(fs)
    }
}

fn opening_failed(error: FsError, name: &str, device: &SharedDevice, at_start: bool) -> Failure {
    let hint = match &error {
        FsError::JournalDeviceMissing { .. } => "pass the device or file with --journal-device",
        FsError::Unsupported { wanted: "write", .. } => "-o ro mounts it for reading",
        FsError::Journal(_) => "-o ro,noload mounts it without its journal, in an older state",
        _ => return mount_failure(error, name, device, at_start),
    };
    mount_failure(error, name, device, at_start).hint(hint)
}

/// Opens with the superblock at `kib` KiB, if one is given: its block number follows from the size of
/// blocks, which is found by trying.
fn open_at(options: &MountOptions, kib: Option<u64>, device: &SharedDevice) -> Result<Fs, FsError> {
    let Some(kib) = kib else { return Ok(options.open_shared(Arc::clone(device))?) };
    let bytes = kib.saturating_mul(1024);
    let mut failed = None;
    for size in [4096, 1024, 2048, 65_536, 8192, 16_384, 32_768] {
        let Ok(block_size) = BlockSize::new(size) else { continue };
        if bytes % size != 0 {
            continue;
        }
        let options = options.clone().superblock(bytes / size, block_size);
        match options.open_shared(Arc::clone(device)).map_err(FsError::from) {
            Ok(fs) => return Ok(fs),
            // The most telling answer is that of a size at which there was something.
            Err(error) => match (&failed, &error) {
                (Some(_), FsError::NotExt { .. } | FsError::InvalidArgument { .. }) => {}
                _ => failed = Some(error),
            },
        }
    }
    Err(failed.unwrap_or(FsError::NotExt { offset: bytes, magic: None }))
}

/// Returns whether a loop device takes no writes.
fn is_read_only_device(device: &str) -> bool {
    let name = device.trim_start_matches("/dev/");
    std::fs::read(format!("/sys/block/{name}/ro")).is_ok_and(|text| text.starts_with(b"1"))
}
