# SPDX-License-Identifier: Apache-2.0
"""Table and targets of the suite `cost`, from its record. Pure."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from harness.core import statistics
from harness.core.model import FAILED, OK, Target
from harness.core.rounds import Samples
from harness.cost.benchmark import COUNTED, ELSEWHERE, MATCHING, NATIVE, NO_RULE, VARIANTS, Record
from harness.cost.rows import all_rows
from harness.report import goals, present
from harness.report import targets as bench
from harness.report.goals import Goal

TITLES = {name: row.title for name, row in all_rows().items()}
WITH = (NO_RULE, ELSEWHERE, MATCHING)
HEADERS = ("row", "one operation", "native µs", *WITH, "system calls")


def rows(record: Record) -> list[tuple[str, ...]]:
    """A row for each cell of which there are legs: one text for each of HEADERS."""
    samples = Samples(record)
    return [
        (
            cell,
            title,
            _native(samples, cell),
            *(_with(samples, cell, variant) for variant in WITH),
            _calls(samples, cell),
        )
        for cell, title in TITLES.items()
        if samples.of(cell, NATIVE)
    ]


def _bad(samples: Samples, cell: str, variant: str) -> str | None:
    found = {s["status"] for s in samples.of(cell, variant)} - {OK}
    return None if not found else "FAILED" if FAILED in found else "skipped"


def _native(samples: Samples, cell: str) -> str:
    found = samples.values(cell, NATIVE, "us")
    return _bad(samples, cell, NATIVE) or (
        present.interval(statistics.interval(found)) if found else present.NONE
    )


def _with(samples: Samples, cell: str, variant: str) -> str:
    """How often the native time, with its interval, and how many microseconds more."""
    below, above = samples.paired((cell, NATIVE), (cell, variant), "us")
    if bad := _bad(samples, cell, variant):
        return bad
    if not below:
        return present.NONE
    ratio = statistics.interval([b / a for a, b in zip(below, above, strict=True)])
    more = statistics.median([b - a for a, b in zip(below, above, strict=True)])
    ends = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.known else ""
    sign = "+" if more >= 0 else "−"
    return f"{ratio.median:.2f} ×{ends}, {sign}{present.number(abs(more))}"


def _calls(samples: Samples, cell: str) -> str:
    """Of one operation, in the order of the variants."""
    found = [samples.good(cell, variant.name).get(COUNTED) for variant in VARIANTS]
    if not any(found):
        return present.NONE
    return " / ".join(_number(sample["calls"]) if sample else present.NONE for sample in found)


def _number(calls: float) -> str:
    return f"{calls:,.1f}".removesuffix(".0")


def terminal(record: Record) -> list[Table]:
    found = rows(record)
    if not found:
        return []
    table = Table(title="Costs: × native and more µs; system calls native / no rule / elsewhere / matching",
                  title_justify="left")  # fmt: skip
    for i, header in enumerate(HEADERS):
        table.add_column(header, justify="left" if i < 2 else "right", overflow="fold")
    for row in found:
        table.add_row(*(f"[bold red]{text}[/]" if text == "FAILED" else escape(text) for text in row))
    return [table]


def markdown(record: Record) -> str:
    """The same for a document: how it was measured, the table, what was skipped, the targets."""
    settings = record.settings
    lines = [
        f"{settings['pairs']} interleaved rounds; medians, in brackets 95 % intervals; every leg verified. With the "
        "library: how often the native time, and how many µs more. System calls of one operation: native / no rule "
        "/ rule elsewhere / matching rule, counted by strace in a run of its own.",
        "",
        f"Machine: {present.machine(record.environment)}.",
        "",
        *present.markdown_table(HEADERS, rows(record), range(2, len(HEADERS))),
    ]
    if record.skipped:
        lines += ["", *(f"- skipped: {name}: {reason}" for name, reason in record.skipped.items())]
    return "\n".join([*lines, *goals.markdown(targets(record))]) + "\n"


def _more(name: str, cell: str, variant: str, at_most: float) -> Goal:
    target = Target(name, f"{cell}: {variant}, more than native", "", at_most=at_most, unit="µs")
    return Goal(target, (cell, NATIVE), (cell, variant), "us", more=True)


def _times(name: str, cell: str, at_most: float, variant: str = MATCHING) -> Goal:
    target = Target(name, f"{cell}: {variant} / native, time", "", at_most=at_most)
    return Goal(target, (cell, NATIVE), (cell, variant), "us")


def _not_dearer(name: str, cell: str) -> Goal:
    target = Target(name, f"{cell}: {MATCHING} / native, time, not dearer beyond the interval", "", at_most=1)
    return Goal(target, (cell, NATIVE), (cell, MATCHING), "us", within=True)


GOALS = (
    _more("c1", "start", NO_RULE, 50),
    _more("c2", "start", MATCHING, 120),
    _more("c3", "ten-appends", MATCHING, 400),
    _times("c4", "fork", 1.05),
    _times("c5", "fork-staged", 1.25),
    _times("c6", "append-1", 1.2),
    _times("c7", "append-3", 1.4),
    _times("c8", "append-1-beside", 1.2),
    _times("c9", "append-3-beside", 1.4),
    _times("c10", "small-files", 1.05),
    _times("c11", "sed", 1.2),
    _times("c12", "cmake-ninja", 1.06),
    _times("c13", "select", 1.1),
    _times("c14", "lock", 1.15, ELSEWHERE),
    Goal(
        Target("c15", f"mmap-window: {MATCHING} / native, bytes per second", "", at_least=0.98),
        ("mmap-window", NATIVE),
        ("mmap-window", MATCHING),
        "rate",
    ),
    _not_dearer("c16", "gcc"),
    _not_dearer("c17", "git"),
    _not_dearer("c18", "tar"),
    _not_dearer("c19", "pip"),
    _not_dearer("c20", "python-logging"),
)


def targets(record: Record) -> list[bench.Result]:
    return goals.judge(GOALS, record)
