//! The functions of the header, by subject.
//!
//! Each function runs its body through [`enter`](crate::caller::enter), whose contract is that of
//! the header; that call is its only unsafe operation.

mod attributes;
mod directory;
mod file;
mod image;
mod keys;
mod mount;
mod names;
mod ring;

use std::ffi::c_int;

/// The answer of a function that says 0 or a small number, or a negative errno.
fn int(answer: i64) -> c_int {
    c_int::try_from(answer).unwrap_or(c_int::MAX)
}
