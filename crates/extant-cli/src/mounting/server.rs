//! The server: opens the image, gives up its rights, answers the kernel until it is unmounted.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant::{BlockSize, Fs, FsError, MountOptions};
use extant_block::{FileDevice, OpenError, SharedDevice, lock_holder};
use extant_format::features::RoCompat;
use extant_fuse::{
    Argument, Brake, Events, Level, NotWritable, Obstacle, RingUse, Rings, Settings,
};
use extant_sync::threads::{Receiver, Sender};
use extant_sync::{Clock, Mutex, Rank, SystemClock, threads};
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::bounds;
use crate::exit::{Exit, Failure, Result};
use crate::image::{mount_failure, note_journal_error};
use crate::in_use::loop_device_of;
use crate::mounting::launcher::Request;
use crate::mounting::link::{Link, Word};
use crate::mounting::log::{ERROR, INFO, Log, WARNING};
use crate::mounting::options::{MountChoices, SandboxMode, source_name};
use crate::mounting::reopen::{Reopen, may_become_writable};
use crate::mounting::{sandbox, table};
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

/// Runs the server from opening to unmounting.
pub(crate) fn run(request: &Request) -> Result<Exit> {
    let link = Link::inherited()
        .map_err(|error| Failure::caused(Exit::Usage, "nobody keeps this server", &error))?;
    match serve(request, &link) {
        Ok(()) => Ok(Exit::Success),
        Err(failure) => {
            let exit = failure.exit;
            if let Err(Word::Failed(failure)) = said(&link, Word::Failed(failure)) {
                return Err(failure);
            }
            Ok(exit)
        }
    }
}

/// Says `word`, or gives it back.
fn said(link: &Link, word: Word) -> Result<(), Word> {
    link.say(&word).map_err(|_| word)
}

fn internal(what: &str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::caused(Exit::Internal, what, &error)
}

fn serve(request: &Request, link: &Link) -> Result<()> {
    let mut choices = request.choices.clone();
    // A terminal's ^C is for the keeper alone.
    let _ = rustix::process::setsid();
    let signals = signals().map_err(internal("cannot handle signals"))?;
    let end = UnixStream::pair().map_err(internal("cannot make a socket"))?;
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(internal("cannot open /dev/null"))?;
    let log = Log::open(choices.foreground, choices.log.as_deref())?;
    let mut settings = choices.settings();
    let dir = request.dir.canonicalize().unwrap_or_else(|_| request.dir.clone());
    let Some(Word::Open { is_claimed }) =
        link.hear().map_err(internal("cannot hear the keeper"))?
    else {
        return Err(Failure::new(Exit::Interrupted, "interrupted: nothing is mounted"));
    };
    if let Some(engine) = choices.device_engine {
        extant_block::set_default_engine(engine);
    }
    let devices = Devices::open(request, &mut choices, is_claimed)?;
    if let Some(plain) = &devices.plain {
        // Not from the sandbox.
        plain.prepare_engine(DEVICE_RINGS);
    }
    let choices = &choices;
    settings.may_become_writable = may_become_writable(&request.image, choices);
    let reopen = match settings.may_become_writable {
        true => Some(devices.reopen(request, choices)?),
        false => None,
    };
    let rings = rings(&settings)?;
    let _ = std::env::set_current_dir("/");
    for missing in sandbox::enter(choices.sandbox)? {
        if choices.verbose {
            complain(&format!("sandbox without {missing}"));
        }
    }
    let answers = Answers::default();
    let foreground = choices.foreground;
    let brake = OnceLock::new();
    let server = Server { link, log, null, foreground, dir, answers, brake, reopen };
    // Before the image says that it is mounted: what is refused here leaves it as it was.
    server.catch_panics(choices.foreground)?;
    let fs = devices.mount(choices)?;
    link.say(&Word::Opened { read_only: choices.read_only })
        .map_err(internal("cannot hear the keeper"))?;
    let device = match link.hear() {
        Ok(Some(Word::Serve(device))) => device,
        // There is no mount after all.
        Ok(_) => return Ok(fs.unmount()?),
        Err(error) => {
            fs.unmount()?;
            return Err(internal("cannot hear the keeper")(error));
        }
    };
    let answer = server.answer((device, rings), fs, &settings, &signals, end, choices);
    answer.inspect(|()| {
        server.tell(INFO, "unmounted; everything is written");
        // Unmounted before anybody used it: whoever waits for the start waits no longer.
        let _ = link.say(&Word::Ready);
    })
}

