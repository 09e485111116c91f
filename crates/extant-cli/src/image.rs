//! The image that a command reads: which file, which part of it, which path in it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use extant::{BlockSize, Family, Fs, FsError, MountOptions};
use extant_block::{BlockDevice, FileDevice, OpenError, SharedDevice, WindowDevice, partition};
use extant_image::signature::{Class, Found, PROBE_BYTES, recognise, recognise_device};

use crate::exit::{Exit, Failure, Result};
use crate::foreign;
use crate::keys::KeyArgs;
use crate::mount_table;
use crate::output::{complain, report, report_one};
use crate::place::is_address;
pub(crate) use crate::place::{split, split_place};
use crate::size::parse_bytes;
use crate::source::{SourceArgs, SourceError, has_qcow2_header};
use crate::text::{escape, human_bytes};

/// Block sizes a backup superblock is looked for with, the most frequent first.
const BLOCK_BYTES: [u64; 7] = [4096, 1024, 2048, 65_536, 8192, 16_384, 32_768];

/// Partitions of a disk that a message lists.
const PARTITIONS_SHOWN: usize = 8;

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

/// Which images to read, and how: several paths are done one after the other.
#[derive(Args, Clone, Debug)]
pub(crate) struct ImagesArgs {
    /// Image file or block device, and a path in it; several, one after the other.
    ///
    /// A name that exists as a whole is an image, and the path is `/`. Otherwise the name ends
    /// before the last `:/` for which a file exists, and the path begins at that slash. So names
    /// with colons work: `a:b.img:/etc`.
    #[arg(value_name = "IMG[:/PATH]", required = true)]
    targets: Vec<OsString>,
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
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// An opened image and the path asked for.
pub(crate) struct Image {
    pub(crate) fs: Fs,
    /// The path in the image; begins with `/`.
    pub(crate) path: Vec<u8>,
    /// The image's name.
    pub(crate) name: String,
    /// Whether it is one of several paths that the command was given.
    pub(crate) is_one_of_several: bool,
}

impl ImageArgs {
    /// Opens the image.
    pub(crate) fn open(&self) -> Result<Image> {
        let (file, path) = split(&self.target);
        let (fs, name) = self.how.open(&file)?;
        Ok(Image { fs, path, name, is_one_of_several: false })
    }
}

impl ImagesArgs {
    /// Calls `each` for every path, in the order given; each image is opened once. A failure of one
    /// of several is named, and the others go on: the code is 1 then, or that of the first failure
    /// if nothing was done.
    pub(crate) fn each(&self, each: impl FnMut(&Image) -> Result<Exit>) -> Result<Exit> {
        self.each_in_order(|_| 0, each)
    }

