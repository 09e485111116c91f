//! A name space in memory that says what a file system should have done.
//!
//! # Place
//!
//! Knows no device and no ext4 structure. [`proof`](crate::proof) and [`sim`](crate::sim) do the
//! same operations to a [`Tree`] and to a file system, and compare.
//!
//! # Parts
//!
//! - [`Tree`]: nodes with all that a user can see of them; hard links are shared nodes. A
//!   [fingerprint](Tree::fingerprint) for speed, a [difference](Tree::differences) for people.
//! - [`Content`]: the bytes of a file; those that [`Op::Write`] writes say whose they are.
//! - [`Op`]: one operation, by path.
//! - [`Model`]: a tree, a clock, and what each operation does to them, errors included, in the
//!   order in which Linux finds them.
//! - [`Generator`]: operations from a seed, most of which succeed.

mod apply;
mod content;
mod generate;
mod ops;
mod tree;

pub use apply::{Model, Outcome, Rules, errno, pages};
pub use content::{Content, PIECE_BYTES, is_written, pattern, written};
pub use extant_format::inode::FileKind;
pub use generate::{Generator, Profile};
pub use ops::{NewNode, Op, Path, RenameMode, Space, Special, Which, XattrWrite};
pub use tree::{Node, NodeId, Tree};
