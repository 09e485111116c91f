//! Names: directories, links, symbolic links, renaming, removing.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::ffi::{c_char, c_int, c_void};

use extant::{NewInode, RenameFlags};

use super::file::permissions;
use super::int;
use crate::caller::enter;
use crate::error::{EXTANT_E_RANGE, Error};
use crate::types::{EXTANT_RENAME_EXCHANGE, EXTANT_RENAME_NOREPLACE, extant_fs};

/// Makes a directory of root's with the permissions `mode`. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_mkdir(fs: *mut extant_fs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let path = caller.path(path)?;
            fs.fs.create_dir(path, &NewInode::root(permissions(mode)?))?;
            Ok(0)
        })
    })
}

/// Removes a name that is no directory's. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_unlink(fs: *mut extant_fs, path: *const c_char) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            fs.fs.remove_file(caller.path(path)?)?;
            Ok(0)
        })
    })
}

/// Removes an empty directory. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_rmdir(fs: *mut extant_fs, path: *const c_char) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            fs.fs.remove_dir(caller.path(path)?)?;
            Ok(0)
        })
    })
}

/// Moves `path` to `to`, replacing what is there unless `flags` (EXTANT_RENAME_*, or 0) says otherwise. Returns 0 or a negative
/// errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_rename(
    fs: *mut extant_fs,
    path: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let to = caller.path(to)?;
            let from = caller.path(path)?;
            if flags & !(EXTANT_RENAME_NOREPLACE | EXTANT_RENAME_EXCHANGE) != 0 {
                return Err(Error::argument(format!("rename: unknown flags {flags:#x}")));
            }
            fs.fs.rename_with(from, to, RenameFlags::from_bits_truncate(flags))?;
            Ok(0)
        })
    })
}

/// Gives what is at `path` the name `to` as well; a symbolic link is meant itself. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_link(
    fs: *mut extant_fs,
    path: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let to = caller.path(to)?;
            fs.fs.hard_link(caller.path(path)?, to)?;
            Ok(0)
        })
    })
}

/// Makes a symbolic link at `path` to `target`, which need not exist. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_symlink(
    fs: *mut extant_fs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let target = caller.text(target, "target")?;
            fs.fs.symlink(target, caller.path(path)?, &NewInode::root(0o777))?;
            Ok(0)
        })
    })
}

/// Stores the target of a symbolic link, without a zero byte behind it, in `buffer`. Returns its length in bytes, or a negative
/// errno: -ERANGE when it is longer than `length`. With a `length` of 0 nothing is stored, and the length is returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_readlink(
    fs: *mut extant_fs,
    path: *const c_char,
    buffer: *mut c_void,
    length: usize,
) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let out = caller.buffer(buffer, length, "buffer")?;
            let target = fs.fs.read_link(caller.path(path)?)?;
            if length == 0 {
                return Ok(target.len() as u64);
            }
            let Some(out) = out.get_mut(..target.len()) else {
                let message = format!("the target has {} bytes, the buffer {length}", target.len());
                return Err(Error::new(EXTANT_E_RANGE, message));
            };
            out.copy_from_slice(&target);
            Ok(target.len() as u64)
        })
    }
}
