//! Extended attributes of one file, in as few system calls as possible.

use std::ffi::CStr;

use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;

use crate::source::{is_kept_xattr, lost_xattr};
use crate::tree::XattrSet;

/// Longest list of names, and longest value, that the kernel hands out
/// (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const XATTR_MAX: usize = 65536;

/// Bytes that are asked for first. The kernel allocates as much as it is asked for, for each file: 64 KiB for the many
/// files that have no attribute cost several times the call itself.
const XATTR_FIRST: usize = 512;

/// Reads extended attributes; one per thread, for its buffers.
pub(super) struct XattrReader {
    names: Vec<u8>,
    value: Vec<u8>,
}

impl XattrReader {
    pub(super) fn new() -> XattrReader {
        XattrReader { names: vec![0; XATTR_FIRST], value: vec![0; XATTR_FIRST] }
    }

    /// The attributes of `path`, not following a symlink, of the name spaces that ext4 has. Others are named in `lost`.
    ///
    /// # Errors
    ///
    /// What listing or reading gives; `ENODATA` when an attribute vanished between the two.
    pub(super) fn read(
        &mut self,
        path: &CStr,
        lost: &mut Vec<Box<str>>,
    ) -> Result<XattrSet, Errno> {
        let len = match sized(&mut self.names, |buffer| llistxattr(path, buffer)) {
            Err(Errno::OPNOTSUPP) => 0,
            result => result?,
        };
        let mut set = XattrSet::new();
        for name in self.names.get(..len).unwrap_or_default().split_inclusive(|&b| b == 0) {
            let Ok(c_name) = CStr::from_bytes_with_nul(name) else { continue };
            if is_kept_xattr(c_name.to_bytes()) {
                let len = sized(&mut self.value, |buffer| lgetxattr(path, c_name, buffer))?;
                let value = self.value.get(..len).unwrap_or_default();
                set.push((c_name.to_bytes().into(), value.into()));
            } else if !c_name.is_empty() {
                lost.push(lost_xattr(c_name.to_bytes()));
            }
        }
        Ok(set)
    }
}

/// Calls `ask` with a small buffer, and if that is too small with the largest that can be needed. Returns how many bytes
/// there are.
fn sized(
    buffer: &mut Vec<u8>,
    ask: impl Fn(&mut [u8]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    match ask(buffer.get_mut(..XATTR_FIRST).unwrap_or_default()) {
        Err(Errno::RANGE) => {
            buffer.resize(XATTR_MAX, 0);
            ask(buffer)
        }
        result => result,
    }
}
