//! Open files: contents, sizes, space.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant::{Fallocate, NewInode, SyncMode};

use super::int;
use crate::caller::{call_back, enter, wrong};
use crate::error::{Error, Result};
use crate::object::{FileObject, Object, Opened};
use crate::types::{
    EXTANT_FALLOCATE_ALLOCATE, EXTANT_FALLOCATE_COLLAPSE, EXTANT_FALLOCATE_INSERT,
    EXTANT_FALLOCATE_KEEP_SIZE, EXTANT_FALLOCATE_PUNCH_HOLE, EXTANT_FALLOCATE_WRITE_ZEROES,
    EXTANT_FALLOCATE_ZERO_RANGE, EXTANT_O_APPEND, EXTANT_O_CREATE, EXTANT_O_DIRECT, EXTANT_O_DSYNC,
    EXTANT_O_EXCLUSIVE, EXTANT_O_READ, EXTANT_O_SYNC, EXTANT_O_TRUNCATE, EXTANT_O_WRITE,
    EXTANT_SEEK_CUR, EXTANT_SEEK_DATA, EXTANT_SEEK_END, EXTANT_SEEK_HOLE, EXTANT_SEEK_SET,
    extant_file, extant_fs, extant_iovec,
};

const OPEN_FLAGS: u32 = EXTANT_O_READ
    | EXTANT_O_WRITE
    | EXTANT_O_APPEND
    | EXTANT_O_CREATE
    | EXTANT_O_EXCLUSIVE
    | EXTANT_O_TRUNCATE
    | EXTANT_O_SYNC
    | EXTANT_O_DSYNC
    | EXTANT_O_DIRECT;

/// Errno of what a descriptor's access does not allow, as read(2) and write(2) have it.
const EBADF: i32 = 9;

/// Opens a regular file. `flags` are EXTANT_O_*, with at least one of READ, WRITE and APPEND; a file that is made belongs to root
/// and has the permissions `mode` (extant_chown() changes that). Returns 0 and sets `*file`, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_open(
    fs: *mut extant_fs,
    path: *const c_char,
    flags: u32,
    mode: u32,
    file: *mut *mut extant_file,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let place = caller.place(file, "file")?;
            let fs = caller.fs(fs)?;
            let path = caller.path(path)?;
            if flags & !OPEN_FLAGS != 0 {
                let unknown = flags & !OPEN_FLAGS;
                return Err(Error::argument(format!("open: unknown flags {unknown:#x}")));
            }
            let has = |flag| flags & flag != 0;
            let appends = has(EXTANT_O_APPEND);
            if has(EXTANT_O_DIRECT) && appends {
                return Err(Error::argument("open: DIRECT and APPEND exclude each other"));
            }
            let opened = Opened::new(&fs)?;
            let sync = match () {
                () if has(EXTANT_O_SYNC) => SyncMode::Full,
                () if has(EXTANT_O_DSYNC) => SyncMode::Data,
                () => SyncMode::Later,
            };
            let found = fs
                .fs
                .open_options()
                .read(has(EXTANT_O_READ))
                .write(has(EXTANT_O_WRITE))
                .append(appends)
                .create(has(EXTANT_O_CREATE))
                .create_new(has(EXTANT_O_EXCLUSIVE))
                .truncate(has(EXTANT_O_TRUNCATE))
                .sync(sync)
                .new_inode(NewInode::root(permissions(mode)?))
                .open(path)?;
            let direct = has(EXTANT_O_DIRECT).then(|| found.inode().direct()).transpose()?;
            // The flag set by `chattr +S` makes every write synchronous.
            let always = found.inode().metadata().flags.contains(extant::InodeFlags::SYNC);
            let sync = if always { SyncMode::Full } else { sync };
            let object = FileObject {
                file: found,
                direct,
                reads: has(EXTANT_O_READ),
                writes: has(EXTANT_O_WRITE) || appends,
                appends,
                sync,
                position: AtomicU64::new(0),
                opened,
            };
            place.put(caller.open(Object::File(Arc::new(object)))?);
            Ok(0)
        })
    })
}

