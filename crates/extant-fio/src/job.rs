//! One job of fio: its files, and its ring.

use extant::ring::{Op, Ring};
use extant::{DirectFile, Fallocate, File, Fs, FsError, NewInode, SyncMode};

use crate::mounted;
use crate::options::{Durable, Mode, Options};

/// An order of fio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Read,
    Write,
    Trim,
    Sync,
    DataSync,
}

/// An open file of a job.
pub(crate) struct OpenFile {
    file: File,
    direct: Option<DirectFile>,
}

/// The outcome of an operation.
pub(crate) enum Outcome {
    /// The number of bytes that were done.
    Done(u64),
    Failed(i32),
    /// A worker has it.
    UnderWay,
    /// The ring is full.
    Full,
}

/// An operation that a worker has done.
pub(crate) struct Finished {
    pub(crate) tag: u64,
    pub(crate) result: Result<u64, i32>,
    pub(crate) buffer: Vec<u8>,
}

/// A job between its beginning and its end.
pub(crate) struct Job {
    options: Options,
    fs: Fs,
    ring: Option<Ring>,
    /// Operations that fio was told about last.
    pub(crate) events: Vec<u64>,
}

fn failed(error: &FsError) -> i32 {
    eprintln!("extant: {}", mounted::told(error));
    error.errno()
}

impl Job {
    pub(crate) fn begin(options: Options) -> Result<Job, String> {
        let fs = mounted::mount(&options)?;
        Ok(Job { options, fs, ring: None, events: Vec::new() })
    }

    /// Everything that was accepted is done, and the last job unmounts.
    pub(crate) fn end(self) -> Result<(), String> {
        let Job { options, fs, ring, .. } = self;
        drop(ring);
        drop(fs);
        mounted::end(&options)
    }

    pub(crate) fn open(&self, name: &[u8]) -> Result<OpenFile, i32> {
        let sync = match self.options.durable {
            Durable::Later => SyncMode::Later,
            Durable::Data => SyncMode::Data,
            Durable::Full => SyncMode::Full,
        };
        let options = self.fs.open_options().write(true).create(true).sync(sync);
        let file = options.new_inode(NewInode::root(0o644)).open(name);
        let file = file.map_err(|error| failed(&error))?;
        let direct = match self.options.mode {
            Mode::Direct => Some(file.inode().direct().map_err(|error| failed(&error))?),
            Mode::Buffered | Mode::Ring => None,
        };
        Ok(OpenFile { file, direct })
    }

    pub(crate) fn unlink(&self, name: &[u8]) -> Result<(), i32> {
        self.fs.remove_file(name).map_err(|error| failed(&error))
    }

    /// Starts an operation of `len` bytes; `memory` is read into, or written from, and empty for other kinds.
    #[expect(clippy::too_many_arguments, reason = "a request of fio has so many")]
    pub(crate) fn start(
        &mut self,
        file: &OpenFile,
        what: What,
        offset: u64,
        len: u64,
        memory: &mut [u8],
        tag: u64,
        depth: usize,
    ) -> Outcome {
        if self.options.mode == Mode::Ring {
            return self.submit(file, what, offset, len, memory, tag, depth);
        }
        let synced = self.options.durable != Durable::Later;
        let inode = file.file.inode();
        let done = match (what, &file.direct) {
            (What::Read, None) => file.file.read_at(memory, offset).map(|read| read as u64),
            (What::Read, Some(direct)) => direct.read_at(memory, offset).map(|read| read as u64),
            (What::Write, None) => file.file.write_at(memory, offset).map(|done| done as u64),
            (What::Write, Some(direct)) if synced => {
                direct.write_synced_at(memory, offset).map(|done| done as u64)
            }
            (What::Write, Some(direct)) => direct.write_at(memory, offset).map(|done| done as u64),
            (What::Trim, _) => inode
                .fallocate(Fallocate::PunchHole, offset..offset.saturating_add(len))
                .map(|()| len),
            (What::Sync, _) => file.file.sync().map(|()| len),
            (What::DataSync, _) => file.file.sync_data().map(|()| len),
        };
        match done {
            Ok(done) => Outcome::Done(done),
            Err(error) => Outcome::Failed(failed(&error)),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "as `start`")]
    fn submit(
        &mut self,
        file: &OpenFile,
        what: What,
        offset: u64,
        len: u64,
        memory: &mut [u8],
        tag: u64,
        depth: usize,
    ) -> Outcome {
        let ring = match &self.ring {
            Some(ring) => ring,
            None => match self.fs.ring(depth.max(1)) {
                Ok(ring) => self.ring.insert(ring),
                Err(error) => return Outcome::Failed(failed(&error)),
            },
        };
        let inode = file.file.inode();
        let other = |op: Op| {
            ring.submit(tag, inode, op).map(|done| done.map(|done| done.result.map(|_| len)))
        };
        let done = match what {
            What::Read => ring.submit_read(tag, inode, memory, offset),
            What::Write => ring.submit_write(tag, inode, memory, offset),
            What::Sync => other(Op::Sync),
            What::DataSync => other(Op::SyncData),
            What::Trim => {
                let range = offset..offset.saturating_add(len);
                other(Op::Fallocate { mode: Fallocate::PunchHole, range })
            }
        };
        match done {
            Ok(Some(Ok(done))) => Outcome::Done(done),
            Ok(Some(Err(error))) => Outcome::Failed(failed(&error)),
            Ok(None) => Outcome::UnderWay,
            Err(_) => Outcome::Full,
        }
    }

    /// Takes what a worker has done; waits for it if `waits`. `None` when there is nothing.
    pub(crate) fn take(&self, waits: bool) -> Option<Finished> {
        let ring = self.ring.as_ref()?;
        let done = if waits { ring.wait() } else { ring.poll() }?;
        let result = done.result.map_err(|error| failed(&error));
        Some(Finished { tag: done.tag, result, buffer: done.buffer })
    }
}
