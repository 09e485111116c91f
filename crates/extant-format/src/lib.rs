//! extant-format.
#![forbid(unsafe_code)]
