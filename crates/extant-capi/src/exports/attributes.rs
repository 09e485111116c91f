//! Attributes: stat, permissions, owners, times, sizes by path, extended attributes.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::ffi::{c_char, c_int, c_void};

use extant::{Fs, Inode, Metadata, SetAttributes, TimeChange, Timestamp, XattrMode};

use super::file::permissions;
use super::int;
use crate::caller::{Caller, enter};
use crate::error::{EXTANT_E_RANGE, Error, Result};
use crate::types::{
    EXTANT_ID_OMIT, EXTANT_NOFOLLOW, EXTANT_TIME_NOW, EXTANT_TIME_OMIT, EXTANT_XATTR_CREATE,
    EXTANT_XATTR_REPLACE, extant_file, extant_fs, extant_stat, extant_time,
};

/// Returns what a path means; `flags` is 0 or EXTANT_NOFOLLOW.
fn resolve(caller: &Caller, fs: &Fs, path: *const c_char, flags: u32) -> Result<Inode> {
    let path = caller.path(path)?;
    match flags {
        0 => Ok(fs.resolve(path)?),
        EXTANT_NOFOLLOW => Ok(fs.resolve_link(path)?),
        _ => Err(Error::argument(format!("unknown flags {flags:#x}"))),
    }
}

fn time(time: Timestamp) -> extant_time {
    extant_time { seconds: time.seconds, nanoseconds: time.nanos.min(999_999_999), reserved: 0 }
}

fn stat_of(fs: &Fs, found: &Metadata) -> extant_stat {
    let (device_major, device_minor) = found.rdev.unwrap_or_default();
    extant_stat {
        size: 0,
        ino: found.ino.0.into(),
        mode: found.mode().into(),
        links: found.links,
        uid: found.uid,
        gid: found.gid,
        bytes: found.size,
        blocks: found.blocks,
        block_bytes: fs.block_size().bytes(),
        flags: found.flags.bits(),
        device_major,
        device_minor,
        atime: time(found.atime),
        mtime: time(found.mtime),
        ctime: time(found.ctime),
        crtime: found.crtime.map(time).unwrap_or_default(),
        generation: found.generation,
        project: found.project,
        version: found.version,
    }
}

/// A time of the header; `None` for one that stays.
fn change(time: &extant_time) -> Result<Option<TimeChange>> {
    Ok(match time.nanoseconds {
        EXTANT_TIME_OMIT => None,
        EXTANT_TIME_NOW => Some(TimeChange::Now),
        nanos if nanos < 1_000_000_000 => {
            Some(TimeChange::To(Timestamp { seconds: time.seconds, nanos }))
        }
        nanos => return Err(Error::argument(format!("a time with {nanos} nanoseconds"))),
    })
}

/// Attributes of what `path` means; `flags` is 0 or EXTANT_NOFOLLOW. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_get_stat(
    fs: *mut extant_fs,
    path: *const c_char,
    flags: u32,
    stat: *mut extant_stat,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let answer = caller.answer(stat, "stat")?;
            let fs = caller.fs(fs)?;
            let found = resolve(caller, &fs.fs, path, flags)?;
            answer.put(stat_of(&fs.fs, &found.metadata()));
            Ok(0)
        })
    })
}

/// Attributes of an open file. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_get_fstat(file: *mut extant_file, stat: *mut extant_stat) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let answer = caller.answer(stat, "stat")?;
            let file = caller.file(file)?;
            answer.put(stat_of(&file.opened.fs().fs, &file.file.metadata()));
            Ok(0)
        })
    })
}

/// Sets the permissions (0 to 07777) of what `path` means, links followed. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_chmod(fs: *mut extant_fs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let changes = SetAttributes::new().permissions(permissions(mode)?);
            resolve(caller, &fs.fs, path, 0)?.set_attributes(&changes)?;
            Ok(0)
        })
    })
}

/// Sets owner and group of what `path` means; EXTANT_ID_OMIT leaves one as it is. `flags` is 0 or EXTANT_NOFOLLOW. Returns 0 or a
/// negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_chown(
    fs: *mut extant_fs,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: u32,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let given = |id| (id != EXTANT_ID_OMIT).then_some(id);
            let changes = SetAttributes::new().owner(given(uid), given(gid));
            resolve(caller, &fs.fs, path, flags)?.set_attributes(&changes)?;
            Ok(0)
        })
    })
}

