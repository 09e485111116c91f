//! The kit's own tests.
//!
//! One program for all of them: each has to be linked with everything it tests.

mod crash;
mod kernel_model;
mod testkit;
