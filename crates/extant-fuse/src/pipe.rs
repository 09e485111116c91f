//! A pipe of each thread, through which the system moves bytes from the image to a reply: by reference, so
//! that they are copied once and not twice.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno as Os;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// Sizes of pipes to try, in bytes: that of the largest reply, and the largest for any user.
const ROOMS: [usize; 2] = [2 << 20, 1 << 20];
/// A pipe holds one reference to a page for each page of its size, however little of the page is
/// used.
const PAGE: u64 = 4096;

thread_local! {
    static OWN: RefCell<Own> = const { RefCell::new(Own::Unused) };
}

/// The pipe of a thread.
enum Own {
    Unused,
    Pipe(Pipe),
    /// The system gives none.
    None,
}

/// An empty pipe.
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    pages: u64,
}

impl Pipe {
    fn new() -> Option<Pipe> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        let room = ROOMS.iter().find_map(|room| fcntl_setpipe_size(&write, *room).ok())?;
        Some(Pipe { read, write, pages: room as u64 / PAGE })
    }

    /// Calls `run` with this thread's pipe. When it fails the pipe goes, with what may be in it. `None`
    /// without a pipe.
    pub(crate) fn with<R>(run: impl FnOnce(&Pipe) -> Result<R, Os>) -> Option<Result<R, Os>> {
        OWN.with_borrow_mut(|own| {
            if matches!(own, Own::Unused) {
                *own = Pipe::new().map_or(Own::None, Own::Pipe);
            }
            let Own::Pipe(pipe) = own else { return None };
            let done = run(pipe);
            if done.is_err() {
                *own = Own::Unused;
            }
            Some(done)
        })
    }

    /// Returns whether these parts of a file fit, places and lengths, and a header in front of
    /// them.
    pub(crate) fn has_room_for(&self, parts: &[(u64, u64)]) -> bool {
        let pages = |(at, len): &(u64, u64)| (at % PAGE).saturating_add(*len).div_ceil(PAGE);
        let needed = parts.iter().map(pages).fold(1, u64::saturating_add);
        needed <= self.pages
    }

    /// Puts bytes in.
    pub(crate) fn put(&self, bytes: &[u8]) -> Result<(), Os> {
        match rustix::io::write(&self.write, bytes)? {
            all if all == bytes.len() => Ok(()),
            _ => Err(Os::AGAIN),
        }
    }

    /// Puts in a part of a file.
    pub(crate) fn put_part_of(
        &self,
        file: BorrowedFd<'_>,
        (mut at, len): (u64, u64),
    ) -> Result<(), Os> {
        let mut left = len;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            match splice(file, Some(&mut at), &self.write, None, most, SpliceFlags::empty()) {
                Ok(0) => return Err(Os::IO), // The file is shorter.
                Ok(moved) => left = left.saturating_sub(moved as u64),
                Err(Os::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes out all, which is `len` bytes, as one message to `to`.
    pub(crate) fn send_to(&self, to: impl AsFd, len: usize) -> Result<(), Os> {
        match splice(&self.read, None, to, None, len, SpliceFlags::empty())? {
            sent if sent == len => Ok(()),
            _ => Err(Os::IO),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsFd as _;

    use super::*;

    fn file(bytes: &[u8]) -> std::fs::File {
        let path = extant_testkit::tempdir().unwrap();
        let path = path.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        std::fs::File::open(path).unwrap()
    }

    #[test]
    fn a_message_has_all_of_its_parts_in_order() {
        let from: Vec<u8> = (0..300_000u32).map(|at| (at / 7) as u8).collect();
        let (source, (mut to, sink)) = (file(&from), std::io::pipe().unwrap());
        let parts = [(5000, 10_000), (100, 1), (299_000, 1000)];
        let sent = Pipe::with(|pipe| {
            assert!(pipe.has_room_for(&parts));
            pipe.put(b"head")?;
            parts.iter().try_for_each(|part| pipe.put_part_of(source.as_fd(), *part))?;
            pipe.send_to(&sink, 11_005)
        });
        sent.unwrap().unwrap();
        drop(sink);
        let mut got = Vec::new();
        to.read_to_end(&mut got).unwrap();
        let wanted = [b"head", &from[5000..15_000], &from[100..101], &from[299_000..]].concat();
        assert_eq!(got, wanted);
    }

    #[test]
    fn what_does_not_fit_is_known_before_and_nothing_is_left_after_an_error() {
        let source = file(&[7; 10]);
        Pipe::with(|pipe| {
            assert!(!pipe.has_room_for(&[(0, 2 << 20)]), "and a header");
            assert!(!pipe.has_room_for(&[(0, u64::MAX), (0, u64::MAX)]));
            assert!(pipe.has_room_for(&[(4095, (1 << 20) - 3 * PAGE)]));
            Ok(())
        })
        .unwrap()
        .unwrap();
        // The file is shorter than somebody thought.
        let failed = Pipe::with(|pipe| {
            pipe.put(b"head")?;
            pipe.put_part_of(source.as_fd(), (0, 11))
        });
        assert_eq!(failed, Some(Err(Os::IO)));
        let empty = Pipe::with(|pipe| Ok(rustix::io::read(&pipe.read, &mut [0; 1][..])));
        assert_eq!(empty, Some(Ok(Err(Os::AGAIN))), "a new one");
    }
}
