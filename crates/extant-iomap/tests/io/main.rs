//! The cache over a file system that is not ext4: `support` says which.

mod ahead;
mod direct;
mod errors;
mod model;
mod nowait;
mod pitfalls;
mod small;
mod support;
mod together;
mod zero_range;
