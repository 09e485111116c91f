//! A file system that becomes larger while it is mounted: orders, and what they come to.

use extant::{FsError, GrowTo, Grown, GrownSize};
use serde_json::{Value, json};

use super::Ext4;
use crate::events::Level;
use crate::operations::{Caller, Errno, Reply};
use crate::orders::{GROW, GROWTH};

/// Room that an image file is taken to have: what its file system lacks is found when it is written.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Reads the size in the name of an attribute.
fn size_in(text: &[u8]) -> Reply<GrowTo> {
    if text == b"max" {
        return Ok(GrowTo::DeviceEnd);
    }
    let text = std::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    text.parse().map(GrowTo::Bytes).map_err(|_| Errno::EINVAL)
}

impl Ext4<'_> {
    /// Returns what growing would come to.
    fn growth(&self, to: GrowTo) -> Result<Grown, FsError> {
        let device = self.fs().device();
        let has = device.extend(0).map_err(FsError::from)?;
        let room = match to {
            GrowTo::DeviceEnd => has,
            _ if device.can_extend() => FILE_BYTES_MAX,
            _ => has,
        };
        self.fs().plan_growth(to, room)
    }

    /// Makes the file system larger, and an image file before, if it is too short for that.
    pub(super) fn grow(&self, to: GrowTo) -> Result<Grown, FsError> {
        let planned = self.growth(to)?;
        let device = self.fs().device();
        if planned.after.bytes > device.size_bytes() {
            device.extend(planned.after.bytes).map_err(FsError::from)?;
        }
        let done = self.fs().grow(GrowTo::Blocks(planned.after.blocks))?;
        let (before, after) = (done.before.bytes, done.after.bytes);
        self.events.log(Level::Info, &format!("has grown from {before} to {after} bytes"));
        Ok(done)
    }

    /// The answer to a question or an order about the size; `None` when it is neither.
    pub(super) fn growth_query(&self, caller: Caller, name: &[u8]) -> Option<Reply<Vec<u8>>> {
        let (size, is_order) = match name.strip_prefix(GROW) {
            Some(size) => (size, true),
            None => (name.strip_prefix(GROWTH)?, false),
        };
        Some(self.answer_growth(caller, size, is_order))
    }

    fn answer_growth(&self, caller: Caller, size: &[u8], is_order: bool) -> Reply<Vec<u8>> {
        self.check_operator(caller)?;
        let to = size_in(size)?;
        if is_order {
            self.check_change()?;
            if self.gate.is_frozen() {
                return Err(Errno(16)); // EBUSY
            }
        }
        let result = if is_order { self.grow(to) } else { self.growth(to) };
        let answer = match result {
            Ok(grown) => to_json(
                &grown,
                self.fs().features().has(extant_format::features::Feature::HAS_JOURNAL),
            ),
            Err(error @ (FsError::CannotGrow(_) | FsError::DeviceFull(_) | FsError::ReadOnly)) => {
                json!({ "refused": error.to_string(), "errno": error.errno() })
            }
            Err(error) => return Err(self.errno(&error)),
        };
        Ok(answer.to_string().into_bytes())
    }
}

fn size_json(size: &GrownSize) -> Value {
    json!({
        "bytes": size.bytes,
        "blocks": size.blocks,
        "groups": size.groups,
        "inodes": size.inodes,
    })
}

fn to_json(grown: &Grown, journaled: bool) -> Value {
    json!({
        "block_bytes": grown.block_bytes,
        "before": size_json(&grown.before),
        "after": size_json(&grown.after),
        "reserved_blocks_used": grown.reserved_used,
        "turns_meta_bg": grown.turned_meta_bg,
        "journaled": journaled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_names_are_read() {
        assert_eq!(size_in(b"max"), Ok(GrowTo::DeviceEnd));
        assert_eq!(size_in(b"4096"), Ok(GrowTo::Bytes(4096)));
        for text in [&b""[..], b"-1", b"4K", b"max ", b"99999999999999999999", b"\xff"] {
            let read = size_in(text);
            assert_eq!(read, Err(Errno::EINVAL), "{text:?}");
        }
    }
}
