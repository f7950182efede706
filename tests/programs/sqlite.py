# SPDX-License-Identifier: Apache-2.0
"""sqlite3: each journal mode, two processes at once, and one of two killed while the other goes on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar

from programs.case import Case
from programs.place import Place, Process, kill_all

ROWS_OF_A_TRANSACTION = 3
DELETE_EVERY = 7


def payload(number: int) -> str:
    """Anything between a few bytes and more than a page."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    return (digest * 80)[: 20 + number * 37 % 5000]


def transaction(process: int, number: int) -> str:
    first = number * ROWS_OF_A_TRANSACTION
    rows = ",".join(f"({process},{i},'{payload(i)}')" for i in range(first, first + ROWS_OF_A_TRANSACTION))
    delete = ""
    if number % DELETE_EVERY == 0:
        delete = f"DELETE FROM entry WHERE process={process} AND number={first // 2};"
    return (
        f"BEGIN IMMEDIATE; INSERT INTO entry VALUES {rows}; {delete}"
        f"UPDATE counter SET n={number} WHERE process={process}; COMMIT; SELECT 'done {number}';\n"
    )


def model(process: int, transactions: int) -> dict[int, str]:
    """The rows of a process after so many transactions."""
    rows: dict[int, str] = {}
    for number in range(1, transactions + 1):
        first = number * ROWS_OF_A_TRANSACTION
        for i in range(first, first + ROWS_OF_A_TRANSACTION):
            rows[i] = payload(i)
        if number % DELETE_EVERY == 0:
            rows.pop(first // 2, None)
    return rows


class Sqlite(Case):
    needs: ClassVar[dict[str, str]] = {"sqlite3": "sqlite3"}
    survives = (
        "every transaction whose COMMIT had returned, of the one under way all or nothing; PRAGMA "
        "integrity_check says ok"
    )
    kills = 9

    def __init__(self, mode: str, processes: int, synchronous: str = "FULL") -> None:
        self.name = f"sqlite3, {mode.lower()} journal" if mode != "WAL" else "sqlite3, WAL"
        if processes > 1:
            self.name += f", {processes} processes"
        if synchronous != "FULL":
            self.name += f", synchronous={synchronous}"
        self.mode = mode
        self.processes = processes
        self.synchronous = synchronous
        self.in_quick = mode in ("DELETE", "WAL") and synchronous == "FULL"

    def prepare(self, place: Place) -> Path:
        base = place.data / "base.db"
        counters = ",".join(f"({p},0)" for p in range(self.processes))
        place.run(
            "sqlite3",
            "-bail",
            base,
            stdin=f"PRAGMA journal_mode={self.mode}; CREATE TABLE entry(process INT, number INT, payload TEXT, "
            "PRIMARY KEY(process, number)); CREATE INDEX by_payload ON entry(payload);"
            f"CREATE TABLE counter(process INT PRIMARY KEY, n INT); INSERT INTO counter VALUES {counters};",
        )
        return base

    def start(self, place: Place, base: Path, process: int, first: int, last: int) -> Process:
        script = place.aside / f"script.{process}.{first}"
        head = f".timeout 60000\nPRAGMA synchronous={self.synchronous};\nPRAGMA wal_autocheckpoint=40;\n"
        script.write_text(head + "".join(transaction(process, n) for n in range(first, last + 1)))
        # a terminal, so that a line comes out when its statement is done
        return place.start("sqlite3", "-batch", "-bail", base, stdin=script, terminal=True)

    def check(self, place: Place, base: Path, shim: bool | None = None) -> dict[int, int]:
        """Integrity and content; the number of transactions per process."""
        text = place.run(
            "sqlite3",
            "-bail",
            base,
            stdin="PRAGMA integrity_check(3); SELECT process, n FROM counter; SELECT '--';"
            "SELECT process, number, payload FROM entry ORDER BY 1, 2;",
            shim=shim,
        ).stdout
        verdict, _, rest = text.partition("\n")
        assert verdict == "ok", f"integrity_check: {text[:300]}"
        counters, _, rows = rest.partition("--\n")
        done = {int(p): int(n) for p, n in (line.split("|") for line in counters.splitlines())}
        have: dict[int, dict[int, str]] = {p: {} for p in done}
        for line in rows.splitlines():
            process, number, text = line.split("|")
            have[int(process)][int(number)] = text
        for process, transactions in done.items():
            assert have[process] == model(process, transactions), (
                f"process {process}: other rows than {transactions} transactions make"
            )
        return done

    def run(self, place: Place) -> object:
        base = self.prepare(place)
        count = 60 if place.quick else 400
        running = [self.start(place, base, p, 1, count) for p in range(self.processes)]
        for process in running:
            assert process.wait() == 0, place.errors()
        place.run("sqlite3", base, stdin="DELETE FROM entry WHERE number % 5 = 0; VACUUM;")
        text = place.run(
            "sqlite3", base, stdin="PRAGMA integrity_check; SELECT * FROM counter;\n.dump\n"
        ).stdout
        assert text.startswith("ok\n"), text[:500]
        # rowids, and with them the order, depend on who came first
        return hashlib.sha256("\n".join(sorted(text.splitlines())).encode()).hexdigest()

    def kill(self, place: Place) -> None:
        base = self.prepare(place)
        running = [self.start(place, base, p, 1, 5000) for p in range(self.processes)]
        wanted = place.dice.randrange(5, 60 if place.quick else 400)
        # (one may keep the other waiting)
        place.until(lambda: max(map(done_of, running)) >= wanted, "transactions are done")
        place.pause(0.02)
        kill_all(running)
        done = {p: done_of(process) for p, process in enumerate(running)}
        place.bring_back()
        have = self.check(place, base)
        for process, number in done.items():
            assert number <= have[process] <= number + 1, (
                f"process {process}: {number} transactions had returned, {have[process]} are there"
            )
        # and it goes on from there
        again = [self.start(place, base, p, have[p] + 1, have[p] + 20) for p in have]
        for process in again:
            assert process.wait() == 0, place.errors()
        self.check(place, base, shim=False)


class SqliteOneOfTwo(Sqlite):
    """One of two processes dies, the other goes on at once, without anybody's recovery in between."""

    survives = (
        "every transaction of both whose COMMIT had returned, although the survivor takes the dead one's lock "
        "and rolls back its journal before anybody recovers"
    )

    def __init__(self, mode: str) -> None:
        super().__init__(mode, 2)
        self.name = self.name.replace("2 processes", "one of 2 killed")
        self.in_quick = True

    def kill(self, place: Place) -> None:
        base = self.prepare(place)
        first = self.start(place, base, 0, 1, 5000)
        wanted = place.dice.randrange(5, 60)
        count = wanted + (60 if place.quick else 300)
        second = self.start(place, base, 1, 1, count)
        # (the one may keep the other waiting for as long as it lives)
        place.until(lambda: done_of(first) >= wanted, "transactions are done")
        place.pause(0.02)
        first.kill()
        done = done_of(first)
        assert second.wait() == 0, place.errors()
        place.bring_back()
        have = self.check(place, base)
        assert have[1] == count, f"the survivor has {have[1]} of {count}"
        assert done <= have[0] <= done + 1, f"{done} transactions had returned, {have[0]} are there"


def done_of(process: Process) -> int:
    """Transactions that it has reported."""
    return sum(line.startswith("done ") for line in process.output())


CASES = [
    Sqlite("DELETE", 1),
    Sqlite("TRUNCATE", 1),
    Sqlite("PERSIST", 1),
    Sqlite("WAL", 1),
    Sqlite("WAL", 1, "NORMAL"),
    Sqlite("DELETE", 2),
    Sqlite("WAL", 2),
    SqliteOneOfTwo("DELETE"),
    SqliteOneOfTwo("WAL"),
]