    /// Runs `each` on every image and its paths, those paths first for which `rank` gives the lower number.
    pub(crate) fn each_in_order(
        &self,
        rank: impl Fn(&Image) -> u8,
        mut each: impl FnMut(&Image) -> Result<Exit>,
    ) -> Result<Exit> {
        let mut opened: Vec<(PathBuf, Fs, String)> = Vec::new();
        let (mut done, mut first, mut partly) = (0u64, None, false);
        let is_one_of_several = self.targets.len() > 1;
        let mut images = Vec::new();
        for target in &self.targets {
            let (file, path) = split(target);
            let known = opened.iter().find(|(known, _, _)| *known == file);
            let found = match known {
                Some((_, fs, name)) => Ok((fs.clone(), name.clone())),
                None => self.how.open(&file),
            };
            match found {
                Ok((fs, name)) => {
                    if known.is_none() {
                        opened.push((file, fs.clone(), name.clone()));
                    }
                    images.push(Image { fs, path, name, is_one_of_several });
                }
                Err(failure) if !is_one_of_several => return Err(failure),
                Err(failure) => {
                    first = first.or(Some(failure.exit));
                    report(&failure);
                }
            }
        }
        images.sort_by_key(rank);
        for image in &images {
            match each(image) {
                Ok(Exit::Success) => done += 1,
                Ok(_) => partly = true,
                Err(failure) if !is_one_of_several => return Err(failure),
                // Of the output, not of this path.
                Err(failure) if matches!(failure.exit, Exit::BrokenPipe) => return Err(failure),
                Err(failure) => {
                    first = first.or(Some(failure.exit));
                    report(&failure);
                }
            }
        }
        Ok(match first {
            None if !partly => Exit::Success,
            Some(first) if done == 0 && !partly => first,
            _ => Exit::Partial,
        })
    }
}

/// Puts the part of the file where the file system is in place of the file.
pub(crate) fn window(
    device: SharedDevice,
    offset: Option<u64>,
    partition: Option<u32>,
) -> Result<SharedDevice> {
    Ok(match (offset, partition) {
        (Some(offset), _) => Arc::new(WindowDevice::from_offset(device, offset)?),
        (None, Some(number)) => Arc::new(partition::open(device, number)?),
        (None, None) => device,
    })
}

/// What is looked at, for messages.
fn place_of(name: &str, device: &SharedDevice, at_start: bool) -> String {
    match at_start {
        true => name.to_owned(),
        false => escape(device.describe().as_bytes()),
    }
}

/// What is on a device that is known to be something else: a disk with partitions, or what a signature tells.
/// `at_start`: the whole file was looked at, not a part of it.
pub(crate) fn instead_of_ext(name: &str, device: &SharedDevice, at_start: bool) -> Option<Failure> {
    if device.size_bytes() == 0 {
        return None;
    }
    let place = place_of(name, device, at_start);
    let instead = |message: String| Failure { message, ..Failure::new(Exit::Image, "") }.on(name);
    if let Some(hint) = partition_hint(device)
        && at_start
    {
        let message = format!("{place}: this is a disk with partitions, not a file system");
        return Some(instead(message).hint(hint));
    }
    let mut start = vec![0; PROBE_BYTES.min(device.size_bytes() as usize)];
    device.read_at(0, &mut start).ok()?;
    let found = recognise(&start).filter(|found| !matches!(found.class, Class::Ext))?;
    let what = found.name;
    let failure =
        instead(format!("{place}: this is {what}, not an ext2, ext3 or ext4 file system"));
    Some(match at_start {
        true => failure.hint(foreign::as_image(found, name)),
        false => failure.hint("extant is for ext2, ext3 and ext4"),
    })
}

/// Why there is no file system: what is on the device instead, with the partitions, if there are
/// any. `at_start`: the whole file was looked at, not a part of it.
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
    if let Some(failure) = instead_of_ext(name, device, at_start) {
        return failure;
    }
    let place = place_of(name, device, at_start);
    let instead = |message: String| Failure { message, ..Failure::new(Exit::Image, "") }.on(name);
    // Other programs, and mkfs, do not know addresses.
    let is_file = at_start && !is_address(Path::new(name));
    if device.size_bytes() == 0 && !is_file {
        return instead(format!("{place}: this is empty"));
    }
    if device.size_bytes() == 0 {
        return instead(format!("{place}: this is an empty file"))
            .hint(format!("extant mkfs {name} SIZE makes a file system there"));
    }
    let mut start = vec![0; PROBE_BYTES.min(device.size_bytes() as usize)];
    if device.read_at(0, &mut start).is_err() {
        return failure;
    }
    match recognise(&start) {
        // The superblock that was looked for was another one.
        Some(_) => failure,
        None => {
            let message = format!("{place}: {}", failure.message.trim_start_matches(&place));
            let message = message.replace(": : ", ": ");
            let failure = Failure { message, ..failure };
            match (start.iter().all(|byte| *byte == 0), is_file) {
                // It would make one in place of the container, not in it.
                (true, true) if has_qcow2_header(Path::new(name)) => failure.hint(
                    "it begins with zeros, and extant mkfs makes raw images: make one, and \
                     qemu-img convert -O qcow2 makes a qcow2 image of it",
                ),
                (true, true) => failure.hint(format!(
                    "it begins with zeros: extant mkfs {name} makes a file system there"
                )),
                (true, false) => failure.hint("it begins with zeros: nothing was made there yet"),
                (false, true) => failure.hint(format!(
                    "the command file tells what {name} is; a file system that begins elsewhere \
                     is read with --offset BYTES, another superblock with -b BLOCK"
                )),
                (false, false) => failure,
            }
        }
    }
}

