# SPDX-License-Identifier: Apache-2.0
"""Rows with more variants than native and shim: for each its figure, latencies, and what it may lose. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from harness.core import statistics
from harness.core.model import FAILED, MEASURE, NATIVE, OK, OWN, Experiment
from harness.core.samples import Samples, figure_of
from harness.core.variants import losses
from harness.report import present
from harness.report.summary import Row

LATENCIES = {"p50": "p50_us", "p95": "p95_us", "p99": "p99_us", "p99.9": "p999_us", "max": "max_us"}
HEADERS = (
    "variant",
    "per second",
    "× native",
    *(f"{name} µs" for name in LATENCIES),
    "checked",
    "kill -9 may lose",
    "a power loss may lose",
)
WORDS = ("variant", "checked", "kill -9 may lose", "a power loss may lose")


def wanted(rows: Sequence[Row]) -> list[Row]:
    """Rows of which `own` is a variant, which are those of applications."""
    return [row for row in rows if OWN in row.experiment.variants]


def lines(row: Row, samples: Samples) -> list[tuple[str, ...]]:
    """One text for each of HEADERS, for every variant of which there are legs."""
    experiment = row.experiment
    return [
        _line(row, variant, samples)
        for variant in experiment.variants
        if samples.of(experiment.id, MEASURE, variant, status="")
    ]


def _line(row: Row, variant: str, samples: Samples) -> tuple[str, ...]:
    experiment = row.experiment
    legs = samples.of(experiment.id, MEASURE, variant, status="")
    good = [s for s in legs if s["status"] == OK]
    words = losses(experiment, variant)
    if len(good) < len(legs):
        failed = any(s["status"] == FAILED for s in legs)
        told = "FAILED" if failed else "skipped"
        return (variant, told, *[present.NONE] * (len(LATENCIES) + 2), *words)
    figure = present.figure(row.figures.get(variant))
    return (
        variant, figure, _ratio(row, variant), *(_median(good, name) for name in LATENCIES.values()),
        good[-1]["verification"].get("checks") or present.NONE, *words,
    )  # fmt: skip


def _ratio(row: Row, variant: str) -> str:
    found = row.comparisons.get(variant)
    if found is None or variant == NATIVE:
        return present.NONE
    return f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]" if found.n > 1 else f"{found.ratio:.2f}"


def _median(good: list[dict], name: str) -> str:
    """Over the legs; of the longest, the longest."""
    values = [v for s in good if (v := figure_of(s, name)) is not None]
    if not values:
        return present.NONE
    return present.number(max(values) if name == "max_us" else statistics.interval(values).median)


def title(experiment: Experiment) -> str:
    return f"{experiment.id}: {experiment.title} ({experiment.figure_unit})"


def terminal(rows: Sequence[Row], samples: Samples) -> list[Table]:
    out = []
    for row in wanted(rows):
        table = Table(title=title(row.experiment), title_justify="left", caption=row.experiment.note,
                      caption_justify="left")  # fmt: skip
        for header in HEADERS:
            if header != "checked":
                table.add_column(header, justify="left" if header in WORDS else "right", overflow="fold")
        for line in lines(row, samples):
            shown = [c for c, header in zip(line, HEADERS, strict=True) if header != "checked"]
            table.add_row(*(f"[bold red]{c}[/]" if c == "FAILED" else escape(c) for c in shown))
        out.append(table)
    return out


def markdown(rows: Sequence[Row], samples: Samples) -> list[str]:
    """Lines of a document, a table per row; nothing when no row is wanted."""
    out: list[str] = []
    for row in wanted(rows):
        out += [f"### {title(row.experiment)}", "", row.experiment.note, ""]
        out += [*present.markdown_table(HEADERS, lines(row, samples)), ""]
    return ["## Variants", "", *out] if out else []
