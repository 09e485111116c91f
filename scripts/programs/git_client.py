"""Commits to a repository until it fails; says which commits are durable.

`python3 git_client.py CLONE LEDGER`, with git's environment. git syncs the files that it makes, not
the directories that it names them in: this does, and only then writes the commit to the ledger.
"""

import os
import subprocess
import sys
import time

DURABLE = ["-c", "core.fsync=all", "-c", "core.fsyncMethod=fsync"]


def git(clone, *words):
    command = ["git", *DURABLE, "-C", clone, *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def main():
    clone, ledger = sys.argv[1:3]
    store = os.path.join(clone, ".git")
    with open(ledger, "a", encoding="ascii") as log:
        step = 0
        while True:
            step += 1
            name = f"loaded-{time.time_ns()}"
            with open(os.path.join(clone, name), "w", encoding="ascii") as file:
                file.write(f"{step}\n" * (step % 50 * 100))
            git(clone, "add", name)
            git(clone, "commit", "-q", "-m", name)
            commit = git(clone, "rev-parse", "HEAD")
            for place in [store, os.path.join(store, "objects")]:
                sync(place)
            for folder in os.listdir(os.path.join(store, "objects")):
                sync(os.path.join(store, "objects", folder))
            branch = git(clone, "symbolic-ref", "HEAD")
            sync(os.path.dirname(os.path.join(store, branch)))
            log.write(commit + "\n")
            log.flush()
            if step % 10 == 0:
                git(clone, "gc", "-q", "--prune=now")


if __name__ == "__main__":
    main()
