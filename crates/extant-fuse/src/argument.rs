//! Arguments of control operations that the kernel does not pass.
//!
//! The number of a control operation says how many bytes the kernel copies, and in which direction.
//! Some numbers say something else than the operation does: `FS_IOC_SHUTDOWN` and
//! `FS_IOC_SET_ENCRYPTION_POLICY` say that they only write, and read; `FS_IOC_GET_ENCRYPTION_POLICY`
//! says that it only reads, and writes; a key follows the structure of
//! `FS_IOC_ADD_ENCRYPTION_KEY`, a UUID that of `EXT4_IOC_SETFSUUID`. Then the memory of the caller, who waits in the call, is read or
//! written through `/proc`.
//!
//! # Invariants
//!
//! - P1. Memory is touched only where a thread waits in the very call that was named, at its
//!   argument, and only the bytes that the operation has there ([`BOUNDS`]).
//! - P2. The thread is looked at after its memory was opened, through one handle of its directory in
//!   `/proc`: a thread that ended meanwhile, and another one of its number, are not mistaken for it.
//!   So no program can have bytes written elsewhere than into memory that is its own.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use extant_sync::{Clock as _, SystemClock};
use rustix::fs::{Mode, OFlags, open, openat};

/// Number of ioctl(2): x86-64, and the machines that share the generic table.
const IOCTL: u64 = if cfg!(target_arch = "x86_64") { 16 } else { 29 };
/// Number of times that a thread is looked at which is on its way into the call, and the time
/// between.
const LOOKS: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(2);

pub(crate) const SHUTDOWN: u32 = 0x8004_587d;
pub(crate) const SET_POLICY: u32 = 0x800c_6613;
pub(crate) const PWSALT: u32 = 0x4010_6614;
pub(crate) const GET_POLICY: u32 = 0x400c_6615;
pub(crate) const GET_POLICY_EX: u32 = 0xc009_6616;
pub(crate) const ADD_KEY: u32 = 0xc050_6617;
pub(crate) const EXT4_SETFSUUID: u32 = 0x4008_662c;

/// By operation: the bytes of the argument that may be read, and written.
const BOUNDS: [(u32, Range<u32>, Range<u32>); 7] = [
    (SHUTDOWN, 0..4, 0..0),
    (SET_POLICY, 0..24, 0..0),
    (PWSALT, 0..0, 0..16),
    (GET_POLICY, 0..0, 0..12),
    (GET_POLICY_EX, 0..0, 0..32),
    (ADD_KEY, 80..144, 0..0),
    (EXT4_SETFSUUID, 8..24, 0..0),
];

/// The argument of a control operation in which a thread of some program waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Argument {
    /// The thread.
    pub thread: u32,
    /// The number of the operation.
    pub command: u32,
}

impl Argument {
    /// Reads bytes of the argument. `None` when the thread is not in that call, the operation has no
    /// such bytes (P1), or this process may not look.
    pub fn read(&self, bytes: Range<u32>) -> Option<Vec<u8>> {
        self.may_read(&bytes).then_some(())?;
        let (memory, address) = self.open(OFlags::RDONLY)?;
        let mut out = vec![0; bytes.len()];
        memory.read_exact_at(&mut out, address.checked_add(bytes.start.into())?).ok()?;
        Some(out)
    }

    /// Writes bytes of the argument from its start. Returns false as [`read`](Self::read) returns
    /// `None`.
    pub fn write(&self, bytes: &[u8]) -> bool {
        if !self.may_write(bytes.len()) {
            return false;
        }
        let opened = self.open(OFlags::RDWR);
        opened.is_some_and(|(memory, address)| memory.write_all_at(bytes, address).is_ok())
    }

    /// Returns whether the operation has these bytes for this process to read (P1).
    fn may_read(&self, bytes: &Range<u32>) -> bool {
        let bounds = BOUNDS.into_iter().find(|(command, ..)| *command == self.command);
        bounds.is_some_and(|(_, may, _)| may.start <= bytes.start && bytes.end <= may.end)
    }

    /// Returns whether the operation has room for so many bytes from its start on (P1).
    fn may_write(&self, len: usize) -> bool {
        let bounds = BOUNDS.into_iter().find(|(command, ..)| *command == self.command);
        bounds.is_some_and(|(.., may)| len <= may.end as usize)
    }

