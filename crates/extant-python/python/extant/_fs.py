"""A mounted file system, with the methods of ``os``, ``os.path`` and ``shutil``."""

from __future__ import annotations

import contextlib
import errno as _errno
import io
import os
import stat as _stat
import threading
import uuid as _uuid
import weakref
from typing import NamedTuple

from ._extant import NativeFs
from ._files import open_file
from ._path import Path, host_path, text


class StatVfs(NamedTuple):
    """Space of a file system; blocks are of ``f_frsize`` bytes."""

    f_bsize: int
    f_frsize: int
    f_blocks: int
    f_bfree: int
    f_bavail: int
    f_files: int
    f_ffree: int
    f_namemax: int


class DirEntry:
    """An entry of a directory, as ``os.scandir`` gives them."""

    __slots__ = ("_fs", "_ino", "_kind", "name", "path")

    def __init__(self, fs, directory, name, kind, ino):
        self._fs = fs
        self._kind = kind
        self._ino = ino
        self.name = name
        self.path = directory.rstrip("/") + "/" + name

    def inode(self):
        """The inode number."""
        return self._ino

    def stat(self, *, follow_symlinks=True):
        """Attributes of what it names."""
        return self._fs.stat(self.path, follow_symlinks=follow_symlinks)

    def _is(self, kind, follow_symlinks):
        known = self._kind
        if known == 0 or (known == _stat.S_IFLNK and follow_symlinks):
            known = self._fs._kind(self.path, follow_symlinks)
        return known == kind

    def is_dir(self, *, follow_symlinks=True):
        """Whether it is a directory, or a link to one."""
        return self._is(_stat.S_IFDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks=True):
        """Whether it is a regular file, or a link to one."""
        return self._is(_stat.S_IFREG, follow_symlinks)

    def is_symlink(self):
        """Whether it is a symbolic link."""
        return self._is(_stat.S_IFLNK, False)

    def __repr__(self):
        return f"<extant.DirEntry {self.name!r}>"


class Opened:
    """The open files of a mount, as long as somebody has them."""

    def __init__(self):
        self._lock = threading.Lock()
        self._files = weakref.WeakSet()

    def add(self, file):
        with self._lock:
            self._files.add(file)

    def close(self):
        """Closes them, whatever becomes of one; returns the first error."""
        with self._lock:
            files = list(self._files)
        failed = None
        # What buffers something first.
        for kind in (io.TextIOBase, io.BufferedIOBase, io.RawIOBase):
            for file in files:
                try:
                    if isinstance(file, kind) and not file.closed:
                        file.close()
                except ValueError:
                    # Somebody detached it from what is below it, which is closed itself.
                    pass
                except BaseException as error:
                    # Also ^C: what others hold back is stored all the same.
                    failed = failed or error
        return failed


def _end(native, opened):
    """Ends a mount."""
    failed = None
    try:
        if native.is_ours():
            # Or what is stored now would wait for ever.
            native.thaw()
            failed = opened.close()
    finally:
        # Nobody could do it later.
        native.unmount()
    if failed is not None:
        raise failed


