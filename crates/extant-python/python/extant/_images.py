"""Building, making and checking images."""

from __future__ import annotations

import os
import uuid as _uuid
from typing import NamedTuple

from . import _extant
from ._path import host_path


class Lost(NamedTuple):
    """Attributes of the source that the image does not have."""

    what: str
    files: int
    example: str
    """Path of one of the files in its source."""


class BuildResult(NamedTuple):
    """What a build made."""

    size: int
    """Size of the image in bytes."""
    files: int
    """Files, directories and the rest."""
    data_bytes: int
    """Bytes of regular files that are stored."""
    skipped: int
    """What ``ignore_unreadable`` left out."""
    uuid: _uuid.UUID
    """UUID of the file system."""
    lost: list[Lost]
    """What could not be kept, by kind."""


class Problem(NamedTuple):
    """A rule that an image breaks."""

    code: str
    message: str


class CheckReport(NamedTuple):
    """What a check found."""

    problems: list[Problem]
    not_shown: int
    inodes: int
    directories: int
    blocks: int

    @property
    def clean(self):
        """Whether there are no problems."""
        return not self.problems and not self.not_shown


def _build(source, target, **options):
    path = None if source is None else host_path(source)
    built = _extant.build(path, host_path(target), **options)
    lost = [Lost(what, files, os.fsdecode(bytes(example))) for what, files, example in built[5]]
    return BuildResult(*built[:4], _uuid.UUID(bytes=bytes(built[4])), lost)


def build(
    source,
    target,
    *,
    tar=None,
    size=None,
    free_bytes=None,
    free_percent=None,
    owner=None,
    epoch=None,
    label=None,
    features=None,
    threads=None,
    overwrite=False,
    ignore_unreadable=False,
    one_file_system=False,
    progress=None,
):
    """Builds an image in the file or on the disk `target` from a directory or a tar archive.

    The image is as small as its contents allow, unless `size`, `free_bytes` or `free_percent` is given. `owner` is ``(uid, gid)`` of
    everything; with `epoch` equal sources make equal bytes. `progress(done, total)` is called on this thread some times a second, at the beginning
    and at the end, with bytes; `total` is 0 until it is known. An exception in it (or Ctrl-C) cancels the build: nothing is left of a new file, and an old one is as
    it was. A source that is a file is an archive unless `tar` says otherwise.
    """
    if tar is None:
        tar = os.path.isfile(source)
    return _build(
        source,
        target,
        tar=tar,
        size=size,
        free_bytes=free_bytes,
        free_percent=free_percent,
        owner=owner,
        epoch=epoch,
        label=None if label is None else os.fsencode(label),
        features=features,
        threads=threads,
        overwrite=overwrite,
        ignore_unreadable=ignore_unreadable,
        one_file_system=one_file_system,
        progress=progress,
    )


def mkfs(target, size, *, label=None, features=None, epoch=None, overwrite=False):
    """Makes an empty file system of `size` bytes. `features` as ``mke2fs -O`` takes them."""
    return _build(
        None,
        target,
        tar=False,
        size=size,
        free_bytes=None,
        free_percent=None,
        owner=None,
        epoch=epoch,
        label=None if label is None else os.fsencode(label),
        features=features,
        threads=None,
        overwrite=overwrite,
        ignore_unreadable=False,
        one_file_system=False,
        progress=None,
    )


def check(image, *, max_problems=100):
    """Checks an image without changing it: finds what ``e2fsck -fn`` finds, with the journal replayed in memory."""
    problems, not_shown, inodes, directories, blocks = _extant.check(host_path(image), max_problems)
    return CheckReport([Problem(*found) for found in problems], not_shown, inodes, directories, blocks)