/// Why an image cannot be opened: with how a path in it is written, if one seems to be meant.
pub(crate) fn opening(error: SourceError, file: &Path) -> Failure {
    let error = match error {
        SourceError::Open(error) => error,
        SourceError::Other(failure) => return failure,
    };
    let missing = match &error {
        OpenError::Io { source, .. } => matches!(
            source.kind(),
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
        ),
        _ => false,
    };
    let is_dir = file.is_dir();
    let mounted = is_dir.then(|| mount_table::at(file).ok().flatten()).flatten();
    let failure = Failure::from(error);
    let name = escape(file.as_os_str().as_bytes());
    if let Some(mounted) = mounted {
        let source = escape(mounted.source.as_bytes());
        return failure.hint(format!(
            "{name} is where a file system is mounted: unmount it, and give its image or device ({source})"
        ));
    }
    match foreign::meant_path(file.as_os_str()) {
        Some(hint) if missing => failure.hint(hint),
        _ if missing => failure.hint(format!(
            "extant build {name} --from DIR or extant mkfs {name} SIZE makes an image"
        )),
        _ if is_dir => failure
            .hint(format!("extant works on image files; extant build IMG --from {name} makes one")),
        _ => failure,
    }
}

/// Returns what to do about an image that ends before its file system does.
pub(crate) fn cut_off(name: &str, wanted: u64) -> String {
    format!(
        "get all of it again; extant salvage {name} DIR copies what can be read; or make it {wanted} bytes long \
         (truncate -s {wanted} {name}, where it is a file), with zeros for what is missing, and repair it then"
    )
}

/// Says that the kernel had given up on this journal, if it had.
pub(crate) fn note_journal_error(fs: &Fs, name: &str) {
    if let Some(replayed) = fs.replayed().filter(|replayed| replayed.errno != 0) {
        complain(&format!(
            "{name}: note: whoever wrote it last had to stop its journal ({}); what was not durable by \
             then is lost, and extant check finds whether anything else is",
            std::io::Error::from_raw_os_error(replayed.errno.saturating_abs())
        ));
    }
}

/// Returns which option reads an image that does not open: only the commands with [`ReadArgs`] have these.
fn option_hint(error: &FsError) -> Option<&'static str> {
    match error {
        FsError::JournalDeviceMissing { .. } => {
            Some("pass the device with --journal-device, or read without the journal: --no-replay")
        }
        FsError::Journal(_) if error.family() == Family::Damage => Some(
            "extant repair brings in what can be brought in of it; --no-replay reads the image without, in an older state",
        ),
        FsError::Corrupt { structure: "superblock" | "group descriptor", .. } => Some(
            "a backup may be intact: try -b 32768 (8193 for blocks of 1 KiB), or --no-checksums",
        ),
        _ => None,
    }
}

