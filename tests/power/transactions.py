# SPDX-License-Identifier: Apache-2.0
"""transactions.py JOURNAL_MODE DIRECTORY ACKS SEED SYNCS PACE_US LINGER: numbered SQLite transactions, acknowledged as
writer.c does.  It runs by itself, under the library or natively."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sqlite3
import struct
import sys
import time
from pathlib import Path

DATABASE = "data.db"
ROWS_MAX = 6
# DELETE: the commit is the removal of the journal, which only EXTRA makes durable
SYNCHRONOUS = {"delete": "EXTRA", "wal": "FULL"}


def rows_of(seed: int, number: int) -> list[bytes]:
    """The rows that transaction `number` inserts."""
    first = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    bodies = []
    for row in range(1 + first[0] % ROWS_MAX):
        body = hashlib.blake2b(f"{seed} {number} {row}".encode(), digest_size=32).digest()
        bodies.append(body * (1 + body[0] % 60))
    return bodies


def main() -> int:
    mode, directory, acks, seed, syncs, pace_us, linger = sys.argv[1:]
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    fd = os.open(acks, os.O_WRONLY | os.O_APPEND)
    base = sqlite3.connect(Path(directory) / DATABASE, isolation_level=None)
    try:
        base.execute(f"PRAGMA journal_mode = {mode}")
        base.execute(f"PRAGMA synchronous = {SYNCHRONOUS[mode]}")
        base.execute("PRAGMA wal_autocheckpoint = 50")
        base.execute("CREATE TABLE IF NOT EXISTS item (number INTEGER, row INTEGER, body BLOB)")
        base.execute("CREATE TABLE IF NOT EXISTS last (one INTEGER PRIMARY KEY, number INTEGER)")
        for number in range(int(syncs)):
            os.write(fd, struct.pack("<IIQQ", ord("B"), 0, number + 1, time.monotonic_ns()))
            base.execute("BEGIN IMMEDIATE")
            for row, body in enumerate(rows_of(int(seed), number)):
                base.execute("INSERT INTO item VALUES (?, ?, ?)", (number, row, body))
            base.execute("INSERT OR REPLACE INTO last VALUES (1, ?)", (number,))
            base.execute("COMMIT")
            os.write(fd, struct.pack("<IIQQ", ord("S"), 0, number + 1, time.monotonic_ns()))
            if int(pace_us):
                time.sleep(int(pace_us) / 1e6)
    except sqlite3.Error as error:
        if linger != "1":
            raise
        print(error, file=sys.stderr)
    while linger == "1":
        time.sleep(1)
    base.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
