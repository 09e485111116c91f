//! One change, whole or not at all: an open handle, and everything that a writable mount has for it.
//!
//! # Place
//!
//! Below: `editor` (whose rules hold here), `writer`, `fs`. Above: everything that changes files and names
//! takes a `&mut Txn`; what it does to blocks and inodes are the methods of the [`Editor`] that it is.
//!
//! # Shape
//!
//! ```text
//! space     blocks of inodes                      quota    who pays
//! orphans   what a crash must not leave behind    contents what was promised for data in the cache
//! ```

mod contents;
mod orphans;
mod quota;
mod space;

use std::ops::{Deref, DerefMut};

use crate::alloc::Right;
use crate::editor::Editor;
use crate::error::Result;
use crate::fs::Mount;
use crate::writer::Writer;

/// A change of the file system in progress.
pub(crate) struct Txn<'v> {
    editor: Editor<'v>,
    mount: &'v Mount,
    writer: &'v Writer,
}

impl<'v> Deref for Txn<'v> {
    type Target = Editor<'v>;

    fn deref(&self) -> &Editor<'v> {
        &self.editor
    }
}

impl<'v> DerefMut for Txn<'v> {
    fn deref_mut(&mut self) -> &mut Editor<'v> {
        &mut self.editor
    }
}

impl<'v> Txn<'v> {
    /// Opens a handle: see [`Editor::begin`].
    ///
    /// # Errors
    ///
    /// Those, and [`FsError::ReadOnly`](crate::FsError::ReadOnly) on a mount for reading.
    pub(crate) fn begin(mount: &'v Mount, credits: u32) -> Result<Txn<'v>> {
        let writer = mount.writer()?;
        debug_assert!(writer.freeze_gate().may_change(), "a change while the mount is frozen");
        let editor = Editor::begin(mount, writer, credits)?;
        Ok(Txn { editor, mount, writer })
    }

    /// The volume, with its writer.
    pub(crate) fn volume(&self) -> &'v Mount {
        self.mount
    }

    pub(crate) fn writer(&self) -> &'v Writer {
        self.writer
    }

    /// Runs `change`, which gives space back or changes the state of what a file has: blocks that its map
    /// needs for that may be the last ones.
    pub(crate) fn rescue<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.editor.set_rescue(true);
        let result = change(self);
        self.editor.set_rescue(before);
        result
    }

    /// How much of the free space blocks may come from.
    pub(crate) fn right(&self) -> Right {
        if self.is_rescue() { Right::Rescue } else { Right::of_this_thread() }
    }
}
