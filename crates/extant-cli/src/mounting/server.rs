//! The server: opens the image, gives up its rights, answers the kernel until it is unmounted.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant::Fs;
use extant_fuse::{
    Argument, Brake, Events, Level, NotWritable, Obstacle, RingUse, Rings, Settings,
};
use extant_sync::threads;
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::{Exit, Failure, Result};
use crate::mounting::answers::Answers;
use crate::mounting::devices::Devices;
use crate::mounting::launcher::Request;
use crate::mounting::link::{Link, Word};
use crate::mounting::log::{ERROR, INFO, Log, WARNING};
use crate::mounting::options::{MountChoices, SandboxMode};
use crate::mounting::reopen::{Reopen, may_become_writable};
use crate::mounting::sandbox;
use crate::output::complain;
use crate::text::escape;

/// Threads that may each have many requests of the device under way.
const DEVICE_RINGS: usize = 4;
/// How long the keeper has to look into a program.
const KEEPER_ANSWERS: Duration = Duration::from_secs(2);
/// How long the kernel has to send what it holds back, which is up to a part of the machine's memory.
const KERNEL_SENDS: Duration = Duration::from_secs(120);

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
