# SPDX-License-Identifier: Apache-2.0
"""The workloads of the benchmark of syncs: what each runs in a leg, and how its result is verified."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness import WORKLOADS
from harness.core.cell import Cell, LegError, Measured, Place, Programs, Timing, socket_directory
from harness.core.executor import Command, Completed, RealExecutor
from harness.core.shim import Shim
from harness.workloads import latency

RECORDS_MAX = 65536
BULK = 1 << 30
"""Bytes."""
COMMITS = WORKLOADS / "commits.py"


def measured(answer: Mapping, **facts: object) -> Measured:
    """Parse the output of a workload program."""
    latencies = {k: v for k, v in answer.items() if k.endswith("_us")}
    return Measured(
        answer["syncs"], answer["seconds"], total=answer["syncs_with_warmup"], facts=facts, **latencies
    )


class Records(Cell):
    """lab-syncs: threads that append and sync, or overwrite zeros with O_DSYNC (floor)."""

    unit = "synced writes/s"
    pattern = "data*"

    def __init__(self, programs: Programs, mode: str, threads: int) -> None:
        self._programs, self._mode, self._threads = programs, mode, threads

    def measure(self, place: Place, timing: Timing) -> Measured:
        most = max(1, 2 * RECORDS_MAX // self._threads) if self._threads > 1 else RECORDS_MAX
        argv = (
            str(place.programs / "lab-syncs"), *self._shape(place), "--mode", self._mode,
            "--progress", str(place.control / "progress"), "--records", str(most),
            "--warmup-ms", str(round(timing.warmup * 1000)),
            "--ms", str(max(1, round(timing.seconds * 1000))),
        )  # fmt: skip
        done = self._programs.run(argv, timing.warmup + timing.seconds, env=place.env)
        return measured(json.loads(done.stdout), most=most)

    def _shape(self, place: Place) -> tuple[str, ...]:
        return "--dir", str(place.stage), "--threads", str(self._threads)

    def verify(self, place: Place, measured: Measured) -> dict:
        """Check every record and every file size; space that the floor has not overwritten must be zero."""
        argv = (
            str(place.programs / "lab-verify"), *self._shape(place),
            "--records", str(2 * measured.facts["most"]), "--acked", str(place.control / "progress"),
        )  # fmt: skip
        argv += ("--tail", "zeros") if self._mode == "floor" else ()
        found = json.loads(self._programs.run(argv).stdout)
        owed = measured.total * 4096
        if found["unfinished_bytes"] or (self._mode == "append" and found["verified_bytes"] != owed):
            raise LegError(f"{found['verified_bytes']} bytes found, {owed} were written and synced")
        return {"verified_bytes": found["verified_bytes"]}


class Bulk(Cell):
    """lab-writer: one file of many blocks in turn, one fdatasync at its end, and its close."""

    unit = "blocks/s"
    pattern = "data*"

    def __init__(self, programs: Programs, block: int) -> None:
        self._programs, self._block = programs, block

    def measure(self, place: Place, timing: Timing) -> Measured:
        blocks = (BULK if timing.seconds >= 1 else BULK // 64) // self._block
        argv = (str(place.programs / "lab-writer"), *self._shape(place, blocks), "--sync")
        answer = json.loads(self._programs.run(argv, timing.seconds, env=place.env).stdout)
        seconds = answer["seconds_with_sync"] + answer["seconds_close"]
        return Measured(blocks, seconds, mean_us=1e6 * seconds / blocks, total=blocks)

    def _shape(self, place: Place, blocks: int) -> tuple[str, ...]:
        size = ("--records", str(blocks), "--record-bytes", str(self._block))
        return "--dir", str(place.stage), "--threads", "1", *size

    def verify(self, place: Place, measured: Measured) -> dict:
        argv = (str(place.programs / "lab-verify"), *self._shape(place, measured.total))
        found = json.loads(self._programs.run(argv).stdout)
        if found["verified_bytes"] != measured.total * self._block:
            raise LegError(
                f"{found['verified_bytes']} bytes found, {measured.total * self._block} were written"
            )
        return {"verified_bytes": found["verified_bytes"]}


class Sqlite(Cell):
    """One process that inserts a small row per commit."""

    unit = "commits/s"

    def __init__(self, programs: Programs, mode: str, synchronous: str = "full") -> None:
        self._programs, self._mode, self._synchronous = programs, mode, synchronous
        # run by root, SQLite gives each rollback journal its owner; then each file needs a sync of its own
        self.by_journal = mode != "delete"

    def measure(self, place: Place, timing: Timing) -> Measured:
        argv = (
            sys.executable, str(COMMITS), "write", str(_database(place)), "--mode", self._mode,
            "--synchronous", self._synchronous,
            "--warmup", str(timing.warmup), "--seconds", str(timing.seconds),
        )  # fmt: skip
        done = self._programs.run(argv, timing.warmup + timing.seconds, env=place.env)
        return measured(json.loads(done.stdout))

    def verify(self, place: Place, measured: Measured) -> dict:
        """Check one row per commit, in order and with its content; then the database's own check."""
        argv = (sys.executable, str(COMMITS), "verify", str(_database(place)))
        found = json.loads(self._programs.run((*argv, "--commits", str(measured.total))).stdout)
        if not found["ok"]:
            raise LegError(f"the database: {found['first_problem']}")
        return {"rows": found["rows"], "integrity_check": "ok"}


