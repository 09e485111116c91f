//! Unit types, checked arithmetic and a seeded random source, shared by every extant crate.
//!
//! # Place
//!
//! At the bottom: depends on nothing, knows nothing of devices, files or formats. What lives here
//! is either a number with a unit (so that mixing two units does not compile) or arithmetic that
//! must not overflow on numbers read from a hostile image. And [`sabotage`], by which tests are tested.
#![no_std]
#![forbid(unsafe_code)]

mod prng;
mod sabotage;
mod units;

pub use prng::Prng;
pub use sabotage::sabotage;
pub use units::{
    BlockCount, BlockSize, BlockSizeError, FileBlock, FsBlock, GroupIndex, Ino, align_up,
    div_ceil_u64,
};
