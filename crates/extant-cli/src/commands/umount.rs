//! `extant umount`.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use extant_fuse::mount::{MountError, hand_over_writes, unmount};
use extant_sync::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use crate::exit::{Exit, Failure, Result};
use crate::mounting::farewell::Hearer;
use crate::mounting::holders::Holders;
use crate::mounting::link::Word;
use crate::mounting::table::Entry;
use crate::mounting::{asked, busy, table};
use crate::output::{complain, report};
use crate::text::escape;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str =
    "Examples:\n  extant umount mnt\n  extant umount --timeout 60 mnt\n  extant umount -l mnt\n";

/// Unmount, and wait until everything is in the image
///
/// Afterwards the image is free for others. umount and fusermount3 -u end a mount as well, but return
/// while the server may still be writing, unless umount.fuse.extant is installed.
#[derive(Args, Debug)]
pub(crate) struct UmountArgs {
    /// Also when it is in use: it goes on for whoever has something open, and nothing is waited for
    #[arg(short, long)]
    lazy: bool,
    /// Seconds to wait for the server; without end if not given, but 5 while others have it mounted in
    /// name spaces of their own
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Directories of mounts, or their images; those that cannot be unmounted are named, the others are
    /// unmounted
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
}

pub(crate) fn run(args: &UmountArgs) -> Result<Exit> {
    let timeout = args.timeout.map(Duration::from_secs);
    let mut first = Exit::Success;
    for dir in &args.dirs {
        let exit = take_down(dir, args.lazy, timeout).unwrap_or_else(|failure| {
            report(&failure);
            failure.exit
        });
        if first == Exit::Success {
            first = exit;
        }
    }
    Ok(first)
}

/// Unmounts `dir`, and unless `lazy` waits for the server's end.
pub(crate) fn take_down(dir: &Path, lazy: bool, timeout: Option<Duration>) -> Result<Exit> {
    let name = escape(dir.as_os_str().as_bytes());
    let entry = find(dir)
        .map_err(|error| Failure::caused(Exit::Io, &format!("cannot find {name}"), &error))?;
    let Some(entry) = entry else {
        return Err(Failure::new(Exit::Refused, format!("{name} is not mounted")));
    };
    if !entry.is_ours() {
        let message = format!("{name} is mounted by {}, not by extant", entry.kind);
        return Err(Failure::new(Exit::Refused, message).hint(format!("umount {name}")));
    }
    let point = entry.point.as_path();
    let (server, stored) = match asked::info(point) {
        Ok(info) => {
            if info.get("frozen").and_then(Value::as_bool) == Some(true) {
                // What the kernel still keeps could not be written.
                complain(&format!("{name} was frozen: thawing it"));
                let _ = asked::order(point, "thaw");
            }
            if info.get("image_removed").and_then(Value::as_bool) == Some(true) {
                let image = escape(entry.source.as_encoded_bytes());
                complain(&format!(
                    "{name}: note: {image} was removed or replaced while it was mounted: what was written is in a file \
                     without a name, and gone when the mount ends"
                ));
            }
            // Where it was stopped on request there is nothing to store.
            let is_shut_down = info.get("shut_down").and_then(Value::as_bool) == Some(true);
            let stored = match lazy || is_shut_down {
                true => Ok(()),
                false => {
                    let is_held = !Holders::of(&entry).elsewhere.is_empty();
                    write_everything(point, &info, is_held)
                }
            };
            // What has stopped for good does not store it later either. Else it stays: nobody hears of a
            // write that fails once it is unmounted.
            let stored = match (stored, stopped_because(point)) {
                (Err(failure), None) => return Err(stays(&failure, &name)),
                (Err(_), Some(why)) => Err(writing_had_stopped(&name, &why)),
                (Ok(()), _) => Ok(()),
            };
            (info.get("pid").and_then(Value::as_i64), stored)
        }
        Err(error) if error.raw_os_error() == Some(NOT_CONNECTED) => {
            complain(&format!("{name}: the server is gone; taking the mount away"));
            return unmount(point, true).map(|()| Exit::Success).map_err(Failure::from);
        }
        // Somebody else's, who may keep even root out.
        Err(_) => (holder(&entry.source), Ok(())),
    };
    let pid = server;
    let server = server.and_then(process);
    if lazy {
        // What can be in the image shall be there.
        let _ = hand_over_writes(point);
    }
    let hearer = Hearer::new().ok();
    if let Some(path) = hearer.as_ref().map(Hearer::path) {
        let _ = asked::order(point, &format!("tell={}", path.display()));
    }
    unmount_at_rest(point, lazy, &entry).map_err(|error| {
        let is_busy = error.is_busy();
        let failure = Failure::from(error);
        match is_busy {
            true => Failure {
                message: format!("{name} is in use by {}", busy::users_text(&entry)),
                ..failure
            }
            .hint(format!("extant umount -l {name} lets them go on until they end")),
            false => failure,
        }
    })?;
    let Some(server) = server.filter(|_| !lazy) else { return Ok(Exit::Success) };
    let left = Left { name: &name, entry: &entry, server: &server, pid: pid.unwrap_or(0) };
    let exit = left.wait(timeout)?;
    stored?;
    if has_ended(&server, Some(Duration::ZERO))?
        && let Some(Word::Failed(failure)) = hearer.and_then(|hearer| hearer.hear(LAST_WORD))
    {
        let message =
            format!("{name} is unmounted, and not everything is stored: {}", failure.message);
        return Err(Failure { message, exit: Exit::Io, ..failure }
            .hint("what was stored before is there, and the next mount replays the journal"));
    }
    Ok(exit)
}

