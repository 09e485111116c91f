"""Trees to copy, and what two trees differ in."""

import hashlib
import os
import random
import socket
import stat
import subprocess

from .processes import find

# Differences that are told; the rest are counted.
TOLD = 5


def make_zoo(place, seed=1):
    """One of each kind of file that ordinary trees hardly have."""
    choose = random.Random(seed)
    os.makedirs(place)

    def at(*parts):
        return os.path.join(place, *parts)

    def write(path, data):
        with open(path, "wb") as file:
            file.write(data)

    write(at("one"), b"linked")
    os.link(at("one"), at("two"))
    os.mkdir(at("dir"), 0o2750)
    os.link(at("one"), at("dir", "three"))
    os.symlink("one", at("short"))
    os.symlink("/" + "x" * 3000, at("long"))
    os.symlink("missing\n\\ \t", at("dangling"))
    os.mkfifo(at("fifo"), 0o600)
    write(at("n" * 255), b"a long name")
    write(os.fsencode(place) + b"/not \xff\xfe utf-8", b"")
    write(at("empty"), b"")
    with open(at("sparse"), "wb") as file:
        for offset in (0, 1 << 20, 43456789):
            file.seek(offset)
            file.write(choose.randbytes(5000))
        file.truncate(64 << 20)
    write(at("set"), b"#!/bin/sh\n")
    os.chmod(at("set"), 0o6755)
    os.mkdir(at("sticky"))
    os.chmod(at("sticky"), 0o1777)
    for count in range(200):
        write(at("dir", f"file-{count}"), choose.randbytes(choose.randrange(20000)))
    deep = at("deep")
    for level in range(40):
        deep = os.path.join(deep, f"level-{level}")
    os.makedirs(deep)
    write(os.path.join(deep, "bottom"), b"deep")
    for name, old in (("one", 1), ("empty", 1234567890123456789), ("dir", 2**33 * 10**9)):
        os.utime(at(name), ns=(old, old))
    try:
        os.setxattr(at("set"), "user.small", b"value")
        os.setxattr(at("set"), "user.large", choose.randbytes(1500))
        os.setxattr(at("dir"), "user.empty", b"")
    except OSError:
        pass
    if os.getuid() == 0:
        os.mknod(at("null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(at("block"), stat.S_IFBLK | 0o600, os.makedev(259, 70000))
        os.chown(at("two"), 12345, 70000)
        os.chown(at("short"), 1, 4000000000, follow_symlinks=False)
        for command in (
            ["setfacl", "-m", "u:12:rw,g:34:r,m::rw", at("empty")],
            ["setfacl", "-d", "-m", "u:12:rwx", at("sticky")],
            ["setcap", "cap_net_raw+ep", at("dir", "file-0")],
        ):
            if find(command[0]):
                subprocess.run([find(command[0]), *command[1:]], check=False)


def make_socket(place):
    """What archives leave out."""
    # A path of a socket is short; a name of a directory's descriptor is.
    with socket.socket(socket.AF_UNIX) as end:
        fd = os.open(place, os.O_RDONLY)
        try:
            end.bind(f"/proc/self/fd/{fd}/socket")
        finally:
            os.close(fd)


def digest(path):
    total = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:
        while data := file.read(1 << 20):
            total.update(data)
    return total.hexdigest()


def describe(path, info):
    """Everything of a file that a copy must keep."""
    kind = stat.S_IFMT(info.st_mode)
    told = {"mode": oct(info.st_mode), "owner": (info.st_uid, info.st_gid)}
    told["mtime"] = info.st_mtime_ns
    if kind == stat.S_IFLNK:
        told["target"] = os.readlink(path)
    if kind == stat.S_IFREG:
        told["size"] = info.st_size
        told["contents"] = digest(path)
    if kind in (stat.S_IFCHR, stat.S_IFBLK):
        told["device"] = info.st_rdev
    if kind != stat.S_IFDIR:
        told["links"] = info.st_nlink
    try:
        names = os.listxattr(path, follow_symlinks=False)
        told["attributes"] = {
            name: os.getxattr(path, name, follow_symlinks=False) for name in sorted(names)
        }
    except OSError:
        told["attributes"] = {}
    return told


def walk(top):
    """All paths below a directory, relative, with what `lstat` says; the directory itself as `.`."""
    top = os.fsencode(top)
    yield b".", os.lstat(top)
    for folder, folders, files in os.walk(top):
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            yield os.path.relpath(path, top), os.lstat(path)


def differences(source, copy, skip=()):
    """What differs in two trees, as sentences. `skip` names properties that need not be equal."""
    faults = []
    links, seen = {}, set()
    source, copy = os.fsencode(source), os.fsencode(copy)
    for name, info in walk(source):
        seen.add(name)
        other = os.path.join(copy, name)
        try:
            found = os.lstat(other)
        except FileNotFoundError:
            faults.append(f"{name!r} is missing")
            continue
        want = describe(os.path.join(source, name), info)
        have = describe(other, found)
        for key, value in want.items():
            if key not in skip and have.get(key) != value:
                faults.append(f"{name!r}: {key} {have.get(key)!r} instead of {value!r}")
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            # Names of one file there are names of one file here.
            group = links.setdefault((info.st_dev, info.st_ino), (found.st_dev, found.st_ino))
            if group != (found.st_dev, found.st_ino):
                faults.append(f"{name!r} is not linked to what it was linked to")
    for name, _ in walk(copy):
        if name not in seen:
            faults.append(f"{name!r} is new")
    return faults


def told(faults):
    more = f"; and {len(faults) - TOLD} more" if len(faults) > TOLD else ""
    return "; ".join(faults[:TOLD]) + more
