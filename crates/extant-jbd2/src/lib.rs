//! extant-jbd2.
#![forbid(unsafe_code)]