/// How long a mount may be busy by nobody who can be named.
const UNSEEN: Duration = Duration::from_secs(1);

/// Unmounts `point`. Whoever looks at it in this moment (`df`, a list of mounts, an index of names) keeps it busy for
/// as long, and is gone when it is looked who it was.
fn unmount_at_rest(point: &Path, lazy: bool, entry: &Entry) -> Result<(), MountError> {
    let start = SystemClock.monotonic();
    let is_early = || SystemClock.monotonic().saturating_sub(start) < UNSEEN;
    loop {
        match unmount(point, lazy) {
            Err(error) if error.is_busy() && is_early() && !busy::is_used(entry) => {
                SystemClock.sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// Programs were told by every sync; whoever unmounts is told once more.
fn writing_had_stopped(name: &str, why: &str) -> Failure {
    let message = format!("{name} is unmounted, but writing had stopped before: {why}");
    Failure::new(Exit::Io, message).hint(
        "what was not synced by then is lost; the next mount goes on with what was, once the cause is gone",
    )
}

/// Why nothing will be stored any more, if that is so.
fn stopped_because(point: &Path) -> Option<String> {
    let info = asked::info(point).ok()?;
    info.get("stopped_because").and_then(Value::as_str).map(str::to_owned)
}

/// Has all that was written so far stored in the image; `is_held` when others have it mounted too. What programs wrote and nobody could store is told
/// once: it is lost by then.
fn write_everything(point: &Path, info: &Value, is_held: bool) -> Result<()> {
    let refused = |info: &Value| info.get("refused_writes").and_then(Value::as_u64).unwrap_or(0);
    // Failures that a program was told of are told to who asks next, too. Only the server knows what was not
    // stored since.
    let first = hand_over_writes(point);
    let handed_over = match &first {
        Ok(()) => Ok(()),
        Err(_) => hand_over_writes(point),
    };
    let what = "the server could not write everything";
    let stored = match is_held {
        // They may go on for long: until they change something, the image is as if it were free.
        true => asked::order(point, "rest").or_else(|_| asked::order(point, "sync")),
        false => asked::order(point, "sync"),
    };
    stored.map_err(|error| Failure::caused(Exit::Io, what, &error))?;
    handed_over?;
    let count = asked::info(point).map_or(0, |now| refused(&now).saturating_sub(refused(info)));
    match (count, first) {
        (0, Ok(())) => Ok(()),
        (0, Err(error)) => {
            let why = Failure::from(error).message;
            complain(&format!(
                "note: since it was mounted, or somebody asked last, writes have failed, which their \
                 programs were told ({why}); all others are stored"
            ));
            Ok(())
        }
        _ => Err(Failure::new(
            Exit::Io,
            format!(
                "there was no place for {count} writes that programs had made, and they are lost"
            ),
        )),
    }
}

/// Why it is not unmounted.
fn stays(failure: &Failure, name: &str) -> Failure {
    let message = format!("{name} stays mounted: not everything is stored: {}", failure.message);
    Failure { message, ..failure.clone() }.hint(format!(
        "its log says what failed (is the disk with the image full?); extant umount -l {name} gives \
         up what cannot be stored"
    ))
}

/// Wait before something is said.
const PATIENCE: Duration = Duration::from_secs(2);

/// `ENOTCONN`: nobody answers any more.
const NOT_CONNECTED: i32 = rustix::io::Errno::NOTCONN.raw_os_error();

/// A process, so that its end can be seen.
fn process(pid: i64) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// The mount at `dir`, or of the image `dir`.
fn find(dir: &Path) -> io::Result<Option<Entry>> {
    if let Some(entry) = table::at(dir)? {
        return Ok(Some(entry));
    }
    let image = dir.canonicalize()?;
    let ours = table::all()?.into_iter().rev().filter(Entry::is_ours);
    Ok(ours.into_iter().find(|entry| image_of(&entry.source) == image))
}

/// The file of a mount's source, which may name a part of it.
fn image_of(source: &OsStr) -> PathBuf {
    let bytes = source.as_bytes();
    let end = bytes.iter().rposition(|byte| !byte.is_ascii_digit());
    let part = end.filter(|end| matches!(bytes.get(*end), Some(b'#' | b'@')));
    let whole = Path::new(source);
    let file = part.and_then(|end| bytes.get(..end)).map(|file| Path::new(OsStr::from_bytes(file)));
    file.filter(|_| !whole.exists()).unwrap_or(whole).to_owned()
}

/// The process that has the lock of an image, as `/proc/locks` tells: `1: FLOCK  ADVISORY  WRITE 4711
/// 08:02:1234 0 EOF`.
fn holder(source: &OsStr) -> Option<i64> {
    let image = std::fs::metadata(image_of(source)).ok()?;
    let (major, minor) = (rustix::fs::major(image.dev()), rustix::fs::minor(image.dev()));
    let wanted = format!("{major:02x}:{minor:02x}:{}", image.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_it = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&wanted.as_str());
        is_it.then(|| words.get(4)?.parse().ok())?
    })
}

/// How long the keeper has for its last word, after the end of its server.
const LAST_WORD: Duration = Duration::from_secs(2);
/// How long others who have it mounted, in other name spaces, may take to let go without being asked.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(5);
/// Pause between two looks at who else has it mounted.
const STEP: Duration = Duration::from_millis(300);

/// What is left of a mount that was taken away.
struct Left<'a> {
    name: &'a str,
    entry: &'a Entry,
    server: &'a OwnedFd,
    pid: i64,
}

impl Left<'_> {
    /// Waits for the server, if this was the last mount of its file system.
    fn wait(&self, timeout: Option<Duration>) -> Result<Exit> {
        let Left { name, entry, server, pid } = *self;
        let mut waited = Duration::ZERO;
        let mut is_told = false;
        loop {
            let left = timeout.map_or(STEP, |timeout| timeout.saturating_sub(waited).min(STEP));
            if has_ended(server, Some(left))? {
                return Ok(Exit::Success);
            }
            waited += left;
            let holders = Holders::of(entry);
            if !holders.here.is_empty() {
                complain(&format!("note: {name} is unmounted; it is still {}", holders.text()));
                return Ok(Exit::Success);
            }
            let is_over = |most: Duration| waited >= timeout.unwrap_or(most);
            if !holders.are_none() && is_over(PATIENCE_WITH_OTHERS) {
                let message = format!(
                    "{name} is unmounted here and everything is stored, but the image is not free: it is \
                     still {}",
                    holders.text()
                );
                return Err(Failure::new(Exit::Refused, message).hint(format!(
                    "kill -TERM {pid} ends it for them too, and leaves the image clean"
                )));
            }
            if is_over(Duration::MAX) {
                let seconds = waited.as_secs();
                let message =
                    format!("{name} is unmounted, but the server still writes after {seconds} s");
                return Err(Failure::new(Exit::Refused, message)
                    .hint("the image is free when the process has ended"));
            }
            if holders.are_none() && waited >= PATIENCE && !is_told {
                is_told = true;
                complain(&format!(
                    "{name} is unmounted; waiting for the server to write everything, or for who has \
                     something open in it"
                ));
            }
        }
    }
}

