//! The library under storm.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant::ring::{Op, Ring, Value};
use extant::{
    AlignedBuffer, DirectDone, DirectFile, DirectKind, DirectRequest, Fallocate, Fs, FsError,
    Inode, NewInode, QueueOptions, RenameFlags, Result, SetAttributes, XattrMode,
};
use extant_sync::{Clock, SystemClock, threads};
use extant_testkit::storm::{Answer, DIRS, FILE_BYTES, Place, Renaming, Space, Target, Way};

const NEW: NewInode = NewInode { permissions: 0o644, uid: 1000, gid: 100 };
const RINGS: usize = 3;
const EIO: i32 = 5;
const EISDIR: i32 = 21;
const ELOOP: i32 = 40;

/// Operations of all rounds that no worker of a ring saw through.
pub(crate) static BY_LANE: AtomicU64 = AtomicU64::new(0);

/// A mount, and handles on its directories.
pub(crate) struct Library {
    pub(crate) fs: Fs,
    dirs: Vec<Inode>,
    rings: Rings,
}

/// Rings that nobody uses at the moment.
struct Rings {
    give: threads::Sender<Ring>,
    free: threads::Receiver<Ring>,
}

impl Rings {
    fn new(fs: &Fs) -> Result<Rings> {
        let (give, free) = threads::channel(RINGS);
        for _ in 0..RINGS {
            drop(give.try_send(fs.ring(4)?));
        }
        Ok(Rings { give, free })
    }

    /// Submits both halves of a range, and waits for what is not done at once. `None` when all rings are in use.
    fn run(
        &self,
        file: &Inode,
        (at, len): (u64, usize),
        op: impl Fn(u64, Range<usize>) -> Op,
    ) -> Option<Vec<(Result<u64>, Vec<u8>)>> {
        let ring = self.free.try_recv().ok()?;
        let half = len / 2 / 512 * 512;
        let mut parts = [None, None];
        for (tag, part) in [0..half, half..len].into_iter().enumerate() {
            let offset = at + part.start as u64;
            let done = ring.submit(tag as u64, file, op(offset, part)).expect("it was empty");
            parts[tag] = done.map(|done| (done.result, done.buffer));
        }
        while let Some(done) = ring.wait() {
            let part = parts.get_mut(done.tag as usize).expect("one of them");
            assert!(part.is_none(), "it was done already");
            *part = Some((done.result, done.buffer));
        }
        self.give_back(ring);
        Some(parts.map(|part| part.expect("both were accepted")).into())
    }

    /// Does one operation. `None` when all rings are in use.
    fn one(&self, file: &Inode, op: impl FnOnce() -> Op) -> Option<Result<u64>> {
        let ring = self.free.try_recv().ok()?;
        let done = ring.submit(0, file, op()).expect("it was empty");
        let done = done.or_else(|| ring.wait()).expect("it was accepted");
        assert!(ring.wait().is_none(), "it was done twice");
        self.give_back(ring);
        Some(done.result)
    }

    /// Reads or writes the file past the cache, in pieces that are under way together while others
    /// do something. `None` when all rings are in use.
    fn direct(
        &self,
        file: &Inode,
        (writes, at): (bool, u64),
        bytes: &mut [u8],
    ) -> Option<Result<usize>> {
        let ring = self.free.try_recv().ok()?;
        let before = ring.stats().lane;
        let piece = (bytes.len() / 4).next_multiple_of(if at / 1024 % 2 == 0 { 4096 } else { 512 });
        let mut ended: Vec<Option<Result<usize>>> = Vec::new();
        for (number, part) in bytes.chunks(piece).enumerate() {
            let offset = at + (number * piece) as u64;
            let mut buffer = AlignedBuffer::zeroed(part.len());
            let op = match writes {
                true => {
                    buffer.copy_from_slice(part);
                    Op::WriteDirect { offset, buffer, synced: at / 2048 % 8 == 7 }
                }
                false => Op::ReadDirect { offset, buffer },
            };
            assert!(ring.submit(number as u64, file, op).expect("four have room").is_none());
            ended.push(None);
        }
        match at / 512 % 3 {
            0 => {}
            more => SystemClock.sleep(Duration::from_micros(100 * more)),
        }
        while let Some(done) = ring.wait() {
            let Value::Direct(buffer) = done.value else { panic!("its memory is lost") };
            let number = done.tag as usize;
            assert!(ended[number].is_none(), "it was done already");
            let part = bytes.chunks_mut(piece).nth(number).expect("one of them");
            assert_eq!(buffer.len(), part.len());
            ended[number] = Some(done.result.map(|got| got as usize));
            if let (false, Some(Ok(got))) = (writes, &ended[number]) {
                part[..*got].copy_from_slice(&buffer[..*got]);
            }
        }
        BY_LANE.fetch_add(ring.stats().lane - before, Ordering::Relaxed);
        self.give_back(ring);
        let mut all = 0;
        for (ended, part) in ended.into_iter().zip(bytes.chunks(piece)) {
            match ended.expect("it was accepted") {
                Ok(got) if got < part.len() => return Some(Ok(all + got)),
                Ok(got) => all += got,
                error => return Some(error),
            }
        }
        Some(Ok(all))
    }

