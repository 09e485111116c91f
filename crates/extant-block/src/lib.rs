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
//!  +- RecordingDevice    remembers every write, flush and discard in order
//!  +- FaultDevice        another device with errors and delays that a seed decides
//!  +- ThinDevice         memory on a disk that fills up
//!  +- WindowDevice       a byte range of another device
//! Queue                  many operations of one thread under way, over any of them; io_uring over files
//! partition              finds such a range in a GPT or MBR table
//! ```
//!
//! What a device promises, and what it does not, is in `docs/crash-model.md`.
#![deny(unsafe_code)]

mod buffer;
mod device;
mod discard;
mod error;
mod fault;
mod file;
mod memory;
mod operation;
pub mod partition;
mod queue;
mod recording;
mod room;
mod thin;
mod uring;
mod window;

pub use buffer::{AlignedBuffer, BUFFER_ALIGN};
pub use device::{BlockDevice, SharedDevice};
pub use error::{DeviceError, DeviceFault, OperationKind};
pub use fault::{FaultDevice, FaultPlan};
pub use file::{FileDevice, OpenError, lock_holder};
pub use memory::MemoryDevice;
pub use operation::{Completion, Operation, Pending};
pub use queue::{Engine, Finished, QUEUE_DEPTH_MAX, Queue, QueueOptions, Wait};
pub use recording::{Event, Record, RecordingDevice, Survival, Touch, protected_from};
pub use thin::ThinDevice;
pub use window::{WindowDevice, WindowError};
