//! extant.
#![forbid(unsafe_code)]
