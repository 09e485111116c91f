//! extant for C and C++: `libextant`, whose header is `include/extant.h`. `docs/c-api.md` is its documentation.
//!
//! # Place
//!
//! Above `extant`, `extant-image` and `extant-check`: it translates and decides nothing. Nothing in the workspace uses it.
//!
//! # Floors
//!
//! ```text
//! exports         the functions of the header, by subject
//! device          a device of callbacks
//! caller          the way in: what pointers say, panics, the last error of a thread
//! handle          numbers that look like pointers, and what they stand for
//! object          what handles stand for
//! error           every error as number, errno, text and object
//! types           structures and constants of the header
//! ```
//!
//! # Rules
//!
//! - C1. A pointer is looked at in `caller` and `device` and nowhere else; the functions of `exports` hand them on.
//! - C2. A handle is never dereferenced: it is a number that is looked up. One that was closed, or is none, is an error.
//! - C3. No panic leaves a function. What it happened to is poisoned: it can be closed and nothing else.
//! - C4. No lock is held when a function returns, nor when it calls back.
#![deny(unsafe_code)]
#![allow(unreachable_pub, reason = "what is pub is what the header has")]

mod caller;
mod device;
mod error;
mod exports;
mod handle;
mod object;
mod types;
