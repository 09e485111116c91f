//! The image that a command reads: which file, which part of it, which path in it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use extant::{BlockSize, Fs, FsError, MountOptions};
use extant_block::{BlockDevice, FileDevice, SharedDevice, WindowDevice, partition};
use extant_image::output::recognise_device;

use crate::exit::{Exit, Failure, Result};
use crate::output::complain;
use crate::size::parse_bytes;
use crate::text::{escape, human_bytes};

/// Block sizes a backup superblock is looked for with, the most frequent first.
const BLOCK_BYTES: [u64; 7] = [4096, 1024, 2048, 65_536, 8192, 16_384, 32_768];

/// Which image to read, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct ImageArgs {
    /// Image file or block device, and a path in it.
    ///
    /// A name that exists as a whole is an image, and the path is `/`. Otherwise the name ends
    /// before the last `:/` for which a file exists, and the path begins at that slash. So names
    /// with colons work: `a:b.img:/etc`.
    #[arg(value_name = "IMG[:/PATH]")]
    pub(crate) target: OsString,
    #[command(flatten)]
    pub(crate) how: ReadArgs,
}

/// Where in the file the file system is, and how to read it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ReadArgs {
    /// The file system begins that many bytes into the file.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Image")]
    pub(crate) offset: Option<u64>,
    /// The file system is in partition N of the file (GPT or MBR).
    #[arg(long, value_name = "N", conflicts_with = "offset", help_heading = "Image")]
    pub(crate) partition: Option<u32>,
    /// Use the backup superblock in this block, as e2fsck's -b.
    #[arg(short = 'b', long, value_name = "BLOCK", help_heading = "Image")]
    pub(crate) superblock: Option<u64>,
    /// Block size for -b in bytes; found out by trying when left out.
    #[arg(
        short = 'B',
        long,
        value_name = "BYTES",
        requires = "superblock",
        help_heading = "Image"
    )]
    pub(crate) block_size: Option<u64>,
    /// Read an unclean image as it lies there, without looking through its journal.
    #[arg(long, help_heading = "Image")]
    pub(crate) no_replay: bool,
    /// Do not verify checksums of metadata.
    #[arg(long, help_heading = "Image")]
    pub(crate) no_checksums: bool,
    /// Device or file with the journal, for an image whose journal is not inside it.
    #[arg(long, value_name = "FILE", help_heading = "Image")]
    pub(crate) journal_device: Option<PathBuf>,
}

/// An opened image and the path asked for.
pub(crate) struct Image {
    pub(crate) fs: Fs,
    /// The path in the image; begins with `/`.
    pub(crate) path: Vec<u8>,
    /// The image's name.
    pub(crate) name: String,
}

/// Splits `IMG[:/PATH]`; `exists` tells whether a file of a name exists.
fn split_target(target: &OsStr, exists: impl Fn(&Path) -> bool) -> (PathBuf, Vec<u8>) {
    let bytes = target.as_bytes();
    let whole = || (PathBuf::from(target), b"/".to_vec());
    if exists(Path::new(target)) {
        return whole();
    }
    let colons: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b":/")).collect();
    let image_at = |at: usize| PathBuf::from(OsString::from_vec(bytes[..at].to_vec()));
    let cut = colons.iter().rev().find(|at| exists(&image_at(**at))).or(colons.first());
    match cut {
        Some(&at) => (image_at(at), bytes[at + 1..].to_vec()),
        None => whole(),
    }
}

impl ImageArgs {
    /// Opens the image.
    pub(crate) fn open(&self) -> Result<Image> {
        let (file, path) = split(&self.target);
        let (fs, name) = self.how.open(&file)?;
        Ok(Image { fs, path, name })
    }
}

/// The image and the path in it that `IMG[:/PATH]` means.
pub(crate) fn split(target: &OsStr) -> (PathBuf, Vec<u8>) {
    split_target(target, |path| path.exists())
}

