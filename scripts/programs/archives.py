"""tar and rsync: a real tree and a zoo of odd files go in and come out equal."""

import os

from . import trees
from .case import Program
from .processes import Failure

# A tree of ordinary files, and a part of it for short tests.
TREE = os.environ.get("TREE", "/usr/share")
SHORT_TREE = "/usr/share/zoneinfo"


class Copies(Program):
    """A copy of the trees, which subclasses make."""

    seconds = 420

    def copy(self, source, target):
        raise NotImplementedError

    def back(self, source, target):
        """Out of the mount."""
        raise NotImplementedError

    def sources(self, place):
        """(source, copy on the mount), of each tree."""
        tree = SHORT_TREE if self.case.short else TREE
        tree = tree if os.path.isdir(tree) else "/etc"
        return [
            (self.case.outside("zoo"), os.path.join(place, "zoo")),
            (tree, os.path.join(place, "tree")),
        ]

    def setup(self, place):
        trees.make_zoo(self.case.outside("zoo"))

    def compare(self, source, copy):
        # What another program changes meanwhile in its own tree would differ here too; /usr/share
        # is quiet. A link count there may count names outside of the tree.
        skip = () if source == self.case.outside("zoo") else ("links",)
        faults = trees.differences(source, copy, skip)
        if faults:
            self.case.note("\n".join(faults))
            raise Failure(trees.told(faults))

    def normal(self, place):
        for source, copy in self.sources(place):
            os.mkdir(copy)
            self.copy(source, copy)
            self.compare(source, copy)

    def persisted(self, place):
        for source, copy in self.sources(place):
            self.compare(source, copy)
        source, copy = self.sources(place)[1]
        self.case.run("diff", "-r", "--no-dereference", source, copy)
        # And out again, by the same program.
        source, copy = self.sources(place)[0]
        out = self.case.outside("out")
        os.mkdir(out)
        self.back(copy, out)
        self.compare(source, out)


class Tar(Copies):
    name = "tar"
    tools = ("tar", "diff")
    before_kill = 3.0

    def pipe(self, source, target):
        """A shell command that copies one tree into another."""
        keep = "--xattrs --xattrs-include='*' --acls --numeric-owner"
        # A name that ends a pipe's first half badly must end the whole badly.
        out = f"tar -C '{source}' {keep} --format=posix --sparse -cf - ."
        return f"set -o pipefail; {out} | tar -C '{target}' {keep} -xpf -"

    def copy(self, source, target):
        self.case.run("bash", "-c", self.pipe(source, target))

    back = copy

    def load(self, place):
        commands = []
        for count, (source, _) in enumerate(self.sources(place)):
            copy = os.path.join(place, f"loaded-{count}")
            commands.append(
                f"while rm -rf '{copy}' && mkdir '{copy}' && ({self.pipe(source, copy)}); do :; done"
            )
        self.case.start("bash", "-c", " & ".join(commands) + "; wait")

    def recovered(self, place):
        # What was copied is in no order on the device, but it can be removed and copied again.
        for count, (source, _) in enumerate(self.sources(place)):
            copy = os.path.join(place, f"loaded-{count}")
            self.case.run("rm", "-rf", copy)
            os.mkdir(copy)
            self.copy(source, copy)
            self.compare(source, copy)


class Rsync(Copies):
    name = "rsync"
    tools = ("rsync", "diff")
    before_kill = 3.0

    def setup(self, place):
        super().setup(place)
        trees.make_socket(self.case.outside("zoo"))

    def command(self, source, target, *more):
        # Times are equal when they are to the nanosecond.
        return ["rsync", "-aHAX", "--modify-window=-1", "--numeric-ids", "--delete", *more, f"{source}/", f"{target}/"]

    def copy(self, source, target):
        self.case.run(*self.command(source, target))
        # It finds no difference itself, by contents and by attributes.
        said = self.case.run(*self.command(source, target, "-n", "-c", "-i"))
        if said.strip():
            raise Failure(f"rsync would copy again: {said.splitlines()[0]}")

    def back(self, source, target):
        self.case.run(*self.command(source, target, "--sparse"))

    def load(self, place):
        for source, copy in self.sources(place):
            command = self.command(source, copy)
            script = f"while {' '.join(command)} && rm -rf '{copy}'; do :; done"
            self.case.start("bash", "-c", script)

    def recovered(self, place):
        # It goes on where it was: what is whole stays, what is not is copied. Contents that were
        # not synced may be anything their times do not tell.
        for source, copy in self.sources(place):
            self.case.run(*self.command(source, copy, "-c"))
            self.compare(source, copy)
