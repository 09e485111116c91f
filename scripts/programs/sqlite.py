"""SQLite: clients that are killed in the middle, with a log ahead and with rollback journals."""

import os
import random
import sys
import time

from .case import HERE, Program
from .processes import Failure
from .sqlite_client import MODES

CLIENTS = 2
# Times that all clients are killed, in the normal way.
ROUNDS = 3


class Sqlite(Program):
    name = "sqlite"
    seconds = 240
    image_size = "1G"
    before_kill = 2.0

    def setup(self, place):
        self.random = random.Random(self.case.options.seed)
        for mode in MODES:
            os.mkdir(self.folder(place, mode))
            self.client(place, mode, "make", 0, check=True)

    def folder(self, place, mode):
        return os.path.join(place, mode)

    def client(self, place, mode, work, number, check=False):
        """Starts a client; `check` waits for it. Databases are opened by clients alone."""
        database = os.path.join(self.folder(place, mode), "db")
        ledger = self.case.outside(f"ledger-{mode}-{number}")
        command = [database, mode, work, str(number), ledger]
        if not check:
            return self.case.python("sqlite_client.py", *command)
        script = os.path.join(HERE, "sqlite_client.py")
        return self.case.run(sys.executable, script, *command)

    def normal(self, place):
        for mode in MODES:
            for _ in range(ROUNDS):
                running = [self.client(place, mode, "write", n) for n in range(CLIENTS)]
                running.append(self.client(place, mode, "read", CLIENTS))
                self.await_commits(mode)
                time.sleep(self.random.random())
                for client in running:
                    if client.poll() is not None:
                        raise Failure(f"a client ended with {client.returncode} ({mode})")
                for client in running:
                    client.kill()
                for client in running:
                    client.wait()
                self.check(place, mode)

    def await_commits(self, mode):
        """Until each client has committed something: nobody promises them turns."""
        ledgers = [self.case.outside(f"ledger-{mode}-{number}") for number in range(CLIENTS)]
        for _ in range(600):
            if all(os.path.exists(path) and os.path.getsize(path) for path in ledgers):
                return
            time.sleep(0.05)
        raise Failure(f"not every client has committed something after 30 s ({mode})")

    def persisted(self, place):
        for mode in MODES:
            self.check(place, mode)

    def load(self, place):
        for mode in MODES:
            for number in range(CLIENTS):
                self.client(place, mode, "write", number)
        for mode in MODES:
            self.await_commits(mode)

    def recovered(self, place):
        for mode in MODES:
            self.check(place, mode)

    def check(self, place, mode):
        said = self.client(place, mode, "check", 0, check=True).split()
        if said[:1] != ["ok"]:
            raise Failure(f"{mode}: {' '.join(said)}")
        found = dict(zip(range(CLIENTS), map(int, said[1:])))
        for number, last in found.items():
            ledger = self.case.outside(f"ledger-{mode}-{number}")
            try:
                with open(ledger, encoding="ascii") as file:
                    wanted = max(map(int, file.read().split()), default=0)
            except FileNotFoundError:
                wanted = 0
            self.case.note(f"{mode}: client {number} committed {wanted}, found {last}")
            if wanted == 0:
                raise Failure(f"{mode}: client {number} committed nothing before it was killed")
            if last < wanted:
                raise Failure(f"{mode}: {wanted} was committed by client {number}, {last} is there")
