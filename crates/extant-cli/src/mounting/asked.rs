//! What a mount answers about itself, and the orders that it takes: extended attributes with names of
//! our own, on any file of it.

use std::io;
use std::path::Path;
use std::time::Duration;

use extant_sync::{Clock as _, SystemClock};
use rustix::fs::getxattr;
use rustix::io::Errno;
use serde_json::Value;

use crate::exit::{Exit, Failure};
use crate::mounting::table;
use crate::text::escape;

/// Longest answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// How often, and how long apart, an order is given that cannot be taken at the moment.
const TRIES_MAX: u32 = 200;
const TRY_STEP: Duration = Duration::from_millis(50);

/// Returns who serves the mount at `dir`, and what it is.
pub(crate) fn info(dir: &Path) -> io::Result<Value> {
    answer(dir, extant_fuse::INFO)
}

/// Returns what the server of the mount at `dir` has counted.
pub(crate) fn stats(dir: &Path) -> io::Result<Value> {
    answer(dir, extant_fuse::STATS)
}

/// Gives the server an order: those of `extant.control`, as a question, so that a mount for reading
/// takes it too.
pub(crate) fn order(dir: &Path, order: &str) -> io::Result<()> {
    let name = [extant_fuse::ORDER, order.as_bytes()].concat();
    let mut answer = [0; 16];
    let clock = SystemClock;
    for _ in 0..TRIES_MAX {
        match rustix::io::retry_on_intr(|| getxattr(dir, name.as_slice(), &mut answer[..])) {
            // So many wait for the kernel to write that none is left to take what it writes.
            Err(Errno::AGAIN) => clock.sleep(TRY_STEP),
            other => return Ok(other.map(drop)?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Asks for the attribute with that name, which is JSON.
pub(crate) fn answer(dir: &Path, name: &[u8]) -> io::Result<Value> {
    let mut bytes = vec![0; 1 << 16];
    let count = loop {
        match getxattr(dir, name, bytes.as_mut_slice()) {
            Ok(count) => break count,
            Err(Errno::RANGE) if bytes.len() < ANSWER_BYTES_MAX => {
                let longer = bytes.len().saturating_mul(2);
                bytes.resize(longer, 0);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    let answer = bytes.get(..count).unwrap_or(&[]);
    serde_json::from_slice(answer)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Why a directory does not answer.
pub(crate) fn no_answer(dir: &Path, error: &io::Error) -> Failure {
    use io::ErrorKind as Kind;
    let name = escape(std::os::unix::ffi::OsStrExt::as_bytes(dir.as_os_str()));
    match error.kind() {
        Kind::PermissionDenied => {
            Failure::new(Exit::Refused, format!("{name}: only root and who mounted it may ask"))
        }
        Kind::NotConnected => Failure::new(Exit::Io, format!("{name}: the server is gone"))
            .hint(format!("extant umount {name} takes the dead mount away")),
        Kind::NotFound => Failure::caused(Exit::Io, &name, error),
        _ => {
            let ours = table::all().unwrap_or_default().into_iter().filter(|entry| entry.is_ours());
            let mounts: Vec<String> = ours.map(|entry| entry.point.display().to_string()).collect();
            let failure = Failure::new(Exit::Refused, format!("{name} is not mounted by extant"));
            match mounts.is_empty() {
                true => failure,
                false => failure.hint(format!("mounted by extant: {}", mounts.join(", "))),
            }
        }
    }
}
