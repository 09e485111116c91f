"""An implementation of fsspec, registered as ``ext4``.

``fsspec.open("ext4://etc/fstab::disk.img")`` reads from an image on this machine, and
``"ext4://etc/fstab::s3://bucket/disk.img"`` from one elsewhere. To write: ``fsspec.filesystem("ext4", fo="disk.img", mode="r+")``, and
``close()`` at the end.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat as _stat

import fsspec
from fsspec.spec import AbstractFileSystem

from ._fs import FileSystem

_KINDS = {_stat.S_IFDIR: "directory", _stat.S_IFREG: "file", _stat.S_IFLNK: "link"}


class Ext4FileSystem(AbstractFileSystem):
    """Files of an ext4 image.

    `fo` is a path or URL of the image, a file object, or an ``extant.FileSystem``; `mode` is ``"r"`` or ``"r+"``, the latter for
    images on this machine only; `offset` and `partition` are those of :func:`extant.open`.
    """

    protocol = "ext4"
    root_marker = "/"
    # Each has a mount of its own, which somebody closes.
    cachable = False

    def __init__(
        self, fo="", mode="r", target_protocol=None, target_options=None, offset=0, partition=0, auto_mkdir=False, **kwargs
    ):
        super().__init__(**kwargs)
        self.auto_mkdir = auto_mkdir
        self._remote = None
        if isinstance(fo, FileSystem):
            self.fs = fo
            return
        if isinstance(fo, (str, os.PathLike)):
            local = target_protocol in (None, "file", "local")
            path = os.fspath(fo)
            if local and "://" in path and not path.startswith(("file://", "local://")):
                local = False
            if local:
                for prefix in ("file://", "local://"):
                    path = path.removeprefix(prefix)
                fo = path
            else:
                if mode != "r":
                    raise ValueError("images that are not on this machine are read-only")
                self._remote = fsspec.open(path, mode="rb", protocol=target_protocol, **(target_options or {}))
                fo = self._remote.open()
        self.fs = FileSystem(fo, mode, offset=offset, partition=partition)

    def close(self):
        """Ends the mount."""
        self.fs.close()
        if self._remote is not None:
            self._remote.close()

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        if path.startswith("ext4://"):
            # What follows in a chained URL is the image. Names may have two colons as well.
            path = path.removeprefix("ext4://").split("::")[0]
        return "/" + path.strip("/")

    def unstrip_protocol(self, name):
        return "ext4://" + self._strip_protocol(name)

    def _info(self, path, found, target=None):
        kind = _KINDS.get(_stat.S_IFMT(found.st_mode), "other")
        info = {
            "name": path,
            "size": found.st_size if kind != "directory" else 0,
            "type": kind,
            "islink": False,
            "created": found.st_ctime,
            "mtime": found.st_mtime,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
        }
        if kind == "link":
            info["islink"] = True
            info["destination"] = self.fs.readlink(path)
            try:
                meant = self.fs.stat(path)
                info["size"] = meant.st_size
                info["type"] = _KINDS.get(_stat.S_IFMT(meant.st_mode), "other")
            except OSError:
                info["size"] = 0
        return info

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        return self._info(path, self.fs.lstat(path))

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] != "directory":
            return [info] if detail else [path]
        base = path.rstrip("/")
        if not detail:
            return [f"{base}/{name}" for name in self.fs.listdir(path)]
        return [self._info(f"{base}/{name}", found) for name, found in self.fs.listdir_stat(path)]

    def exists(self, path, **kwargs):
        return self.fs.exists(self._strip_protocol(path))

    def lexists(self, path, **kwargs):
        return self.fs.lexists(self._strip_protocol(path))

    def isdir(self, path):
        return self.fs.isdir(self._strip_protocol(path))

    def isfile(self, path):
        return self.fs.isfile(self._strip_protocol(path))

    def islink(self, path):
        return self.fs.islink(self._strip_protocol(path))

    def mkdir(self, path, create_parents=True, **kwargs):
        path = self._strip_protocol(path)
        if self.fs.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if create_parents:
            self.fs.makedirs(path, exist_ok=True)
        else:
            self.fs.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        self.fs.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        self.fs.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        self.fs.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path, recursive=False, maxdepth=None):
        for one in [path] if isinstance(path, (str, os.PathLike)) else path:
            one = self._strip_protocol(one)
            for found in self.expand_path(one, maxdepth=1) if "*" in one else [one]:
                if not self.fs.isdir(found) or self.fs.islink(found):
                    self.fs.unlink(found)
                elif not recursive:
                    raise ValueError("Cannot delete directory, set recursive=True")
                elif found == "/":
                    for name in self.fs.listdir("/"):
                        if name != "lost+found":
                            self.rm("/" + name, recursive=True)
                else:
                    self.fs.rmtree(found)

    def _parent_for(self, path):
        if self.auto_mkdir:
            self.fs.makedirs(self._parent(path), exist_ok=True)

    def cp_file(self, path1, path2, **kwargs):
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        self._parent_for(target)
        if self.fs.isdir(source):
            self.fs.makedirs(target, exist_ok=True)
            return
        if self.fs.exists(target) and self.fs.stat(source).st_ino == self.fs.stat(target).st_ino:
            # To be opened for writing, it would be emptied first.
            raise shutil.SameFileError(f"{source!r} and {target!r} are the same file")
        with self.fs.open(source, "rb") as one, self.fs.open(target, "wb") as other:
            shutil.copyfileobj(one, other, 1 << 20)

    def mv(self, path1, path2, recursive=False, maxdepth=None, **kwargs):
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.fs.isdir(target) and not self.fs.isdir(source):
            target = target.rstrip("/") + "/" + source.rsplit("/", 1)[-1]
        self.fs.rename(source, target)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        path = self._strip_protocol(path)
        if "r" not in mode:
            self._parent_for(path)
        file = self.fs.open(path, mode)
        if mode == "rb":
            # As files of other implementations have it: `read_block` asks.
            file.size = self.fs.getsize(path)
        return file

    def touch(self, path, truncate=True, **kwargs):
        path = self._strip_protocol(path)
        self._parent_for(path)
        if truncate or not self.fs.exists(path):
            self.fs.open(path, "wb", 0).close()
        else:
            self.fs.utime(path)

    def created(self, path):
        import datetime

        return datetime.datetime.fromtimestamp(self.info(path)["created"], tz=datetime.timezone.utc)

    def modified(self, path):
        import datetime

        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.timezone.utc)

    def chmod(self, path, mode):
        """Sets the permissions."""
        self.fs.chmod(self._strip_protocol(path), mode)

    def link(self, src, dst, **kwargs):
        """Gives `src` the name `dst` as well."""
        self.fs.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src, dst, **kwargs):
        """Makes a symbolic link at `dst` to `src`."""
        self.fs.symlink(self._strip_protocol(src), self._strip_protocol(dst))
