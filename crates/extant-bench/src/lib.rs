//! extant-bench.
#![forbid(unsafe_code)]