/// Permissions as programs give them: 0 to 07777.
pub(super) fn permissions(mode: u32) -> Result<u16> {
    match u16::try_from(mode) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(Error::argument(format!("permissions are 0 to 07777, and not {mode:#o}"))),
    }
}

/// Closes a file. Written data is stored later; extant_fsync() tells whether it was. Returns 0 or a
/// negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_close(file: *mut extant_file) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let closed = caller.close(file, "file", |object| match object {
                Object::File(_) => Ok(()),
                _ => Err(wrong("a file")),
            })?;
            if let Object::File(file) = &closed {
                caller.note(file.opened.fs());
            }
            Ok(0)
        })
    })
}

impl FileObject {
    fn check_reads(&self) -> Result<()> {
        match self.reads {
            true => Ok(()),
            false => Err(Error::argument("the file was opened for writing only").with_errno(EBADF)),
        }
    }

    fn check_writes(&self) -> Result<()> {
        match self.writes {
            true => Ok(()),
            false => Err(Error::argument("the file was opened for reading").with_errno(EBADF)),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.check_reads()?;
        Ok(match &self.direct {
            Some(direct) => direct.read_at(out, offset)?,
            None => self.file.read_at(out, offset)?,
        })
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.check_writes()?;
        Ok(match (&self.direct, self.sync) {
            (Some(direct), SyncMode::Later) => direct.write_at(bytes, offset)?,
            (Some(direct), _) => {
                let written = direct.write_synced_at(bytes, offset)?;
                if self.sync == SyncMode::Full {
                    self.file.sync()?;
                }
                written
            }
            (None, _) => self.file.write_at(bytes, offset)?,
        })
    }
}

/// Reads up to `length` bytes from byte `offset`. Returns how many: fewer only at the end of the file; or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_pread(
    file: *mut extant_file,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            let out = caller.buffer(buffer, length, "buffer")?;
            Ok(caller.file(file)?.read(offset, out)? as u64)
        })
    }
}

/// Writes `length` bytes at byte `offset`; with EXTANT_O_APPEND at the end. Returns the number of
/// bytes written: fewer only before an error, which the next call returns; or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_pwrite(
    file: *mut extant_file,
    buffer: *const c_void,
    length: usize,
    offset: u64,
) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            let bytes = caller.bytes(buffer, length, "buffer")?;
            Ok(caller.file(file)?.write(offset, bytes)? as u64)
        })
    }
}

/// extant_pread() into `count` pieces of memory, 0 to 1024, which must not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_preadv(
    file: *mut extant_file,
    vector: *const extant_iovec,
    count: c_int,
    offset: u64,
) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            let file = caller.file(file)?;
            file.check_reads()?;
            let pieces = caller.vector(vector, count)?;
            // Before anything is read: each is memory.
            for piece in pieces {
                caller.bytes(piece.base, piece.length, "a piece of the vector")?;
            }
            let mut done = 0;
            for piece in pieces {
                let out = caller.buffer(piece.base, piece.length, "a piece of the vector")?;
                let read = match file.read(offset.saturating_add(done), out) {
                    Err(_) if done > 0 => break,
                    read => read?,
                };
                done += read as u64;
                if read < piece.length {
                    break;
                }
            }
            Ok(done)
        })
    }
}

/// extant_pwrite() of `count` pieces of memory, 0 to 1024, one after the other, as one write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_pwritev(
    file: *mut extant_file,
    vector: *const extant_iovec,
    count: c_int,
    offset: u64,
) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            let file = caller.file(file)?;
            file.check_writes()?;
            let pieces = caller.pieces(vector, count)?;
            if let [one] = &pieces[..] {
                return Ok(file.write(offset, one)? as u64);
            }
            if file.direct.is_none() && !file.appends && file.sync == SyncMode::Later {
                return Ok(file.file.inode().write_vectored_at(&pieces, offset)? as u64);
            }
            if file.direct.is_some() {
                // Direct I/O has rules about memory: each piece by itself.
                let mut done = 0;
                for piece in &pieces {
                    let written = match file.write(offset.saturating_add(done), piece) {
                        Err(_) if done > 0 => break,
                        written => written?,
                    };
                    done += written as u64;
                    if written < piece.len() {
                        break;
                    }
                }
                return Ok(done);
            }
            let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            Ok(file.write(offset, &bytes)? as u64)
        })
    }
}

