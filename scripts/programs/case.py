"""What a program may use, and the two ways of running one.

`normal`: the program works and checks itself, the image is unmounted and checked, mounted again,
and looked at again. `kill`: the program is at work when the server is ended, twice; each time the
dead mount is taken away, the image is mounted again, which replays the journal, and what had been
made durable must be there: the program's own, and that of a `witness` beside it.
"""

import os
import subprocess
import sys
import time

from . import mounts, witness
from .processes import Failure, end_descendants

HERE = os.path.dirname(os.path.abspath(__file__))
# Times that a server is ended in one case.
KILLS = 2


class Program:
    """One program. Subclasses fill in what it does; `case` is set before any of it is called."""

    name = "?"
    # Programs that must be installed.
    tools = ()
    # What it may take, in seconds.
    seconds = 300
    image_size = "4G"
    # Work before the server is ended, in seconds.
    before_kill = 4.0
    case = None

    def setup(self, place):
        """Before either way; nothing is ended in the middle of it."""

    def normal(self, place):
        """Works, and checks what it did."""
        raise NotImplementedError

    def persisted(self, place):
        """Checks after unmounting and mounting again."""

    def load(self, place):
        """Starts processes that work until they are ended, or for much longer than needed."""
        raise NotImplementedError

    def recovered(self, place):
        """Checks after the server was ended and the image was mounted again."""


class Case:
    """One program on one image, mounted in one way; runs in a process of its own."""

    def __init__(self, program, way, scratch, options, log):
        self.program, self.options, self.log = program, options, log
        program.case = self
        self.scratch = scratch
        self.image = os.path.join(scratch, "image")
        self.place = os.path.join(scratch, "mount")
        os.makedirs(self.place, exist_ok=True)
        self.mount = way(self.image, self.place, log)
        self.short = options.short

    # For programs.

    def outside(self, name):
        """A path that is not on the mount."""
        return os.path.join(self.scratch, name)

    def run(self, *command, ok=(0,), **more):
        """Runs a program to its end and returns what it printed; all of it is in the log."""
        self.log.write(f"+ {' '.join(command)}\n")
        self.log.flush()
        more.setdefault("stdin", subprocess.DEVNULL)
        # Its own group: a ^C is for this program to pass on.
        done = subprocess.run(
            command,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
            **more,
        )
        self.log.write(done.stdout[-20000:] + done.stderr[-20000:])
        self.log.flush()
        if done.returncode not in ok:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            last = said[-1] if said else "nothing said"
            raise Failure(f"{' '.join(command[:3])}: ended with {done.returncode}: {last}")
        return done.stdout

    def start(self, *command, **more):
        """Starts a program and returns it; what it prints is in the log unless said otherwise."""
        self.log.write(f"& {' '.join(command)}\n")
        self.log.flush()
        more.setdefault("stdin", subprocess.DEVNULL)
        more.setdefault("stdout", self.log)
        return subprocess.Popen(command, stderr=self.log, process_group=0, text=True, **more)

    def python(self, script, *args, **more):
        """Starts a script of this directory."""
        return self.start(sys.executable, os.path.join(HERE, script), *args, **more)

    def note(self, text):
        self.log.write(text + "\n")
        self.log.flush()

    # The two ways.

    def again(self):
        """Unmounts, checks the image, mounts it."""
        self.mount.unmount()
        mounts.check_image(self.image, self.log)
        self.mount.start()

    def end(self):
        self.mount.unmount()
        mounts.check_image(self.image, self.log)

    def prepare(self):
        mounts.make_image(self.image, self.program.image_size)
        self.mount.start()
        self.program.setup(self.place)

    def normal(self):
        self.prepare()
        self.program.normal(self.place)
        self.again()
        self.program.persisted(self.place)
        self.end()

    def kill(self):
        self.prepare()
        ledger = self.outside("witness")
        durable = os.path.join(self.place, "witness")
        os.mkdir(durable)
        # All that was set up is durable.
        self.again()
        for count in range(KILLS):
            seed = str(self.options.seed + count)
            watcher = self.python("witness.py", durable, ledger, seed)
            self.program.load(self.place)
            # Not the same moment of a commit each time.
            time.sleep(self.program.before_kill * (1 + count / 2) + self.options.seed % 10 / 10)
            if watcher.poll() is not None:
                raise Failure(f"the witness ended with {watcher.returncode} before the kill")
            self.end_in_the_middle()
            self.mount.start()
            faults, lines = witness.check(durable, ledger)
            self.note(f"{lines} durable steps of the witness")
            if faults:
                more = f" and {len(faults) - 1} more of {lines}" if faults[1:] else ""
                self.note("\n".join(faults))
                raise Failure(f"not durable: {faults[0]}{more}")
            if lines < 10:
                raise Failure(f"the witness made only {lines} steps")
            self.program.recovered(self.place)
            self.again()
        self.end()

    def end_in_the_middle(self):
        """Ends the server, then everyone who worked on it, then the mount."""
        self.mount.kill()
        self.note("the server was ended")
        keeper = {self.mount.server.pid} if self.mount.server else ()
        left = end_descendants(but=keeper, seconds=60)
        if left:
            raise Failure(f"processes {left} do not end on a dead mount")
        self.mount.clear()
        if self.mount.has_journal and not mounts.needs_recovery(self.image):
            raise Failure("the journal was empty after the server was ended: nothing was at work")
