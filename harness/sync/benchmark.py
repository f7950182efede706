# SPDX-License-Identifier: Apache-2.0
"""The benchmark of syncs: what a durable write costs natively, with the library, and with libeatmydata.

Every round runs every variant of every cell once, the variants of a cell next to each other in shuffled
order, so that figures are compared in pairs. Every leg is verified; one that is wrong has no figures. Under
the shim a leg must also have staged bytes, and with `journal` syncs must have been answered by the journal:
otherwise it would measure something else than its name says.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from harness.core import build, environment, shim, warm
from harness.core.cell import Cell, LegError, Measured, Place, Programs, Timing, counters
from harness.core.clock import RealClock
from harness.core.executor import RealExecutor
from harness.core.model import FAILED, OK, SKIPPED, LabError, MountSpec
from harness.core.mounts import Mounts
from harness.core.variants import NO_EATMYDATA, NOTHING, RECOVERED, RELAXED, UNWRITTEN, eatmydata
from harness.core.workdir import WORK, WorkDir
from harness.sync import cells as sync_cells

FORMAT = 1
SPACE_BYTES = 3 << 30
FRESH_MIB = 4 << 10
FRESH = ("ext4", "xfs")
WARM_BYTES = 256 << 20
OVERHEAD_SECONDS = 2.0

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
DATABASES = (*APPENDS[:3], _shim("journal, exclusive", RECOVERED, "journal", **_ALONE), *APPENDS[3:])
SERVERS = (
    _NATIVE,
    *(_shim(f"{sync}, exclusive", loses, sync, **_ALONE) for sync, loses in _POLICIES),
    _EATMYDATA,
)

VARIANTS: dict[str, tuple[Variant, ...]] = {
    "floor": (Variant(FLOOR, NOTHING),),
    "append-1": APPENDS,
    "append-16": APPENDS,
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


@dataclass(frozen=True)
class Leg:
    cell: str
    variant: Variant
    round: int


@dataclass
class Record:
    """A benchmark as it is kept, in one JSON file: settings, machine, what was skipped, every leg's sample."""

    settings: dict
    environment: dict
    skipped: dict[str, str] = field(default_factory=dict)
    samples: list[dict] = field(default_factory=list)

    def save(self, path: Path) -> None:
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(json.dumps({"format": FORMAT, "kind": "sync", **asdict(self)}, indent=1) + "\n")
        temporary.rename(path)

    @classmethod
    def load(cls, path: Path) -> Record:
        try:
            found = json.loads(path.read_text())
            if (found["format"], found["kind"]) != (FORMAT, "sync"):
                raise KeyError("format")
            return cls(found["settings"], found["environment"], found["skipped"], found["samples"])
        except OSError as error:
            raise LabError(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise LabError(f"{path}: is not a record of `sync`") from error


def choose(names: str) -> tuple[str, ...]:
    """Cells of a comma-separated list; `postgres` and the like mean all that begin so. LabError."""
    if not names:
        return tuple(VARIANTS)
    chosen = set()
    for name in filter(None, (n.strip() for n in names.split(","))):
        found = {c for c in VARIANTS if c == name or c.startswith(name + "-")}
        if not found:
            raise LabError(f"--cells: '{name}' is none of {', '.join(VARIANTS)}")
        chosen |= found
    return tuple(c for c in VARIANTS if c in chosen)


def plan(settings: Settings) -> list[Leg]:
    """The legs in order. The same settings and seed give the same plan."""
    shuffle = random.Random(settings.seed)
    legs = []
    for number in range(1, settings.pairs + 1):
        for cells in TOGETHER:
            group = [Leg(c, v, number) for c in cells if c in settings.cells for v in VARIANTS[c]]
            shuffle.shuffle(group)
            legs += group
    return legs


@dataclass(frozen=True)
class Bench:
    """What a run stands on; tests replace it. disk: where the legs write."""

    work: WorkDir
    disk: Path
    cells: Mapping[str, Cell]
    programs: Path
    shim: shim.Shim | str
    eatmydata: Path | None
    sync: Callable[[], None] = os.sync

    @property
    def stage(self) -> Path:
        return self.disk / "stage"

    def lacks(self, leg: Leg) -> str | None:
        """Why a variant cannot be run here."""
        if leg.variant.settings is not None and isinstance(self.shim, str):
            return self.shim
        if leg.variant.preload and self.eatmydata is None:
            return NO_EATMYDATA
        return None

    def env(self, leg: Leg, statistics: Path) -> dict[str, str]:
        if leg.variant.preload:
            return shim.preload(self.eatmydata)
        if leg.variant.settings is None:
            return {}
        more = {"FASTWRITE_STATS": str(statistics), **leg.variant.settings}
        return self.shim.env(self.stage, more, self.cells[leg.cell].pattern)


def run_leg(bench: Bench, leg: Leg, timing: Timing) -> dict:
    """The sample of one leg: with figures when everything verified, otherwise with the reason."""
    head = {"cell": leg.cell, "variant": leg.variant.name, "round": leg.round}
    _fresh(bench)
    statistics = bench.work.control / "statistics"
    place = Place(
        bench.stage, bench.work.control, bench.programs, bench.disk / "keep", bench.env(leg, statistics)
    )
    try:
        measured = bench.cells[leg.cell].run(place, timing)
        used = counters(leg.variant.settings, statistics) if leg.variant.settings else None
    except LegError as error:
        return {**head, "status": FAILED, "reason": str(error)}
    except LabError as error:
        return {**head, "status": SKIPPED, "reason": str(error)}
    return {**head, "status": OK, **_figures(measured), "shim": asdict(used) if used else None}


def _fresh(bench: Bench) -> None:
    """Nothing of the leg before, not on the disk and not on its way there."""
    for path in (bench.stage, bench.work.control):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    (bench.disk / "keep").mkdir(exist_ok=True)
    bench.sync()


def _figures(measured: Measured) -> dict:
    return {**asdict(measured), "rate": measured.rate}


def resume(console: Console, directory: Path | None, out: Path) -> Record:
    """Go on with an interrupted benchmark, with its own settings; directory: None for the one that it had."""
    earlier = Record.load(out)
    stored = dict(earlier.settings)
    stored.pop("started")
    directory = directory or Path(stored.pop("directory", WORK))
    stored.pop("directory", None)
    settings = Settings(**{**stored, "cells": tuple(stored["cells"])})
    return run(console, settings, directory, out, earlier)


def run(
    console: Console, settings: Settings, directory: Path, out: Path, earlier: Record | None = None
) -> Record:
    """A whole benchmark, or what `earlier` has not yet; `out` has every sample so far at any time."""
    executor, clock = RealExecutor(), RealClock()
    programs = build.programs(executor)
    workloads = sync_cells.all_cells(Programs(executor, clock))
    work = WorkDir(directory)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"{out.parent}: cannot be created: {error.strerror}") from error
    with work:
        work.check_space(FRESH_MIB << 20 if settings.fresh else SPACE_BYTES, 5000)
        disk = fresh_disk(executor, work, settings.fresh) if settings.fresh else work.data
        bench = Bench(work, disk, workloads, programs, shim.find(), eatmydata())
        machine = {**environment.gather(disk), **sync_cells.versions()}
        machine["eatmydata"] = bench.eatmydata.resolve().name if bench.eatmydata else None
        kept = {**asdict(settings), "directory": str(directory.absolute()), "started": clock.now()}
        record = Record(kept, machine)
        if earlier:
            apart = environment.differences(earlier.environment, machine)
            if apart:
                raise LabError(f"{out}: cannot be resumed here, they differ in:\n  " + "\n  ".join(apart))
            record = earlier
        if settings.warm:
            warm.touch(warm.amount(WARM_BYTES))
        done = {(s["cell"], s["variant"], s["round"]) for s in record.samples}
        left = [leg for leg in plan(settings) if (leg.cell, leg.variant.name, leg.round) not in done]
        legs = list(_possible(bench, left, record))
        for name, reason in record.skipped.items():
            console.print(
                f"[yellow]skipped:[/] {escape(name)}: {escape(reason)}", highlight=False, soft_wrap=True
            )
        minutes = len(legs) * (settings.seconds + settings.warmup + OVERHEAD_SECONDS) / 60
        console.print(
            f"{len(legs)} legs, about {minutes:.0f} min; samples go to {out}", highlight=False, soft_wrap=True
        )
        try:
            if earlier is None:
                record.save(out)
            _run_all(console, bench, legs, Timing(settings.warmup, settings.seconds), record, out)
        except KeyboardInterrupt:
            console.print(f"\ngo on with: python -m harness sync --resume {out}", soft_wrap=True)
            raise
        finally:
            record.save(out)
    return record


