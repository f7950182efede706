# SPDX-License-Identifier: Apache-2.0
"""The benchmark of syncs: what a durable write costs natively, with the library, and with libeatmydata.

Under the shim a leg must have staged bytes, and with `journal` syncs must have been answered by the journal,
but in mode DELETE of SQLite: otherwise it would measure something else than its name says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.core import rounds, shim
from harness.core.cell import Measured, Programs, Timing, counters
from harness.core.rounds import Leg
from harness.core.variants import (
    NO_EATMYDATA,
    NOTHING,
    ORDERED,
    RECOVERED,
    RELAXED,
    UNWRITTEN,
    eatmydata,
)
from harness.core.workdir import WorkDir
from harness.sync import cells as sync_cells

NATIVE, FLOOR, EATMYDATA = "native", "device floor", "libeatmydata"


@dataclass(frozen=True)
class Variant:
    """How a program is run. settings: of the shim (None: without it); loses: what a power loss may take."""

    name: str
    loses: str
    settings: Mapping[str, str] | None = None
    preload: bool = False

    @property
    def by_journal(self) -> bool:
        return bool(self.settings) and self.settings["FASTWRITE_SYNC"] == "journal"


def _shim(name: str, loses: str, sync: str, **more: str) -> Variant:
    return Variant(name, loses, {"FASTWRITE_SYNC": sync, **more})


_NATIVE = Variant(NATIVE, NOTHING)
_EATMYDATA = Variant(EATMYDATA, UNWRITTEN, preload=True)
_POLICIES = (("fdatasync", NOTHING), ("journal", RECOVERED), ("relaxed", RELAXED), ("off", UNWRITTEN))
_ALONE = {"FASTWRITE_WRITERS": "exclusive"}

APPENDS = (_NATIVE, *(_shim(sync, loses, sync) for sync, loses in _POLICIES), _EATMYDATA)
DATABASES = (
    *APPENDS[:3],
    _shim("journal, exclusive", RECOVERED, "journal", **_ALONE),
    _shim("ordered", ORDERED, "ordered"),
    _shim("ordered, exclusive", ORDERED, "ordered", **_ALONE),
    *APPENDS[3:],
)
SERVERS = (
    _NATIVE,
    *(_shim(f"{sync}, exclusive", loses, sync, **_ALONE) for sync, loses in _POLICIES),
    _EATMYDATA,
)

BULK = (*APPENDS[:2], _shim("ordered, exclusive", ORDERED, "ordered", **_ALONE), _EATMYDATA)

VARIANTS: dict[str, tuple[Variant, ...]] = {
    "floor": (Variant(FLOOR, NOTHING),),
    "append-1": APPENDS,
    "append-16": APPENDS,
    "bulk-4k": BULK,
    "bulk-64k": BULK,
    "sqlite-delete": DATABASES,
    "sqlite-wal": DATABASES,
    "postgres-1": SERVERS,
    "postgres-8": SERVERS,
}
TOGETHER = (("floor", "append-1"), *((cell,) for cell in VARIANTS if cell not in ("floor", "append-1")))
"""Cells whose figures are compared, and which are shuffled together therefore."""


@dataclass(frozen=True)
class Settings:
    cells: tuple[str, ...] = tuple(VARIANTS)
    pairs: int = 7
    seconds: float = 3.0
    warmup: float = 1.0
    seed: int = 1
    warm: bool = True
    fresh: str = ""
    """A file system that is made for the run, with what its mkfs gives it (ext4: a journal)."""


class Record(rounds.Record):
    kind = "sync"


def plan(settings: Settings) -> list[Leg]:
    return rounds.interleaved(settings, VARIANTS, TOGETHER)


@dataclass(frozen=True)
class Bench(rounds.Bench):
    eatmydata: Path | None = None

    def lacks(self, leg: Leg) -> tuple[str, str] | None:
        if leg.variant.settings is not None and isinstance(self.shim, str):
            return leg.variant.name, self.shim
        if leg.variant.preload and self.eatmydata is None:
            return leg.variant.name, NO_EATMYDATA
        return None

    def env(self, leg: Leg, statistics: Path) -> dict[str, str]:
        if leg.variant.preload:
            return shim.preload(self.eatmydata)
        if leg.variant.settings is None:
            return {}
        more = {"FASTWRITE_STATS": str(statistics), **leg.variant.settings}
        return self.shim.env(self.stage, more, self.cells[leg.cell].pattern)

    def figures(self, leg: Leg, timing: Timing) -> dict:
        statistics = self.work.control / "statistics"
        cell = self.cells[leg.cell]
        measured = cell.run(self.place(self.env(leg, statistics)), timing)
        used = counters(leg.variant.settings, statistics, cell.by_journal) if leg.variant.settings else None
        return {**_figures(measured), "shim": asdict(used) if used else None}


def _figures(measured: Measured) -> dict:
    return {**asdict(measured), "rate": measured.rate}


class Benchmark(rounds.Benchmark):
    record = Record
    settings = Settings
    space = (3 << 30, 5000)
    leg_overhead_seconds = 2.0

    def plan(self, settings: Settings) -> list[Leg]:
        return plan(settings)

    def timing(self, settings: Settings) -> Timing:
        return Timing(settings.warmup, settings.seconds)

    def bench(self, work: WorkDir, disk: Path, programs: Path, run: Programs) -> Bench:
        return Bench(work, disk, sync_cells.all_cells(run), programs, shim.find(), eatmydata())

    def machine(self, bench: Bench) -> dict[str, object]:
        other = bench.eatmydata.resolve().name if bench.eatmydata else None
        return {**super().machine(bench), **sync_cells.versions(), "eatmydata": other}
