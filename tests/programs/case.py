# SPDX-License-Identifier: Apache-2.0
"""What a real program's module provides, and how one is taken through its legs."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from programs.place import KILL, NATIVE, SHIM, WAYS, Place, Tools, placed

# SQLite and MariaDB gain much, and all others must get along with it.
ORDERED = {"sync": "ordered", "writers": "exclusive"}


class Case:
    """One line of the table.  A subclass says how the program is run, checked and killed."""

    name = ""
    # command that must be there -> Debian package that has it
    needs: dict[str, str] = {}  # noqa: RUF012
    # what must be there after kill -9 and recovery, in one sentence
    survives = ""
    # settings of the library for which the leg `shim` is run, beside ORDERED; the first is used for kills too
    settings: tuple[dict[str, object], ...] = ({"sync": "fdatasync"}, {"sync": "fsync"})
    # why no byte is staged ("" = bytes must be staged), and what else the library does not do for this program
    unstaged = ""
    unordered = ""  # why ORDERED is not for it
    gap = ""
    user: str | None = None
    ways: tuple[str, ...] = WAYS
    kills = 6  # of a long run
    in_quick = True  # part of the bounded test

    def missing(self) -> str:
        """Why it cannot run here; "" when it can."""
        lacking = {package for command, package in self.needs.items() if not self.find(command)}
        if lacking:
            return f"not installed: {', '.join(sorted(lacking))}"
        return ""

    def find(self, command: str) -> str | None:
        return shutil.which(command, path="/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")

    def run(self, place: Place) -> object:
        """The program's work from beginning to end, checked by the program's own tool.  What it returns must
        be the same natively and under the library."""
        raise NotImplementedError

    def kill(self, place: Place) -> None:
        """Work, kill -9 in the middle, recovery (place.bring_back), the program's own recovery; checks that
        what `survives` says is there."""
        raise NotImplementedError

    def version(self) -> str:
        return ""


@dataclass
class Leg:
    """How one column of the table came out."""

    ok: bool = True
    text: str = ""
    staged: int = 0
    runs: int = 0
    seconds: float = 0.0
    through: dict[str, int] = field(default_factory=dict)


@dataclass
class Row:
    """One line of the table."""

    case: Case
    skipped: str = ""
    legs: dict[str, Leg] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return not all(leg.ok for leg in self.legs.values())

    @property
    def ok(self) -> bool:
        return not self.skipped and not self.failed


def difference(native: object, shim: object) -> str:
    """Short, for a message."""
    if isinstance(native, dict) and isinstance(shim, dict):
        keys = [key for key in {**native, **shim} if native.get(key) != shim.get(key)]
        return "; ".join(f"{key}: {native.get(key)!r} natively, {shim.get(key)!r} here" for key in keys[:5])
    return f"{native!r} natively, {shim!r} here"[:2000]


def one_run(case: Case, tools: Tools, settings: dict[str, object], native: object, **options: object) -> Leg:
    """The leg `shim` with these settings."""
    leg = Leg(runs=1)
    with placed(tools, SHIM, settings=settings, user=case.user, **options) as place:
        result = case.run(place)
        assert result == native, f"another result: {difference(native, result)}"
        place.clean()
        leg.staged = place.staged()
        leg.through = place.stats().through
    if not case.unstaged:
        assert leg.staged > 0, f"nothing was staged: {leg.through}"
    return leg


def one_kill(case: Case, tools: Tools, way: str, seed: int, **options: object) -> Leg:
    """One kill -9; what was staged at it, or before."""
    leg = Leg(runs=1)
    settings = ORDERED if seed % 2 == 0 and not case.unordered else case.settings[0]
    with placed(tools, KILL, way=way, settings=settings, user=case.user, seed=seed, **options) as place:
        case.kill(place)
        place.clean()
        leg.staged = place.staged()
    return leg


def gather(row: Row, name: str, runs: Iterable[tuple[str, object]]) -> bool:
    """Runs the parts of a leg (what it is called in a message, function) and adds them up."""
    total = row.legs.setdefault(name, Leg())
    begin = time.monotonic()
    for label, call in runs:
        try:
            leg = call()
        except (AssertionError, OSError, subprocess.SubprocessError, ValueError, KeyError) as failed:
            total.ok = False
            total.text = f"{label}: {type(failed).__name__}: {str(failed)[:3000]}".strip()
            break
        total.runs += leg.runs
        total.staged += leg.staged
        for why, count in leg.through.items():
            total.through[why] = total.through.get(why, 0) + count
    total.seconds = time.monotonic() - begin
    return total.ok


MORE_KILLS = 20  # at most, until one finds staged bytes


def take(case: Case, tools: Tools, *, quick: bool, kills: int, seed: int = 1, keep: bool = False) -> Row:
    """Takes a program through all its legs."""
    row = Row(case, case.missing())
    if row.skipped:
        return row
    options = {"quick": quick, "keep": keep}
    native: list[object] = []

    def run_native() -> Leg:
        with placed(tools, NATIVE, user=case.user, **options) as place:
            native.append(case.run(place))
        return Leg(runs=1)

    if not gather(row, NATIVE, [("natively", run_native)]):
        return row
    settings = case.settings[:1] if quick else case.settings
    if not case.unordered:
        settings += (ORDERED,)
    gather(
        row,
        SHIM,
        [(f"{one}", lambda one=one: one_run(case, tools, one, native[0], **options)) for one in settings],
    )

    def kill_by(number: int) -> Leg:
        return one_kill(case, tools, case.ways[number % len(case.ways)], number, **options)

    def gather_kills(numbers: range) -> Leg:
        gather(
            row,
            KILL,
            [
                (f"kill {number} ({case.ways[number % len(case.ways)]})", partial(kill_by, number))
                for number in numbers
            ],
        )
        return row.legs[KILL]

    killed = gather_kills(range(seed, seed + kills))
    # a kill may come before the first staged byte, or just after a flush: on a busy machine, several in a row
    for number in range(seed + kills, seed + kills + MORE_KILLS):
        if not killed.ok or not kills or case.unstaged or killed.staged > 0:
            break
        killed = gather_kills(range(number, number + 1))
    if killed.ok and killed.runs and not case.unstaged and killed.staged == 0:
        killed.ok, killed.text = False, "nothing was staged before any of the kills"
    return row
