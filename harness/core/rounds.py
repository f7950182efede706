# SPDX-License-Identifier: Apache-2.0
"""A benchmark of cells in interleaved rounds, kept in one JSON file: what `sync` and `cost` stand on.

Every round runs every variant of every cell once, the variants of a cell next to each other in shuffled
order, so that figures are compared in pairs. Every leg is verified; one that is wrong has no figures.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from harness.core import build, environment, interrupt, shim, warm
from harness.core.cell import Cell, LegError, Place, Programs, Timing
from harness.core.clock import RealClock
from harness.core.executor import RealExecutor
from harness.core.model import FAILED, OK, SKIPPED, LabError, MountSpec
from harness.core.mounts import Mounts
from harness.core.workdir import WORK, WorkDir

FORMAT = 1
WARM_BYTES = 256 << 20
FRESH_MIB = 4 << 10
FRESH = ("ext4", "xfs")


class Variant(Protocol):
    """How a program is run; each benchmark has its own."""

    name: str


@dataclass(frozen=True)
class Leg:
    cell: str
    variant: Variant
    round: int


@dataclass
class Record:
    """A benchmark as it is kept: settings, machine, what was skipped, every leg's sample."""

    kind: ClassVar[str]

    settings: dict
    environment: dict
    skipped: dict[str, str] = field(default_factory=dict)
    samples: list[dict] = field(default_factory=list)

    def save(self, path: Path) -> None:
        temporary = path.with_name(path.name + ".new")
        whole = {"format": FORMAT, "kind": self.kind, **vars(self)}
        temporary.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        temporary.rename(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if (found["format"], found["kind"]) != (FORMAT, cls.kind):
                raise KeyError("format")
            return cls(found["settings"], found["environment"], found["skipped"], found["samples"])
        except OSError as error:
            raise LabError(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise LabError(f"{path}: is not a record of `{cls.kind}`") from error


class Samples:
    """What a record says, by cell and variant."""

    def __init__(self, record: Record) -> None:
        self._all = record.samples

    def of(self, cell: str, variant: str) -> list[dict]:
        return [s for s in self._all if (s["cell"], s["variant"]) == (cell, variant)]

    def good(self, cell: str, variant: str) -> dict[int, dict]:
        return {s["round"]: s for s in self.of(cell, variant) if s["status"] == OK}

    def values(self, cell: str, variant: str, key: str) -> list[float]:
        return list(self._by_round((cell, variant), key).values())

    def paired(
        self, below: tuple[str, str], above: tuple[str, str], key: str
    ) -> tuple[list[float], list[float]]:
        """Figures of the rounds in which both have one: (below, above)."""
        one, other = self._by_round(below, key), self._by_round(above, key)
        rounds = sorted(one.keys() & other.keys())
        return [one[r] for r in rounds], [other[r] for r in rounds]

    def _by_round(self, leg: tuple[str, str], key: str) -> dict[int, float]:
        return {n: s[key] for n, s in self.good(*leg).items() if s.get(key) is not None}

    @property
    def failed(self) -> bool:
        return any(s["status"] == FAILED for s in self._all)


def choose(names: str, known: Sequence[str]) -> tuple[str, ...]:
    """Cells of a comma-separated list; `postgres` and the like mean all that begin so. LabError."""
    if not names:
        return tuple(known)
    chosen = set()
    for name in filter(None, (n.strip() for n in names.split(","))):
        found = {c for c in known if c == name or c.startswith(name + "-")}
        if not found:
            raise LabError(f"--cells: '{name}' is none of {', '.join(known)}")
        chosen |= found
    return tuple(c for c in known if c in chosen)


def interleaved(settings, variants: Mapping[str, Sequence[Variant]], together=None) -> list[Leg]:
    """The legs in order; together: cells that are shuffled together, since their figures are compared.

    The same settings and seed give the same order.
    """
    shuffle = random.Random(settings.seed)
    legs = []
    for number in range(1, settings.pairs + 1):
        for cells in together or [(cell,) for cell in variants]:
            group = [Leg(c, v, number) for c in cells if c in settings.cells for v in variants[c]]
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
    sync: Callable[[], None] = field(default=os.sync, kw_only=True)

    @property
    def stage(self) -> Path:
        return self.disk / "stage"

    def place(self, env: Mapping[str, str]) -> Place:
        return Place(self.stage, self.work.control, self.programs, self.disk / "keep", env)

    def lacks(self, leg: Leg) -> tuple[str, str] | None:
        """What cannot be had here, and why; all legs that need it are skipped."""
        raise NotImplementedError

    def figures(self, leg: Leg, timing: Timing) -> dict:
        """Run a leg. LegError when it is wrong, LabError when it cannot be had here."""
        raise NotImplementedError


def run_leg(bench: Bench, leg: Leg, timing: Timing) -> dict:
    """The sample of one leg: with figures when everything verified, otherwise with the reason."""
    head = {"cell": leg.cell, "variant": leg.variant.name, "round": leg.round}
    fresh(bench)
    try:
        return {**head, "status": OK, **bench.figures(leg, timing)}
    except LegError as error:
        return {**head, "status": FAILED, "reason": str(error)}
    except LabError as error:
        return {**head, "status": SKIPPED, "reason": str(error)}


def fresh(bench: Bench) -> None:
    """Nothing of the leg before, not on the disk and not on its way there."""
    for path in (bench.stage, bench.work.control):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    (bench.disk / "keep").mkdir(exist_ok=True)
    bench.sync()


class Benchmark:
    """One kind of benchmark. settings: a dataclass with `cells`, `pairs`, `seed`, `warm` and `fresh`, which the
    record keeps."""

    record: type[Record]
    settings: type
    space: tuple[int, int]
    """Bytes and files of the largest leg."""
    leg_overhead_seconds: float

    def plan(self, settings) -> list[Leg]:
        raise NotImplementedError

    def timing(self, settings) -> Timing:
        raise NotImplementedError

    def bench(self, work: WorkDir, disk: Path, programs: Path, run: Programs) -> Bench:
        raise NotImplementedError

    def machine(self, bench: Bench) -> dict[str, object]:
        """What is recorded of the machine."""
        return environment.gather(bench.disk)


def resume(console: Console, benchmark: Benchmark, directory: Path | None, out: Path) -> Record:
    """Go on with an interrupted benchmark, with its own settings; directory: None for the one that it had."""
    earlier = benchmark.record.load(out)
    stored = dict(earlier.settings)
    stored.pop("started")
    directory = directory or Path(stored.pop("directory", WORK))
    stored.pop("directory", None)
    settings = benchmark.settings(**{**stored, "cells": tuple(stored["cells"])})
    return run(console, benchmark, settings, directory, out, earlier)


def run(
    console: Console,
    benchmark: Benchmark,
    settings,
    directory: Path,
    out: Path,
    earlier: Record | None = None,
) -> Record:
    """A whole benchmark, or what `earlier` has not yet; `out` has every sample so far at any time."""
    if earlier is None and os.path.lexists(out):
        raise LabError(f"{out}: exists already; use --resume {out} or another --out")
    executor, clock = RealExecutor(), RealClock()
    programs = build.programs(executor)
    work = WorkDir(directory)
    interrupt.watch()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"{out.parent}: cannot be created: {error.strerror}") from error
    with work:
        need_bytes, need_files = benchmark.space
        work.check_space(FRESH_MIB << 20 if settings.fresh else need_bytes, need_files)
        disk = fresh_disk(executor, work, settings.fresh) if settings.fresh else work.data
        bench = benchmark.bench(work, disk, programs, Programs(executor, clock))
        machine = benchmark.machine(bench)
        kept = {**asdict(settings), "directory": str(directory.absolute()), "started": clock.now()}
        record = benchmark.record(kept, machine)
        if earlier:
            apart = environment.differences(earlier.environment, machine)
            if apart:
                raise LabError(f"{out}: cannot be resumed here, they differ in:\n  " + "\n  ".join(apart))
            record = earlier
        if settings.warm:
            warm.touch(warm.amount(WARM_BYTES))
        legs = _left(bench, benchmark.plan(settings), record)
        timing = benchmark.timing(settings)
        for name, reason in record.skipped.items():
            _say(console, "[yellow]skipped:[/]", f"{name}: {reason}")
        minutes = len(legs) * (timing.seconds + timing.warmup + benchmark.leg_overhead_seconds) / 60
        _say(console, "", f"{len(legs)} legs, about {minutes:.0f} min; samples go to {out}")
        try:
            if earlier is None:
                record.save(out)
            _run_all(console, bench, legs, timing, record, out)
        except KeyboardInterrupt:
            interrupt.say(console, escape(f"\ngo on with: python -m harness {record.kind} --resume {out}"))
            raise
        finally:
            record.save(out)
    return record


def fresh_disk(executor: RealExecutor, work: WorkDir, filesystem: str) -> Path:
    """A new file system on a loop device with O_DIRECT, so that a flush reaches the disk below."""
    if filesystem not in FRESH:
        raise LabError(f"--fresh: '{filesystem}' is none of {', '.join(FRESH)}")
    spec = MountSpec(filesystem, {"": FRESH_MIB}, direct=True)
    mounts = Mounts(executor, work.path, work.note_queues)
    if reason := mounts.why_not(spec):
        raise LabError(f"--fresh {filesystem}: {reason}")
    return mounts.make(spec, FRESH_MIB).data


def _left(bench: Bench, legs: Sequence[Leg], record: Record) -> list[Leg]:
    done = {(s["cell"], s["variant"], s["round"]) for s in record.samples}
    return list(_possible(bench, [g for g in legs if (g.cell, g.variant.name, g.round) not in done], record))


def _possible(bench: Bench, legs: Sequence[Leg], record: Record) -> Iterator[Leg]:
    """The legs that can be run; the reasons of the others go into the record."""
    built = bench.shim if isinstance(bench.shim, shim.Shim) else None
    missing = {c: bench.cells[c].missing(bench.disk, built) for c in dict.fromkeys(leg.cell for leg in legs)}
    for leg in legs:
        if reason := missing[leg.cell]:
            record.skipped[leg.cell] = reason
        elif lack := bench.lacks(leg):
            record.skipped[lack[0]] = lack[1]
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
                colour = "bold red" if sample["status"] == FAILED else "yellow"
                text = f"{leg.cell}, {leg.variant.name}, round {leg.round}: {sample['reason']}"
                _say(console, f"[{colour}]{sample['status']}:[/]", text)
            progress.advance(task)


def _say(console: Console, head: str, text: str) -> None:
    console.print(f"{head} {escape(text)}" if head else escape(text), highlight=False, soft_wrap=True)
