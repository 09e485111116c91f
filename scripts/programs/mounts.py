"""An image, and the ways of mounting it.

Each way can end in the middle: a server is killed, the kernel's ext4 is shut down without
writing its log, which leaves the same on the device.
"""

import fcntl
import os
import signal
import struct
import subprocess
import time

from .processes import Failure, Skip, descendants, find, kill, mounts_below, need

# _IOR('X', 125, __u32), and its argument: stop at once, write nothing.
EXT4_IOC_SHUTDOWN = 0x8004587D
NOLOGFLUSH = 2
# Longest wait for a mount to be there, or a server to end.
WAIT_SECONDS = 60


class Mount:
    """An image mounted on a directory. Subclasses say how."""

    name = "?"
    tools = ()
    # Whether it survives being ended in the middle.
    has_journal = True

    def __init__(self, image, place, log):
        self.image, self.place, self.log = image, place, log
        self.server = None
        self.kills = 0

    def start(self):
        """Mounts."""
        raise NotImplementedError

    def kill(self):
        """Ends it at once, in the middle of whatever it does."""
        raise NotImplementedError

    def unmount(self):
        """Unmounts a mount that works, and waits until the image is closed."""
        raise NotImplementedError

    def clear(self):
        """Unmounts a mount that was ended by `kill`."""
        raise NotImplementedError

    def is_mounted(self):
        return any(point == self.place for point, _ in mounts_below(self.place))

    # Common to those with a server.

    def serve(self, command):
        self.server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, process_group=0
        )
        end = time.monotonic() + WAIT_SECONDS
        while not self.is_mounted():
            status = self.server.poll()
            if status is not None:
                raise Failure(f"{' '.join(command)}: ended with {status} before it was mounted")
            if time.monotonic() > end:
                raise Failure(f"{' '.join(command)}: not mounted after {WAIT_SECONDS} s")
            time.sleep(0.01)
        # Answered only when the server serves.
        os.statvfs(self.place)

    def kill_server(self):
        status = self.server.poll()
        if status is not None:
            raise Failure(f"the server had ended by itself, with {status}")
        kill(self.server.pid)
        self.server.wait()
        self.server = None

    def umount(self, *options):
        fuse = find("fusermount3") if self.name != "ext4" else None
        command = [fuse, "-u"] if fuse and not options else ["umount", *options]
        last = ""
        # Whoever was killed may still hold a file for a moment.
        for _ in range(50):
            done = subprocess.run(
                [*command, self.place], check=False, stderr=subprocess.PIPE, text=True
            )
            if done.returncode == 0:
                return
            last = done.stderr.strip()
            time.sleep(0.1)
        raise Failure(f"cannot unmount: {last}")

    def end_server(self):
        try:
            status = self.server.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"the server runs {WAIT_SECONDS} s after it was unmounted") from error
        self.server = None
        if status != 0:
            raise Failure(f"the server ended with {status} after it was unmounted")


class Extant(Mount):
    """`extant mount`."""

    name = "extant"

    def start(self):
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise Skip("/dev/fuse is not there, or not for this user")
        if os.getuid() != 0:
            need("fusermount3")
        command = os.environ.get("EXTANT", "target/release/extant")
        options = "allow_other" if os.getuid() == 0 else "rw"
        self.serve([command, "mount", "--foreground", "-o", options, self.image, self.place])

    def kill(self):
        """Both of its processes at once, or only the one that serves."""
        if self.server.poll() is not None:
            raise Failure(f"the server had ended by itself, with {self.server.returncode}")
        serving = descendants(self.server.pid)
        self.kills += 1
        if self.kills % 2 == 1 or not serving:
            self.kill_server()
        for pid in serving:
            kill(pid)

    def unmount(self):
        self.umount()
        self.end_server()

    def clear(self):
        if self.server is None:
            return self.umount()
        # The one that is left takes the mount away, and does not say that all is well.
        try:
            status = self.server.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"the keeper runs {WAIT_SECONDS} s after its server was killed") from error
        self.server = None
        if status == 0:
            raise Failure("the keeper ended with 0 after its server was killed")
        if self.is_mounted():
            raise Failure("the keeper left the mount of its killed server behind")


class Fuse2fs(Mount):
    """`fuse2fs` of e2fsprogs: has no journal of its own."""

    name = "fuse2fs"
    tools = ("fuse2fs",)
    has_journal = False

    def start(self):
        self.serve(["fuse2fs", "-f", "-o", "fakeroot,allow_other", self.image, self.place])

    def kill(self):
        self.kill_server()

    def unmount(self):
        self.umount()
        self.end_server()

    def clear(self):
        self.umount()


class Ext4(Mount):
    """The kernel's ext4 through a loop device: proves that what is demanded can be met."""

    name = "ext4"
    tools = ("losetup", "mount")

    def start(self):
        done = subprocess.run(
            ["mount", "-o", "loop,nodiscard", "-t", "ext4", self.image, self.place],
            check=False,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode != 0:
            raise Failure(f"cannot mount: {done.stderr.strip()}")

    def kill(self):
        # A sync that the shutdown meets on its way may return as if it had worked.
        for pid in descendants(os.getpid()):
            kill(pid, signal.SIGSTOP)
        time.sleep(0.3)
        fd = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NOLOGFLUSH))
        finally:
            os.close(fd)

    def unmount(self):
        self.umount()
        self.detached()

    def clear(self):
        self.umount()
        self.detached()

    def detached(self):
        """Waits until the loop device has let go of the image."""
        for _ in range(WAIT_SECONDS * 20):
            done = subprocess.run(
                ["losetup", "-j", self.image], check=False, stdout=subprocess.PIPE, text=True
            )
            if not done.stdout.strip():
                return
            time.sleep(0.05)
        raise Failure("the loop device does not let go of the image")


WAYS = {way.name: way for way in (Extant, Ext4, Fuse2fs)}


def make_image(path, size):
    """Makes an empty file system, as Debian's mke2fs does."""
    need("mke2fs", "e2fsck", "dumpe2fs")
    subprocess.run(
        [find("mke2fs"), "-q", "-F", "-t", "ext4", path, size],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def needs_recovery(image):
    """Whether the journal has to be replayed."""
    done = subprocess.run(
        [find("dumpe2fs"), "-h", image],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    features = [line for line in done.stdout.splitlines() if line.startswith("Filesystem features")]
    return any("needs_recovery" in line for line in features)


def check_image(image, log):
    """Fails unless `e2fsck -fn` finds nothing, and the journal is empty."""
    if needs_recovery(image):
        raise Failure("the journal needs recovery after unmounting")
    done = subprocess.run(
        ["timeout", "-s", "KILL", "120", find("e2fsck"), "-fn", image],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log.write(done.stdout)
    log.flush()
    if done.returncode != 0:
        first = [line for line in done.stdout.splitlines() if line and not line.startswith("Pass")]
        found = "; ".join(first[1:4])
        raise Failure(f"e2fsck -fn ends with {done.returncode}: {found}")
