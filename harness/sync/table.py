# SPDX-License-Identifier: Apache-2.0
"""Tables and targets of the benchmark of syncs, from its record. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from harness.core import statistics
from harness.core.model import FAILED, OK, Target
from harness.report import present
from harness.report import targets as bench
from harness.sync.benchmark import FLOOR, NATIVE, VARIANTS, Record, Variant

HEADERS = (
    "variant",
    "per second",
    "× native",
    "p50 µs",
    "p90 µs",
    "mean µs",
    "by the journal",
    "a power loss may lose",
)

TITLES = {
    "floor": ("append-1", "1 thread, 4 KiB append + fsync", "synced writes"),
    "append-1": ("append-1", "1 thread, 4 KiB append + fsync", "synced writes"),
    "append-16": ("append-16", "16 threads, a file each, 4 KiB append + fsync", "synced writes"),
    "sqlite-delete": (
        "sqlite-delete",
        "SQLite, journal_mode DELETE, synchronous FULL, a row per commit",
        "commits",
    ),
    "sqlite-wal": ("sqlite-wal", "SQLite, journal_mode WAL, synchronous FULL, a row per commit", "commits"),
    "postgres-1": ("postgres-1", "PostgreSQL, pgbench -N, 1 client", "transactions"),
    "postgres-8": ("postgres-8", "PostgreSQL, pgbench -N, 8 clients", "transactions"),
}


@dataclass(frozen=True)
class Row:
    """A variant of a cell; cells: one text for each of HEADERS."""

    cell: str
    cells: tuple[str, ...]


class Samples:
    """What a record says, by cell and variant."""

    def __init__(self, record: Record) -> None:
        self._all = record.samples

    def of(self, cell: str, variant: str) -> list[dict]:
        return [s for s in self._all if (s["cell"], s["variant"]) == (cell, variant)]

    def good(self, cell: str, variant: str) -> dict[int, dict]:
        return {s["round"]: s for s in self.of(cell, variant) if s["status"] == OK}

    def values(self, cell: str, variant: str, key: str) -> list[float]:
        return [s[key] for s in self.good(cell, variant).values() if s.get(key) is not None]

    def paired(
        self, below: tuple[str, str], above: tuple[str, str], key: str
    ) -> tuple[list[float], list[float]]:
        """Figures of the rounds in which both are good: (below, above)."""
        one, other = self.good(*below), self.good(*above)
        rounds = sorted(one.keys() & other.keys())
        return [one[r][key] for r in rounds], [other[r][key] for r in rounds]

    @property
    def failed(self) -> bool:
        return any(s["status"] == FAILED for s in self._all)


def rows(record: Record) -> list[Row]:
    """The floor first, then every variant of every cell of which there are legs."""
    samples = Samples(record)
    return [
        Row(TITLES[cell][0], _row(samples, cell, variant))
        for cell, variants in VARIANTS.items()
        for variant in variants
        if samples.of(cell, variant.name)
    ]


def _row(samples: Samples, cell: str, variant: Variant) -> tuple[str, ...]:
    name = variant.name
    bad = [s for s in samples.of(cell, name) if s["status"] != OK]
    if any(s["status"] == FAILED for s in bad):
        return (name, "FAILED", *[present.NONE] * 5, variant.loses)
    if bad:
        return (name, "skipped", *[present.NONE] * 5, variant.loses)

    def figure(key: str) -> str:
        found = samples.values(cell, name, key)
        return present.number(statistics.interval(found).median) if found else present.NONE

    rate = present.interval(statistics.interval(samples.values(cell, name, "rate")))
    return (
        name, rate, _ratio(samples, cell, name), figure("p50_us"), figure("p90_us"), figure("mean_us"),
        _share(samples, cell, name), variant.loses,
    )  # fmt: skip


def _ratio(samples: Samples, cell: str, name: str) -> str:
    native = "append-1" if cell == "floor" else cell
    below, above = samples.paired((native, NATIVE), (cell, name), "rate")
    if name == NATIVE or not below:
        return present.NONE
    found = statistics.compare(below, above)
    return f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]" if found.n > 1 else f"{found.ratio:.2f}"


def _share(samples: Samples, cell: str, name: str) -> str:
    """Syncs that the journal answered, of all that the program asked for."""
    found = [
        s["shim"] for s in samples.good(cell, name).values() if s["shim"] and s["shim"]["syncs_by_journal"]
    ]
    if not found:
        return present.NONE
    return f"{sum(s['syncs_by_journal'] for s in found) / sum(s['syncs'] for s in found):.0%}"


def terminal(record: Record) -> list[Table]:
    out = []
    for cell, (_, title, what) in TITLES.items():
        found = [row for row in rows(record) if row.cell == cell]
        if not found:
            continue
        table = Table(title=f"{cell}: {title} ({what} per second)", title_justify="left")
        for i, header in enumerate(HEADERS):
            table.add_column(
                header, justify="left" if i in (0, len(HEADERS) - 1) else "right", overflow="fold"
            )
        for row in found:
            table.add_row(*(f"[bold red]{c}[/]" if c == "FAILED" else escape(c) for c in row.cells))
        out.append(table)
    return out


def markdown(record: Record) -> str:
    """The same for a document: how it was measured, a table per cell, what was skipped, the targets."""
    settings, machine = record.settings, record.environment
    lines = [
        f"{settings['pairs']} interleaved rounds of {settings['seconds']:g} s after {settings['warmup']:g} s of "
        "warming; medians, in brackets 95 % intervals; every leg verified.",
        "",
        f"Machine: {machine.get('cpus')} processors ({machine.get('cpu')}), {_filesystem(machine)} on "
        f"{machine.get('device')} ({machine.get('write_cache')}, {machine.get('scheduler')}), kernel "
        f"{machine.get('kernel')}; SQLite {machine.get('sqlite')}, PostgreSQL {machine.get('postgresql')}, "
        f"{machine.get('eatmydata') or 'no libeatmydata'}.",
    ]
    for cell, (_, title, what) in TITLES.items():
        found = [row for row in rows(record) if row.cell == cell]
        if found:
            heads = (HEADERS[0], f"{what} per second", *HEADERS[2:])
            lines += ["", f"**{cell}**: {title}", "", _line(heads), _line(["---", *["---:"] * 6, "---"])]
            lines += [_line(row.cells) for row in found]
    if record.skipped:
        lines += ["", *(f"- skipped: {name}: {reason}" for name, reason in record.skipped.items())]
    results = targets(record)
    if not results:
        return "\n".join(lines) + "\n"
    lines += ["", _line(("target", "bound", "measured", "")), _line(("---", "---:", "---:", "---"))]
    for result in results:
        measured = present.interval(result.measured) if result.measured else present.NONE
        lines.append(_line((result.target.text, bench.bound(result.target), measured, result.verdict)))
    return "\n".join(lines) + "\n"


def _filesystem(machine: Mapping) -> str:
    """The file system's name, with or without a journal: that decides the cost of a native sync."""
    features = machine.get("filesystem_features")
    name = str(machine.get("filesystem"))
    if name != "ext4" or not features:
        return name
    return name if "has_journal" in features.split() else f"{name} without a journal"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


