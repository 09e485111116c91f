"""fio: what is written in each way of doing I/O is read back and verified."""

import os

from .case import Program
from .processes import Failure
from .trees import digest

SIZE = "48M"
# name: options. Each writes and then verifies the whole.
JOBS = {
    "buffered": "--ioengine=psync --bsrange=512-256k --bs_unaligned=1",
    "direct": "--ioengine=psync --direct=1 --bs=4k",
    "vectors": "--ioengine=pvsync2 --bs=64k",
    "mapped": "--ioengine=mmap --bs=4k",
    "libaio": "--ioengine=libaio --direct=1 --iodepth=16 --bs=16k",
    "io_uring": "--ioengine=io_uring --direct=1 --iodepth=16 --bs=4k",
    "io_uring-buffered": "--ioengine=io_uring --iodepth=16 --bsrange=4k-128k",
    "synchronous": "--ioengine=psync --sync=1 --bs=128k --size=8M",
    "preallocated": "--ioengine=psync --fallocate=posix --bs=8k",
    "sequential": "--ioengine=psync --rw=write --bs=1M",
    "threads": "--ioengine=psync --thread --numjobs=4 --bs=4k --size=8M",
    "hole": "--ioengine=psync --bs=4k --filesize=1g --io_size=16M --norandommap",
}
# Those that are complete when the server is ended.
COMPLETE = ("buffered", "direct", "mapped")


class Fio(Program):
    name = "fio"
    tools = ("fio",)
    seconds = 420
    image_size = "3G"

    def options(self, place, job):
        seed = self.case.options.seed
        return [
            "fio",
            f"--name={job}",
            f"--directory={place}",
            "--rw=randwrite",
            f"--size={SIZE}",
            f"--randseed={seed}",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--fallocate=none",
            "--group_reporting",
            "--output-format=terse",
            *JOBS[job].split(),
        ]

    def fio(self, place, job, *more):
        """Runs a job; an engine that this kernel does not offer is noted and left out."""
        folder = os.path.join(place, job)
        os.makedirs(folder, exist_ok=True)
        try:
            self.case.run(*self.options(folder, job), *more, cwd=self.case.scratch)
        except Failure as why:
            if "io_uring" in job and "not" in str(why) and "permitted" in str(why):
                self.case.note(f"left out: {why}")
                return False
            raise
        return True

    def normal(self, place):
        self.done = [
            job for job in JOBS if self.fio(place, job, "--do_verify=1", "--end_fsync=1")
        ]
        self.digests = self.all_digests(place, self.done)

    def persisted(self, place):
        self.same(place, self.done)

    def all_digests(self, place, jobs):
        return {
            (job, name): digest(os.path.join(place, job, name))
            for job in jobs
            for name in sorted(os.listdir(os.path.join(place, job)))
        }

    def same(self, place, jobs):
        """What fio verified, or wrote and synced, is still what it was."""
        found = self.all_digests(place, jobs)
        differ = [name for name, value in self.digests.items() if found.get(name) != value]
        if differ or len(found) != len(self.digests):
            raise Failure(f"other contents: {differ[:3]}, {len(found)} of {len(self.digests)} files")

    def setup(self, place):
        """In the way that ends in the middle: files that are complete and synced before."""
        os.makedirs(os.path.join(place, "before"))

    def load(self, place):
        # What was written and synced before is compared after; the rest is at work.
        before = os.path.join(place, "before")
        for job in COMPLETE:
            self.fio(before, job, "--do_verify=0", "--end_fsync=1")
        self.digests = self.all_digests(before, COMPLETE)
        for job in ("buffered", "direct", "mapped", "libaio", "preallocated"):
            folder = os.path.join(place, f"during-{job}")
            os.makedirs(folder, exist_ok=True)
            command = [*self.options(folder, job), "--time_based", "--runtime=100", "--fsync=64"]
            self.case.start(*command, cwd=self.case.scratch)

    def recovered(self, place):
        self.same(os.path.join(place, "before"), COMPLETE)
