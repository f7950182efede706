# SPDX-License-Identifier: Apache-2.0
"""Tables and targets of the benchmark of syncs, from its record. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from harness.core import statistics
from harness.core.model import FAILED, OK, Target
from harness.core.rounds import Samples
from harness.report import goals, present
from harness.report import targets as bench
from harness.report.goals import Goal
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
    "bulk-4k": ("bulk-4k", "1 GiB in blocks of 4 KiB, one fdatasync at the end", "blocks"),
    "bulk-64k": ("bulk-64k", "1 GiB in blocks of 64 KiB, one fdatasync at the end", "blocks"),
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
        f"Machine: {present.machine(machine)}; SQLite {machine.get('sqlite')}, PostgreSQL "
        f"{machine.get('postgresql')}, {machine.get('eatmydata') or 'no libeatmydata'}.",
    ]
    for cell, (_, title, what) in TITLES.items():
        found = [row for row in rows(record) if row.cell == cell]
        if found:
            heads = (HEADERS[0], f"{what} per second", *HEADERS[2:])
            table = present.markdown_table(heads, [row.cells for row in found], range(1, 7))
            lines += ["", f"**{cell}**: {title}", "", *table]
    if record.skipped:
        lines += ["", *(f"- skipped: {name}: {reason}" for name, reason in record.skipped.items())]
    return "\n".join([*lines, *goals.markdown(targets(record))]) + "\n"


def _goal(name: str, text: str, below, above, at_least: float) -> Goal:
    return Goal(Target(name, text, "", at_least=at_least), below, above, "rate")


def _not_slower(name: str, cell: str) -> Goal:
    text = f"{cell}: fdatasync / native, not slower beyond the interval"
    target = Target(name, text, "", at_least=1)
    return Goal(target, (cell, NATIVE), (cell, "fdatasync"), "rate", within=True)


GOALS = (
    _goal("s1", "append-1: journal / native", ("append-1", NATIVE), ("append-1", "journal"), 1.8),
    Goal(
        Target("s2", "append-1: journal's p50 / the device floor's", "", at_most=1.15),
        ("floor", FLOOR),
        ("append-1", "journal"),
        "p50_us",
    ),
    _not_slower("s3", "append-1"),
    _not_slower("s4", "append-16"),
    _goal("s5", "append-16: journal / native", ("append-16", NATIVE), ("append-16", "journal"), 1.5),
    _goal("s6", "bulk-4k: ordered / native", ("bulk-4k", NATIVE), ("bulk-4k", "ordered, exclusive"), 0.85),
    _goal("s7", "bulk-64k: ordered / native", ("bulk-64k", NATIVE), ("bulk-64k", "ordered, exclusive"), 0.85),
)


def targets(record: Record) -> list[bench.Result]:
    return goals.judge(GOALS, record)
