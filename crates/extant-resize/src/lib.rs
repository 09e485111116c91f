//! Gives ext2/3/4 images another size.
//!
//! # Place
//!
//! Above the formats and the layout, and above `extant-change`, which changes structures in a draft and
//! brings them to the device.
//!
//! # Shape
//!
//! ```text
//! resize     what is asked for, what it comes to, and the steps of it
//!   grow       shape of the larger file system, places of new metadata
//!   shrink     obstacles, what moves in front of the new end, the new end
//!     inodes     inodes get other numbers
//! ```
//!
//! # Invariants
//!
//! - Z1. Nothing is written before the whole step is known, and each step leads from a file system in
//!   order to one in order; cut in between, the journal or a check leads to one of the two, and no file
//!   is lost.
//! - Z2. New groups are initialised and durable before the superblock counts them.
//! - Z3. What a layout cannot do is refused with the size that it can reach.
//! - Z4. Nothing on the image makes it panic, or loop or allocate without bound: memory is the changed
//!   blocks and the descriptors.
#![forbid(unsafe_code)]

mod error;
mod grow;
mod inodes;
mod resize;
mod shrink;

pub use error::ResizeError;
pub use extant_change::ChangeError;
pub use resize::{Goal, Plan, Sizes, plan, resize, sizes};
