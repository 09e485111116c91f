//! The cache over a file system that is not ext4: `support` says which.

mod ahead;
mod beside;
mod direct;
mod errors;
mod filling;
mod model;
mod nowait;
mod once;
mod pitfalls;
mod queued;
mod small;
mod support;
mod together;
mod zero_range;