    fn give_back(&self, ring: Ring) {
        drop(self.give.try_send(ring));
    }
}

fn answer<T>(result: Result<T>) -> Answer<T> {
    result.map_err(|error| {
        // Damage says more than its number.
        if matches!(error, FsError::Corrupt { .. }) {
            eprintln!("{error}");
        }
        error.errno()
    })
}

impl Library {
    /// Makes the directories if they are not there.
    pub(crate) fn new(fs: Fs) -> Result<Library> {
        let open = |dir| {
            let name = Place { dir, name: 0 }.dir_name();
            let root = fs.root()?;
            match root.lookup(&name) {
                Err(FsError::NotFound { .. }) => {
                    root.mkdir(&name, &NewInode { permissions: 0o755, ..NEW })
                }
                found => found,
            }
        };
        let dirs = (0..DIRS).map(open).collect::<Result<_>>()?;
        let rings = Rings::new(&fs)?;
        Ok(Library { fs, dirs, rings })
    }

    fn dir(&self, at: Place) -> &Inode {
        &self.dirs[usize::from(at.dir)]
    }
}

/// Half of the units are tried without waiting first.
fn at_once(at: u64) -> bool {
    at / 512 % 2 == 1
}

/// Some go through a ring, if one is free.
fn by_ring(at: u64) -> bool {
    at / 1024 % 3 == 1
}

/// Reads or writes the file past the cache in a batch of pieces.
fn batch(direct: &DirectFile, kind: DirectKind, at: u64, bytes: &mut [u8]) -> Result<usize> {
    let mut queue = direct.queue(&QueueOptions::default().depth(3));
    let unit = (bytes.len() / 4).next_multiple_of(4096);
    let request = |(number, part): (usize, &mut [u8])| {
        let mut buffer = AlignedBuffer::zeroed(part.len());
        buffer.copy_from_slice(part);
        DirectRequest { kind, offset: at + (number * unit) as u64, buffer }
    };
    let requests = bytes.chunks_mut(unit).enumerate().map(request).collect();
    let mut done = 0;
    for (DirectDone { request, result }, part) in
        queue.run(requests).into_iter().zip(bytes.chunks_mut(unit))
    {
        let got = result?;
        if kind == DirectKind::Read {
            part[..got].copy_from_slice(&request.buffer[..got]);
        }
        done += got;
        if got < part.len() {
            break;
        }
    }
    Ok(done)
}

/// The file past the cache by the rules of Linux, half of the times that it is aligned.
fn aligned(file: &Inode, at: u64, len: usize) -> Option<DirectFile> {
    (fits(file, at, len) && at / 4096 % 2 == 1).then(|| file.direct().ok())?
}

/// Some of those that are aligned go past the cache through a ring, if one is free.
fn by_lane(file: &Inode, at: u64, len: usize) -> bool {
    fits(file, at, len) && at / 4096 % 3 != 1
}

fn fits(file: &Inode, at: u64, len: usize) -> bool {
    let unit = file.direct_alignment().map_or(u64::MAX, |unit| u64::from(unit.offset));
    at.is_multiple_of(unit) && (len as u64).is_multiple_of(unit)
}

impl Target for Library {
    type File = Inode;

    fn is_atomic(&self) -> bool {
        true
    }

    fn create(&self, at: Place, exclusive: bool) -> Answer<Inode> {
        loop {
            match self.dir(at).create(at.file_name(), &NEW) {
                Err(FsError::Exists { .. }) if !exclusive => match self.open(at) {
                    Err(2) => {}
                    other => return other,
                },
                made => return answer(made),
            }
        }
    }

    fn open(&self, at: Place) -> Answer<Inode> {
        let inode = answer(self.dir(at).lookup(at.file_name()))?;
        match (inode.is_dir(), inode.is_file()) {
            (true, _) => Err(EISDIR),
            (_, false) => Err(ELOOP),
            _ => Ok(inode),
        }
    }

    fn tmpfile(&self, dir: u8) -> Answer<Inode> {
        answer(self.dirs[usize::from(dir)].tmpfile(&NEW))
    }

    fn identity(&self, file: &Inode) -> Answer<u64> {
        Ok((u64::from(file.ino().0) << 32) | u64::from(file.record().generation))
    }

