# SPDX-License-Identifier: Apache-2.0
"""What workloads of several programs have in common: the benchmark of syncs and the applications stand on it.

A cell makes its leg's files in a fresh directory, `stage`, and answers with Measured; a result that does not
verify raises LegError, and the leg has no figures. Whether a cell can be had here says `missing`.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.core import shim
from harness.core.clock import Clock
from harness.core.executor import Command, Completed, RealExecutor, within
from harness.core.model import LabError

PATIENCE_SECONDS = 120.0
SOCKET_DIRECTORY_MAX = 80  # of the 107 bytes of a socket's path; the rest is its name


class LegError(Exception):
    """What was written is not there, or a program failed: the leg has no figures."""


class NotYetError(LegError):
    """The leg ended before the library did what it is measured for; a longer one may have figures."""


@dataclass(frozen=True)
class Measured:
    """One leg. count: counted operations; latencies of the single ones where the workload knows them, microseconds.

    total -- operations with those of the warming; facts -- what else the verification needs to know.
    """

    count: int
    seconds: float
    p50_us: float | None = None
    p90_us: float | None = None
    mean_us: float | None = None
    verified: Mapping[str, object] | None = None
    p95_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    max_us: float | None = None
    total: int = 0
    facts: Mapping[str, object] = field(default_factory=dict)

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


class Cell:
    """One workload."""

    unit = ""
    pattern = "**"  # of the managed files, below the stage
    by_journal = True  # the journal can answer its syncs
    served = False  # a server writes, which was seen to have the library

    def missing(self, work: Path, built: shim.Shim | None) -> str | None:
        """Why it cannot be run here; None when it can."""
        return None

    def measure(self, place: Place, timing: Timing) -> Measured:
        """Run it; every program that it started has ended."""
        raise NotImplementedError

    def verify(self, place: Place, measured: Measured) -> Mapping[str, object]:
        """Read everything back natively; returns what was checked. LegError for any mistake."""
        raise NotImplementedError

    def run(self, place: Place, timing: Timing) -> Measured:
        measured = self.measure(place, timing)
        return replace(measured, verified=self.verify(place, measured))


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

    @contextlib.contextmanager
    def server(self, command: Command, log: Path, ready: Callable[[], bool], **options) -> Iterator[None]:
        """Runs beside the body, which begins when `ready` says so. LegError when it does not start or end well."""
        name = Path(command.argv[0]).name
        try:
            with self.executor.service(command, log, **options) as process:
                deadline = self.clock.monotonic() + PATIENCE_SECONDS
                while not ready():
                    if process.poll() is not None or self.clock.monotonic() > deadline:
                        raise LabError(f"{name}: does not start (ended with {process.returncode})")
                    time.sleep(0.01)
                _under(command.env.get("LD_PRELOAD"), process.pid)
                yield
        except LabError as error:
            raise LegError(f"{error}: {tail(log)}") from error
        if "cannot be preloaded" in log.read_text(encoding="utf-8", errors="replace"):
            raise LegError(f"{name}: {tail(log)}")


def _under(library: str | None, pid: int) -> None:
    """LegError when the process is to have the library and does not."""
    with contextlib.suppress(OSError):  # (it ends: its status will say so)
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace") if library else ""
        if library and not shim.is_mapped(Path(library), maps):
            raise LegError(shim.ABSENT)


def tail(log: Path) -> str:
    return " | ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-4:])[-400:]


@contextlib.contextmanager
def socket_directory(control: Path) -> Iterator[Path]:
    """For a server's socket: with the leg's other files, or where its path is short enough for one."""
    if len(str(control)) <= SOCKET_DIRECTORY_MAX:
        path = control / "sockets"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        yield path
    else:
        with tempfile.TemporaryDirectory(prefix="fastwrite-lab-") as name:
            yield Path(name)


def counters(
    settings: Mapping[str, str], statistics: Path, by_journal: bool = True, served: bool = False
) -> shim.Counters:
    """Check that a leg ran under the library with these variables, by the library's counters. LegError when not.

    With sync = fdatasync or fsync nothing need be staged: frequent syncs leave the writes to the kernel.
    by_journal: with sync = journal it must have answered syncs. served: the library was seen in the server, which may
    have no statistics then (a file that is synced after each write is never looked at).
    """
    text = statistics.read_text(encoding="utf-8", errors="backslashreplace") if statistics.exists() else ""
    sync = settings.get("FASTWRITE_SYNC", "fdatasync")
    found = shim.counters(text)
    may_pass = sync in ("fdatasync", "fsync")
    if not text and not (served and may_pass):
        raise LegError(shim.ABSENT)
    if not found.staged_bytes and not may_pass:
        raise LegError("the library staged nothing")
    if sync == "journal" and by_journal and not found.syncs_by_journal:
        raise NotYetError(f"not one of {found.syncs} syncs was answered by the journal")
    return found
