//! An engine of fio: `fio --ioengine=external:libextant_fio.so` does its I/O in files of an ext4 image, in process.
//! `docs/benchmarks.md` says how it is used.
//!
//! # Place
//!
//! Above `extant`, loaded by fio. fio is not linked, and nothing of it is copied: what is known of its structures are
//! positions and types of fields, of the versions that `abi` lists; others are refused.
//!
//! # Floors
//!
//! ```text
//! hooks       the functions that fio calls
//! abi         where things lie in fio's memory
//! job         one job of fio: its files, its ring
//! mounted     the image, shared by the jobs of a process
//! options     what a job was told
//! ```
//!
//! # Rules
//!
//! - E1. All hooks of a job run on its thread, but for those that fio calls before it starts it: what a job has is the thread's.
//! - E2. fio forks a job unless it is told `--thread`: no thread, ring or lock is there before the job's `init`.
//! - E3. No panic reaches fio: it becomes an error of the call.
#![deny(unsafe_code)]
#![allow(unreachable_pub, reason = "what is pub is what fio finds")]

mod abi;
mod hooks;
mod job;
mod mounted;
mod options;
