//! Devices, their queues, their faults, and partitions.
//!
//! One program for all of them: each has to be linked with everything it tests.

mod cut_off;
mod devices;
mod faults;
#[cfg(feature = "partition")]
mod partitions;
mod queues;