impl ReadArgs {
    /// Opens the image in `file`; its name for messages comes along.
    pub(crate) fn open(&self, file: &Path) -> Result<(Fs, String)> {
        self.open_or(file, &|error, name, device, at_start| {
            let hint = option_hint(&error);
            let failure = mount_failure(error, name, device, at_start);
            match hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            }
        })
    }

    /// Does what [`ReadArgs::open`] does; `failed` says why the image cannot be opened, for commands with other
    /// options.
    pub(crate) fn open_or(
        &self,
        file: &Path,
        failed: &dyn Fn(FsError, &str, &SharedDevice, bool) -> Failure,
    ) -> Result<(Fs, String)> {
        let name = escape(file.as_os_str().as_bytes());
        let device = self.source.open_read_only(file).map_err(|error| opening(error, file))?;
        let device = window(device, self.offset, self.partition)?;
        let mut options =
            MountOptions::new().ignore_journal(self.no_replay).verify_checksums(!self.no_checksums);
        if let Some(journal) = &self.journal_device {
            options = options.journal_device(FileDevice::open_read_only(journal)?);
        }
        options = self.keys.apply(options)?;
        let at_start = self.offset.is_none() && self.partition.is_none();
        let fs = self
            .mount(&options, &device)
            .map_err(|error| failed(error, &name, &device, at_start))?;
        note_journal_error(&fs, &name);
        Ok((fs, name))
    }

    fn mount(&self, options: &MountOptions, device: &SharedDevice) -> Result<Fs, FsError> {
        let Some(block) = self.superblock else { return Ok(options.open(Arc::clone(device))?) };
        let given = self.block_size.map(|bytes| vec![bytes]);
        let mut failed = None;
        for bytes in given.unwrap_or_else(|| BLOCK_BYTES.to_vec()) {
            let Ok(size) = BlockSize::new(bytes) else {
                return Err(FsError::InvalidArgument {
                    what: "-B: a block size is a power of two from 1024 to 65536",
                });
            };
            let options = options.clone().superblock(block, size);
            match options.open(Arc::clone(device)).map_err(FsError::from) {
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

/// "try --partition", when the device has partitions: with what is in each.
fn partition_hint(device: &SharedDevice) -> Option<String> {
    let partitions = partition::list(device).ok()?;
    let (mut shown, mut ours) = (Vec::new(), Vec::new());
    for part in partitions.iter().take(PARTITIONS_SHOWN) {
        let window = WindowDevice::new(Arc::clone(device), part.offset, part.len).ok();
        let found = window.and_then(|window| recognise_device(&window).ok().flatten());
        let what = match found {
            Some(Found { name, .. }) => format!(", {name}"),
            None => part.type_name().map(|name| format!(", {name}")).unwrap_or_default(),
        };
        if matches!(found, Some(Found { class: Class::Ext, .. })) {
            ours.push(part.number);
        }
        shown.push(format!("{} ({}{what})", part.number, human_bytes(part.len)));
    }
    let more = if partitions.len() > shown.len() { ", …" } else { "" };
    let number = match ours[..] {
        [only] => only.to_string(),
        _ => "N".into(),
    };
    let shown = shown.join(", ");
    (!shown.is_empty()).then(|| format!("give --partition {number}; there are {shown}{more}"))
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
    let size = match &error {
        FsError::TooLarge { bytes, limit, .. } => {
            let (bytes, limit) = (human_bytes(*bytes), human_bytes(*limit));
            Some(format!("{bytes} are more than a file of this image can have, {limit}"))
        }
        _ => None,
    };
    let mut failure = Failure::from(error);
    let what = plain.or(size.as_deref()).unwrap_or(&failure.message);
    let label = label(name, path);
    failure.message = format!("{label}: {what}");
    failure.on(label)
}

impl Image {
    /// Adds the image's name to an object about one of several paths.
    pub(crate) fn put_name(&self, object: &mut serde_json::Map<String, serde_json::Value>) {
        if self.is_one_of_several {
            object.insert("image".into(), self.name.clone().into());
        }
    }

    /// What stands before a path where several images may be meant.
    pub(crate) fn file_prefix(&self) -> Vec<u8> {
        [self.name.as_bytes(), b":"].concat()
    }

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
        report_one(failure);
    }

    /// Counts one thing that is named with others like it.
    pub(crate) fn count(&mut self) {
        self.0 += 1;
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
