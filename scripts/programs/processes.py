"""Processes and mounts of one run: everything started is ended by its id, whatever happens.

The process that calls `adopt` gets each descendant whose parent has ended, so that nothing that
was started, directly or not, gets lost: `end_descendants` finds all of them in /proc.
"""

import ctypes
import os
import signal
import subprocess
import time

PR_SET_CHILD_SUBREAPER = 36
# Administrators' tools are not in everybody's path, and PostgreSQL's are in nobody's.
SBIN = ["/usr/sbin", "/sbin"]


class Failure(Exception):
    """A program, or the file system below it, did not do what it must."""


class Skip(Exception):
    """It cannot run here; why."""


def adopt():
    """Makes this process the parent of all its descendants whose own parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def find(tool):
    """Path of a program, or `None`."""
    if "/" in tool:
        return tool if os.access(tool, os.X_OK) else None
    for place in os.environ.get("PATH", "").split(":") + SBIN:
        path = os.path.join(place, tool)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def need(*tools):
    """Skips unless all these programs are there."""
    missing = [tool for tool in tools if find(tool) is None]
    if missing:
        raise Skip("not installed: " + ", ".join(missing))


def parents():
    """Process id -> id of its parent, of all processes that run."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The second field is a name in brackets that may hold anything.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            found[int(name)] = int(fields[1])
    return found


def descendants(root):
    """Ids of all processes below `root` that have not ended."""
    of = parents()
    below = []
    for pid in of:
        up, steps = pid, 0
        while up not in (0, 1, root) and steps < 1000:
            up, steps = of.get(up, 0), steps + 1
        if up == root and pid != root:
            below.append(pid)
    return below


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def end_descendants(but=(), seconds=10.0):
    """Kills all that is below this process, but for some; returns who is left."""
    end = time.monotonic() + seconds
    while True:
        left = [pid for pid in descendants(os.getpid()) if pid not in but]
        for pid in left:
            kill(pid)
        if not but:
            reap()
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.02)


def reap():
    """Collects children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def mounts_below(place):
    """(mount point, minor device number) of all that is mounted below a directory, newest first."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            point = fields[4].replace("\\040", " ")
            if point == place or point.startswith(place + "/"):
                found.append((point, int(fields[2].split(":")[1])))
    return found[::-1]


def abort(minor):
    """Ends a FUSE connection, so that nobody waits for its server any more."""
    try:
        with open(f"/sys/fs/fuse/connections/{minor}/abort", "w", encoding="ascii") as file:
            file.write("1")
    except OSError:
        pass


def detach_all(place):
    """Unmounts what is left below a directory, dead or alive, and frees loop devices below it."""
    for point, minor in mounts_below(place):
        abort(minor)
        subprocess.run(["umount", "-l", point], check=False, stderr=subprocess.DEVNULL)
    listed = subprocess.run(
        ["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    for line in listed.stdout.splitlines():
        device, _, file = line.strip().partition(" ")
        if file.strip().startswith(place + "/"):
            subprocess.run(["losetup", "--detach", device], check=False)
