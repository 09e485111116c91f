//! Open regular files: an inode and a position.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_format::inode::InodeFlags;

use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::image_path::ImagePath;
use crate::namei::NewInode;

use crate::inode::Inode;
use crate::node::Metadata;

/// Point in time at which writes become durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum SyncMode {
    /// Writes become durable by a sync or periodically.
    #[default]
    Later,
    /// Each write is durable before it returns, with the metadata needed to read it back
    /// (`O_DSYNC`).
    Data,
    /// Each write is durable before it returns, with all attributes (`O_SYNC`).
    Full,
}

/// Options for opening a file, like `std::fs::OpenOptions`.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::Write;
/// let device = extant_block::FileDevice::open_read_write("disk.img")?;
/// let fs = extant::MountOptions::new().read_only(false).open(device)?;
/// let mut log = fs.open_options().append(true).create(true).open("/var/log/build")?;
/// writeln!(log, "done")?;
/// log.sync()?;
/// fs.unmount()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is opened yet"]
pub struct OpenOptions {
    fs: Fs,
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    sync: SyncMode,
    drop_behind: bool,
    new: NewInode,
}

impl OpenOptions {
    pub(super) fn new(fs: Fs) -> OpenOptions {
        OpenOptions {
            fs,
            read: true,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            sync: SyncMode::Later,
            drop_behind: false,
            new: NewInode::root(0o644),
        }
    }

    /// Sets whether the file can be read; true by default.
    pub fn read(mut self, read: bool) -> OpenOptions {
        self.read = read;
        self
    }

    /// Sets whether the file can be written.
    pub fn write(mut self, write: bool) -> OpenOptions {
        self.write = write;
        self
    }

    /// Sets whether the file is opened for writing with every write at the end.
    pub fn append(mut self, append: bool) -> OpenOptions {
        self.append = append;
        self
    }

    /// Sets whether the file is emptied; needs [`write`](Self::write).
    pub fn truncate(mut self, truncate: bool) -> OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Sets whether a missing file is created; needs [`write`](Self::write) or
    /// [`append`](Self::append).
    pub fn create(mut self, create: bool) -> OpenOptions {
        self.create = create;
        self
    }

    /// Sets whether the file is created and must not exist before; needs [`write`](Self::write) or
    /// [`append`](Self::append).
    pub fn create_new(mut self, create_new: bool) -> OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Sets when writes become durable.
    pub fn sync(mut self, sync: SyncMode) -> OpenOptions {
        self.sync = sync;
        self
    }

    /// Sets whether what is read and written through the file leaves the page cache after use,
    /// unless it was there before or others use it: [`Inode::read_once_at`],
    /// [`Inode::write_once_at`]. Appends with [`append`](Self::append) stay in it. Default: false.
    pub fn drop_behind(mut self, drop_behind: bool) -> OpenOptions {
        self.drop_behind = drop_behind;
        self
    }