class FileSystem:
    """A mounted image. Made by :func:`extant.open`; ended by :meth:`close`, by ``with``, or when Python ends.

    Paths are ``str``, ``bytes``, ``os.PathLike``, or a :class:`Path` or :class:`DirEntry` of this file system, and begin at the
    image's root. Errors are ``OSError`` with their errno.

    A mount for writing belongs to the process that made it: in a fork of that process every call of it fails (``EBADF``).
    """

    def __init__(self, image, mode="r", *, offset=0, partition=0, cache_bytes=0, progress=None):
        if mode not in ("r", "r+"):
            raise ValueError(f"invalid mode: {mode!r}: an image is opened with 'r' or 'r+'")
        if not hasattr(image, "read"):
            image = host_path(image)
        self._native = NativeFs(
            image,
            writable=mode == "r+",
            offset=offset,
            partition=partition,
            cache_bytes=cache_bytes,
            progress=progress,
        )
        self.mode = mode
        # Open files, from the outermost object inwards: what they hold back is stored before the end.
        self._open = Opened()
        # Also at the end of Python: a mount for writing that is not ended stores nothing more.
        self._finalizer = weakref.finalize(self, _end, self._native, self._open)

    def _inside(self, path):
        if isinstance(path, (Path, DirEntry)):
            if path._fs is not self:
                raise ValueError(f"{path!r} is in another file system")
            return path.path if isinstance(path, DirEntry) else str(path)
        return os.fspath(path)

    def _bytes(self, path):
        return os.fsencode(self._inside(path))

    def _text(self, path):
        return os.fsdecode(self._inside(path))

    # The mount.

    def close(self):
        """Ends the mount: open files are closed, everything is stored, and the image is marked clean."""
        if self._finalizer.detach():
            _end(self._native, self._open)

    @property
    def closed(self):
        """Whether the mount was ended."""
        return not self._finalizer.alive

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        raise TypeError(
            "a FileSystem is an open image of this process: it can be neither pickled nor copied; "
            "hand over the image's path, and open it there with extant.open()"
        )

    def sync(self):
        """Makes every change so far durable."""
        self._native.sync()

    def add_key(self, key):
        """Adds a key of 16 to 64 bytes for encrypted files, and returns its name: 32 hex digits."""
        return self._native.add_key(bytes(key))

    def remove_key(self, name):
        """Removes a key by its name, and says whether it was there. What was written before is stored first."""
        return self._native.remove_key(name)

    def encrypt(self, path, key):
        """Encrypts an empty directory: what is made in it from now on, with the key of that name.

        ``fs.encrypt("/private", fs.add_key(secret))``"""
        self._native.encrypt(self._bytes(path), key)

    @contextlib.contextmanager
    def frozen(self):
        """Holds the mount still, so that the image can be copied: ``with fs.frozen(): shutil.copy(...)``.

        Everything is durable, the image is marked clean and nothing is written to it meanwhile. Reading goes on; changes
        by other threads wait. Changes by the thread inside the ``with`` would wait for ever. A mount that is frozen
        already is an ``OSError`` (``EBUSY``).
        """
        self._native.freeze()
        try:
            yield self
        finally:
            self._native.thaw()

    def statvfs(self, path="/"):
        """Space of the file system."""
        self.stat(path)
        block, blocks, free, available, files, files_free, name_max = self._native.statfs()
        return StatVfs(block, block, blocks, free, available, files, files_free, name_max)

    @property
    def label(self):
        """The volume's label."""
        return os.fsdecode(self._native.identity()[0])

    @property
    def uuid(self):
        """The UUID of the file system."""
        return _uuid.UUID(bytes=self._native.identity()[1])

    # Paths.

    def path(self, *parts):
        """A path with the methods of ``pathlib``."""
        return Path(self, *parts)

    def __truediv__(self, part):
        return Path(self, "/", part)

    # Files.

    def open(self, path, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *, permissions=0o644):
        """Opens a file as the built-in ``open`` does: text, buffered, or with ``buffering=0`` raw."""
        return open_file(self, path, mode, buffering, encoding, errors, newline, permissions)

    def read_bytes(self, path):
        """The whole contents of a file."""
        with self.open(path, "rb", 0) as file:
            return file.readall()

    def read_text(self, path, encoding=None, errors=None):
        """The whole contents of a file, as text."""
        with self.open(path, "r", encoding=encoding, errors=errors) as file:
            return file.read()

    def write_bytes(self, path, data):
        """Makes `data` the contents of a file; returns its length."""
        view = memoryview(data).cast("B")
        with self.open(path, "wb", 0) as file:
            done = 0
            while done < len(view):
                done += file.write(view[done:])
        return done

    def write_text(self, path, text, encoding=None, errors=None, newline=None):
        """Makes `text` the contents of a file; returns its length."""
        with self.open(path, "w", encoding=encoding, errors=errors, newline=newline) as file:
            return file.write(text)

    def truncate(self, path, length):
        """Makes `length` bytes the size of a file."""
        self._native.truncate(self._bytes(path), length)

    # Directories.

    def listdir(self, path="/"):
        """Names in a directory, in no particular order."""
        return [name for name, _, _ in self._native.entries(self._bytes(path))]

    def scandir(self, path="/"):
        """Entries of a directory."""
        directory = self._text(path)
        return [DirEntry(self, directory, *entry) for entry in self._native.entries(self._bytes(path))]

    def listdir_stat(self, path="/"):
        """Names in a directory with their attributes (``os.stat_result``; of links themselves), in one call."""
        return [(name, os.stat_result(found)) for name, found in self._native.entries_stat(self._bytes(path))]

    def walk(self, top="/", topdown=True, onerror=None, followlinks=False):
        """As ``os.walk``."""
        top = self._text(top)
        try:
            entries = self.scandir(top)
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        directories, files = [], []
        for entry in entries:
            (directories if entry.is_dir() else files).append(entry.name)
        if topdown:
            yield top, directories, files
        for name in list(directories):
            below = top.rstrip("/") + "/" + name
            if followlinks or not self.islink(below):
                yield from self.walk(below, topdown, onerror, followlinks)
        if not topdown:
            yield top, directories, files

    def mkdir(self, path, mode=0o755):
        """Makes a directory."""
        self._native.mkdir(self._bytes(path), mode)

    def makedirs(self, path, mode=0o755, exist_ok=False):
        """Makes a directory and those above it that are missing."""
        path = self._text(path)
        parts = [part for part in path.split("/") if part]
        for depth in range(1, len(parts)):
            try:
                self.mkdir("/" + "/".join(parts[:depth]), mode)
            except FileExistsError:
                pass
        try:
            self.mkdir(path, mode)
        except OSError as error:
            if not exist_ok or error.errno not in (_errno.EEXIST, _errno.EINVAL) or not self.isdir(path):
                raise

    def rmdir(self, path):
        """Removes an empty directory."""
        self._native.rmdir(self._bytes(path))

    def rmtree(self, path):
        """Removes a directory with everything in it."""
        if self.islink(path):
            raise OSError("cannot call rmtree on a symbolic link")
        if not self.isdir(path):
            self.stat(path)
            raise NotADirectoryError(_errno.ENOTDIR, os.strerror(_errno.ENOTDIR), self._text(path))
        self._native.rmtree(self._bytes(path))

    # Names.

    @contextlib.contextmanager
    def _both(self, source, target):
        """Errors about two names have both, as those of ``os``."""
        try:
            yield
        except OSError as error:
            if error.filename is not None:
                error.filename, error.filename2 = self._text(source), self._text(target)
            raise

    def unlink(self, path):
        """Removes a name that is no directory's."""
        self._native.unlink(self._bytes(path))

    remove = unlink

    def rename(self, source, target):
        """Moves `source` to `target`, replacing what is there, as ``os.rename`` on Unix."""
        with self._both(source, target):
            self._native.rename(self._bytes(source), self._bytes(target), True)

    replace = rename

    def rename_new(self, source, target):
        """Moves `source` to `target`, where nothing may be."""
        with self._both(source, target):
            self._native.rename(self._bytes(source), self._bytes(target), False)

    def link(self, source, target):
        """Gives `source` the name `target` as well."""
        with self._both(source, target):
            self._native.link(self._bytes(source), self._bytes(target))

    def symlink(self, target, path):
        """Makes a symbolic link at `path` to `target`."""
        self._native.symlink(os.fsencode(text(target)), self._bytes(path))

    def readlink(self, path):
        """The target of a symbolic link."""
        return os.fsdecode(self._native.readlink(self._bytes(path)))

    def realpath(self, path):
        """The path without links, ``.`` and ``..``; it must exist."""
        return os.fsdecode(self._native.realpath(self._bytes(path)))

    # Attributes.

    def stat(self, path, *, follow_symlinks=True):
        """Attributes, as ``os.stat``."""
        return os.stat_result(self._native.stat(self._bytes(path), follow_symlinks))

    def lstat(self, path):
        """Attributes, of a symbolic link itself."""
        return self.stat(path, follow_symlinks=False)

    def _kind(self, path, follow=True):
        try:
            return _stat.S_IFMT(self._native.stat(self._bytes(path), follow)[0])
        except OSError as error:
            if error.errno in (_errno.ENOENT, _errno.ENOTDIR, _errno.ELOOP, _errno.ENAMETOOLONG):
                return 0
            raise

    def exists(self, path):
        """Whether a path leads to something."""
        return self._kind(path) != 0

    def lexists(self, path):
        """Whether there is such a name; a dangling link is one."""
        return self._kind(path, False) != 0

    def isdir(self, path):
        """Whether it is a directory, or a link to one."""
        return self._kind(path) == _stat.S_IFDIR

    def isfile(self, path):
        """Whether it is a regular file, or a link to one."""
        return self._kind(path) == _stat.S_IFREG

    def islink(self, path):
        """Whether it is a symbolic link."""
        return self._kind(path, False) == _stat.S_IFLNK

    def getsize(self, path):
        """Size in bytes."""
        return self.stat(path).st_size

    def chmod(self, path, mode, *, follow_symlinks=True):
        """Sets the permissions."""
        self._native.chmod(self._bytes(path), mode, follow_symlinks)

    def chown(self, path, uid, gid, *, follow_symlinks=True):
        """Sets owner and group; -1 leaves one as it is."""
        given = [None if owner == -1 else owner for owner in (uid, gid)]
        self._native.chown(self._bytes(path), *given, follow_symlinks)

    def utime(self, path, times=None, *, ns=None, follow_symlinks=True):
        """Sets the times of the last access and change: seconds, or nanoseconds in `ns`; now without either."""
        if times is not None:
            if ns is not None:
                raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
            ns = tuple(int(time * 1_000_000_000) if isinstance(time, int) else round(time * 1e9) for time in times)
        self._native.utime(self._bytes(path), ns, follow_symlinks)

    def getxattr(self, path, attribute, *, follow_symlinks=True):
        """The value of an extended attribute."""
        return self._native.getxattr(self._bytes(path), os.fsencode(attribute), follow_symlinks)

    def setxattr(self, path, attribute, value, flags=0, *, follow_symlinks=True):
        """Sets an extended attribute; `flags` as in ``os.setxattr``."""
        self._native.setxattr(self._bytes(path), os.fsencode(attribute), bytes(value), flags, follow_symlinks)

    def listxattr(self, path="/", *, follow_symlinks=True):
        """Names of extended attributes."""
        return [os.fsdecode(name) for name in self._native.listxattr(self._bytes(path), follow_symlinks)]

    def removexattr(self, path, attribute, *, follow_symlinks=True):
        """Removes an extended attribute."""
        self._native.removexattr(self._bytes(path), os.fsencode(attribute), follow_symlinks)

    def __repr__(self):
        state = " closed" if self.closed else ""
        return f"<extant.FileSystem mode={self.mode!r}{state}>"


def open(image, mode="r", *, offset=0, partition=0, cache_bytes=0, progress=None):
    """Mounts an image: a path, or a binary file object that can seek (which is read-only).

    `mode` is ``"r"`` or ``"r+"``; `offset` is where the file system begins in the file, in bytes, or `partition` the number of
    the partition that holds it; `cache_bytes` is for contents of files (256 MiB unless given).

    `progress(stage, done, total)` is told of what mounting for writing may wait for: the stage is ``"waiting"`` for another
    host (in seconds), ``"replaying"`` the journal (in blocks) or deleting ``"orphans"`` (files without a name). What it
    raises cancels and is raised here; the image is as after a crash, and the next mount continues.
    """
    return FileSystem(
        image, mode, offset=offset, partition=partition, cache_bytes=cache_bytes, progress=progress
    )
