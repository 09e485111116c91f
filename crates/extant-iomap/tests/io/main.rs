//! The cache over a file system that is not ext4: `support` says which.

mod model;
mod support;