/// Sets the times of what `path` means: `times[0]` of the last access, `times[1]` of the last change; NULL for now. `flags` is 0
/// or EXTANT_NOFOLLOW. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_utimens(
    fs: *mut extant_fs,
    path: *const c_char,
    times: *const extant_time,
    flags: u32,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let (atime, mtime) = match caller.times(times)? {
                Some([atime, mtime]) => (change(&atime)?, change(&mtime)?),
                None => (Some(TimeChange::Now), Some(TimeChange::Now)),
            };
            let found = resolve(caller, &fs.fs, path, flags)?;
            found.set_attributes(&SetAttributes::new().times(atime, mtime))?;
            Ok(0)
        })
    })
}

/// Makes `bytes` the size of a regular file, links followed. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_truncate(
    fs: *mut extant_fs,
    path: *const c_char,
    bytes: u64,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            resolve(caller, &fs.fs, path, 0)?.truncate(bytes)?;
            Ok(0)
        })
    })
}

/// Copies a value; a buffer of 0 bytes only asks for its length.
fn copy_out(value: &[u8], out: &mut [u8], what: &str) -> Result<u64> {
    if out.is_empty() {
        return Ok(value.len() as u64);
    }
    let room = out.len();
    let Some(out) = out.get_mut(..value.len()) else {
        let message = format!("{what} has {} bytes, the buffer {room}", value.len());
        return Err(Error::new(EXTANT_E_RANGE, message));
    };
    out.copy_from_slice(value);
    Ok(value.len() as u64)
}

/// Stores the value of an extended attribute in `buffer`. `name` has its prefix ("user.comment"); `flags` is 0 or EXTANT_NOFOLLOW.
/// Returns its length in bytes, or a negative errno: -ERANGE when it is longer than `length`, -ENODATA when there is none. With a
/// `length` of 0 nothing is stored, and the length is returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_getxattr(
    fs: *mut extant_fs,
    path: *const c_char,
    name: *const c_char,
    buffer: *mut c_void,
    length: usize,
    flags: u32,
) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let out = caller.buffer(buffer, length, "buffer")?;
            let name = caller.text(name, "name")?;
            let value = resolve(caller, &fs.fs, path, flags)?.xattr(name)?;
            copy_out(&value, out, "the value")
        })
    }
}

/// Sets an extended attribute. `how` is 0, EXTANT_XATTR_CREATE or EXTANT_XATTR_REPLACE; `flags` is 0 or EXTANT_NOFOLLOW. Returns 0 or
/// a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_setxattr(
    fs: *mut extant_fs,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    length: usize,
    how: u32,
    flags: u32,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let value = caller.bytes(value, length, "value")?;
            let name = caller.text(name, "name")?;
            let mode = match how {
                0 => XattrMode::Any,
                EXTANT_XATTR_CREATE => XattrMode::Create,
                EXTANT_XATTR_REPLACE => XattrMode::Replace,
                _ => return Err(Error::argument(format!("setxattr: unknown way {how}"))),
            };
            resolve(caller, &fs.fs, path, flags)?.set_xattr(name, value, mode)?;
            Ok(0)
        })
    })
}

/// Stores the names of all extended attributes in `buffer`, each ended by a zero byte. Returns their length together, or a
/// negative errno: -ERANGE when `length` is less. With a `length` of 0 nothing is stored, and the length is returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_listxattr(
    fs: *mut extant_fs,
    path: *const c_char,
    buffer: *mut c_void,
    length: usize,
    flags: u32,
) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let out = caller.buffer(buffer, length, "buffer")?;
            let mut names = Vec::new();
            for name in resolve(caller, &fs.fs, path, flags)?.xattr_names()? {
                names.extend_from_slice(&name);
                names.push(0);
            }
            copy_out(&names, out, "the list")
        })
    }
}

/// Removes an extended attribute; `flags` is 0 or EXTANT_NOFOLLOW. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_removexattr(
    fs: *mut extant_fs,
    path: *const c_char,
    name: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let name = caller.text(name, "name")?;
            resolve(caller, &fs.fs, path, flags)?.remove_xattr(name)?;
            Ok(0)
        })
    })
}
