//! The sub-commands, each with its options and its `run`.

pub(crate) mod build;
pub(crate) mod cat;
pub(crate) mod completions;
pub(crate) mod extents;
pub(crate) mod extract;
pub(crate) mod find;
pub(crate) mod info;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mkfs;
pub(crate) mod stat;
pub(crate) mod tree;
