//! Keys of encrypted files, and policies of directories.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::ffi::{c_char, c_int, c_void};

use extant::{EncryptionPolicy, KeySpec, MasterKey};

use super::int;
use crate::caller::{Caller, enter};
use crate::error::{Error, Result};
use crate::types::extant_fs;

/// Reads the name of a key.
fn name_of(caller: &Caller, name: *const c_char) -> Result<KeySpec> {
    let name = str::from_utf8(caller.text(name, "name")?).ok().and_then(|name| name.parse().ok());
    name.ok_or_else(|| Error::argument("name: 32 or 16 hex digits"))
}

/// Adds a key of 16 to 64 bytes for encrypted files and directories. Stores its name in `name`, which has room for 33
/// bytes: 32 hex digits and a zero byte; `name` may be NULL. The library keeps a copy of the key and wipes it at the end.
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_add_key(
    fs: *mut extant_fs,
    key: *const c_void,
    length: usize,
    name: *mut c_char,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let key = MasterKey::new(caller.bytes(key, length, "key")?);
            let key = key.map_err(|error| Error::argument(format!("key: {error}")))?;
            let added = fs.fs.add_key(key)?;
            if !name.is_null() {
                let text = added.to_string();
                let room = caller.buffer(name.cast(), text.len() + 1, "name")?;
                room[..text.len()].copy_from_slice(text.as_bytes());
                room[text.len()] = 0;
            }
            Ok(0)
        })
    })
}

/// Removes a key by its name: 32 hex digits, or 16 of the name in a policy of version 1. What was written before is stored
/// first. Returns 1, 0 if there was no such key, or a negative errno: the key stays then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_remove_key(fs: *mut extant_fs, name: *const c_char) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let name = name_of(caller, name)?;
            Ok(u64::from(fs.fs.remove_key(&name)?))
        })
    })
}

/// Encrypts an empty directory with a key that was added: what is made in it from now on is encrypted, with AES-256. Returns
/// 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_encrypt(
    fs: *mut extant_fs,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let fs = caller.fs(fs)?;
            let policy = EncryptionPolicy::new(name_of(caller, name)?);
            fs.fs.resolve(caller.path(path)?)?.set_encryption_policy(&policy)?;
            Ok(0)
        })
    })
}
