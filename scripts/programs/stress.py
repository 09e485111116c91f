"""stress-ng: stressors of files, each of which verifies what it did."""

import os

from .case import Program
from .processes import Failure

# Those of version 0.15 that work in the directory they are given.
STRESSORS = """
    access aiol chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup eventfd
    fallocate fcntl fiemap file-ioctl filename flock fpunch fstat getdent hdd inode-flags inotify
    io iomix lease link locka lockf lockofd mknod mmap mmapfixed mmapfork
    open readahead rename revio seal seek sendfile symlink sync-file touch utime vm-splice
    xattr
""".split()
# What a stressor needs besides.
MORE = {
    "hdd": ["--hdd-bytes", "64m", "--hdd-opts", "direct,wr-seq,rd-rnd,fsync"],
    "iomix": ["--iomix-bytes", "64m"],
    "fallocate": ["--fallocate-bytes", "64m"],
    "mmap": ["--mmap-file", "--mmap-bytes", "16m"],
    "readahead": ["--readahead-bytes", "64m"],
    "revio": ["--revio-bytes", "64m"],
    "seek": ["--seek-size", "64m"],
    "sync-file": ["--sync-file-bytes", "64m"],
    "aiol": ["--aiol-requests", "16"],
    "copy-file": ["--copy-file-bytes", "128m"],
    "fiemap": ["--fiemap-bytes", "64m"],
    "dirmany": ["--dirmany-bytes", "4k"],
}
# Ends of stress-ng: all was verified; it cannot do that here.
GOOD, LACKING = 0, (3, 4)


class Stress(Program):
    name = "stress-ng"
    tools = ("stress-ng",)
    seconds = 600
    image_size = "3G"

    def command(self, place, stressor, seconds):
        folder = os.path.join(place, stressor)
        os.makedirs(folder, exist_ok=True)
        return [
            "stress-ng",
            f"--{stressor}",
            "2",
            *MORE.get(stressor, []),
            "--verify",
            "--temp-path",
            folder,
            "--timeout",
            str(seconds),
            "--seed",
            str(self.case.options.seed),
        ]

    def normal(self, place):
        failed, lacking = [], []
        for stressor in STRESSORS:
            try:
                self.case.run(*self.command(place, stressor, 2), cwd=self.case.scratch)
            except Failure as why:
                text = str(why)
                ends = [f"ended with {end}:" in text for end in LACKING]
                (lacking if any(ends) else failed).append(f"{stressor} ({text[-100:]})")
            left = os.listdir(os.path.join(place, stressor))
            if left:
                failed.append(f"{stressor} left {left[0]}")
        self.case.note(f"not possible here: {lacking}")
        if failed:
            raise Failure("; ".join(failed))

    def load(self, place):
        for stressor in ("hdd", "dir", "rename", "fallocate", "dentry", "xattr", "fpunch", "link"):
            self.case.start(*self.command(place, stressor, 200), cwd=self.case.scratch)

    def recovered(self, place):
        # All that is left is there to be read and removed.
        for folder, _, names in os.walk(place):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not os.path.islink(path):
                    with open(path, "rb") as file:
                        while file.read(1 << 20):
                            pass
        for stressor in os.listdir(place):
            if stressor not in ("witness", "lost+found"):
                self.case.run("rm", "-rf", os.path.join(place, stressor))
