"""ext4 in user space: read, change, build and check images without root.

    >>> import extant
    >>> extant.mkfs("disk.img", 64 << 20)                       # doctest: +SKIP
    >>> with extant.open("disk.img", "r+") as fs:               # doctest: +SKIP
    ...     fs.write_text("/hello", "hello\\n")
    ...     fs.listdir("/")
    ['lost+found', 'hello']
"""

from ._extant import __version__
from ._files import RawFile
from ._fs import DirEntry, FileSystem, StatVfs, open
from ._images import BuildResult, CheckReport, Lost, Problem, build, check, mkfs
from ._path import Path

__all__ = [
    "BuildResult",
    "CheckReport",
    "DirEntry",
    "FileSystem",
    "Lost",
    "Path",
    "Problem",
    "RawFile",
    "StatVfs",
    "__version__",
    "build",
    "check",
    "mkfs",
    "open",
]
