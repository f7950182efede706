# SPDX-License-Identifier: Apache-2.0
"""The workloads of the benchmark of syncs: what each runs in a leg, and how its result is verified.

A cell makes its leg's files in a fresh directory, `stage`, and answers with Measured; a result that does not
verify raises LegError, and the leg has no figures. Whether a cell can be had here says `missing`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.clock import Clock
from harness.executor import Command, Completed, RealExecutor, within
from harness.model import LabError
from harness.shim import Shim

PATIENCE_SECONDS = 120.0
RECORDS_MAX = 65536
COMMITS = Path(__file__).resolve().parent / "workloads" / "commits.py"


class LegError(Exception):
    """What was written is not there, or a program failed: the leg has no figures."""


@dataclass(frozen=True)
class Measured:
    """One leg. count: synced operations; latencies of the single ones where the workload knows them."""

    count: int
    seconds: float
    p50_us: float | None = None
    p90_us: float | None = None
    mean_us: float | None = None
    verified: Mapping[str, object] | None = None

    @property
    def rate(self) -> float:
        return self.count / self.seconds


@dataclass(frozen=True)
class Place:
    """Where a leg works. stage: the measured files; control: everything else; env puts programs under a variant."""

    stage: Path
    control: Path
    programs: Path
    keep: Path
    env: Mapping[str, str]


@dataclass(frozen=True)
class Timing:
    warmup: float
    seconds: float


class Cell(Protocol):
    """One workload."""

    unit: str
    pattern: str  # of the managed files, below the stage

    def missing(self, work: Path, shim: Shim | None) -> str | None:
        """Why it cannot be run here; None when it can."""

    def run(self, place: Place, timing: Timing) -> Measured: ...


class Programs:
    """Runs programs, none of them for ever."""

    def __init__(self, executor: RealExecutor, clock: Clock) -> None:
        self.executor, self.clock = executor, clock

    def run(
        self, argv: tuple[str, ...], seconds: float = 0.0, user: str | None = None, **options
    ) -> Completed:
        limit = seconds + PATIENCE_SECONDS
        command = Command(argv, user=user, **options)
        done = self.executor.run(command, 0.5, within(limit, self.clock))
        name = Path(argv[0]).name
        if done.killed:
            raise LegError(f"{name}: did not end within {limit:.0f} s")
        if done.returncode != 0 and "O_DIRECT" in done.stderr:
            raise LabError("no O_DIRECT on this file system: there is no floor to measure")
        if done.returncode != 0:
            raise LegError(
                f"{name}: ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}"
            )
        if "cannot be preloaded" in done.stderr:
            raise LegError(f"{name}: {done.stderr.strip()[:300]}")
        return done


def _measured(answer: Mapping, verified: Mapping) -> Measured:
    return Measured(
        answer["syncs"], answer["seconds"], answer["p50_us"], answer["p90_us"], answer["mean_us"], verified
    )


class Records:
    """lab-syncs: threads that append and sync, or overwrite zeros with O_DSYNC (floor)."""

    unit = "synced writes/s"
    pattern = "data*"

    def __init__(self, programs: Programs, mode: str, threads: int) -> None:
        self._programs, self._mode, self._threads = programs, mode, threads

    def missing(self, work: Path, shim: Shim | None) -> str | None:
        return None

    def run(self, place: Place, timing: Timing) -> Measured:
        progress = place.control / "progress"
        most = max(1, 2 * RECORDS_MAX // self._threads) if self._threads > 1 else RECORDS_MAX
        shape = ("--dir", str(place.stage), "--threads", str(self._threads))
        argv = (
            str(place.programs / "lab-syncs"), *shape, "--mode", self._mode, "--progress", str(progress),
            "--records", str(most), "--warmup-ms", str(round(timing.warmup * 1000)),
            "--ms", str(max(1, round(timing.seconds * 1000))),
        )  # fmt: skip
        done = self._programs.run(argv, timing.warmup + timing.seconds, env=place.env)
        answer = json.loads(done.stdout)
        return _measured(answer, self._verify(place, shape, progress, most, answer))

    def _verify(
        self, place: Place, shape: tuple[str, ...], progress: Path, most: int, answer: Mapping
    ) -> dict:
        """Every record and the size of every file; what the floor has not overwritten must be zeros still."""
        argv = (
            str(place.programs / "lab-verify"),
            *shape,
            "--records",
            str(2 * most),
            "--acked",
            str(progress),
        )
        argv += ("--tail", "zeros") if self._mode == "floor" else ()
        found = json.loads(self._programs.run(argv).stdout)
        owed = answer["syncs_with_warmup"] * 4096
        if found["unfinished_bytes"] or (self._mode == "append" and found["verified_bytes"] != owed):
            raise LegError(f"{found['verified_bytes']} bytes found, {owed} were written and synced")
        return {"verified_bytes": found["verified_bytes"]}


class Sqlite:
    """One process that inserts a small row per commit, synchronous = FULL."""

    unit = "commits/s"
    pattern = "**"

    def __init__(self, programs: Programs, mode: str) -> None:
        self._programs, self._mode = programs, mode

    def missing(self, work: Path, shim: Shim | None) -> str | None:
        return None

    def run(self, place: Place, timing: Timing) -> Measured:
        script = (sys.executable, str(COMMITS))
        database = str(place.stage / "lab.db")
        argv = (
            *script, "write", database, "--mode", self._mode,
            "--warmup", str(timing.warmup), "--seconds", str(timing.seconds),
        )  # fmt: skip
        answer = json.loads(self._programs.run(argv, timing.warmup + timing.seconds, env=place.env).stdout)
        verify = (*script, "verify", database, "--commits", str(answer["syncs_with_warmup"]))
        found = json.loads(self._programs.run(verify).stdout)
        if not found["ok"]:
            raise LegError(f"the database: {found['first_problem']}")
        return _measured(answer, {"rows": found["rows"], "integrity_check": "ok"})


SETTINGS = """
listen_addresses = ''
fsync = on
synchronous_commit = on
full_page_writes = on
wal_sync_method = fdatasync
autovacuum = off
max_wal_size = 4GB
"""


class Postgres:
    """A server on a copy of one initial cluster, pgbench -N (update, select, insert per transaction)."""

    unit = "transactions/s"
    pattern = "**"

    def __init__(self, programs: Programs, clients: int) -> None:
        self._programs, self._clients = programs, clients
        self._bin = postgres_bin()
        self._user = _server_user()
        self._env = {"PGUSER": "lab", "PGDATABASE": "postgres", "LC_ALL": "C", "PGOPTIONS": ""}

    def missing(self, work: Path, shim: Shim | None) -> str | None:
        if self._bin is None:
            return "PostgreSQL with pgbench is not installed (Debian: apt-get install postgresql)"
        if self._user is None:
            return None
        for path, test in [(work, "-x"), *([(shim.library, "-r")] if shim else [])]:
            try:
                self._programs.run(("test", test, str(path.resolve())), user=self._user)
            except LegError:
                return f"the server runs as user {self._user}, who cannot get at {path.resolve()}"
        return None

    def run(self, place: Place, timing: Timing) -> Measured:
        cluster = self._cluster(place)
        with self._server(cluster, place, place.env) as call:
            counts = [self._bench(call, timing.warmup)[0]] if timing.warmup > 0 else []
            count, seconds, mean_us = self._bench(call, timing.seconds)
            counts.append(count)
        self._call("pg_checksums", "--check", "-D", str(cluster))
        with self._server(cluster, place, {}) as call:
            found = call(
                "psql", "-XAtc", "SELECT count(*), coalesce(sum(delta), 0) FROM pgbench_history",
                "-c", "SELECT sum(abalance) FROM pgbench_accounts",
            ).stdout.split()  # fmt: skip
        rows, delta = map(int, found[0].split("|"))
        if rows != sum(counts):
            raise LegError(f"the database: {rows} rows, {sum(counts)} were committed")
        if delta != int(found[1]):
            raise LegError(f"the database: balances add up to {found[1]}, what was inserted to {delta}")
        return Measured(count, seconds, mean_us=mean_us, verified={"rows": rows, "checksums": "ok"})

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
            with open(half / "postgresql.conf", "a") as conf:
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
        with tempfile.TemporaryDirectory(prefix="fastwrite-lab-") as sockets:
            self._own(Path(sockets))
            command = Command(
                (str(self._bin / "postgres"), "-D", str(cluster), "-k", sockets),
                env={**self._env, **env},
                cwd="/",
                user=self._user,
            )
            client = {"PGHOST": sockets}
            try:
                with self._programs.executor.service(command, log) as process:
                    self._wait_until_it_answers(process, client)
                    yield lambda name, *args, seconds=0.0: self._call(
                        name, *args, env=client, seconds=seconds
                    )
            except LabError as error:
                raise LegError(f"{error}: {_tail(log)}") from error
            if "cannot be preloaded" in log.read_text(errors="replace"):
                raise LegError(f"the server: {_tail(log)}")

    def _wait_until_it_answers(self, process, client: Mapping[str, str]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(LegError):
                self._call("pg_isready", "-q", env=client)
                return
            if process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"the server does not start (ended with {process.returncode})")
            time.sleep(0.05)

    def _bench(self, call, seconds: float) -> tuple[int, float, float]:
        """Transactions, seconds and mean latency; pgbench counts whole seconds."""
        whole = max(1, round(seconds))
        out = call(
            "pgbench", "-n", "-N", "-M", "prepared", "-c", str(self._clients), "-j", str(min(self._clients, 2)),
            "-T", str(whole), seconds=whole,
        ).stdout  # fmt: skip
        return pgbench_result(out)


def pgbench_result(out: str) -> tuple[int, float, float]:
    """Transactions, seconds without the time of connecting, mean latency in microseconds."""
    count = re.search(r"^number of transactions actually processed: (\d+)", out, re.MULTILINE)
    tps = re.search(r"^tps = ([\d.]+) \(without", out, re.MULTILINE)
    latency = re.search(r"^latency average = ([\d.]+) ms", out, re.MULTILINE)
    failed = re.search(r"^number of failed transactions: (\d+)", out, re.MULTILINE)
    if not (count and tps and latency) or (failed and int(failed[1])):
        raise LegError(f"pgbench: {out.strip()[-300:]}")
    if int(count[1]) == 0:
        raise LegError("pgbench: not one transaction")
    return int(count[1]), int(count[1]) / float(tps[1]), float(latency[1]) * 1000


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-4:])[-400:]


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
    return {"sqlite": sqlite3.sqlite_version, "postgresql": found.parent.name if found else None}


def all_cells(programs: Programs) -> dict[str, Cell]:
    return {
        "floor": Records(programs, "floor", 1),
        "append-1": Records(programs, "append", 1),
        "append-16": Records(programs, "append", 16),
        "sqlite-delete": Sqlite(programs, "delete"),
        "sqlite-wal": Sqlite(programs, "wal"),
        "postgres-1": Postgres(programs, 1),
        "postgres-8": Postgres(programs, 8),
    }
