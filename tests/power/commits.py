# SPDX-License-Identifier: Apache-2.0
"""commits.py DATABASE ACKS JOURNAL_MODE SYNCHRONOUS [two]: numbered SQLite transactions.

Each changes some rows of either table, and SQLite writes pages before the commit, since its cache is small.  A second
connection comes and goes, and takes turns with the first one.  `two`: it is that of another program, which runs under
the library every other time.
ACKS is as in steps.c.  It runs by itself, under the library or natively, and waits to be killed.

commits.py follow DATABASE JOURNAL_MODE SYNCHRONOUS: that program, which gets its numbers as lines."""

from __future__ import annotations

import ctypes
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from power.numbered import make_steps

ROWS = 2003  # of each table; a prime, so that both orders meet each row
BODY = 700  # bytes: a few rows a page
# Rows of either table in a transaction.  With a rollback journal the window is within a transaction, with a
# write-ahead log between a checkpoint and the one after it.
MANY, FEW = 400, 2
CACHE = 3  # pages
TURNS = {"wal": 50}  # transactions before the second connection goes, and after that before it comes again


def changes_of(mode: str) -> int:
    return FEW if mode == "wal" else MANY


def rows_of(number: int, mode: str) -> list[tuple[int, int]]:
    """Which rows of either table transaction `number` changes."""
    changes = changes_of(mode)
    return [(at % ROWS, at * 7 % ROWS) for at in range(number * changes, (number + 1) * changes)]


def prepare(database: Path) -> None:
    base = sqlite3.connect(database)
    for table in "ab":
        base.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, number INTEGER, body BLOB)")
        base.executemany(f"INSERT INTO {table} VALUES (?, 0, ?)", [(i, bytes(BODY)) for i in range(ROWS)])
    base.commit()
    base.close()


def look(database: Path, mode: str) -> tuple[int, str]:
    """The last transaction that is there, and what is wrong."""
    base = sqlite3.connect(database)
    try:
        told = base.execute("PRAGMA integrity_check").fetchall()
        if told != [("ok",)]:
            return 0, f"integrity_check: {told[0][0]}"
        found = [dict(base.execute(f"SELECT id, number FROM {table}").fetchall()) for table in "ab"]
    except sqlite3.Error as error:
        return 0, str(error)
    finally:
        base.close()
    newest = max(max(rows.values(), default=0) for rows in found)
    expected = [dict.fromkeys(range(ROWS), 0) for _ in "ab"]
    for number in range(max(1, newest - ROWS // changes_of(mode) - 1), newest + 1):
        for changed in rows_of(number, mode):
            for rows, row in zip(expected, changed, strict=True):
                rows[row] = number
    return newest, "" if found == expected else f"tables of different transactions, the newest is {newest}"


def connect(database: str, mode: str, synchronous: str) -> sqlite3.Connection:
    base = sqlite3.connect(database, isolation_level=None)
    base.execute(f"PRAGMA journal_mode = {mode}")
    base.execute(f"PRAGMA synchronous = {synchronous}")
    base.execute(f"PRAGMA cache_size = {CACHE}")
    base.execute("PRAGMA wal_autocheckpoint = 200")
    return base


class Connection:
    def __init__(self, database: str, mode: str, synchronous: str) -> None:
        self._base, self._mode = connect(database, mode, synchronous), mode

    def commit(self, number: int) -> None:
        self._base.execute("BEGIN IMMEDIATE")
        body = struct.pack("<Q", number) * (BODY // 8)
        for changed in rows_of(number, self._mode):
            for name, row in zip("ab", changed, strict=True):
                self._base.execute(
                    f"UPDATE {name} SET number = ?, body = ? WHERE id = ?", (number, body, row)
                )
        self._base.execute("COMMIT")

    def close(self) -> None:
        self._base.close()


class Follower:
    """A connection of another program."""

    count = 0

    def __init__(self, *how: str) -> None:
        env = dict(os.environ)
        Follower.count += 1
        if Follower.count % 2:
            env.pop("LD_PRELOAD", None)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._program = subprocess.Popen(
            [sys.executable, __file__, "follow", *how], env=env, text=True, **pipes
        )

    def commit(self, number: int) -> None:
        self._program.stdin.write(f"{number}\n")
        self._program.stdin.flush()
        if self._program.stdout.readline() != f"{number}\n":
            raise sqlite3.OperationalError("the other program has ended")

    def close(self) -> None:
        self._program.communicate()


def follow(*how: str) -> int:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    base = Connection(*how)
    for line in sys.stdin:
        base.commit(int(line))
        print(int(line), flush=True)
    base.close()
    return 0


@contextmanager
def steps(database: str, mode: str, synchronous: str, *two: str) -> Iterator[Callable[[int], None]]:
    bases = [Connection(database, mode, synchronous)]

    def step(number: int) -> None:
        wanted = 2 - number // TURNS.get(mode, 5) % 2
        while len(bases) > wanted:
            bases.pop().close()
        if len(bases) < wanted:
            bases.append((Follower if two else Connection)(database, mode, synchronous))
        bases[number % len(bases)].commit(number)

    yield step


def main() -> int:
    if sys.argv[1] == "follow":
        return follow(*sys.argv[2:])
    database, acks, *how = sys.argv[1:]
    return make_steps(acks, steps(database, *how), sqlite3.Error)


if __name__ == "__main__":
    sys.exit(main())
