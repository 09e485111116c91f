//! What a device of your own needs: all types in the interface of [`BlockDevice`].
//!
//! A device answers requests in batches ([`BlockDevice::submit`]). One without a queue of its own hands each batch to
//! [`run_in_place`], which calls `read_at`, `write_at`, `flush`, `discard` and `write_zeroes`; then these five must not
//! be left to the trait, whose own versions call `submit`. [`MountOptions::open_shared`](crate::MountOptions::open_shared)
//! mounts what is on it.
//!
//! ```
//! use std::sync::{Arc, RwLock};
//!
//! use extant::device::{
//!     BlockDevice, DeviceError, Operation, OperationKind, Pending, check_range, run_in_place,
//! };
//!
//! /// Bytes in memory.
//! struct Ram(RwLock<Vec<u8>>);
//!
//! impl BlockDevice for Ram {
//!     fn submit(&self, batch: Vec<Operation>) -> Pending {
//!         run_in_place(self, batch)
//!     }
//!
//!     fn size_bytes(&self) -> u64 {
//!         self.0.read().unwrap().len() as u64
//!     }
//!
//!     fn is_read_only(&self) -> bool {
//!         false
//!     }
//!
//!     fn describe(&self) -> Arc<str> {
//!         "bytes in memory".into()
//!     }
//!
//!     fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
//!         check_range(self, OperationKind::Read, offset, out.len() as u64)?;
//!         let start = offset as usize;
//!         out.copy_from_slice(&self.0.read().unwrap()[start..start + out.len()]);
//!         Ok(())
//!     }
//!
//!     fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
//!         check_range(self, OperationKind::Write, offset, bytes.len() as u64)?;
//!         let start = offset as usize;
//!         self.0.write().unwrap()[start..start + bytes.len()].copy_from_slice(bytes);
//!         Ok(())
//!     }
//!
//!     fn flush(&self) -> Result<(), DeviceError> {
//!         Ok(())
//!     }
//!
//!     fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
//!         check_range(self, OperationKind::Discard, offset, len)
//!     }
//!
//!     fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
//!         check_range(self, OperationKind::WriteZeroes, offset, len)?;
//!         self.0.write().unwrap()[offset as usize..(offset + len) as usize].fill(0);
//!         Ok(())
//!     }
//! }
//!
//! let device = Ram(RwLock::new(vec![1; 1 << 20]));
//! device.write_zeroes(512, 512)?;
//! let mut bytes = [7; 2];
//! device.read_at(511, &mut bytes)?;
//! assert_eq!(bytes, [1, 0]);
//! let error = device.read_at(1 << 20, &mut bytes).unwrap_err();
//! assert_eq!(error.offset(), 1 << 20);
//! // There is no file system on it.
//! assert!(extant::MountOptions::new().open_shared(Arc::new(device)).is_err());
//! # Ok::<(), DeviceError>(())
//! ```

pub use extant_block::{
    AlignedBuffer, BUFFER_ALIGN, BlockDevice, Completion, DeviceEngine, DeviceError, DeviceFault,
    Engine, EngineInfo, Finished, LastingQueue, Operation, OperationKind, Pending, Queue,
    QueueOptions, ReadRun, SharedDevice, Wait, WriteRun, check_range, run_in_place,
};
