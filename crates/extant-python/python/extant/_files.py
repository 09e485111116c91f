"""Open files: ``io`` objects over a native one."""

from __future__ import annotations

import errno
import io
import operator
import os
import threading

_MODES = {
    # read, write, append, create, exclusive, truncate
    "r": (True, False, False, False, False, False),
    "r+": (True, True, False, False, False, False),
    "w": (False, True, False, True, False, True),
    "w+": (True, True, False, True, False, True),
    "a": (False, False, True, True, False, False),
    "a+": (True, False, True, True, False, False),
    "x": (False, True, False, True, True, False),
    "x+": (True, True, False, True, True, False),
}


class RawFile(io.RawIOBase):
    """An open regular file of an image, unbuffered.

    Threads may share it through :meth:`pread` and :meth:`pwrite`, which take an offset; the position is shared as well, and
    moves under a lock.
    """

    def __init__(self, fs, native, name, mode, reads, writes, appends):
        super().__init__()
        # The mount lasts as long as its open files.
        self._fs = fs
        self._native = native
        self._reads = reads
        self._writes = writes
        self._appends = appends
        self._lock = threading.Lock()
        self._position = native.size() if appends else 0
        self.name = name
        self.mode = mode

    def close(self):
        """Closes the file. What was written is stored in time; :meth:`fsync` says whether it was."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._native.close()

    def readable(self):
        self._check_open()
        return self._reads

    def writable(self):
        self._check_open()
        return self._writes

    def seekable(self):
        self._check_open()
        return True

    def _check_open(self):
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def _check(self, may, what):
        self._check_open()
        if not may:
            raise io.UnsupportedOperation(f"not {what}")

    def readinto(self, buffer):
        """Fills a buffer from the position on, without a copy on the way; returns how many bytes there were."""
        self._check(self._reads, "readable")
        with self._lock:
            read = self._native.readinto(self._position, buffer)
            self._position += read
        return read

    def read(self, size=-1):
        """Up to `size` bytes; all that are left if it is negative."""
        self._check(self._reads, "readable")
        if size is None or size < 0:
            return self.readall()
        with self._lock:
            read = self._native.read(self._position, size)
            self._position += len(read)
        return read

    def readall(self):
        """All bytes from the position on."""
        self._check(self._reads, "readable")
        with self._lock:
            read = self._native.read(self._position, max(0, self._native.size() - self._position))
            self._position += len(read)
        return read

    def write(self, buffer):
        """Writes a buffer at the position (an appending file: at the end); returns how many bytes were written."""
        self._check(self._writes, "writable")
        with self._lock:
            written = self._native.write(self._position, buffer)
            self._position = self._native.size() if self._appends else self._position + written
        return written

    def seek(self, offset, whence=os.SEEK_SET, /):
        """Moves the position; ``os.SEEK_DATA`` and ``os.SEEK_HOLE`` work as well."""
        self._check_open()
        # A position that is no whole number would be an error of the next read.
        offset = operator.index(offset)
        with self._lock:
            if whence == os.SEEK_SET:
                to = offset
            elif whence == os.SEEK_CUR:
                to = self._position + offset
            elif whence == os.SEEK_END:
                to = self._native.size() + offset
            elif whence in (os.SEEK_DATA, os.SEEK_HOLE) and offset >= 0:
                to = self._native.seek_data(offset, whence == os.SEEK_HOLE)
            else:
                raise OSError(errno.EINVAL, f"unknown whence {whence}")
            if not 0 <= to < 1 << 63:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            self._position = to
        return to

    def tell(self):
        self._check_open()
        return self._position

    def truncate(self, size=None):
        """Makes `size` bytes, or the position, the size; growth reads as zeros."""
        self._check(self._writes, "writable")
        if size is None:
            size = self._position
        if size < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._native.truncate(size)
        return size

    def pread(self, size, offset):
        """Up to `size` bytes from byte `offset` on."""
        self._check(self._reads, "readable")
        return self._native.read(offset, size)

    def pread_into(self, buffer, offset):
        """Fills a buffer from byte `offset` on; returns how many bytes there were."""
        self._check(self._reads, "readable")
        return self._native.readinto(offset, buffer)

    def pwrite(self, buffer, offset):
        """Writes a buffer at byte `offset`; returns how many bytes were written."""
        self._check(self._writes, "writable")
        return self._native.write(offset, buffer)

    def fsync(self):
        """Makes contents and attributes durable."""
        self._check_open()
        self._native.sync(False)

    def fdatasync(self):
        """Makes contents durable, and what is needed to read them back."""
        self._check_open()
        self._native.sync(True)

    def __repr__(self):
        state = " closed" if self.closed else ""
        return f"<extant.RawFile name={self.name!r} mode={self.mode!r}{state}>"


def open_file(fs, path, mode, buffering, encoding, errors, newline, permissions):
    """What the built-in ``open`` does, for a file of an image."""
    text, binary = "t" in mode, "b" in mode
    plain = mode.replace("t", "").replace("b", "").replace("U", "")
    if "+" in plain:
        plain = plain.replace("+", "") + "+"
    if plain not in _MODES or (text and binary) or len(mode) != len(set(mode)):
        raise ValueError(f"invalid mode: {mode!r}")
    if binary and (encoding is not None or errors is not None or newline is not None):
        raise ValueError("binary mode takes no encoding, errors or newline argument")
    reads, writes, appends, create, exclusive, truncate = _MODES[plain]
    if buffering == 0 and not binary:
        raise ValueError("can't have unbuffered text I/O")
    native = fs._native.open(fs._bytes(path), reads, writes, appends, create, exclusive, truncate, permissions)
    name = path if isinstance(path, (str, bytes)) else fs._text(path)
    raw = RawFile(fs, native, name, plain.replace("+", "b+") if "+" in plain else plain + "b", reads, writes or appends, appends)
    try:
        fs._open.add(raw)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else 1 << 17
        if raw._reads and raw._writes:
            file = io.BufferedRandom(raw, size)
        elif raw._writes:
            file = io.BufferedWriter(raw, size)
        else:
            file = io.BufferedReader(raw, size)
        fs._open.add(file)
        if binary:
            return file
        wrapped = io.TextIOWrapper(file, encoding, errors, newline, line_buffering=buffering == 1)
        wrapped.mode = mode
        fs._open.add(wrapped)
        return wrapped
    except BaseException:
        raw.close()
        raise
