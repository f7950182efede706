# SPDX-License-Identifier: Apache-2.0
"""The suite `cost`: rows natively, with the library and no rule, with a rule elsewhere, and with a matching rule.

Beside the timed legs each row is run once under strace in every variant: round COUNTED, which has no times.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.core import rounds, shim
from harness.core.cell import LegError, Place, Programs, Timing
from harness.core.rounds import Leg
from harness.core.workdir import WorkDir
from harness.cost.rows import all_rows

NATIVE, NO_RULE, ELSEWHERE, MATCHING = "native", "no rule", "rule elsewhere", "matching rule"
COUNTED = 0
STRACE_MISSING = "strace: not installed, or it may not trace here"
TRACED_SECONDS = 60.0
"""More than a leg under strace takes."""


@dataclass(frozen=True)
class Variant:
    """How a program is run. rule: the directory of the disk that its rule names, if it has one."""

    name: str
    preload: bool = True
    rule: str | None = None


VARIANTS = (
    Variant(NATIVE, preload=False),
    Variant(NO_RULE),
    Variant(ELSEWHERE, rule="elsewhere"),
    Variant(MATCHING, rule="stage"),
)
ROWS = tuple(all_rows())


@dataclass(frozen=True)
class Settings:
    cells: tuple[str, ...] = ROWS
    pairs: int = 7
    seconds: float = 0.2
    seed: int = 1
    warm: bool = True
    fresh: str = ""


class Record(rounds.Record):
    kind = "cost"


def plan(settings: Settings) -> list[Leg]:
    """The counting legs first: what a row lacks shows there."""
    counted = [Leg(cell, variant, COUNTED) for cell in ROWS if cell in settings.cells for variant in VARIANTS]
    return counted + rounds.interleaved(settings, dict.fromkeys(ROWS, VARIANTS))


@dataclass(frozen=True)
class Bench(rounds.Bench):
    """count: runs a program and counts its system calls (None: that cannot be had here)."""

    count: Callable[[tuple[str, ...], Place], dict[str, int]] | None = None

    def lacks(self, leg: Leg) -> tuple[str, str] | None:
        if leg.variant.preload and isinstance(self.shim, str):
            return leg.variant.name, self.shim
        if leg.round == COUNTED and self.count is None:
            return "system calls", STRACE_MISSING
        return None

    def env(self, variant: Variant) -> dict[str, str]:
        if not variant.preload:
            return {}
        if variant.rule is None:
            return shim.preload(self.shim.library)
        directory = self.disk / variant.rule
        directory.mkdir(exist_ok=True)
        return self.shim.env(directory, {}, "**")

    def figures(self, leg: Leg, timing: Timing) -> dict:
        row, place = self.cells[leg.cell], self.place(self.env(leg.variant))
        if leg.round == COUNTED:
            found = row.calls(place, timing, self.count, lambda: rounds.fresh(self))
            return {"calls": sum(found.values()), "calls_by_name": found}
        measured = row.run(place, timing)
        arena = measured.facts.get("arena", False)
        if arena and leg.variant.name != MATCHING:
            raise LegError("an arena is mapped, where nothing may be staged")
        if not arena and leg.variant.name == MATCHING and row.stages:
            raise LegError("the library staged nothing")
        return {**asdict(measured), "us": 1e6 * measured.seconds / measured.count, "rate": measured.rate}


class Benchmark(rounds.Benchmark):
    record = Record
    settings = Settings
    space = (1 << 30, 20_000)
    leg_overhead_seconds = 0.15

    def plan(self, settings: Settings) -> list[Leg]:
        return plan(settings)

    def timing(self, settings: Settings) -> Timing:
        return Timing(0, settings.seconds)

    def bench(self, work: WorkDir, disk: Path, programs: Path, run: Programs) -> Bench:
        return Bench(work, disk, all_rows(run), programs, shim.find(), count=counter(run, work.control))


def counter(programs: Programs, control: Path) -> Callable[[tuple[str, ...], Place], dict[str, int]] | None:
    """How to count system calls here; None when strace is missing or may not trace."""
    summary = control / "calls"

    def count(argv: tuple[str, ...], place: Place) -> dict[str, int]:
        env = [word for name, value in place.env.items() for word in ("-E", f"{name}={value}")]
        traced = ("strace", "-f", "-c", "-o", str(summary), *env, *argv)
        programs.run(traced, TRACED_SECONDS, cwd=str(place.stage))
        return calls(summary.read_text(encoding="utf-8"))

    if shutil.which("strace") is None:
        return None
    try:
        programs.run(("strace", "-f", "-c", "-o", str(summary), "true"))
    except LegError:
        return None
    return count


_CALLS = re.compile(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) (?: *\d+)? +(\w+)$", re.MULTILINE)


def calls(summary: str) -> dict[str, int]:
    """The table of `strace -c`: how often each call was made. LegError when it is none."""
    found = {name: int(count) for count, name in _CALLS.findall(summary) if name != "total"}
    if not found:
        raise LegError(f"strace: {summary.strip()[-300:] or 'it counted nothing'}")
    return found
