# SPDX-License-Identifier: Apache-2.0
"""Running the command: each time in a fresh copy of its directory, natively, under the shim, or traced."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.ab import equality, trace, twin
from harness.ab.equality import Left
from harness.core.clock import Clock
from harness.core.executor import Command, RealExecutor
from harness.core.model import LabError
from harness.core.sampler import SECTOR_BYTES, parse_diskstats
from harness.core.shim import Counters, Shim, counters
from harness.core.workdir import WorkDir

PLACEHOLDER = "{dir}"
ERROR_CHARACTERS = 300
RESULTS = ("result", "output", "errors", "statistics")
"""What every run writes beside the command's directory."""


@dataclass(frozen=True)
class Job:
    """What is compared. source: the directory that every run gets a copy of (None: an empty one); stdin: the file
    that every run reads as its standard input (None: it is empty)."""

    argv: tuple[str, ...]
    source: Path | None = None
    prepare: str = ""
    compare: tuple[str, ...] = ()
    stdin: Path | None = None


@dataclass(frozen=True)
class Run:
    """One run. seconds: fork to end; drain: from then until the file system had it all on the disk."""

    seconds: float
    status: int
    max_rss_kb: int
    user_seconds: float
    system_seconds: float
    drain_seconds: float
    device_bytes: int | None
    left_processes: int
    left: Left | None = field(repr=False)
    shim: Counters | None = None
    statistics: str = ""

    @property
    def processor_seconds(self) -> float:
        return self.user_seconds + self.system_seconds


class Bench:
    """Where runs take place; `root` is the command's directory, at the same path in every run."""

    def __init__(self, work: WorkDir, programs: Path, shim: Shim, job: Job, executor: RealExecutor, clock: Clock,
                 device: str | None) -> None:  # fmt: skip
        self._programs, self._shim, self._job = programs, shim, job
        self._executor, self._clock, self._device = executor, clock, device
        self.root = Path(os.path.realpath(work.data)) / "run"
        self.control = work.control
        self._libc = ctypes.CDLL(None, use_errno=True)

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(word.replace(PLACEHOLDER, str(self.root)) for word in self._job.argv)

    def run(self, rule: Mapping[str, str] | None = None) -> Run:
        """The command once: natively, or with the variables of a rule under the shim."""
        return self._measure(self.argv, self._env(rule), look=True)

    def trace(self) -> Path:
        """The command once, natively, traced in detail; where the trace is."""
        prefix = self.control / "trace"
        self._traced(trace.options(prefix), None)
        return prefix

    def count(self, rule: Mapping[str, str] | None) -> dict[str, int]:
        """Calls by name of one traced run."""
        table = self.control / "counts"
        self._traced(["strace", "-f", "-qq", "-c", "-o", str(table)], rule)
        return trace.counts(table.read_text(encoding="utf-8", errors="backslashreplace"))

    def replay(self, made: twin.Script, think: float, rule: Mapping[str, str] | None = None, timed: bool = False,
               traced: Path | None = None) -> tuple[Run, twin.Tally]:  # fmt: skip
        """A script once; (run, tally). LabError when it cannot be replayed."""
        script, tally = self.control / "script", self.control / "tally"
        twin.write(script, made)
        tally.write_bytes(twin.empty_tally())
        argv = [str(self._programs / "lab-replay"), str(script), str(tally), f"{think:.6f}", "0"]
        argv = [*trace.options(traced), *argv] if traced else argv
        found = self._measure((*argv, "timed") if timed else argv, self._env(rule), made.directories)
        counted = twin.read_tally(tally.read_bytes())
        if found.status != 0:
            raise LabError(f"the replay ended with {found.status}: {self.said()}")
        return found, counted

    def _env(self, rule: Mapping[str, str] | None) -> dict[str, str]:
        if rule is None:
            return {}
        statistics = {"FASTWRITE_STATS": str(self.control / "statistics")}
        return {**self._shim.env(self.root, statistics), **rule}

    def _traced(self, before: Sequence[str], rule: Mapping[str, str] | None) -> None:
        # strace gives the variables to the command and stays without the shim itself.
        given = [word for name, value in self._env(rule).items() for word in ("-E", f"{name}={value}")]
        found = self._measure((*before, *given, "--", *self.argv), {})
        if found.status == 1 and "strace:" in self.said():
            raise LabError(f"strace may not trace here: {self.said()}")

    def fresh(self) -> equality.State:
        """Make and prepare a new copy of the directory; all earlier writes are on the disk before it returns."""
        shutil.rmtree(self.root, ignore_errors=True)
        for name in RESULTS:
            (self.control / name).unlink(missing_ok=True)
        if self._job.source is None:
            self.root.mkdir()
        else:
            shutil.copytree(self._job.source, self.root, symlinks=True)
        if self._job.prepare:
            done = self._executor.run(Command(("sh", "-c", self._job.prepare), cwd=str(self.root)))
            if done.returncode != 0:
                raise LabError(
                    f"--prepare ended with {done.returncode}: {done.stderr.strip()[-ERROR_CHARACTERS:]}"
                )
        self._settle()
        return equality.state(self.root)

    def _measure(self, argv: Sequence[str], env: Mapping[str, str], directories: Sequence[str] = (),
                 look: bool = False) -> Run:  # fmt: skip
        """One run by lab-launch; look: record its outputs, too."""
        before = self.fresh()
        for directory in directories:
            os.makedirs(directory, exist_ok=True)
        result, out, err, statistics = (self.control / name for name in RESULTS)
        given = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
        given = [*(("--stdin", str(self._job.stdin)) if self._job.stdin else ()), *given]
        launch = [str(self._programs / "lab-launch"), "--result", str(result), "--stdout", str(out), "--stderr",
                  str(err), *given, "--", *argv]  # fmt: skip
        sectors = self._sectors()
        done = self._executor.run(Command(tuple(launch), cwd=str(self.root)))
        if done.returncode != 0:
            raise LabError(
                f"lab-launch ended with {done.returncode}: {done.stderr.strip()[-ERROR_CHARACTERS:]}"
            )
        drain = self._settle()
        after = self._sectors()
        told = json.loads(result.read_text(encoding="utf-8"))
        status = -told["signal"] if told["signal"] else told["status"]
        text = (
            statistics.read_text(encoding="utf-8", errors="backslashreplace") if statistics.exists() else ""
        )
        left = equality.left(self.root, before, status, out, self._job.compare) if look else None
        return Run(
            told["seconds"], status, told["max_rss_kb"], told["user_seconds"], told["system_seconds"], drain,
            (after - sectors) * SECTOR_BYTES if sectors is not None and after is not None else None, told["left"],
            left, counters(text) if env else None, text,
        )  # fmt: skip

    def said(self) -> str:
        """The end of what the last run wrote to standard error."""
        return (
            (self.control / "errors")
            .read_text(encoding="utf-8", errors="replace")
            .strip()[-ERROR_CHARACTERS:]
        )

    def _settle(self) -> float:
        """Seconds until the file system of the work directory has everything on the disk."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        begin = self._clock.monotonic()
        try:
            if self._libc.syncfs(fd) != 0:
                number = ctypes.get_errno()
                raise LabError(f"{self.root}: syncfs: {os.strerror(number)}")
        finally:
            os.close(fd)
        return self._clock.monotonic() - begin

    def _sectors(self) -> int | None:
        if self._device is None:
            return None
        found = parse_diskstats(Path("/proc/diskstats").read_text(encoding="utf-8"), self._device)
        return found[1] if found else None
