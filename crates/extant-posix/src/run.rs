//! Runs cases in a directory: a process for each user of a case, one step after the other.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{IFlags, Mode, OFlags};

use crate::record::{Record, StepRecord};
use crate::script::{Case, Expect, Step};
use crate::{cases, errno, users};

/// Seconds after which a step counts as hanging. The longest takes under one second where nothing
/// else runs.
const STEP_SECONDS: i64 = 60;

/// Milliseconds after which a step in the background counts as waiting for something.
const BLOCKED_MS: i64 = 150;

/// What to run, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only cases whose names contain one of these; empty for all.
    pub only: Vec<String>,
    /// Leave out the cases that take more than a second.
    pub short: bool,
    /// The program that understands `agent USER`: this one, unless set.
    pub program: Option<PathBuf>,
}

/// Runs the cases in new directories below `dir`, which must be mounted; gives each record as it is done.
///
/// Without root only the cases of one user can run, as whoever this process is.
///
/// # Errors
///
/// When a table is wrong or a directory cannot be made. A case that fails is no error.
pub fn run(dir: &Path, options: &Options, each: &mut dyn FnMut(Record)) -> Result<(), String> {
    let root = rustix::process::geteuid().is_root();
    let program = match &options.program {
        Some(program) => program.clone(),
        None => PathBuf::from("/proc/self/exe"),
    };
    for (number, case) in cases::all()?.into_iter().enumerate() {
        let wanted = |part: &String| case.name.contains(part.as_str());
        let left_out = options.short && case.slow;
        if left_out || !(options.only.is_empty() || options.only.iter().any(wanted)) {
            continue;
        }
        let missing = case.needs.iter().find(|tool| !installed(tool));
        let skipped = match missing {
            Some(tool) => Some(format!("needs {tool}")),
            None if !root && !case.is_for_one_user() => Some("needs root: other users".to_owned()),
            None => None,
        };
        if skipped.is_some() {
            each(Record {
                name: case.name,
                users: Vec::new(),
                ok: true,
                skipped,
                steps: Vec::new(),
            });
            continue;
        }
        let home = dir.join(format!("case-{number:04}"));
        let made = std::fs::create_dir(&home)
            .and_then(|()| std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)));
        made.map_err(|error| format!("{}: {error}", home.display()))?;
        let mut running = Running { home: &home, program: &program, processes: BTreeMap::new() };
        let mut record = running.case(&case);
        drop(running);
        let got = match clean(&home) {
            Ok(()) => "ok".to_owned(),
            Err(error) => error.raw_os_error().map_or_else(|| error.to_string(), errno::name),
        };
        let want = (got != "ok").then(|| "ok".to_owned());
        record.ok &= want.is_none();
        record.steps.push(StepRecord { step: "root: .clean".to_owned(), got, want });
        each(record);
    }
    Ok(())
}

fn installed(tool: &str) -> bool {
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|dir| Path::new(dir).join(tool).exists())
}

/// Removes a tree, also where flags or modes forbid it.
fn clean(dir: &Path) -> std::io::Result<()> {
    if std::fs::remove_dir_all(dir).is_ok() {
        return Ok(());
    }
    open_up(dir);
    std::fs::remove_dir_all(dir)
}

fn open_up(path: &Path) {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(kind) = path.symlink_metadata().map(|meta| meta.file_type()) else { return };
    if !kind.is_dir() && !kind.is_file() {
        return;
    }
    if let Ok(file) = rustix::fs::open(path, flags, Mode::empty())
        && let Ok(old) = rustix::fs::ioctl_getflags(&file)
    {
        let _ = rustix::fs::ioctl_setflags(&file, old - IFlags::IMMUTABLE - IFlags::APPEND);
    }
    if kind.is_dir() {
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700));
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            open_up(&entry.path());
        }
    }
}

struct Running<'a> {
    home: &'a Path,
    program: &'a Path,
    processes: BTreeMap<String, Process>,
}

