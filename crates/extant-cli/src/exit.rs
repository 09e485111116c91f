//! Exit codes: the one table of them, and the failure that carries one.
//!
//! `docs/exit-codes.md`, the help text and the man page are made from or checked against
//! [`Exit::ALL`].

use std::error::Error;
use std::fmt::{self, Write as _};
use std::process::ExitCode;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// How the command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// Everything asked for was done.
    Success,
    /// Some files could not be read, extracted or changed; the others were.
    Partial,
    /// The command line makes no sense.
    Usage,
    /// The source of a build cannot be read, is damaged or changed meanwhile.
    Input,
    /// The image is damaged, or is no ext2, ext3 or ext4.
    Image,
    /// The image or the request needs a feature that this version does not have.
    Unsupported,
    /// The contents do not fit the size, or the target is full.
    NoSpace,
    /// Something is in the way, in use or protected against changes.
    Refused,
    /// Reading or writing failed.
    Io,
    /// The image has no such file.
    NotFound,
    /// A fault in extant itself.
    Internal,
    /// Stopped by a signal (^C).
    Interrupted,
    /// The reader of the output went away.
    BrokenPipe,
}

impl Exit {
    /// Every way to end, in the order of the codes.
    pub(crate) const ALL: [Exit; 13] = [
        Exit::Success,
        Exit::Partial,
        Exit::Usage,
        Exit::Input,
        Exit::Image,
        Exit::Unsupported,
        Exit::NoSpace,
        Exit::Refused,
        Exit::Io,
        Exit::NotFound,
        Exit::Internal,
        Exit::Interrupted,
        Exit::BrokenPipe,
    ];

