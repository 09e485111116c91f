"""Makes files durable on a mount, and says so in a ledger outside of it.

`python3 witness.py DIRECTORY LEDGER` works until a call fails. Each line of the ledger is written
after the call that makes it true has returned:

    is NAME VERSION BYTES     NAME holds this version or a later one, whole
    starts NAME BYTES         NAME begins with this many bytes of its pattern
    gone NAME                 there is no such name

What a version of a name holds follows from the two, so that `check` needs nothing but the ledger.
"""

import hashlib
import mmap
import os
import random
import sys

RECORD = 1000
PAGE = 4096
MAP_PAGES = 16
# Versions of a file that `check` looks for after the one in the ledger: what was on its way.
LATER = 3


def contents(name, version, size):
    return hashlib.shake_128(f"{name} {version}".encode()).digest(size)


def size_of(name, version):
    """Sizes from nothing to 200 KB, small ones more often."""
    digest = hashlib.sha256(f"size {name} {version}".encode()).digest()
    return int.from_bytes(digest[:4], "little") % (100 << digest[4] % 12)


def sync_dir(place):
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data) :]


class Witness:
    def __init__(self, place, ledger):
        self.place = place
        self.ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.logged = {}

    def say(self, *words):
        write_all(self.ledger, (" ".join(map(str, words)) + "\n").encode())

    def path(self, name):
        return os.path.join(self.place, name)

    def new(self, name, version, flags=0):
        """A file that is written, synced and named."""
        size = size_of(name, version)
        fd = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o644)
        write_all(fd, contents(name, version, size))
        if not flags & os.O_SYNC:
            os.fsync(fd)
        os.close(fd)
        sync_dir(self.place)
        self.say("is", name, version, size)

    def replace(self, name, version):
        """A file that takes the place of its last version."""
        size = size_of(name, version)
        fd = os.open(self.path(name + ".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        write_all(fd, contents(name, version, size))
        os.fsync(fd)
        os.close(fd)
        os.rename(self.path(name + ".new"), self.path(name))
        sync_dir(self.place)
        self.say("is", name, version, size)

    def append(self, name, count):
        """A log that grows by a record."""
        fd = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        old = os.fstat(fd).st_size
        data = contents(name, 0, (count + 1) * RECORD)
        if old != count * RECORD:
            sys.exit(f"{name} has {old} bytes instead of {count * RECORD}")
        write_all(fd, data[old:])
        os.fdatasync(fd)
        os.close(fd)
        if count == 0:
            sync_dir(self.place)
        self.say("starts", name, (count + 1) * RECORD)

    def mapped(self, name, pages):
        """A shared mapping that is filled page by page, each with an msync."""
        fd = os.open(self.path(name), os.O_RDWR | os.O_CREAT, 0o644)
        if pages == 0:
            os.ftruncate(fd, MAP_PAGES * PAGE)
            os.fsync(fd)
            sync_dir(self.place)
        with mmap.mmap(fd, MAP_PAGES * PAGE) as memory:
            for page in range(pages, min(pages + 4, MAP_PAGES)):
                data = contents(name, 0, MAP_PAGES * PAGE)
                memory[page * PAGE : (page + 1) * PAGE] = data[page * PAGE : (page + 1) * PAGE]
                memory.flush()
                self.say("starts", name, (page + 1) * PAGE)
        os.close(fd)

    def remove(self, name):
        os.unlink(self.path(name))
        sync_dir(self.place)
        self.say("gone", name)

    def run(self, seed):
        choose = random.Random(seed)
        made, records, pages, versions = [], {}, {}, {}
        step = 0
        while True:
            step += 1
            kind = choose.randrange(6)
            if kind == 0:
                self.new(f"new-{seed}-{step}", 0)
                made.append(f"new-{seed}-{step}")
            elif kind == 1:
                self.new(f"sync-{seed}-{step}", 0, os.O_SYNC)
            elif kind == 2:
                name = f"replaced-{seed}-{choose.randrange(4)}"
                versions[name] = versions.get(name, -1) + 1
                self.replace(name, versions[name])
            elif kind == 3:
                name = f"log-{seed}-{choose.randrange(3)}"
                self.append(name, records.get(name, 0))
                records[name] = records.get(name, 0) + 1
            elif kind == 4:
                name = f"mapped-{seed}-{step // 20}"
                if pages.get(name, 0) < MAP_PAGES:
                    self.mapped(name, pages.get(name, 0))
                    pages[name] = pages.get(name, 0) + 4
            elif len(made) > 10:
                self.remove(made.pop(choose.randrange(len(made))))


def check(place, ledger):
    """What the ledger says and the directory does not hold: a list of sentences; and a count."""
    wanted, lines = {}, 0
    with open(ledger, encoding="ascii") as file:
        for line in file:
            if not line.endswith("\n"):
                break
            kind, name, *rest = line.split()
            wanted[name] = (kind, *map(int, rest))
            lines += 1
    faults, missing = [], []
    for name, (kind, *rest) in wanted.items():
        try:
            with open(os.path.join(place, name), "rb") as file:
                found = file.read()
        except FileNotFoundError:
            found = None
        if kind == "gone":
            if found is not None:
                faults.append(f"{name} was removed and synced, and is back")
        elif found is None:
            missing.append(name)
        elif kind == "starts":
            want = contents(name, 0, rest[0])
            if found[: len(want)] != want:
                faults.append(f"{name}: {differs(found, want)}")
        else:
            version, size = rest
            if not any(
                found == contents(name, later, size_of(name, later))
                for later in range(version, version + LATER)
            ):
                faults.append(f"{name}: {differs(found, contents(name, version, size))}")
    # One removal may have been on its way, of a file of the kind that is removed.
    last = [name for name in missing if name.startswith("new-")][:1]
    faults += [f"{name} was synced, and is not there" for name in missing if name not in last]
    return faults, lines


def differs(found, want):
    for at in range(0, len(want), PAGE):
        if found[at : at + PAGE] != want[at : at + PAGE]:
            part = found[at : at + PAGE]
            zeros = ", zeros" if part and not any(part) else ""
            return f"{len(found)} bytes, {len(want)} wanted, differs at {at}{zeros}"
    return f"{len(found)} bytes, {len(want)} wanted"


def main():
    place, ledger, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    try:
        Witness(place, ledger).run(seed)
    except OSError as error:
        sys.exit(f"stopped: {error}")


if __name__ == "__main__":
    main()
