//! extant for C and C++: `libextant`, whose header is `include/extant.h`. `docs/c-api.md` is its
//! documentation.
//!
//! # Place
//!
//! Above `extant`, `extant-image` and `extant-check`: it only translates. No other crate of the
//! workspace uses it.
//!
//! # Floors
//!
//! ```text
//! exports         the functions of the header, by subject
//! device          a device of callbacks
//! caller          entry from C: pointers, panics, the last error of a thread
//! handle          numbers that look like pointers, and their objects
//! object          the objects of handles
//! fork            forks of the process, in which a mount for writing is of no use
//! error           every error as number, errno, text and object
//! types           structures and constants of the header
//! ```
//!
//! # Rules
//!
//! - C1. Pointers are dereferenced in `caller` and `device` only; the functions of `exports` pass
//!   them on.
//! - C2. A handle is never dereferenced: it is a number that is looked up. A closed or invalid one
//!   is an error.
//! - C3. No panic leaves a function. Its object is poisoned: it can only be closed.
//! - C4. No lock is held when a function returns, nor when it calls back.
#![deny(unsafe_code)]
#![allow(unreachable_pub, reason = "what is pub is what the header has")]

mod caller;
mod device;
mod error;
mod exports;
mod fork;
mod handle;
mod object;
mod types;