/// An image and the path in it, if that is what `target` means: it has `:/` in it, and is not the
/// name of a file of the host as a whole.
pub(crate) fn split_place(target: &OsStr) -> Option<(PathBuf, Vec<u8>)> {
    let has_path = target.as_bytes().windows(2).any(|pair| pair == b":/");
    (has_path && Path::new(target).symlink_metadata().is_err()).then(|| split(target))
}

/// Puts the part of the file where the file system is in place of the file.
pub(crate) fn window(
    device: FileDevice,
    offset: Option<u64>,
    partition: Option<u32>,
) -> Result<SharedDevice> {
    Ok(match (offset, partition) {
        (Some(offset), _) => Arc::new(WindowDevice::from_offset(device, offset)?),
        (None, Some(number)) => Arc::new(partition::open(device, number)?),
        (None, None) => Arc::new(device),
    })
}

/// Why there is no file system: with the partitions, if that is what is on the device.
pub(crate) fn mount_failure(
    error: FsError,
    name: &str,
    device: &SharedDevice,
    at_start: bool,
) -> Failure {
    let not_ext = matches!(error, FsError::NotExt { .. });
    let failure = Failure::from(error).about(name);
    if !not_ext {
        return failure;
    }
    if device.size_bytes() == 0 {
        return failure
            .hint(format!("it is empty; extant mkfs {name} SIZE makes a file system there"));
    }
    if let Some(hint) = partition_hint(device)
        && at_start
    {
        return failure.hint(hint);
    }
    match recognise_device(device) {
        Ok(Some(what)) => {
            failure.hint(format!("it looks like {what}; extant is for ext2, ext3 and ext4"))
        }
        _ => failure,
    }
}

/// Says that the kernel had given up on this journal, if it had.
pub(crate) fn note_journal_error(fs: &Fs, name: &str) {
    if let Some(replayed) = fs.replayed().filter(|replayed| replayed.errno != 0) {
        complain(&format!(
            "{name}: note: whoever wrote it last had to stop its journal ({}); what was not durable by \
             then is lost, and e2fsck -f finds whether anything else is",
            std::io::Error::from_raw_os_error(replayed.errno.saturating_abs())
        ));
    }
}

impl ReadArgs {
    /// Opens the image in `file`; its name for messages comes along.
    pub(crate) fn open(&self, file: &Path) -> Result<(Fs, String)> {
        let name = escape(file.as_os_str().as_bytes());
        let device = window(FileDevice::open_read_only(file)?, self.offset, self.partition)?;
        let mut options =
            MountOptions::new().ignore_journal(self.no_replay).verify_checksums(!self.no_checksums);
        if let Some(journal) = &self.journal_device {
            options = options.journal_device(FileDevice::open_read_only(journal)?);
        }
        let at_start = self.offset.is_none() && self.partition.is_none();
        let fs = self
            .mount(&options, &device)
            .map_err(|error| mount_failure(error, &name, &device, at_start))?;
        note_journal_error(&fs, &name);
        Ok((fs, name))
    }

    fn mount(&self, options: &MountOptions, device: &SharedDevice) -> Result<Fs, FsError> {
        let Some(block) = self.superblock else { return options.open(Arc::clone(device)) };
        let given = self.block_size.map(|bytes| vec![bytes]);
        let mut failed = None;
        for bytes in given.unwrap_or_else(|| BLOCK_BYTES.to_vec()) {
            let Ok(size) = BlockSize::new(bytes) else {
                return Err(FsError::InvalidArgument {
                    what: "-B: a block size is a power of two from 1024 to 65536",
                });
            };
            match options.clone().superblock(block, size).open(Arc::clone(device)) {
                Ok(fs) => return Ok(fs),
                // The most telling answer is that of a size at which there was something.
                Err(error) => match (&failed, &error) {
                    (Some(_), FsError::NotExt { .. } | FsError::InvalidArgument { .. }) => {}
                    _ => failed = Some(error),
                },
            }
        }
        Err(failed.unwrap_or(FsError::NotExt { offset: 0, magic: None }))
    }
}