    /// Opens the memory of the thread, and returns where its argument is (P2).
    fn open(&self, access: OFlags) -> Option<(File, u64)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let thread = open(format!("/proc/{}", self.thread), flags, Mode::empty()).ok()?;
        let file = |name: &str, access| {
            openat(thread.as_fd(), name, access | OFlags::CLOEXEC, Mode::empty()).map(File::from)
        };
        let memory = file("mem", access).ok()?;
        for look in 0..LOOKS {
            let mut line = String::new();
            file("syscall", OFlags::RDONLY).ok()?.read_to_string(&mut line).ok()?;
            if let Some(address) = argument_in(&line, self.command) {
                return Some((memory, address));
            }
            // It was seen before it went to sleep.
            if !line.starts_with("running") || look + 1 == LOOKS {
                break;
            }
            SystemClock.sleep(BETWEEN);
        }
        None
    }
}

/// The address in a line of `/proc/PID/syscall`, if it is about that operation.
fn argument_in(line: &str, command: u32) -> Option<u64> {
    let mut words = line.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let (_descriptor, operation) = (words.next()?, hex(words.next()?)?);
    let argument = hex(words.next()?)?;
    // Only 32 bits of the operation count; the rest of the register is anything.
    (number == IOCTL && operation as u32 == command).then_some(argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_that_operation_has_an_argument_to_look_at() {
        let line = |number: u64, operation: &str| {
            format!("{number} 0x3 {operation} 0x7ffc10 0x0 0x0 0x0 0x7ffe 0x7f12\n")
        };
        let argument_in = |line: &str| argument_in(line, SHUTDOWN);
        assert_eq!(argument_in(&line(IOCTL, "0x8004587d")), Some(0x7f_fc10));
        assert_eq!(argument_in(&line(IOCTL, "0xffffffff8004587d")), Some(0x7f_fc10));
        assert_eq!(argument_in(&line(IOCTL, "0x8004587e")), None);
        assert_eq!(argument_in(&line(IOCTL + 1, "0x8004587d")), None);
        for line in ["running\n", "", "-1 0x7ffe 0x7f12\n", "16 0x3"] {
            assert_eq!(argument_in(line), None, "{line:?}");
        }
    }

    #[test]
    fn an_operation_has_its_bytes_and_none_beside_them() {
        // As Linux declares the structures: what its number says it passes is not among them.
        let rows = [
            (SHUTDOWN, Some((0, 4)), 0),
            (SET_POLICY, Some((0, 24)), 0),
            (PWSALT, None, 16),
            (GET_POLICY, None, 12),
            (GET_POLICY_EX, None, 32),
            (ADD_KEY, Some((80, 144)), 0),
            (EXT4_SETFSUUID, Some((8, 24)), 0),
        ];
        assert_eq!(rows.len(), BOUNDS.len());
        for (command, read, written) in rows {
            let argument = Argument { thread: 0, command };
            for (start, end) in (0..150).flat_map(|start| (start + 1..151).map(move |e| (start, e)))
            {
                let has = read.is_some_and(|(first, last)| first <= start && end <= last);
                assert_eq!(argument.may_read(&(start..end)), has, "{command:#x} {start}..{end}");
            }
            for len in 1..150 {
                assert_eq!(argument.may_write(len), len <= written, "{command:#x} {len}");
            }
        }
        let unknown = Argument { thread: 0, command: SHUTDOWN ^ 1 };
        assert!(!unknown.may_read(&(0..1)) && !unknown.may_write(1));
    }

    #[test]
    fn whoever_is_in_no_such_call_is_let_alone() {
        let thread = std::process::id();
        let shutdown = Argument { thread, command: SHUTDOWN };
        assert_eq!(shutdown.read(0..4), None);
        for (command, read, write) in BOUNDS {
            let argument = Argument { thread, command };
            assert_eq!(argument.read(read.start..read.end + 1), None, "behind what it has");
            assert!(!argument.write(&vec![0; write.end as usize + 1]));
        }
        assert_eq!(Argument { thread, command: 0x1234 }.read(0..1), None, "an unknown operation");
        assert_eq!(Argument { thread: 0, command: SHUTDOWN }.read(0..4), None);
    }
}
