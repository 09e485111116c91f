//! The keeper: has the server opened, mounts, waits for whatever ends the mount, and ends it in the
//! right order.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use extant_fuse::mount::{
    BlockMount, abort, cache_freely, hand_over_writes, open_and_mount, unmount,
};
use extant_sync::threads::{self, Scope};
use extant_sync::{Clock as _, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::geteuid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::{Exit, Failure, Result};
use crate::mounting::farewell::{self, HEARERS_MAX};
use crate::mounting::holders::Holders;
use crate::mounting::launcher::{Request, start_server};
use crate::mounting::link::{Link, Word};
use crate::mounting::log::{ERROR, INFO, Log, WARNING};
use crate::mounting::opening::FIRST_THE_IMAGE;
use crate::mounting::options::source_name;
use crate::mounting::reopen::Kept;
use crate::mounting::table::Entry;
use crate::mounting::{asked, busy, notify, peek, table, utab};
use crate::text::escape;

/// Keeps a mount for the terminal that it was called from.
pub(crate) fn foreground(request: &Request) -> Result<Exit> {
    let mut keeper = Keeper::start(request, None)?;
    notify::tell("READY=1");
    let exit = keeper.keep();
    notify::tell("STOPPING=1");
    exit
}

/// Keeps a mount for a launcher, which hears how the start went.
pub(crate) fn daemon(request: &Request) -> Result<Exit> {
    let launcher = Link::inherited()
        .map_err(|error| Failure::caused(Exit::Usage, "nobody launched this keeper", &error))?;
    // A session of its own: the terminal may go.
    let _ = rustix::process::setsid();
    let mut keeper = match Keeper::start(request, Some(&launcher)) {
        Ok(keeper) => keeper,
        Err(failure) => {
            let exit = failure.exit;
            // Without a launcher nobody is interested.
            let _ = launcher.say(&Word::Failed(failure));
            return Ok(exit);
        }
    };
    if launcher.say(&Word::Ready).is_err() {
        // Whoever wanted the mount is gone, and does not know of it.
        keeper.log.add(WARNING, "whoever called the mount is gone: unmounting");
        keeper.ask_to_end()?;
    }
    drop(launcher);
    keeper.keep().or_else(|failure| {
        keeper.log.add(ERROR, &failure.message);
        Ok(failure.exit)
    })
}

/// A mount and its server.
struct Keeper {
    /// Where it is mounted, without symbolic links.
    dir: PathBuf,
    /// As messages name image and directory.
    name: String,
    /// The mount as the kernel lists it.
    entry: Option<Entry>,
    server: Child,
    link: Link,
    /// Gets a byte for each signal, and for nothing else.
    signals: UnixStream,
    /// The other end of it.
    signalled: UnixStream,
    log: Log,
    /// Said by the server at its end.
    failed: Option<Failure>,
    /// Sockets of those who want to hear how it ended.
    hearers: Vec<PathBuf>,
    /// umount(8) knows that it is to wait.
    is_registered: bool,
    /// Of a mount for reading, to be written to if that is asked for.
    files: Option<Kept>,
}

fn internal(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::caused(Exit::Internal, what, &error)
}

/// What may come while the keeper waits.
#[derive(Clone, Copy, Default)]
struct Came {
    word: bool,
    signal: bool,
    third: bool,
}

impl Keeper {
    /// Everything up to the moment when the mount can be used.
    fn start(request: &Request, launcher: Option<&Link>) -> Result<Keeper> {
        let choices = &request.choices;
        let dir = mount_point(&request.dir)?;
        let log = Log::open(choices.foreground, choices.log.as_deref())?;
        let source = source_name(&request.image, choices);
        let (signals, signalled) = UnixStream::pair().map_err(internal("cannot make a socket"))?;
        signals.set_nonblocking(true).map_err(internal("cannot make a socket"))?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let end = signalled.try_clone().map_err(internal("cannot handle signals"))?;
            signal_hook::low_level::pipe::register(signal, end)
                .map_err(internal("cannot handle signals"))?;
        }
        let (link, theirs) = Link::pair().map_err(internal("cannot make a socket"))?;
        let mut claimed = claim(request, &source)?;
        let server = start_server(theirs)?;
        link.say(&Word::Open { is_claimed: claimed.is_some() })
            .map_err(internal("the server is gone"))?;
        let bytes = |path: &Path| escape(path.as_os_str().as_bytes());
        let name = format!("{} on {}", escape(source.as_bytes()), bytes(&dir));
        let entry = None;
        let (failed, hearers) = (None, Vec::new());
        let mut keeper = Keeper {
            dir,
            name,
            entry,
            server,
            link,
            signals,
            signalled,
            log,
            failed,
            hearers,
            is_registered: false,
            files: None,
        };
        // What is relative has been looked up by the server when it says that it is ready.
        let read_only = match keeper.next_word(launcher)? {
            Word::Opened { read_only } => read_only,
            word => return Err(keeper.strange(&word)),
        };
        let device = match claimed.as_mut().and_then(BlockMount::take_connection) {
            Some(device) => device,
            None => {
                let mut kernel = choices.kernel(&source);
                // Write-protected, say.
                kernel.read_only |= read_only;
                let device = open_and_mount(&keeper.dir, &kernel);
                let device = device.inspect_err(|_| keeper.let_go())?;
                keeper.entry = table::made_at(&keeper.dir);
                device
            }
        };
        let sent = keeper.link.say(&Word::Serve(device));
        let ready = sent.map_err(internal("the server is gone")).and_then(|()| {
            // The kernel notices the death of the server when nobody else has the connection.
            match keeper.next_word(launcher)? {
                Word::Ready => Ok(()),
                word => Err(keeper.strange(&word)),
            }
        });
        let ready = ready.and_then(|()| match claimed {
            Some(mount) => {
                mount.attach(&keeper.dir)?;
                keeper.entry = table::made_at(&keeper.dir);
                Ok(())
            }
            None => Ok(()),
        });
        if let Err(failure) = ready {
            keeper.take_away();
            return Err(failure);
        }
        if read_only {
            keeper.files = Some(Kept::of(&request.image, choices.journal_device.as_deref()));
        }
        if let Some(entry) = &keeper.entry {
            cache_freely(&entry.device);
            keeper.is_registered = utab::register(entry);
        }
        let _ = std::env::set_current_dir("/");
        if launcher.is_some() {
            forget_terminal()?;
        }
        let how = if read_only { "for reading" } else { "for reading and writing" };
        keeper.log.add(INFO, &format!("{} mounted {how}", keeper.name));
        Ok(keeper)
    }

    /// Waits for the server's next word that is not for the log. A signal, or the end of the launcher,
    /// ends the start.
    fn next_word(&mut self, launcher: Option<&Link>) -> Result<Word> {
        loop {
            let came = self.wait(launcher.map(AsFd::as_fd), None)?;
            if came.signal || (came.third && launcher.is_some()) {
                // An image that is being opened stays as it is after a crash: replayed, or still to be.
                let _ = self.server.kill();
                let _ = self.server.wait();
                return Err(Failure::new(Exit::Interrupted, "interrupted: nothing is mounted"));
            }
            if !came.word {
                continue;
            }
            match self.link.hear().map_err(internal("cannot hear the server"))? {
                Some(Word::Log { level, text }) => self.log.add(level, &text),
                Some(Word::Failed(failure)) => {
                    let _ = self.server.wait();
                    return Err(failure);
                }
                Some(word) => return Ok(word),
                None => {
                    let status = self.server.wait().map_err(internal("cannot wait"))?;
                    let message = format!("the server ended too early: {}", ending(status));
                    return Err(Failure::new(Exit::Internal, message));
                }
            }
        }
    }

    fn strange(&mut self, word: &Word) -> Failure {
        let _ = self.server.kill();
        let _ = self.server.wait();
        Failure::new(Exit::Internal, format!("the server said something strange: {word:?}"))
    }

    /// Nothing was mounted: the server ends when it hears so.
    fn let_go(&mut self) {
        if let Ok((nobody, _)) = Link::pair() {
            self.link = nobody;
        }
        let _ = self.server.wait();
    }

    /// Waits for a word of the server, a signal, or something on a third descriptor, for `within` at
    /// most.
    fn wait(
        &self,
        third: Option<std::os::fd::BorrowedFd<'_>>,
        within: Option<Duration>,
    ) -> Result<Came> {
        let mut wanted = vec![
            PollFd::from_borrowed_fd(self.link.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        wanted.extend(third.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let within = within.and_then(|within| Timespec::try_from(within).ok());
        rustix::io::retry_on_intr(|| poll(&mut wanted, within.as_ref()))
            .map_err(|errno| internal("cannot wait")(errno.into()))?;
        let came = |index: usize| wanted.get(index).is_some_and(|fd| !fd.revents().is_empty());
        let came = Came { word: came(0), signal: came(1), third: came(2) };
        if came.signal {
            let mut bytes = [0; 64];
            let _ = (&self.signals).read(&mut bytes);
        }
        Ok(came)
    }

    /// What a signal does.
    fn ask_to_end(&self) -> Result<()> {
        (&self.signalled).write_all(b"X").map_err(internal("cannot end the mount"))
    }

    /// Waits for the end of the mount, whoever ends it.
    fn keep(&mut self) -> Result<Exit> {
        let ended = threads::scope(|scope| -> Result<()> {
            let (mut asked, mut worker): (bool, Option<Link>) = (false, None);
            let mut looks = 0;
            loop {
                let came = self.wait(worker.as_ref().map(AsFd::as_fd), Some(LOOK))?;
                looks = if self.server_is_dying() { looks + 1 } else { 0 };
                if looks == LOOKS {
                    self.free_server();
                }
                let mut wants_end = came.signal;
                if came.word {
                    match self.hear(scope) {
                        Heard::End => return Ok(()),
                        Heard::Terminate => wants_end = true,
                        Heard::Nothing => {}
                    }
                }
                if came.third
                    && let Some(link) = &worker
                {
                    match link.hear() {
                        Ok(Some(Word::Log { level, text })) => self.log.add(level, &text),
                        Ok(Some(Word::Failed(failure))) => {
                            self.log.add(ERROR, &failure.message);
                            asked = false;
                        }
                        // What is still open in a mount that was taken away goes on.
                        Ok(Some(word)) => drop(self.link.say(&word)),
                        Ok(None) | Err(_) => worker = None,
                    }
                }
                if !wants_end {
                    continue;
                }
                if asked {
                    self.log.add(WARNING, &self.what_lasts());
                    continue;
                }
                asked = true;
                self.log.add(INFO, &format!("{}: asked to end: unmounting", self.name));
                let (ours, theirs) = Link::pair().map_err(internal("cannot make a socket"))?;
                worker = Some(ours);
                let (dir, entry) = (self.dir.clone(), self.entry.clone());
                let work = move || take_apart(&dir, entry.as_ref(), &Link::from(theirs));
                scope
                    .spawn("unmount", work)
                    .map_err(|error| Failure::caused(Exit::Internal, "", &error))?;
            }
        });
        ended.map_err(|panic| Failure::caused(Exit::Internal, "", &panic))??;
        self.end()
    }

    /// Returns whether the server was killed and has not ended: a thread of it waits in the kernel.
    fn server_is_dying(&self) -> bool {
        // Its first thread ends only with the process, which the link tells.
        let stat = std::fs::read(format!("/proc/{}/stat", self.server.id()));
        stat.is_ok_and(|stat| state_in(&stat) == Some(b'Z'))
    }

    /// Ends the connection of a server that cannot end, because the kernel waits for it to take writes.
    fn free_server(&self) {
        let Some(entry) = &self.entry else { return };
        self.log.add(
            WARNING,
            "the server was killed while the kernel waited for it: what waits is ended with an error",
        );
        if let Err(error) = abort(&self.dir, &entry.device) {
            let dir = escape(self.dir.as_os_str().as_bytes());
            let failure = Failure::from(error);
            let text = format!("{}; as root, this ends it: umount -f {dir}", failure.message);
            self.log.add(ERROR, &text);
        }
    }

    /// The server's next word after the start.
    fn hear(&mut self, scope: &Scope<'_, '_>) -> Heard {
        match self.link.hear() {
            Ok(Some(Word::Log { level, text })) => self.log.add(level, &text),
            Ok(Some(Word::Failed(failure))) => self.failed = Some(failure),
            Ok(Some(Word::Terminate)) => return Heard::Terminate,
            Ok(Some(Word::AskArgument { argument, bytes })) => {
                let (thread, bytes) = (argument.thread, argument.read(bytes));
                let _ = self.link.say(&Word::AskedArgument { thread, bytes });
            }
            Ok(Some(Word::GiveArgument { argument, bytes })) => {
                let (thread, done) = (argument.thread, argument.write(&bytes));
                let _ = self.link.say(&Word::GaveArgument { thread, done });
            }
            Ok(Some(Word::AskUser { thread })) => {
                let _ = self.link.say(&Word::AskedUser(peek::user_of(thread)));
            }
            Ok(Some(Word::AskFile { index })) => {
                let nothing = || Failure::new(Exit::Io, "it was not mounted for reading");
                let opened = self.files.as_ref().ok_or_else(nothing);
                let word = match opened.and_then(|files| files.open(index as usize)) {
                    Ok(file) => Word::File(file),
                    Err(failure) => Word::Failed(failure),
                };
                let _ = self.link.say(&word);
            }
            Ok(Some(Word::Hearer { path })) => {
                if self.hearers.len() < HEARERS_MAX {
                    self.hearers.push(path.into());
                }
            }
            Ok(Some(Word::HandOver)) => {
                if let Err(error) = self.hand_over(scope) {
                    self.log.add(WARNING, &format!("cannot have writes handed over: {error}"));
                    let _ = self.link.say(&Word::HandedOver { completely: false });
                }
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return Heard::End,
        }
        Heard::Nothing
    }

    /// Has the kernel send what it holds back, while the keeper listens.
    fn hand_over(&self, scope: &Scope<'_, '_>) -> io::Result<()> {
        let link = self.link.try_clone()?;
        let dir = self.dir.clone();
        // Of what holds a device, the kernel waits for the answers as well, and has the server store all.
        let waits = self.entry.as_ref().is_some_and(Entry::holds_device);
        scope
            .spawn("hand over", move || {
                let sent = hand_over_writes(&dir).is_ok();
                let _ = link.say(&Word::HandedOver { completely: waits && sent });
            })
            .map(drop)
            .map_err(io::Error::other)
    }

    /// Why it takes so long.
    fn what_lasts(&self) -> String {
        let Keeper { name, entry, .. } = self;
        let users = entry.as_ref().map(busy::users).unwrap_or_default();
        let what = match users.is_empty() {
            true => "waiting for who still has something open, and for the last writes".to_owned(),
            false => format!("in use by {}", users.join(", ")),
        };
        format!("{name}: still ending: {what}; nothing written so far is given up")
    }

    /// The server has ended, or is about to.
    fn end(&mut self) -> Result<Exit> {
        let ended = self.ended();
        let word = match &ended {
            Ok(_) => Word::Ready,
            Err(failure) => Word::Failed(failure.clone()),
        };
        if let Some(entry) = self.entry.as_ref().filter(|_| self.is_registered)
            && table::made_at(&entry.point).is_none()
        {
            utab::forget(entry);
        }
        self.hearers.iter().for_each(|path| farewell::say(path, &word));
        ended
    }

    fn ended(&mut self) -> Result<Exit> {
        let status = self.server.wait().map_err(internal("cannot wait for the server"))?;
        if status.success() {
            return Ok(Exit::Success);
        }
        self.take_away();
        let name = &self.name;
        Err(match self.failed.take() {
            Some(failure) => failure.about(name),
            None => Failure::new(
                if status.signal().is_some() { Exit::Internal } else { Exit::Io },
                format!(
                    "{name}: the server ended without unmounting ({}); what programs had not synced \
                     may be lost, and the next mount replays the journal",
                    ending(status)
                ),
            ),
        })
    }

    /// Takes a mount without server away, so that the directory can be used again.
    fn take_away(&self) {
        let Some(entry) = &self.entry else { return };
        let mut left = table::all().unwrap_or_default().into_iter();
        if !left.any(|other| other.id == entry.id && other.device == entry.device) {
            return;
        }
        if let Err(error) = unmount(&self.dir, true) {
            self.log.add(ERROR, &Failure::from(error).message);
        }
    }
}

/// What the server's word means for the keeper.
#[derive(PartialEq, Eq)]
enum Heard {
    Nothing,
    Terminate,
    End,
}

/// A mount that holds the block device that is to be mounted, where there is such a thing and it pays:
/// for writing, as root, to all of the device.
fn claim(request: &Request, source: &OsStr) -> Result<Option<BlockMount>> {
    let choices = &request.choices;
    let is_device = std::fs::metadata(&request.image)
        .is_ok_and(|metadata| metadata.file_type().is_block_device());
    if choices.block_mount == Some(false) {
        return Ok(None);
    }
    let name = escape(request.image.as_os_str().as_bytes());
    let obstacles = [
        (
            !is_device,
            format!("{name} is no block device; losetup --find --show makes one of a file"),
        ),
        (choices.read_only, "for reading there is nothing to store".to_owned()),
        (
            choices.is_windowed(),
            "the kernel holds whole devices or partitions of its own".to_owned(),
        ),
        (!geteuid().is_root(), "only root has the kernel hold devices".to_owned()),
    ];
    if let Some((_, why)) = obstacles.into_iter().find(|(is_there, _)| *is_there) {
        return match choices.block_mount {
            Some(_) => Err(Failure::new(Exit::Unsupported, format!("-o fuseblk: {why}"))),
            None => Ok(None),
        };
    }
    let mount = match BlockMount::claim(&choices.kernel(source)) {
        Ok(mount) => mount,
        // Whoever has it is named by the server, which finds that out in its own way.
        Err(error) if error.is_busy() || choices.block_mount.is_none() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Kernels can be built so that nobody writes to what is mounted, not even for the mount itself.
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed();
    let mut options = std::fs::File::options();
    let opened = options.read(true).write(true).custom_flags(flags).open(&request.image);
    Ok(opened.is_ok().then_some(mount))
}

/// Unmounts while the keeper listens. What takes long, or goes wrong, is said over `link`.
fn take_apart(dir: &Path, entry: Option<&Entry>, link: &Link) {
    let tell = |level, text: String| drop(link.say(&Word::Log { level, text }));
    // Writes would wait for ever.
    if asked::order(dir, "thaw").is_ok() {
        tell(WARNING, "thawed, to be unmounted".to_owned());
    }
    if let Err(error) = hand_over_writes(dir) {
        tell(ERROR, Failure::from(error).message);
    }
    let error = match unmount(dir, false) {
        Ok(()) => return end_for_all(entry, link),
        Err(error) => error,
    };
    if error.is_not_mounted() {
        return end_for_all(entry, link);
    }
    if error.is_busy() {
        let by = entry.map_or_else(|| "another process".to_owned(), busy::users_text);
        let dir = escape(dir.as_os_str().as_bytes());
        tell(WARNING, format!("{dir} is in use by {by}: it goes on for them until they end"));
    }
    match unmount(dir, true) {
        Ok(()) => end_for_all(entry, link),
        Err(error) => drop(link.say(&Word::Failed(error.into()))),
    }
}

/// How long programs that have files open in what was unmounted by a signal may go on. Managers of services
/// kill after 90 seconds, and that would cost them what is not stored.
const GRACE: Duration = Duration::from_secs(60);
/// Pause between two looks at who has it mounted.
const STEP: Duration = Duration::from_millis(200);

/// Waits for the server, which ends with the last who has the file system. Where that can take for ever,
/// because somebody else has it mounted, or takes too long, it ends for all of them.
fn end_for_all(entry: Option<&Entry>, link: &Link) {
    let Some(entry) = entry else { return };
    let clock = SystemClock;
    let until = clock.monotonic().saturating_add(GRACE);
    // The keeper hangs up when the server has ended.
    while !link.is_over(STEP) {
        let holders = Holders::of(entry);
        if holders.are_none() && clock.monotonic() < until {
            continue;
        }
        let point = escape(entry.point.as_os_str().as_bytes());
        let who = match holders.are_none() {
            true => format!("in use by {}", busy::users_text(entry)),
            false => holders.text(),
        };
        let text = format!("{point} is still {who}: it ends for them too");
        let _ = link.say(&Word::Log { level: WARNING, text });
        let _ = link.say(&Word::End);
        return;
    }
}

/// Time between two looks at a server from which nothing comes.
const LOOK: Duration = Duration::from_secs(3);
/// Number of looks, one after the other, at which a server that was killed has not ended.
const LOOKS: u32 = 2;

/// Returns the letter for the state of a process in the kernel's line about it, behind its name, which
/// may have anything in it.
fn state_in(stat: &[u8]) -> Option<u8> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(name_end + 2).copied()
}

/// Returns how a process ended, in words.
fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The directory to mount on, without symbolic links.
fn mount_point(dir: &Path) -> Result<PathBuf> {
    let name = escape(dir.as_os_str().as_bytes());
    let looked = dir.canonicalize().and_then(|real| Ok((std::fs::metadata(&real)?, real)));
    let (metadata, real) = looked.map_err(|error| {
        let failure = Failure::caused(Exit::Io, &format!("cannot mount on {name}"), &error);
        match error.kind() {
            io::ErrorKind::NotFound => failure.hint("the directory must exist: mkdir it"),
            io::ErrorKind::NotConnected => {
                failure.hint(format!("a mount without server is there: extant umount {name}"))
            }
            _ => failure,
        }
    })?;
    match metadata.is_dir() {
        true => Ok(real),
        false => Err(Failure::new(Exit::Io, format!("cannot mount on {name}: not a directory"))
            .hint(FIRST_THE_IMAGE)),
    }
}

/// Whoever reads the launcher's output waits for the end of it.
fn forget_terminal() -> Result<()> {
    let forget = || -> io::Result<()> {
        let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        Ok(())
    };
    forget().map_err(internal("cannot leave the terminal"))
}