    fn read(&self, file: &Inode, at: u64, out: &mut [u8], way: Way) -> Answer<usize> {
        match way {
            Way::Cached if by_ring(at) => {
                let op =
                    |offset, part: Range<usize>| Op::Read { offset, buffer: vec![0; part.len()] };
                let Some(parts) = self.rings.run(file, (at, out.len()), op) else {
                    return answer(file.read_at(out, at));
                };
                let mut got = 0;
                for (read, buffer) in parts {
                    let read = answer(read)? as usize;
                    out[got..got + read].copy_from_slice(&buffer[..read]);
                    got += read;
                    if read < buffer.len() {
                        break; // The end, as it was then.
                    }
                }
                Ok(got)
            }
            Way::Cached => match at_once(at).then(|| file.try_read_at(out, at)) {
                // What is not in memory is for who may wait.
                Some(Ok(Ok(got))) if got < out.len() => {
                    let more = answer(file.read_at(&mut out[got..], at + got as u64))?;
                    Ok(got + more)
                }
                Some(Ok(read)) => answer(read),
                _ => answer(file.read_at(out, at)),
            },
            Way::Direct => match aligned(file, at, out.len()) {
                _ if by_lane(file, at, out.len())
                    && let Some(got) = self.rings.direct(file, (false, at), out) =>
                {
                    answer(got)
                }
                Some(direct) if at / 8192 % 2 == 1 => {
                    answer(batch(&direct, DirectKind::Read, at, out))
                }
                Some(direct) => {
                    let mut buffer = AlignedBuffer::zeroed(out.len());
                    let got = answer(direct.read_at(&mut buffer, at))?;
                    out[..got].copy_from_slice(&buffer[..got]);
                    Ok(got)
                }
                None => answer(file.read_direct_at(out, at)),
            },
            Way::Mapped => {
                let start = at & !4095;
                let map = answer(file.map_shared(start..at + out.len() as u64, false))?;
                // Behind the end are zeros.
                answer(map.read(at - start, out))?;
                Ok(out.len())
            }
        }
    }

