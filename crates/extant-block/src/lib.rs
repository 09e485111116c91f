//! extant-block.
#![forbid(unsafe_code)]
