//! Changes of directories: entries inserted, removed and replaced, room made for them.

use std::sync::Arc;

use extant_base::Ino;
use extant_format::dir::FileType;

use crate::error::{FsError, Result};
use crate::mount::Fs;
use crate::node::Node;
use crate::txn::Txn;

/// Blocks that an insertion changes at most.
pub(crate) const INSERT_CREDITS: u32 = 32;

/// Blocks that a removal changes at most.
pub(crate) const REMOVE_CREDITS: u32 = 4;

/// Where there is room for a name.
#[derive(Debug)]
pub(crate) struct Place {}

fn missing<T>() -> Result<T> {
    Err(FsError::InvalidArgument { what: "directories cannot be changed yet" })
}

pub(crate) fn create(_: &mut Txn<'_>, _: &Fs, _dir: &Arc<Node>, _parent: Ino) -> Result<()> {
    missing()
}

pub(crate) fn prepare_insert(
    _: &mut Txn<'_>,
    _: &Fs,
    _dir: &Arc<Node>,
    _name: &[u8],
) -> Result<Place> {
    missing()
}

pub(crate) fn insert(
    _: &mut Txn<'_>,
    _: &Fs,
    _dir: &Arc<Node>,
    _place: Place,
    _name: &[u8],
    _ino: Ino,
    _file_type: FileType,
) -> Result<()> {
    missing()
}

pub(crate) fn remove(
    _: &mut Txn<'_>,
    _: &Fs,
    _dir: &Arc<Node>,
    _name: &[u8],
) -> Result<(Ino, FileType)> {
    missing()
}

pub(crate) fn replace(
    _: &mut Txn<'_>,
    _: &Fs,
    _dir: &Arc<Node>,
    _name: &[u8],
    _ino: Ino,
    _file_type: FileType,
) -> Result<Ino> {
    missing()
}

pub(crate) fn set_parent(_: &mut Txn<'_>, _: &Fs, _dir: &Arc<Node>, _parent: Ino) -> Result<()> {
    missing()
}

pub(crate) fn is_empty(_: &Fs, _dir: &Arc<Node>) -> Result<bool> {
    missing()
}
