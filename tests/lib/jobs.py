# SPDX-License-Identifier: Apache-2.0
"""Runs test programs side by side, counts what they report, and remembers how long each took."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from lib.tap import Totals

SHOWN = 12
REASON_MAX = 1500  # characters


def workers() -> int:
    """How many programs run at a time.  Most tests wait for a disk or a timer: more than there are processors."""
    return int(os.environ.get("FASTWRITE_TEST_JOBS") or 2 * len(os.sched_getaffinity(0)))


@dataclass
class Record:
    """Seconds by name, and what failed.  FASTWRITE_TEST_TIMES and FASTWRITE_TEST_FAILURES: files that get a line for
    each, for the end of what .ci/run prints."""

    taken: list[tuple[float, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, seconds: float) -> None:
        self.taken.append((seconds, name))

    def fail(self, name: str, why: Iterable[str]) -> None:
        self.failures.append(f"{name}: {' | '.join(why)[:REASON_MAX]}")

    def table(self) -> str:
        slowest = sorted(self.taken, reverse=True)[:SHOWN]
        return "\n".join(["slowest:", *(f"{seconds:8.1f} s  {name}" for seconds, name in slowest)])

    def hand_on(self) -> None:
        if path := os.environ.get("FASTWRITE_TEST_TIMES"):
            with Path(path).open("a") as file:
                file.writelines(f"{seconds:.1f}\t{name}\n" for seconds, name in self.taken)
        if path := os.environ.get("FASTWRITE_TEST_FAILURES"):
            with Path(path).open("a") as file:
                file.writelines(f"{failure}\n" for failure in self.failures)


@dataclass(frozen=True)
class Outcome:
    """What a program reported; `said` is shown when something failed."""

    totals: Totals
    said: str = ""


@dataclass(frozen=True)
class Job:
    """A program, or one way to run it."""

    name: str
    run: Callable[[], Outcome]


def complaint(said: str) -> list[str]:
    """Of a TAP stream the tests that failed, with the reasons that follow each."""
    lines = said.splitlines()
    failed = [number for number, line in enumerate(lines) if line.startswith("not ok ")]
    return [
        line
        for number in failed
        for line in (lines[number], *takewhile(lambda line: line.startswith("# "), lines[number + 1 :]))
    ]


def run_jobs(jobs: Iterable[Job], record: Record) -> Totals:
    """All of them, in about this order; each is shown when it ends."""

    def timed(job: Job) -> tuple[Outcome, float]:
        begun = time.monotonic()
        outcome = job.run()
        return outcome, time.monotonic() - begun

    totals = Totals()
    with ThreadPoolExecutor(workers()) as pool:
        running = {pool.submit(timed, job): job for job in jobs}
        for future in as_completed(running):
            name = running[future].name
            outcome, seconds = future.result()
            record.add(name, seconds)
            print(f"{name}: {outcome.totals.line()}, {seconds:.1f} s", flush=True)
            if outcome.totals.failed:
                print(*outcome.totals.wrong, outcome.said, sep="\n", flush=True)
                record.fail(name, [*outcome.totals.wrong, *complaint(outcome.said)])
            totals.add(outcome.totals)
    return totals