/// The rings that requests come over, while they can be made: not from the sandbox.
fn rings(settings: &Settings) -> Result<Option<Rings>> {
    let made = match settings.ring {
        RingUse::Never => return Ok(None),
        RingUse::WhenOffered => return Ok(Rings::prepare(settings).ok()),
        RingUse::Always => Rings::prepare(settings),
    };
    made.map(Some).map_err(|obstacle| {
        let failure = Failure::new(Exit::Unsupported, format!("-o io_uring: {obstacle}"));
        match obstacle {
            Obstacle::SwitchedOff => failure,
            _ => failure.hint("without that word requests are read from /dev/fuse"),
        }
    })
}

/// A socket that gets a byte when the process is asked to end. Other signals have no effect.
fn signals() -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGTERM, theirs)?;
    for signal in [SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(ours)
}

/// The files of an image, open and locked, and not yet looked at.
struct Devices {
    name: String,
    image: SharedDevice,
    /// The image once more, where it is a plain file or disk.
    plain: Option<Arc<FileDevice>>,
    journal: Option<FileDevice>,
}

impl Devices {
    /// Opens and locks them. What is write-protected is opened for reading, unless writing was insisted on.
    fn open(request: &Request, choices: &mut MountChoices, is_claimed: bool) -> Result<Devices> {
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
    fn reopen(&self, request: &Request, choices: &MountChoices) -> Result<Reopen> {
        let image = self.plain.as_deref().map(|image| (&request.image, image));
        let journal = choices.journal_device.as_ref().zip(self.journal.as_ref());
        let files = [image, journal].into_iter().flatten();
        let files = files.map(|(path, device)| Ok((path.clone(), device.file().try_clone()?)));
        let files = files.collect::<io::Result<_>>();
        Ok(Reopen::of(files.map_err(internal("cannot keep the image"))?, choices))
    }

    /// Opens the file system. From here on, bytes of the image are looked at.
    fn mount(self, choices: &MountChoices) -> Result<Fs> {
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
fn open_patiently(path: &Path, how: Opening, choices: &MountChoices) -> Result<Opened> {
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

fn open(path: &Path, how: Opening) -> Result<FileDevice> {
    open_locked(path, how).map_err(|error| opening(error, path))
}

/// An image that was opened, or was not because nobody may write to it.
enum Opened {
    Device(FileDevice),
    WriteProtected,
}

/// A device or file system that is read-only, or a file that this user may only read.
fn is_write_protection(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

/// Opens what is no plain file or disk. What is write-protected is opened for reading, unless writing
/// was insisted on.
fn open_special(path: &Path, choices: &mut MountChoices) -> Result<Option<SharedDevice>> {
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
enum Opening {
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

/// Threads that may each have many requests of the device under way.
const DEVICE_RINGS: usize = 4;

/// How long the keeper has to look into a program.
const KEEPER_ANSWERS: Duration = Duration::from_secs(2);
/// How long the kernel has to send what it holds back, which is up to a part of the machine's memory.
const KERNEL_SENDS: Duration = Duration::from_secs(120);

/// The keeper's answers to one kind of question: one question at a time.
struct Answer<T> {
    asking: Mutex<()>,
    sender: Sender<T>,
    receiver: Receiver<T>,
}

impl<T: Send> Default for Answer<T> {
    fn default() -> Answer<T> {
        let (sender, receiver) = threads::channel(1);
        Answer { asking: Mutex::new(Rank::Leaf, ()), sender, receiver }
    }
}

impl<T: Send> Answer<T> {
    /// What the keeper says to `question`, if it says something in time.
    fn to(&self, link: &Link, question: &Word, within: Duration) -> Option<T> {
        let _asking = self.asking.lock();
        // An answer that came too late for who asked before.
        while self.receiver.try_recv().is_ok() {}
        link.say(question).ok()?;
        self.receiver.recv_timeout(within).ok()
    }

    fn give(&self, answer: T) {
        // Nobody waits for a second one.
        let _ = self.sender.try_send(answer);
    }
}

/// What the keeper is asked.
#[derive(Default)]
struct Answers {
    /// [`Word::AskArgument`]: of which thread, and what.
    arguments: Answer<(u32, Option<Vec<u8>>)>,
    /// [`Word::GiveArgument`]: of which thread, and whether.
    given: Answer<(u32, bool)>,
    /// [`Word::HandOver`].
    handed_over: Answer<bool>,
    /// [`Word::AskUser`].
    users: Answer<Option<u32>>,
    /// [`Word::AskFile`].
    files: Answer<Result<OwnedFd>>,
}

/// A server with a mount.
struct Server<'a> {
    link: &'a Link,
    log: Log,
    null: File,
    foreground: bool,
    /// Where it is mounted.
    dir: PathBuf,
    answers: Answers,
    /// Ends the mount where unmounting is not allowed.
    brake: OnceLock<Brake>,
    /// Of a mount for reading that may become writable.
    reopen: Option<Reopen>,
}

impl Server<'_> {
    /// Something for the log: the keeper's, or our own when it is gone.
    fn tell(&self, level: u8, text: &str) {
        let word = Word::Log { level, text: text.to_owned() };
        if self.link.say(&word).is_err() {
            self.log.add(level, text);
        }
    }

    /// A panic is a fault of ours. Nobody sees standard error.
    fn catch_panics(&self, foreground: bool) -> Result<()> {
        if foreground {
            return Ok(());
        }
        let link = self.link.try_clone().map_err(internal("cannot watch for faults"))?;
        std::panic::set_hook(Box::new(move |fault| {
            let text = format!("a fault in extant, please report it: {fault}");
            let _ = link.say(&Word::Log { level: ERROR, text });
        }));
        Ok(())
    }

    fn answer(
        &self,
        (device, rings): (OwnedFd, Option<Rings>),
        fs: Fs,
        settings: &Settings,
        signals: &UnixStream,
        end: (UnixStream, UnixStream),
        choices: &MountChoices,
    ) -> Result<()> {
        let (ended, end) = end;
        let orders = Orders { server: self, fs: fs.clone(), signals, ended: &ended, choices };
        let served = threads::scope(|scope| {
            let waiting = scope.spawn("orders", move || orders.obey());
            let served =
                waiting.map(|_| extant_fuse::serve_over(device, rings, fs, settings, self));
            drop(end);
            served
        });
        let served = served.map_err(|panic| Failure::caused(Exit::Internal, "", &panic))?;
        let served = served.map_err(|error| Failure::caused(Exit::Internal, "", &error))?;
        served.map_err(|error| Failure::caused(Exit::Io, "the mount ended badly", &error))
    }
}

impl Events for Server<'_> {
    fn ready(&self) {
        if !self.foreground {
            // Whoever reads what the launcher says waits for the end of it.
            let forgotten = rustix::stdio::dup2_stdout(&self.null)
                .and_then(|()| rustix::stdio::dup2_stderr(&self.null));
            if let Err(errno) = forgotten {
                self.tell(WARNING, &format!("cannot leave the terminal: {errno}"));
            }
        }
        // Without a keeper nobody waits for it.
        let _ = self.link.say(&Word::Ready);
    }

    fn connected(&self, brake: Brake) {
        let _ = self.brake.set(brake);
    }

    fn read_argument(&self, argument: Argument, bytes: Range<u32>) -> Option<Vec<u8>> {
        let question = Word::AskArgument { argument, bytes };
        let answer = self.answers.arguments.to(self.link, &question, KEEPER_ANSWERS);
        // An answer that came too late for who asked before is not for this caller.
        answer.filter(|(thread, _)| *thread == argument.thread)?.1
    }

    fn write_argument(&self, argument: Argument, bytes: &[u8]) -> bool {
        let question = Word::GiveArgument { argument, bytes: bytes.to_vec() };
        let answer = self.answers.given.to(self.link, &question, KEEPER_ANSWERS);
        answer == Some((argument.thread, true))
    }

    fn user_of(&self, thread: u32) -> Option<u32> {
        self.answers.users.to(self.link, &Word::AskUser { thread }, KEEPER_ANSWERS).flatten()
    }

    fn open_for_writing(&self) -> Result<Fs, Box<NotWritable>> {
        let ask = |index: usize| {
            let question = Word::AskFile { index: index as u32 }; // 0 or 1.
            let answer = self.answers.files.to(self.link, &question, KEEPER_ANSWERS);
            answer.unwrap_or_else(|| {
                let gone = "the process that keeps this mount does not answer: mount it again";
                Err(Failure::new(Exit::Io, gone))
            })
        };
        match &self.reopen {
            Some(reopen) => reopen.write(ask),
            None => {
                let why = "it cannot be written".to_owned();
                Err(Box::new(NotWritable { why, instead: None }))
            }
        }
    }

    fn tell_at_end(&self, path: &str) {
        // Without a keeper nobody can: the server opens nothing.
        let _ = self.link.say(&Word::Hearer { path: path.to_owned() });
    }

    fn hand_over_writes(&self) -> bool {
        self.answers.handed_over.to(self.link, &Word::HandOver, KERNEL_SENDS).unwrap_or(false)
    }

    fn log(&self, level: Level, text: &str) {
        let level = match level {
            Level::Error => ERROR,
            Level::Warning => WARNING,
            Level::Info => INFO,
        };
        self.tell(level, text);
    }
}

/// Signals and the keeper's words, while others answer the kernel.
struct Orders<'a> {
    server: &'a Server<'a>,
    fs: Fs,
    signals: &'a UnixStream,
    /// Ends when there is no more mount.
    ended: &'a UnixStream,
    choices: &'a MountChoices,
}

impl Orders<'_> {
    fn obey(&self) {
        let mut has_keeper = true;
        loop {
            let mut wanted = vec![
                PollFd::from_borrowed_fd(self.ended.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            ];
            if has_keeper {
                wanted.push(PollFd::from_borrowed_fd(self.server.link.as_fd(), PollFlags::IN));
            }
            if rustix::io::retry_on_intr(|| poll(&mut wanted, None)).is_err() {
                return;
            }
            let came = |index: usize| wanted.get(index).is_some_and(|fd| !fd.revents().is_empty());
            let (ended, signal, word) = (came(0), came(1), came(2));
            if ended {
                return;
            }
            if signal {
                let mut bytes = [0; 16];
                let mut signals = self.signals;
                let _ = signals.read(&mut bytes);
                self.terminate(&mut has_keeper);
            }
            if word {
                match self.server.link.hear() {
                    Ok(Some(Word::End)) => self.end(
                        "asked to end, and still mounted elsewhere or in use: everything is \
                         written, and who has it gets \"not connected\"",
                    ),
                    Ok(Some(Word::AskedArgument { thread, bytes })) => {
                        self.server.answers.arguments.give((thread, bytes));
                    }
                    Ok(Some(Word::GaveArgument { thread, done })) => {
                        self.server.answers.given.give((thread, done));
                    }
                    Ok(Some(Word::AskedUser(user))) => self.server.answers.users.give(user),
                    Ok(Some(Word::File(file))) => self.server.answers.files.give(Ok(file)),
                    Ok(Some(Word::Failed(failure))) => {
                        self.server.answers.files.give(Err(failure));
                    }
                    Ok(Some(Word::HandedOver { completely })) => {
                        self.server.answers.handed_over.give(completely);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => {
                        has_keeper = false;
                        self.server.tell(
                            WARNING,
                            "the process that keeps this mount is gone; the mount goes on, and is \
                             ended by unmounting it",
                        );
                    }
                }
            }
        }
    }

    fn terminate(&self, has_keeper: &mut bool) {
        if *has_keeper && self.server.link.say(&Word::Terminate).is_ok() {
            return;
        }
        *has_keeper = false;
        self.sync();
        if self.choices.sandbox != SandboxMode::Off {
            let dir = escape(self.server.dir.as_os_str().as_bytes());
            self.end(&format!(
                "asked to end, and the process that keeps this mount, which alone may unmount it, is \
                 gone: everything is written; {dir} is a mount without server now (\"not connected\"); \
                 this takes it away: extant umount {dir}, or fusermount3 -u {dir}"
            ));
        }
        // The other threads answer meanwhile.
        let dir = &self.server.dir;
        let _ = extant_fuse::mount::hand_over_writes(dir);
        let unmounted = extant_fuse::mount::unmount(dir, false)
            .or_else(|_| extant_fuse::mount::unmount(dir, true));
        if let Err(error) = unmounted {
            let failure = Failure::caused(Exit::Io, "", &error);
            self.server.tell(ERROR, &failure.message);
        }
    }

    /// Writes everything, leaves the image clean, and ends the process: only the end of all its
    /// threads, which wait in the kernel, closes the connection.
    fn end(&self, how: &str) -> ! {
        let server = self.server;
        let ended = match server.brake.get() {
            Some(brake) => brake.end(),
            None => self.fs.clone().unmount(),
        };
        let exit = match ended {
            Ok(()) => {
                server.tell(WARNING, how);
                Exit::Success
            }
            Err(error) => {
                let failure = Failure::caused(Exit::Io, "the mount ended badly", &error);
                let exit = failure.exit;
                if let Err(Word::Failed(failure)) = said(server.link, Word::Failed(failure)) {
                    server.tell(ERROR, &failure.message);
                }
                exit
            }
        };
        std::process::exit(exit.code().into())
    }

    fn sync(&self) {
        if let Err(error) = self.fs.sync() {
            let failure = Failure::from(error);
            self.server
                .tell(ERROR, &format!("cannot make everything durable: {}", failure.message));
        }
    }
}
