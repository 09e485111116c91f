//! `extant umount`.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use extant_fuse::mount::{hand_over_writes, unmount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::exit::{Exit, Failure, Result};
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
    /// Seconds to wait for the server; without end if not given
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Directories of mounts; those that cannot be unmounted are named, the others are
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
    let entry = table::at(dir)
        .map_err(|error| Failure::caused(Exit::Io, &format!("cannot find {name}"), &error))?;
    let Some(entry) = entry else {
        return Err(Failure::new(Exit::Refused, format!("{name} is not mounted")));
    };
    if !entry.is_ours() {
        let message = format!("{name} is mounted by {}, not by extant", entry.kind);
        return Err(Failure::new(Exit::Refused, message).hint(format!("umount {name}")));
    }
    let point = entry.point.as_path();
    let server = match asked::info(point) {
        Ok(info) => server(&info),
        Err(error) if error.raw_os_error() == Some(NOT_CONNECTED) => {
            complain(&format!("{name}: the server is gone; taking the mount away"));
            return unmount(point, true).map(|()| Exit::Success).map_err(Failure::from);
        }
        // Somebody else's: the kernel decides.
        Err(_) => None,
    };
    if lazy {
        // What can be in the image shall be there.
        let _ = hand_over_writes(point);
    }
    unmount(point, lazy).map_err(|error| {
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
    match server {
        Some(server) if !lazy => wait(&server, &name, timeout),
        _ => Ok(Exit::Success),
    }
}

/// `ENOTCONN`: nobody answers any more.
const NOT_CONNECTED: i32 = rustix::io::Errno::NOTCONN.raw_os_error();

/// The process that serves a mount, so that its end can be seen.
fn server(info: &serde_json::Value) -> Option<OwnedFd> {
    let pid = info.get("pid")?.as_i64()?;
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn wait(server: &OwnedFd, name: &str, timeout: Option<Duration>) -> Result<Exit> {
    let timespec = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: 0,
    });
    let mut wanted = [PollFd::new(server, PollFlags::IN)];
    let came = rustix::io::retry_on_intr(|| poll(&mut wanted, timespec.as_ref()))
        .map_err(|errno| Failure::caused(Exit::Io, "cannot wait", &io::Error::from(errno)))?;
    if came > 0 {
        return Ok(Exit::Success);
    }
    let seconds = timeout.unwrap_or_default().as_secs();
    let message = format!("{name} is unmounted, but the server still writes after {seconds} s");
    Err(Failure::new(Exit::Refused, message).hint("the image is free when the process has ended"))
}
