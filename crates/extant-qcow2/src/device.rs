//! The image as a block device.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use extant_base::sabotage;
use extant_block::{
    BlockDevice, DeviceError, DeviceFault, Operation, OperationKind, Pending, check_range,
    run_in_place,
};
use extant_sync::check_may_wait;

use crate::image::Qcow2;
use crate::write::Emptying;

impl Qcow2 {
    fn run(
        &self,
        kind: OperationKind,
        offset: u64,
        len: u64,
        work: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), DeviceError> {
        check_may_wait("a device");
        check_range(self, kind, offset, len)?;
        if len == 0 && kind != OperationKind::Flush {
            return Ok(());
        }
        let failed =
            |error| DeviceError::new(self.describe(), kind, offset, len, DeviceFault::Io(error));
        work().map_err(failed)
    }
}

impl BlockDevice for Qcow2 {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        run_in_place(self, batch)
    }

    fn size_bytes(&self) -> u64 {
        self.header.size
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn describe(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn is_overlay(&self) -> bool {
        self.backing.is_some()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.run(OperationKind::Read, offset, out.len() as u64, || self.read(offset, out))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.run(OperationKind::Write, offset, bytes.len() as u64, || self.write(offset, bytes))
    }

    fn near_bytes(&self) -> u64 {
        let below = self.backing.as_ref().map_or(0, |backing| backing.near_bytes());
        self.store.near_bytes().max(below)
    }

    fn bring_near(&self, ranges: &[Range<u64>]) {
        if self.near_bytes() > 0 && !sabotage("qcow2.read.near-not-handed-on") {
            check_may_wait("a device");
            self.bring_parts_near(ranges);
        }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.run(OperationKind::Flush, 0, 0, || self.flush_all())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.run(OperationKind::Discard, offset, len, || self.empty(offset, len, Emptying::Discard))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.run(OperationKind::WriteZeroes, offset, len, || {
            self.empty(offset, len, Emptying::Zero)
        })
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.run(OperationKind::Allocate, offset, len, || self.set_room_aside(offset, len))
    }
}

impl Drop for Qcow2 {
    /// Unflushed data was not promised to be durable; it is flushed if possible.
    fn drop(&mut self) {
        if !self.is_read_only {
            let _ = self.flush_all();
        }
    }
}