def _database(place: Place) -> Path:
    return place.stage / "lab.db"


SETTINGS = """
listen_addresses = ''
fsync = on
full_page_writes = on
wal_sync_method = fdatasync
autovacuum = off
max_wal_size = 4GB
"""


class Postgres(Cell):
    """A server on a copy of one initial cluster, pgbench -N (update, select, insert per transaction)."""

    unit = "transactions/s"

    def __init__(self, programs: Programs, clients: int, synchronous_commit: str = "on") -> None:
        self._programs, self._clients, self._synchronous_commit = programs, clients, synchronous_commit
        self._bin = postgres_bin()
        self._user = _server_user()
        self._env = {"PGUSER": "lab", "PGDATABASE": "postgres", "LC_ALL": "C", "PGOPTIONS": ""}

    def missing(self, work: Path, built: Shim | None) -> str | None:
        if self._bin is None:
            return "PostgreSQL with pgbench is not installed (Debian: apt-get install postgresql)"
        if self._user is None:
            return None
        for path, test in [(work, "-x"), *([(built.library, "-r")] if built else [])]:
            try:
                self._programs.run(("test", test, str(path.resolve())), user=self._user)
            except LegError:
                return f"the server runs as user {self._user}, who cannot get at {path.resolve()}"
        return None

    def measure(self, place: Place, timing: Timing) -> Measured:
        cluster = self._cluster(place)
        with self._server(cluster, place, place.env) as call:
            warm = self._bench(call, timing.warmup)[0] if timing.warmup > 0 else 0
            log = place.control / "latency"
            count, seconds = self._bench(call, timing.seconds, "--log", f"--log-prefix={log}")
        single = [
            int(line.split()[2]) for f in place.control.glob("latency.*") for line in f.open(encoding="utf-8")
        ]
        if len(single) != count:
            raise LegError(f"pgbench: {count} transactions, {len(single)} latencies")
        return Measured(count, seconds, total=warm + count, **latency.summary(single, 1))

    def verify(self, place: Place, measured: Measured) -> dict:
        """Checksums of every page, as many rows as transactions, balances that add up, indexes and tables alike."""
        cluster = place.stage / "cluster"
        self._call("pg_checksums", "--check", "-D", str(cluster))
        with self._server(cluster, place, {}) as call:
            found = call(
                "psql", "-XAtc", "SELECT count(*), coalesce(sum(delta), 0) FROM pgbench_history",
                "-c", "SELECT sum(abalance) FROM pgbench_accounts",
            ).stdout.split()  # fmt: skip
            checked = {}
            if (self._bin / "pg_amcheck").exists():
                call("pg_amcheck", "--install-missing", "--heapallindexed", "postgres")
                checked["amcheck"] = "ok"
        rows, delta = map(int, found[0].split("|"))
        if rows != measured.total:
            raise LegError(f"the database: {rows} rows, {measured.total} were committed")
        if delta != int(found[1]):
            raise LegError(f"the database: balances add up to {found[1]}, what was inserted to {delta}")
        return {"rows": rows, "checksums": "ok", **checked}

    def _call(
        self, name: str, *args: str, env: Mapping[str, str] | None = None, seconds: float = 0.0
    ) -> Completed:
        argv = (str(self._bin / name), *args)
        return self._programs.run(argv, seconds, user=self._user, env={**self._env, **(env or {})}, cwd="/")

    def _own(self, path: Path) -> None:
        if self._user:
            shutil.chown(path, self._user)

    def _cluster(self, place: Place) -> Path:
        """A copy of the initial cluster, which the first leg makes, natively."""
        first = place.keep / "cluster"
        if not first.exists():
            self._own(place.keep)
            half = place.keep / "cluster.new"
            shutil.rmtree(half, ignore_errors=True)
            self._call(
                "initdb", "-D", str(half), "-U", "lab", "-A", "trust", "-k", "-N", "--locale=C", "-E", "UTF8"
            )
            with open(half / "postgresql.conf", "a", encoding="utf-8") as conf:
                conf.write(SETTINGS)
            with self._server(half, place, {}) as call:
                call("pgbench", "-i", "-q", "-s", "1")
            half.rename(first)
        self._own(place.stage)
        cluster = place.stage / "cluster"
        owner = ("--preserve=all", "-r")
        self._programs.run(("cp", *owner, str(first), str(cluster)))
        os.sync()
        return cluster

    @contextlib.contextmanager
    def _server(self, cluster: Path, place: Place, env: Mapping[str, str]) -> Iterator:
        """Runs the server; the body gets a function that calls a client. LegError when either ends badly."""
        log = place.control / "server.log"
        self._own(place.control)
        with socket_directory(place.control) as sockets:
            self._own(sockets)
            command = Command(
                (
                    str(self._bin / "postgres"), "-D", str(cluster), "-k", str(sockets),
                    "-c", f"synchronous_commit={self._synchronous_commit}",
                ),
                env={**self._env, **env},
                cwd="/",
                user=self._user,
            )  # fmt: skip
            client = {"PGHOST": str(sockets)}
            with self._programs.server(command, log, lambda: self._answers(client)):
                yield lambda name, *args, seconds=0.0: self._call(name, *args, env=client, seconds=seconds)

    def _answers(self, client: Mapping[str, str]) -> bool:
        with contextlib.suppress(LegError):
            self._call("pg_isready", "-q", env=client)
            return True
        return False

    def _bench(self, call, seconds: float, *more: str) -> tuple[int, float]:
        """Transactions and seconds; pgbench counts whole seconds."""
        whole = max(1, round(seconds))
        out = call(
            "pgbench", "-n", "-N", "-M", "prepared", "-c", str(self._clients), "-j", str(min(self._clients, 2)),
            "-T", str(whole), *more, seconds=whole,
        ).stdout  # fmt: skip
        return pgbench_result(out)


