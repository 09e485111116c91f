//! Support for FUSE rings on this machine.

use std::fmt;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Reason why FUSE requests cannot come over rings here.
#[derive(Debug)]
#[non_exhaustive]
pub enum Obstacle {
    /// The kernel has no support, or its FUSE module is not loaded.
    NoKernel,
    /// The kernel has support, and it is disabled.
    SwitchedOff,
    /// The kernel needs one queue for each processor that could be plugged in, and there are too
    /// many.
    TooManyProcessors(usize),
    /// This process may not create rings.
    Forbidden(io::Error),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NoKernel => write!(
                f,
                "this kernel offers no FUSE over io_uring (Linux 6.14 with CONFIG_FUSE_IO_URING does)"
            ),
            Obstacle::SwitchedOff => write!(
                f,
                "FUSE over io_uring is switched off in this kernel; as root: echo Y > {SWITCH}, before \
                 mounting"
            ),
            Obstacle::TooManyProcessors(count) => {
                write!(
                    f,
                    "FUSE over io_uring needs a thread for each of {count} processors: too many"
                )
            }
            Obstacle::Forbidden(error) => {
                write!(f, "io_uring is not to be had ({error}; see kernel.io_uring_disabled)")
            }
        }
    }
}

impl std::error::Error for Obstacle {}

/// Checks that the kernel offers rings to new mounts. Reads `/sys`.
///
/// # Errors
///
/// [`Obstacle::NoKernel`] or [`Obstacle::SwitchedOff`].
pub fn obstacle() -> Result<(), Obstacle> {
    match std::fs::read(SWITCH) {
        Ok(text) if text.starts_with(b"Y") => Ok(()),
        Ok(_) => Err(Obstacle::SwitchedOff),
        Err(_) => Err(Obstacle::NoKernel),
    }
}

/// Returns the number of possible processors, for each of which the kernel wants a queue. Reads
/// `/sys`.
///
/// # Errors
///
/// `/sys` does not tell.
pub fn processors() -> io::Result<usize> {
    let text = std::fs::read_to_string(POSSIBLE)?;
    count(text.trim()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, text))
}

/// Returns the number of integers in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    list.split(',').try_fold(0usize, |all, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        all.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Returns which of the first `count` processors the calling thread may run on.
pub fn processors_allowed(count: usize) -> Vec<bool> {
    let Ok(set) = sched_getaffinity(None) else { return vec![false; count] };
    (0..count).map(|number| number < CpuSet::MAX_CPU && set.is_set(number)).collect()
}

/// Pins the calling thread to processor `number`.
///
/// # Errors
///
/// The system's error if the thread may not run there, or the processor does not exist.
pub fn pin(number: usize) -> io::Result<()> {
    if number >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(number);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, number) in
            [("0", Some(1)), ("0-3", Some(4)), ("0-3,8,10-11", Some(7)), ("", None), ("3-1", None)]
        {
            assert_eq!(count(list), number, "{list}");
        }
        assert!(count("0-18446744073709551615").is_none());
        let (all, allowed) = (processors().unwrap(), processors_allowed(4096));
        assert!(all > 0 && allowed.iter().any(|may| *may), "{all} {allowed:?}");
    }
}