/// extant_pread() at the file's position, which moves. Threads that share a handle use extant_pread().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_read(
    file: *mut extant_file,
    buffer: *mut c_void,
    length: usize,
) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            let file = caller.file(file)?;
            let out = caller.buffer(buffer, length, "buffer")?;
            let at = file.position.load(Ordering::Acquire);
            let read = file.read(at, out)? as u64;
            file.position.store(at.saturating_add(read), Ordering::Release);
            Ok(read)
        })
    }
}

/// extant_pwrite() at the file's position, which moves. Threads that share a handle use extant_pwrite().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_write(
    file: *mut extant_file,
    buffer: *const c_void,
    length: usize,
) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            let file = caller.file(file)?;
            let bytes = caller.bytes(buffer, length, "buffer")?;
            let at = file.position.load(Ordering::Acquire);
            let written = file.write(at, bytes)? as u64;
            let now = if file.appends { file.file.len() } else { at.saturating_add(written) };
            file.position.store(now, Ordering::Release);
            Ok(written)
        })
    }
}

/// Moves the file's position; `whence` is EXTANT_SEEK_*. Returns the position, or a negative errno: -ENXIO where there is no
/// more data (EXTANT_SEEK_DATA) or the end was passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_seek(file: *mut extant_file, offset: i64, whence: c_int) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            const ENXIO: i32 = 6;
            let file = caller.file(file)?;
            let past = || Error::argument("seek: past the end of the file").with_errno(ENXIO);
            let start = || u64::try_from(offset).map_err(|_| past());
            let to = match whence {
                EXTANT_SEEK_SET => u64::try_from(offset).ok(),
                EXTANT_SEEK_CUR => file.position.load(Ordering::Acquire).checked_add_signed(offset),
                EXTANT_SEEK_END => file.file.len().checked_add_signed(offset),
                EXTANT_SEEK_DATA => Some(file.file.inode().seek_data(start()?)?.ok_or_else(past)?),
                EXTANT_SEEK_HOLE => Some(file.file.inode().seek_hole(start()?)?.ok_or_else(past)?),
                _ => return Err(Error::argument(format!("seek: unknown whence {whence}"))),
            };
            let to = to.filter(|to| i64::try_from(*to).is_ok());
            let to = to.ok_or_else(|| {
                Error::argument("seek: to a position before byte 0, or behind 2^63 - 1")
            })?;
            file.position.store(to, Ordering::Release);
            Ok(to)
        })
    }
}

/// Makes contents and attributes of a file durable. Returns 0 or a negative errno: also, once, when writeback failed since
/// the file was opened or last synced, although everything is durable now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_fsync(file: *mut extant_file) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            caller.file(file)?.file.sync()?;
            Ok(0)
        })
    })
}

/// Makes the contents of a file durable, and what is needed to read them back. Returns as extant_fsync().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_fdatasync(file: *mut extant_file) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            caller.file(file)?.file.sync_data()?;
            Ok(0)
        })
    })
}

