//! io_uring over memory that the caller lends for one call.
//!
//! # Invariants
//!
//! - N1. [`LentRing::run`] ends, also by a panic, only when the kernel has completed every request
//!   that it was given: the lifetime of the lent memory is that of the call. If the system does not
//!   let it wait in the kernel, it sleeps until the completions are there.
//! - N2. A request that the kernel has not taken is never given to it later: a ring on which a call
//!   to the kernel failed is not used again.
//! - N3. The ring is limited like that of a queue (G3 of `uring`), to reads and gathering writes of
//!   the device's own file.
#![expect(unsafe_code)]

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use extant_sync::{Clock, SystemClock};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::OFlags;

use crate::error::DeviceFault;
use crate::uring::{Posting, restricted};

/// Number of requests under way at once.
pub(crate) const LENT_DEPTH: usize = 16;
/// Number of times the system may answer EAGAIN without progress of a run.
const RETRIES_MAX: u32 = 100;
/// Limit of the parts of one request, as set by the system.
const VECTOR_MAX: usize = 1024;
/// Sleep before the completions are looked at again, where the kernel does not wait for them.
const NAP: Duration = Duration::from_millis(1);

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const EBUSY: i32 = 16;

/// The memory of a run.
enum Memory<'a> {
    /// Parts to be written, from the `first` one on.
    From { parts: Vec<IoSlice<'a>>, first: usize },
    /// Memory to be filled. A pointer, because the kernel writes to it.
    To(*mut u8, PhantomData<&'a mut [u8]>),
}

/// A run on its way, and what has become of it.
pub(crate) struct Lent<'a> {
    offset: u64,
    memory: Memory<'a>,
    len: usize,
    done: usize,
    retries: u32,
    result: Option<Result<(), DeviceFault>>,
}

