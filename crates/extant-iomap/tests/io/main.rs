//! The cache over a file system that is not ext4: `support` says which.

mod errors;
mod model;
mod support;
mod zero_range;
