# SPDX-License-Identifier: Apache-2.0
"""records.py DIRECTORY ACKS SYNC: numbered writes to a LevelDB, which makes, renames and removes files all the time.

Each puts one record under two keys, and removes an older one.  ACKS is as in steps.c.  It runs by itself, under the
library or natively, and waits to be killed."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import signal
import struct
import sys
import time
from pathlib import Path

try:
    import plyvel
except ImportError:
    plyvel = None

MANIFEST = "MANIFEST-000004"  # what names the tables, once a prepared database is opened
KEPT = 2000  # records
BUFFER_BYTES = 1 << 18  # when they are full, LevelDB writes a table, and begins a new log


def missing() -> str:
    return "" if plyvel else "plyvel is not installed (requirements-test.txt)"


def key_of(table: str, number: int) -> bytes:
    return b"%s%08d" % (table.encode(), number)


def value_of(table: str, number: int) -> bytes:
    body = hashlib.blake2b(f"{table} {number}".encode(), digest_size=32).digest()
    return body * (1 + body[0] % 12)


def prepare(directory: Path) -> None:
    plyvel.DB(str(directory), create_if_missing=True).close()


def look(directory: Path) -> tuple[int, str]:
    """The last record that is there, and what is wrong.

    With paranoid_checks LevelDB would refuse a last write that was torn before its sync returned."""
    try:
        base = plyvel.DB(str(directory))
        found = dict(base.iterator(verify_checksums=True))
        base.close()
    except plyvel.Error as error:
        return 0, str(error)
    newest = int(max(found, default=b"b0")[1:])
    numbers = range(max(1, newest - KEPT + 1), newest + 1)
    expected = {key_of(table, number): value_of(table, number) for table in "ab" for number in numbers}
    return (
        newest,
        "" if found == expected else f"{len(found)} keys of different writes, the newest is {newest}",
    )


def main() -> int:
    directory, acks, sync = sys.argv[1:]
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    try:
        with open(acks, "r+b") as file, mmap.mmap(file.fileno(), 0) as table:
            base = plyvel.DB(directory, write_buffer_size=BUFFER_BYTES)
            for number in range(1, len(table) // 8 + 1):
                with base.write_batch(sync=sync == "1") as batch:
                    for name in "ab":
                        batch.put(key_of(name, number), value_of(name, number))
                        batch.delete(key_of(name, number - KEPT))
                struct.pack_into("<Q", table, (number - 1) * 8, time.monotonic_ns())
            signal.pause()
    except plyvel.Error as error:
        print(error, file=sys.stderr, flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