    /// Sets the owner and permissions of a file that is created. Default: root and 0644.
    pub fn new_inode(mut self, new: NewInode) -> OpenOptions {
        self.new = new;
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    ///
    /// Those of [`Fs::resolve`] and [`Fs::create`]; [`FsError::Exists`] with
    /// [`create_new`](Self::create_new); [`FsError::InvalidArgument`] for options that need writing
    /// without it; [`FsError::NotPermitted`] by the file's flags; those of inodes without contents
    /// ([`FsError::IsADirectory`], [`FsError::NotARegularFile`], [`FsError::Encrypted`]).
    pub fn open(&self, path: impl ImagePath) -> Result<File> {
        let path = path.image_bytes();
        let writes = self.write || self.append;
        if (self.create || self.create_new || self.truncate) && !writes {
            let what = "open: to create or truncate, the file has to be opened for writing";
            return Err(FsError::InvalidArgument { what });
        }
        if !self.read && !writes {
            let what = "open: the file is opened neither for reading nor for writing";
            return Err(FsError::InvalidArgument { what });
        }
        if self.truncate && self.append {
            let what = "open: append and truncate exclude each other";
            return Err(FsError::InvalidArgument { what });
        }
        let inode = if self.create_new {
            self.fs.create(path, &self.new)?
        } else {
            match self.fs.resolve(path) {
                Err(FsError::NotFound { .. }) if self.create => {
                    match self.fs.create(path, &self.new) {
                        // Another thread created the file first.
                        Err(FsError::Exists { .. }) => self.fs.resolve(path)?,
                        other => other?,
                    }
                }
                other => other?,
            }
        };
        let mut file = File::new(inode)?;
        if writes {
            self.fs.volume().writer()?;
            file.inode.check_open_for_writing(self.append)?;
            file.access = if self.append { Access::Append } else { Access::Write };
        }
        file.inode.check_seal()?;
        file.reads = self.read;
        file.drop_behind = self.drop_behind;
        if self.truncate {
            file.inode.truncate(0)?;
        }
        // The flag set by `chattr +S` makes every write to the file synchronous.
        let always = file.inode.metadata().flags.contains(InodeFlags::SYNC);
        file.sync = if always { SyncMode::Full } else { self.sync };
        Ok(file)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Read,
    Write,
    Append,
}

/// A regular file opened with [`Fs::open`] or [`Fs::open_options`].
///
/// Methods that take `&self` may be called from many threads; `Read`, `Write` and `Seek` share one
/// position and take `&mut self`. Clones are the same open file, each with a position of its own.
///
/// # Errors of writeback
///
/// Data is stored after the write has returned. When that fails the data stays dirty and is tried
/// again, and the next [`sync`](Self::sync) of each file that was open then reports it, once.
#[derive(Clone, Debug)]
pub struct File {
    inode: Inode,
    position: u64,
    reads: bool,
    access: Access,
    sync: SyncMode,
    drop_behind: bool,
    /// Number of writeback failures that this open file has reported.
    failures: Arc<AtomicU64>,
}

impl File {
    /// Opens an inode; fails if it has no contents.
    pub(super) fn new(inode: Inode) -> Result<File> {
        inode.check_contents()?;
        let failures = Arc::new(AtomicU64::new(inode.writeback_failures()));
        Ok(File {
            inode,
            position: 0,
            reads: true,
            access: Access::Read,
            sync: SyncMode::Later,
            drop_behind: false,
            failures,
        })
    }

    /// Returns the inode of the file, for its mapping, extended attributes and more.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Returns the inode and drops the position.
    pub fn into_inode(self) -> Inode {
        self.inode
    }

    /// Returns the file's attributes.
    pub fn metadata(&self) -> Metadata {
        self.inode.metadata()
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> u64 {
        self.inode.metadata().size
    }

    /// Returns true for a file of 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` from byte `offset` and returns the number of bytes read: fewer than asked for
    /// only at the end of the file. The order of arguments is that of [`FileExt`], which `File`
    /// implements.
    ///
    /// # Errors
    ///
    /// Those of [`Inode::read_at`]; [`FsError::NotPermitted`] when the file was opened without
    /// reading.
    pub fn read_at(&self, out: &mut [u8], offset: u64) -> Result<usize> {
        self.check_readable()?;
        match self.drop_behind {
            true => self.inode.read_once_at(out, offset),
            false => self.inode.read_at(out, offset),
        }
    }

    fn check_readable(&self) -> Result<()> {
        if !self.reads {
            let what = "the file was opened for writing only";
            return Err(FsError::NotPermitted { ino: self.inode.ino(), what });
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<()> {
        if self.access == Access::Read {
            let what = "the file was opened for reading";
            return Err(FsError::NotPermitted { ino: self.inode.ino(), what });
        }
        Ok(())
    }

    /// Writes at byte `offset` (to an append-only file: at the end) and returns the number of bytes
    /// written.
    ///
    /// # Errors
    ///
    /// Those of [`Inode::write_at`]; [`FsError::NotPermitted`] when the file was opened for
    /// reading; those of [`sync`](Self::sync) with a [`SyncMode`].
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.check_writable()?;
        let written = match self.access {
            Access::Append => {
                self.inode.append(bytes)?;
                bytes.len()
            }
            _ if self.drop_behind => self.inode.write_once_at(bytes, offset)?,
            _ => self.inode.write_at(bytes, offset)?,
        };
        match self.sync {
            SyncMode::Later => {}
            SyncMode::Data => self.sync_data()?,
            SyncMode::Full => self.sync()?,
        }
        Ok(written)
    }

    /// Sets the size; bytes behind the old end read as zeros.
    ///
    /// # Errors
    ///
    /// Those of [`Inode::truncate`]; [`FsError::NotPermitted`] when the file was opened for
    /// reading.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.check_writable()?;
        self.inode.truncate(size)
    }

    /// Makes contents and attributes durable.
    ///
    /// # Errors
    ///
    /// Those of [`Inode::sync`]. [`FsError::WritebackFailed`], once, when writeback of the file failed
    /// since it was opened or last synced, although everything is durable now.
    pub fn sync(&self) -> Result<()> {
        self.check_failures(self.inode.sync())
    }

    /// Makes the contents durable, and the metadata needed to read them back.
    ///
    /// # Errors
    ///
    /// As [`sync`](Self::sync).
    pub fn sync_data(&self) -> Result<()> {
        self.check_failures(self.inode.sync_data())
    }

    fn check_failures(&self, synced: Result<()>) -> Result<()> {
        let failures = self.inode.writeback_failures();
        let known = self.failures.swap(failures, Ordering::AcqRel);
        synced?;
        if failures != known {
            let failures = failures.wrapping_sub(known);
            return Err(FsError::WritebackFailed { ino: self.inode.ino(), failures });
        }
        Ok(())
    }
}

impl File {
    /// Writes at the position and moves it.
    pub(super) fn write_next(&mut self, bytes: &[u8]) -> Result<usize> {
        let written = self.write_at(bytes, self.position)?;
        self.position = match self.access {
            Access::Append => self.len(),
            _ => self.position.saturating_add(written as u64),
        };
        Ok(written)
    }
}

/// Reads and writes at given offsets, without the position, as for files of the host.
impl FileExt for File {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(File::read_at(self, out, offset)?)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        Ok(File::write_at(self, bytes, offset)?)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.write_next(bytes)?)
    }

    /// Does nothing, because a `File` has no buffer; [`sync`](File::sync) makes data durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for File {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(out, self.position)?;
        self.position += read as u64; // At most the file's size.
        Ok(read)
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
        };
        self.position = position.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "seek to a position before byte 0")
        })?;
        Ok(self.position)
    }
}