impl Running<'_> {
    fn case(&mut self, case: &Case) -> Record {
        let mut record = Record {
            name: case.name.clone(),
            users: Vec::new(),
            ok: true,
            skipped: None,
            steps: Vec::new(),
        };
        for step in &case.steps {
            let user = step.who.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
            if !record.users.contains(&user) {
                record.users.push(user);
            }
            let got = self.step(step).unwrap_or_else(|error| format!("DIED {error}"));
            let want = match &step.expect {
                Expect::Success if errno::is_failure(&got) => Some("no error".to_owned()),
                Expect::Text(texts) if !texts.contains(&got) => Some(texts.join(" | ")),
                _ => None,
            };
            record.ok &= want.is_none();
            let got = if step.expect == Expect::Ignored { "~".to_owned() } else { got };
            record.steps.push(StepRecord { step: step.show(), got, want });
        }
        record
    }

    fn step(&mut self, step: &Step) -> std::io::Result<String> {
        let process = match self.processes.remove(&step.who) {
            Some(process) => process,
            None => Process::start(self.program, self.home, &step.who)?,
        };
        let process = self.processes.entry(step.who.clone()).or_insert(process);
        let seconds = |seconds| Timespec { tv_sec: seconds, tv_nsec: 0 };
        let got = match step.words.first().map(String::as_str) {
            Some(".wait") => process.answer(seconds(STEP_SECONDS))?.unwrap_or("HANG".to_owned()),
            Some(".blocked") => {
                let wait = Timespec { tv_sec: 0, tv_nsec: BLOCKED_MS * 1_000_000 };
                process.answer(wait)?.unwrap_or("yes".to_owned())
            }
            _ => {
                process.ask(&step.words)?;
                if step.background {
                    return Ok("begun".to_owned());
                }
                process.answer(seconds(STEP_SECONDS))?.unwrap_or("HANG".to_owned())
            }
        };
        // What hangs may be beyond killing; it is left behind, and the next step starts anew.
        if got == "HANG" || got.starts_with("SIG") || got.starts_with("DIED") {
            self.processes.remove(&step.who);
        }
        Ok(got)
    }
}

/// The process of a user.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(program: &Path, home: &Path, who: &str) -> std::io::Result<Process> {
        let mut command = Command::new(program);
        command.arg("agent").arg(who).current_dir(home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok(Process { child, input, output: BufReader::new(output) })
    }

    fn ask(&mut self, words: &[String]) -> std::io::Result<()> {
        let mut line = serde_json::to_string(words)?;
        line.push('\n');
        let input = self.input.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        input.write_all(line.as_bytes())
    }

    /// The next answer; `None` when there is none in time.
    fn answer(&mut self, wait: Timespec) -> std::io::Result<Option<String>> {
        if self.output.buffer().is_empty() {
            let mut polled = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            if poll(&mut polled, Some(&wait))? == 0 {
                return Ok(None);
            }
        }
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Ok(Some(match status.signal() {
                Some(libc::SIGBUS) => "SIGBUS".to_owned(),
                Some(libc::SIGSEGV) => "SIGSEGV".to_owned(),
                Some(libc::SIGXFSZ) => "SIGXFSZ".to_owned(),
                Some(libc::SIGPIPE) => "SIGPIPE".to_owned(),
                _ => format!("DIED {status}"),
            }));
        }
        Ok(Some(serde_json::from_str(&line)?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its input ends, so it does: its files are closed when this returns, unless it hangs.
        self.input = None;
        let wait = Timespec { tv_sec: 2, tv_nsec: 0 };
        if !matches!(self.answer(wait), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.answer(wait);
        }
        let _ = self.child.try_wait();
    }
}

/// The process of one user: what `agent USER` does.
///
/// # Errors
///
/// No such user, or no right to become it.
pub fn agent(who: &str) -> Result<(), String> {
    let user = users::user(who).ok_or_else(|| format!("no user {who}"))?;
    let keep = !rustix::process::geteuid().is_root();
    crate::agent::serve(user, keep).map_err(|error| format!("{who}: {error}"))
}
