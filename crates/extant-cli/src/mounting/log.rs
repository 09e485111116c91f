//! Where messages of a mount go once nobody looks at its terminal.
//!
//! In the foreground: standard error. Else the file that was named; else the system's log, which is a
//! datagram to `/dev/log`; else a file of the user's own. A message that cannot be written there goes
//! to standard error, which may be closed: then there is nobody left to tell.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use extant_sync::{Clock, SystemClock};
use rustix::process::geteuid;

use crate::exit::{Exit, Failure, Result};
use crate::output::complain;
use crate::text::{one_line, seconds_text};

const SYSTEM_LOG: &str = "/dev/log";

/// Importance of a message, as syslog counts.
pub(crate) const ERROR: u8 = 3;
/// The same.
pub(crate) const WARNING: u8 = 4;
/// The same.
pub(crate) const INFO: u8 = 6;

/// syslog's number for daemons.
const FACILITY: u8 = 3;

/// Where messages go.
#[derive(Debug)]
pub(crate) enum Log {
    Terminal,
    File(File),
    System(UnixDatagram),
}

impl Log {
    /// The place for messages; a file that cannot be opened is an error only if it was named.
    pub(crate) fn open(foreground: bool, named: Option<&Path>) -> Result<Log> {
        if let Some(path) = named {
            return append(path).map(Log::File).map_err(|error| {
                let what = format!("cannot write the log {}", path.display());
                Failure::caused(Exit::Io, &what, &error)
            });
        }
        if foreground {
            return Ok(Log::Terminal);
        }
        if let Ok(socket) = system_log(Path::new(SYSTEM_LOG)) {
            return Ok(Log::System(socket));
        }
        Ok(own_file().and_then(|path| append(&path)).map_or(Log::Terminal, Log::File))
    }

    /// Adds one message.
    pub(crate) fn add(&self, level: u8, text: &str) {
        let text = one_line(text);
        let pid = std::process::id();
        let written = match self {
            Log::Terminal => Err(io::ErrorKind::Other.into()),
            Log::File(file) => {
                let now = seconds_text(SystemClock.now().0);
                let mut file = file;
                // One call, so that lines of several processes do not mix.
                file.write_all(format!("{now} extant[{pid}]: {text}\n").as_bytes())
            }
            Log::System(socket) => {
                let priority = FACILITY * 8 + level.min(7);
                let line = format!("<{priority}>extant[{pid}]: {text}");
                socket.send(line.as_bytes()).map(|_| ()).or_else(|_| {
                    // The log's service was started anew.
                    system_log(Path::new(SYSTEM_LOG))?.send(line.as_bytes()).map(|_| ())
                })
            }
        };
        if written.is_err() {
            complain(&text);
        }
    }
}

fn system_log(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    // A log that hangs must not hang the mount.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// The file for hosts without a system log.
fn own_file() -> io::Result<PathBuf> {
    if geteuid().is_root() {
        return Ok(PathBuf::from("/var/log/extant.log"));
    }
    let set =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let dir = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    let dir = dir.ok_or(io::ErrorKind::NotFound)?.join("extant");
    std::fs::create_dir_all(&dir)?;
    Ok(dir.join("mount.log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_added_to_a_file_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for text in ["first", "second\nline"] {
            Log::open(false, Some(&path)).unwrap().add(WARNING, text);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].ends_with("]: first") && lines[0].contains(" extant["), "{text}");
        assert!(lines[1].contains("second\\nline"), "{text}");
    }

    #[test]
    fn the_systems_log_gets_importance_and_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let system = UnixDatagram::bind(&path).unwrap();
        Log::System(system_log(&path).unwrap()).add(WARNING, "two\nlines");
        let mut heard = [0; 128];
        let count = system.recv(&mut heard).unwrap();
        let wanted = format!("<28>extant[{}]: two\\nlines", std::process::id());
        assert_eq!(String::from_utf8_lossy(&heard[..count]), wanted);
    }

    #[test]
    fn a_file_that_was_named_must_be_writable() {
        let failure = Log::open(false, Some(Path::new("/proc/none/log"))).unwrap_err();
        assert_eq!(failure.exit, Exit::Io);
        assert!(failure.message.contains("/proc/none/log"), "{}", failure.message);
    }
}
