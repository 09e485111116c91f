//! Block devices: one trait, and the back-ends extant needs to reach images, disks and memory.
//!
//! # Place
//!
//! Below: `extant-sync` gives locks. Above: the file system, the journal and the image builder
//! reach every byte of an image through [`BlockDevice`]. This crate knows neither files nor ext4.
//!
//! # Shape
//!
//! ```text
//! BlockDevice            submit a batch of owned operations; convenience calls on borrowed bytes
//!  +- FileDevice         a regular file or a block device, by positional I/O
//!  +- MemoryDevice       sparse memory, for tests and in-process images
//!  +- RecordingDevice    records every write, flush and discard in order
//!  +- FaultDevice        another device with errors and delays chosen by a seed
//!  +- ThinDevice         sparse memory with limited space
//!  +- WindowDevice       a byte range of another device
//! WriteRun, ReadRun      several runs at once, of memory that the caller lends for the call
//! Queue                  asynchronous operations of one thread on any device; io_uring on files
//! partition              finds the ranges of partitions in a GPT or MBR table
//! ```
//!
//! `partition` is a Cargo feature, on by default.
//!
//! The promises of a device are defined in `docs/crash-model.md`.
#![deny(unsafe_code)]

mod buffer;
mod device;
mod discard;
mod error;
mod fault;
mod file;
mod fresh;
mod length;
mod lent;
mod memory;
mod operation;
#[cfg(feature = "partition")]
pub mod partition;
mod queue;
mod recording;
mod rings;
mod room;
mod run_batch;
mod runs;
mod thin;
mod uring;
mod window;

pub use buffer::{AlignedBuffer, BUFFER_ALIGN};
pub use device::{BlockDevice, SharedDevice, check_range, run_in_place};
pub use error::{DeviceError, DeviceFault, OperationKind};
pub use fault::{FaultDevice, FaultPlan};
pub use file::{FileDevice, OpenError, lock_holder, loop_device_over};
pub use fresh::read_fresh_at;
pub use memory::MemoryDevice;
pub use operation::{Completion, Operation, Pending};
pub use queue::{
    DeviceEngine, Engine, EngineInfo, Finished, LastingQueue, QUEUE_DEPTH_MAX, Queue, QueueOptions,
    UnknownEngine, Wait,
};
pub use recording::{Event, Record, RecordingDevice, Survival, Touch, protected_from};
pub use rings::set_default_engine;
pub use run_batch::{read_runs_as_batch, write_runs_as_batch};
pub use runs::{ReadRun, WriteRun};
pub use thin::ThinDevice;
pub use window::{WindowDevice, WindowError};
