"""Paths inside an image, with the methods of ``pathlib``."""

from __future__ import annotations

import errno
import os
import pathlib
import stat as _stat


def host_path(path):
    """The bytes of a path of the host."""
    name = os.fsencode(os.fspath(path))
    if b"\0" in name:
        raise ValueError("embedded null byte")
    return name


def text(path):
    """A path inside an image as ``str``."""
    return str(path) if isinstance(path, Path) else os.fsdecode(path)


class Path:
    """A path inside an image: ``fs / "etc" / "hostname"``. Pure operations are those of ``pathlib.PurePosixPath``.

    It is no ``os.PathLike``: ``open`` and ``shutil`` would take it for a path of this machine.
    """

    __slots__ = ("_fs", "_pure")

    def __init__(self, fs, *parts):
        self._fs = fs
        self._pure = pathlib.PurePosixPath("/", *[text(part) for part in parts])

    def _other(self, pure):
        return Path(self._fs, pure)

    @property
    def fs(self):
        """The file system it is in."""
        return self._fs

    @property
    def name(self):
        return self._pure.name

    @property
    def stem(self):
        return self._pure.stem

    @property
    def suffix(self):
        return self._pure.suffix

    @property
    def suffixes(self):
        return self._pure.suffixes

    @property
    def parts(self):
        return self._pure.parts

    @property
    def parent(self):
        return self._other(self._pure.parent)

    @property
    def parents(self):
        return [self._other(parent) for parent in self._pure.parents]

    def joinpath(self, *parts):
        return self._other(self._pure.joinpath(*[text(part) for part in parts]))

    def with_name(self, name):
        return self._other(self._pure.with_name(name))

    def with_stem(self, stem):
        return self._other(self._pure.with_stem(stem))

    def with_suffix(self, suffix):
        return self._other(self._pure.with_suffix(suffix))

    def relative_to(self, other):
        return self._pure.relative_to(str(other))

    def is_absolute(self):
        return True

    def match(self, pattern):
        return self._pure.match(pattern)

    def __truediv__(self, part):
        return self.joinpath(part)

    def __str__(self):
        return str(self._pure)

    def __repr__(self):
        return f"extant.Path({str(self)!r})"

    def __eq__(self, other):
        return isinstance(other, Path) and self._fs is other._fs and self._pure == other._pure

    def __hash__(self):
        return hash((id(self._fs), self._pure))

    def __lt__(self, other):
        return self._pure < other._pure

    def open(self, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        return self._fs.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self):
        return self._fs.read_bytes(self)

    def read_text(self, encoding=None, errors=None):
        return self._fs.read_text(self, encoding, errors)

    def write_bytes(self, data):
        return self._fs.write_bytes(self, data)

    def write_text(self, text, encoding=None, errors=None, newline=None):
        return self._fs.write_text(self, text, encoding, errors, newline)

    def stat(self, *, follow_symlinks=True):
        return self._fs.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self):
        return self._fs.lstat(self)

    def exists(self):
        return self._fs.exists(self)

    def is_dir(self):
        return self._fs.isdir(self)

    def is_file(self):
        return self._fs.isfile(self)

    def is_symlink(self):
        return self._fs.islink(self)

    def iterdir(self):
        for name in self._fs.listdir(self):
            yield self / name

    def rglob(self, pattern):
        """Everything below whose path matches, links not followed."""
        for top, directories, files in self._fs.walk(self):
            for name in directories + files:
                found = self._other(top) / name
                if found.match(pattern):
                    yield found

    def glob(self, pattern):
        """What is in this directory, and matches a pattern of one name."""
        if "/" in pattern or "**" in pattern:
            raise ValueError("glob: a pattern of one name; rglob goes deeper")
        return (found for found in self.iterdir() if found.match(pattern))

    def mkdir(self, mode=0o755, parents=False, exist_ok=False):
        if parents:
            self._fs.makedirs(self, mode, exist_ok)
            return
        if exist_ok and self.is_dir():
            return
        self._fs.mkdir(self, mode)

    def touch(self, mode=0o644, exist_ok=True):
        if exist_ok and self.exists():
            self._fs.utime(self)
            return
        self._fs.open(self, "xb", 0, permissions=mode).close()

    def unlink(self, missing_ok=False):
        try:
            self._fs.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self):
        self._fs.rmdir(self)

    def rename(self, target):
        target = target if isinstance(target, Path) else self._other(target)
        self._fs.rename(self, target)
        return target

    replace = rename

    def symlink_to(self, target):
        self._fs.symlink(target, self)

    def hardlink_to(self, target):
        self._fs.link(target, self)

    def readlink(self):
        return pathlib.PurePosixPath(self._fs.readlink(self))

    def resolve(self, strict=False):
        try:
            return self._other(self._fs.realpath(self))
        except OSError as error:
            if strict or error.errno != errno.ENOENT:
                raise
            return self.parent.resolve() / self.name if self.name else self

    def chmod(self, mode, *, follow_symlinks=True):
        self._fs.chmod(self, mode, follow_symlinks=follow_symlinks)

    def samefile(self, other):
        other = other if isinstance(other, Path) else self._other(other)
        return self.stat().st_ino == other.stat().st_ino

    def is_block_device(self):
        return self._fs._kind(self) == _stat.S_IFBLK

    def is_char_device(self):
        return self._fs._kind(self) == _stat.S_IFCHR

    def is_fifo(self):
        return self._fs._kind(self) == _stat.S_IFIFO

    def is_socket(self):
        return self._fs._kind(self) == _stat.S_IFSOCK
