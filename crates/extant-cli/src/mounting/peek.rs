//! The argument of a program that shuts a mount down, and whose a program is.
//!
//! The number of that control operation says that it reads nothing, so the kernel passes no argument to
//! the server, which in its sandbox cannot look for it. The keeper can, and looks at nothing else: it
//! finds out by itself that the thread is in that very call, and where its argument is.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};

/// `FS_IOC_SHUTDOWN`.
const SHUTDOWN: u64 = 0x8004_587d;
/// Number of ioctl(2): x86-64, and the machines that share the generic table.
const IOCTL: u64 = if cfg!(target_arch = "x86_64") { 16 } else { 29 };

/// The user that a thread acts as on files; `None` when there is no such thread to be seen.
pub(super) fn user_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    // Real, effective, saved, and that for files.
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// Returns what a thread that waits in the operation has given it; `None` when it is not in it, or this process
/// may not look.
pub(crate) fn shutdown_argument(thread: u32) -> Option<u32> {
    let line = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    let address = argument_in(&line)?;
    let mut memory = File::open(format!("/proc/{thread}/mem")).ok()?;
    memory.seek(SeekFrom::Start(address)).ok()?;
    let mut word = [0; 4];
    memory.read_exact(&mut word).ok()?;
    Some(u32::from_ne_bytes(word))
}

/// The address in a line of `/proc/PID/syscall`, if it is about that operation.
fn argument_in(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let (_descriptor, operation) = (words.next()?, hex(words.next()?)?);
    let argument = hex(words.next()?)?;
    // Only 32 bits of the operation count; the rest of the register is anything.
    (number == IOCTL && operation & 0xffff_ffff == SHUTDOWN).then_some(argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_that_operation_has_an_argument_to_look_at() {
        let line = |number: u64, operation: &str| {
            format!("{number} 0x3 {operation} 0x7ffc10 0x0 0x0 0x0 0x7ffe 0x7f12\n")
        };
        assert_eq!(argument_in(&line(IOCTL, "0x8004587d")), Some(0x7f_fc10));
        assert_eq!(argument_in(&line(IOCTL, "0xffffffff8004587d")), Some(0x7f_fc10));
        assert_eq!(argument_in(&line(IOCTL, "0x8004587e")), None);
        assert_eq!(argument_in(&line(IOCTL + 1, "0x8004587d")), None);
        for line in ["running\n", "", "-1 0x7ffe 0x7f12\n", "16 0x3"] {
            assert_eq!(argument_in(line), None, "{line:?}");
        }
        assert_eq!(shutdown_argument(std::process::id()), None, "it is in no such call");
    }
}
