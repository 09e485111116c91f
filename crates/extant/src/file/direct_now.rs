//! Direct reads and overwrites that belong to no thread while the device has them.
//!
//! # Place
//!
//! Below: `node/content`, where they count; `extant-iomap`, which tells their places from memory.
//! Above: `ring/lane`, which gives them to the device and takes them back.
//!
//! # Rules
//!
//! - W1. An operation departs without waiting, or not at all: all that could hold it up is tried.
//!   What is not one device operation on data, past the cache, does not depart.
//! - W2. From departure to landing it keeps exclusive holders of the content lock waiting, and an
//!   overwrite also a freeze and the end of the mount: its blocks stay the file's, and data.
//! - W3. It lands without waiting, on any thread, and leaves memory as a write of the same bytes by
//!   `direct` would. A write that a reader has cached meanwhile has to be repeated by a thread that
//!   may wait.

use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use extant_base::sabotage;
use extant_iomap::Queued;

use super::{FileMapper, WriteBy, check_changeable};
use crate::inode::Inode;
use crate::node::{Drive, Span};

/// A direct operation under way; it counts until this is dropped (W2).
#[must_use = "it is over when this is dropped"]
pub(crate) struct Departed {
    inode: Inode,
    range: Range<u64>,
    span: Option<Span>,
    /// Address of the first byte on the device.
    address: u64,
    writes: bool,
}

impl Inode {
    /// Begins a direct read of `bytes.len()` bytes at `offset`, or an overwrite with them if it
    /// `writes`, which `driver` gives to the device and takes back. `None` if it would have to wait
    /// or is not a single device operation on data: nothing has happened (W1).
    pub(crate) fn depart(
        &self,
        writes: bool,
        offset: u64,
        bytes: &[u8],
        driver: &Weak<dyn Drive>,
    ) -> Option<Departed> {
        let (fs, node) = (self.fs(), self.node());
        let volume = fs.volume();
        // Errors are for the thread that may wait, which meets them as well.
        if self.is_encrypted() || self.is_verity() {
            return None;
        }
        self.check_contents().ok()?;
        let writer = volume.writer().ok()?;
        if bytes.is_empty() || self.alignment_of_device().check(offset, bytes).is_err() {
            return None;
        }
        let len = bytes.len() as u64;
        let range = offset..offset.checked_add(len)?;
        let _inside = match writes {
            true => {
                writer.supers().check_writable().ok()?;
                writer.check_running().ok()?;
                Some(writer.try_enter()?)
            }
            false => None,
        };
        let _content = node.content.try_read()?;
        let file = node.try_file(fs.superblock(), volume.page_cache_made()?)?;
        if writes {
            check_changeable(node.ino(), node.gist().flags).ok()?;
            let is_moved = node.unsynced().moved_by.load(Ordering::Acquire) != 0;
            if is_moved || self.keeps_from_overwriting(file, WriteBy::Program).is_some() {
                return None;
            }
        }
        if range.end > file.size() {
            return None;
        }
        // A read counts as one from its departure.
        let reading = if writes { None } else { Some(self.try_reading(file)?) };
        let mapper = FileMapper { fs, node, file };
        let address = file.cache.try_place(&mapper, range.clone(), writes).ok()?;
        if let Some(reading) = reading {
            reading.done(file);
        }
        let airspace = node.content.airspace();
        airspace.enlist(driver);
        let span = airspace.begin_at(writer.spans(), &range);
        if writes {
            writer.overwrites().begin();
        }
        let departed = Departed { inode: self.clone(), range, span, address, writes };
        // The end of a mount does not wait for threads. Who counts first (sequentially consistent)
        // and then looks is waited for, or sees that the mount has ended.
        (!writer.is_closed()).then_some(departed)
    }
}

impl Departed {
    /// Returns the address of the first byte on the device.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Returns the offset of the first byte in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.range.start
    }

    /// Returns whether it is an overwrite.
    pub(crate) fn writes(&self) -> bool {
        self.writes
    }

    /// Ends the operation, which the device has completed or refused (W3).
    ///
    /// # Errors
    ///
    /// The file: the operation has to be done by a thread that may wait.
    pub(crate) fn land(self, succeeded: bool) -> Result<(), Inode> {
        let (fs, node) = (self.inode.fs(), self.inode.node());
        let (Some(file), Ok(writer)) = (node.file_in_use(), fs.volume().writer()) else {
            return Err(self.inode.clone());
        };
        if self.writes && !sabotage("extant.direct.lane-not-flushed") {
            writer.dirty_files().wrote_in_place(node);
        }
        let what = if self.writes { Queued::Over } else { Queued::Read };
        let counts = succeeded || sabotage("extant.direct.lane-failure-is-success");
        if !counts || !file.cache.end_queued_now(self.range.clone(), what) {
            return Err(self.inode.clone());
        }
        if self.writes {
            file.touch(writer.now());
            fs.note_dirty(node, file);
        }
        Ok(())
    }
}

impl Drop for Departed {
    fn drop(&mut self) {
        let node = self.inode.node();
        // It departed from a mount that has one.
        let Ok(writer) = self.inode.volume().writer() else { return };
        node.content.airspace().end_at(writer.spans(), self.span);
        if self.writes {
            writer.overwrites().end();
        }
    }
}
