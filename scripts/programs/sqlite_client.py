"""One client of a database: `python3 sqlite_client.py DATABASE MODE make|write|read|check N LEDGER`.

A writer commits steps 1, 2, 3... of its own, each with rows that are full or empty and money moved
between accounts, and writes the number to the ledger after the commit has returned.
"""

import os
import sqlite3
import sys
import time

# What keeps transactions whole: a log ahead of the database, or copies of what is written over,
# whose end is a file that goes, is cut off, or has its header zeroed.
MODES = ["wal", "delete", "truncate", "persist"]
ACCOUNTS = 50
BALANCE = 1000
CLIENTS = 2


def connect(database, mode):
    """A connection that loses nothing that was committed."""
    # Transactions are begun here, and nowhere else.
    connection = sqlite3.connect(database, timeout=60, isolation_level=None)
    found = connection.execute(f"PRAGMA journal_mode={mode}").fetchone()[0]
    if found != mode:
        sys.exit(f"the journal mode is {found}, not {mode}")
    # EXTRA also syncs the directory that a journal is removed from.
    connection.execute("PRAGMA synchronous=EXTRA")
    # Much of it is mapped.
    connection.execute("PRAGMA mmap_size=268435456")
    return connection


def make(connection):
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE step(client, number, text, PRIMARY KEY(client, number))")
    connection.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, balance)")
    for number in range(ACCOUNTS):
        connection.execute("INSERT INTO account VALUES(?, ?)", (number, BALANCE))
    connection.execute("COMMIT")


def sync_directory(path):
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def last(connection, client):
    row = connection.execute("SELECT max(number) FROM step WHERE client=?", (client,)).fetchone()
    return row[0] or 0


def write(connection, database, client, ledger):
    number = last(connection, client)
    with open(ledger, "a", encoding="ascii") as log:
        while True:
            number += 1
            text = f"{client} {number} " * (number * 37 % 700)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO step VALUES(?, ?, ?)", (client, number, text))
            for account, amount in ((number % ACCOUNTS, -7), (number * 3 % ACCOUNTS, 7)):
                connection.execute(
                    "UPDATE account SET balance = balance + ? WHERE id = ?", (amount, account)
                )
            if number % 20 == 0:
                connection.execute(
                    "UPDATE step SET text = '' WHERE client=? AND number<?", (client, number - 50)
                )
            connection.execute("COMMIT")
            # SQLite takes a directory that cannot be opened for one that needs no sync: when the
            # server ends between the removal of a journal and that, the commit is said to be
            # durable and is not.
            sync_directory(os.path.dirname(database))
            log.write(f"{number}\n")
            log.flush()
            # The others have their turn, which nobody promises.
            time.sleep(0.001)


def read(connection):
    while True:
        total = connection.execute("SELECT sum(balance) FROM account").fetchone()[0]
        if total != ACCOUNTS * BALANCE:
            sys.exit(f"the accounts hold {total}")


def check(connection):
    said = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    if said != ["ok"]:
        sys.exit(f"integrity_check: {said[:3]}")
    total = connection.execute("SELECT sum(balance) FROM account").fetchone()[0]
    if total != ACCOUNTS * BALANCE:
        sys.exit(f"the accounts hold {total}, not {ACCOUNTS * BALANCE}")
    found = []
    for client in range(CLIENTS):
        count = connection.execute("SELECT count(*) FROM step WHERE client=?", (client,))
        count = count.fetchone()[0]
        found.append(last(connection, client))
        if count != found[-1]:
            sys.exit(f"client {client} has {count} steps, the last is {found[-1]}")
    print("ok", *found)


def main():
    database, mode, work, number, ledger = sys.argv[1:6]
    connection = connect(database, mode)
    if work == "make":
        make(connection)
    elif work == "write":
        write(connection, database, int(number), ledger)
    elif work == "read":
        read(connection)
    else:
        check(connection)


if __name__ == "__main__":
    main()
