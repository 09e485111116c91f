//! Transactions: an open journal handle together with the allocator, quotas and orphans of a
//! writable mount.
//!
//! # Place
//!
//! Below: `editor` (whose rules hold here), `writer`, `fs`. Above: everything that changes files
//! and names takes a `&mut Txn`; its methods for blocks and inodes are those of its [`Editor`].
//!
//! # Shape
//!
//! ```text
//! space     blocks of inodes                      quota    charges
//! orphans   adding and removing orphans           contents promises of data in the cache
//! ```

mod contents;
mod orphans;
mod quota;
mod space;

use std::ops::{Deref, DerefMut};

use crate::alloc::Right;
use crate::editor::Editor;
use crate::error::Result;
use crate::fast::Refusal;
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
    /// Those of [`Editor::begin`], and [`FsError::ReadOnly`](crate::FsError::ReadOnly) on a
    /// read-only mount.
    pub(crate) fn begin(mount: &'v Mount, credits: u32) -> Result<Txn<'v>> {
        let writer = mount.writer()?;
        debug_assert!(writer.freeze_gate().may_change(), "a change while the mount is frozen");
        let editor = Editor::begin(mount, writer, credits)?;
        Ok(Txn { editor, mount, writer })
    }

    /// Opens a handle like [`begin`](Self::begin), for changes of any kind that a fast commit
    /// cannot describe because of `why`.
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin).
    pub(crate) fn begin_refused(mount: &'v Mount, credits: u32, why: Refusal) -> Result<Txn<'v>> {
        let txn = Txn::begin(mount, credits)?;
        txn.refuse(why);
        Ok(txn)
    }

    /// Opens a handle for changes that fast commits can describe: see
    /// [`Editor::begin_described`].
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin).
    pub(crate) fn begin_described(mount: &'v Mount, credits: u32) -> Result<Txn<'v>> {
        let writer = mount.writer()?;
        debug_assert!(writer.freeze_gate().may_change(), "a change while the mount is frozen");
        let editor = Editor::begin_described(mount, writer, credits)?;
        Ok(Txn { editor, mount, writer })
    }

    /// Returns the mount.
    pub(crate) fn volume(&self) -> &'v Mount {
        self.mount
    }

    pub(crate) fn writer(&self) -> &'v Writer {
        self.writer
    }

    /// Runs `change`, which frees space or changes the state of a file's blocks: blocks that its
    /// map needs for that may be the last ones.
    pub(crate) fn rescue<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.editor.set_rescue(true);
        let result = change(self);
        self.editor.set_rescue(before);
        result
    }

    /// Returns the access to reserved space for blocks of this handle.
    pub(crate) fn right(&self) -> Right {
        if self.is_rescue() { Right::Rescue } else { Right::of_this_thread() }
    }
}
