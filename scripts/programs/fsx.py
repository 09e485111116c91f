"""fsx, as its authors publish it: random operations on a file, each result compared with a copy in memory."""

import os

from .case import HERE, Program
from .processes import Failure, Skip
from .trees import digest

ROOT = os.path.dirname(os.path.dirname(HERE))
VERSION = "0.3.2"
WEIGHTS = """
[weights]
close_open=1
read=10
write=10
mapread=6
mapwrite=6
invalidate=1
truncate=8
fsync=1
fdatasync=1
posix_fallocate=3
punch_hole=5
sendfile=3
posix_fadvise=2
copy_file_range=5
"""
# name: length of the file, least and most bytes of an operation, operations.
SIZES = {
    "large": (16 << 20, 1, 1 << 20, 1500),
    "small": (256 << 10, 1, 64 << 10, 20_000),
    # Length 0 is no length for posix_fallocate.
    "tiny": (2000, 1, 600, 20_000),
}


class Fsx(Program):
    name = "fsx"
    tools = ("cargo",)
    seconds = 420

    def fsx(self):
        """The program, built once."""
        target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
        root = os.path.join(target, "tools")
        program = os.path.join(root, "bin", "fsx")
        if not os.path.exists(program):
            command = ["cargo", "install", "--quiet", "--root", root, "--version", VERSION, "fsx"]
            try:
                self.case.run(*command)
            except Failure as why:
                raise Skip(f"fsx {VERSION} cannot be installed: {why}") from why
        return program

    def command(self, place, size, seed, *more):
        length, least, most, _ = SIZES[size]
        settings = self.case.outside(f"{size}.toml")
        with open(settings, "w", encoding="ascii") as out:
            out.write(f"flen={length}\n[opsize]\nmin={least}\nmax={most}\n{WEIGHTS}")
        # What differs is shown and kept beside the image.
        own = ["-q", "-S", str(seed), "-f", settings, "-P", self.case.scratch]
        return [self.fsx(), *own, *more, os.path.join(place, f"{size}-{seed}")]

    def seeds(self):
        first = self.case.options.seed * 100
        return range(first, first + 3)

    def normal(self, place):
        self.fsx()
        running = [
            (size, seed, self.case.start(*self.command(place, size, seed, "-N", str(SIZES[size][3]))))
            for size in SIZES
            for seed in self.seeds()
        ]
        failed = [(size, seed) for size, seed, process in running if process.wait() != 0]
        if failed:
            raise Failure(f"fsx found a difference (size, seed): {failed}")
        self.digests = self.all_digests(place)

    def names(self):
        return [f"{size}-{seed}" for size in SIZES for seed in self.seeds()]

    def all_digests(self, place):
        return {name: digest(os.path.join(place, name)) for name in self.names()}

    def persisted(self, place):
        found = self.all_digests(place)
        differ = [name for name, value in self.digests.items() if found.get(name) != value]
        if differ:
            raise Failure(f"other contents after mounting again: {differ}")

    def setup(self, place):
        self.fsx()

    def load(self, place):
        for size in SIZES:
            command = self.command(place, size, self.case.options.seed)
            # It ends by a panic when its file is gone, which must not be taken for the server's.
            self.case.start("sh", "-c", 'exec "$@" 2>/dev/null', "fsx", *command)