impl<'a> Lent<'a> {
    /// A run that writes `parts`.
    pub(crate) fn write(offset: u64, parts: &[IoSlice<'a>]) -> Lent<'a> {
        let parts: Vec<_> = parts.iter().filter(|part| !part.is_empty()).copied().collect();
        let len = parts.iter().map(|part| part.len()).sum();
        Lent::new(offset, Memory::From { parts, first: 0 }, len)
    }

    /// A run that fills `out`.
    pub(crate) fn read(offset: u64, out: &'a mut [u8]) -> Lent<'a> {
        let len = out.len();
        Lent::new(offset, Memory::To(out.as_mut_ptr(), PhantomData), len)
    }

    fn new(offset: u64, memory: Memory<'a>, len: usize) -> Lent<'a> {
        let result = (len == 0).then_some(Ok(()));
        Lent { offset, memory, len, done: 0, retries: 0, result }
    }

    /// Takes the result; `None` if the ring failed before the run had ended.
    pub(crate) fn result(self) -> Option<Result<(), DeviceFault>> {
        self.result
    }

    /// The next request, for the bytes that are not transferred.
    fn request(&mut self, number: u64) -> squeue::Entry {
        let at = self.offset + self.done as u64;
        let file = types::Fixed(0);
        let entry = match &self.memory {
            Memory::From { parts, first } => {
                let parts = &parts[*first..];
                let count = parts.len().min(VECTOR_MAX) as u32;
                // IoSlice has the layout of `iovec`.
                opcode::Writev::new(file, parts.as_ptr().cast(), count).offset(at).build()
            }
            Memory::To(out, _) => {
                let left = (self.len - self.done).min(1 << 30) as u32;
                let to = out.wrapping_add(self.done);
                opcode::Read::new(file, to, left).offset(at).build()
            }
        };
        entry.user_data(number)
    }

    /// Notes a completion. Returns whether a further request is needed.
    fn progress(&mut self, result: i32) -> bool {
        let Ok(moved) = usize::try_from(result) else {
            self.retries += 1;
            if matches!(-result, EINTR | EAGAIN) {
                // The caller does what the ring cannot.
                return self.retries <= RETRIES_MAX;
            }
            self.result = Some(Err(DeviceFault::Io(io::Error::from_raw_os_error(-result))));
            return false;
        };
        if moved == 0 {
            self.result = Some(Err(match self.memory {
                Memory::To(..) => DeviceFault::ShortRead { got_bytes: self.done as u64 },
                Memory::From { .. } => DeviceFault::Io(io::ErrorKind::WriteZero.into()),
            }));
            return false;
        }
        self.done += moved;
        self.retries = 0;
        if self.done >= self.len {
            self.result = Some(Ok(()));
            return false;
        }
        if let Memory::From { parts, first } = &mut self.memory {
            let mut left = moved;
            while let Some(part) = parts.get_mut(*first).filter(|_| left > 0) {
                let now = left.min(part.len());
                left -= now;
                match now == part.len() {
                    true => *first += 1,
                    false => part.advance(now),
                }
            }
        }
        true
    }
}

/// A ring for one call at a time.
pub(crate) struct LentRing {
    uring: IoUring,
    is_broken: bool,
}

/// Opens the file again. The kernel takes a ring down after its process has ended, and a ring over the
/// same descriptor would keep the lock of the image, or the claim to the disk, until then. Besides,
/// files are opened with O_NONBLOCK because of fifos, and a ring would not wait for a disk then.
fn open_again(file: &File) -> io::Result<File> {
    let mode = rustix::fs::fcntl_getfl(file)? & OFlags::ACCMODE;
    OpenOptions::new()
        .read(mode != OFlags::WRONLY)
        .write(mode != OFlags::RDONLY)
        .custom_flags(OFlags::CLOEXEC.bits().cast_signed())
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The requests that the kernel has. Dropping it waits for them (N1).
struct Away<'r> {
    ring: &'r mut LentRing,
    /// Requests put into the ring and not completed.
    count: usize,
}

impl LentRing {
    /// Creates a ring over `file`, limited to what runs need. Older systems than Linux 5.10 cannot
    /// limit rings and get none.
    pub(crate) fn new(file: &File) -> io::Result<LentRing> {
        let again = open_again(file)?;
        let codes = [opcode::Read::CODE, opcode::Writev::CODE];
        // The ring keeps the file by itself.
        let files = [again.as_raw_fd()];
        let uring = restricted(LENT_DEPTH as u32, Posting::Entering, &files, &codes)?;
        Ok(LentRing { uring, is_broken: false })
    }

    /// Returns whether the ring failed and is not to be used again (N2).
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Transfers the runs, several at once. Those without a result afterwards have not ended, and
    /// nothing of them is under way.
    pub(crate) fn run(&mut self, runs: &mut [Lent<'_>]) {
        let mut ready: VecDeque<usize> =
            (0..runs.len()).filter(|index| runs[*index].result.is_none()).collect();
        let mut away = Away { ring: self, count: 0 };
        loop {
            while away.count < LENT_DEPTH
                && !away.ring.is_broken
                && let Some(index) = ready.pop_front()
            {
                let request = runs[index].request(index as u64);
                // SAFETY: the registered file is that of the device, which is borrowed for longer than
                // this call. The memory is borrowed by `runs`, which outlives `away`; `away` is dropped
                // last of the two on every way out, and waits for the completion (N1). The vector of
                // parts is not changed or moved before the completion is taken out of the ring.
                if unsafe { away.ring.uring.submission().push(&request) }.is_err() {
                    ready.push_front(index);
                    break;
                }
                away.count += 1;
            }
            if away.count == 0 {
                return;
            }
            away.wait();
            away.take(|index, result| {
                let run = runs.get_mut(index as usize);
                if run.is_some_and(|run| run.progress(result)) {
                    ready.push_back(index as usize);
                }
            });
        }
    }
}

impl Away<'_> {
    /// Submits, and waits for a completion if none is there.
    fn wait(&mut self) {
        if self.ring.is_broken {
            // The thread enters the kernel, so completions are posted.
            SystemClock.sleep(NAP);
            return;
        }
        match self.ring.uring.submitter().submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(EINTR | EAGAIN | EBUSY)) => {}
            Err(_) => {
                // Requests that the kernel did not take stay in the ring, which is given up (N2).
                self.ring.is_broken = true;
                let left = self.ring.uring.submission().len();
                self.count = self.count.saturating_sub(left);
            }
        }
    }

    /// Takes completions out of the ring.
    fn take(&mut self, mut each: impl FnMut(u64, i32)) {
        while let Some(done) = self.ring.uring.completion().next() {
            self.count = self.count.saturating_sub(1);
            each(done.user_data(), done.result());
        }
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        while self.count > 0 {
            self.wait();
            self.take(|_, _| ());
        }
    }
}

impl Drop for LentRing {
    fn drop(&mut self) {
        // The kernel closes a ring later, and would keep the file until then.
        let _ = self.uring.submitter().unregister_files();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::OwnedFd;

    use super::*;

    /// What is left of a run that writes: the offset on the device, and the bytes.
    fn left(run: &Lent<'_>) -> (u64, Vec<u8>) {
        let Memory::From { parts, first } = &run.memory else { panic!("it reads") };
        let bytes = parts[*first..].iter().flat_map(|part| part.to_vec()).collect();
        (run.offset + run.done as u64, bytes)
    }

    #[test]
    fn what_a_short_transfer_has_left_is_asked_for_again() {
        let bytes: Vec<u8> = (0..100).collect();
        let parts = [0..10, 10..10, 10..11, 11..60, 60..100].map(|part| IoSlice::new(&bytes[part]));
        for steps in [vec![100], vec![10, 1, 89], vec![3, 7, 30, 19, 1, 40], vec![1; 100]] {
            let mut run = Lent::write(1000, &parts);
            let mut done = 0;
            for step in steps {
                assert!(run.result.is_none());
                assert_eq!(left(&run), (1000 + done as u64, bytes[done..].to_vec()));
                done += step as usize;
                assert_eq!(run.progress(step), done < 100);
            }
            assert!(matches!(run.result(), Some(Ok(()))));
        }
    }

    #[test]
    fn an_interrupted_run_goes_on_and_an_endless_one_is_left_to_the_caller() {
        let mut run = Lent::write(0, &[IoSlice::new(b"four")]);
        assert!(run.progress(-EINTR) && run.progress(2));
        assert_eq!(left(&run), (2, b"ur".to_vec()));
        for _ in 0..RETRIES_MAX {
            assert!(run.progress(-EAGAIN));
        }
        assert!(!run.progress(-EAGAIN) && run.result().is_none(), "left to the caller");
        let mut bytes = [0; 4];
        let mut run = Lent::read(0, &mut bytes);
        assert!(run.progress(3) && !run.progress(0));
        assert!(matches!(run.result(), Some(Err(DeviceFault::ShortRead { got_bytes: 3 }))));
        let mut run = Lent::write(0, &[IoSlice::new(b"four")]);
        assert!(!run.progress(0) && run.result.is_some_and(|result| result.is_err()));
        let mut run = Lent::write(0, &[IoSlice::new(b"four")]);
        assert!(!run.progress(-5) && run.result.is_some_and(|result| result.is_err()));
        assert!(matches!(Lent::write(0, &[IoSlice::new(b"")]).result(), Some(Ok(()))));
    }

    #[test]
    fn nothing_is_under_way_after_a_ring_has_failed() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let mut ring = match LentRing::new(&file) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: {error}"),
        };
        ring.is_broken = true;
        let bytes = vec![7; 4096];
        let parts = [IoSlice::new(&bytes)];
        let mut runs: Vec<_> = (0..40).map(|at| Lent::write(at * 4096, &parts)).collect();
        ring.run(&mut runs);
        assert!(runs.into_iter().all(|run| run.result().is_none()), "left to the caller");
        ring.is_broken = false;
        let mut runs: Vec<_> = (0..40).map(|at| Lent::write(at * 4096, &parts)).collect();
        ring.run(&mut runs);
        assert!(runs.into_iter().all(|run| matches!(run.result(), Some(Ok(())))));
    }

    #[test]
    fn a_ring_that_the_system_refuses_is_given_up_and_its_requests_with_it() {
        // Not enabled: every call is refused, and takes nothing.
        let uring = match IoUring::builder().setup_r_disabled().build(LENT_DEPTH as u32) {
            Ok(uring) => uring,
            Err(error) => return println!("skipped: {error}"),
        };
        let mut ring = LentRing { uring, is_broken: false };
        let bytes = vec![7; 4096];
        let parts = [IoSlice::new(&bytes)];
        let mut runs: Vec<_> = (0..40).map(|at| Lent::write(at * 4096, &parts)).collect();
        ring.run(&mut runs);
        assert!(ring.is_broken());
        assert!(runs.into_iter().all(|run| run.result().is_none()), "left to the caller");
    }

    #[test]
    fn a_ring_that_failed_waits_for_what_the_system_took_and_gives_it_nothing_more() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut ring = match LentRing::new(&File::from(OwnedFd::from(reader))) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: {error}"),
        };
        let (mut taken, mut left) = ([0; 4], [0; 4]);
        let requests = [&mut taken, &mut left].map(|bytes| Lent::read(0, bytes).request(0));
        let mut away = Away { ring: &mut ring, count: 0 };
        for request in requests {
            // SAFETY: both arrays outlive `away`, which waits for the requests that the kernel has.
            unsafe { away.ring.uring.submission().push(&request) }.unwrap();
            if away.count == 0 {
                away.count = away.ring.uring.submit().unwrap();
            }
        }
        // As after a call that failed (N2).
        away.ring.is_broken = true;
        writer.write_all(b"onlytwice").unwrap();
        drop(away);
        drop(ring);
        assert_eq!((&taken, &left), (b"only", &[0; 4]), "N1 and N2");
    }
}
