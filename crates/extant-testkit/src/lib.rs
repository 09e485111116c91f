//! extant-testkit.
#![forbid(unsafe_code)]