def pgbench_result(out: str) -> tuple[int, float]:
    """Transactions, seconds without the time of connecting."""
    count = re.search(r"^number of transactions actually processed: (\d+)", out, re.MULTILINE)
    tps = re.search(r"^tps = ([\d.]+) \(without", out, re.MULTILINE)
    failed = re.search(r"^number of failed transactions: (\d+)", out, re.MULTILINE)
    if not (count and tps) or (failed and int(failed[1])):
        raise LegError(f"pgbench: {out.strip()[-300:]}")
    if int(count[1]) == 0:
        raise LegError("pgbench: not one transaction")
    return int(count[1]), int(count[1]) / float(tps[1])


def postgres_bin() -> Path | None:
    """The newest installed server's directory of programs, if pgbench is in it."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name), reverse=True
    )
    which = shutil.which("postgres")
    for path in ([Path(which).resolve().parent] if which else []) + found:
        if all((path / name).exists() for name in ("postgres", "initdb", "pgbench", "psql", "pg_checksums")):
            return path
    return None


def _server_user() -> str | None:
    """The server does not run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


def versions() -> dict[str, str | None]:
    found = postgres_bin()
    said = RealExecutor().run(Command((str(found / "postgres"), "--version"))).stdout if found else ""
    version = re.search(r"\d+(\.\d+)*", said)
    return {"sqlite": sqlite3.sqlite_version, "postgresql": version[0] if version else None}


def all_cells(programs: Programs) -> dict[str, Cell]:
    return {
        "floor": Records(programs, "floor", 1),
        "append-1": Records(programs, "append", 1),
        "append-16": Records(programs, "append", 16),
        "bulk-4k": Bulk(programs, 4 << 10),
        "bulk-64k": Bulk(programs, 64 << 10),
        "sqlite-delete": Sqlite(programs, "delete"),
        "sqlite-wal": Sqlite(programs, "wal"),
        "postgres-1": Postgres(programs, 1),
        "postgres-8": Postgres(programs, 8),
    }