def fresh_disk(executor: RealExecutor, work: WorkDir, filesystem: str) -> Path:
    """A new file system on a loop device with O_DIRECT, so that a flush reaches the disk below."""
    spec = MountSpec(filesystem, {"": FRESH_MIB}, direct=True)
    mounts = Mounts(executor, work.path, work.note_queues)
    if reason := mounts.why_not(spec):
        raise LabError(f"--fresh {filesystem}: {reason}")
    return mounts.make(spec, FRESH_MIB).data


def _possible(bench: Bench, legs: Sequence[Leg], record: Record) -> Iterator[Leg]:
    """The legs that can be run; the reasons of the others go into the record."""
    built = bench.shim if isinstance(bench.shim, shim.Shim) else None
    missing = {c: bench.cells[c].missing(bench.disk, built) for c in dict.fromkeys(leg.cell for leg in legs)}
    for leg in legs:
        reason = missing[leg.cell]
        if reason:
            record.skipped[leg.cell] = reason
        elif reason := bench.lacks(leg):
            record.skipped[leg.variant.name] = reason
        else:
            yield leg


def _run_all(console, bench: Bench, legs: Sequence[Leg], timing: Timing, record: Record, out: Path) -> None:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(legs))
        for leg in legs:
            progress.update(task, description=f"round {leg.round}: {leg.cell}, {leg.variant.name}")
            sample = run_leg(bench, leg, timing)
            record.samples.append(sample)
            record.save(out)
            if sample["status"] != OK:
                text = f"{leg.cell}, {leg.variant.name}, round {leg.round}: {sample['reason']}"
                colour = "bold red" if sample["status"] == FAILED else "yellow"
                console.print(
                    f"[{colour}]{sample['status']}:[/] {escape(text)}", highlight=False, soft_wrap=True
                )
            progress.advance(task)
