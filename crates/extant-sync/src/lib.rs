//! extant-sync.
#![forbid(unsafe_code)]