    /// The number the shell sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Partial => 1,
            Exit::Usage => 2,
            Exit::Input => 3,
            Exit::Image => 4,
            Exit::Unsupported => 5,
            Exit::NoSpace => 6,
            Exit::Refused => 7,
            Exit::Io => 8,
            Exit::NotFound => 9,
            Exit::Internal => 70,
            Exit::Interrupted => 130,
            Exit::BrokenPipe => 141,
        }
    }

    /// The word for it in JSON.
    pub(crate) fn family(self) -> &'static str {
        match self {
            Exit::Success => "success",
            Exit::Partial => "partial",
            Exit::Usage => "usage",
            Exit::Input => "input",
            Exit::Image => "image",
            Exit::Unsupported => "unsupported",
            Exit::NoSpace => "no-space",
            Exit::Refused => "refused",
            Exit::Io => "io",
            Exit::NotFound => "not-found",
            Exit::Internal => "internal",
            Exit::Interrupted => "interrupted",
            Exit::BrokenPipe => "broken-pipe",
        }
    }

    /// Returns what it means, as the help text says it.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Exit::Success => "all that was asked for was done",
            Exit::Partial => {
                "some files could not be read, restored or changed, and were named; the rest is done"
            }
            Exit::Usage => "the command line makes no sense",
            Exit::Input => "the source of a build is damaged, cannot be read, or changed meanwhile",
            Exit::Image => "the image is damaged, or is no ext2, ext3 or ext4",
            Exit::Unsupported => "a feature is needed that this version does not have",
            Exit::NoSpace => "the contents do not fit, or the target is full",
            Exit::Refused => {
                "refused: the target exists, holds data, is in use, is protected, or lacks a feature"
            }
            Exit::Io => "reading or writing a file or device failed",
            Exit::NotFound => "the image has no such file, or it is of the wrong kind",
            Exit::Internal => "a fault in extant; please report it",
            Exit::Interrupted => {
                "stopped by a signal; no partial file is left, and what is unfinished is named"
            }
            Exit::BrokenPipe => "the reader of the output went away",
        }
    }

    /// The table as the end of `--help` shows it.
    pub(crate) fn help_table() -> String {
        let mut text = String::from("Exit codes:\n");
        for exit in Exit::ALL {
            let _ = writeln!(text, "  {:>3}  {}", exit.code(), exit.meaning());
        }
        text
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// What to do when the system refuses something.
pub(crate) const LIMITS: &str = "the system gives this process no more threads, processes, open files or memory: ulimit \
                                 -a shows the limits";

/// Open files that are enough for every command, except for trees that are deeper than this.
const FILES_ENOUGH: u64 = 256;

/// What to do when `error` says that the system refused something.
fn limits_hint(error: &(dyn Error + 'static)) -> String {
    let limit = getrlimit(Resource::Nofile).current;
    match limit {
        Some(limit) if is_one_of(error, &[Errno::MFILE]) => format!(
            "this process may have {limit} files open, as ulimit -n shows: it can work with ulimit -n {}",
            FILES_ENOUGH.max(limit.saturating_mul(4))
        ),
        _ => LIMITS.to_owned(),
    }
}

/// Returns whether the system refused something that a process may have a limited number of.
pub(crate) fn is_refusal(error: &(dyn Error + 'static)) -> bool {
    is_one_of(error, &[Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM])
}

fn is_one_of(error: &(dyn Error + 'static), numbers: &[Errno]) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        let errno = cause.downcast_ref::<std::io::Error>().and_then(Errno::from_io_error);
        if errno.is_some_and(|errno| numbers.contains(&errno)) {
            return true;
        }
        next = cause.source();
    }
    false
}

/// Why a command ends early: what happened, what to do about it, and the exit code.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// The file, image or path that it is about, as the message names it.
    pub(crate) object: Option<String>,
}

/// Result of a command or a part of one.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into(), hint: None, object: None }
    }

    /// With the chain of causes of `error` after the message, each said once.
    pub(crate) fn caused(exit: Exit, what: &str, error: &(dyn Error + 'static)) -> Failure {
        let chain = chain(error);
        let message = if what.is_empty() { chain } else { format!("{what}: {chain}") };
        if matches!(exit, Exit::Internal | Exit::Input) && is_refusal(error) {
            // No fault of ours, nor of the source: nothing is to be reported or set right there.
            return Failure::new(Exit::Io, message).hint(limits_hint(error));
        }
        Failure::new(exit, message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Says what it is about. The message does so already.
    pub(crate) fn on(mut self, object: impl Into<String>) -> Failure {
        self.object = Some(object.into());
        self
    }

    /// Puts `what` in front of the message, unless the message names it already.
    pub(crate) fn about(mut self, what: &str) -> Failure {
        self.object.get_or_insert_with(|| what.to_owned());
        if !self.message.contains(what) {
            self.message = format!("{what}: {}", self.message);
        }
        self
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    /// Writing the output failed: quietly, when its reader went away.
    pub(crate) fn output(error: std::io::Error) -> Failure {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::new(Exit::BrokenPipe, ""),
            std::io::ErrorKind::StorageFull => {
                Failure::new(Exit::NoSpace, format!("cannot write the output: {error}"))
            }
            _ => Failure::new(Exit::Io, format!("cannot write the output: {error}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<std::io::Error> for Failure {
    /// Of the command's own output: the other errors are wrapped where they arise.
    fn from(error: std::io::Error) -> Failure {
        Failure::output(error)
    }
}

/// `error` and its causes on one line; a cause that an outer message repeats is left out.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(cause) = at {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        at = cause.source();
    }
    // One line, whatever the names in it hold.
    text.chars().flat_map(printable).collect()
}

/// Control characters as escapes, the rest as it is.
fn printable(c: char) -> impl Iterator<Item = char> {
    let escaped = c.is_control().then(|| c.escape_default());
    escaped.into_iter().flatten().chain((!c.is_control()).then_some(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_in_order() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert!(codes.is_sorted_by(|a, b| a < b), "{codes:?}");
    }

    #[test]
    fn what_the_system_refuses_is_no_fault_of_ours() {
        let spawn = |errno: Errno| extant_sync::threads::ThreadError::Spawn {
            thread: "worker".to_owned(),
            source: errno.into(),
        };
        let refused = Failure::caused(Exit::Internal, "build", &spawn(Errno::AGAIN));
        assert_eq!(refused.exit, Exit::Io);
        assert!(refused.message.starts_with("build: cannot start thread worker"), "{refused:?}");
        assert!(refused.hint.unwrap().contains("ulimit"));
        let refused = Failure::caused(Exit::Input, "", &spawn(Errno::MFILE));
        assert_eq!(refused.exit, Exit::Io);
        let fault = Failure::caused(Exit::Internal, "", &spawn(Errno::INVAL));
        assert_eq!((fault.exit, fault.hint), (Exit::Internal, None));
    }

    #[test]
    fn the_documented_table_is_this_one() {
        let documented = include_str!("../../../docs/exit-codes.md");
        let rows: Vec<&str> = documented.lines().filter(|l| l.starts_with("| ")).skip(2).collect();
        let ours: Vec<String> = Exit::ALL
            .iter()
            .map(|exit| format!("| {} | {} |", exit.code(), exit.meaning()))
            .collect();
        assert_eq!(rows, ours, "docs/exit-codes.md");
    }

    #[test]
    fn the_documented_families_are_these() {
        let documented = include_str!("../../../docs/json.md");
        for exit in Exit::ALL.into_iter().filter(|exit| *exit != Exit::Success) {
            let row = format!("| `{}` | {} |", exit.family(), exit.code());
            assert!(documented.contains(&row), "docs/json.md lacks {row}");
        }
    }

    #[test]
    fn a_message_is_one_line_and_says_each_cause_once() {
        #[derive(Debug)]
        struct Outer(std::io::Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("cannot open \"a\nb\"")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let outer = Outer(std::io::Error::other("worn out"));
        assert_eq!(chain(&outer), "cannot open \"a\\nb\": worn out");
        let named = Failure::new(Exit::Io, "disk.img: short").about("disk.img");
        assert_eq!(named.message, "disk.img: short");
    }
}
