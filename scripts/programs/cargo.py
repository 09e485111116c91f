"""cargo: a build and its tests with the target directory on the mount, run from there."""

import os

from .case import HERE, Program
from .processes import Failure

ROOT = os.path.dirname(os.path.dirname(HERE))
# Small, but with a procedural macro below it, which the compiler loads from the mount. The
# project's own tests have downloaded what it depends on.
PACKAGE = "extant-format"
# Quick to test.
TESTED = "extant-base"


class Cargo(Program):
    name = "cargo"
    tools = ("cargo",)
    seconds = 600
    before_kill = 6.0

    def command(self, place, *words, package=PACKAGE):
        """cargo's command line and what it needs besides."""
        environment = {
            **os.environ,
            "CARGO_TARGET_DIR": os.path.join(place, "target"),
            "CARGO_INCREMENTAL": "1",
            "CARGO_PROFILE_DEV_DEBUG": "line-tables-only",
            "CARGO_PROFILE_DEV_OPT_LEVEL": "0",
            "CARGO_TERM_COLOR": "never",
        }
        command = ["cargo", *words, "--offline", "--locked"]
        if words[0] != "clean":
            command += ["-p", package]
        return command, {"cwd": ROOT, "env": environment}

    def cargo(self, place, *words, **package):
        command, more = self.command(place, *words, **package)
        return self.case.run(*command, **more)

    def normal(self, place):
        self.cargo(place, "build")
        self.cargo(place, "test", package=TESTED)
        self.fresh(place)

    def persisted(self, place):
        self.fresh(place)

    def fresh(self, place):
        """Nothing is built again: all times are as they were."""
        for line in self.cargo(place, "build", "--message-format=json").splitlines():
            if '"compiler-artifact"' in line and '"fresh":false' in line:
                raise Failure(f"built again without a change: {line[:200]}")

    def load(self, place):
        command, more = self.command(place, "build")
        clean, _ = self.command(place, "clean")
        script = f"while {' '.join(command)} && {' '.join(clean)}; do :; done"
        self.case.start("sh", "-c", script, **more)

    def recovered(self, place):
        # Nothing of a build is synced, so a build that was cut off may hold anything; a new one
        # must work.
        self.cargo(place, "clean")
        self.cargo(place, "build")
        self.fresh(place)