/// Returns what a mode of the header is.
pub(super) fn fallocate_mode(mode: u32) -> Result<Fallocate> {
    let keep_size = mode & EXTANT_FALLOCATE_KEEP_SIZE != 0;
    let plain = mode & !EXTANT_FALLOCATE_KEEP_SIZE;
    Ok(match plain {
        EXTANT_FALLOCATE_ALLOCATE => Fallocate::Allocate { keep_size },
        EXTANT_FALLOCATE_ZERO_RANGE => Fallocate::ZeroRange { keep_size },
        EXTANT_FALLOCATE_PUNCH_HOLE => Fallocate::PunchHole,
        EXTANT_FALLOCATE_COLLAPSE if !keep_size => Fallocate::CollapseRange,
        EXTANT_FALLOCATE_INSERT if !keep_size => Fallocate::InsertRange,
        EXTANT_FALLOCATE_WRITE_ZEROES if !keep_size => Fallocate::WriteZeroes,
        _ => return Err(Error::argument(format!("fallocate: unknown mode {mode:#x}"))),
    })
}

/// A range of bytes of a file.
pub(super) fn range(offset: u64, length: u64) -> Result<Range<u64>> {
    let end = offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok());
    let end = end.ok_or_else(|| Error::argument("the range ends past the largest file"))?;
    Ok(offset..end)
}

/// Gives space to `length` bytes at byte `offset`, or takes it away; `mode` is EXTANT_FALLOCATE_*. Returns 0 or a negative
/// errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_fallocate(
    file: *mut extant_file,
    mode: u32,
    offset: u64,
    length: u64,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let file = caller.file(file)?;
            file.check_writes()?;
            let range = range(offset, length)?;
            file.file.inode().fallocate(fallocate_mode(mode)?, range)?;
            Ok(0)
        })
    })
}

/// Makes `bytes` the size of an open file; growth reads as zeros. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_ftruncate(file: *mut extant_file, bytes: u64) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let file = caller.file(file)?;
            file.check_writes()?;
            file.file.set_len(bytes)?;
            Ok(0)
        })
    })
}

/// Lends up to `length` bytes of a file from byte `offset` on, as they lie in the cache: nothing is
/// copied. `look` is called once, before this returns, with the pieces of memory in their order, up
/// to the end of the file; at most a quarter of the cache at once. The memory is for reading, until
/// `look` returns; no write changes the file meanwhile. `look` must not throw, longjmp, or call
/// extant. Only on writable mounts.
///
/// Returns the result of `look`, if that is not negative, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_with_cached(
    file: *mut extant_file,
    offset: u64,
    length: u64,
    look: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            pieces: *const extant_iovec,
            count: usize,
        ) -> c_int,
    >,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does, and that `look` can be called with `context`; the pieces are
    // lent for the time of its call.
    int(unsafe {
        enter(|caller| {
            let look = look.ok_or_else(|| Error::null("look"))?;
            let file = caller.file(file)?;
            file.check_reads()?;
            let range = range(offset, length)?;
            let said = file.file.inode().with_cached(range, |slices| {
                let piece = |slice: &std::io::IoSlice<'_>| extant_iovec {
                    base: slice.as_ptr().cast_mut().cast(),
                    length: slice.len(),
                };
                let pieces: Vec<_> = slices.iter().map(piece).collect();
                call_back(|| look(context, pieces.as_ptr(), pieces.len()))
            })?;
            said_by_callback(said)
        })
    })
}

/// Converts the result of a callback that may refuse.
fn said_by_callback(said: c_int) -> Result<u64> {
    u64::try_from(said).map_err(|_| {
        let errno = said.checked_neg().filter(|errno| *errno < 4096).unwrap_or(5);
        let code = crate::error::EXTANT_E_CANCELLED;
        Error::new(code, format!("the callback returned {said}")).with_errno(errno)
    })
}

/// Returns what memory, offsets and lengths of direct I/O have to be multiples of, in bytes; 0 where the file cannot
/// have direct I/O. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_direct_alignment(
    file: *mut extant_file,
    memory: *mut u32,
    offset: *mut u32,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let (memory, offset) =
                (caller.place(memory, "memory")?, caller.place(offset, "offset")?);
            let file = caller.file(file)?;
            let found = file.file.inode().direct_alignment();
            memory.put(found.map_or(0, |found| found.memory));
            offset.put(found.map_or(0, |found| found.offset));
            Ok(0)
        })
    })
}