@dataclass(frozen=True)
class Goal:
    """What is asked of two figures, paired by round: the second over the first."""

    target: Target
    below: tuple[str, str]
    above: tuple[str, str]
    key: str
    holds: Callable[[statistics.Comparison], bool]


def _at_least(bound: float) -> Callable[[statistics.Comparison], bool]:
    return lambda found: found.ratio >= bound


def _goal(name: str, text: str, below, above, at_least: float) -> Goal:
    return Goal(Target(name, text, "", at_least=at_least), below, above, "rate", _at_least(at_least))


def _not_slower(name: str, cell: str) -> Goal:
    text = f"{cell}: fdatasync / native, not slower beyond the interval"
    return Goal(
        Target(name, text, "", at_least=1),
        (cell, NATIVE),
        (cell, "fdatasync"),
        "rate",
        lambda found: found.verdict != statistics.SLOWER,
    )


GOALS = (
    _goal("s1", "append-1: journal / native", ("append-1", NATIVE), ("append-1", "journal"), 1.8),
    Goal(
        Target("s2", "append-1: journal's p50 / the device floor's", "", at_most=1.15),
        ("floor", FLOOR),
        ("append-1", "journal"),
        "p50_us",
        lambda found: found.ratio <= 1.15,
    ),
    _not_slower("s3", "append-1"),
    _not_slower("s4", "append-16"),
    _goal("s5", "append-16: journal / native", ("append-16", NATIVE), ("append-16", "journal"), 1.5),
)


def targets(record: Record) -> list[bench.Result]:
    """Of the cells that were asked for."""
    asked = record.settings["cells"]
    samples = Samples(record)
    return [_judge(goal, samples) for goal in GOALS if goal.below[0] in asked and goal.above[0] in asked]


def _judge(goal: Goal, samples: Samples) -> bench.Result:
    below, above = samples.paired(goal.below, goal.above, goal.key)
    if not below:
        return bench.Result(goal.target, None, (), bench.NO_DATA)
    found = statistics.compare(below, above)
    measured = statistics.Interval(found.n, found.ratio, found.low, found.high)
    ends = [_inside(goal.target, value) for value in (found.low, found.high)]
    verdict = bench.PASS if goal.holds(found) else bench.MISS
    return bench.Result(goal.target, measured, found.ratios, verdict, found.n > 1 and len(set(ends)) == 1)


def _inside(target: Target, value: float) -> bool:
    return value >= target.at_least if target.at_least is not None else value <= target.at_most