/// Waits for the end of a process.
fn has_ended(process: &OwnedFd, within: Option<Duration>) -> Result<bool> {
    let within = within.map(|within| Timespec {
        tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: within.subsec_nanos().into(),
    });
    let mut wanted = [PollFd::new(process, PollFlags::IN)];
    let came = rustix::io::retry_on_intr(|| poll(&mut wanted, within.as_ref()))
        .map_err(|errno| Failure::caused(Exit::Io, "cannot wait", &io::Error::from(errno)))?;
    Ok(came > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_source_is_found_with_its_part_or_without() {
        let of = |source: &str| image_of(OsStr::new(source));
        assert_eq!(of("/no/a.img"), Path::new("/no/a.img"));
        assert_eq!(of("/no/a.img#2"), Path::new("/no/a.img"));
        assert_eq!(of("/no/a.img@4096"), Path::new("/no/a.img"));
        assert_eq!(of("/no/a#b.img"), Path::new("/no/a#b.img"));
        let place = tempfile::tempdir().unwrap();
        let odd = place.path().join("a#1");
        std::fs::write(&odd, "").unwrap();
        assert_eq!(image_of(odd.as_os_str()), odd, "that is its name");
        let file = std::fs::File::open(&odd).unwrap();
        file.lock().unwrap();
        assert_eq!(holder(odd.as_os_str()), Some(i64::from(std::process::id())));
    }
}