    fn write(&self, file: &Inode, mut at: u64, mut bytes: &[u8], way: Way) -> Answer<()> {
        if way == Way::Mapped {
            let start = at & !4095;
            let map = answer(file.map_shared(start..at + bytes.len() as u64, true))?;
            answer(map.write(at - start, bytes))?;
            return answer(map.sync(map.range()));
        }
        if way == Way::Cached && by_ring(at) {
            let op = |offset, part: Range<usize>| Op::Write { offset, bytes: bytes[part].to_vec() };
            if let Some(parts) = self.rings.run(file, (at, bytes.len()), op) {
                for (written, buffer) in parts {
                    // The next one meets the error that came in the way.
                    let mut done = answer(written)? as usize;
                    while done < buffer.len() {
                        done += answer(file.write_at(&buffer[done..], at + done as u64))?;
                    }
                    at += done as u64;
                }
                return Ok(());
            }
        }
        while !bytes.is_empty() {
            let written = match way {
                Way::Direct => match aligned(file, at, bytes.len()) {
                    _ if by_lane(file, at, bytes.len())
                        && let Some(written) =
                            self.rings.direct(file, (true, at), &mut bytes.to_vec()) =>
                    {
                        answer(written)?
                    }
                    Some(direct) if at / 8192 % 2 == 1 => {
                        let kind = DirectKind::Write { synced: at / 16384 % 2 == 1 };
                        answer(batch(&direct, kind, at, &mut bytes.to_vec()))?
                    }
                    Some(direct) => {
                        let mut buffer = AlignedBuffer::zeroed(bytes.len());
                        buffer.copy_from_slice(bytes);
                        answer(direct.write_at(&buffer, at))?
                    }
                    None => answer(file.write_direct_at(bytes, at))?,
                },
                _ => match at_once(at).then(|| file.try_write_at(bytes, at)) {
                    Some(Ok(written)) => answer(written)?,
                    _ => answer(file.write_at(bytes, at))?,
                },
            };
            if written == 0 {
                return Err(EIO);
            }
            at += written as u64;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    fn append(&self, file: &Inode, bytes: &[u8]) -> Answer<u64> {
        match at_once(bytes.len() as u64).then(|| file.try_append(bytes)) {
            Some(Ok(appended)) => {
                let (at, written) = answer(appended)?;
                let rest = &bytes[written..];
                match rest.is_empty() {
                    true => Ok(at),
                    false => self.write(file, at + written as u64, rest, Way::Cached).map(|()| at),
                }
            }
            _ => answer(file.append(bytes)),
        }
    }

    fn size(&self, file: &Inode) -> Answer<u64> {
        Ok(file.metadata().size)
    }

    fn truncate(&self, file: &Inode, size: u64) -> Answer<()> {
        let by_ring = by_ring(size).then(|| self.rings.one(file, || Op::Truncate { size }));
        answer(by_ring.flatten().map_or_else(|| file.truncate(size), |done| done.map(drop)))
    }

    fn space(&self, file: &Inode, what: Space, range: Range<u64>) -> Answer<()> {
        let mode = match what {
            Space::Allocate { keep_size } => Fallocate::Allocate { keep_size },
            Space::Punch => Fallocate::PunchHole,
            Space::Zero { keep_size } => Fallocate::ZeroRange { keep_size },
            Space::Collapse => Fallocate::CollapseRange,
            Space::Insert => Fallocate::InsertRange,
        };
        let op = || Op::Fallocate { mode, range: range.clone() };
        let by_ring = by_ring(range.start).then(|| self.rings.one(file, op)).flatten();
        answer(by_ring.map_or_else(|| file.fallocate(mode, range), |done| done.map(drop)))
    }

    fn copy(&self, from: &Inode, at: u64, to: &Inode, to_at: u64, len: u64) -> Answer<u64> {
        answer(from.copy_range(at, to, to_at, len))
    }

    fn sync(&self, file: &Inode, data_only: bool) -> Answer<()> {
        let op = || if data_only { Op::SyncData } else { Op::Sync };
        let by_ring = self.rings.one(file, op);
        answer(match (by_ring, data_only) {
            (Some(done), _) => done.map(drop),
            (None, true) => file.sync_data(),
            (None, false) => file.sync(),
        })
    }

    fn sync_all(&self) -> Answer<()> {
        answer(self.fs.sync())
    }

    fn link(&self, file: &Inode, to: Place) -> Answer<()> {
        answer(self.dir(to).link(to.file_name(), file))
    }

    fn unlink(&self, at: Place) -> Answer<()> {
        answer(self.dir(at).unlink(at.file_name()))
    }

    fn rename(&self, from: Place, to: Place, how: Renaming) -> Answer<()> {
        let flags = match how {
            Renaming::Over => RenameFlags::empty(),
            Renaming::NoReplace => RenameFlags::NOREPLACE,
            Renaming::Exchange => RenameFlags::EXCHANGE,
        };
        let (dir, to_dir) = (self.dir(from), self.dir(to));
        answer(dir.rename(from.file_name(), to_dir, to.file_name(), flags))
    }

    fn symlink(&self, at: Place, target: &str) -> Answer<()> {
        answer(self.dir(at).symlink(at.file_name(), target, &NEW)).map(drop)
    }

    fn mkdir(&self, at: Place) -> Answer<()> {
        answer(self.dir(at).mkdir(at.file_name(), &NEW)).map(drop)
    }

    fn rmdir(&self, at: Place) -> Answer<()> {
        answer(self.dir(at).rmdir(at.file_name()))
    }

    fn set_xattr(&self, file: &Inode, name: &str, value: &[u8]) -> Answer<()> {
        answer(file.set_xattr(name, value, XattrMode::Any))
    }

    fn remove_xattr(&self, file: &Inode, name: &str) -> Answer<()> {
        answer(file.remove_xattr(name))
    }

    fn attributes(&self, file: &Inode, mode: u16) -> Answer<()> {
        answer(file.set_attributes(&SetAttributes::new().permissions(mode)))
    }

    fn look(&self, at: Place) -> Answer<()> {
        for entry in answer(self.dir(at).read_dir())? {
            answer(entry)?;
        }
        let inode = answer(self.dir(at).lookup(at.file_name()))?;
        if inode.is_dir() {
            answer(inode.lookup(".."))?;
        }
        if inode.is_file() {
            for run in inode.map(0..FILE_BYTES / 1024) {
                answer(run)?;
            }
            answer(inode.seek_hole(0))?;
            answer(inode.seek_data(0))?;
            answer(inode.fiemap(0..FILE_BYTES, 16, false))?;
        }
        answer(inode.xattrs()).map(drop)
    }

    fn disturb(&self, random: u64) -> Answer<()> {
        match random % 21 {
            20 => drop(answer(self.fs.rest())?),
            19 => match self.fs.freeze() {
                Err(FsError::Frozen) => {} // Somebody else has.
                frozen => drop(answer(frozen)?),
            },
            random => return self.disturb_one(random % 5),
        }
        Ok(())
    }
}

impl Library {
    fn disturb_one(&self, what: u64) -> Answer<()> {
        match what {
            0 => drop(self.fs.drop_cached()),
            4 => drop(self.fs.drop_cached_metadata()),
            1 => drop(answer(self.fs.trim(0..u64::MAX, 0))),
            2 => drop(self.fs.statfs()),
            _ => answer(self.fs.tick())?,
        }
        Ok(())
    }
}