/// "try --partition", when the device has partitions.
fn partition_hint(device: &SharedDevice) -> Option<String> {
    let partitions = partition::list(device).ok()?;
    let shown: Vec<String> = partitions
        .iter()
        .take(8)
        .map(|part| format!("{} ({})", part.number, human_bytes(part.len)))
        .collect();
    let more = if partitions.len() > shown.len() { ", …" } else { "" };
    (!shown.is_empty()).then(|| {
        format!("this is a disk with partitions {}{more}: give --partition N", shown.join(", "))
    })
}

/// `path` in the image `name`, for messages.
pub(crate) fn label(name: &str, path: &[u8]) -> String {
    format!("{name}:{}", escape(path))
}

/// An error about `path` in the image `name`. What the path says need not be said by inode.
pub(crate) fn failure(name: &str, path: &[u8], error: FsError) -> Failure {
    let plain = match &error {
        FsError::NotFound { .. } => Some("no such file"),
        FsError::Exists { .. } => Some("exists already"),
        FsError::NotEmpty { .. } => Some("the directory is not empty"),
        FsError::NotPermitted { what, .. } => Some(*what),
        _ => None,
    };
    let mut failure = Failure::from(error);
    let what = plain.unwrap_or(&failure.message);
    failure.message = format!("{}: {what}", label(name, path));
    failure
}

impl Image {
    /// `path` as messages name it, with the image.
    pub(crate) fn label(&self, path: &[u8]) -> String {
        label(&self.name, path)
    }

    /// Names the path in an error.
    pub(crate) fn failure(&self, path: &[u8], error: FsError) -> Failure {
        failure(&self.name, path, error)
    }

    /// The file at the path asked for, after every symbolic link.
    pub(crate) fn resolve(&self) -> Result<extant::Inode> {
        self.fs.resolve(&self.path).map_err(|error| self.failure(&self.path, error))
    }

    /// The file at the path asked for; a symbolic link in the last place is the answer.
    pub(crate) fn resolve_link(&self) -> Result<extant::Inode> {
        self.fs.resolve_link(&self.path).map_err(|error| self.failure(&self.path, error))
    }
}

/// Counts what could not be read, names each, and turns the count into the exit code.
#[derive(Debug, Default)]
pub(crate) struct Failures(u64);

impl Failures {
    /// Names one thing that could not be done.
    pub(crate) fn report(&mut self, failure: &Failure) {
        self.0 += 1;
        complain(&failure.message);
    }

    /// Counts what another one has named.
    pub(crate) fn add(&mut self, other: &Failures) {
        self.0 += other.0;
    }

    pub(crate) fn exit(&self) -> Exit {
        if self.0 == 0 { Exit::Success } else { Exit::Partial }
    }
}

/// What a whole-device reader wants to know about the device below a file system.
pub(crate) fn device_bytes(fs: &Fs) -> u64 {
    fs.device().size_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_that_exists_is_the_image() {
        let split = |target: &str, existing: &[&str]| {
            let exists = |path: &Path| existing.iter().any(|name| Path::new(name) == path);
            let (image, path) = split_target(OsStr::new(target), exists);
            (image.display().to_string(), String::from_utf8(path).unwrap())
        };
        let pair = |image: &str, path: &str| (image.to_owned(), path.to_owned());
        assert_eq!(split("a.img", &["a.img"]), pair("a.img", "/"));
        assert_eq!(split("a.img:/etc", &["a.img"]), pair("a.img", "/etc"));
        assert_eq!(split("a.img:/etc", &["a.img", "a.img:/etc"]), pair("a.img:/etc", "/"));
        assert_eq!(split("a:b.img:/x", &["a", "a:b.img"]), pair("a:b.img", "/x"));
        assert_eq!(split("a.img:/b:/c", &["a.img"]), pair("a.img", "/b:/c"));
        assert_eq!(split("d:/a.img:/b", &["d", "d:/a.img"]), pair("d:/a.img", "/b"));
        // Nothing exists: the message names what was probably meant.
        assert_eq!(split("a.img:/b:/c", &[]), pair("a.img", "/b:/c"));
        assert_eq!(split("a.img:b", &[]), pair("a.img:b", "/"));
    }
}
