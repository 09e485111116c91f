//! extant-image.
#![forbid(unsafe_code)]
