# SPDX-License-Identifier: Apache-2.0
"""records.py NAME DIRECTORY ACKS SYNC: numbered writes to a LevelDB or a RocksDB, which make, rename and remove
files all the time.

Each puts one record under two keys, and removes an older one.  ACKS is as in steps.c.  It runs by itself, under the
library or natively, and waits to be killed."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from power.numbered import make_steps

try:
    import plyvel
except ImportError:
    plyvel = None
try:
    import rocksdict
except ImportError:
    rocksdict = None

KEPT = 2000  # records
BUFFER_BYTES = 1 << 18  # when they are full, the store writes a table, and begins a new log


class LevelDB:
    name = "leveldb"
    manifest = "MANIFEST-000004"  # what names the tables, once a prepared database is opened

    def missing(self) -> str:
        return "" if plyvel else "plyvel is not installed (requirements-test.txt)"

    def open(self, directory: str) -> plyvel.DB:
        return plyvel.DB(directory, create_if_missing=True, write_buffer_size=BUFFER_BYTES)

    def put(self, base: plyvel.DB, puts: dict[bytes, bytes], removed: list[bytes], sync: bool) -> None:
        with base.write_batch(sync=sync) as batch:
            for key, value in puts.items():
                batch.put(key, value)
            for key in removed:
                batch.delete(key)

    def read(self, directory: str) -> dict[bytes, bytes]:
        """With paranoid_checks LevelDB would refuse a last write that was torn before its sync returned."""
        base = plyvel.DB(directory)
        try:
            return dict(base.iterator(verify_checksums=True))
        finally:
            base.close()


class RocksDB:
    name = "rocksdb"
    manifest = "MANIFEST-000009"

    def missing(self) -> str:
        return "" if rocksdict else "rocksdict is not installed (pip install rocksdict)"

    def open(self, directory: str) -> rocksdict.Rdict:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(BUFFER_BYTES)
        return rocksdict.Rdict(directory, options=options)

    def put(self, base: rocksdict.Rdict, puts: dict[bytes, bytes], removed: list[bytes], sync: bool) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in puts.items():
            batch.put(key, value)
        for key in removed:
            batch.delete(key)
        options = rocksdict.WriteOptions()
        options.sync = sync
        base.write(batch, options)

    def read(self, directory: str) -> dict[bytes, bytes]:
        base = self.open(directory)
        try:
            return dict(base.items())
        finally:
            base.close()


STORES = {store.name: store for store in (LevelDB(), RocksDB())}


def key_of(table: str, number: int) -> bytes:
    return b"%s%08d" % (table.encode(), number)


def value_of(table: str, number: int) -> bytes:
    body = hashlib.blake2b(f"{table} {number}".encode(), digest_size=32).digest()
    return body * (1 + body[0] % 12)


def prepare(store: LevelDB | RocksDB, directory: Path) -> None:
    store.open(str(directory)).close()


def look(store: LevelDB | RocksDB, directory: Path) -> tuple[int, str]:
    """The last record that is there, and what is wrong."""
    try:
        found = store.read(str(directory))
    except Exception as error:  # (both libraries have classes of their own)
        return 0, str(error)
    newest = int(max(found, default=b"b0")[1:])
    numbers = range(max(1, newest - KEPT + 1), newest + 1)
    expected = {key_of(table, number): value_of(table, number) for table in "ab" for number in numbers}
    return (
        newest,
        "" if found == expected else f"{len(found)} keys of different writes, the newest is {newest}",
    )


def main() -> int:
    name, directory, acks, sync = sys.argv[1:]
    store = STORES[name]

    @contextmanager
    def steps() -> Iterator[Callable[[int], None]]:
        base = store.open(directory)

        def step(number: int) -> None:
            puts = {key_of(table, number): value_of(table, number) for table in "ab"}
            store.put(base, puts, [key_of(table, number - KEPT) for table in "ab"], sync == "1")

        yield step

    return make_steps(acks, steps(), Exception)  # (both libraries have classes of their own)


if __name__ == "__main__":
    sys.exit(main())
