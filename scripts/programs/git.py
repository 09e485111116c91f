"""git: a clone of this repository, commits, checks and collections of garbage."""

import os

from .case import HERE, Program
from .processes import Skip

ROOT = os.path.dirname(os.path.dirname(HERE))


class Git(Program):
    name = "git"
    tools = ("git",)
    seconds = 240
    before_kill = 3.0

    def environment(self):
        """No settings of the user or the machine; this repository is whoever's."""
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": self.case.scratch,
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_COUNT": "4",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "GIT_CONFIG_KEY_1": "user.name",
            "GIT_CONFIG_VALUE_1": "tester",
            "GIT_CONFIG_KEY_2": "user.email",
            "GIT_CONFIG_VALUE_2": "tester@example.org",
            "GIT_CONFIG_KEY_3": "gc.auto",
            "GIT_CONFIG_VALUE_3": "0",
        }

    def git(self, *words):
        return self.case.run("git", "-C", self.clone, *words, env=self.environment())

    def setup(self, place):
        if not os.path.exists(os.path.join(ROOT, ".git")):
            raise Skip("the sources are not a git repository")
        self.clone = os.path.join(place, "clone")
        # Not by hard links from another file system, but as over a network.
        self.case.run(
            "git", "clone", "-q", "--no-local", ROOT, self.clone, env=self.environment()
        )

    def head(self):
        return self.git("rev-parse", "HEAD").strip()

    def normal(self, place):
        self.git("fsck", "--full", "--strict")
        for count in range(10):
            with open(os.path.join(self.clone, f"added-{count}"), "w", encoding="ascii") as file:
                file.write(f"{count}\n" * 1000)
            self.git("add", "-A")
            self.git("commit", "-q", "-m", f"commit {count}")
        self.git("checkout", "-q", "-b", "other", "HEAD~5")
        self.git("merge", "-q", "--no-ff", "-m", "merged", "HEAD@{1}")
        self.git("gc", "-q", "--prune=now")
        self.git("fsck", "--full", "--strict")
        self.git("worktree", "add", "-q", "-b", "third", os.path.join(place, "worktree"))
        self.last = self.head()
        self.same(place)

    def persisted(self, place):
        self.same(place)
        self.git("fsck", "--full", "--strict")

    def same(self, place):
        """The tree is that of the commit; what is unchanged is seen to be so by its times."""
        assert self.head() == self.last
        assert self.git("status", "--porcelain") == ""
        third = os.path.join(place, "worktree")
        self.case.run("git", "-C", third, "diff", "--quiet", env=self.environment())

    def load(self, place):
        self.case.python(
            "git_client.py", self.clone, self.case.outside("commits"), env=self.environment()
        )

    def recovered(self, place):
        # A lock file of whoever was killed is what git leaves, and what its users remove.
        for folder, _, names in os.walk(os.path.join(self.clone, ".git")):
            for name in names:
                if name.endswith(".lock"):
                    os.unlink(os.path.join(folder, name))
        self.git("fsck", "--full", "--strict")
        with open(self.case.outside("commits"), encoding="ascii") as file:
            commits = file.read().split()
        self.case.note(f"{len(commits)} durable commits")
        assert commits, "no commit was made before the kill"
        for commit in commits[-1:]:
            self.git("merge-base", "--is-ancestor", commit, "HEAD")
        self.git("reset", "-q", "--hard")
        self.git("clean", "-qfd")
        assert self.git("status", "--porcelain") == ""
