"""PostgreSQL: a cluster, pgbench, and recovery after its processes or the mount were killed."""

import glob
import os
import signal
import subprocess
import time

from .case import Program
from .processes import Failure, Skip, descendants, kill

CLIENTS = 4
SCALE = 2
# A short log ahead, so that there are checkpoints; no ports.
SETTINGS = {
    "listen_addresses": "",
    "max_wal_size": "64MB",
    "checkpoint_timeout": "30s",
    "shared_buffers": "32MB",
    "restart_after_crash": "off",
    "max_connections": "20",
}


def binaries():
    """The directory of the newest version's programs."""
    found = glob.glob("/usr/lib/postgresql/*/bin/initdb")
    if not found:
        raise Skip("not installed: postgresql")
    newest = max(found, key=lambda path: int(path.split("/")[4]))
    return os.path.dirname(newest)


class Postgres(Program):
    name = "postgres"
    seconds = 420
    image_size = "3G"
    before_kill = 6.0

    def setup(self, place):
        self.programs = binaries()
        # It refuses to run as root.
        self.user = {}
        if os.getuid() == 0:
            self.user = {"user": "postgres", "group": "postgres", "extra_groups": []}
        self.data = os.path.join(place, "data")
        self.sockets = self.case.outside("sockets")
        for path in (self.data, self.sockets):
            os.mkdir(path, 0o700)
            if self.user:
                self.case.run("chown", "postgres:postgres", path)
        self.run("initdb", "-D", self.data, "-A", "trust", "-k", "--locale=C", "-E", "UTF8")
        self.start_server()
        self.run("pgbench", "-q", "-i", "-s", str(SCALE), *self.where())
        self.sql("CREATE TABLE ledger(client int, number int, PRIMARY KEY(client, number))")
        self.stop_server()

    def run(self, program, *words, **more):
        path = os.path.join(self.programs, program)
        more = {"cwd": self.sockets, "env": {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}, **more}
        return self.case.run(path, *words, **self.user, **more)

    def where(self):
        return ["-h", self.sockets, "-U", "postgres" if self.user else "", "postgres"]

    def sql(self, text):
        host, socket, flag, user, base = self.where()
        return self.run("psql", "-XqAt", host, socket, flag, user, "-d", base, "-c", text).strip()

    def start_server(self):
        settings = [word for pair in SETTINGS.items() for word in ("-c", "=".join(pair))]
        self.server = self.case.start(
            os.path.join(self.programs, "postgres"),
            *("-D", self.data, "-k", self.sockets, *settings),
            cwd=self.sockets,
            **self.user,
        )
        for _ in range(600):
            if self.server.poll() is not None:
                raise Failure(f"postgres ended with {self.server.returncode} when it was started")
            host, socket, *_ = self.where()
            said = self.run("pg_isready", host, socket, ok=(0, 1, 2))
            if "accepting" in said:
                return
            time.sleep(0.1)
        raise Failure("postgres does not accept connections after 60 s")

    def stop_server(self):
        """A fast shutdown: everything is checkpointed."""
        self.server.send_signal(signal.SIGINT)
        status = self.server.wait(60)
        if status != 0:
            raise Failure(f"postgres ended with {status} when it was stopped")

    def start_load(self, seconds):
        """pgbench, and clients that say which of their transactions have been committed."""
        running = [
            self.case.start(
                os.path.join(self.programs, "pgbench"),
                *("-n", "-c", str(CLIENTS), "-T", str(seconds), *self.where()),
                cwd=self.sockets,
                **self.user,
            )
        ]
        for client in range(2):
            host, socket, flag, user, base = self.where()
            first = int(self.sql(f"SELECT coalesce(max(number), 0) FROM ledger WHERE client={client}"))
            with open(self.case.outside(f"work-{client}"), "w", encoding="ascii") as file:
                for number in range(first + 1, first + 100000):
                    file.write(f"INSERT INTO ledger VALUES({client}, {number});\n\\echo {number}\n")
            with (
                open(self.case.outside(f"work-{client}"), encoding="ascii") as work,
                open(self.case.outside(f"ledger-{client}"), "a", encoding="ascii") as ledger,
            ):
                running.append(
                    self.case.start(
                        os.path.join(self.programs, "psql"),
                        *("-XqAt", "-v", "ON_ERROR_STOP=1", host, socket, flag, user, "-d", base),
                        stdin=work,
                        stdout=ledger,
                        cwd=self.sockets,
                        **self.user,
                    )
                )
        return running

    def check(self):
        """Nothing that was committed is lost, and no transaction is there in part."""
        sums = self.sql(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts),"
            " (SELECT sum(bbalance) FROM pgbench_branches),"
            " (SELECT sum(tbalance) FROM pgbench_tellers),"
            " (SELECT coalesce(sum(delta), 0) FROM pgbench_history),"
            " (SELECT count(*) FROM pgbench_history)"
        ).split("|")
        if len(set(sums[:4])) != 1:
            raise Failure(f"the sums of pgbench's tables differ: {sums}")
        for client in range(2):
            try:
                with open(self.case.outside(f"ledger-{client}"), encoding="ascii") as file:
                    # The last line may be in the middle of being written.
                    lines = file.read().split("\n")[:-1]
                    committed = max((int(line) for line in lines if line.isdigit()), default=0)
            except FileNotFoundError:
                committed = 0
            found = self.sql(f"SELECT count(*), max(number) FROM ledger WHERE client={client}")
            count, last = (int(word or 0) for word in found.split("|"))
            self.case.note(f"client {client} committed {committed}, found {count}; {sums[4]} by pgbench")
            if not committed:
                raise Failure(f"client {client} committed nothing")
            if last < committed or count != last:
                raise Failure(f"client {client} committed {committed}; {count} rows to {last}")
        # Reads every page of every index and table, and each has a checksum.
        self.sql("VACUUM (FREEZE)")
        self.sql("REINDEX DATABASE postgres")

    def normal(self, place):
        self.start_server()
        bench, *clients = self.start_load(8)
        if bench.wait(60) != 0:
            raise Failure(f"pgbench ended with {bench.returncode}")
        for client in clients:
            client.kill()
            client.wait()
        # All its processes are killed in the middle of work.
        self.start_load(100)
        time.sleep(4)
        for pid in [*descendants(self.server.pid), self.server.pid]:
            kill(pid)
        self.server.wait()
        time.sleep(0.5)
        self.clear_socket()
        self.start_server()
        self.check()
        self.stop_server()
        self.run("pg_checksums", "--check", "-D", self.data)

    def clear_socket(self):
        """Clients end when their server is gone; what it leaves would stop the next one."""
        for name in os.listdir(self.sockets):
            os.unlink(os.path.join(self.sockets, name))

    def persisted(self, place):
        self.run("pg_checksums", "--check", "-D", self.data)
        self.start_server()
        self.check()
        self.stop_server()

    def load(self, place):
        self.start_server()
        self.start_load(300)

    def recovered(self, place):
        self.clear_socket()
        self.start_server()
        self.check()
        self.stop_server()
        self.run("pg_checksums", "--check", "-D", self.data)
