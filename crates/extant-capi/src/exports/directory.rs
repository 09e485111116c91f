//! Directories: listing by cookie.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use extant_sync::{Mutex, Rank};

use super::int;
use crate::caller::{enter, wrong};
use crate::error::Error;
use crate::object::{DirObject, Object, Opened};
use crate::types::{extant_dir, extant_dirent, extant_fs};

/// Opens a directory, links followed. Returns 0 and sets `*dir`, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_opendir(
    fs: *mut extant_fs,
    path: *const c_char,
    dir: *mut *mut extant_dir,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let place = caller.place(dir, "dir")?;
            let fs = caller.fs(fs)?;
            let opened = Opened::new(&fs)?;
            let inode = fs.fs.resolve(caller.path(path)?)?;
            // Refuses what is no directory.
            let listing = inode.read_dir()?;
            let listing = Mutex::new(Rank::Leaf, Some((0, listing)));
            let object = Object::Dir(Arc::new(DirObject { inode, listing, opened }));
            place.put(caller.open(object)?);
            Ok(0)
        })
    })
}

/// Stores up to `count` entries, without `.` and `..`: those after the one that had `cookie`; 0 is
/// the start. Returns the number of entries, 0 at the end, or a negative errno. An entry that
/// exists all the time is listed once, whatever else is created and removed meanwhile. Entries
/// before damage are returned first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_readdir(
    dir: *mut extant_dir,
    cookie: u64,
    entries: *mut extant_dirent,
    count: usize,
) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            let dir = caller.dir(dir)?;
            let out = caller.entries(entries, count)?;
            if i64::try_from(cookie).is_err() {
                return Err(Error::argument("readdir: a cookie that no entry had"));
            }
            // Out of its lock: two threads may list at once, and each but one begins anew.
            let listing = dir.listing.lock().take().filter(|(at, _)| *at == cookie);
            let mut listing = match listing {
                Some((_, listing)) => listing,
                None => dir.inode.read_dir()?.seek(cookie),
            };
            let (mut stored, mut at) = (0, cookie);
            for place in out {
                let entry = match listing.next() {
                    None => break,
                    Some(Err(_)) if stored > 0 => {
                        // Met again by the next call, which begins there.
                        return Ok(stored);
                    }
                    Some(entry) => entry?,
                };
                let mut name = [0; 256];
                for (to, from) in name.iter_mut().zip(entry.name()) {
                    *to = from.cast_signed() as c_char;
                }
                at = entry.cookie();
                place.write(extant_dirent {
                    ino: entry.ino().0.into(),
                    cookie: at,
                    kind: entry.kind().map_or(0, |kind| kind.mode_bits().into()),
                    // At most 255.
                    name_length: entry.name().len() as u32,
                    name,
                });
                stored += 1;
            }
            *dir.listing.lock() = Some((at, listing));
            Ok(stored)
        })
    }
}

/// Closes a directory. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_closedir(dir: *mut extant_dir) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            caller.close(dir, "dir", |object| match object {
                Object::Dir(_) => Ok(()),
                _ => Err(wrong("a directory")),
            })?;
            Ok(0)
        })
    })
}
